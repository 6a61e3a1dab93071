"""The engine: what is missing is unknown, what breaks is an error, and a snapshot gives the report again."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from netdoctor import engine
from netdoctor.api import CheckSpec, Finding, Gpus, Intent, Kernel, Vantage, check, fail, missing, ok, skip, unknown
from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.facts.base import Fact
from netdoctor.facts.registry import BESIDE_THE_RUN
from netdoctor.facts.runs import State
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.model import Kind, Severity, Status, Unavailable, plain
from netdoctor.report import json as as_json
from netdoctor.snapshot import snapshot
from netdoctor.snapshot.diagnose import diagnose
from tests.support import facts


@check(id="t.needs", title="Needs the kernel", cause="other")
def needs_kernel(kernel: Kernel) -> Iterator[Finding]:
    lost = missing(kernel.release)
    yield unknown(f"not seen: {lost}") if lost is not None else ok("seen", release=kernel.release)


@check(id="t.may", title="May do without", cause="other")
def may_lack(kernel: Kernel, job: Intent) -> Iterator[Finding]:
    yield ok("seen") if kernel.lost is None else fail("lacking", nodes=str(job.nodes))


@check(id="t.careless", title="Takes what was not read for content", cause="other")
def careless(kernel: Kernel) -> Iterator[Finding]:
    yield ok("no such parameter") if "iommu=on" not in (kernel.command_line or "") else fail("it is set")


@check(id="t.no_gpu", title="Skips where it finds no GPU", cause="other")
def no_gpu_here(gpus: Gpus) -> Iterator[Finding]:
    yield ok("cold") if gpus.all else skip("no GPU here")


@check(id="t.no_release", title="Skips without a release", cause="other")
def no_release(kernel: Kernel) -> Iterator[Finding]:
    yield ok("it has one") if kernel.release else skip("no release")


NO_NVML = Gpus(*[Unavailable("absent", "no libnvidia-ml")] * 4)  # type: ignore[arg-type]


@check(id="t.ctrl_c", title="Raises what Ctrl-C does", cause="other")
def raises_ctrl_c(kernel: Kernel) -> Iterator[Finding]:
    raise KeyboardInterrupt


@check(id="t.none", title="Yields nothing, by name", cause="other")
def yields_none(kernel: Kernel) -> Iterator[Finding]:
    yield ok("first")
    yield None  # type: ignore[misc]


@check(id="t.prints", title="Prints", cause="other")
def prints(kernel: Kernel) -> Iterator[Finding]:
    print("of Python")
    os.write(1, b"of the descriptor\n")
    subprocess.run(["echo", "of a child"], check=True)
    if (child := os.fork()) == 0:
        os._exit(7)
    yield ok(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))


@check(id="t.exit", title="Ends the program", cause="other")
def ends(kernel: Kernel) -> Iterator[Finding]:
    raise SystemExit(0)


@check(id="t.crash", title="Crashes", cause="other")
def crashes(kernel: Kernel) -> Iterator[Finding]:
    yield ok("first")
    raise RuntimeError("boom")


@check(id="t.silent", title="Says nothing", cause="other")
def silent(kernel: Kernel) -> Iterator[Finding]:
    yield from ()


@check(id="t.odd", title="Yields rubbish", cause="other")
def odd(kernel: Kernel) -> Iterator[Finding]:
    yield "fine"  # type: ignore[misc]


@check(id="t.word", title="Yields a word for a severity", cause="other")
def word(kernel: Kernel) -> Iterator[Finding]:
    yield fail("bad", severity="critical")  # type: ignore[arg-type]


def spec(function: Any) -> CheckSpec:
    found: CheckSpec = function.__netdoctor_check__
    return found


HAVE = {"Kernel": facts.kernel(), "Intent": Intent(), "Vantage": facts.vantage()}


@pytest.mark.parametrize(
    ("function", "have", "status"),
    [
        (needs_kernel, HAVE, Status.PASS),
        (needs_kernel, {}, Status.UNKNOWN),
        (needs_kernel, {"Kernel": Unavailable("denied")}, Status.UNKNOWN),
        (may_lack, HAVE, Status.PASS),
        (may_lack, HAVE | {"Kernel": Unavailable("denied")}, Status.FAIL),
        (may_lack, {}, Status.FAIL),
        (careless, HAVE, Status.PASS),
        (careless, {}, Status.UNKNOWN),
        (crashes, HAVE, Status.ERROR),
        (ends, HAVE, Status.ERROR),
        (raises_ctrl_c, HAVE, Status.ERROR),
        (yields_none, HAVE, Status.ERROR),
        (careless, {"Kernel": replace(facts.kernel(), command_line=Unavailable("denied"))}, Status.UNKNOWN),
        (careless, {"Kernel": replace(facts.kernel(), command_line=Unavailable("absent"))}, Status.UNKNOWN),
        (no_gpu_here, {"Gpus": NO_NVML, "Pci": facts.pci(0, 0)}, Status.SKIP),
        (no_gpu_here, {"Gpus": NO_NVML, "Pci": facts.pci()}, Status.UNKNOWN),
        (no_gpu_here, {"Gpus": NO_NVML}, Status.UNKNOWN),
        (no_gpu_here, {"Gpus": replace(NO_NVML, all=Unavailable("malformed")), "Pci": facts.pci(0, 0)}, Status.UNKNOWN),
        (no_release, {"Kernel": replace(facts.kernel(), release=Unavailable("absent"))}, Status.SKIP),
        (no_release, {"Kernel": replace(facts.kernel(), release=Unavailable("empty"))}, Status.UNKNOWN),
        (needs_kernel, {"Kernel": replace(facts.kernel(), release=Unavailable("denied"))}, Status.UNKNOWN),
        (needs_kernel, {"Kernel": replace(facts.kernel(), command_line=Unavailable("denied"))}, Status.PASS),
        (silent, HAVE, Status.ERROR),
        (odd, HAVE, Status.ERROR),
        (word, HAVE, Status.ERROR),
    ],
)
def test_judge(function: Any, have: dict[str, Any], status: Status) -> None:
    found = engine.judge(spec(function), have)
    assert [f.status for f in found] == [status]
    assert all(f.check == spec(function).id and f.cause == "other" for f in found)


@pytest.mark.slow
def test_what_a_site_check_prints_is_not_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    (finding,) = engine.judge(spec(prints), HAVE)
    told = capfd.readouterr()
    assert told.out == "" and set(told.err.splitlines()) == {"of Python", "of the descriptor", "of a child"}
    assert (finding.status, finding.message) == (Status.PASS, "7")
    print("after")
    assert capfd.readouterr().out == "after\n"


def test_a_fail_takes_severity_from_its_cause() -> None:
    found = engine.judge(spec(may_lack), HAVE | {"Kernel": Unavailable("denied")})
    assert found[0].severity is Severity.WARNING


def test_a_check_that_was_not_reached_is_unknown() -> None:
    work = engine.Work(ReplayHost({}), [spec(needs_kernel)])
    (result,) = engine.results(work, "interrupted by SIGTERM")
    assert result.status is Status.UNKNOWN and "SIGTERM" in result.findings[0].message


def test_a_probe_that_raises_costs_one_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    from netdoctor.facts import kernel

    def raising(host: Any) -> Kernel:
        raise ZeroDivisionError("odd kernel")

    monkeypatch.setattr(kernel, "probe", raising)
    work = engine.Work(ReplayHost({"config:": {}}), [])
    engine.collect(work, ["Kernel", "Intent"])
    assert work.facts["Kernel"].lost.kind == "crashed" == work.facts["Kernel"].release.kind
    assert isinstance(work.facts["Intent"], Intent)


@dataclass(frozen=True)
class Bridge(Fact):
    """A fact as every fact shall be."""

    name: str | Unavailable
    ports: tuple[str, ...] | Unavailable
    ours: bool = False


def test_a_fact_is_there_when_nothing_was_read() -> None:
    why = Unavailable(Kind.DENIED, "br0")
    bridge = Bridge.unread(why)
    assert (bridge.name, bridge.ports, bridge.ours, bridge.lost) == (why, why, False, why)
    assert Bridge("br0", ()).lost is None
    assert plain(bridge) == {"name": plain(why), "ports": plain(why), "ours": False}


def test_a_fact_that_cannot_say_that_it_was_not_read() -> None:
    @dataclass(frozen=True)
    class Sure(Fact):
        name: str

    with pytest.raises(TypeError, match=r"Sure\.name"):
        Sure.unread(Unavailable(Kind.DENIED))


def test_diagnose_says_what_the_live_run_said() -> None:
    """On a host of few answers; the whole of it on real ones is in tests/live."""
    config = Config()
    host = RecordingHost(ReplayHost({"file:/proc/sys/kernel/hostname": "n1\n", "config:": config.as_answer(), "env:": {}}))
    specs, extra = setup.load_checks(config, ())
    work = engine.Work(host, specs, extra, {"Baseline": Unavailable("refused", "x"), "PathRun": Unavailable("refused", "x")})
    engine.collect(work, engine.wanted(specs))
    engine.judge_all(work)
    decide = setup.decider(config)
    live = json.loads(as_json.render(engine.report(work, decide, config.profile)))
    text = snapshot.dumps(
        snapshot.Snapshot(host.answers, {n: work.facts[n] for n in ("Baseline", "PathRun")}, setup.policy_data(config))
    )
    again = json.loads(as_json.render(diagnose(snapshot.loads(text), specs, decide, config.profile, extra)))
    live.pop("volatile"), again.pop("volatile")
    assert again == live
    # Nothing was read: nothing is known, and nothing broke.
    assert not [c for c in live["checks"] if c["status"] in ("pass", "error")]


def test_vantage_is_always_looked_at() -> None:
    assert {"Vantage", "Kernel"} <= set(engine.wanted([]))
    assert isinstance(HAVE["Vantage"], Vantage)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (Unavailable(Kind.REFUSED, "--no-allreduce"), "--no-allreduce"),
        (facts.run(state=State.NOT_STARTED, reason="no torch in python3"), "no torch in python3"),
        (facts.run(state=State.HUNG), None),  # that one was looked at
    ],
)
def test_what_is_seen_beside_a_run_says_why_none_began(run: Any, why: str | None) -> None:
    work = engine.Work(ReplayHost({}), (), facts={"Baseline": replace(facts.baseline(), run=run)})
    engine.unbegun(work)
    assert {name: one.why_not.detail for name, one in work.facts.items() if name != "Baseline"} == (
        dict.fromkeys(BESIDE_THE_RUN, why) if why else {}
    )

"""A node's own past: what is kept, by whom it is believed, and that noise is no fall."""

from __future__ import annotations

import json
import os
import pathlib
import random
from dataclasses import replace
from typing import Any

import pytest

from netdoctor import engine
from netdoctor.checks import hardware_past
from netdoctor.cli import past as ring
from netdoctor.expectation.model import judged
from netdoctor.expectation.past import entry_of, fall, hardware
from netdoctor.facts import registry
from netdoctor.facts.inventory import inventory
from netdoctor.facts.past import FILE, KEPT, Entry, Past, added, parsed, probe
from netdoctor.host.base import ReplayHost
from netdoctor.host.live import LiveHost
from netdoctor.model import Kind, Status, Unavailable
from netdoctor.snapshot.snapshot import Snapshot
from tests.lab import fixtures
from tests.support import facts as f
from tests.support.machines import composed

QUIET = Entry("2026-11-20", "nccl cuda ×8 default 0", 64 << 20, 360.0, False, {})


def looks(figures: list[float], **changes: Any) -> Past:
    return Past(tuple(replace(QUIET, busbw=one, **changes) for one in figures), "n")


@pytest.mark.slow
def test_noise_is_no_fall() -> None:
    """Nodes that differ by themselves, by half a per cent or six: at most one look in 5,000 is called a fall."""
    draw = random.Random(7)
    falls = 0
    for _ in range(250):
        spread, usual = draw.choice((0.005, 0.01, 0.03, 0.06)), draw.uniform(5, 900)
        past = looks([draw.gauss(usual, spread * usual) for _ in range(draw.randrange(8, 64))])
        falls += sum(fall(past, replace(QUIET, busbw=draw.gauss(usual, spread * usual))) is not None for _ in range(20))
    assert falls <= 1


@pytest.mark.slow
def test_a_busy_machine_is_no_fall() -> None:
    """Gloo on CPUs: 20 times within a minute on one healthy machine."""
    draw = random.Random(8)
    for _ in range(200):
        past = looks([10 / draw.uniform(1, 20) for _ in range(draw.randrange(8, 64))], cpu=True)
        assert fall(past, replace(QUIET, busbw=10 / draw.uniform(1, 20), cpu=True)) is None


@pytest.mark.parametrize("share", [0.5, 0.7, 0.8])
@pytest.mark.parametrize("spread", [0.005, 0.01, 0.02])
def test_a_fall_is_seen(share: float, spread: float) -> None:
    draw = random.Random(9)
    seen = sum(
        fall(looks([draw.gauss(360, spread * 360) for _ in range(8)]), replace(QUIET, busbw=360 * share)) is not None
        for _ in range(200)
    )
    assert seen >= (190 if share < 0.8 or spread < 0.02 else 120)


@pytest.mark.parametrize(
    "now",
    [
        replace(QUIET, busbw=1.0, shape="nccl cuda ×4 default 0"),
        replace(QUIET, busbw=1.0, size=1 << 20),
        replace(QUIET, busbw=1.0, shape=""),
    ],
)
def test_only_like_is_compared_with_like(now: Entry) -> None:
    assert fall(looks([360.0] * 8), now) is None


def test_few_looks_tell_nothing() -> None:
    assert fall(looks([360.0] * 7), replace(QUIET, busbw=1.0)) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [("", "malformed"), ("{", "malformed"), ("[]", "malformed"), ('{"schema": "netdoctor.past/2", "looks": []}', "malformed")],
)
def test_what_is_no_ring(text: str, kind: str) -> None:
    found = parsed(text)
    assert isinstance(found, Unavailable) and found.kind == kind


def test_a_ring_is_bounded_and_drops_what_is_not_whole() -> None:
    text = ""
    for number in range(KEPT + 9):
        text = added(text, "n", replace(QUIET, busbw=float(number)))
    kept = parsed(text)
    assert kept and [one.busbw for _, one in kept] == [float(n) for n in range(9, KEPT + 9)]
    assert len(text) < 64 << 10
    data = json.loads(text)
    wrong = (("day", "soon"), ("busbw", "fast"), ("busbw", -1), ("size", True), ("hardware", 3))
    data["looks"] = [{**data["looks"][0], key: bad} for key, bad in wrong]
    assert parsed(json.dumps(data)) == ()
    assert added("rubbish", "n", QUIET).count('"day"') == 1


@pytest.mark.parametrize(
    ("answers", "count"),
    [
        ({"file:/etc/machine-id": "netdoctor-a\n"}, 1),
        ({"file:/etc/machine-id": "netdoctor-b\n"}, 0),  # an image that was cloned with its ring
        ({"file:/etc/machine-id": Unavailable(Kind.ABSENT), "file:/proc/sys/kernel/hostname": "b\n"}, 0),
    ],
)
def test_entries_of_another_machine_do_not_count(answers: dict[str, Any], count: int) -> None:
    text = added("", "netdoctor-a host", QUIET)
    found = probe(ReplayHost({f"trusted:{FILE}": text, **answers}), f.vantage())
    assert found.entries is not None and len(found.entries or ()) == count


def test_only_what_nobody_else_can_write_is_believed(tmp_path: pathlib.Path) -> None:
    """pytest's folder is below /tmp, where all may write; a folder of root's own is not at hand for every user."""
    (tmp_path / "past.json").write_text("{}")
    got = LiveHost().ask(f"trusted:{tmp_path}/past.json")
    assert isinstance(got, Unavailable) and got.kind == "refused"
    gone = LiveHost().ask(f"trusted:{tmp_path}/gone.json")
    assert isinstance(gone, Unavailable) and gone.kind == "absent"


def work(slug: str, **answers: Any) -> engine.Work:
    taken: Snapshot = fixtures.snapshot(slug)
    made = engine.Work(ReplayHost({**taken.answers, **answers}), fixtures.specs(), (), dict(taken.runs))
    engine.collect(made, engine.wanted(fixtures.specs()))
    engine.judge_all(made)
    return made


SPREAD = (1.0, 1.02, 0.985, 1.01, 0.99, 1.03, 0.97, 1.0)


@pytest.mark.parametrize("slug", [slug for slug in composed.NAMES if slug != "pod-without-gpus"])
def test_a_healthy_node_is_as_good_as_its_past(slug: str) -> None:
    """And its past is what it is: the same machine, with the spread that it has."""
    first = work(slug)
    who = registry.of(first.facts, "Past").who
    entry = entry_of("2026-11-20", registry.of(first.facts, "Baseline").run or None, inventory(first.facts))
    assert who
    text = ""
    for factor in SPREAD:
        text = added(text, who, replace(entry, busbw=entry.busbw * factor))
    found = work(slug, **{f"trusted:{FILE}": text}).findings["hardware.past"]
    assert {finding.status for finding in found} <= {Status.PASS, Status.SKIP}, found
    assert entry.shape == "" or [one.status for one in found if one.subject == "bus bandwidth"] == [Status.PASS]


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a folder that root alone can change")


@pytest.mark.slow
@needs_root
def test_a_good_look_is_kept_and_a_bad_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pathlib.Path("/var/lib") / f"netdoctor-test-{os.getpid()}"
    file = str(folder / "past.json")
    made = work("dgx-h100")
    report = engine.report(made, lambda checks, facts: _decided(checks), "default")
    assert not ring.keep(made, report, file, str(folder))  # nobody made the folder
    folder.mkdir(mode=0o755)
    try:
        assert ring.keep(made, report, file, str(folder)) and ring.keep(made, report, file, str(folder))
        kept = parsed(pathlib.Path(file).read_text())
        assert kept and len(kept) == 2 and kept[0][1].busbw > 300
        bad = replace(report, verdict=replace(report.verdict, status=type(report.verdict.status).UNHEALTHY))
        assert not ring.keep(made, bad, file, str(folder))
        pathlib.Path(file).chmod(0o666)  # others may write it: not ours to write over
        assert not ring.keep(made, report, file, str(folder))
        assert os.listdir(folder) == ["past.json"]
    finally:
        pathlib.Path(file).unlink(missing_ok=True)
        folder.rmdir()


def _decided(checks: Any) -> Any:
    from netdoctor.policy import decide

    return decide(checks)


@pytest.mark.parametrize("wrong", [{"gpu_addresses": 5}, {"nvlinks": "18"}, {"gpu_model": ["a"]}, {"hca_addresses": "all"}])
def test_hardware_of_a_look_that_is_no_hardware_is_unknown(wrong: dict[str, Any]) -> None:
    past = Past((replace(QUIET, hardware=wrong),), "here")
    (found, *_) = f.judge(hardware_past.past, f.machine({Past: past}))
    assert found.status is Status.UNKNOWN and next(iter(wrong)) in found.message


FOUR = [f"0000:{n}b:00.0" for n in range(1, 5)]
OTHERS = [f"0000:{n}c:00.0" for n in range(1, 5)]


def shortfalls(kept: list[dict[str, Any]], now: list[str]) -> int:
    """Of a node whose good looks saw these, and that has GPUs at these places now."""
    past = Past(tuple(replace(QUIET, hardware=one) for one in kept), "n")
    gpus = [{"name": "H100", "pci": one, "nvlinks_up": 18} for one in now]
    found = hardware(past, {"pci": [{"address": one, "kind": "gpu"} for one in now], "gpus": gpus, "nics": []}, mig=False)
    return len(judged(found.parts, found.expectations).shortfalls)


@pytest.mark.parametrize(
    ("kept", "now", "lost"),
    [
        ([{"gpu_addresses": FOUR}], FOUR, 0),
        ([{"gpu_addresses": FOUR}], FOUR[:3], 1),
        ([{"gpu_addresses": FOUR}], OTHERS, 0),  # the bus was numbered anew
        ([{"gpu_addresses": FOUR}], [*FOUR[:3], OTHERS[0]], 0),
        ([{"gpu_addresses": FOUR}], OTHERS[:3], 4),
        ([{"gpu_addresses": FOUR}, {}], FOUR[:3], 1),  # a look that could not see them does not make them forgotten
        ([{"gpu_addresses": FOUR}, {"gpu_addresses": FOUR[:2]}], FOUR[:2], 0),
    ],
)
def test_what_was_there_is_there(kept: list[dict[str, Any]], now: list[str], lost: int) -> None:
    assert shortfalls(kept, now) == lost


def test_looks_without_a_figure_drive_out_none() -> None:
    text = added("", "n", QUIET)
    for _ in range(KEPT + 1):
        text = added(text, "n", replace(QUIET, shape="", hardware={"gpu_model": "x"}))
    kept = parsed(text)
    assert kept and [one.shape for _, one in kept] == [QUIET.shape, ""]

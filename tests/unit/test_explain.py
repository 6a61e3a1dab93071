"""`netdoctor list` and `netdoctor explain`: every check and every cause can be explained."""

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from netdoctor.api import Net, Vantage, check, ok
from netdoctor.causes import CAUSES
from netdoctor.causes.found import BY_LOG, FINDS, found_by
from netdoctor.causes.results import RESULTS
from netdoctor.cli import main
from netdoctor.cli.explain import _fix, explain, listing
from netdoctor.expectation import findings
from netdoctor.facts.registry import RUNS, SOURCES
from netdoctor.model import CheckResult, Finding, Fix, Status
from netdoctor.plugins import Loaded, load
from tests.lab import faults, fixtures


def loaded() -> Loaded:
    @check(id="site.mtu\x1b[2J", title="MTUs agree", cause="tcp_tuning")
    def judge(net: Net, vantage: Vantage) -> list[Finding]:
        return [ok("x")]

    spec = judge.__netdoctor_check__  # type: ignore[attr-defined]
    broken = CheckResult("plugin.broken", "t", "other", (Finding(Status.ERROR, "cannot be imported", "bad.py"),))
    return Loaded((spec,), (broken,), {spec.id: "file /etc/netdoctor/checks.d/mtu.py"})


def test_the_list_names_checks_sources_and_what_did_not_load() -> None:
    assert listing(loaded()) == (
        "site.mtu  MTUs agree  (file /etc/netdoctor/checks.d/mtu.py)\nplugin.broken: bad.py: cannot be imported\n"
    )
    assert listing(Loaded()) == "no checks\n"


@pytest.mark.parametrize("id", sorted(set(RESULTS) - {f"log.{name}" for name in CAUSES}))
def test_results_that_no_file_of_checks_gives_are_explained(id: str) -> None:
    assert explain(loaded(), id).startswith(f"{id}: {RESULTS[id].title}\n")


def test_a_check_is_explained() -> None:
    text = explain(loaded(), "site.mtu\x1b[2J")
    assert "\x1b" not in text
    for part in (
        "site.mtu: MTUs agree\nfrom file /etc/netdoctor/checks.d/mtu.py",
        "`netdoctor list` and `netdoctor explain`: every check",  # the docstring of its module
        "  Net: ",
        "  Vantage: The place that netdoctor looks from.",
        "TCP buffers or congestion control limit the sockets (cause tcp_tuning, warning unless",
        "cost: one stream cannot fill the link",
        "to mend it on the node\n  set net.ipv4.tcp_rmem to MIN DEFAULT MAX here\n    sysctl -w net.ipv4.tcp_rmem=",
        "  to make it last\n    echo 'net.ipv4.tcp_rmem = MIN DEFAULT MAX' >> /etc/sysctl.d/99-zz-netdoctor.conf",
        "to mend it in Enroot (Pyxis), in Apptainer",
        "to mend it in Kubernetes",
        "read more\n  Linux Documentation/networking/ip-sysctl.rst",
    ):
        assert part in text


def test_runtimes_are_explained_with_their_flags() -> None:
    text = explain(Loaded(), "dev_infiniband_missing")
    for part in (
        "docker run --device=/dev/infiniband",
        "podman run --device=/dev/infiniband",
        "MELLANOX_VISIBLE_DEVICES=all",
        "apptainer exec --bind /dev/infiniband",
        "rdma/hca: 1",
        "modprobe ib_uverbs",
        "/etc/modules-load.d/ib_uverbs.conf",
        "looked at by rdma.dev_infiniband",
    ):
        assert part in text


@pytest.mark.parametrize("name", CAUSES)
def test_every_cause_can_be_explained(name: str) -> None:
    assert explain(Loaded(), name).startswith(f"{name}: {CAUSES[name].title}\n")


def test_what_a_check_may_also_find_is_said_whole() -> None:
    """Each cause that its file names, or that a replayed fault or machine shows; `tests.support.facts.judging` holds every
    finding of every unit test against the same."""
    specs = {spec.id: spec for spec in load(dropin_dir="/nonexistent", search=[]).specs}
    named = {
        (id, cause)
        for id, spec in specs.items()
        for cause in _causes_of(inspect.getsource(importlib.import_module(spec.judge.__module__)))
    }
    named |= {
        (fault.expect["check"], one["cause"]) for fault in faults.every() for one in faults.golden()[fault.name] if one["cause"]
    }
    for report in sorted(fixtures.HOSTS.glob("*/report.json")):
        named |= set(_judged(json.loads(report.read_text(encoding="utf-8"))))
    assert len(named) > 60
    told = {id: {spec.cause, *found_by(id, spec.cause)} for id, spec in specs.items()}
    assert not [(id, cause) for id, cause in sorted(named) if id in told and cause not in told[id]]
    assert set(FINDS) <= set(specs) and set(BY_LOG) <= set(specs)
    assert set(FINDS["hardware.site"]) == {*findings.CAUSES.values(), "odd_one_out"}


def _causes_of(source: str) -> set[str]:
    return {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant) and str(node.value) in CAUSES}


def _judged(report: object) -> Iterator[tuple[str, str]]:
    if isinstance(report, dict):
        for one in report.get("findings", ()) if isinstance(report.get("id"), str) else ():
            if one.get("cause"):
                yield report["id"], one["cause"]
        report = list(report.values())
    if isinstance(report, list):
        for value in report:
            yield from _judged(value)


def test_what_a_check_is_about_is_said_once() -> None:
    text = explain(load(dropin_dir="/nonexistent", search=[]), "net.socket_ifname").splitlines()
    assert text[0].partition(": ")[2] not in (line.rstrip(".") for line in text[1:])


@pytest.mark.parametrize("words", [[], ["fleet"], ["config"]])
def test_help_says_each_command_whole(words: list[str]) -> None:
    """And every option what it takes, in words that a shell's user knows."""
    shown = CliRunner().invoke(main.app, [*words, "--help"], env={"COLUMNS": "80"}).output
    assert "Commands:" in shown and "..." not in shown.partition("Commands:")[2]
    assert "<str>" not in CliRunner().invoke(main.app, ["preflight", "--help"]).output


def test_every_check_can_be_explained() -> None:
    got = load(dropin_dir="/nonexistent", search=[])
    for spec in got.specs:
        text = explain(got, spec.id)
        assert text.startswith(f"{spec.id}: {spec.title}\n")
        assert "looks at\n" in text
        assert max(map(len, text.splitlines())) <= 140


@pytest.mark.parametrize(
    ("id", "said"),
    [
        ("gdr_disable", "did you mean gdr_disabled"),
        ("zzzzzz", "netdoctor list names"),
        ("nothing", "netdoctor list names"),  # not hang
        ("nccl_ib_gid_index", "netdoctor env --explain NCCL_IB_GID_INDEX"),
        ("\x1b]0;x\x07", "''"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(id: str, said: str) -> None:
    with pytest.raises(LookupError, match=said):
        explain(loaded(), id)


@pytest.mark.parametrize("name", [*SOURCES, *RUNS])
def test_what_a_fact_is_about_is_said_without_code(name: str) -> None:
    """Its first line stands in `explain`, for who does not read the source."""
    module = importlib.import_module(SOURCES[name].module if name in SOURCES else RUNS[name])
    line = (inspect.getdoc(getattr(module, name)) or "").partition("\n")[0]
    assert line.endswith(".") and len(line.split()) > 2
    assert not re.search(r"[`\"]|\bNone\b|\b(True|False)\b|^(\(\)|\w+ \(\)|Of|For|Asked|Beside|Between) | \(\) ", line), line


@pytest.mark.parametrize(("commands", "lasts"), [((), False), (("ulimit -n 65536",), True)])
def test_what_is_no_command_makes_none_last(commands: tuple[str, ...], lasts: bool) -> None:
    told = list(_fix(Fix("raise it", commands, ("LimitNOFILE=65536",)), 80))
    assert told[-1] == "    LimitNOFILE=65536" and ("  to make it last" in told) is lasts

"""A node is good only where nothing speaks against it: contradictions, lost files, what an older report left open."""

from __future__ import annotations

import copy
import datetime
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

import pytest

from netdoctor import policy
from netdoctor.cli import fleet as command
from netdoctor.cli.options import Options
from netdoctor.fleet.read import DEFECT, expected_names, read
from netdoctor.fleet.report import Fleet, examine
from netdoctor.model import Command, Severity
from netdoctor.report import formats
from tests.support.clusters import fleets
from tests.support.facts import judged

pytestmark = pytest.mark.slow

Doc = dict[str, Any]
DAY = 1_772_352_000.0  # fleets.TIME


def put(folder: pathlib.Path, name: str, content: Doc | str, modified: float | None = None) -> pathlib.Path:
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    if modified is not None:
        os.utime(path, (modified, modified))
    return path


def look(folder: pathlib.Path, expected: list[str] | None = None) -> Fleet:
    return examine(read([str(folder)]), expected)


def state(fleet: Fleet, name: str) -> tuple[str, str]:
    (node,) = [n for n in fleet.nodes if n.name == name]
    return node.state, "; ".join((*node.reasons, *node.notes))


def only_unknown(fleet: Fleet, words: str) -> None:
    """n1 is unknown because of `words`, on neither list, and the fleet is not healthy."""
    got, why = state(fleet, "n1")
    assert got == "unknown" and words in why, why
    assert fleet.verdict.exit_code == 4 and "n1\n" not in "".join(command.lists(fleet)[0].values())


def _own_fail_behind_a_healthy_verdict(doc: Doc) -> None:
    kept = copy.deepcopy(doc["verdict"])
    fleets.own_fail(doc)
    doc["verdict"] = kept


def _failing(doc: Doc) -> Doc:
    found: Doc = next(c for c in doc["checks"] if c["status"] == "fail")["findings"][0]
    return found


def _first(doc: Doc, status: str) -> None:
    """Its first check says so, and that it is not in the way."""
    doc["checks"][0].update(status=status)
    doc["checks"][0]["findings"][0].update(status=status, blocking=False)


def _waived(doc: Doc, waiver: object) -> None:
    _own_fail_behind_a_healthy_verdict(doc)
    _failing(doc).update(waived=waiver, blocking=False)


def _ranks(doc: Doc) -> list[Doc]:
    ranks: list[Doc] = doc["volatile"]["runs"][0]["ranks"]
    return ranks


CONTRADICTIONS: dict[str, tuple[Callable[[Doc], object], str]] = {
    "a fail that blocks": (_own_fail_behind_a_healthy_verdict, "a fail that blocks"),
    "an exit code": (lambda d: d["verdict"].update(exit_code=3), "its exit code 3"),
    "a fail in what passes": (lambda d: d["checks"][0]["findings"][0].update(status="fail"), "it says pass"),
    "an unknown in what passes": (lambda d: d["checks"][0]["findings"][0].update(status="unknown"), "it says pass"),
    "a pass in what is skipped": (lambda d: d["checks"][0].update(status="skip"), "it says skip"),
    "a status of nobody": (lambda d: d["checks"][0].update(status="fine"), "its status is none"),
    "a status that is no text": (lambda d: d["checks"][0].update(status=["pass"]), "its status is none"),
    "a critical fail that does not count": (
        lambda d: (_own_fail_behind_a_healthy_verdict(d), _failing(d).update(blocking=False)),
        "a critical fail that nobody waived",
    ),
    "a fail without a finding": (lambda d: d["checks"][0].update(status="fail", findings=[]), "it says fail"),
    "a required unknown": (
        lambda d: (d["checks"][0].update(status="unknown"), d["checks"][0]["findings"][0].update(status="unknown")),
        "had to be able to tell",
    ),
    "wrong data": (lambda d: d["runs"][0].update(verified=False), "its data was wrong, or not compared"),
    "data not compared": (lambda d: d["runs"][0].update(verified=None), "its data was wrong, or not compared"),
    "a run that hung": (lambda d: d["runs"][0].update(state="hung"), "its state is hung"),
    "a run that failed, and no check of it": (
        lambda d: (d["runs"][0].update(state="failed"), d["checks"].pop(0)),
        "its state is failed",
    ),
    "a run that is none": (lambda d: d.update(runs=["finished"]), "its all-reduce"),
    "runs that are none": (lambda d: d.update(runs={"state": "finished"}), "its all-reduce"),
    "a run without its figures": (lambda d: d["volatile"].update(runs=[]), "its all-reduce"),
    "figures that are none": (lambda d: d["volatile"].update(runs=[7]), "its all-reduce"),
    "a rank that is missing": (lambda d: _ranks(d).pop(), "7 of 8 ranks"),
    "a rank twice": (lambda d: _ranks(d)[1].update(rank=0), "7 of 8 ranks"),
    "a rank that is not done": (lambda d: _ranks(d)[3].update(phase="first"), "rank 3 "),
    "a rank with an error": (lambda d: _ranks(d)[3].update(error="ncclRemoteError"), "rank 3 "),
    "a rank with wrong sums": (lambda d: _ranks(d)[3].update(wrong=2), "rank 3 "),
    "a crash": (lambda d: _first(d, "error"), "it crashed"),
    "a waiver that is none": (lambda d: _waived(d, True), "which is no waiver"),
    "a waiver that says nothing": (lambda d: _waived(d, "x"), "which is no waiver"),
    "a waiver that had ended": (lambda d: _waived(d, "known (until 2026-02-28)"), "waived until 2026-02-28"),
    "a check that was judged and is gone": (lambda d: d["checks"].pop(), "nccl.shared_memory was judged"),
    "no bandwidth": (lambda d: d["volatile"]["runs"][0].update(busbw_gb_s={}), "it has no bus bandwidth"),
    "a bandwidth of 0": (lambda d: d["volatile"]["runs"][0]["busbw_gb_s"].update({"4096": 0.0}), "at 4096 bytes is 0.0"),
    "a negative latency": (lambda d: d["volatile"]["runs"][0]["latency_s"].update({"4096": -1}), "its latency at 4096"),
    "a figure that is no number": (lambda d: d["volatile"]["runs"][0]["latency_s"].update({"4096": float("nan")}), "NaN"),
    "a finding that is none": (lambda d: d["checks"][0]["findings"].append("fail"), "it says pass"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_contradicted_healthy_verdict_is_not_believed(what: str, tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    change, words = CONTRADICTIONS[what]
    change(doc)
    put(tmp_path, "a.json", doc)
    only_unknown(look(tmp_path), words)


def test_fails_that_do_not_block_and_unknowns_contradict_nothing(tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    _own_fail_behind_a_healthy_verdict(doc)
    failing = next(c for c in doc["checks"] if c["status"] == "fail")
    failing["findings"] = [
        {**failing["findings"][0], "severity": "warning", "blocking": False},
        {**failing["findings"][0], "waived": "it is rebuilt (until 2026-03-01)", "blocking": False},
        {**failing["findings"][0], "status": "unknown", "severity": None, "blocking": False},
    ]
    doc["checks"][0].update(status="unknown")
    doc["checks"][0]["findings"].append({**doc["checks"][0]["findings"][0], "status": "unknown", "blocking": False})
    doc["runs"][0].update(state="unfinished", verified=None)  # allreduce.run is the check that could not tell
    put(tmp_path, "a.json", doc)
    fleet = judged.examined(read([str(tmp_path)]), fail_on=Severity.CRITICAL)
    assert state(fleet, "n1")[0] == "good" and "3 usable ports" in state(fleet, "n1")[1]
    assert (fleet.verdict.exit_code, fleet.verdict.text.startswith("nothing failed at critical")) == (0, True)


def test_a_nodes_own_warnings_are_held_against_fail_on(tmp_path: pathlib.Path) -> None:
    """What a node lets pass by its own threshold need not pass by the fleet's (default: warning)."""
    doc = fleets.report("n1")
    _own_fail_behind_a_healthy_verdict(doc)
    _failing(doc).update(severity="warning", blocking=False)
    unknowns = [{**_failing(doc), "status": "unknown", "severity": None} for _ in range(50)]
    next(c for c in doc["checks"] if c["status"] == "fail")["findings"][:0] = unknowns
    put(tmp_path, "a.json", doc)
    fleet = look(tmp_path)
    assert state(fleet, "n1") == ("bad", "net.port_range: 3 usable ports, 24 listeners")
    assert fleet.verdict.exit_code == 3 and fleet.checks[0].severity is Severity.WARNING
    _failing(doc)["waived"] = "it is a login node (until 9999-01-01)"
    for finding in next(c for c in doc["checks"] if c["status"] == "fail")["findings"]:
        finding["waived"] = "it is a login node (until 9999-01-01)"
    put(tmp_path, "a.json", doc)
    assert state(look(tmp_path), "n1")[0] == "good"


def _unhealthy(change: Callable[[Doc], object]) -> Callable[[pathlib.Path], None]:
    def make(folder: pathlib.Path) -> None:
        doc = fleets.report("n1")
        fleets.own_fail(doc)
        change(doc)
        put(folder, "a.json", doc)

    return make


def _blind(doc: Doc) -> None:
    """allreduce.run had to tell, and could not."""
    doc["checks"][0].update(status="unknown")
    doc["checks"][0]["findings"][0].update(status="unknown")


def _lost(folder: pathlib.Path) -> None:
    _unhealthy(lambda d: None)(folder)
    put(folder, "n1.json", "{", DAY + 60)
    os.utime(folder / "a.json", (DAY, DAY))


@pytest.mark.parametrize(
    ("make", "subject", "given", "code"),
    [
        (_unhealthy(lambda d: None), None, "good", 0),  # what failed was accepted, and all else was looked at
        (_unhealthy(lambda d: None), "n1", "good", 0),
        (_unhealthy(lambda d: None), "n2", "bad", 3),
        (_unhealthy(lambda d: d.update(partial="interrupted by SIGTERM")), None, "unknown", 4),
        (_unhealthy(lambda d: d.update(partial="interrupted by SIGTERM")), "n1", "unknown", 4),
        (_unhealthy(_blind), None, "unknown", 4),
        (_unhealthy(_blind), "n1", "unknown", 4),
        (_unhealthy(lambda d: d["volatile"].update(attempts=2)), None, "flaky", 4),
        (_lost, "n*", "unknown", 4),
        (lambda folder: None, None, "missing", 3),
        (lambda folder: None, "*", "missing", 3),
        (lambda folder: None, "n1", "missing", 0),
    ],
)
def test_a_waiver_makes_no_node_good_that_was_not_judged(
    make: Callable[[pathlib.Path], None], subject: str | None, given: str, code: int, tmp_path: pathlib.Path
) -> None:
    make(tmp_path)
    put(tmp_path, "n0.json", fleets.report("n0", number=7))
    waiver = policy.Waiver("fleet.nodes", "known", datetime.date(9999, 1, 1), subject)
    decide = lambda checks, _facts: policy.decide(  # noqa: E731
        checks, fail_on="warning", command=Command.FLEET, waivers=[waiver]
    )
    fleet = examine(read([str(tmp_path)]), ["n0", "n1"], decide)
    assert (state(fleet, "n1")[0], fleet.verdict.exit_code) == (given, code)
    assert ("n1\n" in command.lists(fleet)[0]["passing_nodes.txt"]) == (given == "good")


@pytest.mark.parametrize(
    ("name", "lost", "given"),
    [
        ("n1.json", "cut", "unknown"),  # by the file's name
        ("n1-2.json", "cut", "unknown"),  # by the name in what is left of it
        ("n1-2.json", "other", "unknown"),
        ("n1.json", "empty", "unknown"),
        ("n1.json", "older", "good"),
        ("n1.json", "foreign", "good"),  # another program's file of that name
    ],
)
def test_a_newer_report_that_cannot_be_read_is_not_passed_over(
    name: str, lost: str, given: str, tmp_path: pathlib.Path
) -> None:
    doc = fleets.report("n1")
    put(tmp_path, "n1-1.json", doc, DAY)
    text = {
        "empty": "",
        "other": json.dumps({**doc, "schema": "netdoctor.report/2"}),
        "foreign": '{"ansible_facts": {}}',
    }.get(lost, json.dumps(doc)[:9000])
    put(tmp_path, name, text, DAY - 60 if lost == "older" else DAY + 60)
    fleet = look(tmp_path)
    assert fleet.accounting["given"] == 1
    if given == "unknown":
        only_unknown(fleet, "a newer report of it could not be used")
    else:
        assert state(fleet, "n1")[0] == given


def test_a_pods_report_that_is_cut_short_is_about_its_node(tmp_path: pathlib.Path) -> None:
    doc = fleets.report("train-0")
    doc["identity"]["node"] = "n1"
    put(tmp_path, "a.json", json.dumps(doc)[:9000])
    assert [n.name for n in look(tmp_path).nodes] == ["n1"]


def later(doc: Doc, time: str) -> Doc:
    doc = copy.deepcopy(doc)
    doc["volatile"]["time"] = time
    return doc


def test_a_newer_report_that_did_not_try_settles_nothing(tmp_path: pathlib.Path) -> None:
    bad, passive = fleets.report("n1"), later(fleets.report("n1"), "2026-03-02T08:00:00Z")
    fleets.own_fail(bad, "allreduce.run", "rank 3 never arrived")
    for check in passive["checks"]:
        if check["id"] == "allreduce.run":
            check["status"] = check["findings"][0]["status"] = "unknown"
    put(tmp_path, "night.json", bad)
    put(tmp_path, "day.json", passive)
    only_unknown(look(tmp_path), "allreduce.run failed in")
    passive["checks"] = [c for c in passive["checks"] if c["id"] != "allreduce.run"]
    del passive["volatile"]["seconds"]["check allreduce.run"]
    put(tmp_path, "day.json", passive)
    only_unknown(look(tmp_path), "allreduce.run failed in")
    put(tmp_path, "evening.json", later(fleets.report("n1"), "2026-03-02T20:00:00Z"))
    assert state(look(tmp_path), "n1")[0] == "good"
    put(tmp_path, "last.json", later(passive, "2026-03-02T21:00:00Z"))  # what was mended stays mended
    assert state(look(tmp_path), "n1")[0] == "good"


def test_a_bad_report_with_a_lost_clock_is_not_taken_for_old(tmp_path: pathlib.Path) -> None:
    bad = later(fleets.report("n1"), "2000-01-01T00:00:40Z")
    fleets.own_fail(bad)
    put(tmp_path, "good.json", fleets.report("n1"), DAY)
    put(tmp_path, "bad.json", bad, DAY + 86400)
    only_unknown(look(tmp_path), "was written later")
    put(tmp_path, "bad.json", bad, DAY + 1)  # copied together: the clocks tell
    assert state(look(tmp_path), "n1")[0] == "good"


def test_one_machine_that_answers_for_two_names_proves_neither(tmp_path: pathlib.Path) -> None:
    for name in ("n1", "n2"):
        doc = fleets.report(name, number=1)
        put(tmp_path, f"{name}.json", doc)
    put(tmp_path, "n3.json", fleets.report("n3", number=3))
    fleet = look(tmp_path)
    only_unknown(fleet, "one machine answered for both names")
    assert command.lists(fleet)[0]["passing_nodes.txt"] == "n3\n"
    assert state(look(tmp_path, ["n1", "n3"]), "n1")[0] == "good"  # n2 is its old name, and nobody asks for it


def test_machines_that_share_a_name_are_listed_as_failing(tmp_path: pathlib.Path) -> None:
    for number in (1, 2):
        put(tmp_path, f"{number}.json", fleets.report("n1", number=number))
    assert command.lists(look(tmp_path, ["n1"])) == ({"passing_nodes.txt": "", "failing_nodes.txt": "n1\n"}, [])


def test_a_list_of_nobody_is_bad_usage(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tmp_path, "n1.json", fleets.report("n1"))
    names = put(tmp_path, "hosts.txt", "# squeue did not answer\n\n")
    assert command.run(Options(), [str(tmp_path)], str(names)) == 2
    assert "there is no name in it" in capsys.readouterr().err


def test_the_hosts_file_as_others_write_it(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hosts.txt"
    path.write_bytes("\ufeffn1\r\nN2.cluster\r\n".encode())
    assert expected_names(str(path)) == ["n1", "N2.cluster"]
    with pytest.raises(ValueError, match="scontrol show hostnames"):
        expected_names(str(put(tmp_path, "short.txt", "n1\ngpu[01-04]\n")))


@pytest.mark.parametrize("number", [10**400, -(10**400)], ids=["huge", "huge and negative"])
def test_numbers_beyond_all_bounds_are_no_defect(number: int, tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    doc["volatile"]["runs"][0]["busbw_gb_s"]["67108864"] = number
    doc["volatile"]["runs"][0]["ranks"][0]["phase_seconds"]["init"] = number
    doc["inventory"]["nics"][0]["ports"][0]["rate_gbps"] = number
    doc["inventory"]["nccl_interface"]["mtu"] = doc["inventory"]["links"][1]["mtu"] = number
    put(tmp_path, "a.json", doc)
    fleet = look(tmp_path)
    assert not [p for p in fleet.problems if DEFECT in p.detail]
    for format in formats.FORMATS:
        assert formats.render(command.report(fleet), format)


# Folders


def test_a_folder_that_cannot_be_entered_is_not_passed_over(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, away = tmp_path / "reports", tmp_path / "away"
    (folder / "rack2").mkdir(parents=True)
    away.mkdir()
    put(folder, "n1.json", fleets.report("n1"))
    assert look(folder).verdict.exit_code == 0
    (folder / "rack3").symlink_to(away)
    fleet = look(folder)
    assert fleet.verdict.exit_code == 4 and "not followed" in state(fleet, "rack3/")[1]
    (folder / "rack3").unlink()
    scandir = os.scandir

    def denied(path: str) -> Any:
        if path.endswith("rack2"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    fleet = look(folder)
    assert fleet.verdict.exit_code == 4 and state(fleet, "rack2/")[0] == "unknown"
    assert command.lists(fleet)[0]["passing_nodes.txt"] == "n1\n"


# Without a fault of the node


def test_busy_cpus_are_told_and_blame_nobody(tmp_path: pathlib.Path) -> None:
    """Figures of one healthy machine, taken twelve times while others used its two cores."""
    latency = (513, 330, 1438, 337, 359, 3208, 7411, 2162, 308, 626, 319, 311)  # µs
    for number, slow in enumerate(latency, 1):
        doc = fleets.report(f"n{number:02}", number=number)
        doc["runs"][0].update(backend="gloo", device="cpu", ranks=2)
        figures = doc["volatile"]["runs"][0]
        for rank in (ranks := figures["ranks"][:2]):
            del rank["phase_seconds"]
        figures.update(busbw_gb_s={"67108864": 0.4}, latency_s={"4096": slow * 1e-6}, ranks=ranks)
        put(tmp_path, f"{number}.json", doc)
    fleet = look(tmp_path)
    assert fleet.verdict.exit_code == 0 and fleet.accounting["good"] == 12
    assert [o.node for d in fleet.distributions for o in d.outliers] == ["n07", "n06", "n08"]
    assert "latency (gloo cpu ×2" in state(fleet, "n07")[1]
    assert "n07: latency" in formats.render(command.report(fleet), "text")
    assert judged.examined(read([str(tmp_path)]), None, Severity.INFO).accounting["bad"] == 3

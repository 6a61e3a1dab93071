"""What a fleet report says beside its verdicts: the nodes and files by name, and first the reason that counts."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.clusters import fleets
from tests.unit.test_fleet_doubt import Doc, later, look, put, state


def _as(doc: Doc, **identity: str) -> Doc:
    doc["identity"].update(identity)
    return doc


NODE = fleets.report
NOTES: dict[str, tuple[dict[str, Doc], str]] = {
    "a cloned machine id": (
        {f"n{n}": _as(NODE(f"n{n}", number=n), machine="m1" if n < 3 else "m3") for n in (1, 2, 3)},
        "(of a cloned image, or one machine that answered twice) under 2 host names: n1, n2",
    ),
    "a file of another name": (
        {"n1": NODE("n1"), "n2": NODE("n2", number=2), "n3": NODE("n3", number=3), "n4": NODE("n5", number=5)},
        "n4.json (n5)",
    ),
}


@pytest.mark.parametrize(("docs", "words"), NOTES.values(), ids=NOTES)
def test_what_is_only_worth_knowing_names_the_nodes(docs: dict[str, Doc], words: str, tmp_path: pathlib.Path) -> None:
    for name, doc in docs.items():
        put(tmp_path, f"{name}.json", doc)
    fleet = look(tmp_path)
    assert fleet.accounting["good"] == len(docs)
    (note,) = fleet.notes
    assert words in note


@pytest.mark.parametrize(("time", "good"), [("2026-02-01T00:00:00Z", 1), ("2026-02-26T00:00:00Z", 2)])
def test_a_report_of_another_week_is_not_of_today(time: str, good: int, tmp_path: pathlib.Path) -> None:
    """An audit that did not reach the node leaves the file of the last one where it was."""
    put(tmp_path, "n1.json", fleets.report("n1"))
    put(tmp_path, "n2.json", later(fleets.report("n2", number=2), time))
    fleet = look(tmp_path)
    assert fleet.accounting["good"] == good
    assert ["days older than the newest" in one for n in fleet.nodes for one in n.reasons] == [True] * (2 - good)


@pytest.mark.parametrize(
    ("ahead", "written", "bad"),
    [
        (["2026-04-10T08:00:00Z"], 0, "n0"),  # an archive: every file is of the day of the copy
        (["2026-04-10T08:00:00Z", "2026-08-10T08:00:00Z"], 0, "n0 n1"),
        (["2026-04-10T08:00:00Z"], 40, "n1 n2 n3 n4"),  # as its file says: the others were not reached since
        (["2026-04-10T08:00:00Z", "2026-04-10T09:00:00Z"], 0, "n2 n3 n4"),  # two bear each other out
    ],
)
def test_one_clock_that_is_ahead_makes_no_other_old(ahead: list[str], written: int, bad: str, tmp_path: pathlib.Path) -> None:
    for number in range(5):
        time = ahead[number] if number < len(ahead) else f"2026-03-01T08:0{number}:00Z"
        path = put(tmp_path, f"n{number}.json", later(fleets.report(f"n{number}", number=number), time))
        modified = 1_790_000_000 - (0 if number < len(ahead) else written * 86400)
        os.utime(path, (modified, modified))
    fleet = look(tmp_path)
    assert [n.name for n in fleet.nodes if n.state != "good"] == bad.split()
    assert {n.state for n in fleet.nodes if n.state != "good"} == {"unknown"} and fleet.verdict.exit_code == 4


@pytest.mark.parametrize(("apart", "given"), [("08:00:59", 2), ("08:30:00", 1)])
def test_two_machine_ids_of_one_name_at_once_are_two_machines(apart: str, given: int, tmp_path: pathlib.Path) -> None:
    for number, time in enumerate(("08:00:00", apart)):
        doc = _as(later(fleets.report("n1"), f"2026-03-01T{time}Z"), machine=f"m{number}")
        doc["inventory"]["gpus"] = {"unavailable": "denied"}
        for nic in doc["inventory"]["nics"]:
            nic.pop("ports")
        put(tmp_path, f"n1-{number}.json", doc)
    fleet = look(tmp_path)
    assert fleet.accounting["given"] == given and fleet.accounting["good"] == (1 if given == 1 else 0)


def test_what_had_to_tell_is_the_first_reason(tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    doc["verdict"].update(status="inconclusive", exit_code=4)
    for check, blocking in ((doc["checks"][0], False), (doc["checks"][1], True)):
        check.update(status="error")
        check["findings"][0].update(status="error", blocking=blocking)
    put(tmp_path, "a.json", doc)
    assert state(look(tmp_path), "n1")[1].startswith(f"{doc['checks'][1]['id']}: ")


@pytest.mark.slow
def test_a_node_says_each_reason_and_how_it_is_found_out(tmp_path: pathlib.Path) -> None:
    """A host that goes by another name is settled by a variable, which only the report of that host names."""
    doc = fleets.report("n1")
    lost = {"status": "unknown", "severity": None, "fix": None, "blocking": True}
    first = {**doc["checks"][0]["findings"][0], **lost, "message": "it calls itself vm", "how": "-e audit_check_name=false"}
    doc["checks"][0].update(status="unknown", findings=[first, {**first, "message": "no answer, of 2", "how": None}])
    doc["verdict"].update(status="inconclusive", exit_code=4, text="inconclusive")
    put(tmp_path, "n1.json", doc)
    text = subprocess.run(
        [sys.executable, "-m", "netdoctor", "fleet", "report", str(tmp_path)], capture_output=True, text=True, check=False
    ).stdout
    rows = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith(" " * 9)]
    id = doc["checks"][0]["id"]
    assert ["also", f"{id}: no answer, of 2"] in rows and ["find", "out  -e audit_check_name=false"] in rows
    assert f"n1: {id}: it calls itself vm (and 1 more reason)" in text

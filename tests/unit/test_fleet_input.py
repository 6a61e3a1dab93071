"""Whatever lies in the directory is named and counted, and other machines' strings stay harmless in every format."""

from __future__ import annotations

import copy
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from netdoctor.cli import fleet as command
from netdoctor.fleet.read import MAX_BYTES, expected_names, read
from netdoctor.fleet.report import Fleet, examine
from netdoctor.report import fleet_json, formats
from netdoctor.textsafe import as_line
from tests.support.clusters import fleets
from tests.support.facts import judged

Doc = dict[str, Any]
HOSTILE = (
    '"><script>alert(1)</script>',
    "../../x",
    "$(id)",
    "\x1b]0;owned\x07\x1b[31mred",
    "a\u202eb",
    "-rf",
    "n\n1 good",
    "x" * 5000,
)


def put(folder: pathlib.Path, name: str, content: Doc | str | bytes) -> pathlib.Path:
    path = folder / name
    data = content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode()
    path.write_bytes(data)
    return path


def look(folder: pathlib.Path, expected: list[str] | None = None) -> Fleet:
    fleet = examine(read([str(folder)]), expected)
    have = fleet.accounting
    assert have["given"] == have["good"] + have["bad"] + have["flaky"] + have["unknown"] + have["missing"]
    return fleet


def state(fleet: Fleet, name: str) -> tuple[str, str]:
    (node,) = [n for n in fleet.nodes if n.name == name]
    return node.state, "; ".join((*node.reasons, *node.notes))


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (json.dumps(fleets.report("n9"))[:9000], "not JSON"),
        ("", "not JSON"),
        (b"\xff\xfe\x00broken", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"schema": ' + "9" * 5000 + "}", "not JSON"),
        ("[1, 2]", "not ours"),
        ("null", "not ours"),
        ('{"schema": "other/1"}', "not ours"),
        ('{"schema": 7}', "not ours"),
        ('{"schema": "netdoctor.report/2", "identity": {"host": "n9"}}', "other schema"),
        ('{"schema": "netdoctor.report/1"}', "malformed"),
        (json.dumps({**fleets.report("n9"), "checks": []}), "malformed"),
        (json.dumps({**fleets.report("n9"), "verdict": {"status": "splendid"}}), "malformed"),
        (json.dumps({**fleets.report("n9"), "identity": {"host": {"unavailable": "denied"}}}), "malformed"),
        (json.dumps(fleets.report("n9")) + " " * MAX_BYTES, "too large"),
    ],
)
def test_a_file_that_is_no_report_stands_for_an_unknown_node(content: str | bytes, kind: str, tmp_path: pathlib.Path) -> None:
    put(tmp_path, "n9.json", content)
    put(tmp_path, "n1.json", fleets.report("n1"))
    fleet = look(tmp_path)
    assert [p.kind for p in fleet.problems] == [kind]
    assert state(fleet, "n9")[0] == "unknown" and "n9.json" in state(fleet, "n9")[1]
    assert fleet.verdict.exit_code == 4
    for format in formats.FORMATS:
        assert formats.render(command.report(fleet), format)


def test_an_expected_node_with_a_broken_report_is_unknown(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "n1.json", '{"schema"')
    fleet = look(tmp_path, ["n1", "n2"])
    assert state(fleet, "n1")[0] == "unknown"
    assert state(fleet, "n2") == ("missing", "no report was given")
    assert fleet.verdict.exit_code == 3


def test_other_things_in_the_directory_are_named(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "n1.json", fleets.report("n1"))
    put(tmp_path, "notes.txt", "hello")
    put(tmp_path, "log.json", {"schema": "netdoctor.log/1"})
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "twice.json").hardlink_to(tmp_path / "n1.json")
    (tmp_path / "below").mkdir()
    put(tmp_path / "below", "n2.json", fleets.report("n2", number=2))
    fleet = look(tmp_path)
    assert sorted((pathlib.Path(p.file).name, p.kind) for p in fleet.problems) == [
        ("gone.json", "unreadable"),
        ("log.json", "another document"),
        ("notes.txt", "skipped"),
        ("pipe.json", "unreadable"),
        ("twice.json", "skipped"),
    ]
    assert fleet.reports == 2 and fleet.files == 7
    out = formats.render(command.report(fleet), "text")
    assert all(name in out for name in ("gone.json", "log.json", "notes.txt", "pipe.json", "twice.json"))


# Several reports of one name


def at(doc: Doc, time: str, verdict: str = "healthy") -> Doc:
    doc = copy.deepcopy(doc)
    doc["volatile"]["time"] = time
    doc["verdict"]["status"] = verdict
    return doc


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (("unhealthy", "healthy"), "good"),  # mended
        (("healthy", "unhealthy"), "bad"),
        (("healthy", "unhealthy", "healthy"), "flaky"),
        (("healthy", "inconclusive"), "unknown"),
        (("healthy", "healthy"), "good"),
    ],
)
def test_the_newest_of_several_reports_counts(verdicts: tuple[str, ...], expected: str, tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    for day, verdict in enumerate(verdicts, 1):
        put(tmp_path, f"{9 - day}.json", at(doc, f"2026-03-{day:02d}T08:00:00Z", verdict))
    fleet = look(tmp_path)
    got, words = state(fleet, "n1")
    assert got == expected and fleet.accounting["given"] == 1
    assert all(f"{9 - day}.json" in words for day in range(1, len(verdicts) + 1))


def test_two_verdicts_at_the_same_moment_are_flaky(tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    put(tmp_path, "a.json", at(doc, fleets.TIME, "unhealthy"))
    put(tmp_path, "b.json", at(doc, fleets.TIME))
    for name in ("a.json", "b.json"):
        os.utime(tmp_path / name, (2e9, 2e9 if name == "b.json" else 1.9e9))
    assert state(look(tmp_path), "n1")[0] == "flaky"


def test_a_clock_that_runs_ahead_is_named_and_not_believed(tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    os.utime(put(tmp_path, "old.json", at(doc, "2031-01-01T00:00:00Z", "unhealthy")), (1_772_000_000,) * 2)
    os.utime(put(tmp_path, "new.json", at(doc, "2026-03-01T08:00:00Z")), (1_772_400_000,) * 2)
    got, words = state(look(tmp_path), "n1")
    assert got == "good" and "new.json is the newest" in words
    os.utime(put(tmp_path, "new.json", at(doc, "2099-01-01T00:00:00Z")), (4.1e9, 4.1e9))  # a copy that kept its time
    assert "its clock is ahead by" in state(look(tmp_path), "n1")[1]


def test_two_machines_of_one_name_are_two_nodes_and_both_bad(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "a.json", fleets.report("localhost", number=1))
    put(tmp_path, "b.json", fleets.report("localhost", number=2))
    fleet = look(tmp_path)
    assert [(n.name, n.state) for n in fleet.nodes] == [("localhost (machine 1)", "bad"), ("localhost (machine 2)", "bad")]
    assert judged.faults(fleet)[0].check == "fleet.host_name"
    assert command.lists(fleet)[0]["passing_nodes.txt"] == ""


def test_machines_that_a_later_report_joins_are_one(tmp_path: pathlib.Path) -> None:
    first, second, third = (fleets.report("n1", number=i) for i in (1, 2, 1))
    third["inventory"]["gpus"] = first["inventory"]["gpus"][:4] + second["inventory"]["gpus"][4:]  # cards were swapped
    for name, doc in (("a", first), ("b", second), ("c", third)):
        put(tmp_path, f"{name}.json", doc)
    assert look(tmp_path).accounting["given"] == 1


def without_gpus(doc: Doc, machine: str, time: str, verdict: str = "healthy") -> Doc:
    doc = at(doc, time, verdict)
    doc["identity"]["machine"] = f"netdoctor-{machine}"
    doc["inventory"]["gpus"] = {"unavailable": "absent", "detail": ""}
    doc["inventory"]["pci"] = []
    return doc


def days(folder: pathlib.Path, *told: tuple[str, str]) -> Fleet:
    """Reports of one name, a day apart: machine id and verdict."""
    for day, (machine, verdict) in enumerate(told, 1):
        put(folder, f"{day}.json", without_gpus(fleets.report("n1"), machine, f"2026-03-{day:02d}T08:00:00Z", verdict))
    return look(folder)


def test_a_machine_id_that_comes_back_is_of_a_second_machine(tmp_path: pathlib.Path) -> None:
    fleet = days(tmp_path, ("a", "healthy"), ("b", "healthy"), ("a", "healthy"))
    assert [(n.name, n.state) for n in fleet.nodes] == [("n1 (machine 1)", "bad"), ("n1 (machine 2)", "bad")]
    assert judged.faults(fleet)[0].check == "fleet.host_name"


def test_another_machine_id_alone_blames_nobody_hides_nothing(tmp_path: pathlib.Path) -> None:
    for number, (told, expected) in enumerate(
        {
            (("a", "healthy"), ("b", "healthy")): "good",  # a node without a disk has another one after each start
            (("a", "unhealthy"), ("b", "healthy")): "unknown",  # mended and installed anew, or another machine
            (("a", "unhealthy"), ("a", "healthy")): "good",
        }.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        fleet = days(folder, *told)
        got, words = state(fleet, "n1")
        assert (got, len(fleet.nodes), judged.faults(fleet)) == (expected, 1, [])
        assert ("its machine id is not the same" in words) == (told[0][0] != told[1][0])


def in_a_pod(pod: str, number: int, verdict: str = "healthy") -> Doc:
    doc = at(fleets.report(pod, number=number), fleets.TIME, verdict)
    doc["identity"]["node"] = "gpu-17"
    doc["vantage"]["kind"] = "pod-init"
    return doc


def test_a_pods_report_stands_under_its_nodes_name(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "a.json", in_a_pod("train-0", 1))
    fleet = look(tmp_path, ["gpu-17", "gpu-18"])
    assert [(n.name, n.state) for n in fleet.nodes] == [("gpu-17", "good"), ("gpu-18", "missing")]
    assert [node.get("cause") for node in fleet_json.document(fleet)["nodes"]] == [None, "missing_node"]


def test_pods_of_one_node_with_own_gpus_are_no_two_machines(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "a.json", in_a_pod("train-0", 1, "unhealthy"))
    put(tmp_path, "b.json", in_a_pod("other-0", 2))
    fleet = look(tmp_path)
    assert [(n.name, n.state) for n in fleet.nodes] == [("gpu-17 (pod other-0)", "good"), ("gpu-17 (pod train-0)", "bad")]
    assert [f.check for f in judged.faults(fleet) if f.check == "fleet.host_name"] == []
    assert command.lists(fleet) == ({"passing_nodes.txt": "", "failing_nodes.txt": "gpu-17\n"}, [])


def test_what_a_pod_saw_does_not_settle_what_the_host_saw(tmp_path: pathlib.Path) -> None:
    put(tmp_path, "host.json", at(fleets.report("gpu-17"), "2026-02-28T08:00:00Z", "unhealthy"))
    put(tmp_path, "pod.json", in_a_pod("train-0", 1))
    got, words = state(look(tmp_path), "gpu-17")
    assert got == "bad" and "seen from host: HEALTHY" in words  # the text is the builder's


@pytest.mark.slow
def test_many_machines_that_are_all_called_localhost(tmp_path: pathlib.Path) -> None:
    for number in range(1, 201):
        put(tmp_path, f"{number}.json", fleets.report("localhost", number=number))
    fleet = look(tmp_path)
    assert fleet.accounting["bad"] == 200 and len(judged.faults(fleet)) == 1


def test_a_node_that_has_one_new_gpu_is_the_same_node(tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    put(tmp_path, "a.json", at(doc, "2026-03-01T08:00:00Z"))
    doc["inventory"]["gpus"][3]["uuid"] = "GPU-new"
    put(tmp_path, "b.json", at(doc, "2026-03-02T08:00:00Z"))
    assert look(tmp_path).accounting["given"] == 1


# Evidence


@pytest.mark.parametrize("lose", ["checks", "partial", "nothing passed"])
def test_a_report_that_lost_evidence_does_not_pass(lose: str, tmp_path: pathlib.Path) -> None:
    doc = fleets.report("n1")
    if lose == "checks":
        doc["checks"] = [{**c, "status": "unknown"} for c in doc["checks"]]
    if lose == "partial":
        doc["partial"] = "interrupted by SIGTERM"
    if lose == "nothing passed":
        doc["checks"] = [{**c, "status": "skip"} for c in doc["checks"]]
    put(tmp_path, "n1.json", doc)
    assert state(look(tmp_path), "n1")[0] == "unknown"


# Expected nodes


def test_short_and_full_names_meet_where_that_is_unambiguous(tmp_path: pathlib.Path) -> None:
    for number, name in enumerate(("n1.cluster.example", "N2", "n3.a", "n3.b"), 1):
        put(tmp_path, f"{number}.json", fleets.report(name, number=number))
    fleet = look(tmp_path, ["n1", "n2.cluster.example", "n3"])
    assert {n.name: (n.state, n.expected) for n in fleet.nodes} == {
        "n1": ("good", True),
        "n2.cluster.example": ("good", True),
        "n3": ("missing", True),
        "n3.a": ("good", False),
        "n3.b": ("good", False),
    }
    assert command.lists(fleet)[0] == {"passing_nodes.txt": "n1\nn2.cluster.example\n", "failing_nodes.txt": "n3\n"}


def test_the_hosts_file(tmp_path: pathlib.Path) -> None:
    path = put(tmp_path, "hosts.txt", "\ufeff# all\nn1\n\nn2  # rack 2\nn1\n\x1b[31mn3\n")
    assert expected_names(str(path)) == ["n1", "n2", "n3"]


def test_cleaning_keeps_what_is_harmless() -> None:
    assert as_line("NVIDIA H100 80GB – ok ✓") == "NVIDIA H100 80GB – ok ✓"
    assert as_line("a" * 400, 10) == "a" * 9 + "…"
    assert as_line("a\x00b\tc") == "ab c"


@pytest.mark.slow
def test_the_command_line_does_not_load_what_it_does_not_need() -> None:
    code = "import sys, netdoctor.report.fleet_html, netdoctor.cli.fleet; print(sorted({'torch', 'yaml'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_node_that_answered_at_the_second_attempt_is_flaky(tmp_path: pathlib.Path) -> None:
    for name, attempts in (("n1", 2), ("n2", 1), ("n3", "2")):
        doc = fleets.report(name, number=int(name[1]))
        doc["volatile"]["attempts"] = attempts
        put(tmp_path, f"{name}.json", doc)
    fleet = look(tmp_path)
    assert [n.state for n in fleet.nodes] == ["flaky", "good", "good"]
    assert "answered only when it was asked again (attempt 2)" in state(fleet, "n1")[1]

"""Many reports become one: planted faults are found, nobody else is blamed, and every name is in exactly one state."""

from __future__ import annotations

import json
import pathlib
import tempfile
from typing import Any

import pytest

from netdoctor.cli import fleet as command
from netdoctor.cli.options import Options
from netdoctor.compare.traits import Family
from netdoctor.fleet.nodes import NodeState
from netdoctor.fleet.read import read
from netdoctor.fleet.report import Fleet, examine
from netdoctor.model import Severity, Status
from netdoctor.report import formats
from tests.support.clusters import fleets as reports
from tests.support.clusters.fleets import KINDS
from tests.support.facts import judged

pytestmark = pytest.mark.slow

Doc = dict[str, Any]


def fleet_of(*docs: Doc, expected: list[str] | None = None, fail_on: Severity = Severity.WARNING) -> Fleet:
    """Write reports as files and examine them."""
    with tempfile.TemporaryDirectory() as folder:
        for number, doc in enumerate(docs):
            pathlib.Path(folder, f"{number:03d}.json").write_text(json.dumps(doc))
        fleet = judged.examined(read([folder]), expected, fail_on)
    check_sums(fleet)
    return fleet


def check_sums(fleet: Fleet) -> None:
    have = fleet.accounting
    assert have["given"] == sum(have[state] for state in NodeState) == len(fleet.nodes)
    assert all(c.title != c.id for c in fleet.checks)  # every rule has its title
    report = command.report(fleet)
    judged.validated(formats.render(report, "json"), "fleet")
    assert fleet.verdict.text in formats.render(report, "text")


def states(fleet: Fleet) -> dict[str, str]:
    return {n.name: n.state for n in fleet.nodes}


def nodes(count: int, **changes: Any) -> list[Doc]:
    return [reports.report(f"n{i}", number=i + 1, **changes) for i in range(count)]


def test_a_healthy_fleet_blames_nobody() -> None:
    fleet = fleet_of(*nodes(40), *[reports.report(f"a{i}", KINDS[1], i + 1) for i in range(20)])
    assert fleet.verdict.status == "healthy" and fleet.verdict.exit_code == 0
    assert [len(g.members) for g in fleet.groups] == [40, 20]
    assert not judged.faults(fleet) and not fleet.drift and not any(d.outliers for d in fleet.distributions)


@pytest.mark.parametrize("fault", sorted(reports.FAULTS))
def test_every_planted_fault_is_found_and_nothing_else(fault: str) -> None:
    kind_name, plant, says = reports.FAULTS[fault]
    kind = next(k for k in KINDS if k.name == kind_name)
    docs = [reports.report(f"n{i}", kind, i + 1) for i in range(12)]
    plant(docs[5])
    fleet = fleet_of(*docs)
    assert states(fleet) == {f"n{i}": "bad" if i == 5 else "good" for i in range(12)}
    bad = next(n for n in fleet.nodes if n.name == "n5")
    assert any(says in reason for reason in bad.reasons), bad.reasons
    assert fleet.verdict.exit_code == 3


def test_a_fleet_of_every_kind_with_everything_planted(tmp_path: pathlib.Path) -> None:
    planted = reports.Fleet()
    for one in reports.fleet(600, 63, seed=3, into=planted):
        if one.text:
            (tmp_path / f"{one.name}.json").write_text(one.text)
    fleet = examine(read([str(tmp_path)]), planted.expected)
    check_sums(fleet)
    wrong = {
        n.name: (n.state, n.reasons)
        for n in fleet.nodes
        if n.state != (planted.planted[n.name].state if n.name in planted.planted else "good")
    }
    assert wrong == {}
    for name, one in planted.planted.items():
        assert any(one.says in r for n in fleet.nodes if n.name == name for r in n.reasons), (name, one.fault)


# Majorities


def drifted(count: int, differ: int) -> list[Doc]:
    docs = nodes(count)
    for doc in docs[:differ]:
        doc["inventory"]["driver"] = "570.86.10"
    return docs


@pytest.mark.parametrize(
    ("count", "differ", "bad"),
    [(3, 1, 1), (5, 2, 2), (4, 2, 0), (2, 1, 0), (95, 47, 0), (20, 1, 1)],
)
def test_a_clear_majority_or_nobody(count: int, differ: int, bad: int) -> None:
    fleet = fleet_of(*drifted(count, differ))
    assert fleet.accounting["bad"] == bad
    (row,) = [r for r in fleet.drift if r.family is Family.DRIVER]
    assert (row.majority is None) == (bad == 0)
    assert ("differs without a majority" in formats.render(command.report(fleet), "text")) == (bad == 0)


def test_nodes_that_could_not_tell_are_no_majority() -> None:
    docs = drifted(9, 1)
    for doc in docs[3:]:
        doc["inventory"]["driver"] = {"unavailable": "timed out", "detail": ""}
    fleet = fleet_of(*docs)  # two agree, one differs, six are silent: any of the two may be the usual one
    (row,) = [r for r in fleet.drift if r.family is Family.DRIVER]
    assert row.majority is None and row.sides.unknown == 6
    assert fleet.accounting["bad"] == 0


def test_a_value_that_could_not_be_read_is_no_difference() -> None:
    docs = nodes(8)
    docs[0]["inventory"] = {key: {"unavailable": "denied", "detail": ""} for key in docs[0]["inventory"]}
    docs[1]["inventory"] = {}
    fleet = fleet_of(*docs)
    assert fleet.accounting["bad"] == 0 and not fleet.drift


def test_a_variable_that_one_node_lacks_is_a_difference() -> None:
    docs = nodes(6)
    for doc in docs[1:]:
        doc["inventory"]["nccl_variables"]["NCCL_IB_HCA"] = "mlx5"
    fleet = fleet_of(*docs)
    (row,) = fleet.drift
    assert row.majority == "mlx5" and row.values == [("(not set)", ["n0"])]


def test_a_lesser_severity_can_be_let_pass() -> None:
    fleet = fleet_of(*drifted(6, 1), fail_on=Severity.CRITICAL)
    assert fleet.accounting["bad"] == 0 and fleet.verdict.exit_code == 0
    assert "NVIDIA driver: 570.86.10" in fleet.nodes[0].notes[0]


# Groups


def test_only_like_is_compared_with_like() -> None:
    docs = nodes(5) + [reports.report(f"l{i}", KINDS[3], i + 1) for i in range(5)]
    for doc in docs[5:]:
        doc["inventory"]["driver"] = "550.1"
        doc["vantage"]["kind"] = "host"
    alone = reports.report("gb", reports.ALONE)
    alone["inventory"]["driver"] = "600.1"
    fleet = fleet_of(*docs, alone)
    assert len(fleet.groups) == 3 and not fleet.drift and fleet.verdict.exit_code == 0
    assert any("alone of its kind, so compared with nobody: gb (" in note for note in fleet.notes)


def test_a_node_without_its_gpus_stays_one_of_its_kind() -> None:
    docs = nodes(6)
    docs[2]["inventory"]["gpus"] = []
    docs[2]["inventory"]["pci"] = [d for d in docs[2]["inventory"]["pci"] if d["kind"] == "nic"]
    fleet = fleet_of(*docs)
    assert len(fleet.groups) == 1
    assert [n.name for n in fleet.nodes if n.state == "bad"] == ["n2"]


def test_another_number_of_gpus_on_many_nodes_is_another_kind() -> None:
    docs = nodes(10)
    for doc in docs[:4]:
        doc["inventory"]["gpus"] = doc["inventory"]["gpus"][:4]
    fleet = fleet_of(*docs)
    assert [len(g.members) for g in fleet.groups] == [6, 4] and fleet.accounting["bad"] == 0


def test_what_is_seen_from_a_pod_is_not_compared_with_a_host() -> None:
    docs = nodes(6)
    docs[0]["vantage"]["kind"] = "pod"
    docs[0]["inventory"]["sysctls"]["net.core.somaxconn"] = "128"
    assert fleet_of(*docs).accounting["bad"] == 0


# Formats and exit codes


@pytest.mark.parametrize("format", formats.FORMATS)
@pytest.mark.parametrize("verdict", ["healthy", "unhealthy", "inconclusive"])
def test_every_format_gives_the_same_exit_code(format: str, verdict: str, tmp_path: pathlib.Path) -> None:
    docs = nodes(3)
    if verdict == "unhealthy":
        reports.own_fail(docs[0])
    if verdict == "inconclusive":
        docs[0]["verdict"]["status"] = "inconclusive"
    folder = tmp_path / "reports"
    folder.mkdir()
    for doc in docs:
        (folder / f"{doc['identity']['host']}.json").write_text(json.dumps(doc))
    out = tmp_path / "out"
    code = command.run(Options(format=format, quiet=True, output=str(out)), [str(folder)], None, str(tmp_path))
    assert code == {"healthy": 0, "unhealthy": 3, "inconclusive": 4}[verdict]
    assert len(out.read_text()) > (20 if format == "brief" else 100)
    assert (tmp_path / "passing_nodes.txt").read_text() == "".join(f"n{i}\n" for i in range(verdict != "healthy", 3))
    assert (tmp_path / "failing_nodes.txt").read_text() == ("n0\n" if verdict == "unhealthy" else "")


def test_the_folder_of_the_lists_is_made(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (doc,) = nodes(1)
    (tmp_path / "n.json").write_text(json.dumps(doc))
    out = str(tmp_path / "out")
    quiet = Options(quiet=True, output=out)
    assert command.run(quiet, [str(tmp_path / "n.json")], None, str(tmp_path / "a/b")) == 0
    assert (tmp_path / "a/b/passing_nodes.txt").read_text()
    assert command.run(quiet, [str(tmp_path / "n.json")], None, f"{out}/x") == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bad_usage_is_exit_2(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(Options(), [str(tmp_path / "none")]) == 2
    assert command.run(Options(), []) == 2
    assert command.run(Options(format="yaml"), [str(tmp_path)]) == 2
    assert command.run(Options(fail_on="bad"), [str(tmp_path)]) == 2
    assert command.run(Options(), [str(tmp_path)], str(tmp_path / "none")) == 2
    assert "no such file" in capsys.readouterr().err


def test_no_report_is_inconclusive(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(Options(), [str(tmp_path)]) == 4
    assert "no node report was given" in capsys.readouterr().out


# Real nodes


def test_a_node_whose_torch_or_driver_is_gone_differs() -> None:
    docs = nodes(6)
    gone = {"unavailable": "absent", "detail": "no such library"}
    docs[0]["inventory"] |= {"torch": gone, "nccl": {"version": gone, "source": None, "path": None, "plugins": []}}
    docs[1]["inventory"] |= {"driver": gone, "cuda_driver": gone, "gpus": gone}
    fleet = fleet_of(*docs)
    assert [n.name for n in fleet.nodes if n.state == "bad"] == ["n0", "n1"]
    assert len(fleet.groups) == 1
    assert {(str(r.trait), r.values[0][0]) for r in fleet.drift} >= {("torch", "(not there)"), ("driver", "(not there)")}
    assert any("GPUs of 1 node could not be read" in note for note in fleet.notes)


def test_nodes_without_gpus_are_a_kind() -> None:
    docs = nodes(4)
    gone = {"unavailable": "absent", "detail": "no NVML"}
    for doc in docs:
        doc["inventory"] |= {"driver": gone, "gpus": gone, "pci": [], "nics": []}
    fleet = fleet_of(*docs)
    assert [g.name for g in fleet.groups] == ["no GPU"] and fleet.verdict.exit_code == 0


def test_what_follows_from_memory_or_load_order_is_no_drift() -> None:
    docs = nodes(4)
    docs[0]["inventory"]["sysctls"] |= {
        "net.ipv4.tcp_mem": "1\t2\t3",
        "net.ipv4.tcp_available_congestion_control": "reno bbr cubic",
    }
    assert not fleet_of(*docs).drift


def test_virtual_functions_that_are_in_a_pod_are_no_drift() -> None:
    docs = nodes(4)
    extra = {"name": "enp65s0f0v3", "kind": None, "physical": True, "up": True, "mtu": 1500, "addresses": []}
    docs[0]["inventory"]["links"].append(extra)
    assert not fleet_of(*docs).drift


@pytest.mark.parametrize(
    ("change", "others", "found"),
    [
        ({"up": False}, {}, "state of eth1: down, where 5 nodes have up"),
        ({"speed_mbps": 25_000}, {}, "speed of eth1: 25000 Mb/s, where 5 nodes have 100000 Mb/s"),
        ({"driver": "ice"}, {}, "driver of eth1: ice, where 5 nodes have mlx5_core"),
        ({"speed_mbps": {"unavailable": "failed"}}, {}, ""),
        ({"up": True}, {"up": False}, ""),  # a spare port that one node uses
        ({"up": False, "speed_mbps": 10, "physical": False}, {"physical": False}, ""),
    ],
)
def test_physical_interfaces_are_compared(change: Doc, others: Doc, found: str) -> None:
    docs = nodes(6)
    link = {"name": "eth1", "kind": None, "physical": True, "up": True, "speed_mbps": 100_000, "driver": "mlx5_core"}
    for number, doc in enumerate(docs):
        links = doc["inventory"]["links"]
        links[:] = [one for one in links if one["name"] != "eth1"]
        links.append({**link, "addresses": [], **(others if number else change)})
    fleet = fleet_of(*docs)
    told = [f.message for check in fleet.checks if check.id == "fleet.drift" for f in check.findings if f.status is Status.FAIL]
    assert told == ([found] if found else [])


def test_the_age_of_the_newest_report_is_told() -> None:
    docs = nodes(3)
    with tempfile.TemporaryDirectory() as folder:
        for number, doc in enumerate(docs):
            pathlib.Path(folder, f"n{number}.json").write_text(json.dumps(doc))
        reading = read([folder])
    newest = max(run.time or 0.0 for run in reading.runs)
    for days, told in ((6, []), (84, ["the newest report is 84 days old: what is said here was so then"])):
        assert examine(reading, now=newest + days * 86400).notes == told


def test_one_machine_under_two_names_has_no_second_address() -> None:
    """Machine id and addresses are of one machine; a name and its full one are one node, others are not to be told apart."""
    for other, state in (("n0.cluster", {"n0.cluster": "good"}), ("m0", {"m0": "unknown", "n0": "unknown"})):
        docs = [reports.report("n0"), reports.report("n0")]
        docs[1]["identity"]["host"] = other
        for doc in docs:
            doc["identity"]["machine"] = "netdoctor-1"
            doc["inventory"]["gpus"] = {"unavailable": "denied"}
            for nic in doc["inventory"]["nics"]:
                nic.pop("ports")
        fleet = fleet_of(*docs)
        assert states(fleet) == state and not judged.faults(fleet)
        docs[1]["inventory"]["links"][2]["addresses"] = ["172.29.0.1/16"]  # a clone that shares one address
        assert [f.cause for f in judged.faults(fleet_of(*docs))] == ["duplicate_address"]


def test_the_mtu_of_one_subnet_is_judged_between_nodes() -> None:
    docs = nodes(6)
    fleets_mtu = reports.FAULTS["mtu"][1]
    fleets_mtu(docs[0])
    (finding,) = judged.faults(fleet_of(*docs))
    assert finding.cause == "mtu" and finding.subject == "10.1.0.0/16" and finding.nodes == ("n0",)
    assert finding.severity is Severity.WARNING and "% of what is sent is data" in str(finding.loss and finding.loss.formula)
    for doc in docs[1:3]:
        fleets_mtu(doc)
    (finding,) = judged.faults(fleet_of(*docs))
    assert finding.cause == "mtu" and finding.nodes == ()  # three against three


def test_single_addresses_say_nothing_about_subnets() -> None:
    docs = nodes(4)
    for doc in docs:
        doc["inventory"]["nccl_interface"]["prefix"] = 32
        doc["inventory"]["nccl_interface"]["mtu"] = 1460
    docs[0]["inventory"]["nccl_interface"] |= {"mtu": 8896, "prefix": None}
    assert not judged.faults(fleet_of(*docs))


@pytest.mark.parametrize("address", ["127.0.0.5/8", "169.254.9.9/16", "224.0.0.9/4", "0.0.0.0/0"])
def test_addresses_of_no_network_are_no_conflict(address: str) -> None:
    docs = nodes(30)
    for doc in docs[:2]:
        doc["inventory"]["links"][2]["addresses"] = [address]
    assert not judged.faults(fleet_of(*docs))


def test_the_gids_of_a_port_that_is_down_do_not_count() -> None:
    docs = [reports.report(f"n{i}", KINDS[1], i + 1) for i in range(4)]
    for doc in docs:
        doc["inventory"]["nics"][0]["ports"][0]["state"] = "DOWN"
    docs[0]["inventory"]["nics"][0]["ports"][0]["gids"] = []
    assert not judged.faults(fleet_of(*docs))


def test_another_subnet_comes_with_the_way_to_mend_it() -> None:
    docs = nodes(12)
    moved = docs[0]["inventory"]["nccl_interface"]
    moved["address"] = "10.200.0.1"
    docs[0]["inventory"]["links"][1]["addresses"] = ["10.200.0.1/16"]
    (finding,) = judged.faults(fleet_of(*docs))
    assert finding.nodes == ("n0",) and finding.severity is Severity.WARNING and "route" in (finding.how or "")
    moved["name"] = "ib0"
    (finding,) = judged.faults(fleet_of(*docs))
    assert finding.how == "NCCL_SOCKET_IFNAME=eth0"


def test_kinds_with_different_nccl_are_a_note() -> None:
    docs = nodes(3) + [reports.report(f"l{i}", KINDS[3], i + 1) for i in range(3)]
    assert not fleet_of(*docs).notes
    for doc in docs[:3]:
        doc["inventory"]["nccl"]["version"] = "2.21.5"
    fleet = fleet_of(*docs)
    assert fleet.verdict.exit_code == 0 and any("different NCCL versions" in note for note in fleet.notes)


def test_a_waived_fail_is_not_the_reason() -> None:
    docs = nodes(3)
    reports.own_fail(docs[0], "net.tcp_buffers", "small, and that is fine")
    docs[0]["checks"][6]["findings"][0]["waived"] = "the site says so (until 9999-01-01)"
    reports.own_fail(docs[0])
    (node,) = [n for n in fleet_of(*docs).nodes if n.state == "bad"]
    assert node.reasons == ["net.port_range: 3 usable ports, 24 listeners"]


def test_a_few_nodes_with_other_devices_are_not_adopted() -> None:
    docs = nodes(5)
    storage = reports.report("storage", number=99)
    storage["inventory"] |= {"gpus": [], "pci": []}
    storage["inventory"]["nics"] = storage["inventory"]["nics"][:2]
    fleet = fleet_of(*docs, storage)
    assert [len(g.members) for g in fleet.groups] == [5, 1] and fleet.verdict.exit_code == 0

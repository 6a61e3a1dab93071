"""Which healthy shapes profile strict calls healthy, and of the others the one thing each that is missing, by design.

strict wants every check to tell, so that what nobody could look at is in its way: the reasons below, and no other.
"""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from netdoctor.model import Status
from netdoctor.policy import PROFILE_ORDER
from tests.lab import fixtures
from tests.support.machines import composed
from tests.support.sources import ROOT, table
from tests.unit.test_strange_nodes import ROWS

pytestmark = pytest.mark.slow

DATA: list[dict[str, Any]] = table(pathlib.Path(__file__).parent / "data" / "strict.yaml")
TABLE = [(row["config"], name, reasons) for row in DATA for name, reasons in row["machines"].items()]
STRICT = {"profile": "strict", "vantage": "job"}
# Check and the beginning of its subject -> the reason, as the table has it.
REASONS = {
    # Whether the interface that NCCL takes reaches the others only another node shows: expected.peers, MASTER_ADDR, a meeting.
    ("net.socket_ifname", "NCCL"): "peers",
    ("net.reach", "hosts"): "peers",
    # Sockets carry the data, and no interrupt of that interface is shown (as in a virtual machine).
    ("cpu.numa_affinity", "interrupts"): "interrupts",
    # Whether EFA does GPUDirect libfabric finds out in the job; a run between nodes shows it.
    ("rdma.gpudirect", "GPU"): "efa",
    # EFA's links are the cloud's; the cable below a pod's interface is counted on the node.
    ("net.errors", "links"): "efa",
    ("net.errors", "eth0"): "cable",
    # The host's name leads to its loopback: a fault of several nodes, and nothing says how many there are.
    ("net.socket_ifname", "Gloo"): "gloo",
    # What a PCIe switch turns back root alone reads, and no run of two GPUs below it shows it.
    ("pci.path", "GPUs and GPUs"): "acs",
    # Two of four like cards have no NVLink bridge: never bought, or not put back.
    ("hardware.gpus", "GPUs"): "bridges",
}


def in_the_way(machine: composed.Composed) -> set[str]:
    report = fixtures.report(machine.snapshot())
    assert not report.findings(Status.FAIL, Status.ERROR)
    found = [one for one in report.findings(Status.UNKNOWN) if one.blocking]
    named = {
        next(
            (why for (check, begin), why in REASONS.items() if one.check == check and one.subject.startswith(begin)),
            one.message,
        )
        for one in found
    }
    assert report.verdict.exit_code == (4 if named else 0)
    return named


@pytest.mark.parametrize(("config", "name", "reasons"), TABLE, ids=str)
def test_what_is_in_the_way_of_strict(config: dict[str, Any], name: str, reasons: list[str]) -> None:
    # Azure's GPUs and HCAs share no PCI root: which pairs do GPUDirect, runs show, and one run takes two of eight.
    wanted = {"efa" if one == "pairs" else one for one in reasons}
    assert in_the_way(composed.Composed(name, None, config | STRICT)) == wanted


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["node"]))
def test_a_node_built_otherwise_and_strict(row: dict[str, Any]) -> None:
    config = {**row["config"], "job.nodes": 1, **STRICT}
    assert in_the_way(composed.Composed(row["machine"], row["change"], config)) == set(row.get("strict", ()))


@pytest.mark.parametrize("row", [row for row in ROWS if "acs" in row.get("strict", ())], ids=lambda row: str(row["node"]))
def test_no_other_profile_waits_for_what_root_alone_reads(row: dict[str, Any]) -> None:
    config = {**row["config"], "job.nodes": 1, **STRICT}
    for profile in set(PROFILE_ORDER) - {"strict"}:
        report = fixtures.report(composed.Composed(row["machine"], row["change"], config | {"profile": profile}).snapshot())
        assert (report.verdict.exit_code, "could not tell: pci.path" in report.verdict.text) == (0, True)


def test_there_are_as_many_as_the_document_says() -> None:
    text = (ROOT / "docs" / "intent.md").read_text(encoding="utf-8")
    assert f"{len({name for _, name, _ in TABLE})} recorded shapes, {len(ROWS)} built otherwise" in text
    assert len(TABLE) + len(ROWS) >= 60
    assert sum(not reasons for _, _, reasons in TABLE) >= 15

"""Three machines of others (fixtures/trees): no verdict for what nobody looked at, and the facts that hwloc tells of them."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import pytest

from netdoctor.model import Status, Unavailable
from netdoctor.snapshot.snapshot import loads
from tests.lab import fixtures
from tests.support.machines import collected, lstopo

FOLDER = fixtures.ROOT / "fixtures" / "trees"
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))


@functools.cache
def facts(name: str) -> Any:
    return fixtures.facts_of(loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))


def cpus(name: str) -> dict[int, frozenset[int]]:
    return {node.id: node.cpus for node in facts(name)["Cpu"].nodes}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_fails_and_only_its_hardware_is_judged(name: str) -> None:
    report = fixtures.report(loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))
    told = {f.check for f in report.findings() if f.status is not Status.UNKNOWN}
    assert not report.findings(Status.FAIL) and told <= {"hardware.hca", "hardware.site", "node.folders"}
    assert report.verdict.exit_code == 4


def test_they_are_named_in_the_provenance() -> None:
    said = (FOLDER / "PROVENANCE.md").read_text(encoding="utf-8")
    assert NAMES and all(f"| {name} |" in said for name in NAMES)


def test_four_nodes_and_truescale() -> None:
    """hwloc: CPUs 0, 4, … 36 on node 0, and so on; qib0 on 0000:43:00.0, id=1077:7322, below 0000:40:07.0."""
    assert cpus("r910-qib") == {n: frozenset(range(n, 40, 4)) for n in range(4)}
    (qib,) = facts("r910-qib")["Rdma"].devices
    assert (qib.name, qib.pci, qib.ports[0].link_layer) == ("qib0", "0000:43:00.0", "InfiniBand")


def test_an_rdma_device_that_is_no_pci_function() -> None:
    mlx4, scif = facts("xeon-phi-mlx4")["Rdma"].devices
    assert (mlx4.name, mlx4.pci, mlx4.driver) == ("mlx4_0", "0000:82:00.0", "mlx4_core")
    assert scif.name == "scif0" and isinstance(scif.pci, Unavailable)
    (card,) = facts("xeon-phi-mlx4")["Pci"].rdma
    assert (card.address, card.path, card.numa_node) == ("0000:82:00.0", ("0000:80:02.2",), 1)


def test_memory_of_gpus_is_a_node_without_cpus() -> None:
    found = cpus("power9-gpu-memory")
    assert sorted(n for n, own in found.items() if own) == [0, 8]
    assert sorted(n for n, own in found.items() if not own) == [250, 251, 252, 253, 254, 255]


def test_lstopo_is_read_in_both_formats() -> None:
    text = """Machine (P#0)
  Package L#0
    MemCache L#0 (size=8GB)
      NUMANode(HBM) L#0 (P#3 local=1KB)
    PU L#0 (P#0)
    PU L#1 (P#2)
    HostBridge L#0 (buses=0000:[17-1e])
      PCIBridge L#1 (busid=0000:17:00.0 id=8086:2030 class=0604(PCIBridge) link=15.75GB/s buses=0000:[18-1e])
        PCI L#0 (busid=0000:1a:00.0 id=15b3:1013 class=0207(InfiniBand) link=15.75GB/s)
"""
    xml = """<?xml version="1.0"?><topology><object type="Package"><object type="NUMANode" os_index="3" cpuset="0x00000005"/>
<object type="Bridge" bridge_type="0-1"><object type="Bridge" pci_busid="0000:17:00.0"><object type="PCIDev"
pci_busid="0000:1a:00.0" pci_type="0207 [15b3:1013] [15b3:0179] 00" pci_link_speed="15.75"/></object></object></object>
</topology>"""
    want = lstopo.Machine(
        {3: frozenset({0, 2})}, {"0000:1a:00.0": lstopo.Function("15b3:1013", "0207", ("0000:17:00.0",), 15.75)}
    )
    assert lstopo.parse(text) == lstopo.parse(xml) == want


def test_the_plain_text_archive(tmp_path: pathlib.Path) -> None:
    rule = "# ttar - - -\n"
    text = (
        f"# Archive\nDirectory: f\nMode: 755\n{rule}Path: f/sys/a\nLines: 2\none\ntwoEOF\nMode: 644\n{rule}"
        f"Path: f/b\nSymlinkTo: sys/a\n{rule}Path: f/c\nLines: 1\nxNULLBYTE\\NULLBYTE\\EOF\nMode: 644\n"
    )
    collected.unpack_ttar(text, tmp_path)
    assert (tmp_path / "f/b").read_bytes() == b"one\ntwo"
    assert (tmp_path / "f/c").read_bytes() == b"x\0NULLBYTEEOF\n"
    with pytest.raises(ValueError, match="leaves"):
        collected.unpack_ttar("Path: ../x\nLines: 0\n", tmp_path)

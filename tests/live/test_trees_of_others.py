"""Machines of others, from the trees that hwloc, procfs and util-linux keep for their tests: what netdoctor makes of them.

All of them, and the comparison in full: ``python -m tests.lab.trees``.
"""

from __future__ import annotations

import json
import pathlib

import pytest
from typer.testing import CliRunner

from netdoctor.cli.main import app
from tests.lab import trees
from tests.support.machines import collected

TREES = {tree.name: tree for tree in collected.every()}
pytestmark = [pytest.mark.live, pytest.mark.skipif(not TREES, reason=collected.MISSING)]
# Of hwloc's: those with PCI, InfiniBand, GPUs' memory as NUMA nodes, or nodes that are sparse, contradictory or offline.
CHOSEN = (
    "hwloc/2pa-pcidomain32bits",
    "hwloc/32em64t-2n8c+1mic",
    "hwloc/32intel64-2p8co2t+8ve",
    "hwloc/40intel64-2g2n4c+pci",
    "hwloc/48amd64-4d2n6c-sparse",
    "hwloc/8em64t-2s2ca2c-buggynuma",
    "hwloc/nvidiagpunumanodes",
    "hwloc/offline-cpu0-node0",
    "procfs/fixtures",
    "util-linux/armv7",
)


@pytest.mark.parametrize("name", CHOSEN)
def test_its_hardware_alone_is_judged_and_hwloc_sees_the_same(name: str) -> None:
    seen = trees.look(TREES[name])
    assert "unknown" in seen.statuses and set(seen.statuses) <= trees.RIGHT, "a copied tree does not show the job"
    assert seen.differs == ()


def test_something_is_compared() -> None:
    seen = trees.look(TREES["hwloc/32intel64-2p8co2t+8ve"])
    assert seen.compared["NUMA nodes"] and seen.compared["PCI functions"] and seen.compared["links"]


def test_the_commands(tmp_path: pathlib.Path) -> None:
    taken, run = tmp_path / "snapshot.json", CliRunner()
    with TREES["hwloc/40intel64-2g2n4c+pci"].unpacked() as root:
        assert run.invoke(app, ["snapshot", "--import-tree", str(root), "-o", str(taken)]).exit_code == 0
    done = run.invoke(app, ["diagnose", str(taken), "-f", "json"])
    report = json.loads(done.stdout)
    assert done.exit_code == report["verdict"]["exit_code"] == 4
    assert [nic["name"] for nic in report["inventory"]["nics"]] == ["qib0"]

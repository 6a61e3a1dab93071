"""rdma.gid and rdma.dev_infiniband where sysfs shows no device, or NCCL asks none."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.checks.rdma_gid import gid
from netdoctor.facts.environ import Environ
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Status, Unavailable
from tests.support import facts as f

NONE, GONE = Rdma((), "libibverbs.so.1", ()), Unavailable("absent")


@pytest.mark.parametrize("vantage", [f.outside(), f.pod(), f.vantage()])
def test_devices_that_pci_alone_shows_are_not_skipped(vantage: Vantage) -> None:
    facts = {Rdma: NONE, Vantage: vantage, PathRun: f.path_run()}
    assert {one.status for one in f.judge(gid, f.machine(facts))} == {Status.UNKNOWN}


@pytest.mark.parametrize(
    ("pci", "status"),
    [(f.pci(8, 0), Status.SKIP), (f.pci(devices=Unavailable("denied")), Status.UNKNOWN)],
    ids=["no RDMA hardware", "PCI not read"],
)
def test_no_device_and_what_pci_says(pci: Pci, status: Status) -> None:
    assert f.only(f.judge(gid, f.machine({Rdma: NONE, Pci: pci, PathRun: f.path_run()}))).status is status


SMALL: dict[type, Any] = {Kernel: f.kernel(limits={"memlock": 64 << 10})}
NO_LIBRARY = f.rdma(devices=tuple(f.hca(i, provider=GONE) for i in range(8)), verbs_devices=(), libibverbs=GONE)


@pytest.mark.parametrize("facts", [SMALL, {Rdma: NO_LIBRARY}], ids=["memlock", "libibverbs"])
@pytest.mark.parametrize(
    ("plugins", "statuses"), [((), {Status.SKIP}), ((f.plugin(),), {Status.FAIL}), (Unavailable("denied"), {Status.FAIL})]
)
def test_what_nccl_is_told_not_to_open(facts: dict[type, Any], plugins: Any, statuses: set[Status]) -> None:
    """NCCL_IB_DISABLE=1 without a plugin: nothing opens an RDMA device; that it is set is nccl.environment's to say."""
    off = {Environ: f.environ({"NCCL_IB_DISABLE": "1"}), Libraries: f.libraries(plugins=plugins), PathRun: f.path_run()}
    found = {one.status for one in f.judge(dev_infiniband, f.machine({**facts, **off}))}
    assert statuses <= found and (Status.FAIL in found) == (Status.FAIL in statuses)


@pytest.mark.parametrize(
    ("slots", "index", "status", "said"),
    [
        (16, "200", Status.FAIL, "NCCL takes the GID of index 200 (NCCL_IB_GID_INDEX), and the port's table ends at 15"),
        (256, "15", Status.FAIL, "NCCL takes the GID of index 15 (NCCL_IB_GID_INDEX), and that entry is empty"),
        (0, "200", Status.UNKNOWN, "which GID NCCL takes is not known: GID 200 of port 1 was not read"),
        (256, "200", Status.UNKNOWN, "which GID NCCL takes is not known: GID 200 of port 1 was not read"),
    ],
)
def test_an_index_beyond_the_table(slots: int, index: str, status: Status, said: str) -> None:
    devices = tuple(
        f.hca(
            i, ports=(f.port(link_layer="Ethernet", gids=(f.gid(index=3, kind="RoCE v2", netdev=f"eth{i}"),), gid_slots=slots),)
        )
        for i in range(8)
    )
    facts: dict[type, Any] = {
        Rdma: f.rdma(devices=devices),
        Environ: f.environ({"NCCL_IB_GID_INDEX": index}),
        PathRun: f.path_run(),
    }
    found = [one for one in f.judge(gid, f.machine(facts)) if one.subject == devices[0].name]
    assert [(one.status, one.message) for one in found] == [(status, said)]

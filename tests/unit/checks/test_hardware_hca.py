"""hardware.hca: what one layer shows and another lacks."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.hardware_hca import hca
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.layers import hcas_without_device
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.log.facts import NetDevice
from tests.support import facts as f

LOST = Unavailable("denied")
NODE, LOG, TRIED = "node", "HCAs in NCCL's log", "HCAs that were tried"
PASS, FAIL, SKIP, UNKNOWN = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN
Changes = dict[type, object]
SEVEN = {Rdma: f.rdma(7)}


def functions(**last: Any) -> Pci:
    return f.pci(devices=(*f.pci(8, 7).devices, f.hca_device(7, **last)))


def listed(*names: str) -> Baseline:
    devices = tuple(NetDevice(name, 1, "IB") for name in names)
    return f.baseline(f.run(log=f.log(net="IB", network="IB", devices=devices)))


def tried(count: int, **changes: Any) -> PathRun:
    return f.path_run(*(f.hca_run(n, (n + 1) % 8, f"mlx5_{n}:1", **changes) for n in range(count)))


ALL = tuple(f"mlx5_{n}" for n in range(8))
ROWS: dict[str, tuple[Changes, str, Status]] = {
    "eight everywhere": ({}, NODE, PASS),
    "one left out by its driver": (SEVEN, NODE, FAIL),
    "one without a driver": ({**SEVEN, Pci: functions(driver=None)}, NODE, FAIL),
    "one on vfio-pci": ({**SEVEN, Pci: functions(driver="vfio-pci")}, NODE, UNKNOWN),
    "one left out, in a container": ({**SEVEN, Vantage: f.pod()}, NODE, UNKNOWN),
    "one left out, network namespaces have their own": ({Rdma: f.rdma(7, shared=False)}, NODE, UNKNOWN),
    "one left out, whose namespaces is not known": ({Rdma: f.rdma(7, shared=LOST)}, NODE, UNKNOWN),
    "one left out, of a job on one node": ({**SEVEN, Intent: f.job(nodes=1)}, NODE, SKIP),
    "a virtual function that a guest has": ({**SEVEN, Pci: functions(physical_function="0000:18:00.0")}, NODE, PASS),
    "the second port of a bond": ({**SEVEN, Pci: functions(address=f.bdf(f.HCA_BUSES[6], 0, 1))}, NODE, PASS),
    "an onboard NIC without RDMA": (
        {**SEVEN, Pci: functions(vendor=0x14E4, device=0x16D8, driver="bnxt_en", klass=0x020000)},
        NODE,
        PASS,
    ),
    "libibverbs shows one more": ({Rdma: f.rdma(7, verbs_devices=ALL), Pci: f.pci(8, 7)}, NODE, UNKNOWN),
    "no RDMA hardware": ({Rdma: f.no_rdma(), Pci: f.pci(8, 0)}, NODE, SKIP),
    "no RDMA device": ({Rdma: f.no_rdma()}, NODE, UNKNOWN),
    "no accelerator": ({Pci: f.pci(0, 8), Gpus: f.gpus(0)}, NODE, SKIP),
    "PCI lost": ({Pci: LOST}, NODE, UNKNOWN),
    "sysfs lost": ({Rdma: LOST}, NODE, UNKNOWN),
    "a place lost": ({Rdma: f.rdma(devices=tuple(f.hca(n, pci=LOST) for n in range(8)))}, NODE, UNKNOWN),
    "NCCL lists all": ({Baseline: listed(*ALL)}, LOG, PASS),
    "NCCL lists seven": ({Baseline: listed(*ALL[:7])}, LOG, FAIL),
    "NCCL lists seven, and the eighth may not be usable": (
        {
            Baseline: listed(*ALL[:7]),
            Net: LOST,
            Rdma: f.rdma(devices=tuple(f.hca(n, ports=(f.roce_port("eth0"),)) for n in range(8))),
        },
        LOG,
        UNKNOWN,
    ),
    "NCCL lists a stranger": ({Baseline: listed(*ALL, "mlx5_99")}, LOG, UNKNOWN),
    "the log lost": ({Baseline: LOST}, LOG, UNKNOWN),
    "all tried": ({PathRun: tried(8)}, TRIED, PASS),
    "seven tried": ({PathRun: tried(7)}, TRIED, UNKNOWN),
    "tried in vain": ({PathRun: tried(8, state="failed", verified=None, blamed=(1,))}, TRIED, UNKNOWN),
    "tried by sockets": ({PathRun: tried(8, log=f.log(net="Socket", network="Socket"))}, TRIED, UNKNOWN),
    "tried by another's network": ({PathRun: tried(8, log=f.log(net="Libfabric", network="Libfabric"))}, TRIED, UNKNOWN),
    "tried, and no log says by which network": ({PathRun: tried(8, log=None)}, TRIED, UNKNOWN),
    "the runs lost": ({PathRun: LOST}, TRIED, UNKNOWN),
    "tried, and whose HCAs they are lost": ({PathRun: tried(8), Gpus: f.gpus(8, all=LOST)}, TRIED, UNKNOWN),
    "listed, and whose HCAs they are lost": ({Baseline: listed(*ALL), Gpus: f.gpus(8, all=LOST)}, LOG, UNKNOWN),
    "tried, of a job on one node": ({PathRun: tried(7), Intent: f.job(nodes=1)}, TRIED, SKIP),
}


def judged(changes: Changes) -> dict[str, Finding]:
    return {one.subject: one for one in f.judge(hca, f.machine({Intent: f.job(nodes=2), **changes}))}


@pytest.mark.parametrize(("changes", "subject", "status"), ROWS.values(), ids=ROWS)
def test_case(changes: Changes, subject: str, status: Status) -> None:
    found = judged(changes)
    assert found[subject].status is status, found[subject].message


def test_a_fail_names_the_device_and_both_layers() -> None:
    found = judged(SEVEN)[NODE]
    assert (
        found.message == f"PCI shows {f.bdf(f.HCA_BUSES[7])} (mlx5_core), sysfs shows no RDMA device of it, its like have one"
    )
    assert found.fix is not None and found.evidence["missing"] == [f.bdf(f.HCA_BUSES[7])]


def test_slots_not_functions_are_compared() -> None:
    both = (f.hca_device(0), f.hca_device(0, address=f.bdf(f.HCA_BUSES[0], 0, 1)), f.hca_device(1))
    assert [d.address for d in hcas_without_device(both, (f.hca(0),))] == [f.bdf(f.HCA_BUSES[1])]


def test_without_runs_only_the_node_is_judged() -> None:
    no = Unavailable("refused", "--no-allreduce")
    assert set(judged({Baseline: no, PathRun: no})) == {NODE}

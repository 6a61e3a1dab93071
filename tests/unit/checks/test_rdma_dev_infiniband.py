"""rdma.dev_infiniband: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.allreduce.experiment import PathRun
from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.probes.container import Container
from netdoctor.probes.environ import Environ
from netdoctor.probes.gpu import Gpus
from netdoctor.probes.job import Expected
from netdoctor.probes.kernel import UNLIMITED, Kernel, Limit
from netdoctor.probes.net import Net
from netdoctor.probes.pci import Pci
from netdoctor.probes.rdma import Provider, Rdma, RdmaDevice
from netdoctor.probes.vantage import Vantage
from tests.support import facts as f

LOST = Unavailable("not recorded")
GONE = Unavailable("absent")
Changes = dict[type, object]


def judged(changes: Changes) -> dict[str, Finding]:
    """Findings by subject; without a path run, so that only what was read speaks."""
    found = f.judge(dev_infiniband, f.machine({PathRun: f.path_run(), **changes}))
    assert len({x.subject for x in found}) == len(found)
    return {x.subject: x for x in found}


def all_hcas(**changes: Any) -> Rdma:
    return f.rdma(devices=tuple(f.hca(i, **changes) for i in range(8)))


def first(**changes: Any) -> Rdma:
    """mlx5_0 changed, the other seven healthy."""
    return f.rdma(devices=(f.hca(0, **changes), *(f.hca(i) for i in range(1, 8))))


def every_node(**changes: Any) -> Rdma:
    return f.rdma(devices=tuple(f.hca(i, uverbs=f.uverbs(i, **changes)) for i in range(8)))


def memlock(soft: int) -> Kernel:
    return f.kernel(limits={"memlock": Limit(soft, soft)})


def test_pass_for_each_hca_and_the_memory_lock() -> None:
    found = judged({})
    assert set(found) == {*(f"mlx5_{i}" for i in range(8)), "memlock"}
    assert {x.status for x in found.values()} == {Status.PASS}


VF = tuple(f.hca(i, name=f"mlx5_{i + 8}", uverbs=f.uverbs(i + 8, node_numbers=GONE, open_errno="ENOENT")) for i in range(8))
STORAGE = f.hca(0, name="mlx5_9", pci="0000:29:00.0", ports=(f.port(state="DOWN"),), uverbs=f.uverbs(9, open_errno="EACCES"))
FAR_SLOT = f.hca_device(0, address="0000:29:00.0", path=("0000:20:01.0",), root="pci0000:20")
SECOND_PORT = f.hca(0, name="mlx5_9", ports=(f.port(state="DOWN", physical="Disabled"),))
SILENT: dict[str, Changes] = {
    "virtual functions of others": {Rdma: f.rdma(devices=(*(f.hca(i) for i in range(8)), *VF))},
    "storage HCA": {
        Rdma: f.rdma(devices=(*(f.hca(i) for i in range(8)), STORAGE)),
        Pci: f.pci(
            devices=(*f.pci().devices, f.hca_device(0, address="0000:29:00.0", path=("0000:20:01.0",), root="pci0000:20"))
        ),
    },
    "second port of a card is down": {Rdma: f.rdma(devices=(*(f.hca(i) for i in range(8)), SECOND_PORT))},
}


@pytest.mark.parametrize("changes", SILENT.values(), ids=SILENT)
def test_devices_of_others_say_nothing(changes: Changes) -> None:
    found = judged(changes)
    assert set(found) == {*(f"mlx5_{i}" for i in range(8)), "memlock"}
    assert {x.status for x in found.values()} == {Status.PASS}


ELSEWHERE = Unavailable("failed", "EINVAL Invalid argument")
NO_PROVIDER = tuple(f.hca(i, provider=GONE) for i in range(8))
FOREIGN_GID = all_hcas(ports=(f.roce_port(ELSEWHERE),))
FAILS: dict[str, tuple[Changes, str, str]] = {
    "not mapped": ({Rdma: every_node(node_numbers=GONE, open_errno="ENOENT"), Vantage: f.pod()}, "not-mapped", "rdma/hca"),
    "not made by udev": ({Rdma: every_node(node_numbers=GONE, open_errno="ENOENT")}, "not-mapped", "udevadm"),
    "EPERM": ({Rdma: every_node(open_errno="EPERM"), Vantage: f.pod()}, "EPERM", "rdma/hca"),
    "EPERM on a host": ({Rdma: every_node(open_errno="EPERM")}, "EPERM", "cgroup"),
    "EACCES": ({Rdma: every_node(open_errno="EACCES", owner=(0o600, 0, 0))}, "EACCES", "udev"),
    "EACCES in a container": ({Rdma: every_node(open_errno="EACCES"), Vantage: f.pod()}, "EACCES", "group"),
    "ENXIO": ({Rdma: every_node(open_errno="ENXIO")}, "ENXIO", "driver"),
    "stale": ({Rdma: every_node(node_numbers=(231, 7)), Vantage: f.pod()}, "stale", "again"),
    "no uverbs": ({Rdma: all_hcas(uverbs=GONE)}, "no-uverbs", "ib_uverbs"),
    "no libibverbs": ({Rdma: f.rdma(devices=NO_PROVIDER, libibverbs=GONE)}, "no-library", "rdma-core"),
    "no provider": ({Rdma: f.rdma(devices=NO_PROVIDER, verbs_devices=())}, "no-provider", "rdma-core"),
    "no context": ({Rdma: all_hcas(provider=Provider(False, "ENODEV", GONE))}, "context", "rdma-core"),
    "port down": ({Rdma: all_hcas(ports=(f.port(state="DOWN"),))}, "port", "cable"),
    "no subnet manager": ({Rdma: all_hcas(ports=(f.port(state="INIT"),))}, "port", "subnet manager"),
    "GID of another namespace": ({Rdma: FOREIGN_GID, Vantage: f.pod()}, "gid", "network namespace"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "step", "mend"), FAILS.values(), ids=FAILS)
def test_fail_with_the_mend_of_its_step(changes: Changes, step: str, mend: str) -> None:
    found = judged(changes)["mlx5_0"]
    assert found.status is Status.FAIL, found
    assert found.severity is Severity.CRITICAL
    assert found.evidence["step"] == step
    assert found.fix is not None
    assert mend in " ".join((found.fix.summary, *found.fix.commands, *found.fix.persistent))


def test_one_bad_hca_of_eight_is_a_warning_and_the_others_pass() -> None:
    found = judged({Rdma: first(uverbs=f.uverbs(0, open_errno="EACCES", owner=(0o600, 0, 0)))})
    assert (found["mlx5_0"].status, found["mlx5_0"].severity) == (Status.FAIL, Severity.WARNING)
    assert {x.status for name, x in found.items() if name != "mlx5_0"} == {Status.PASS}


def test_a_selector_that_takes_none_is_a_fail() -> None:
    found = judged({Environ: f.environ({"NCCL_IB_HCA": "mlx4"})})["node"]
    assert (found.status, found.cause) == (Status.FAIL, "env_misuse")


def test_a_selector_names_the_subjects() -> None:
    found = judged({Environ: f.environ({"NCCL_IB_HCA": "=mlx5_3"})})
    assert set(found) == {"mlx5_3", "memlock"}


def test_fewer_usable_than_the_site_expects() -> None:
    found = judged({Expected: f.expected(hcas=10)})["count"]
    assert (found.status, found.cause) == (Status.FAIL, "inventory")


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({Expected: f.expected(hcas=8), Pci: f.pci(8, 0)}, Status.FAIL),
        ({Expected: f.expected(hcas=8), Pci: f.pci(8, 8)}, Status.FAIL),
        ({Expected: f.expected(hcas=8), Pci: f.pci(8, 0), Vantage: f.outside()}, Status.FAIL),
        ({Expected: f.expected(hcas=8), Pci: f.pci(8, 8), Vantage: f.outside()}, Status.UNKNOWN),
        ({Expected: f.expected(hcas=8), Pci: LOST}, Status.UNKNOWN),
        ({Expected: LOST, Pci: f.pci(8, 0)}, Status.UNKNOWN),
        ({Expected: f.expected(hcas=0), Pci: f.pci(8, 0)}, Status.SKIP),
        ({Expected: f.expected(hcas=None), Pci: f.pci(8, 0)}, Status.SKIP),
    ],
)
def test_no_device_is_no_skip_where_the_site_expects_some(changes: Changes, status: Status) -> None:
    (found,) = judged({Rdma: f.no_rdma(), **changes}).values()
    assert found.status is status
    assert found.severity is (Severity.CRITICAL if status is Status.FAIL else None)


def test_skip_needs_both_sources_read() -> None:
    both = judged({Rdma: f.no_rdma(), Pci: f.pci(8, 0)})
    assert both["node"].status is Status.SKIP
    for pci in (LOST, f.pci(8, 8)):
        assert judged({Rdma: f.no_rdma(), Pci: pci})["node"].status is Status.UNKNOWN


UNKNOWNS: dict[str, Changes] = {
    "sysfs lost": {Rdma: f.rdma(devices=LOST)},
    "open not tried": {Rdma: every_node(open_errno=LOST)},
    "sysfs numbers lost": {Rdma: every_node(numbers=LOST)},
    "libibverbs timed out": {Rdma: f.rdma(devices=tuple(f.hca(i, provider=Unavailable("timed out")) for i in range(8)))},
    "ports lost": {Rdma: all_hcas(ports=LOST)},
    "GIDs lost": {Rdma: all_hcas(ports=(f.port(link_layer="Ethernet", gids=LOST),))},
    "interfaces lost": {Rdma: all_hcas(ports=(f.roce_port("eth0"),)), Net: LOST},
    "opened, but by root outside the job": {Vantage: f.outside()},
    "EPERM, but outside the job": {Rdma: every_node(open_errno="EPERM"), Vantage: f.outside()},
    "settings lost": {Environ: LOST},
    "whose HCA is it? PCI lost": {Pci: LOST, Rdma: every_node(open_errno="EPERM")},
    "whose HCA is it? GPUs and PCI lost": {Pci: LOST, Gpus: LOST, Rdma: all_hcas(ports=(f.port(state="DOWN"),))},
}


@pytest.mark.parametrize("changes", UNKNOWNS.values(), ids=UNKNOWNS)
def test_unknown(changes: Changes) -> None:
    found = judged(changes)
    assert found.get("mlx5_0", found.get("node")).status is Status.UNKNOWN, found  # type: ignore[union-attr]


def test_a_node_fault_is_a_fail_from_anywhere() -> None:
    found = judged({Rdma: all_hcas(ports=(f.port(state="DOWN"),)), Vantage: f.outside()})
    assert found["mlx5_0"].status is Status.FAIL


LOCK: dict[str, tuple[Changes, Status]] = {
    "unlimited": ({Kernel: memlock(UNLIMITED)}, Status.PASS),
    "8 MiB": ({Kernel: memlock(8 << 20)}, Status.FAIL),
    "8 MiB, and the path run went over RDMA": ({Kernel: memlock(8 << 20), PathRun: f.path_run(f.hca_run())}, Status.PASS),
    "8 MiB with IPC_LOCK": (
        {Kernel: memlock(8 << 20), Vantage: f.vantage(capabilities=frozenset({"CAP_IPC_LOCK"}))},
        Status.PASS,
    ),
    "IPC_LOCK inside a user namespace": (
        {
            Kernel: memlock(8 << 20),
            Vantage: f.vantage(capabilities=frozenset({"CAP_IPC_LOCK"}), root_is_root=False),
            Container: f.container(uid_map=((0, 65534, 1),)),
        },
        Status.FAIL,
    ),
    "IPC_LOCK, uid_map lost": (
        {
            Kernel: memlock(8 << 20),
            Vantage: f.vantage(capabilities=frozenset({"CAP_IPC_LOCK"}), root_is_root=LOST),
            Container: LOST,
        },
        Status.UNKNOWN,
    ),
    "1 GiB": ({Kernel: memlock(1 << 30)}, Status.UNKNOWN),
    "16 GiB": ({Kernel: memlock(16 << 30)}, Status.PASS),
    "lost": ({Kernel: LOST}, Status.UNKNOWN),
    "of a shell outside the job": ({Vantage: f.outside()}, Status.UNKNOWN),
}


@pytest.mark.parametrize(("changes", "status"), LOCK.values(), ids=LOCK)
def test_memory_lock(changes: Changes, status: Status) -> None:
    assert judged(changes)["memlock"].status is status


def efa_device(index: int, **changes: Any) -> RdmaDevice:
    return f.hca(index, name=f"rdmap{index}s0", driver="efa", ports=(f.port(link_layer="Unspecified"),), **changes)


def test_efa_has_no_link_layer_and_is_usable() -> None:
    found = judged({Rdma: f.rdma(devices=tuple(efa_device(i) for i in range(8)))})
    assert found["rdmap0s0"].status is Status.PASS


def test_a_usable_device_that_may_not_be_the_jobs_is_no_pass() -> None:
    found = judged({Pci: Unavailable("denied")})
    assert {found[f"mlx5_{i}"].status for i in range(8)} == {Status.UNKNOWN}


def test_locked_memory_is_judged_whatever_the_devices_are() -> None:
    small = f.kernel(limits={**f.kernel().limits, "memlock": Limit(65536, 65536)})
    for broken in (
        {Environ: f.environ({"NCCL_IB_HCA": "=mlx5_99"})},
        {Rdma: all_hcas(provider=Provider(False, "EPERM", GONE))},
    ):
        assert judged({Kernel: small, **broken})["memlock"].status is Status.FAIL

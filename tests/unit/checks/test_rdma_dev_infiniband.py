"""rdma.dev_infiniband: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.causes.results import completed
from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.facts.device_names import DeviceNames
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Provider, Rdma, RdmaDevice
from netdoctor.facts.runs import PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Severity, Status, Unavailable
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


def test_pass_for_each_hca_and_the_memory_lock() -> None:
    found = judged({})
    assert set(found) == {*(f"mlx5_{i}" for i in range(8)), "memlock"}
    assert {x.status for x in found.values()} == {Status.PASS}


ABSENT = {"node_numbers": GONE, "open_errno": "ENOENT"}
VF = tuple(f.hca(i, name=f"mlx5_{i + 8}", uverbs=f.uverbs(i + 8, **ABSENT), virtual_function=True) for i in range(8))
STORAGE = f.hca(0, name="mlx5_9", pci="0000:29:00.0", ports=(f.port(state="DOWN"),), uverbs=f.uverbs(9, open_errno="EACCES"))
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
    "EACCES in a container": (
        {Rdma: every_node(open_errno="EACCES", owner=(0o660, 0, 44)), Vantage: f.pod()},
        "EACCES",
        "group",
    ),
    "EACCES, mode for all": ({Rdma: every_node(open_errno="EACCES")}, "module", "nodev"),
    "EACCES, mode for all, in a container": ({Rdma: every_node(open_errno="EACCES"), Vantage: f.pod()}, "module", "profile"),
    "ENXIO": ({Rdma: every_node(open_errno="ENXIO")}, "ENXIO", "driver"),
    "stale": ({Rdma: every_node(node_numbers=(231, 7)), Vantage: f.pod()}, "stale", "again"),
    "no uverbs": ({Rdma: all_hcas(uverbs=GONE)}, "no-uverbs", "ib_uverbs"),
    "no libibverbs": ({Rdma: f.rdma(devices=NO_PROVIDER, libibverbs=GONE)}, "no-library", "rdma-core"),
    "no provider": ({Rdma: f.rdma(devices=NO_PROVIDER, verbs_devices=())}, "no-provider", "rdma-core"),
    "no context": ({Rdma: all_hcas(provider=Provider(False, "ENODEV", GONE))}, "context", "rdma-core"),
    "port down": ({Rdma: all_hcas(ports=(f.port(state="DOWN"),))}, "port", "cable"),
    "no subnet manager": ({Rdma: all_hcas(ports=(f.port(state="INIT"),))}, "port", "subnet manager"),
    "an errno without a rule of its own": ({Rdma: every_node(open_errno="EIO")}, "open", "strace"),
    "GID of another namespace": ({Rdma: FOREIGN_GID, Vantage: f.pod()}, "gid", "network namespace"),
}


@pytest.mark.parametrize(("changes", "step", "mend"), FAILS.values(), ids=FAILS)
def test_fail_with_the_mend_of_its_step(changes: Changes, step: str, mend: str) -> None:
    found = judged(changes)["mlx5_0"]
    assert found.status is Status.FAIL, found
    assert found.severity is Severity.CRITICAL
    assert found.evidence["step"] == step
    assert found.fix is not None
    assert mend in " ".join((found.fix.summary, *found.fix.commands, *found.fix.persistent))


@pytest.mark.parametrize("place", [f.vantage(), f.pod()], ids=["host", "pod"])
def test_what_refuses_all_devices_has_one_mend(place: Vantage) -> None:
    """A report then tells it once, with the names of all of them."""
    found = judged({Rdma: every_node(open_errno="EACCES"), Vantage: place})
    assert len({one.fix for one in found.values() if one.status is Status.FAIL}) == 1


@pytest.mark.parametrize(("bad", "left"), [(1, 7), (7, 1)])
def test_rails_that_are_down_cost_their_share(bad: int, left: int) -> None:
    """An eighth is more than a tenth: a node that lacks a rail is not as it should be."""
    devices = tuple(f.hca(i, ports=(f.port(state="DOWN" if i < bad else "ACTIVE"),)) for i in range(8))
    found = judged({Rdma: f.rdma(devices=devices)})
    wrong = [one for one in found.values() if one.status is Status.FAIL]
    assert len(wrong) == bad
    for one in wrong:
        assert one.severity is Severity.CRITICAL
        assert one.loss is not None and one.loss.share == 1 - left / 8
        assert one.loss.formula == f"{left} of 8 rails of the job work"


def test_one_bad_hca_of_eight_is_named_and_the_others_pass() -> None:
    found = judged({Rdma: first(uverbs=f.uverbs(0, open_errno="EACCES", owner=(0o600, 0, 0)))})
    assert (found["mlx5_0"].status, found["mlx5_0"].severity) == (Status.FAIL, Severity.CRITICAL)
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
    assert completed(found, "rdma.dev_infiniband", "dev_infiniband_missing").severity is (
        Severity.CRITICAL if status is Status.FAIL else None
    )


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


def efa_device(index: int, **changes: Any) -> RdmaDevice:
    return f.hca(index, name=f"rdmap{index}s0", driver="efa", ports=(f.port(link_layer="Unspecified"),), **changes)


def test_efa_has_no_link_layer_and_is_usable() -> None:
    found = judged({Rdma: f.rdma(devices=tuple(efa_device(i) for i in range(8)))})
    assert found["rdmap0s0"].status is Status.PASS


def test_efa_is_chosen_by_no_variable_of_nccls_own_network() -> None:
    """aws-ofi-nccl reads no NCCL_IB_HCA: one image for several clouds may set it."""
    efa = f.rdma(devices=tuple(efa_device(i) for i in range(8)))
    found = judged({Rdma: efa, Environ: f.environ({"NCCL_IB_HCA": "mlx5"})})
    assert {one.status for one in found.values()} == {Status.PASS} and "rdmap7s0" in found


def test_a_usable_device_that_may_not_be_the_jobs_is_no_pass() -> None:
    found = judged({Pci: Unavailable("denied")})
    assert {found[f"mlx5_{i}"].status for i in range(8)} == {Status.UNKNOWN}


def test_locked_memory_is_judged_whatever_the_devices_are() -> None:
    small = f.kernel(limits={**f.kernel().limits, "memlock": 65536})
    every: tuple[Changes, ...] = (
        {Environ: f.environ({"NCCL_IB_HCA": "=mlx5_99"})},
        {Rdma: all_hcas(provider=Provider(False, "EPERM", GONE))},
    )
    for broken in every:
        assert judged({Kernel: small, **broken})["memlock"].status is Status.FAIL


@pytest.mark.parametrize("half", [{"job_user": False}, {"job_network": False}, {"job_environment": False}])
@pytest.mark.parametrize("errno", ["", "EPERM"])
def test_rights_interfaces_and_libraries_must_all_be_the_jobs(half: dict[str, bool], errno: str) -> None:
    """An init container has the pod's devices and network, and an image of its own: another libibverbs."""
    found = judged({Rdma: every_node(open_errno=errno), Vantage: f.vantage(**half), Expected: f.expected(hcas=8)})
    assert found["mlx5_0"].status is Status.UNKNOWN
    assert found["mlx5_0"].message.endswith(", seen outside the job")
    assert (found["count"].status, found["count"].message) == (Status.PASS, "8 RDMA devices, 8 expected")  # not: usable
    told = judged({Vantage: f.outside()})["mlx5_0"]
    assert told.message.endswith(", seen as root outside the job")


V1 = tuple(gid for gid in f.roce_gids("eth0") if gid.kind == "IB/RoCE v1")
V1_AND_LOST = (V1[0], f.gid(1, kind=LOST, netdev="eth0"))
V1_ONLY = ("its GIDs are RoCE v1 only: not routable",)


@pytest.mark.parametrize(
    ("ports", "notes"),
    [
        ((f.roce_port("eth0", gids=V1),), V1_ONLY),
        ((f.roce_port("eth0"),), ()),
        ((f.roce_port("eth0", gids=V1_AND_LOST),), ()),  # the other may be v2
        ((f.port(),), ()),  # InfiniBand
        # a card with a port of each kind: NCCL may take the second
        ((f.roce_port("eth0", gids=LOST), f.port(2)), ()),
    ],
)
def test_gids_of_roce_v1_alone_are_noted(ports: tuple[Any, ...], notes: tuple[str, ...]) -> None:
    found = judged({Rdma: all_hcas(ports=ports)})["mlx5_0"]
    assert (found.status, found.notes) == (Status.PASS, notes)


LOST_FIRST = first(uverbs=f.uverbs(0, open_errno=LOST))
DOWN_FIRST = first(ports=(f.port(state="DOWN"),))


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({Expected: f.expected(hcas=8)}, Status.PASS, "8 usable RDMA devices, 8 expected"),
        ({Expected: f.expected(hcas=7)}, Status.PASS, "8 usable RDMA devices, 7 expected"),
        ({Expected: f.expected(hcas=9)}, Status.FAIL, "8 usable RDMA devices, 9 expected"),
        ({Expected: f.expected(hcas=7), Rdma: DOWN_FIRST}, Status.PASS, "7 usable RDMA devices, 7 expected"),
        ({Expected: f.expected(hcas=8), Rdma: DOWN_FIRST}, Status.FAIL, "7 usable RDMA devices, 8 expected"),
        ({Expected: f.expected(hcas=8), Rdma: LOST_FIRST}, Status.UNKNOWN, "7 usable RDMA devices, 1 not known, 8 expected"),
        ({Expected: f.expected(hcas=9), Rdma: LOST_FIRST}, Status.FAIL, "7 usable RDMA devices, 9 expected"),
        ({Expected: f.expected(hcas=8), Vantage: f.outside()}, Status.PASS, "8 RDMA devices, 8 expected"),
        (
            {Expected: f.expected(hcas=9), Vantage: f.outside()},
            Status.FAIL,  # whoever looks, there are not as many
            "8 RDMA devices, 9 expected",
        ),
    ],
)
def test_as_many_as_the_site_expects(changes: Changes, status: Status, words: str) -> None:
    found = judged(changes)["count"]
    assert found.status is status and words in found.message


@pytest.mark.parametrize(("hcas", "words"), [(8, "PCI shows 8"), (0, "PCI shows none")])
def test_what_pci_shows_is_said_where_all_devices_are_missing(hcas: int, words: str) -> None:
    (found,) = judged({Rdma: f.no_rdma(), Expected: f.expected(hcas=8), Pci: f.pci(8, hcas)}).values()
    assert found.message == f"no RDMA device at all, 8 expected; {words}"


def given(*numbers: int, **changes: Any) -> Rdma:
    """A pod's view: eight HCAs in sysfs, the nodes of `numbers` mapped; `changes` are of mlx5_5."""
    gone = {"node_numbers": GONE, "open_errno": "ENOENT"}
    nodes = (f.uverbs(i, **({} if i in numbers else gone)) for i in range(8))
    return f.rdma(devices=tuple(f.hca(i, uverbs=node, **(changes if i == 5 else {})) for i, node in enumerate(nodes)))


@pytest.mark.parametrize(
    ("gpus", "rdma", "statuses"),
    [
        # all on the other socket: no GPUDirect
        (1, given(5), {"mlx5_5": Status.PASS, "devices that were given": Status.FAIL}),
        # the nearest HCA of one GPU, and another's for the other
        (2, given(1, 5), {"mlx5_1": Status.PASS, "mlx5_5": Status.PASS}),
        (2, given(5), {"mlx5_0": Status.FAIL, "mlx5_1": Status.FAIL}),
        # only one of the same network stands in
        (1, given(5, driver="bnxt_en"), {"mlx5_0": Status.FAIL}),
        (1, given(5, ports=(f.roce_port("eth0"),)), {"mlx5_0": Status.FAIL}),
        (1, given(5, ports=(f.port(rate_gbps=200.0),)), {"mlx5_5": Status.PASS, "devices that were given": Status.FAIL}),
        (1, given(5, ports=(f.port(rate_gbps=199.0),)), {"mlx5_0": Status.FAIL}),
    ],
)
def test_a_pod_may_be_given_another_hca_than_the_nearest(gpus: int, rdma: Rdma, statuses: dict[str, Status]) -> None:
    found = judged({Vantage: f.pod(), Gpus: f.gpus(gpus), Rdma: rdma})
    assert {name: x.status for name, x in found.items() if name != "memlock"} == statuses


def test_hardware_without_a_device_is_named_with_its_driver() -> None:
    bare = (f.hca_device(0, driver=None), f.hca_device(1))
    found = judged({Rdma: f.no_rdma(), Pci: f.pci(devices=bare)})["node"]
    assert "(0000:18:00.0 (no driver), 0000:40:00.0 (mlx5_core))" in found.message


def test_other_names_and_models_are_told() -> None:
    names = DeviceNames(hca_hint="rocep24s0 is mlx5_0 here", models={"0000:18:00.0": "ConnectX-7"})
    found = judged({Environ: f.environ({"NCCL_IB_HCA": "rocep24s0"}), DeviceNames: names})["node"]
    assert found.status is Status.FAIL and found.message.endswith("mlx5_7 (rocep24s0 is mlx5_0 here)")
    found = judged({Rdma: f.rdma(0), DeviceNames: names})["node"]
    assert found.status is Status.UNKNOWN and "(0000:18:00.0 ConnectX-7 (mlx5_core), 0000:40:00.0 (" in found.message

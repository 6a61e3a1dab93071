"""Machines that are healthy in unusual ways, and faults beside which they look alike: each row was judged wrongly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest

from netdoctor.checks.hardware_accelerator import accelerator
from netdoctor.checks.net_plugin import plugins as net_plugin
from netdoctor.checks.net_socket_ifname import socket_ifname
from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.checks.rdma_gpudirect import gpudirect_rdma
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries, probe as probe_libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Net, Route
from netdoctor.facts.pci import Pci, probe as probe_pci
from netdoctor.facts.plugins import Plugin
from netdoctor.facts.rdma import Provider, Rdma, RdmaDevice
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
from tests.fakegpu import tree
from tests.fakegpu.parts import Link, Place
from tests.support import facts as f
from tests.support.machines import composed
from tests.support.machines.composed_host import SysTree

Changes = dict[type, object]
LOST = Unavailable("not recorded")
GONE = Unavailable("absent")
Check = Callable[..., Iterable[Finding]]


def found(check: Check, changes: Changes) -> dict[str, Finding]:
    return {one.subject: one for one in f.judge(check, f.machine(changes))}


EFA = f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(8)))
OFI_LIB = "/opt/amazon/ofi-nccl/lib"
LINKED = f.plugin(f"{OFI_LIB}/libnccl-net-ofi.so", aliases=(f"{OFI_LIB}/libnccl-net.so",))


def on_efa(plugin: Plugin, version: tuple[int, int, int] = (2, 27, 5), **variables: str) -> Changes:
    """EFA devices, one plugin, and no run of NCCL."""
    have = f.libraries(plugins=(plugin,), nccl=(f.library(version=version),))
    return {Rdma: EFA, Libraries: have, Environ: f.environ(variables), Baseline: f.baseline(nccl_ran=False)}


PLUGINS: dict[str, tuple[Changes, Status]] = {
    "the default name is a link": (on_efa(LINKED), Status.PASS),
    "named by the path of a link": (on_efa(LINKED, NCCL_NET_PLUGIN=f"{OFI_LIB}/libnccl-net.so"), Status.PASS),
    "found under the second name of a list": (on_efa(LINKED, (2, 28, 9), NCCL_NET_PLUGIN="missing,ofi"), Status.PASS),
    "a list before NCCL knew lists": (on_efa(LINKED, NCCL_NET_PLUGIN="missing,ofi"), Status.FAIL),
    "an empty list": (on_efa(LINKED, (2, 28, 9), NCCL_NET_PLUGIN=""), Status.FAIL),
    "an empty name before NCCL knew lists": (on_efa(LINKED, NCCL_NET_PLUGIN=""), Status.PASS),
    "no plugin wanted": (on_efa(LINKED, NCCL_NET_PLUGIN="None"), Status.FAIL),
    "none under the default name": (on_efa(f.plugin(f"{OFI_LIB}/libnccl-net-ofi.so")), Status.FAIL),
}


@pytest.mark.parametrize(("changes", "status"), PLUGINS.values(), ids=PLUGINS)
def test_plugin_of_efa(changes: Changes, status: Status) -> None:
    assert found(net_plugin, changes)["network"].status is status


def test_a_plugin_keeps_the_names_of_its_links() -> None:
    host = composed.read("aws-p5").host
    folder = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
    row = host.elf.pop(f"{folder}/libnccl-net.so")
    host.elf[f"{folder}/libnccl-net-ofi.so"] = row
    host.files.write(f"{folder}/libnccl-net-ofi.so", "")
    del host.files.files[f"{folder}/libnccl-net.so"]
    host.files.link(f"{folder}/libnccl-net.so", "libnccl-net-ofi.so")
    host.cache.append(["libnccl-net-ofi.so", f"{folder}/libnccl-net-ofi.so"])
    libraries = probe_libraries(host)
    assert isinstance(libraries, Libraries) and not isinstance(libraries.plugins, Unavailable)
    assert {p for one in libraries.plugins for p in (one.path, *one.aliases)} == {
        f"{folder}/libnccl-net.so",
        f"{folder}/libnccl-net-ofi.so",
    }


SLURM = "0::/system.slice/slurmstepd.scope/job_77/step_0/user/task_0"
ONE: Changes = {Gpus: f.gpus(1)}


def given(variables: dict[str, str], **vantage: object) -> Changes:
    """One GPU of eight, in a Slurm job that may open no other, or as `vantage` says."""
    return {**ONE, Vantage: f.vantage(**{"cgroup": SLURM, **vantage}), Environ: f.environ(variables)}


VFS = tuple(f.gpu_device(0, address=f"0000:1b:00.{n}", physical_function="0000:1b:00.0") for n in range(4, 8))
SHARES: dict[str, tuple[Changes, Status]] = {
    "one of eight in a Slurm job": (given({"SLURM_GPUS_ON_NODE": "1"}), Status.PASS),
    "two were given": (given({"SLURM_GPUS_ON_NODE": "2"}), Status.UNKNOWN),
    "Slurm does not say how many": (given({}), Status.UNKNOWN),
    "logged in beside the job": (given({}, cgroup=LOST), Status.UNKNOWN),
    "no batch system": (given({}, cgroup="0::/user.slice"), Status.FAIL),
    "no batch system, by part of a word": (given({}, cgroup="0::/system.slice/dashboard.service"), Status.FAIL),
    "OAR": (given({}, cgroup="0::/oar/ada_1234567"), Status.UNKNOWN),
    "Flux": (given({}, cgroup="0::/user.slice/app.slice/flux-7.service"), Status.UNKNOWN),
    "the prolog of a job": ({**ONE, Vantage: f.outside(cgroup=SLURM)}, Status.FAIL),
    "perhaps a container": ({**ONE, Vantage: f.vantage(namespaces={}, cgroup="0::/", job_user=False)}, Status.UNKNOWN),
    "a container that asked for one": (given({"NVIDIA_VISIBLE_DEVICES": "0"}, runtime="docker"), Status.PASS),
    "a container that asked for two": (given({"NVIDIA_VISIBLE_DEVICES": "0,1"}, runtime="docker"), Status.FAIL),
    "a container that asked for all": (given({"NVIDIA_VISIBLE_DEVICES": "all"}, runtime="docker"), Status.UNKNOWN),
    "a pod whose image says all": (given({"NVIDIA_VISIBLE_DEVICES": "all"}, runtime="kubernetes"), Status.PASS),
    "the container's variables are lost": ({**ONE, Vantage: f.pod(), Environ: LOST}, Status.UNKNOWN),
    "virtual functions of vGPU": ({Pci: f.pci(devices=(*f.pci().devices, *VFS))}, Status.PASS),
}


@pytest.mark.parametrize(("changes", "status"), SHARES.values(), ids=SHARES)
def test_some_of_the_gpus(changes: Changes, status: Status) -> None:
    assert found(accelerator, changes)["GPUs"].status is status


def test_virtual_functions_of_a_gpu_are_told() -> None:
    host = composed.read("a100-pcie").host
    hardware = SysTree(host.files)
    place = Place(("0000:20:01.0",), "0000:21:00.4", 0)
    virtual = tree.function(hardware, place, Link(), (tree.NVIDIA, 0x20B5), 0x030200, "nvidia")
    hardware.link(f"{virtual}/physfn", f"{virtual.rpartition('/')[0]}/0000:21:00.0")
    bus = probe_pci(host)
    assert isinstance(bus, Pci)
    assert {d.address: d.physical_function for d in bus.gpus} == {
        "0000:21:00.0": None,
        "0000:21:00.4": "0000:21:00.0",
        "0000:a1:00.0": None,
    }


def two_sockets(second: RdmaDevice, *more: RdmaDevice, **variables: str) -> Changes:
    """A GPU and an HCA in each of two sockets, behind no switch; the HCA of the first one works."""
    gpu = [f.gpu_device(4 * n, path=(f"0000:{n}0:01.0",), root=f"pci0000:{n}0", numa_node=n) for n in range(2)]
    hca = [f.hca_device(4 * n, path=(f"0000:{n}0:02.0",), root=f"pci0000:{n}0", numa_node=n) for n in range(2)]
    seen = f.gpus(all=(f.gpu(0), f.gpu(4)), visible=(f.visible(0), replace(f.visible(4), ordinal=1)))
    have = f.rdma(devices=(f.hca(0), second, *more))
    return {Pci: f.pci(devices=(*gpu, *hca)), Gpus: seen, Rdma: have, Environ: f.environ(variables), PathRun: f.path_run()}


def withheld(*numbers: int) -> tuple[RdmaDevice, ...]:
    """Eight HCAs in sysfs, the nodes of some not mapped."""
    gone = {"node_numbers": Unavailable("absent"), "open_errno": "ENOENT"}
    return tuple(f.hca(n, uverbs=f.uverbs(n, **(gone if n in numbers else {}))) for n in range(8))


DOWN = (f.port(state="DOWN"),)
IDLE, SECOND_PORT = f.hca(4, name="mlx5_1", ports=DOWN), f.hca(0, name="mlx5_1", ports=DOWN)
POD: Changes = {Vantage: f.pod(), PathRun: f.path_run()}
DEVICES: dict[str, tuple[Changes, dict[str, Status]]] = {
    "an idle HCA that only the CPU connects": (two_sockets(IDLE), {"mlx5_0": Status.PASS, "mlx5_1": Status.UNKNOWN}),
    "its own HCA of the second GPU": (two_sockets(f.hca(4, name="mlx5_1")), {"mlx5_0": Status.PASS, "mlx5_1": Status.PASS}),
    "second port not cabled, taken by a prefix": (two_sockets(SECOND_PORT, NCCL_IB_HCA="mlx5"), {"mlx5_0": Status.PASS}),
    "second port not cabled, not excluded": (two_sockets(SECOND_PORT, NCCL_IB_HCA="^mlx5_9"), {"mlx5_0": Status.PASS}),
    "second port not cabled, called by its name": (
        two_sockets(SECOND_PORT, NCCL_IB_HCA="=mlx5_0,mlx5_1"),
        {"mlx5_0": Status.PASS, "mlx5_1": Status.FAIL},
    ),
    "a prefix, and the HCA beside a GPU is down": (
        {
            Rdma: f.rdma(devices=(f.hca(0, ports=DOWN), *(f.hca(n) for n in range(1, 8)))),
            Environ: f.environ({"NCCL_IB_HCA": "mlx5"}),
        },
        {"mlx5_0": Status.FAIL, "mlx5_1": Status.PASS},
    ),
    "a pod with a GPU and an HCA of the other socket": (
        {**POD, Gpus: f.gpus(1), Rdma: f.rdma(devices=withheld(0, 1, 2, 3, 4, 6, 7))},
        {"mlx5_5": Status.PASS, "devices that were given": Status.FAIL},
    ),
    "a pod with a GPU and no HCA": (
        {**POD, Gpus: f.gpus(1), Rdma: f.rdma(devices=withheld(*range(8)))},
        {"mlx5_0": Status.FAIL},
    ),
    "a pod with two GPUs and one HCA": (
        {**POD, Gpus: f.gpus(2), Rdma: f.rdma(devices=withheld(0, 2, 3, 4, 5, 6, 7))},
        {"mlx5_0": Status.FAIL, "mlx5_1": Status.PASS},
    ),
    "a pod with all GPUs and seven HCAs": (
        {**POD, Rdma: f.rdma(devices=withheld(0))},
        {"mlx5_0": Status.FAIL, "mlx5_1": Status.PASS},
    ),
    "no container, the node is not there": (
        {Gpus: f.gpus(1), Rdma: f.rdma(devices=withheld(0))},
        {"mlx5_0": Status.FAIL},
    ),
    "one HCA down where the job is shown no GPU": (
        {Rdma: f.rdma(devices=(f.hca(0, ports=DOWN), *(f.hca(n) for n in range(1, 8)))), Gpus: f.gpus(visible=())},
        {"mlx5_0": Status.FAIL},
    ),
}


@pytest.mark.parametrize(("changes", "wanted"), DEVICES.values(), ids=DEVICES)
def test_rdma_devices(changes: Changes, wanted: dict[str, Status]) -> None:
    have = {subject: one.status for subject, one in found(dev_infiniband, changes).items()}
    assert {subject: have.get(subject) for subject in wanted} == wanted
    assert Status.FAIL in wanted.values() or Status.FAIL not in have.values()


NO_GPU: Changes = {Gpus: f.gpus(0, all=GONE, visible=GONE)}
ON_CPU: Changes = {**NO_GPU, Pci: f.pci(0, 8), Kernel: f.kernel(limits={"memlock": 8 << 20})}
LITTLE: Changes = {Kernel: f.kernel(limits={"memlock": 8 << 20}), PathRun: f.path_run()}
STORAGE: dict[str, tuple[Changes, dict[str, Status]]] = {
    "HCAs of a CPU node": ({**ON_CPU, Rdma: f.rdma()}, {"node": Status.SKIP}),
    "HCAs of a CPU node, in a pod": ({**ON_CPU, **POD, Rdma: f.rdma(devices=withheld(*range(8)))}, {"node": Status.SKIP}),
    "HCAs of a CPU node that are expected": (
        {**ON_CPU, PathRun: f.path_run(), Rdma: f.rdma(devices=withheld(3)), Expected: f.expected(hcas=8)},
        {"count": Status.FAIL, "memlock": Status.FAIL},
    ),
    "HCAs of a CPU node, the configuration lost": ({**ON_CPU, Expected: LOST}, {"count": Status.UNKNOWN}),
    "a pod without GPUs on a GPU node": (
        {**NO_GPU, **LITTLE, **POD, Rdma: f.rdma(devices=withheld(*range(8)))},
        {"mlx5_0": Status.UNKNOWN, "memlock": Status.UNKNOWN},
    ),
    "a pod whose GPUs are hidden": (
        {**LITTLE, **POD, Gpus: f.gpus(visible=()), Rdma: f.rdma(devices=withheld(*range(8)))},
        {"mlx5_0": Status.UNKNOWN, "memlock": Status.UNKNOWN},
    ),
    "a pod without GPUs, a port of the node down": (
        {**NO_GPU, **POD, Rdma: f.rdma(devices=(f.hca(0, ports=DOWN), *(f.hca(n) for n in range(1, 8))))},
        {"mlx5_0": Status.FAIL},
    ),
    "a pod whose libcuda does not answer": (
        {**LITTLE, **POD, Gpus: f.gpus(visible=LOST), Rdma: f.rdma(devices=withheld(*range(8)))},
        {"mlx5_0": Status.FAIL, "memlock": Status.FAIL},
    ),
    "little locked memory for one node": ({**LITTLE, Intent: f.job(nodes=1)}, {"node": Status.SKIP}),
    "little locked memory for two": ({**LITTLE, Intent: f.job(nodes=2)}, {"memlock": Status.FAIL}),
    "little locked memory, nobody says for how many": ({**LITTLE, Intent: f.job()}, {"memlock": Status.UNKNOWN}),
}


@pytest.mark.parametrize(("changes", "wanted"), STORAGE.values(), ids=STORAGE)
def test_rdma_devices_that_nccl_has_no_use_for(changes: Changes, wanted: dict[str, Status]) -> None:
    have = {subject: one.status for subject, one in found(dev_infiniband, changes).items()}
    assert {subject: have.get(subject) for subject in wanted} == wanted
    assert Status.FAIL in wanted.values() or Status.FAIL not in have.values()


BRIDGE_FIRST = f.net(
    f.netlink_link("lo", 1, "127.0.0.1"),
    f.netlink_link("br-1a2b", 2, "172.18.0.1", kind="bridge", speed_mbps=LOST),
    f.netlink_link("eth0", 3, "10.0.0.7"),
    default_route=Route("eth0"),
)
DOCKER: Changes = {Net: BRIDGE_FIRST, NcclChoice: f.nccl_choice(interface="br-1a2b", address="172.18.0.1"), Rdma: f.no_rdma()}


@pytest.mark.parametrize(
    ("job", "status"),
    [
        (f.job(nodes=1), Status.PASS),
        (f.job(), Status.UNKNOWN),
        (f.job(nodes=2), Status.FAIL),
        (LOST, Status.UNKNOWN),
    ],
)
def test_any_interface_serves_a_job_on_one_node(job: Intent | Unavailable, status: Status) -> None:
    have = found(socket_ifname, {**DOCKER, Intent: job})
    assert have["NCCL"].status is status
    assert status is Status.FAIL or Status.FAIL not in {one.status for one in have.values()}, have


@pytest.mark.parametrize(("topology", "status"), [(False, Status.SKIP), (True, Status.UNKNOWN), (LOST, Status.UNKNOWN)])
def test_distances_of_a_vm_are_those_of_its_topology_file(topology: bool | Unavailable, status: Status) -> None:
    changes = two_sockets(f.hca(4, name="mlx5_1"))
    bus = changes[Pci]
    assert isinstance(bus, Pci)
    pairs = found(gpudirect_rdma, {**changes, Pci: replace(bus, virtual_topology=topology)})
    assert {one.status for one in pairs.values()} == {status}


def test_the_topology_file_of_a_virtual_machine_is_seen() -> None:
    host = composed.read("a100-pcie").host
    assert getattr(probe_pci(host), "virtual_topology", None) is False
    host.files.write("/var/run/nvidia-topologyd/virtualTopology.xml", "<system/>")
    assert getattr(probe_pci(host), "virtual_topology", None) is True


@pytest.mark.parametrize(("pci", "status"), [(None, Status.SKIP), (LOST, Status.FAIL), ("0000:18:00.0", Status.FAIL)])
def test_software_devices_have_no_gpudirect(pci: str | Unavailable | None, status: Status) -> None:
    soft = f.hca(0, name="rxe0", pci=pci, driver=LOST, provider=Provider(True, "", "EOPNOTSUPP"))
    bare = {Kernel: f.kernel(modules={**f.kernel().modules, "nvidia_peermem": GONE}), Gpus: f.gpus(1)}
    pairs = found(gpudirect_rdma, {**bare, Rdma: f.rdma(devices=(soft,)), PathRun: LOST})
    assert {one.status for one in pairs.values()} == {status}


def pair(second: str, prefix: int = 24) -> Changes:
    """Two interfaces of one speed, no RDMA, two nodes."""
    links = [f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7")]
    other = replace(f.netlink_link("eth1", 3), addresses=(f.address(second, prefix),))
    return {
        Net: f.net(*links, other, default_route=Route("eth0")),
        NcclChoice: f.nccl_choice(interface="eth0", address="10.0.0.7"),
        Intent: f.job(nodes=2),
        Rdma: f.no_rdma(),
        Baseline: LOST,
        PathRun: LOST,
    }


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        (pair("10.0.0.8"), Status.UNKNOWN),
        (pair("10.0.1.8"), Status.PASS),
        (pair("10.0.0.8", 25), Status.PASS),  # a longer route of its own
        (pair("169.254.3.4", 16), Status.PASS),
    ],
)
def test_interfaces_in_one_network_carry_as_one(changes: Changes, status: Status) -> None:
    assert found(socket_ifname, changes)["NET/Socket"].status is status


@pytest.mark.parametrize(
    ("kind", "variables", "nodes", "status"),
    [
        ("wireguard", {"NCCL_SOCKET_IFNAME": "wg0"}, 2, Status.UNKNOWN),
        ("wireguard", {"NCCL_SOCKET_IFNAME": "wg0"}, 1, Status.PASS),
        ("wireguard", {}, 2, Status.FAIL),
    ],
)
def test_a_tunnel_that_is_named_may_be_meant(kind: str, variables: dict[str, str], nodes: int, status: Status) -> None:
    links = [f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("wg0", 2, "10.99.0.7", kind=kind, speed_mbps=LOST)]
    route = Route("eth0")
    changes: Changes = {
        Net: f.net(*links, f.netlink_link("eth0", 3, "10.0.0.7"), default_route=route),
        NcclChoice: f.nccl_choice(interface="wg0", address="10.99.0.7"),
        Environ: f.environ(variables),
        Intent: f.job(nodes=nodes),
    }
    assert found(socket_ifname, changes)["NCCL"].status is status


NO_RUN = Unavailable("refused", "--no-allreduce")
SEVEN = f.gpus(visible=tuple(f.visible(n) for n in range(7)))
PARTED = f.gpus(all=(f.gpu(0, mig=True), *(f.gpu(n) for n in range(1, 8))), visible=(f.visible(0),))


@pytest.mark.parametrize(
    ("gpus", "environ", "status"),
    [
        (SEVEN, f.environ(), Status.UNKNOWN),
        (SEVEN, LOST, Status.UNKNOWN),
        (SEVEN, f.environ({"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6"}), Status.PASS),
        (PARTED, f.environ(), Status.UNKNOWN),  # CUDA shows a job one MIG instance, and seven GPUs are left out
        (PARTED, f.environ({"CUDA_VISIBLE_DEVICES": "MIG-1"}), Status.PASS),
    ],
)
def test_a_gpu_that_only_libcuda_lacks(gpus: Gpus, environ: Environ | Unavailable, status: Status) -> None:
    assert found(accelerator, {Gpus: gpus, Environ: environ, Baseline: NO_RUN})["GPUs of the job"].status is status

"""Machines that are rented: Kubernetes pods and cloud instances."""

from __future__ import annotations

from netdoctor.model import Unavailable
from tests.support.facts.nccl_logs import Wire
from tests.support.machines.builder import IPC_LOCK, MELLANOX, NVIDIA, Node
from tests.support.machines.composed_host import roce_gids
from tests.support.machines.parts import (
    DGX_GPUS,
    H100,
    TWO_SOCKETS,
    VENV,
    Built,
    Rates,
    dgx,
    dgx_wire,
    image,
    switched,
    venv,
)


def _pod(hostname: str, ip: str) -> Node:
    node = Node(hostname, "5.15.0-1066-nvidia", uid=0, container=True)
    node.cgroup = "0::/kubepods.slice/kubepods-burstable.slice/cri-containerd-0f.scope"
    node.environment |= {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
    node.loopback()
    node.interface("eth0", ip, kind="veth", mtu=1450, speed=10000)
    node.default = ("eth0", ip, "10.42.3.1")
    node.bootstrap = ("eth0", ip)
    node.host.addresses_of[hostname] = [ip]
    node.shm = 64 << 30
    return node


def pod_with_devices() -> Built:
    node = _pod("train-0", "10.42.3.17")
    node.capabilities = 0xA80425FB | IPC_LOCK
    node.memlock = "65536"
    dgx(node)
    node.modules |= {"nvidia_peermem": node.driver, "mlx5_core": "24.10-1.1.4"}
    # sysfs shows the whole node; the pod's interfaces are its own, so RoCE ports have no interface here
    for name in ("mlx5_1", "mlx5_2", "mlx5_7", "mlx5_8"):
        folder = node.files.resolve(f"/sys/class/infiniband/{name}/ports/1/gid_attrs/ndevs")
        for index in node.files.folders[str(folder)]:
            node.files.errors[f"{folder}/{index}"] = Unavailable("failed", "EINVAL Invalid argument")
    torch = image(node, "2.9.0a0+50eac811a6.nv25.09", "13.0", (2, 27, 7), 8)
    return Built(node, torch, "/usr/bin/python3", dgx_wire(node, "eth0:10.42.3.17", "2.27.7"), Rates(362.0, 22.5))


def pod_unprivileged() -> Built:
    node = _pod("batch-worker-3", "10.42.5.9")
    node.uid, node.memlock, node.numa = 1000, "8388608", {0: ("0-15", "10")}
    node.release = "6.8.0-60-generic"
    node.shm = 64 << 20
    port = node.root_port("pci0000:00", "02.0")
    node.function(port, "0000:01:00.0", (0x1AF4, 0x1041), 0x020000, "virtio-pci", -1)
    torch = venv(node, "2.9.1+cpu", None, None, 0)
    return Built(node, torch, f"{VENV}/bin/python3", Wire(node.hostname))


def pod_without_gpus_on_a_gpu_node() -> Built:
    node = _pod("sidecar-7", "10.42.3.21")
    node.uid, node.memlock, node.numa = 1000, "8388608", dict(TWO_SOCKETS)
    for n in range(8):
        gpu, _, numa = switched(node, n)
        node.function(gpu, f"0000:{DGX_GPUS[n]:02x}:00.0", (NVIDIA, 0x2330), 0x030200, "nvidia", numa)
    node.modules |= {"nvidia": node.driver, "nvidia_uvm": ""}
    torch = venv(node, "2.9.1+cpu", None, None, 0)
    return Built(node, torch, f"{VENV}/bin/python3", Wire(node.hostname), exit_code=4)


def aws_p5() -> Built:
    """p5.48xlarge: four EFA devices beside each GPU, aws-ofi-nccl from the EFA installer, ENA for IP."""
    node = Node("ip-10-3-128-7", "6.8.0-1029-aws")
    node.numa = {0: ("0-47,96-143", "10 32"), 1: ("48-95,144-191", "32 10")}
    node.bootstrap = ("enp71s0", "10.3.128.7")
    names = []
    for n in range(8):
        numa, first = n // 4, 0x4F + 0x11 * n
        port = node.root_port(f"pci0000:{first - 3:02x}", numa=numa)
        upstream = node.port_below(port, f"0000:{first - 2:02x}:00.0", numa)
        below = [node.port_below(upstream, f"0000:{first - 1:02x}:{slot:02x}.0", numa) for slot in range(5)]
        gpu = node.function(below[4], f"0000:{first + 4:02x}:00.0", (NVIDIA, 0x2330), 0x030200, "nvidia", numa)
        node.gpu(gpu, H100, capability=(9, 0), links=18, attributes={})
        for k in range(4):
            place = node.function(below[k], f"0000:{first + k:02x}:00.0", (0x1D0F, 0xEFA2), 0x020000, "efa", numa)
            names.append(f"rdmap{first + k}s0")
            node.hca(
                place,
                names[-1],
                driver="efa",
                layer="Unspecified",
                rate="100 Gb/sec (4X EDR)",
                dmabuf="EBADF",
                firmware="0.0.0.0",
            )
    ena = node.function(node.root_port("pci0000:44"), "0000:47:00.0", (0x1D0F, 0xEC20), 0x020000, "ena", 0)
    node.interface("enp71s0", "10.3.128.7", place=ena, mtu=9001)
    node.files.errors["/sys/devices/pci0000:44/0000:44:01.0/0000:47:00.0/net/enp71s0/speed"] = Unavailable(
        "failed", "EINVAL Invalid argument"
    )
    node.files.write("/sys/devices/pci0000:44/0000:44:01.0/0000:47:00.0/net/enp71s0/speed", "")
    node.default = ("enp71s0", "10.3.128.7", "10.3.128.1")
    node.modules |= {"ena": "2.14.1g", "efa": "2.17.3"}
    node.host.addresses_of["ip-10-3-128-7"] = ["10.3.128.7"]
    torch = venv(node, "2.9.1+cu129", "12.9", (2, 27, 5), 8)
    plugin = "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu/libnccl-net.so"
    node.host.library(plugin, ("libfabric.so.1",), exports=tuple(f"ncclNetPlugin_v{v}" for v in (6, 7, 8, 9, 10)))
    node.host.cache.append(["libnccl-net.so", plugin])
    affinity = {n: node.numa[n // 4][0] for n in range(8)}
    wire = Wire(node.hostname, "2.27.5", "enp71s0:10.3.128.7", plugin="Libfabric", nvls=True, affinity=affinity)
    return Built(node, torch, f"{VENV}/bin/python3", wire, Rates(358.0, 21.0))


def azure_nd_h100_v5() -> Built:
    """Standard_ND96isr_H100_v5: GPUs and InfiniBand virtual functions in PCI domains of their own; NCCL_TOPO_FILE."""
    node = Node("ndh100v5-000002", "5.15.0-1073-azure")
    node.numa = {0: ("0-47", "10 21"), 1: ("48-95", "21 10")}
    node.bootstrap = ("eth0", "10.0.0.5")
    node.loopback()
    vf = node.function("devices/pci7870:00", "7870:00:02.0", (MELLANOX, 0x101E), 0x020000, "mlx5_core", 0, speed="Unknown")
    node.interface("eth0", "10.0.0.5", speed=100000, driver="hv_netvsc")
    node.interface("enP30832s1", place=vf, speed=100000, controller="eth0")
    node.hca(
        vf,
        "mlx5_an0",
        layer="Ethernet",
        rate="100 Gb/sec (4X EDR)",
        gids=roce_gids("10.0.0.5", "enP30832s1", "7870"),
        firmware="16.30.5000",
    )
    for n in range(8):
        gpu = node.function(f"devices/pci{n + 1:04x}:00", f"{n + 1:04x}:00:00.0", (NVIDIA, 0x2330), 0x030200, "nvidia", n // 4)
        node.gpu(gpu, H100, capability=(9, 0), links=18, attributes={})
    for n in range(8):
        place = node.function(
            f"devices/pci{0x101 + n:04x}:00",
            f"{0x101 + n:04x}:00:00.0",
            (MELLANOX, 0x101E),
            0x020700,
            "mlx5_core",
            n // 4,
            speed="Unknown",
        )
        node.hca(place, f"mlx5_ib{n}", firmware="28.37.1014")
        node.interface(f"ib{n}", f"172.16.{n}.5", place=place, speed=400000, mtu=2044, infiniband=True)
    node.default = ("eth0", "10.0.0.5", "10.0.0.1")
    node.modules |= {"nvidia_peermem": node.driver, "ib_ipoib": "", "mlx5_core": "24.07-0.6.1"}
    node.host.addresses_of["ndh100v5-000002"] = ["10.0.0.5"]
    node.environment |= {"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml", "NCCL_IB_PCI_RELAXED_ORDERING": "1"}
    node.files.write("/opt/microsoft/ndv5-topo.xml", "")  # the image brings it; only its being there is asked
    node.bootstrap = ("ib0", "172.16.0.5")
    torch = venv(node, "2.9.1+cu129", "12.9", (2, 27, 5), 8)
    devices = ("mlx5_an0:1/RoCE", *(f"mlx5_ib{n}:1/IB" for n in range(8)))
    affinity = {n: node.numa[n // 4][0] for n in range(8)}
    wire = Wire(node.hostname, "2.27.5", "ib0:172.16.0.5", devices, nvls=True, affinity=affinity, buses=("100000",) * 8)
    return Built(node, torch, f"{VENV}/bin/python3", wire, Rates(361.0, 22.0))

"""Machines of one's own: DGX, HGX, GB200, DGX Spark, a workstation, a CPU node."""

from __future__ import annotations

from tests.support.facts.nccl_logs import Wire
from tests.support.machines.builder import MELLANOX, NVIDIA, Node, Place
from tests.support.machines.composed_host import roce_gids
from tests.support.machines.parts import (
    DGX_GPUS,
    DGX_HCAS,
    TWO_SOCKETS,
    VENV,
    Built,
    Rates,
    dgx,
    dgx_wire,
    h100s,
    switched,
    venv,
)


def dgx_h100() -> Built:
    node = Node("dgx-h100-01", "5.15.0-1066-nvidia")
    node.bootstrap = ("ibp24s0", "10.1.0.7")
    dgx(node)
    onboard = node.function(
        node.root_port("pci0000:00", "1c.0"),
        "0000:0b:00.0",
        (0x8086, 0x1563),
        0x020000,
        "ixgbe",
        0,
        speed="8.0 GT/s PCIe",
        width=4,
    )
    node.interface("eno3", "10.0.0.7", place=onboard, speed=10000)
    for n, bus in enumerate(DGX_HCAS):
        _, below, numa = switched(node, n)
        place = Place(f"{below}/0000:{bus:02x}:00.0", f"0000:{bus:02x}:00.0", numa)
        node.interface(f"ibp{bus}s0", f"10.1.{n}.7", place=place, speed=400000, mtu=4092, infiniband=True)
    for numa, bus in enumerate((0x29, 0xAA)):
        place = Place(
            f"devices/pci0000:{bus - 1:02x}/0000:{bus - 1:02x}:01.0/0000:{bus:02x}:00.0", f"0000:{bus:02x}:00.0", numa
        )
        node.interface(f"enp{bus}s0f0np0", f"10.9.{numa}.7", place=place, speed=200000, mtu=9000)
    node.default = ("eno3", "10.0.0.7", "10.0.0.1")
    node.modules |= {"nvidia_peermem": node.driver, "ib_umad": "", "ib_ipoib": "", "mlx5_core": "24.10-1.1.4", "rdma_cm": ""}
    node.host.addresses_of["dgx-h100-01"] = ["10.0.0.7"]
    torch = venv(node, "2.9.1+cu129", "12.9", (2, 27, 5), 8)
    return Built(node, torch, f"{VENV}/bin/python3", dgx_wire(node, "ibp24s0:10.1.0.7"), Rates(362.0, 22.5))


def hgx_h100_roce() -> Built:
    node = Node("hgx-h100-12", "6.8.0-60-generic")
    node.numa = dict(TWO_SOCKETS)
    node.bootstrap = ("bond0", "10.0.4.12")
    h100s(node)
    card = node.root_port("pci0000:30")
    lag = [
        node.function(card, f"0000:31:00.{n}", (MELLANOX, 0x101D), 0x020000, "mlx5_core", 0, speed="16.0 GT/s PCIe")
        for n in (0, 1)
    ]
    node.hca(
        lag[0],
        "mlx5_bond_0",
        layer="Ethernet",
        rate="50 Gb/sec (2X EDR)",
        gids=roce_gids("10.0.4.12", "bond0", "3100"),
        firmware="22.41.1000",
    )
    node.loopback()
    node.interface("bond0", "10.0.4.12", kind="bond", speed=50000)
    for n in (0, 1):
        node.interface(f"eno{n + 1}np{n}", place=lag[n], speed=25000, controller="bond0")
    for n, bus in enumerate(DGX_HCAS):
        _, below, numa = switched(node, n)
        place = node.function(below, f"0000:{bus:02x}:00.0", (MELLANOX, 0x1021), 0x020000, "mlx5_core", numa)
        interface = f"enp{bus}s0np0"
        node.hca(place, f"mlx5_{n}", layer="Ethernet", gids=roce_gids(f"10.2.{n}.12", interface, f"{bus:02x}00"))
        node.interface(interface, f"10.2.{n}.12", place=place, speed=400000, mtu=9000)
    node.interface("docker0", "172.17.0.1", kind="bridge", up=False)
    node.default = ("bond0", "10.0.4.12", "10.0.4.1")
    node.host.addresses_of["hgx-h100-12"] = ["127.0.1.1"]  # Debian's /etc/hosts
    torch = venv(node, "2.9.1+cu129", "12.9", (2, 27, 5), 8)
    devices = (*(f"mlx5_{n}:1/RoCE" for n in range(8)), "mlx5_bond_0:1/RoCE")
    affinity = {n: TWO_SOCKETS[n // 4][0] for n in range(8)}
    buses = tuple(f"{bus:x}000" for bus in DGX_GPUS)
    wire = Wire(node.hostname, "2.27.5", "bond0:10.0.4.12", devices, nvls=True, affinity=affinity, buses=buses)
    return Built(node, torch, f"{VENV}/bin/python3", wire, Rates(360.0, 22.9))


def a100_pcie() -> Built:
    """Two A100 PCIe, one a socket, no NVLink bridge, no RDMA: sockets and shared memory are what there is."""
    node = Node("gpu-ws-2", "6.8.0-60-generic")
    node.numa = {0: ("0-31,64-95", "10 32"), 1: ("32-63,96-127", "32 10")}
    node.bootstrap = ("eno1", "10.0.7.22")
    for n, bus in enumerate((0x21, 0xA1)):
        port = node.root_port(f"pci0000:{bus - 1:02x}", numa=n)
        place = node.function(port, f"0000:{bus:02x}:00.0", (NVIDIA, 0x20B5), 0x030200, "nvidia", n, speed="16.0 GT/s PCIe")
        node.gpu(place, "NVIDIA A100 80GB PCIe", capability=(8, 0), links=0, attributes={132: 0})
    nic = node.function(
        node.root_port("pci0000:60"), "0000:61:00.0", (0x8086, 0x1563), 0x020000, "ixgbe", 0, speed="8.0 GT/s PCIe", width=4
    )
    node.interface("eno1", "10.0.7.22", place=nic, speed=10000)
    node.default = ("eno1", "10.0.7.22", "10.0.7.1")
    node.host.addresses_of["gpu-ws-2"] = ["10.0.7.22"]
    node.sysctls = {
        "net/ipv4/tcp_rmem": "4096\t131072\t6291456",
        "net/ipv4/tcp_wmem": "4096\t16384\t4194304",
        "net/core/rmem_max": "212992",
        "net/core/wmem_max": "212992",
    }
    torch = venv(node, "2.7.1+cu126", "12.6", (2, 26, 2), 2)
    affinity = {n: node.numa[n][0] for n in range(2)}
    wire = Wire(node.hostname, "2.26.2", "eno1:10.0.7.22", inside="SHM/direct/direct", gdr=False, affinity=affinity)
    return Built(node, torch, f"{VENV}/bin/python3", wire, Rates(11.5, 4.8))


def gb200_nvl72() -> Built:
    """A compute tray of GB200 NVL72: two Grace, four GPUs with memory nodes of their own, four ConnectX-7, IMEX."""
    node = Node("gb200-rack1-tray05", "6.8.0-1028-nvidia-64k", arm=True)
    node.numa = {0: ("0-71", "10 40 80 80 120 120"), 1: ("72-143", "40 10 120 120 80 80")}
    node.numa |= {
        n: ("", " ".join("10" if k == n else "80" if k > 1 or k == (n - 2) // 2 else "120" for k in range(6)))
        for n in range(2, 6)
    }
    node.bootstrap = ("ibp3s0", "10.1.0.5")
    for n, domain in enumerate((0x8, 0x9, 0x18, 0x19)):
        port = node.root_port(f"pci{domain:04x}:00", "00.0", n // 2)
        place = node.function(port, f"{domain:04x}:01:00.0", (NVIDIA, 0x2941), 0x030200, "nvidia", n // 2)
        node.gpu(place, "NVIDIA GB200", capability=(10, 0), links=18, attributes={128: 1})
    hcas = {"mlx5_0": 0x0, "mlx5_1": 0x2, "mlx5_4": 0x10, "mlx5_5": 0x12}
    places = {}
    for n, (name, domain) in enumerate(hcas.items()):
        port = node.root_port(f"pci{domain:04x}:00", "00.0", n // 2)
        places[name] = node.function(port, f"{domain:04x}:03:00.0", (MELLANOX, 0x1021), 0x020700, "mlx5_core", n // 2)
        node.hca(places[name], name)
    bluefield = node.function(
        node.root_port("pci0006:00", "00.0", 0), "0006:03:00.0", (MELLANOX, 0xA2DC), 0x020000, "mlx5_core", 0
    )
    node.hca(
        bluefield,
        "mlx5_2",
        layer="Ethernet",
        rate="200 Gb/sec (4X HDR)",
        gids=roce_gids("10.9.0.5", "enP6p3s0f0np0", "0603"),
        firmware="32.43.2024",
    )
    node.loopback()
    node.interface("enP6p3s0f0np0", "10.9.0.5", place=bluefield, speed=200000, mtu=9000)
    for n, place in enumerate(places.values()):
        domain = int(place.address[:4], 16)
        node.interface(
            f"ibP{domain}p3s0" if domain else "ibp3s0", f"10.1.{n}.5", place=place, speed=400000, mtu=4092, infiniband=True
        )
    node.default = ("enP6p3s0f0np0", "10.9.0.5", "10.9.0.1")
    node.files.write("/dev/nvidia-caps-imex-channels/channel0", "")
    node.host.addresses_of["gb200-rack1-tray05"] = ["10.9.0.5"]
    torch = venv(node, "2.9.1+cu129", "12.9", (2, 27, 5), 4)
    affinity = {n: node.numa[n // 2][0] for n in range(4)}
    devices = ("mlx5_0:1/IB", "mlx5_1:1/IB", "mlx5_2:1/RoCE", "mlx5_4:1/IB", "mlx5_5:1/IB")
    wire = Wire(
        node.hostname, "2.27.5", "ibp3s0:10.1.0.5", devices, inside="P2P/MNNVL", nvls=True, mnnvl=True, affinity=affinity
    )
    return Built(node, torch, f"{VENV}/bin/python3", wire, Rates(655.0, 22.8))


def dgx_spark() -> Built:
    """DGX Spark: GB10, one NUMA node, ConnectX-7 as four functions of which one cable lights two; no GPUDirect by design."""
    node = Node("spark-4f2a", "6.11.0-1016-nvidia", arm=True)
    node.numa = {0: ("0-19", "10")}
    node.bootstrap = ("enP7s7", "192.168.1.42")
    gpu = node.function(node.root_port("pci000f:00", "00.0"), "000f:01:00.0", (NVIDIA, 0x2E12), 0x030200, "nvidia", -1)
    node.gpu(gpu, "NVIDIA GB10", capability=(12, 1), links=0, attributes={18: 1, 110: 0, 116: 0, 124: 0, 132: 0, 134: 0})
    node.gpus[0] |= {
        k: {"unavailable": "unsupported", "detail": "NVML: Not Supported"} for k in ("memory_total", "memory_used")
    }
    lan = node.function(
        node.root_port("pci0007:00", "00.0"),
        "0007:01:00.0",
        (0x10EC, 0x8127),
        0x020000,
        "r8127",
        -1,
        speed="16.0 GT/s PCIe",
        width=1,
    )
    node.loopback()
    node.interface("enP7s7", "192.168.1.42", place=lan, speed=10000)
    for domain, prefix in ((0x0, ""), (0x2, "P2")):
        port = node.root_port(f"pci{domain:04x}:00", "00.0")
        for function in (0, 1):
            place = node.function(
                port, f"{domain:04x}:01:00.{function}", (MELLANOX, 0x1021), 0x020000, "mlx5_core", -1, width=4
            )
            interface, up, ip = f"en{prefix}p1s0f{function}np{function}", function == 1, f"192.168.{100 + domain}.10"
            local = (0, f"fe80:0000:0000:0000:4abb:47ff:fe2c:{domain}{function}01", "IB/RoCE v1", interface)
            gids = roce_gids(ip, interface, f"{domain}{function}00") if up else (local,)
            node.hca(
                place,
                f"roce{prefix}p1s0f{function}",
                layer="Ethernet",
                rate="200 Gb/sec (4X HDR)" if up else "40 Gb/sec (4X QDR)",
                active=up,
                gids=gids,
                firmware="28.45.4028",
            )
            node.interface(interface, *([ip] if up else []), place=place, speed=200000 if up else -1, mtu=9000, up=up)
    node.default = ("enP7s7", "192.168.1.42", "192.168.1.1")
    node.host.addresses_of["spark-4f2a"] = ["127.0.1.1"]
    torch = venv(node, "2.9.1+cu130", "13.0", (2, 27, 7), 1)
    wire = Wire(
        node.hostname,
        "2.27.7",
        "enP7s7:192.168.1.42",
        ("rocep1s0f1:1/RoCE", "roceP2p1s0f1:1/RoCE"),
        gdr=False,
        affinity={0: "0-19"},
        buses=("f01000",),
    )
    return Built(node, torch, f"{VENV}/bin/python3", wire, Rates(9.0, 9.0))


def cpu_node() -> Built:
    """Two EPYC, one 25 GbE port, no accelerator, no RDMA: a CPU build of torch over Gloo."""
    node = Node("cpu-117", "5.14.0-503.el9.x86_64")
    node.numa = {0: ("0-63,128-191", "10 32"), 1: ("64-127,192-255", "32 10")}
    node.memlock = "8388608"
    nic = node.function(
        node.root_port("pci0000:c0", numa=1),
        "0000:c1:00.0",
        (0x8086, 0x158B),
        0x020000,
        "i40e",
        1,
        speed="8.0 GT/s PCIe",
        width=8,
    )
    node.interface("eth0", "10.0.9.117", place=nic, speed=25000)
    node.default = ("eth0", "10.0.9.117", "10.0.9.1")
    node.bootstrap = ("eth0", "10.0.9.117")
    node.host.addresses_of["cpu-117"] = ["10.0.9.117"]
    torch = venv(node, "2.9.1+cpu", None, None, 0)
    return Built(node, torch, f"{VENV}/bin/python3", Wire(node.hostname))

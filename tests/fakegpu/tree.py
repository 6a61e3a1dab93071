"""A machine's /sys as NCCL and netdoctor read it, written below a folder or into memory; its /dev and /proc as lists.

The writer is the one of the composed machines (tests/support/machines/sysfs.py): a description makes both.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Sequence
from typing import Final

from tests.fakegpu.machine import Machine
from tests.fakegpu.parts import STATES, Gid, Hca, Link, Place, Port
from tests.support.machines.sysfs import Tree

NVIDIA: Final = 0x10DE
SPEEDS: Final = {0: "Unknown", 1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
LANES: Final = {2: "SDR", 5: "DDR", 14: "FDR", 25: "EDR", 50: "HDR", 100: "NDR"}  # whole Gb/s of one
WITHOUT_SPEED: Final = ("bridge",)  # of the kernel's own interfaces, those that tell none
CPU: Final = pathlib.Path("/sys/devices/system/cpu/modalias")
NO_GID: Final = "0000:0000:0000:0000:0000:0000:0000:0000"
UVERBS: Final = 231  # major number of /dev/infiniband/uverbs (Documentation/admin-guide/devices.txt)
RDMA: Final = {"infiniband": "ib_core", "infiniband_verbs": "ib_uverbs"}  # class -> the module that makes it
# What the machine alone tells: in these folders nothing of the real machine is seen beside it.
OPAQUE: Final = (
    "bus/pci/devices",
    "class/infiniband",
    "class/infiniband_verbs",
    "class/pci_bus",
    "devices/system/node",
    "kernel/mm/memory_peers",
)
# Modules that make a GPU or an HCA: those of the real machine are not shown.
MODULES: Final = ("nvidia", "nv_peer_mem", "gdrdrv", "mlx", "ib_", "rdma", "iw_", "irdma", "efa", "bnxt_re", "gpudirect")


def write(
    machine: Machine,
    tree: Tree,
    *,
    cpus: Sequence[str] = (),
    numbers: tuple[int, int] | None = None,
    network: bool = True,
) -> None:
    """The whole /sys.  `cpus`: lists of the nodes' CPUs instead of the machine's own; `numbers`: of every uverbs node.

    Without `network` the machine's interfaces are left out.
    """
    tree.acs = machine.data.get("acs", {})
    classes = [f"class/{name}" for name, module in RDMA.items() if module in machine.modules]
    for name in ("bus/pci/devices", "bus/pci/drivers", "bus/cpu", "class/net", "class/pci_bus", *classes):
        tree.folder(name)
    for gpu in machine.gpus:
        nvidia = "nvidia" if "nvidia" in machine.modules else ""
        function(tree, gpu.place, gpu.link, (NVIDIA, gpu.device), 0x030200, nvidia)
    for place in machine.switches:
        function(tree, place, Link(), (NVIDIA, 0x22A3), 0x068000, "nvidia")
    for hca in machine.hcas:
        rdma(tree, hca, numbers)
    for nic in machine.nics:
        if nic.place:
            function(tree, nic.place, nic.link, (nic.vendor, nic.device), 0x020000, nic.driver)
    if network:
        interfaces(machine, tree)
    nodes(tree, cpus or machine.numa, machine.distances)
    if "ib_core" in machine.modules:
        tree.write("module/ib_core/parameters", netns_mode="Y")
    for name, version in machine.modules.items():
        tree.write(f"module/{name}", initstate="live", refcnt="0", **({"version": version} if version else {}))
    for name in machine.memory_peers:
        tree.write(f"kernel/mm/memory_peers/{name}", version="1.1")


def function(tree: Tree, place: Place, link: Link, ids: tuple[int, int], klass: int, driver: str) -> str:
    """A PCI function with the bridges above it and their buses; returns its folder."""
    where = f"devices/{place.root}"
    for bridge in place.bridges:
        bus(tree, where, bridge)
        where = f"{where}/{bridge}"
        if where not in tree.made:
            tree.put(where, bridge, 0x1000, 0xC030, 0x060400, "pcieport", place.numa, 16)
            speeds(tree, where, Link())
    bus(tree, where, place.address)
    where = f"{where}/{place.address}"
    if where in tree.made:  # an HCA's, and the network card's in its description
        return where
    tree.put(where, place.address, *ids, klass, driver, place.numa, link.width)
    speeds(tree, where, link)
    return where


def bus(tree: Tree, parent: str, address: str) -> None:
    """The bus of a function, by which NCCL finds it: /sys/class/pci_bus/0000:13/../../0000:13:00.0."""
    name = address.rpartition(":")[0]
    if f"{parent}/pci_bus/{name}" not in tree.made:
        tree.folder(f"{parent}/pci_bus/{name}")
        tree.link(f"class/pci_bus/{name}", f"{parent}/pci_bus/{name}")


def speeds(tree: Tree, where: str, link: Link) -> None:
    tree.write(
        where,
        current_link_speed=speed_text(link.generation),
        max_link_speed=speed_text(link.max_generation),
        current_link_width=str(link.width),
        max_link_width=str(link.max_width),
        subsystem_vendor="0x0000",
        subsystem_device="0x0000",
        enable="1",
        irq="0",
        revision="0xa1",
    )


def speed_text(generation: int) -> str:
    """As sysfs has it; a virtual function has none."""
    return f"{SPEEDS[generation]} GT/s PCIe" if generation else "Unknown"


def rdma(tree: Tree, hca: Hca, numbers: tuple[int, int] | None) -> None:
    klass = 0x020700 if hca.ports[0].layer == "InfiniBand" else 0x020000
    where = function(tree, hca.place, hca.link, (hca.vendor, hca.device), klass, hca.driver)
    device = f"{where}/infiniband/{hca.name}"
    guid, image = (":".join(one[i : i + 4] for i in range(0, 16, 4)) for one in (hca.guid, hca.image))
    tree.link(f"class/infiniband/{hca.name}", device)
    tree.link(f"{device}/device", where)
    tree.link(f"{device}/subsystem", "class/infiniband")
    tree.write(
        device,
        uevent=f"NAME={hca.name}",
        fw_ver=hca.firmware,
        node_type="1: CA",
        node_guid=guid,
        sys_image_guid=image,
        hca_type=f"MT{hca.device}",
        **({"board_id": hca.board} if hca.board else {}),
    )
    for n, one in enumerate(hca.ports, 1):
        port(tree, f"{device}/ports/{n}", one, hca.elsewhere)
    if hca.node is not None:
        uverbs(tree, where, hca, numbers or (UVERBS, 192 + hca.node))


def port(tree: Tree, where: str, one: Port, elsewhere: bool = False) -> None:
    active = one.state == "ACTIVE"
    one_lane = (25,) if one.layer == "InfiniBand" else (10, 25)
    rate = one.written
    lanes = 1 if rate in one_lane else 2 if rate == 50 else 8 if rate > 400 else 4
    tree.write(
        where,
        state=f"{STATES[one.state]}: {one.state}",
        phys_state="5: LinkUp" if active else "3: Disabled",
        rate=f"{rate} Gb/sec ({lanes}X {LANES.get(rate // lanes, 'QDR')})",
        link_layer=one.layer,
        lid=f"0x{one.lid:x}",
        sm_lid="0x1" if one.layer == "InfiniBand" else "0x0",
        cap_mask="0xa751e848",
        lid_mask_count="0",
        sm_sl="0",
    )
    zero = "symbol_error link_error_recovery link_downed port_rcv_errors port_xmit_discards local_link_integrity_errors"
    tree.write(f"{where}/counters", **dict.fromkeys(f"{zero} excessive_buffer_overrun_errors port_xmit_wait".split(), "0"))
    zero = "out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err"
    tree.write(f"{where}/hw_counters", **dict.fromkeys(zero.split(), "0"))
    tree.write(f"{where}/pkeys", **{str(n): f"0x{key:04x}" for n, key in enumerate((*one.pkeys, 0))})
    tree.folder(f"{where}/gids")
    for index in range(one.table):
        gid: Gid | None = one.gids.get(index)
        tree.write(f"{where}/gids", **{str(index): gid.value if gid else NO_GID})
        if gid:
            tree.write(f"{where}/gid_attrs/types", **{str(index): gid.kind})
            if gid.netdev and elsewhere:
                tree.refuse(f"{where}/gid_attrs/ndevs", str(index))
            elif gid.netdev:
                tree.write(f"{where}/gid_attrs/ndevs", **{str(index): gid.netdev})


def uverbs(tree: Tree, where: str, hca: Hca, numbers: tuple[int, int]) -> None:
    node = f"{where}/infiniband_verbs/uverbs{hca.node}"
    major, minor = numbers
    text = f"MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/uverbs{hca.node}"
    tree.write(node, ibdev=hca.name, abi_version="1", dev=f"{major}:{minor}", uevent=text)
    tree.link(f"{node}/device", where)
    tree.link(f"{node}/subsystem", "class/infiniband_verbs")
    tree.link(f"class/infiniband_verbs/uverbs{hca.node}", node)
    tree.write("class/infiniband_verbs", abi_version="6")


def interfaces(machine: Machine, tree: Tree) -> None:
    """/sys/class/net; whether an entry is of the own network namespace shows by its number and address."""
    tree.write("devices/virtual/net/lo", ifindex="1", address="00:00:00:00:00:00", mtu="65536", type="772", operstate="unknown")
    tree.link("class/net/lo", "devices/virtual/net/lo")
    for one in machine.interfaces:
        nic, place = one.nic, one.nic.place
        card = "/".join((f"devices/{place.root}", *place.bridges, place.address)) if place else ""
        where = f"{card or 'devices/virtual'}/net/{nic.name}"
        tree.write(where, ifindex=str(one.index), address=one.mac, mtu=str(nic.mtu), type="32" if nic.infiniband else "1")
        tree.write(where, flags="0x1003" if nic.up else "0x1002", carrier=str(int(nic.up)))
        tree.write(where, duplex="full", operstate="up" if nic.up else "down")
        if nic.speed is None:
            tree.refuse(where, "speed")
        elif nic.kind not in WITHOUT_SPEED:
            tree.write(where, speed=str(nic.speed))
        if card:
            tree.link(f"{where}/device", card)
        elif nic.driver:
            tree.folder(f"{where}/device")
            tree.folder(f"bus/vmbus/drivers/{nic.driver}")
            tree.link(f"{where}/device/driver", f"bus/vmbus/drivers/{nic.driver}")
        tree.link(f"class/net/{nic.name}", where)


def nodes(tree: Tree, cpus: Sequence[str], distances: Sequence[str]) -> None:
    for n, (one, distance) in enumerate(zip(cpus, distances, strict=True)):
        tree.write(
            f"devices/system/node/node{n}",
            cpulist=one,
            cpumap=cpu_map(one),
            distance=distance,
            meminfo=f"Node {n} MemTotal: 1056000000 kB",
        )
    every = f"0-{len(cpus) - 1}" if len(cpus) > 1 else "0"
    tree.write("devices/system/node", online=every, possible=every)


def cpu_map(cpus: str) -> str:
    """A CPU list as the kernel's groups of 32 bits."""
    bits = sum(1 << one for one in cpu_numbers(cpus))
    groups: list[str] = []
    while bits or not groups:
        groups.append(f"{bits & 0xFFFFFFFF:08x}")
        bits >>= 32
    return ",".join(reversed(groups))


def cpu_numbers(cpus: str) -> Iterator[int]:
    for part in filter(None, cpus.split(",")):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def devices(machine: Machine) -> dict[str, int]:
    """What /dev has for the machine: name below /dev and mode."""
    found = dict.fromkeys(machine.devices, 0o666)
    if not machine.shown:
        return found
    if "nvidia" in machine.modules and machine.gpus:
        found |= {"nvidiactl": 0o666, **{f"nvidia{n}": 0o666 for n in range(len(machine.gpus))}}
    if "nvidia_uvm" in machine.modules:
        found["nvidia-uvm"] = 0o666
    for hca in machine.hcas:
        if hca.node is not None and hca.mode is not None:
            found[f"infiniband/uverbs{hca.node}"] = hca.mode
    return found


def proc(machine: Machine, architecture: str = "x86_64") -> dict[str, str]:
    """Files of /proc/driver."""
    if "nvidia" not in machine.modules:
        return {}
    version = (
        f"NVRM version: NVIDIA UNIX Open Kernel Module for {architecture}  {machine.driver}  Release Build  (dvs-builder@U22)\n"
        "GCC version:  gcc version 12.3.0\n"
    )
    return {"nvidia/version": version, "nvidia/params": "RegisterPCIDriver: 1\n"}


def write_sys(machine: Machine, folder: pathlib.Path, **more: object) -> pathlib.Path:
    """As `write`, into a folder that stands for /sys."""
    tree = Tree(folder)
    write(machine, tree, **more)  # type: ignore[arg-type]
    try:  # this machine's own processor, for NCCL asks cpuid, but no virtual machine's
        tree.write("devices/system/cpu", modalias=CPU.read_text(encoding="ascii").strip().replace(",009F", ""))
    except OSError:
        pass
    return folder

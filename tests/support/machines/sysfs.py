"""A DGX-H100-like sysfs: 8 GPUs, 8 ConnectX-7, two NUMA nodes.  To be laid over /sys, or read as a root of its own.

Each HCA shares a PCIe switch with its GPU: root port, upstream port, one downstream port for each.
"""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

GPU_BUSES = (0x1B, 0x43, 0x52, 0x61, 0x9D, 0xC3, 0xD1, 0xDF)
HCA_BUSES = (0x18, 0x40, 0x4F, 0x5E, 0x9A, 0xC0, 0xCE, 0xDC)
DRIVER = "580.95.05"
BRIDGE = 0x060400
ROOT_PORT = 0x1D  # as the kernel sets it where an IOMMU is on (pci_std_enable_acs)
BARE_METAL = "cpu:type:x86,ven0000fam0006mod008F:feature:,0000,0001,0002"  # no hypervisor among the processor's features


@contextlib.contextmanager
def scratch() -> Iterator[pathlib.Path]:
    """A folder for trees, in memory where there is /dev/shm: a thousand small files take seconds on a slow disk."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None) as name:
        yield pathlib.Path(name)


@dataclass(frozen=True)
class Extra:
    """One more PCI function, directly below a root port of its own at ``bus - 1``."""

    bus: int
    vendor: int
    device: int
    klass: int
    driver: str = ""


@dataclass(frozen=True)
class Shape:
    """What differs from a healthy machine.  Sets and maps are by number of GPU or HCA."""

    gpus: int = 8
    hcas: int = 8
    peermem: bool = True
    memory_peers: Collection[str] = ()  # names under /sys/kernel/mm/memory_peers
    roce: bool = False
    gids: int = 1  # filled GID entries of a port
    ports_down: Collection[int] = ()
    without_uverbs: Collection[int] = ()
    stale_uverbs: Collection[int] = ()  # sysfs gives another minor than /dev/infiniband/uverbsN has
    gpu_width: Mapping[int, int] = field(default_factory=dict)
    hca_width: Mapping[int, int] = field(default_factory=dict)
    gpu_numa: Mapping[int, int] = field(default_factory=dict)
    hca_numa: Mapping[int, int] = field(default_factory=dict)
    rates: Mapping[int, int] = field(default_factory=dict)  # Gb/s
    firmware: Mapping[int, str] = field(default_factory=dict)
    virtual_functions: Collection[int] = ()  # HCAs that are virtual functions
    infiniband: bool = True  # False: the drivers are not loaded, PCI shows the cards all the same
    cpus: tuple[str, str] = ("0-55", "56-111")
    acs: Mapping[str, int] = field(default_factory=dict)  # by address of a bridge
    extra: Collection[Extra] = ()


def dgx_h100(root: pathlib.Path, **faults: object) -> pathlib.Path:
    """Write the tree into `root`, which stands for /sys; `faults` are the fields of `Shape`.  Returns `root`."""
    shape = Shape(**faults)  # type: ignore[arg-type]
    tree = Tree(root)
    tree.acs = shape.acs
    for n in range(max(shape.gpus, shape.hcas)):
        numa = shape.gpu_numa.get(n, n // 4)  # as the firmware tells it of a root port and all that is below it
        base = tree.switch(HCA_BUSES[n] - 3, numa)
        if n < shape.gpus:
            where = f"{base}/0000:{HCA_BUSES[n] - 1:02x}:01.0"
            tree.bridge(where, numa)
            tree.function(
                where, GPU_BUSES[n], 0x10DE, 0x2330, 0x030200, "nvidia", shape.gpu_numa.get(n, numa), shape.gpu_width.get(n, 16)
            )
        if n < shape.hcas:
            _hca(tree, shape, n, base, numa)
    for one in shape.extra:
        where = f"devices/pci0000:{one.bus - 1:02x}/0000:{one.bus - 1:02x}:01.0"
        tree.bridge(where, 0)
        tree.function(where, one.bus, one.vendor, one.device, one.klass, one.driver, 0, 16)
    _system(tree, shape)
    return root


def _hca(tree: Tree, shape: Shape, n: int, base: str, numa: int) -> None:
    bus = HCA_BUSES[n]
    where = f"{base}/0000:{bus - 1:02x}:00.0"
    tree.bridge(where, numa)
    klass = 0x020000 if shape.roce else 0x020700
    pci = tree.function(where, bus, 0x15B3, 0x1021, klass, "mlx5_core", shape.hca_numa.get(n, numa), shape.hca_width.get(n, 16))
    if n in shape.virtual_functions:
        tree.link(f"{pci}/physfn", f"{where}/0000:{bus:02x}:00.1")
    if not shape.infiniband:
        return
    name = f"mlx5_{n}"
    device, port = f"{pci}/infiniband/{name}", f"{pci}/infiniband/{name}/ports/1"
    tree.link(f"class/infiniband/{name}", device)
    tree.link(f"{device}/subsystem", "class/infiniband")
    tree.link(f"{device}/device", pci)
    guid = f"a088:c203:00{bus:02x}:0000"
    down = n in shape.ports_down
    rate = shape.rates.get(n, 400)
    tree.write(
        device,
        uevent=f"NAME={name}",
        fw_ver=shape.firmware.get(n, "28.39.1002"),
        node_type="1: CA",
        board_id="MT_0000000838",
        hca_type="MT4129",
        node_guid=guid,
        sys_image_guid=guid,
        node_desc=f"host {name}",
    )
    tree.write(
        port,
        state="1: DOWN" if down else "4: ACTIVE",
        phys_state="3: Disabled" if down else "5: LinkUp",
        rate=f"{rate} Gb/sec (4X {'NDR' if rate == 400 else 'HDR'})",
        link_layer="Ethernet" if shape.roce else "InfiniBand",
        lid="0x0" if shape.roce else f"0x{10 + n:x}",
        sm_lid="0x0" if shape.roce else "0x1",
        cap_mask="0xa751e848",
        lid_mask_count="0",
        sm_sl="0",
    )
    zero = "symbol_error link_error_recovery link_downed port_rcv_errors port_xmit_discards local_link_integrity_errors"
    tree.write(f"{port}/counters", **dict.fromkeys(f"{zero} excessive_buffer_overrun_errors port_xmit_wait".split(), "0"))
    zero = "out_of_sequence packet_seq_err local_ack_timeout_err rnr_nak_retry_err"
    tree.write(f"{port}/hw_counters", **dict.fromkeys(zero.split(), "0"))
    for index in range(max(shape.gids, 32 if shape.roce else 1)):
        filled = index < shape.gids
        mapped = f"0000:0000:0000:0000:0000:ffff:0a00:{n:02x}{index:02x}"
        value = mapped if shape.roce and index else f"fe80:0000:0000:0000:{guid}"
        tree.write(f"{port}/gids", **{str(index): value if filled else "0000:0000:0000:0000:0000:0000:0000:0000"})
        if filled:
            tree.write(f"{port}/gid_attrs/types", **{str(index): "RoCE v2" if shape.roce and index % 2 else "IB/RoCE v1"})
            if shape.roce:
                tree.write(f"{port}/gid_attrs/ndevs", **{str(index): f"eth{n + 1}"})
    tree.write(f"{port}/pkeys", **{"0": "0xffff"})
    if n not in shape.without_uverbs:
        minor = 192 + n + (64 if n in shape.stale_uverbs else 0)
        node = f"{pci}/infiniband_verbs/uverbs{n}"
        text = f"MAJOR=231\nMINOR={minor}\nDEVNAME=infiniband/uverbs{n}"
        tree.write(node, ibdev=name, abi_version="1", dev=f"231:{minor}", uevent=text)
        tree.link(f"class/infiniband_verbs/uverbs{n}", node)
        tree.link(f"{node}/device", pci)
        tree.link(f"{node}/subsystem", "class/infiniband_verbs")


def _system(tree: Tree, shape: Shape) -> None:
    for n, cpus in enumerate(shape.cpus):
        tree.write(
            f"devices/system/node/node{n}",
            cpulist=cpus,
            distance="10 21" if n == 0 else "21 10",
            meminfo=f"Node {n} MemTotal:       1056000000 kB",
        )
    tree.write("devices/system/node", online="0-1", possible="0-1")
    tree.write("devices/system/cpu", online=f"0-{shape.cpus[1].rpartition('-')[2]}", modalias=BARE_METAL)
    modules = {"nvidia": DRIVER, "nvidia_uvm": "", "ib_core": ""}
    if shape.peermem:
        modules["nvidia_peermem"] = DRIVER
    if shape.infiniband:
        modules |= {"ib_uverbs": "", "mlx5_core": "24.10-1.1.4", "mlx5_ib": ""}
    for name, version in modules.items():
        tree.write(f"module/{name}", initstate="live", **({"version": version} if version else {}))
    tree.write("module/ib_core/parameters", netns_mode="Y")
    tree.folder("kernel/mm/transparent_hugepage")
    for name in shape.memory_peers:
        tree.write(f"kernel/mm/memory_peers/{name}", version="1.1")
    if shape.infiniband and shape.hcas:
        tree.write("class/infiniband_verbs", abi_version="6")
    for name in ("class/net", "bus/pci/devices", "bus/cpu"):
        tree.folder(name)


@functools.cache
def relative(target: str, folder: str) -> str:
    """Of names below /sys: the target of a link that lies in `folder`."""
    return os.path.relpath(target, folder)


@functools.cache
def config(vendor: int, device: int, klass: int, acs: int) -> bytes:
    """Configuration space as root reads it: a PCI Express capability, and Access Control Services of bridges (pci_regs.h)."""
    out = bytearray(4096)
    for at, size, value in (
        (0x00, 2, vendor),
        (0x02, 2, device),
        (0x06, 2, 0x10),  # there are capabilities
        (0x09, 3, klass),
        (0x34, 1, 0x40),
        (0x40, 2, 0x10),  # PCI Express
        (0x48, 2, 0x2936),  # relaxed ordering, read requests of 512 bytes
        *(((0x100, 4, 0x1000D), (0x104, 2, 0x5F), (0x106, 2, acs)) if klass == BRIDGE else ()),
    ):
        out[at : at + size] = value.to_bytes(size, "little")
    return bytes(out)


class Tree:
    """Files, folders and links below one folder, by relative names."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = root
        self.made: set[str] = set()
        self.acs: Mapping[str, int] = {}  # what is switched on of ACS on a bridge, where it is not as `config` has it

    def folder(self, name: str) -> None:
        if name not in self.made:
            (self.root / name).mkdir(parents=True, exist_ok=True)
            self.made.add(name)

    def write(self, folder: str, **files: str | bytes) -> None:
        self.folder(folder)
        for name, content in files.items():
            data = content if isinstance(content, bytes) else content.encode() + b"\n"
            (self.root / folder / name).write_bytes(data)

    def refuse(self, folder: str, name: str) -> None:
        """A file that cannot be read (EINVAL): on a disk there is no such thing, and it is left out."""

    def link(self, name: str, target: str) -> None:
        """A relative link, as sysfs has them."""
        self.folder(os.path.dirname(name))
        os.symlink(relative(target, os.path.dirname(name)), self.root / name)

    def switch(self, bus: int, numa: int) -> str:
        """Root port and upstream port of a PCIe switch; returns where its downstream ports go."""
        port = f"devices/pci0000:{bus:02x}/0000:{bus:02x}:01.0"
        upstream = f"{port}/0000:{bus + 1:02x}:00.0"
        self.bridge(port, numa)
        self.bridge(upstream, numa)
        return upstream

    def bridge(self, where: str, numa: int) -> None:
        if where not in self.made:
            bus, _, rest = where.rpartition("/")[2][5:].partition(":")
            slot = int(rest.partition(".")[0], 16)
            self.put(where, f"0000:{bus}:{slot:02x}.0", 0x1000, 0xC030, 0x060400, "pcieport", numa, 16)

    def function(self, parent: str, bus: int, vendor: int, device: int, klass: int, driver: str, numa: int, width: int) -> str:
        address = f"0000:{bus:02x}:00.0"
        self.put(f"{parent}/{address}", address, vendor, device, klass, driver, numa, width)
        return f"{parent}/{address}"

    def put(self, where: str, address: str, vendor: int, device: int, klass: int, driver: str, numa: int, width: int) -> None:
        lines = [f"PCI_CLASS={klass:X}", f"PCI_ID={vendor:04X}:{device:04X}", f"PCI_SLOT_NAME={address}"]
        self.write(
            where,
            vendor=f"0x{vendor:04x}",
            device=f"0x{device:04x}",
            **{"class": f"0x{klass:06x}"},
            numa_node=str(numa),
            current_link_speed="32.0 GT/s PCIe",
            max_link_speed="32.0 GT/s PCIe",
            current_link_width=str(width),
            max_link_width="16",
            config=config(vendor, device, klass, self.acs.get(address, ROOT_PORT if where.count("/") == 2 else 0)),
            uevent="\n".join([f"DRIVER={driver}"] * bool(driver) + lines),
        )
        self.link(f"{where}/subsystem", "bus/pci")
        if driver:
            self.folder(f"bus/pci/drivers/{driver}")
            self.link(f"{where}/driver", f"bus/pci/drivers/{driver}")
        self.link(f"bus/pci/devices/{address}", where)

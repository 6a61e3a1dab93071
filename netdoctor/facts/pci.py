"""PCI: every accelerator and HCA with its link, NUMA node and path to the root."""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum
from functools import cached_property
from typing import Final

from netdoctor.facts import udev
from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, link, mapping, matching, names, read, read_int
from netdoctor.model import Kind, Unavailable, missing, record

DEVICES: Final = "/sys/bus/pci/devices"
TOPOLOGY: Final = "/var/run/nvidia-topologyd/virtualTopology.xml"  # NCCL src/graph/topo.cc, without NCCL_TOPO_FILE
ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]")

NVIDIA: Final = 0x10DE
OTHER_ACCELERATORS: Final = {
    0x1002: "AMD",
    0x1DA3: "Intel Gaudi (Habana)",
    0x1D0F: "AWS Neuron",
    0x1E52: "Tenstorrent",
    0x8086: "Intel",
    0x1AE0: "Google TPU",
    0x19E5: "Huawei",
}


@record
class PciLink:
    """A PCIe link: speed in GT/s and lanes, now and at most."""

    speed: float
    width: int
    max_speed: float
    max_width: int


class CpuVendor(Enum):
    """Makers of processors that NCCL knows (src/graph/topo.cc, kvDictCpuVendor)."""

    INTEL = "Intel"
    AMD = "AMD"
    ZHAOXIN = "Zhaoxin"
    ARM = "Arm"
    OTHER = "other"


@record
class CpuModel:
    """The processor, by which NCCL tells how fast two sockets are connected; family and model of x86 only."""

    vendor: CpuVendor
    family: int = 0
    model: int = 0


@record
class PciDevice:
    """One function that checks ask about: accelerators, network and InfiniBand controllers, bridges on their path."""

    address: str  # "0000:1b:00.0"
    vendor: int
    device: int
    klass: int  # 24 bit: 0x030200
    numa_node: int | Unavailable  # -1: not said
    driver: str | None | Unavailable  # None: no driver bound
    link: PciLink | Unavailable
    path: tuple[str, ...]  # addresses from the root port down to the device's parent
    root: str  # "pci0000:1a"
    physical_function: str | None  # of a virtual function
    rdma: bool = False  # an InfiniBand controller, or an Ethernet controller of a family that does RDMA
    placed: bool = True  # False: the link that tells `path` and `root` could not be read
    excluded: bool = False  # its driver was told to leave this GPU alone (NVreg_ExcludedGpus)

    @property
    def is_gpu(self) -> bool:
        """An NVIDIA display or 3D controller."""
        return self.vendor == NVIDIA and self.klass >> 16 == 0x03


@record
class Pci(Fact):
    """The accelerators, network controllers and bridges on PCI, and the CPU's model."""

    devices: tuple[PciDevice, ...] | Unavailable
    # "AMD (0000:c1:00.0)", "/dev/kfd", "/dev/dxg": what netdoctor cannot judge
    foreign_accelerators: tuple[str, ...] | Unavailable
    unclassified: tuple[str, ...] = ()  # functions whose class could not be read: no "there is none" while any is left
    virtual_topology: bool | Unavailable = False  # the hypervisor's file that NCCL reads before it looks at PCI is there
    cpu: CpuModel | Unavailable = Unavailable(Kind.NOT_READ)
    nvswitches: tuple[str, ...] | Unavailable = ()  # addresses; a virtual machine may not see those that its GPUs are joined by

    @property
    def by_wsl(self) -> bool:
        """GPUs come by /dev/dxg, not on PCI (https://learn.microsoft.com/windows/wsl/tutorials/gpu-compute)."""
        return _WSL in (self.foreign_accelerators or ())

    def at(self, address: str) -> PciDevice | Unavailable:
        """The device of that address; Kind.ABSENT where PCI was read and has none."""
        if isinstance(self.devices, Unavailable):
            return self.devices
        return self._by_address.get(address) or Unavailable(Kind.ABSENT, f"no {address} on PCI")

    @cached_property
    def _by_address(self) -> dict[str, PciDevice]:
        return {d.address: d for d in reversed(self.devices or ())}

    @property
    def gpus(self) -> tuple[PciDevice, ...] | Unavailable:
        return self.devices and self._gpus

    @cached_property
    def _gpus(self) -> tuple[PciDevice, ...]:
        return tuple(d for d in self.devices or () if d.is_gpu)

    @property
    def rdma(self) -> tuple[PciDevice, ...] | Unavailable:
        return self.devices and tuple(d for d in self.devices if d.rdma)


# Kernel drivers of network controllers that have an RDMA driver beside them (drivers/infiniband/hw).  A function without a
# driver is told by its number below.
_RDMA_DRIVERS: Final = frozenset(
    {"mlx5_core", "mlx4_core", "bnxt_en", "ice", "idpf", "efa", "erdma", "mana", "qede", "cxgb4", "ionic", "xscale"}
)
_NETWORK, _INFINIBAND, _DISPLAY, _PROCESSING = 0x02, 0x0207, 0x03, 0x12
_OTHER_BRIDGE: Final = 0x0680  # the class of NVSwitches
# Intel E800 series (drivers/net/ethernet/intel/ice/ice_devids.h): E810, E822, E823, E825, E830.
_ICE: Final = frozenset(
    {0x1591, 0x1592, 0x1593, 0x1599, 0x159A, 0x159B, 0x124C, 0x124D, 0x124E, 0x124F, 0x12D1, 0x12D2, 0x12D3, 0x12D5}
) | frozenset(range(0x1888, 0x189B))
# Google TPU: v2/v3, v4, v5p, v5e, v6e (jax/_src/hardware_utils.py).
_TPU: Final = frozenset({0x0027, 0x0056, 0x005E, 0x0062, 0x0063, 0x006F})
_FPGA_VENDORS: Final = frozenset({0x10EE, 0x1172})  # Xilinx and Altera cards have the class of accelerators, too
# Device nodes of accelerators that netdoctor does not judge: AMD, WSL2, Neuron, Huawei, Gaudi (before /dev/accel).
_WSL: Final = "/dev/dxg"  # as `Pci.foreign_accelerators` has it
_NODES: Final = re.compile(r"(?:kfd|dxg|neuron\d+|davinci\d+|hl\d+)\Z")


@record
class _Function:
    """One PCI function as its uevent file tells it."""

    address: str
    vendor: int
    device: int
    klass: int
    driver: str | None | Unavailable


def probe(host: Host) -> Pci | Unavailable:
    """Accelerators, network controllers and the bridges above them."""
    listed = names(host, DEVICES)
    if isinstance(listed, Unavailable):
        listed = _no_bus(host, listed)
    elif not listed:
        listed = _empty_bus(host)
    if isinstance(listed, Unavailable):
        return listed
    addresses = [name for name in listed if ADDRESS.fullmatch(name)]
    functions = [(a, read_function(host, a)) for a in addresses]
    unread = tuple(a for a, f in functions if isinstance(f, Unavailable))
    if unread and len(unread) == len(functions):
        first = functions[0][1]
        return first if isinstance(first, Unavailable) else Unavailable(Kind.NOT_READ)
    known = [f for _, f in functions if isinstance(f, _Function)]
    wanted = [f for f in known if f.klass >> 16 in (_NETWORK, _DISPLAY, _PROCESSING) or _accelerator(f)]
    devices = {f.address: _device(host, f) for f in wanted}
    bridges = {address for one in devices.values() for address in one.path} - devices.keys()
    devices |= {f.address: _device(host, f) for f in known if f.address in bridges}
    ordered = [devices[address] for address in sorted(devices)]
    return Pci(
        tuple(ordered),
        _foreign(host, known),
        unread,
        _is_there(mapping(host, f"stat:{TOPOLOGY}")),
        _cpu(host),
        tuple(f.address for f in known if f.vendor == NVIDIA and f.klass >> 8 == _OTHER_BRIDGE),
    )


# arch/x86/kernel/cpu/match.c (cpu:type:x86,ven0000fam0006mod008F:feature:…), X86_VENDOR_* in arch/x86/include/asm/processor.h;
# NCCL asks cpuid for a name: those of Hygon (9) and of VIA it does not know.
_VENDORS: Final = {0: CpuVendor.INTEL, 2: CpuVendor.AMD, 5: CpuVendor.ZHAOXIN, 10: CpuVendor.ZHAOXIN}


def _cpu(host: Host) -> CpuModel | Unavailable:
    """The processor's maker, family and model."""
    text = read(host, "/sys/devices/system/cpu/modalias")
    if isinstance(text, Unavailable):
        return text
    if text.startswith("cpu:type:aarch64"):
        return CpuModel(CpuVendor.ARM)
    found = re.match(r"cpu:type:x86,ven([0-9A-F]{4})fam([0-9A-F]{4})mod([0-9A-F]{4}):", text)
    if found is None:
        return Unavailable(Kind.MALFORMED if text else Kind.EMPTY, f"cpu/modalias: {text[:40]!r}")
    vendor, family, model = (int(part, 16) for part in found.groups())
    return CpuModel(_VENDORS.get(vendor, CpuVendor.OTHER), family, model)


def _is_there(got: object) -> bool | Unavailable:
    return (got.kind != Kind.ABSENT and got) if isinstance(got, Unavailable) else True


def _no_bus(host: Host, why: Unavailable) -> tuple[str, ...] | Unavailable:
    """No /sys/bus/pci: positive evidence of a machine without PCI only where /sys/bus shows other buses."""
    if why.kind != Kind.ABSENT:
        return why
    buses = names(host, "/sys/bus")
    if isinstance(buses, Unavailable):
        return buses
    if not buses:
        return Unavailable(Kind.EMPTY, "/sys/bus is empty")
    if "pci" in buses:
        return Unavailable(Kind.EMPTY, "/sys/bus/pci without devices")
    return ()


def _empty_bus(host: Host) -> tuple[str, ...] | Unavailable:
    """No entries: real where the bus has its own attributes and /sys/devices shows no PCI root."""
    bus, roots = names(host, "/sys/bus/pci"), names(host, "/sys/devices")
    if isinstance(bus, Unavailable) or isinstance(roots, Unavailable):
        return Unavailable(Kind.EMPTY, f"{DEVICES} is empty")
    if "drivers" not in bus or not roots or any(name.startswith("pci") for name in roots):
        return Unavailable(Kind.EMPTY, f"{DEVICES} is empty, but /sys does not look whole")
    return ()


def read_function(host: Host, address: str) -> _Function | Unavailable:
    """Vendor, device, class and driver of a function: its uevent file has all four."""
    text = read(host, f"{DEVICES}/{address}/uevent")
    if isinstance(text, Unavailable):
        return text
    values = dict(line.partition("=")[::2] for line in text.splitlines())
    try:
        vendor, device = (int(part, 16) for part in values.get("PCI_ID", "").split(":"))
        klass = int(values.get("PCI_CLASS", ""), 16)
    except ValueError:
        return Unavailable(Kind.MALFORMED if text.strip() else Kind.EMPTY, f"{DEVICES}/{address}/uevent")
    return _Function(address, vendor, device, klass, values.get("DRIVER") or None)


def numa_node(host: Host, address: str) -> int | Unavailable:
    """The NUMA node that the firmware gives a function; -1: it says none."""
    return read_int(host, f"{DEVICES}/{address}/numa_node")


def is_virtual(host: Host, address: str) -> bool | Unavailable:
    """Whether a function is a virtual one (SR-IOV)."""
    return _is_there(link(host, f"{DEVICES}/{address}/physfn"))


_ROOT: Final = re.compile(r"pci[0-9a-f]{4,8}:[0-9a-f]{2}")


def _device(host: Host, one: _Function) -> PciDevice:
    where = f"{DEVICES}/{one.address}"
    target = link(host, where)
    steps = [] if isinstance(target, Unavailable) else target.split("/")
    physical = link(host, f"{where}/physfn") if one.klass >> 16 in (_NETWORK, _DISPLAY) else ""  # NVIDIA vGPU has them, too
    return PciDevice(
        address=one.address,
        vendor=one.vendor,
        device=one.device,
        klass=one.klass,
        numa_node=numa_node(host, one.address),
        driver=one.driver,
        link=_link(host, where),
        path=tuple(s for s in steps[:-1] if ADDRESS.fullmatch(s)),
        root=next((s for s in steps if _ROOT.fullmatch(s)), ""),
        physical_function=physical.rpartition("/")[2] or None if isinstance(physical, str) else None,
        rdma=_rdma(one),
        placed=not isinstance(target, Unavailable),
        excluded=one.vendor == NVIDIA and one.driver == "nvidia" and _excluded(host, one.address),
    )


def _excluded(host: Host, address: str) -> bool:
    """As nvidia.ko says it (nv-procfs.c, nv_procfs_read_gpu_info); where it says nothing, the GPU is meant to be used."""
    text = read(host, f"/proc/driver/nvidia/gpus/{address}/information")
    return not isinstance(text, Unavailable) and re.search(r"^GPU Excluded:\s+Yes\s*$", text, re.MULTILINE) is not None


_ONES: Final = 0x3F  # of a device that has fallen off the bus every bit reads as 1 (pci_regs.h, PCI_EXP_LNKSTA_NLW)


def _link(host: Host, where: str) -> PciLink | Unavailable:
    speeds = [_speed(host, f"{where}/{name}") for name in ("current_link_speed", "max_link_speed")]
    widths = [read_int(host, f"{where}/{name}") for name in ("current_link_width", "max_link_width")]
    if _ONES in widths:
        return Unavailable(Kind.FAILED, f"{where}: it does not answer (link width {_ONES}, all ones)")
    if (lost := missing(*speeds, *widths)) is not None:
        return lost
    now, most = (s for s in speeds if not isinstance(s, Unavailable))
    width, widest = (w for w in widths if not isinstance(w, Unavailable))
    if width <= 0 or widest <= 0 or widest >= 255:  # 0 and 255 are "no link", as on virtual machines
        return Unavailable(Kind.UNSUPPORTED, f"{where}: link width {width} of {widest}")
    return PciLink(now, width, most, widest)


def _speed(host: Host, path: str) -> float | Unavailable:
    """ "32.0 GT/s PCIe" as 32.0; "Unknown" is what the kernel says of a link that it cannot tell."""
    found = matching(host, path, r"(?:(\d{1,4}(?:\.\d{1,4})?) GT/s|Unknown)")
    return found and (float(found[1]) if found[1] else Unavailable(Kind.UNSUPPORTED, f"{path}: {found[0]!r}"))


def _rdma(one: _Function) -> bool:
    """Whether the function is of a family that does RDMA; by driver where one is bound, by number where none is."""
    if one.klass >> 8 == _INFINIBAND:
        return True
    if one.klass >> 16 != _NETWORK:
        return False
    if isinstance(one.driver, str) and one.driver not in ("vfio-pci", "pci-stub", "uio_pci_generic"):
        return one.driver in _RDMA_DRIVERS or (one.driver == "hns3" and _by_number(one))
    return _by_number(one)


def _by_number(one: _Function) -> bool:
    device = one.device
    return {
        0x15B3: 0x1002 <= device <= 0x10FF or 0xA2D2 <= device <= 0xA2FF,  # mlx4, mlx5, BlueField; not Spectrum switches
        # bnxt_en's table (bnxt.c); 0x16A0 to 0x16AF are bnx2x, 0x165F and 0x1657 are tg3
        0x14E4: 0x16C0 <= device <= 0x16EF or 0x1750 <= device <= 0x1760 or 0x1800 <= device <= 0x1810 or device >> 8 == 0xD8,
        0x8086: device in _ICE,
        0x1D0F: device >> 4 == 0xEFA,  # ENA is 0xEC20
        0x1414: device in (0x00B9, 0x00BA),  # MANA
        0x1DED: device == 0x107F,  # erdma
        0x19E5: 0xA222 <= device <= 0xA22F and device != 0xA223,  # hns3: hnae3.h HNAE3_DEV_ID_*_RDMA
    }.get(one.vendor, False)


def _accelerator(one: _Function) -> str | None:
    """The maker of an accelerator that netdoctor does not judge."""
    kind, display = one.klass >> 16, one.klass >> 8
    name = OTHER_ACCELERATORS.get(one.vendor)
    onboard = re.match(r"0000:00:", one.address) is not None  # a processor's own graphics or NPU
    hit = {
        NVIDIA: False,
        0x1002: display in (0x0380, 0x1200),  # 0x0300 may be a processor's own graphics: /dev/kfd tells
        0x1DA3: True,
        0x1E52: True,
        0x1D0F: 0x70 <= one.device >> 8 <= 0x7F and 0x64 <= one.device & 0xFF <= 0x67,
        0x8086: display in (0x0380, 0x1200) and not onboard,
        0x1AE0: one.device in _TPU,
        **dict.fromkeys(_FPGA_VENDORS, False),
    }.get(one.vendor, kind == _PROCESSING)
    return (name or f"vendor {one.vendor:04x}") if hit else None


def _foreign(host: Host, functions: Iterable[_Function]) -> tuple[str, ...] | Unavailable:
    makers = {f.address: maker for f in functions if (maker := _accelerator(f))}
    models = udev.models(host) if makers else {}  # no library of theirs is asked for a name
    found = [f"{maker} {models[a]} ({a})" if a in models else f"{maker} ({a})" for a, maker in makers.items()]
    nodes = names(host, "/dev")
    if isinstance(nodes, Unavailable):
        return tuple(found) or nodes
    return (*found, *(f"/dev/{name}" for name in nodes if _NODES.match(name))) or (
        () if nodes else Unavailable(Kind.EMPTY, "/dev is empty")
    )

"""The way between two PCI functions: what the switches on it do with their data, and where the IOMMU stands."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.pci import DEVICES, Pci, PciDevice
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, link, mapping, read, value
from netdoctor.model import Kind, Unavailable, missing, record

# include/uapi/linux/pci_regs.h, PCI_ACS_*; what turns a request back: pci_bridge_has_acs_redir, drivers/pci/p2pdma.c.
REQUESTS: Final = 0x04
COMPLETIONS: Final = 0x08
EGRESS: Final = 0x20
BACK: Final = REQUESTS | COMPLETIONS | EGRESS
TRANSLATED: Final = 0x40  # a request whose address is translated already passes all the same
_WORDS: Final = {REQUESTS: "ReqRedir+", COMPLETIONS: "CmpltRedir+", EGRESS: "EgressCtrl+"}  # as lspci -vv says it
_ATS_ENABLE: Final = 0x8000  # PCI_ATS_CTRL_ENABLE
_HYPERVISOR: Final = 4 * 32 + 31  # X86_FEATURE_HYPERVISOR, arch/x86/include/asm/cpufeatures.h
_GROUPS: Final = "/sys/kernel/iommu_groups"
_ADMIN: Final = "CAP_SYS_ADMIN"


@record
class Config:
    """What of a function's configuration space only root reads."""

    acs: int | None  # Access Control Services, what is switched on; None: it has none, and turns nothing back
    max_read: int | None  # bytes of a read request at most; None: no PCI Express
    relaxed: bool | None  # whether it may ask for relaxed ordering
    ats: bool  # whether it may ask for translations of addresses

    def turns_back(self, bits: int) -> str:
        """What of these is switched on, as lspci says it; "": they go straight through."""
        return " ".join(word for bit, word in _WORDS.items() if (self.acs or 0) & bits & bit)

    @property
    def lets_translated_pass(self) -> bool:
        return bool((self.acs or 0) & TRANSLATED)


@record
class Group:
    """The IOMMU group of a function."""

    number: str
    kind: str | Unavailable  # "DMA", "DMA-FQ", "identity" (Documentation/ABI/testing/sysfs-kernel-iommu_groups)


@record
class PciPath(Fact):
    """What PCIe bridges and the IOMMU do between GPUs and network controllers."""

    config: Mapping[str, Config | Unavailable] | Unavailable  # by address: network controllers, and bridges above them and GPUs
    # Of GPUs and HCAs; None: no IOMMU is on.
    groups: Mapping[str, Group | None | Unavailable] | Unavailable = field(default_factory=dict)
    guest: bool | Unavailable = Unavailable(Kind.NOT_READ)  # a virtual machine, whose switches are the hypervisor's

    @property
    def iommu(self) -> str | None | Unavailable:
        """Where it stands for GPUs and HCAs: "identity", "DMA-FQ", "off"; None: there are none."""
        if isinstance(self.groups, Unavailable):
            return self.groups
        found = tuple(self.groups.values())
        kinds = tuple(one.kind for one in found if isinstance(one, Group))
        if (lost := missing(*found, *kinds)) is not None or not found:
            return lost
        return ", ".join(sorted({str(kind) for kind in kinds} | ({"off"} if None in found else set())))

    def group(self, address: str) -> Group | None:
        """None: it is in none, or that could not be read."""
        return (self.groups or {}).get(address) or None

    def at(self, address: str) -> Config | Unavailable:
        if isinstance(self.config, Unavailable):
            return self.config
        return self.config.get(address, Unavailable(Kind.NOT_READ, f"the configuration space of {address}"))


def apart(one: PciDevice, other: PciDevice) -> tuple[str, ...] | None:
    """The bridges between two functions below the switch that they share, nearest to it first; None: they share none.

    Above that switch nothing of what they send each other passes, if nobody turns it back.
    """
    common = len(shared(one, other))
    return (*one.path[common:], *other.path[common:]) if common else None


def shared(one: PciDevice, other: PciDevice) -> tuple[str, ...]:
    """The bridges above both, from the root port down."""
    count = 0
    for mine, its in zip(one.path, other.path, strict=False):
        if mine != its or one.root != other.root:
            break
        count += 1
    return one.path[:count]


def probe(host: Host, pci: Pci, vantage: Vantage) -> PciPath:
    """Asked for only where it may be read, and where a GPU shares a switch with something."""
    ends = [d for d in pci.devices or () if d.is_gpu or d.rdma]
    groups = {d.address: _group(host, d.address) for d in ends}
    pairs = [(one, other) for one in ends if one.is_gpu for other in ends if one is not other]
    if pci.devices and not any(apart(one, other) for one, other in pairs):
        return PciPath({}, groups, _guest(host))
    return PciPath(_config(host, vantage), groups, _guest(host))


def _config(host: Host, vantage: Vantage) -> dict[str, Config | Unavailable] | Unavailable:
    if isinstance(vantage.capabilities, Unavailable):
        return vantage.capabilities
    if vantage.root_is_root is not True or _ADMIN not in vantage.capabilities:
        return Unavailable(Kind.DENIED, "configuration space beyond 64 bytes is for root alone")
    got = mapping(host, "ask:pci_config")
    return got if isinstance(got, Unavailable) else {str(address): _function(one) for address, one in got.items()}


def _function(one: Any) -> Config | Unavailable:
    told: dict[str, Any] | Unavailable = value(one, dict, "a function's configuration space")
    if isinstance(told, Unavailable):
        return told
    control, acs, ats = (told.get(name, "") for name in ("control", "acs", "ats"))
    if not (_is(control) and _is(ats) and (acs is None or (isinstance(acs, list) and len(acs) == 2 and all(map(_is, acs))))):
        return Unavailable(Kind.MALFORMED, "a function's configuration space")
    bits = acs[1] if acs else None
    size = None if control is None else 128 << (control >> 12 & 7)  # PCI_EXP_DEVCTL_READRQ
    relaxed = None if control is None else bool(control & 0x10)  # PCI_EXP_DEVCTL_RELAX_EN
    return Config(bits, size, relaxed, bool((ats or 0) & _ATS_ENABLE))


def _is(number: object) -> bool:
    return number is None or (type(number) is int and 0 <= number <= 0xFFFF)


def _group(host: Host, address: str) -> Group | None | Unavailable:
    target = link(host, f"{DEVICES}/{address}/iommu_group")
    if isinstance(target, Unavailable):
        return None if target.kind is Kind.ABSENT else target
    number = target.rpartition("/")[2]
    return Group(number, read(host, f"{_GROUPS}/{number}/type"))


def _guest(host: Host) -> bool | Unavailable:
    """As cpuid says it, by the names of the processor's features (drivers/base/cpu.c, print_cpu_modalias)."""
    text = read(host, "/sys/devices/system/cpu/modalias")
    if isinstance(text, Unavailable):
        return text
    found = re.match(r"cpu:type:x86,[^:]*:feature:((?:,[0-9A-F]{4})+)", text)
    if found is None:
        return Unavailable(Kind.UNSUPPORTED, "this processor does not say whether it is a virtual machine's")
    return f"{_HYPERVISOR:04X}" in found[1].split(",")

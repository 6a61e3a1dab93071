"""Other names of the devices that a setting names in vain, and models of hardware that has no name of its own yet.

udev is asked only where one of these is needed for a message (see CONTRIBUTING): the look at a healthy node never waits for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import field
from typing import Final

from netdoctor.facts import udev
from netdoctor.facts.base import Fact
from netdoctor.facts.environ import Environ
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.host.base import Host
from netdoctor.model import record

# rdma-core kernel-boot/rdma_rename.c, by_pci: the protocol, then the place on PCI as systemd writes it for interfaces.
# Hot-plug slots, virtual functions and ARI have other numbers: their names are not told apart here.
_BY_PLACE: Final = re.compile(r"(?:ib|roce|iw|opa|rdma)(?:P(\d{1,10}))?p(\d{1,3})s(\d{1,2})(?:f(\d{1,2}))?")
_BY_THE_KERNEL: Final = re.compile(r"eth\d*")


@record
class DeviceNames(Fact):
    """Other names and models of network devices, for messages alone.

    That nothing is known here changes no judgement.
    """

    interface: str | None = None  # the interface that NCCL_SOCKET_IFNAME means by another of its names
    interface_hint: str = ""  # what udev knows of the names in NCCL_SOCKET_IFNAME, where this node has none of them
    hca_hint: str = ""  # of those in NCCL_IB_HCA
    models: Mapping[str, str] = field(default_factory=dict)  # by PCI address: of HCAs without an RDMA device

    def why_no_interface(self, named: str) -> str:
        """In brackets, what may be wrong with an NCCL_SOCKET_IFNAME that matches nothing; "" where nothing is known."""
        grammar = "spaces belong to a name" if " " in named else "`=` asks for the whole name" if "=" in named else ""
        why = self.interface_hint or grammar
        return f" ({why})" if why else ""

    def why_no_hca(self) -> str:
        """The same for an NCCL_IB_HCA."""
        return f" ({self.hca_hint})" if self.hca_hint else ""

    def meant(self, fine: tuple[str, ...]) -> tuple[str, ...]:
        """Of the interfaces that would do, the one that the setting meant, where that is known."""
        return (self.interface,) if self.interface is not None and self.interface in fine else fine

    def at(self, address: str) -> str:
        """A PCI address, with the model where it is known."""
        return f"{address} {self.models[address]}" if address in self.models else address


def probe(host: Host, environ: Environ, net: Net, rdma: Rdma, pci: Pci) -> DeviceNames:
    """Asks nothing where every setting finds its device and every HCA has one."""
    interface, interface_hint = _interface(host, _unmet(environ, "NCCL_SOCKET_IFNAME", [one.name for one in net.links or ()]))
    devices = rdma.devices or ()
    hca_hint = "; ".join(_hcas(_unmet(environ, "NCCL_IB_HCA", [one.name for one in devices]), devices))
    lost = [one.address for one in pci.devices or () if one.rdma] if rdma.devices == () else []
    models = udev.models(host) if lost else {}
    return DeviceNames(interface, interface_hint, hca_hint, {one: models[one] for one in lost if one in models})


def _unmet(environ: Environ, variable: str, have: Collection[str]) -> tuple[str, ...]:
    """The names in a list of NCCL's, where it takes (not excludes) devices and none of them is here."""
    value = environ.get(variable)
    if not isinstance(value, str) or value.startswith("^") or not have:
        return ()
    wanted = [one.partition(":")[0] for one in value.removeprefix("=").split(",")]
    return () if any(name.startswith(one) for one in wanted for name in have) else tuple(one for one in wanted if one)


def _interface(host: Host, wanted: tuple[str, ...]) -> tuple[str | None, str]:
    known = udev.interface_names(host) if wanted else {}
    for one in wanted:
        for name, others in known.items():
            if one in others:
                return name, f"udev's name {one} is {name} here"
    renamed = sorted(name for name, others in known.items() if name in others)
    if renamed and any(_BY_THE_KERNEL.fullmatch(one) for one in wanted):
        return None, f"udev has renamed the interfaces here: {', '.join(renamed)}"
    return None, ""


def _hcas(wanted: tuple[str, ...], devices: tuple[RdmaDevice, ...]) -> Iterator[str]:
    """By rule, not by database: rdma-core keeps no record of what it renamed."""
    placed = [one.name for one in devices if _BY_PLACE.fullmatch(one.name)]
    for one in wanted:
        place = _BY_PLACE.fullmatch(one)
        if place is None and placed:
            yield f"udev has renamed the RDMA devices here: {', '.join(placed)}"
            return
        if place is not None:
            domain, bus, slot, function = (int(number or 0) for number in place.groups())
            address = f"{domain:04x}:{bus:02x}:{slot:02x}.{function:x}"
            yield from (f"{one} is {device.name} here ({address})" for device in devices if device.pci == address)

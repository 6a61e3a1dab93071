"""PCI: every accelerator and HCA with its link, NUMA node and path to the root."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netdoctor.model import Unavailable

NVIDIA: Final = 0x10DE
OTHER_ACCELERATORS: Final = {
    0x1002: "AMD",
    0x1DA3: "Intel Gaudi (Habana)",
    0x1D0F: "AWS Neuron",
    0x1E52: "Tenstorrent",
    0x8086: "Intel",
}


@dataclass(frozen=True)
class PciLink:
    """A PCIe link: speed in GT/s and lanes, now and at most."""

    speed: float
    width: int
    max_speed: float
    max_width: int


@dataclass(frozen=True)
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

    @property
    def is_gpu(self) -> bool:
        """An NVIDIA display or 3D controller."""
        return self.vendor == NVIDIA and self.klass >> 16 == 0x03


@dataclass(frozen=True)
class Pci:
    """The PCI devices that matter here."""

    devices: tuple[PciDevice, ...]
    foreign_accelerators: (
        tuple[str, ...] | Unavailable
    )  # "AMD (0000:c1:00.0)", "/dev/kfd", "/dev/dxg": what netdoctor cannot judge

    def at(self, address: str) -> PciDevice | None:
        return next((d for d in self.devices if d.address == address), None)

    @property
    def gpus(self) -> tuple[PciDevice, ...]:
        return tuple(d for d in self.devices if d.is_gpu)

    @property
    def rdma(self) -> tuple[PciDevice, ...]:
        return tuple(d for d in self.devices if d.rdma)

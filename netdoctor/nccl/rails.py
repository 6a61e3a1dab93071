"""Which network hardware a job may be meant to use by RDMA, and which is plainly not: told by driver, place and link."""

from __future__ import annotations

from collections import Counter
from typing import Final

from netdoctor.facts.kernel import Kernel
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.gpudirect import switches

# Driver of the Ethernet controller -> module that makes an RDMA device of it (drivers/infiniband/hw; auxiliary bus).
_RDMA_MODULES: Final = {
    "mlx5_core": "mlx5_ib",
    "mlx4_core": "mlx4_ib",
    "bnxt_en": "bnxt_re",
    "ice": "irdma",
    "idpf": "irdma",
    "mana": "mana_ib",
}
_INFINIBAND: Final = 0x0207  # PCI class of a controller that has no Ethernet
_RAILS: Final = 4  # cards of one kind, as many as there are GPUs: nobody has so many for management
_UNPLUGGED: Final = frozenset({"Sleep", "Polling", "Disabled"})  # phys_state of a port that sees nothing at the other end


def ethernet_alone(pci: Pci, kernel: Kernel) -> tuple[PciDevice, ...]:
    """Controllers that could do RDMA and whose module for it is not loaded: no RDMA devices of a job.

    Not those below a switch with a GPU, and not as many alike as there are GPUs: these are rails, whose module is missing.
    """
    some = [one for one in pci.rdma or () if one.klass >> 8 != _INFINIBAND and _without_module(one, kernel)]
    gpus = pci.gpus or ()
    if not all(one.placed for one in (*some, *gpus)) or pci.unclassified:
        return ()
    beside_gpus = frozenset[str]().union(*(switches(gpu) for gpu in gpus))
    cards = Counter(driver for driver, _ in {(one.driver, one.address.rpartition(".")[0]) for one in some})
    return tuple(one for one in some if not beside_gpus & set(switches(one)) and cards[one.driver] < max(_RAILS, len(gpus)))


def may_hide(pci: Pci, kernel: Kernel) -> bool:
    """Whether there may be RDMA devices that sysfs does not show: in another namespace, or without their module."""
    return isinstance(pci.rdma, Unavailable) or bool(set(pci.rdma) - set(ethernet_alone(pci, kernel)) or pci.unclassified)


def _without_module(one: PciDevice, kernel: Kernel) -> bool:
    module = _RDMA_MODULES.get(one.driver) if isinstance(one.driver, str) else None
    loaded = kernel.modules.get(module) if module else None
    return isinstance(loaded, Unavailable) and loaded.kind == Kind.ABSENT


def uncabled(rdma: Rdma) -> bool:
    """Whether no port of any device has anything at its other end; a port that was not read may have."""
    ports = [port for one in rdma.devices or () for port in one.ports or (None,)]
    return bool(ports) and all(one is not None and one.state == "DOWN" and one.physical in _UNPLUGGED for one in ports)

"""Which of the driver's errors since boot (Xid, SXid) are still open, by what NVML tells of the GPUs now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import GpuState
from netdoctor.facts.kernel_log import Action, XidEvent
from netdoctor.facts.pci import Pci
from netdoctor.model import Kind, Unavailable

OF_A_BOARD: Final = 8  # GPUs: more are two boards, with trunks between their switches
_HARMLESS: Final = (Action.NONE, Action.RESTART)


def still_open(every: tuple[XidEvent, ...], shown: Mapping[Any, GpuState], links_up: bool) -> list[XidEvent]:
    """Those that need somebody; `shown` are the GPUs by PCI address."""
    return [event for number, event in enumerate(every) if _is_open(number, event, every, shown, links_up)]


def _is_open(number: int, event: XidEvent, every: Sequence[XidEvent], shown: Mapping[Any, GpuState], links_up: bool) -> bool:
    """What the driver calls recovered NVML tells, else the last change that it logged (Xid 154)."""
    if event.meaning.by_links and links_up:
        return False
    gpu = shown.get(event.place)
    now, at = (gpu.recovery, len(every)) if gpu is not None else (None, -1)
    if not isinstance(now, int):
        changes = [n for n, one in enumerate(every) if one.place == event.place and one.recovery is not None]
        now, at = (every[changes[-1]].recovery, changes[-1]) if changes else (None, -1)
    if number == at:
        return bool(now)
    return event.meaning.action not in _HARMLESS and not (event.meaning.told and now == 0 and at > number)


def links_up(pci: Pci, gpus: Gpus, own: Sequence[GpuState]) -> bool:
    """Whether every NVLink of every GPU of the node is seen up, and the GPUs are back in their fabric.

    NVIDIA's Fabric Manager User Guide, as gpud's catalogue quotes it, asks for a reset of the GPU after an NVLink went down
    (SXid 20034); that it comes back by nothing else is concluded from that.  Where all are up it was made.  A share of the
    node shows not all of them, NVML not those of a GPU that is lost, nor the trunks between the switches of two boards of
    eight GPUs each (HGX-2), and its list ends at the first that it does not tell of.
    """
    seen = gpus.all or ()
    known = len(seen) == len(own) == sum(one.physical_function is None for one in pci.gpus or ())
    alike = len({len(one.nvlinks or ()) for one in seen}) == 1 and len(seen) <= OF_A_BOARD
    return known and alike and all(one.nvlinks and all(one.nvlinks) for one in seen) and all(map(_registered, own))


def _registered(gpu: GpuState) -> bool:
    """Of a fabric that NVML tells of: of the A100's it does not, and its links are all there is to ask."""
    if isinstance(gpu.fabric, Unavailable):
        return gpu.fabric.kind is Kind.UNSUPPORTED
    return gpu.fabric.state == 0 or (gpu.fabric.state, gpu.fabric.status) == (3, 0)

"""The NVLink fabric that a node's GPUs share with those of other nodes, as it tells them."""

from __future__ import annotations

from typing import Final

from netdoctor.compare.fabrics import NO_FABRIC
from netdoctor.facts.fabric import NO_CLUSTER
from netdoctor.facts.gpu_health import FabricInfo, GpuHealth
from netdoctor.model import Kind, Unavailable

_COMPLETED: Final = 3  # nvmlGpuFabricState_t: the registration is done


def beyond(state: GpuHealth) -> str:
    """``CLUSTER/CLIQUE``; `NO_FABRIC` where NVML says of all that they are in none; "" where that is not known, or they differ,
    which gpu.fabric tells of the node."""
    own = [gpu for gpu in state.gpus or () if not (isinstance(gpu.uuid, Unavailable) and gpu.uuid.kind is Kind.DENIED)]
    told = {_of(gpu.fabric) for gpu in own}
    return told.pop() if len(told) == 1 else ""


def _of(one: FabricInfo | Unavailable) -> str:
    if isinstance(one, Unavailable):
        return NO_FABRIC if one.kind is Kind.UNSUPPORTED else ""
    if one.state not in (0, _COMPLETED) or one.status:
        return ""
    return f"{one.cluster}/{one.clique}" if one.state and one.cluster != NO_CLUSTER else NO_FABRIC

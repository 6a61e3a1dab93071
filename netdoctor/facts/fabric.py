"""What joins the GPUs: whether the driver waits for the fabric, and the IMEX channels that this process may open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import refusal
from netdoctor.facts.gpu_health import GpuHealth
from netdoctor.host.base import Host, mapping, names
from netdoctor.model import Kind, Unavailable

CHANNELS: Final = "/dev/nvidia-caps-imex-channels"  # IMEX Service for NVLink Networks: IMEX Channels
SYSTEM_NOT_READY: Final = 802  # CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)
NO_CLUSTER: Final = "0" * 32  # a fabric that ends with the node: NCCL takes it for none (src/mnnvl.cc)


@dataclass(frozen=True)
class Fabric(Fact):
    """Beside what NVML tells of each GPU (`GpuState.fabric`)."""

    not_ready: bool | Unavailable  # cuInit answers 802: the driver waits for the fabric, or for confidential computing
    channels: tuple[str, ...] | Unavailable  # IMEX channels that open; asked where a GPU is in a fabric beyond the node


def probe(host: Host, state: GpuHealth) -> Fabric:
    """cuInit's answer is that of the inventory."""
    cuda = mapping(host, "ask:cuda")
    return Fabric(cuda if isinstance(cuda, Unavailable) else refusal(cuda) == SYSTEM_NOT_READY, _channels(host, state))


def _channels(host: Host, state: GpuHealth) -> tuple[str, ...] | Unavailable:
    fabrics = [gpu.fabric for gpu in state.gpus or ()]
    if not any(not isinstance(one, Unavailable) and one.cluster != NO_CLUSTER for one in fabrics):
        return Unavailable(Kind.UNSUPPORTED, "no GPU is in a fabric beyond this node")
    found = names(host, CHANNELS)
    if isinstance(found, Unavailable):
        above = names(host, "/dev")
        return () if found.kind is Kind.ABSENT and not isinstance(above, Unavailable) else found
    return tuple(name for name in found if _opens(host, f"{CHANNELS}/{name}"))


def _opens(host: Host, path: str) -> bool:
    got = mapping(host, f"open:{path}:rw")
    return not isinstance(got, Unavailable) and got.get("errno") == 0

"""What joins the GPUs: whether the driver waits for the fabric, the IMEX channels that this process may open, IMEX's domain."""

from __future__ import annotations

from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import refusal
from netdoctor.facts.gpu_health import GpuHealth
from netdoctor.facts.net import Net
from netdoctor.host.base import Host, mapping, names, value
from netdoctor.model import Kind, Unavailable, missing, record

CHANNELS: Final = "/dev/nvidia-caps-imex-channels"  # IMEX Service for NVLink Networks: IMEX Channels
SYSTEM_NOT_READY: Final = 802  # CUDA_ERROR_SYSTEM_NOT_READY (cuda.h)
NO_CLUSTER: Final = "0" * 32  # a fabric that ends with the node: NCCL takes it for none (src/mnnvl.cc)
READY: Final = "READY"
CONNECTED: Final = "CONNECTED"


@record
class ImexDomain:
    """The IMEX daemon of this node, by nvidia-imex-ctl (IMEX Service for NVLink Networks, IMEX Service Command Service)."""

    daemon: str  # "READY", "WAITING_FOR_PEERS", "UNAVAILABLE", …
    peers: tuple[str, ...] | Unavailable  # addresses of the other nodes of its domain; () where it is not ready
    lost: tuple[str, ...] = ()  # of them those to which it is not connected
    version: str = ""  # of this node's daemon; "": not told

    @property
    def ready(self) -> bool:
        return self.daemon == READY


@record
class Fabric(Fact):
    """Whether the driver waits for the NVLink fabric, and IMEX, which joins the GPUs of several nodes.

    Beside what NVML tells of each GPU (`GpuState.fabric`).
    """

    not_ready: bool | Unavailable  # cuInit answers 802: the driver waits for the fabric, or for confidential computing
    # Both are asked where a GPU is in a fabric beyond the node.
    channels: tuple[str, ...] | Unavailable  # IMEX channels that open
    imex: ImexDomain | Unavailable = Unavailable(Kind.NOT_READ, "nvidia-imex-ctl was not asked")
    closed: bool | None = None  # the GPUs are in confidential mode and take no work yet; None: not known


def probe(host: Host, state: GpuHealth, net: Net) -> Fabric:
    """cuInit's answer is that of the inventory."""
    cuda = mapping(host, "ask:cuda")
    fabrics = [gpu.fabric for gpu in state.gpus or ()]
    none = Unavailable(Kind.UNSUPPORTED, "no GPU is in a fabric beyond this node")
    channels: tuple[str, ...] | Unavailable = none
    imex: ImexDomain | Unavailable = none
    if any(not isinstance(one, Unavailable) and one.cluster != NO_CLUSTER for one in fabrics):
        channels, imex = _channels(host), _imex(host, net)
    not_ready = cuda if isinstance(cuda, Unavailable) else refusal(cuda) == SYSTEM_NOT_READY
    return Fabric(not_ready, channels, imex, _closed(host) if not_ready is True else None)


def _closed(host: Host) -> bool | None:
    told = mapping(host, "ask:nvml")
    mode = told.get("confidential") if isinstance(told, dict) else None
    on, ready = (mode.get(name) if isinstance(mode, dict) else None for name in ("on", "ready"))
    return None if not isinstance(on, bool) or (on and not isinstance(ready, bool)) else on and not ready


def _channels(host: Host) -> tuple[str, ...] | Unavailable:
    found = names(host, CHANNELS)
    if isinstance(found, Unavailable):
        above = names(host, "/dev")
        return () if found.kind is Kind.ABSENT and not isinstance(above, Unavailable) else found
    tried = {name: _errno(host, name) for name in found}
    opened = tuple(name for name, number in tried.items() if number == 0)
    lost = missing(*tried.values())
    return lost if lost is not None and not opened else opened  # one is enough


def _errno(host: Host, name: str) -> int | Unavailable:
    got = mapping(host, f"open:{CHANNELS}/{name}:rw")
    return got if isinstance(got, Unavailable) else value(got.get("errno"), int, f"whether {name} opens")


def _imex(host: Host, net: Net) -> ImexDomain | Unavailable:
    got = mapping(host, "ask:imex")
    if isinstance(got, Unavailable):
        return got
    daemon: str | Unavailable = value(got.get("daemon"), str, "state of the IMEX daemon")
    nodes: list[Any] | Unavailable = value(got.get("nodes"), list, "nodes of the IMEX domain")
    if isinstance(daemon, Unavailable):
        return daemon
    if daemon != READY or isinstance(nodes, Unavailable):
        return ImexDomain(daemon, nodes if isinstance(nodes, Unavailable) else ())
    here = {address.ip for link in net.links or () for address in link.addresses}
    own = next((one for one in nodes if isinstance(one, dict) and one.get("host") in here), None)
    said: dict[str, Any] | Unavailable = value((own or {}).get("connections"), dict, "connections of the IMEX daemon")
    if own is None:
        return ImexDomain(daemon, Unavailable(Kind.NOT_READ, "no node that nvidia-imex-ctl names has an address of this one"))
    if isinstance(said, Unavailable):
        return ImexDomain(daemon, said)
    others = {one: status for one, status in said.items() if one not in here}
    apart = tuple(one for one, status in others.items() if status != CONNECTED)
    version: str | Unavailable = value((own or {}).get("version"), str, "version of the IMEX daemon")
    return ImexDomain(daemon, tuple(others), apart, version or "")

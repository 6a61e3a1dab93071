"""The job's shape and what the site expects, from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class JobShape:
    """How big the job is.  Defaults are one node with a rank per GPU."""

    nodes: int = 1
    ranks_per_node: int | None = None  # None: one per visible GPU
    communicators: int = 1  # NCCL communicators alive at once per rank
    gloo_groups: int = 1
    all_to_all: bool = False
    stated: bool = False  # the configuration (or launcher) said it; else defaults


@dataclass(frozen=True)
class Expected:
    """What the site says must be there; None: nothing said."""

    gpus: int | None = None
    hcas: int | None = None
    hca_rate_gbps: float | None = None
    transport: str | None = None  # "IB" "Socket" "OFI" …
    busbw_floor: Mapping[int, float] = field(default_factory=dict)  # bytes -> GB/s
    rails_routed: bool = False
    peers: tuple[str, ...] = ()  # host names or addresses to measure RTT to (host:port)
    rtt_ms: float | None = None

"""The job's shape and what the site expects, from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from netdoctor.host.base import Host, mapping
from netdoctor.model import Kind, Unavailable


@dataclass(frozen=True)
class JobShape:
    """How big the job is.  Defaults are one node with a rank per GPU."""

    nodes: int = 1
    ranks_per_node: int | None = None  # None: one per visible GPU
    communicators: int = 1  # NCCL communicators alive at once per rank
    gloo_groups: int = 1
    all_to_all: bool = False
    nodes_stated: bool = False  # the configuration said how many nodes


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


def probe_job(host: Host) -> JobShape | Unavailable:
    """``job:`` of the configuration; without it the defaults."""
    given = _section(host, "job")
    if isinstance(given, Unavailable):
        return given
    known = _known(JobShape, given)
    return JobShape(**{**known, "nodes_stated": "nodes" in known})


def probe_expected(host: Host) -> Expected | Unavailable:
    """``expected:`` of the configuration."""
    given = _section(host, "expected")
    if isinstance(given, Unavailable):
        return given
    known = _known(Expected, given)
    if isinstance(floor := known.get("busbw_floor"), Mapping):
        try:
            known["busbw_floor"] = {int(size): float(rate) for size, rate in floor.items()}
        except (TypeError, ValueError):
            return Unavailable(Kind.MALFORMED, f"expected.busbw_floor: {str(floor)[:60]}")
    if "peers" in known:
        known["peers"] = tuple(str(one) for one in known["peers"])
    return Expected(**known)


def _section(host: Host, name: str) -> Mapping[str, Any] | Unavailable:
    config = mapping(host, "config:")
    if isinstance(config, Unavailable):
        return config
    given = config.get(name)
    if given is None:
        return {}
    return (
        given if isinstance(given, Mapping) else Unavailable(Kind.MALFORMED, f"{name}: of the configuration is not a mapping")
    )


def _known(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Entries that are fields of `kind`; the configuration's own loader refuses the others."""
    wanted = {one.name for one in fields(kind)}
    return {name: value for name, value in given.items() if name in wanted and value is not None}

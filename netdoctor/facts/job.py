"""The job's shape and what the site expects, from the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from netdoctor.facts.base import Fact
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.net import Net
from netdoctor.host.base import Host, mapping
from netdoctor.model import Kind, Unavailable, missing


@dataclass(frozen=True)
class JobShape(Fact):
    """How big the job is.  Defaults are one node with a rank per GPU.

    Where the configuration could not be read `nodes` says so, and the others are the defaults: the least that a job has.
    """

    nodes: int | Unavailable = 1
    ranks_per_node: int | None = None  # None: one per visible GPU
    communicators: int = 1  # NCCL communicators alive at once per rank
    gloo_groups: int = 1
    all_to_all: bool = False
    nodes_stated: bool = False  # the configuration said how many nodes

    @property
    def alone(self) -> bool:
        """The configuration says that the job has one node."""
        return self.nodes_stated and self.nodes == 1

    def several(self, net: Net, environ: Environ) -> bool:
        """Whether it runs on more than this node, as far as anything says so; the configuration's word counts most."""
        if isinstance(self.nodes, int) and (self.nodes_stated or self.nodes > 1):
            return self.nodes > 1
        return bool(net.others or (environ.launcher and environ.launcher.several))

    def unsaid(self, environ: Environ) -> Unavailable | None:
        """Why it may run on other nodes although nothing names one; None: on this node alone, as far as is known."""
        if self.nodes_stated or isinstance(self.nodes, Unavailable):
            return missing(self.nodes)
        launcher = environ.launcher
        if isinstance(launcher, Unavailable) or not launcher.nodes_unsaid:
            return missing(launcher)
        return Unavailable(Kind.NOT_READ, f"{launcher.name} does not say")

    def node_count(self, environ: Environ) -> int | Unavailable:
        """Nodes of the job: as configured, else as the launcher says."""
        launcher = environ.launcher
        if self.nodes_stated or isinstance(launcher, Unavailable):
            return self.nodes
        if launcher.nodes:
            return launcher.nodes
        return -(-launcher.world // launcher.local_world) if launcher.world and launcher.local_world else self.nodes

    def ranks_here(self, environ: Environ, gpus: Gpus) -> int | None:
        """Ranks on this node: as configured, as the launcher says, or one per GPU that is seen; None where nothing tells."""
        if self.ranks_per_node:
            return self.ranks_per_node
        if isinstance(environ.launcher, Unavailable):
            return None
        return environ.launcher.local_world or len(gpus.visible or gpus.all or ()) or None


@dataclass(frozen=True)
class Expected(Fact):
    """What the site says must be there; None: nothing said."""

    gpus: int | None | Unavailable = None
    hcas: int | None | Unavailable = None
    hca_rate_gbps: float | None | Unavailable = None
    transport: str | None | Unavailable = None  # "IB" "Socket" "OFI" …
    busbw_floor: Mapping[int, float] | Unavailable = field(default_factory=dict)  # bytes -> GB/s
    rails_routed: bool | Unavailable = False
    peers: tuple[str, ...] | Unavailable = ()  # host names or addresses to measure RTT to (host:port)
    rtt_ms: float | None | Unavailable = None


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

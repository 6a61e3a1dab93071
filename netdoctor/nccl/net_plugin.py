"""Which network plugin NCCL loads, and whether it fits.

Source: NCCL src/plugin/net.cc, before 2.27 src/net.cc; src/plugin/plugin_open.cc.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from netdoctor.causes.cost import MIGHT, sockets
from netdoctor.facts.environ import Environ
from netdoctor.facts.libraries import FoundBy, Libraries, Plugin
from netdoctor.facts.nccl_version import Version, parse, text
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.model import Finding, Fix, Loss, Status, Unavailable, missing
from netdoctor.nccl.log.facts import SOCKET, LogFacts

BUILT_IN: Final = frozenset({"IB", SOCKET})  # networks that NCCL knows itself; any other name is a plugin's
# Interfaces of network plugins: (first NCCL version, oldest and newest ncclNetPlugin_vN that it looks for).  The newest are
# rounded up where the source of a version was not read: only a plugin that certainly does not fit may be called so.
_INTERFACES: Final[tuple[tuple[Version, int, int], ...]] = (
    ((0, 0, 0), 1, 8),
    ((2, 19, 0), 5, 9),
    ((2, 24, 0), 5, 10),
    ((2, 26, 0), 6, 10),
    ((2, 28, 0), 6, 11),
    ((2, 30, 0), 6, 12),
    ((2, 31, 0), 6, 99),
)


def interfaces(version: Version) -> tuple[int, int]:
    """(oldest, newest) plugin interface that this NCCL version may load."""
    return next((low, high) for since, low, high in reversed(_INTERFACES) if version >= since)


def offered(symbols: Iterable[str]) -> list[int]:
    """The interfaces that a plugin exports."""
    return sorted({int(s.rpartition("_v")[2]) for s in symbols if s.rpartition("_v")[2].isdecimal()})


def wanted(named: str | None, version: Version | Unavailable) -> tuple[str, ...]:
    """The names that NCCL tries in turn, by NCCL_NET_PLUGIN; "" for the default.  A list since 2.28.3."""
    listed = isinstance(version, Unavailable) or version >= (2, 28, 3)
    if named is None or (named == "" and not listed):
        return ("",)
    if named.lower() == "none":
        return ()
    return tuple(one for one in named.split(",") if one) if listed else (named,)


def is_named(plugin: Plugin, named: str) -> bool:
    """Whether dlopen finds it under the name that NCCL asks for."""
    paths = (plugin.path, *plugin.aliases)
    names = {path.rpartition("/")[2] for path in paths}
    if not named:
        return "libnccl-net.so" in names and set(plugin.found_by) != {FoundBy.SITE_PACKAGES}
    return named in paths or named in names or f"libnccl-net-{named}.so" in names


@dataclass(frozen=True)
class Network:
    """What the job's network depends on."""

    efa: tuple[str, ...] | Unavailable  # its devices, which need a plugin
    named: str | None  # NCCL_NET_PLUGIN
    used: str | None  # by the run, as its log says
    problem: str | None  # with a plugin, as the log says

    @property
    def loss(self) -> Loss:
        """EFA has no way but the plugin's; of others NCCL's own transports may be as good."""
        return sockets() if self.efa else MIGHT


def judge(libraries: Libraries, environ: Environ, rdma: Rdma, log: LogFacts | None, version: Version | Unavailable) -> Finding:
    """The network plugin: loaded where there is one, and there where EFA needs one; `log` is that of a run."""
    named, devices = environ.get("NCCL_NET_PLUGIN"), rdma.devices
    if isinstance(named, Unavailable):
        return _unknown(f"NCCL_NET_PLUGIN could not be read: {named}")
    used, problem = (None, None) if log is None else (log.network, log.plugin_error)
    if used is not None and used not in BUILT_IN:
        return Finding(Status.PASS, f"the run used the plugin's network {used}", evidence={"network": used})
    if isinstance(libraries.plugins, Unavailable):
        return _unknown(f"plugins could not be looked for: {libraries.plugins}")
    efa: tuple[str, ...] | Unavailable = devices if isinstance(devices, Unavailable) else _efa(devices)
    network = Network(efa, named, used, problem)
    names = wanted(named, version)
    reachable = [plugin for name in names for plugin in libraries.plugins if is_named(plugin, name)]
    if reachable:
        return _fitting(reachable[0], network, version)
    return _no_plugin(replace(network, named=named if names else "none"), libraries.incomplete)


def _efa(devices: Sequence[RdmaDevice]) -> tuple[str, ...] | Unavailable:
    """The devices that only a plugin can use; a driver that could not be read may be that of one."""
    have = tuple(device.name for device in devices if device.driver == "efa")
    lost = missing(*(device.driver for device in devices))
    return lost if lost is not None and not have else have


def _fitting(plugin: Plugin, network: Network, version: Version | Unavailable) -> Finding:
    if isinstance(plugin.symbols, Unavailable) or isinstance(version, Unavailable):
        return _unknown(f"whether {plugin.path} fits could not be told: {missing(plugin.symbols, version)}")
    have, (low, high) = offered(plugin.symbols), interfaces(version)
    if not any(low <= n <= high for n in have):
        offers = ", ".join(f"v{n}" for n in have) or "no interface"
        found = _wrong(f"{plugin.path} offers {offers}; NCCL {text(version)} looks for v{low} to v{high}", network)
        fix = Fix("install the plugin that fits this NCCL", ("NCCL_DEBUG=INFO … | grep NET/Plugin",))
        return replace(found, fix=fix, evidence={"interfaces": have})
    if network.used is not None and (network.efa or network.problem):
        found = _wrong(f"{plugin.path} is there, and the run used NCCL's own {network.used}", network)
        fix = Fix("see why it does not load", (f"ldd {plugin.path}", "NCCL_DEBUG=INFO … | grep NET/Plugin"))
        return replace(found, fix=fix, why=network.problem)
    if network.used is not None and isinstance(network.efa, Unavailable):
        words = f"{plugin.path} is there, the run used NCCL's own {network.used}, and whether EFA needs it could not be read"
        return _unknown(words)
    return Finding(Status.PASS, f"{plugin.path} fits NCCL {text(version)}", evidence={"interfaces": have})


def _no_plugin(network: Network, incomplete: tuple[str, ...]) -> Finding:
    efa, named = network.efa, network.named
    if isinstance(efa, Unavailable):
        return _unknown("no plugin was found, and whether one is needed (EFA) could not be read")
    if efa and named != "none" and incomplete and network.used is None:
        return _unknown(f"no plugin was found, but {'; '.join(incomplete)}")
    if efa:
        where, fix = "no libnccl-net.so is where NCCL looks", _INSTALL
        if named == "none":
            where, fix = "NCCL_NET_PLUGIN keeps it away", Fix("remove NCCL_NET_PLUGIN", ("unset NCCL_NET_PLUGIN",))
        found = _wrong(f"{', '.join(efa)}: EFA needs aws-ofi-nccl, and {where}", network)
        return replace(found, fix=fix, why="without it NCCL takes TCP sockets")
    if named in (None, "", "none"):
        return Finding(Status.SKIP, "no network plugin is installed, and no device needs one")
    if network.used is None:
        return _unknown(f"no file was found for NCCL_NET_PLUGIN={named}")
    words = f"NCCL_NET_PLUGIN={named} names no plugin that NCCL finds; the run used NCCL's own {network.used}"
    return _wrong(words, network)


def _unknown(message: str) -> Finding:
    return Finding(Status.UNKNOWN, message)


def _wrong(message: str, network: Network) -> Finding:
    return Finding(Status.FAIL, message, cause="plugin_mismatch", loss=network.loss)


_INSTALL: Final = Fix(
    "install aws-ofi-nccl and put it on the loader's path",
    ("export LD_LIBRARY_PATH=/opt/amazon/ofi-nccl/lib:$LD_LIBRARY_PATH",),
)


_GIN_DIES: Final = ((2, 28, 7), (2, 29, 1))  # src/plugin/net.cc, ncclNetPluginInit: ncclGin stays (ncclGin_t*)-1


def gin_dies(nccl: str, rdma: Rdma, environ: Environ) -> str | None:
    """A warning of 2.28.7 to 2.28.9 beside RDMA devices, as the unmodified 2.28.9 died."""
    version = parse(nccl)
    if version is None or not _GIN_DIES[0] <= version < _GIN_DIES[1] or not rdma.devices or environ.get("NCCL_GIN_TYPE"):
        return None
    words = f"NCCL {text(version)} dies at start (plugin/net.cc) where it finds IB devices and GIN can use none of them"
    return f"{words}: NCCL_GIN_TYPE=2 avoids it"

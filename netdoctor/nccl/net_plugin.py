"""Which network plugin NCCL loads, and whether it fits.

Source: NCCL src/plugin/net.cc, before 2.27 src/net.cc; src/plugin/plugin_open.cc.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import STOPS, sockets
from netdoctor.facts.environ import Environ
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_version import Version, parse, text
from netdoctor.facts.plugins import Plugin
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.model import Finding, Fix, Status, Unavailable, missing, record
from netdoctor.nccl import plugins
from netdoctor.nccl.log.facts import SOCKET, LogFacts
from netdoctor.nccl.plugins import NET, Role

BUILT_IN: Final = frozenset({"IB", SOCKET})  # networks that NCCL knows itself; any other name is a plugin's
_OWN: Final = frozenset(name.upper() for name in BUILT_IN)  # NCCL compares names without case


@record
class Network:
    """What the job's network depends on."""

    efa: tuple[str, ...] | Unavailable  # its devices, which need a plugin
    named: str | None  # NCCL_NET_PLUGIN
    used: str | None  # by the run, as its log says
    problem: str | None  # with a plugin, as the log says
    provider: str | None | Unavailable = None  # FI_PROVIDER
    asked: str | None | Unavailable = None  # NCCL_NET

    @property
    def role(self) -> Role:
        """EFA has no way but the plugin's; of others NCCL's own transports may be as good.  Of a network that NCCL_NET names
        NCCL takes no other: it ends with ncclInvalidUsage (src/plugin/net.cc, ncclNetInit; before 2.27 src/net.cc)."""
        if self.used is None and self.asked and self.asked.upper() not in _OWN:
            ends = f"NCCL_NET={self.asked} asks for its network, and NCCL stops at start: Failed to initialize any NET plugin"
            return replace(NET, loss=STOPS, ends=ends)
        return replace(NET, loss=sockets()) if self.efa else NET


def judge(libraries: Libraries, environ: Environ, rdma: Rdma, log: LogFacts | None, version: Version | Unavailable) -> Finding:
    """The network plugin: loaded where there is one, and there where EFA needs one; `log` is that of a run."""
    named, devices = environ.get("NCCL_NET_PLUGIN"), rdma.devices
    if isinstance(named, Unavailable):
        return _unknown(f"NCCL_NET_PLUGIN could not be read: {named}")
    used, problem = (None, None) if log is None else (log.network, log.plugin_error)
    if used is not None and used not in BUILT_IN:
        return Finding(
            Status.PASS, f"the run used the plugin's network {used}", subject=NET.subject, evidence={"network": used}
        )
    if isinstance(libraries.plugins, Unavailable):
        return _unknown(f"plugins could not be looked for: {libraries.plugins}")
    efa: tuple[str, ...] | Unavailable = devices if isinstance(devices, Unavailable) else _efa(devices)
    network = Network(efa, named, used, problem, environ.get("FI_PROVIDER"), environ.get("NCCL_NET"))
    names = NET.names(named, version)
    plugin = plugins.opened(libraries.plugins, names)
    if plugin is None:
        found = _no_plugin(replace(network, named=named if names else "none"), names, libraries.incomplete)
    else:
        found = _fitting(plugin, network, version)
    return replace(found, notes=(*found.notes, *_beside(plugin, libraries.plugins, named)))


def _beside(plugin: Plugin | None, have: Sequence[Plugin], named: str | None) -> tuple[str, ...]:
    """Network plugins that are there and not taken."""
    others = [one for one in have if one is not plugin and one.name.startswith(NET.prefix)]
    default = f"{NET.prefix}.so"

    def why(one: Plugin) -> str:
        if one.foreign:
            return f"it is built for {one.foreign}"
        if (named or "").lower() == "none":
            return f"NCCL_NET_PLUGIN={named}"
        if plugin and plugin.name == one.name:
            return f"{plugin.path} comes before it"
        return "NCCL does not look there" if one.name == default else f"NCCL_NET_PLUGIN={one.name} would take it"

    return tuple(f"{one.path} is there and not taken: {why(one)}" for one in others)


def _efa(devices: Sequence[RdmaDevice]) -> tuple[str, ...] | Unavailable:
    """The devices that only a plugin can use; a driver that could not be read may be that of one."""
    have = tuple(device.name for device in devices if device.driver == "efa")
    lost = missing(*(device.driver for device in devices))
    return lost if lost is not None and not have else have


def _fitting(plugin: Plugin, network: Network, version: Version | Unavailable) -> Finding:
    found = plugins.fitting(network.role, plugin, version)
    if found.status is not Status.PASS:
        return found
    lacking = plugins.lacking(network.role, plugin)
    if lacking is not None and (lacking.status is Status.FAIL or network.used is None):
        return replace(lacking, why=network.problem) if lacking.status is Status.FAIL else lacking
    if network.efa and (withheld := _without_provider(plugin, network)) is not None:
        return withheld
    if network.used is not None and (network.efa or network.problem):
        words = f"{plugin.path} is there, and the run used NCCL's own {network.used}"
        fix = Fix("see why it does not load", (f"ldd {plugin.path}", "NCCL_DEBUG=INFO … | grep NET/Plugin"))
        return replace(plugins.wrong(network.role, words, fix), why=network.problem)
    if network.used is not None and isinstance(network.efa, Unavailable):
        words = f"{plugin.path} is there, the run used NCCL's own {network.used}, and whether EFA needs it could not be read"
        return _unknown(words)
    return found


def _without_provider(plugin: Plugin, network: Network) -> Finding | None:
    """libfabric's EFA provider, without which the plugin finds no device or takes TCP (libfabric src/fabric.c)."""
    if plugin.efa is None:  # no plugin on libfabric
        return None
    if isinstance(plugin.efa, Unavailable) or isinstance(network.provider, Unavailable):
        lost = missing(plugin.efa, network.provider)
        return None if network.used else _unknown(f"whether libfabric's provider for EFA is there could not be read: {lost}")
    if not plugin.efa:
        text = f"the libfabric that {plugin.path} takes has no provider for EFA"
        fix = Fix("put EFA's own libfabric first on the loader's path", (f"ldd {plugin.path}", "fi_info -p efa"))
        return plugins.wrong(network.role, text, fix)
    said = network.provider or ""
    listed = [one.strip().lower() for one in re.split("[,;]", said.removeprefix("^"))]
    if said and ("efa" in listed) == said.startswith("^"):
        text = f"FI_PROVIDER={said} keeps libfabric's provider for EFA away"
        fix = Fix("remove FI_PROVIDER", ("unset FI_PROVIDER", "export FI_PROVIDER=efa"))
        return plugins.wrong(network.role, text, fix)
    return None


def _no_plugin(network: Network, names: tuple[str, ...], incomplete: tuple[str, ...]) -> Finding:
    efa, named = network.efa, network.named
    if isinstance(efa, Unavailable):
        return _unknown("no plugin was found, and whether one is needed (EFA) could not be read")
    if named != "none" and (efa or not named) and incomplete and network.used is None:
        return _unknown(f"no plugin was found, but {'; '.join(incomplete)}")
    if efa:
        where, fix = "no libnccl-net.so is where NCCL looks", _INSTALL
        if named == "none":
            where, fix = "NCCL_NET_PLUGIN keeps it away", Fix("remove NCCL_NET_PLUGIN", ("unset NCCL_NET_PLUGIN",))
        found = plugins.wrong(network.role, f"{', '.join(efa)}: EFA needs aws-ofi-nccl, and {where}", fix)
        return replace(found, why="without it NCCL takes TCP sockets")
    if named in (None, "", "none"):
        return Finding(Status.SKIP, "no network plugin is taken, and no device needs one", subject=NET.subject)
    if network.used is None:
        return plugins.nothing(network.role, names, named, incomplete)
    words = f"NCCL_NET_PLUGIN={named} names no plugin that NCCL finds; the run used NCCL's own {network.used}"
    return plugins.wrong(network.role, words, plugins.unset(NET))


def _unknown(message: str) -> Finding:
    return plugins.unknown(NET, message)


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

"""Which plugins a version of NCCL opens, by which names, and which interfaces of them it takes.

Source: NCCL src/plugin/plugin_open.cc and src/plugin/{net,tuner,profiler,env}.cc of each version; before 2.26 src/net.cc and
src/misc/{tuner,profiler}.cc.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from netdoctor.causes.cost import MIGHT, NOTHING
from netdoctor.facts.environ import Environ
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_version import Version, text
from netdoctor.facts.plugins import Plugin
from netdoctor.model import Finding, Fix, Loss, Status, Unavailable, missing, record

CAUSE: Final = "plugin_mismatch"
STATIC: Final = "STATIC_PLUGIN"  # any beginning of it will do: strncasecmp(name, "STATIC_PLUGIN", strlen(name))
STATIC_SINCE: Final = (2, 22, 3)
NO_PREFIX_SINCE: Final = (2, 27, 3)  # a path, or lib….so, gets no prefix
LISTS_SINCE: Final = (2, 28, 3)
# What dlopen is asked for where a variable has a value.
ITSELF: Final = "{value}"
PREFIXED: Final = "{prefix}-{value}.so"
# The newest interface of versions whose source was not read: only what certainly does not fit may be so called.
UNREAD: Final = 99


@record
class Role:
    """One kind of plugin."""

    subject: str
    variable: str
    prefix: str
    symbol: str
    # (first NCCL version, oldest and newest interface that it looks for); before the first it opens none
    interfaces: tuple[tuple[Version, int, int], ...]
    tried: tuple[tuple[Version, tuple[str, ...]], ...]  # (first NCCL version, what it makes of a value, in turn)
    loss: Loss  # where one that was named is not taken
    instead: str  # what NCCL does without
    ends: str = ""  # what NCCL does instead of going on without
    lists: bool = False  # the variable may name several, since LISTS_SINCE
    default_since: Version = (0, 0, 0)  # before, none is taken that is not named

    @property
    def without(self) -> str:
        """What NCCL does without one that was named."""
        return self.ends or f"NCCL takes {self.instead}"

    @property
    def ending(self) -> str:
        """The same behind a sentence, where that is the end."""
        return f"; {self.ends}" if self.ends else ""

    @property
    def since(self) -> Version:
        return self.interfaces[0][0]

    def range(self, version: Version) -> tuple[int, int]:
        """(oldest, newest) interface that this NCCL version may load."""
        return next((low, high) for since, low, high in reversed(self.interfaces) if version >= since)

    def offered(self, symbols: Iterable[str]) -> list[int]:
        """The interfaces that a plugin exports."""
        cut = len(self.symbol)
        return sorted({int(s[cut:]) for s in symbols if s.startswith(self.symbol) and s[cut:].isdecimal()})

    def names(self, value: str | None, version: Version | Unavailable) -> tuple[str, ...]:
        """What dlopen is asked for, in turn.  Of a version that is not known as the newest does it."""
        known = version or LISTS_SINCE
        listed = self.lists and known >= LISTS_SINCE
        if value is None or (value == "" and not listed):
            return (f"{self.prefix}.so",) if known >= self.default_since else ()
        if value.lower() == "none":  # before 2.28.3 no word of its own: the name of no library
            return ()
        every = value.split(",") if listed else [value]
        return tuple(name for one in every if one for name in self._tried(one, known))

    def _tried(self, value: str, version: Version) -> tuple[str, ...]:
        if STATIC.lower().startswith(value.lower()) and version >= STATIC_SINCE:
            return (STATIC,)
        whole = "/" in value or (value.startswith("lib") and value.endswith(".so"))
        forms = next(forms for since, forms in reversed(self.tried) if version >= since)
        if whole and version >= NO_PREFIX_SINCE:
            forms = (ITSELF,)
        return tuple(form.format(prefix=self.prefix, value=value) for form in forms)


NET: Final = Role(
    "network",
    "NCCL_NET_PLUGIN",
    "libnccl-net",
    "ncclNetPlugin_v",
    (
        ((0, 0, 0), 1, 8),
        ((2, 18, 3), 4, 6),
        ((2, 19, 3), 5, 7),
        ((2, 20, 3), 5, 8),
        ((2, 24, 3), 5, 9),
        ((2, 26, 2), 6, 10),
        ((2, 28, 3), 6, 11),
        ((2, 30, 3), 6, 12),
        ((2, 33, 0), 6, UNREAD),
    ),
    (((0, 0, 0), (PREFIXED,)), ((2, 21, 5), (ITSELF, PREFIXED))),
    MIGHT,
    "its own network",
    lists=True,
)
TUNER: Final = Role(
    "tuner",
    "NCCL_TUNER_PLUGIN",
    "libnccl-tuner",
    "ncclTunerPlugin_v",
    (
        ((2, 19, 3), 1, 1),
        ((2, 21, 5), 2, 2),
        ((2, 22, 3), 2, 3),
        ((2, 24, 3), 2, 4),
        ((2, 28, 3), 2, 5),
        ((2, 30, 3), 2, 6),
        ((2, 33, 0), 2, UNREAD),
    ),
    (((0, 0, 0), (ITSELF,)), ((2, 21, 5), (ITSELF, PREFIXED))),
    MIGHT,
    "its own choice of algorithms, or that of the network plugin",
    default_since=(2, 21, 5),
)
PROFILER: Final = Role(
    "profiler",
    "NCCL_PROFILER_PLUGIN",
    "libnccl-profiler",
    "ncclProfiler_v",
    (
        ((2, 23, 4), 1, 1),
        ((2, 24, 3), 1, 2),
        ((2, 26, 2), 1, 3),
        ((2, 27, 3), 1, 4),
        ((2, 28, 3), 1, 5),
        ((2, 29, 2), 1, 6),
        ((2, 31, 0), 1, 7),
        ((2, 33, 0), 1, UNREAD),
    ),
    (((0, 0, 0), (ITSELF,)), ((2, 26, 2), (ITSELF, PREFIXED))),
    NOTHING,
    "no profiler",
)
ENV: Final = Role(
    "environment",
    "NCCL_ENV_PLUGIN",
    "libnccl-env",
    "ncclEnvPlugin_v",
    (((2, 28, 7), 1, 1), ((2, 30, 7), 1, 2), ((2, 33, 0), 1, UNREAD)),
    (((0, 0, 0), (ITSELF, PREFIXED)),),
    MIGHT,
    "the environment as it is",
)
BESIDE: Final = (TUNER, PROFILER, ENV)


def opened(plugins: Iterable[Plugin], names: Iterable[str]) -> Plugin | None:
    """The file that dlopen gives for the first of these names that there is."""
    have = tuple(plugins)
    for name in names:
        for one in have:
            if name in ((one.path, *one.aliases) if "/" in name else one.opened_as):
                return one
    return None


def unsearched(names: Iterable[str], value: str) -> str | None:
    """Why it cannot be said that there is no such file; None where everything was looked at."""
    if STATIC in names:
        return "it is linked into the program, which was not looked at"
    if "/" in value and not value.startswith("/"):
        return "the path is relative, and the job's working directory is not known"
    if "/" not in value and value.endswith(".so") and not value.startswith("libnccl"):
        return "only files named libnccl… were looked for"
    return None


def judge(role: Role, libraries: Libraries, environ: Environ, version: Version | Unavailable) -> Finding | None:
    """A plugin beside the network's; None where nothing is named and no file of its is there, or this NCCL opens none."""
    value, plugins = environ.get(role.variable), libraries.plugins
    if isinstance(value, Unavailable):
        return unknown(role, f"{role.variable} could not be read: {value}")
    if version and version < role.since:
        return None
    names = role.names(value, version)
    if isinstance(plugins, Unavailable):
        return unknown(role, f"{role.variable}={value}: plugins could not be looked for: {plugins}") if value else None
    plugin = opened(plugins, names)
    if plugin is None:
        return nothing(role, names, value, libraries.incomplete) if value and names else None
    found = fitting(role, plugin, version)
    return lacking(role, plugin) or found if found.status is Status.PASS else found


def fitting(role: Role, plugin: Plugin, version: Version | Unavailable) -> Finding:
    """Whether the loader takes the file, and this NCCL one of its interfaces."""
    if plugin.foreign:
        words = f"{plugin.path} is built for {plugin.foreign}, which NCCL is not: the loader refuses it{role.ending}"
        return wrong(role, words, _FOREIGN, built_for=plugin.foreign)
    if isinstance(plugin.symbols, Unavailable) or isinstance(version, Unavailable):
        return unknown(role, f"whether {plugin.path} fits could not be told: {missing(plugin.symbols, version)}")
    have, (low, high) = role.offered(plugin.symbols), role.range(version)
    if any(low <= n <= high for n in have):
        words = f"{plugin.path} fits NCCL {text(version)}"
        return Finding(Status.PASS, words, subject=role.subject, evidence={"interfaces": have})
    offers = ", ".join(f"v{n}" for n in have) or "no interface"
    words = f"{plugin.path} offers {offers}; NCCL {text(version)} looks for v{low} to v{high}{role.ending}"
    return wrong(role, words, _FITTING, interfaces=have)


def lacking(role: Role, plugin: Plugin) -> Finding | None:
    """The loader refuses a plugin of which one library, or one version of one, is not there."""
    if isinstance(plugin.lacks, Unavailable):
        return unknown(role, f"whether all that {plugin.path} needs is there could not be read: {plugin.lacks}")
    if not plugin.lacks:
        return None
    fix = Fix("put what it needs on the loader's path, or install a plugin for this system", (f"ldd -v {plugin.path}",))
    text = f"{plugin.path} does not load: not found: {', '.join(plugin.lacks)}; {role.without}"
    return wrong(role, text, fix, lacks=plugin.lacks)


def wrong(role: Role, message: str, fix: Fix, **evidence: object) -> Finding:
    """A plugin that is not taken, and that should be."""
    return Finding(Status.FAIL, message, subject=role.subject, cause=CAUSE, loss=role.loss, fix=fix, evidence={**evidence})


_FOREIGN: Final = Fix("name or install the plugin that is built for this machine's CPU", ("uname -m; file -L PLUGIN",))
_FITTING: Final = Fix("install the plugin that fits this NCCL", ("NCCL_DEBUG=INFO … | grep Plugin",))


def nothing(role: Role, names: tuple[str, ...], value: str, incomplete: tuple[str, ...]) -> Finding:
    """Of a value for which no file was found."""
    said = f"{role.variable}={value}"
    if why := unsearched(names, value) or "; ".join(incomplete):
        return unknown(role, f"no file was found for {said}: {why}")
    words = f"{said} names no file that NCCL finds ({', '.join(names)}): {role.without}"
    return wrong(role, words, unset(role), lacks=names)


def unset(role: Role) -> Fix:
    """Where the variable names what is not there."""
    return Fix(f"name a file that is there, or remove {role.variable}", (f"unset {role.variable}",))


def unknown(role: Role, message: str) -> Finding:
    """Of what could not be told."""
    return Finding(Status.UNKNOWN, message, subject=role.subject)

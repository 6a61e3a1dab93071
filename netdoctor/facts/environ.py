"""Variables that NCCL, torch, Gloo, UCX, libfabric, CUDA, OpenMP and launchers read, and nccl.conf with NCCL's precedence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from typing import Final

from netdoctor.environment import HOST_FILES, of_job
from netdoctor.facts import nodelist
from netdoctor.facts.base import Fact
from netdoctor.facts.job import section
from netdoctor.facts.launcher import Launcher, detect, in_command
from netdoctor.host.base import Host, mapping, read, value
from netdoctor.model import Kind, Unavailable, Word, record

__all__ = ["ConfFile", "Environ", "Launcher", "Origin", "Setting", "effective", "entries", "probe", "without_value"]


# Files that plugins read: NCCL's own example of a tuner (its README), Google's gIB (set_nccl_env.sh).
PLUGIN_FILES: Final = (
    "NCCL_TUNER_CONFIG_FILE",
    "NCCL_TUNER_CONFIG_PATH",
    "NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE",
    "NCCL_SHIM_GUEST_CONFIG_CHECKER_CONFIG_FILE",
)


@record
class Origin:
    """Where something is set: in a line of a file, or in the environment of the process."""

    path: str | None = None  # None: the environment
    line: int = 0  # 0: the file as a whole

    def __str__(self) -> str:
        return "environment" if self.path is None else f"{self.path}:{self.line}" if self.line else self.path


@record
class Setting:
    """A variable, its value, and where it comes from."""

    name: str
    value: str
    source: Origin = Origin()


class ConfRole(Word):
    """Why NCCL would read a file."""

    NAMED = "NCCL_CONF_FILE"  # read from 2.23.4 on
    HOME = "home"  # else
    SYSTEM = "system"


@record
class Rights:
    """Who may write a file."""

    uid: int = 0
    mode: int = 0o644


@record
class ConfFile:
    """One nccl.conf that NCCL would read."""

    path: str
    entries: tuple[Setting, ...] | Unavailable
    role: ConfRole = ConfRole.SYSTEM
    without_value: tuple[tuple[str, int], ...] = ()  # lines that NCCL passes over: text, line number
    rights: Rights | Unavailable = Rights()  # of a file that was read

    @property
    def of_node(self) -> bool:
        """Whether every job of the node reads it."""
        return self.role is ConfRole.SYSTEM


@record
class Environ(Fact):
    """The variables of the job."""

    variables: Mapping[str, str] | Unavailable  # of the process, what a job, its launcher or its libraries read
    nccl: Mapping[str, Setting] | Unavailable  # effective NCCL_*: environment, then conf files, first writer wins
    launcher: Launcher | Unavailable
    conf_files: tuple[ConfFile, ...] = ()  # in NCCL's order; absent ones stay, as Unavailable(Kind.ABSENT)
    not_there: tuple[str, ...] = ()  # of NCCL_GRAPH_FILE and NCCL_TOPO_FILE those that name no file
    not_read: Mapping[str, str] = field(default_factory=dict)  # of these two, why what the file says is not known
    topology: tuple[str, ...] = ()  # PCI addresses of the GPUs in the file of NCCL_TOPO_FILE
    plugin_files_gone: tuple[str, ...] = ()  # of `PLUGIN_FILES` those that name no file
    graph: tuple[int, ...] = ()  # NVML's numbers of the GPUs in the file of NCCL_GRAPH_FILE
    hosts: tuple[str, ...] | None | Unavailable = None  # of the job, by its batch system's file; None: no such file

    @property
    def of_the_node(self) -> Environ:
        """What the node sets for every job, whatever its environment."""
        files = tuple(file for file in self.conf_files if file.of_node)
        lost = Unavailable(Kind.NOT_READ, "the environment of the job was not looked at")
        return Environ({}, effective({}, files), lost, files)

    def get(self, name: str) -> str | None | Unavailable:
        """A variable's value; None where it is not set; Unavailable where that cannot be told."""
        if isinstance(self.variables, Unavailable):
            return self.variables
        if name in self.variables or not name.startswith("NCCL_"):
            return self.variables.get(name)
        if isinstance(self.nccl, Unavailable):
            return self.nccl
        return self.nccl[name].value if name in self.nccl else None


def entries(text: str, path: str = "") -> tuple[Setting, ...]:
    """The lines of a conf file as NCCL reads them.

    Source: NCCL src/misc/param.cc (setEnvFile): one ``NAME=value`` a line, nothing is trimmed or unquoted, ``#`` is a comment
    only in column 1, a line without ``=`` is passed over, name and value are cut at 1023 bytes, an empty name is refused by
    setenv(3).
    """
    lines = [(number, line.partition("=")) for number, line in enumerate(text.split("\n"), 1) if not line.startswith("#")]
    return tuple(Setting(name[:1023], value[:1023], Origin(path, n)) for n, (name, equals, value) in lines if equals and name)


def without_value(text: str) -> tuple[tuple[str, int], ...]:
    """The lines without ``=`` that are neither blank nor comments, with their numbers."""
    lines = ((line.strip(), number) for number, line in enumerate(text.split("\n"), 1))
    return tuple((line, number) for line, number in lines if line and "=" not in line and not line.startswith("#"))


def effective(variables: Mapping[str, str], files: Iterable[ConfFile]) -> dict[str, Setting] | Unavailable:
    """NCCL_* in effect: setenv(3) without overwrite, environment first, then the files in NCCL's order.

    A file that is absent or that may not be opened sets nothing, as NCCL passes over what fopen(3) refuses; one that could
    not be read for another reason makes the whole unknown.
    """
    files = list(files)
    silent = next((f for f in files if isinstance(f.entries, Unavailable) and f.entries.kind is Kind.TIMED_OUT), None)
    if silent is not None:
        return Unavailable(Kind.NOT_READ, f"{silent.path}: {silent.entries}")
    homes = {_set_by(file) for file in files if file.role is ConfRole.HOME}
    if len(homes) > 1:
        return Unavailable(
            Kind.NOT_READ, "$HOME and the password database name two homes; which one NCCL takes is its version's"
        )
    nccl = {name: Setting(name, value) for name, value in variables.items() if name.startswith("NCCL_")}
    for file in files:
        if isinstance(file.entries, Unavailable):
            if file.entries.kind not in (Kind.ABSENT, Kind.DENIED):
                return Unavailable(Kind.NOT_READ, f"{file.path}: {file.entries}")
            continue
        for setting in file.entries:
            if setting.name.startswith("NCCL_"):
                nccl.setdefault(setting.name, setting)
    return nccl


def _set_by(file: ConfFile) -> tuple[tuple[str, str], ...] | Unavailable:
    """What a file sets, or why that is not known."""
    if isinstance(file.entries, Unavailable):
        return () if file.entries.kind in (Kind.ABSENT, Kind.DENIED) else file.entries
    return tuple((one.name, one.value) for one in file.entries)


def probe(host: Host) -> Environ:
    """The variables of this process, the conf files that NCCL would read here, and the launcher."""
    found = mapping(host, "env:")
    if isinstance(found, Unavailable):
        files = _conf_files(host, {})
        return Environ(found, found, found, files)
    everything = {str(name): str(value) for name, value in found.items()}
    variables = {n: v for n, v in sorted(everything.items()) if of_job(n)}
    files = _conf_files(host, everything)
    nccl = effective(variables, files)
    named = [(n, nccl[n].value) for n in ("NCCL_GRAPH_FILE", "NCCL_TOPO_FILE") if nccl and n in nccl]
    texts = {name: _text_of(host, path) for name, path in named if path.startswith("/")}
    lost = tuple(n for n, text in texts.items() if isinstance(text, Unavailable) and text.kind is Kind.ABSENT)
    unread = {str(n): str(text) for n, text in texts.items() if isinstance(text, Unavailable) and n not in lost}
    gone = tuple(name for name in PLUGIN_FILES if _gone(host, nccl, name))
    own, numbers = _gpus_of(texts.get("NCCL_TOPO_FILE", "")), _numbers_of(texts.get("NCCL_GRAPH_FILE", ""))
    hosts = _hosts(host, variables)
    return Environ(variables, nccl, _launcher(host, variables, hosts), files, lost, unread, own, gone, numbers, hosts)


def _gone(host: Host, nccl: Mapping[str, Setting] | Unavailable, name: str) -> bool:
    """Whether a variable names a file by its path, and there is none."""
    setting = (nccl or {}).get(name)
    there = host.ask(f"stat:{setting.value}") if setting and setting.value.startswith("/") else None
    return isinstance(there, Unavailable) and there.kind is Kind.ABSENT


def _gpus_of(xml: str | Unavailable) -> tuple[str, ...]:
    """NCCL src/graph/xml.cc: <pci busid="0001:00:00.0" class="0x030200" …>."""
    return tuple(bus.lower() for bus in re.findall(r'<pci busid="([0-9a-fA-F:.]+)" class="0x03', xml or ""))


def _numbers_of(xml: str | Unavailable) -> tuple[int, ...]:
    """NCCL src/graph/search.cc: <gpu dev="1"/>."""
    return tuple(sorted({int(number) for number in re.findall(r'<gpu dev="(\d{1,4})"', xml or "")}))


def _launcher(host: Host, variables: Mapping[str, str], hosts: tuple[str, ...] | None | Unavailable) -> Launcher:
    """Where nothing else tells how many nodes there are, the list of them does."""
    told = section(host, "launch")
    around = detect(variables)
    # Torque counts one node where none were asked for (-l procs=16), however many hosts have the processes: src/resmom/
    # start_exec.c, InitUserEnv.
    if hosts and (around.nodes_unsaid or (around.name == "pbs" and len(hosts) > (around.nodes or 0))):
        around = replace(around, nodes=len(hosts))
    return in_command(around, told) if told else around


def _text_of(host: Host, path: str) -> str | Unavailable:
    there = host.ask(f"stat:{path}")
    return there if isinstance(there, Unavailable) and there.kind is Kind.ABSENT else read(host, path)


def _hosts(host: Host, variables: Mapping[str, str]) -> tuple[str, ...] | None | Unavailable:
    """What the file lists that the batch system names: this host at least."""
    path = next((one for name in HOST_FILES if (one := variables.get(name, ""))), None)
    if path is None:
        return None
    if not path.startswith("/"):
        return Unavailable(Kind.NOT_READ, f"{path}: a relative path, and the job's working directory is not known")
    text = read(host, path)
    if isinstance(text, Unavailable):
        return replace(text, detail=f"{path}: {text.detail}")
    odd = Unavailable(Kind.MALFORMED if text.strip() else Kind.EMPTY, f"the list of hosts {path}")
    return nodelist.once(text.split()) or odd


def _conf_files(host: Host, variables: Mapping[str, str]) -> tuple[ConfFile, ...]:
    """NCCL src/misc/param.cc (initEnv): NCCL_CONF_FILE where it is set, else ~/.nccl.conf; then /etc/nccl.conf."""
    named = variables.get("NCCL_CONF_FILE")
    if named:
        first = [_conf_file(host, named, ConfRole.NAMED)]
    else:
        first = [_conf_file(host, f"{home.rstrip('/')}/.nccl.conf", ConfRole.HOME) for home in _homes(host, variables)]
    return (*first, _conf_file(host, "/etc/nccl.conf", ConfRole.SYSTEM))


def _conf_file(host: Host, path: str, role: ConfRole) -> ConfFile:
    if not path.startswith("/"):  # relative to the job's working directory, which is not known here
        return ConfFile(path, Unavailable(Kind.NOT_READ, "a relative path, and the job's working directory is not known"), role)
    text = read(host, path)
    if isinstance(text, Unavailable):
        return ConfFile(path, text, role)
    return ConfFile(path, entries(text, path), role, without_value(text), _rights(mapping(host, f"stat:{path}")))


def _rights(stat: Mapping[str, object] | Unavailable) -> Rights | Unavailable:
    if isinstance(stat, Unavailable):
        return stat
    uid, mode = (value(stat.get(name), int, f"its {name}") for name in ("uid", "mode"))
    if isinstance(uid, Unavailable):
        return uid
    return mode if isinstance(mode, Unavailable) else Rights(uid, mode)


def _homes(host: Host, variables: Mapping[str, str]) -> tuple[str, ...]:
    """Home by $HOME (newest NCCL) and by the password database (getpwuid, NCCL <= 2.27); usually one and the same."""
    homes = [variables.get("HOME", "")]
    status = read(host, "/proc/self/status")
    uid = None if isinstance(status, Unavailable) else re.search(r"^Uid:\s+(\d+)", status, re.MULTILINE)
    users = read(host, "/etc/passwd") if uid else ""
    if uid and not isinstance(users, Unavailable):
        rows = (line.split(":") for line in users.split("\n"))
        homes += [row[5] for row in rows if len(row) > 6 and row[2] == uid.group(1)][:1]
    return tuple(dict.fromkeys(home for home in homes if home.startswith("/")))

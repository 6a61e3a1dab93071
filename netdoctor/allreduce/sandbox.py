"""The environment of the rank program: the job's, minus what would write, dial out or confuse; each change is recorded."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Final

from netdoctor.environment import withheld, writes
from netdoctor.facts.environ import entries
from netdoctor.model import Kind, Unavailable
from netdoctor.process import far

# Set in every run.  NCCL ignores a subsystem that it does not know (src/debug.cc), so the list serves every version.
_SET: Final = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,BOOTSTRAP,NET,GRAPH,TUNING,NVLS",
    "NCCL_DEBUG_FILE": "/dev/null",  # each rank has a memfd of its own instead
    "NCCL_RAS_ENABLE": "0",  # RAS would listen on a port (src/ras/ras.cc)
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
}
# Where these are in an nccl.conf, taking them out of the environment is not enough: there the environment wins.
_CONF_WRITERS: Final = ("NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE")

# What names code that the loader, Python, NCCL, libibverbs or libfabric would load (as root: from trusted paths only).
_CODE_LISTS: Final = ("LD_LIBRARY_PATH", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "FI_PROVIDER_PATH")
_CODE_FILES: Final = (
    *("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_ENV_PLUGIN", "NCCL_GIN_PLUGIN", "NCCL_RMA_PLUGIN", "NCCL_CONF_FILE"),
    *("NCCL_LIBRARY_PATH", "UCX_MODULE_DIR", "IBV_DRIVERS", "OMP_TOOL_LIBRARIES", "GCONV_PATH"),
)


@dataclass(frozen=True)
class Sandbox:
    """An environment, and what was changed in it against the job's."""

    environment: Mapping[str, str]
    changes: tuple[tuple[str, str | None], ...]  # sorted by name; None: removed

    def with_changes(self, more: Mapping[str, str | None]) -> Sandbox:
        """The same with `more` on top (None removes)."""
        environment, changes = dict(self.environment), dict(self.changes)
        for name, value in more.items():
            changes[name] = value
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        return replace(self, environment=environment, changes=tuple(sorted(changes.items())))


def sandbox(job: Mapping[str, str], conf: Collection[str]) -> Sandbox:
    """The job's environment made harmless.  `conf` are the names that nccl.conf files set."""
    wanted: dict[str, str | None] = {n: None for n in job if writes(n) or withheld(n)}
    wanted.update(_SET)
    wanted.update({n: "/dev/null" for n in _CONF_WRITERS if n in conf})
    changes = {n: v for n, v in wanted.items() if job.get(n) != v}
    clean = {n: v for n, v in job.items() if "\0" not in n + v and n and "=" not in n}
    return Sandbox(clean, ()).with_changes(changes)


def conf_names(environment: Mapping[str, str]) -> frozenset[str]:
    """Names that NCCL's configuration files set (src/misc/param.cc: NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf)."""
    own = environment.get("NCCL_CONF_FILE") or os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".nccl.conf")
    return frozenset(name for path in (own, "/etc/nccl.conf") for name in _names_in(path))


def _names_in(path: str) -> list[str]:
    try:
        return far.call(_names, path, path=path)
    except OSError:  # the ranks meet it too, and have a deadline
        return []


def _names(path: str) -> list[str]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):
        return []
    try:
        text = os.read(fd, 1 << 16).decode("utf-8", "replace")
    except OSError:  # a directory
        return []
    finally:
        os.close(fd)
    return [one.name for one in entries(text)]


def untrusted_code(python: str, environment: Mapping[str, str], library: str = "") -> str | None:
    """Why root must not run `python` with this environment; None: root alone can change all that it would load.
    `library`: a file that is loaded by its path.

    Looks at the interpreter, its site-packages and torch, and every variable that names code.  A path that is not there
    is judged by the nearest folder that is: who may write that could put it there.  The Python that netdoctor itself runs
    in is not asked: whoever can change it has changed netdoctor already.
    """
    try:
        return far.call(_untrusted_code, python, dict(environment), library, path=python)
    except OSError as error:
        return f"{python}: {error.strerror}"


def _untrusted_code(python: str, environment: Mapping[str, str], library: str) -> str | None:
    from netdoctor.host.trust import trusted

    own = os.path.dirname(os.path.dirname(os.path.abspath(python))) == os.path.abspath(sys.prefix)
    for path in (*(() if own else _code_of(python)), *([library] if library else [])):
        if reason := trusted(path):
            return f"{path}: {reason}"
    for name in (*_CODE_LISTS, *_CODE_FILES):
        value = environment.get(name, "")
        parts = value.replace(";", ":").replace(" ", ":").split(":") if name in _CODE_LISTS else [value]
        for part in filter(None, parts):
            if "/" not in part and name in (*_CODE_FILES, "LD_PRELOAD", "LD_AUDIT"):
                continue  # a bare name is looked up in the loader's own folders
            path = part
            while path.startswith("/") and not os.path.lexists(path):
                path = os.path.dirname(path)
            if reason := trusted(path):
                return f"{name}={part}: {reason}"
    return None


def _code_of(python: str) -> list[str]:
    """The interpreter and the folders that its torch would come from."""
    from pathlib import Path

    roots = {os.path.dirname(os.path.dirname(p)) for p in (os.path.abspath(python), os.path.realpath(python))}
    found = [os.path.abspath(python)]
    for root in sorted(roots):
        for pattern in ("lib*/python3*/site-packages", "lib*/python3*/dist-packages", "local/lib/python3*/dist-packages"):
            folders = sorted(str(p) for p in Path(root).glob(pattern))
            found += folders + [f"{f}/torch" for f in folders if os.path.isdir(f"{f}/torch")]
    if os.path.isdir("/usr/lib/python3/dist-packages") and any(r in ("/usr", "/") for r in roots):
        found.append("/usr/lib/python3/dist-packages")
    return found


@dataclass(frozen=True)
class User:
    """Who the job's Python runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def find_user(text: str) -> User | Unavailable:
    """``name``, ``uid`` or ``uid:gid`` as a user; a uid without an account has its own number as group and no home."""
    import pwd

    who, _, group = text.partition(":")
    try:
        entry = pwd.getpwuid(int(who)) if who.isdecimal() else pwd.getpwnam(who)
    except KeyError:
        if not who.isdecimal():
            return Unavailable(Kind.ABSENT, f"no user {who}")
        entry = None
    try:
        gid = int(group) if group else entry.pw_gid if entry else int(who)
    except ValueError:
        return Unavailable(Kind.MALFORMED, f"{text}: not USER or UID:GID")
    if entry is None:
        return User(who, int(who), gid, (gid,), "/")
    return User(entry.pw_name, entry.pw_uid, gid, tuple(os.getgrouplist(entry.pw_name, gid)), entry.pw_dir)

"""The environment of the rank program: the job's, minus what would write, dial out or confuse; each change is recorded."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from netdoctor.environment import kept_by_root, of_job, withheld, writes
from netdoctor.facts.environ import entries
from netdoctor.host.owned import NotOursError, all_roots, site_packages
from netdoctor.host.trust import may_lead_to_others, of_others, trusted
from netdoctor.model import Kind, Unavailable, record
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


@record
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
    return frozenset(name for path in (_own_conf(environment), "/etc/nccl.conf") for name in _names_in(path))


def _own_conf(environment: Mapping[str, str]) -> str:
    return environment.get("NCCL_CONF_FILE") or os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".nccl.conf")


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


def hanging(environment: Mapping[str, str]) -> str:
    """What does not answer of the places where a Python looks for what it loads; "": nothing is known of that."""
    parts = (p for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "HOME") for p in environment.get(name, "").split(":") if p)
    return next((f": {said}" for part in parts if (said := _silent(part))), "")


def _silent(path: str) -> str | None:
    try:
        far.call(os.path.lexists, path, path=path, limit=1.0)
    except far.HungError as error:
        return error.strerror
    except OSError:
        pass
    return None


@record
class User:
    """Who the job's Python runs as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    locks: bool = False  # it keeps root's right to lock memory (RDMA), and no other


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


# Linux keeps these numbers free of accounts and files; systemd lends them to services (systemd.exec(5), DynamicUser=).
_DYNAMIC: Final = range(65519, 61183, -1)
_DEVICES: Final = ("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/gdrdrv", "/dev/infiniband/uverbs*")


def stand_in() -> User:
    """Who runs the job's code where root knows no user of the job: a number without account, files and rights."""
    import pwd

    taken = {entry.pw_uid for entry in pwd.getpwall()}
    number = next(n for n in _DYNAMIC if n not in taken)
    return User(f"uid {number}", number, number, (number,), "/", locks=True)


def out_of_reach(user: User, python: str, environment: Mapping[str, str], library: str) -> str | None:
    """Why `user` could not stand in for the job, asked in a child that is that user; None: it can.

    It must reach the interpreter, the library, the job's nccl.conf, and every device that the ranks open: what only root may
    open would look like a fault of the node.
    """
    from netdoctor.process.users import lacking

    conf = [_own_conf(environment)]
    try:
        conf = conf if far.call(os.path.lexists, conf[0], path=conf[0]) else []
    except OSError as error:
        return f"{error.strerror}"
    files = [(python, os.X_OK), *((path, os.R_OK) for path in (library, *conf) if path)]
    devices = [(path, os.R_OK | os.W_OK) for pattern in _DEVICES for path in sorted(glob.glob(pattern))]  # noqa: PTH207
    return lacking(user.uid, user.gid, user.groups, [*files, *devices])


class Isolated(NamedTuple):
    """How root runs the job's Python itself."""

    path: tuple[str, ...]  # folders that it imports from, beside its own
    bare: bool  # without its `site`: it is not netdoctor's own
    home: str

    def sandbox(self, box: Sandbox) -> Sandbox:
        """With nothing but the job's variables and those that root keeps: any other may name code (OPENSSL_CONF, LD_AUDIT)."""
        kept = {n: v for n, v in box.environment.items() if of_job(n) or kept_by_root(n) is not None}
        return replace(box, environment={**kept, "PATH": os.defpath, "HOME": self.home})


def roots_own(python: str, environment: Mapping[str, str], library: str) -> Isolated | str:
    """How root itself may run `python` on `library`, or why not.

    Whoever can change the Python that netdoctor itself runs in has changed netdoctor already.
    """
    import pwd

    home = environment.get("HOME", "")
    home = pwd.getpwuid(0).pw_dir if not home.startswith("/") or trusted(home) else home
    own = os.path.dirname(os.path.dirname(os.path.abspath(python))) == os.path.abspath(sys.prefix)
    path = () if library else tuple(p for p in environment.get("PYTHONPATH", "").split(":") if p.startswith("/"))
    try:
        for folder in path:
            all_roots(folder)
    except NotOursError as error:
        return f"PYTHONPATH: {error}"
    try:
        path = path if own else (*path, site_packages(python))
    except NotOursError as error:
        return f"{python} is not netdoctor's own, and {error}"
    named = {n: v for n, v in environment.items() if of_job(n) and not writes(n)}
    files = [os.path.join(home, ".nccl.conf"), *([library] if library else [])]
    refused = [f"{file}: {why}" for file in files if (why := may_lead_to_others(file))]
    refused += [f"{name}={value}: {why}" for name, value in sorted(named.items()) if (why := of_others(value))]
    return refused[0] if refused else Isolated(path, not own, home)

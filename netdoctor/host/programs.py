"""What a helper program is made of: its text, what runs before and after it, and the environment it gets."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from netdoctor.environment import kept_by_root, writes
from netdoctor.process import far

# The libraries that a helper has the loader find, by what is in their names; rdma-core's providers are libNAME-rdmavN.so.
LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "cuda": ("libcuda.so",),
    "nvml": ("libnvidia-ml.so",),
    "ibverbs": ("libibverbs.so", "-rdmav"),
}


class Withheld(NamedTuple):
    """What of the environment root does not go by, and why."""

    path: str  # that the loader does not look into; "" for another variable
    why: str
    helper: str = ""  # that goes by the variable

    def serves(self, name: str) -> bool:
        """Whether the job's helper `name` may have got an answer from here; what cannot be looked into may have one."""
        wanted = LIBRARIES.get(name, ())
        if not self.path:
            return name == self.helper
        try:
            files = far.call(_files, self.path, path=self.path)
        except OSError:
            return bool(wanted)
        return any(word in file for word in wanted for file in files)


def _files(path: str) -> list[str]:
    return os.listdir(path) if os.path.isdir(path) else [os.path.basename(path)]


_FUTURE: Final = "from __future__ import annotations\n"  # must be the first line of a program, so it is taken out of helpers

# What runs before a helper's own text.  It keeps names of its own out of the helper's way, and does without the json package,
# whose import takes as long as the start of the interpreter.
_BOOT: Final = """
def _netdoctor_boot(plan):
    import os, sys
    os.closerange(4, 1 << 20)
    os.set_inheritable(3, False)
    import ctypes, resource
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    # 1 ends a core dump even where core_pattern is a pipe (core(5), fs/coredump.c)
    resource.setrlimit(resource.RLIMIT_CORE, (hard if 0 <= hard < 1 else 1, hard))
    try:
        from _json import encode_basestring_ascii as quote
    except ImportError:
        from json import dumps as quote
    def text(value):
        if isinstance(value, str):
            return quote(value)
        if value is None or isinstance(value, bool):
            return {None: "null", True: "true", False: "false"}[value]
        if isinstance(value, int):
            return int.__repr__(value)
        if isinstance(value, float):
            return float.__repr__(value) if value - value == 0 else "null"
        if isinstance(value, dict):
            return "{" + ",".join([quote(str(k)) + ":" + text(v) for k, v in value.items()]) + "}"
        if isinstance(value, (list, tuple)):
            return "[" + ",".join([text(v) for v in value]) + "]"
        raise TypeError("%s is not JSON" % type(value).__name__)
    def bye(reply):
        data = memoryview(text(reply).encode())
        while data:
            data = data[os.write(3, data):]
        os.close(3)
        os._exit(0)
    if plan["user"] is not None:
        try:
            import pwd
            who, _, group = plan["user"].partition(":")
            if who.isdecimal():
                uid = int(who)
                entry = None if group else pwd.getpwuid(uid)
            else:
                entry = pwd.getpwnam(who)
                uid = entry.pw_uid
            gid = int(group) if group else entry.pw_gid
            become_user(uid, gid, os.getgrouplist(entry.pw_name, gid) if entry else [gid])
        except (KeyError, ValueError, OSError) as error:
            bye({"unavailable": "refused", "detail": "cannot become user %s: %s" % (plan["user"], error)})
    prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG, SIGKILL; after setuid, which clears it (prctl(2))
    if os.getppid() != plan["parent"]:
        os._exit(0)
    sys.path += plan["path"]
    return plan["parameters"], bye
_netdoctor_parameters, _netdoctor_bye = _netdoctor_boot(_netdoctor_plan)
"""
_RUN: Final = """
try:
    _netdoctor_reply = answer(_netdoctor_parameters)
except BaseException as error:
    _netdoctor_reply = {"unavailable": "crashed", "detail": "%s: %s" % (type(error).__name__, error)}
_netdoctor_bye(_netdoctor_reply)
"""


def program(name: str, parameters: Mapping[str, str], user: str | None) -> str | None:
    """The whole text that a child runs for ``ask:NAME?…``; None where there is no such helper."""
    source = helper_source(name)
    if source is None:
        return None
    plan = {"parameters": dict(parameters), "path": site(), "user": user, "parent": os.getpid()}
    become = "" if user is None else _text("netdoctor.process", "become") or ""
    text = f"{_FUTURE}_netdoctor_plan = {plan!r}\n{become}{_BOOT}{source}{_RUN}"
    # In a locale without UTF-8 neither this process nor the child's Python can pass on or read a letter beyond ASCII.
    return text.encode("ascii", "backslashreplace").decode()


def environment(user: str | None, *, withhold_code: bool = True) -> tuple[dict[str, str], list[Withheld]]:
    """The job's environment for a child, and what root does not go by.

    What makes libraries write, or dial another job's root, is left out.  A child that becomes `user` first runs that user's
    code as that user, so nothing is withheld from it.
    """
    variables = {k: v for k, v in os.environ.items() if k != "NCCL_COMM_ID" and not writes(k)}
    return kept(variables) if user is None and os.geteuid() == 0 and withhold_code else (variables, [])


def kept(variables: Mapping[str, str]) -> tuple[dict[str, str], list[Withheld]]:
    """What euid 0 goes by of an environment that others may have set, and what it lacks for its answers."""
    from netdoctor.host.trust import of_others

    clean: dict[str, str] = {}
    said: list[Withheld] = []
    for name, value in variables.items():
        helper = kept_by_root(name)
        if helper == "loader":
            parts = _searched(name, value, said)
            if parts:
                clean[name] = ":".join(parts)
        elif helper is not None and (reason := of_others(value)):
            said.append(Withheld("", f"{name}={value}: {reason}", helper))
        elif helper is not None:
            clean[name] = value
    return clean, said


def _searched(name: str, value: str, said: list[Withheld]) -> list[str]:
    """The paths of one of the loader's variables that root alone can change.  Where nothing is yet, nothing is lost."""
    from netdoctor.host.trust import of_others

    good: list[str] = []
    # ld.so(8): LD_LIBRARY_PATH is split at colons and semicolons, the others at spaces and colons; "" means ".".
    for part in filter(None, value.replace(";", ":").replace(" ", ":").split(":")):
        if not set("/$") & set(part) and name != "LD_LIBRARY_PATH":
            good.append(part)  # a bare name is searched for where the rest of the loader's files is
        elif reason := of_others(part) if part.startswith("/") else "not an absolute path":
            if "$" in part or not _absent(part):
                said.append(Withheld(part, f"{name} {part}: {reason}"))
        else:
            good.append(part)
    return good


def _absent(path: str) -> bool:
    """Whether nothing is there; what does not answer may be."""
    try:
        return not far.call(os.path.lexists, path, path=path)
    except OSError:
        return False


_SOURCES: Final[dict[str, str | None]] = {}


def helper_source(name: str) -> str | None:
    """The text of a helper program, from a folder or a zip file; None where there is no such helper."""
    if name not in _SOURCES:
        _SOURCES[name] = _text("netdoctor.host.helpers", name) if name.isidentifier() else None
    return _SOURCES[name]


def _text(folder: str, name: str) -> str | None:
    """A module as the text that it is, without its __future__ line."""
    package = importlib.import_module(folder)
    loader: Any = package.__spec__.loader if package.__spec__ else None
    try:
        data: bytes = loader.get_data(os.path.join(os.path.dirname(str(package.__file__)), f"{name}.py"))
    except (OSError, AttributeError):
        return None
    return data.decode().replace(_FUTURE, "")


def site() -> list[str]:
    """The folders that third-party modules of this process come from, in its order; where netdoctor itself lies comes last."""
    import netdoctor

    found = [p for p in sys.path if os.path.basename(p) in ("site-packages", "dist-packages") or p.endswith((".pyz", ".zip"))]
    here = os.path.dirname(os.path.dirname(os.path.abspath(str(netdoctor.__file__))))
    return found if here in found else [*found, here]

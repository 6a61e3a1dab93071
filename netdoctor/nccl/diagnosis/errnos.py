"""What the system, or Python itself, refused a program: known by the words of its exception, whoever's code met it.

The words are strerror(3)'s behind the number (Objects/exceptions.c), the importer's, and those of os.environ.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.addresses import loopback
from netdoctor.nccl.diagnosis.hypothesis import Fault
from netdoctor.nccl.log.wordings import Wording

_PATH: Final = re.compile(r"'(?P<path>[^'\n]{1,300})'")
_HOST: Final = re.compile(
    r"(?:host=|tcp://|https?://|connect to (?:host )?|connecting to )[\"'(\[]{0,2}(?P<host>[\w.:\-]*\w)"
    r"|\('(?P<host2>[\w.:\-]+)', \d"
)
_PORT: Final = re.compile(r"\bport[= ](?P<port>\d{1,5})\b|(?:\w|\]|'|\*)[:,] ?(?P<port2>\d{2,5})\b(?!:)")


class Refused(NamedTuple):
    """What was refused: a cause, words for people, and what mends it."""

    cause: str
    text: str
    fix: Fix
    fault: Fault


def refused(said: str, outer: str = "", raiser: str = "") -> Refused | None:
    """What `said`, the words of an exception, tell; `outer`, those of what it came to, may name the host.

    `raiser`: whose file raised it.
    """
    if Wording.ADDRESS_IN_USE.within(said):
        return _in_use(said, outer)
    if Wording.NO_WAY_OUT.within(said) and Wording.OF_A_DOWNLOAD.within(f"{said} {outer}"):
        return _no_way_out(said, outer)
    if Wording.CONNECTION_REFUSED.within(said):
        return _nobody_listens(said, outer)
    if (module := Wording.NO_MODULE.found(said)) is not None:
        name = module["name"]
        looks = (
            f"python -m pip show {name.partition('.')[0]}; python -c 'import sys; print(sys.executable)'   # the job's Python",
        )
        fix = Fix("install it in the environment that the job runs in, in the version that is asked for", looks)
        return Refused("rank_died", f"the job's Python has no module {name}", fix, Fault.EXCEPTION)
    if raiser == "os.py" and (unset := Wording.NO_KEY.found(said)) is not None:
        fix = Fix("start the program by the launcher that sets it, or set it", ("env | sort   # where a rank runs",))
        return Refused("rank_died", f"the environment variable {unset['name']} is not set", fix, Fault.EXCEPTION)
    path = next((m["path"] for m in (_PATH.search(said),) if m is not None), "")
    if path and Wording.PERMISSION.within(said):
        looks = (f"ls -ld '{path}'; id   # there, and in the container",)
        fix = Fix("let the job's user read or write it, or name another", looks)
        return Refused("rank_died", f"the program may not use {path}", fix, Fault.EXCEPTION)
    if path and Wording.NO_SUCH_FILE.within(said):
        fix = Fix("see the path, on the node and in the container where the program ran", (f"ls -l '{path}'",))
        return Refused("rank_died", f"the program did not find {path}", fix, Fault.EXCEPTION)
    return None


def _peer(said: str, outer: str) -> tuple[str, str]:
    host = next((m["host"] or m["host2"] for text in (said, outer) if (m := _HOST.search(text)) is not None), "")
    port = next((m["port"] or m["port2"] for text in (said, outer) if (m := _PORT.search(text)) is not None), "")
    return host.partition(":")[0] if host.count(":") == 1 else host, port


def _in_use(said: str, outer: str) -> Refused:
    _, port = _peer(said, outer)
    text = f"the port{f' {port}' if port else ''} on which the program listens is taken by another process"
    shown = f"ss -ltnp 'sport = :{port}'" if port else "ss -ltnp   # who listens"
    fix = Fix("end what holds the port (an earlier start of the program, mostly), or give another one", (shown,))
    return Refused("bootstrap_ports", text, fix, Fault.EXCEPTION)


def _no_way_out(said: str, outer: str) -> Refused:
    host, _ = _peer(outer, said)
    text = (
        f"the program fetches something{f' from {host}' if host else ''} and this node has no way there: no Internet, no proxy"
    )
    fix = Fix(
        "fetch it where there is a way out (a login node) and read it from disk, or set a proxy",
        ("echo $HTTPS_PROXY; ip route get 1.1.1.1", "export HF_HUB_OFFLINE=1   # where it is in the cache"),
    )
    return Refused("other", text, fix, Fault.SERVICE)


def _nobody_listens(said: str, outer: str) -> Refused | None:
    host, port = _peer(said, outer)
    if not port and not host:
        return None
    at = f"{host or 'localhost'}{f':{port}' if port else ''}"
    here = "of this node " if loopback(host) else ""
    text = f"nobody listens at {at} {here}".rstrip() + ": the process that should has not come up, or has ended"
    fix = Fix("see the log of the process that should listen there", (f"ss -ltnp 'sport = :{port}'" if port else "ss -ltnp",))
    return Refused("rank_died", text, fix, Fault.EXCEPTION)

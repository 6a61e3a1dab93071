"""psutil: who processes are, and the speed of interfaces by ethtool's ioctl (/sys may show another namespace).

ask:psutil                {"interfaces": {NAME: {"speed_mbps"}}}; 0 is "the driver does not say"
ask:psutil?pids=1,2       {"processes": {PID: {"name", "user", "uid", "status"}}}; each may be {"unavailable", "detail"}
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def answer(parameters: dict[str, str]) -> object:
    try:
        import psutil
    except ImportError as error:
        return {"unavailable": "failed", "detail": str(error)}
    if "pids" in parameters:
        return {"processes": {pid: process(psutil, int(pid)) for pid in parameters["pids"].split(",")}}
    return {"interfaces": {name: {"speed_mbps": one.speed} for name, one in psutil.net_if_stats().items()}}


def process(psutil: Any, pid: int) -> dict[str, Any]:
    try:
        one = psutil.Process(pid)
    except psutil.Error as error:
        # /proc mounted with hidepid (proc(5)) hides what kill(2) still knows.
        hidden = isinstance(error, psutil.AccessDenied) or psutil.pid_exists(pid)
        return {"unavailable": "denied" if hidden else "absent", "detail": str(error)}
    uids = field(psutil, one.uids)
    return {
        "name": field(psutil, one.name),
        "user": field(psutil, one.username),
        "uid": uids if isinstance(uids, dict) else uids.real,
        "status": field(psutil, one.status),
    }


def field(psutil: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except psutil.AccessDenied as error:
        return {"unavailable": "denied", "detail": str(error)}
    except psutil.Error as error:  # it ended meanwhile
        return {"unavailable": "absent", "detail": str(error)}

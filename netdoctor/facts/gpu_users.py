"""Who holds the GPUs that are in use: asked only where NVML names processes, before an all-reduce leaves such a GPU alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, mapping, question
from netdoctor.model import Unavailable, record
from netdoctor.textsafe import line, listed

MAX_ASKED: Final = 64  # processes
MAX_NAMED: Final = 3  # in one message
_MPS: Final = "nvidia-cuda-mps"  # nvidia-cuda-mps-server; the kernel keeps 15 characters of a name (TASK_COMM_LEN)
_UNKILLABLE: Final = {"zombie": "ended", "disk-sleep": "stuck in the kernel"}  # psutil's words


@record
class GpuUsers(Fact):
    """Whose processes are on the GPUs, and which of them have ended or serve others.

    A GPU is in use whether or not its processes can be named.
    """

    processes: Mapping[int, str] | Unavailable = field(default_factory=dict)  # "python (pid 4711, alice)" by PID
    # Of them those that have ended or stand in the kernel, where no signal reaches them (states Z and D of proc_pid_stat(5)).
    unkillable: frozenset[int] = frozenset()
    initial_pids: bool = False  # NVML's numbers are those of this PID namespace, so that it names whoever is there
    servers: frozenset[int] = frozenset()  # of them MPS servers, by which several jobs share a GPU on purpose
    of_others: frozenset[int] = frozenset()  # of these those that serve another user than this process's, and nobody else
    strangers: frozenset[int] = frozenset()  # of another user than this process's; nobody's where this is root's

    def of(self, gpu: Gpu) -> str:
        """Who is on a GPU; how many, where nothing names them."""
        pids, names = gpu.pids or (), self.processes or {}
        count = gpu.processes if isinstance(gpu.processes, int) else len(pids)
        known = tuple(names[p] for p in pids if p in names)
        if not known:
            return f"{count} process{'es' if count > 1 else ''}"
        return listed(known, MAX_NAMED, of=count)


def probe(host: Host, gpus: Gpus, vantage: Vantage) -> GpuUsers | Unavailable:
    """Names only what NVML's numbers mean here.

    NVML tells PIDs of the initial PID namespace; in a container the same number may be another process.
    """
    pids = {pid for gpu in gpus.all or () for pid in gpu.pids or ()}
    if not pids or not vantage.initial_pids:
        return GpuUsers(initial_pids=vantage.initial_pids)
    asked = sorted(pids)[:MAX_ASKED]
    got = mapping(host, question("psutil", pids=",".join(map(str, asked))))
    told = got if isinstance(got, Unavailable) else got.get("processes")
    if isinstance(told, Unavailable):
        return told
    rows = {pid: told.get(str(pid)) if isinstance(told, dict) else None for pid in asked}
    stuck = frozenset(pid for pid, one in rows.items() if _unkillable(one) is not None)
    servers = frozenset(pid for pid, one in rows.items() if isinstance(one, dict) and str(one.get("name")).startswith(_MPS))
    names = {pid: described(pid, one) for pid, one in rows.items()}
    others = frozenset(pid for pid in rows if _of_another(rows[pid], vantage))
    return GpuUsers(names, stuck, True, servers, others & servers, others - servers if vantage.euid else frozenset())


def _of_another(told: Any, vantage: Vantage) -> bool:
    """A server runs as the user of its clients, or, where it serves all of them, as root (NVIDIA MPS, Multi-User);
    root's is also what watches the GPUs.  In a user namespace whoever has no number there shows one and the same
    (user_namespaces(7), overflowuid), root among them."""
    uid = told.get("uid") if isinstance(told, dict) else None
    return vantage.root_is_root is True and type(uid) is int and uid > 0 and uid != vantage.euid


def _unkillable(told: Any) -> str | None:
    status = told.get("status") if isinstance(told, dict) else None
    return _UNKILLABLE.get(status) if isinstance(status, str) else None


def described(pid: int, told: Any) -> str:
    """One process as a message names it, from psutil's answer."""
    one = told if isinstance(told, dict) else {}
    name, user = line(one.get("name"), 40), line(one.get("user"), 40)
    about = f"pid {pid}" + (f", {user}" if user else "")
    if (ended := _unkillable(told)) is not None:
        about += f", {ended}"
    if name:
        return f"{name} ({about})"
    hidden = ", which this user may not see" if one.get("unavailable") == "denied" else ""
    return f"{about}{hidden}"

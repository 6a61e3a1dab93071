"""Who takes part in an all-reduce across nodes: from options, else from what the launcher set."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from itertools import islice
from typing import Final

from netdoctor.cluster.observations import Nodes
from netdoctor.environment import Of, Role, named, names_of
from netdoctor.facts import nodelist
from netdoctor.facts.launcher import Launcher, detect
from netdoctor.model import record

MAX_NODES: Final = 1024  # one process holds a connection to each: docs/meeting.md has what is measured, and the way to more
# Where no port is given it follows from the job's name.  Below the range that the kernel takes local ports from (32768), and
# away from the ports that jobs use themselves (29400 and 29500 are torchrun's and torch's own).
_PORTS: Final = range(20000, 29000)
# Together these name one start of one job; equal on all its nodes.
_JOB: Final = names_of(Of.START, Of.JOB)
# Who else would know the first node.
_MASTERS: Final = named(Role.MASTER)
_INDEXES: Final = named(Role.NODE_RANK, "jobset")
_JOB_PORTS: Final = named(Role.PORT)


class NodesError(ValueError):
    """Bad usage: one line that says what is missing."""


@record
class Given:
    """What the command line said; None: nothing."""

    nodes: int | None = None
    node_rank: int | None = None
    master: str | None = None
    ranks_per_node: int | None = None


def find(given: Given, variables: Mapping[str, str]) -> Nodes:
    """This node's place.  Options win; the launcher fills in.  Raises NodesError."""
    launcher = detect(variables)
    count, rank = _shape(launcher, variables)
    count = given.nodes if given.nodes is not None else count
    rank = given.node_rank if given.node_rank is not None else rank
    host, port = _address(given.master) if given.master else (None, None)
    host = host or _master(variables)
    # A task a node is who looks, not how many ranks the job has: then one a GPU, as without a launcher.
    ranks = launcher.local_world if (launcher.local_world or 1) > 1 else None
    ranks = given.ranks_per_node if given.ranks_per_node is not None else ranks
    said = f" ({launcher.name} does not say)" if launcher.name else " (no launcher was found)"
    if launcher.name == "slurm" and launcher.rank is None:  # the batch script itself, on the first node alone
        said = " (slurm tells the tasks of a step alone: srun --ntasks-per-node=1 netdoctor allreduce)"
    roles = (Role.NODES, Role.WORLD, Role.NODE_RANK, Role.RANK)
    empty = [name for role in roles for name in named(role) if variables.get(name) == ""]
    if empty and launcher.rank is None:
        said = f" ({empty[0]} is empty)"
    if count is None:
        raise NodesError(f"--nodes N: how many nodes?{said}")
    if not 1 <= count <= MAX_NODES:
        raise NodesError(f"--nodes: must be 1 to {MAX_NODES}, not {count}")
    rank = 0 if rank is None and count == 1 else rank
    if rank is None:
        raise NodesError(f"--node-rank R: which of them is this one?{said}")
    if not 0 <= rank < count:
        raise NodesError(f"--node-rank: must be 0 to {count - 1}, not {rank}")
    if host is None:
        if count > 1:
            raise NodesError(f"--master HOST[:PORT]: where is node 0?{said}")
        host = "127.0.0.1"
    if ranks is not None and not 1 <= ranks <= 64:
        raise NodesError(f"--ranks-per-node: must be 1 to 64, not {ranks}")
    run = _run(variables)
    return Nodes(
        count,
        rank,
        host,
        port or _own_port(run, host, variables),
        ranks,
        run,
        launcher.local_rank or 0,
        launcher.local_world or 1,
        launcher.name,
        _names(launcher, variables, count),
    )


def _address(text: str) -> tuple[str, int | None]:
    """``host``, ``host:port``, ``[2001:db8::1]:port``; a bare IPv6 address has no port."""
    forms = (
        r"\[([^\[\]]+)\](?::([0-9]{1,5}))?",
        r"([^:\[\]]+)(?::([0-9]{1,5}))?",
        r"([0-9a-fA-F.%]*(?::[0-9a-fA-F.%]*){2,})()",
    )
    match = next((found for form in forms if (found := re.fullmatch(form, text))), None)
    if match is None or len(match[1]) > 253:
        raise NodesError(f"--master: not HOST or HOST:PORT: {text[:80]!r}")
    port = int(match[2]) if match[2] else None
    if port is not None and not 0 < port < 65536:
        raise NodesError(f"--master: no such port: {port}")
    return match[1], port


def _shape(launcher: Launcher, variables: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(nodes, this one), where the launcher tells."""
    count, rank = launcher.nodes, launcher.node_rank
    if launcher.name == "pytorchjob" and launcher.local_rank is None:
        return launcher.world, launcher.rank  # of pods: this process is the pod's only one
    local, world = launcher.local_world, launcher.world
    if count is None and world is not None and local and world % local == 0:
        count = world // local  # as many ranks on each node, as every launcher of ranks places them by default
    if rank is None and count and local and world == count * local and None not in (launcher.rank, launcher.local_rank):
        rank = _node_of(launcher.rank or 0, launcher.local_rank or 0, local, count)
    if rank is None:
        rank = next((int(one) for name in _INDEXES if re.fullmatch(r"[0-9]{1,4}", one := variables.get(name, ""))), None)
    return count, rank


def _node_of(rank: int, local_rank: int, local: int, count: int) -> int | None:
    """Which node holds a rank; ranks dealt out to nodes in turn (--map-by node) have other local ranks."""
    node, place = divmod(rank, local)
    if place == local_rank:
        return node
    return rank % count if rank // count == local_rank else None


def _master(variables: Mapping[str, str]) -> str | None:
    """Node 0 by name: the launcher's own variable, else the first of Slurm's list, else what Kubernetes calls pod 0."""
    for name in _MASTERS:
        if variables.get(name):
            return variables[name][:253]
    for name in nodelist.SLURM:
        if first := next(nodelist.hosts(variables.get(name, "")), None):
            return first
    for name in nodelist.WORKERS:
        if first := variables.get(name, "").partition(",")[0]:
            return first
    if of_lsf := nodelist.of_lsf(variables):
        return of_lsf[0]
    if (jobset := variables.get("JOBSET_NAME")) and (job := variables.get("REPLICATED_JOB_NAME")):
        return f"{jobset}-{job}-0-0.{jobset}"
    return None


def _names(launcher: Launcher, variables: Mapping[str, str], count: int) -> tuple[str, ...]:
    """SLURM_NODEID counts along the step's list (srun(1)); where the list is of another length it is of something else."""
    if launcher.name != "slurm":
        return ()
    listed = next((variables[name] for name in nodelist.SLURM if variables.get(name)), "")
    every = tuple(islice(nodelist.hosts(listed), count + 1))
    return every if len(every) == count else ()


def _run(variables: Mapping[str, str]) -> str:
    said = [f"{name}={variables[name]}" for name in _JOB if variables.get(name)]
    return hashlib.sha256("\0".join(said).encode("utf-8", "surrogateescape")).hexdigest()[:16] if said else ""


def _own_port(run: str, host: str, variables: Mapping[str, str]) -> int:
    """The same on every node of a run, another one for most other runs, and never the job's own."""
    taken = [variables[name] for name in _JOB_PORTS if name in variables]
    seed = run or f"{host}:{''.join(taken[:1])}"
    number = int.from_bytes(hashlib.sha256(seed.encode("utf-8", "surrogateescape")).digest()[:4], "big")
    first = _PORTS[number % len(_PORTS)]
    return next(port for port in range(first, first + len(taken) + 1) if str(port) not in taken)

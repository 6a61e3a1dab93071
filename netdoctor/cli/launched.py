"""What a launcher in the job's command is told: nodes, ranks, node 0.  It starts the ranks, so its word counts most.

Read are the options whose form is known; behind one that is not, nothing is: what it takes for a value cannot be told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from netdoctor.model import record
from netdoctor.nccl.ports import STORE_PORT


@record
class _Starter:
    """A launcher's options by what they say, and the others by how many words they take; long names without dashes."""

    nodes: tuple[str, ...] = ()
    local: tuple[str, ...] = ()  # ranks on each node
    world: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()  # a list, a node each
    node_rank: tuple[str, ...] = ()
    master: tuple[str, ...] = ()
    port: tuple[str, ...] = ()
    values: tuple[str, ...] = ()
    pairs: tuple[str, ...] = ()  # two words
    flags: tuple[str, ...] = ()
    abbreviates: bool = False  # argparse's allow_abbrev

    def meant(self, name: str) -> str | None:
        """The option of that name; None: not known."""
        every = [one for group in _GROUPS for one in getattr(self, group)]
        begin = [one for one in every if self.abbreviates and len(name) > 2 and one.startswith(name)]
        return name if name in every else begin[0] if len(begin) == 1 else None


_SAYS: Final = ("nodes", "local", "world", "hosts", "node_rank", "master", "port")
_GROUPS: Final = (*_SAYS, "values", "pairs", "flags")
# torch/distributed/run.py, get_args_parser: each has a PET_ variable as its default, and one node if nobody says more.
_TORCHRUN: Final = _Starter(
    nodes=("nnodes",),
    local=("nproc-per-node",),
    node_rank=("node-rank",),
    master=("master-addr", "rdzv-endpoint"),
    port=("master-port",),
    values=(
        *("rdzv-backend", "rdzv-id", "rdzv-conf", "max-restarts", "monitor-interval", "start-method", "event-log-handler"),
        *("role", "log-dir", "r", "redirects", "t", "tee", "local-ranks-filter", "local-addr", "logs-specs", "numa-binding"),
        *("signals-to-handle", "shutdown-timeout"),
    ),
    flags=("standalone", "m", "module", "no-python", "run-path", "use-env", "virtual-local-rank"),
    abbreviates=True,
)
_MPI: Final = _Starter(  # mpirun(1) of Open MPI, mpiexec of Hydra
    local=("N", "npernode", "ppn", "perhost"),
    world=("np", "n", "c"),
    hosts=("H", "host", "hosts"),
    values=(
        "hostfile",
        "machinefile",
        "f",
        "x",
        "wdir",
        "wd",
        "map-by",
        "bind-to",
        "rank-by",
        "rf",
        "rankfile",
        "env",
        "genvlist",
    ),
    pairs=("mca", "gmca", "genv"),
    flags=("allow-run-as-root", "oversubscribe", "tag-output", "v", "verbose", "report-bindings", "genvall"),
)
_STARTERS: Final[Mapping[str, _Starter]] = {
    "torchrun": _TORCHRUN,
    "accelerate": _Starter(  # its launch.py; what is not said stands in a file of its own
        nodes=("num-machines",),
        world=("num-processes",),
        node_rank=("machine-rank",),
        master=("main-process-ip",),
        port=("main-process-port",),
        values=("config-file", "mixed-precision", "gpu-ids", "num-cpu-threads-per-process", "dynamo-backend", "rdzv-backend"),
        flags=("multi-gpu", "cpu", "use-deepspeed", "use-fsdp", "m", "module", "no-python", "debug", "quiet", "same-network"),
    ),
    "deepspeed": _Starter(  # its runner.py; else a hostfile says how many nodes
        nodes=("num-nodes",),
        local=("num-gpus",),
        node_rank=("node-rank",),
        master=("master-addr",),
        port=("master-port",),
        values=("H", "hostfile", "i", "include", "e", "exclude", "launcher", "launcher-args", "module"),
        flags=("force-multi", "no-python", "no-local-rank", "bind-cores-to-rank", "enable-each-rank-log"),
    ),
    "mpirun": _MPI,
    "mpiexec": _MPI,
    "srun": _Starter(  # srun(1)
        nodes=("N", "nodes"),
        local=("ntasks-per-node",),
        world=("n", "ntasks"),
        values=(
            *(
                "w",
                "nodelist",
                "x",
                "exclude",
                "p",
                "partition",
                "A",
                "account",
                "c",
                "cpus-per-task",
                "t",
                "time",
                "G",
                "gpus",
            ),
            *("J", "job-name", "o", "output", "e", "error", "i", "input", "C", "constraint", "q", "qos", "D", "chdir"),
        ),
        flags=("l", "label", "u", "unbuffered", "K", "kill-on-bad-exit", "exclusive", "overlap", "v", "Q", "O", "E"),
    ),
}
_MODULES: Final = {"torch.distributed.run": "torchrun", "torch.distributed.launch": "torchrun"}


class _Found(NamedTuple):
    """A launcher, what its options and variables say, and of these what its words do; `whole`: every option was read."""

    name: str
    said: dict[str, str]
    words: dict[str, str]
    whole: bool


# What torchrun's run.py takes for a number, from its option or its PET_ variable, an empty one too (argparse_util.py).
_NUMBERS: Final[Mapping[str, Callable[[str], object]]] = {
    "node-rank": int,
    "master-port": int,
    "max-restarts": int,
    "shutdown-timeout": int,
    "monitor-interval": float,
}
# torch/distributed/rendezvous.py, _get_env_or_raise.
_RENDEZVOUS: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def launched(words: Sequence[str], module: str, environment: Mapping[str, str]) -> dict[str, Any] | None:
    """As the answer to ``config:`` has it (facts/launcher.py); None: no launcher.  `module`: of ``python -m``."""
    found = _launcher(words, module, environment)
    return None if found is None else {"name": found.name, **_meaning(found.name, found.said)}


def refused(words: Sequence[str], module: str, environment: Mapping[str, str]) -> str:
    """Why torchrun does not start its ranks with these options; "" where it does, as far as they tell.

    The number of the node is read by the static rendezvous alone (run.py, config_from_args); there a node beyond the world
    waits for ranks that nobody assigns (elastic/agent/server/api.py, _assign_worker_ranks).
    """
    found = _launcher(words, module, environment)
    if found is None or found.name != "torchrun":
        return ""
    for name, number in _NUMBERS.items():
        if (value := _value(found, name, environment)) is not None and not _is(number, value):
            return f"torchrun takes no {_source(found, name)}={value!r}: it must be a number"
    each = _value(found, "nnodes", environment)
    if each is not None and not (len(parts := each.split(":")) < 3 and all(_is(int, part) for part in parts)):
        return f"torchrun takes no {_source(found, 'nnodes')}={each!r}: it must be a number, or two with a colon between"
    if _value(found, "nproc-per-node", environment) == "":
        return f"torchrun takes no {_source(found, 'nproc-per-node')}='': it must be a number, or gpu, cpu, auto"
    said = found.said
    rank, nodes = int(said.get("node-rank", "0")), _number(said.get("nnodes", ""))
    if (
        "standalone" in said
        or (said.get("rdzv-backend") or environment.get("PET_RDZV_BACKEND") or "static") != "static"
        or not nodes
        or nodes < 2
        or 0 <= rank < nodes
    ):
        return ""
    whose = f"{_source(found, 'node-rank')}={rank}"
    return f"{whose} is none of the {nodes} nodes that {_source(found, 'nnodes')} says: they are 0 to {nodes - 1}"


def left_to_it(words: Sequence[str], module: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """What variables mean to a Python without a launcher, where that is not what they look like."""
    if _launcher(words, module, environment) is not None:
        return ()
    found = [
        f"{name} is set and empty: torch's env:// takes it for not set" for name in _RENDEZVOUS if environment.get(name) == ""
    ]
    of_torchrun = ("PET_NNODES", "PET_NPROC_PER_NODE")
    several = [f"{name}={value}" for name in of_torchrun if (value := environment.get(name)) and _number(value) not in (0, 1)]
    if several:
        what = "one rank starts here, unless the program starts more itself"
        found.append(f"{', '.join(several)}: torchrun alone reads it, and the command has no torchrun: {what}")
    return tuple(found)


def _variable(name: str) -> str:
    return f"PET_{name.upper().replace('-', '_')}"


def _value(found: _Found, name: str, environment: Mapping[str, str]) -> str | None:
    """None: not given, or perhaps among the words that were not read."""
    return found.words.get(name, environment.get(_variable(name)) if found.whole else None)


def _source(found: _Found, name: str) -> str:
    return f"--{name}" if name in found.words else _variable(name)


def _is(number: Callable[[str], object], text: str) -> bool:
    try:
        number(text)
    except ValueError:
        return False
    return True


def _launcher(words: Sequence[str], module: str, environment: Mapping[str, str]) -> _Found | None:
    """The innermost launcher, and what its options say."""
    name = _MODULES.get(module) or words[0].rpartition("/")[2]
    starter = _STARTERS.get(name)
    if starter is None:
        return None
    behind = list(words[1:])
    if module:
        behind = behind[behind.index(module) + 1 :] if module in behind else []
    if name == "accelerate":
        if behind[:1] != ["launch"]:
            return None
        del behind[0]
    given, program = _said(starter, behind)
    if program and program[0].rpartition("/")[2] in _STARTERS:  # srun torchrun …: the innermost starts the ranks
        return _launcher(program, "", environment)
    said = {**_of_variables(starter, environment), **given} if name == "torchrun" else given
    return _Found(name, said, given, bool(program))


def _said(starter: _Starter, words: Sequence[str]) -> tuple[dict[str, str], Sequence[str]]:
    """Options by name, up to the first that is not known, and the program behind them."""
    at, found = 0, dict[str, str]()
    while at < len(words) and re.match(r"--?[A-Za-z]", words[at]):
        given, equals, value = words[at].partition("=")
        bare = given.lstrip("-")
        name = starter.meant(bare.replace("_", "-"))
        if name is None and not given.startswith("--") and (short := starter.meant(bare[:1])) and short not in starter.flags:
            name, equals, value = short, "=", bare[1:]  # -N2
        if name is None:
            return found, ()
        takes = 0 if equals or name in starter.flags else 2 if name in starter.pairs else 1
        if takes == 1:
            value = words[at + 1] if at + 1 < len(words) else ""
        at += 1 + takes
        found[name] = value
    return found, words[at:]


def _of_variables(starter: _Starter, environment: Mapping[str, str]) -> dict[str, str]:
    names = [name for group in _SAYS for name in getattr(starter, group)]
    given = {name: environment.get(_variable(name), "") for name in names}
    if (_number(environment.get("PET_STANDALONE", "")) or 0) > 0:  # argparse_util.py, check_env: 0 is no
        given["standalone"] = "1"
    return {name: value for name, value in given.items() if value}


def _meaning(launcher: str, said: Mapping[str, str]) -> dict[str, Any]:
    starter = _STARTERS[launcher]
    first = {group: next((said[name] for name in getattr(starter, group) if name in said), "") for group in _SAYS}
    nodes, local, world = _number(first["nodes"]), _number(first["local"]), _number(first["world"])
    if launcher == "torchrun":
        nodes = 1 if "standalone" in said or not first["nodes"] else nodes
    if first["hosts"]:
        nodes = len({one.partition(":")[0] for one in first["hosts"].split(",")})
    if nodes is None and world and local:
        nodes = -(-world // local)
    if local is None and world and nodes:
        local = -(-world // nodes)
    found: dict[str, Any] = {"nodes": nodes, "local_world": local, "world": world, "node_rank": _number(first["node_rank"])}
    found = {name: number for name, number in found.items() if number is not None}
    host, _, port = first["master"].rpartition(":") if re.search(r"[^:]:\d+$", first["master"]) else (first["master"], "", "")
    # torchrun sets MASTER_ADDR anew: what stands in the environment means nothing to its ranks.
    if host or launcher == "torchrun":
        option = next((f"--{name}" for name in starter.master if name in said), "--master-addr (its default)")
        found["master"] = (host.strip("[]") or "127.0.0.1") if nodes != 1 else ""
        # The static rendezvous listens there; --standalone and the others take any port that is free.
        default = STORE_PORT if launcher == "torchrun" and not {"standalone", "rdzv-backend", "rdzv-endpoint"} & {*said} else 0
        found |= {"port": _number(first["port"] or port) or default, "option": option}
    return found


def _number(text: str) -> int | None:
    """``2``; of ``1:4`` and ``1-4`` the most."""
    last = re.split(r"[:-]", text)[-1]
    return int(last) if re.fullmatch(r"[0-9]{1,9}", last) else None

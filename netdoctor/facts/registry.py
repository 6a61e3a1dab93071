"""Which probe makes which fact.  Modules are named, not imported: a run imports what its checks need."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host
from netdoctor.model import Kind, Unavailable, record


@record
class Source:
    """How a fact is made: ``module.function(host, *facts of these types)``."""

    module: str
    function: str = "probe"
    after: tuple[str, ...] = ()  # names of the facts that the function takes after the host
    asks: tuple[str, ...] = ()  # questions to helper programs that it is known to ask: begun before anything is imported


# In the order they are made: first what this process reads itself, while the helper programs work.
SOURCES: Final[dict[str, Source]] = {
    "Vantage": Source("netdoctor.facts.vantage"),
    "Kernel": Source("netdoctor.facts.kernel"),
    "Tasks": Source("netdoctor.facts.tasks", after=("Kernel", "Vantage")),
    "SysctlFiles": Source("netdoctor.facts.sysctl_files", after=("Vantage",)),
    "Cgroups": Source("netdoctor.facts.cgroups"),
    "Platform": Source("netdoctor.facts.platform"),
    "Environ": Source("netdoctor.facts.environ"),
    "Expected": Source("netdoctor.facts.job", "probe_expected"),
    "Libraries": Source("netdoctor.facts.libraries", asks=("ask:elf?cache=libnccl",)),
    "Net": Source("netdoctor.facts.net", asks=("ask:netlink",)),
    "LocalPorts": Source("netdoctor.facts.net", "probe_ports", asks=("ask:netlink",)),
    "Cpu": Source("netdoctor.facts.cpu", asks=("ask:mempolicy",)),
    "Interrupts": Source("netdoctor.facts.interrupts"),
    "Rdma": Source("netdoctor.facts.rdma", asks=("ask:ibverbs",)),
    "FlatRails": Source("netdoctor.facts.flat_rails", after=("Net", "Rdma")),
    "Gpus": Source("netdoctor.facts.gpu", asks=("ask:nvml", "ask:cuda")),
    "GpuHealth": Source("netdoctor.facts.gpu_health", asks=("ask:nvml",)),
    "KernelLog": Source("netdoctor.facts.kernel_log", after=("Gpus",), asks=("ask:kmsg",)),
    "System": Source("netdoctor.facts.system", after=("KernelLog", "Vantage")),
    "Clock": Source("netdoctor.facts.clock", asks=("ask:clock",)),
    "Fabric": Source("netdoctor.facts.fabric", after=("GpuHealth", "Net"), asks=("ask:cuda",)),
    "Pci": Source("netdoctor.facts.pci"),
    "PciPath": Source("netdoctor.facts.pci_path", after=("Pci", "Vantage")),
    "Intent": Source("netdoctor.facts.intent", after=("Environ", "Net", "Gpus", "Expected")),
    "ShmProof": Source("netdoctor.nccl.shm_proof", after=("Libraries", "Gpus", "Intent", "Cgroups", "Vantage")),
    "Reach": Source("netdoctor.facts.reach", after=("Environ", "Net")),
    "Ranks": Source("netdoctor.facts.ranks", after=("Environ",)),
    "DeviceNames": Source("netdoctor.facts.device_names", after=("Environ", "Net", "Rdma", "Pci")),
    "Past": Source("netdoctor.facts.past", after=("Vantage",)),
    "GpuUsers": Source("netdoctor.facts.gpu_users", after=("Gpus", "Vantage")),
    "NcclChoice": Source("netdoctor.facts.nccl_choice", after=("Libraries",)),
    "Dcgm": Source("netdoctor.facts.dcgm", after=("Gpus", "Vantage", "Environ")),
    "GpuLoad": Source("netdoctor.facts.gpu_load"),
    "NetErrors": Source("netdoctor.facts.net_errors"),
    "LimitsMet": Source("netdoctor.facts.cgroups", "probe_met"),
}
# Made when the all-reduce has run: what was seen beside it.
BESIDE_THE_RUN: Final = ("GpuLoad", "NetErrors", "LimitsMet")

# Facts that are runs: made by `live`, or brought by a snapshot.
RUNS: Final = {
    "Baseline": "netdoctor.facts.runs",
    "PathRun": "netdoctor.facts.runs",
    "Cluster": "netdoctor.cluster.observations",
}

Facts = Mapping[str, Any]  # by the fact's class name


def prefetch(host: Host, names: Iterable[str]) -> None:
    """Start every question that these facts are known to ask, all at once."""
    host.prefetch(dict.fromkeys(q for name in names for q in SOURCES[name].asks))


def closure(names: Iterable[str]) -> tuple[str, ...]:
    """`names` and what they are made from, in the order of `SOURCES`."""
    todo, seen = [n for n in names if n in SOURCES], set[str]()
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += SOURCES[name].after
    return tuple(n for n in SOURCES if n in seen)


def unread(name: str, why: Unavailable) -> Any:
    """The fact of that name of which nothing could be read."""
    module = SOURCES[name].module if name in SOURCES else RUNS[name]
    kind: type[Fact] = getattr(importlib.import_module(module), name)
    return kind.unread(why)


def of(have: Facts, name: str) -> Any:
    """The fact of that name; where nobody made it, the one of which nothing was read."""
    return there(name, have[name] if name in have else Unavailable(Kind.NOT_READ, f"no {name}"))


def there(name: str, found: Any) -> Any:
    """`found`, a fact; or, where it says why there is none, the fact of which nothing was read."""
    return unread(name, found) if isinstance(found, Unavailable) else found


def make(host: Host, name: str, have: Facts) -> Any:
    """One fact.  A probe that raises is a defect of ours: it costs this fact, not the run."""
    source = SOURCES[name]
    function: Callable[..., Any] = getattr(importlib.import_module(source.module), source.function)
    try:
        found = function(host, *(of(have, n) for n in source.after))
    except Exception as error:  # noqa: BLE001 - the border: whatever a probe did not foresee becomes one missing fact
        found = Unavailable(Kind.CRASHED, f"probe {name}: {type(error).__name__}: {error}")
    return there(name, found)

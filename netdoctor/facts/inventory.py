"""What a node has: the part of a report that nodes are compared by.

Everything here is stable (equal on two runs of one state) and comes from facts alone; a value that could not be read stays
``{"unavailable": kind, "detail": …}``, so that a comparison can leave it out instead of taking it for a difference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from netdoctor.environment import Of, names_of
from netdoctor.facts import registry
from netdoctor.facts.clock import Clock
from netdoctor.facts.environ import Environ
from netdoctor.facts.fabric import Fabric
from netdoctor.facts.gpu import Gpu, Gpus
from netdoctor.facts.gpu_health import GpuHealth
from netdoctor.facts.gpu_load import GpuLoad
from netdoctor.facts.kernel import UNLIMITED, Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.nccl_version import text
from netdoctor.facts.net import Link, Net
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.pci_path import BACK, PciPath
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.rdma_ports import RdmaPort
from netdoctor.facts.registry import Facts
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Json, Kind, Unavailable, missing, plain, size_text

T = TypeVar("T")

# Name the process or the run, not the node's set-up: they differ between healthy nodes.
_OF_THE_RUN: Final = frozenset(names_of(Of.RUN, Of.PROCESS))
_NO_VERSION: Final = Unavailable(Kind.UNSUPPORTED, "nvidia-imex-ctl names no version")
_NO_STATE: Final = Unavailable(Kind.NOT_READ, "the state of this GPU was not told")


def inventory(facts: Mapping[Any, object]) -> dict[str, Json]:
    """The inventory of one node from its facts, given by type or by type name; a fact that is not there is unavailable.

    ======================= ==========================================================================================
    driver, cuda_driver     "580.95.05", 13000
    kernel                  release
    clock                   "kept in time", or "runs free": nothing keeps it, by the kernel's word
    iommu                   of the groups of GPUs and HCAs: "identity", "DMA-FQ", "off"; null: there are none
    acs                     {ports, back}: above GPUs and HCAs, and those of them that turn data back to the CPU
    imex                    version of the IMEX daemon
    shm                     size of /dev/shm, "64 MiB"; "half of the memory" where nobody chose it
    limits                  {name: soft limit, or "unlimited"} of the job's user
    torch                   {version, cuda}
    nccl                    {version, source, path, plugins: [names]}; source is "run", "torch" or "loader"
    nccl_interface          {name, address, prefix, mtu}: the interface that NCCL itself takes; null: none
    nccl_variables          {name: value}: in effect, environment and nccl.conf
    sysctls                 {name: text}
    links                   [{name, kind, up, mtu, physical, addresses: ["10.0.0.7/24"], driver, speed_mbps,
                            qos: {quantity: text}}], the last where its driver says something
    gpus                    [{index, name, uuid, pci, numa_node, memory_total, nvlinks_up, nvlinks,
                            power_limit_w, clocks_held_low, ecc, ecc_waits, mig, mig_waits}]
    nics                    [{name, pci, driver, firmware, numa_node, virtual_function, ports: [{number, state,
                            link_layer, rate_gbps, gids: [{index, kind, value}]}]}]
    pci                     [{address, kind, id, numa_node, root, path, link: {speed, width, max_speed, max_width}}]
    ======================= ==========================================================================================
    """
    named = {key if isinstance(key, str) else key.__name__: value for key, value in facts.items()}
    have = {name: registry.there(name, value) for name, value in named.items()}
    net: Net = registry.of(have, "Net")
    gpus: Gpus = registry.of(have, "Gpus")
    kernel: Kernel = registry.of(have, "Kernel")
    clock: Clock = registry.of(have, "Clock")
    libraries: Libraries = registry.of(have, "Libraries")
    pci: Pci = registry.of(have, "Pci")
    way: PciPath = registry.of(have, "PciPath")
    return {
        "driver": plain(gpus.driver),
        "cuda_driver": plain(gpus.cuda_driver),
        "kernel": plain(kernel.release),
        "clock": plain(clock.kept) if isinstance(clock.kept, Unavailable) else "kept in time" if clock.kept else "runs free",
        "iommu": plain(way.iommu),
        "acs": _acs(way),
        "imex": _imex(registry.of(have, "Fabric")),
        "shm": _shm(kernel),
        "limits": _limits(kernel, registry.of(have, "Vantage")),
        "torch": _columns(libraries.torch, "version cuda") if libraries.torch else plain(libraries.torch),
        "nccl": _nccl(have, libraries),
        "nccl_interface": _nccl_interface(registry.of(have, "NcclChoice"), net),
        "nccl_variables": _variables(registry.of(have, "Environ")),
        "sysctls": plain(kernel.sysctls),
        "links": _rows(net.links, lambda one: _link(one, net.links or ())),
        "gpus": _rows(gpus.all, lambda one: _gpu(one, registry.of(have, "GpuHealth"), registry.of(have, "GpuLoad"))),
        "nics": _rows(registry.of(have, "Rdma").devices, _nic),
        "pci": _rows(pci.devices and tuple(d for d in pci.devices if d.is_gpu or d.rdma), _pci),
    }


def _rows(some: tuple[T, ...] | Unavailable, make: Callable[[T], Json]) -> Json:
    return plain(some) if isinstance(some, Unavailable) else [make(one) for one in some]


def _columns(one: object, names: str) -> dict[str, Json]:
    return {name: plain(getattr(one, name)) for name in names.split()}


def _nccl(have: Facts, libraries: Libraries) -> Json:
    """The version that ran; else the library that torch's loader rules take; else the one that NCCL was asked of."""
    version, source, path = _nccl_version(have, libraries)
    names = libraries.plugins and sorted({p.name for p in libraries.plugins})
    return {"version": version, "source": source, "path": path, "plugins": plain(names)}


def _nccl_version(have: Facts, libraries: Libraries) -> tuple[Json, str | None, Json]:
    run = registry.of(have, "Baseline").nccl_run
    if run is not None and run.nccl_version:
        return run.nccl_version, "run", run.mapped[0] if run.mapped else None
    torch, choice = libraries.torch, registry.of(have, "NcclChoice")
    path = torch and torch.nccl_path
    taken = libraries.at(path) if isinstance(path, str) else None
    if taken is not None and not isinstance(taken.version, Unavailable):
        return text(taken.version), "torch", plain(path)
    if not isinstance(choice.version, Unavailable):
        return text(choice.version), "loader", choice.library
    if path is None:
        return None, "torch", None  # torch has none: a CPU build
    return plain(missing(torch, path, libraries.nccl, choice.version)), None, None


def _nccl_interface(choice: NcclChoice, net: Net) -> Json:
    name, address = choice.interface, choice.address
    if not isinstance(name, str):
        return plain(name)
    link = net.link(name)
    prefix = next((a.prefix for a in link.addresses if a.ip == address), None) if link else None
    return {"name": name, "address": plain(address), "prefix": prefix, "mtu": link.mtu if link else None}


def _acs(way: PciPath) -> Json:
    """Of what could be read of ports that can turn data back."""
    if isinstance(way.config, Unavailable):
        return plain(way.config)
    ports = [one for one in way.config.values() if not isinstance(one, Unavailable) and one.acs is not None]
    lost = missing(*way.config.values())
    return {"ports": len(ports), "back": sum(bool(one.turns_back(BACK)) for one in ports)} if lost is None else plain(lost)


def _imex(fabric: Fabric) -> Json:
    domain = fabric.imex
    return plain(domain) if isinstance(domain, Unavailable) else domain.version or plain(_NO_VERSION)


def _shm(kernel: Kernel) -> Json:
    size, default = kernel.shm_size, kernel.shm_by_default
    if isinstance(size, Unavailable) or isinstance(default, Unavailable):
        return plain(missing(size, default))
    return "half of the memory" if default else size_text(size) if size else "unlimited"


def _limits(kernel: Kernel, vantage: Vantage) -> Json:
    """Those of a looker outside the job are its own."""
    if not vantage.job_user:
        return plain(Unavailable(Kind.NOT_READ, f"limits are the job's own, not these: {vantage.elsewhere}"))
    return {name: "unlimited" if value == UNLIMITED else plain(value) for name, value in sorted(kernel.limits.items())}


def _variables(environ: Environ) -> Json:
    settings = environ.nccl
    if isinstance(settings, Unavailable):
        return plain(settings)
    return {name: one.value for name, one in sorted(settings.items()) if name not in _OF_THE_RUN}


def _link(one: Link, every: Iterable[Link]) -> Json:
    return {
        **_columns(one, "name kind up mtu loopback driver speed_mbps"),
        "physical": one.kind is None and not one.loopback,
        # a bridge or bond with a physical member: its address is the node's own
        "carries_physical": any(m.controller == one.index and m.kind is None and not m.loopback for m in every),
        "addresses": [f"{a.ip}/{a.prefix}" for a in one.addresses if a.scope == "global" and a.usable],
        **({"qos": said} if (said := one.qos.words()) else {}),
    }


def _gpu(one: Gpu, health: GpuHealth, load: GpuLoad) -> Json:
    links = one.nvlinks
    states = health.gpus
    state = states if isinstance(states, Unavailable) else next((s for s in states if s.uuid == one.uuid), _NO_STATE)
    told = state if isinstance(state, Unavailable) else state.power_limit
    modes = {name: plain(state and getattr(state, name)) for name in ("ecc", "ecc_waits", "mig", "mig_waits")}
    return {
        **_columns(one, "index name uuid pci numa_node memory_total"),
        "nvlinks_up": plain(links) if isinstance(links, Unavailable) else sum(links),
        "nvlinks": plain(links) if isinstance(links, Unavailable) else len(links),
        "power_limit_w": plain(told) if isinstance(told, Unavailable) else round(told / 1000),
        "clocks_held_low": plain(_held_low(one, load)),
        **modes,
    }


def _held_low(one: Gpu, load: GpuLoad) -> bool | Unavailable:
    if isinstance(load.gpus, Unavailable):
        return load.gpus
    seen = load.gpus.get(str(one.uuid))
    return Unavailable(Kind.NOT_READ, "nobody looked at it under load") if seen is None else seen.held_low


def _nic(one: RdmaDevice) -> Json:
    return {**_columns(one, "name pci driver firmware numa_node virtual_function"), "ports": _rows(one.ports, _port)}


def _port(one: RdmaPort) -> Json:
    gids = _rows(one.gids, lambda gid: _columns(gid, "index kind value"))
    return {**_columns(one, "number state link_layer"), "rate_gbps": plain(one.rate), "gids": gids}


def _pci(one: PciDevice) -> Json:
    return {
        **_columns(one, "address numa_node root path link"),
        "kind": "gpu" if one.is_gpu else "nic",
        "id": f"{one.vendor:04x}:{one.device:04x}",
    }

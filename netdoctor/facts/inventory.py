"""What a node has: the part of a report that nodes are compared by.

Everything here is stable (equal on two runs of one state) and comes from facts alone; a value that could not be read stays
``{"unavailable": kind, "detail": …}``, so that a comparison can leave it out instead of taking it for a difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from netdoctor.environment import Of, names_of
from netdoctor.model import Json, Kind, Unavailable, plain

# Name the process or the run, not the node's set-up: they differ between healthy nodes.
_OF_THE_RUN: Final = frozenset(names_of(Of.RUN, Of.PROCESS))


def inventory(facts: Mapping[Any, object]) -> dict[str, Json]:
    """The inventory of one node from its facts, given by type or by type name; a fact that is not there is unavailable.

    ======================= ==========================================================================================
    driver, cuda_driver     "580.95.05", 13000
    kernel                  release
    torch                   {version, cuda}
    nccl                    {version, source, path, plugins: [names]}; source is "run", "torch" or "loader"
    nccl_interface          {name, address, prefix, mtu}: the interface that NCCL itself takes; null: none
    nccl_variables          {name: value}: in effect, environment and nccl.conf
    sysctls                 {name: text}
    links                   [{name, kind, up, mtu, physical, addresses: ["10.0.0.7/24"], driver, speed_mbps}]
    gpus                    [{index, name, uuid, pci, numa_node, memory_total, nvlinks_up, nvlinks}]
    nics                    [{name, pci, driver, firmware, numa_node, virtual_function, ports: [{number, state,
                            link_layer, rate_gbps, gids: [{index, kind, value}]}]}]
    pci                     [{address, kind, id, numa_node, root, path, link: {speed, width, max_speed, max_width}}]
    ======================= ==========================================================================================
    """
    have = {key if isinstance(key, str) else getattr(key, "__name__", str(key)): value for key, value in facts.items()}
    kernel, gpus, net = _fact(have, "Kernel"), _fact(have, "Gpus"), _fact(have, "Net")
    return {
        "driver": _plain(gpus, "driver"),
        "cuda_driver": _plain(gpus, "cuda_driver"),
        "kernel": _plain(kernel, "release"),
        "torch": _torch(_fact(have, "Libraries")),
        "nccl": _nccl(have),
        "nccl_interface": _nccl_interface(_fact(have, "NcclChoice"), net),
        "nccl_variables": _variables(_fact(have, "Environ")),
        "sysctls": _plain(kernel, "sysctls"),
        "links": _each(net, "links", lambda all_links: [_link(one, all_links) for one in all_links]),
        "gpus": _each(gpus, "all", lambda every: [_gpu(one) for one in every]),
        "nics": _each(_fact(have, "Rdma"), "devices", lambda every: [_nic(one) for one in every]),
        "pci": _each(_fact(have, "Pci"), "devices", lambda every: [_pci(d) for d in every if d.is_gpu or d.rdma]),
    }


def _fact(have: Mapping[str, object], name: str) -> Any:
    return have.get(name, Unavailable(Kind.NOT_READ, f"no {name}"))


def _get(fact: Any, name: str) -> Any:
    return fact if isinstance(fact, Unavailable) else getattr(fact, name)


def _plain(fact: Any, name: str) -> Json:
    return plain(_get(fact, name))


def _each(fact: Any, name: str, make: Any) -> Json:
    value = _get(fact, name)
    return plain(value) if isinstance(value, Unavailable) else make(value)


def _torch(libraries: Any) -> Json:
    torch = _get(libraries, "torch")
    if isinstance(torch, Unavailable):
        return plain(torch)
    return {"version": plain(torch.version), "cuda": plain(torch.cuda)}


def _nccl(have: Mapping[str, object]) -> Json:
    """The version that ran; else the library that torch's loader rules take; else the one that NCCL was asked of."""
    libraries = _fact(have, "Libraries")
    plugins = _get(libraries, "plugins")
    names = plain(plugins) if isinstance(plugins, Unavailable) else sorted({p.name for p in plugins})
    version, source, path = _nccl_version(have, libraries)
    return {"version": version, "source": source, "path": path, "plugins": names}


def _nccl_version(have: Mapping[str, object], libraries: Any) -> tuple[Json, str | None, Json]:
    baseline = have.get("Baseline")
    run: Any = getattr(baseline, "run", None)
    if run and getattr(baseline, "nccl_ran", False) and run.nccl_version:
        return run.nccl_version, "run", run.mapped[0] if run.mapped else None
    torch, found = _get(libraries, "torch"), _get(libraries, "nccl")
    path = _get(torch, "nccl_path")
    if isinstance(path, str) and not isinstance(found, Unavailable):
        taken = next((one for one in found if path in (one.path, one.real_path)), None)
        if taken is not None and not isinstance(taken.version, Unavailable):
            return _dotted(taken.version), "torch", path
    choice = _fact(have, "NcclChoice")
    version = _get(choice, "version")
    if not isinstance(version, Unavailable):
        return _dotted(version), "loader", choice.library
    if path is None:
        return None, "torch", None  # torch has none: a CPU build
    why = next((v for v in (libraries, torch, path, found) if isinstance(v, Unavailable)), version)
    return plain(why), None, None


def _dotted(version: Iterable[int]) -> str:
    return ".".join(map(str, version))


def _nccl_interface(choice: Any, net: Any) -> Json:
    name, address = _get(choice, "interface"), _get(choice, "address")
    if isinstance(name, Unavailable) or name is None:
        return plain(name)
    link = None if isinstance(net, Unavailable) else net.link(name)
    ip = address.split("<")[0] if isinstance(address, str) else None
    prefix = next((a.prefix for a in link.addresses if a.ip == ip), None) if link else None
    return {"name": name, "address": plain(address), "prefix": prefix, "mtu": link.mtu if link else None}


def _variables(environ: Any) -> Json:
    settings = _get(environ, "nccl")
    if isinstance(settings, Unavailable):
        return plain(settings)
    return {name: one.value for name, one in sorted(settings.items()) if name not in _OF_THE_RUN}


def _link(one: Any, every: Iterable[Any]) -> dict[str, Json]:
    carries = any(m.controller == one.index and m.kind is None and not m.loopback for m in every)
    return {
        "name": one.name,
        "kind": one.kind,
        "up": one.up,
        "mtu": one.mtu,
        "loopback": one.loopback,
        "physical": one.kind is None and not one.loopback,
        "carries_physical": carries,  # a bridge or bond with a physical member: its address is the node's own
        "addresses": [f"{a.ip}/{a.prefix}" for a in one.addresses if a.scope == "global" and a.usable],
        "driver": plain(one.driver),
        "speed_mbps": plain(one.speed_mbps),
    }


def _gpu(one: Any) -> dict[str, Json]:
    links = one.nvlinks
    return {
        "index": one.index,
        "name": plain(one.name),
        "uuid": plain(one.uuid),
        "pci": plain(one.pci),
        "numa_node": plain(one.numa_node),
        "memory_total": plain(one.memory_total),
        "nvlinks_up": plain(links) if isinstance(links, Unavailable) else sum(links),
        "nvlinks": plain(links) if isinstance(links, Unavailable) else len(links),
    }


def _nic(one: Any) -> dict[str, Json]:
    ports = one.ports
    return {
        "name": one.name,
        "pci": plain(one.pci),
        "driver": plain(one.driver),
        "firmware": plain(one.firmware),
        "numa_node": plain(one.numa_node),
        "virtual_function": plain(one.virtual_function),
        "ports": plain(ports) if isinstance(ports, Unavailable) else [_port(p) for p in ports],
    }


def _port(one: Any) -> dict[str, Json]:
    gids = one.gids
    table = [{"index": g.index, "kind": plain(g.kind), "value": g.value} for g in gids] if gids or gids == () else plain(gids)
    return {
        "number": one.number,
        "state": plain(one.state),
        "link_layer": plain(one.link_layer),
        "rate_gbps": plain(one.rate_gbps),
        "gids": table,
    }


def _pci(one: Any) -> dict[str, Json]:
    link = one.link
    known = not isinstance(link, Unavailable)
    return {
        "address": one.address,
        "kind": "gpu" if one.is_gpu else "nic",
        "id": f"{one.vendor:04x}:{one.device:04x}",
        "numa_node": plain(one.numa_node),
        "root": one.root,
        "path": list(one.path),
        "link": {"speed": link.speed, "width": link.width, "max_speed": link.max_speed, "max_width": link.max_width}
        if known
        else plain(link),
    }

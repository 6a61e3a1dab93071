"""A machine that netdoctor recorded (or that was composed as if) as a description: NCCL then runs on what a snapshot says.

A snapshot has less than a description: NVLinks have no other end (they lead to a switch that nobody sees, as in a guest), other
cards of the machine are left out, and what the kernel did not tell is as on the usual machine.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from netdoctor.facts import cpu, kernel, net, pci, rdma
from netdoctor.facts.rdma_ports import RdmaPort
from netdoctor.host.base import Host, ReplayHost
from netdoctor.model import Unavailable
from netdoctor.snapshot.snapshot import loads
from tests.fakegpu.tree import SPEEDS

GENERATIONS: Final = {float(speed): n for n, speed in SPEEDS.items() if n}
MULTIPROCESSORS: Final = {8: 108, 9: 132, 10: 148, 12: 48}  # by major compute capability


def description(path: pathlib.Path) -> dict[str, Any]:
    """The description of the machine of a snapshot."""
    return of(path.parent.name, ReplayHost(loads(path.read_text(encoding="utf-8")).answers))


def of(name: str, host: Host) -> dict[str, Any]:
    """The description of what a host answers."""
    functions = pci.probe(host)
    seen = () if isinstance(functions, Unavailable) else functions.devices
    devices = {} if isinstance(seen, Unavailable) else {one.address: one for one in seen}
    gpus = list(_gpus(host, devices))
    nodes = cpu.probe(host).nodes
    kernel_facts = kernel.probe(host)
    hcas = list(_hcas(host, devices))
    return {
        "name": name,
        "driver": _driver(host),
        "numa": ["0"] if isinstance(nodes, Unavailable) else [_list(one.cpus) for one in nodes if one.cpus],
        "above": {one["at"][-1]: _above(devices[one["at"][-1]]) for one in (*gpus, *hcas)},
        "gpus": gpus,
        "nvlinks": {"switched": max((len(one.pop("links")) for one in gpus), default=0)},
        "hcas": hcas,
        "nics": list(_nics(host, {one.get("netdev", "") for one in hcas})),
        "modules": {key: one.version or "" for key, one in kernel_facts.modules.items() if not isinstance(one, Unavailable)},
        "memory_peers": [key for key, one in kernel_facts.memory_peers.items() if not isinstance(one, Unavailable)],
    }


def _list(cpus: frozenset[int]) -> str:
    return ",".join(map(str, sorted(cpus)))


def _above(device: pci.PciDevice) -> dict[str, Any]:
    numa = device.numa_node
    return {"path": list(device.path), "numa": -1 if isinstance(numa, Unavailable) else numa}


def _link(device: pci.PciDevice) -> dict[str, int]:
    one = device.link
    if isinstance(one, Unavailable):
        return {"generation": 0, "max_generation": 0, "width": 0, "max_width": 0}
    return {
        "generation": GENERATIONS[one.speed],
        "max_generation": GENERATIONS[one.max_speed],
        "width": one.width,
        "max_width": one.max_width,
    }


def _driver(host: Host) -> dict[str, Any]:
    told = host.ask("ask:nvml")
    if not isinstance(told, dict):
        return {}
    return {key: told[name] for key, name in (("version", "driver"), ("cuda", "cuda")) if not isinstance(told.get(name), dict)}


def _gpus(host: Host, devices: Mapping[str, pci.PciDevice]) -> Iterator[dict[str, Any]]:
    """In the order of NVML; attributes as libcuda told them."""
    nvml, cuda = host.ask("ask:nvml"), host.ask("ask:cuda")
    if not isinstance(nvml, dict) or not isinstance(nvml.get("devices"), list):
        return
    told = {one["uuid"]: one["attributes"] for one in cuda["devices"]} if isinstance(cuda, dict) else {}
    for one in nvml["devices"]:
        domain, _, rest = one["pci"].lower().partition(":")
        device = devices[f"{int(domain, 16):04x}:{rest}"]
        digits = one["uuid"].removeprefix("GPU-").replace("-", "")
        memory = one["memory_total"]
        yield {
            "at": [device.address, device.address],
            "link": _link(device),
            "name": one["name"],
            "uuid": digits,
            "device": device.device,
            "capability": 10 * one["capability"][0] + one["capability"][1],
            "multiprocessors": MULTIPROCESSORS.get(one["capability"][0], 108),
            "memory": memory if isinstance(memory, int) else 64 << 30,
            "links": one["nvlinks"] if isinstance(one["nvlinks"], list) else [],
            "links_down": [n for n, up in enumerate(one["nvlinks"]) if not up] if isinstance(one["nvlinks"], list) else [],
            "attributes": {key: value for key, value in told.get(digits, {}).items() if isinstance(value, int)},
        }


def _hcas(host: Host, devices: Mapping[str, pci.PciDevice]) -> Iterator[dict[str, Any]]:
    found = rdma.probe(host).devices
    for one in () if isinstance(found, Unavailable) else found:
        if not isinstance(one.pci, str) or isinstance(one.ports, Unavailable):
            continue
        device = devices[one.pci]
        ports = [dict(_port(port)) for port in one.ports]
        netdev = next((str(gid[2]) for port in ports for gid in port["gids"].values() if gid[2]), "")
        opened = isinstance(one.uverbs, Unavailable) or one.uverbs.open_errno == ""
        yield {
            "at": [device.address, device.address],
            "link": _link(device),
            "name": one.name,
            "vendor": device.vendor,
            "device": device.device,
            "driver": device.driver if isinstance(device.driver, str) else "mlx5_core",
            "firmware": one.firmware if isinstance(one.firmware, str) else "0",
            "dmabuf": isinstance(one.provider, Unavailable) or one.provider.dmabuf_errno == "EBADF",
            "layer": ports[0].pop("layer"),
            "ports": ports,
            "netdev": netdev,
            "address": _address(host, netdev),
            **({} if isinstance(one.uverbs, Unavailable) else {"node": int(one.uverbs.node.rpartition("uverbs")[2])}),
            **({} if opened else {"mode": "none"}),
        }


def _port(port: RdmaPort) -> Iterator[tuple[str, Any]]:
    yield "layer", port.link_layer if isinstance(port.link_layer, str) else "InfiniBand"
    yield "state", port.state if isinstance(port.state, str) else "ACTIVE"
    yield "rate", int(port.rate_gbps) if isinstance(port.rate_gbps, float) else 100
    gids = () if isinstance(port.gids, Unavailable) else port.gids
    yield "gids", {g.index: [g.value, _or(g.kind, "IB/RoCE v1"), _or(g.netdev, "")] for g in gids}


def _or(value: str | Unavailable, usual: str) -> str:
    return usual if isinstance(value, Unavailable) else value


def _nics(host: Host, others: set[str]) -> Iterator[dict[str, Any]]:
    """Every interface that is up, without its card; those of HCAs are the HCAs'."""
    seen = net.probe(host)
    links = seen if isinstance(seen, Unavailable) else seen.links
    for one in () if isinstance(links, Unavailable) else links:
        if one.up and not one.loopback and one.name not in others:
            speed = {} if isinstance(one.speed_mbps, Unavailable) else {"speed": one.speed_mbps}
            yield {"name": one.name, "address": _address(host, one.name), **speed}


def _address(host: Host, name: str) -> str:
    """The first IPv4 address of an interface, with its prefix; "" where it has none."""
    seen = net.probe(host)
    found = seen if isinstance(seen, Unavailable) else seen.link(name)
    if isinstance(found, Unavailable) or found is None:
        return ""
    return next((f"{one.ip}/{one.prefix}" for one in found.addresses if one.family == 4), "")

"""Machines drawn by seed: sockets, PCIe switches, GPUs, NVLinks, HCAs with their ports, modules, driver answers."""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any, Final

from tests.fakegpu import machine
from tests.fakegpu.differential.case import Version
from tests.fakegpu.machine import Machine

# name, PCI device id, compute capability, PCIe generation
MODELS: Final = (
    ("Tesla V100-PCIE-32GB", 0x1DB6, 70, 3),
    ("NVIDIA A100-PCIE-40GB", 0x20F1, 80, 4),
    ("NVIDIA L40S", 0x26B9, 89, 4),
    ("NVIDIA H100 PCIe", 0x2331, 90, 5),
)


# NCCL 2.32.3 refuses a device with two ACTIVE ports: "Inconsistent rail/plane for net mlx5_0" (ncclTopoPopulateNics).  It makes
# a plane of each port; where it takes that from its public source does not tell yet.  Such a device is a ConnectX-3.
ONE_PORT_SINCE: Final = (2, 32, 0)


def draw(seed: str, versions: Collection[Version] = ()) -> Machine:
    """A machine for these versions; one seed makes one machine."""
    rng = random.Random(seed)
    two_ports = all(version < ONE_PORT_SINCE for version in versions)
    sockets = rng.choice((1, 2, 2, 2))
    above, places = _places(rng, sockets)
    name, device, capability, generation = rng.choice(MODELS)
    wide = _link(rng, generation)  # GPUs of one machine are alike: see the known gaps in docs/fakegpu.md
    gpus = [{"at": _under(rng, rng.choice(places)), **wide} for _ in range(rng.choice((1, 2, 2, 4, 4)))]
    layer = rng.choice(("InfiniBand", "Ethernet"))
    hcas = [_hca(rng, rng.choice(places), generation, two_ports) for _ in range(rng.choice((0, 1, 1, 2, 2, 2, 4)))]
    if hcas and rng.random() < 0.2:
        # A virtual function, as a guest has it: what is at slot 0 of its bus is not there.  One alone: of two without a place
        # NCCL makes one device since 2.25, and ends: "Could not find any local path from gpu 0 to net."
        where = rng.choice(hcas)["at"]
        where[-1] = where[-1].replace(":00.0", rng.choice((":02.0", ":01.0", ":00.1", ":1f.6")))
    links = _nvlinks(rng, len(gpus))
    refused = 0.0 if links else 0.2  # NCCL ends where GPUs with an NVLink between them have no peer access
    modules = {"nvidia": "570.86.15", "nvidia_uvm": "", "ib_core": "", "ib_uverbs": "", "mlx5_core": "", "mlx5_ib": ""}
    if rng.random() < 0.5:
        modules["nvidia_peermem"] = rng.choice(("570.86.15", "570.86.15", ""))
    data: dict[str, Any] = {
        "name": f"drawn-{seed}".replace("/", "-"),
        "driver": {"version": "570.86.15", "cuda": rng.choice((12000, 12080, 12080, 13000))},
        "numa": [f"{n}" for n in range(sockets)],
        "above": above,
        "gpu": {
            "name": name,
            "device": device,
            "capability": capability,
            "multiprocessors": 108,
            "memory": 42949672960,
            "attributes": rng.choice(({}, {}, {}, {124: 0}, {124: 0}, {110: 0, 116: 0, 124: 0}, {116: 0}, {110: 0})),
        },
        "gpus": gpus,
        "nvlinks": links,
        "p2p": [[a, b, rng.choice(("none", "chipset"))] for a in range(len(gpus)) for b in range(a) if rng.random() < refused],
        "hca": {"layer": layer, "dmabuf": rng.random() < 0.8},
        "hcas": hcas,
        "nics": [{"name": "eth0", "at": ["board", "0000:02:00.0"], "address": "10.0.0.7/24", "link": {"max_generation": 3}}],
        "modules": modules,
        "memory_peers": rng.choice(([], [], [], ["nv_mem"], ["nvidia-peermem"], ["nv_mem_nc"])),
    }
    return machine.parse(data)


def _places(rng: random.Random, sockets: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What there is on each socket to plug a card into: a switch, a switch below a switch, a root port, nothing but the bus."""
    places = []
    unsaid = rng.random() < 0.1  # a firmware that names no node
    above: dict[str, Any] = {"board": {"numa": -1 if unsaid else 0, "path": ["0000:01:01.0"]}}
    for number in range(rng.choice((1, 2, 3, 4))):
        bus = 0x10 + 0x20 * number
        path = [f"0000:{bus:02x}:01.0"]
        kind = rng.choice(("switch", "switch", "switch", "deep", "port"))
        if kind != "port":
            path.append(f"0000:{bus + 1:02x}:00.0")
        if kind == "deep":
            path += [f"0000:{bus + 2:02x}:00.0", f"0000:{bus + 3:02x}:00.0"]
        numa = -1 if unsaid else rng.randrange(sockets)
        above[f"place{number}"] = {"numa": numa, "path": path}
        places.append({"name": f"place{number}", "kind": kind, "bus": bus + 4, "used": 0, "numa": numa, "above": above})
    return above, places


def _under(rng: random.Random, place: dict[str, Any]) -> list[str]:
    """A new card's place; a root port has one card, so another one gets a port of its own."""
    number = place["used"]
    place["used"] += 1
    card = place["bus"] + 1 + number
    if place["kind"] != "port":
        return [place["name"], f"0000:{place['bus']:02x}:{number:02x}.0", f"0000:{card:02x}:00.0"]
    name = f"{place['name']}-{number}"
    place["above"][name] = {"numa": place["numa"], "path": [f"0000:{place['bus'] - 4:02x}:{number + 1:02x}.0"]}
    return [name, f"0000:{card:02x}:00.0"]


def _link(rng: random.Random, generation: int) -> dict[str, Any]:
    width = rng.choice((16, 16, 16, 8))
    return {"link": {"max_generation": generation, "max_width": width}}


def _hca(rng: random.Random, place: dict[str, Any], generation: int, two_ports: bool) -> dict[str, Any]:
    states = rng.choice((["ACTIVE"], ["ACTIVE"], ["ACTIVE"], ["ACTIVE", "ACTIVE"], ["ACTIVE", "DOWN"], ["DOWN"]))
    states = states if two_ports else states[:1]
    one: dict[str, Any] = {"at": _under(rng, place), "rate": rng.choice((100, 200, 200, 400)), **_link(rng, generation)}
    return {**one, "ports": [{"state": state} for state in states]}


def _nvlinks(rng: random.Random, gpus: int) -> dict[str, Any]:
    if gpus < 2 or rng.random() < 0.6:
        return {}
    if rng.random() < 0.5:
        return {"switched": rng.choice((6, 12))}
    return {"pairs": [[n, n + 1] for n in range(0, gpus - 1, 2)], "each": 4}

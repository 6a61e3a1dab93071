"""What NCCL itself makes of a machine: its topology file and the devices that it says it uses, against the description.

python -m tests.fakegpu.topology [--version 2.27.5] [MACHINE…]     what differs; a machine is a name or a file
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from xml.etree import ElementTree

from tests.fakegpu import lab, machine, namespace
from tests.fakegpu.machine import Machine, Place
from tests.fakegpu.tree import speed_text


@dataclass(frozen=True)
class Seen:
    """Of one run over all GPUs."""

    log: str
    gpus: dict[str, dict[str, str]]  # PCI address -> attributes of its pci and gpu elements, "cpu"
    nets: dict[str, dict[str, str]]  # device -> attributes of its net and pci elements, "cpu"
    devices: tuple[str, ...]  # "mlx5_0:1/IB" in NCCL's order


def look(one: Machine, version: str) -> Seen:
    """NCCL's own view: all GPUs as ranks of this host, no connection made."""
    with namespace.scratch() as folder:
        file = folder / "topology.xml"
        env = {"NCCL_TOPO_DUMP_FILE": str(file), "NCCL_RUNTIME_CONNECT": "1", "NCCL_CUMEM_ENABLE": "0"}
        done = lab.run(one, version, len(one.gpus), env=env, network=True, steps="i", deadline=120)
        if not file.exists():
            raise RuntimeError(f"NCCL {version} wrote no topology: {done.ranks[0].failed or done.ranks[0].log[-500:]}")
        root = ElementTree.parse(file).getroot()
    gpus: dict[str, dict[str, str]] = {}
    nets: dict[str, dict[str, str]] = {}
    for cpu in root.iter("cpu"):
        for pci in cpu.iter("pci"):
            own = {**pci.attrib, "cpu": cpu.attrib["numaid"]}
            for gpu in pci.findall("gpu"):
                links = sum(int(link.attrib["count"]) for link in gpu.findall("nvlink"))
                gpus[pci.attrib["busid"]] = {**own, **gpu.attrib, "nvlinks": str(links)}
            for net in pci.findall("nic/net"):
                nets[net.attrib["name"]] = {**own, **net.attrib}
    using = next(iter(done.ranks[0].lines(r"NET/IB : Using \[")), "")
    return Seen(done.log, gpus, nets, tuple(re.findall(r"\](\S+:\d+/\w+)", using)))


def differences(one: Machine, seen: Seen) -> Iterator[str]:
    """Where NCCL's topology is not what the description says."""
    for n, gpu in enumerate(one.gpus):
        got = seen.gpus.get(gpu.place.address)
        if got is None:
            yield f"GPU {n} ({gpu.place.address}) is not in NCCL's topology"
            continue
        yield from _same(f"GPU {n}", got, gpu.place, gpu.link)
        told = {"sm": str(gpu.capability), "nvlinks": str(sum(link.up for link in gpu.nvlinks))}
        yield from (f"GPU {n}: {key} {got[key]}, told {value}" for key, value in told.items() if got[key] != value)
    for hca in one.hcas:
        port = hca.ports[0]
        if port.state != "ACTIVE" or port.layer not in ("InfiniBand", "Ethernet") or hca.node is None or hca.mode is None:
            continue
        got = seen.nets.get(hca.name)
        if got is None:
            yield f"{hca.name} is not in NCCL's topology"
            continue
        yield from _same(hca.name, got, hca.place, hca.link)
        if got["speed"] != str(1000 * port.rate):
            yield f"{hca.name}: speed {got['speed']}, told {1000 * port.rate}"


def _same(what: str, got: dict[str, str], place: Place, link: machine.Link) -> Iterator[str]:
    if got.get("busid") != place.address:
        yield f"{what}: at {got.get('busid')}, told {place.address}"
    if got["cpu"] != str(place.numa):
        yield f"{what}: NUMA node {got['cpu']}, told {place.numa}"
    if got["link_speed"] not in (speed_text(link.max_generation), ""):
        yield f"{what}: link speed {got['link_speed']}, told {speed_text(link.max_generation)}"
    if got["link_width"] != str(link.max_width):
        yield f"{what}: link width {got['link_width']}, told {link.max_width}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.topology")
    parser.add_argument("--version", default="2.27.5")
    parser.add_argument("machines", nargs="*")
    given = parser.parse_args()
    hosts = sorted(pathlib.Path("fixtures/hosts").glob("*/snapshot.json"))
    bad = 0
    for name in given.machines or (*machine.names(), *map(str, hosts)):
        one = machine.read(name)
        if not one.gpus:
            continue
        try:
            seen = look(one, given.version)
        except RuntimeError as error:
            print(f"{one.name:20} {error}", flush=True)
            bad += 1
            continue
        found = list(differences(one, seen))
        bad += bool(found)
        print(f"{one.name:20} {'; '.join(found) or 'as told'}; {' '.join(seen.devices) or 'no IB device'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

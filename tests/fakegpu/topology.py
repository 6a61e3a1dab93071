"""What NCCL itself makes of a machine: its topology file and the devices that it says it uses, against the description.

python -m tests.fakegpu.topology [--version 2.27.5] [MACHINE…]     what differs; a name of machines/ or of fixtures/hosts
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree

from tests.fakegpu import lab, machine, namespace
from tests.fakegpu.machine import Machine
from tests.fakegpu.parts import Link, Place
from tests.fakegpu.tree import speed_text


@dataclass(frozen=True)
class Seen:
    """Of one run over all GPUs."""

    log: str
    gpus: dict[str, dict[str, str]]  # PCI address -> attributes of its pci and gpu elements, "cpu"
    nets: dict[str, dict[str, str]]  # device -> attributes of its net and pci elements, "cpu"
    devices: tuple[str, ...]  # "mlx5_0:1/IB" in NCCL's order


HOSTS: Final = machine.MACHINES.parents[2] / "fixtures" / "hosts"


def machine_of(name: str) -> tuple[Machine, set[str] | None]:
    """A machine by name, described or of fixtures/hosts, and which devices the fixture says that NCCL uses.

    None: it says nothing.  Their order is libibverbs' (of registration with the kernel), which a snapshot does not have.
    """
    if name in machine.names():
        return machine.read(name), None
    file = HOSTS / name / "snapshot.json"
    using = re.search(r"NET/IB : Using ((?:\[\d+\]\S+ )+)", file.read_text(encoding="utf-8"))
    return machine.read(file), set(re.findall(r"\](\S+)", using[1]) if using else ())


def names() -> tuple[str, ...]:
    """All machines that have GPUs."""
    hosts = sorted(one.parent.name for one in HOSTS.glob("*/snapshot.json"))
    return tuple(one for one in (*machine.names(), *hosts) if machine_of(one)[0].gpus)


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
        for net in cpu.findall("nic/net"):
            nets[net.attrib["name"]] = {**net.attrib, "busid": "", "cpu": cpu.attrib["numaid"]}
    using = next(iter(done.ranks[0].lines(r"NET/IB : Using \[")), "")
    return Seen(done.log, gpus, nets, tuple(re.findall(r"\](\S+:\d+/\w+)", using)))


def differences(one: Machine, seen: Seen) -> Iterator[str]:
    """Where NCCL's topology is not what the description says."""
    for n, gpu in enumerate(one.gpus):
        got = seen.gpus.get(gpu.place.address)
        if got is None:
            yield f"GPU {n} ({gpu.place.address}) is not in NCCL's topology"
            continue
        yield from _same(f"GPU {n}", got, gpu.place.address, gpu.place, gpu.link)
        told = {"sm": str(gpu.capability), "nvlinks": str(sum(link.up for link in gpu.nvlinks))}
        yield from (f"GPU {n}: {key} {got[key]}, told {value}" for key, value in told.items() if got[key] != value)
    places = {x.place.address for x in one.gpus} | {x.place.address for x in one.hcas}
    places |= {x.place.address for x in one.nics if x.place}
    for hca in one.hcas:
        port = hca.ports[0]
        if port.state != "ACTIVE" or port.layer not in ("InfiniBand", "Ethernet") or hca.node is None or hca.mode is None:
            continue
        got = seen.nets.get(hca.name)
        if got is None:
            yield f"{hca.name} is not in NCCL's topology"
            continue
        # NCCL takes all ports and virtual functions of a card for the one at slot and function 0 (net_ib, NCCL_IB_MERGE_VFS).
        card = hca.place.address[:-4] + "00.0" if hca.place.address[-4:-2] != "00" else hca.place.address[:-1] + "0"
        if card in places:
            yield from _same(hca.name, got, card, hca.place, hca.link)
        elif got["busid"] not in ("", card):
            yield f"{hca.name}: at {got['busid']}, and NCCL would look at {card}, which is not there"
        if got["speed"] != str(1000 * port.rate):
            yield f"{hca.name}: speed {got['speed']}, told {1000 * port.rate}"


def _same(what: str, got: dict[str, str], address: str, place: Place, link: Link) -> Iterator[str]:
    if got["busid"] != address:
        yield f"{what}: at {got['busid']}, told {address}"
    if got["cpu"] != str(place.numa) and place.numa >= 0:
        yield f"{what}: NUMA node {got['cpu']}, told {place.numa}"
    if not place.bridges:
        return  # NCCL takes the lesser of the function's and the bridge's link: without a bridge it knows none
    if got["link_speed"] != speed_text(link.max_generation):
        yield f"{what}: link speed {got['link_speed']}, told {speed_text(link.max_generation)}"
    if got["link_width"] != str(link.max_width):
        yield f"{what}: link width {got['link_width']}, told {link.max_width}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.topology")
    parser.add_argument("--version", default="2.27.5")
    parser.add_argument("machines", nargs="*")
    given = parser.parse_args()
    bad = 0
    for name in given.machines or names():
        one, claimed = machine_of(name)
        try:
            seen = look(one, given.version)
        except RuntimeError as error:
            print(f"{name:20} {error}", flush=True)
            bad += 1
            continue
        found = list(differences(one, seen))
        if claimed not in (None, set(seen.devices)):
            found.append(f"the fixture says {' '.join(claimed or ())}")
        bad += bool(found)
        print(f"{name:20} {'; '.join(found) or 'as told'}; {' '.join(seen.devices) or 'no IB device'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

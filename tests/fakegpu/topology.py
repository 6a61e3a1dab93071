"""What NCCL itself makes of a machine, its topology file and what it prints, against what netdoctor says of the same machine.

Of a machine of fixtures/hosts netdoctor says it by the recording, of another by what its probes make of the description.

python -m tests.fakegpu.topology [--version 2.27.5] [MACHINE…]     what differs; a name of machines/ or of fixtures/hosts
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final
from xml.etree import ElementTree

from netdoctor.facts import gpu as gpu_facts, kernel as kernel_facts, net as net_facts, pci as pci_facts, rdma as rdma_facts
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.nccl_version import Version, parse
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.host.base import Host, ReplayHost
from netdoctor.model import Unavailable
from netdoctor.nccl import gpudirect, hcas, net_device, net_path
from netdoctor.nccl.gdr_evidence import gdr_mechanisms
from netdoctor.snapshot.snapshot import Snapshot, loads
from tests.fakegpu import answers, lab, machine, namespace, tree
from tests.fakegpu.machine import Machine
from tests.fakegpu.paths import VERSION_ENV
from tests.support.machines.composed_host import ComposedHost, SysTree

# A path of NCCL's graph: "NET/0-1 :GPU/0-1b000 (3/24.0/PIX) …"; before 2.19 without the number of the system.
_FROM_NET: Final = re.compile(r"NET/(?:[0-9a-f]+-)?([0-9A-Fa-f]+) :(.*)")
_TO_GPU: Final = re.compile(r"GPU/(?:[0-9a-f]+-)?([0-9A-Fa-f]+) \(\d+/([\d.]+)/(\w+)\)")
_MADE: Final = re.compile(r"Made virtual device \[(\d+)\] name=(\S+)")
PLUGIN: Final = "NET/Plugin: Loaded net plugin"
Row = dict[str, Any]
Path = tuple[str, float, float]  # type, and what its bandwidth is at least and at most


@dataclass(frozen=True)
class View:
    """One view of a machine, NCCL's or netdoctor's."""

    gpus: dict[str, Row]  # by PCI address
    nets: dict[str, Row]  # by device, those that NCCL's own IB transport takes
    paths: dict[tuple[str, str], Path]  # from device to GPU
    devices: tuple[str, ...] | None  # "mlx5_0:1/IB" in NCCL's order; None: nothing is said of it
    bootstrap: str | None  # interface


def names() -> tuple[str, ...]:
    """All machines that have GPUs: those with descriptions."""
    every = ((name, machine.read(name)) for name in (*machine.names(), *machine.fixtures()))
    return tuple(name for name, one in every if one.gpus and one.shown)


def recorded(name: str) -> Snapshot | None:
    """The snapshot of a machine of fixtures/hosts."""
    file = machine.HOSTS / name / "snapshot.json"
    return loads(file.read_text(encoding="utf-8")) if file.exists() else None


def described(one: Machine) -> ComposedHost:
    """A host that answers what the probes ask of hardware."""
    host = ComposedHost()
    tree.write(one, SysTree(host.files))
    for name in tree.devices(one):
        host.files.write(f"/dev/{name}", "")
    host.answers |= {"ask:nvml": answers.nvml(one), "ask:cuda": answers.cuda(one), "ask:netlink": answers.netlink(one)}
    host.answers["ask:ibverbs"] = answers.ibverbs(one, "libibverbs.so.1")
    return host


def claimed(one: Machine, version: str, taken: Snapshot | None = None) -> View:
    """What netdoctor says, by its own facts and rules."""
    host: Host = described(one) if taken is None else ReplayHost(taken.answers)
    number, hardware = parse(version), pci_facts.probe(host)
    devices = rdma_facts.probe(host).devices
    assert number is not None and isinstance(hardware, Pci) and not isinstance(devices, Unavailable)
    seen = _Seen(hardware, gpu_facts.probe(host), kernel_facts.probe(host), number)
    active = [device for device in devices if hcas.active_ports(device) and device.provider and device.provider.context]
    found = hcas.places(seen.gpus, seen.pci)
    assert not isinstance(found, Unavailable)
    places = [(place, place.device) for place in found if place.device]
    bootstrap = _bootstrap(taken) if taken else None
    nets = {device.name: seen.net(device, places[0][0]) for device in active}
    return View(
        {at.address: seen.gpu(place, at) for place, at in places},
        nets or dict(_sockets(host, bootstrap)),
        {(device.name, at.address): seen.path(place, at, device, active) for device in active for place, at in places},
        _devices(taken) if taken else None,
        bootstrap,
    )


def _devices(taken: Snapshot) -> tuple[str, ...] | None:
    """What the recorded run of NCCL uses; None: a plugin's."""
    log = taken.runs["Baseline"].run.log_text
    using = re.search(r"NET/IB : Using ((?:\[\d+\]\S+ )+)", log)
    return None if PLUGIN in log else tuple(re.findall(r"\](\S+)", using[1])) if using else ()


def _sockets(host: Host, name: str | None) -> Iterator[tuple[str, Row]]:
    """The interface that carries data where there is no RDMA device that NCCL takes."""
    seen = net_facts.probe(host)
    link = seen.link(name) if name and isinstance(seen, net_facts.Net) else None
    if name and link:
        speed, numa = link.speed_mbps, link.numa_node
        # net_socket.cc takes 10 Gb/s where sysfs does not tell
        yield name, {"speed": speed if isinstance(speed, int) else 10000, "gdr": False, "numa": numa}


def _bootstrap(taken: Snapshot) -> str | None:
    """The interface that the recorded libnccl took."""
    answer = next((value for key, value in taken.answers.items() if key.startswith("ask:nccl")), None)
    return str(answer["interface"]) if isinstance(answer, dict) else None


@dataclass(frozen=True)
class _Seen:
    """Facts of one machine, and the NCCL that is asked about."""

    pci: Pci
    gpus: Gpus
    kernel: Kernel
    version: Version

    def gpu(self, place: hcas.GpuPlace, at: PciDevice) -> Row:
        links = place.gpu.nvlinks if place.gpu else ()
        capability = place.gpu.capability if place.gpu else None
        assert isinstance(capability, tuple) and not isinstance(links, Unavailable)
        return {
            **self._function(at),
            "sm": 10 * capability[0] + capability[1],
            "nvlinks": sum(links),
            "gdr": bool(place.visible and place.visible.gpudirect_rdma),
        }

    def net(self, device: RdmaDevice, first: hcas.GpuPlace) -> Row:
        """NCCL notes GPUDirect of a NIC as its first rank has it."""
        assert isinstance(device.pci, str)
        card = net_device.card(device.pci, self.version)
        at = self.pci.at(card)
        mechanisms = gdr_mechanisms(self.version, self.kernel, self.gpus, first, device, None)
        # A card that is not there has no place: NCCL asks a path that does not exist.
        placed = self._function(at) if at else {}
        return {**placed, "at": card, "speed": int(1000 * hcas.rate(device)), "gdr": mechanisms.yes}

    def path(self, place: hcas.GpuPlace, gpu: PciDevice, device: RdmaDevice, every: list[RdmaDevice]) -> Path:
        assert isinstance(device.pci, str)
        c2c = place.c2c and self.version >= gpudirect.P2C_SINCE
        way = net_device.path(gpu, device, self.pci, self.version, c2c=c2c, direct=True)
        assert way
        limit, _ = gpudirect.level(self.version, None)
        mechanisms = gdr_mechanisms(self.version, self.kernel, self.gpus, place, device, None)
        if not (mechanisms.yes and gpudirect.within(way.kind, limit)):
            way = net_device.path(gpu, device, self.pci, self.version, c2c=c2c, direct=False)
            assert way
        own = net_path.LIMITLESS if c2c else net_path.gpu_link(gpu, self.pci, self.version)
        parts = [way.rest, own, net_path.nic(hcas.rate(device))]
        between = net_path.between_cpus(self.pci.cpu, self.version)
        if way.crosses is None:
            between = net_path.Bandwidth(between.low, net_path.LIMITLESS.high)
        figure = hcas.used(place, every, self.pci, self.version).figures.get(device.name) if c2c else None
        kind = gpudirect.LEVELS[figure[1]] if figure else way.kind
        return kind, *net_path.narrowest(*parts, *([] if way.crosses is False else [between]))

    def _function(self, one: PciDevice) -> Row:
        numa = -1 if isinstance(one.numa_node, Unavailable) else one.numa_node
        row: Row = {"switches": gpudirect.switches(one), "numa": numa}
        # NCCL takes the lesser of the function's and the bridge's link: without a bridge it knows none.
        if one.path and not isinstance(one.link, Unavailable):
            row |= {"link": (one.link.max_speed, one.link.max_width)}
        return row


def look(one: Machine, version: str) -> View:
    """NCCL's own view: all GPUs as ranks of this host, and one rank of another; no connection is made.

    Without the other host NCCL throws its NICs away where all GPUs reach each other (topo.cc, ncclTopoTrimSystem).
    """
    env = {"NCCL_RUNTIME_CONNECT": "1", "NCCL_CUMEM_ENABLE": "0", **VERSION_ENV.get(version, {})}
    here = [lab.Rank(n, {"NCCL_HOSTID": "here"}) for n in range(len(one.gpus))]
    ranks = [*here, lab.Rank(0, {"NCCL_HOSTID": "there"})]
    with namespace.scratch() as folder:
        file = folder / "topology.xml"
        env["NCCL_TOPO_DUMP_FILE"] = str(file)
        done = lab.run(one, version, ranks, env=env, network=True, steps="i", seconds=120, deadline=300)
        if not file.exists():
            raise RuntimeError(f"NCCL {version} wrote no topology: {done.ranks[0].failed or done.ranks[0].log[-500:]}")
        root = ElementTree.parse(file).getroot()
    found, nets, numbers = {}, {}, {}
    for cpu in root.iter("cpu"):
        for element, above in _functions(cpu, ()):
            row = {**_row(element, above), "numa": int(cpu.attrib["numaid"])}
            for one_gpu in element.findall("gpu"):
                links = sum(int(link.attrib["count"]) for link in one_gpu.findall("nvlink"))
                mine = {"sm": int(one_gpu.attrib["sm"]), "nvlinks": links, "gdr": one_gpu.attrib["gdr"] == "1"}
                found[element.attrib["busid"]] = {**row, **mine}
            for net in element.findall("nic/net"):
                nets[net.attrib["name"]] = {**row, **_net(net), "at": element.attrib["busid"]}
                numbers[int(net.attrib["dev"])] = net.attrib["name"]
        for net in cpu.findall("nic/net"):  # its card is not to be found
            nets[net.attrib["name"]] = _net(net)
            numbers[int(net.attrib["dev"])] = net.attrib["name"]
    # The file numbers devices of the hardware, the log those that NCCL made of them (2.25.1 counts on where they end).
    numbers |= {int(m[1]): m[2] for m in _MADE.finditer(done.ranks[0].log)}
    lines = done.ranks[0].lines(r"NET/IB : Using \[", r"Bootstrap ?: Using")
    sockets = next(iter(re.findall(r"Bootstrap ?: Using (\S+?):", "\n".join(lines))), None)
    using = next((line for line in lines if "NET/IB" in line), "")
    return View(
        found,
        nets,
        dict(_paths("".join(rank.log for rank in done.ranks[:-1]), numbers)),
        tuple(re.findall(r"\](\S+:\d+/\w+)", using)),
        sockets,
    )


def _functions(holder: ElementTree.Element, above: tuple[str, ...]) -> Iterator[tuple[ElementTree.Element, tuple[str, ...]]]:
    """PCI elements with the addresses of those above, nearest first."""
    for one in holder.findall("pci"):
        yield one, above
        yield from _functions(one, (one.attrib["busid"], *above))


def _row(element: ElementTree.Element, above: tuple[str, ...]) -> Row:
    speed = re.match(r"[\d.]+", element.attrib["link_speed"])
    return {"switches": above, "link": (float(speed[0]) if speed else 0.0, int(element.attrib["link_width"] or 0))}


def _net(element: ElementTree.Element) -> Row:
    return {"speed": int(element.attrib["speed"]), "gdr": element.attrib["gdr"] == "1"}


def _paths(log: str, numbers: dict[int, str]) -> Iterator[tuple[tuple[str, str], Path]]:
    """From NICs, for the other way NCCL counts in what a neighbour may forward (PXN).  Each rank prints its own domain."""
    for number, rest in _FROM_NET.findall(log):
        for bus, bandwidth, kind in _TO_GPU.findall(rest):
            digits = f"{int(bus, 16):013x}"
            address = f"{digits[-9:-5]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}"
            yield (numbers[int(number, 16)], address), (kind, float(bandwidth), float(bandwidth))


def differences(claims: View, seen: View) -> Iterator[str]:
    """Where netdoctor's view is not NCCL's."""
    # Which interface carries data without RDMA is said of a recorded libnccl alone.
    nets = seen.nets if claims.nets or claims.bootstrap else {}
    for what, mine, theirs in (("GPU", claims.gpus, seen.gpus), ("NIC", claims.nets, nets)):
        yield from (f"{what} {key} is not in NCCL's topology" for key in sorted(set(mine) - set(theirs)))
        yield from (f"{what} {key} is in NCCL's topology alone" for key in sorted(set(theirs) - set(mine)))
        for key in sorted(set(mine) & set(theirs)):
            told, got = mine[key], theirs[key]
            yield from (
                f"{what} {key}: {name} {got[name]}, told {told[name]}"
                for name in told
                if name in got and told[name] != got[name]
            )
    yield from (f"{' to GPU '.join(pair)}: NCCL prints no path" for pair in sorted(set(claims.paths) - set(seen.paths)))
    for pair, (kind, bandwidth, _) in sorted(seen.paths.items()):
        # netdoctor says nothing of the way to a card without RDMA.
        if pair in claims.paths and not _fits(claims.paths[pair], kind, bandwidth):
            yield f"{' to GPU '.join(pair)}: {kind} at {bandwidth} GB/s, told {claims.paths[pair]}"
    if claims.devices is not None and claims.devices != seen.devices:
        yield f"NCCL uses {' '.join(seen.devices or ()) or 'no IB device'}, told {' '.join(claims.devices) or 'none'}"
    if claims.bootstrap is not None and claims.bootstrap != seen.bootstrap:
        yield f"NCCL meets over {seen.bootstrap}, told {claims.bootstrap}"


def _fits(claim: Path, kind: str, bandwidth: float) -> bool:
    """NCCL prints one digit after the point."""
    alike = kind == claim[0] or (claim[0] == gpudirect.FAR and kind in ("PHB", "SYS"))
    return alike and claim[1] - 0.06 <= bandwidth <= claim[2] + 0.06


def compare(name: str, version: str) -> list[str]:
    """A machine by name: what differs."""
    one = machine.read(name)
    found = differences(claimed(one, version, recorded(name)), look(one, version))
    return list(found)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.topology")
    parser.add_argument("--version", default="2.27.5")
    parser.add_argument("machines", nargs="*")
    given = parser.parse_args()
    bad = 0
    for name in given.machines or names():
        try:
            found = compare(name, given.version)
        except RuntimeError as error:
            found = [str(error)]
        bad += bool(found)
        print(f"{name:20} {'; '.join(found) or 'as told'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())

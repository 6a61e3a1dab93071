"""The description of a machine that is not there: what the fake libraries read of it, and the /sys that it makes."""

from __future__ import annotations

import collections

import pytest

from netdoctor.facts import pci, rdma
from netdoctor.model import Unavailable
from tests.fakegpu import machine, nodes, topology, tree
from tests.fakegpu.faults import FAULTS
from tests.fakegpu.paths import PATHS
from tests.fakegpu.rows import ROWS
from tests.lab import fixtures

# Of the kernel alone, and of a file that netdoctor itself keeps: live_rows.py and live_expected.py of tests/lab have them.
NOT_OF_GPUS = {"net.tcp_buffers", "net.reach", "hardware.past", "process.limits", "node.system", "node.clock", "node.folders"}
NOT_OF_GPUS |= {"gpu.dcgm"}  # what another program says: its rows are the live lab's, with a dcgmi of ours
LEAST = 3


def keys(one: machine.Machine) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in one.lines() if not line.startswith(("fault ", "event ")))


@pytest.mark.parametrize("name", machine.names())
def test_a_tree_shows_the_machine_to_the_probes(name: str) -> None:
    one = machine.read(name)
    host = topology.described(one)
    seen = pci.probe(host)
    assert not isinstance(seen.devices, Unavailable) and not seen.unclassified
    by_address = {device.address: device for device in seen.devices}
    for place, link in [(gpu.place, gpu.link) for gpu in one.gpus] + [(hca.place, hca.link) for hca in one.hcas]:
        device = by_address[place.address]
        assert (device.path, device.root, device.numa_node) == (place.bridges, place.root, place.numa)
        assert not isinstance(device.link, Unavailable)
        assert device.link.speed == float(tree.SPEEDS[link.generation]) and device.link.width == link.width
    assert [gpu.address for gpu in seen.gpus or ()] == [gpu.place.address for gpu in one.gpus]
    devices = rdma.probe(host).devices
    assert not isinstance(devices, Unavailable)
    assert [(d.name, d.pci) for d in devices] == [(hca.name, hca.place.address) for hca in one.hcas]
    for device, hca in zip(devices, one.hcas, strict=True):
        assert not isinstance(device.ports, Unavailable)
        for port, told in zip(device.ports, hca.ports, strict=True):
            assert (port.state, port.rate_gbps) == (told.state, told.rate)
            assert port.link_layer == ("Ethernet" if told.ethernet else "InfiniBand")
            assert not isinstance(port.gids, Unavailable)
            assert {gid.index: (gid.value, gid.kind) for gid in port.gids} == {
                index: (gid.value, gid.kind) for index, gid in told.gids.items()
            }
        assert not isinstance(device.uverbs, Unavailable) and device.uverbs.node == f"/dev/infiniband/uverbs{hca.node}"


@pytest.mark.parametrize("name", machine.names())
def test_nothing_is_at_two_places(name: str) -> None:
    one = machine.read(name)
    places = [x.place for x in (*one.gpus, *one.hcas, *one.nics)] + list(one.switches)
    assert len({place.address for place in places}) == len(places)
    assert not {place.address for place in places} & {bridge for place in places for bridge in place.bridges}
    assert len({gpu.uuid for gpu in one.gpus}) == len(one.gpus) and len({hca.guid for hca in one.hcas}) == len(one.hcas)


def test_a_change_reaches_libraries_and_tree_alike() -> None:
    usual = machine.read("two-a100")
    one = usual.with_changes({"hcas.1.state": "DOWN", "gpus.all.attributes.124": 0, "hca.layer": "Ethernet"})
    told = keys(one)
    assert told["hca.1.port.1.state"] == "1" and told["hca.0.port.1.state"] == "4"
    assert [told[f"gpu.{n}.attribute.124"] for n in range(4)] == ["0"] * 4
    devices = rdma.probe(topology.described(one)).devices
    assert not isinstance(devices, Unavailable) and not isinstance(devices[1].ports, Unavailable)
    assert [(port.state, port.link_layer) for port in devices[1].ports] == [("DOWN", "Ethernet")]
    assert usual.with_changes({}) == machine.read("two-a100"), "the description itself is as it was"


def test_a_module_that_goes_takes_what_hangs_on_it() -> None:
    one = machine.read("two-a100")
    assert one.peermem and keys(one)["peermem"] == "1"
    without = one.with_changes({"modules.nvidia_peermem": None})
    assert not without.peermem and keys(without)["peermem"] == "0"
    unloaded = one.with_changes({"modules.nvidia": None})
    assert keys(unloaded)["gpus"] == "0" and not [name for name in tree.devices(unloaded) if name.startswith("nvidia0")]
    assert not tree.proc(unloaded)


def test_states_of_a_gpu_lie_over_those_of_all() -> None:
    told = keys(machine.read("hgx-h100").with_changes({"gpus.2.state.ecc.uncorrected": 3, "gpu.state.fabric.status": 1}))
    assert told["gpu.2.ecc.uncorrected"] == "3" and "gpu.1.ecc.uncorrected" not in told
    assert (told["gpu.2.fabric.state"], told["gpu.2.fabric.status"]) == ("3", "1")


def test_nvlinks() -> None:
    told = keys(machine.read("hgx-h100").with_changes({"gpus.3.links_down": [2]}))
    assert told["gpu.3.nvlinks"] == "18" and told["gpu.3.nvlink.2.down"] == "1" and "gpu.3.nvlink.1.down" not in told
    pairs = machine.read("two-a100").with_changes({"nvlinks": {"pairs": [[0, 1], [2, 3]], "each": 4}})
    assert [link.remote for link in pairs.gpus[2].nvlinks] == [pairs.gpus[3].place.address] * 4


def test_a_pair_of_gpus_is_told_both_ways() -> None:
    told = keys(machine.read("two-a100").with_changes({"p2p": [[0, 1, "chipset"]]}))
    assert told["p2p.0.1"] == told["p2p.1.0"] == "1"


def test_events_and_faults_are_lines_of_their_own() -> None:
    lines = list(
        machine.read("two-a100").with_changes({"events": ["mlx5_0 port_error 1 5"], "faults": ["cuInit 1 802"]}).lines()
    )
    assert "event mlx5_0 10 1 5" in lines and "fault cuInit 1 802" in lines


def test_what_nobody_reads_is_refused() -> None:
    with pytest.raises(ValueError, match="gpuz"):
        machine.read("two-a100").with_changes({"gpuz": 1})


def test_the_descriptions_of_paths_and_faults_can_be_read() -> None:
    for path in PATHS.values():
        machine.read(path.machine).with_changes(path.changes)
    for fault in FAULTS.values():
        one = machine.read(fault.machine).with_changes(fault.base).with_changes(fault.changes).with_changes(fault.there or {})
        assert list(one.lines())


def test_on_one_node() -> None:
    one = machine.read("two-a100").on_one_node()
    assert one.numa == ("0-27,28-55",) and {gpu.place.numa for gpu in one.gpus} == {0}
    assert machine.read("gb200-nvl72").on_one_node().distances == ("10",)


def test_distances_of_nodes_of_two_sockets() -> None:
    one = machine.read("two-a100").with_changes({"numa": ["0", "1", "2", "3"], "distances": {"socket": 2, "far": 32}})
    assert one.distances == ("10 12 32 32", "12 10 32 32", "32 32 10 12", "32 32 12 10")


@pytest.mark.parametrize(("cpus", "text"), [("0-3", "0000000f"), ("0,33", "00000002,00000001"), ("", "00000000")])
def test_cpu_map(cpus: str, text: str) -> None:
    assert tree.cpu_map(cpus) == text


LIES = {
    "gpus.0.attributes.116": 0,
    "gpus.1.capability": 90,
    "gpus.0.link.max_generation": 3,
    "gpus.2.link.max_width": 8,
    "gpus.3.links_down": [1],
    "above.switch0.numa": 1,
    "above.switch1.path": ["0000:50:01.0", "0000:52:00.0"],
    "hcas.0.rate": 100,
    "hcas.1.state": "DOWN",
    "hcas.0.link.max_width": 4,
    "hcas.1.at": ["switch1", "0000:52:02.0", "0000:56:00.0"],
}


@pytest.mark.parametrize("path", LIES)
def test_a_view_that_is_not_the_machine_s_is_found(path: str) -> None:
    one = machine.read("two-a100").with_changes({"nvlinks": {"pairs": [[0, 1], [2, 3]], "each": 4}})
    real = topology.claimed(one, "2.27.5")
    assert not list(topology.differences(real, real)) and len(real.paths) == 8
    assert list(topology.differences(topology.claimed(one.with_changes({path: LIES[path]}), "2.27.5"), real))


def test_every_check_of_gpus_has_three_faults() -> None:
    have = collections.Counter([row.check for row in ROWS] + [nodes.CHECK] * len(nodes.ROWS))
    checks = {spec.id for spec in fixtures.specs()} - NOT_OF_GPUS | {nodes.CHECK}  # which a preflight does not have
    assert {id: have[id] for id in checks if have[id] < LEAST} == {}
    assert set(have) <= checks
    names = [row.fault for row in ROWS]
    assert len(set(names)) == len(names)


# CUDA's results, what libibverbs refuses, completions, events, ends that do not agree, pairs, memory, a call that hangs; NVML's
# states are test_nvml_tells_the_states_that_it_is_told's.  That each bites is a live test's (and make lab's, on every version).
KNOBS = {
    *(f"cuda {n}" for n in (2, 100, 101, 214, 217, 304, 719, 802, 999)),
    *("cuda hangs", "memory is limited", "memory is taken", "no P2P for a pair", "P2P off by chipset", "NVLinks down"),
    *("no registration", "no registration of GPU memory", "create_qp refused", "modify_qp refused", "modify_qp times out"),
    *(f"completion {n}" for n in (4, 5, 9, 10, 12)),
    *("port error", "device fatal", "qp fatal", "port down", "no node"),
    *("VLAN differs", "GID kind differs", "GID family differs", "GID is empty", "GID beyond the table", "MTU of the way"),
    *("a GPU is lost", "nvml does not start", "fabric not started"),
}


def test_every_fault_has_a_knob() -> None:
    assert set(FAULTS) >= KNOBS

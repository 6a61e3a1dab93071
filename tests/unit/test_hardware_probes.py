"""Probes of the hardware on a tree of files: what they find, and that absent, denied, empty and unread stay apart."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

from netdoctor.facts import cpu, kernel, pci, rdma
from netdoctor.facts.rdma_ports import UNNAMED
from netdoctor.host.base import Answer, RecordingHost, ReplayHost
from netdoctor.host.live import LiveHost
from netdoctor.model import Unavailable
from tests.support.machines.sysfs import GPU_BUSES, HCA_BUSES, Extra, dgx_h100, scratch

DEV = {"dir:/dev": ["full", "null", "nvidia0", "nvidiactl", "zero"]}
VERBS: dict[str, Any] = {
    "library": "/usr/lib/libibverbs.so.1",
    "warnings": [],
    "devices": {f"mlx5_{n}": {"context": True, "error": "", "pd": "", "dmabuf": "EBADF"} for n in range(8)},
}


def answers(root: pathlib.Path, **faults: Any) -> dict[str, Answer]:
    """What a host with this tree answers to the probes of this file."""
    dgx_h100(root / "sys", **faults)
    host = RecordingHost(LiveHost(str(root)))
    for probe in (pci.probe, rdma.probe, cpu.probe, kernel.probe):
        probe(host)
    minors = {n: f"/dev/infiniband/uverbs{n}" for n in range(8)}
    devices: dict[str, Answer] = {}
    for n, node in minors.items():
        devices[f"stat:{node}"] = {"mode": 0o666, "uid": 0, "gid": 0, "type": "char", "major": 231, "minor": 192 + n, "dev": 5}
        devices[f"open:{node}:rw"] = {"errno": 0, "name": ""}
    devices["dir:/dev/infiniband"] = [f"uverbs{n}" for n in range(8)]
    return host.answers | devices | DEV | {"ask:ibverbs": VERBS}


@pytest.fixture
def root() -> Iterator[pathlib.Path]:
    with scratch() as folder:
        yield folder


@pytest.fixture(scope="module")
def healthy() -> dict[str, Answer]:
    with scratch() as folder:
        return answers(folder)


def the_pci(given: dict[str, Answer]) -> pci.Pci:
    got = pci.probe(ReplayHost(given))
    assert isinstance(got, pci.Pci), got
    return got


def the_rdma(given: dict[str, Answer]) -> rdma.Rdma:
    return rdma.probe(ReplayHost(given))


def devices(fact: rdma.Rdma) -> tuple[rdma.RdmaDevice, ...]:
    assert not isinstance(fact.devices, Unavailable), fact.devices
    return fact.devices


# PCI


def test_a_dgx(healthy: dict[str, Answer]) -> None:
    fact = the_pci(healthy)
    assert [d.address for d in fact.gpus] == [f"0000:{b:02x}:00.0" for b in GPU_BUSES]
    assert [d.address for d in fact.rdma] == [f"0000:{b:02x}:00.0" for b in HCA_BUSES]
    assert all(d.driver == "mlx5_core" for d in fact.rdma)
    assert [d.numa_node for d in fact.gpus] == [0] * 4 + [1] * 4
    assert fact.foreign_accelerators == () and fact.unclassified == ()
    first = fact.at("0000:1b:00.0")
    assert first and first.root == "pci0000:15" and first.link == pci.PciLink(32.0, 16, 32.0, 16)
    assert first.path == ("0000:15:01.0", "0000:16:00.0", "0000:17:01.0")
    assert all(fact.at(bridge) for bridge in first.path)
    # GPU and HCA of one switch share all but the last downstream port
    hca = fact.at("0000:18:00.0")
    assert hca and hca.path[:2] == first.path[:2] and hca.path != first.path


def test_a_narrow_link(root: pathlib.Path) -> None:
    fact = the_pci(answers(root, gpu_width={4: 8}))
    assert [d.link.width for d in fact.gpus if isinstance(d.link, pci.PciLink)] == [16] * 4 + [8] + [16] * 3


@pytest.mark.parametrize(
    ("vendor", "device", "klass", "driver", "rdma_family"),
    [
        (0x15B3, 0x1021, 0x020000, "mlx5_core", True),
        (0x15B3, 0x1021, 0x020000, "", True),
        (0x15B3, 0x1021, 0x020000, "vfio-pci", True),
        (0x15B3, 0xCF6C, 0x020000, "mlxsw_spectrum2", False),  # a switch
        (0x1D0F, 0xEFA1, 0x020000, "efa", True),
        (0x1D0F, 0xEC20, 0x020000, "ena", False),
        (0x1D0F, 0xEC20, 0x020000, "", False),
        (0x14E4, 0x1750, 0x020000, "bnxt_en", True),
        (0x14E4, 0x165F, 0x020000, "tg3", False),
        (0x14E4, 0x165F, 0x020000, "", False),
        (0x8086, 0x1592, 0x020000, "ice", True),
        (0x8086, 0x100E, 0x020000, "e1000", False),
        (0x8086, 0x1563, 0x020000, "ixgbe", False),
        (0x1414, 0x00BA, 0x020000, "mana", True),
        (0x1AE0, 0x0042, 0x020000, "gve", False),
        (0x1AF4, 0x1041, 0x020000, "virtio-pci", False),
        (0x1077, 0x1656, 0x020000, "qede", True),
        (0x15B3, 0x1003, 0x028000, "mlx4_core", True),
        (0x144D, 0xA80A, 0x010802, "nvme", None),  # not of these checks at all
    ],
)
def test_which_network_controllers_do_rdma(
    root: pathlib.Path, vendor: int, device: int, klass: int, driver: str, rdma_family: bool | None
) -> None:
    fact = the_pci(answers(root, gpus=0, hcas=0, extra=[Extra(0x21, vendor, device, klass, driver)]))
    one = fact.at("0000:21:00.0")
    assert (not one) == (rdma_family is None)
    if one:
        assert one.rdma == rdma_family


@pytest.mark.parametrize(
    ("vendor", "device", "klass", "words"),
    [
        (0x1002, 0x74A1, 0x120000, "AMD (0000:21:00.0)"),
        (0x1002, 0x740F, 0x038000, "AMD (0000:21:00.0)"),
        (0x1DA3, 0x1060, 0x120000, "Intel Gaudi (Habana) (0000:21:00.0)"),
        (0x1D0F, 0x7164, 0x088000, "AWS Neuron (0000:21:00.0)"),
        (0x8086, 0x0BD5, 0x038000, "Intel (0000:21:00.0)"),
        (0x1AE0, 0x0063, 0x120000, "Google TPU (0000:21:00.0)"),
        (0xABCD, 0x0001, 0x120000, "vendor abcd (0000:21:00.0)"),
        (0x10DE, 0x2330, 0x030200, None),
        (0x1A03, 0x2000, 0x030000, None),  # the graphics of a service processor
        (0x1002, 0x13C0, 0x030000, None),  # a processor's own graphics
        (0x10EE, 0x5020, 0x120000, None),  # an FPGA
        (0x1D0F, 0xEFA1, 0x020000, None),
    ],
)
def test_accelerators_that_are_not_judged(root: pathlib.Path, vendor: int, device: int, klass: int, words: str | None) -> None:
    fact = the_pci(answers(root, gpus=0, hcas=0, extra=[Extra(0x21, vendor, device, klass)]))
    assert fact.foreign_accelerators == ((words,) if words else ())


def test_the_model_of_an_accelerator_that_is_not_judged(root: pathlib.Path) -> None:
    told = answers(root, gpus=0, hcas=0, extra=[Extra(0x21, 0x1DA3, 0x1060, 0x120000)])
    udev = {"pci": {"0000:21:00.0": {"ID_MODEL_FROM_DATABASE": "Gaudi3"}}}
    assert the_pci({**told, "ask:udev": udev}).foreign_accelerators == ("Intel Gaudi (Habana) Gaudi3 (0000:21:00.0)",)


@pytest.mark.parametrize("node", ["kfd", "dxg", "neuron0", "davinci3"])
def test_accelerators_by_their_device_nodes(healthy: dict[str, Answer], node: str) -> None:
    assert the_pci(healthy | {"dir:/dev": ["null", node]}).foreign_accelerators == (f"/dev/{node}",)


def test_without_dev_nobody_denies_other_accelerators(healthy: dict[str, Answer]) -> None:
    nothing: list[Answer] = [Unavailable("denied"), []]
    for answer in nothing:
        assert isinstance(the_pci(healthy | {"dir:/dev": answer}).foreign_accelerators, Unavailable)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"dir:/sys/bus/pci/devices": Unavailable("denied")}, "denied"),
        ({"dir:/sys/bus/pci/devices": Unavailable("absent"), "dir:/sys/bus": []}, "empty"),
        ({"dir:/sys/bus/pci/devices": Unavailable("absent"), "dir:/sys/bus": Unavailable("absent")}, "absent"),
        ({"dir:/sys/bus/pci/devices": Unavailable("absent"), "dir:/sys/bus": ["cpu", "pci"]}, "empty"),
        ({"dir:/sys/bus/pci/devices": []}, "empty"),  # not recorded: /sys/devices
        ({"dir:/sys/bus/pci/devices": [], "dir:/sys/bus/pci": [], "dir:/sys/devices": ["system"]}, "empty"),
        ({"dir:/sys/bus/pci/devices": [], "dir:/sys/bus/pci": ["devices", "drivers"], "dir:/sys/devices": []}, "empty"),
        (
            {"dir:/sys/bus/pci/devices": [], "dir:/sys/bus/pci": ["drivers"], "dir:/sys/devices": ["pci0000:00", "system"]},
            "empty",
        ),
        ({"dir:/sys/bus/pci/devices": {"not": "a list"}}, "malformed"),
    ],
)
def test_a_masked_bus_is_not_an_empty_one(healthy: dict[str, Answer], change: dict[str, Answer], kind: str) -> None:
    got = pci.probe(ReplayHost(healthy | change))
    assert isinstance(got, Unavailable) and got.kind == kind


@pytest.mark.parametrize(
    "change",
    [
        {"dir:/sys/bus/pci/devices": Unavailable("absent"), "dir:/sys/bus": ["cpu", "virtio"]},
        {"dir:/sys/bus/pci/devices": [], "dir:/sys/bus/pci": ["devices", "drivers"], "dir:/sys/devices": ["system"]},
    ],
)
def test_a_machine_without_pci(healthy: dict[str, Answer], change: dict[str, Answer]) -> None:
    assert the_pci(healthy | change).devices == ()


def test_a_function_that_cannot_be_read_is_named(healthy: dict[str, Answer]) -> None:
    where = "file:/sys/bus/pci/devices/0000:18:00.0/uevent"
    for answer in (Unavailable("denied"), "", "PCI_ID=zz\n"):
        fact = the_pci(healthy | {where: answer})
        assert fact.unclassified == ("0000:18:00.0",) and len(fact.rdma) == 7
    everything = {q: Unavailable("denied") for q in healthy if q.endswith("/uevent")}
    assert isinstance(pci.probe(ReplayHost(healthy | everything)), Unavailable)


# RDMA


def test_eight_hcas(healthy: dict[str, Answer]) -> None:
    fact = the_rdma(healthy)
    assert [d.name for d in devices(fact)] == [f"mlx5_{n}" for n in range(8)]
    one = devices(fact)[5]
    assert (one.pci, one.driver, one.numa_node) == ("0000:c0:00.0", "mlx5_core", 1)
    assert (one.firmware, one.virtual_function) == ("28.39.1002", False)
    assert one.uverbs == rdma.Uverbs("/dev/infiniband/uverbs5", (231, 197), (231, 197), "", (0o666, 0, 0))
    assert one.provider == rdma.Provider(True, "", "EBADF")
    assert not isinstance(one.ports, Unavailable)
    port = one.ports[0]
    assert (port.number, port.state, port.physical, port.link_layer, port.rate_gbps) == (
        1,
        "ACTIVE",
        "LinkUp",
        "InfiniBand",
        400.0,
    )
    assert not isinstance(port.gids, Unavailable) and [g.index for g in port.gids] == [0]
    assert fact.libibverbs == "/usr/lib/libibverbs.so.1" and fact.verbs_devices == tuple(VERBS["devices"])


@pytest.mark.parametrize(
    ("told", "mtu"),
    [({"1": 4096}, 4096), ({"2": 4096}, None), ({}, None), ({"1": "4096"}, None), ({"1": True}, None), (None, None)],
)
def test_the_size_of_a_ports_packets(healthy: dict[str, Answer], told: Any, mtu: int | None) -> None:
    one = {**VERBS["devices"]["mlx5_0"], "mtu": told}
    seen = devices(the_rdma(healthy | {"ask:ibverbs": {**VERBS, "devices": {**VERBS["devices"], "mlx5_0": one}}}))
    assert [port.mtu for device in seen[:2] for port in device.ports or ()] == [mtu, None]


@pytest.mark.parametrize(
    ("numbers", "rate", "unnamed"),
    [
        ([2, 128], 400.0, False),
        ([2, 64], 200.0, False),
        ([16, 64], 100.0, False),
        ([2, 1], 10.0, False),
        ([2, 0], None, True),
        ([2], None, True),
        ("2", None, True),
        (None, None, True),
    ],
)
def test_a_speed_without_a_name_is_what_nccl_is_told(
    healthy: dict[str, Answer], numbers: Any, rate: float | None, unnamed: bool
) -> None:
    told = {"ask:ibverbs": {**VERBS, "devices": {"mlx5_0": {**VERBS["devices"]["mlx5_0"], "link": {"1": numbers}}}}}
    silent = {key: "10 Gb/sec (4X SDR)\n" for key in healthy if key.endswith("/ports/1/rate")}
    seen = devices(the_rdma(healthy | silent | told))
    port, other = (one.ports[0] for one in seen[:2] if one.ports)
    assert (port.rate_gbps or None, port.unnamed, bool(port.rate)) == (rate, unnamed, rate is not None)
    assert other.rate is UNNAMED


@pytest.mark.parametrize(
    ("written", "own", "known"),
    [
        ("40 Gb/sec (4X QDR)", "400000", False),
        ("40 Gb/sec (4X QDR)", "40000", True),
        ("40 Gb/sec (4X QDR)", None, False),
        ("100 Gb/sec (4X EDR)", "400000", True),  # mlx5 has a name for it
        ("400 Gb/sec (4X NDR)", None, True),
    ],
)
def test_a_speed_of_ethernet_that_stands_for_others(root: pathlib.Path, written: str, own: str | None, known: bool) -> None:
    given = answers(root, roce=True, gids=4)
    rates = {key: f"{written}\n" for key in given if key.endswith("/ports/1/rate")}
    where = "/sys/class/infiniband/mlx5_0/device/net"
    given |= {**rates, f"dir:{where}": ["eth1"], f"file:{where}/eth1/speed": f"{own}\n" if own else Unavailable("failed")}
    port = next(iter(devices(the_rdma(given))[0].ports or ()))
    assert (port.unnamed, bool(port.rate), port.rate_gbps) == (not known, known, float(written.split()[0]))


def test_roce_reads_the_filled_gids_and_their_interfaces(root: pathlib.Path) -> None:
    one = devices(the_rdma(answers(root, roce=True, gids=4)))[2]
    assert not isinstance(one.ports, Unavailable) and not isinstance(one.ports[0].gids, Unavailable)
    assert [(g.index, g.kind, g.netdev) for g in one.ports[0].gids] == [
        (0, "IB/RoCE v1", "eth3"),
        (1, "RoCE v2", "eth3"),
        (2, "IB/RoCE v1", "eth3"),
        (3, "RoCE v2", "eth3"),
    ]


def test_a_gid_whose_interface_is_elsewhere(root: pathlib.Path) -> None:
    given = answers(root, roce=True, gids=2)
    where = "file:/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/1"
    assert where in given
    one = devices(the_rdma(given | {where: Unavailable("failed", "EINVAL Invalid argument")}))[0]
    assert not isinstance(one.ports, Unavailable) and not isinstance(one.ports[0].gids, Unavailable)
    assert isinstance(one.ports[0].gids[1].netdev, Unavailable) and one.ports[0].gids[0].netdev == "eth1"


def test_holes_in_the_gid_table(root: pathlib.Path) -> None:
    given = answers(root, roce=True, gids=4)
    zero = "0000:0000:0000:0000:0000:0000:0000:0000\n"
    given |= {f"file:/sys/class/infiniband/mlx5_0/ports/1/gids/{n}": zero for n in (1, 2)}
    one = devices(the_rdma(given))[0]
    assert not isinstance(one.ports, Unavailable) and not isinstance(one.ports[0].gids, Unavailable)
    assert [g.index for g in one.ports[0].gids] == [0, 3]


def test_a_stale_node_shows_in_its_numbers(root: pathlib.Path) -> None:
    one = devices(the_rdma(answers(root, stale_uverbs={3})))[3].uverbs
    assert isinstance(one, rdma.Uverbs) and one.numbers == (231, 259) and one.node_numbers == (231, 195)


@pytest.mark.parametrize("name", ["EPERM", "EACCES", "ENXIO", "ENOENT"])
def test_the_errno_of_a_refused_open_is_kept(healthy: dict[str, Answer], name: str) -> None:
    one = devices(the_rdma(healthy | {"open:/dev/infiniband/uverbs0:rw": {"errno": 1, "name": name}}))[0].uverbs
    assert isinstance(one, rdma.Uverbs) and one.open_errno == name


def test_a_device_without_uverbs(root: pathlib.Path) -> None:
    got = devices(the_rdma(answers(root, without_uverbs={1})))
    assert isinstance(got[1].uverbs, Unavailable) and got[1].uverbs.kind == "absent"
    assert isinstance(got[0].uverbs, rdma.Uverbs)


def test_software_devices_and_auxiliary_ones(healthy: dict[str, Answer]) -> None:
    given = healthy | {
        "dir:/sys/class/infiniband": ["mana_0", "rxe0"],
        "link:/sys/class/infiniband/rxe0": "../../devices/virtual/infiniband/rxe0",
        "link:/sys/class/infiniband/mana_0": "../../devices/pci0000:00/0000:00:02.0/mana.rdma.0/infiniband/mana_0",
    }
    assert [d.pci for d in devices(the_rdma(given))] == ["0000:00:02.0", None]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"dir:/sys/class/infiniband": []}, ()),
        ({"dir:/sys/class/infiniband": Unavailable("absent"), "dir:/sys/class": ["net", "tty"]}, ()),
        ({"dir:/sys/class/infiniband": Unavailable("absent"), "dir:/sys/class": []}, "empty"),
        ({"dir:/sys/class/infiniband": Unavailable("absent"), "dir:/sys/class": Unavailable("absent")}, "absent"),
        ({"dir:/sys/class/infiniband": Unavailable("denied")}, "denied"),
        ({"dir:/sys/class/infiniband": "text"}, "malformed"),
    ],
)
def test_no_rdma_device_needs_a_real_sysfs(
    healthy: dict[str, Answer], change: dict[str, Answer], expected: tuple[()] | str
) -> None:
    got = the_rdma(healthy | change).devices
    assert got == expected if isinstance(expected, tuple) else isinstance(got, Unavailable) and got.kind == expected


def test_a_provider_that_crashes_takes_only_its_own_device(healthy: dict[str, Answer]) -> None:
    alone: dict[str, Answer] = {
        f"ask:ibverbs?device=mlx5_{n}": {
            "library": "x",
            "warnings": [],
            "devices": {f"mlx5_{n}": VERBS["devices"][f"mlx5_{n}"]},
        }
        for n in range(8)
    }
    alone["ask:ibverbs?device=mlx5_2"] = Unavailable("crashed", "SIGSEGV")
    got = devices(the_rdma(healthy | {"ask:ibverbs": Unavailable("crashed", "SIGSEGV")} | alone))
    assert got[2].provider == Unavailable("crashed", "SIGSEGV")
    assert all(isinstance(d.provider, rdma.Provider) for n, d in enumerate(got) if n != 2)


def test_what_libibverbs_does_not_list_is_absent(healthy: dict[str, Answer]) -> None:
    fact = the_rdma(healthy | {"ask:ibverbs": {"library": "x", "warnings": ["couldn't load driver"], "devices": {}}})
    assert all(isinstance(d.provider, Unavailable) and d.provider.kind == "absent" for d in devices(fact))
    assert fact.verbs_devices == ()
    none = {"library": "x", "warnings": [], "devices": {"unavailable": "unsupported", "detail": "ENOSYS"}}
    assert the_rdma(healthy | {"ask:ibverbs": none}).verbs_devices == Unavailable("unsupported", "ENOSYS")


# The tree itself


def test_the_tree_is_one_that_tools_can_walk(root: pathlib.Path) -> None:
    tree = dgx_h100(root / "sys")
    for one in tree.rglob("*"):
        assert one.exists(), one  # no link leads nowhere
    assert (tree / "bus/pci/devices/0000:1b:00.0/config").read_bytes()[:4] == bytes([0xDE, 0x10, 0x30, 0x23])


def test_a_virtual_function(root: pathlib.Path) -> None:
    given = answers(root, virtual_functions={0})
    assert [d.virtual_function for d in devices(the_rdma(given))] == [True] + [False] * 7
    one = the_pci(given).at("0000:18:00.0")
    assert one and one.physical_function == "0000:18:00.1"

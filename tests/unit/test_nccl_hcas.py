"""Which RDMA devices are taken for the job's, and that what could not be read excludes none of them."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci, PciDevice
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.model import Unavailable
from netdoctor.nccl import hcas
from netdoctor.nccl.selector import parse
from tests.support import facts as f

LOST = Unavailable("denied")
NO_PCI, NO_GPUS = Pci.unread(LOST), Gpus.unread(LOST)
DOWN = f.port(state="DOWN")


def dev(name: str, pci: str | None | Unavailable = None, *ports: Any, **changes: Any) -> RdmaDevice:
    return f.hca(0, **{"name": name, "pci": pci, "ports": ports or (f.port(),), **changes})


def place(device: PciDevice | Unavailable, name: str = f.GPU_NAME) -> hcas.GpuPlace:
    return hcas.GpuPlace("GPU0", 0, device, f.visible(0, name=name), None)


def only(found: tuple[hcas.GpuPlace, ...] | Unavailable) -> hcas.GpuPlace:
    assert not isinstance(found, Unavailable)
    (one,) = found
    return one


def names(devices: Any) -> list[str]:
    return [one.name for one in devices]


# Ports and rates

SLOW, HALF, FAST = (dev(f"{rate:g}", None, f.port(rate_gbps=rate)) for rate in (199.0, 200.0, 400.0))


@pytest.mark.parametrize(
    ("devices", "kept"),
    [
        ([FAST, HALF, SLOW], ["400", "200"]),  # at least half of the best rate
        ([SLOW, HALF], ["199", "200"]),
        ([FAST, dev("down", None, DOWN)], ["400"]),
        ([dev("down", None, DOWN), dev("too", None, DOWN)], ["down", "too"]),  # none is up: any may be the job's
        ([FAST, dev("storage", None, f.port(link_layer="Unspecified"))], ["400"]),
        # what could not be read excludes nothing
        ([FAST, dev("ports", None, ports=LOST)], ["400", "ports"]),
        ([FAST, dev("state", None, f.port(state=LOST))], ["400", "state"]),
        ([FAST, dev("layer", None, f.port(link_layer=LOST))], ["400", "layer"]),
        ([FAST, dev("rate", None, f.port(rate_gbps=LOST))], ["400", "rate"]),
        ([FAST, dev("one of two", None, f.port(rate_gbps=100.0), f.port(2, rate_gbps=LOST))], ["400", "one of two"]),
        ([FAST, dev("its second is down", None, f.port(rate_gbps=100.0), f.port(2, state="DOWN", rate_gbps=LOST))], ["400"]),
        # a port that is seen up does not make one that was not read the only one left
        ([dev("state", None, f.port(state=LOST)), dev("down", None, DOWN)], ["state", "down"]),
        ([SLOW, dev("two ports", None, DOWN, f.port(2, rate_gbps=400.0))], ["two ports"]),
    ],
)
def test_preferred(devices: list[RdmaDevice], kept: list[str]) -> None:
    assert names(hcas.prefer(devices)) == kept


@pytest.mark.parametrize(
    ("device", "known"),
    [
        (FAST, True),
        (dev("a", None, DOWN), True),
        (dev("a", None, ports=LOST), False),
        (dev("a", None, f.port(state=LOST)), False),
        (dev("a", None, f.port(link_layer=LOST)), False),
        (dev("a", None, f.port(rate_gbps=LOST)), False),
        (dev("a", None, f.port(state="DOWN", rate_gbps=LOST)), True),
    ],
)
def test_whether_all_is_known_that_preference_goes_by(device: RdmaDevice, known: bool) -> None:
    assert hcas.rates_read(device) is known


def test_a_device_without_an_active_port_has_no_rate() -> None:
    assert (hcas.rate(dev("down", None, DOWN)), hcas.rate(SLOW), hcas.rate(dev("lost", None, ports=LOST))) == (0.0, 199.0, 0.0)


# Places

GPU = f.gpu_device(0)
NEAR, NEAR_TOO = f.hca_device(0), f.hca_device(0, address="0000:19:00.0")  # the same switch
CPU_0, CPU_1 = f.hca_device(1), f.hca_device(7)  # through the host bridge of the same socket, and of the other
BLIND = f.hca_device(1, numa_node=LOST)
UNKNOWN_SLOT = f.hca_device(0, placed=False, path=(), root="")
A, B, C, D = "0000:18:00.0", "0000:19:00.0", CPU_0.address, CPU_1.address


def bus(*devices: PciDevice) -> Pci:
    return Pci(devices, ())


@pytest.mark.parametrize(
    ("gpu", "devices", "pci", "found"),
    [
        (place(GPU), {"a": A, "c": C}, bus(GPU, NEAR, CPU_0), ("PIX", ["a"])),
        (place(GPU), {"a": A, "b": B}, bus(GPU, NEAR, NEAR_TOO), ("PIX", ["a", "b"])),
        (place(GPU), {"c": C, "d": D}, bus(GPU, CPU_0, CPU_1), ("PHB", ["c"])),
        (place(GPU, "NVIDIA GH200 480GB"), {"c": C}, bus(GPU, CPU_0), ("P2C", ["c"])),
        (place(GPU), {"soft": None, "d": D}, bus(GPU, CPU_1), ("SYS", ["d"])),  # rxe and siw have no place and need none
        (place(GPU), {"soft": None}, bus(GPU), ("", ["soft"])),
        # the GPU's place is not known
        (place(GPU), {"a": A, "c": C}, NO_PCI, ("", ["a", "c"])),
        (place(LOST), {"a": A, "c": C}, bus(GPU, NEAR, CPU_0), ("", ["a", "c"])),
        (place(f.gpu_device(0, placed=False)), {"a": A, "c": C}, bus(NEAR, CPU_0), ("", ["a", "c"])),
        # a device whose place is not known may be nearer, except than one behind the GPU's own switch
        (place(GPU), {"c": C, "x": LOST}, bus(GPU, CPU_0), ("", ["x", "c"])),
        (place(GPU), {"c": C, "x": "0000:77:00.0"}, bus(GPU, CPU_0), ("", ["x", "c"])),
        (place(GPU), {"c": C, "a": A}, bus(GPU, CPU_0, UNKNOWN_SLOT), ("", ["a", "c"])),
        (place(GPU), {"a": A, "x": LOST}, bus(GPU, NEAR), ("PIX", ["a"])),
        (place(GPU), {"x": LOST}, bus(GPU), ("", ["x"])),
        # a NUMA node that could not be read: who goes through the CPU may be on either socket
        (place(GPU), {"c": C, "d": D}, bus(GPU, BLIND, CPU_1), ("", ["c", "d"])),
        (place(f.gpu_device(0, numa_node=LOST)), {"c": C, "d": D}, bus(CPU_0, CPU_1), ("", ["c", "d"])),
        (
            place(GPU, "NVIDIA GH200 480GB"),
            {"c": C, "d": D},
            bus(GPU, CPU_0, f.hca_device(7, numa_node=LOST)),
            ("", ["c", "d"]),
        ),
        (place(GPU), {"a": A, "c": C}, bus(GPU, NEAR, BLIND), ("PIX", ["a"])),  # it cannot be nearer than that
        (place(f.gpu_device(0, numa_node=LOST)), {"a": A, "c": C}, bus(NEAR, CPU_0), ("PIX", ["a"])),
    ],
)
def test_nearest(gpu: hcas.GpuPlace, devices: dict[str, Any], pci: Pci, found: tuple[str, list[str]]) -> None:
    kind, near = hcas.Candidates([dev(name, address) for name, address in devices.items()], pci).nearest(gpu)
    assert (kind, names(near)) == found


@pytest.mark.parametrize(
    ("gpus", "pci", "found"),
    [
        (f.gpus(2), f.pci(2, 0), [("GPU0", "0000:1b:00.0"), ("GPU1", "0000:43:00.0")]),
        # without libcuda's answer those of PCI, with what NVML knows of them
        (f.gpus(2, visible=LOST), f.pci(2, 0), [("GPU 0000:1b:00.0", "0000:1b:00.0"), ("GPU 0000:43:00.0", "0000:43:00.0")]),
        (f.gpus(1, visible=()), f.pci(1, 0), [("GPU 0000:1b:00.0", "0000:1b:00.0")]),
        (NO_GPUS, f.pci(1, 0), [("GPU 0000:1b:00.0", "0000:1b:00.0")]),
        (f.gpus(0), f.pci(0, 8), []),
        (NO_GPUS, NO_PCI, LOST),
        # a function whose class could not be read may be a GPU
        (NO_GPUS, f.pci(0, 8, unclassified=("0000:77:00.0",)), "the class of 0000:77:00.0 on PCI: it may be a GPU"),
        (NO_GPUS, f.pci(1, 8, unclassified=("0000:77:00.0",)), "the class of 0000:77:00.0 on PCI: it may be a GPU"),
        (f.gpus(1), f.pci(1, 8, unclassified=("0000:77:00.0",)), [("GPU0", "0000:1b:00.0")]),  # libcuda knows the job's
        # where it sits could not be told
        (f.gpus(1, all=(f.gpu(0, pci=LOST),)), f.pci(1, 0), [("GPU0", "NVML does not say where it sits")]),
        (f.gpus(1), f.pci(0, 0), [("GPU0", "no 0000:1b:00.0 on PCI")]),
        (f.gpus(1), NO_PCI, [("GPU0", "denied")]),
    ],
)
def test_places(gpus: Gpus, pci: Pci, found: Any) -> None:
    got = hcas.places(gpus, pci)
    if isinstance(got, Unavailable):
        assert found in (got, got.detail)
    else:
        where = [(one.label, one.device.address if isinstance(one.device, PciDevice) else str(one.device)) for one in got]
        assert where == found


def test_the_name_of_a_gpu_is_libcudas_or_nvmls() -> None:
    first = only(hcas.places(f.gpus(1, visible=LOST), f.pci(1, 0)))
    assert first.name == f.GPU_NAME and first.ordinal is None  # from NVML, by the PCI address
    assert hcas.GpuPlace("GPU0", 0, GPU, None, None).name == ""
    nameless = only(hcas.places(f.gpus(1, visible=(f.visible(0, name=LOST),)), f.pci(1, 0)))
    assert nameless.name == f.GPU_NAME


# Subjects

TWO = (dev("a", A), dev("b", B))
UNRATED = (dev("a", A), dev("b", B, f.port(rate_gbps=LOST)))
G = (place(GPU),)
CHOSEN, NEAREST = ("NCCL_IB_HCA selects it", True), ("nearest to GPU0 (PIX)", True)


@pytest.mark.parametrize(
    ("devices", "gpus", "pci", "choice", "found"),
    [
        (TWO, G, bus(GPU, NEAR, NEAR_TOO), "=b", {"b": ("NCCL_IB_HCA selects it", True)}),
        (TWO, LOST, NO_PCI, "=b", {"b": ("NCCL_IB_HCA selects it", True)}),
        (TWO, G, bus(GPU, NEAR, NEAR_TOO), "=c", {}),
        (TWO, LOST, bus(NEAR, NEAR_TOO), "", dict.fromkeys("ab", ("the job's GPUs could not be read (denied)", False))),
        (TWO, (), bus(NEAR, NEAR_TOO), "", dict.fromkeys("ab", ("no GPU to measure the distance from", True))),
        (
            (*TWO, dev("s", C, f.port(rate_gbps=25.0))),
            (),
            bus(NEAR, NEAR_TOO, CPU_0),
            "",
            dict.fromkeys("ab", ("no GPU to measure the distance from", True)),
        ),
        (TWO, G, bus(GPU, NEAR, NEAR_TOO), "", dict.fromkeys("ab", ("nearest to GPU0 (PIX)", True))),
        (TWO, G, NO_PCI, "", dict.fromkeys("ab", ("perhaps the HCA of GPU0", False))),
        # of two at one distance the other may be the job's, where the rate of one could not be read
        (
            UNRATED,
            G,
            bus(GPU, NEAR, NEAR_TOO),
            "",
            {"a": ("nearest to GPU0 (PIX)", True), "b": ("perhaps the HCA of GPU0 (PIX)", False)},
        ),
        (UNRATED[1:], G, bus(GPU, NEAR_TOO), "", {"b": ("nearest to GPU0 (PIX)", True)}),  # no other to choose
        # certain for one GPU is certain
        (
            UNRATED,
            (*G, hcas.GpuPlace("GPU1", 1, LOST, None, None)),
            bus(GPU, NEAR, NEAR_TOO),
            "",
            {"a": ("nearest to GPU0 (PIX), GPU1", True), "b": ("perhaps the HCA of GPU0 (PIX), GPU1", False)},
        ),
        (
            TWO,
            (hcas.GpuPlace("GPU1", 1, LOST, None, None), *G),
            bus(GPU, NEAR, NEAR_TOO),
            "",
            dict.fromkeys("ab", ("nearest to GPU1, GPU0 (PIX)", True)),
        ),
        # a device without a place is said, also where it is not the nearest
        (
            (dev("a", A), dev("x", LOST)),
            G,
            bus(GPU, NEAR),
            "",
            {
                "a": ("nearest to GPU0 (PIX)", True),
                "x": ("perhaps the HCA of one of the GPUs: its place on PCI is not known", False),
            },
        ),
        ((dev("a", A), dev("soft", None)), G, bus(GPU, NEAR), "", {"a": ("nearest to GPU0 (PIX)", True)}),
        # a prefix takes what nobody meant, too: then the nearest of them count, and what is called by its name
        ((dev("x1", A), dev("x12", C)), G, bus(GPU, NEAR, CPU_0), "x1", {"x1": CHOSEN}),
        ((dev("x1", A), dev("x12", C), dev("x13", C)), G, bus(GPU, NEAR, CPU_0), "=x12", {"x12": CHOSEN}),
        ((dev("x1", A), dev("x12", C), dev("x13", C)), G, bus(GPU, NEAR, CPU_0), "x12,x", {"x12": CHOSEN, "x1": NEAREST}),
        ((dev("x1", A), dev("x12", C)), G, bus(GPU, NEAR, CPU_0), "^x12", {"x1": NEAREST}),
        # through the CPU an idle port may be another network's, and one that works is the job's all the same
        (
            (dev("c", C, DOWN), dev("d", D)),
            G,
            bus(GPU, CPU_0, CPU_1),
            "",
            {"c": ("perhaps the HCA of GPU0 (PHB)", False), "d": ("nearest to GPU0 (SYS)", True)},
        ),
        (
            (dev("c", C, DOWN), dev("d", D, f.port(state=LOST))),
            G,
            bus(GPU, CPU_0, CPU_1),
            "",
            {"c": ("perhaps the HCA of GPU0 (PHB)", False), "d": ("nearest to GPU0 (SYS)", True)},
        ),
        ((dev("c", C, f.port(state=LOST)), dev("d", D)), G, bus(GPU, CPU_0, CPU_1), "", {"c": ("nearest to GPU0 (PHB)", True)}),
        ((dev("c", C, DOWN), dev("d", D, DOWN)), G, bus(GPU, CPU_0, CPU_1), "", {"c": ("nearest to GPU0 (PHB)", True)}),
        ((dev("a", A, DOWN), dev("d", D)), G, bus(GPU, NEAR, CPU_1), "", {"a": ("nearest to GPU0 (PIX)", True)}),
    ],
)
def test_subjects(
    devices: tuple[RdmaDevice, ...], gpus: Any, pci: Pci, choice: str, found: dict[str, tuple[str, bool]]
) -> None:
    got = hcas.subjects(devices, gpus, pci, parse(choice))
    assert {one.device.name: (one.why, one.certain) for one in got} == found


@pytest.mark.parametrize(
    ("selector", "taken"),
    [
        ("mlx5_1", ["mlx5_1", "mlx5_12"]),
        ("=mlx5_1", ["mlx5_1"]),
        ("=mlx5_1:2", []),
        ("=mlx5_12:2", ["mlx5_12"]),
        ("^mlx5_1", ["lost"]),
        ("=lost:1", ["lost"]),
        ("=lost:2", ["lost"]),
        ("=lost:3", []),
        ("^=lost:1,mlx5", ["mlx5_1", "mlx5_12", "lost"]),
        ("^=lost,mlx5", ["mlx5_1", "mlx5_12"]),
    ],
)
def test_selected_by_port(selector: str, taken: list[str]) -> None:
    """A device whose ports could not be listed may have the one that is named: HCAs have one or two."""
    choice = parse(selector)
    assert choice is not None
    devices = (dev("mlx5_1"), dev("mlx5_12", None, f.port(), f.port(2)), dev("lost", None, ports=LOST))
    assert names(hcas.selected(devices, choice)) == taken


@pytest.mark.parametrize(
    ("pci", "gpus", "none"),
    [
        (f.pci(0, 8), f.gpus(0), True),
        (f.pci(0, 8), f.gpus(0, visible=Unavailable("absent")), True),  # no libcuda
        (f.pci(0, 8), Gpus.unread(Unavailable("absent")), False),  # a probe that said so of itself
        (f.pci(0, 8), f.gpus(0, visible=LOST), False),
        (f.pci(0, 8), NO_GPUS, False),
        (f.pci(0, 8), f.gpus(1), False),
        (f.pci(1, 8), f.gpus(0), False),
        (NO_PCI, f.gpus(0), False),
        (f.pci(0, 8, foreign_accelerators=("AMD (0000:c1:00.0)",)), f.gpus(0), False),
        (f.pci(0, 8, foreign_accelerators=LOST), f.gpus(0), False),
    ],
)
def test_no_accelerator_needs_both_sources(pci: Pci, gpus: Gpus, none: bool) -> None:
    assert hcas.no_accelerator(pci, gpus) is none


# Functions of one port (Socket Direct)


IMAGE = "a088:c203:00aa:0000"


def function(name: str, pci: str, state: str = "ACTIVE", **changes: Any) -> RdmaDevice:
    return dev(name, pci, f.port(state=state), **{"image": IMAGE, **changes})


@pytest.mark.parametrize(
    ("other", "seen"),
    [
        (function("b", "0000:9a:00.0", "DOWN"), ["a"]),
        (function("b", "0000:9a:00.0"), ["a", "b"]),  # NCCL uses both
        (function("b", "0000:18:00.1", "DOWN"), ["a", "b"]),  # the other port of a card with two
        (function("b", "0000:9a:00.0", "DOWN", image="a088:c203:00bb:0000"), ["a", "b"]),
        (function("b", "0000:9a:00.0", "DOWN", image=LOST), ["a", "b"]),
        (function("b", "0000:9a:00.0", "DOWN", virtual_function=True), ["a", "b"]),
        (function("b", None, "DOWN"), ["a", "b"]),  # type: ignore[arg-type]
        (dev("b", "0000:9a:00.0", f.port(state=LOST), image=IMAGE), ["a", "b"]),
    ],
)
def test_a_function_whose_port_another_has_is_no_second_hca(other: RdmaDevice, seen: list[str]) -> None:
    assert names(hcas.seen_once((function("a", "0000:18:00.0"), other))) == seen


def test_two_ports_on_two_sockets() -> None:
    card = tuple(function(f"{bus}.{n}", f"0000:{bus}:00.{n}") for bus in ("18", "9a") for n in range(2))
    assert [names(hcas.twins(one, card)) for one in card] == [["9a.0"], ["9a.1"], ["18.0"], ["18.1"]]


def test_cards_without_an_image_are_nobodys_twins() -> None:
    assert hcas.twins(function("a", "0000:18:00.0", image=""), (function("b", "0000:9a:00.0", image=""),)) == ()

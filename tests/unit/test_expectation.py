"""What a node ought to have: the sources one by one, and how they are weighed."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace

import pytest

from netdoctor.expectation import device, platform, siblings
from netdoctor.expectation.comparisons import rails as of_rails
from netdoctor.expectation.findings import About, findings
from netdoctor.expectation.model import Comparison, Expectation, Part, Quantity, Source, is_short, judged
from netdoctor.expectation.parts import gpus as of_gpus, half_bridged, unlinked
from netdoctor.expectation.rails import Rails, rails
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.platform import Platform
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.model import Status, Unavailable
from netdoctor.nccl.selector import parse_hcas
from tests.support import facts as f

LOST = Unavailable("denied")
BARE = Platform("", "", "")


@pytest.mark.parametrize(
    ("quantity", "values", "should"),
    [
        (Quantity.RATE, [400.0] * 7 + [200.0], 400.0),
        (Quantity.RATE, [200.0] * 7 + [400.0], 200.0),  # one that is faster takes nothing from the others
        (Quantity.RATE, [400.0, 200.0], 400.0),
        (Quantity.RATE, [400.0] * 4 + [200.0] * 4, None),
        (Quantity.FIRMWARE, ["28.39"] * 3 + ["28.36"], "28.39"),
        (Quantity.FIRMWARE, ["28.39", "28.39", "28.36", "28.40"], None),
        (Quantity.NEAREST, [1] * 6 + [0] * 2, 1),
        (Quantity.NEAREST, [1] * 5 + [0] * 3, None),  # built so
        (Quantity.NEAREST, [0] * 7 + [1], 0),
    ],
)
def test_what_most_have(quantity: Quantity, values: Sequence[float | str], should: object) -> None:
    assert siblings.usual(quantity, values) == should


def parts(*values: object, like: str = "rails") -> list[Part]:
    return [Part(f"mlx5_{n}", {Quantity.RATE: value}, like) for n, value in enumerate(values)]  # type: ignore[dict-item]


def test_the_one_that_differs_is_named() -> None:
    group = parts(400.0, 400.0, 200.0, None)
    result = judged(group, siblings.of(group))
    assert [(one.expectation.subject, one.left) for one in result.shortfalls] == [("mlx5_2", 0.5)]
    assert "2 others of its kind" in result.shortfalls[0].expectation.text


def test_where_one_is_lost_none_is_judged() -> None:
    group = parts(400.0, 200.0, 400.0, LOST)
    result = judged(group, siblings.of(group))
    assert not result.shortfalls and [one.expectation.subject for one in result.doubts] == ["mlx5_3"]


def test_who_has_no_like_has_no_siblings() -> None:
    assert not list(siblings.of([*parts(400.0, like="a"), *parts(200.0, like="b"), *parts(1.0, 2.0, like="")]))


def test_memory_of_one_model_differs_a_little() -> None:
    group = [Part(str(n), {Quantity.MEMORY: size}, "GPUs") for n, size in enumerate((79.6, 79.6, 79.0))]
    assert not judged(group, siblings.of(group)).shortfalls


def found(*, pci: Pci | None = None, rdma: Rdma | None = None, hca: str = "") -> Rails:
    got = rails(pci or f.pci(), rdma or f.rdma(), f.net(), parse_hcas(hca))
    assert isinstance(got, Rails), got
    return got


def names(got: Rails) -> list[str]:
    return [one.name for one in got.devices]


def hca(n: int, **changes: object) -> RdmaDevice:
    return replace((f.rdma().devices or ())[n], **changes)  # type: ignore[arg-type]


def beside(*devices: PciDevice) -> Pci:
    return f.pci(devices=(*(f.pci().devices or ()), *devices))


def test_rails_are_those_behind_the_switches_of_gpus() -> None:
    storage = f.hca_device(0, address="0000:29:00.0", path=("0000:28:01.0",), root="pci0000:28")
    devices = f.rdma().devices or ()
    got = found(pci=beside(storage), rdma=f.rdma(devices=(*devices, hca(0, name="mlx5_8", pci="0000:29:00.0"))))
    assert names(got) == [f"mlx5_{n}" for n in range(8)] and got.by_switch


def test_another_model_beside_a_rail_is_none() -> None:
    """A DPU for storage behind the switch of a GPU that has its rail."""
    dpu = f.hca_device(0, address="0000:19:00.0", device=0xA2DC)
    devices = f.rdma().devices or ()
    got = found(pci=beside(dpu), rdma=f.rdma(devices=(*devices, hca(0, name="mlx5_8", pci="0000:19:00.0", firmware="32.1"))))
    assert names(got) == [f"mlx5_{n}" for n in range(8)]
    assert not judged([*got.parts, *got.near], [*siblings.of(got.parts), *siblings.of(got.near)]).shortfalls


def test_a_second_card_of_the_same_model_is_not_compared() -> None:
    other = f.hca_device(0, address="0000:19:00.0")
    devices = f.rdma().devices or ()
    got = found(pci=beside(other), rdma=f.rdma(devices=(*devices, hca(0, name="mlx5_8", pci="0000:19:00.0", firmware="1"))))
    assert {part.name for part in got.parts if not part.like} == {"mlx5_0", "mlx5_8"}
    assert not judged([*got.parts, *got.near], [*siblings.of(got.parts), *siblings.of(got.near)]).shortfalls


def short(got: Rails) -> set[str]:
    every = [*siblings.of(got.parts), *siblings.of(got.near)]
    return {one.expectation.subject for one in judged([*got.parts, *got.near], every).shortfalls}


def test_a_rail_whose_gpu_is_gone_is_named() -> None:
    assert short(found(pci=f.pci(devices=tuple(d for d in f.pci().devices or () if d != f.gpu_device(3))))) == {"mlx5_3"}


def test_a_gpu_of_a_virtual_machine_is_there() -> None:
    """KVM on the node: two GPUs are bound to vfio-pci."""
    given = tuple(
        replace(d, driver="vfio-pci") if d.is_gpu and d in (f.gpu_device(3), f.gpu_device(4)) else d
        for d in f.pci().devices or ()
    )
    got = found(pci=f.pci(devices=given))
    assert short(got) == set() and len(got.devices) == 8


def test_how_many_are_chosen_is_the_jobs() -> None:
    got = found(hca="=mlx5_0,mlx5_1,mlx5_2")
    assert got.chosen and names(got) == ["mlx5_0", "mlx5_1", "mlx5_2"] and short(got) == set()


@pytest.mark.parametrize(
    ("width", "speed", "busy", "worked", "name", "wrong"),
    [
        (16, 32.0, 0, 0.0, f.GPU_NAME, set()),
        (8, 32.0, 0, 0.0, f.GPU_NAME, {Quantity.WIDTH}),
        (16, 2.5, 0, 0.0, f.GPU_NAME, set()),  # a GPU that rests
        (16, 2.5, 0, 32.0, f.GPU_NAME, set()),
        (16, 2.5, 0, 8.0, f.GPU_NAME, {Quantity.SPEED}),  # and rests no more, but for its link
        (16, 2.5, 90, 0.0, f.GPU_NAME, {Quantity.SPEED}),
        (1, 2.5, 90, 2.5, "NVIDIA GH200 480GB", set()),
    ],
)
def test_links_of_a_gpu(width: int, speed: float, busy: int, worked: float, name: str, wrong: set[Quantity]) -> None:
    gpu = f.gpu_device(0, link=PciLink(speed, width, 32.0, 16), path=("0000:1a:01.0",))
    port = f.gpu_device(1, address="0000:1a:01.0", klass=0x060400, vendor=0x8086, link=PciLink(speed, width, 32.0, 16), path=())
    nvml = f.gpus(all=(f.gpu(0, utilization=busy, name=name),))
    run = f.run(ranks=(f.rank(0, gpu=gpu.address, link_speed=worked),))
    look = device.links(f.pci(devices=(gpu, port)), nvml, f.rdma(devices=()), f.net(), run)
    assert {one.expectation.quantity for one in judged(look.parts, look.expectations).shortfalls} == wrong


@pytest.mark.parametrize(("vendor", "most"), [(0x1B36, 16), (0x8086, 8)], ids=["QEMU's port", "a slot of eight lanes"])
def test_a_narrow_slot_is_no_fault(vendor: int, most: int) -> None:
    gpu = f.gpu_device(0, link=PciLink(32.0, 8, 32.0, 16), path=("0000:1a:01.0",))
    port = f.gpu_device(1, address="0000:1a:01.0", klass=0x060400, vendor=vendor, link=PciLink(32.0, 8, 32.0, most), path=())
    look = device.links(f.pci(devices=(gpu, port)), f.gpus(), f.rdma(devices=()), f.net(), f.run())
    assert not judged(look.parts, look.expectations).shortfalls


@pytest.mark.parametrize(
    ("gpus", "switches", "links", "claims"),
    [
        (8, 0, (True,) * 18, 8),  # a virtual machine does not see the NVSwitches
        (1, 0, (False,) * 18, 0),  # a slice: its NVLinks are off
        (2, 0, (False,) * 18, 0),
        (8, 0, (False,) * 18, 0),  # nothing shows that the links are connected
        (8, 4, (False,) * 18, 8),
    ],
)
def test_nvlinks_are_claimed_where_the_board_is(gpus: int, switches: int, links: tuple[bool, ...], claims: int) -> None:
    pci = f.pci(gpus, nvswitches=tuple(f"0000:05:0{n}.0" for n in range(switches)))
    nvml = f.gpus(gpus, all=tuple(f.gpu(n, nvlinks=links) for n in range(gpus)))
    assert len(list(device.nvlinks(pci, nvml))) == claims


def test_which_nvlinks_are_down_is_told() -> None:
    links = tuple(number not in (7, 11) for number in range(18))
    nvml = f.gpus(8, all=(f.gpu(0, nvlinks=links), *(f.gpu(n) for n in range(1, 8))))
    said = [one.because for one in device.nvlinks(f.pci(8), nvml)]
    assert said[0].endswith("900 GB/s; down: 7, 11") and all("down" not in one for one in said[1:])


MODELS = {
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H200": 18,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA H800": 8,
    "NVIDIA B200": 18,
    "NVIDIA H100 PCIe": None,
    "NVIDIA H100 NVL": None,
    "NVIDIA A100 80GB PCIe": None,
    "NVIDIA GH200 480GB": None,
    "Tesla V100-SXM2-32GB": None,
}


@pytest.mark.parametrize(("name", "links"), MODELS.items())
def test_nvlinks_by_model(name: str, links: int | None) -> None:
    known = device.by_model(f.gpu(0, name=name))
    assert (known and known[0]) == links


def shape(firmware: Platform, name: str = f.GPU_NAME, switches: int = 0) -> str | None | Unavailable:
    nvml: Gpus = f.gpus(all=(f.gpu(0, name=name),))
    got = platform.shape(firmware, f.pci(nvswitches=("0000:05:00.0",) * switches), nvml, f.expected())
    return got.name if isinstance(got, platform.Shape) else got


AZURE = "7783-7084-3265-9085-8269-3286-77"
SHAPES = {
    ("NVIDIA", "DGX GB200", "", "", "NVIDIA GB200", 0): "NVIDIA DGX GB200, GB300",
    ("NVIDIA", "GB200 NVL", "", "", "NVIDIA GB200", 0): "GB200, GB300 NVL72 compute tray",
    ("NVIDIA", "DGXH100", "", "", f.GPU_NAME, 4): "NVIDIA DGX H100",
    ("NVIDIA", "DGX H100", "", "", f.GPU_NAME, 0): "NVIDIA DGX H100",
    ("NVIDIA", "DGXA100 920-23687-2530-000", "", "", "NVIDIA A100-SXM4-80GB", 6): "NVIDIA DGX A100",
    ("Amazon EC2", "p5.48xlarge", "", "p5.48xlarge", f.GPU_NAME, 0): "AWS p5.48xlarge",
    ("Amazon EC2", "p5.4xlarge", "", "p5.4xlarge", f.GPU_NAME, 0): None,
    ("Amazon EC2", "p5en.48xlarge", "", "p5en.48xlarge", "NVIDIA H200", 0): "AWS p5en.48xlarge",
    ("Amazon EC2", "g6e.12xlarge", "", "g6e.12xlarge", "NVIDIA L40S", 0): "AWS g5, g6, g6e: 12xlarge and 24xlarge",
    ("Microsoft Corporation", "Virtual Machine", AZURE, "", f.GPU_NAME, 0): "Azure ND H100 v5",
    ("Microsoft Corporation", "Virtual Machine", AZURE, "Standard_ND96isr_H100_v5", f.GPU_NAME, 0): "Azure ND H100 v5",
    ("Microsoft Corporation", "Virtual Machine", AZURE, "Standard_ND96is_H100_v5", f.GPU_NAME, 0): (
        "Azure ND H100 v5 without InfiniBand"
    ),
    ("Microsoft Corporation", "Virtual Machine", "5432-9876-1", "", f.GPU_NAME, 0): None,  # Hyper-V of somebody else
    ("Microsoft Corporation", "Virtual Machine", AZURE, "", "NVIDIA H100 NVL", 0): None,
    ("Google", "Google Compute Engine", "", "", "NVIDIA H200", 0): "GCP a3-ultragpu-8g",
    ("Google", "Google Compute Engine", "", "", f.GPU_NAME, 0): None,  # a3-highgpu comes in slices
    ("Google", "Google Compute Engine", "", "a3-highgpu-8g", f.GPU_NAME, 0): "GCP a3-highgpu-8g",
    ("Supermicro", "SYS-821GE-TNHR", "Default string", "", f.GPU_NAME, 4): "HGX H100 8-GPU",
    ("Oracle Corporation", "ORACLE SERVER X", "OracleCloud.com", "", f.GPU_NAME, 4): "OCI BM.GPU.H100.8",
    ("Supermicro", "SYS-420GP-TNR", "", "", "NVIDIA A100 80GB PCIe", 0): None,
    ("", "", "", "", "NVIDIA A100-SXM4-80GB", 0): None,  # HGX of four GPUs has no NVSwitch
}


@pytest.mark.parametrize(("told", "name"), SHAPES.items(), ids=str)
def test_shapes(told: tuple[str, str, str, str, str, int], name: str | None) -> None:
    assert shape(Platform(*told[:4]), told[4], told[5]) == name


def test_firmware_that_was_not_read_may_be_any() -> None:
    assert isinstance(shape(replace(BARE, vendor=LOST, product=LOST)), Unavailable)
    assert shape(replace(BARE, vendor=LOST, product=LOST), "NVIDIA A100 80GB PCIe") is None


def test_the_table_of_platforms() -> None:
    rows = platform.table()
    assert len({row.name for row in rows}) == len(rows) > 50
    for row in rows:
        assert row.source.startswith("https://") and row.model and row.gpus
        assert row.fabric in ("", "InfiniBand", "Ethernet", "EFA", "gVNIC") and (row.rails is None or row.gpus)
        for pattern in (row.vendor, row.product, row.asset_tag, row.instance, row.model):
            re.compile(pattern)


def test_each_source_is_named() -> None:
    both = [Expectation("node", Quantity.GPUS, 8, source, str(source)) for source in (Source.PLATFORM, Source.SITE)]
    result = judged([Part("node", {Quantity.GPUS: 7})], both)
    assert [one.expectation.source for one in result.by_subject["node"]] == [Source.PLATFORM, Source.SITE]


@pytest.mark.parametrize(
    ("linked", "of", "wrong"),
    [(2, 3, 0), (4, 8, -1), (2, 4, -1), (6, 8, 2), (7, 8, 0), (8, 8, 0), (0, 8, 0)],
    ids=[
        "one bridge for three cards",
        "half of the cards",
        "one pair of two",
        "gone",
        "an odd one never had one",
        "all",
        "none",
    ],
)
@pytest.mark.parametrize("name", ["NVIDIA A100-PCIE-40GB", "NVIDIA RTX A6000", "NVIDIA H100 NVL"])
def test_cards_without_a_bridge(linked: int, of: int, wrong: int, name: str) -> None:
    nvml = f.gpus(of, all=tuple(f.gpu(n, name=name, nvlinks=(n < linked,) * 4) for n in range(of)))
    every = of_gpus(f.pci(of), nvml)
    assert not isinstance(every, Unavailable)
    assert len(judged(every, siblings.of(every)).shortfalls) == max(wrong, 0)
    open_one = half_bridged(nvml)
    assert (open_one is not None) == (wrong < 0), open_one


def test_cards_in_mig_mode_rest_their_bridges() -> None:
    cards = tuple(f.gpu(n, name="NVIDIA A100-PCIE-40GB", nvlinks=(n < 4,) * 4, mig=n >= 4) for n in range(8))
    assert half_bridged(f.gpus(8, all=cards)) is None


@pytest.mark.parametrize(
    ("boards", "firmware", "wrong"),
    [
        ("AAAAAAAA", "11111112", ["mlx5_7"]),
        ("AAAAAAAB", "11111112", []),  # another maker's release of another number
        ("AAAAABBB", "11111222", []),
        ("AAAAABBB", "11121222", ["mlx5_3"]),
        ("AAAAABBB", "11111122", ["mlx5_5"]),
        ("        ", "11111112", ["mlx5_7"]),  # a driver that does not say
    ],
)
def test_firmware_is_compared_with_that_of_the_same_board(boards: str, firmware: str, wrong: list[str]) -> None:
    devices = tuple(hca(n, board=boards[n].strip(), firmware=firmware[n]) for n in range(8))
    got = found(rdma=f.rdma(devices=devices))
    comparison = of_rails(got, f.pci(), f.gpus(), BARE, f.expected())
    assert [one.expectation.subject for one in judged(comparison.parts, comparison.expectations).shortfalls] == wrong


@pytest.mark.parametrize(
    ("mtus", "wrong"),
    [
        ((4096,) * 8, []),
        ((4096,) * 7 + (2048,), ["mlx5_7"]),
        ((2048,) * 8, []),
        ((None, *(4096,) * 6, 2048), []),  # one that libibverbs was not asked about may be any
    ],
)
def test_ports_of_infiniband_have_packets_of_one_size(mtus: tuple[int | None, ...], wrong: list[str]) -> None:
    got = found(rdma=f.rdma(devices=tuple(hca(n, ports=(f.port(mtu=mtu),)) for n, mtu in enumerate(mtus))))
    comparison = of_rails(got, f.pci(), f.gpus(), BARE, f.expected())
    result = judged(comparison.parts, comparison.expectations)
    assert [one.expectation.subject for one in result.shortfalls] == wrong
    assert (Quantity.PACKET in {one.quantity for one in result.held}) == (None not in mtus)


def test_a_board_that_was_not_read_may_be_any() -> None:
    got = found(rdma=f.rdma(devices=(hca(0, board=LOST, firmware="1"), *(hca(n) for n in range(1, 8)))))
    comparison = of_rails(got, f.pci(), f.gpus(), BARE, f.expected())
    result = judged(comparison.parts, comparison.expectations)
    assert not result.shortfalls
    assert [one.expectation.subject for one in result.doubts] == ["mlx5_0"]


def test_cards_of_two_models_with_bridges() -> None:
    """Four A100 and two A6000, all in pairs: two kinds, and nobody's siblings are of the other."""
    pci = f.pci(devices=tuple(f.gpu_device(n, device=0x20B5 if n < 4 else 0x2230) for n in range(6)))
    names = ["NVIDIA A100 80GB PCIe"] * 4 + ["NVIDIA RTX A6000"] * 2
    nvml = f.gpus(6, all=tuple(f.gpu(n, name=name, nvlinks=(True,) * (12 if n < 4 else 4)) for n, name in enumerate(names)))
    every = of_gpus(pci, nvml)
    assert not isinstance(every, Unavailable) and not judged(every, siblings.of(every)).shortfalls


def test_a_card_whose_name_was_not_read_may_have_a_bridge() -> None:
    nvml = f.gpus(3, all=tuple(f.gpu(n, name=LOST, nvlinks=(n < 2,) * 4) for n in range(3)))
    every = of_gpus(f.pci(3), nvml)
    assert not isinstance(every, Unavailable) and not judged(every, siblings.of(every)).shortfalls
    assert unlinked(nvml) is not None


@pytest.mark.parametrize(
    ("has", "should", "short"),
    [
        ("IPv4, IPv6", "IPv4", False),
        ("IPv4", "IPv4, IPv6", False),
        ("IPv6", "IPv4", True),
        ("IPv6", "IPv4, IPv6", True),
        ("(none)", "IPv4", True),
        ("(none)", "IPv6", True),
        ("IPv4", "IPv6", True),
        ("IPv4", "(none)", False),
    ],
)
def test_a_rail_lacks_the_family_of_addresses_that_nccl_takes(has: str, should: str, short: bool) -> None:
    assert is_short(Quantity.FAMILIES, has, should) is short


def test_the_interface_of_a_port_is_one() -> None:
    """device/net has a representor beside it, the other port's, IPoIB's children."""
    group = tuple(Part(f"mlx5_{n}", {Quantity.MTU: mtu}, "rails") for n, mtu in enumerate((9000, 9000, 1500)))
    told = Comparison(group, tuple(siblings.of(group)))
    (found,) = (one for one in findings(told, About("rails", 3, True)) if one.status is Status.FAIL)
    assert found.fix is not None
    rdma = 'rdma() { echo "link $3 state ACTIVE physical_state LINK_UP netdev eth0 "; }; ip() { echo "$@"; };'
    done = subprocess.run(["sh", "-c", f"{rdma} {found.fix.commands[-1]}"], capture_output=True, text=True, check=True)
    assert done.stdout == "link set dev eth0 mtu 9000\n"

"""What a path can carry at most: a figure only where NCCL's model gives one, and why not where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.allreduce.limits import Limit, path_limit
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import AllReduce, Path, Run
from netdoctor.model import Unavailable
from tests.support import facts as f

LOST = Unavailable("denied")


def peers(count: int = 8, *kinds: str) -> Run:
    """A run of `count` GPUs whose log names these transports."""
    vias = tuple(f.via(transport=kind) for kind in kinds or ("P2P",))
    return f.run(count, experiment=AllReduce("nccl", count, "cuda", gpus=tuple(range(count))), log=f.log(vias=vias))


def limit(run: Run, gpus: Any = None, pci: Any = None, rdma: Any = None) -> float | str:
    """GB/s, or why there is no limit."""
    healthy = ((gpus, f.gpus()), (pci, f.pci()), (rdma, f.rdma()))
    given: list[Any] = [default if one is None else one for one, default in healthy]
    found = path_limit(run, *given)
    return round(found.rate, 3) if isinstance(found, Limit) else f"{found.kind}: {found.detail}"


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (f.run(2, experiment=AllReduce("nccl", 2, "cuda", gpus=(0, 0))), "unsupported: the ranks share one GPU"),
        (f.run(2, log=None), "not read: NCCL's log does not show the transport"),
        (f.run(2, log=f.log(vias=())), "not read: NCCL's log does not show the transport"),
        (f.run(2, experiment=AllReduce("nccl", 2, "cuda"), log=f.log(vias=(f.via(transport="P2P"),))), "not read: which GPUs"),
        (f.run(2, experiment=AllReduce("nccl", 2, "cuda"), log=f.log(vias=(f.via(transport="SHM"),))), "not read: "),
    ],
)
def test_paths_without_a_figure(run: Run, words: str) -> None:
    assert str(limit(run)).startswith(words)


@pytest.mark.parametrize("kinds", [("SHM",), ("P2P", "SHM"), ("P2P", "NET")])
def test_what_keeps_nccl_from_nvlink_lowers_no_limit(kinds: tuple[str, ...]) -> None:
    assert limit(peers(2, *kinds)) == 370.8
    mig = f.gpus(all=tuple(f.gpu(i, mig=True) for i in range(8)))
    assert str(limit(peers(2, *kinds), mig)).startswith("not read: the data goes by")


@pytest.mark.parametrize(("detail", "words"), [("MNNVL", "unsupported: NVLink between nodes"), ("CUMEM", "not read: ")])
def test_nvlink_between_nodes_has_no_figure(detail: str, words: str) -> None:
    """Of a common run no GPU of another node is known here (NVL72: all goes by P2P)."""
    common = AllReduce("nccl", 8, "cuda", path=Path.parse("between nodes"))
    vias = tuple(f.via(transport="P2P", detail=detail, dst=n) for n in (1, 4))
    assert str(limit(f.run(8, experiment=common, log=f.log(vias=vias)))).startswith(words)


def test_a_port_slower_than_its_like_lowers_no_limit() -> None:
    devices = tuple(f.hca(i, ports=(f.port(rate_gbps=100.0 if i == 0 else 400.0),)) for i in range(8))
    assert limit(f.hca_run(), rdma=f.rdma(devices=devices)) == 25.0
    assert limit(f.hca_run(), pci=Pci.unread(LOST), rdma=f.rdma(devices=devices)) == 6.25  # whether they are alike is not known


@pytest.mark.parametrize(
    ("run", "rdma", "found"),
    [
        (f.hca_run(), None, 25.0),  # 400 Gb/s are 50 GB/s, of which each rank has half
        (f.hca_run(hca="mlx5_0:2"), None, "not read: the rate of mlx5_0:2 is not known"),
        (f.hca_run(hca="mlx5_9:1"), None, "not read: the rate of mlx5_9:1 is not known"),
        (
            f.hca_run(),
            f.rdma(devices=(f.hca(0, ports=(f.port(rate_gbps=LOST),)),)),
            "not read: the rate of mlx5_0:1 is not known",
        ),
        (f.hca_run(), f.rdma(devices=(f.hca(0, ports=LOST),)), "not read: the rate of mlx5_0:1 is not known"),
        (f.hca_run(), f.rdma(devices=(f.hca(0, ports=(f.port(), f.port(2, rate_gbps=100.0))),)), 25.0),
        (f.hca_run(), Rdma.unread(LOST), "not read: RDMA devices: denied"),
        (f.hca_run(), f.rdma(devices=LOST), "not read: RDMA devices: denied"),
        (
            f.hca_run(log=f.log(net="Socket", vias=(f.via(),))),
            None,
            "unsupported: sockets of one node do not cross the network",
        ),
        (
            f.run(2, experiment=AllReduce("nccl", 2, "cuda", gpus=(0, 1)), log=f.log(vias=(f.via(),))),
            None,
            "not read: which port carried the data is not known",
        ),  # P2P and SHM are off in the job's environment
        (
            f.hca_run(experiment=AllReduce("nccl", 2, "cuda", path=Path.parse("between nodes"), gpus=(0,))),
            None,
            "not read: which port carried the data is not known",
        ),
    ],
)
def test_a_port_that_both_ranks_share(run: Run, rdma: Rdma | None, found: float | str) -> None:
    assert limit(run, rdma=rdma) == found


@pytest.mark.parametrize(
    ("capability", "links", "found"),
    [
        # NCCL src/graph/topo.h, SM60_NVLINK_BW to SM100_NVLINK_BW, times the links of the board
        ((6, 0), 4, 72.0),
        ((7, 0), 6, 120.0),
        ((8, 0), 12, 240.0),
        ((8, 6), 4, 48.0),
        ((9, 0), 18, 370.8),
        ((10, 0), 18, 721.8),
        ((10, 3), 18, 721.8),
        ((7, 5), 2, "unsupported: no figure for the NVLinks of compute capability (7, 5)"),
        (LOST, 18, "unsupported: no figure for the NVLinks of compute capability denied"),
    ],
)
def test_nvlinks_by_compute_capability(capability: Any, links: int, found: float | str) -> None:
    """Two GPUs: with more, Pascal and Volta without NVSwitch go in a mesh."""
    pair = f.gpus(2, all=tuple(f.gpu(i, capability=capability, nvlinks=(True,) * links) for i in range(2)))
    assert limit(peers(2), pair, f.pci(2)) == found


MESH = "unsupported: NVLink does not join every pair of these GPUs"


@pytest.mark.parametrize(
    ("count", "changes", "odd", "found"),
    [
        (8, {}, {}, 370.8),
        (8, {"capability": (7, 0)}, {}, MESH),
        (8, {"capability": (6, 0)}, {}, MESH),
        (3, {"name": "NVIDIA A100 80GB PCIe", "capability": (8, 0)}, {}, MESH),  # bridges join pairs
        (2, {"name": "NVIDIA A100 80GB PCIe", "capability": (8, 0)}, {}, 360.0),
        (8, {"name": LOST}, {}, MESH),
        (8, {}, {"nvlinks": (False,) * 18}, 370.8),  # one that has lost them all as well
        (8, {"nvlinks": (True,) * 9 + (False,) * 9}, {}, 370.8),  # all of them lost half: by the model, not by what is left
        (8, {"nvlinks": (True,) * 9 + (False,) * 9, "name": "NVIDIA H100 of a model that is not known"}, {}, 185.4),
        (8, {}, {"nvlinks": (True,) * 10 + (False,) * 8}, 370.8),  # fewer than its like: a fault, no lower limit
        (8, {}, {"nvlinks": LOST}, "not read: NVLinks of GPU 0: denied"),
    ],
)
def test_how_nvlinks_join_the_gpus(count: int, changes: dict[str, Any], odd: dict[str, Any], found: float | str) -> None:
    every = tuple(f.gpu(i, **{**changes, **(odd if i == 0 else {})}) for i in range(count))
    assert limit(peers(count), f.gpus(count, all=every), f.pci(count)) == found


A100 = {"capability": (8, 0), "nvlinks": (True,) * 12, "name": "NVIDIA A100-SXM4-80GB"}
SOME = "unsupported: without NVSwitch, some of the GPUs have some of the links to each other"


@pytest.mark.parametrize(
    ("count", "there", "changes", "found"),
    [
        (4, 4, A100, 240.0),  # HGX A100 4-GPU: three GPUs share the twelve links of the fourth
        (2, 4, A100, SOME),
        (3, 4, A100, SOME),
        (2, 8, A100, 240.0),
        (2, 4, {**A100, "name": "NVIDIA A100 80GB PCIe"}, MESH),  # of two bridges one GPU each, perhaps
        (2, 2, {**A100, "name": "NVIDIA A100 80GB PCIe"}, 240.0),
    ],
)
def test_some_of_the_gpus_of_a_board(count: int, there: int, changes: dict[str, Any], found: float | str) -> None:
    job = f.gpus(count, all=tuple(f.gpu(i, **changes) for i in range(count)))
    assert limit(peers(count), job, f.pci(there)) == found
    assert limit(peers(count), job, Pci.unread(LOST)) == "not read: how many GPUs NVLink joins: PCI: denied"


def test_gpus_that_nvml_does_not_know() -> None:
    assert limit(peers(), Gpus.unread(LOST)) == "not read: GPUs: denied"
    assert limit(peers(), f.gpus(visible=LOST)) == "not read: GPUs: denied"
    assert limit(peers(), f.gpus(all=tuple(f.gpu(i) for i in range(7)))) == "not read: not every GPU is known to NVML"


WIDE = PciLink(64.0, 16, 64.0, 16)


def below(*links: PciLink | Unavailable, port: PciLink | Unavailable = WIDE, **second: Any) -> Pci:
    """GPUs below one root port; `second` changes the last, `port` is the link of the ports that they are plugged into."""
    one = f.gpu_device(0)
    made = [f.gpu_device(i, path=one.path, root=one.root, link=link) for i, link in enumerate(links)]
    made[-1] = f.gpu_device(len(links) - 1, **{"path": one.path, "root": one.root, "link": links[-1], **second})
    above = {one.path[-1] for one in made if one.path}
    ports = [f.gpu_device(0, address=a, vendor=0x1000, klass=0x060400, path=(), link=port) for a in sorted(above)]
    return f.pci(0, 0, devices=(*made, *ports))


def lanes(speed: float, width: int = 16) -> PciLink:
    return PciLink(speed, width, speed, width)


GEN5 = lanes(32.0)
CROSSES = "unsupported: the data crosses the CPU between PCIe roots, whose limit is not known here"
LINK = "not read: the PCIe link of 0000:43:00.0 is not known"


@pytest.mark.parametrize(
    ("pci", "found"),
    [
        # NCCL counts width x speed / 80 (src/graph/topo.cc)
        (below(lanes(2.5), lanes(2.5)), 3.0),
        (below(lanes(5.0), lanes(5.0)), 6.0),
        (below(lanes(8.0), lanes(8.0)), 12.0),
        (below(lanes(16.0), lanes(16.0)), 24.0),
        (below(GEN5, GEN5), 48.0),
        (below(lanes(64.0), lanes(64.0)), 96.0),
        (below(GEN5, lanes(32.0, 8)), 24.0),  # the slowest decides
        (below(GEN5, PciLink(2.5, 16, 32.0, 16)), 48.0),  # idle links slow down
        (below(GEN5, GEN5, port=lanes(16.0)), 24.0),  # cards of PCIe 5 in a switch of PCIe 4
        (below(GEN5, GEN5, port=lanes(32.0, 8)), 24.0),
        (below(GEN5, GEN5, port=LOST), "not read: the PCIe link of 0000:1b:00.0 is not known"),
        (below(GEN5, LOST), LINK),
        (below(GEN5, lanes(20.0)), LINK),
        (below(GEN5, GEN5, root="pci0000:9a"), CROSSES),
        (below(GEN5, GEN5, path=("0000:15:02.0", "0000:16:00.0", "0000:17:01.0")), CROSSES),  # another root port
        (below(GEN5, GEN5, path=(*f.gpu_device(0).path[:2], "0000:17:09.0")), 48.0),  # another port of the switch
        (below(GEN5, GEN5, path=("0000:15:01.0", "0000:16:00.1", "0000:18:01.0")), 48.0),  # a switch of two functions
        (below(GEN5), CROSSES),
        # where it sits could not be read: no path of its own is no path through the CPU
        (below(GEN5, GEN5, placed=False, path=(), root=""), "not read: where the GPUs sit on PCI is not known"),
        (below(GEN5, GEN5, placed=False), "not read: where the GPUs sit on PCI is not known"),
        (Pci.unread(LOST), "not read: PCI: denied"),
    ],
)
def test_gpus_without_nvlink(pci: Pci, found: float | str) -> None:
    without = f.gpus(2, all=tuple(f.gpu(i, nvlinks=()) for i in range(2)))
    assert limit(peers(2), without, pci) == found


def test_where_nvml_names_no_address_the_way_is_not_known() -> None:
    devices: tuple[PciDevice, ...] = below(GEN5, GEN5).devices
    without = f.gpus(2, all=(f.gpu(0, nvlinks=()), f.gpu(1, nvlinks=(), pci=LOST)))
    assert limit(peers(2), without, f.pci(0, 0, devices=devices)) == CROSSES

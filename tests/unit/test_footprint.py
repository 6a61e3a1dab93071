"""What a process of NCCL's takes for certain: threads and descriptors."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts.libraries import Libraries
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Unavailable
from netdoctor.nccl import footprint
from tests.support import facts as f

LOST = Unavailable("denied")


@pytest.mark.parametrize(
    ("version", "hcas", "ranks", "ras", "threads", "files"),
    [
        # The real library on tests/fakegpu, an all-reduce of two ranks: never less than these, without what the fakes hold.
        ((2, 18, 3), 8, 2, None, 10, 3 + 3 + 16 + 6),
        ((2, 29, 7), 8, 2, None, 11, 3 + 3 + 16 + 6 + 1 + 1 + 3),
        ((2, 29, 7), 0, 2, None, 3, 3 + 3 + 6 + 1 + 1 + 3),
        ((2, 29, 7), 8, 2, "0", 11, 3 + 3 + 16 + 6 + 1 + 1),
        ((2, 29, 7), 8, 2, LOST, 11, 3 + 3 + 16 + 6 + 1 + 1),
        ((2, 20, 5), 8, 2, None, 11, 3 + 3 + 16 + 6 + 1),
        ((2, 29, 7), 8, 1, None, 1, 3 + 3),  # it may make no communicator
        (LOST, 8, 2, None, 10, 3 + 3 + 16 + 6),
    ],
)
def test_least(version: object, hcas: int, ranks: int, ras: object, threads: int, files: int) -> None:
    environ = f.environ(nccl=LOST) if ras is LOST else f.environ({"NCCL_RAS_ENABLE": ras} if isinstance(ras, str) else {})
    assert footprint.least(environ, version, hcas, ranks=ranks, cuda=True)[:2] == (threads, files)  # type: ignore[arg-type]
    assert footprint.least(environ, version, hcas, ranks=ranks, cuda=False).files == files - 3  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "ranks", "polled"),
    [
        ((2, 11, 4), 2, 0),  # its proxy has no service
        ((2, 12, 7), 2, 65),
        ((2, 24, 3), 2, 65),
        ((2, 25, 1), 2, 74),
        ((2, 29, 7), 8, 74),
        ((2, 29, 7), 1, 0),
        ((2, 29, 7), 0, 0),
        (LOST, 8, 0),
    ],
)
def test_the_places_that_the_proxy_polls_at_once(version: object, ranks: int, polled: int) -> None:
    assert footprint.least(f.environ(), version, 0, ranks=ranks, cuda=True).polled == polled  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, 8),
        ({"NCCL_NET": "ib"}, 8),
        ({"NCCL_IB_HCA": "=mlx5_0,mlx5_1"}, 2),
        ({"NCCL_NET": "Socket"}, 0),
        ({"NCCL_NET": "AWS Libfabric"}, 0),
        ({"NCCL_IB_DISABLE": "1"}, 0),
    ],
)
def test_the_devices_that_are_opened_for_certain(variables: dict[str, str], count: int) -> None:
    machine: dict[type, Any] = f.machine()
    rdma, net, libraries = (machine[kind] for kind in (Rdma, Net, Libraries))
    assert footprint.hcas_opened(rdma, net, f.environ(variables), libraries) == count
    for lost in ((f.rdma(devices=LOST), f.environ()), (f.rdma(0), f.environ()), (rdma, f.environ(nccl=LOST))):
        assert footprint.hcas_opened(lost[0], net, lost[1], libraries) == 0

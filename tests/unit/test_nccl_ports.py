"""Port arithmetic."""

import pytest

from netdoctor.nccl import ports


def test_listeners_of_a_node() -> None:
    need = ports.listeners(8, 2, 1, (2, 27, 5))
    assert (need.bootstrap, need.root, need.ras, need.gloo, need.own, need.total) == (48, 9, 8, 8, 4, 77)


def test_older_libraries_open_fewer() -> None:
    assert ports.listeners(8, 1, 0, (2, 21, 5)) == ports.Listeners(bootstrap=16, root=9, ras=0, gloo=0, own=3)
    assert ports.listeners(8, 1, 0, None) == ports.listeners(8, 1, 0, (2, 32, 3))


# The smallest range in which the unmodified NCCL set up a communicator, without Gloo (its sockets are its own).
@pytest.mark.parametrize(
    ("version", "ranks", "worked"),
    [
        ((2, 18, 3), 2, 8),
        ((2, 18, 3), 4, 16),
        ((2, 18, 3), 8, 28),
        ((2, 27, 5), 2, 12),
        ((2, 27, 5), 4, 23),
        ((2, 27, 5), 8, 47),
        ((2, 23, 4), 2, 10),
        ((2, 28, 9), 2, 12),
        ((2, 30, 7), 4, 24),
        ((2, 32, 3), 2, 12),
    ],
)
def test_no_more_is_asked_than_worked(version: tuple[int, int, int], ranks: int, worked: int) -> None:
    assert 0.9 * worked <= ports.listeners(ranks, 1, 0, version).total <= worked


def test_one_node_keeps_no_ports_for_the_network() -> None:
    assert ports.kept_by_connections(8, 8, 4, all_to_all=True, pxn=True) == 0


def test_all_to_all_counts_only_where_the_job_says_so() -> None:
    ring = ports.kept_by_connections(8, 2048, 1, all_to_all=False, pxn=True)
    assert ring == 8 * 3 * 16
    assert ports.kept_by_connections(8, 2048, 1, all_to_all=True, pxn=True) == ring + 2040 * 2
    assert ports.kept_by_connections(8, 2048, 1, all_to_all=True, pxn=False) == ring + 8 * 2040 * 2


@pytest.mark.parametrize(
    ("low", "high", "taken", "free", "sure"),
    [
        (32768, 60999, set(), 28232, 28232),
        (50000, 51000, set(), 1001, 1000),
        (40000, 40000, set(), 1, 1),
        (40000, 40005, {40001, 22, 40005}, 4, 4),
        (40000, 40002, {40000, 40001, 40002}, 0, 0),
        (5, 4, set(), 0, 0),
    ],
)
def test_bindable(low: int, high: int, taken: set[int], free: int, sure: int) -> None:
    assert ports.bindable(low, high, taken) == free
    assert ports.sure(low, high, taken) == sure


@pytest.mark.parametrize(
    ("vendor", "nsocks", "threads", "sockets"),
    [
        ("0x1d0f", None, None, 16),
        ("0x1ae0", None, None, 4),
        ("0x15b3", None, None, 1),
        (None, None, None, 1),
        ("0x15b3", 4, 4, 16),
        ("0x1d0f", 2, None, 4),
        ("0x15b3", 8, None, 1),
        ("0x15b3", 64, 64, 64),
    ],
)
def test_sockets_per_connection(vendor: str | None, nsocks: int | None, threads: int | None, sockets: int) -> None:
    assert ports.sockets_per_connection(vendor, nsocks, threads) == sockets

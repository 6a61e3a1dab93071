"""The newest NCCL that pip finds (`make newest-nccl`, once a CI run): where it breaks a rule of ours, that is seen here first.

How it chooses interfaces is test_nccl_choice's.  A version whose kernels nothing stands in for moves no data: its decisions and
its log are looked at alone, and its runs say so.
"""

from __future__ import annotations

import pytest

from tests.fakegpu import build, doctor, lab, machine, namespace, paths, topology
from tests.support.machines import libnccl

pytestmark = [
    pytest.mark.live,
    pytest.mark.nccl,
    pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-"),
]


@pytest.fixture(scope="module")
def version() -> str:
    return ".".join(map(str, libnccl.newest_of_pypi()))


@pytest.fixture(scope="module")
def moves(version: str) -> bool:
    """Whether data can move: else the run has said why it could not, and ended with an error."""
    done = lab.run(machine.read("two-a100"), version, 2, steps="ird", kernels=build.kernels())
    if all((rank.code, rank.moved) == (0, True) for rank in done.ranks):
        return True
    assert [(rank.code, rank.moved, rank.unable.partition(" (")[0]) for rank in done.ranks] == [
        (1, None, "the structs of this version are not known")
    ] * 2, done.log[-3000:]
    return False


def test_data_move_or_the_run_says_why_not(version: str, moves: bool) -> None:
    if not moves:
        pytest.skip(
            f"NCCL {version}: nothing stands in for its kernels (tests/fakegpu/c/kernels/layout.c): decisions and logs only"
        )


@pytest.mark.parametrize("name", paths.PATHS)
def test_it_takes_the_path(name: str, version: str) -> None:
    path = paths.PATHS[name]
    done = paths.run(path, version)
    assert done.ok, done.log[-2000:]
    assert done.via and all(map(path.fits, done.via)), done.via
    assert not [one for one in done.log.splitlines() if "MISSING in the fake driver" in one]


@pytest.mark.parametrize("name", ["two-a100", "hgx-h100"])
def test_it_sees_the_machine_as_it_is_described(name: str, version: str) -> None:
    assert topology.compare(name, version) == []


def test_a_healthy_machine_has_no_fail(version: str, moves: bool) -> None:
    """A job that has nothing but this libnccl; the all-reduce is its own where data can move."""
    options = ("--via", "nccl") if moves else ("--no-allreduce",)
    around = doctor.Around(env=paths.VERSION_ENV.get(version, {}), options=options)
    with doctor.job(version) as python:
        report = doctor.preflight(machine.read("one-gpu").on_one_node(), python, around)
    # How much memory may be locked is this process's own limit, whatever the machine.
    assert not [one for one in report.fails if " memlock: " not in one]
    if moves:
        assert {one["status"] for one in report.of("allreduce.run")} == {"pass"}
        assert report.data["runs"][0]["nccl"].startswith(version)

"""The stand-in for NCCL's kernels moves data right, or says that it could not; the real libnccl drives it.

Exact sums on the newest version here, some on one before 2.28; `python -m tests.fakegpu.kernels` has all versions.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from tests.fakegpu import build, kernels, lab, machine, namespace, paths
from tests.support.machines import libnccl

pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-")]


def version(old: bool = True) -> str:
    """The newest libnccl before 2.28, or of all; skips the test without both."""
    return libnccl.both()[0 if old else 1].parts[-5]


# An algorithm is written once; how a version lays out what it hands to its kernels, one case on each shows.
@pytest.mark.parametrize(
    ("name", "old"), [*((name, False) for name in kernels.CASES), ("mixed", True), ("Ring LL128", True), ("Tree Simple", True)]
)
def test_sums_are_right_and_of_the_function_asked_for(name: str, old: bool) -> None:
    """Four ranks on two hosts: within a host by P2P, between them by RDMA and NCCL's proxy."""
    case = kernels.CASES[name]
    done = kernels.run(case, version(old), 4, hosts=2)
    assert {via.split("/")[0] for via in done.via} == {"P2P", "NET"}
    assert kernels.right(case, done), done.log[-3000:]


@pytest.mark.parametrize("name", ["SHM", "NET/Socket", "P2P/IPC"])
def test_sums_are_right_on_other_ways(name: str) -> None:
    """Two ranks, with NCCL's own choice of algorithm and protocol."""
    path = paths.PATHS[name]
    done = paths.run(path, version(old=False), kernels=build.kernels(), steps="irgcbsd")
    assert done.via and all(map(path.fits, done.via)), done.via
    assert [(rank.code, rank.moved) for rank in done.ranks] == [(0, True)] * 2, done.log[-3000:]


def test_one_rank_averages_by_a_kernel() -> None:
    done = lab.run(machine.read("one-gpu"), version(), 1, steps="itd", kernels=build.kernels())
    assert (done.ranks[0].code, done.ranks[0].moved) == (0, True), done.log[-3000:]


def test_what_is_not_written_fails_and_says_so() -> None:
    """PAT came with 2.23: an older NCCL passes over the name."""
    nccl = version(old=False)
    env = {"NCCL_ALGO": "PAT", **paths.VERSION_ENV.get(nccl, {})}
    done = lab.run(machine.read("two-a100"), nccl, 2, hosts=2, steps="igd", env=env, kernels=build.kernels(), seconds=10)
    assert [rank.code for rank in done.ranks] == [1, 1]
    assert [rank.moved for rank in done.ranks] == [None, None]
    # Who comes to it first says so and ends; the other may see that it is gone before it comes to its own.
    said = ["AllGather PAT Simple is not written" in rank.unable for rank in done.ranks]
    assert any(said) and (all(said) or "remote process exited" in done.log), done.log[-3000:]


@pytest.mark.parametrize("number", [21903, 29901])
def test_a_version_whose_structs_are_not_known_is_not_guessed(number: int, tmp_path: pathlib.Path) -> None:
    """An NCCL of a version of which there is no layout: its kernel fails before anything of it is read."""
    source, library = tmp_path / "nccl.c", tmp_path / "libnccl.so.2"
    source.write_text(f"int ncclGetVersion(int *version) {{ return *version = {number}, 0; }}\n", encoding="utf-8")
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True, timeout=60)
    program = (
        "import ctypes as c, sys; c.CDLL(sys.argv[1]); run = c.CDLL(sys.argv[2]).fake_kernel; "
        "sys.exit(run(b'ncclDevKernel_Generic', (c.c_uint * 7)(1), bytes(4096), c.c_size_t(4096)) != 719)"
    )
    command = [sys.executable, "-c", program, str(library), str(build.kernels())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "could not move data: the structs of this version are not known" in done.stderr

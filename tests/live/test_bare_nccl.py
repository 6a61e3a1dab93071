"""The all-reduce without torch: how its calls arrive (fake libraries), and a real libnccl as far as it goes without a GPU."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest

from tests.support.machines import libnccl, native

pytestmark = pytest.mark.live
PROGRAM = pathlib.Path(__file__).parents[2] / "tools" / "gpu_proof" / "bare_nccl.py"


def run(nccl: pathlib.Path | str, *arguments: str, fake_cuda: bool = True, **variables: str) -> tuple[int, dict[str, Any]]:
    """Exit status and answer."""
    folder = native.shared_library("fake_cuda_memory.c", "libcuda.so.1").parent
    path = {"LD_LIBRARY_PATH": str(folder)} if fake_cuda else {}
    command = [sys.executable, str(PROGRAM), "--nccl", str(nccl), *arguments]
    done = subprocess.run(
        command, env={**os.environ, **path, **variables}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def fake() -> pathlib.Path:
    return native.shared_library("fake_nccl.c", "libnccl.so.2")


def test_one_rank() -> None:
    code, told = run(fake(), "--sizes", "4096,1048576", "--repeats", "3")
    assert (code, told["finished"], told["verified"], told["nccl"]) == (0, True, True, "2.29.7"), told
    (rank,) = told["ranks"]
    assert rank["latency"] == {"4096": 0.0025, "1048576": 0.0025}
    assert set(rank["phases"]) == {"device", "init", "collectives", "end"} and rank["rss_mb"] > 1


def test_two_ranks_get_the_id_of_rank_0() -> None:
    code, told = run(fake(), "--devices", "0,0", "--repeats", "2")
    assert code == 0, told
    assert [one["rank"] for one in told["ranks"]] == [0, 1]


def test_wrong_data_is_counted() -> None:
    code, told = run(fake(), "--sizes", "4096", "--repeats", "1", FAKE_NCCL_WRONG="1")
    assert (code, told["finished"], told["verified"]) == (1, True, False)
    assert told["ranks"][0]["wrong"] == 1


def test_a_device_that_is_not_there() -> None:
    code, told = run(fake(), "--devices", "1")
    assert code == 1 and not told["finished"]
    assert told["ranks"][0]["error"] == "LibraryError: cuDeviceGet: CUDA_ERROR_INVALID_DEVICE"


def test_without_a_driver_it_says_so() -> None:
    try:
        import ctypes

        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver here")
    code, told = run(fake(), fake_cuda=False)
    assert code == 1 and "libcuda.so.1" in told["ranks"][0]["error"]


@pytest.mark.nccl
def test_a_real_libnccl_gives_its_version_and_an_id() -> None:
    """With the fake driver a real NCCL comes as far as it can: the id is made, the init is refused with NCCL's own words."""
    path = libnccl.newest()
    code, told = run(path, "--sizes", "4096", NCCL_SOCKET_IFNAME="lo", NCCL_NET_PLUGIN="none")
    assert code == 1
    (rank,) = told["ranks"]
    assert rank["nccl"] == path.parents[3].name
    assert rank["error"].startswith("LibraryError: ncclCommInitRank: ")

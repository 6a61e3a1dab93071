"""What stands in the way of the all-reduce without torch: each has a phase and a reason, and nothing is left behind."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import uuid
from collections.abc import Iterator

import pytest

from netdoctor.allreduce.runner import Code, Session
from netdoctor.facts.runs import Obstacle, Run
from netdoctor.model import Unavailable
from tests.fakegpu import machine
from tests.support.machines import native, ways
from tests.support.namespaces.marks import MARK, all_gone

pytestmark = [pytest.mark.live, pytest.mark.nccl]
# The fakes are told by variables of their own what to do; root, running a Python itself, would hand them none of these.
OURS = Code(sys.executable, trust=True)


@pytest.fixture(scope="module")
def way() -> Iterator[ways.Way]:
    with ways.nccl() as made:
        yield made


def run(way: ways.Way, library: str, **variables: str) -> Run:
    with_mark = {**os.environ, MARK: uuid.uuid4().hex, **way.variables, **variables}
    session = Session(OURS, with_mark, library=library)
    try:
        return session.run(way.small)
    finally:
        session.close()
        assert all_gone(with_mark[MARK])


def compiled(folder: pathlib.Path, text: str) -> str:
    """A library that is no whole libnccl."""
    (folder / "part.c").write_text(text, encoding="ascii")
    made = folder / "libnccl.so.2"
    subprocess.run([native.gcc(), "-shared", "-fPIC", "-o", str(made), str(folder / "part.c")], check=True, timeout=60)
    return str(made)


VERSION = "int ncclGetVersion(int *v) { *v = 22705; return 0; }\n"
ID = "int ncclGetUniqueId(char *id) { for (int i = 0; i < 128; i++) id[i] = 1; return 0; }\n"
REFUSED = "int ncclCommInitRank(void) { return 6; }\n"


@pytest.mark.parametrize(
    ("text", "state", "reason"),
    [
        ("", "not started", "libnccl has no ncclGetVersion"),
        ("int ncclGetVersion(int *v) { return 3; }", "not started", "ncclGetVersion: ncclInternalError"),
        (VERSION, "failed", "rank 0 in phase rendezvous: libnccl has no ncclGetUniqueId"),
        (VERSION + ID, "failed", " in phase init: libnccl has no ncclCommInitRank"),
        (VERSION + ID + REFUSED, "failed", " in phase init: ncclCommInitRank: ncclRemoteError"),
    ],
)
def test_a_libnccl_that_lacks_something_is_named_with_it(way: ways.Way, text: str, state: str, reason: str) -> None:
    with ways.folder_of_root() as folder:
        got = run(way, compiled(folder, text))
    assert (got.state, got.verified) == (state, None), got
    assert reason in got.reason


def test_a_file_that_is_no_library_is_not_started(way: ways.Way) -> None:
    with ways.folder_of_root() as folder:
        (folder / "libnccl.so.2").write_text("no ELF", encoding="ascii")
        got = run(way, f"{folder}/libnccl.so.2")
        gone = run(way, f"{folder}/nothing/libnccl.so.2")
    assert (got.state, got.obstacle) == ("not started", Obstacle.IMPORT)
    assert f"loading {folder}/libnccl.so.2 fails: OSError: " in got.reason
    assert (gone.state, gone.obstacle) == ("not started", Obstacle.NO_NCCL)


@pytest.mark.parametrize(
    ("fault", "obstacle", "reason"),
    [
        ("cuInit * 100", Obstacle.NO_GPU, "libcuda shows no GPU"),
        ("cuInit * 999", Obstacle.NO_GPU, "cuInit: CUDA_ERROR_UNKNOWN"),
        ("cuInit * 802", Obstacle.NOT_READY, "cuInit: CUDA_ERROR_SYSTEM_NOT_READY"),
    ],
)
def test_a_driver_without_gpus_is_not_started(way: ways.Way, fault: str, obstacle: Obstacle, reason: str) -> None:
    with ways.folder_of_root() as folder:
        machine.read("two-a100").with_changes({"faults": [fault]}).write(folder / "machine")
        got = run(way, way.library, FAKEGPU_MACHINE=f"{folder}/machine")
    assert (got.state, got.obstacle) == ("not started", obstacle)
    assert reason in got.reason


def test_without_a_driver_it_is_not_started(way: ways.Way) -> None:
    import ctypes

    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        pytest.skip("there is a driver here")
    got = run(way, way.library, LD_LIBRARY_PATH="")
    assert (got.state, got.obstacle) == ("not started", Obstacle.NO_GPU)
    assert "libcuda.so.1" in got.reason


def test_the_process_that_forks_touches_no_driver(way: ways.Way) -> None:
    session = Session(OURS, {**os.environ, **way.variables}, library=way.library)
    try:
        assert not isinstance(session.facts(), Unavailable)
        assert session._worker is not None
        mapped = pathlib.Path(f"/proc/{session._worker.zygote}/maps").read_text(encoding="utf-8")
    finally:
        session.close()
    assert "libnccl" in mapped and "libcuda.so" not in mapped

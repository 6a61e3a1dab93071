"""Who waits for whom: a lock a GPU, the node for those who cannot name theirs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from netdoctor.allreduce import lock
from netdoctor.facts.runs import AllReduce

ONE, TWO = "GPU-1", "GPU-2"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lock, "ROOT_FOLDER", str(tmp_path))
    tmp_path.chmod(0o700)
    return tmp_path


@pytest.mark.parametrize(
    ("held", "wanted", "free"),
    [
        ((ONE,), (TWO,), True),
        ((ONE,), (ONE,), False),
        ((ONE, TWO), (TWO,), False),
        ((TWO, ONE), (ONE, TWO), False),
        ((ONE,), (lock.CPU,), True),
        ((lock.CPU,), (lock.CPU,), False),
        ((), (ONE,), False),  # whoever does not know his GPUs may load any
        ((ONE,), (), False),
        ((ONE,), ("../x",), False),  # no name of a file
    ],
)
def test_who_waits(folder: Path, held: tuple[str, ...], wanted: tuple[str, ...], free: bool) -> None:
    first, second = (lock.Lock({"XDG_RUNTIME_DIR": str(folder)}) for _ in range(2))
    assert first.take(time.monotonic(), held) is None and not first.note
    assert second.take(time.monotonic(), wanted) == (None if free else lock.HELD) and not second.note
    second.release()
    first.release()
    assert second.take(time.monotonic(), wanted) is None


@pytest.mark.parametrize(("gpu", "free"), [(lock.CPU, True), (ONE, False)])
def test_two_nodes_of_one_run_on_one_machine_share_its_cpu(folder: Path, gpu: str, free: bool) -> None:
    first, second, alone = (lock.Lock({"XDG_RUNTIME_DIR": str(folder)}) for _ in range(3))
    assert first.take(time.monotonic(), (gpu,), across=True) is None
    assert second.take(time.monotonic(), (gpu,), across=True) == (None if free else lock.HELD)
    assert alone.take(time.monotonic(), (gpu,)) == lock.HELD


@pytest.mark.parametrize(
    ("experiment", "names"),
    [
        (AllReduce("nccl", 2, "cuda", gpus=(1, 0)), (TWO, ONE)),
        (AllReduce("nccl", 2, "cuda", gpus=(0, 0)), (ONE, ONE)),
        (AllReduce("nccl", 2, "cuda", gpus=(0, 7)), ()),
        (AllReduce("nccl", 2, "cuda"), ()),
        (AllReduce("gloo", 2, "cpu"), (lock.CPU,)),
    ],
)
def test_what_is_loaded(experiment: AllReduce, names: tuple[str, ...]) -> None:
    assert lock.loaded(experiment, (ONE, TWO)) == names

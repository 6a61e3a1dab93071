"""Real all-reduces by Gloo in this Python's torch, with faults planted at each phase, and what is left behind afterwards."""

import importlib.util
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from netdoctor.allreduce.runner import Code, Session
from netdoctor.facts.runs import AllReduce, TorchFacts
from netdoctor.model import Unavailable
from tests.support.machines.ways import before, folder_of_root
from tests.support.namespaces.marks import MARK, all_gone

pytestmark = pytest.mark.live
if importlib.util.find_spec("torch") is None:
    pytest.skip("no torch in this Python", allow_module_level=True)

FAKES = Path(__file__).parent.parent / "fakes"
SMALL = AllReduce("gloo", 2, sizes=(4096, 1 << 20))


def environment(**more: str) -> dict[str, str]:
    """This process's environment with a mark by which what is left behind is found."""
    return {**os.environ, MARK: uuid.uuid4().hex, **more}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A copy of the fakes that root alone can change, where root runs the tests."""
    with folder_of_root() as made:
        shutil.copytree(FAKES, made, dirs_exist_ok=True)
        for path in (made, *made.rglob("*")):
            path.chmod(0o755)
        yield made


@contextmanager
def started(**more: Any) -> Iterator[Session]:
    """A session of which nothing is left."""
    with_mark = environment(**more.pop("variables", {}))
    made = Session(sys.executable, with_mark, **more)
    made.start()
    yield made
    made.close()
    assert made._worker is not None
    assert all_gone(with_mark[MARK], made._worker.keeper)


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with started() as made:
        yield made


# Healthy


def test_torch_tells_its_backends(session: Session) -> None:
    import torch

    facts = session.facts()
    assert isinstance(facts, TorchFacts)
    assert facts.version == torch.__version__
    assert facts.cuda_available is torch.cuda.is_available()
    if torch.version.cuda is None:
        assert facts.backends == {"cpu": "gloo"}
        assert "NCCL" in facts.backends_nccl_error


def test_a_fresh_import_gets_the_variables_at_start(folder: Path) -> None:
    with closing(Session(sys.executable, environment(PYTHONPATH=before(folder / "faulty_torch")))) as made:
        run = made.run(replace(SMALL, env=(("OMP_NUM_THREADS", "1"), ("TORCH_FAULT", "")), fresh_import=True))
        assert run.state == "finished"
        assert ("OMP_NUM_THREADS", "1") in run.changes
        assert made._worker is None


# A torch that is none


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("absent", "No module named 'torch'"),
        ("raise", "libcudart.so.12"),
        ("crash", "was ended by SIGSEGV"),
        ("quit", "SystemExit"),
        ("flood", "after the flood"),
        ("hang", "import torch was not done after"),
    ],
)
def test_a_torch_that_cannot_be_imported_is_not_started(folder: Path, how: str, text: str) -> None:
    with_mark = environment(PYTHONPATH=before(folder / "broken_torch"), BROKEN=how)
    made = Session(Code(sys.executable, trust=True), with_mark, limits={"import": 2.0 if how == "hang" else 60.0})
    made.start()
    try:
        run = made.run(SMALL)
        assert run.state == "not started"
        assert text in run.reason
        assert run.verified is None
        assert isinstance(made.facts(), Unavailable)
    finally:
        made.close()
    assert all_gone(with_mark[MARK])


@pytest.mark.parametrize("python", ["/nonexistent/python3", "/etc/passwd", "/bin/true"])
def test_a_python_that_is_none_is_not_started(python: str) -> None:
    with closing(Session(python, environment(), limits={"spawn": 20.0})) as made:
        run = made.run(SMALL)
        assert run.state == "not started"
        assert run.reason


# What is left behind


def test_planted_paths_are_not_written(folder: Path) -> None:
    target = folder / "written"
    target.mkdir()
    nccl = ["NCCL_DEBUG_FILE", "NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"]
    torch = ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_TRACE"]
    names = [*nccl, *torch, "UCX_LOG_FILE", "LD_DEBUG_OUTPUT", "CUDA_LOG_FILE", "MALLOC_TRACE", "COVERAGE_PROCESS_START"]
    planted_paths = {name: str(target / name) for name in names}
    others = {"LD_DEBUG": "libs", "RANK": "7", "WORLD_SIZE": "64", "MASTER_ADDR": "192.0.2.1", "NCCL_COMM_ID": "192.0.2.1:9"}
    with closing(Session(sys.executable, environment(**planted_paths, **others))) as made:
        run = made.run(SMALL)
    assert run.state == "finished", run
    assert list(target.iterdir()) == []
    changed = dict(run.changes)
    assert all(name in changed for name in (*names, *others))
    assert changed["NCCL_COMM_ID"] is None


# Root, users, locks


def closed_to_others(path: str) -> bool:
    real = Path(path).resolve()
    return not real.exists() or not all(p.stat().st_mode & 0o001 for p in real.parents)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_root_becomes_the_user() -> None:
    python, more = sys.executable, {}
    if closed_to_others(python):  # the system's own Python of the same version can use this torch as well
        python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
        spec = importlib.util.find_spec("torch")
        assert spec is not None and spec.origin is not None
        more["PYTHONPATH"] = str(Path(spec.origin).parent.parent)
        for path in (python, spec.origin):
            if closed_to_others(path):
                pytest.skip(f"other users may not use {path}")
    with closing(Session(python, environment(**more), user="nobody")) as made:
        run = made.run(SMALL)
        assert run.state == "finished", run
        assert "as user nobody" in run.notes
        assert made._worker is not None
        status = Path(f"/proc/{made._worker.zygote}/status").read_text()
    import pwd

    uid = pwd.getpwnam("nobody").pw_uid
    assert f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}" in status
    assert "NoNewPrivs:\t1" in status


def test_a_lock_that_is_held_is_waited_for_and_no_longer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from netdoctor.allreduce import lock

    monkeypatch.setattr(lock, "ROOT_FOLDER", str(tmp_path))
    other = lock.Lock({"XDG_RUNTIME_DIR": str(tmp_path)})
    tmp_path.chmod(0o700)
    assert other.take(time.monotonic()) is None
    assert other.note == ""
    with closing(Session(sys.executable, environment(XDG_RUNTIME_DIR=str(tmp_path)))) as made:
        assert isinstance(made.facts(), TorchFacts)
        run = made.run(SMALL, time.monotonic() + 0.3)
        assert (run.state, run.reason) == ("not started", "another netdoctor holds the lock")
        other.release()
        assert made.run(SMALL, again=True).state == "finished"


OLD = sorted(p for p in (shutil.which(f"python3.{minor}") for minor in (8, 9)) if p)
OLD += (
    sorted(str(p) for p in Path.home().glob(".pyenv/versions/3.[89].*/bin/python3")) if os.access(Path.home(), os.X_OK) else []
)


@pytest.mark.skipif(not OLD, reason="no Python 3.8 or 3.9 here")
def test_the_rank_program_runs_in_old_pythons(folder: Path) -> None:
    for python in OLD:
        code = Code(python, trust=True)  # root's own may be closed to others
        with closing(Session(code, environment(PYTHONPATH=str(folder / "stub_torch")))) as made:
            facts, run = made.facts(), made.run(SMALL)
        if isinstance(facts, Unavailable):  # a pyenv shim of a version that is not chosen
            assert "pyenv" in python and "shims" in python, (python, facts)
            continue
        assert facts.version == "0.0+stub"
        assert facts.backends_error == "RuntimeError: a stub makes no group"
        assert run.state == "failed", python
        assert run.reason.endswith("in phase init: RuntimeError: a stub makes no group")

"""Real all-reduces on both ways, by torch with Gloo and by the real libnccl on the machine that is not there: healthy, with
faults planted at each phase, and what is left behind afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.allreduce.runner import LIMITS, Code, Session
from netdoctor.allreduce.watch import STILL
from netdoctor.facts.runs import AllReduce
from netdoctor.model import Unavailable
from tests.lab.whole import product
from tests.support.machines.ways import WAYS, Way
from tests.support.namespaces.marks import MARK, all_gone, marked

pytestmark = pytest.mark.live
# The fakes are told by variables of their own what to do; root, running a Python itself, would hand them none of these.
OURS = Code(sys.executable, trust=True)


@pytest.fixture(scope="module", params=WAYS)
def way(request: pytest.FixtureRequest) -> Iterator[Way]:
    with WAYS[request.param]() as made:
        yield made


def environment(way: Way, **more: str) -> dict[str, str]:
    """This process's environment with a mark by which what is left behind is found."""
    return {**os.environ, MARK: uuid.uuid4().hex, **way.variables, **more}


@contextmanager
def started(way: Way, *, faulty: bool = False, **more: Any) -> Iterator[Session]:
    """A session of which nothing is left."""
    with_mark = environment(way, **(way.faulty if faulty else {}))
    made = Session(OURS, with_mark, library=way.faulty_library if faulty else way.library, **more)
    made.start()
    yield made
    made.close()
    assert made._worker is not None
    assert all_gone(with_mark[MARK], made._worker.keeper)


@pytest.fixture(scope="module")
def session(way: Way) -> Iterator[Session]:
    with started(way) as made:
        yield made


@pytest.fixture(scope="module", params=[{}])
def faulty(way: Way, request: pytest.FixtureRequest) -> Iterator[Session]:
    """Ranks in which faults can be planted; the parameter is the session's limits."""
    with started(way, faulty=True, limits=request.param) as made:
        yield made


def planted(way: Way, fault: str, rank: int = 1) -> AllReduce:
    return replace(way.small, rank_env=tuple((("TORCH_FAULT", fault),) if r == rank else () for r in range(2)))


# Healthy


def test_two_ranks_finish_and_their_data_is_right(way: Way, session: Session) -> None:
    run = session.run(way.ranks(2, 4096, 1 << 20, 1 << 23))
    assert (run.state, run.verified, run.blamed) == ("finished", True, ()), run
    assert set(run.busbw) == {4096, 1 << 20, 1 << 23}
    assert all(rate > 0 for rate in run.busbw.values())
    assert [r.phase for r in run.ranks] == ["done", "done"]
    assert all(r.affinity and r.thread_affinity and r.exit == 0 for r in run.ranks)
    assert run.import_seconds is not None
    assert run.system_cpu_per_gb is not None and run.system_cpu_per_gb > 0
    assert run.via.value == way.name
    if way.library:
        assert run.mapped == (os.path.realpath(way.library),)
        assert run.nccl_version in way.library
        assert "NCCL INFO" in run.log_text


def test_equal_experiments_are_one_run(way: Way, session: Session) -> None:
    first = session.run(way.small)
    assert session.run(way.small) is first
    assert session.run(way.small, again=True) is not first


def test_three_ranks_and_odd_sizes(way: Way, session: Session) -> None:
    run = session.run(way.ranks(3, 4, 4100, 123456, 4099 * 4, 4099 * 4 * 256 + 8))
    assert (run.state, run.verified) == ("finished", True), run


def test_ranks_are_bound(way: Way, session: Session) -> None:
    cpu = min(os.sched_getaffinity(0))
    run = session.run(replace(way.small, binding=((cpu,), (cpu,))))
    assert [r.affinity for r in run.ranks] == [(cpu,), (cpu,)]


# Faults


PHASES = ("rendezvous", "init", "first", "timed")
DEATHS = {
    "kill": "ended by SIGKILL",
    "segv": "ended by SIGSEGV",
    "0": "exited with status 0",
    "3": "exited with status 3",
    "raise": "",
    "quit": "SystemExit: 3",
}
# By a signal and by an exception in each phase: who waits for the dead one, and how it learns of it, is another each time.
DIE = product(DEATHS, PHASES, ("kill", "raise"), (("segv", "timed"), ("0", "first"), ("3", "rendezvous"), ("quit", "init")))


@pytest.mark.parametrize(("action", "phase"), DIE)
def test_the_rank_that_dies_is_named_and_not_its_victim(way: Way, faulty: Session, phase: str, action: str) -> None:
    text = DEATHS[action]
    if action not in way.actions:
        pytest.skip("a C library raises no exception")
    rank = way.meets if phase == "rendezvous" else 1
    run = faulty.run(planted(way, f"{phase}:{action}", rank))
    assert (run.state, run.blamed) == ("failed", (rank,)), run
    assert (text or way.raised) in run.reason
    assert f"phase {phase}" in run.reason
    assert "file.cpp" not in run.reason
    assert run.abandoned == ()


@pytest.mark.parametrize(
    ("phase", "rank"), [("rendezvous", 1), ("init", 1), ("first", 1), ("timed", 1), ("init", 0), ("timed", 0)]
)
def test_a_stopped_rank_is_a_hang_that_names_it(
    way: Way, faulty: Session, phase: str, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STILL, "T", 1.0)  # how long it is: tests/unit/test_allreduce_watch.py
    rank = way.meets if phase == "rendezvous" else rank
    # By its state, not by waiting out the phase: the whole has less time than any phase that waits for others.
    budget = min(LIMITS[one] for one in ("init", "first", "timed")) - 15
    run = faulty.run(planted(way, f"{phase}:stop", rank), time.monotonic() + budget)
    assert (run.state, run.blamed) == ("hung", (rank,)), run
    assert f"rank {rank} is stopped" in run.reason
    assert all(r.exit is None for r in run.ranks)


def test_the_deadline_of_the_whole_is_no_hang(way: Way, faulty: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STILL, "T", 60.0)
    assert not isinstance(faulty.facts(), Unavailable)  # the import of torch takes none of it
    run = faulty.run(planted(way, "timed:stop"), time.monotonic() + 6, again=True)  # before the limit of the phase
    assert run.state == "unfinished"
    assert 4096 in run.ranks[0].seconds or run.ranks[0].phase == "timed"


PRINT = (("rubbish", "rendezvous"), ("flood", "init"), ("flood", "first"), ("rubbish", "timed"))


@pytest.mark.parametrize(("action", "phase"), product(("rubbish", "flood"), PHASES, (), PRINT))
def test_what_ranks_print_disturbs_nothing(way: Way, faulty: Session, phase: str, action: str) -> None:
    run = faulty.run(planted(way, f"{phase}:{action}", way.meets if phase == "rendezvous" else 1))
    assert (run.state, run.verified) == ("finished", True), run


def test_wrong_data_is_seen(way: Way, faulty: Session) -> None:
    run = faulty.run(planted(way, "first:wrong"))
    assert (run.state, run.verified) == ("finished", False), run
    assert [r.wrong for r in run.ranks] == [0, 1]


# What is left behind


KILLED = """
import json, os, sys, time
from netdoctor.facts.runs import AllReduce
from netdoctor.allreduce.runner import LIMITS, Code, Session
from netdoctor.allreduce.watch import STILL
stop, library = sys.argv[1:3]
experiment = {k: tuple(v) if isinstance(v, list) else v for k, v in json.loads(sys.argv[3]).items()}
session = Session(Code(sys.executable, trust=True), dict(os.environ), library=library, lock=False)
session.start()
if stop != "import":
    import threading
    fault = () if stop == "run" else (("TORCH_FAULT", stop),)
    experiment = AllReduce(**experiment, rank_env=((), fault), repeats=100000)
    threading.Thread(target=session.run, args=(experiment,), daemon=True).start()
end = time.monotonic() + 240
while not session._worker.ended and time.monotonic() < end:
    events = {e.get("phase") or e["event"] for e in session._worker.events}
    if ("hello" if stop == "import" else "timed" if stop == "run" else stop.split(":")[0]) in events:
        print(session._worker.keeper, flush=True)
        time.sleep(3600)
    time.sleep(0.01)
"""


STOPS = ("import", "run", "init:stop", "first:stop")


@pytest.mark.parametrize(("sign", "stop"), product(("SIGKILL", "SIGTERM"), STOPS, ("SIGKILL",), (("SIGTERM", "run"),)))
def test_nothing_survives_netdoctor(way: Way, stop: str, sign: str) -> None:
    with_mark = environment(way, **way.faulty)
    small = {
        "backend": way.small.backend,
        "ranks": 2,
        "device": way.small.device,
        "sizes": [4096, 1 << 22],
        "gpus": way.small.gpus,
    }
    command = [sys.executable, "-c", KILLED, stop, way.faulty_library, json.dumps(small)]
    with subprocess.Popen(command, env=with_mark, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            keeper = int(process.stdout.readline())
            assert len(marked(with_mark[MARK])) >= 2
            process.send_signal(signal.Signals[sign])
            process.wait()
        finally:
            process.kill()
    assert all_gone(with_mark[MARK], keeper)


def test_a_killed_keeper_takes_the_ranks_along(way: Way) -> None:
    with_mark = environment(way, **way.faulty)
    with closing(Session(OURS, with_mark, library=way.faulty_library)) as made:
        assert not isinstance(made.facts(), Unavailable)
        assert made._worker is not None
        os.kill(made._worker.keeper, signal.SIGKILL)
        assert all_gone(with_mark[MARK])
        assert made.run(way.small).state == "finished"  # by a new one


def test_a_killed_zygote_is_told_and_replaced(way: Way) -> None:
    with closing(Session(OURS, environment(way, **way.faulty), library=way.faulty_library)) as made:
        assert not isinstance(made.facts(), Unavailable)
        assert made._worker is not None
        os.kill(made._worker.zygote, signal.SIGKILL)
        made._worker.wait(lambda: made._worker is not None and made._worker.ended is not None, time.monotonic() + 20)
        assert made._worker.ended == "was ended by SIGKILL"
        assert made.run(way.small).state == "finished"

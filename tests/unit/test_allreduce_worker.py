"""A process that may start nothing more says so; it is no defect of netdoctor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_PROGRAM = """
import resource, sys, time
from netdoctor.allreduce.worker import Worker
worker = Worker(sys.executable, {{}}, None, True)
{limit}
began = time.monotonic()
worker.start()
worker.wait(lambda: worker.ended is not None, began + 60)
{lift}
worker.close()
print(worker.gone, worker.ended)
"""


def said(limit: str, lift: str = "") -> str:
    program = _PROGRAM.format(limit=limit, lift=lift)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False, cwd=os.getcwd()
    )
    assert not done.stderr
    return done.stdout.strip()


def test_no_descriptor_is_left() -> None:
    soft = "soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE); resource.setrlimit(resource.RLIMIT_NOFILE, ({}, hard))"
    assert said(soft.format("8"), soft.format("soft")) == "True could not start: [Errno 24] Too many open files"


def test_no_thread_is_left() -> None:
    """A limit of processes counts threads, and but not for root: no room for its stack does the same."""
    huge = "import threading; threading.stack_size(1 << 46)"
    assert said(huge) == "True could not start: can't start new thread"


_CONDUCT = """
import os, resource, sys
from netdoctor.allreduce.experiment import AllReduce, TorchFacts
from netdoctor.allreduce.runner import Session
from netdoctor.allreduce.worker import Worker
session, worker = Session(sys.executable, {{}}, lock=False), Worker(sys.executable, {{}}, None, True)
before = os.listdir("/proc/self/fd")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + {more}, hard))
run = session._conduct(worker, AllReduce("gloo", 2), TorchFacts(), None, {{}})
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(run.state, "|", run.reason, "|", len(os.listdir("/proc/self/fd")) - len(before))
"""


@pytest.mark.parametrize("more", [0, 1, 2, 3, 4])
def test_a_run_that_gets_no_descriptor_is_not_started_and_keeps_none(more: int) -> None:
    program = _CONDUCT.format(more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "not started | no memory to share with the ranks: Too many open files | 0", done.stderr

"""A process that may start nothing more says so; it is no defect of netdoctor."""

from __future__ import annotations

import os
import subprocess
import sys

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

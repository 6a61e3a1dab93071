"""A process that may start nothing more says so; it is no defect of netdoctor."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

_PROGRAM = """
import resource, sys, time
from netdoctor.allreduce.worker import Worker
worker = Worker(sys.executable, {{}}, None, ['-I'])
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
from netdoctor.facts.runs import AllReduce, TorchFacts
from netdoctor.allreduce.runner import Session
from netdoctor.allreduce.worker import Worker
session, worker = Session(sys.executable, {{}}, lock=False), Worker(sys.executable, {{}}, None, ['-I'])
before = os.listdir("/proc/self/fd")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + {more}, hard))
run = session._conduct(worker, AllReduce("gloo", 2), TorchFacts(), None, {{}})
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(run.state, "|", run.reason, "|", len(os.listdir("/proc/self/fd")) - len(before))
"""


@pytest.mark.parametrize("more", [0, 1, 2, 3, 4])
def test_a_run_without_a_descriptor_is_not_started(more: int) -> None:
    program = _CONDUCT.format(more=more)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.strip() == "not started | no memory to share with the ranks: Too many open files | 0", done.stderr


_START = """
import os, resource, sys
from netdoctor.facts.runs import AllReduce
from netdoctor.allreduce.runner import Session
session = Session(sys.executable, {{}}, lock=False)
before = os.listdir("/proc/self/fd")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + {more}, hard))
runs = [session.run(AllReduce("gloo", 2, fresh_import=fresh)) for fresh in (False, True)]
session.close()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
said = {{(run.state.value, run.obstacle.value, "could not start: [Errno 24]" in run.reason) for run in runs}}
print(*said, "|", len(os.listdir("/proc/self/fd")) - len(before))
"""


@pytest.mark.parametrize("more", range(11))  # two pairs, two pipes, three programs
def test_no_descriptor_for_the_keeper_is_a_run_not_started(more: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _START.format(more=more)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.stdout.strip() == "('not started', 'files', True) | 0", done.stderr


_STRANGE = """
import os, sys, time
from netdoctor.allreduce import worker as module
source = module._source
module._source = lambda name: {keeper!r} if name == "allreduce/keeper.py" and {keeper!r} else source(name)
worker = module.Worker(sys.executable, {environment}, None, ['-I'])
worker.start()
worker.wait(lambda: worker.gone, time.monotonic() + 10)
print(worker.gone, worker.ended)
worker.close()
print(worker.keeper and os.path.exists(f"/proc/{{worker.keeper}}"))
"""
# Says half a line of JSON, and stays until netdoctor lets go of it.
_BABBLE = b"""import json, os, sys
number = int(sys.argv[1])
order = json.loads(os.pread(number, 1 << 20, 0))
os.write(order["status"], b'{"event\\n')
os.read(order["life"], 1)
"""


@pytest.mark.parametrize(
    ("keeper", "environment", "told"),
    [
        (b"", "{1j: ''}", ["True could not start: keys must be str, int, float, bool or None, not complex", "0"]),
        (_BABBLE, "{}", ["True was lost: Unterminated string starting at: line 1 column 2 (char 1)", "False"]),
    ],
    ids=["no start", "no JSON"],
)
def test_whatever_goes_wrong_nobody_waits_for_it(keeper: bytes, environment: str, told: list[str]) -> None:
    program = _STRANGE.format(keeper=keeper, environment=environment)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout.splitlines(), done.stderr) == (told, "")


# What the zygote would say is there, whole, before the keeper tells that it ended.
_LAST_WORDS = b"""import json, os, socket, sys, time
number = int(sys.argv[1])
order = json.loads(os.pread(number, 1 << 20, 0))
control = socket.socket(fileno=os.dup(order["keep"][0]))
for n in range(100):
    control.send(json.dumps({"p": 1, "event": str(n), "t": time.monotonic()}).encode())
os.write(order["status"], json.dumps({"event": "ended", "status": 70}).encode() + b"\\n")
os.read(order["life"], 1)
"""


def test_last_words_come_before_the_news_of_the_end() -> None:
    program = (
        "import sys, time\nfrom netdoctor.allreduce import worker as module\nsource = module._source\n"
        f"module._source = lambda name: {_LAST_WORDS!r} if name == 'allreduce/keeper.py' else source(name)\n"
        "worker = module.Worker(sys.executable, {}, None, ['-I'])\nworker.start()\n"
        "worker.wait(lambda: worker.ended is not None, time.monotonic() + 10)\n"
        "print(worker.ended, worker.first('99') is not None)\nworker.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.stdout, done.stderr) == ("ended with status 70 True\n", "")


def test_a_python_that_is_too_old_says_so() -> None:
    """In its own syntax: what comes behind it is none to a Python 3.6."""
    from netdoctor.allreduce.worker import _BOOT

    program = f"import sys; sys.version_info = (3, 6, 15, 'final', 0)\n{_BOOT}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (1, "netdoctor starts ranks in Python 3.8 or newer; this is 3.6\n")

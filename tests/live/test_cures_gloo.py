"""Cures tried for real by torch with Gloo: a library that the loader takes, and CPUs of ranks.

A factor would be this machine's mood: what is asked is whether both sides ran, and that what does not finish does so with
the cure.
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from netdoctor.allreduce import comparison
from netdoctor.allreduce.comparison import compare
from netdoctor.allreduce.cures import cure_of
from netdoctor.allreduce.runner import Session
from netdoctor.facts.runs import AllReduce, Cure, PathRun, State
from netdoctor.model import Finding, Fix, Status
from tests.support.facts import baseline
from tests.support.machines.native import gcc
from tests.support.machines.ways import folder_of_root, torch

pytestmark = pytest.mark.live
# Gloo's TCP sends by writev (gloo/transport/tcp/pair.cc): its peer is not reached.
BROKEN = """
#include <errno.h>
#include <sys/uio.h>
ssize_t writev(int f, const struct iovec *v, int n) { errno = EPIPE; return -1; }
"""
SECONDS = 60.0
FIRST = {"first": 5.0}  # seconds without progress in which the first all-reduce counts as hung


@pytest.fixture(scope="module")
def small() -> Iterator[AllReduce]:
    with torch() as way:
        yield replace(way.small, sizes=(1 << 20,))


@pytest.fixture
def library() -> Iterator[pathlib.Path]:
    with folder_of_root() as made:
        (made / "broken.c").write_text(BROKEN)
        subprocess.run([gcc(), "-shared", "-fPIC", "-o", made / "broken.so", made / "broken.c"], check=True)
        yield made / "broken.so"


@contextmanager
def started(more: dict[str, str]) -> Iterator[Session]:
    with closing(Session(sys.executable, os.environ | more, limits=FIRST)) as made:
        made.start()
        yield made


def test_a_library_of_others_left_out(small: AllReduce, library: pathlib.Path) -> None:
    with started({"LD_PRELOAD": str(library)}) as session:
        broken = session.run(replace(small, fresh_import=True))
        assert broken.state in (State.FAILED, State.HUNG), broken
        fails = Finding(Status.FAIL, "x", fix=Fix("leave it out", tries=(("LD_PRELOAD", None),)))
        cure = cure_of(fails, baseline(broken), PathRun(()))
        assert cure is not None and cure.change.fresh_import
        cost = compare(session, cure, time.monotonic() + SECONDS)
    assert cost.significant and cost.after is not None and "without LD_PRELOAD" in cost.summary, cost


def test_cpus_of_ranks(small: AllReduce, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "LOOKS", ((2, 0),))  # pairs of runs: what more of them tell is a factor
    one = min(os.sched_getaffinity(0))
    narrow = replace(small, binding=((one,), (one,)))
    with started({}) as session:
        cost = compare(session, Cure(small, narrow, "every CPU"), time.monotonic() + SECONDS)
    assert cost.before is not None and cost.after is not None and cost.ratio, cost

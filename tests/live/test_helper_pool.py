"""Helper programs that do not end: what waits for their deadlines; all else is tests/unit/test_helper_pool.py."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from netdoctor.host.children import HelperPool
from netdoctor.model import Unavailable
from tests.unit.test_helper_pool import helpers, pool

__all__ = ["helpers", "pool"]
pytestmark = pytest.mark.live


def test_time_is_bounded_by_the_deadline(pool: HelperPool) -> None:
    began = time.monotonic()
    pool.start([f"ask:stubborn?n={n}" for n in range(5)])
    assert all(isinstance(pool.answer(f"ask:stubborn?n={n}"), Unavailable) for n in range(5))
    assert time.monotonic() - began < 30  # five side by side, TERM ignored; far below any single default deadline times five


FREEZER = pathlib.Path("/sys/fs/cgroup/freezer")


@pytest.mark.root
@pytest.mark.skipif(not os.access(FREEZER / "tasks", os.W_OK), reason="needs a writable cgroup v1 freezer")
def test_a_child_that_cannot_die_is_left_behind_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that the version 1 freezer holds is in state D and takes no signal, like one inside a hung driver."""
    group = FREEZER / f"netdoctor-test-{os.getpid()}"
    group.mkdir()
    one = HelperPool(deadlines={"hang": 0.5})
    try:
        one.start(["ask:hang"])
        pid = one._children["ask:hang"].pid
        (group / "tasks").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        got = one.answer("ask:hang")
        assert isinstance(got, Unavailable) and got.kind == "timed out"
        assert f"PID {pid} is stuck in the kernel (state D) and was left behind" in got.detail
        assert one.answer("ask:echo?x=1") == {"x": "1"}
        one.close()
    finally:
        (group / "freezer.state").write_text("THAWED")
        os.waitpid(pid, 0)
        group.rmdir()

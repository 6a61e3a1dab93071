"""How much of the CPUs' time others took: /proc/stat before and after, less what we and our children used."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from netdoctor.process import cpus


def test_the_machine_has_as_many_seconds_as_its_cpus() -> None:
    begin = cpus.machine()
    assert begin is not None
    time.sleep(0.2)
    now = cpus.machine()
    assert now is not None and 0 <= begin[0] <= begin[1] < now[1] and begin[0] <= now[0] <= now[1]


@pytest.mark.slow
def test_a_child_is_ours_while_it_lives_and_after() -> None:
    code = "import os, sys\nwhile sum(os.times()[:2]) < 0.5: pass\nprint(flush=True)\nsys.stdin.read()"
    begin = cpus.own()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline()
        assert cpus.own() - begin >= 0.45
    assert cpus.own() - begin >= 0.45


@pytest.mark.parametrize(
    ("before", "after", "ours", "share"),
    [
        ((100.0, 1000.0), (110.0, 1020.0), 10.0, 0.0),
        ((100.0, 1000.0), (110.0, 1020.0), 2.0, 0.4),
        ((100.0, 1000.0), (110.0, 1020.0), 12.0, 0.0),  # ticks are rounded
        ((100.0, 1000.0), (100.0, 1000.0), 0.0, None),  # a kernel that counts nothing
        (None, (110.0, 1020.0), 0.0, None),
        ((100.0, 1000.0), None, 0.0, None),
    ],
)
def test_the_share_of_others(
    before: tuple[float, float] | None,
    after: tuple[float, float] | None,
    ours: float,
    share: float | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told, used = iter([before, after]), iter([5.0, 5.0 + ours])
    monkeypatch.setattr(cpus, "machine", lambda: next(told))
    monkeypatch.setattr(cpus, "own", lambda: next(used))
    meter = cpus.Meter()
    assert meter.others() == (None if share is None else pytest.approx(share))

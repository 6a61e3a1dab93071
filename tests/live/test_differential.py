"""netdoctor's predictions against the real NCCL on machines and settings drawn by seed: `make test`'s share of them.

`python -m tests.fakegpu.differential` draws more; `make lab` holds ten versions to 2,000 draws.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from tests.fakegpu import build, doctor, namespace
from tests.fakegpu.differential import runner
from tests.fakegpu.differential.case import UNSAID, Draw, Result, Row, Version
from tests.support.machines import libnccl

pytestmark = [pytest.mark.live, pytest.mark.nccl]
DRAWS = 100


@functools.cache
def results() -> tuple[Result, ...]:
    """Of the newest NCCL before 2.28 and the newest of all."""
    if why := namespace.missing():
        pytest.skip(why)
    if why := runner.missing():
        pytest.skip(why)
    libnccl.both()
    old = [version for version in runner.available() if version < libnccl.RUNNING_FROM]
    return tuple(runner.run(DRAWS, "test", [max(old), max(runner.available())], tuple(runner.AREAS)))


@pytest.mark.parametrize("area", sorted(runner.NAMES))
def test_netdoctor_and_nccl_agree(area: str) -> None:
    own = [one for one in results() if one.area == area]
    wrong = [
        f"{one.version} {one.seed}: {one.what}: netdoctor {one.predicted}, NCCL {one.seen}"
        for one in own
        if one.agrees is False
    ]
    assert not wrong, "\n".join(wrong)
    assert own, "nothing was compared"


def test_the_step_of_gpu_proof_asks_the_library_of_the_job(tmp_path: pathlib.Path) -> None:
    """On the fake driver, with a checkout that fetched no libnccl: as where a GPU is lent and no network is."""
    with doctor.job(libnccl.newest().parts[-5]) as python:
        variables = {"LIBNCCL_FOLDER": str(tmp_path / "none"), "NETDOCTOR_TORCH_PYTHON": str(python), "GPU_PROOF_SECONDS": "4"}
        said = tmp_path / "said"
        python_, told_to = shlex.quote(sys.executable), shlex.quote(str(said))
        program = f"exec 7>{told_to}; GPU_PROOF_FD=7 exec {python_} -m tools.gpu_proof.differential"
        command = [sys.executable, "-m", "tests.fakegpu.namespace", "two-a100", "--one-node", "--", "sh", "-c", program]
        done = subprocess.run(
            command, cwd=build.ROOT, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120, check=False
        )
    told = json.loads(said.read_text("utf-8").splitlines()[0])
    assert (told["claim"], told["state"]) == ("differential.driver", "seen"), (told, done.stderr)


def test_what_is_not_said_is_neither_right_nor_wrong(tmp_path: pathlib.Path) -> None:
    draw = Draw("hca", (2, 27, 5), "1")
    rows = [Row("a", 1, 1), Row("b", UNSAID, 1), Row("c", 1, 2), Row("d", True, True, "gpudirect")]
    found = [Result.of(draw, row) for row in rows]
    assert [one.agrees for one in found] == [True, None, False, True]
    assert runner.agreement(found) == 2 / 3
    runner.write(found, tmp_path / "differential.json")
    text = (tmp_path / "differential.json").read_text("utf-8")
    assert '"unsaid": 1' in text and '"area": "gpudirect"' in text
    assert "2.27.5 hca seed 1: c: netdoctor 1, NCCL 2" in runner.table(found)
    assert runner.agreement([]) == 0.0  # nothing compared is nothing proven


def test_a_draw_is_its_seed() -> None:
    versions: list[Version] = [(2, 21, 5), (2, 32, 3)]
    assert runner.plan(100, "s", versions, ("hca", "values")) == runner.plan(100, "s", versions, ("hca", "values"))
    flat = [draw for world in runner.plan(100, "s", versions, tuple(runner.AREAS)) for draw in world]
    assert (
        len(flat) == 100
        and {draw.area for draw in flat} == set(runner.AREAS)
        and {draw.version for draw in flat} == set(versions)
    )

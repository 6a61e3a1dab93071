"""Real releases of torch, each in a Python of its own: what netdoctor asks of them, has them do and says of them.

`make torches TORCHES='2.4.1 newest'` fetches them and drops them again; without it these tests skip.  On this machine their
ranks go by Gloo.  A CUDA build meets the fake driver as well: there NCCL is the real one that it asks for, and torch's own
kernels do nothing, so that whether its data are right means nothing.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from netdoctor.allreduce.runner import Session
from netdoctor.facts.runs import AllReduce, TorchFacts
from tests.fakegpu import build, machine, namespace
from tests.support.machines import fetch, torches

RELEASES = os.environ.get("TORCHES", "").split()
pytestmark = [pytest.mark.live, pytest.mark.skipif(not RELEASES, reason="no release of torch was asked for (make torches)")]
SHORT = """
import sys
from netdoctor.allreduce import plan
from netdoctor.cli.main import main
plan.CUDA_SIZES = plan.PATH_SIZES = plan.SHARED_GPU_SIZES
main()
"""


@pytest.fixture(scope="module", params=RELEASES or ["none"])
def torch(request: pytest.FixtureRequest) -> Iterator[torches.Torch]:
    try:
        with torches.fetched(request.param, build.ROOT / "build" / "torches") as made:
            yield made
    except fetch.FetchError as error:
        pytest.skip(f"torch {request.param}: {error}")


def preflight(torch: torches.Torch, **changes: Any) -> dict[str, Any]:
    """On a fake machine with one GPU, or none: one of its own, whose lock no other netdoctor holds."""
    if why := namespace.missing():
        pytest.skip(why)
    one = machine.read("one-gpu").on_one_node().with_changes(changes)
    command = [sys.executable, "-c", SHORT, "preflight", "--vantage", "job", "--via", "torch", "-f", "json", "-q"]
    if one.gpus and os.geteuid() == 0:
        command += ["--user", "root"]  # else root's helpers go by no variable of a fake's
    with namespace.scratch() as folder:
        namespace.prepare(one, folder, bool(shutil.which("ip")))
        one.write(folder / "machine", kernels=str(build.kernels()))
        env = {k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "TORCH"))}
        done = subprocess.run(
            [*namespace.inside(folder), *command, "--python", str(torch.python)],
            cwd=build.ROOT,
            env={**env, **(namespace.environment(folder) if one.gpus else {})},  # without GPUs there is no driver
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
    assert "Traceback" not in done.stderr and done.stdout, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def of(report: dict[str, Any], id: str) -> list[dict[str, Any]]:
    return [finding for check in report["checks"] if check["id"] == id for finding in check["findings"]]


def test_it_tells_what_it_is_and_adds_right(torch: torches.Torch) -> None:
    with closing(Session(str(torch.python), dict(os.environ), lock=False)) as session:
        session.start()
        facts = session.facts()
        run = session.run(AllReduce("gloo", 2, sizes=(4096, 1 << 20)))
    assert isinstance(facts, TorchFacts) and facts.error == "", facts
    assert facts.version.partition("+")[0] == torch.version
    assert (facts.nccl_built, facts.cuda_available) == (bool(torch.cuda), False)
    assert facts.backends.get("cpu") == "gloo", facts
    assert (run.state, run.verified, run.abandoned) == ("finished", True, ()), run


def test_a_machine_without_gpus_is_healthy_with_it(torch: torches.Torch) -> None:
    report = preflight(torch, gpus=[], modules={})
    bad = [one for check in report["checks"] for one in check["findings"] if one["status"] in ("fail", "error")]
    assert not bad
    assert {one["status"] for one in of(report, "allreduce.run")} == {"pass"}, of(report, "allreduce.run")
    assert {one["status"] for one in of(report, "torch.backend")} == {"skip"}


def test_it_gives_fake_gpus_to_nccl(torch: torches.Torch) -> None:
    if not torch.cuda:
        pytest.skip(f"torch {torch.version} is a CPU build here")
    report = preflight(torch, **{"driver.cuda": torch.cuda})
    assert [one["status"] for one in of(report, "torch.backend")] == ["pass"], of(report, "torch.backend")
    (loaded,) = (one for one in of(report, "nccl.version") if one["subject"] == "loaded")
    assert loaded["status"] == "pass" and str(torch.python.parents[1]) in loaded["message"], loaded
    run = report["runs"][0]
    assert (run["via"], run["backend"], run["state"]) == ("torch", "nccl", "finished"), report["volatile"]["runs"]
    assert run["nccl"] and run["ranks"] == 2
    assert "MISSING in the fake driver" not in json.dumps(report)

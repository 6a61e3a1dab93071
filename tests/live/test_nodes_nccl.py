"""`netdoctor allreduce` on two hosts without torch: NCCL's unique id goes by the meeting, the data by the hosts' own sockets.

The hosts are namespaces, their GPUs a fake driver; NCCL is the real one.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakegpu import build, machine
from tests.support.machines import native, ways
from tests.support.namespaces.hosts import Hosts
from tests.support.namespaces.marks import all_gone

pytestmark = [
    pytest.mark.live,
    pytest.mark.root,
    pytest.mark.nccl,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: hosts in namespaces"),
]
NO_TORCH = "/usr/bin/python3"  # -I sees no torch of a user's


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    ways.real()
    made = Hosts(2, tmp_path)
    try:
        yield made
        assert all_gone(made.mark), "processes were left behind"
    finally:
        made.close()


@pytest.fixture
def variables() -> Iterator[dict[str, str]]:
    """Of a job without torch that finds a libnccl by LD_LIBRARY_PATH."""
    paths = [*map(str, build.libraries()), os.path.realpath(ways.real().parent)]
    with tempfile.TemporaryDirectory(dir=native.BUILD) as folder:
        machine.read("one-gpu").write(Path(folder) / "machine", kernels=str(build.kernels()))
        yield {"LD_LIBRARY_PATH": os.pathsep.join(paths), "FAKEGPU_MACHINE": f"{folder}/machine"}


def started(hosts: Hosts, number: int, variables: dict[str, str], *more: str) -> subprocess.Popen[str]:
    where = ["--nodes", "2", "--node-rank", str(number), "--master", "h0:29400", "--wait", "60", "--stall", "30"]
    options = ["--python", NO_TORCH, "--user", "root", "--only", "allreduce.run", "-f", "json", *more]
    return hosts.start(number, "allreduce", *where, *options, variables=variables)


def told(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, said = process.communicate(timeout=240)
    assert out, said[-3000:]
    report = json.loads(out)
    (found,) = (one["findings"][0] for one in report["checks"] if one["id"] == "allreduce.run")
    return {**found, "runs": report["runs"]}, said


def test_two_hosts_without_torch(hosts: Hosts, variables: dict[str, str]) -> None:
    processes = [started(hosts, n, variables) for n in range(2)]
    for found, said in map(told, processes):
        assert found["status"] == "pass", (found, said[-3000:])
        assert " without torch, 2 ranks between nodes" in found["message"]
        assert [(run["via"], run["verified"]) for run in found["runs"]] == [("nccl", True)]
        assert found["runs"][0]["transports"] and "P2P" not in str(found["runs"][0]["transports"])


def test_a_node_without_a_libnccl_is_named(hosts: Hosts, variables: dict[str, str]) -> None:
    """Its job has no torch either."""
    nothing = {**variables, "LD_LIBRARY_PATH": variables["LD_LIBRARY_PATH"].rpartition(os.pathsep)[0]}
    processes = [started(hosts, 0, variables), started(hosts, 1, nothing, "--via", "nccl")]
    for found, _ in map(told, processes):
        assert found["status"] == "unknown"
        assert "(h1): --via nccl: no torch and no libnccl" in found["message"]

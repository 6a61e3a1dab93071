"""Who looks, from real namespaces and environments of this machine."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

pytestmark = [pytest.mark.live, pytest.mark.skipif(not shutil.which("unshare"), reason="needs unshare (util-linux)")]
ROOT = pathlib.Path(__file__).parents[2]
_LOOK = """
import json
from netdoctor.host.live import LiveHost
from netdoctor.model import plain
from netdoctor.facts import vantage
host = LiveHost()
print(json.dumps(plain(vantage.probe(host))))
"""


def seen(*wrap: str, **environment: str) -> dict[str, Any]:
    """The vantage as a process sees it that `wrap` starts with nothing but this environment."""
    done = subprocess.run(
        [*wrap, sys.executable, "-c", _LOOK], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr
    vantage: dict[str, Any] = json.loads(done.stdout)
    return vantage


def test_root_of_a_user_namespace_is_not_root() -> None:
    vantage = seen("unshare", "--user", "--map-root-user", PATH=os.environ["PATH"])
    assert vantage["euid"] == 0 and vantage["root_is_root"] is False
    assert "CAP_IPC_LOCK" in vantage["capabilities"]  # of the namespace only: the kernel asks the initial one
    assert vantage["namespaces"]["user"] != os.readlink("/proc/self/ns/user")[6:-1]


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_pid_namespace_is_taken_for_a_container() -> None:
    vantage = seen("unshare", "--pid", "--fork", "--mount-proc", PATH=os.environ["PATH"])
    assert vantage["kind"] == "container" and vantage["runtime"] is not None


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_prolog_sees_nothing_of_the_jobs() -> None:
    vantage = seen(SLURM_JOB_ID="7", SLURM_JOB_UID="1000", SLURMD_NODENAME="n1")
    assert vantage["kind"] == "prolog"
    assert not vantage["job_user"] and not vantage["job_network"] and not vantage["job_environment"]

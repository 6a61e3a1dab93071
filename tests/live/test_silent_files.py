"""A FUSE file system that stands still, as a dead NFS server does: what lies there is unknown, and a report comes."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

from tests.support.sources import ROOT

pytestmark = pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts a FUSE file system: root")


def look(folder: pathlib.Path, name: str, below: str, *words: str) -> subprocess.CompletedProcess[str]:
    """netdoctor where a variable leads to the file system that stands still."""
    value = f"{folder}/{below}" + (":/usr/bin:/bin" if name == "PATH" else "")
    inside = [sys.executable, "-I", "-m", "netdoctor", *words]
    mounted = [sys.executable, "-m", "tests.support.namespaces.silent", str(folder), "--", *inside]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("NETDOCTOR_")}
    return subprocess.run(
        mounted, cwd=ROOT, env={**clean, name: value}, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize(
    ("name", "below", "said"),
    [
        ("NCCL_CONF_FILE", "nccl.conf", True),
        ("HOME", "ada", True),
        ("VIRTUAL_ENV", "venv", False),
        ("PATH", "bin", False),
    ],
)
def test_a_look_ends_and_tells(tmp_path: pathlib.Path, name: str, below: str, said: bool) -> None:
    done = look(tmp_path, name, below, "preflight", "--no-allreduce", "-q", "-f", "json", "--vantage", "job")
    assert done.returncode in (0, 4), done.stderr  # without a GPU the profile requires nothing of it
    report = json.loads(done.stdout)
    assert report["partial"] is None and not [f for c in report["checks"] for f in c["findings"] if f["status"] == "fail"]
    assert not said or f"(fuse.silent of netdoctor-silent on {tmp_path})" in done.stdout


def test_a_snapshot_is_written(tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").mkdir()
    out = tmp_path / "snapshot.json"
    done = look(tmp_path / "there", "NCCL_CONF_FILE", "x", "snapshot", "-q", "--no-allreduce", "-o", str(out))
    assert done.returncode == 0, done.stderr
    kept = json.loads(out.read_text())["answers"][f"file:{tmp_path}/there/x"]
    assert kept["unavailable"] == "timed out"


def test_where_nothing_can_be_written_the_report_is_printed(tmp_path: pathlib.Path) -> None:
    done = look(
        tmp_path, "NCCL_DEBUG", "x", "preflight", "--no-allreduce", "-q", "--only", "net.port_range", "-o", f"{tmp_path}/r.json"
    )
    assert "net.port_range" in done.stdout and f"on {tmp_path}) did not answer" in done.stderr


def test_a_job_behind_the_gate_begins(tmp_path: pathlib.Path) -> None:
    done = look(tmp_path, "VIRTUAL_ENV", "venv", "run", "-q", "--", "/bin/sh", "-c", "echo begun; kill -PIPE $$")
    assert "begun" in done.stdout and done.returncode in (-13, 141, 256 - 13), done.stderr

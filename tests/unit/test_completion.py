"""What a shell completes behind options and arguments that take one of known words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("explain rdma.gpud", "rdma.gpudirect"),
        ("preflight --only net.reac", "net.reach"),
        ("preflight --only net.reach,rdma.gpud", "net.reach,rdma.gpudirect"),
        ("preflight --only net.reach,net.plugin,net.r", ""),  # named already
        ("preflight --only net.reach, net.plu", ""),  # the shell's word ended
        ("preflight --profile a", "audit"),
        ("env --fail-on crit", "critical"),
        ("fleet report --format h", "html"),
        ("preflight --exit-style np", "npd"),
        ("run --via n", "nccl"),
        ("snapshot --vantage n", "node"),
        ("schema fl", "fleet"),
        ("deploy sl", "slurm"),
        ("expect --leave-out mtu,ad", "mtu,addresses"),
        ("preflight --only no.such", ""),
    ],
)
def test_known_words_are_completed(words: str, found: str) -> None:
    number = len(words.split())
    environment = os.environ | {
        "_NETDOCTOR_COMPLETE": "complete_bash", "COMP_WORDS": f"netdoctor {words}", "COMP_CWORD": str(number),
    }  # fmt: skip
    line = [sys.executable, "-m", "netdoctor"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout.strip(), done.stderr) == (found, "")


@pytest.mark.slow
def test_the_shell_is_called_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "netdoctor").write_text("#!/bin/sh\n")
    (tmp_path / "netdoctor").chmod(0o755)
    environment = os.environ | {"HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    line = [sys.executable, "-m", "netdoctor", "--install-completion", "bash"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.startswith("bash completion installed in ")

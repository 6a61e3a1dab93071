"""A Python without torch is named: the job's is often another of the machine's than the one that was asked."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from netdoctor.allreduce.runner import Code, Session
from netdoctor.facts.runs import Obstacle

pytestmark = pytest.mark.slow


def test_the_python_that_was_asked_is_named(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True, timeout=60)
    python = str(tmp_path / "venv/bin/python")
    session = Session(Code(python, trust=True), {"PATH": "/usr/bin:/bin"}, lock=False)
    try:
        session.start()
        reason = session.lacking(time.monotonic() + 60)
    finally:
        session.close()
    assert reason is not None and reason.obstacle is Obstacle.NO_TORCH
    assert reason.text == f"no torch in {python}: ModuleNotFoundError: No module named 'torch'"

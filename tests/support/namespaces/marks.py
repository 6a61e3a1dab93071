"""Processes that a test started, found by a mark in their environment: none may be left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

MARK = "NETDOCTOR_TEST_MARK"


def marked(mark: str) -> list[int]:
    """Processes whose environment has the mark, this one left out."""
    return [int(n) for n in os.listdir("/proc") if n.isdecimal() and int(n) != os.getpid() and mark.encode() in _environ(n)]


def _environ(pid: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def all_gone(mark: str, *pids: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not marked(mark) and not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.02)
    return False

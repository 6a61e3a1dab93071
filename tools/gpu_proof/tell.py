"""How a step, in a process of its own, tells what it saw: one JSON object a line, on the descriptor that GPU_PROOF_FD names.

{"claim", "state", "text", "data"} about a claim; {"test", "outcome", "text", "data"} about a test, {"module", …} about a file
of tests that was skipped or broken as a whole; {"file"} names a file that was written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Final

VARIABLE: Final = "GPU_PROOF_FD"


def line(**fields: Any) -> None:
    """Tell the book; without one, print."""
    text = json.dumps(fields, default=str) + "\n"
    target = os.environ.get(VARIABLE, "")
    os.write(int(target) if target.isdigit() else 1, text.encode())


def seen(claim: str, text: str = "", data: Mapping[str, Any] | None = None) -> None:
    line(claim=claim, state="seen", text=text, data=dict(data or {}))


def not_seen(claim: str, why: str, data: Mapping[str, Any] | None = None) -> None:
    line(claim=claim, state="not seen", text=why, data=dict(data or {}))


def failed(claim: str, why: str, data: Mapping[str, Any] | None = None) -> None:
    line(claim=claim, state="failed", text=why, data=dict(data or {}))


def wrote(path: str) -> None:
    line(file=path)

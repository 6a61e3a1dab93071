"""nvidia-imex-ctl: the IMEX daemon of this node, and the nodes of its domain.

Answer: {"daemon": "READY", "nodes": [{"host": address, "name", "version", "connections": {address: "CONNECTED"}}]}; "nodes" may
be {"unavailable", "detail"}, and is [] where the daemon is not ready.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any

# Where DCGM looks for it (dcgmlib/src/DcgmImexManager.cpp, GetImexCtlSearchPaths).
FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/nvidia/imex/bin", "/usr/local/nvidia/imex/bin")
NOT_CONFIGURED = "Failed to read node configuration file"  # the same file
STATE = re.compile(r"[A-Z][A-Z_]{2,40}")
SHORT, LONG = 3, 7  # seconds: of this node's daemon, and of one that asks all nodes
MAX_NODES = 1024


def answer(parameters: dict[str, str]) -> object:
    there = [path for one in FOLDERS if os.path.exists(path := f"{one}/nvidia-imex-ctl")]
    program = next((path for path in there if os.access(path, os.X_OK)), None)
    if program is None:
        lost = {"unavailable": "denied", "detail": f"{there[0]} may not be run"} if there else None
        return lost or {"unavailable": "absent", "detail": "no nvidia-imex-ctl"}
    said = told([program, "-q"], SHORT)
    if isinstance(said, dict):
        return said
    state = said.strip()
    if NOT_CONFIGURED in said:
        return {"daemon": "NOT_CONFIGURED", "nodes": []}
    if not STATE.fullmatch(state):
        return {"unavailable": "failed", "detail": f"nvidia-imex-ctl -q: {state[:120]}"}
    return {"daemon": state, "nodes": domain(program) if state == "READY" else []}


def domain(program: str) -> Any:
    """Each node, and what it says of its connections.  What is said of a node's own state is not told: nodes that are connected
    call each other UNAVAILABLE (NVIDIA/ai-cloud-validation, imex_departure_test.py: seen on live domains)."""
    import json

    said = told([program, "-N", "-j"], LONG)
    if isinstance(said, dict):
        return said
    try:
        nodes = json.loads(said)["nodes"]
        return [
            {
                "host": str(one["host"]),
                "name": str(one.get("hostName", "")),
                "version": str(one.get("version", "")),
                "connections": {str(peer["host"]): str(peer["status"]) for peer in one["connections"].values()},
            }
            for one in list(nodes.values())[:MAX_NODES]
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"unavailable": "malformed", "detail": f"nvidia-imex-ctl -N -j: {type(error).__name__}: {error}"[:200]}


def told(command: list[str], seconds: float) -> Any:
    """What it printed, or why there is nothing."""
    import signal
    import subprocess

    name = f"nvidia-imex-ctl {' '.join(command[1:])}"
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False, cwd="/")
    except subprocess.TimeoutExpired:
        return {"unavailable": "timed out", "detail": f"{name}: {seconds} s"}
    except OSError as error:
        return {"unavailable": "failed", "detail": f"{name}: {error}"}
    if done.returncode < 0:
        return {"unavailable": "failed", "detail": f"{name}: it died of {signal.Signals(-done.returncode).name}"}
    return done.stdout.decode("utf-8", "replace") or done.stderr.decode("utf-8", "replace")

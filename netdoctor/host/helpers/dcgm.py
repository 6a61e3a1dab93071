"""DCGM: what its health watches have found since they began, by dcgmi and the daemon that it asks (nv-hostengine, port 5555).

Answer: {"watching": true, "overall": "Healthy", "incidents": [{"entity": "GPU", "id": "3", "system": "Memory system", "health":
"Failure", "text"}]}; {"watching": false} where the daemon answers that it watches nothing; {"running": false} where no daemon
takes a connection.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any

SECONDS = 4
MAX_INCIDENTS = 64
UNWATCHED = "Health watches not enabled"  # dcgmi/Health.cpp, CheckWatches
NO_DAEMON = "unable to establish a connection to the specified host"  # dcgmi/Command.cpp, Connect
# Else it writes ./dcgmi.log (common/DcgmLogging.h, DCGM_LOGGING_DEFAULT_DCGMI_FILE).
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "__DCGM_DBG_FILE": "/dev/null", "__DCGM_DBG_LVL": "NONE"}


def answer(parameters: dict[str, str]) -> object:
    import signal
    import subprocess

    command = [parameters["program"], "health", "-c", "-j"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS, check=False, cwd="/", env=ENVIRONMENT
        )
    except subprocess.TimeoutExpired:
        return {"unavailable": "timed out", "detail": f"dcgmi health: {SECONDS} s"}
    except OSError as error:
        return {"unavailable": "failed", "detail": f"dcgmi: {error}"}
    if done.returncode < 0:
        return {"unavailable": "failed", "detail": f"dcgmi health: it died of {signal.Signals(-done.returncode).name}"}
    return said(done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace"))


def said(text: str, errors: str) -> dict[str, Any]:
    import json

    if "{" not in text and UNWATCHED in text:
        return {"watching": False}
    if "{" not in text and NO_DAEMON in f"{text}{errors}":
        return {"running": False}
    if "{" not in text:
        lines = [line.strip() for line in f"{text}\n{errors}".splitlines() if line.strip()]
        return {"unavailable": "failed", "detail": f"dcgmi health: {'; '.join(lines[:2]) or 'it says nothing'}"[:200]}
    try:
        body = json.loads(text[text.index("{") :])["body"]
        overall = str(body.pop("Overall Health")["value"])
        every = [one for group, told in body.items() for one in incidents(group, told)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"unavailable": "malformed", "detail": f"dcgmi health -c -j: {type(error).__name__}: {error}"[:200]}
    return {"watching": True, "overall": overall, "incidents": every[:MAX_INCIDENTS]}


def incidents(group: str, told: dict[str, Any]) -> list[dict[str, str]]:
    """dcgmi/Health.cpp, HandleOneEntity; texts are cut into lines of 54 characters (AddErrorMessage)."""
    return [
        {
            "entity": group,
            "id": name,
            "system": system,
            "health": str(one["value"]),
            "text": " ".join(map(str, one.get("overflow", []))),
        }
        for name, entity in told["children"].items()
        for system, one in entity["children"]["Errors"]["children"].items()
    ]

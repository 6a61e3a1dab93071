"""DCGM's own diagnostic (dcgmi diag -r LEVEL -j), which the daemon runs on the GPUs that it sees: only where somebody asked.

Answer: {"results": [[test, entity, status, text], …]}, as versions 2 to 4 print it (dcgmi/Diag.cpp, HelperJsonBuildOutput);
"entity" is "GPU 3", or "" where DCGM names none.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any

MAX_RESULTS = 4096
STOPS = 20  # seconds that dcgmi has, when it is told to end, to have the daemon stop what it runs (handle_signal_during_diag)
# Else it writes ./dcgmi.log (common/DcgmLogging.h, DCGM_LOGGING_DEFAULT_DCGMI_FILE).
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "__DCGM_DBG_FILE": "/dev/null", "__DCGM_DBG_LVL": "NONE"}


def answer(parameters: dict[str, str]) -> object:
    import signal
    import subprocess

    seconds, name = float(parameters["seconds"]), f"dcgmi diag -r {parameters['level']}"
    command = [parameters["program"], "diag", "-r", parameters["level"], "-j"]
    # A session of its own: who kills this process and its group does not kill dcgmi before it stopped the diagnostic.
    apart: dict[str, Any] = {"cwd": "/", "env": ENVIRONMENT, "start_new_session": True, "preexec_fn": ends_with_us}
    try:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **apart
        ) as child:
            try:
                out, errors = child.communicate(timeout=seconds)
            except subprocess.TimeoutExpired:
                end(child)
                return {"unavailable": "timed out", "detail": f"{name}: {seconds:g} s"}
    except OSError as error:
        return {"unavailable": "failed", "detail": f"{name}: {error}"}
    if child.returncode < 0:
        return {"unavailable": "failed", "detail": f"{name}: it died of {signal.Signals(-child.returncode).name}"}
    told = said(name, out.decode("utf-8", "replace"), errors.decode("utf-8", "replace"))
    if child.returncode and not any(row[2] in ("Fail", "Warn") for row in told.get("results", [["", "", "Fail", ""]])):
        return {"unavailable": "failed", "detail": f"{name}: it ended with {child.returncode}, and names no test that failed"}
    return told


def end(child: Any) -> None:
    """It has the daemon stop the diagnostic first."""
    import subprocess

    child.terminate()
    try:
        child.wait(STOPS)
    except subprocess.TimeoutExpired:
        child.kill()


def ends_with_us() -> None:
    """TERM for dcgmi when this process ends, however it ends (PR_SET_PDEATHSIG, prctl(2))."""
    import ctypes
    import signal

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def said(name: str, text: str, errors: str) -> dict[str, Any]:
    import json

    if "{" not in text:
        lines = [line.strip() for line in f"{text}\n{errors}".splitlines() if line.strip()]
        return {"unavailable": "failed", "detail": f"{name}: {'; '.join(lines[:2]) or 'it says nothing'}"[:200]}
    try:
        body = json.loads(text[text.index("{") :])
        told: dict[str, Any] = next((body[key] for key in ("DCGM Diagnostic", "DCGM GPU Diagnostic") if key in body), {})
        if "runtime_error" in told:
            return {"unavailable": "failed", "detail": f"{name}: {told['runtime_error']}"[:200]}
        rows = [row for category in told["test_categories"] for test in category["tests"] for row in of_one(test)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return {"unavailable": "malformed", "detail": f"{name} -j: {type(error).__name__}: {error}"[:200]}
    return {"results": rows[:MAX_RESULTS], "left_out": max(0, len(rows) - MAX_RESULTS)}


def of_one(test: dict[str, Any]) -> list[list[str]]:
    """Its results; of a test that names none its summary, which is DCGM's word for the whole of it (version 4)."""
    summary = test.get("test_summary")
    results = list(test.get("results") or [])
    if isinstance(summary, dict) and not any(one["status"] == summary["status"] for one in results):
        results.append(summary)
    return [[str(test["name"]), entity(one), str(one["status"]), words(one.get("warnings", ""))] for one in results]


def entity(one: dict[str, Any]) -> str:
    if "entity_id" in one:
        return f"{one.get('entity_group', 'entity')} {one['entity_id']}"
    gpu = one.get("gpu_id", one.get("gpu_ids", ""))
    return f"GPU {gpu}" if str(gpu) else ""


def words(warnings: Any) -> str:
    """One text, a list of them, or of {"warning": text}."""
    every = warnings if isinstance(warnings, list) else [warnings]
    return "; ".join(str(one.get("warning", "")) if isinstance(one, dict) else str(one) for one in every if one)[:400]

"""Runs one step in a process group of its own, reads what it tells, and ends it at its deadline."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tools.gpu_proof import tell
from tools.gpu_proof.claims import Claim, Step
from tools.gpu_proof.ledger import FAILED, NOT_SEEN, SEEN, Ledger

GRACE: Final = 5.0  # seconds between TERM and KILL: netdoctor ends its ranks within 4 of them
_OUTCOMES: Final = {"passed": SEEN, "skipped": NOT_SEEN, "failed": FAILED}
_PR_SET_PDEATHSIG: Final = 1


def run(
    step: Step,
    command: Sequence[str],
    ledger: Ledger,
    deadline: float,
    *,
    environment: Mapping[str, str] | None = None,
    log: str = os.devnull,
) -> str:
    """Run `command` until it ends or `deadline` (time.monotonic); how it ended.  Every claim of `step` is spoken for."""
    begin = time.monotonic()
    reader, writer = os.pipe()
    ended = ""
    process: subprocess.Popen[bytes] | None = None
    try:
        with open(log, "ab") as printed:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                env={**(os.environ if environment is None else environment), tell.VARIABLE: str(writer)},
                pass_fds=(writer,),
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509  (this process has no threads)
            )
        os.close(writer)
        writer = -1
        late = _read(reader, process, deadline, lambda told: _enter(ledger, step, told))
        ended = f"the step was ended at its deadline, after {time.monotonic() - begin:.0f} s" if late else _how(process)
    except OSError as error:
        ended = f"the step could not be started: {error}"
    finally:
        for descriptor in (reader, writer):
            if descriptor >= 0:
                os.close(descriptor)
        if process is not None:
            end_group(process)
        ledger.took[step.name] = round(time.monotonic() - begin, 1)
        ledger.close(step, ended or "the proof was ended while this step ran")
        ledger.changed()
    return ended


def end_group(process: subprocess.Popen[bytes]) -> None:
    """TERM and then KILL for everything that the step started and that stayed in its group."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        try:
            os.killpg(process.pid, number)
        except (ProcessLookupError, PermissionError):
            break
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
    process.poll()


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def _read(reader: int, process: subprocess.Popen[bytes], deadline: float, enter: Callable[[Mapping[str, Any]], None]) -> bool:
    """Read lines until the process has ended; True where the deadline came first."""
    rest = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        ready, _, _ = select.select([reader], [], [], min(left, 0.2))
        if ready:
            block = os.read(reader, 1 << 16)
            if not block:
                break
            *lines, rest = (rest + block).split(b"\n")
            for one in lines:
                told = _parse(one)
                if told is not None:
                    enter(told)
        elif process.poll() is not None:
            break  # a grandchild may hold the pipe open
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        return True
    return False


def _parse(text: bytes) -> Mapping[str, Any] | None:
    try:
        told = json.loads(text)
    except ValueError:
        return None
    return told if isinstance(told, dict) else None


def _enter(ledger: Ledger, step: Step, told: Mapping[str, Any]) -> None:
    mine = {c.id: c for c in step.claims}
    text = str(told.get("text", ""))
    if "file" in told:
        ledger.files.append(str(told["file"]))
    elif told.get("claim") in mine and told.get("state") in (SEEN, NOT_SEEN, FAILED):
        ledger.say(str(told["claim"]), str(told["state"]), text, _data(told))
    elif told.get("outcome") in _OUTCOMES:
        state = _OUTCOMES[str(told["outcome"])]
        for claim in mine.values():
            if "module" in told and claim.source.partition("::")[0] == told["module"] and state != SEEN:
                ledger.say(claim.id, state, text)
            # One case of a test may be a claim of its own; else of several cases the worst counts.
            elif "test" in told and claim.source in (told["test"], str(told["test"]).partition("[")[0]):
                ledger.say(claim.id, state, text, _merged(ledger, claim, told))
    ledger.changed()


def _data(told: Mapping[str, Any]) -> dict[str, Any]:
    data = told.get("data")
    return data if isinstance(data, dict) else {}


def _merged(ledger: Ledger, claim: Claim, told: Mapping[str, Any]) -> dict[str, Any]:
    """Data of the cases of one test, side by side under the case's name."""
    _, _, case = str(told["test"]).partition("[")
    before = dict(ledger.entries[claim.id].data)
    return {**before, case.rstrip("]"): _data(told)} if case and "[" not in claim.source else {**before, **_data(told)}


def _how(process: subprocess.Popen[bytes]) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return f"the step was ended by signal {-code} before it came to this"
    return f"the step ended with exit status {code} and said nothing about this"

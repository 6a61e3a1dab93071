"""The Python API: `netdoctor.preflight()` looks from a process of its own and returns the report as data.

A look drops rights, catches signals and starts ranks: in the caller's process it would leave what a library must not.  What
comes back is the published report (`netdoctor schema report`), so all that the command says can be read here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

# The caller's own search path: netdoctor is found where the caller found it, and nothing in the working directory is.
_START: Final = "import json, sys; sys.path[:] = json.loads(sys.argv.pop(1)); from netdoctor.__main__ import main; main()"
_GRACE_S: Final = 20.0  # after SIGTERM the partial report is written: ranks have 5 s to end, then a kill


class LookError(RuntimeError):
    """No report came: bad usage or configuration (`exit_code` 2), or netdoctor broke.  The text is its own."""

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


@dataclass(frozen=True)
class Finding:
    """One thing that a check says of one subject."""

    check: str
    subject: str  # the GPU, port, variable … that it is about
    status: str  # pass, fail, skip, unknown, error
    severity: str | None  # of a fail: info, warning, critical
    message: str
    mend: str | None
    commands: tuple[str, ...]
    waived: str | None


@dataclass(frozen=True)
class Report:
    """What one look says."""

    status: str  # healthy, unhealthy, inconclusive
    exit_code: int  # as of the command: 0 healthy, 3 unhealthy, 4 could not tell
    text: str
    partial: str | None  # why the look is not whole
    findings: tuple[Finding, ...]
    document: Mapping[str, Any]  # all of it: `netdoctor schema report`

    @property
    def healthy(self) -> bool:
        """Nothing else than a whole look that found nothing wrong."""
        return self.status == "healthy" and self.exit_code == 0 and self.partial is None

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.status == "fail" and finding.waived is None)


def preflight(
    *,
    config: str | None = None,
    profile: str | None = None,
    only: Iterable[str] = (),
    python: str | None = None,
    allreduce: bool = True,
    timeout_s: float = 600.0,
) -> Report:
    """Look at this node, run a short all-reduce, and say what is wrong: `netdoctor preflight` of this process's environment.

    Args:
        config: a configuration file, else /etc/netdoctor/config.yaml and NETDOCTOR_*.
        profile: default, gate, audit, prolog or strict.
        only: ids of checks, else all.
        python: the job's Python; else it is found as the command does, this one included.
        allreduce: False: look only.
        timeout_s: after so many seconds the look is ended, and the partial report is returned.

    Raises:
        LookError: there is no report.
        ValueError: `timeout_s` is no number of seconds above 0.
    """
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < threading.TIMEOUT_MAX:
        raise ValueError(f"timeout_s: not a number of seconds above 0: {timeout_s!r}")
    words = ["preflight", "--format", "json", "--quiet"]
    for option, value in (("--config", config), ("--profile", profile), ("--python", python)):
        words += [option, value] if value is not None else []
    for check in only:
        words += ["--only", check]
    words += [] if allreduce else ["--no-allreduce"]
    command = [sys.executable, "-c", _START, json.dumps(sys.path), *words]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        try:
            said, told = _end(child, timeout_s)
        except BaseException:
            child.terminate()
            raise
    return _report(said, told.decode(errors="replace"), child.returncode)


def _end(child: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    try:
        return child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        child.terminate()
    try:
        return child.communicate(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()


def _report(said: bytes, told: str, code: int) -> Report:
    try:
        document = json.loads(said)
    except ValueError:
        raise LookError(told.strip() or f"netdoctor ended with {code} and no report", code) from None
    verdict = document["verdict"]
    findings = tuple(_finding(one) for check in document["checks"] for one in check["findings"])
    return Report(verdict["status"], code, verdict["text"], document["partial"], findings, document)


def _finding(one: Mapping[str, Any]) -> Finding:
    fix = one["fix"] or {}
    return Finding(
        one["check"],
        one["subject"],
        one["status"],
        one["severity"],
        one["message"],
        fix.get("summary"),
        tuple(fix.get("commands", ())),
        one["waived"],
    )

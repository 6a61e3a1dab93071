"""``netdoctor ras [HOST:PORT]``: ask a running job (NCCL 2.24 and later) which rank is behind.

Exit codes: 0 all ranks move on together, 2 bad usage, 3 ranks are dead, in error or stuck, 4 no answer.
"""

from __future__ import annotations

import time
from typing import Any, Final

from netdoctor.cli.errors import usage
from netdoctor.model import Unavailable, plain
from netdoctor.nccl.ras import ADDRESS, Behind, Status, ask, parse
from netdoctor.textsafe import clean

SCHEMA: Final = "netdoctor.ras/1"
FORMATS: Final = ("text", "json")
OK, UNHEALTHY, INCONCLUSIVE = 0, 3, 4


def run(
    address: str | None = None,
    format: str = "text",
    *,
    diagnostics: bool = False,
    interval: float = 3.0,
    timeout: float = 5.0,
) -> int:
    """Ask, and where ranks differ ask again after `interval` seconds; print; return the exit code."""
    if format not in FORMATS:
        return usage(f"--format: must be one of {', '.join(FORMATS)}, not {format!r}")
    where = _address(address)
    if where is None:
        return usage(f"not an address: {clean(address or '')!r} (localhost:28028 is one)")
    first = ask(*where, diagnostics=diagnostics, timeout=timeout)
    if isinstance(first, Unavailable):
        return _silent(where, first, format)
    status = parse(first)
    stuck = status.behind
    if stuck:
        time.sleep(interval)
        again = ask(*where, timeout=timeout)
        if isinstance(again, str):
            later = parse(again)
            stuck = still_behind(status.behind, later.behind)
            status = later if later.comms else status
    return _say(where, status, stuck, format)


def still_behind(before: tuple[Behind, ...], after: tuple[Behind, ...]) -> tuple[Behind, ...]:
    """Those that have not moved between two looks: ranks are not counted at one instant, so a difference alone is no fault."""
    seen = {(b.comm, b.collective, b.what, b.ranks) for b in before}
    return tuple(b for b in after if (b.comm, b.collective, b.what, b.ranks) in seen)


def _address(text: str | None) -> tuple[str, int] | None:
    if not text:
        return ADDRESS
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not text.startswith("[")):
        return text.strip("[]"), ADDRESS[1]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        return None
    return host.strip("[]") or ADDRESS[0], int(port)


def _silent(where: tuple[str, int], why: Unavailable, format: str) -> int:
    text = f"no answer from {clean(where[0])}:{where[1]}: {why}"
    if format == "json":
        _json(
            {"schema": SCHEMA, "verdict": {"status": "inconclusive", "exit_code": INCONCLUSIVE, "text": text}, "status": None}
        )
    else:
        print(f"unknown {text}")
        print(
            "        ask on a node of the job, as the job's user; NCCL_RAS_ADDR moves the address, NCCL_RAS_ENABLE=0 closes it"
        )
    return INCONCLUSIVE


def _say(where: tuple[str, int], status: Status, stuck: tuple[Behind, ...], format: str) -> int:
    bad = bool(stuck or status.dead or status.missing)
    code = UNHEALTHY if bad else OK
    verdict = _verdict(status, stuck)
    if format == "json":
        body = plain(status)
        assert isinstance(body, dict)
        body.pop("text", None)
        told = {"status": "unhealthy" if bad else "healthy", "exit_code": code, "text": verdict}
        _json({"schema": SCHEMA, "verdict": told, "status": body, "stuck": plain(stuck)})
        return code
    size = f"{status.nodes} nodes, {status.processes} processes, {status.gpus} GPUs" if status.nodes else "size not told"
    print(f"NCCL {status.nccl_version or 'version not told'}; {size}; {status.comms} communicators")
    for line in status.dead:
        print(f"FAIL    rank_died  {line}")
    for line in filter(None, status.missing):
        print(f"FAIL    hang  no answer from {line}")
    for b in stuck:
        who = f"rank {', '.join(map(str, b.ranks[:8]))}" if b.ranks else f"{b.count} ranks"
        kind = "rank_died" if b.what == "missing" else "hang"
        print(f"FAIL    {kind}  {b.comm} {b.collective + ' ' if b.collective else ''}{who}: {b.what}")
        for place in b.where[:8]:
            print(f"          {place}")
    for line in status.diagnostics:
        print(f"diag    {line.strip()}")
    print(verdict)
    return code


def _verdict(status: Status, stuck: tuple[Behind, ...]) -> str:
    if status.dead:
        return "processes are dead: the others wait for them; read their logs, and dmesg on their nodes"
    if stuck:
        return "ranks do not move on: look at what they do (py-spy dump --pid PID; nvidia-smi; dmesg)"
    if any(status.missing):
        return "processes do not answer: they are stopped, or their network is"
    if status.behind:
        return "ranks were at different operations and moved on: no hang"
    return "all ranks are at the same operations"


def _json(document: dict[str, Any]) -> None:
    import json

    print(json.dumps(document, indent=1))

"""``netdoctor ras [HOST:PORT]``: ask a running job (NCCL 2.24 and later) which rank is behind."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Final

from netdoctor import __version__
from netdoctor.causes.results import own_result
from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.model import Command, Finding, Report, Status, Unavailable
from netdoctor.nccl.ras import ADDRESS, Behind, Status as JobStatus, Trouble, ask, parse
from netdoctor.report.ras_section import RasSection
from netdoctor.textsafe import listed

VARIABLE: Final = "NCCL_RAS_ADDR"  # by which NCCL listens elsewhere (src/ras/ras.cc); a shell of the job has it, too
_HOW = "ask on a node of the job, as the job's user; NCCL_RAS_ADDR moves the address, NCCL_RAS_ENABLE=0 closes it"


def run(
    options: Options,
    address: str | None = None,
    *,
    diagnostics: bool = False,
    interval: float = 3.0,
    timeout: float = 5.0,
) -> int:
    """Ask, and where ranks differ ask again after `interval` seconds; print; return the exit code."""
    try:
        deliver.check(options, Command.RAS)
        config = setup.configuration(options, Command.RAS)
        by = VARIABLE if not address and os.environ.get(VARIABLE) else ""
        where = _address(os.environ[VARIABLE] if by else address, f"{by}: " if by else "")
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    section, findings = look(where, diagnostics, interval, timeout, by=by)
    ranks = own_result("ras.ranks", findings)
    checks, verdict = setup.decider(config, command=Command.RAS)((ranks,), {})
    report = Report(__version__, {}, {}, config.profile, checks, verdict, command=Command.RAS, section=section)
    return deliver.deliver(report, options)


def look(
    where: tuple[str, int], diagnostics: bool, interval: float, timeout: float, by: str = ""
) -> tuple[RasSection, list[Finding]]:
    """What the job says of itself, asked twice where ranks differ; `by`: what said where."""
    name = f"[{where[0]}]:{where[1]}" if ":" in where[0] else f"{where[0]}:{where[1]}"
    first = ask(*where, diagnostics=diagnostics, timeout=timeout)
    if isinstance(first, Unavailable):
        return RasSection(name, by=by), [
            Finding(Status.UNKNOWN, f"no answer from {name}{f', the address of {by}' if by else ''}: {first}", how=_HOW)
        ]
    status = parse(first)
    stuck = status.behind
    if stuck:
        time.sleep(interval)
        again = ask(*where, timeout=timeout)
        if isinstance(again, str):
            later = parse(again)
            stuck = still_behind(status.behind, later.behind)
            status = later if later.comms else status
    return RasSection(name, status, stuck, by), list(findings_of(status, stuck))


def still_behind(before: tuple[Behind, ...], after: tuple[Behind, ...]) -> tuple[Behind, ...]:
    """Those that have not moved between two looks: ranks are not counted at one instant, so a difference alone is no fault."""
    seen = {(b.comm, b.collective, b.what, b.ranks) for b in before}
    return tuple(b for b in after if (b.comm, b.collective, b.what, b.ranks) in seen)


def findings_of(status: JobStatus, stuck: tuple[Behind, ...]) -> Iterator[Finding]:
    """What is wrong with the job; a pass where nothing is."""
    wrong = list(_wrong(status, stuck))
    yield from wrong
    if not wrong and not status.comms:
        yield Finding(Status.UNKNOWN, "the answer names no communicator", how="ask again when the job has set up NCCL")
    elif not wrong:
        moved = "ranks were at different operations and moved on: no hang"
        yield Finding(Status.PASS, moved if status.behind else "all ranks are at the same operations")


def _wrong(status: JobStatus, stuck: tuple[Behind, ...]) -> Iterator[Finding]:
    logs = "read the logs of these processes, and dmesg on their nodes: the others wait for them"
    for line in status.dead:
        yield Finding(Status.FAIL, f"dead: {line}", "process", cause="rank_died", how=logs)
    for line in filter(None, status.missing):
        yield Finding(Status.FAIL, f"no answer from {line}", "process", how="it is stopped, or its network is")
    for b in stuck:
        who = f"rank {listed([str(rank) for rank in b.ranks])}" if b.ranks else f"{b.count} ranks"
        gone = b.kind is Trouble.INCOMPLETE
        yield Finding(
            Status.FAIL,
            f"{b.collective + ' ' if b.collective else ''}{who}: {b.what}",
            b.comm,
            cause="rank_died" if gone else "hang",
            evidence={"where": list(b.where[:8])} if b.where else {},
            how=logs if gone else "look at what it does: py-spy dump --pid PID; nvidia-smi; dmesg",
        )
    yield from _unexplained(status, stuck)


# Where the lines below the table do not say more.
_ERRORS: Final[Mapping[str, tuple[Status, str | None, str]]] = {
    Trouble.ERROR: (Status.FAIL, "rank_died", "a communicator is in error"),
    Trouble.INCOMPLETE: (Status.UNKNOWN, None, "ranks of a communicator gave no data this time"),
    Trouble.MISMATCH: (Status.UNKNOWN, None, "ranks of a communicator differ, and how could not be read"),
}


def _unexplained(status: JobStatus, stuck: tuple[Behind, ...]) -> Iterator[Finding]:
    """Errors that the table names and no finding tells of.  Of ranks that differ, those that moved on are no fault."""
    explained = {b.kind for b in stuck}
    if status.behind:
        explained.add(Trouble.MISMATCH)
    if status.dead or any(status.missing):
        explained.add(Trouble.INCOMPLETE)
    for word in status.errors:
        if word not in explained:
            kind, cause, text = _ERRORS.get(word, (Status.UNKNOWN, None, "NCCL names an error that netdoctor does not know"))
            yield Finding(kind, f"{text}: {word}", "job", cause=cause, how="netdoctor log on the output of every rank")


def _address(text: str | None, by: str = "") -> tuple[str, int]:
    """Raises UsageError, which begins with `by`."""
    if not text:
        return ADDRESS
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not text.startswith("[")):
        return text.strip("[]"), ADDRESS[1]
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise setup.UsageError(f"{by}not an address: {text!r} (localhost:28028 is one)")
    return host.strip("[]") or ADDRESS[0], int(port)

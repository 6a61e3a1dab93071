"""``netdoctor log FILE… | DIR | -``: what a NCCL log says, and the cause of what went wrong.

Exit codes: 0 nothing failed at or above `fail_on`, 2 bad usage, 3 something failed, 4 the log cannot tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from netdoctor.cli.errors import missing, usage
from netdoctor.model import Finding, Severity, Status, Verdict

if TYPE_CHECKING:
    from netdoctor.nccl.log.facts import LogFacts

FORMATS: Final = ("text", "json", "junit")
OK, UNHEALTHY, INCONCLUSIVE = 0, 3, 4
_BLOCK: Final = 1 << 20
_MAX_FILES: Final = 65536


def run(paths: Sequence[str], format: str = "text", *, fail_on: str = "critical", color: bool = False) -> int:
    """Read the logs of one job ("-" is stdin; directories with all that is in them), print, return the exit code."""
    if format not in FORMATS:
        return usage(f"--format: must be one of {', '.join(FORMATS)}, not {format!r}")
    if fail_on not in [one.value for one in Severity]:
        return usage("--fail-on: must be info, warning or critical")
    if words := missing(format):
        return usage(words)
    if not paths:
        return usage("give a file, a directory, or - for stdin")
    from netdoctor.nccl.diagnosis import diagnose

    facts = read(paths)
    if isinstance(facts, str):
        return usage(facts)
    findings = diagnose(facts)
    verdict = decide(findings, Severity(fail_on))
    from netdoctor.cli.log_output import render

    text = render(facts, findings, verdict, format, color)
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()
    return verdict.exit_code


def read(paths: Sequence[str]) -> LogFacts | str:
    """The facts of all files together, or what is wrong with one of them."""
    from netdoctor.nccl.log.parser import Parser

    parser = Parser()
    path = ""
    try:
        for path in _expand(paths):
            parser.file(path)
            for block in _blocks(path):
                parser.feed(block)
    except (OSError, EOFError) as error:
        return f"{path}: {getattr(error, 'strerror', None) or error}"
    return parser.facts()


def decide(findings: Iterable[Finding], fail_on: Severity = Severity.CRITICAL) -> Verdict:
    """3 before 4 before 0: a fail is the greater news."""
    from netdoctor.causes import CAUSES

    findings = tuple(findings)
    fails = [f for f in findings if f.status is Status.FAIL]
    causes = tuple(dict.fromkeys(f.cause or "other" for f in fails))
    if any((f.severity or Severity.WARNING).rank >= fail_on.rank for f in fails):
        return Verdict("unhealthy", UNHEALTHY, f"likeliest cause: {CAUSES[causes[0]].title} ({causes[0]})", causes)
    if any(f.status in (Status.UNKNOWN, Status.ERROR) for f in findings):
        return Verdict("inconclusive", INCONCLUSIVE, "this log cannot tell", causes)
    if fails:
        return Verdict("healthy", OK, f"nothing broke; worth mending: {CAUSES[causes[0]].title} ({causes[0]})", causes)
    return Verdict("healthy", OK, "this log shows nothing wrong", causes)


def _expand(paths: Sequence[str]) -> Iterator[str]:
    """Directories become the regular files in them, in order of name; hidden ones are left out."""
    import os

    count = 0
    for path in paths:
        if path == "-" or not os.path.isdir(path):
            yield path
            continue
        for folder, folders, names in os.walk(path):
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            for name in sorted(names):
                whole = os.path.join(folder, name)
                if not name.startswith(".") and os.path.isfile(whole) and count < _MAX_FILES:
                    count += 1
                    yield whole


def _blocks(path: str) -> Iterator[bytes]:
    if path == "-":
        yield from _unpacked(sys.stdin.buffer.read)
        return
    with open(path, "rb", buffering=0) as raw:
        yield from _unpacked(raw.read)


def _unpacked(read: Callable[[int], bytes | None]) -> Iterator[bytes]:
    """Blocks of a stream, unpacked where it is gzip (RFC 1952: 1f 8b), by its bytes and not by its name."""
    first = read(_BLOCK) or b""
    if first[:2] != b"\x1f\x8b":
        while first:
            yield first
            first = read(_BLOCK) or b""
        return
    import zlib

    unpack = zlib.decompressobj(31)
    while first:
        try:
            out = unpack.decompress(first, _BLOCK)
        except zlib.error as error:
            raise OSError(0, f"not a sound gzip file: {error}") from None
        if out:
            yield out
        first = unpack.unconsumed_tail
        if not first and unpack.eof and unpack.unused_data:  # several members after each other
            rest = unpack.unused_data
            unpack = zlib.decompressobj(31)
            first = rest if rest[:2] == b"\x1f\x8b" else b""
        elif not first:
            first = read(_BLOCK) or b""
            if not first and not unpack.eof:
                print("netdoctor log: a gzip file ends early; what was in it is read", file=sys.stderr)

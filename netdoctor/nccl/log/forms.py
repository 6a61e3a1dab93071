"""What programs put around a line: colours, progress bars, JSON.  Taken away before a line is read."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Final

from netdoctor.nccl.log.patterns import matching

_ANSI: Final = re.compile(rb"\x1b\[[0-9;?]{0,20}[A-Za-z]")  # ECMA-48, CSI
_ESCAPED_ANSI: Final = re.compile(r"\x1b\[[0-9;?]{0,20}[A-Za-z]")
# Where loggers keep the text: Docker's json-file ("log"), zap and structlog ("msg"), Cloud Logging ("textPayload", "message").
_TEXTS: Final = ("log", "message", "msg", "textPayload", "event", "body", "line")
# zap and structlog, Cloud Logging, python-json-logger, log15, OpenTelemetry, Elastic's schema
_LEVELS: Final = ("level", "severity", "levelname", "lvl", "severityText", "log.level", "log_level")
# of zerolog, too; 50 and 60 are those of bunyan and pino, and Python's numbers
_BAD: Final = frozenset({"error", "err", "fatal", "critical", "crit", "panic", "alert", "emergency", "50", "60"})
# What a document says of an outcome beside its text: of trackers, of CI, of Kubernetes' phases.
_OUTCOMES: Final = ("status", "state", "result", "outcome", "phase", "conclusion", "exit_code", "exitCode", "exit_status")
_ILL: Final = frozenset(
    ("failed", "failure", "error", "errored", "crashed", "killed", "timeout", "timed_out", "cancelled", "aborted", "oomkilled")
)
_QUOTES: Final = re.compile(rb"(?:Error|Exception): .{0,80}$")  # an exception that quotes an answer is a line of its own
_LONGEST: Final = 65536  # bytes of a line that is taken for JSON


def wrapped(chunk: bytes) -> bool:
    """Whether lines of a chunk may need `unwrapped`."""
    return b"\r" in chunk or b"\x1b" in chunk or (b"{" in chunk and b'{"' in chunk)  # a single byte is found ten times faster


def unwrapped(numbered: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The lines inside of lines, each with the number of its line."""
    for number, line in numbered:
        if b"\x1b[" in line:
            line = _ANSI.sub(b"", line)
        if b'{"' in line and len(line) < _LONGEST and (inner := _text_of(line)) is not None:
            yield from ((number, part) for part in inner.splitlines())
        elif b"\r" in line:
            yield from ((number, part) for part in line.split(b"\r") if part)
        else:
            yield number, line


def _text_of(line: bytes) -> bytes | None:
    """The text in a line of JSON, which may stand behind a time stamp or a container's name."""
    start = line.index(b'{"')
    if start > 200 or not line.rstrip().endswith(b"}") or _QUOTES.search(line[:start]):
        return None
    try:
        document = json.loads(line[start:])
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    text = next((document[name] for name in _TEXTS if isinstance(document.get(name), str)), None)
    if text is None:
        return None
    said = _ESCAPED_ANSI.sub("", text).encode("utf-8", "replace")
    told = [(name, str(document[name])) for name in _OUTCOMES if type(document.get(name)) in {str, int}]
    ill = [(name, value) for name, value in told if value.lower() in _ILL or ("xit" in name and value not in {"0", ""})]
    if ill:  # whatever the others say: "completed" is also a pod that exited with 137
        said += f" ({', '.join(f'{name}: {value[:40]}' for name, value in ill)})".encode("utf-8", "replace")
    # A level that stands beside the text is kept where no family knows it by its own words, which may be the begin of a line;
    # NCCL's have a level of their own.
    bad = any(str(document.get(name)).lower() in _BAD for name in _LEVELS)
    return b"ERROR: " + said if bad and b"NCCL " not in said and not matching(said) else said

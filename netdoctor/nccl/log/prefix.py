# ruff: noqa: E501  (patterns)
"""From a line of a log to who printed it: NCCL's own prefix is looked for behind whatever launchers put in front.

NCCL writes ``host:pid:tid [cudaDev] NCCL INFO msg`` and ``host:pid:tid [cudaDev] file.cc:line NCCL WARN msg`` (src/debug.cc;
with ``(function)`` after the line number from 2.30.7, with ``[time] `` in front from 2.26.2).  mpirun, srun, torchrun, Ray, vLLM,
Kubernetes and CloudWatch put their own marks before that, sometimes twice, so the prefix is searched from the right.  The Neuron
collectives library is a fork: ``time pid:tid [dev] file:line CCOM WARN msg``.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.nccl.log import whose
from netdoctor.nccl.log.facts import Level

MAX_LINE: Final = 16384  # bytes of a line that are looked at; NCCL itself cuts a message at 2 KiB (src/debug.cc)
_HEAD: Final = 700  # bytes before "NCCL" that are looked at: bounds the backtracking of the patterns below

_DEV: Final = rb"\[(?P<dev>-?\d{1,10})\] *"
_SOURCE: Final = rb"(?P<source>\S{1,200}:\d{1,6}(?: \(\w+\))?)? *$"
_WHO: Final = (
    re.compile(
        rb"(?P<host>[A-Za-z0-9_*][\w.\-*]{0,252}|<[\w .\-]{1,80}>):(?P<pid>\d{1,10}):(?P<tid>\d{1,10})(?: \[(?P<dev>-?\d{1,10})\])? *"
        rb"(?P<source>[^\[\]]{1,400}:\d{1,6}(?: \(\w{1,100}\))?)? *$"
    ),
    re.compile(rb"(?:^| )(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) " + _DEV + _SOURCE),  # Neuron
    re.compile(rb"(?P<host>[A-Za-z][\w.\-]{0,252}):(?P<pid>\d{1,10}) " + _DEV + _SOURCE),
    re.compile(rb"(?P<host>[A-Za-z0-9_][\w.\-]{0,252}) " + _DEV + _SOURCE),
    re.compile(rb"(?:^|[\s:>|])" + _DEV + _SOURCE),
    re.compile(rb"(?:^|[\s:>|])(?P<source>[\w./]{1,200}\.(?:cc|h|cu|c|cpp):\d{1,6}(?: \(\w+\))?) *$"),
    re.compile(rb"(?:^|[\s>|])(?P<host>[A-Za-z][\w.\-]{0,252}):(?P<pid>\d{1,10}) *$"),  # NCCL DIAG
)
# Kubernetes' and CloudWatch's stamps, which may stand right before the host name.
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d)")
_TIME: Final = re.compile(rb"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d")
# A second record on one line: two processes write to one file, and the newline of the first comes late.
GLUED: Final = re.compile(
    rb"[A-Za-z0-9_][\w.\-]{0,252}:\d{1,10}:\d{1,10} \[-?\d{1,10}\] (?:[\w./]{1,100}:\d{1,6} (?:\(\w{1,100}\) )?)?NCCL (?:INFO|WARN) "
)


def text(raw: bytes) -> str:
    """What a log's bytes spell; a sign that is no UTF-8 is replaced."""
    return raw.decode("utf-8", "replace").strip()


class Head(NamedTuple):
    """Who printed a line; all that a head says is kept, what it does not say is empty."""

    host: str
    pid: int  # -1: not said
    dev: int  # -1: not said, or garbage before the first cudaSetDevice
    source: str  # "misc/socket.cc:58"
    at: str
    rank: int  # -1: the launcher did not say
    labelled: bool = False  # the rank is srun's number of a task, which may be a launcher of several


def head(raw: bytes) -> Head:
    """Parse what stands before ``NCCL INFO``; never fails."""
    raw = raw[-_HEAD:]
    at = _TIME.search(raw)
    raw = _STAMP.sub(b" ", raw)
    match = next((found for pattern in _WHO if (found := pattern.search(raw))), None)
    groups = match.groupdict() if match else {}
    dev = int(groups.get("dev") or -1)
    return Head(
        (groups.get("host") or b"").decode("ascii", "replace"),
        int(groups.get("pid") or -1),
        dev if 0 <= dev < 1024 else -1,
        (groups.get("source") or b"").decode("ascii", "replace").strip(),
        at[0].decode() if at else "",
        *whose.marked(raw),
    )


# What may stand right before NCCL's tag where its prefix was cut off: a launcher's mark, a time, a level, a field's name.
_CUT: Final = re.compile(rb"(?:^|[\]>:|)}]|[:=]\"|\d\dZ?|,\d{3})\s*$")
_WORDS: Final = re.compile(rb"(?:\b[a-z']{2,20} ){2}[a-z']{2,20}\b")
_IN_QUOTES: Final = re.compile(rb"[\w.,;)]:? [`'\"(]$")


def mentioned(raw: bytes) -> bool:
    """Whether what stands before ``NCCL INFO`` is a sentence, or the program's own text: it is spoken of, and not said."""
    raw = _STAMP.sub(b" ", raw[-_HEAD:])
    match = next((found for pattern in _WHO if (found := pattern.search(raw))), None)
    return (
        _IN_QUOTES.search(raw[: match.start()]) is not None
        if match
        else _CUT.search(raw) is None or _WORDS.search(raw) is not None
    )


def bare(line: bytes) -> Head:
    """What a line without NCCL's prefix says about its writer: at most a time and a launcher's rank."""
    at = _TIME.search(line[:_HEAD])
    return Head("", -1, -1, "", at[0].decode() if at else "", *whose.marked(line))


def split_level(line: bytes) -> tuple[bytes, Level, bytes] | None:
    """(head, level, message) of a line that carries NCCL's tag (or Neuron's), None for any other line."""
    at = line.find(b"NCCL ")
    while at >= 0:
        rest = line[at + 5 : at + 10]
        level = _LEVELS.get(rest)
        if level is not None:
            return line[:at], level, line[at + 6 + len(level) :]
        at = line.find(b"NCCL ", at + 5)
    at = line.find(b"CCOM WARN ")
    if at >= 0:
        return line[:at], Level.WARN, line[at + 10 :]
    return _old(line)


_LEVELS: Final = {f"{level.value:5}".encode(): level for level in Level}
# NCCL up to 2.2 had no "NCCL" tag: "host:pid:tid [0] INFO NET : Using interface eth0:10.0.0.1<0>"
_OLD: Final = re.compile(
    rb"(?P<head>[\w.\-]{1,253}:\d{1,10}:\d{1,10} \[-?\d{1,10}\] (?:\S{1,100}:\d{1,6} )?)(?P<level>INFO|WARN) "
)


def _old(line: bytes) -> tuple[bytes, Level, bytes] | None:
    if b"] INFO " not in line and b" WARN " not in line:
        return None
    match = _OLD.search(line[:1024])
    return (line[: match.end("head")], Level(match["level"].decode()), line[match.end() :]) if match else None

"""The last error that a log tells, where no rule knows it: of a log without an end, or before a launcher's word of an exit."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.diagnosis.went_on import After, after, before, echoing, of_launcher, order
from netdoctor.nccl.log import levels
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_NEAR: Final = 80  # lines before a launcher's word: the ranks of a node print their tracebacks there, too
_LAST: Final = 12  # lines of a log's end
# A help text that says what happened: not one of who ended first, nor a warning, nor what stands below a box.
_HELP: Final = re.compile(
    r".{0,80}?-{74} *(?P<said>(?!(?:mpirun|mpiexec|prterun|orterun|Primary job|WARNING|NOTE|By default)\b)"
    r"(?:[A-Z\"]\S*)(?: \S+){5,})"
)
# Whose such texts are, and of what they tell: a table of results may stand between two such lines, too.
_OF_MPI: Final = re.compile(
    r"\b(?:\w*MPI\w*|PRTE|PRRTE|ORTE|PMIx?|MCA|hwloc|launch\w*|process\w*|daemons?|nodes?|hosts?|slots?|components?|local|remote|librar\w+"
    r"|director\w+|files?|system|applications?|executable|bind\w*|mapp\w+|rank\w*|job|user|options?|parameters?|environment)\b",
    re.IGNORECASE,
)
_FIRST: Final = "that line; what the same program says where NCCL_DEBUG=INFO, or its own option for more words, is set"


_LOCAL_RANK: Final = re.compile(r"\brank +: \d+ \(local_rank: (\d+)\)")


def error_of(log: LogFacts, root: Event) -> str:
    """What the rank that torchrun names had logged before, by its agent's word of it above."""
    local = _LOCAL_RANK.search(root.text)
    named = (d for d in log.of("died") if local and d.data.get("local_rank") == local[1] and before(d, root))
    return next((d.data["error"] for d in named if "error" in d.data), "")


def complaint(log: LogFacts, ended: Event) -> Event | None:
    """The last that was complained of before a process ended of which only its launcher tells, by the same rank or by none."""
    rank = int(ended.data["rank"]) if ended.data.get("rank", "").isdecimal() else ended.rank
    said = [
        e
        for e in sorted(log.of("last_words", "trouble", "help", "library"), key=order)
        if e.file == ended.file
        and 0 < ended.line - e.line <= _NEAR
        and (e.rank is None or rank is None or e.rank == rank)
        and not (e.mild or echoing(e) or Wording.OF_WHO_STARTS.within(e.text) or Wording.TRACEBACK.within(e.text))
        and words(e)
    ]
    if (helped := next((e for e in said if e.kind == "help"), None)) is not None:
        return helped
    failed = [e for e in said if levels.failed(e.text.encode())]
    return next(reversed(failed or said), None) or _of_its_peer(log, ended, rank)


def _of_its_peer(log: LogFacts, ended: Event, rank: int | None) -> Event | None:
    """An exception with which that rank says that another one, or a connection, is gone: no cause, and all that it says."""
    own = (e for e in log.of("exception", "raised") if e.file == ended.file and 0 < ended.line - e.line <= _NEAR)
    return next((e for e in own if rank is not None and e.rank == rank and echoing(e) and not of_launcher(e)), None)


def words(e: Event) -> str:
    """What a line says, of a help text its first sentence."""
    if e.kind != "help":
        return e.text.strip()[:200]
    found = _HELP.match(e.text) if _OF_MPI.search(e.text) else None
    return found["said"][:200] if found else ""


def ends_in_error(log: LogFacts) -> Iterator[Hypothesis]:
    """A log that ends with an error, by its level, and that nobody writes any more."""
    if log.written is not False or outcome(log).ending in {Ending.FINISHED, Ending.ENDED} or len(log.files) != 1:
        return
    if log.of("serving"):  # what a server says last may be of one request
        return
    said = [
        e
        for e in sorted(log.of("last_words", "trouble", "help", "library"), key=order)
        if after(log, e) is After.STOPPED and log.good.get(e.file, 0) < e.line and not e.mild and words(e)
    ]
    errors = [e for e in said if e.kind == "help" or levels.failed(e.text.encode())]
    errors = [e for e in errors if not any(f.file == e.file and f.last > e.line for f in log.of("finished"))]
    if errors and log.lines - errors[-1].last <= _LAST:
        near = [e for e in errors if log.lines - e.last <= _LAST]
        last = next((e for e in near if e.kind == "help"), near[0])  # what comes first says why
        starter = last.kind == "help" or levels.of_a_starter(last.text.encode())
        cause = "missing_node" if starter and not log.good.get(last.file) else "rank_died"
        cause = "node_error" if levels.of_the_kernel(last.text.encode()) else cause
        text = f"the log ends with an error, and nothing shows that anybody went on: {words(last)}"
        yield Hypothesis(cause, Confidence.EFFECT, text, (last,), how=_FIRST)


RULES = (ends_in_error,)

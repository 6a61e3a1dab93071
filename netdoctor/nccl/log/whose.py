"""Whose a line is: the rank that a launcher marks it with or that it begins with, or the one process that it speaks of."""

from __future__ import annotations

import re
from typing import Final

_HEAD: Final = 700  # bytes in which a mark stands
_LONGEST: Final = 300  # of a line that tells of an end
# mpirun --tag-output "[1,3]<stdout>:", horovodrun "[3]<stdout>:", torch's "[rank3]:", srun --label "3: ", "[Rank 3]"; not
# srun's of a node whose torchrun marks its own processes ("3: [default1]:")
_MARK: Final = re.compile(rb"\[(?:\d{1,6},)?(\d{1,7})\]<|\[[Rr]ank ?(\d{1,7})\]|^ {0,8}(\d{1,7}): (?!\[default\d)")
_LABEL: Final = 3  # the group of srun's
# srun's task is a launcher, or its node, where torch names the rank
_OWN: Final = re.compile(rb"^ {0,8}\d{1,7}: (?:[\w.\-]{1,253}: |\[default\d{1,4}\]: ?){0,3}\[rank(\d{1,7})\]")
# The program's own mark at the begin of what it says: "rank 3: done", "10:00:01 Rank=3 | done".
_BEGINS: Final = re.compile(
    rb"^[\d\-/:.,TZ \[\]]{0,40}\(?[Rr](?:ank|ANK)[ _#:=]{0,2}(\d{1,7})\)?(?::| ?[|>]| - |\]:?)(?! ?\d{1,7}\b)"
    # and vLLM's of a worker (v1/executor/multiproc_executor.py)
    rb"|^\(\w{1,60} rank=(\d{1,7}) pid=\d{1,9}\)"
)
_NODE: Final = re.compile(
    rb"([a-z][a-z\-]{0,60}\d[a-z\d\-]{0,60}|\d{1,3}(?:\.\d{1,3}){3}): "
    # not the program's name, which glibc puts before the place of an assertion (assert/assert.c)
    rb"(?!\S{1,300}:\d{1,7}: [^`]{1,200}: Assertion `)"
)
_SPEAKS_OF: Final = re.compile(
    rb"^.{0,60}?\b(?:rank|worker|process|node|pod|replica|child|host)[ _#:\-]{0,2}(?:[a-z]{1,12}-?)?(?P<who>\d{1,6})\b"
    rb"(?! ?(?:/|of\b))",
    re.IGNORECASE,
)


def marked(raw: bytes) -> tuple[int, bool]:
    """The rank, or -1, and whether it is what srun --label calls a task, which may be a launcher of several."""
    head = raw[:_HEAD]
    match = _OWN.search(head) or _MARK.search(head) or (_BEGINS.search(head) if b"ank" in head or b"ANK" in head else None)
    if match is None:
        return -1, False
    number = next(g for g in match.groups() if g is not None)
    return int(number), match.re is _MARK and match.lastindex == _LABEL


def rank(raw: bytes) -> int:
    """The rank whose line it is, or -1."""
    return marked(raw)[0]


def node(line: bytes) -> str:
    """The host that pdsh marks a line with ("vm-07-14: "); "" where none is."""
    found = _NODE.match(line)
    return "" if found is None else found[1].decode("ascii")


def spoken_of(line: bytes) -> set[int]:
    """The number of the one process among several that a line is of or speaks of: "training finished on worker 3"."""
    own = rank(line)
    if own >= 0:
        return {own}
    found = _SPEAKS_OF.search(line[:_LONGEST])
    return set() if found is None else {int(found["who"])}

"""Texts that are no log: a README, a manual, a changelog.  What such a text says of errors happened to nobody.

A log's lines begin with who speaks: a time, a level, a rank, a process.  A document's are sentences, items and headings; where
it shows a log, that stands in a fence or indented.  Both ends of a file are looked at: a program may print text in between.

Of 134 logs none is taken for a document; of 102 documents of a Debian system and of Python packages 78 are, and the others are
lists of names, tables and HTML.
"""

from __future__ import annotations

import re
from typing import Final

SAMPLE: Final = 1 << 16  # bytes of each end
_FEWEST: Final = 10  # lines: what a person pastes may be a sentence
_LAST: Final = 5  # lines at the end in which a program's own would stand
_LONGEST: Final = 300  # bytes of a line
_FENCE: Final = re.compile(rb"\s{0,8}(?:```|~~~)")
# Headings and items, and what Git's, GNU's and Debian's changelogs are made of.
_ITEM: Final = re.compile(
    rb"\s{0,12}(?:[*+\-o] +\S.{8}|#{1,6} \w|\d{1,2}\. +\w|\|.{0,300}\|\s*$|[=~^]{4,}\s*$|\.\. \w)"
    rb"|commit [0-9a-f]{40}$|(?:Author|Date|Merge|AuthorDate): | -- .{1,100}<.{1,100}@|\d{4}-\d\d-\d\d +\w.{0,100}<.{0,100}@"
)
_COMMIT: Final = re.compile(rb"commit [0-9a-f]{40}$")
_MESSAGE: Final = re.compile(rb" {2,8}[A-Za-z][a-z']+(?: [\w'-]+){2}")  # below a commit
_SENTENCE: Final = re.compile(
    rb"(?:\b(?:the|an?|of|to|is|are|and|in|that|for|with|by|on|as|be|or|it|this|not|from|which|if|you|we|your)\b.{0,200}?){3}",
    re.IGNORECASE,
)
_LINE: Final = re.compile(
    rb"\W{0,3}\d{4}[-/]\d\d[-/]\d\d[T_ ]\d\d:\d\d:\d\d|\[?\d\d:\d\d:\d\d[\] ,.]"
    rb"|\W{0,2}(?:INFO|WARN(?:ING)?|ERROR|DEBUG|FATAL|CRITICAL)\b[\]: ]|[IWEF]\d{4} \d\d:"
    rb"|\[(?:rank|default|)\d+(?:,\d+)?\][:<]?|\[\w+ ?\d{4}|[\w.\-]+:\d+:\d+ \[-?\d|\(\w+ pid=\d"
    rb"|Traceback \(most |(?:\w+\.)*\w*(?:Error|Exception): |  File \""
    rb"| {0,4}\d{1,6}: \S|[\w./\-]+\[\d+\]: |(?:srun|slurmstepd|mpirun|wandb|bash|ssh): |frame #\d"
    rb"|.{0,200}(?:\d+/\d+ \[|\d%\||NCCL (?:INFO|WARN))"
    rb"|\W{0,3}\b(?:loss|step|epoch|iter\w*)\b\W{0,12}\d| +\d+ +\d+ +\w+ "
)
# Nobody begins a line of a document so.
_SURELY: Final = re.compile(
    rb"(?:\[?rank\d+\]: ?)?Traceback \(most |[\w.\-]+:\d+:\d+ \[-?\d|(?:srun|slurmstepd): error: "
    rb"|Primary job +terminated|(?:mpirun|prterun|mpiexec) (?:noticed|detected|was unable)|(?:ORTE|PRTE) (?:was|has) "
    # what Open MPI explains (help-mpi-btl-tcp.txt), with the hosts that it is about
    rb"|An MPI communication peer process has|  (?:Local|Peer|Remote) (?:host|PID|process|address): +\S"
    # nccl-tests (src/common.cu) begins its header as others do a heading; up to 2.0 it named a failure without its own name.
    rb"|(?:Cuda|HIP|NCCL) failure [\w./\-]{1,200}:\d{1,6} '\w"
    rb"|# (?:nThread \d|nccl-tests version \d| +Rank +\d+ +(?:Group +\d+ +)?Pid +\d)|\S{1,80}: Test (?:NCCL|CUDA|HIP) failure "
)


def document(data: bytes) -> bool:
    """Whether an end of a file (whole lines) is of a document."""
    lines = written = count = 0
    fenced = commits = False
    last = 0  # line that is a log's
    for line in data.split(b"\n"):
        line = line[:_LONGEST]
        if not line or line.isspace():
            continue
        count += 1
        commits = commits or _COMMIT.match(line) is not None
        if _FENCE.match(line):
            fenced, written = not fenced, written + 1
        elif fenced:
            continue
        elif _SURELY.match(line):
            return False
        elif _ITEM.match(line) or (commits and _MESSAGE.match(line)):
            written += 1
        elif _LINE.match(line):
            lines, last = lines + 1, count
        elif _SENTENCE.search(line):
            written += 1
    return count >= _FEWEST and written * 10 >= count * 3 and lines * 100 <= count and count - last >= _LAST

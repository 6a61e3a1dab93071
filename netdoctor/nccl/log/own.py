"""Reports of netdoctor's that stand in a job's output (`netdoctor run`): what they say of NCCL is not NCCL's.

A report begins with the line that names netdoctor and the host; its verdict stands in it twice, the second time at its end.
In between only lines of a report's own shape are taken out: ranks of other nodes may write there, too.  A report in JSON begins
with its schema and ends with the brace of its first column; one for JUnit is what stands in its element.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final, NamedTuple

_LABEL: Final = rb"(?P<label>(?:\[[^\]\s]{1,100}\]:? ?|\d{1,6}: ?)?)"  # of srun --label, torchrun --tee, kubectl logs --prefix
_HEAD: Final = re.compile(_LABEL + rb"netdoctor \d+\.\d+\S* on \S")
_VERDICT: Final = re.compile(_LABEL + rb"(?:(?:healthy|unhealthy|inconclusive): ?\S?|nothing failed (?:at|of) \S)")
_LINE: Final = re.compile(
    _LABEL
    + rb"(?: {9} *\S|(?:FAIL|WAIVED|UNKNOWN|ERROR) +(?:\[[a-z]+\] )?"
    + rb"(?:[a-z_]+\.[a-z_]+\b|\d+ checks (?:could not tell|have one mend|need ))"
    + rb"|(?:pass|skip|note) +[a-z_]+(?:\.[a-z_]+)?(?:[ ,:;]|$)|(?:all-reduce|first|seen from|NCCL did not run): "
    + rb"|a job here |this report is not whole: )"
)
_MESSAGE: Final = re.compile(_LABEL + rb"(?:netdoctor: |no GPU here: this run shows )")
_LONGEST: Final = 4096  # lines after a report's head: one that was cut short does not take what comes much later


class _Document(NamedTuple):
    """A format of one element: its first line, a line of it, its last."""

    begin: re.Pattern[bytes]
    line: re.Pattern[bytes]
    end: re.Pattern[bytes]


_FORMATS: Final = (
    _Document(  # json.dumps(indent=1)
        re.compile(_LABEL + rb' +"schema": "netdoctor\.[a-z]+/\d+",?\s*$'),
        re.compile(_LABEL + rb' +(?:"|[\]\[{}]|(?:-?\d[\d.eE+-]*|true|false|null),?\s*$)'),
        re.compile(_LABEL + rb"\}\s*$"),
    ),
    _Document(
        re.compile(_LABEL + rb'<testsuites name="netdoctor"'),
        re.compile(
            _LABEL + rb"(?: *</?[a-z]|(?:pass|fail|skip|unknown|error|waived): |  [a-z]+(?: [a-z]+)?:(?: |$)"
            rb"|.*</(?:failure|skipped|error|system-out)>\s*$)"
        ),
        re.compile(_LABEL + rb" *</testsuites>\s*$"),
    ),
)
_LONGEST_DOCUMENT: Final = 1 << 18  # lines: a fleet's


class OwnReports:
    """Fed whole lines in their order, gives them back with those of reports empty."""

    def __init__(self) -> None:
        self._verdicts: Counter[bytes] = Counter()  # that are still to come, by the label of their lines
        self._left = 0
        self._open: dict[bytes, _Document] = {}  # by the label of their lines
        self._within = 0  # how many lines of it are left

    def without(self, lines: bytes) -> bytes:
        if not self._left and not self._open and b"netdoctor" not in lines:
            return lines
        return b"\n".join(b"" if self._ours(line) else line for line in lines.split(b"\n"))

    def _ours(self, line: bytes) -> bool:
        return self._of_document(line) or self._of_text(line)

    def _of_document(self, line: bytes) -> bool:
        for kind in _FORMATS if b"netdoctor" in line else ():
            if found := kind.begin.match(line):
                self._open[found["label"]] = kind
                self._within = _LONGEST_DOCUMENT
                return True
        self._within -= 1
        if self._within < 0:
            self._open.clear()
        for label, kind in self._open.items():
            if (end := kind.end.match(line)) and end["label"] == label:
                del self._open[label]
                return True
            if (found := kind.line.match(line)) and found["label"] == label:
                return True
        return False

    def _of_text(self, line: bytes) -> bool:
        if head := _HEAD.match(line):
            self._verdicts[head["label"]] += 2
            self._left = _LONGEST
            return True
        if _MESSAGE.match(line):
            return True
        if not self._left:
            return False
        self._left -= 1
        if (verdict := _VERDICT.match(line)) and self._verdicts[verdict["label"]] > 0:
            self._verdicts[verdict["label"]] -= 1
            if not any(self._verdicts.values()):
                self._left = 0
            return True
        return _LINE.match(line) is not None

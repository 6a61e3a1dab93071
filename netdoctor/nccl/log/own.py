"""Reports of netdoctor's that stand in a job's output (`netdoctor run`): what they say of NCCL is not NCCL's.

A report begins with the line that names netdoctor and the host; its verdict stands in it twice, the second time at its end.
In between only lines of a report's own shape are taken out: ranks of other nodes may write there, too.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

_LABEL: Final = rb"(?P<label>(?:\[[^\]\s]{1,100}\]:? ?|\d{1,6}: ?)?)"  # of srun --label, torchrun --tee, kubectl logs --prefix
_OUR: Final = rb"netdoctor(?: \d+\.\d+\S* on \S|: )"
_HEAD: Final = re.compile(_LABEL + rb"netdoctor \d+\.\d+\S* on \S")
_VERDICT: Final = re.compile(_LABEL + rb"(?:healthy|unhealthy|inconclusive|nothing failed (?:at|of)): ?\S?")
_LINE: Final = re.compile(
    _LABEL
    + rb"(?: {9} *\S|(?:FAIL|WAIVED|UNKNOWN|ERROR) +(?:[a-z_]+\.[a-z_]+\b|\d+ checks could not tell)"
    + rb"|(?:pass|skip|note) +[a-z_]+(?:\.[a-z_]+)?(?:[ ,:]|$)|(?:all-reduce|first|seen from|NCCL did not run): "
    + rb"|a job here |this report is not whole: |there is no GPU here: )"
)
_MESSAGE: Final = re.compile(_LABEL + rb"netdoctor: ")
_LONGEST: Final = 4096  # lines after a report's head: one that was cut short does not take what comes much later


class OwnReports:
    """Fed whole lines in their order, gives them back with those of reports empty."""

    def __init__(self) -> None:
        self._verdicts: Counter[bytes] = Counter()  # that are still to come, by the label of their lines
        self._left = 0

    def without(self, lines: bytes) -> bytes:
        if not self._left and b"netdoctor" not in lines:
            return lines
        return b"\n".join(b"" if self._ours(line) else line for line in lines.split(b"\n"))

    def _ours(self, line: bytes) -> bool:
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

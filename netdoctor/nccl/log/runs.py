"""Many jobs in one file: LSF appends each job's report, and its output, to the file of ``bsub -o``.

LSF 10.1, "bsub -o": the report comes first and says "The output (if any) follows:", or last and says that the output "is above
this job summary".  A report is of one job that has ended, so whatever follows is another's.  No other mark is as sure: what a
shell's ``>>`` or Slurm's ``--open-mode=append`` joins may as well be the ranks of one job.
"""

from __future__ import annotations

from typing import Final

_REPORT: Final = b"Sender: LSF System <"
_FOLLOWS: Final = b"The output (if any) follows"
_ABOVE: Final = b"The output (if any) is above"
_REST: Final = (b"PS:", b"Read file <")  # of a report, behind its last words


def may_be(line: bytes) -> bool:
    """Whether lines of this line's shape may be of a report."""
    return _REPORT in line or b"The output (if any)" in line


class Runs:
    """Feed it the lines of one file; it says where another job begins."""

    def __init__(self) -> None:
        self._report = 0  # line of the last report's begin
        self.over = 0  # line at which a job's output, and the report behind it, were over
        self._first = True

    def feed(self, line: bytes, number: int) -> int:
        """The first line of another job where this line shows that one has begun, else 0."""
        begin = 0
        if self.over and not line.startswith(_REST):
            begin, self.over = self.over + 1, 0
        if _REPORT in line:
            self._report = number
        elif line.startswith(_ABOVE):
            self.over = number
        elif line.startswith(_FOLLOWS) and self._report:
            begin, self._first = (0 if self._first else self._report), False
        return begin

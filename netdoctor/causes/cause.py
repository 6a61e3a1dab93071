"""A row of the vocabulary of causes."""

from __future__ import annotations

from netdoctor.model import Loss, Severity, record


@record
class Cause:
    """A reason why distributed jobs are slow or hang."""

    name: str
    title: str
    loss: Loss  # where the finding itself does not say more
    costs: str  # what it costs, in words
    look: tuple[str, ...] = ()  # checks (ids) that look at it on a machine
    references: tuple[str, ...] = ()  # public sources: NCCL source files, kernel documentation

    @property
    def severity(self) -> Severity:
        return self.loss.severity

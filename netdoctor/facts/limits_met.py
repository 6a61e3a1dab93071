"""What the kernel refused, or ended, at the limits of this process's cgroups while the all-reduce ran."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from netdoctor.facts.base import Fact
from netdoctor.facts.cgroups import Counter, counters
from netdoctor.host.base import Host, read, read_again
from netdoctor.model import Kind, Unavailable, missing, record


@record
class Rose:
    """How often the kernel did so meanwhile, by the counter that rose the most."""

    times: int
    file: str


@record
class LimitsMet(Fact):
    """None: nothing was, or nobody counts it."""

    refused: Rose | None | Unavailable  # processes and threads that were not made, by pids.max
    killed: Rose | None | Unavailable  # processes that were ended for want of memory

    @property
    def why_not(self) -> Unavailable | None:
        """Why nothing was seen."""
        lost = missing(self.refused, self.killed)
        return replace(lost, detail="nobody looked") if lost is not None and lost.kind is Kind.NOT_READ else lost


def begin(host: Host) -> None:
    """Before the run; `probe` looks again when it has ended."""
    for controller in ("pids", "memory"):
        for one in counters(host, controller):
            read(host, one.file)


def probe(host: Host) -> LimitsMet:
    return LimitsMet(*(_most(host, controller) for controller in ("pids", "memory")))


def _most(host: Host, controller: str) -> Rose | None | Unavailable:
    told = list(_rises(host, counters(host, controller)))
    risen = [one for one in told if one and one.times > 0]
    return max(risen, key=lambda one: one.times) if risen else missing(*told)


def _rises(host: Host, counted: tuple[Counter, ...]) -> Iterator[Rose | Unavailable]:
    for one in counted:
        before, after = (_count(text, one) for text in (read(host, one.file), read_again(host, one.file)))
        lost = missing(before, after)
        yield Rose((after or 0) - (before or 0), one.file) if lost is None else lost


def _count(text: str | Unavailable, one: Counter) -> int | Unavailable:
    if isinstance(text, Unavailable):
        return text
    found = re.search(rf"^{one.key} (\d{{1,18}})$", text, re.ASCII | re.MULTILINE)
    return int(found[1]) if found else Unavailable(Kind.MALFORMED, f"{one.file} has no {one.key}")

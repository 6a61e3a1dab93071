"""Errors that interfaces and RDMA ports counted while the all-reduce ran, and since they are there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, mapping, question, value
from netdoctor.host.helpers.net_errors import PMA, STATS
from netdoctor.model import Kind, Unavailable, missing, record, unavailable_in

LONGEST: Final = 600  # seconds; it is told to end when the run has
OF_INTERFACES: Final = tuple(name for name in STATS if name)
QUESTION: Final = question("net_errors", seconds=LONGEST)


@record
class Errors:
    """Of one interface or port, by the counter's name."""

    rose: Mapping[str, int | Unavailable]
    total: Mapping[str, int | Unavailable]


@record
class NetErrors(Fact):
    """The error counters of links before and after the all-reduce."""

    seconds: float | Unavailable
    interfaces: Mapping[str, Errors | Unavailable] | Unavailable  # of this network namespace
    ports: Mapping[str, Errors | Unavailable] | Unavailable  # by "mlx5_0:1"

    @property
    def why_not(self) -> Unavailable | None:
        """Why nothing was seen."""
        lost = missing(self.seconds)
        return replace(lost, detail="nobody looked") if lost is not None and lost.kind is Kind.NOT_READ else lost


def begin(host: Host) -> None:
    """Start to look; `probe` after the run tells it to end."""
    host.prefetch([QUESTION])


def probe(host: Host) -> NetErrors | Unavailable:
    """What was seen; where a run is not the recording's, it is not recorded."""
    got = mapping(host, QUESTION)
    if isinstance(got, Unavailable):
        return got
    seconds: float | Unavailable = value(got.get("seconds"), (float, int), "seconds")  # type: ignore[arg-type]
    if not isinstance(seconds, Unavailable) and not 0 <= seconds <= 2 * LONGEST:  # what a link may have grows with them
        seconds = Unavailable(Kind.MALFORMED, f"seconds: {seconds}")
    interfaces = _every(got.get("interfaces"), "interfaces", OF_INTERFACES)
    return NetErrors(seconds, interfaces, _every(got.get("ports"), "ports", PMA))


def _every(told: Any, what: str, known: Collection[str]) -> Mapping[str, Errors | Unavailable] | Unavailable:
    rows: dict[str, Any] | Unavailable = value(told, dict, f"counters of {what}")
    return rows if isinstance(rows, Unavailable) else {str(name): _one(row, known) for name, row in rows.items()}


def _one(row: Any, known: Collection[str]) -> Errors | Unavailable:
    """A counter that is told of everything is not told here, or is no count: Unavailable, which is no zero."""
    if (lost := unavailable_in(row)) is not None:
        return lost
    rose, total = (row.get(name) if isinstance(row, dict) else None for name in ("rose", "total"))
    if not isinstance(rose, dict) or not isinstance(total, dict):
        return Unavailable(Kind.MALFORMED, "counters")
    return Errors(*({name: _count(some.get(name), name) for name in dict.fromkeys((*known, *some))} for some in (rose, total)))


def _count(told: Any, name: str) -> int | Unavailable:
    found = value(told, int, name)
    return Unavailable(Kind.MALFORMED, f"{name}: {found}") if isinstance(found, int) and found < 0 else found

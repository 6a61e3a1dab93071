"""Clocks of nodes that met, each held against node 0's by NTP's arithmetic over signs of life.

Whoever asks notes when he asked and when the answer came, by his own clock; the answer bears the other's time.  That time lies
between the two, so the middle is wrong by half the round trip at most, however unequal the ways are (RFC 5905, section 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from netdoctor.causes.cost import SOMETIMES
from netdoctor.compare.majority import CLEAR, Fault, N
from netdoctor.model import Finding, Quantity, Status, record
from netdoctor.textsafe import listed

# Seconds.  MUNGE refuses a credential that is older than its time to live, or younger than now by as much (MUNGE_DEFAULT_TTL,
# src/libcommon/munge_defs.h; dec_validate_time, src/munged/dec.c); Kerberos' clockskew is as long (krb5.conf(5)).
REFUSED: Final = 300.0
STEPPED: Final = 0.128  # NTP does not let a clock that it keeps stay so far off: STEPT of RFC 5905
SUBJECT: Final = "clocks"
HOW: Final = "chronyc tracking, or timedatectl, on both; date +%s.%N"
WHY: Final = (
    "MUNGE, and by it Slurm, refuses what another node signed; Kerberos does, certificates are not valid yet or no more, and "
    "logs and files of the nodes are in a wrong order"
)


@record
class Clock:
    """Of a node against node 0's, as that node measured it."""

    ahead: float  # seconds
    within: float  # that it may be wrong by


def faults(known: Mapping[N, Clock | None], name: Callable[[N], str]) -> list[Fault[N]]:
    """What holds of the clocks of all nodes, None where a node did not measure its own; whom most differ from is named."""
    told = {node: one for node, one in known.items() if one is not None}
    lost = [name(node) for node in known if node not in told]
    found: list[Fault[N]] = []
    if lost and len(known) > 1:
        text = f"the clock of {listed(lost, 3)} was not measured against node 0's"
        found.append((Finding(Status.UNKNOWN, text, SUBJECT, how=HOW), ()))
    if len(told) < 2:
        return found
    first, *_, last = sorted(told.values(), key=lambda one: one.ahead)
    spread, error = last.ahead - first.ahead, first.within + last.within
    measured = {"apart": Quantity(round(spread, 3), "s"), "within": Quantity(round(error, 3), "s")}
    if spread - error > REFUSED:
        wrong = _wrong(told, len(lost))
        most = f"{REFUSED:.0f} s"
        text = f"its clock is more than {most} off the others'" if wrong else f"clocks of nodes are more than {most} apart"
        expected = f"at most {most} between any two"
        fault = Finding(
            Status.FAIL, text, SUBJECT, None, "clock", expected, measured=measured, how=HOW, why=WHY, loss=SOMETIMES
        )
        found.append((fault, wrong))
    elif spread + error > REFUSED:
        text = "whether the clocks of the nodes agree is not known: signs of life took too long"
        found.append((Finding(Status.UNKNOWN, text, SUBJECT, how=HOW, measured=measured), ()))
    elif not lost:
        note = f"further apart than NTP leaves clocks ({STEPPED:g} s): logs of several nodes are in a wrong order; {HOW}"
        notes = (note,) if spread - error > STEPPED else ()
        text = f"no two of {len(told)} nodes have clocks so far apart that a job would notice"
        found.append((Finding(Status.PASS, text, SUBJECT, measured=measured, notes=notes), ()))
    return found


def _wrong(told: Mapping[N, Clock], unknown: int) -> tuple[N, ...]:
    """Those that a clear majority is far from; none where there is no such majority."""
    import statistics  # with its fractions and decimals; a look at one node has no clocks to compare

    middle = statistics.median_low([one.ahead for one in told.values()])
    away = tuple(node for node, one in told.items() if abs(one.ahead - middle) - one.within > REFUSED)
    near = len(told) - len(away)
    return away if near >= CLEAR * len(told) and near > len(away) + unknown else ()

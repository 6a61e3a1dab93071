"""A hostile neighbour at the meeting of nodes, with and without its token, and healthy meetings of every shape.

Each attack goes on while three nodes meet: whoever has no token must change nothing, whoever has it can lose its own place and
no more.  `python -m tests.lab meeting [SECONDS]` repeats all of them for that long.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from netdoctor.cluster.secret import Secret
from netdoctor.model import Status
from tests.lab import meeting_insiders
from tests.lab.meeting_attacks import ATTACKS, proxy
from tests.lab.meeting_nodes import SECONDS, Meeting

# Where the attacker stands between node 1 and node 0, node 1 is not there; it must know that it knows nothing.
CUT_OFF: Final = {text for text in ATTACKS if "is node 0 to node 1" in text or "alters" in text}


def tried(text: str) -> list[str]:
    """What an attack changed that it must not change."""
    _, function, plays = ATTACKS[text]
    meeting = Meeting(absent=plays, late={1: 0.5})  # so that it goes on while nodes come
    meeting.seconds["reach"] = 4.0  # where an address answers nobody, all of it is waited out
    if text in CUT_OFF:
        meeting.seconds["join"] = 2.0
    if plays:
        meeting.seconds |= {"place": 2.0, "ready": 2.0, "result": 2.0}
    meeting.hold(function)
    robbed = text in CUT_OFF or "before it" in text
    honest = [n for n in range(3) if n not in plays and not (robbed and n == 1)]
    found = meeting.faults(honest)
    if text in CUT_OFF:
        error = meeting.wrong.get(1)
        if error is None or meeting.heard[1].hosts:
            found.append(f"node 1 heard {meeting.heard[1].hosts} and believed it")
        if 1 in meeting.heard[0].hosts:
            found.append("node 0 took somebody for node 1")
    statuses = meeting.findings()
    if "as node 1 as well" in text and Status.UNKNOWN not in statuses.values():
        found.append("two of one number, and nobody says so")
    return found


# Healthy meetings: nobody has anything to say


def healthy() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    def quiet(**how: Any) -> Callable[[], list[str]]:
        def held() -> list[str]:
            meeting = Meeting(**how).hold()
            found = meeting.faults(range(meeting.count))
            for node in range(meeting.count):
                said = {s: status for s, status in meeting.findings(node).items() if status in (Status.FAIL, Status.ERROR)}
                found += [f"node {node}: {said}"] if said or meeting.heard[node].refused else []
            return found

        return held

    yield "three nodes", quiet()
    yield "one node", quiet(count=1)
    yield "two nodes", quiet(count=2)
    yield "by IPv6 alone", quiet(master="::1")
    yield "by a name", quiet(master="localhost")
    yield "by another address of node 0", quiet(master="127.8.0.1")
    yield "a node that comes late", quiet(late={2: 2.0})
    yield "node 0 comes last", quiet(late={0: 1.0})
    yield "a node that is started again while others still come", quiet(restarted=(1,), late={2: 3.0})
    # Seventy threads of one process on a busy machine: nobody waits for these seconds where all come.
    longer = {subject: 4 * seconds for subject, seconds in SECONDS.items()}
    yield "seventy nodes, each with a sample of the others", quiet(count=70, seconds=longer)
    yield "behind a proxy that hands on (a Service, NAT)", behind_a_proxy
    yield "without a token", without


def behind_a_proxy() -> list[str]:
    meeting = Meeting()
    meeting.proxied[1] = proxy(meeting.port)
    return meeting.hold().faults(range(3))


def without() -> list[str]:
    """Never healthy, and no fault of anybody's."""
    meeting = Meeting(secret=Secret()).hold()
    said = set(meeting.findings().values())
    return [
        *meeting.faults(range(3)),
        *(["it fails"] if Status.FAIL in said else []),
        *([] if Status.UNKNOWN in said else ["healthy"]),
    ]


def main(words: Sequence[str] = ()) -> int:
    seconds = next((float(word) for word in words if word.replace(".", "").isdigit()), 0.0)
    named = [word for word in words if not word.replace(".", "").isdigit()]
    rows: dict[str, Callable[[], list[str]]] = {**{t: lambda t=t: tried(t) for t in ATTACKS}, **dict(healthy())}  # type: ignore[misc]
    rows = {text: row for text, row in rows.items() if not named or any(word in text for word in named)}
    begun, bad, done = time.monotonic(), 0, 0
    for number in itertools.count():
        for text, row in rows.items():
            if number and time.monotonic() - begun >= seconds:
                break
            start, found = time.monotonic(), row()
            done, bad = done + 1, bad + bool(found)
            if not number or found:
                print(f"{'BAD' if found else 'ok '} {time.monotonic() - start:5.1f} s  {text}", flush=True)
            for one in found[:6]:
                print(f"      {one[:300]}", flush=True)
        if time.monotonic() - begun >= seconds:
            break
    attacks = sum(1 for text in rows if text in ATTACKS)
    without_token = sum(1 for text in rows if text in ATTACKS and not ATTACKS[text][0])
    healthy_ones = len(rows) - attacks
    print(f"{attacks} attacks ({without_token} without the token), {healthy_ones} healthy meetings: {done} tries, {bad} bad")
    return 1 if bad else 0


assert meeting_insiders  # its attacks are in the table

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Where the ranks ran, by the names of their hosts and by who says how they ended."""

from __future__ import annotations

import re
from enum import Enum
from typing import Final

from netdoctor.nccl.log.facts import LogFacts
from netdoctor.nccl.log.wordings import Wording


class Place(Enum):
    """What kind of thing has the host names of a log."""

    POD = "pod"
    CONTAINER = "container"
    UNKNOWN = "not told"  # a host, or a container that shares its name


# Replicas of training operators and of a Deployment (a hash of its template, five letters), and indexed Jobs.
_POD: Final = re.compile(
    r"-(?:worker|master|launcher|server|chief|ps)-\d{1,5}\Z|-[0-9a-f]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\Z"
)
_CONTAINER: Final = re.compile(r"[0-9a-f]{12}\Z")  # Docker's default: the start of the container's id


def place(log: LogFacts) -> Place:
    if any(Wording.OF_A_POD.within(e.text) for e in log.of("died", "ended", "unstarted", "node_failed")):
        return Place.POD
    if not log.hosts:
        return Place.UNKNOWN
    if all(_POD.search(host) for host in log.hosts):
        return Place.POD
    return Place.CONTAINER if all(_CONTAINER.match(host) for host in log.hosts) else Place.UNKNOWN

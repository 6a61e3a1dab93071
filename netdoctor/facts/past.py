"""This node's last good figures: a small ring that good looks leave where the site made a folder for it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, mapping, read
from netdoctor.model import Json, Kind, Unavailable, record

FOLDER: Final = "/var/lib/netdoctor"  # netdoctor does not make it: that it is there is the site's wish
FILE: Final = f"{FOLDER}/past.json"
SCHEMA: Final = "netdoctor.past/1"
KEPT: Final = 64  # looks
_DAY: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")


@record
class Entry:
    """What one good look left."""

    day: str  # UTC
    shape: str  # of the run: only like is compared with like; "": none
    size: int  # bytes, the largest that ran
    busbw: float  # GB/s at that size
    cpu: bool  # its ranks ran on CPUs
    hardware: Mapping[str, Any]  # keys of `expected:` that hardware alone decides

    @property
    def kind(self) -> str:
        """For people: what of the shape has a meaning to them."""
        return self.shape.rpartition(" ")[0]


@record
class Past(Fact):
    """The last good looks at this very node.

    The oldest first; () where none is kept.
    """

    entries: tuple[Entry, ...] | Unavailable
    who: str = ""  # which node and place this is; "": it could not be told, and nothing is kept


def probe(host: Host, vantage: Vantage) -> Past:
    """Entries of another machine (an image that was cloned with its ring) do not count."""
    who = _who(host, vantage)
    text = host.ask(f"trusted:{FILE}")
    if isinstance(text, Unavailable):
        return Past(() if text.kind is Kind.ABSENT else text, who)
    found = parsed(text if isinstance(text, str) else "")
    if isinstance(found, Unavailable):
        return Past(found, who)
    return Past(tuple(entry for owner, entry in found if owner == who and who), who)


def _who(host: Host, vantage: Vantage) -> str:
    """A machine id is of an installation, in a container of an image: there the node's name counts, or the container's."""
    if isinstance(vantage.kind, Unavailable):
        return ""
    variables = mapping(host, "env:") or {}
    if vantage.runtime is None:
        name = read(host, "/etc/machine-id")
        if isinstance(name, Unavailable) and name.kind is Kind.ABSENT:
            name = read(host, "/proc/sys/kernel/hostname")
    else:
        name = variables.get("NODE_NAME") or read(host, "/proc/sys/kernel/hostname")
    return f"{name.strip()} {vantage.kind}" if isinstance(name, str) and name.strip() else ""


def parsed(text: str) -> tuple[tuple[str, Entry], ...] | Unavailable:
    """Owner and look of each entry; one that is not whole is left out, a file that is none is Unavailable."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        return Unavailable(Kind.MALFORMED, f"{FILE} is no JSON")
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("looks"), list):
        return Unavailable(Kind.MALFORMED, f"{FILE} has not the schema {SCHEMA}")
    found = (_entry(one) for one in data["looks"][-KEPT:] if isinstance(one, dict))
    return tuple(one for one in found if one is not None)


def _entry(one: dict[str, Any]) -> tuple[str, Entry] | None:
    day, shape, size, busbw, hardware = (one.get(name) for name in ("day", "shape", "size", "busbw", "hardware"))
    if not (isinstance(day, str) and _DAY.fullmatch(day) and isinstance(shape, str) and isinstance(hardware, dict)):
        return None
    if type(size) is not int or isinstance(busbw, bool) or not isinstance(busbw, int | float) or not 0 <= busbw < 1e6:
        return None
    return str(one.get("who")), Entry(day, shape, size, float(busbw), one.get("cpu") is True, hardware)


def added(text: str, who: str, entry: Entry) -> str:
    """The ring with one look more, the oldest gone where it is full; what was there and is no ring is dropped.

    Of looks without a figure only the last of each node and place is kept: they would drive out those that have one.
    """
    every = (*(parsed(text) or () if text else ()), (who, entry))
    last = {owner: at for at, (owner, one) in enumerate(every) if not one.shape}
    rows = [_plain(owner, one) for at, (owner, one) in enumerate(every) if one.shape or last[owner] == at][-KEPT:]
    return json.dumps({"schema": SCHEMA, "looks": rows}, sort_keys=True) + "\n"


def _plain(who: str, entry: Entry) -> dict[str, Json]:
    return {
        "who": who,
        "day": entry.day,
        "shape": entry.shape,
        "size": entry.size,
        "busbw": entry.busbw,
        "cpu": entry.cpu,
        "hardware": dict(entry.hardware),
    }

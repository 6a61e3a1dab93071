"""The list of a job's nodes, as its launcher writes it down."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from netdoctor.environment import Role, named
from netdoctor.textsafe import HOST_NAME

SLURM: Final = named(Role.NODELIST, "slurm")
WORKERS: Final = named(Role.NODELIST, "volcano")
_PAIRS, _SLOTS = "LSB_MCPU_HOSTS", "LSB_HOSTS"  # "a 8 b 8" and "a a b b"; of a long list LSF leaves the second away
LISTS: Final = (_PAIRS, _SLOTS)
MOST: Final = 1 << 16
_NAME: Final = r"((?![._-])(?:[A-Za-z0-9._-]|\[[0-9]{1,9}(?:-[0-9]{1,9})?(?:,[0-9]{1,9}(?:-[0-9]{1,9})?)*\])+)(?:,|$)"
_HOST: Final = re.compile(_NAME)
_WHOLE: Final = re.compile(f"(?:{_NAME})+")


def hosts(nodelist: str) -> Iterator[str]:
    """Slurm's list written out: ``gpu[03-04,9],login1`` is gpu03, gpu04, gpu9, login1.  Ends at what is not of that form."""
    at = 0
    while match := _HOST.match(nodelist, at):
        at = match.end()
        yield from _written_out(match[1])


def understood(nodelist: str) -> bool:
    """Whether `hosts` gives all of it."""
    return _WHOLE.fullmatch(nodelist) is not None


def _written_out(name: str) -> Iterator[str]:
    head, bracket, rest = name.partition("[")
    ranges, _, tail = rest.partition("]")
    if not bracket:
        yield head
    for low, _, high in (one.partition("-") for one in ranges.split(",") if one):
        for number in range(int(low), int(high or low) + 1):
            yield from (f"{head}{number:0{len(low)}}{end}" for end in _written_out(tail))


def once(names: Iterable[str]) -> tuple[str, ...] | None:
    """Each host once, in order; None: one of them is no name of a host."""
    found = tuple(islice(dict.fromkeys(names), MOST))
    return found if all(HOST_NAME.fullmatch(one) for one in found) else None


def of_lsf(variables: Mapping[str, str]) -> tuple[str, ...] | None:
    """What LSF's variables list; () where they are not there, None where they are not of their form."""
    pairs = variables.get(_PAIRS, "").split()
    if pairs:
        return once(pairs[::2]) if len(pairs) % 2 == 0 and all(map(str.isdecimal, pairs[1::2])) else None
    return once(variables.get(_SLOTS, "").split())

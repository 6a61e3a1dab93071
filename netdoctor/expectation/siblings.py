"""Source: siblings.  Parts that are alike on every real node, so that one that differs is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from netdoctor.expectation.model import FEW, Expectation, Part, Quantity, Source, Value, is_short
from netdoctor.model import Kind, Unavailable, count

_LACKED: Final = frozenset({Quantity.NEAREST, Quantity.GPUS_NEAR})


def of(parts: Iterable[Part], but: Quantity | None = None) -> Iterator[Expectation]:
    """What each part should have because its siblings have it."""
    groups: dict[str, list[Part]] = {}
    for part in parts:
        if part.like:
            groups.setdefault(part.like, []).append(part)
    for group in groups.values():
        if len(group) > 1:
            for quantity in dict.fromkeys(q for part in group for q in part.has if q is not but):
                yield from _alike(group, quantity)


def of_one_make(parts: Iterable[Part]) -> Iterator[Expectation]:
    """The model of cards that share a compute capability, where three or more of them are one: a card of its own for a screen
    has another, and of two or three cards nothing says which was meant.
    """
    groups: dict[str, list[Part]] = {}
    for part in parts:
        made = part.has.get(Quantity.CAPABILITY)
        if isinstance(made, str) and isinstance(part.has.get(Quantity.MODEL), str):
            groups.setdefault(made, []).append(part)
    for group in groups.values():
        if len({part.like for part in group}) > 1 and Counter(part.like for part in group).most_common(1)[0][1] > 2:
            yield from _alike(group, Quantity.MODEL)


def _alike(group: Sequence[Part], quantity: Quantity) -> Iterator[Expectation]:
    values = [(part, value) for part in group if (value := part.has.get(quantity)) is not None]
    lost = [part for part, value in values if isinstance(value, Unavailable)]
    if lost:  # what is not known may be the one that decides who differs: no other is judged
        yield from (Expectation(part.name, quantity, "", Source.SIBLINGS, "its kind") for part in lost)
        return
    known = [value for _, value in values if not isinstance(value, Unavailable)]
    should = usual(quantity, known) if len(known) > 1 else None
    if should is not None:
        agree = [value == should for value in known]
        same = sum(agree)
        for (part, _), its_own in zip(values, agree, strict=True):
            others = same - its_own
            yield Expectation(part.name, quantity, should, Source.SIBLINGS, f"{count(others, 'other')} of its kind")


def divided(parts: Iterable[Part]) -> Unavailable | None:
    """Siblings of which so many have another rate that nothing says which of them is wrong: alike they are not."""
    groups: dict[str, list[Value]] = {}
    for part in parts:
        value = part.has.get(Quantity.RATE)
        if part.like and value is not None and not isinstance(value, Unavailable):
            groups.setdefault(part.like, []).append(value)
    for values in groups.values():
        should = usual(Quantity.RATE, values) if len(values) > 1 else None
        faster = sum(should is None or is_short(Quantity.RATE, should, value) for value in values)
        if len(values) > 1 and faster > FEW * len(values):
            counted = ", ".join(f"{Quantity.RATE.text(v)} {n} times" for v, n in Counter(values).most_common())
            return Unavailable(Kind.NOT_READ, f"those of one kind differ in their rate: {counted}")
    return None


def usual(quantity: Quantity, values: Sequence[Value]) -> Value | None:
    """What most have; of two that differ, and of NVLinks in two halves, the more.  None: nothing can be said."""
    counted = Counter(values)
    value, number = counted.most_common(1)[0]
    if quantity is Quantity.PORTS and value == 0:  # that most are down vouches for none: rdma.dev_infiniband says of each
        return None
    if number == len(values) and number > 1:
        return value
    if len(values) == 2 or (quantity is Quantity.NVLINKS and number * 2 <= len(values)):
        return max(values, key=_order)  # of links that some have and others not, the others lost them
    fewer = sum(n for other, n in counted.items() if is_short(quantity, other, value))
    if quantity in _LACKED and fewer > FEW * len(values):
        return None
    return value if number * 2 > len(values) else None


def _order(value: Value) -> tuple[bool, float, str]:
    return (isinstance(value, str), 0 if isinstance(value, str) else value, str(value))

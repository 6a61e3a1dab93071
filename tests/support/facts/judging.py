"""A check called as the engine does, and what it found."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from netdoctor.api import CheckSpec
from netdoctor.causes.found import found_by
from netdoctor.facts.base import Fact
from netdoctor.model import Finding, Status, Unavailable

Facts = Mapping[type, object]


def judge(check: Callable[..., Iterable[Finding]], facts: Facts) -> list[Finding]:
    """The findings of `check` on `facts`; of a fact that is not there nothing was read."""
    found = list(check(**arguments(check, facts)))
    spec = getattr(check, "__netdoctor_check__", None)
    if isinstance(spec, CheckSpec):
        told = {spec.cause, *found_by(spec.id, spec.cause)}
        other = [one for one in found if one.cause is not None and one.cause not in told]
        assert not other, f"`netdoctor explain {spec.id}` does not say that it may find {other[0].cause}"
    return found


def arguments(check: Callable[..., Iterable[Finding]], facts: Facts) -> dict[str, object]:
    """What the check is called with; one that is called with the same says the same."""
    return {name: _argument(hint, facts) for name, hint in _needs(check).items()}


@cache
def _needs(check: Callable[..., Iterable[Finding]]) -> dict[str, type[Fact]]:
    hints = typing.get_type_hints(check)
    hints.pop("return", None)
    return hints


def _argument(hint: type[Fact], facts: Facts) -> object:
    got = facts.get(hint, Unavailable("not recorded"))
    if callable(got):  # made of the others: `job` of software.py
        got = got(facts)
    return hint.unread(got) if isinstance(got, Unavailable) else got


def statuses(findings: Iterable[Finding]) -> dict[str, Status]:
    """Status by subject (the last finding of a subject counts)."""
    return {f.subject: f.status for f in findings}


def only(findings: Iterable[Finding]) -> Finding:
    """The one finding there is."""
    (found,) = findings
    return found

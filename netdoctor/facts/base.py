"""What every fact has in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from typing import Any, ClassVar, Final, ParamSpec, TypeVar

from netdoctor.model import Kind, Unavailable

Self = TypeVar("Self", bound="Fact")
Question = ParamSpec("Question")
Answer = TypeVar("Answer")

# Of one field these may be evidence: no such module, a port that is none.
_EVIDENCE: Final = frozenset({Kind.ABSENT, Kind.EMPTY, Kind.MALFORMED, Kind.UNSUPPORTED})


def no_evidence(why: Unavailable) -> Unavailable:
    """Why a whole fact is lost, as what its fields say: that it is absent or malformed says nothing about them."""
    return Unavailable(Kind.NOT_READ, str(why)) if why.kind in _EVIDENCE else why


class Fact:
    """What a probe read, as a frozen dataclass.  A fact is always there; a field that could not be read is `Unavailable`.

    `lost` says why nothing of the fact could be read; None: the probe ran, and each field speaks for itself.
    """

    lost: ClassVar[Unavailable | None] = None  # of an instance, where `unread` made it; no field, so that no recording has it

    @classmethod
    def unread(cls: type[Self], why: Unavailable) -> Self:
        """The fact of which nothing could be read: every field that may be Unavailable is, the others are their default.

        Raises TypeError for a fact with a field that can be neither: it could not say that it was not read.
        """
        fact = cls(**cls._unread(why))
        object.__setattr__(fact, "lost", why)
        return fact

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        """The fields of `unread`; a fact whose fields say it otherwise has its own."""
        values: dict[str, Any] = {}
        for one in fields(cls):  # type: ignore[arg-type]
            if "Unavailable" in str(one.type):
                values[one.name] = why
            elif one.default is MISSING and one.default_factory is MISSING:
                raise TypeError(f"{cls.__name__}.{one.name} cannot be unread: give it a default, or `| Unavailable`")
        return values


def asked_again(rule: Callable[Question, Answer]) -> Callable[Question, Answer]:
    """A pure rule that several checks ask of one look's facts: its last answer is kept for the same question.

    The same is one whose first part is the same object, as a fact's field is within a look, and whose others are equal, which
    the facts of one look are at first sight.  `functools.lru_cache` would hash all of them each time.
    """
    last: list[tuple[Any, Any, Answer]] = []

    @wraps(rule)
    def asked(*facts: Question.args, **named: Question.kwargs) -> Answer:
        if not last or last[0][0][0] is not facts[0] or last[0][:2] != (facts, named):
            last[:] = [(facts, named, rule(*facts, **named))]
        return last[0][2]

    return asked

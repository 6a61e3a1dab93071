"""What every fact has in common."""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, ClassVar, TypeVar

from netdoctor.model import Unavailable

Self = TypeVar("Self", bound="Fact")


class Fact:
    """What a probe read, as a frozen dataclass.  A fact is always there; a field that could not be read is `Unavailable`.

    `lost` says why nothing of the fact could be read; None: the probe ran, and each field speaks for itself.
    """

    lost: ClassVar[Unavailable | None] = None  # of an instance, where `unread` made it; no field, so that no recording has it

    @classmethod
    def unread(cls: type[Self], why: Unavailable) -> Self:
        """The fact of which nothing could be read: every field that may be Unavailable is `why`, the others are their default.

        Raises TypeError for a fact with a field that can be neither: it could not say that it was not read.
        """
        values: dict[str, Any] = {}
        for one in fields(cls):  # type: ignore[arg-type]
            if "Unavailable" in str(one.type):
                values[one.name] = why
            elif one.default is MISSING and one.default_factory is MISSING:
                raise TypeError(f"{cls.__name__}.{one.name} cannot be unread: give it a default, or `| Unavailable`")
        fact = cls(**values)
        object.__setattr__(fact, "lost", why)
        return fact

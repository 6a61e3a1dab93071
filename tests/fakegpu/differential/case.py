"""One draw, and what came of it."""

from __future__ import annotations

import random
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

Version = tuple[int, int, int]
UNSAID: Final = None  # a prediction that netdoctor declines


class Draw(NamedTuple):
    """What is drawn: by its seed alone, so that it can be run again."""

    area: str
    version: Version
    seed: str

    @property
    def random(self) -> random.Random:
        return random.Random(self.seed)

    @property
    def text(self) -> str:
        return ".".join(map(str, self.version))


@dataclass(frozen=True)
class Row:
    """One comparison."""

    what: str  # the question, with the settings that it is about
    predicted: Any  # UNSAID: netdoctor does not say
    seen: Any
    area: str = ""  # another than the draw's

    @property
    def agrees(self) -> bool | None:
        """None: unsaid."""
        return None if self.predicted is UNSAID else bool(self.predicted == self.seen)


@dataclass(frozen=True)
class Result:
    """A row and the draw that it is of; as it is written down."""

    area: str
    version: str
    seed: str
    what: str
    predicted: Any
    seen: Any
    agrees: bool | None

    @classmethod
    def of(cls, draw: Draw, row: Row) -> Result:
        return cls(row.area or draw.area, draw.text, draw.seed, row.what, row.predicted, row.seen, row.agrees)

    def data(self) -> dict[str, Any]:
        return asdict(self)


def settings_text(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value!r}" for name, value in sorted(settings.items())) or "no setting"

"""What one command has to say beside its findings, as each renderer wants it: text, JSON, a page, test cases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, Final, Protocol

from netdoctor.model.records import record


class Outcome(Enum):
    """What JUnit has beside a pass."""

    FAILURE = "failure"
    ERROR = "error"
    SKIPPED = "skipped"


@record
class Case:
    """A test case of JUnit: a check, or a node of a fleet."""

    group: str
    name: str
    kind: Outcome | None = None  # None: it passed
    type: str = ""
    message: str = ""
    detail: str = ""


class Markup(str):
    """HTML, every text in it escaped: only `netdoctor.report.page` makes it."""

    __slots__ = ()


NO_MARKUP: Final = Markup()


@record
class Page:
    """What a section adds to an HTML page."""

    body: Markup = NO_MARKUP
    lead: Markup = NO_MARKUP  # before the checks: what is looked for first
    beside: Markup = NO_MARKUP  # not part of the report's own text: what a script shows in its place
    style: str = ""
    script: str = ""


class Section(Protocol):
    """What one command has to say beside its findings, as each renderer wants it."""

    def about(self) -> str:
        """What was looked at: one line under the title."""

    def data(self) -> Mapping[str, Any]:
        """Members of the JSON document."""

    def text(self) -> Iterable[str]:
        """Lines between the findings and the verdict."""

    def page(self) -> Page: ...

    def cases(self) -> Iterable[Case]:
        return ()

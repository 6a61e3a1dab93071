"""An assignment of a variable as it stands in a file, and what is wrong with the way it is written."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.facts.environ import Origin
from netdoctor.model import Word, record
from netdoctor.variables.catalogue import PREFIXES, mistyped

# Names that netdoctor judges, alone and anywhere in a text.
_PREFIXES: Final = "|".join(prefix for prefix, _ in PREFIXES)
WANTED: Final = re.compile(rf"(?:{_PREFIXES})[A-Za-z0-9_]+\Z")
# apptainer hands APPTAINERENV_NAME into the container as NAME ("Environment and Metadata" of its user guide).
_INTO_CONTAINER: Final = re.compile(r"\A(?:SINGULARITY|APPTAINER)ENV_")
ASSIGNMENT: Final = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)\Z", re.DOTALL)
ASSIGNS: Final = re.compile(rf"(?:\b|(?:SINGULARITY|APPTAINER)ENV_)(?:{_PREFIXES})[A-Za-z0-9_]+=")
MENTIONS: Final = re.compile(rf"(?:\b|(?:SINGULARITY|APPTAINER)ENV_)(?:{_PREFIXES})[A-Z0-9_]")


class WritingRule(Word):
    """A way of writing by which a value does not arrive as it stands there; the values are the names in reports."""

    YAML_TYPE = "yaml-type"
    NOT_EXPORTED = "not-exported"
    EXPORT_COMMA = "export-comma"
    CONF_LINE = "conf-line"
    ENV_QUOTES = "env-quotes"
    BYTE_ORDER_MARK = "byte-order-mark"
    CARRIAGE_RETURN = "carriage-return"
    UNIT_LITERAL = "unit-literal"
    SET_AGAIN = "set-again"
    NOT_HANDED_ON = "not-handed-on"
    PERHAPS_NOT_HANDED_ON = "perhaps-not-handed-on"
    BLANK_AT_EQUALS = "blank-at-equals"
    CUT_AT_SEMICOLON = "cut-at-semicolon"
    NOT_A_NAME = "not-a-name"

    @property
    def may_arrive(self) -> bool:
        """Whether it depends on who reads the file."""
        return self in (WritingRule.ENV_QUOTES, WritingRule.BYTE_ORDER_MARK, WritingRule.SET_AGAIN)


@record
class Problem:
    """A rule that is broken, and what that means here, for people."""

    rule: WritingRule
    text: str


@record
class Assignment:
    """NAME=VALUE at a place of a file."""

    name: str
    value: str | None  # None: it cannot be told without running the file
    source: Origin
    scope: str = ""  # two assignments repeat each other only in one scope
    why: str = ""  # why the value is not known
    problem: Problem | None = None  # what is wrong with the way it is written
    conditional: bool = False  # in a branch that may not be taken
    overridden: bool = False  # a later one of its list is in effect


@record
class Unread:
    """A line that may set variables which cannot be seen."""

    source: Origin
    why: str


def meant(name: str) -> str | None:
    """The name by which the job gets a variable; None where netdoctor does not judge it."""
    bare = _INTO_CONTAINER.sub("", name)
    return bare if WANTED.match(bare) else None


def exported_name(name: str) -> str | None:
    """As `meant`, or the name itself where one of these was meant, but for its letters' case or one slip."""
    return meant(name) or (name if mistyped(name) else None)

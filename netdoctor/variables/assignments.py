"""An assignment of a variable as it stands in a file, and what is wrong with the way it is written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

# Names that netdoctor judges (catalogue.PREFIXES), alone and anywhere in a text.
_PREFIXES: Final = "NCCL|TORCH_NCCL|TORCH_FR|TORCH_GLOO|TORCH_DISTRIBUTED|GLOO|UCX|FI|OFI_NCCL|RCCL"
WANTED: Final = re.compile(rf"(?:{_PREFIXES})_[A-Za-z0-9_]+\Z")
MENTIONS: Final = re.compile(rf"\b(?:{_PREFIXES})_[A-Z0-9_]")


class WritingRule(str, Enum):
    """A way of writing by which a value does not arrive as it stands there; the values are the names in reports."""

    YAML_TYPE = "yaml-type"
    NOT_EXPORTED = "not-exported"
    EXPORT_COMMA = "export-comma"
    ENV_QUOTES = "env-quotes"  # depends on who reads the file


@dataclass(frozen=True)
class Problem:
    """A rule that is broken, and what that means here, for people."""

    rule: WritingRule
    text: str


@dataclass(frozen=True)
class Assignment:
    """NAME=VALUE at a place of a file."""

    name: str
    value: str | None  # None: it cannot be told without running the file
    source: str  # "PATH:LINE"
    scope: str = ""  # two assignments repeat each other only in one scope
    why: str = ""  # why the value is not known
    problem: Problem | None = None  # what is wrong with the way it is written


@dataclass(frozen=True)
class Unread:
    """A line that may set variables which cannot be seen."""

    source: str
    why: str


def wanted(name: str) -> bool:
    return WANTED.match(name) is not None

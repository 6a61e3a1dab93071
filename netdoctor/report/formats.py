"""The formats of reports: whose they are, which files they make, what they need."""

from __future__ import annotations

import importlib.util
import os
import shlex
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from netdoctor.model import Report


class Format(NamedTuple):
    """The module of that name renders it."""

    suffixes: tuple[str, ...] = ()  # of files that are written so unless another format is asked for
    metrics: bool = False  # of a node or many, not of a log, of variables, of ranks
    library: str = ""  # what the package's extra of the same name installs
    utf8: bool = True  # by its own standard (RFC 8259, 8.1) or by what it says of itself, whatever the locale


FORMATS: Final = {
    "text": Format((".txt",), utf8=False),
    "json": Format((".json",)),
    "junit": Format((".xml",), library="junitparser"),
    "brief": Format(utf8=False),
    "html": Format((".html", ".htm")),
    "prometheus": Format((".prom",), metrics=True, library="prometheus_client"),
}


def names(*, metrics: bool = False) -> tuple[str, ...]:
    """The formats of any report, of one about a node or a fleet."""
    return tuple(name for name, format in FORMATS.items() if metrics or not format.metrics)


# What nobody means for a part of a name (gpu01.example.org): JSON in such a file would be found out late.
_OF_OTHERS: Final = frozenset(
    {".csv", ".tsv", ".md", ".yaml", ".yml", ".pdf", ".sarif", ".toml", ".ini", ".xlsx", ".svg", ".png"}
)


def of_file(path: str, format: str | None) -> str:
    """By suffix, else as it is printed, else JSON; a suffix of others' formats is returned as it is."""
    suffix = os.path.splitext(path)[1].lower()
    ours = next((name for name, row in FORMATS.items() if suffix in row.suffixes), None)
    return ours or (suffix if suffix in _OF_OTHERS else format or "json")


def lacking(name: str) -> str:
    """Why a format cannot be written here; "" where it can."""
    library = FORMATS[name].library
    if not library or importlib.util.find_spec(library) is not None:
        return ""
    project = library.replace("_", "-")  # from a clone, a wheel or the one file: netdoctor itself may come from anywhere
    python = shlex.quote(sys.executable or "python3")  # a command to paste: the folder of a venv may have a blank
    return f"the format {name} needs {project}: {python} -m pip install {project}"


def render(report: Report, name: str, *, width: int | None = None, colour: bool = False, verbose: bool = False) -> str:
    """The report in one format, or as a termination message; `width` and `colour` are those of the terminal for text."""
    module = importlib.import_module(f"netdoctor.report.{name}")
    own = {"width": width, "colour": colour, "verbose": verbose} if name == "text" else {}
    rendered: str = module.render(report, **own)
    return rendered

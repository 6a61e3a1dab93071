"""The formats of reports: whose they are, which files they make, what they need."""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from netdoctor.model import Report


class Format(NamedTuple):
    """The module of that name renders it."""

    suffixes: tuple[str, ...] = ()  # of files that are written so unless another format is asked for
    fleet: bool = False  # of many nodes only
    library: str = ""  # what the package's extra of the same name installs


FORMATS: Final = {
    "text": Format((".txt",)),
    "json": Format((".json",)),
    "junit": Format((".xml",), library="junitparser"),
    "brief": Format(),
    "html": Format((".html", ".htm")),
    "prometheus": Format((".prom",), fleet=True, library="prometheus_client"),
}


def names(*, fleet: bool = False) -> tuple[str, ...]:
    """The formats of a report, of one about a fleet."""
    return tuple(name for name, format in FORMATS.items() if fleet or not format.fleet)


def of_file(path: str, format: str | None) -> str:
    """By suffix, else as it is printed, else JSON."""
    suffix = os.path.splitext(path)[1].lower()
    return next((name for name, row in FORMATS.items() if suffix in row.suffixes), format or "json")


def lacking(name: str) -> str:
    """Why a format cannot be written here; "" where it can."""
    library = FORMATS[name].library
    if not library or importlib.util.find_spec(library) is not None:
        return ""
    return f"the format {name} needs {library.replace('_', '-')}: pip install 'cluster-netdoctor[{name}]'"


def render(report: Report, name: str, *, width: int | None = None, colour: bool = False) -> str:
    """The report in one format, or as a termination message; `width` and `colour` are those of the terminal for text."""
    module = importlib.import_module(f"netdoctor.report.{name}")
    rendered: str = module.render(report, width=width, colour=colour) if name == "text" else module.render(report)
    return rendered

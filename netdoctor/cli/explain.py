"""What ``netdoctor list`` and ``netdoctor explain ID`` print: what a check looks at, why, what it costs and what mends it."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

from netdoctor.api import CheckSpec
from netdoctor.causes import CAUSES, Cause
from netdoctor.causes.found import BY_LOG, found_by
from netdoctor.causes.results import RESULTS, ResultRow
from netdoctor.fixes import mends
from netdoctor.model import Fix
from netdoctor.plugins import Loaded, needs
from netdoctor.textsafe import clean, meant
from netdoctor.variables.catalogue import closest, lookup

WIDTH: Final = 100
_PLACES: Final = {
    "host": "on the node",
    "docker": "in Docker",
    "podman": "in Podman",
    "enroot": "in Enroot (Pyxis)",
    "apptainer": "in Apptainer",
    "kubernetes": "in Kubernetes",
}


def listing(loaded: Loaded, width: int | None = None) -> str:
    """One line a check: id and what is true on a healthy node; where it is from, if it is not built in.  `width` wraps it."""
    column = max((len(spec.id) for spec in loaded.specs), default=0)
    lines = []
    for spec in sorted(loaded.specs, key=lambda s: s.id):
        source = loaded.sources.get(spec.id, "")
        where = "" if source in {"", "built in"} else f"  ({source})"
        line = clean(f"{spec.id:<{column}}  {spec.title}{where}")
        lines += textwrap.wrap(line, width, subsequent_indent=" " * (column + 2)) if width and len(line) > width else [line]
    for result in loaded.results:
        lines += [clean(f"{result.id}: {f.subject}: {f.message}") for f in result.findings]
    return "\n".join(lines) + "\n" if lines else "no checks\n"


def explain(loaded: Loaded, id: str, width: int = WIDTH) -> str:
    """All about one check or one cause.  Raises LookupError with the nearest name."""
    spec = next((s for s in loaded.specs if s.id == id), None)
    if spec is not None:
        return _text(_check(spec, loaded.sources.get(id, ""), width))
    if (cause := id.removeprefix("log.")) in CAUSES:  # of a log each cause is a check
        return _text(_cause(CAUSES[cause], width))
    if id in RESULTS:
        return _text(_result(id, RESULTS[id], width))
    if variable := lookup(id) or lookup(id.upper()):
        raise LookupError(f"{clean(id)!r} is a variable: netdoctor env --explain {variable.name}")
    known = [*(s.id for s in loaded.specs), *CAUSES, *RESULTS]
    if near := closest(id.upper()) if "_" in id and id.isupper() else None:
        raise LookupError(f"{clean(id)!r} is no variable; did you mean {near}? netdoctor env --explain {near}")
    hint = meant(id, known) or "; netdoctor list names the checks"
    raise LookupError(f"no check and no cause {clean(id)!r}{hint}")


def _text(lines: Iterator[str]) -> str:
    return "\n".join(clean(line) for line in lines) + "\n"


def _check(spec: CheckSpec, source: str, width: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{spec.id}: {spec.title}", width)
    if source and source != "built in":
        yield f"from {source}"
    document = getattr(sys.modules.get(spec.judge.__module__), "__doc__", None) or spec.judge.__globals__.get("__doc__")
    lines = inspect.cleandoc(str(document or "")).splitlines()
    if lines and lines[0].rstrip(".") == spec.title:
        lines = lines[2:]
    if lines:
        yield ""
        yield from _document(lines, width)
    yield ""
    yield "looks at"
    for need in needs(spec):
        about = (inspect.getdoc(need.type) or "").partition("\n")[0]
        yield from _wrapped(f"{need.type.__name__}: {about}", width)
    row = CAUSES.get(spec.cause)
    if row is not None:
        yield ""
        yield from _about(row, width)
    if others := found_by(spec.id, spec.cause):
        yield ""
        others = ("any that the log of its run shows",) if spec.id in BY_LOG else others
        yield from _wrapped(f"it may also find (netdoctor explain NAME): {', '.join(others)}", width)


def _result(id: str, row: ResultRow, width: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{id}: {row.title}", width)
    yield ""
    yield from textwrap.wrap(row.says, width)
    if row.cause != "other":
        yield ""
        yield from _about(CAUSES[row.cause], width)


def _cause(row: Cause, width: int) -> Iterator[str]:
    yield from textwrap.wrap(f"{row.name}: {row.title}", width)
    yield ""
    yield from _about(row, width)
    if row.look:
        yield ""
        yield f"looked at by {', '.join(row.look)}"


def _about(row: Cause, width: int) -> Iterator[str]:
    yield "when it fails"
    yield from _wrapped(f"{row.title} (cause {row.name}, {row.severity.value} unless the check says otherwise)", width)
    yield from _wrapped(f"cost: {row.costs}", width)
    before: tuple[str, ...] = ()
    for places, fix in mends(row.name):
        if places != before:
            yield ""
            yield f"to mend it {', '.join(_PLACES[place] for place in places)}"
        before = places
        yield from _fix(fix, width)
    if row.references:
        yield ""
        yield "read more"
        for reference in row.references:
            yield from _wrapped(reference, width)


def _fix(fix: Fix, width: int) -> Iterator[str]:
    yield from _wrapped(fix.summary, width)
    for command in fix.commands:
        yield f"    {command}"
    if fix.persistent and fix.commands:
        yield "  to make it last"
    for command in fix.persistent:
        yield f"    {command}"


def _document(lines: list[str], width: int) -> Iterator[str]:
    """As it stands, in a narrow terminal its paragraphs anew; what is indented stays as it is."""
    if width >= WIDTH:
        yield from lines
        return
    for number, paragraph in enumerate("\n".join(lines).split("\n\n")):
        yield from [""] if number else []
        free = not any(line.startswith((" ", "-")) for line in paragraph.splitlines())
        yield from textwrap.wrap(paragraph, width, break_on_hyphens=False) if free else paragraph.splitlines()


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(
        text, width, initial_indent="  ", subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )

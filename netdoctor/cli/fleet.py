"""``netdoctor fleet report``: many node reports become one."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from netdoctor.cli.errors import usage
from netdoctor.model import Severity

FORMATS: Final = ("text", "json", "html", "junit", "prometheus")
_BY_SUFFIX: Final = {".json": "json", ".xml": "junit", ".html": "html", ".htm": "html", ".txt": "text", ".prom": "prometheus"}


def run(
    paths: Sequence[str],
    expected: str | None = None,
    format: str | None = None,
    out: str | None = None,
    lists: str | None = None,
    fail_on: str | None = None,
    quiet: bool = False,
) -> int:
    """Read the reports in `paths` (files, directories), print the fleet's report, and return the exit code.

    `expected`: file with the names that must be there.  `format`: one of `FORMATS` (default: text on stdout, by suffix for a
    file).  `out`: file for the report, stdout then stays empty.  `lists`: directory for the files passing_nodes.txt and
    failing_nodes.txt.
    `fail_on`: lowest severity of a comparison that makes a node bad (default warning).

    0 every node is good; 2 bad usage; 3 a node is bad or missing, or nodes do not fit together; 4 something could not be told.
    """
    from netdoctor.fleet.read import expected_names, read
    from netdoctor.fleet.report import examine
    from netdoctor.report import terminal
    from netdoctor.report.extras import MissingExtraError

    chosen = format or (_BY_SUFFIX.get(os.path.splitext(out)[1].lower(), "text") if out else "text")
    if chosen not in FORMATS:
        return usage(f"--format: must be one of {', '.join(FORMATS)}, not {chosen!r}")
    try:
        severity = Severity(fail_on or "warning")
    except ValueError:
        return usage(f"--fail-on: must be info, warning or critical, not {fail_on!r}")
    if not paths:
        return usage("no report given: name files or directories")
    try:
        names = expected_names(expected) if expected is not None else None
        reading = read(paths, None if quiet else _progress)
    except FileNotFoundError as error:
        return usage(f"{error.filename or error}: no such file or directory")
    except (OSError, ValueError) as error:
        return usage(str(error))
    if names == []:
        return usage(f"--expected {expected}: there is no name in it")
    fleet = examine(reading, names, severity)
    try:
        text = render(fleet, chosen, colour=out is None and terminal.colour(sys.stdout, os.environ))
    except MissingExtraError as error:
        return usage(str(error))
    failed = _deliver(text, out)
    if lists is not None:
        failed |= _lists(fleet, lists)
    return fleet.exit_code or failed


def render(fleet: object, format: str, colour: bool = False) -> str:
    """The fleet's report in one format."""
    import importlib

    module = importlib.import_module({"json": "netdoctor.fleet.jsondoc"}.get(format, f"netdoctor.fleet.{format}"))
    function: Callable[..., str] = module.render
    return function(fleet, colour=colour) if format == "text" else function(fleet)


def _progress(files: int) -> None:
    print(f"netdoctor: {files:,} files read", file=sys.stderr)


def _deliver(text: str, out: str | None) -> int:
    """0, or 1 where the report could not be written (said on stderr)."""
    from netdoctor.process import files as output

    try:
        if out is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            output.write(out, text)
    except BrokenPipeError:
        raise
    except (OSError, output.OutputError) as error:
        print(f"netdoctor: the report could not be written: {error}", file=sys.stderr)
        return 1
    return 0


def _lists(fleet: object, folder: str) -> int:
    from netdoctor.fleet.lists import lists
    from netdoctor.fleet.nodes import count, shown
    from netdoctor.fleet.report import Fleet

    assert isinstance(fleet, Fleet)
    files, left_out = lists(fleet)
    failed = 0
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        print(f"netdoctor: --lists {folder}: {error.strerror}", file=sys.stderr)
        return 1
    for name, text in files.items():
        failed |= _deliver(text, os.path.join(folder, name))
    if left_out:
        words = shown([repr(name) for name in left_out], 4)
        print(f"netdoctor: {count(len(left_out), 'name')} not listed, no host name or not expected: {words}", file=sys.stderr)
    return failed

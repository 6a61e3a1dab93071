"""The one way out: a report printed, written where asked, and its exit code; or why nothing was looked at."""

from __future__ import annotations

import functools
import json
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TextIO

from netdoctor.cli.setup import UsageError, named
from netdoctor.credentials import GONE
from netdoctor.model import Command, Report, Status
from netdoctor.process import far
from netdoctor.report import formats
from netdoctor.textsafe import clean, nearest

if TYPE_CHECKING:
    from netdoctor.cli.options import Options

USAGE: Final = 2
WRITING: Final = 20.0  # seconds for a file of ours: a server that is only slow writes some megabytes in that
BROKEN: Final = 1  # a report that could not be written
_foretold: Final[set[str]] = set()  # what was said before a look is not said again after it


def check(options: Options, command: Command = Command.PREFLIGHT) -> None:
    """Refuse before anything is looked at what would be refused at the end.  Raises UsageError."""
    from netdoctor import policy

    named(output=options.output, termination_log=options.termination_log)
    if options.output and options.termination_log and _one_file(options.output, options.termination_log):
        both = f"{options.said('output')} and {options.said('termination_log')}"
        raise UsageError(f"{both}: {options.output}: the second would take the place of the first")
    if options.exit_style is not None and options.exit_style not in ("", *policy.EXIT_STYLES):
        styles, hint = ", ".join(policy.EXIT_STYLES), nearest(options.exit_style, policy.EXIT_STYLES)
        raise UsageError(f"{options.said('exit_style')}: must be one of {styles}, not {options.exit_style!r}{hint}")
    known = formats.names(metrics=command in (Command.PREFLIGHT, Command.FLEET))
    for form in filter(None, (options.format, options.form)):  # also where --brief is printed
        if form not in known:
            raise UsageError(f"{options.said('format')}: must be one of {', '.join(known)}, not {form!r}{nearest(form, known)}")
    if options.brief and options.format not in (None, "brief"):
        raise UsageError(
            f"{options.said('brief')} and {options.said('format')} {options.format}: one report is printed; give one of the two"
        )
    for name in _wanted(options):
        if name not in known:
            suffixes = ", ".join(suffix for one in known for suffix in formats.FORMATS[one].suffixes)
            where = f"{options.said('output')}: {options.output}"
            raise UsageError(f"{where}: this command writes no {name}; it writes {suffixes}")
        if reason := formats.lacking(name):
            raise UsageError(reason)


def _one_file(first: str, second: str) -> bool:
    """Whether two names are of one file, as far as they can be followed."""
    try:
        return far.call(_same, first, second, path=_place(first)) if "-" not in (first, second) else False
    except OSError:
        return False


def _same(first: str, second: str) -> bool:
    """Links followed; what is no regular file (a terminal, /dev/null) takes both."""
    place = os.path.realpath(first)
    return place == os.path.realpath(second) and (os.path.isfile(place) or not os.path.lexists(place))


def foretell(*paths: str | None) -> int:
    """Say before a look, which may take minutes, what can be told now of files that could not be written after it; 0, or
    `BROKEN`.  To be asked as the user who writes them."""
    from netdoctor.process import files as output

    code = 0
    for path in filter(None, paths):
        try:
            why = far.call(output.obstacle, path, path=_place(path))
        except far.HungError as error:
            why = f"{path}: cannot be written: {error.strerror}"
        if why:
            print(f"netdoctor: {clean(why)}", file=sys.stderr, flush=True)
            _foretold.add(why)
            code = BROKEN
    return code


def _wanted(options: Options) -> tuple[str, ...]:
    """The formats that a run would write."""
    printed = options.form or "text"
    return (printed,) if options.output is None else (printed, formats.of_file(options.output, options.form))


def refuse(error: object, options: Options) -> int:
    """Say why nothing was looked at: exit 2.  Whoever collects JUnit files gets one that failed, not none."""
    from netdoctor import policy

    print(f"netdoctor: {clean(str(error))}", file=sys.stderr)
    if "junit" not in _wanted(options):
        return policy.styled(USAGE, options.exit_style)
    if reason := formats.lacking("junit"):
        if reason != str(error):
            print(f"netdoctor: {reason}", file=sys.stderr)
        return policy.styled(USAGE, options.exit_style)
    from netdoctor.report import junit

    text = junit.setup_failed(str(error))
    if options.output is not None:
        write(options.output, text)
    if options.form == "junit":
        _print(text + "\n", "junit", sys.stdout)
    return policy.styled(USAGE, options.exit_style)


def interrupted(report: Report, number: int | None) -> Report:
    """The report of what a signal ended, with the exit code that the process then has."""
    return report if number is None else replace(report, verdict=replace(report.verdict, exit_code=128 + number))


def deliver(report: Report, options: Options, to: TextIO | None = None) -> int:
    """Print the report (on stdout, or `to`), write it where asked, and return the exit code."""
    from netdoctor import policy
    from netdoctor.process import files
    from netdoctor.report import terminal

    stream, failed, printed = to or sys.stdout, 0, options.form or "text"
    if stream is sys.stdout and options.output is not None and files.descriptor(options.output) == 1:
        if options.form is not None:  # the file's format is this one
            options = replace(options, output=None)
        else:  # a program reads it there: the report for people goes to the other stream
            stream = sys.stderr
    if options.termination_log is not None:  # where it cannot be written a line on stderr says so; the verdict stays
        write(options.termination_log, without(formats.render(report, "termination"), options))
    if options.output is not None:
        name = formats.of_file(options.output, options.form)
        metrics = formats.FORMATS[name].metrics
        failed = write(options.output, without(_rendered(report, options, name), options), metrics=metrics)
    width, colour = terminal.width(stream, os.environ), terminal.colour(stream, os.environ)
    text = without(_rendered(report, options, printed, width=width, colour=colour), options)
    try:
        _print(text if text.endswith("\n") else text + "\n", printed, stream)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"netdoctor: the report could not be printed: {error.strerror}", file=sys.stderr)
        failed = BROKEN
    code = report.verdict.exit_code
    code = failed if failed and code in (policy.HEALTHY, policy.INCONCLUSIVE) else code  # unhealthy, interrupted: greater news
    if options.exit_style in (None, "", "default"):
        return code
    worst = [f.severity for f in report.findings(Status.FAIL) if f.blocking and f.severity]
    return policy.exit_code(code, options.exit_style, report.verdict, max(worst, key=lambda s: s.rank) if worst else None)


def _print(text: str, name: str, stream: TextIO) -> None:
    if formats.FORMATS[name].utf8:
        put(text, stream)
    else:
        stream.write(text)
        stream.flush()


def put(text: str, to: TextIO | None = None) -> None:
    """Print what a program or a file takes (JSON, YAML): UTF-8, whatever the locale."""
    stream = to or sys.stdout
    stream.flush()
    if (raw := getattr(stream, "buffer", None)) is not None:
        raw.write(text.encode("utf-8", "backslashreplace"))
    else:
        stream.write(text)
    stream.flush()


def _rendered(report: Report, options: Options, name: str, *, width: int | None = None, colour: bool = False) -> str:
    return formats.render(report, name, width=width, colour=colour, verbose=options.verbose)


def without(text: str, options: Options) -> str:
    """What was rendered, without the words of --redact, however the format escapes them (JSON, XML and HTML)."""
    if not options.redact:
        return text
    import html

    for word in sorted(filter(None, options.redact), key=len, reverse=True):
        for written in dict.fromkeys(
            (word, json.dumps(word)[1:-1], json.dumps(word, ensure_ascii=False)[1:-1], html.escape(word))
        ):
            text = GONE.join(part.replace(written, GONE) for part in text.split(GONE))
    return text


def _place(path: str) -> str:
    """Where a file of ours is, as far as its name tells; "" for a descriptor of this process."""
    try:
        return "" if path == "-" else os.path.abspath(path)
    except OSError:  # the working directory is gone
        return ""


def write(path: str, text: str, *, snapshot: bool = False, metrics: bool = False) -> int:
    """Write a file of ours; 0, or `BROKEN` with a line on stderr."""
    from netdoctor.process import files as output

    try:
        mode = output.SNAPSHOT_MODE if snapshot else output.METRICS_MODE if metrics else output.REPORT_MODE
        written = functools.partial(output.write, path, text, mode=mode, exact=metrics)
        if output.descriptor(path) is None:
            far.call(written, path=_place(path), limit=WRITING, writes=True)
        else:  # of this process: a child has none of them
            written()
    except (output.OutputError, far.HungError) as error:
        why = str(getattr(error, "strerror", None) or error)
        if why not in _foretold:
            print(f"netdoctor: {clean(why)}", file=sys.stderr)
        return BROKEN
    return 0

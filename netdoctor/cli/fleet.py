"""``netdoctor fleet report``: many node reports become one."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.model import Command, Report, Unavailable, count

if TYPE_CHECKING:
    from netdoctor.facts.job import Expected
    from netdoctor.fleet.report import Fleet

PASSING: Final = "passing_nodes.txt"
FAILING: Final = "failing_nodes.txt"


def run(options: Options, paths: Sequence[str], expected: str | None = None, folder: str | None = None) -> int:
    """Read the reports in `paths` (files, directories), print the fleet's report, and return the exit code.

    `expected`: file with the names that must be there.  `folder`: where the lists of passing and failing nodes go.
    """
    from netdoctor.fleet.read import read
    from netdoctor.fleet.report import examine

    try:
        deliver.check(options, Command.FLEET)
        config = setup.configuration(options, Command.FLEET)
        deliver.foretell(options.output)
        names = _names(expected)
        if not paths:
            raise setup.UsageError("no report given: name files or directories")
        reading = read(paths, None if options.quiet else _progress, _expected(config))
    except (FileNotFoundError, NotADirectoryError) as error:
        return deliver.refuse(f"{error.filename or error}: no such file or directory", options)
    except PermissionError as error:
        return deliver.refuse(f"{error.filename or error}: {error.strerror}", options)
    except (OSError, ValueError) as error:
        return deliver.refuse(error, options)
    fleet = examine(reading, names, setup.decider(config, command=Command.FLEET), time.time())
    failed = _write(fleet, folder) if folder is not None else 0
    return deliver.deliver(report(fleet, config.profile), options) or failed


def _expected(config: Config) -> Expected | None:
    """What the site expects of every node; None: nothing of what a report shows."""
    from netdoctor.expectation.site import KEYS
    from netdoctor.facts.job import expected_of

    said = config.as_answer()["expected"]
    found = expected_of({key: said[key] for key in (*KEYS, "gpus", "hcas", "hca_rate_gbps") if key in said})
    return None if isinstance(found, Unavailable) or found == type(found)() else found


def report(fleet: Fleet, profile: str = "default") -> Report:
    """The one report of many nodes."""
    from netdoctor import __version__
    from netdoctor.report.fleet_section import FleetSection

    section = FleetSection(fleet)
    return Report(__version__, {}, {}, profile, fleet.checks, fleet.verdict, command=Command.FLEET, section=section)


def _names(path: str | None) -> list[str] | None:
    from netdoctor.fleet.read import expected_names

    try:
        names = expected_names(path) if path is not None else None
    except OSError as error:
        raise setup.UsageError(f"--expected {path}: {error.strerror or error}") from None
    if names == []:
        raise setup.UsageError(f"--expected {path}: there is no name in it")
    return names


def _progress(files: int) -> None:
    print(f"netdoctor: {count(files, 'file')} read", file=sys.stderr)


def lists(fleet: Fleet) -> tuple[dict[str, str], list[str]]:
    """({file name: content}, names left out because of what they are): names that a scheduler or a script may take as they are.

    A name is listed only if it is harmless (letters, digits, dot, underscore, hyphen; no leading hyphen) and, where a list of
    expected nodes was given, on that list.  Nodes of which nothing could be told are on neither list.
    """
    from netdoctor.fleet.nodes import NodeState, safe_name

    states: dict[str, set[str]] = {}
    left_out = []
    for node in fleet.nodes:
        name = node.name
        if node.run is not None and not safe_name(name):
            name = node.run.host  # pods of one node, and machines that share a name, are one line
        if safe_name(name) and node.expected is not False:
            states.setdefault(name, set()).add(node.state)
        elif node.state != NodeState.UNKNOWN:
            left_out.append(node.name)
    passing = "".join(f"{name}\n" for name, have in states.items() if have == {NodeState.GOOD})
    failing = "".join(
        f"{name}\n" for name, have in states.items() if have & {NodeState.BAD, NodeState.FLAKY, NodeState.MISSING}
    )
    return {PASSING: passing, FAILING: failing}, left_out


def _write(fleet: Fleet, folder: str) -> int:
    """0, or `deliver.BROKEN` with a line on stderr."""
    from netdoctor.model import count
    from netdoctor.textsafe import listed

    files, left_out = lists(fleet)
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        print(f"netdoctor: --lists {folder}: {error.strerror}", file=sys.stderr)
        return deliver.BROKEN
    failed = [deliver.write(os.path.join(folder, name), text) for name, text in files.items()]
    if left_out:
        words = listed([repr(name) for name in left_out], 4)
        print(f"netdoctor: {count(len(left_out), 'name')} not listed, no host name or not expected: {words}", file=sys.stderr)
    return max(failed)

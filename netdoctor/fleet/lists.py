"""``passing_nodes.txt`` and ``failing_nodes.txt``: names that a scheduler or a script may take as they are.

A name is listed only if it is harmless (letters, digits, dot, underscore, hyphen; no leading hyphen) and, where a list of
expected nodes was given, on that list.  Nodes of which nothing could be told are on neither list.
"""

from __future__ import annotations

from typing import Final

from netdoctor.fleet.nodes import BAD, FLAKY, GOOD, MISSING, UNKNOWN, safe_name
from netdoctor.fleet.report import Fleet

PASSING: Final = "passing_nodes.txt"
FAILING: Final = "failing_nodes.txt"


def lists(fleet: Fleet) -> tuple[dict[str, str], list[str]]:
    """({file name: content}, names left out because of what they are)."""
    states: dict[str, set[str]] = {}
    left_out = []
    for node in fleet.nodes:
        name = node.name
        if node.run is not None and not safe_name(name):
            name = node.run.host  # pods of one node, and machines that share a name, are one line
        if safe_name(name) and node.expected is not False:
            states.setdefault(name, set()).add(node.state)
        elif node.state != UNKNOWN:
            left_out.append(node.name)
    passing = [name for name, have in states.items() if have == {GOOD}]
    failing = [name for name, have in states.items() if have & {BAD, FLAKY, MISSING}]
    return {PASSING: _lines(passing), FAILING: _lines(failing)}, left_out


def _lines(names: list[str]) -> str:
    return "".join(f"{name}\n" for name in names)

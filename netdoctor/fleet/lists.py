"""``passing_nodes.txt`` and ``failing_nodes.txt``: names that a scheduler or a script may take as they are.

A name is listed only if it is harmless (letters, digits, dot, underscore, hyphen; no leading hyphen) and, where a list of
expected nodes was given, on that list.  Nodes of which nothing could be told are on neither list.
"""

from __future__ import annotations

from typing import Final

from netdoctor.fleet.nodes import BAD, FLAKY, GOOD, MISSING, safe_name
from netdoctor.fleet.report import Fleet

PASSING: Final = "passing_nodes.txt"
FAILING: Final = "failing_nodes.txt"


def lists(fleet: Fleet) -> tuple[dict[str, str], list[str]]:
    """({file name: content}, names left out because of what they are)."""
    chosen: dict[str, list[str]] = {PASSING: [], FAILING: []}
    left_out = []
    for node in fleet.nodes:
        file = PASSING if node.state == GOOD else FAILING if node.state in (BAD, FLAKY, MISSING) else None
        if file is None:
            continue
        if safe_name(node.name) and node.expected is not False:
            chosen[file].append(node.name)
        else:
            left_out.append(node.name)
    return {file: "".join(f"{name}\n" for name in names) for file, names in chosen.items()}, left_out

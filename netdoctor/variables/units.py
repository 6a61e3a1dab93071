"""systemd units and Podman's quadlets: Environment=, files of variables, and the commands that they start (systemd.exec(5))."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.facts.environ import Origin
from netdoctor.variables.assignments import MENTIONS, Assignment, Problem, Unread, WritingRule, meant
from netdoctor.variables.shell import parse_shell

SUFFIXES: Final = (".service", ".socket", ".container", ".pod", ".kube", ".build")
SECTION: Final = re.compile(r"(?:\s|[#;].*\n)*\[(?:Unit|Service|Container|Pod|Kube|Build|Install|Manager|Socket)\]")
_LISTS: Final = ("Environment", "DefaultEnvironment", "ManagerEnvironment")


def parse_unit(path: str, text: str, offset: int = 0) -> tuple[list[Assignment], list[Unread]]:
    """The assignments of a unit.  ``$`` means nothing in Environment=, ``%`` a specifier; an empty one forgets those before."""
    listed: list[Assignment] = []
    commands: list[Assignment] = []
    unread: list[Unread] = []
    for line, key, value in _entries(text):
        at = Origin(path, line + offset)
        try:
            words = shlex.split(value) if not key.startswith("Exec") else []
        except ValueError:
            unread.append(Unread(at, "a quote that does not end: what it sets is not known"))
            continue
        if key in _LISTS:
            pairs = [word.partition("=") for word in words]
            given = (_literal(Assignment(name, v if eq else None, at)) for n, eq, v in pairs if (name := meant(n)))
            listed = [*listed, *given] if words else []
        elif key == "UnsetEnvironment":
            listed = [one for one in listed if not {one.name, f"{one.name}={one.value}"} & set(words)]
        elif key == "PassEnvironment":
            listed += [
                Assignment(name, None, at, why="passed on from the service manager") for w in words if (name := meant(w))
            ]
        elif key == "EnvironmentFile" and value:
            unread.append(Unread(at, f"reads {value}: what that sets is not known here"))
        elif key.startswith("Exec") or key in ("PodmanArgs", "GlobalArgs"):
            found, lost = parse_shell(path, value.lstrip("@-:+!|"), at.line - 1)
            commands += found
            unread += lost
        elif MENTIONS.search(f"{key}={value}") and key not in ("Description", "Documentation"):
            unread.append(Unread(at, f"{key}= sets nothing that netdoctor knows, and names such variables: not read"))
    return [_specified(one) for one in (*listed, *commands)], unread


def _literal(one: Assignment) -> Assignment:
    if one.value is None:
        return replace(one, problem=Problem(WritingRule.UNIT_LITERAL, "no = right behind the name: systemd ignores it"))
    if "$" in one.value:
        text = f"systemd does not expand $ in Environment=: the value is {one.value!r}"
        return replace(one, problem=Problem(WritingRule.UNIT_LITERAL, text))
    return one


def _specified(one: Assignment) -> Assignment:
    if one.value is None or "%" not in one.value:
        return one
    if "%" in one.value.replace("%%", ""):
        return replace(one, value=None, why=f"{one.value!r} has a specifier, which systemd expands")
    return replace(one, value=one.value.replace("%%", "%"))


def _entries(text: str) -> Iterator[tuple[int, str, str]]:
    """``(line, key, value)``, by systemd.syntax(7): a line that ends in a backslash goes on in the next that is no comment."""
    begun, first = "", 0
    for number, line in enumerate((*text.split("\n"), ""), 1):
        if line.lstrip().startswith(("#", ";")):
            continue
        first, begun = (first if begun else number), begun + line.strip()
        if begun.endswith("\\"):
            begun = begun[:-1] + " "
            continue
        key, equals, value = begun.partition("=")
        begun = ""
        if equals:
            yield first, key.strip(), value.strip()

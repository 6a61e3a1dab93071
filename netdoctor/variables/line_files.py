"""Files of lines NAME=VALUE: .env files and nccl.conf."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.facts.environ import Origin, entries, without_value
from netdoctor.variables.assignments import MENTIONS, Assignment, Problem, Unread, WritingRule, exported_name

MARK: Final = "\ufeff"  # a byte order mark
_LINE: Final = re.compile(rf"({MARK}?)\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)")
_QUOTED: Final = re.compile(r"""\s*(["'])(.*)\1\s*(?:#.*)?""")
_QUOTES: Final = Problem(
    WritingRule.ENV_QUOTES, "docker run --env-file keeps the quotes as part of the value; compose and systemd take them off"
)
# docker/cli opts/file.go and compose-go's dotenv take it off.
_MARKED: Final = Problem(
    WritingRule.BYTE_ORDER_MARK, "docker and compose take off the byte order mark before it; others make it part of the name"
)
_NO_VALUE: Final = Problem(WritingRule.CONF_LINE, "no = in its line: NCCL passes over it")


def parse_conf(path: str, text: str, offset: int = 0) -> list[Assignment]:
    """nccl.conf as NCCL reads it; names are kept as they stand, blanks included.  `offset` is added to line numbers."""
    found = [Assignment(one.name, one.value, Origin(path, one.source.line + offset)) for one in entries(text)]
    found += [Assignment(line, None, Origin(path, n + offset), problem=_NO_VALUE) for line, n in without_value(text)]
    return [one for one in found if MENTIONS.search(one.name)]


def parse_env(path: str, text: str, offset: int = 0) -> list[Assignment]:
    """A .env file (docker --env-file, docker compose, systemd's EnvironmentFile)."""
    assignments: list[Assignment] = []
    for number, line in enumerate(text.split("\n"), 1 + offset):
        match = _LINE.match(line.rstrip("\r"))
        if not match or not (name := exported_name(match[2])):
            continue
        quoted = _QUOTED.fullmatch(match[3])
        value = quoted[2] if quoted else re.sub(r"\s+#.*", "", match[3]).strip()
        problem = _QUOTES if quoted else _MARKED if match[1] else None
        expanded = "$" in value and not (quoted and quoted[1] == "'")
        why = f"{match[3].strip()!r} is expanded when the file is used" if expanded else ""
        assignments.append(Assignment(name, None if expanded else value, Origin(path, number), why=why, problem=problem))
    return assignments


def unread_lines(path: str, text: str) -> list[Unread]:
    """Lines of a .env file that name such variables, and are neither NAME=VALUE nor comments."""
    why = "no NAME=VALUE of a .env file, and it names such variables: what it sets is not known"
    return [
        Unread(Origin(path, number), why)
        for number, line in enumerate(text.split("\n"), 1)
        if MENTIONS.search(line) and not line.lstrip().startswith("#") and not _LINE.match(line)
    ]

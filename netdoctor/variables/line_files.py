"""Files of lines NAME=VALUE: .env files and nccl.conf."""

from __future__ import annotations

import re
from dataclasses import replace

from netdoctor.facts.environ import entries
from netdoctor.variables.assignments import MENTIONS, Assignment, Problem, Unread, WritingRule, wanted


def parse_conf(path: str, text: str) -> list[Assignment]:
    """nccl.conf as NCCL reads it; names are kept as they stand, blanks included."""
    return [Assignment(name, value, f"{path}:{line}") for name, value, line in entries(text) if MENTIONS.search(name)]


def parse_env(path: str, text: str) -> tuple[list[Assignment], list[Unread]]:
    """A .env file (docker --env-file, docker compose, systemd's EnvironmentFile)."""
    assignments: list[Assignment] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", line.rstrip("\r"))
        if not match or not wanted(match.group(1)):
            continue
        name, value = match.group(1), match.group(2)
        assignment = Assignment(name, value, f"{path}:{number}")
        quoted = re.fullmatch(r"""\s*(["'])(.*)\1\s*(?:#.*)?""", value)
        if quoted:
            text = "docker run --env-file keeps the quotes as part of the value; compose and systemd take them off"
            problem = Problem(WritingRule.ENV_QUOTES, text)
            assignment = replace(assignment, value=quoted.group(2), problem=problem)
        else:
            assignment = replace(assignment, value=re.sub(r"\s+#.*", "", value).strip())
        if "$" in (assignment.value or "") and not (quoted and quoted.group(1) == "'"):
            assignment = replace(assignment, value=None, why=f"{value.strip()!r} is expanded when the file is used")
        assignments.append(assignment)
    return assignments, []

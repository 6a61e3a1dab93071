"""Reads Dockerfiles: the ENV that the final image has, and what its CMD and ENTRYPOINT hand on (docs.docker.com, reference).

Only the last stage is the image, with the stages that it builds on.  ARG, RUN and HEALTHCHECK set nothing for the container.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from netdoctor.facts.environ import Origin
from netdoctor.variables.assignments import MENTIONS, Assignment, Unread, exported_name
from netdoctor.variables.shell import parse_shell
from netdoctor.variables.shell_tokens import Tokenizer, Word

DOCKERFILE: Final = re.compile(r"(?:[ \t]*(?:#.*)?\n|[ \t]*ARG[ \t].*\n)*[ \t]*FROM[ \t]+[\w$]", re.IGNORECASE)
_ESCAPE: Final = re.compile(r"(?:#[ \t]*\w+[ \t]*=.*\n)*#[ \t]*escape[ \t]*=[ \t]*`", re.IGNORECASE)
_HERE: Final = re.compile(r"<<-?[\"']?(\w+)")
_WRITES: Final = re.compile(r">|\btee\b|\bsed\b")  # what a RUN leaves in the image


@dataclass
class _Stage:
    parent: str  # its image, which may be a stage
    variables: dict[str, Assignment] = field(default_factory=dict)
    commands: dict[str, tuple[str, int]] = field(default_factory=dict)  # the last CMD and ENTRYPOINT, each with its line
    unread: list[Unread] = field(default_factory=list)


def parse_dockerfile(path: str, text: str) -> tuple[list[Assignment], list[Unread]]:
    """What the last stage gives to its container."""
    stages: list[_Stage] = []
    names: dict[str, _Stage] = {}
    for line, instruction, rest in _instructions(text):
        if instruction == "FROM":
            words = [word for word in rest.split() if not word.startswith("--")]
            stage = _Stage(words[0] if words else "")
            parent = names.get(stage.parent.lower())
            if parent:
                stage = _Stage(stage.parent, dict(parent.variables), dict(parent.commands), list(parent.unread))
            stages.append(stage)
            names[str(len(stages) - 1)] = stage
            if len(words) == 3:
                names[words[2].lower()] = stage
        elif stages:
            _instruct(stages[-1], path, line, instruction, rest)
    if not stages:
        return [], []
    last = stages[-1]
    found, unread = list(last.variables.values()), list(last.unread)
    for command, line in last.commands.values():
        assigned, lost = parse_shell(path, command, line - 1)
        found += assigned
        unread += lost
    return found, unread


def _instruct(stage: _Stage, path: str, line: int, instruction: str, rest: str) -> None:
    at = Origin(path, line)
    if instruction == "ENV":
        for word in _pairs(rest, line):
            name, _, value = word.text.partition("=")
            if known := exported_name(name):
                source = Origin(path, word.line)
                stage.variables[name] = Assignment(known, None if word.opaque else value, source, "ENV", word.opaque)
            elif word.opaque and "$" in name:
                stage.unread.append(Unread(at, f"ENV {word.text[:60]!r}: what that sets is only known when it is built"))
    elif instruction in ("CMD", "ENTRYPOINT"):
        stage.commands[instruction] = _command(rest), line
    elif instruction == "RUN" and MENTIONS.search(rest) and _WRITES.search(rest):
        stage.unread.append(Unread(at, "RUN names such variables and writes: what it leaves in the image is not known"))
    elif instruction in ("COPY", "ADD") and re.search(r"nccl\S*\.conf|profile\.d|/etc/environment", rest):
        stage.unread.append(Unread(at, f"{instruction} {rest.strip()[:60]}: what that sets is not known here"))


def _pairs(rest: str, line: int) -> Iterator[Word]:
    """``NAME=VALUE …``, or ``NAME VALUE`` up to the end of the line."""
    words = [replace(token, line=token.line + line - 1) for token in Tokenizer(rest) if isinstance(token, Word)]
    if not words or "=" in words[0].text:
        yield from words
    elif len(words) > 1:
        name, _, value = rest.strip().partition(" ")
        yield replace(words[1], text=f"{name}={value.strip()}", opaque=next((w.opaque for w in words if w.opaque), ""))


def _command(rest: str) -> str:
    """A command of the shell for what may be a list of words in JSON."""
    try:
        words = json.loads(rest)
    except (ValueError, RecursionError):
        return rest
    if not isinstance(words, list):
        return rest
    return " ".join("'" + str(word).replace("'", "'\\''") + "'" for word in words)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """``(line, INSTRUCTION, rest)``.  Comments and empty lines do not end one that goes on; lines keep their number."""
    escape = "`" if _ESCAPE.match(text) else "\\"
    lines = text.replace("\r\n", "\n").split("\n")
    i = 0
    while i < len(lines):
        first = i
        parts: list[str] = []
        while i < len(lines):
            line = lines[i].rstrip()
            i += 1
            if line.lstrip().startswith("#") or (parts and not line):
                parts += ["\\\n"] if parts else []
                first += not parts
                continue
            goes_on = line.endswith(escape)
            parts.append(line[:-1] + "\\\n" if goes_on else line)
            if not goes_on:
                break
        whole = "".join(parts).strip()
        for mark in _HERE.findall(whole) if re.match(r"(?:RUN|COPY|ADD)\b", whole, re.IGNORECASE) else ():
            while i < len(lines) and lines[i].lstrip("\t") != mark:
                whole += "\n" + lines[i]
                i += 1
            i += 1
        instruction, _, rest = whole.partition(" ")
        if instruction:
            yield first + 1, instruction.upper(), rest

"""Finds variables in files without running them: job scripts, .env files, nccl.conf, Kubernetes and Ansible YAML.

Nothing is sourced and nothing is expanded: a value with ``$`` in it, a sourced file, a here-document or an unknown YAML tag is
said to be unknown, with its line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

MAX_TEXT: Final = 4 << 20
# Names that netdoctor judges (catalogue.PREFIXES), anywhere in a text.
WANTED: Final = re.compile(
    r"(?:NCCL|TORCH_NCCL|TORCH_FR|TORCH_GLOO|TORCH_DISTRIBUTED|GLOO|UCX|FI|OFI_NCCL|RCCL)_[A-Za-z0-9_]+\Z"
)
MENTIONS: Final = re.compile(r"\b(?:NCCL|TORCH_FR|TORCH_GLOO|TORCH_DISTRIBUTED|GLOO|UCX|FI|RCCL)_[A-Z0-9_]")


_OTHERS: Final = (".py", ".ipynb", ".toml", ".ini", ".cfg", ".rs", ".go", ".c", ".cc", ".cpp", ".lua", ".tf", ".hcl", ".md")


class WritingRule(str, Enum):
    """A way of writing by which a value does not arrive as it stands there; the values are the names in reports."""

    YAML_TYPE = "yaml-type"
    NOT_EXPORTED = "not-exported"
    EXPORT_COMMA = "export-comma"
    ENV_QUOTES = "env-quotes"  # depends on who reads the file


@dataclass(frozen=True)
class Problem:
    """A rule that is broken, and what that means here, for people."""

    rule: WritingRule
    text: str


@dataclass(frozen=True)
class Found:
    """One assignment."""

    name: str
    value: str | None  # None: it cannot be told without running the file
    source: str  # "PATH:LINE"
    scope: str = ""  # two assignments repeat each other only in one scope
    why: str = ""  # why the value is not known
    problem: Problem | None = None  # what is wrong with the way it is written


@dataclass(frozen=True)
class Unread:
    """A line that may set variables which cannot be seen."""

    source: str
    why: str


@dataclass(frozen=True)
class Parsed:
    """What a file sets, as far as it can be told."""

    path: str
    kind: str  # "shell" "env" "conf" "yaml" "other"
    found: tuple[Found, ...]
    unread: tuple[Unread, ...]


def wanted(name: str) -> bool:
    return WANTED.match(name) is not None


def parse(path: str, text: str, kind: str | None = None) -> Parsed:
    """The assignments of `text`; `kind` by its name and first lines where it is not given.  Never raises."""
    text = text[:MAX_TEXT]
    kind = kind or kind_of(path, text)
    if kind == "yaml":
        from netdoctor.variables.manifests import parse_yaml

        found, unread = parse_yaml(path, text)
    elif kind == "conf":
        found, unread = parse_conf(path, text), []
    elif kind == "env":
        found, unread = parse_env(path, text)
    elif kind == "other":
        line = next((i for i, one in enumerate(text.split("\n"), 1) if MENTIONS.search(one)), None)
        found, unread = [], [Unread(f"{path}:{line}", "a kind of file that netdoctor does not read")] if line else []
    else:
        from netdoctor.variables.shell import parse_shell

        found, unread = parse_shell(path, text)
    return Parsed(path, kind, tuple(found), tuple(unread))


def kind_of(path: str, text: str) -> str:
    """shell, env, conf, yaml, or other where it is none of them."""
    name = path.rpartition("/")[2].lower()
    if name.endswith((".yaml", ".yml", ".json")):  # JSON is YAML
        return "yaml"
    if name.endswith(_OTHERS):
        return "other"
    if name.endswith(".conf"):
        return "conf"
    if name.endswith((".sh", ".bash", ".sbatch", ".slurm", ".ksh", ".zsh", ".pbs", ".lsf")) or text.startswith("#!"):
        return "shell"
    if name.endswith(".env") or name.startswith(".env"):
        return "env"
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if (
        lines
        and all(re.match(r"\s*(?:export\s+)?\w+=", line) for line in lines)
        and not any("export " in line for line in lines)
    ):
        return "env"
    if re.search(r"^(apiVersion|kind|services|- hosts|- name):", text, re.MULTILINE):
        return "yaml"
    return "shell"


def parse_conf(path: str, text: str) -> list[Found]:
    """nccl.conf as NCCL reads it; names are kept as they stand, blanks included."""
    from netdoctor.facts.environ import entries

    return [Found(name, value, f"{path}:{line}") for name, value, line in entries(text) if MENTIONS.search(name)]


def parse_env(path: str, text: str) -> tuple[list[Found], list[Unread]]:
    """A .env file (docker --env-file, docker compose, systemd's EnvironmentFile)."""
    found: list[Found] = []
    for number, line in enumerate(text.split("\n"), 1):
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_]\w*)=(.*)", line.rstrip("\r"))
        if not match or not wanted(match.group(1)):
            continue
        name, value = match.group(1), match.group(2)
        one = Found(name, value, f"{path}:{number}")
        quoted = re.fullmatch(r"""\s*(["'])(.*)\1\s*(?:#.*)?""", value)
        if quoted:
            text = "docker run --env-file keeps the quotes as part of the value; compose and systemd take them off"
            problem = Problem(WritingRule.ENV_QUOTES, text)
            one = replace(one, value=quoted.group(2), problem=problem)
        else:
            one = replace(one, value=re.sub(r"\s+#.*", "", value).strip())
        if "$" in (one.value or "") and not (quoted and quoted.group(1) == "'"):
            one = replace(one, value=None, why=f"{value.strip()!r} is expanded when the file is used")
        found.append(one)
    return found, []


def repeated(found: Sequence[Found]) -> list[tuple[Found, Found]]:
    """Pairs of assignments of one scope that give one name two values."""
    pairs = []
    last: dict[tuple[str, str], Found] = {}
    for one in found:
        key = one.name, one.scope
        before = last.get(key)
        if before and before.value != one.value and before.value is not None and one.value is not None:
            pairs.append((before, one))
        last[key] = one
    return pairs

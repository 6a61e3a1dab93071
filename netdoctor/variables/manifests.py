"""Reads YAML for variables: Kubernetes (env lists, ConfigMap data, commands), Ansible and compose (environment), any depth.

The node graph is read, nothing is constructed: tags that are not known (``!vault``, ``!Ref``) are opaque, and aliases are
bounded by the number of nodes that are visited.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts.environ import Origin
from netdoctor.model import record
from netdoctor.variables.assignments import MENTIONS, Assignment, Problem, Unread, WritingRule, exported_name, meant
from netdoctor.variables.launchers import launches
from netdoctor.variables.line_files import parse_conf, parse_env
from netdoctor.variables.shell import parse_shell
from netdoctor.variables.units import SECTION, parse_unit

MAX_YAML: Final = 1 << 20  # the pure parser takes seconds a megabyte
MAX_NODES: Final = 200_000
_PLAIN = "tag:yaml.org,2002:"
_PROSE = frozenset({"name", "description", "title", "msg", "message", "comment", "help", "summary"})
_ENV_KEYS = frozenset({"env", "environment", "extraEnv", "extraEnvVars", "envVars", "environment_variables", "data", "vars"})


class _Walk:
    def __init__(self, path: str) -> None:
        self.path = path
        self.assignments: list[Assignment] = []
        self.unread: list[Unread] = []
        self.budget = MAX_NODES
        self.active: set[int] = set()
        self.kubernetes = False
        self.nodes: int | None = None  # of the job, by its completions
        self.meeting: list[tuple[str, int]] = []  # values of MASTER_ADDR, with their lines

    def add(self, given: str, value: str | None, node: Any, scope: str, why: str = "", problem: Problem | None = None) -> None:
        name = meant(given) or given
        scope = scope if name == given else f"{scope} container"
        self.assignments.append(Assignment(name, value, Origin(self.path, node.start_mark.line + 1), scope, why, problem))

    def not_known(self, line: int, why: str) -> None:
        self.unread.append(Unread(Origin(self.path, line), why))


@record
class Manifest:
    assignments: list[Assignment]
    unread: list[Unread]
    nodes: int | None = None
    meeting: tuple[tuple[str, int], ...] = ()


def parse_yaml(path: str, text: str) -> Manifest:
    """What all documents of `text` set."""
    import yaml

    walk = _Walk(path)
    if len(text) > MAX_YAML:
        return Manifest([], [Unread(Origin(path, 1), f"larger than {MAX_YAML >> 20} MiB: not read")])
    try:
        for document in yaml.compose_all(text, Loader=yaml.SafeLoader):
            walk.kubernetes = "apiVersion:" in text
            if document is not None:
                _visit(document, "", walk)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        template = " (a template?)" if "{{" in text or "{%" in text else ""
        walk.not_known(line, f"not YAML as it stands{template}: what follows is not known")
    except (RecursionError, ValueError) as error:
        walk.not_known(1, f"not read: {type(error).__name__}")
    if walk.budget <= 0:
        walk.not_known(1, "too many nodes (aliases): the rest was not read")
    return Manifest(_last_of_lists(walk.assignments), walk.unread, walk.nodes, tuple(walk.meeting))


def _visit(node: Any, key: str, walk: _Walk) -> None:
    walk.budget -= 1
    if walk.budget <= 0 or id(node) in walk.active:
        return
    walk.active.add(id(node))
    try:
        if node.id == "mapping":
            _mapping(node, key, walk)
        elif node.id == "sequence":
            _sequence(node, key, walk)
        elif MENTIONS.search(node.value) and _is_text(node):
            _embedded(node, key, walk)
    finally:
        walk.active.discard(id(node))


def _mapping(node: Any, key: str, walk: _Walk) -> None:
    pairs = [(k.value if k.id == "scalar" else "", v) for k, v in node.value]
    fields = dict(pairs)
    name = fields.get("name")
    if walk.kubernetes and _text(fields.get("kind")) == "Job" and "spec" in fields:
        walk.nodes = _pods(fields["spec"]) or walk.nodes
    if _text(name) == "MASTER_ADDR" and "value" in fields:
        walk.meeting.append((_text(fields["value"]), fields["value"].start_mark.line + 1))
    if name is not None and name.id == "scalar" and exported_name(name.value) and ("value" in fields or "valueFrom" in fields):
        _env_entry(name, fields, walk, key)
        return
    for k, value in pairs:
        if k == "MASTER_ADDR" and value.id == "scalar":
            walk.meeting.append((value.value, value.start_mark.line + 1))
        if walk.kubernetes and k in ("initContainers", "ephemeralContainers", "containers"):
            value = _jobs(k, value)
            if value is None:
                continue
        if k == "<<":
            for merged in value.value if value.id == "sequence" else [value]:
                _visit(merged, key, walk)
        elif meant(k) and (key in _ENV_KEYS or value.id == "scalar"):
            _pair(k, value, walk, f"{key if key in _ENV_KEYS else 'map'} {node.start_mark.line}")
        else:
            _visit(value, k, walk)


def _text(node: Any) -> str:
    return str(node.value) if node is not None and node.id == "scalar" else ""


def _field(node: Any, key: str) -> Any:
    return next((v for k, v in node.value if k.id == "scalar" and k.value == key), None) if node.id == "mapping" else None


def _pods(spec: Any) -> int | None:
    """How many pods of a Job run at once (Kubernetes, batch/v1: parallelism is 1 where it is not set)."""
    counts = [_text(_field(spec, key)) for key in ("completions", "parallelism")]
    number = min((int(count) for count in counts if count.isdecimal()), default=1)
    return number if all(counts) and number > 1 else None


def _jobs(key: str, containers: Any) -> Any:
    """The containers that are the job's: those that launch ranks, if any of a pod is seen to.  None: they are not.

    Init containers have ended, or are sidecars, when the job runs.
    """
    if key != "containers":
        return None
    if containers.id != "sequence" or len(containers.value) < 2:
        return containers
    launching = [one for one in containers.value if launches(_words(one))]
    return _with(containers, launching or containers.value)


def _words(container: Any) -> list[str]:
    """Those of its command and arguments, and of the scripts in them."""
    fields = [_field(container, key) for key in ("command", "args")]
    listed = [word for one in fields if one is not None and one.id == "sequence" for word in one.value]
    return [part for word in listed if word.id == "scalar" for part in re.split(r"[\s;&|]+", word.value)]


def _with(node: Any, value: list[Any]) -> Any:
    from yaml import SequenceNode

    return SequenceNode(node.tag, value, node.start_mark, node.end_mark, node.flow_style)


def _last_of_lists(assignments: list[Assignment]) -> list[Assignment]:
    """Of an env list that names a variable twice, the last entry is in effect; that it is there twice is said beside it."""
    last = {(one.name, one.scope): i for i, one in enumerate(assignments)}
    return [
        replace(one, overridden=True) if last[one.name, one.scope] != i and not one.scope.startswith("line") else one
        for i, one in enumerate(assignments)
    ]


def _sequence(node: Any, key: str, walk: _Walk) -> None:
    """Lists of env entries share a scope; lists of strings may be ``A=1`` (compose) or an argv."""
    for item in node.value:
        if item.id == "scalar":
            match = re.match(r"([A-Za-z_]\w*)=(.*)\Z", item.value, re.DOTALL)
            if match and meant(match.group(1)):
                _add(match.group(1), match.group(2), item, walk, f"list {node.start_mark.line}")
                continue
        _visit(item, f"{key} {node.start_mark.line}" if item.id == "mapping" else key, walk)


def _env_entry(name: Any, fields: dict[str, Any], walk: _Walk, scope: str) -> None:
    if "valueFrom" in fields:
        walk.add(name.value, None, name, scope, "valueFrom: it comes from another object")
        return
    value = fields["value"]
    problem = None
    if walk.kubernetes and value.id == "scalar" and value.tag in (f"{_PLAIN}int", f"{_PLAIN}bool", f"{_PLAIN}float"):
        problem = Problem(WritingRule.YAML_TYPE, f"Kubernetes takes strings only and refuses {value.value}: quote it")
    _pair(name.value, value, walk, scope, problem)


def _pair(name: str, value: Any, walk: _Walk, scope: str, problem: Problem | None = None) -> None:
    if value.id != "scalar":
        walk.add(name, None, value, scope, "not a scalar")
    elif not value.tag.startswith(_PLAIN):
        walk.add(name, None, value, scope, f"tag {value.tag}: its value is not known here")
    elif value.tag == f"{_PLAIN}null" and not walk.kubernetes:
        walk.add(name, None, value, scope, "passed on from where the file is used")
    elif value.tag == f"{_PLAIN}bool" and not problem and not walk.kubernetes:
        true = value.value.lower() in ("true", "yes", "on", "y")
        _add(name, str(true), value, walk, scope)  # Ansible hands on Python's True and False
    else:
        text = "" if value.tag == f"{_PLAIN}null" else value.value
        _add(name, text, value, walk, scope, problem)


def _add(name: str, value: str, node: Any, walk: _Walk, scope: str, problem: Problem | None = None) -> None:
    if "{{" in value or "{%" in value or re.search(r"\$[({\w]", value):
        walk.add(name, None, node, scope, f"{value[:60]!r} is expanded later")
    else:
        walk.add(name, value, node, scope, problem=problem)


def _is_text(node: Any) -> bool:
    return str(node.tag).startswith(_PLAIN)


def _embedded(node: Any, key: str, walk: _Walk) -> None:
    """A script, .env file or nccl.conf inside a YAML value."""
    if key in _PROSE or not re.search(r"_[A-Z0-9_]+\s*=", node.value):
        return
    offset = node.start_mark.line + (1 if node.style in ("|", ">") else 0)
    if key.endswith((".conf", ".env")):
        found = (parse_conf if key.endswith(".conf") else parse_env)(walk.path, node.value, offset)
        walk.assignments += [replace(one, scope=f"{key} {offset}") for one in found]
        return
    parse = parse_unit if SECTION.match(node.value) else parse_shell
    assignments, unread = parse(walk.path, node.value, offset)
    walk.assignments += assignments
    walk.unread += unread

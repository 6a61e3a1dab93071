"""Faults as data: what is changed on a replayed machine, what must be found, and what else may change.

fixtures/faults/CHECK.yaml holds a list of::

    fault: one line
    machine: slug of fixtures/hosts
    runs: false                       # optional: judged without the all-reduces, before and after
    nodes: 1                          # optional: of the job, before and after; 2 where it is left out, null: nobody says
    change:
      - answer: "file:/proc/…"        # a question; * stands for anything
        at: [devices, "*", name]      # optional: a place inside its JSON; * is every entry
        set: VALUE | lost: KIND | remove: true | replace: [REGULAR EXPRESSION, TEXT]
      - run: Baseline | PathRun
        at: [run, state]
        set: …
    expect: {check: …, status: …, cause: …, subject: …}     # cause and subject are optional
    also: {CHECK: why it changes too}                        # optional

YAML, not TOML: Python 3.10 has no reader for TOML, and PyYAML is what the configuration is read with.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from netdoctor import engine
from netdoctor.model import Finding, plain
from netdoctor.snapshot.snapshot import Snapshot, loads
from tests.lab import fixtures
from tests.support.sources import table

FOLDER: Final = fixtures.ROOT / "fixtures" / "faults"
NO_RUN: Final = {"unavailable": "refused", "detail": "--no-allreduce"}


class FaultError(ValueError):
    """A fault that does not fit its machine."""


@dataclass(frozen=True)
class Fault:
    fault: str
    machine: str
    change: tuple[dict[str, Any], ...]
    expect: dict[str, str]
    runs: bool = True
    also: dict[str, str] = field(default_factory=dict)
    nodes: int | None = 2  # of the job, for what lies between nodes is a fault only where there are some; None: unsaid

    @property
    def name(self) -> str:
        return f"{self.fault} ({self.machine})"

    def before(self) -> Snapshot:
        return _healthy(self.machine, self.runs, self.nodes)

    def after(self) -> Snapshot:
        data = _plain(self.machine, self.runs, self.nodes)
        for one in self.change:
            _apply(data, one, self.fault)
        if any("run" in one for one in self.change):
            return loads(json.dumps(data))
        return replace(loads(json.dumps(data | {"runs": {}})), runs=self.before().runs)  # their logs are parsed once

    def met_by(self, finding: Finding) -> bool:
        have = {"status": finding.status.value, "cause": finding.cause, "subject": finding.subject}
        return all(have[name] == value for name, value in self.expect.items() if name != "check")


@functools.cache
def _text(slug: str) -> str:
    return (fixtures.HOSTS / slug / "snapshot.json").read_text(encoding="utf-8")


def _plain(slug: str, runs: bool, nodes: int | None) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_text(slug))  # a third of the time of a deep copy
    if nodes is not None:
        data["answers"]["config:"]["ok"]["job"] = {"nodes": nodes}
    return data if runs else data | {"runs": {name: dict(NO_RUN) for name in data["runs"]}}


@functools.cache
def _healthy(slug: str, runs: bool, nodes: int | None) -> Snapshot:
    return loads(json.dumps(_plain(slug, runs, nodes)))


@functools.cache
def every() -> tuple[Fault, ...]:
    """All faults, in the order of the files."""
    rows = [row for path in sorted(FOLDER.glob("*.yaml")) for row in table(path)]
    return tuple(Fault(**{**row, "change": tuple(row["change"])}) for row in rows)


GOLDEN: Final = FOLDER / "golden.json"
TOLD: Final = ("subject", "status", "severity", "cause", "message", "expected", "evidence", "how", "why", "notes", "fix")


def told(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """What findings say, without what was measured."""
    return [{name: plain(getattr(one, name)) for name in TOLD} for one in findings]


@functools.cache
def golden() -> dict[str, Any]:
    """What the check says about each of its faults, as it was reviewed."""
    data: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return data


def write_golden() -> None:
    data = {}
    for fault in every():
        spec = next(one for one in fixtures.specs() if one.id == fault.expect["check"])
        found = engine.judge(spec, fixtures.facts_of(fault.after()))
        if not any(fault.met_by(one) for one in found):
            raise FaultError(f"{fault.name} is not found: {[one.message for one in found]}")
        data[fault.name] = told(found)
    GOLDEN.write_text(fixtures.text_of(data), encoding="utf-8")


def _apply(data: dict[str, Any], change: dict[str, Any], fault: str) -> None:
    hits = list(_places(data, change))
    if not hits:
        raise FaultError(f"{fault}: nothing to change at {change}")
    for holder, key in hits:
        if change.get("remove"):
            del holder[key]
        elif "lost" in change:
            holder[key] = {"unavailable": change["lost"], "detail": "as the fault has it"}
        elif "replace" in change:
            pattern, text = change["replace"]
            new, count = re.subn(pattern, text, holder[key], flags=re.MULTILINE)
            if not count:
                raise FaultError(f"{fault}: {pattern!r} is not in {str(holder[key])[:80]!r}")
            holder[key] = new
        else:
            holder[key] = {"ok": change["set"]} if "answer" in change and not change.get("at") else change["set"]


def _places(data: dict[str, Any], change: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """(holder, key) of everything that the change names."""
    if "run" in change:
        yield from _inside(data["runs"][change["run"]], change["at"])
        return
    wanted = change["answer"]
    answers = data["answers"]
    names = [q for q in answers if q == wanted or fnmatchcase(q, wanted.replace("[", "[[]").replace("?", "[?]"))]
    if not names and "*" not in wanted:
        answers[wanted] = {"ok": None}  # a question that the probes ask only on the faulty machine
        names = [wanted]
    for name in names:
        if change.get("at") or "replace" in change:
            yield from _inside(answers[name], ["ok", *change.get("at", [])])
        else:
            yield answers, name


def _inside(holder: Any, path: list[Any]) -> Iterator[tuple[Any, Any]]:
    head, rest = path[0], path[1:]
    keys = (list(holder) if isinstance(holder, dict) else range(len(holder))) if head == "*" else [head]
    for key in reversed(list(keys)):  # from the end, for entries may be removed
        if rest:
            yield from _inside(holder[key], rest)
        else:
            yield holder, key

"""The variables of a shell script at a point of it, and which programs got which of the values that it assigned.

An assignment is known by its index in the script's list.  Branches add a value to those that a variable may have; outside of
them the last assignment replaces the others.  A subshell works on a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from netdoctor.model import record
from netdoctor.variables.assignments import Problem


@record
class Variable:
    exported: bool = False  # an attribute of the name: it outlives the value (bash(1), export)
    values: tuple[int, ...] = ()  # assignments of which one is the value
    asked: int = 0  # the line that exported it without a value; 0: none


class Fate(Enum):
    """What became of an assignment."""

    JUDGED = auto()
    GONE = auto()  # no program that may be the job got it
    BARE = auto()  # never exported
    LATE = auto()  # behind the last program


@dataclass
class Scope:
    variables: dict[str, Variable] = field(default_factory=dict)
    outer: list[dict[str, Variable]] = field(default_factory=list)  # of the shells around this subshell
    arrived: set[int] = field(default_factory=set)  # some program got it
    by_ranks: set[int] = field(default_factory=set)  # … one that may be the job's
    passed: set[int] = field(default_factory=set)  # the job was launched without it
    waiting: set[int] = field(default_factory=set)  # … or not, so far
    kept_back: dict[int, Problem] = field(default_factory=dict)  # a launcher did not hand it on
    unexported: set[int] = field(default_factory=set)  # export -n, on purpose
    bare: set[int] = field(default_factory=set)  # was a value when its shell ended, and not exported
    replaced: set[int] = field(default_factory=set)  # before any program started
    launched: bool = False

    def assign(self, name: str, index: int, exported: bool, branch: bool) -> tuple[int, ...]:
        """The new value; of those that it replaced, the ones that no program had got."""
        self.waiting.add(index)
        now = self.variables.get(name, Variable())
        kept = now.values if branch else ()
        lost = () if branch else self._unseen(now)
        self.replaced.update(lost)
        self.variables[name] = replace(now, exported=exported or now.exported, values=(*kept, index))
        return lost if now.exported else ()

    def export(self, name: str, on: bool, line: int, branch: bool) -> None:
        now = self.variables.get(name, Variable())
        if on:
            self.variables[name] = replace(now, exported=True, asked=now.asked or line)
            self.unexported -= set(now.values)
        elif not branch:
            self.variables[name] = replace(now, exported=False, asked=0)
            self.unexported |= set(now.values)

    def unset(self, name: str) -> None:
        if gone := self.variables.pop(name, None):
            self.replaced.update(self._unseen(gone))

    def _unseen(self, one: Variable) -> tuple[int, ...]:
        """Its values that no program got, nor can get from a shell around this one."""
        around = self._around()
        return tuple(i for i in one.values if i not in self.arrived and i not in self.kept_back and i not in around)

    def _around(self) -> set[int]:
        return {i for shell in self.outer for one in shell.values() for i in one.values}

    def enter(self) -> None:
        self.outer.append(dict(self.variables))

    def leave(self) -> None:
        self.end()
        self.variables = self.outer.pop()

    def end(self) -> None:
        """The end of a shell: what was never exported until here never will be."""
        for one in self.variables.values():
            if not one.exported:
                self.bare |= set(one.values) - self.arrived - self.unexported - self._around()

    def exported(self) -> list[tuple[str, Variable]]:
        return [(name, one) for name, one in self.variables.items() if one.exported]

    def start(self, ranks: bool, launch: bool, problem: Callable[[str], Problem | None]) -> None:
        """A program starts.  `ranks`: it may be the job; `launch`: it is, and whatever it does not get is not the job's."""
        has: set[int] = set()
        for name, one in self.exported():
            has |= set(one.values)
            if why := problem(name):
                self.kept_back.update((i, why) for i in one.values if i not in self.kept_back)
            else:
                self.arrived |= set(one.values)
                self.by_ranks |= set(one.values) if ranks else set()
        if launch:
            self.passed |= self.waiting - has
            self.waiting &= has

    def fate(self, index: int, ends_here: bool) -> Fate | Problem:
        """`ends_here`: nobody sources this script, so what no program got is lost."""
        if index in self.replaced:
            return Fate.GONE
        if index in self.arrived:
            return Fate.GONE if index in self.passed - self.by_ranks else Fate.JUDGED
        if index in self.kept_back:
            return self.kept_back[index]
        if index in self.unexported:
            return Fate.GONE
        if index in self.bare:
            return Fate.BARE
        if ends_here and self.launched:
            return Fate.GONE if index in self.passed else Fate.LATE
        return Fate.JUDGED

"""Reads shell job scripts: which variables they export or hand to a launcher.

A script is followed, not run, and nothing is expanded.  One rule holds for every statement: either what it sets is understood,
or it is named as one that may set anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from netdoctor.facts.environ import Origin
from netdoctor.variables.assignments import (
    ASSIGNMENT,
    ASSIGNS,
    MENTIONS,
    Assignment,
    Problem,
    Unread,
    WritingRule,
    exported_name,
    meant,
)
from netdoctor.variables.launchers import (
    QUIET,
    Handed,
    Script,
    keeps_back,
    launches,
    may_be_ranks,
    options,
    told_to_export,
    unfollowed,
)
from netdoctor.variables.setters import SETTERS, Target, allexport, defaults, loop
from netdoctor.variables.shell_commands import CLOSE, LEAD, OPEN, Command, body_end, commands
from netdoctor.variables.shell_scope import Fate, Scope
from netdoctor.variables.shell_tokens import HereDoc, Word
from netdoctor.variables.slips import blank_at_equals, cut_at_semicolon, not_a_name

_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*\Z")
_DECLARE: Final = frozenset({"export", "declare", "typeset", "readonly", "local", "setenv"})
_BRANCHES: Final = frozenset({"if", "while", "until", "case"})
_TEXTS: Final = (".txt", ".md", ".rst", ".log", ".html")  # files that no program takes for its environment
_RUNS: Final = frozenset({"source", ".", "eval"})
_MAX_DEPTH: Final = 4  # bash -c "bash -c …"
_MAX_SUBSHELLS: Final = 50  # one in another
_MAX_COMMANDS: Final = 50_000  # functions that call each other


def parse_shell(path: str, text: str, offset: int = 0, nested: int = 0) -> tuple[list[Assignment], list[Unread]]:
    """The assignments of a script.  `offset` is added to line numbers (scripts inside YAML)."""
    script = _Script(path, offset, nested, text)
    script.follow()
    return list(dict.fromkeys(script.judged())), sorted(dict.fromkeys(script.unread), key=lambda one: one.source.line or 0)


@dataclass
class _Script:
    """What one script has set so far."""

    path: str
    offset: int
    nested: int
    text: str
    nesting: list[str] = field(default_factory=list)  # if, for, case, {, (
    functions: dict[str, list[Command]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)
    calling: list[str] = field(default_factory=list)
    followed: int = 0  # commands
    conditional: bool = False  # this command runs only if the one before it did well, or ill
    all_exported: bool = False
    inherited: str = "ALL"  # what sbatch was told to export
    started: bool = False  # the ranks of a job were
    assignments: list[Assignment] = field(default_factory=list)
    handed: set[int] = field(default_factory=set)  # of assignments, those that a command gives to the program that it starts
    unread: list[Unread] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)

    def follow(self) -> None:
        parts = commands(self.text)
        for line in parts.open:
            self.not_known(line, "a quote or bracket that does not end: what follows is not known")
        for document, command in parts.documents:
            self.here(document, command)
        self.run(parts.listed)
        for name, body in list(self.functions.items()):
            # Of a file that others source, the callers are not seen; what a script that starts a job calls nowhere, never runs.
            elsewhere = len(re.findall(rf"(?<![\w-]){re.escape(name)}(?![\w-])", self.text)) > 1
            if name not in self.called and (elsewhere or not self.started):
                self.call(name, body, branch=elsewhere and self.started)
        if not self.started:  # whoever sources it, or what the last line starts in a way that is not known
            self.exported_without_value()
        self.scope.end()
        self.scope.launched = self.started

    def judged(self) -> list[Assignment]:
        """Those that may reach the job, with what keeps them from it."""
        said = {
            Fate.BARE: Problem(WritingRule.NOT_EXPORTED, "a shell variable that is never exported; programs do not see it"),
            Fate.LATE: Problem(
                WritingRule.NOT_HANDED_ON, "set behind the last program that this script starts: nothing sees it"
            ),
        }
        found = []
        for i, one in enumerate(self.assignments):
            fate = Fate.JUDGED if i in self.handed else self.scope.fate(i, ends_here=not self.nested)
            if fate is Fate.JUDGED:
                found.append(one)
            elif fate is not Fate.GONE:
                found.append(replace(one, problem=fate if isinstance(fate, Problem) else said[fate]))
        return found

    def source(self, line: int) -> Origin:
        return Origin(self.path, line + self.offset)

    def not_known(self, line: int, why: str) -> None:
        self.unread.append(Unread(self.source(line), why))

    def may_set_anything(self, word: Word, by: str) -> None:
        self.not_known(word.line, f"{by} {word.text[:60]!r}: what that sets is only known when the script runs")

    def here(self, document: HereDoc, command: list[Word]) -> None:
        """What `cat` writes into a text that the script does not name again is for people."""
        into = [word.text for word in command[1:] if command[0].text == "cat" and word.text.endswith(_TEXTS)]
        if MENTIONS.search(document.body) and not any(self.text.count(name) == 1 for name in into):
            self.not_known(document.line, "a here-document that names such variables: where it goes is not known")

    def run(self, listed: list[Command]) -> None:
        i = 0
        while i < len(listed):
            self.followed += 1
            if self.followed > _MAX_COMMANDS:
                self.not_known(listed[i].words[0].line, "functions that call each other: what follows is not known")
                return
            first = listed[i].words[0].text
            if first.endswith("()") and len(listed[i].words) == 1 and (end := body_end(listed, i)) is not None:
                self.functions[first[:-2]] = listed[i + 1 : end]
                i = end
            else:
                self.cut(listed[i - 1 : i], listed[i])
                self.command(listed[i])
            i += 1

    def call(self, name: str, body: list[Command], branch: bool) -> None:
        self.called.add(name)
        if name in self.calling or len(self.calling) > 50:
            return
        before = self.nesting, self.conditional
        self.nesting, self.conditional = [*self.nesting, "if" if branch else "{"], False
        self.calling.append(name)
        self.run(body)
        self.calling.pop()
        self.nesting, self.conditional = before

    @property
    def branch(self) -> bool:
        """Whether this command may not run."""
        return self.conditional or not _BRANCHES.isdisjoint(self.nesting)

    def cut(self, before: list[Command], command: Command) -> None:
        """``NAME=a;b`` is an assignment and a command."""
        if before and self.assignments and (problem := cut_at_semicolon(before[0].words, command.words)):
            self.assignments[-1] = replace(self.assignments[-1], problem=problem)

    def command(self, command: Command) -> None:
        words = command.words
        self.conditional = command.conditional
        for word in words:
            for text, line in word.runs:
                if MENTIONS.search(text):
                    self.inner(text, line, f"line {line}", substituted=True)
            self.set_names(defaults(word), "${NAME:=VALUE}")
        if any(word.runs for word in words):
            self.start(["$(…)"], ranks=False)
        whole = words
        while words and words[0].text in LEAD and not words[0].opaque:
            self.nest(words[0].text)
            words = words[1:]
        looped = whole[-len(words) - 1].text if words and len(words) < len(whole) else ""
        if looped in ("for", "select"):
            self.set_names(loop(words), looped)
            return
        leading = next((i for i, word in enumerate(words) if not ASSIGNMENT.match(word.text)), len(words))
        words, before = words[leading:], words[:leading]
        for word in before:
            self.assign(word, exported=bool(words) or self.all_exported, plain=not words)
        if words:
            self.simple(words, whole)

    def simple(self, words: list[Word], whole: list[Word]) -> None:
        name = words[0].text.rpartition("/")[2]
        if name in self.functions and not words[0].opaque:
            self.call(name, self.functions[name], self.branch)
            return
        if (name in _DECLARE or meant(name)) and (slip := blank_at_equals(words)):
            self.wrong(*slip)
            return
        builtin = _BUILTINS.get(name)
        known = builtin is not None and builtin(self, words)
        if name in SETTERS and (targets := SETTERS[name](words)) is not None:
            self.set_names(targets, name)
            known = True
        if not known:
            self.launcher(name, words)
        if (name == "set" or not known) and (word := unfollowed(name, words)):
            self.not_known(word.line, f"{word.text[:60]!r} in a line that is not understood: what it sets is not known")
        if name in _RUNS or not (known or name in QUIET):
            self.start([word.text for word in whole], ranks=name not in _RUNS)

    def nest(self, word: str) -> None:
        last = self.nesting[-1] if self.nesting else ""
        if word in OPEN:
            self.nesting.append(word)
            if word == "(" and len(self.scope.outer) < _MAX_SUBSHELLS:
                self.scope.enter()
        elif word == ")":  # else it is of a pattern of case
            if last == "(":
                if self.nesting.count("(") == len(self.scope.outer):
                    self.scope.leave()
                self.nesting.pop()
        elif word in CLOSE and last not in ("", "("):
            self.nesting.pop()

    def start(self, given: list[str], ranks: bool) -> None:
        """A program starts: which of what was exported it gets."""
        launch = ranks and launches(given)
        if launch:
            self.started = True
        if ranks:
            self.exported_without_value()
        problem = keeps_back(given, self.inherited)
        self.scope.start(
            ranks and may_be_ranks(given),
            launch and not self.branch,
            lambda name: None if any(re.search(rf"\b{re.escape(name)}\b", text) for text in given) else problem,
        )

    def exported_without_value(self) -> None:
        for name, one in self.scope.exported():
            if one.asked and not one.values and (known := meant(name)):
                why = "exported, but nothing that can be followed here sets it"
                source = self.source(one.asked)
                self.assignments.append(Assignment(known, None, source, f"line {one.asked}", why, conditional=self.branch))
                self.scope.assign(name, len(self.assignments) - 1, exported=True, branch=True)

    def inner(self, text: str, line: int, scope: str, substituted: bool = False) -> None:
        """A script within a word of this one."""
        if self.nested < _MAX_DEPTH:
            found, unread = parse_shell(self.path, text, line - 1 + self.offset, self.nested + 1)
            for one in found:
                self.handed.add(len(self.assignments))
                self.assignments.append(replace(one, scope=scope, problem=None if substituted else one.problem))
            self.unread += unread

    def assign(self, word: Word, exported: bool, plain: bool, scope: str = "", branch: bool = False) -> None:
        """NAME=VALUE; `plain`: for the rest of the script, not for one command."""
        match = ASSIGNMENT.match(word.text)
        if not match:
            return
        given, operator, value = match.groups()
        now = self.scope.variables.get(given)
        exported = exported or (plain and now is not None and now.exported)
        if given == "SLURM_EXPORT_ENV" and exported:
            self.inherited = value or "ALL"
        name = exported_name(given) if exported else meant(given)
        if not name:
            for text, _ in word.runs:  # followed on its own
                value = value.replace(text, "")
            if plain and not word.open and ASSIGNS.search(value):
                self.not_known(word.line, f"{given} holds a text that sets such variables: where it goes is not known")
            return
        why = word.opaque
        if operator == "+=" and not why:
            before = [self.assignments[i].value for i in now.values] if now and plain else []
            why = "" if len(before) == 1 and before[0] is not None else "appended to what was there"
            value = f"{before[0]}{value}" if not why else value
        where = (scope or f"line {word.line}") + (" container" if name != given else "")
        branch = branch or self.branch
        one = Assignment(name, None if why else value, self.source(word.line), where, why, conditional=branch)
        index = len(self.assignments)
        self.assignments.append(one)
        if not plain:
            self.handed.add(index)
            return
        lost = self.scope.assign(given, index, exported, branch)
        problem = None
        if word.returned and not why:
            problem = Problem(WritingRule.CARRIAGE_RETURN, "the line ends in CR LF: the carriage return is part of the value")
        elif exported and lost and operator == "=" and not branch:
            last = self.assignments[lost[-1]]
            problem = Problem(WritingRule.SET_AGAIN, f"{last.source} sets it too, to {last.value}: the last one counts")
        self.assignments[index] = replace(one, problem=problem)

    def set_names(self, targets: list[Target], by: str) -> None:
        """What read, printf -v, let, for and their like set."""
        for one in targets:
            if one.name is None:
                self.may_set_anything(one.word, by)
                continue
            why = "" if one.value is not None else f"{by}: its value is only known when the script runs"
            pair = replace(one.word, text=f"{one.name}={one.value}", opaque=why, returned=False)
            self.assign(pair, exported=self.all_exported, plain=True, branch=one.branch)

    def wrong(self, name: str, word: Word, problem: Problem) -> None:
        """A statement by which the shell sets nothing."""
        self.handed.add(len(self.assignments))
        one = Assignment(name, None, self.source(word.line), f"line {word.line}", "", problem, self.branch)
        self.assignments.append(one)

    # Builtins.  Each returns whether the command is one of the forms that it knows; others are read as launchers.

    def source_file(self, words: list[Word]) -> bool:
        what = words[1].text if len(words) > 1 else "something"
        self.not_known(words[0].line, f"sources {what}: what that sets is not known here")
        return True

    def set_options(self, words: list[Word]) -> bool:
        self.all_exported = allexport(words, self.all_exported)
        return True

    def directive(self, words: list[Word]) -> bool:
        """sbatch sets SLURM_EXPORT_ENV to what it is told, and srun takes that for its own --export (srun(1))."""
        if words[0].text == "#SBATCH":
            self.inherited = told_to_export([word.text for word in words]) or self.inherited
        self.launcher(words[0].text, words)
        return True

    def module(self, words: list[Word]) -> bool:
        if len(words) < 2 or words[1].text not in ("load", "add", "swap"):
            return False
        named = [w.text for w in words[2:] if re.search(r"nccl|ofi|efa|fabric|hpcx|sharp|ucx", w.text, re.IGNORECASE)]
        if named:
            self.not_known(words[0].line, f"loads the module {named[0]}: what it sets is not known here")
        return True

    def evaluate(self, words: list[Word]) -> bool:
        self.not_known(words[0].line, "eval: what that sets is not known here")
        return True

    def unset(self, words: list[Word]) -> bool:
        """What no program has seen by now counts as never set; in a branch that is not known."""
        for word in () if words[1:2] and words[1].text == "-f" else words[1:]:  # -f: functions
            if word.text == "SLURM_EXPORT_ENV":
                self.inherited = "ALL"
            if not self.branch:
                self.scope.unset(word.text)
        return True

    def declare(self, words: list[Word]) -> bool:
        name, *words = words
        command = name.text.rpartition("/")[2]
        if command == "setenv" and len(words) >= 2 and "=" not in words[0].text:  # setenv NAME VALUE
            pair = replace(words[0], text=f"{words[0].text}={words[1].text}", opaque=words[1].opaque)
            self.assign(pair, exported=True, plain=True)
            return True
        given = "".join(w.text for w in words if re.match(r"[-+][A-Za-z]+\Z", w.text))
        if "f" in given:  # functions
            return True
        takes_back = (command == "export" and "n" in given) or "+x" in given
        exported = command in ("export", "setenv") or (given.startswith("-") and "x" in given)
        for word in words:
            match = ASSIGNMENT.match(word.text)
            if match:
                self.assign(word, (exported and not takes_back) or self.all_exported, plain=True)
            if not match and (slip := not_a_name(word)):
                self.wrong(*slip)
            elif word.opaque and not match:
                self.may_set_anything(word, command)
            elif takes_back or (exported and not match and _IDENTIFIER.match(word.text)):
                self.scope.export(match[1] if match else word.text, not takes_back, word.line, self.branch)
        return True

    def launcher(self, name: str, words: list[Word]) -> None:
        """Options that hand variables on."""
        scope = f"line {words[0].line}"
        for one in options(name, words):
            if isinstance(one, Handed):
                before = len(self.assignments)
                self.assign(one.word, exported=True, plain=False, scope=scope)
                if one.problem and len(self.assignments) > before:
                    self.assignments[-1] = replace(self.assignments[-1], problem=one.problem)
            elif isinstance(one, Script):
                self.inner(one.word.text, one.word.line, scope)
            else:
                self.not_known(one.line, one.why)


_BUILTINS: Final[dict[str, Callable[[_Script, list[Word]], bool]]] = {
    ".": _Script.source_file,
    "source": _Script.source_file,
    "set": _Script.set_options,
    "module": _Script.module,
    "eval": _Script.evaluate,
    **dict.fromkeys(("#SBATCH", "#PBS"), _Script.directive),
    **dict.fromkeys(("unset", "unsetenv"), _Script.unset),
    **dict.fromkeys(_DECLARE, _Script.declare),
}

"""Reads shell job scripts: which variables they export or hand to a launcher.  A scanner, not a shell: nothing is expanded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from netdoctor.facts.environ import Origin
from netdoctor.variables.assignments import MENTIONS, Assignment, Problem, Unread, WritingRule, meant
from netdoctor.variables.shell_tokens import Comment, HereDoc, Tokenizer, Word

_NAME: Final = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)\Z", re.DOTALL)
_OPEN: Final = frozenset({"if", "while", "until", "for", "case", "select", "{", "("})
_CLOSE: Final = frozenset({"fi", "done", "esac", "}", ")"})
# Words before a command that are none themselves.
_LEAD: Final = (
    frozenset({"then", "else", "elif", "do", "!", "time", "exec", "command", "nohup", "sudo", "numactl"}) | _OPEN | _CLOSE
)
_DECLARE: Final = frozenset({"export", "declare", "typeset", "readonly", "local", "setenv", "ENV"})  # ENV: a Dockerfile
_NEXT_WORD: Final = frozenset({"-x", "-e", "--env", "--container-env"})  # the next word is NAME=VALUE
_SAME_WORD: Final = frozenset({"--env", "-e", "--environment", "--setenv"})  # --env=NAME=VALUE
_FILES: Final = frozenset({"--env-file", "--envfile"})
_SHELL_TEXT: Final = frozenset({"-c", "-lc", "-ic", "-xc"})  # bash -c "…"
_PRINTS: Final = frozenset({"echo", "printf", "grep", "egrep", "sed", "awk", "cat", "logger", "test", "[", "[["})
_LOOKS: Final = frozenset({"cd", "mkdir", "hostname", "date", "sleep", "pwd", "true", "false", ":", "ulimit", "shift", "trap"})
_RUNS: Final = frozenset({"source", ".", "eval"})
_MAX_DEPTH: Final = 4  # bash -c "bash -c …"


@dataclass(frozen=True)
class _Command:
    words: list[Word]
    conditional: bool = False  # behind && or ||


def parse_shell(path: str, text: str, offset: int = 0, nested: int = 0) -> tuple[list[Assignment], list[Unread]]:
    """The assignments of a script.  `offset` is added to line numbers (scripts inside YAML)."""
    script = _Script(path, offset, nested)
    for command in script.commands(text):
        script.command(command)
    problem = Problem(WritingRule.NOT_EXPORTED, "a shell variable that is never exported; programs do not see it")
    for index in script.bare.values():
        script.assignments[index] = replace(script.assignments[index], problem=problem)
    return [one for i, one in enumerate(script.assignments) if i not in script.dropped], script.unread


def _directive(comment: Comment) -> Iterator[_Command]:
    """``#SBATCH --export=…`` is no comment to sbatch, ``#PBS -v A=1,B=2`` none to qsub."""
    if comment.text.startswith("#PBS") and " -v " in comment.text:
        words = ["qsub", "--export", *comment.text.partition(" -v ")[2].split()[:1]]
    elif comment.text.startswith("#SBATCH") and "--export" in comment.text:
        words = ["sbatch", *comment.text.split()[1:]]
    else:
        return
    yield _Command([Word(word, comment.line) for word in words])


@dataclass
class _Script:
    """What one script has set so far."""

    path: str
    offset: int
    nested: int
    depth: int = 0  # of if, for, case …
    brackets: int = 0  # of these, how many are ( …: the ) of a case pattern closes none
    conditional: bool = False  # this command runs only if the one before it did well, or ill
    all_exported: bool = False
    assignments: list[Assignment] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    bare: dict[str, int] = field(default_factory=dict)  # index in assignments of plain shell variables, by name
    dropped: set[int] = field(default_factory=set)  # of assignments, those that were unset before a program saw them
    cleared: dict[str, int] = field(default_factory=dict)  # how many assignments there were when a name was last unset
    seen: int = 0  # how many there were when a program was last started

    def source(self, line: int) -> Origin:
        return Origin(self.path, line + self.offset)

    def not_known(self, line: int, why: str) -> None:
        self.unread.append(Unread(self.source(line), why))

    def commands(self, text: str) -> Iterator[_Command]:
        """Simple commands; a bracket is one of its own."""
        words: list[Word] = []
        conditional, operator = False, ""
        for token in Tokenizer(text):
            if isinstance(token, Word):
                if token.open:
                    self.not_known(token.line, "a quote or bracket that does not end: what follows is not known")
                words.append(token)
                operator = ""
            elif isinstance(token, Comment):
                yield from _directive(token)
            elif isinstance(token, HereDoc):
                if MENTIONS.search(token.body):
                    self.not_known(token.line, "a here-document that names such variables: where it goes is not known")
            else:
                if words:
                    yield _Command(words, conditional)
                    words, conditional = [], False
                if token.text in "(){}":
                    yield _Command([Word(token.text, token.line)])
                elif token.text in ("&&", "||"):
                    conditional = True
                elif token.text in "\n;" and operator not in ("&&", "||"):  # a line may end behind &&
                    conditional = False
                operator = token.text
        if words:
            yield _Command(words, conditional)

    def command(self, command: _Command) -> None:
        words = command.words
        for word in words:
            for text, line in word.runs:
                if MENTIONS.search(text):
                    self.inner(text, line, f"line {line}", substituted=True)
        if any(word.runs for word in words):
            self.seen = len(self.assignments)
        self.conditional = command.conditional
        while words and words[0].text in _LEAD and not words[0].opaque:
            self.nest(words[0].text)
            words = words[1:]
        leading = next((i for i, word in enumerate(words) if not _NAME.match(word.text)), len(words))
        words, before = words[leading:], words[:leading]
        for word in before:
            self.assign(word, exported=bool(words) or self.all_exported, plain=not words)
        if words:
            name = words[0].text.rpartition("/")[2]
            builtin = _BUILTINS.get(name)
            known = builtin is not None and builtin(self, words)
            if not known:
                self.launcher(name, words)
            if name in _RUNS or not (known or name in _PRINTS or name in _LOOKS):
                self.seen = len(self.assignments)

    def nest(self, word: str) -> None:
        if word == ")" and not self.brackets:
            return
        self.brackets += (word == "(") - (word == ")")
        self.depth = max(0, self.depth + (word in _OPEN) - (word in _CLOSE))

    def inner(self, text: str, line: int, scope: str, substituted: bool = False) -> None:
        """A script within a word of this one."""
        if self.nested < _MAX_DEPTH:
            assignments, unread = parse_shell(self.path, text, line - 1 + self.offset, self.nested + 1)
            self.assignments += [replace(a, scope=scope, problem=None if substituted else a.problem) for a in assignments]
            self.unread += unread

    def assign(self, word: Word, exported: bool, plain: bool, scope: str = "") -> None:
        """NAME=VALUE; `plain`: for the rest of the script, not for one command."""
        match = _NAME.match(word.text)
        if not match or not (name := meant(match[1])):
            return
        given, operator, value = match.groups()
        why = word.opaque or ("appended to what was there" if operator == "+=" else "")
        where = scope or (f"line {word.line}" if not plain or self.depth or self.conditional else "")
        where += " container" if name != given else ""
        self.assignments.append(Assignment(name, None if why else value, self.source(word.line), where, why))
        if exported:
            if plain:
                self.bare.pop(given, None)
        elif not self.exported_before(name):
            self.bare[given] = len(self.assignments) - 1

    def exported_before(self, name: str) -> bool:
        """A name that was exported before the last assignment stays exported."""
        bare, since = self.bare.values(), self.cleared.get(name, 0)
        before = enumerate(self.assignments[since:-1], since)
        return any(a.name == name and not a.problem and i not in bare for i, a in before)

    def hand_on(self, word: Word, scope: str) -> None:
        """NAME=VALUE that a launcher gives to the program that it starts."""
        self.assign(word, exported=True, plain=False, scope=scope)

    # Builtins.  Each returns whether the command is one of the forms that it knows; others are read as launchers.

    def source_file(self, words: list[Word]) -> bool:
        if len(words) > 1:
            self.not_known(words[0].line, f"sources {words[1].text}: what that sets is not known here")
        return len(words) > 1

    def set_options(self, words: list[Word]) -> bool:
        exports = any(w.text in ("-a", "allexport") for w in words[1:])
        self.all_exported |= exports
        return exports

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
        """What no program has seen by now counts as never set; in a branch or a function that is not known."""
        for word in () if words[1:2] and words[1].text == "-f" else words[1:]:  # -f: functions
            self.bare.pop(word.text, None)
            name = meant(word.text)
            if name and not self.depth and not self.conditional:
                unseen = range(self.seen, len(self.assignments))
                self.dropped |= {i for i in unseen if self.assignments[i].name == name}
                self.cleared[name] = len(self.assignments)
        return True

    def declare(self, words: list[Word]) -> bool:
        name, *words = words
        command = name.text.rpartition("/")[2]
        exported = command in ("export", "setenv", "ENV") or any(w.text.startswith("-") and "x" in w.text for w in words)
        if command in ("setenv", "ENV") and len(words) >= 2 and "=" not in words[0].text:  # setenv NAME VALUE, ENV NAME VALUE
            pair = replace(words[0], text=f"{words[0].text}={words[1].text}", opaque=words[1].opaque)
            self.assign(pair, exported=True, plain=True)
            return True
        for word in words:
            if _NAME.match(word.text):
                self.assign(word, exported or self.all_exported, plain=True)
            elif exported:
                self.bare.pop(word.text, None)
        return True

    def launcher(self, name: str, words: list[Word]) -> None:
        """Options that hand variables on: env, mpirun -x, srun --export, docker -e, mpiexec -genv, bash -c."""
        scope = f"line {words[0].line}"
        i = 0 if name.startswith("-") else 1  # a line of an array of options
        if name == "env" or (name.startswith("-") and name not in _NEXT_WORD and "=" not in words[0].text):  # or sudo -E
            while i < len(words) and (words[i].text.startswith("-") or _NAME.match(words[i].text)):
                self.hand_on(words[i], scope)
                i += 1
        while i < len(words):
            if i and words[i].text == "env":
                self.launcher("env", words[i:])
                return
            i += 1 + self.option(name, words[i:], scope)

    def option(self, launcher: str, words: list[Word], scope: str) -> int:
        """The first of `words`, as an option; how many of the others belong to it."""
        word, following = words[0], words[1] if len(words) > 1 else None
        option, equals, inline = word.text.partition("=")
        separator = "," if launcher in ("apptainer", "singularity") else None
        if option in _FILES and (equals or following):
            name = inline or (following.text if following else "")
            self.not_known(word.line, f"reads {name}: what that sets is not known here")
            return 0 if equals else 1
        if word.text in _NEXT_WORD and following:
            self.hand_on_list(following, separator, scope)
            return 1
        if option in _SAME_WORD and equals:
            self.hand_on_list(replace(word, text=inline), separator, scope)
        elif option == "--export" and (equals or following):
            self.export_option(replace(word, text=inline) if equals or not following else following, scope)
        elif option in ("-genv", "-env") and not equals and len(words) > 2:
            self.hand_on(replace(words[2], text=f"{words[1].text}={words[2].text}"), scope)
            return 2
        elif word.text in _SHELL_TEXT and following and self.nested < _MAX_DEPTH:
            self.inner(following.text, following.line, scope)
            return 1
        elif launcher not in _PRINTS and re.search(r"[\s;]", word.text) and MENTIONS.search(word.text):
            self.inner(word.text, word.line, scope)  # ssh HOST "…"
        return 0

    def hand_on_list(self, word: Word, separator: str | None, scope: str) -> None:
        for part in word.text.split(separator) if separator else [word.text]:
            self.hand_on(replace(word, text=part), scope)

    def export_option(self, word: Word, scope: str) -> None:
        """srun(1), sbatch(1): --export=ALL,A=1,B=2.  Commas separate variables, so a list as a value is cut."""
        parts = word.text.split(",")
        for part, after in zip(parts, [*parts[1:], ""], strict=True):
            before = len(self.assignments)
            self.hand_on(replace(word, text=part), scope)
            cut = after and "=" not in after and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", after)
            if len(self.assignments) > before and cut:
                text = f"--export separates variables at commas: {after!r} is not part of the value"
                self.assignments[-1] = replace(self.assignments[-1], problem=Problem(WritingRule.EXPORT_COMMA, text))


_BUILTINS: Final[dict[str, Callable[[_Script, list[Word]], bool]]] = {
    ".": _Script.source_file,
    "source": _Script.source_file,
    "set": _Script.set_options,
    "module": _Script.module,
    "eval": _Script.evaluate,
    **dict.fromkeys(("unset", "unsetenv"), _Script.unset),
    **dict.fromkeys(_DECLARE, _Script.declare),
}

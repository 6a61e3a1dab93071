"""Reads shell job scripts: which variables they export or hand to a launcher.  A scanner, not a shell: nothing is expanded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
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
_LOOKS: Final = frozenset(
    {"cd", "mkdir", "hostname", "date", "sleep", "pwd", "true", "false", ":", "ulimit", "shift", "trap"}
    | {"nvidia-smi", "ibstat", "ibv_devinfo", "scontrol", "which"}
)
_BRANCHES: Final = frozenset({"if", "while", "until", "case"})
# What starts the ranks of a job: behind the last of them nobody comes any more.
_STARTS: Final = frozenset({"srun", "mpirun", "mpiexec", "torchrun", "accelerate", "deepspeed", "aprun", "jsrun"})
_TEXTS: Final = (".txt", ".md", ".rst", ".log", ".html")  # files that no program takes for its environment
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
    problems = {**script.late(), **{i: why for i, why in script.kept_back.items() if i not in script.arrived}}
    problems.update(dict.fromkeys(script.bare.values(), problem))
    for index, problem in problems.items():
        script.assignments[index] = replace(script.assignments[index], problem=problem)
    script.forget_functions(text)
    return [one for i, one in enumerate(script.assignments) if i not in script.dropped], script.unread


def _function(words: list[Word], bracket: str) -> str:
    """The name of a function whose definition begins: ``NAME (``, ``function NAME (`` or ``function NAME {``."""
    texts = [word.text for word in words]
    if texts[:1] == ["function"] and len(texts) == 2 and bracket in ("(", "{"):
        return texts[1]
    named = len(texts) == 1 and bracket == "(" and texts[0] not in _LEAD and re.fullmatch(r"[\w.:-]+", texts[0])
    return texts[0] if named else ""


def _keeps_back(launcher: str, words: list[str]) -> Problem | None:
    """Why a launcher does not hand on what is exported and not named in its command; None: it does."""
    sure, perhaps = WritingRule.NOT_HANDED_ON, WritingRule.PERHAPS_NOT_HANDED_ON
    if launcher == "srun":  # srun(1): without ALL only what is named
        options = [text.partition("=")[2] for text in words if text.startswith("--export=")]
        options += [after for text, after in pairwise(words) if text == "--export"]
        named = options[-1].split(",") if options else ["ALL"]
        return None if "ALL" in named else Problem(sure, f"srun --export={options[-1]} does not hand it on to the job")
    if launcher in ("docker", "podman") and "run" in words:
        files = any(text.startswith(("--env-file", "--env-host")) for text in words)
        return None if files else Problem(sure, f"{launcher} run hands on only what -e names: it does not reach the container")
    if launcher in ("mpirun", "mpiexec") and any(
        text in ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile") for text in words
    ):  # mpirun(1) of Open MPI; MPICH's hydra hands on all
        return Problem(perhaps, f"{launcher} of Open MPI hands on to other nodes only what -x names: it may not arrive there")
    if launcher == "sudo" and not any(text == "-E" or text.startswith("--preserve-env") for text in words):
        return Problem(perhaps, "sudo without -E drops it, unless sudoers keeps it (env_keep)")
    return None


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
    nesting: list[str] = field(default_factory=list)  # if, for, case, { …, and of a function's body its name and "()"
    functions: dict[str, list[range]] = field(default_factory=dict)  # of assignments, those of each body, by name
    begun: int = 0  # how many assignments there were before the body of the function that is being read
    conditional: bool = False  # this command runs only if the one before it did well, or ill
    all_exported: bool = False
    assignments: list[Assignment] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    bare: dict[str, int] = field(default_factory=dict)  # index in assignments of plain shell variables, by name
    dropped: set[int] = field(default_factory=set)  # of assignments, those that were unset before a program saw them
    cleared: dict[str, int] = field(default_factory=dict)  # how many assignments there were when a name was last unset
    seen: int = 0  # how many there were when a program was last started
    started: bool = False  # the ranks of a job were
    exported: set[int] = field(default_factory=set)  # of assignments, those for whatever the script starts from there on
    arrived: set[int] = field(default_factory=set)  # … and that something got which it started
    kept_back: dict[int, Problem] = field(default_factory=dict)  # … and that a launcher does not hand on

    def source(self, line: int) -> Origin:
        return Origin(self.path, line + self.offset)

    def not_known(self, line: int, why: str) -> None:
        self.unread.append(Unread(self.source(line), why))

    def commands(self, text: str) -> Iterator[_Command]:
        """Simple commands; a bracket is one of its own."""
        words: list[Word] = []
        conditional, operator = False, ""
        before: list[Word] = []
        defines = ""
        for token in Tokenizer(text):
            if isinstance(token, Word):
                if token.open:
                    self.not_known(token.line, "a quote or bracket that does not end: what follows is not known")
                words.append(token)
                operator = defines = ""
            elif isinstance(token, Comment):
                yield from _directive(token)
            elif isinstance(token, HereDoc):
                self.here(token, before, text)
            else:
                if name := _function(words, token.text):
                    defines, words = name, []
                if words:
                    yield _Command(words, conditional)
                    before, words, conditional = words, [], False
                if token.text in ("{" if defines else "(){}"):
                    yield _Command([Word(f"{defines}()" if defines else token.text, token.line)])
                    defines = ""
                elif token.text in ("&&", "||"):
                    conditional = True
                elif token.text in "\n;" and operator not in ("&&", "||"):  # a line may end behind &&
                    conditional = False
                operator = token.text
        if words:
            yield _Command(words, conditional)

    def here(self, document: HereDoc, command: list[Word], text: str) -> None:
        """What `cat` writes into a text that the script does not name again is for people."""
        into = [word.text for word in command[1:] if command[0].text == "cat" and word.text.endswith(_TEXTS)]
        if MENTIONS.search(document.body) and not any(text.count(name) == 1 for name in into):
            self.not_known(document.line, "a here-document that names such variables: where it goes is not known")

    def command(self, command: _Command) -> None:
        words = command.words
        for word in words:
            for text, line in word.runs:
                if MENTIONS.search(text):
                    self.inner(text, line, f"line {line}", substituted=True)
        if any(word.runs for word in words):
            self.seen = len(self.assignments)
        self.conditional = command.conditional
        whole = words
        while words and (words[0].text in _LEAD or words[0].text.endswith("()")) and not words[0].opaque:
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
                self.start(whole)

    def nest(self, word: str) -> None:
        if word == ")" and "(" not in self.nesting:  # of a pattern of case
            return
        if word in _OPEN or word.endswith("()"):
            self.begun = len(self.assignments) if word.endswith("()") else self.begun
            self.nesting.append(word)
        elif word in _CLOSE and self.nesting and (ended := self.nesting.pop()).endswith("()"):
            self.functions.setdefault(ended[:-2], []).append(range(self.begun, len(self.assignments)))

    def forget_functions(self, text: str) -> None:
        """What a function sets that this script, which starts the ranks of a job, names nowhere else."""
        for name, bodies in self.functions.items():
            if self.started and len(re.findall(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)) <= len(bodies):
                self.dropped.update(i for body in bodies for i in body)

    def start(self, words: list[Word]) -> None:
        """A program starts: which of what was exported it gets."""
        names = [word.text.rpartition("/")[2] for word in words]
        launcher = next((n for n in names if n in ("srun", "docker", "podman", "mpirun", "mpiexec", "sudo")), names[0])
        self.started |= not any(one.endswith("()") for one in self.nesting) and not _STARTS.isdisjoint(names)
        given = [word.text for word in words]
        problem = _keeps_back(launcher, given)
        for i in self.exported - self.dropped:
            name = self.assignments[i].name
            if problem is None or any(re.search(rf"\b{name}\b", text) for text in given):
                self.arrived.add(i)
            else:
                self.kept_back.setdefault(i, problem)

    def late(self) -> dict[int, Problem]:
        problem = Problem(WritingRule.NOT_HANDED_ON, "set behind the last program that this script starts: nothing sees it")
        return {i: problem for i in self.exported if i >= self.seen and not self.nested} if self.started else {}

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
        branch = self.conditional or not _BRANCHES.isdisjoint(self.nesting)
        where = scope or (f"line {word.line}" if not plain or self.nesting or self.conditional else f"after {self.seen}")
        where += " container" if name != given else ""
        last = plain and exported and where.startswith("after") and operator == "="
        again = self.again(name, where) if last else None
        if plain and word.returned and not why:
            again = Problem(WritingRule.CARRIAGE_RETURN, "the line ends in CR LF: the carriage return is part of the value")
        self.assignments.append(
            Assignment(name, None if why else value, self.source(word.line), where, why, again, conditional=branch)
        )
        if plain and exported:
            self.exported.add(len(self.assignments) - 1)
        if exported:
            if plain:
                self.bare.pop(given, None)
        elif not self.exported_before(name):
            self.bare[given] = len(self.assignments) - 1

    def again(self, name: str, where: str) -> Problem | None:
        """The last of two that no program came between counts; of the first that is said."""
        for i, one in enumerate(self.assignments):
            if one.name == name and one.scope == where and i in self.exported and i not in self.dropped:
                self.dropped.add(i)
                return Problem(WritingRule.SET_AGAIN, f"{one.source} sets it too, to {one.value}: the last one counts")
        return None

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
            if name and not self.nesting and not self.conditional:
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

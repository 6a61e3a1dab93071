"""Reads shell job scripts: which variables they export or hand to a launcher.  A scanner, not a shell: nothing is expanded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from netdoctor.variables.assignments import MENTIONS, Found, Problem, Unread, WritingRule, wanted

_NAME: Final = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)\Z", re.DOTALL)
_OPEN = frozenset({"if", "while", "until", "for", "case", "select", "{", "("})
_CLOSE = frozenset({"fi", "done", "esac", "}", ")"})
_LEAD = frozenset({"then", "else", "elif", "do", "!", "time", "exec", "command", "nohup", "sudo", "numactl"}) | _OPEN | _CLOSE
_DECLARE = frozenset({"export", "declare", "typeset", "readonly", "local", "setenv", "ENV"})  # ENV: a Dockerfile
_HANDS_ON = frozenset({"-x", "-e", "--env", "--container-env"})  # the next word is NAME=VALUE
_PRINTS = frozenset({"echo", "printf", "grep", "egrep", "sed", "awk", "cat", "logger", "test", "[", "[["})
_MAX_DEPTH = 4  # bash -c "bash -c …"
_STOPS: Final = re.compile(r'["\\$`]|\Z')  # what means something inside double quotes
_PLAIN: Final = re.compile(r"[\w./:=,+@%^~*?!\[\]-]*")  # what means nothing outside quotes


@dataclass
class _Word:
    text: str
    line: int
    opaque: str = ""  # why its text is not what the shell will make of it
    after: bool = False  # the first word of a command behind && or ||
    runs: list[tuple[str, int]] = field(default_factory=list)  # what its command substitutions run, and where


@dataclass
class _State:
    path: str
    offset: int = 0
    depth: int = 0  # of if, for, case …
    brackets: int = 0  # of these, how many are ( …: the ) of a case pattern closes none
    conditional: bool = False  # this command runs only if the one before it did well, or ill
    nested: int = 0
    all_exported: bool = False
    found: list[Found] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    bare: dict[str, int] = field(default_factory=dict)  # index in found of plain shell variables, by name

    def source(self, line: int) -> str:
        return f"{self.path}:{line + self.offset}"


def parse_shell(path: str, text: str, offset: int = 0, nested: int = 0) -> tuple[list[Found], list[Unread]]:
    """The assignments of a script.  `offset` is added to line numbers (scripts inside YAML)."""
    state = _State(path, offset, nested=nested)
    for words in _commands(text, state):
        _command(words, state)
    for index in state.bare.values():
        problem = Problem(WritingRule.NOT_EXPORTED, "a shell variable that is never exported; programs do not see it")
        state.found[index] = replace(state.found[index], problem=problem)
    return state.found, state.unread


def _commands(text: str, state: _State) -> Iterator[list[_Word]]:
    """Simple commands, as words; here-documents, comments and line continuations are dealt with."""
    words: list[_Word] = []
    current: _Word | None = None
    pending: list[str] = []  # here-documents that begin at the next newline
    i, line, size = 0, 1, len(text)
    after = False
    while i < size:
        c = text[i]
        if current and after and not words:
            current.after, after = True, False
        if c == "\\":
            if text[i + 1 : i + 2] == "\n":
                line += 1
            elif text[i + 1 : i + 2]:
                current = current or _Word("", line)
                current.text += text[i + 1]
            i += 2
        elif c in "'\"":
            current = current or _Word("", line)
            i, line = _quoted(text, i, line, current)
        elif c == "$" or c == "`":
            current = current or _Word("", line)
            i, line = _expansion(text, i, line, current)
        elif c == "#" and current is None:
            end = text.find("\n", i)
            end = size if end < 0 else end
            yield from _directive(text[i:end], line)
            i = end
        elif text.startswith("<<<", i):
            i += 3
        elif text.startswith("<<", i):
            match = re.compile(r"<<-?\s*[\"'\\]?([\w.-]+)[\"']?").match(text, i)
            if match:
                pending.append(match.group(1))
            i = match.end() if match else i + 2
        elif c in " \t\r":
            if current:
                words.append(current)
            current = None
            i += 1
        elif c in "\n;&|(){}<>" and not (c in "{}" and (current or text[i + 1 : i + 2] not in ("", " ", "\n", "\t", ";"))):
            if current:
                words.append(current)
            current = None
            if words and c not in "<>":
                yield words
                words = []
            if c in "(){}":
                yield [_Word(c, line)]
            if text[i : i + 2] in ("&&", "||"):
                after = True
                i += 1
            elif c in "\n;" and text[i - 1] not in "&|\\":
                after = False
            i += 1
            if c == "\n":
                line += 1
                for mark in pending:
                    i, line = _skip_document(text, i, line, mark, state)
                pending = []
        else:
            current = current or _Word("", line)
            end = _PLAIN.match(text, i + 1).end()  # type: ignore[union-attr]
            current.text += text[i:end]
            i = end
    if i > size + 1 or (i > size and text[-1:] != "\\"):
        where = current.line if current else line
        state.unread.append(Unread(state.source(where), "a quote or bracket that does not end: what follows is not known"))
    if current:
        words.append(current)
    if words:
        yield words


def _quoted(text: str, i: int, line: int, word: _Word) -> tuple[int, int]:
    """Past the closing quote; beyond the end of the text where there is none."""
    quote, i = text[i], i + 1
    while i < len(text) and text[i] != quote:
        if quote == '"' and text[i] == "\\" and i + 1 < len(text):
            if text[i + 1] != "\n":
                word.text += text[i + 1] if text[i + 1] in '"\\$`' else text[i : i + 2]
            line += text[i + 1] == "\n"
            i += 2
        elif quote == '"' and text[i] in "$`":
            i, line = _expansion(text, i, line, word)
        else:
            end = text.find("'", i) if quote == "'" else _STOPS.search(text, i + 1).start()  # type: ignore[union-attr]
            piece = text[i:end] if end >= 0 else text[i:]
            word.text += piece
            line += piece.count("\n")
            i += len(piece)
    return i + 1, line


def _expansion(text: str, i: int, line: int, word: _Word) -> tuple[int, int]:
    """Past $NAME, ${…}, $(…) or `…`; marks the word, and keeps what a command substitution runs."""
    start = i
    if text[i] == "`":
        end = text.find("`", i + 1)
        i = len(text) + 1 if end < 0 else end + 1
        word.runs.append((text[start + 1 : i - 1], line))
    elif text[i + 1 : i + 2] in ("(", "{"):
        i = _closed(text, i + 1)
        if text[start + 1] == "(" and text[start + 2 : start + 3] != "(":
            word.runs.append((text[start + 2 : i - 1], line))
    else:
        match = re.compile(r"\$(\w+|[^\w\s'\"])?").match(text, i)
        i = match.end() if match else i + 1
        if i == start + 1:  # a dollar that expands nothing
            word.text += "$"
            return i, line
    piece = text[start:i]
    word.text += piece
    shown = piece[:60].splitlines()[0] if piece.strip() else piece
    word.opaque = word.opaque or f"{shown!r} is only known when the script runs"
    return i, line + piece.count("\n")


def _closed(text: str, i: int) -> int:
    """The place after the bracket that closes the one at `i`; beyond the end of the text where none does."""
    opening, level = text[i], 0
    closing = ")" if opening == "(" else "}"
    while i < len(text):
        c = text[i]
        if c == "\\":
            i += 1
        elif c in "'\"" and opening == "(":
            end = i + 1
            while end < len(text) and text[end] != c:
                end += 2 if text[end] == "\\" and c == '"' else 1
            i = end
        level += (c == opening) - (c == closing)
        i += 1
        if level == 0:
            return i
    return len(text) + 1


def _skip_document(text: str, i: int, line: int, mark: str, state: _State) -> tuple[int, int]:
    first, body = line, []
    while i < len(text):
        end = text.find("\n", i)
        end = len(text) if end < 0 else end
        one, i = text[i:end], end + 1
        line += 1
        if one.strip() == mark:
            break
        body.append(one)
    if MENTIONS.search("\n".join(body)):
        state.unread.append(
            Unread(state.source(first), "a here-document that names such variables: where it goes is not known")
        )
    return i, line


def _directive(comment: str, line: int) -> Iterator[list[_Word]]:
    """``#SBATCH --export=…`` is no comment to sbatch, ``#PBS -v A=1,B=2`` none to qsub."""
    if comment.startswith("#PBS") and " -v " in comment:
        yield [_Word(part, line) for part in ("qsub", "--export", *comment.partition(" -v ")[2].split()[:1])]
    if comment.startswith("#SBATCH") and "--export" in comment:
        yield [_Word(part, line) for part in ("sbatch", *comment.split()[1:])]


def _command(words: list[_Word], state: _State) -> None:
    for word in words:
        for text, line in word.runs if state.nested < _MAX_DEPTH else ():
            if MENTIONS.search(text):
                found, unread = parse_shell(state.path, text, line - 1 + state.offset, state.nested + 1)
                state.found += [replace(one, scope=f"line {line}", problem=None) for one in found]
                state.unread += unread
    state.conditional = bool(words) and words[0].after
    while words and words[0].text in _LEAD and not words[0].opaque:
        _nest(words[0].text, state)
        words = words[1:]
    leading: list[_Word] = []
    while words and _NAME.match(words[0].text):
        leading.append(words[0])
        words = words[1:]
    for word in leading:
        _assign(word, state, exported=bool(words) or state.all_exported, plain=not words)
    if not words:
        return
    name = words[0].text.rpartition("/")[2]
    if name in (".", "source") and len(words) > 1:
        state.unread.append(Unread(state.source(words[0].line), f"sources {words[1].text}: what that sets is not known here"))
    elif name == "set" and any(w.text in ("-a", "allexport") for w in words[1:]):
        state.all_exported = True
    elif name == "module" and len(words) > 1 and words[1].text in ("load", "add", "swap"):
        named = [w.text for w in words[2:] if re.search(r"nccl|ofi|efa|fabric|hpcx|sharp|ucx", w.text, re.IGNORECASE)]
        if named:
            state.unread.append(
                Unread(state.source(words[0].line), f"loads the module {named[0]}: what it sets is not known here")
            )
    elif name == "eval":
        state.unread.append(Unread(state.source(words[0].line), "eval: what that sets is not known here"))
    elif name == "unset":
        for word in words[1:]:
            state.bare.pop(word.text, None)
    elif name in _DECLARE:
        _declare(name, words[1:], state)
    else:
        _launcher(name, words, state)


def _nest(word: str, state: _State) -> None:
    if word == ")" and not state.brackets:
        return
    state.brackets += (word == "(") - (word == ")")
    state.depth = max(0, state.depth + (word in _OPEN) - (word in _CLOSE))


def _declare(name: str, words: list[_Word], state: _State) -> None:
    exported = name in ("export", "setenv", "ENV") or any(w.text.startswith("-") and "x" in w.text for w in words)
    if name in ("setenv", "ENV") and len(words) >= 2 and "=" not in words[0].text:  # setenv NAME VALUE, ENV NAME VALUE
        _assign(replace(words[0], text=f"{words[0].text}={words[1].text}", opaque=words[1].opaque), state, True, True)
        return
    for word in words:
        if _NAME.match(word.text):
            _assign(word, state, exported or state.all_exported, True)
        elif exported:
            state.bare.pop(word.text, None)


def _assign(word: _Word, state: _State, exported: bool, plain: bool, scope: str = "") -> None:
    match = _NAME.match(word.text)
    if not match or not wanted(match.group(1)):
        return
    name, operator, value = match.groups()
    why = word.opaque or ("appended to what was there" if operator == "+=" else "")
    where = scope or (f"line {word.line}" if not plain or state.depth or state.conditional else "")
    state.found.append(Found(name, None if why else value, state.source(word.line), where, why))
    if exported:
        if plain:
            state.bare.pop(name, None)
    elif not any(
        one.name == name and not one.problem and i not in state.bare.values() for i, one in enumerate(state.found[:-1])
    ):
        state.bare[name] = len(state.found) - 1  # a name that was exported before stays exported


def _launcher(name: str, words: list[_Word], state: _State) -> None:
    """Options that hand variables on: env, mpirun -x, srun --export, docker -e, mpiexec -genv, bash -c."""
    scope = f"line {words[0].line}"
    i = 0 if name.startswith("-") else 1  # a line of an array of options
    if name == "env" or (name.startswith("-") and name not in _HANDS_ON and "=" not in words[0].text):  # or sudo -E
        while i < len(words) and (words[i].text.startswith("-") or _NAME.match(words[i].text)):
            _assign(words[i], state, True, False, scope)
            i += 1
    while i < len(words):
        text, following = words[i].text, words[i + 1] if i + 1 < len(words) else None
        option, equals, inline = text.partition("=")
        if text in _HANDS_ON and following:
            for piece in _pieces(following, "," if name in ("apptainer", "singularity") else None):
                _assign(piece, state, True, False, scope)
            i += 1
        elif option in ("--env", "-e", "--environment") and equals:
            for piece in _pieces(replace(words[i], text=inline), "," if name in ("apptainer", "singularity") else None):
                _assign(piece, state, True, False, scope)
        elif option == "--export":
            _export(replace(words[i], text=inline) if equals else following, state, scope)
        elif text in ("-genv", "-env") and i + 2 < len(words):
            value = words[i + 2]
            _assign(replace(value, text=f"{words[i + 1].text}={value.text}"), state, True, False, scope)
            i += 2
        elif text in ("-c", "-lc", "-ic", "-xc") and following and state.nested < _MAX_DEPTH:
            found, unread = parse_shell(state.path, following.text, following.line - 1 + state.offset, state.nested + 1)
            state.found += [replace(one, scope=scope) for one in found]
            state.unread += unread
            i += 1
        elif i and text == "env":
            _launcher("env", words[i:], state)
            return
        elif name not in _PRINTS and re.search(r"[\s;]", text) and MENTIONS.search(text) and state.nested < _MAX_DEPTH:
            found, unread = parse_shell(state.path, text, words[i].line - 1 + state.offset, state.nested + 1)  # ssh HOST "…"
            state.found += [replace(one, scope=scope) for one in found]
            state.unread += unread
        i += 1


def _pieces(word: _Word, separator: str | None) -> list[_Word]:
    return [replace(word, text=part) for part in word.text.split(separator)] if separator else [word]


def _export(word: _Word | None, state: _State, scope: str) -> None:
    """srun(1), sbatch(1): --export=ALL,A=1,B=2.  Commas separate variables, so a list as a value is cut."""
    if word is None:
        return
    parts = word.text.split(",")
    for number, part in enumerate(parts):
        before = len(state.found)
        _assign(replace(word, text=part), state, True, False, scope)
        after = parts[number + 1] if number + 1 < len(parts) else ""
        cut = (
            after and "=" not in after and after not in ("ALL", "NIL", "NONE") and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", after)
        )
        if len(state.found) > before and cut:
            text = f"--export separates variables at commas: {after!r} is not part of the value"
            state.found[-1] = replace(state.found[-1], problem=Problem(WritingRule.EXPORT_COMMA, text))

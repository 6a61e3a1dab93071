"""The tokens of a shell script: words, operators, comments and here-documents.  Nothing is expanded but $'…'."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from netdoctor.model import record

_STOPS: Final = re.compile(r'["\\$`]|\Z')  # what means something inside double quotes
_PLAIN: Final = re.compile(r"[\w./:=,+@%^~*?!\[\]-]*")  # what means nothing outside quotes
_HERE: Final = re.compile(r"<<-?\s*[\"'\\]?([\w.-]+)[\"']?")
_VARIABLE: Final = re.compile(r"\$(?:\w+|[^\w\s'\"])?")
_ENDS_WORD: Final = frozenset(" \t\r\n;&|()<>")
_ARITHMETIC: Final = 500  # characters: a longer ((…)) is taken for subshells
_DEFAULT: Final = re.compile(r"([A-Za-z_]\w*):?=(.*)\Z", re.DOTALL)  # of ${NAME:=VALUE}
# What a backslash is in $'…' (bash(1), ANSI-C quoting).
_ANSI: Final = re.compile(r"\\(x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|c.|[0-7]{1,3}|.)", re.DOTALL)
_ANSI_LETTERS: Final = dict(zip("abeEfnrtv", "\a\b\x1b\x1b\f\n\r\t\v", strict=True))


@dataclass
class Word:
    text: str
    line: int
    opaque: str = ""  # why its text is not what the shell will make of it
    runs: list[tuple[str, int]] = field(default_factory=list)  # what its command substitutions run, and in which line
    open: bool = False  # a quote or bracket of it does not end
    returned: bool = False  # a carriage return follows it, which to the shell is a part of it
    sets: list[tuple[str, str]] = field(default_factory=list)  # NAME and VALUE of each ${NAME:=VALUE}, unexpanded
    glued: bool = False  # right behind a semicolon, without a blank


@record
class Operator:
    """One of ``; & | && || ( ) { }`` or a newline."""

    text: str
    line: int


@record
class Comment:
    text: str
    line: int


@record
class HereDoc:
    body: str
    line: int  # its first


Token = Word | Operator | Comment | HereDoc


class Tokenizer:
    """Iterate over it once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._subshells = 0  # up to here, (( opens two of them
        self._marks: list[str] = []  # of here-documents that begin behind the next newline

    def __iter__(self) -> Iterator[Token]:
        while self._at < len(self._text):
            c = self._text[self._at]
            following = self._text[self._at + 1 : self._at + 2]
            if self._text.startswith("<<", self._at):
                self._here()
            elif c in "<>" and following == "(":  # a process substitution is a word
                word = Word("", self._line)
                self._expansion(word)
                yield word
            elif self._text.startswith("((", self._at) and self._at >= self._subshells:
                yield from self._arithmetic()
            elif c in " \t\r<>":  # what a redirection names comes as a word
                self._at += 1
            elif c == "\\" and following in ("", "\n"):
                self._escaped(None)
            elif c == "#":
                yield self._comment()
            elif c in "\n;&|()" or (c in "{}" and following in ("", " ", "\n", "\t", ";")):
                yield self._operator()
                if c == "\n":
                    yield from self._documents()
            else:
                yield self._word()

    def _arithmetic(self) -> Iterator[Token]:
        """``((…))`` is ``let "…"`` (bash(1)); if its brackets are not of one pair, the first opens a subshell."""
        end = _closing(self._text, self._at, _ARITHMETIC)
        if not end or _closing(self._text, self._at + 1, _ARITHMETIC) != end - 1:
            self._subshells = self._at + _ARITHMETIC
            yield self._operator()
            return
        word = Word("", self._line)
        yield Word("let", self._line)
        self._take(word, end)
        word.text = word.text[2:-2].strip()
        word.opaque = "arithmetic" if "$" in word.text else ""
        yield word

    def _comment(self) -> Comment:
        end = self._text.find("\n", self._at)
        start, self._at = self._at, len(self._text) if end < 0 else end
        return Comment(self._text[start : self._at], self._line)

    def _operator(self) -> Operator:
        pair = self._text[self._at : self._at + 2]
        operator = Operator(pair if pair in ("&&", "||") else pair[0], self._line)
        self._at += len(operator.text)
        self._line += operator.text == "\n"
        return operator

    def _here(self) -> None:
        """Past ``<<<``, or past ``<<MARK``, whose document begins at the next newline."""
        if self._text.startswith("<<<", self._at):
            self._at += 3
            return
        mark = _HERE.match(self._text, self._at)
        if mark:
            self._marks.append(mark[1])
        self._at = mark.end() if mark else self._at + 2

    def _documents(self) -> Iterator[HereDoc]:
        for mark in self._marks:
            first, body = self._line, []
            while self._at < len(self._text):
                end = self._text.find("\n", self._at)
                end = len(self._text) if end < 0 else end
                line, self._at = self._text[self._at : end], end + 1
                self._line += 1
                if line.strip() == mark:
                    break
                body.append(line)
            yield HereDoc("\n".join(body), first)
        self._marks = []

    def _word(self) -> Word:
        word = Word("", self._line, glued=self._at > 0 and self._text[self._at - 1] == ";")
        while self._at < len(self._text) and self._text[self._at] not in _ENDS_WORD:
            c = self._text[self._at]
            if c == "\\":
                self._escaped(word)
            elif c in "'\"":
                self._quoted(word)
            elif self._text.startswith("$'", self._at):
                self._ansi(word)
            elif self._text.startswith('$"', self._at):  # a text to be translated
                self._at += 1
            elif c in "$`":
                self._expansion(word)
            else:
                self._take(word, _end(_PLAIN, self._text, self._at + 1))
        word.returned = self._text.startswith("\r\n", self._at)
        return word

    def _take(self, word: Word, end: int) -> None:
        """The text up to `end`, as it stands there."""
        piece = self._text[self._at : end]
        word.text += piece
        self._line += piece.count("\n")
        self._at = end

    def _escaped(self, word: Word | None) -> None:
        """Past a backslash and what it escapes; with a newline it is nothing at all."""
        escaped = self._text[self._at + 1 : self._at + 2]
        if escaped == "\n":
            self._line += 1
        elif word:
            word.text += escaped
        self._at += 2

    def _ansi(self, word: Word) -> None:
        """Past $'…', whose backslashes are those of C."""
        start = self._at = self._at + 2
        while self._at < len(self._text) and self._text[self._at] != "'":
            self._at += 2 if self._text[self._at] == "\\" else 1
        piece = self._text[start : self._at]
        word.open |= self._at >= len(self._text)
        word.text += _ANSI.sub(_ansi_character, piece)
        self._line += piece.count("\n")
        self._at += 1

    def _quoted(self, word: Word) -> None:
        quote = self._text[self._at]
        self._at += 1
        while self._at < len(self._text) and self._text[self._at] != quote:
            c = self._text[self._at]
            if quote == "'":
                end = self._text.find("'", self._at)
                self._take(word, end if end >= 0 else len(self._text))
            elif c == "\\" and self._at + 1 < len(self._text):
                if self._text[self._at + 1] not in '"\\$`\n':
                    word.text += c  # it escapes nothing here
                self._escaped(word)
            elif c in "$`":
                self._expansion(word)
            else:
                self._take(word, _end(_STOPS, self._text, self._at + 1, start=True))
        word.open |= self._at >= len(self._text)
        self._at += 1

    def _expansion(self, word: Word) -> None:
        """Past $NAME, ${…}, $(…), <(…) or `…`; the word is opaque from here on."""
        text, start, line = self._text, self._at, self._line
        if text[start] == "`":
            end = text.find("`", start + 1) + 1
            inside = slice(start + 1, end - 1 if end else len(text))
        elif text[start + 1 : start + 2] in ("(", "{"):
            end = _closing(text, start + 1)
            inside = slice(start + 2, end - 1 if end else len(text))
        else:
            end = _end(_VARIABLE, text, start)
            inside = slice(0)
        if end == start + 1:  # a dollar that expands nothing
            self._take(word, end)
            return
        if text[start] == "`" or (text[start + 1] == "(" and text[start + 2 : start + 3] != "("):
            word.runs.append((text[inside], line))
        if text[start + 1 : start + 2] == "{" and (default := _DEFAULT.match(text[inside])):
            word.sets.append((default[1], default[2]))
        word.open |= not end
        self._take(word, end or len(text))
        piece = text[start : self._at]
        shown = piece[:60].splitlines()[0] if piece.strip() else piece
        word.opaque = word.opaque or f"{shown!r} is only known when the script runs"


def _ansi_character(match: re.Match[str]) -> str:
    one = match[1]
    if one[0] in "xuU" and len(one) > 1:
        code = int(one[1:], 16)
        return chr(code) if code < 0x110000 and not 0xD800 <= code < 0xE000 else ""
    if one[0] in "01234567":
        return chr(int(one, 8) & 0xFF)
    if one[0] == "c" and len(one) == 2:
        return chr(ord(one[1]) & 0x1F)
    return _ANSI_LETTERS.get(one, one if one in "\\'\"?" else match[0])


def _end(pattern: re.Pattern[str], text: str, at: int, start: bool = False) -> int:
    """Where a match of `pattern` at `at` ends, or where the next one starts; both patterns also match nothing."""
    match = pattern.search(text, at) if start else pattern.match(text, at)
    if match is None:
        return at
    return match.start() if start else match.end()


def _closing(text: str, at: int, most: int | None = None) -> int:
    """The place behind the bracket that closes the one at `at`; 0 where none does, within `most` characters."""
    opening, level, last = text[at], 0, len(text) if most is None else min(len(text), at + most)
    closing = ")" if opening == "(" else "}"
    while at < last:
        c = text[at]
        if c == "\\":
            at += 1
        elif c in "'\"" and opening == "(":
            at += 1
            while at < len(text) and text[at] != c:
                at += 2 if text[at] == "\\" and c == '"' else 1
        level += (c == opening) - (c == closing)
        at += 1
        if level == 0:
            return at
    return 0

"""The only door to the machine: a host answers questions.

A question is a string, an answer is JSON or `Unavailable`.  In this process::

    file:PATH        text, at most 4 MiB
    again:PATH       the same, asked once the all-reduce has run
    trusted:PATH     the text of a file that root and this user alone can have written
    dir:PATH         sorted names
    link:PATH        the target of a symbolic link
    stat:PATH        {"mode", "uid", "gid", "type", "major", "minor", "dev"}  (follows links)
    statvfs:PATH     {"size", "free"}: bytes of the file system, and what a user may still take of them
    room:PATH        {"errno", "name", "tried", "size", "free"}: an unnamed file of one block made in a folder
    open:PATH:MODE   {"errno": 0 | N, "name": "EACCES"}; MODE is r or rw; the descriptor is closed at once
    env:             the environment as {name: value}
    config:          the effective configuration as the engine was given it

By helper programs in killable children (`netdoctor/host/helpers/NAME.py`), one file per native library::

    ask:NAME?key=value&…

Recording and replay are dictionaries from question to answer, negatives included, so a snapshot replays anywhere.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl, urlencode

from netdoctor.model import Json, Kind, Unavailable, plain, unavailable_in

Answer = Json | Unavailable
T = TypeVar("T")

_KIND_OF_ERRNO: Final = {
    errno.ENOENT: Kind.ABSENT,
    errno.ENOTDIR: Kind.ABSENT,
    errno.EACCES: Kind.DENIED,
    errno.EPERM: Kind.DENIED,
    errno.ETIMEDOUT: Kind.TIMED_OUT,
    errno.EOPNOTSUPP: Kind.UNSUPPORTED,
    errno.ENOSYS: Kind.UNSUPPORTED,
}


def unavailable(error: OSError) -> Unavailable:
    """The `Unavailable` that an OSError means."""
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    return Unavailable(_KIND_OF_ERRNO.get(error.errno or 0, Kind.FAILED), f"{name} {os.strerror(error.errno or 0)}")


class Host(Protocol):
    """Answers questions about one machine."""

    def ask(self, question: str) -> Answer:
        """The answer to `question`; never raises for what a machine may do."""

    def prefetch(self, questions: Iterable[str]) -> None:
        """Start answering `questions` at once, so that a later `ask` finds them answered."""


def question(name: str, /, **parameters: str | int) -> str:
    """``ask:NAME?…`` with its parameters in a fixed order."""
    pairs = sorted((k, str(v)) for k, v in parameters.items())
    return f"ask:{name}?{urlencode(pairs)}" if pairs else f"ask:{name}"


def split_question(text: str) -> tuple[str, dict[str, str]]:
    """The inverse of `question`."""
    name, _, query = text.removeprefix("ask:").partition("?")
    return name, dict(parse_qsl(query, keep_blank_values=True))


# What probes read through: each returns the content or Unavailable, and never raises.


def read_again(host: Host, path: str) -> str | Unavailable:
    """The same as `read` does, but once the all-reduce has run."""
    text = host.ask(f"again:{path}")
    if isinstance(text, str):
        return text.rstrip("\n")
    return text if isinstance(text, Unavailable) else Unavailable(Kind.MALFORMED, f"again:{path}: not text")


def read(host: Host, path: str) -> str | Unavailable:
    """The text of a file without its trailing newline; an empty file is the empty string."""
    text = host.ask(f"file:{path}")
    if isinstance(text, str):
        return text.rstrip("\n")
    return text if isinstance(text, Unavailable) else Unavailable(Kind.MALFORMED, f"file:{path}: not text")


def read_int(host: Host, path: str) -> int | Unavailable:
    """A file that holds one integer."""
    text = read(host, path)
    if isinstance(text, Unavailable):
        return text
    try:
        return int(text)
    except ValueError:
        return Unavailable(Kind.MALFORMED if text.strip() else Kind.EMPTY, f"{path}: {text[:60]!r}")


def matching(host: Host, path: str, pattern: str) -> re.Match[str] | Unavailable:
    """The start of a file's text, which must have this form."""
    text = read(host, path)
    if isinstance(text, Unavailable):
        return text
    found = re.match(pattern, text.strip(), re.ASCII)
    return found or Unavailable(Kind.MALFORMED if text.strip() else Kind.EMPTY, f"{path}: {text[:40]!r}")


def value(got: object, kind: type[T], what: str) -> T | Unavailable:
    """A field of a helper's answer: of this type, or why there is none."""
    if isinstance(got, dict) and (lost := unavailable_in(got)) is not None:
        return lost
    if isinstance(got, kind) and (kind is bool or not isinstance(got, bool)):
        return got
    if got is not None:
        return Unavailable(Kind.MALFORMED, what)
    return Unavailable(Kind.NOT_READ, f"{what}: not told" if what else "")


def names(host: Host, path: str) -> tuple[str, ...] | Unavailable:
    """The sorted entries of a directory."""
    got = host.ask(f"dir:{path}")
    if isinstance(got, Unavailable):
        return got
    if isinstance(got, list) and all(isinstance(n, str) for n in got):
        return tuple(str(n) for n in got)
    return Unavailable(Kind.MALFORMED, f"{path}: not a directory listing")


def link(host: Host, path: str) -> str | Unavailable:
    """The target of a symbolic link."""
    return _of_type(host, f"link:{path}", str, "not a link target")


def mapping(host: Host, text: str) -> dict[str, Any] | Unavailable:
    """The answer to a question that must be a JSON object."""
    return _of_type(host, text, dict, "not an object")


def _of_type(host: Host, text: str, kind: type[T], otherwise: str) -> T | Unavailable:
    got = host.ask(text)
    return got if isinstance(got, (kind, Unavailable)) else Unavailable(Kind.MALFORMED, f"{text}: {otherwise}")


class RecordingHost:
    """Asks another host and keeps every answer: nothing is asked twice, and the answers are the snapshot.

    `redact` sees every answer before anybody else does, so that a report and its snapshot rest on the same.
    """

    def __init__(self, host: Host, redact: Callable[[str, Answer], Answer] | None = None) -> None:
        self._host = host
        self._redact = redact
        self.answers: dict[str, Answer] = {}

    def ask(self, question: str) -> Answer:
        if question not in self.answers:
            got = self._host.ask(question)
            self.answers[question] = self._redact(question, got) if self._redact else got
        return self.answers[question]

    def prefetch(self, questions: Iterable[str]) -> None:
        self._host.prefetch(q for q in questions if q not in self.answers)


_NOT_RECORDED: Final = Unavailable(Kind.NOT_RECORDED)


class ReplayHost:
    """Answers from a dictionary; what is not in it is Unavailable(Kind.NOT_RECORDED)."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers

    def ask(self, question: str) -> Answer:
        return self.answers.get(question, _NOT_RECORDED)

    def prefetch(self, questions: Iterable[str]) -> None:
        pass


def encode(answers: Mapping[str, Answer]) -> dict[str, Json]:
    """Answers as JSON: ``{"ok": …}`` or ``{"unavailable": kind, "detail": …}`` under each question, sorted."""
    return {text: plain(got) if isinstance(got, Unavailable) else {"ok": got} for text, got in sorted(answers.items())}


def decode(data: Mapping[str, Any]) -> dict[str, Answer]:
    """The inverse of `encode`; an entry of another shape is Unavailable(Kind.MALFORMED)."""
    return dict(_decoded(data))


def _decoded(data: Mapping[str, Any]) -> Iterator[tuple[str, Answer]]:
    for text, entry in data.items():
        if isinstance(entry, dict) and "ok" in entry and "unavailable" in entry:
            yield text, Unavailable(Kind.MALFORMED, "a snapshot entry that is an answer, and none")
        elif isinstance(entry, dict) and "ok" in entry:
            yield text, entry["ok"]
        else:
            lost = unavailable_in(entry)
            yield text, Unavailable(Kind.MALFORMED, "snapshot entry") if lost is None else lost

"""Which lines of a chunk are worth reading where NCCL's are few: those that hold one of a few hundred words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from netdoctor.nccl.log.needles import DECIMAL, NEEDLE, PART

_CACHE: Final = 16384  # entries of a cache before it is thrown away
_SAMPLE: Final = 1 << 16
_NEW_SHAPES: Final = 4096  # shapes in one chunk beyond which they are searched for a few words only


class Sieve:
    """Lines of one shape (equal apart from digits) hold the same words: they are searched once."""

    def __init__(self) -> None:
        self.opening = b""  # words of a file's first line, which begins another run where it comes again
        self._dull: set[bytes] = set()  # shapes of lines that hold no needle
        self._dull_words: set[bytes] = set()
        self._telling: set[bytes] = set()

    def lines(self, chunk: bytes, number: int, goes_on: Callable[[], bool]) -> Iterator[tuple[int, bytes]]:
        """The lines of a chunk with one of the words, and those that what was found before goes on in, with their numbers, of
        which `number` is the first."""
        lines = chunk.split(b"\n")
        some = chunk[:_SAMPLE].translate(None, DECIMAL).split(b"\n")
        shapes = chunk.translate(None, DECIMAL).split(b"\n")
        alike = len(set(some)) * 2 <= len(some)
        telling = self._telling_shapes(set(shapes)) if alike else self._of_telling_words(shapes)
        at = 0
        for index in (*(i for i, shape in enumerate(shapes) if shape in telling), len(lines)):
            while at < index and goes_on():
                yield number + at, lines[at]
                at += 1
            if index < len(lines):
                yield number + index, lines[index]
                at = index + 1

    def _telling_shapes(self, shapes: set[bytes]) -> set[bytes]:
        """Those of which a line may be of some family; a shape is searched for needles once."""
        new = shapes - self._dull - self._telling
        if len(new) > _NEW_SHAPES:
            return self._telling | self._of_telling_words(new)
        if len(self._dull) + len(self._telling) > _CACHE:
            self._dull.clear()
            self._telling.clear()
        for shape in new:
            (self._dull if NEEDLE.search(shape.lower()) is None and not self._opens(shape) else self._telling).add(shape)
        return self._telling

    def _of_telling_words(self, lines: Iterable[bytes]) -> set[bytes]:
        """Where few lines are alike, many of their words are: a word is searched for parts of needles once."""
        telling, dull = set(), self._dull_words
        for line in lines:
            words = line.split()
            if self._opens(line):
                telling.add(line)
            if dull.issuperset(words):
                continue
            new = [word for word in words if word not in dull and PART.search(word.lower()) is None]
            if len(dull) > _CACHE:
                dull.clear()
            dull.update(new)
            if not dull.issuperset(words):
                telling.add(line)
        return telling

    def _opens(self, line: bytes) -> bool:
        return bool(self.opening) and self.opening in line

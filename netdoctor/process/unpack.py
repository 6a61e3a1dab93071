"""A stream as it was before it was packed: gzip, bzip2, xz and, with Python 3.14, zstd; block by block, never all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, Protocol

BLOCK: Final = 1 << 20  # bytes that come out at once: a block may hold the thousandfold
# `xz -9` takes 65 MiB to unpack (xz(1)); its header may ask for 4 GiB.
MEMORY: Final = 256 << 20


class Unpacker(Protocol):
    """Of one member, as bz2.BZ2Decompressor and those of lzma and compression.zstd have it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's in that shape."""

    def __init__(self) -> None:
        import zlib

        self._one = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._one.eof

    @property
    def needs_input(self) -> bool:
        return not self._one.eof and not self._one.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._one.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._one.decompress(self._one.unconsumed_tail + data, max_length)


def _bzip2() -> Unpacker:
    import bz2

    return bz2.BZ2Decompressor()


def _xz() -> Unpacker:
    import lzma

    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)


def _zstd() -> Unpacker:
    from importlib import import_module

    made: Any = import_module("compression.zstd")  # of Python 3.14
    unpacker: Unpacker = made.ZstdDecompressor()
    return unpacker


class _Way(NamedTuple):
    """A way to pack, and what a file begins with that was packed so."""

    program: str
    begins: re.Pattern[bytes]
    unpacker: Callable[[], Unpacker]


_WAYS: Final = (
    _Way("gzip", re.compile(rb"\x1f\x8b"), _Gzip),  # RFC 1952
    _Way("bzip2", re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"), _bzip2),  # a block, or the end of an empty one
    _Way("xz", re.compile(rb"\xfd7zXZ\0"), _xz),  # the .xz file format, 2.1.1.1
    _Way("zstd", re.compile(rb"\x28\xb5\x2f\xfd"), _zstd),  # RFC 8878, 3.1.1
)
LONGEST: Final = 10  # bytes of the longest of these beginnings


def packed(first: bytes) -> bool:
    """Whether a stream that begins so is to be unpacked."""
    return any(one.begins.match(first) for one in _WAYS)


def at_least(first: bytes, read: Callable[[], bytes]) -> bytes:
    """Enough to tell by: a pipe may bring it byte by byte."""
    while 0 < len(first) < LONGEST and (more := read()):
        first += more
    return first


def unpacked(first: bytes, read: Callable[[], bytes]) -> Iterator[bytes | None]:
    """Blocks of a stream of which `first` came; None, last, where it ends before its end.  Raises OSError of what is broken."""
    way = next((one for one in _WAYS if one.begins.match(first)), None)
    while way is None and first:
        yield first
        first = read()
    while way is not None and way.begins.match(first):  # several members after each other
        one = _begun(way)
        while not one.eof:
            if one.needs_input and not first and not (first := read()):
                yield None
                return
            try:
                out = one.decompress(first, BLOCK)
            except Exception as error:  # noqa: BLE001 - each library has its own
                raise OSError(0, f"not a sound {way.program} file: {error}") from None
            first = b""
            if out:
                yield out
        first = one.unused_data or read()
        while first and not first.strip(b"\0"):  # padding between members: the .xz file format, 2.2; blocks of a tape
            first = read()
        first = at_least(first.lstrip(b"\0"), read)


def _begun(way: _Way) -> Unpacker:
    try:
        return way.unpacker()
    except ImportError:  # an older Python, or one that was built without the library
        words = f"packed by {way.program}, which this Python does not know: {way.program} -dc FILE | netdoctor log -"
        raise OSError(0, words) from None

"""The ELF reader: real files read right, rubbish never more than an error."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from netdoctor.host.helpers import elf

MACHINES = {"x86_64": 62, "aarch64": 183}


def image(dynamic: list[tuple[int, int]], strings: bytes, order: str = "<", machine: int = 62) -> bytes:
    """A shared library with nothing but a dynamic section; DT_STRTAB and DT_STRSZ are added."""
    at = 64 + 2 * 56
    entries = [*dynamic, (5, at), (10, len(strings)), (0, 0)]
    table = b"".join(struct.pack(order + "QQ", *e) for e in entries)
    ident = b"\x7fELF" + bytes((2, 1 if order == "<" else 2, 1)) + bytes(9)
    header = ident + struct.pack(order + "HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 2, 0, 0, 0)
    size = at + len(strings) + len(table)
    load = struct.pack(order + "IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    section = struct.pack(order + "IIQQQQQQ", 2, 6, at + len(strings), at + len(strings), 0, len(table), len(table), 8)
    return header + load + section + strings + table


NAMES = b"\0libnccl.so.2\0libtorch_cuda.so\0$ORIGIN/../../nvidia/nccl/lib:/opt\0"
LIBRARY = [(1, 1), (14, 14), (15, 31)]  # NEEDED, SONAME, RPATH


@pytest.mark.parametrize("order", ["<", ">"])
def test_names_of_both_byte_orders(order: str, tmp_path: Path) -> None:
    path = tmp_path / "one.so"
    path.write_bytes(image(LIBRARY, NAMES, order))
    found = elf.describe(str(path))
    assert (found["needed"], found["soname"]) == (["libnccl.so.2"], "libtorch_cuda.so")
    assert (found["rpath"], found["runpath"]) == ("$ORIGIN/../../nvidia/nccl/lib:/opt", None)
    assert found["order"] == ("little" if order == "<" else "big")


def test_the_directories_that_a_file_names_are_looked_into(tmp_path: Path) -> None:
    inside = tmp_path / "torch" / "lib"
    nccl = tmp_path / "nvidia" / "nccl" / "lib"
    inside.mkdir(parents=True)
    nccl.mkdir(parents=True)
    (inside / "libtorch_cuda.so").write_bytes(image(LIBRARY, NAMES))
    (nccl / "libnccl.so.2").write_bytes(image([(14, 1)], NAMES))
    got = elf.answer({"files": str(inside / "libtorch_cuda.so")})
    assert isinstance(got, dict)
    directory = f"{inside}/../../nvidia/nccl/lib"
    assert got["dirs"][directory] == ["libnccl.so.2"]
    assert got["files"][f"{directory}/libnccl.so.2"]["real"] == str(nccl / "libnccl.so.2")


def test_the_interpreter_of_this_test() -> None:
    found = elf.describe(sys.executable)
    assert any(name.startswith("libc.so") for name in found["needed"])
    assert found["machine"] in MACHINES.values()


def test_a_symbol_by_the_loaders_own_hash_table() -> None:
    import _ctypes

    with elf.mapped(_ctypes.__file__) as data:
        library = elf.Elf(data)
        assert library.exports("PyInit__ctypes")
        assert not library.exports("ncclGetVersion")
        assert not library.exports("PyLong_FromLong")  # used, defined elsewhere


def test_version_of_a_file_that_is_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(image([], NAMES) + b"\0NCCL version %d.%d\0NCCL version 2.27.5+cuda12.9\0")
    assert elf.answer({"version": str(path)}) == {"text": "2.27.5+cuda12.9"}
    path.write_bytes(image([], NAMES))
    assert elf.answer({"version": str(path)}) == {"text": None}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"#!/bin/sh\n" * 20, "malformed"),
        (b"", "malformed"),
        (b"\x7fELF" + b"\1" * 100, "unsupported"),  # of 32 bits: the loader goes on
        (b"\x7fELF" + b"\2\1" * 50, "malformed"),
        (b"\x7fELF" + b"\3" * 100, "malformed"),
        (None, "absent"),
    ],
)
def test_what_is_no_library(content: bytes | None, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "libnccl.so.2"
    if content is not None:
        path.write_bytes(content)
    for got in (elf.describe(str(path)), elf.describe(str(path) + "/x")):
        assert got["error"]
    assert elf.describe(str(path))["kind"] == kind


@pytest.mark.parametrize(("mode", "kind"), [(0o311, "failed"), (0o000, "denied")])
def test_a_folder_that_is_searched_and_not_listed(mode: int, kind: str) -> None:
    """dlopen finds what it knows by name in a folder that may be searched, and nothing in one that is closed."""
    folder, was = tempfile.mkdtemp(), os.geteuid()  # pytest's own folders are closed to others
    os.chmod(folder, mode)
    try:
        os.seteuid(was or 65534)
        got: Any = elf.answer({"dirs": folder, "files": ""})
    finally:
        os.seteuid(was)
        os.rmdir(folder)
    assert got["dirs"][folder]["kind"] == kind


def test_a_folder_is_no_library(tmp_path: Path) -> None:
    assert elf.describe(str(tmp_path))["kind"] == "malformed"


GOOD = image(LIBRARY, NAMES)


@pytest.mark.slow
@given(st.binary(max_size=400), st.integers(0, len(GOOD)))
def test_rubbish_is_an_error_not_a_crash(rubbish: bytes, at: int) -> None:
    for data in (rubbish, GOOD[:at], GOOD[:at] + rubbish, GOOD[:at] + rubbish + GOOD[at + len(rubbish) :]):
        with contextlib.suppress(elf.MalformedError):
            one = elf.Elf(data)
            one.strings(1), one.strings(15), one.exports("ncclGetVersion")


def cache(entries: list[tuple[str, str, int]], old_format: bool = False) -> bytes:
    """A glibc loader cache; the old format, where it is there, precedes the new one."""
    strings = b""
    rows = []
    start = 48 + 24 * len(entries)
    for name, path, flags in entries:
        key = start + len(strings)
        strings += name.encode() + b"\0"
        value = start + len(strings)
        strings += path.encode() + b"\0"
        rows.append(struct.pack("=iIIIQ", flags, key, value, 0, 0))
    head = b"glibc-ld.so.cache1.1" + struct.pack("=IIB3xI3I", len(entries), len(strings), 0, 0, 0, 0, 0)
    return (b"ld.so-1.7.0\0" + bytes(20) if old_format else b"") + head + b"".join(rows) + strings


ENTRIES = [
    ("libnccl.so.2", "/usr/lib/x86_64-linux-gnu/libnccl.so.2", 0x0303),
    ("libnccl.so.2", "/usr/lib32/libnccl.so.2", 0x0003),
    ("libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6", 0x0303),
]


@pytest.mark.parametrize("old_format", [False, True])
def test_the_loader_cache(old_format: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: type("Fake", (), {"machine": "x86_64"}))
    assert elf.cache_entries(cache(ENTRIES, old_format), "libnccl") == [list(ENTRIES[0][:2])]


@given(st.binary(max_size=300), st.integers(0, 300))
def test_a_cut_or_mangled_cache(rubbish: bytes, at: int) -> None:
    good = cache(ENTRIES)
    for data in (good[:at], good[:at] + rubbish, rubbish):
        with contextlib.suppress(elf.MalformedError):
            elf.cache_entries(data, "lib")


def test_a_name_far_outside_the_file_is_malformed(tmp_path: Path) -> None:
    """Found by tests/fuzz: beyond what mmap.find takes, the survey of every library ended."""
    good = bytearray(image(LIBRARY, NAMES))
    struct.pack_into("<Q", good, 64 + 8, 1 << 63)  # the file offset of the segment that holds the names
    path = tmp_path / "one.so"
    path.write_bytes(good)
    assert elf.describe(str(path))["kind"] == "malformed"

r"""Reads ELF files and the loader's cache as bytes: nothing is loaded, nothing of them runs.

    ask:elf?cache=PREFIX      {"entries": [[soname, path], …]} of /etc/ld.so.cache, in the loader's order
    ask:elf?files=P1\nP2…&dirs=D1\nD2…    {"files": {P: {"needed", "soname", "rpath", "runpath", "exports", "real", …} | ERROR},
                                         "dirs": {D: [names that begin with libnccl] | ERROR}}
                              `dirs` also holds what the files' RPATH and RUNPATH name, `files` what lies in `dirs`;
                              ERROR is {"error": text, "kind": kind of Unavailable}
    ask:elf?needed=P1\nP2…&dirs=D1\nD2…&packages=S1\nS2…    {"files": {P: as above, with "wants" and "defines"},
                              "cache": {soname: [paths]} | ERROR, "loaded": [folders], "cut": whether there were more}: P1, P2
                              and what lies under a name that they need where a loader may look, in D1, D2, and in the
                              folders of torch and CUDA in S1, S2
    ask:elf?version=PATH      {"text": "2.27.5+cuda12.9" | null}: a search of the whole file, seconds for half a gigabyte

Not pyelftools 0.33, with which the reading would be some 100 lines shorter: importing it takes the child from 16 to 53 ms, 300
libraries of a torch take 606 ms instead of 39, and of 300 damaged files it raises ValueError and OverflowError beside its own
errors (the two agree on all that both read).

Sources: elf(5), System V gABI (dynamic section, hash table), glibc sysdeps/generic/dl-cache.h and elf/dl-lookup.c.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import struct

TYPE_CHECKING = False  # typing itself costs 8 ms of a child
if TYPE_CHECKING:
    from typing import Any

    Bytes = Any  # bytes or a mmap: slices, find and the buffer protocol

MAX_ENTRIES = 1 << 16  # of a dynamic section, of the loader cache
MAX_STRING = 1 << 16  # a search path of 64 KiB is rubbish
PT_LOAD, PT_DYNAMIC = 1, 2
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_RPATH, DT_RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
DT_FLAGS_1, DT_GNU_HASH = 0x6FFFFFFB, 0x6FFFFEF5
DT_VERDEF, DT_VERDEFNUM, DT_VERNEED, DT_VERNEEDNUM = 0x6FFFFFFC, 0x6FFFFFFD, 0x6FFFFFFE, 0x6FFFFFFF
VER_FLG_WEAK = 2
MAX_FILES = 200  # that a plugin needs, in every folder of the search
DF_1_NODEFLIB = 0x800
# What netdoctor wants to know about: NCCL itself, and the interfaces of its plugins (v1 to v20 leaves room).
PLUGINS = ("ncclNetPlugin_v", "ncclTunerPlugin_v", "ncclProfiler_v", "ncclEnvPlugin_v")
NAMES = ("ncclGetVersion", "ncclCommInitRank", *(f"{name}{n}" for name in PLUGINS for n in range(1, 21)))


class MalformedError(ValueError):
    """Not an ELF file that this reader follows."""


class OtherClassError(MalformedError):
    """A 32-bit ELF file: the loader of a 64-bit program passes it over (elf/dl-load.c, open_verify)."""


class Elf:
    """One 64-bit ELF file, little or big endian.  Every access is checked against the file's size."""

    def __init__(self, data: Bytes) -> None:
        self.data = data
        if len(data) < 64 or data[:4] != b"\x7fELF":
            raise MalformedError("not an ELF file")
        if data[4] == 1:
            raise OtherClassError("a 32-bit ELF file")
        if data[4] != 2:
            raise MalformedError("an ELF file of no class")
        if data[5] not in (1, 2):
            raise MalformedError("no byte order")
        self.order = "<" if data[5] == 1 else ">"
        (self.machine,) = self.unpack("H", 18)
        (offset,) = self.unpack("Q", 32)
        size, count = self.unpack("HH", 54)
        if count and size < 56:
            raise MalformedError("program headers are too short")
        self.segments: list[tuple[int, int, int, int]] = []  # (type, file offset, address, bytes in file)
        for index in range(count):
            kind, _, at, address, _, length = self.unpack("IIQQQQ", offset + index * size)
            self.segments.append((kind, at, address, length))
        self.dynamic = self.read_dynamic()

    def unpack(self, layout: str, offset: int) -> tuple[Any, ...]:
        layout = self.order + layout
        if offset < 0 or offset + struct.calcsize(layout) > len(self.data):
            raise MalformedError("points outside the file")
        return struct.unpack_from(layout, self.data, offset)

    def read_dynamic(self) -> dict[int, list[int]]:
        tags: dict[int, list[int]] = {}
        for kind, at, _, length in self.segments:
            if kind != PT_DYNAMIC:
                continue
            for index in range(min(length // 16, MAX_ENTRIES)):
                tag, value = self.unpack("QQ", at + 16 * index)
                if tag == 0:
                    break
                tags.setdefault(tag, []).append(value)
        return tags

    def offset(self, address: int) -> int:
        """Where an address lies in the file."""
        for kind, at, start, length in self.segments:
            if kind == PT_LOAD and start <= address < start + length:
                return at + address - start
        raise MalformedError("an address lies in no segment")

    def value(self, tag: int) -> int | None:
        values = self.dynamic.get(tag)
        return values[0] if values else None

    def string(self, index: int) -> str:
        table, size = self.value(DT_STRTAB), self.value(DT_STRSZ)
        if table is None or size is None or index >= size:
            raise MalformedError("a name lies outside the string table")
        start = self.offset(table) + index
        if start >= len(self.data):
            raise MalformedError("points outside the file")
        end = self.data.find(b"\0", start, start + min(MAX_STRING, size - index))
        if end < 0:
            raise MalformedError("a name has no end")
        return str(self.data[start:end].decode("utf-8", "backslashreplace"))

    def strings(self, tag: int) -> list[str]:
        return [self.string(index) for index in self.dynamic.get(tag, ())]

    def wants(self) -> list[list[str]]:
        """[[soname, version], …] that other libraries must define, or the loader refuses (elf/dl-version.c, match_symbol)."""
        found: list[list[str]] = []
        at = self.value(DT_VERNEED)
        at = self.offset(at) if at is not None else 0
        for _ in range(min(self.value(DT_VERNEEDNUM) or 0, MAX_ENTRIES)):
            _, count, file, aux, after = self.unpack("HHIII", at)
            entry = at + aux
            for _ in range(count):
                _, flags, _, name, more = self.unpack("IHHII", entry)
                found += [] if flags & VER_FLG_WEAK else [[self.string(file), self.string(name)]]
                entry += more
            at += after
        return found

    def defines(self) -> list[str]:
        """The versions of its symbols; none: the loader asks for none."""
        found = []
        at = self.value(DT_VERDEF)
        at = self.offset(at) if at is not None else 0
        for _ in range(min(self.value(DT_VERDEFNUM) or 0, MAX_ENTRIES)):
            _, _, _, _, _, aux, after = self.unpack("HHHHIII", at)
            found.append(self.string(self.unpack("I", at + aux)[0]))
            at += after
        return found

    def symbol(self, index: int) -> tuple[str, bool]:
        """(name, defined here)"""
        table = self.value(DT_SYMTAB)
        if table is None:
            raise MalformedError("no symbol table")
        name, _, _, section = self.unpack("IBBH", self.offset(table) + 24 * index)
        return self.string(name), section != 0

    def exports(self, name: str) -> bool:
        """Whether `name` is defined here, by the hash table that the loader itself uses."""
        gnu, classic = self.value(DT_GNU_HASH), self.value(DT_HASH)
        if gnu is not None:
            return self._by_gnu_hash(name, self.offset(gnu))
        return classic is not None and self._by_hash(name, self.offset(classic))

    def _by_gnu_hash(self, name: str, base: int) -> bool:
        buckets, first, bloom, _ = self.unpack("IIII", base)
        if not buckets:
            return False
        wanted = 5381
        for byte in name.encode():
            wanted = (wanted * 33 + byte) & 0xFFFFFFFF
        table = base + 16 + 8 * bloom
        (index,) = self.unpack("I", table + 4 * (wanted % buckets))
        if index < first:
            return False
        for number in range(index, index + MAX_ENTRIES):
            (have,) = self.unpack("I", table + 4 * buckets + 4 * (number - first))
            if have | 1 == wanted | 1 and self.symbol(number) == (name, True):
                return True
            if have & 1:
                return False
        return False

    def _by_hash(self, name: str, base: int) -> bool:
        buckets, chains = self.unpack("II", base)
        if not buckets:
            return False
        wanted = 0
        for byte in name.encode():
            wanted = (wanted << 4) + byte
            high = wanted & 0xF0000000
            wanted = (wanted ^ (high >> 24)) & ~high & 0xFFFFFFFF
        (index,) = self.unpack("I", base + 8 + 4 * (wanted % buckets))
        for _ in range(min(chains, MAX_ENTRIES)):
            if not index:
                return False
            if self.symbol(index) == (name, True):
                return True
            (index,) = self.unpack("I", base + 8 + 4 * buckets + 4 * index)
        return False


def mapped(path: str) -> mmap.mmap:
    """The bytes of a regular file.  Raises OSError, MalformedError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        got = os.fstat(fd)
        if not stat.S_ISREG(got.st_mode):
            raise MalformedError("not a regular file")
        if got.st_size < 64:
            raise MalformedError("not an ELF file")
        return mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)


def describe(path: str, versions: bool = False) -> dict[str, Any]:
    """What the loader would read in `path`."""
    try:
        real = os.path.realpath(path)
        with mapped(path) as data:
            elf = Elf(data)
            more = {"wants": elf.wants(), "defines": elf.defines()} if versions else {}
            return {
                **more,
                "real": real,
                "machine": elf.machine,
                "order": "little" if elf.order == "<" else "big",
                "needed": elf.strings(DT_NEEDED),
                "soname": next(iter(elf.strings(DT_SONAME)), None),
                "rpath": next(iter(elf.strings(DT_RPATH)), None),
                "runpath": next(iter(elf.strings(DT_RUNPATH)), None),
                "default_dirs": not (elf.value(DT_FLAGS_1) or 0) & DF_1_NODEFLIB,
                "exports": [name for name in NAMES if elf.exports(name)],
            }
    except (OSError, MalformedError) as error:
        return failure(error) | {"real": os.path.realpath(path)}


def failure(error: Exception) -> dict[str, Any]:
    """An error as data."""
    if isinstance(error, OSError):
        kind = {errno.ENOENT: "absent", errno.ENOTDIR: "absent", errno.EACCES: "denied", errno.EPERM: "denied"}
        return {"error": os.strerror(error.errno or 0), "kind": kind.get(error.errno or 0, "failed")}
    return {"error": str(error), "kind": "unsupported" if isinstance(error, OtherClassError) else "malformed"}


def version_text(path: str) -> str | None:
    """The version that a libnccl (or a program it was linked into) carries as text."""
    with mapped(path) as data:
        # The literal of NCCL's own banner (src/init.cc, showVersion); torch's texts around "NCCL version" have no +cuda.
        found = re.search(rb"NCCL version (\d+\.\d+\.\d+[^+\s\0]{0,16}\+cuda\d+\.\d+)", data)
        return found.group(1).decode("ascii", "replace") if found else None


def cache_entries(data: bytes, prefix: str) -> list[list[str]]:
    """[[soname, path], …] of a loader cache for this machine's architecture, in its order."""
    start = data.find(b"glibc-ld.so.cache1.1")
    if start < 0:
        raise MalformedError("no glibc loader cache")
    order = {0: "=", 2: "<", 3: ">"}.get(data[start + 28] & 3 if len(data) > start + 28 else 0, "=")
    try:
        count, _ = struct.unpack_from(order + "II", data, start + 20)
        rows = [struct.unpack_from(order + "iIIIQ", data, start + 48 + 24 * n) for n in range(min(count, MAX_ENTRIES))]
    except struct.error:
        raise MalformedError("the loader cache is cut short") from None
    wanted = {"x86_64": 0x0303, "aarch64": 0x0A03, "ppc64le": 0x0503, "s390x": 0x0403, "riscv64": 0x1003}.get(
        os.uname().machine
    )
    out = []
    for flags, key, value, _, _ in rows:
        name = text_at(data, start + key)
        if name.startswith(prefix) and (wanted is None or flags == wanted):
            out.append([name, text_at(data, start + value)])
    return out


def text_at(data: bytes, offset: int) -> str:
    end = data.find(b"\0", offset, offset + MAX_STRING)
    if offset >= len(data) or end < 0:
        raise MalformedError("the loader cache points outside itself")
    return data[offset:end].decode("utf-8", "backslashreplace")


def answer(parameters: dict[str, str]) -> object:
    """See the module's text.  What cannot be read is {"error": text, "kind": kind of Unavailable}."""
    try:
        if "cache" in parameters:
            with open(parameters.get("file", "/etc/ld.so.cache"), "rb") as file:
                return {"entries": cache_entries(file.read(64 << 20), parameters["cache"])}
        if "version" in parameters:
            return {"text": version_text(parameters["version"])}
    except (OSError, MalformedError) as error:
        return failure(error)
    directories = lines(parameters.get("dirs", ""))
    if "needed" in parameters:
        return closure(lines(parameters["needed"]), directories, lines(parameters.get("packages", "")))
    return survey(lines(parameters.get("files", "")), directories)


def lines(text: str) -> list[str]:
    return [line for line in text.split("\n") if line]


def survey(paths: list[str], directories: list[str]) -> dict[str, Any]:
    """The files, the directories that they name, and every libnccl in these."""
    files = {path: describe(path) for path in paths}
    directories = directories + [d for path, found in files.items() for d in own_directories(path, found)]
    dirs: dict[str, Any] = {}
    for directory in directories:
        if directory in dirs:
            continue
        try:
            dirs[directory] = sorted(name for name in os.listdir(directory) if name.startswith("libnccl") and ".so" in name)
        except OSError as error:
            dirs[directory] = failure(error)
            # The loader opens what it knows by name.
            if isinstance(error, PermissionError) and os.access(directory, os.X_OK, effective_ids=True):
                dirs[directory] = {"error": "it may be searched and not listed", "kind": "failed"}
            continue
        for name in dirs[directory]:
            files.setdefault(f"{directory}/{name}", describe(f"{directory}/{name}"))
    return {"files": files, "dirs": dirs}


def closure(paths: list[str], directories: list[str], packages: list[str]) -> dict[str, Any]:
    """The files, and every file under a name that one of them needs; which of these is taken is netdoctor/facts/loader.py's."""
    cache: dict[str, list[str]] = {}
    broken: dict[str, Any] = {}
    try:
        with open("/etc/ld.so.cache", "rb") as file:
            for name, path in cache_entries(file.read(64 << 20), ""):
                cache.setdefault(name, []).append(path)
    except (OSError, MalformedError) as error:
        broken = failure(error)
    loaded = [folder for package in packages for folder in (f"{package}/torch/lib", *wheels(f"{package}/nvidia"))]
    files: dict[str, Any] = {}
    todo, names = list(dict.fromkeys(paths)), set()
    while todo and len(files) < MAX_FILES:
        path = todo.pop(0)
        if path in files:
            continue
        files[path] = found = describe(path, versions=True)
        if os.path.basename(path).startswith("libfabric.so"):
            found["providers"] = listed(f"{os.path.dirname(found['real'])}/libfabric")
        directories += [d for d in own_directories(path, found) if d not in directories] if path in paths else []
        folders = dict.fromkeys((*own_directories(path, found), *directories, *loaded))
        for name in found.get("needed", ()):
            names.add(name)
            could = [name] if "/" in name else [f"{folder}/{name}" for folder in folders] + cache.get(name, [])
            todo += [one for one in could if one not in files and os.path.exists(one)]
    entries = broken or {name: cache[name] for name in sorted(names) if name in cache}
    return {"files": files, "cache": entries, "loaded": loaded, "cut": bool(todo)}


def wheels(folder: str) -> list[str]:
    """The folders of CUDA's own wheels, which torch loads before NCCL."""
    return [f"{folder}/{name}/lib" for name in listed(folder)]


def listed(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def own_directories(path: str, found: dict[str, Any]) -> list[str]:
    """The search path inside a file with $ORIGIN put in, as netdoctor/facts/loader.py expands it."""
    origin = path.rpartition("/")[0]
    text = found.get("runpath") or found.get("rpath") or ""
    parts = (part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for part in text.split(":"))
    return [part for part in parts if part.startswith("/")]

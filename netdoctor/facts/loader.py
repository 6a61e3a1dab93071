"""Which file the dynamic loader takes for a library name, as a pure function of what it would look at.

Source: ld.so(8), glibc elf/dl-load.c (_dl_map_object): a library with that soname that is already loaded (LD_PRELOAD) serves;
then DT_RPATH of the requesting object and of the objects that loaded it, unless the requesting object has a DT_RUNPATH;
LD_LIBRARY_PATH; DT_RUNPATH of the requesting object alone; /etc/ld.so.cache; the default directories.  An object that has both
a DT_RPATH and a DT_RUNPATH has no DT_RPATH (get-dynamic-info.h).  A file of another architecture or class (32 bits) is passed
over, a file that is no ELF file ends the search with an error (open_verify).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field
from typing import Final

from netdoctor.model import Kind, Unavailable, Word, record

# What distributions compile in as last directories: Debian's multiarch triplet first, then lib64 and lib.
DEFAULT_DIRS: Final = ("/lib/{triplet}", "/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
TRIPLETS: Final = {62: "x86_64-linux-gnu", 183: "aarch64-linux-gnu", 21: "powerpc64le-linux-gnu", 243: "riscv64-linux-gnu"}


@record
class Object:
    """What the loader reads in one ELF file."""

    path: str
    needed: tuple[str, ...] = ()
    soname: str | None = None
    rpath: str | None = None
    runpath: str | None = None
    default_dirs: bool = True  # False: DF_1_NODEFLIB
    machine: int = 62  # e_machine


@record
class Search:
    """What the loader is given from outside."""

    preload: tuple[Object, ...] = ()  # LD_PRELOAD and /etc/ld.so.preload, as loaded
    library_path: str | None = None  # LD_LIBRARY_PATH
    cache: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # soname -> paths, in the cache's order
    default: tuple[str, ...] = ()


class Rule(Word):
    """Why the loader looks at a path."""

    PATH = "its path is in DT_NEEDED"
    PRELOAD = "LD_PRELOAD"
    RPATH = "DT_RPATH"
    LIBRARY_PATH = "LD_LIBRARY_PATH"
    RUNPATH = "DT_RUNPATH"
    CACHE = "loader cache"
    DEFAULT = "default directory"


@record
class Taken:
    """A file that the loader tries, and takes where it fits."""

    path: str
    rule: Rule
    of: str = ""  # whose DT_RPATH or DT_RUNPATH

    @property
    def by(self) -> str:
        return f"{self.rule.value} of {self.of}" if self.of else self.rule.value


def default_dirs(machine: int) -> tuple[str, ...]:
    """The default directories for an ELF machine number."""
    triplet = TRIPLETS.get(machine)
    return tuple(d.format(triplet=triplet) for d in DEFAULT_DIRS if triplet or "{" not in d)


def split_path(text: str) -> tuple[str, ...]:
    """The elements of LD_LIBRARY_PATH; both : and ; separate, an empty one is the working directory."""
    return tuple(text.replace(";", ":").split(":")) if text else ()


def expand(directory: str, origin: str, machine: int = 62) -> str:
    """`directory` with $ORIGIN, $LIB and $PLATFORM put in, without resolving `..` (the kernel does that)."""
    names = {"ORIGIN": origin, "LIB": f"lib/{TRIPLETS[machine]}" if machine in TRIPLETS else "lib64", "PLATFORM": "x86_64"}
    for name, value in names.items():
        directory = directory.replace("${" + name + "}", value).replace("$" + name, value)
    return directory


def _own_dirs(one: Object, text: str) -> Iterator[str]:
    origin = one.path.rpartition("/")[0]
    for part in text.split(":"):
        if part:
            yield expand(part, origin, one.machine)


def _dirs(requester: Object, loaders: Iterable[Object], search: Search) -> Iterator[tuple[str, Rule, str]]:
    """(directory, why, whose) of those that objects and the environment name."""
    for one in (requester, *loaders) if requester.runpath is None else ():
        if one.runpath is None:
            yield from ((directory, Rule.RPATH, one.path) for directory in _own_dirs(one, one.rpath or ""))
    for directory in split_path(search.library_path or ""):
        yield expand(directory, "", requester.machine) or ".", Rule.LIBRARY_PATH, ""
    yield from ((directory, Rule.RUNPATH, requester.path) for directory in _own_dirs(requester, requester.runpath or ""))


def candidates(name: str, requester: Object, loaders: Iterable[Object], search: Search) -> Iterator[Taken]:
    """In the order in which the loader tries them; `loaders` go from the requester's loader up to the program."""
    if "/" in name:
        yield Taken(expand(name, requester.path.rpartition("/")[0], requester.machine), Rule.PATH)
        return
    yield from (Taken(one.path, Rule.PRELOAD) for one in search.preload if one.soname == name)
    yield from (Taken(f"{directory}/{name}", rule, whose) for directory, rule, whose in _dirs(requester, loaders, search))
    default = search.default or default_dirs(requester.machine)
    for path in search.cache.get(name, ()):
        if requester.default_dirs or path.rpartition("/")[0] not in default:
            yield Taken(path, Rule.CACHE)
    if requester.default_dirs:
        yield from (Taken(f"{directory}/{name}", Rule.DEFAULT) for directory in default)


def takes(
    name: str,
    requester: Object,
    loaders: Iterable[Object],
    search: Search,
    look: Callable[[str], Object | Unavailable],
) -> Taken | None | Unavailable:
    """The file that is loaded for `name`; None where the loader finds none.

    `look` gives what lies at a path: an Object, or Unavailable: "absent" and "denied" (open() fails) and "unsupported" (of 32
    bits) send the loader on, "malformed" ends the search.  Else it could not be looked at, and nobody knows who wins.
    """
    for one in candidates(name, requester, loaders, search):
        found = look(one.path)
        if isinstance(found, Object):
            if found.machine == requester.machine:
                return one
        elif found.kind == Kind.MALFORMED:
            return one
        elif found.kind not in (Kind.ABSENT, Kind.DENIED, Kind.UNSUPPORTED):
            return found
    return None

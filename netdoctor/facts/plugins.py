"""The plugins around NCCL: which file dlopen gives for a name, and whether the loader finds all that it needs.

NCCL opens them with dlopen(…, RTLD_NOW | RTLD_LOCAL), src/plugin/plugin_open.cc: the search path is that of libnccl, which
calls it, and one name or version that is not found refuses the whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from netdoctor.facts import library_search as find
from netdoctor.facts.loader import Object, Search, Taken, default_dirs, expand, split_path, takes
from netdoctor.host.base import Host, mapping, question
from netdoctor.model import Kind, Unavailable, Word, kind_named, record

VARIABLES: Final = ("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN", "NCCL_PROFILER_PLUGIN", "NCCL_ENV_PLUGIN")
SYMBOLS: Final = ("ncclNetPlugin", "ncclTunerPlugin", "ncclProfiler", "ncclEnvPlugin")


class FoundBy(Word):
    """What led to a library, as people read it."""

    PRELOAD = "LD_PRELOAD"
    LIBRARY_PATH = "LD_LIBRARY_PATH"
    SITE_PACKAGES = "site-packages"
    TORCH = "torch"
    TORCH_SEARCH = "the search path inside torch"
    PREFIX = "the Python's prefix"
    CACHE = "loader cache"
    DEFAULT = "default directory"
    VLLM = "VLLM_NCCL_SO_PATH"
    NET_PLUGIN = "NCCL_NET_PLUGIN"
    TUNER_PLUGIN = "NCCL_TUNER_PLUGIN"
    PROFILER_PLUGIN = "NCCL_PROFILER_PLUGIN"
    ENV_PLUGIN = "NCCL_ENV_PLUGIN"


NAMED: Final = frozenset(FoundBy(name) for name in VARIABLES)


@record
class Plugin:
    """A file that NCCL could load as a plugin."""

    path: str
    name: str  # "libnccl-net.so" "libnccl-tuner.so" …
    found_by: tuple[FoundBy, ...]
    symbols: tuple[str, ...] | Unavailable = Unavailable(Kind.NOT_READ)  # ncclNetPlugin_v8, ncclTunerPlugin_v4 …
    aliases: tuple[str, ...] = ()  # other paths of the same file (aws-ofi-nccl: libnccl-net.so -> libnccl-net-ofi.so)
    opened_as: tuple[str, ...] = ()  # names for which dlopen gives this file
    lacks: (
        tuple[str, ...] | Unavailable
    ) = ()  # what the loader does not find for it: "libfabric.so.1", "libc.so.6 (GLIBC_2.38)"
    # Whether the libfabric that it takes has a provider for EFA; None: it takes none.
    efa: bool | None | Unavailable = None
    foreign: str = ""  # the architecture that it is built for, where that is not libnccl's

    @property
    def refused(self) -> bool:
        """The loader surely does not take it: no library, or another machine's."""
        return bool(self.foreign) or (isinstance(self.symbols, Unavailable) and self.symbols.kind is Kind.MALFORMED)


@dataclass
class Survey:
    """What the ELF helper answered, and where each file was found."""

    files: Mapping[str, Any]
    dirs: Mapping[str, Any]
    cache: dict[str, tuple[str, ...]] | Unavailable
    found_by: dict[str, list[FoundBy]] = field(default_factory=dict)

    def look(self, path: str) -> Object | Unavailable:
        """What the loader would find at `path`."""
        row = self.files.get(path)
        directory, _, name = path.rpartition("/")
        if row is None:
            listing = self.dirs.get(directory)
            if isinstance(listing, list):
                return Unavailable(Kind.ABSENT) if name not in listing else Unavailable(Kind.NOT_READ, f"{path} was not read")
            row = listing if isinstance(listing, dict) else {"error": f"{path} was not looked at", "kind": "not read"}
        return as_object(path, row)

    def real(self, path: str) -> str:
        row = self.files.get(path)
        return str(row.get("real", path)) if isinstance(row, dict) else path


def as_object(path: str, row: Mapping[str, Any]) -> Object | Unavailable:
    """A row of the ELF helper as what the loader reads."""
    if (lost := error_of(row)) is not None:
        return lost
    soname, rpath, runpath = row["soname"], row["rpath"], row["runpath"]
    return Object(path, tuple(row["needed"]), soname, rpath, runpath, bool(row["default_dirs"]), int(row["machine"]))


def error_of(row: Mapping[str, Any]) -> Unavailable | None:
    """Why the helper could not read one file or folder."""
    return Unavailable(kind_named(row.get("kind")), str(row["error"])) if "error" in row else None


@record
class Caller:
    """Who calls dlopen: libnccl, and what loaded it, up to the program; with what the loader was given from outside."""

    libnccl: Object
    above: tuple[Object, ...]
    search: Search
    packages: tuple[str, ...] = ()  # whose torch and CUDA are in the process before NCCL
    provider_path: str = ""  # FI_PROVIDER_PATH
    machine_known: bool = True  # whether libnccl's e_machine was read, of it or of the program


def every(host: Host, survey: Survey, caller: Caller) -> tuple[Plugin, ...]:
    """The plugins that were found, each with what the loader makes of it."""
    found = _files(survey)
    if not found:
        return found
    have = [one.path for one in found if not isinstance(one.symbols, Unavailable)]
    needs = _Needs.of(host, have, caller) if have else None
    names = {path.rpartition("/")[2] for one in found for path in (one.path, *one.aliases)}
    given = {name: takes(name, caller.libnccl, caller.above, caller.search, survey.look) for name in sorted(names)}
    by_real = {name: survey.real(one.path) for name, one in given.items() if isinstance(one, Taken)}
    return tuple(
        replace(
            one,
            opened_as=tuple(name for name, real in by_real.items() if real == survey.real(one.path)),
            **({} if needs is None or isinstance(one.symbols, Unavailable) else needs.judged(one.path)),
            foreign=_foreign(survey.look(one.path), caller),
        )
        for one in found
    )


# e_machine (elf.h), as uname(1) calls it.
_ARCHITECTURES: Final = {3: "i386", 62: "x86_64", 183: "aarch64", 21: "ppc64le", 243: "riscv64"}


def _foreign(found: Object | Unavailable, caller: Caller) -> str:
    """The loader passes such a file over (elf/dl-load.c, open_verify)."""
    if isinstance(found, Unavailable) or not caller.machine_known or found.machine == caller.libnccl.machine:
        return ""
    return _ARCHITECTURES.get(found.machine, f"e_machine {found.machine}")


def _files(survey: Survey) -> tuple[Plugin, ...]:
    seen: dict[str, Plugin] = {}
    for path, found_by in sorted(survey.found_by.items()):
        name = path.rpartition("/")[2]
        found = survey.look(path)
        absent = isinstance(found, Unavailable) and found.kind == Kind.ABSENT
        if absent or not (find.PLUGIN.fullmatch(name) or NAMED.intersection(found_by)):
            continue
        row = survey.files.get(path, {})
        symbols: Iterable[str] | Unavailable = found if isinstance(found, Unavailable) else row.get("exports", ())
        names = symbols if isinstance(symbols, Unavailable) else tuple(n for n in symbols if n.startswith(SYMBOLS))
        real = survey.real(path)
        if (known := seen.get(real)) is None:
            seen[real] = Plugin(path, name, tuple(found_by), names)
        else:
            by = tuple(dict.fromkeys((*known.found_by, *found_by)))
            seen[real] = replace(known, found_by=by, aliases=(*known.aliases, path))
    return tuple(seen.values())


@record
class _Needs:
    """The files under the names that plugins need, and who takes which."""

    files: Mapping[str, Any] | Unavailable
    cache: Mapping[str, tuple[str, ...]] | Unavailable
    loaded: Sequence[str]
    cut: bool
    caller: Caller

    @classmethod
    def of(cls, host: Host, paths: Sequence[str], caller: Caller) -> _Needs:
        dirs = [d for d in (expand(d, "") for d in split_path(caller.search.library_path or "")) if d.startswith("/")]
        for one in (caller.libnccl, *caller.above):
            text, origin = one.rpath if one.runpath is None else None, one.path.rpartition("/")[0]
            dirs += [d for part in (text or "").split(":") if (d := expand(part, origin, one.machine)).startswith("/")]
        dirs += default_dirs(caller.libnccl.machine)
        asked = question(
            "elf", needed="\n".join(paths), dirs="\n".join(dict.fromkeys(dirs)), packages="\n".join(caller.packages)
        )
        got = mapping(host, asked)
        if isinstance(got, Unavailable):
            return cls(got, got, (), False, caller)
        files, cache = got.get("files"), got.get("cache")
        if not isinstance(files, dict) or not isinstance(cache, dict):
            lost = Unavailable(Kind.MALFORMED, "ask:elf")
            return cls(lost, lost, (), False, caller)
        unread = error_of(cache)
        if unread is None:
            entries: Mapping[str, tuple[str, ...]] | Unavailable = {str(n): tuple(map(str, p)) for n, p in cache.items()}
        else:
            entries = {} if unread.kind == Kind.ABSENT else unread  # musl, a slim image
        return cls(files, entries, [str(one) for one in got.get("loaded", ())], bool(got.get("cut")), caller)

    def _look(self, path: str) -> Object | Unavailable:
        row = self.files.get(path) if isinstance(self.files, Mapping) else None
        return Unavailable(Kind.ABSENT) if row is None else as_object(path, row)

    def judged(self, path: str) -> dict[str, Any]:
        """The fields of a `Plugin` that say what becomes of its needs."""
        if isinstance(self.files, Unavailable):
            return {"lacks": self.files, "efa": self.files}
        first = self._look(path)
        if isinstance(first, Unavailable):
            lost = Unavailable(Kind.NOT_READ, f"{path}: {first}")
            return {"lacks": lost, "efa": lost}
        lacks, unread = dict[str, None](), None
        libfabric: str | None | Unavailable = None
        for name, user, taken in self._walk(first):
            if isinstance(taken, Unavailable):
                unread = taken if unread is None else unread
            elif taken is None:
                lacks[name if user == path else f"{name}, which {user.rpartition('/')[2]} needs"] = None
            if taken is not None and name.startswith("libfabric.so"):
                libfabric = taken
            gone = self._versions(name, user, taken) if taken else ()
            lacks |= dict.fromkeys(f"{name} ({version})" for version in gone)
        said: tuple[str, ...] | Unavailable = tuple(lacks)
        if said and isinstance(self.cache, Unavailable):
            said = Unavailable(Kind.NOT_READ, f"{said[0]}: the loader's cache: {self.cache}")
        elif self.cut:
            said = Unavailable(Kind.NOT_READ, "it needs more libraries than were looked at")
        elif not said and unread is not None:
            said = unread
        return {"lacks": said, "efa": self._efa(libfabric)}

    def _walk(self, first: Object) -> Iterator[tuple[str, str, str | None | Unavailable]]:
        """(name, who needs it, the file that is taken) for all that a plugin needs; a name is taken once in a process."""
        todo: list[tuple[Object, tuple[Object, ...]]] = [(first, ())]
        done: set[str] = set()
        caller, held = self.caller, self._held()
        while todo:
            user, chain = todo.pop(0)
            for name in user.needed:
                if name in done:
                    continue
                done.add(name)
                cache = self.cache if not isinstance(self.cache, Unavailable) else {}
                search = replace(caller.search, cache=cache)
                taken = takes(name, user, (*chain, caller.libnccl, *caller.above), search, self._look)
                found = self._look(taken.path) if isinstance(taken, Taken) else taken
                if isinstance(taken, Taken) and isinstance(found, Object):
                    yield name, user.path, taken.path
                    todo.append((found, (user, *chain)))
                elif name not in held:
                    yield name, user.path, None if found is None else Unavailable(Kind.NOT_READ, f"{name}: {found}")

    def _held(self) -> set[str]:
        """Names that the process has already: of the program, torch and NCCL, and what lies in torch's and CUDA's folders."""
        held = {name for one in (self.caller.libnccl, *self.caller.above) for name in (*one.needed, one.soname or "")}
        files = self.files if isinstance(self.files, Mapping) else {}
        return held | {path.rpartition("/")[2] for path in files if path.rpartition("/")[0] in self.loaded}

    def _versions(self, name: str, user: str, taken: str) -> list[str]:
        """What `user` wants of `name` and the file does not define; one without any is not asked (elf/dl-version.c)."""
        files = self.files if isinstance(self.files, Mapping) else {}
        defines = files.get(taken, {}).get("defines") or ()
        wants = files.get(user, {}).get("wants") or ()
        return [str(version) for of, version in wants if of == name and defines and version not in defines]

    def _efa(self, libfabric: str | None | Unavailable) -> bool | None | Unavailable:
        """libfabric links libefa where the provider is built in, or has libefa-fi.so in its folder (libfabric, fabric.7)."""
        if isinstance(libfabric, Unavailable):
            return libfabric
        if libfabric is None or not isinstance(self.files, Mapping):
            return None
        row = self.files[libfabric]
        if any(str(name).startswith("libefa.so") for name in row.get("needed", ())) or "libefa-fi.so" in row.get(
            "providers", ()
        ):
            return True
        if self.caller.provider_path:
            return Unavailable(Kind.NOT_READ, "FI_PROVIDER_PATH names folders that were not looked at")
        return False

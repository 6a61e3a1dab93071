"""Every libnccl and network plugin that the loader could take, and the one that the job's torch does take."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts import library_search as find, plugins
from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.library_search import JobPython, Linkage, Torch, prefix_of
from netdoctor.facts.loader import Object, Rule, Search, Taken, default_dirs, expand, split_path, takes
from netdoctor.facts.nccl_version import Version, parse
from netdoctor.facts.plugins import FoundBy, Plugin, Survey, error_of
from netdoctor.host.base import Host, mapping, question, read
from netdoctor.model import Kind, Unavailable, record

SONAME: Final = "libnccl.so.2"
MACHINES: Final = (62, 183)  # EM_X86_64, EM_AARCH64 (elf.h): those that NCCL is built for
MAX_LIBRARIES: Final = 16  # each costs a child process
_TORCH_LIBS: Final = ("libtorch_cuda.so", "libtorch_cpu.so", "libtorch_global_deps.so", "libtorch_python.so")


@record
class NcclLibrary:
    """One libnccl file on this machine."""

    path: str
    real_path: str
    version: Version | Unavailable
    found_by: tuple[FoundBy, ...]


@record
class Libraries(Fact):
    """The libraries that the job would load: libnccl, torch, NCCL's plugins."""

    python: JobPython | Unavailable
    torch: Torch | Unavailable  # Unavailable(Kind.ABSENT): the job's Python has none
    nccl: tuple[NcclLibrary, ...] | Unavailable
    plugins: tuple[Plugin, ...] | Unavailable
    incomplete: tuple[str, ...] = ()  # sources that could not be read: there may be more libraries than these
    # The libnccl that the loader gives a program without a search path of its own.
    by_loader: Taken | None | Unavailable = Unavailable(Kind.NOT_READ)

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        return super()._unread(no_evidence(why))

    def at(self, path: str) -> NcclLibrary | None:
        """The libnccl of this path."""
        return next((one for one in self.nccl or () if path in (one.path, one.real_path)), None)

    def nccl_version(self, path: str) -> Version | Unavailable:
        """The version of the libnccl of this path."""
        found = self.at(path)
        return found.version if found else Unavailable(Kind.NOT_READ, "not among the libraries that were looked at")


def probe(host: Host) -> Libraries:
    """Libraries around the job: files are read, nothing is imported; a libnccl is loaded in a child to ask its version."""
    variables = mapping(host, "env:")
    if isinstance(variables, Unavailable):
        return Libraries(variables, variables, variables, variables)
    config = mapping(host, "config:") or {}
    python = find.job_python(host, variables, config.get("python"), config.get("command"), config.get("near"))
    packages: tuple[str, ...] = ()
    torch: Torch | Unavailable
    if isinstance(python, Unavailable):
        torch = Unavailable(Kind.NOT_READ, f"no Python: {python}")
    else:
        packages, unread = find.site_packages(host, python.path, variables)
        torch = find.read_torch(host, packages, unread)
    survey, incomplete = _survey(host, python, packages, torch, variables)
    if isinstance(survey, Unavailable):
        if not isinstance(torch, Unavailable):
            torch = replace(torch, nccl_linkage=survey, nccl_path=survey)
        return Libraries(python, torch, survey, survey, incomplete)
    wheels = find.wheels(host, packages)
    if not isinstance(torch, Unavailable) and not isinstance(python, Unavailable):
        torch = replace(_linkage(host, torch, survey, python, variables), nccl_compiled=find.compiled_pin(host, torch))
    taken = _by_loader(survey, python, variables)
    there = plugins.every(host, survey, _caller(survey, torch, taken, python, packages, variables))
    return Libraries(python, torch, _libraries(host, survey, wheels), there, incomplete, taken)


def _caller(
    survey: Survey,
    torch: Torch | Unavailable,
    taken: Taken | None | Unavailable,
    python: JobPython | Unavailable,
    packages: tuple[str, ...],
    variables: Mapping[str, str],
) -> plugins.Caller:
    """The libnccl that opens plugins, and what loaded it; where it is not known, one without a search path of its own."""
    path = torch.nccl_path if torch and isinstance(torch.nccl_path, str) else taken.path if isinstance(taken, Taken) else ""
    program = _program(survey, python) if python else None
    users = [survey.look(f"{torch.path}/lib/{name}") for name in _TORCH_LIBS] if torch else []
    above = tuple(one for one in (*users, program) if isinstance(one, Object))
    found = survey.look(path) if path else None
    machine = program.machine if isinstance(program, Object) else MACHINES[0]
    libnccl = found if isinstance(found, Object) else Object(path, soname=SONAME, machine=machine)
    known = isinstance(found, Object) or isinstance(program, Object)
    return plugins.Caller(libnccl, above, _search(survey, variables), packages, variables.get("FI_PROVIDER_PATH", ""), known)


def _places(
    python: JobPython | Unavailable,
    packages: tuple[str, ...],
    torch: Torch | Unavailable,
    variables: Mapping[str, str],
) -> tuple[dict[str, FoundBy], dict[str, FoundBy | None]]:
    """Directories and files to look at, each with why; None for files that are no libnccl themselves."""
    dirs = {expand(d, "") or ".": FoundBy.LIBRARY_PATH for d in split_path(variables.get("LD_LIBRARY_PATH", ""))}
    files: dict[str, FoundBy | None] = {}
    own = [(f"{directory}/nvidia/nccl/lib", FoundBy.SITE_PACKAGES) for directory in packages]
    if torch:
        own.append((f"{torch.path}/lib", FoundBy.TORCH))
        files |= {f"{torch.path}/lib/{name}": None for name in _TORCH_LIBS}
    if python:
        prefix = prefix_of(python.path)
        own.append((f"{prefix}/lib", FoundBy.PREFIX))
        files |= {**dict.fromkeys((f"{prefix}/lib/{name}" for name in _TORCH_LIBS), None), python.path: None}
    own += [(directory, FoundBy.DEFAULT) for machine in MACHINES for directory in default_dirs(machine)]
    for directory, why in own:
        dirs.setdefault(directory, why)
    return dirs, files


def _survey(
    host: Host,
    python: JobPython | Unavailable,
    packages: tuple[str, ...],
    torch: Torch | Unavailable,
    variables: Mapping[str, str],
) -> tuple[Survey | Unavailable, tuple[str, ...]]:
    """One question about all files and directories, and the loader's cache."""
    dirs, files = _places(python, packages, torch, variables)
    preload = (variables.get("LD_PRELOAD", ""), read(host, "/etc/ld.so.preload") or "")
    files |= {path: FoundBy.PRELOAD for text in preload for path in re.split(r"[\s:]+", text) if path.startswith("/")}
    for name in ("VLLM_NCCL_SO_PATH", *plugins.VARIABLES):
        for path in variables.get(name, "").split(",") if name == "NCCL_NET_PLUGIN" else (variables.get(name, ""),):
            if path.startswith("/"):
                files.setdefault(path, FoundBy(name))
    answer = mapping(host, "ask:elf?cache=libnccl")
    cache = _cache(answer)
    if not isinstance(cache, Unavailable):
        files |= {path: FoundBy.CACHE for paths in cache.values() for path in paths if path not in files}
    incomplete = (f"the loader's cache: {cache}",) if isinstance(cache, Unavailable) else ()
    got = mapping(host, question("elf", files="\n".join(files), dirs="\n".join(dirs)))
    if isinstance(got, Unavailable):
        return got, incomplete
    if not isinstance(got.get("files"), dict) or not isinstance(got.get("dirs"), dict):
        return Unavailable(Kind.MALFORMED, "ask:elf"), incomplete
    survey = Survey(got["files"], got["dirs"], cache)
    for path, why in files.items():
        if why:
            survey.found_by.setdefault(path, []).append(why)
    for directory, listing in survey.dirs.items():
        for name in listing if isinstance(listing, list) else ():
            survey.found_by.setdefault(f"{directory}/{name}", []).append(dirs.get(directory, FoundBy.TORCH_SEARCH))
    return survey, (*incomplete, *_unread(survey))


def _unread(survey: Survey) -> Iterator[str]:
    """Folders that could not be listed, where the loader may open a file all the same, and libraries that could not be read;
    what is closed to this process is so to the loader."""
    for directory, listing in survey.dirs.items():
        lost = error_of(listing) if isinstance(listing, dict) else None
        if lost is not None and lost.kind not in (Kind.ABSENT, Kind.DENIED):
            yield f"{directory}: {lost}"
    for path in survey.found_by:
        found = survey.look(path)
        if isinstance(found, Unavailable) and found.kind in (Kind.FAILED, Kind.TIMED_OUT):
            yield f"{path}: {found}"


def _cache(answer: dict[str, Any] | Unavailable) -> dict[str, tuple[str, ...]] | Unavailable:
    """soname → paths; a machine without a cache (musl, a slim image) has an empty one."""
    if isinstance(answer, Unavailable):
        return answer
    if (lost := error_of(answer)) is not None:
        return {} if lost.kind == Kind.ABSENT else lost
    out: dict[str, tuple[str, ...]] = {}
    for name, path in answer.get("entries", ()):
        out[str(name)] = (*out.get(str(name), ()), str(path))
    return out


def _linkage(host: Host, torch: Torch, survey: Survey, python: JobPython, variables: Mapping[str, str]) -> Torch:
    """How torch comes to its NCCL, by the loader's rules."""
    prefix = prefix_of(python.path)
    objects: dict[str, Object] = {}
    for name in _TORCH_LIBS:
        for directory in (f"{torch.path}/lib", f"{prefix}/lib"):
            found = survey.look(f"{directory}/{name}")
            if isinstance(found, Object):
                objects.setdefault(name, found)
            elif found.kind not in (Kind.ABSENT, Kind.DENIED):
                return replace(torch, nccl_linkage=found, nccl_path=found)
    # torch/__init__.py loads libtorch_global_deps.so first, so its search path counts where it names NCCL itself.
    order = [objects[n] for n in ("libtorch_global_deps.so", "libtorch_cuda.so", "libtorch_cpu.so") if n in objects]
    user = next((o for o in order if any(n.startswith("libnccl.so") for n in o.needed)), None)
    cuda = objects.get("libtorch_cuda.so")
    if user is None:
        linkage = _static(host, survey, cuda)
        return replace(torch, nccl_linkage=linkage, nccl_path=None)
    above = [objects["libtorch_python.so"]] if "libtorch_python.so" in objects else []
    program = _program(survey, python)
    loaders = [*above, *([program] if isinstance(program, Object) else [])]
    search = _search(survey, variables)
    soname = next(n for n in user.needed if n.startswith("libnccl.so"))
    taken = takes(soname, user, loaders, search, survey.look)
    if isinstance(survey.cache, Unavailable) and (taken is None or (taken and taken.rule is Rule.DEFAULT)):
        taken = survey.cache
    if not isinstance(taken, Taken):
        return replace(torch, nccl_linkage=Linkage.DYNAMIC, nccl_path=taken)
    return replace(torch, nccl_linkage=Linkage.DYNAMIC, nccl_path=survey.real(taken.path), nccl_why=taken.by)


def _program(survey: Survey, python: JobPython) -> Object | Unavailable:
    program = survey.look(survey.real(python.path))
    return program if isinstance(program, Object) else survey.look(python.path)


def _search(survey: Survey, variables: Mapping[str, str]) -> Search:
    preload = tuple(
        one for p, why in survey.found_by.items() if FoundBy.PRELOAD in why and isinstance(one := survey.look(p), Object)
    )
    return Search(preload, variables.get("LD_LIBRARY_PATH"), survey.cache or {})


def _by_loader(survey: Survey, python: JobPython | Unavailable, variables: Mapping[str, str]) -> Taken | None | Unavailable:
    """What a program of the job's machine gets that names no folder itself (nccl-tests, a C++ program)."""
    program = _program(survey, python) if python else None
    machines = (program.machine,) if isinstance(program, Object) else MACHINES
    for machine in machines:
        nobody = Object("", (SONAME,), None, None, None, True, machine)
        taken = takes(SONAME, nobody, (), _search(survey, variables), survey.look)
        if isinstance(survey.cache, Unavailable) and (taken is None or (taken and taken.rule is Rule.DEFAULT)):
            return survey.cache
        if taken is not None:
            return replace(taken, path=survey.real(taken.path)) if isinstance(taken, Taken) else taken
    return None


def _static(host: Host, survey: Survey, cuda: Object | None) -> Linkage | Unavailable:
    """Whether NCCL was linked into libtorch_cuda.so: it exports NCCL's functions, or carries its banner."""
    if cuda is None:
        return Linkage.NONE
    if any(name.startswith(("ncclGet", "ncclComm")) for name in survey.files[cuda.path].get("exports", ())):
        return Linkage.STATIC
    answer = mapping(host, question("elf", version=cuda.path))
    if isinstance(answer, Unavailable):
        return answer
    if (lost := error_of(answer)) is not None:
        return lost
    return Linkage.STATIC if answer.get("text") else Linkage.NONE


def _libraries(host: Host, survey: Survey, wheels: Mapping[str, Version | Unavailable]) -> tuple[NcclLibrary, ...]:
    by_real: dict[str, list[str]] = {}
    for path in survey.found_by:
        if find.LIBRARY.fullmatch(path.rpartition("/")[2]) and not _absent(survey.look(path)):
            by_real.setdefault(survey.real(path), []).append(path)
    reals = sorted(by_real)[:MAX_LIBRARIES]
    host.prefetch(question("nccl", path=real) for real in reals if isinstance(survey.look(by_real[real][0]), Object))
    return tuple(_library(host, survey, real, by_real[real], wheels) for real in reals)


def _absent(found: Object | Unavailable) -> bool:
    return isinstance(found, Unavailable) and found.kind == Kind.ABSENT


def _library(
    host: Host,
    survey: Survey,
    real: str,
    paths: list[str],
    wheels: Mapping[str, Version | Unavailable],
) -> NcclLibrary:
    path = min(paths, key=lambda p: (not p.endswith(SONAME), p))
    found_by = tuple(dict.fromkeys(why for p in paths for why in survey.found_by[p]))
    found = survey.look(path)
    version = found if isinstance(found, Unavailable) else _version(host, real, paths, wheels)
    return NcclLibrary(path, real, version, found_by)


def _version(host: Host, real: str, paths: list[str], wheels: Mapping[str, Version | Unavailable]) -> Version | Unavailable:
    """What the library answers; where it does not, what its wheel or the text in its file says."""
    answer = mapping(host, question("nccl", path=real))
    said = (answer or {}).get("version")
    if isinstance(said, list) and len(said) == 3 and all(type(n) is int and n >= 0 for n in said):
        return said[0], said[1], said[2]
    for directory, wheel in wheels.items():
        if not isinstance(wheel, Unavailable) and any(p.startswith(f"{directory}/nvidia/nccl/") for p in (*paths, real)):
            return wheel
    spelled = (mapping(host, question("elf", version=real)) or {}).get("text")
    if isinstance(spelled, str) and (parsed := parse(spelled)):
        return parsed
    return answer if isinstance(answer, Unavailable) else Unavailable(Kind.FAILED, str(answer.get("error", "no version")))

"""Where libraries around the job could lie: the job's Python, its site-packages, the directories that the loader searches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from netdoctor.facts.nccl_version import Version
from netdoctor.host.base import Host, link, names, read
from netdoctor.model import Kind, Unavailable, Word, record

MARKER: Final = ".netdoctor-torch"  # written by netdoctor's own Makefile beside the torch that it installs
_PYTHON: Final = re.compile(r"python(\d+(\.\d+)?t?)?")
_VERSIONED: Final = re.compile(r"python(\d+\.\d+)t?$")
LIBRARY: Final = re.compile(r"libnccl\.so(\.\d+)*$")
PLUGIN: Final = re.compile(r"libnccl-[\w.-]+\.so(\.\d+)*$")  # libnccl-ofi-tuner.so too, which is taken by its name
GIVE_PYTHON: Final = "give the Python that has the job's torch: --python PATH"  # how to find out, where its torch was not seen


@record
class JobPython:
    """The interpreter that the job uses, as far as it can be told."""

    path: str
    why: str  # for people: "--python", "VIRTUAL_ENV", "python3 on PATH" …
    ours: bool  # netdoctor's own Makefile installed its torch (marker file): never judged
    given: bool = False  # with --python or in the configuration: it is the job's, wherever this is seen from
    of_command: bool = False  # the command that runs in the next second starts it


class Linkage(Word):
    """How torch comes to its NCCL."""

    DYNAMIC = "dynamic"
    STATIC = "static"
    NONE = "none"


@record
class Torch:
    """The job's torch, read without importing it."""

    version: str | Unavailable  # "2.13.0+cpu"
    path: str
    cuda: str | None | Unavailable  # "12.8"; None: a CPU build
    nccl_linkage: Linkage | Unavailable
    nccl_path: str | None | Unavailable  # the libnccl that its loader rules take, links resolved
    nccl_compiled: Version | None | Unavailable  # what it was compiled against, where it says so
    nccl_why: str = ""  # by which rule of the loader: "DT_RPATH of …/libtorch_cuda.so" "LD_PRELOAD" "loader cache" …


def job_python(
    host: Host, variables: Mapping[str, str], configured: object, command: object = None, near: object = None
) -> JobPython | Unavailable:
    """The interpreter that the job would use, and why this one.  `command`: the program that starts the job, if known; what it
    runs counts more than what was said of it.  `near`: `live.interpreters`."""
    try:
        if not isinstance(command, str) or not command:
            return _job_python(host, variables, configured, _near(near))
        if path := of_command(host, variables, command):
            if is_file(host, path):
                return JobPython(path, "the command", is_file(host, f"{prefix_of(path)}/{MARKER}"), of_command=True)
            return Unavailable(Kind.FAILED, f"{path}, the Python of the command {command}, is not a file that can be read here")
        found = _job_python(host, variables, configured, _near(near))
        return found if isinstance(found, Unavailable) else replace(found, why=f"{found.why}; the command does not tell")
    except UnreadError as error:
        return Unavailable(Kind.NOT_READ, str(error))


def _near(near: object) -> dict[str, str]:
    """As it was recorded: path by name."""
    return {str(name): str(path) for name, path in near.items()} if isinstance(near, Mapping) else {}


_ENVIRONMENTS: Final = ("VIRTUAL_ENV", "CONDA_PREFIX")
_NEAR: Final = {"launcher": "the launcher", "own": "the Python that netdoctor runs in, which has a torch"}


def _job_python(
    host: Host, variables: Mapping[str, str], configured: object, near: Mapping[str, str]
) -> JobPython | Unavailable:
    choices: list[tuple[str, str]] = []
    given = isinstance(configured, str) and configured != ""
    if isinstance(configured, str) and given:
        choices.append((configured, "--python"))
    else:
        choices += ((path, _NEAR[name]) for name, path in near.items() if name == "launcher")
        for name in _ENVIRONMENTS:
            if prefix := variables.get(name):
                choices += ((f"{prefix.rstrip('/')}/bin/{program}", name) for program in ("python3", "python"))
        if torchrun := on_path(host, variables, "torchrun"):
            interpreter = shebang(host, torchrun)
            if interpreter.startswith("/"):
                choices.append((interpreter, f"the first line of {torchrun}"))
        choices += ((path, _NEAR[name]) for name, path in near.items() if name == "own")
        if python := on_path(host, variables, "python3"):
            choices.append((python, "python3 on PATH"))
    passed: list[str] = []  # environments that are named and have no Python: the job's shell passes them over as well
    for said, why in choices:
        path = _whole(host, variables, said)
        if path is None:
            return Unavailable(Kind.ABSENT, f"{said}, given as the job's Python, is neither on PATH nor a whole path")
        if is_file(host, path):
            words = f"{why}; {' and '.join(passed)}" if passed else why
            return JobPython(path, words, is_file(host, f"{prefix_of(path)}/{MARKER}"), given)
        if given:
            return Unavailable(Kind.ABSENT, f"{path}, given as --python, is not a file that can be read here")
        if why in _ENVIRONMENTS and path.endswith("/python"):
            passed.append(f"{why}: no Python is reached in {prefix_of(path)}")
    return Unavailable(Kind.ABSENT, "no --python, VIRTUAL_ENV, CONDA_PREFIX, torchrun or python3 on PATH")


def _whole(host: Host, variables: Mapping[str, str], said: str) -> str | None:
    """The path that is meant; None where PATH does not have that name, or nobody knows where a path begins."""
    return said if said.startswith("/") else None if "/" in said else on_path(host, variables, said)


def of_command(host: Host, variables: Mapping[str, str], command: str) -> str | None:
    """The Python that runs `command` (a path, or a name to look for on PATH): itself, or that of its first line.

    As it is written: a virtual environment's python is a link, and what it imports depends on where the link lies.
    """
    path = command if "/" in command else on_path(host, variables, command)
    if path is None or not is_file(host, path):
        return None
    if path.rpartition("/")[0].endswith("/shims"):
        path = _behind_shim(host, path)
        if path is None:
            return None
    if _is_python(host, path):
        return path
    words = _first_line(host, path)
    if words and words[0].rpartition("/")[2] == "env":
        words = words[2:] if words[1:2] == ["-S"] else words[1:]
        if not words or not _PYTHON.fullmatch(words[0]):
            return None
        return on_path(host, variables, words[0])
    # One that is gone is named all the same: the job will not start with another.
    return words[0] if words and words[0].startswith("/") and _is_python(host, words[0]) else None


def _is_python(host: Host, path: str) -> bool:
    """By the name of the program, or of one that its links lead to."""
    for _ in range(8):
        if _PYTHON.fullmatch(path.rpartition("/")[2]):
            return True
        target = link(host, path)
        if isinstance(target, Unavailable):
            return False
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return False


class UnreadError(Exception):
    """A file of higher precedence could not be looked at: what comes after it is no answer."""


def is_file(host: Host, path: str) -> bool:
    """Whether there is a file that may be reached; UnreadError where nobody could look."""
    got = host.ask(f"stat:{path}")
    if isinstance(got, Unavailable) and got.kind not in (Kind.ABSENT, Kind.DENIED):
        raise UnreadError(f"{path}: {got}")
    return isinstance(got, dict) and got.get("type") == "file"


def on_path(host: Host, variables: Mapping[str, str], program: str) -> str | None:
    """The first `program` on PATH; whether it may be run is not asked."""
    for directory in variables.get("PATH", "").split(":"):
        path = f"{directory.rstrip('/')}/{program}"
        if directory.startswith("/") and is_file(host, path):
            if not directory.rstrip("/").endswith("/shims"):
                return path
            if behind := _behind_shim(host, path):
                return behind
    return None


def _behind_shim(host: Host, path: str) -> str | None:
    """pyenv puts shell scripts on PATH; without a local choice the file ROOT/version names the one that runs."""
    root, _, program = path.rpartition("/shims/")
    chosen = read(host, f"{root}/version")
    if isinstance(chosen, Unavailable) or not chosen.split():
        return None
    real = f"{root}/versions/{chosen.split()[0]}/bin/{program}"
    return real if is_file(host, real) else None


def shebang(host: Host, script: str) -> str:
    """The interpreter of a script, "" where there is none."""
    return next(iter(_first_line(host, script)), "")


def _first_line(host: Host, script: str) -> list[str]:
    """The words after #!; pip and conda write two lines of sh where the path is too long for the kernel."""
    text = read(host, script)
    if isinstance(text, Unavailable):
        if text.kind not in (Kind.ABSENT, Kind.DENIED, Kind.MALFORMED):  # malformed: larger than any script
            raise UnreadError(f"{script}: {text}")
        return []
    lines = text[:4096].splitlines()
    first = lines[0] if lines else ""
    if first.startswith("#!/bin/sh") and len(lines) > 1 and (found := re.match(r"'''exec' (?:\"([^\"]+)\"|(\S+))", lines[1])):
        return [found.group(1) or found.group(2)]
    return first[2:].split() if first.startswith("#!") else []


def prefix_of(python: str) -> str:
    """/opt/venv of /opt/venv/bin/python3"""
    return python.rpartition("/")[0].rpartition("/")[0]


def site_packages(host: Host, python: str, variables: Mapping[str, str]) -> tuple[tuple[str, ...], Unavailable | None]:
    """Directories that this Python imports from, in order, as far as files tell; and what could not be read on the way.

    A virtual environment has its own; with ``include-system-site-packages = true`` also those of its base, named in
    pyvenv.cfg (PEP 405).  Debian and its images use dist-packages, and /usr/local for what pip installs.
    """
    found = [d for d in variables.get("PYTHONPATH", "").split(":") if d.startswith("/")]
    unread: list[Unavailable] = []
    prefix = prefix_of(python)
    config = read(host, f"{prefix}/pyvenv.cfg")
    if isinstance(config, Unavailable):
        if config.kind != Kind.ABSENT:
            unread.append(config)
        version = _version(host, python)
        found += _user_site(version, variables)
        found += _packages(host, ("/usr/local", "/usr") if prefix in ("/usr", "") else (prefix,), version, unread)
    else:
        settings = {k.strip().lower(): v.strip() for k, _, v in (row.partition("=") for row in config.splitlines())}
        said = re.match(r"\d+\.\d+", settings.get("version", settings.get("version_info", "")))
        version = said.group() if said else _version(host, python)
        found += _packages(host, (prefix,), version, unread)
        if settings.get("include-system-site-packages", "").lower() == "true":
            base = prefix_of(settings.get("home", "/usr/bin").rstrip("/") + "/python3")
            found += _user_site(version, variables)
            found += _packages(host, ("/usr/local", "/usr") if base in ("/usr", "") else (base,), version, unread)
    return tuple(dict.fromkeys(found)), (unread[0] if unread else None)


def _version(host: Host, python: str) -> str | None:
    """ "3.12", from the name of the program that the link leads to."""
    path = python
    for _ in range(8):
        if found := _VERSIONED.search(path):
            return found.group(1)
        target = link(host, path)
        if isinstance(target, Unavailable):
            return None
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return None


def _packages(host: Host, prefixes: tuple[str, ...], version: str | None, unread: list[Unavailable]) -> Iterator[str]:
    for prefix in prefixes:
        for lib in ("lib", "lib64"):
            have = names(host, f"{prefix}/{lib}")
            if isinstance(have, Unavailable):
                unread += [] if have.kind == Kind.ABSENT else [have]
                continue
            for name in have:
                found = _VERSIONED.fullmatch(name)
                if name == "python3" and prefix == "/usr":
                    yield f"{prefix}/{lib}/python3/dist-packages"
                elif found and version in (None, found.group(1)):
                    yield from (f"{prefix}/{lib}/{name}/{kind}-packages" for kind in ("site", "dist"))


def _user_site(version: str | None, variables: Mapping[str, str]) -> Iterator[str]:
    home = variables.get("HOME", "")
    if version and home.startswith("/") and not variables.get("PYTHONNOUSERSITE"):
        yield f"{home}/.local/lib/python{version}/site-packages"


def read_torch(host: Host, packages: tuple[str, ...], unread: Unavailable | None = None) -> Torch | Unavailable:
    """torch/version.py of the first directory that has it; its libraries are not looked at here."""
    for directory in packages:
        text = read(host, f"{directory}/torch/version.py")
        if isinstance(text, Unavailable):
            if text.kind != Kind.ABSENT:
                return text
            continue
        missing = Unavailable(Kind.MALFORMED, f"{directory}/torch/version.py")
        cuda = re.search(r"^cuda\b[^=\n]*=\s*(?:'([\d.]+)'|\"([\d.]+)\"|(None))\s*$", text, re.MULTILINE)
        version = re.search(r"^__version__\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", text, re.MULTILINE)
        unread = Unavailable(Kind.NOT_READ)
        return Torch(
            version=version.group(1) if version else missing,
            path=f"{directory}/torch",
            cuda=(cuda.group(1) or cuda.group(2)) if cuda else missing,
            nccl_linkage=unread,
            nccl_path=unread,
            nccl_compiled=unread,
        )
    if unread is not None:
        return Unavailable(Kind.NOT_READ, f"where packages lie: {unread}")
    return Unavailable(Kind.ABSENT, "no torch in " + (", ".join(packages) or "any directory"))


def wheels(host: Host, packages: tuple[str, ...]) -> dict[str, Version | Unavailable]:
    """Site directory → version of the nvidia-nccl wheel there.  Two wheels (cu12, cu13) share one file: nobody knows whose."""
    out: dict[str, Version | Unavailable] = {}
    for directory in packages:
        listing = names(host, directory)
        for name in listing or ():
            if found := re.fullmatch(r"nvidia_nccl_cu\d+-(\d+)\.(\d+)\.(\d+)[\w.+]*\.dist-info", name):
                version = (int(found.group(1)), int(found.group(2)), int(found.group(3)))
                same = directory not in out or out[directory] == version
                out[directory] = version if same else Unavailable(Kind.MALFORMED, "two nvidia-nccl wheels share one file")
    return out


def compiled_pin(host: Host, torch: Torch) -> Version | None | Unavailable:
    """The nvidia-nccl version that torch's wheel requires: the one that it was built against.  None: it names none."""
    directory = torch.path.rpartition("/")[0]
    if isinstance(torch.version, Unavailable):
        return torch.version
    text = read(host, f"{directory}/torch-{torch.version}.dist-info/METADATA")
    if isinstance(text, Unavailable):
        return None if text.kind == Kind.ABSENT else text
    found = re.search(r"^Requires-Dist: nvidia-nccl-cu\d+ ?\(?==(\d+)\.(\d+)\.(\d+)", text, re.MULTILINE)
    return (int(found.group(1)), int(found.group(2)), int(found.group(3))) if found else None

"""What will run behind ``netdoctor run --``: what is set before it, which program it is, and what cannot be seen through.

A wrapper such as env, taskset or numactl is asked, not read: it starts a child of ours in the place of the job, and what that
child finds itself with (environment, CPUs, memory policy, limits) is what the job will have.
"""

from __future__ import annotations

import json
import os
import pkgutil
import re
import resource
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from netdoctor.causes.cost import SOMETIMES, STOPS
from netdoctor.causes.results import own_result
from netdoctor.cli import startable
from netdoctor.cli.launched import launched, left_to_it, refused
from netdoctor.config.load import PREFIX
from netdoctor.model import CheckResult, Finding, Status, record
from netdoctor.process import far

COMMAND: Final = "job.command"  # the result's id
SECONDS: Final = 10.0  # for a wrapper to start a Python
HOW: Final = "put netdoctor where the job's own program starts: … netdoctor run --gate -- python train.py"


@record
class _Wrapper:
    """How a wrapper's own words end (its man page): options with a value, options without, words before the command."""

    values: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    before: int = 0


_NUMACTL: Final = ("interleave", "preferred", "preferred-many", "membind", "cpunodebind", "physcpubind", "weighted-interleave")
# Each becomes its command by exec(2), or waits for it as its only child, and says no other environment than it was told.
_WRAPPERS: Final[Mapping[str, _Wrapper]] = {
    "env": _Wrapper(("-u", "--unset", "-C", "--chdir"), ("-i", "-", "--ignore-environment")),
    "nice": _Wrapper(("-n", "--adjustment")),
    "nohup": _Wrapper(),
    "stdbuf": _Wrapper(("-i", "-o", "-e", "--input", "--output", "--error")),
    "taskset": _Wrapper((), ("-c", "--cpu-list", "-a", "--all-tasks"), 1),
    "numactl": _Wrapper(
        ("-i", "-P", "-p", "-m", "-N", "-C", "-w", *(f"--{n}" for n in _NUMACTL)), ("-l", "-a", "-b", "--localalloc", "--all")
    ),
    "chrt": _Wrapper((), ("-b", "-f", "-i", "-o", "-r", "--batch", "--fifo", "--idle", "--other", "--rr"), 1),
    "ionice": _Wrapper(("-c", "-n", "--class", "--classdata"), ("-t", "--ignore")),
    "prlimit": _Wrapper((), ()),  # --memlock=unlimited: every resource with its value behind =
    "timeout": _Wrapper(("-k", "-s", "--kill-after", "--signal"), ("-f", "--foreground", "--preserve-status", "-v"), 1),
}
# Python programs that give their ranks an environment of their own: .deepspeed_env, accelerate's NCCL_P2P_DISABLE.
_OWN_ENVIRONMENT: Final = frozenset({"accelerate", "deepspeed", "horovodrun", "ray", "colossalai"})
_NO_PYTHON: Final = frozenset({"--no-python", "--no_python"})
_PYTHON: Final = re.compile(r"python([0-9]+(\.[0-9]+)?t?)?")
# Of python(1), letters that take a value (the rest of the word, or the next one), and those after which what it imports depends
# on more than the environment: Python/getopt.c, SHORT_OPTS.
_VALUES, _OTHER_PATH = frozenset("cmWX"), frozenset("EIPSs")
_MODULES: Final = ("torch", "numpy", "nvidia", "nccl", "triton")  # that a job means when it imports them


@record
class Place:
    """What the job will find itself with."""

    environment: Mapping[str, str]
    cpus: frozenset[int]
    policy: tuple[int, tuple[int, ...]]  # of set_mempolicy(2): mode with its flags, and the words of the mask
    limits: Mapping[int, int]  # soft ones
    cwd: str


@record
class JobCommand:
    """A command as far as it was seen through."""

    program: str  # a path, or a name to look for on PATH
    words: tuple[str, ...]  # from the program on
    wrappers: tuple[str, ...] = ()  # names
    place: Place | None = None  # None: as here
    doubt: str = ""  # why what runs is not what was looked at

    @property
    def launch(self) -> dict[str, Any] | None:
        """What a launcher among its words is told."""
        return launched(*self._told)

    @property
    def refused(self) -> str:
        """Why a launcher among its words does not start; "": it does, as far as its options tell."""
        return refused(*self._told)

    @property
    def left(self) -> tuple[str, ...]:
        """What variables mean to it, where no launcher is among its words."""
        return left_to_it(*self._told)

    @property
    def _told(self) -> tuple[Sequence[str], str, Mapping[str, str]]:
        module = _python(self.words).module if _PYTHON.fullmatch(_name(self.words)) else ""
        return self.words, module, self._environment

    @property
    def _environment(self) -> Mapping[str, str]:
        return os.environ if self.place is None else self.place.environment

    @property
    def obstacle(self) -> startable.Obstacle | None:
        """Why it will not start; None where it does, or that is in doubt."""
        return None if self.doubt else startable.in_the_way(self.program, self._environment.get("PATH"))

    @property
    def folder(self) -> str:
        """The folder that Python puts first in sys.path (its documentation, "The initialization of sys.path"); "": none."""
        cwd = _here() if self.place is None else self.place.cwd
        if self._environment.get("PYTHONSAFEPATH") or not cwd:
            return ""
        python = _python(self.words) if _PYTHON.fullmatch(_name(self.words)) else None
        if python is not None and (python.module or not python.script):
            return cwd
        for word in (python.script,) if python is not None else self.words[1:]:
            if word in ("-m", "--module"):
                return cwd
            if (python is not None or word.endswith(".py")) and _is_file(path := os.path.join(cwd, word)):
                return os.path.dirname(_real(path))
        return ""


def seen_through(command: Sequence[str]) -> JobCommand:
    """Never raises: what is in doubt is said in `doubt`."""
    words, names, prefix = list(command), list[str](), list[str]()
    while (wrapper := _WRAPPERS.get(name := _name(words))) is not None:
        own = _own_words(wrapper, words, assignments=name == "env")
        if own is None:
            return JobCommand(_absolute(words[0], _here()), tuple(words), tuple(names), None, f"how {name} reads its words")
        names.append(name)
        prefix += words[:own]
        words = words[own:]
    place: Place | str | None = _made(prefix) if prefix else None
    if isinstance(place, str):
        return JobCommand(_absolute(words[0], _here()), tuple(words), tuple(names), None, f"{', '.join(names)}: {place}")
    program = _absolute(words[0], place.cwd if place else _here())
    return JobCommand(program, tuple(words), tuple(names), place, _doubt(words))


def _own_words(wrapper: _Wrapper, words: Sequence[str], *, assignments: bool) -> int | None:
    """How many of the words are the wrapper's; None where that is in doubt, or no command follows."""
    at = 1
    while at < len(words) and words[at].startswith("-"):
        word = words[at]
        name, equals, _ = word.partition("=")
        at += 1
        if word == "--":
            break
        if (
            word in wrapper.flags
            or re.fullmatch(r"--\w[\w-]*=.+", word)
            or (wrapper is _WRAPPERS["nice"] and re.fullmatch(r"-[0-9]+", word))
        ):
            continue
        if word in wrapper.values:
            at += 1
        elif equals or not (name[:2] in wrapper.values and len(name) > 2 and not name.startswith("--")):
            return None
    while assignments and at < len(words) and "=" in words[at]:
        at += 1
    at += wrapper.before
    return at if at < len(words) else None


def _name(words: Sequence[str]) -> str:
    return words[0].rpartition("/")[2]


class _Python(NamedTuple):
    """What the words of a Python say; without a module or a script it reads a program from -c, stdin or a terminal."""

    letters: str
    module: str = ""
    script: str = ""


def _python(words: Sequence[str]) -> _Python:
    letters, rest = "", list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word == "--":
            break
        if word.startswith("--"):  # --check-hash-based-pycs always, --help
            rest = rest[1:] if word == "--check-hash-based-pycs" else rest
            continue
        at = next((n for n, letter in enumerate(word) if letter in _VALUES), len(word))
        letters += word[1:at]
        if at == len(word):
            continue
        value = word[at + 1 :] or (rest.pop(0) if rest else "")
        if word[at] in "cm":
            return _Python(letters, value if word[at] == "m" else "")
    return _Python(letters, script=rest[0] if rest and rest[0] != "-" else "")


def _doubt(words: Sequence[str]) -> str:
    name = _name(words)
    if name in _OWN_ENVIRONMENT:
        return f"{name} gives the job an environment of its own"
    if _NO_PYTHON & {*words[1:]}:  # of torchrun and accelerate: what they start is no script of this Python's
        return f"{name} starts a program that is no script of Python's"
    if _PYTHON.fullmatch(name):
        python = _python(words)
        if elsewhere := [letter for letter in python.letters if letter in _OTHER_PATH]:
            return f"{name} -{elsewhere[0]} imports from elsewhere"
        if python.module.partition(".")[0] in _OWN_ENVIRONMENT:
            return f"{python.module} gives the job an environment of its own"
    return ""


def _absolute(program: str, cwd: str) -> str:
    return os.path.join(cwd, program) if "/" in program and cwd else program


def _real(path: str) -> str:
    return str(far.call(os.path.realpath, path, path=path))


def _is_file(path: str) -> bool:
    try:
        return far.call(os.path.isfile, path, path=path)
    except OSError:
        return False


def _here() -> str:
    try:
        return os.getcwd()
    except OSError:  # the working directory is gone
        return ""


# What the child of ours in the place of the job tells.  /proc/self/environ: Python itself changes LC_CTYPE in os.environ.
_TELL: Final = """
import json, os, resource
mode, mask = memory_policy()
print(json.dumps({
    "environment": open("/proc/self/environ", "rb").read().decode("utf-8", "surrogateescape"),
    "cpus": sorted(os.sched_getaffinity(0)), "mode": mode, "mask": mask, "cwd": os.getcwd(),
    "limits": {n: resource.getrlimit(n) for n in sorted({getattr(resource, k) for k in dir(resource) if k[:7] == "RLIMIT_"})},
    "who": [os.getresuid(), os.getresgid(), {n: os.readlink("/proc/self/ns/" + n) for n in os.listdir("/proc/self/ns")}],
}))
"""


def _probe() -> str:
    text = pkgutil.get_data("netdoctor", "process/mempolicy.py") or b""
    return text.decode().replace("from __future__ import annotations", "") + _TELL


def _told(prefix: Sequence[str]) -> dict[str, Any] | str:
    try:
        done = subprocess.run(
            [*prefix, sys.executable, "-I", "-S", "-B", "-c", _probe()],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(os.environ),
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"did not start a program within {SECONDS:g} s"
    except (OSError, ValueError) as error:
        return str(error)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode != 0:
        return f"exit {done.returncode}" + (f": {said[-1][:200]}" if said else "")
    try:
        told = json.loads(done.stdout)
    except ValueError:
        return "what it starts does not answer"
    return told if isinstance(told, dict) else "what it starts does not answer"


def _made(prefix: Sequence[str]) -> Place | str:
    """What these wrappers set, or why that is not known."""
    told, here = _told(prefix), _told(())
    if isinstance(told, str) or isinstance(here, str):
        return told if isinstance(told, str) else str(here)
    if told["who"] != here["who"]:
        return "another user or namespace"
    pairs = (part.partition("=") for part in told["environment"].split("\0") if "=" in part)
    return Place(
        {name: value for name, _, value in pairs if name},
        frozenset(told["cpus"]),
        (told["mode"], tuple(told["mask"])),
        {int(number): soft for number, (soft, _hard) in told["limits"].items()},
        told["cwd"],
    )


@contextmanager
def applied(job: JobCommand) -> Iterator[JobCommand]:
    """This process in the job's place while it looks; netdoctor's own variables stay as they are."""
    if job.place is None:
        yield job
        return
    from netdoctor.process.mempolicy import memory_policy, set_memory_policy

    before, cpus, policy = dict(os.environ), os.sched_getaffinity(0), memory_policy()
    limits = {number: resource.getrlimit(number) for number in job.place.limits}
    own = {n: v for n, v in before.items() if n.startswith(PREFIX)}
    try:
        try:
            _environ({**{n: v for n, v in job.place.environment.items() if not n.startswith(PREFIX)}, **own})
            os.sched_setaffinity(0, job.place.cpus)
            set_memory_policy(*job.place.policy)
            for number, soft in job.place.limits.items():
                if soft != limits[number][0]:
                    resource.setrlimit(number, (soft, limits[number][1]))
        except (OSError, ValueError) as error:
            job = replace(job, doubt=f"what {', '.join(job.wrappers)} sets could not be applied: {error}")
        yield job
    finally:  # the wrapper makes it all again
        _environ(before)
        with suppress(OSError, ValueError):
            os.sched_setaffinity(0, cpus)
            set_memory_policy(*policy)
        for number, both in limits.items():
            with suppress(OSError, ValueError):
                resource.setrlimit(number, both)


def _environ(wanted: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def result(job: JobCommand, python: str | None) -> CheckResult:
    """What of the command was seen through; `python`: the interpreter that it was found to be, None: not found."""
    found: list[Finding] = []
    before = f" behind {', '.join(job.wrappers)}, of which the settings were applied" if job.wrappers else ""
    if job.doubt or python is None:
        why = job.doubt or f"{job.words[0]} is no Python, nor a script of one"
        words = f"what runs is not known to be what was looked at: {why}"
        found.append(Finding(Status.UNKNOWN, words, "command", how=HOW))
    else:
        found.append(Finding(Status.PASS, f"{python} runs it{before}", "command", notes=job.left))
    if why := job.refused:
        found.append(Finding(Status.FAIL, why, "launcher", loss=STOPS, how="compare the command with what starts it"))
    for path in shadows(job.folder):
        name = os.path.basename(path.removesuffix("/__init__.py")).partition(".")[0]
        words = f"it takes the place of the {name} that is installed"
        found.append(Finding(Status.FAIL, words, path, loss=STOPS, how="give it another name"))
    return own_result(COMMAND, found)


def of_here() -> CheckResult | None:
    """What in the working directory would take the place of installed modules; None: nothing does.  Which job starts here is
    not known: one by ``python -m`` or ``-c``, or by a script that lies here, imports it."""
    found = [
        Finding(
            Status.FAIL,
            f"it takes the place of the {os.path.basename(base).partition('.')[0]} that is installed, for what starts here",
            path,
            loss=SOMETIMES,
            how="start the job elsewhere, or give it another name",
        )
        for path in shadows(_here())
        for base in (path.removesuffix("/__init__.py"),)
    ]
    return own_result(COMMAND, found) if found else None


def shadows(folder: str) -> tuple[str, ...]:
    """Modules in the first folder of sys.path that come before the installed ones.  A folder without __init__.py does not."""
    if not folder or os.path.basename(folder) in ("site-packages", "dist-packages"):
        return ()
    there = (os.path.join(folder, name) for name in _MODULES)
    return tuple(path for base in there for path in (f"{base}.py", f"{base}/__init__.py") if _is_file(path))

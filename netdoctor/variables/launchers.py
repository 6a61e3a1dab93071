"""What programs start the ranks of a job, and which variables they hand on."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Final

from netdoctor.model import record
from netdoctor.variables.assignments import ASSIGNMENT, MENTIONS, Problem, WritingRule
from netdoctor.variables.shell_tokens import Word

PRINTS: Final = frozenset({"echo", "printf", "grep", "egrep", "sed", "awk", "cat", "logger", "test", "[", "[["})
LOOKS: Final = frozenset(
    {"cd", "mkdir", "hostname", "date", "sleep", "pwd", "true", "false", ":", "ulimit", "shift", "trap"}
    | {"nvidia-smi", "ibstat", "ibv_devinfo", "scontrol", "which"}
)
QUIET: Final = PRINTS | LOOKS
# Their NAME=VALUE is of a build, and names of variables are but words to them.
_BUILDS: Final = frozenset(
    {"make", "cmake", "ninja", "git", "pip", "conda", "module", "printenv", "ls", "cp", "ln", "rm", "exit"}
    | {"configure", "meson", "bazel", "nvcc", "gcc", "g++", "cc", "c++", "clang", "clang++", "mpicc", "mpicxx"}
)
# Read, move or fetch files.  Apart from LOOKS, for these are words of other commands, too (`srun ./train --mode tail`).
_READS: Final = frozenset(
    {"tail", "head", "less", "more", "wc", "touch", "mv", "chmod", "chown", "diff", "cmp", "tar", "wget", "curl", "jq", "yq"}
    | {
        "sbcast",
        "scp",
        "rsync",
        "basename",
        "dirname",
        "realpath",
        "readlink",
        "stat",
        "file",
        "du",
        "sort",
        "uniq",
        "cut",
        "tr",
    }
    | {
        "tee",
        "gzip",
        "gunzip",
        "zcat",
        "zip",
        "unzip",
        "md5sum",
        "sha256sum",
        "ldd",
        "strings",
        "pgrep",
        "pkill",
        "sacct",
        "squeue",
    }
)
# The names of functions and programs that tell people something: log_error, die, notify-send.
_TELL: Final = (
    "log|logger|info|warn|warning|err|error|die|fatal|fail|abort|panic|debug|msg|message|say|note|notice|print|echo|banner|title"
    "|notify|send|mail|mailx|sendmail|wall|usage|exit"
)
_TELLS: Final = re.compile(rf"(?:{_TELL})(?:[_-](?:{_TELL}))*\Z", re.IGNORECASE)
# What starts the ranks of a job: behind the last of them nobody comes any more.
_STARTS: Final = frozenset({"srun", "mpirun", "mpiexec", "torchrun", "accelerate", "deepspeed", "aprun", "jsrun"})
_MODULES: Final = ("torch.distributed", "accelerate", "deepspeed")  # python -m …

_NEXT_WORD: Final = frozenset({"-x", "-e", "--env", "--container-env"})  # the next word is NAME=VALUE
_SAME_WORD: Final = frozenset({"--env", "-e", "--environment", "--setenv"})  # --env=NAME=VALUE
_FILES: Final = frozenset({"--env-file", "--envfile"})
_SHELL_TEXT: Final = frozenset({"-c", "-lc", "-ic", "-xc"})  # bash -c "…"


def launches(words: list[str]) -> bool:
    """Whether a command starts the ranks of a job; ``srun hostname`` looks at the nodes."""
    names = [word.rpartition("/")[2] for word in words]
    by_module = any(before == "-m" and after.startswith(_MODULES) for before, after in pairwise(words))
    return (by_module or not _STARTS.isdisjoint(names)) and (LOOKS | PRINTS).isdisjoint(names)


def may_be_ranks(words: list[str]) -> bool:
    """Whether a command may be the job although no launcher is seen in it."""
    return launches(words) or any(word.rpartition("/")[2].startswith("python") or word.startswith("$") for word in words[:1])


def told_to_export(words: list[str]) -> str | None:
    """The last --export of srun or sbatch."""
    told = [text.partition("=")[2] for text in words if text.startswith("--export=")]
    told += [after for text, after in pairwise(words) if text == "--export"]
    return told[-1] if told else None


def keeps_back(words: list[str], inherited: str) -> Problem | None:
    """Why a launcher does not hand on what is exported and not named in its command; None: it does.

    `inherited`: what the batch system was told to export, which srun takes for its own (SLURM_EXPORT_ENV, srun(1)).
    """
    sure, perhaps = WritingRule.NOT_HANDED_ON, WritingRule.PERHAPS_NOT_HANDED_ON
    names = [word.rpartition("/")[2] for word in words]
    launcher = next((n for n in names if n in ("srun", "docker", "podman", "mpirun", "mpiexec", "sudo")), "")
    if launcher == "srun":  # srun(1): without ALL only what is named
        own = told_to_export(words)
        told = own or inherited
        if "ALL" in told.split(",") or told.startswith("$"):
            return None
        by = f"srun --export={told}" if own else f"srun takes --export={told} of #SBATCH for its own, and"
        return Problem(sure, f"{by} does not hand it on to the job")
    if launcher in ("docker", "podman") and "run" in words:
        files = any(text.startswith(("--env-file", "--env-host")) for text in words)
        return None if files else Problem(sure, f"{launcher} run hands on only what -e names: it does not reach the container")
    if launcher in ("mpirun", "mpiexec") and any(
        text in ("-H", "-host", "--host", "-hostfile", "--hostfile", "-machinefile", "--machinefile") for text in words
    ):  # mpirun(1) of Open MPI; MPICH's hydra hands on all
        return Problem(perhaps, f"{launcher} of Open MPI hands on to other nodes only what -x names: it may not arrive there")
    if launcher == "sudo" and not any(text == "-E" or text.startswith("--preserve-env") for text in words):
        return Problem(perhaps, "sudo without -E drops it, unless sudoers keeps it (env_keep)")
    return None


_NAMED: Final = re.compile(r"\$(?:\{[#!]?)?\w+")  # a reference reads its variable
_ASKED: Final = re.compile(r"\$\{\w+:?\?[^}]*\}")  # ${NAME:?WORDS} says them
_FILE: Final = re.compile(r"(?:--?[a-z][a-z-]*=|\w+://)?(?=.*/|[\w-]+\.\w)[\w./+%~@-]+\Z")  # a path or the name of a file
_SENTENCE: Final = re.compile(r"[A-Za-z]\w*[.,:!?]?(?:\s+[A-Za-z]\w*[.,:!?]?){2,}\s*\Z")
_SETS: Final = re.compile(
    r"(?:export|setenv|set|declare|typeset|readonly|local|read|eval|source|env|unset|sudo|exec|command|time|module|ml)\b"
)
# What runs a text that it is given, on other nodes or later.
_RUNNERS: Final = frozenset(
    {
        "ssh",
        "pdsh",
        "clush",
        "dsh",
        "parallel",
        "xargs",
        "su",
        "sudo",
        "sh",
        "bash",
        "watch",
        "tmux",
        "screen",
        "at",
        "batch",
        "trap",
    }
)
_PAIR: Final = re.compile(r"\w+(?:\+?=|\*?\Z)")  # what an option hands on; else it is another's -e (`perl -e`)
_LISTED: Final = re.compile(r"(?:-[\w-]*=)?\w+(?:[,;:]\w+)*\Z")  # names, which an option may list


def unfollowed(name: str, words: list[Word]) -> Word | None:
    """The first word of a command that names such variables, and is neither handed on nor of names that an option lists."""
    if name in QUIET or _quiet(name) or words[-1].text == "]]":
        return None
    if name == "set" or all(re.fullmatch(r"\w+", word.text) for word in words):  # else the names that an array holds
        return None if all(MENTIONS.match(word.text) for word in words) else _first(name, words)
    behind = [False, *(word.text.startswith("-") for word in words)]
    left = [w for w, after in zip(words, behind, strict=False) if not ((after or w.text[:1] == "-") and _LISTED.match(w.text))]
    for one in options(name, words):
        if isinstance(one, Script) or (isinstance(one, Handed) and _PAIR.match(one.word.text)):
            left = [replace(word, text=word.text.replace(one.word.text, "")) for word in left]
    return _first(name, left)


def _quiet(name: str) -> bool:
    """Whether what it is told is no environment of anything that it starts."""
    return name in PRINTS or name in _BUILDS or name in _READS or _TELLS.match(name) is not None


def _first(name: str, words: list[Word]) -> Word | None:
    told = ((word, _NAMED.sub("", _ASKED.sub("", word.text))) for word in words)
    return next((one for one, text in told if MENTIONS.search(text) and not _FILE.match(text) and not _says(name, text)), None)


def _says(name: str, text: str) -> bool:
    """Whether it is a sentence, which a function may be given to say."""
    runs = name in _RUNNERS or name in _STARTS or not re.fullmatch(r"[A-Za-z_]\w*", name)
    return not runs and _SENTENCE.match(text) is not None and not _SETS.match(text)


def _may_be_script(launcher: str, text: str) -> bool:
    return bool(re.search(r"[\s;]", text) and MENTIONS.search(text)) and not _says(launcher, text)


@record
class Handed:
    """NAME=VALUE for the program that is started."""

    word: Word
    problem: Problem | None = None


@record
class Script:
    """A word that a shell runs."""

    word: Word


@record
class Unknown:
    """What may set variables, and cannot be followed."""

    line: int
    why: str


Option = Handed | Script | Unknown


def options(name: str, words: list[Word]) -> Iterator[Option]:
    """What a command hands on: env, mpirun -x, srun --export, docker -e, mpiexec -genv, bash -c."""
    if words[-1].text == "]]":  # the rest of a [[ a && b ]]
        return
    i = 0 if name.startswith("-") else 1  # a line of an array of options
    if name == "env" or (name.startswith("-") and name not in _NEXT_WORD and "=" not in words[0].text):  # or sudo -E
        while i < len(words) and (words[i].text.startswith("-") or ASSIGNMENT.match(words[i].text) or words[i].opaque):
            if words[i].opaque and not ASSIGNMENT.match(words[i].text):
                yield Unknown(words[i].line, f"env {words[i].text[:60]!r}: what that sets is only known when the script runs")
            if words[i].text.startswith(("-S", "--split")) and any(MENTIONS.search(word.text) for word in words[i : i + 2]):
                return  # it splits the text once more
            yield Handed(words[i])
            i += 2 if words[i].text in ("-u", "--unset", "-C", "--chdir") else 1
    while i < len(words):
        if i and words[i].text == "env":
            yield from options("env", words[i:])
            return
        used = yield from _option(name, words[i:])
        i += 1 + used


def _option(launcher: str, words: list[Word]) -> Generator[Option, None, int]:
    """The first of `words`, as an option; returns how many of the others belong to it."""
    word, following = words[0], words[1] if len(words) > 1 else None
    option, equals, inline = word.text.partition("=")
    separator = "," if launcher in ("apptainer", "singularity") else None
    if option in _FILES and (equals or following):
        name = inline or (following.text if following else "")
        yield Unknown(word.line, f"reads {name}: what that sets is not known here")
        return 0 if equals else 1
    if following and (word.text in _NEXT_WORD or word.text == "mca_base_env_list"):  # Open MPI's list, at semicolons
        yield from _list(following, separator if word.text in _NEXT_WORD else ";")
        return 1
    if option in _SAME_WORD and equals:
        yield from _list(replace(word, text=inline), separator)
    elif option == "--export" and (equals or following):
        yield from _export(replace(word, text=inline) if equals or not following else following)
    elif option in ("-genv", "-env") and not equals and len(words) > 2:
        yield Handed(replace(words[2], text=f"{words[1].text}={words[2].text}"))
        return 2
    elif word.text in _SHELL_TEXT and following:
        yield Script(following)
        return 1
    elif not _quiet(launcher) and _may_be_script(launcher, _ASKED.sub("", word.text)):
        yield Script(word)  # ssh HOST "…"
    return 0


def _list(word: Word, separator: str | None) -> Iterator[Option]:
    for part in word.text.split(separator) if separator else [word.text]:
        yield Handed(replace(word, text=part.strip()))


def _export(word: Word) -> Iterator[Option]:
    """srun(1), sbatch(1): --export=ALL,A=1,B=2.  Commas separate variables, so a list as a value is cut."""
    parts = word.text.split(",")
    for part, after in zip(parts, [*parts[1:], ""], strict=True):
        cut = after and "=" not in after and not re.fullmatch(r"[A-Z_][A-Z0-9_]*", after)
        text = f"--export separates variables at commas: {after!r} is not part of the value"
        yield Handed(replace(word, text=part), Problem(WritingRule.EXPORT_COMMA, text) if cut else None)

"""Finds variables in files without running them: job scripts, .env files, nccl.conf, systemd units, Kubernetes and
Ansible YAML.

Nothing is sourced and nothing is expanded: a value with ``$`` in it, a sourced file, a here-document or an unknown YAML tag is
said to be unknown, with its line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from netdoctor.facts.environ import Origin, Setting
from netdoctor.model import Word, record, size_text
from netdoctor.variables.assignments import MENTIONS, Assignment, Unread
from netdoctor.variables.dockerfile import DOCKERFILE, parse_dockerfile
from netdoctor.variables.line_files import MARK, parse_conf, parse_env, unread_lines
from netdoctor.variables.shell import parse_shell
from netdoctor.variables.units import SECTION, SUFFIXES, parse_unit

MAX_TEXT: Final = 4 << 20
_OTHERS: Final = (
    *(".py", ".ipynb", ".toml", ".ini", ".cfg", ".rs", ".go", ".c", ".cc", ".cpp", ".lua", ".tf", ".hcl", ".md"),
    *(".pl", ".pm", ".rb", ".js", ".ts", ".tcl", ".jl", ".r", ".java", ".fish", ".nu", ".xsh", ".ps1", ".psm1", ".bat"),
    *(".log", ".out", ".err"),  # what programs said
)
# csh's setenv is read, too.
_SHELLS: Final = re.compile(r"r?(?:ba|da|a|ya|m?k|pdk|z|tc|c)?sh(?:-?\d[\d.]*|93)?\Z")
# A shell that hands its own script to another program: so scripts of Tcl, Perl or Python may begin.
_HANDS_ON: Final = re.compile(r"\bexec\b[^\n]*\$\{?0")
# What begins a line of a script of a shell, and is rare elsewhere: without a telling name or first line it says the kind.
_SCRIPT: Final = re.compile(
    r"^[ \t]*(?:#(?:SBATCH|PBS|BSUB|OAR|FLUX|MSUB|PJM|COBALT|\$ ?-|%Module)|[A-Za-z_]\w*\+?="
    r"|(?:\w+[ \t]*\([ \t]*\)|function[ \t]+\w+)[ \t]*\{?[ \t]*(?:\n|\{)|\.{0,2}/\S*[\w.-](?:[ \t]|$)|\(|\[\[?[ \t]"
    r"|(?:export|declare|typeset|readonly|local|setenv|unset|unsetenv|source|\.|eval|module|ml|set|cd|ulimit|trap|exec|exit"
    r"|echo|printf|printenv|true|false|read|mapfile|readarray|getopts|let|test|sleep|mkdir|cat|env|sudo|ssh|pdsh|nohup|time|timeout"
    r"|if|for|while|until|case|select|then|do|done|fi|esac|srun|sbatch|salloc|mpirun|mpiexec|torchrun|accelerate|deepspeed"
    r"|aprun|jsrun|horovodrun|flux|ray|docker|podman|enroot|apptainer|singularity|nerdctl|systemd-run|numactl|taskset"
    r"|kubectl|conda|python[\d.]*|(?:ba|z|k)?sh)(?:[ \t;]|$))",
    re.MULTILINE,
)


class FileKind(Word):
    """By what rules a file is read."""

    SHELL = "shell"
    ENV = "env"
    CONF = "conf"
    UNIT = "unit"
    YAML = "yaml"
    DOCKER = "docker"
    OTHER = "other"


@record
class Parsed:
    """What a file sets, as far as it can be told."""

    kind: FileKind
    assignments: tuple[Assignment, ...]
    unread: tuple[Unread, ...]
    nodes: int | None = None  # of the job, where its script says several
    loopback: Setting | None = None  # by which the ranks meet at the loopback


def parse(path: str, text: str, kind: FileKind | None = None) -> Parsed:
    """The assignments of `text`; `kind` by its name and first lines where it is not given.  Never raises."""
    rest = [Unread(Origin(path), f"only its first {size_text(MAX_TEXT)} were read")] if len(text) > MAX_TEXT else []
    text = text[:MAX_TEXT]
    plain = text.removeprefix(MARK)
    if not plain.strip():
        return Parsed(
            kind or kind_of(path, plain), (), (Unread(Origin(path, 1), "nothing stands in it: nothing was judged"), *rest)
        )
    kind = kind or kind_of(path, plain)
    if "\0" in text:
        return Parsed(kind, (), (Unread(Origin(path, 1), "not a text in UTF-8: what it sets is not known"), *rest))
    assignments: list[Assignment] = []
    unread: list[Unread] = []
    if kind is FileKind.YAML:
        from netdoctor.variables.manifests import parse_yaml

        manifest = parse_yaml(path, text)
        apart = re.search(r"--(?:rdzv[-_]endpoint|master[-_]addr)|PET_|(?:PyTorch|MPI|Train)Job", text)  # it meets elsewhere
        meeting = [Setting("MASTER_ADDR", value, Origin(path, line)) for value, line in manifest.meeting]
        loopback = None if apart else _all_loopback(meeting)
        everything = (*manifest.unread, *rest)
        return Parsed(kind, tuple(manifest.assignments), everything, manifest.nodes, loopback)
    if kind is FileKind.CONF:
        assignments = parse_conf(path, text)
    elif kind is FileKind.ENV:
        assignments, unread = parse_env(path, text), unread_lines(path, text)
    elif kind is FileKind.UNIT:
        assignments, unread = parse_unit(path, plain)
    elif kind is FileKind.DOCKER:
        assignments, unread = parse_dockerfile(path, plain)
    elif kind is FileKind.OTHER:
        mention = next((i for i, line in enumerate(text.split("\n"), 1) if MENTIONS.search(line)), 1)
        interpreter = _interpreter(plain)
        by = f"a script of {interpreter}" if interpreter and not _SHELLS.match(interpreter) else "a kind of file"
        unread = [Unread(Origin(path, mention), f"{by} that netdoctor does not read: what it sets from here on is not known")]
    else:
        assignments, unread = parse_shell(path, plain)
        if plain != text and not re.match(r"#|\s*$", plain, re.MULTILINE):
            unread.append(Unread(Origin(path, 1), "a byte order mark: to the shell it is part of the first word"))
        if not re.search(r"^\s*[^#\s]", plain, re.MULTILINE):  # of a conf or .env file this is by design: a script does nothing
            unread.append(Unread(Origin(path, 1), "no command and no assignment stands in it: nothing was judged"))
        nodes, loopback = _nodes(text), _meeting(path, text)
        return Parsed(kind, tuple(assignments), (*unread, *rest), nodes, loopback)
    return Parsed(kind, tuple(assignments), (*unread, *rest))


def _nodes(text: str) -> int | None:
    """What the launcher is told, else the batch system (sbatch(1), qsub(1)); of a range the least."""
    told = re.findall(r"^[^#\n]*--nnodes[= ](\d{1,6})", text, re.MULTILINE)
    told = told or re.findall(r"^#SBATCH\s+(?:--nodes[= ]|-N\s*)(\d{1,6})", text, re.MULTILINE)
    told = told or re.findall(r"^#PBS\s+-l\s+(?:select|nodes)=(\d{1,6})", text, re.MULTILINE)
    return most if (most := max(map(int, told), default=0)) > 1 else None


def _meeting(path: str, text: str) -> Setting | None:
    """The setting by which the ranks meet at the loopback, if nothing else says where.  torchrun passes over MASTER_ADDR."""
    names = "(--(?:rdzv[-_]endpoint|master[-_]addr))[= ]" if "torchrun" in text else r"\b(MASTER_ADDR)="
    found = [
        Setting(match[1], match[2].rstrip("\"';"), Origin(path, number))
        for number, line in enumerate(text.split("\n"), 1)
        for match in re.finditer(rf"{names}[\"']?(\S*)", line)
        if not line.lstrip().startswith("#")
    ]
    return _all_loopback(found)


def _all_loopback(places: Sequence[Setting]) -> Setting | None:
    """The last of these, which counts, if all of them are the loopback."""
    away = [one for one in places if not re.match(r"(?:localhost|127\.|\[?::1\b)", one.value)]
    return places[-1] if places and not away else None


def kind_of(path: str, text: str) -> FileKind:
    """By the program that its first line names, by its name, else by its first lines."""
    name = path.rpartition("/")[2].lower()
    interpreter = _interpreter(text)
    if interpreter and not (name.endswith(_OTHERS) and _HANDS_ON.search(text)):
        return FileKind.SHELL if _SHELLS.match(interpreter) else _RUN_BY.get(interpreter, FileKind.OTHER)
    if name.endswith((".yaml", ".yml", ".json")):  # JSON is YAML
        return FileKind.YAML
    if name.endswith(_OTHERS):
        return FileKind.OTHER
    if name.startswith(("dockerfile", "containerfile")) or name.endswith(".dockerfile") or DOCKERFILE.match(text):
        return FileKind.DOCKER
    if name.endswith((".sh", ".bash", ".sbatch", ".slurm", ".ksh", ".zsh", ".csh", ".tcsh", ".pbs", ".lsf")):
        return FileKind.SHELL
    if name.endswith(SUFFIXES) or SECTION.match(text):
        return FileKind.UNIT
    if name.endswith(".conf"):
        return FileKind.CONF
    if name.endswith(".env") or name.startswith(".env"):
        return FileKind.ENV
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if (
        lines
        and all(re.match(r"\s*(?:export\s+)?\w+=", line) for line in lines)
        and not any("export " in line for line in lines)
    ):
        return FileKind.ENV
    if re.search(r"^(apiVersion|kind|services|- hosts|- name):", text, re.MULTILINE):
        return FileKind.YAML
    return FileKind.SHELL if _SCRIPT.search(text) or not lines else FileKind.OTHER


# What takes a script of a shell, and by whose name it may begin.
_RUN_BY: Final = {
    "ansible-playbook": FileKind.YAML,
    **dict.fromkeys(("sbatch", "salloc", "srun", "flux", "openrc-run", "runscript"), FileKind.SHELL),
}


def _interpreter(text: str) -> str:
    """The program that the first line names to run a script (execve(2)), without its folder; env(1) takes options before."""
    first = text.split("\n", 1)[0]
    words = first[2:].split() if first.startswith("#!") else []
    while words and (words[0].rpartition("/")[2] in ("env", "busybox") or words[0].startswith("-") or "=" in words[0]):
        words = words[2:] if words[0] in ("-u", "--unset", "-C", "--chdir") else words[1:]
    return words[0].rpartition("/")[2] if words else "nothing" if first.startswith("#!") else ""


def repeated(assignments: Sequence[Assignment]) -> list[tuple[Assignment, Assignment]]:
    """Pairs of assignments of one scope that give one name two values."""
    pairs = []
    last: dict[tuple[str, str], Assignment] = {}
    for assignment in assignments:
        key = assignment.name, assignment.scope
        before = last.get(key)
        if before and before.value != assignment.value and before.value is not None and assignment.value is not None:
            pairs.append((before, assignment))
        last[key] = assignment
    return pairs

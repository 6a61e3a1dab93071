"""``netdoctor log FILE… | DIR | -``: what a NCCL log says, and the cause of what went wrong."""

from __future__ import annotations

import contextlib
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config import documents
from netdoctor.model import CheckResult, Command, Finding, Report, Status
from netdoctor.process import given, unpack
from netdoctor.process.signals import Interrupted, interruptible
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from netdoctor.nccl.log.facts import LogFacts
    from netdoctor.policy import Decide

_UTF16: Final = (b"\xff\xfe", b"\xfe\xff")  # byte order marks
_SCRIPTS: Final = (".sbatch", ".slurm", ".sh", ".bash", ".job", ".pbs", ".lsf")
# First bytes that no text has, of what lies beside logs (file(1), magic).  NULs alone tell nothing: a log that was cut short
# while it was written (logrotate's copytruncate) begins with them.
_BINARY: Final = (
    (b"\x7fELF", "a program or a library"),
    (b"\x89PNG\r\n\x1a\n", "a picture"),
    (b"\xff\xd8\xff", "a picture"),
    (b"PK\x03\x04", "zip, as torch.save and numpy.savez write it"),
    (b"\x93NUMPY", "an array of numpy"),
    (b"\x89HDF\r\n\x1a\n", "HDF5"),
    (b"%PDF-", "PDF"),
    (b"SQLite format 3\0", "SQLite, as nsys writes it"),
)
_BEGIN: Final = 4096
_SILENT: Final = 10.0  # seconds
_TELLING: Final = 256  # bytes
_CONTROLS: Final = re.compile(rb"[\x01-\x06\x0e-\x1a\x1c-\x1f\x7f]")  # without those of terminals
_MAX_FILES: Final = 65536
_MAX_DEPTH: Final = 32


def run(options: Options, paths: Sequence[str]) -> int:
    """Read the logs of one job ("-" is stdin; directories with all that is in them), print, return the exit code."""
    try:
        deliver.check(options, Command.LOG)
        config = setup.configuration(options, Command.LOG)
        deliver.foretell(options.output)
        if not paths:
            raise setup.UsageError("give a file, a directory, or - for stdin")
        setup.filled(*paths)
        cut: list[str] = []
        facts, stop = read(paths, cut)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    partial = f"interrupted by {stop}" if stop else None
    wanted = config.expected.transport
    made = report(facts, setup.decider(config, (), partial, command=Command.LOG), config.profile, cut, partial, wanted)
    number = stop.number if stop else None
    code = deliver.deliver(deliver.interrupted(made, number), options)
    return code if number is None else 128 + number


def report(
    facts: LogFacts,
    decide: Decide,
    profile: str = "default",
    cut: Sequence[str] = (),
    partial: str | None = None,
    wanted: str | None = None,
) -> Report:
    """The report of what a log says; `cut` are the files whose end is not there, `partial` says why not all was read, `wanted`
    is the network that the site expects to carry the data."""
    from netdoctor import __version__
    from netdoctor.nccl.diagnosis import diagnose
    from netdoctor.nccl.diagnosis.network import expected
    from netdoctor.nccl.diagnosis.outcome import outcome
    from netdoctor.report.log_section import LogSection

    lost = [Finding(Status.UNKNOWN, f"{path} ends early: what came after is not known", "log") for path in cut]
    end = outcome(facts)
    held = [] if wanted is None else [expected(facts, wanted)]
    checks, verdict = decide(results((*diagnose(facts), *held, *lost), f"{end.ending.told}: {end.how}"), {})
    section = LogSection(facts, end.ending.value, end.how)
    return Report(__version__, {}, {}, profile, checks, verdict, partial=partial, command=Command.LOG, section=section)


def results(findings: Sequence[Finding], ended: str = "") -> tuple[CheckResult, ...]:
    """A check a cause, and one of whether the log could tell at all."""
    from netdoctor.causes.results import own_result

    fails = [f for f in findings if f.status is Status.FAIL]
    job = [f for f in findings if f.status is not Status.FAIL] or [
        Finding(Status.PASS, f"the log shows what failed; the job {ended}" if ended else "the log shows what failed")
    ]
    causes = dict.fromkeys(f.cause or "other" for f in fails)
    return (
        *(own_result(f"log.{cause}", [f for f in fails if (f.cause or "other") == cause]) for cause in causes),
        own_result("log.job", job),
    )


def read(paths: Sequence[str], cut: list[str]) -> tuple[LogFacts, Interrupted | None]:
    """The facts of all files together, up to a signal; those that end early are added to `cut`.  Raises UsageError."""
    from netdoctor.nccl.log.parser import Parser

    parser, progress = Parser(), _Progress()
    path, stop = "", None
    try:
        with interruptible():
            for path in _expand(paths):
                if what := _no_log(path):
                    if [path] == list(paths):
                        raise setup.UsageError(f"{path}: {what}; it is no log")
                    if path in paths:  # `log *` names it with the logs beside it
                        print(clean(f"netdoctor: {path}: {what}; not read: it is no log"), file=sys.stderr)
                    continue
                parser.file(path)
                for block in _blocks(path):
                    if block is None:
                        cut.append(path)
                    else:
                        parser.feed(block)
                        progress.came(path, len(block))
    except Interrupted as one:
        stop = one
    except (OSError, EOFError) as error:
        raise setup.UsageError(f"{path}: {getattr(error, 'strerror', None) or error}") from None
    facts = parser.facts()
    return (facts if stop else replace(facts, written=_written(facts.files))), stop


class _Progress:
    """Whoever waits for long is told how far it is."""

    def __init__(self) -> None:
        self._bytes = 0
        self._next = time.monotonic() + _SILENT

    def came(self, path: str, size: int) -> None:
        self._bytes += size
        if (now := time.monotonic()) >= self._next:
            self._next = now + _SILENT
            print(clean(f"netdoctor: {self._bytes / 1e6:,.0f} MB read, of {path} just now"), file=sys.stderr, flush=True)


def _no_log(path: str) -> str | None:
    """In words what a file is that is surely no log, and who reads it; None: read it."""
    import os

    if not os.path.isfile(path):
        return None
    first = given.start(path, _BEGIN)
    if first.lstrip().startswith(b"{"):  # of ours it quotes logs
        try:
            return documents.ours(given.text(path, errors="replace"))
        except OSError:  # larger than a document of ours
            return None
    if first.startswith(b"#!") and path.endswith(_SCRIPTS):  # a log may begin with its script, but has no such name
        return f"a job script: `netdoctor env --file {shlex.quote(path)}` judges its variables"
    known = next((f"a binary file ({what})" for magic, what in _BINARY if first.startswith(magic)), None)
    return known or ("a binary file" if first[:2] not in _UTF16 and not unpack.packed(first) and _binary(first) else None)


def _binary(first: bytes) -> bool:
    """A byte in twenty is a control character that no text has: of bytes drawn at random, it is one in ten."""
    said = first.replace(b"\0", b"")
    return len(said) >= _TELLING and 20 * len(_CONTROLS.findall(said)) > len(said)


def _written(paths: Sequence[str]) -> bool:
    """Whether a process that can be seen from here holds one of these open to write, and wrote lately (proc(5): fd, fdinfo)."""
    import os

    from netdoctor.nccl.diagnosis.job import SILENCE

    found = (os.stat(path) for path in paths if os.path.isfile(path))
    files = {(f.st_dev, f.st_ino) for f in found if time.time() - f.st_mtime < SILENCE * 60}
    held = (fd for pid in filter(str.isdecimal, os.listdir("/proc") if files else ()) for fd in _descriptors(pid))
    return any(_to_write(*fd, files) for fd in held)


def _descriptors(pid: str) -> Iterator[tuple[str, str]]:
    import os

    try:
        yield from ((pid, fd) for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:  # it has ended, or is somebody else's
        return


def _to_write(pid: str, fd: str, files: set[tuple[int, int]]) -> bool:
    import os

    try:
        held = os.stat(f"/proc/{pid}/fd/{fd}")
        if (held.st_dev, held.st_ino) not in files:
            return False
        with open(f"/proc/{pid}/fdinfo/{fd}", encoding="ascii") as file:
            flags = next((line.split()[1] for line in file if line.startswith("flags:")), "0")
    except OSError:
        return False
    return int(flags, 8) & 3 != 0  # O_RDONLY is 0


def _expand(paths: Sequence[str]) -> Iterator[str]:
    """Directories become the regular files in them, in order of name; hidden ones, and those seen already, are left out."""
    import os

    count = 0
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if path == "-" or not os.path.isdir(path):
            yield path
            continue
        for folder, folders, names in os.walk(path, onerror=_refused, followlinks=True):
            if (place := _place(folder)) in seen:
                folders[:] = []
                continue
            seen |= {place}
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            if folder.count(os.sep) - path.count(os.sep) > _MAX_DEPTH:
                raise setup.UsageError(f"{folder}: folders more than {_MAX_DEPTH} deep")
            for name in sorted(names):
                whole = os.path.join(folder, name)
                if not name.startswith(".") and os.path.isfile(whole):
                    if count == _MAX_FILES:
                        raise setup.UsageError(f"{path}: more than {_MAX_FILES:,} files: name those that matter")
                    count += 1
                    yield whole


def _refused(error: OSError) -> None:
    """What could not be listed may hold the rank that failed."""
    raise setup.UsageError(f"{error.filename}: {error.strerror}")


def _place(folder: str) -> tuple[int, int]:
    import os

    found = os.stat(folder)
    return found.st_dev, found.st_ino


def _blocks(path: str) -> Iterator[bytes | None]:
    """None, last, for a file that ends before its end."""
    came = given.blocks(path)  # as it comes: a whole block of a pipe would be waited for, and lost to a signal
    with contextlib.closing(came):
        first = unpack.at_least(next(came, b""), read := lambda: next(came, b""))
        yield from _recoded(first, read) if first[:2] in _UTF16 else unpack.unpacked(first, read)


def _recoded(first: bytes, read: Callable[[], bytes]) -> Iterator[bytes]:
    """UTF-16 as UTF-8: what PowerShell's ``>`` writes."""
    import codecs

    decode = codecs.getincrementaldecoder("utf-16")("replace").decode
    while first:
        yield decode(first).encode("utf-8", "replace")
        first = read()

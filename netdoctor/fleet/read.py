"""Read node reports, whatever is in the directory: nothing is dropped without a word."""

from __future__ import annotations

import gc
import json
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from netdoctor.facts.job import Expected
from netdoctor.fleet.extract import Extract, MalformedReportError
from netdoctor.fleet.nodes import Problem, ProblemKind, Reading
from netdoctor.model import REPORT_SCHEMA
from netdoctor.process import given
from netdoctor.textsafe import as_line

MAX_BYTES: Final = 5_000_000  # a report of a 16-GPU node with all runs is below 300 KB

_SHORT: Final = re.compile(r"[A-Za-z_-]\[[0-9]")  # Slurm's and Ansible's short form of many names

DEFECT: Final = "a defect of netdoctor in reading it"


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is no number")


_JSON: Final = json.JSONDecoder(parse_constant=_no_number)  # Python would take NaN and Infinity (RFC 8259 has neither)

KINDS: Final = {
    ProblemKind.UNREADABLE: "could not be read",
    ProblemKind.TOO_LARGE: f"larger than {MAX_BYTES // 1_000_000} MB",
    ProblemKind.NOT_JSON: "cut short, or not JSON",
    ProblemKind.NOT_OURS: "not a netdoctor report",
    ProblemKind.OTHER_SCHEMA: f"another version than {REPORT_SCHEMA}",
    ProblemKind.MALFORMED: "a netdoctor report that is not whole",
    ProblemKind.ANOTHER_DOCUMENT: "a netdoctor document of another kind",
    ProblemKind.SKIPPED: "not a .json file",
}


def read(paths: Iterable[str], on_progress: Callable[[int], None] | None = None, expected: Expected | None = None) -> Reading:
    """Every report in `paths` (files, or directories with ``*.json`` at any depth).  Raises OSError for a path
    that does not exist or cannot be reached; what is wrong with a file becomes a `Problem`."""
    got = Reading()
    extract = Extract(expected)
    got.asked = expected is not None
    seen: set[tuple[int, int]] = set()
    collecting = gc.isenabled()
    gc.disable()  # parsed JSON has no cycles: the collector would walk through 10,000 reports for nothing
    try:
        for path, named in _files(paths, got):
            _one(path, named, got, extract, seen)
            if on_progress and got.files % 1000 == 0:
                on_progress(got.files)
    finally:
        if collecting:
            gc.enable()
    return got


def _files(paths: Iterable[str], got: Reading) -> Iterator[tuple[str, bool]]:
    """(path, whether it was named itself), in a fixed order."""
    for path in paths:
        os.lstat(path)
        if not os.path.isdir(path):
            yield path, True
            continue

        def lost(folder: str, why: str) -> None:  # it counts: nobody knows how many nodes are in there
            name = as_line(os.path.basename(folder.rstrip("/")) + "/", 253)
            got.problems.append(Problem(as_line(folder, 1000), ProblemKind.UNREADABLE, as_line(why), name))

        for folder, folders, names in os.walk(path, onerror=lambda e: lost(str(e.filename), e.strerror or str(e))):
            folders.sort()
            for link in [one for one in folders if os.path.islink(os.path.join(folder, one))]:
                lost(os.path.join(folder, link), "a link to a directory is not followed: name it itself")
            for name in sorted(names):
                yield os.path.join(folder, name), False


def _one(path: str, named: bool, got: Reading, extract: Extract, seen: set[tuple[int, int]]) -> None:
    got.files += 1
    stem = as_line(os.path.basename(path).removesuffix(".json"), 253)
    modified: float | None = None

    def problem(kind: ProblemKind, detail: str, name: str = "", counts: bool = True) -> None:
        got.problems.append(Problem(as_line(path, 1000), kind, as_line(detail), name or stem, counts, modified))

    if not named and not path.endswith(".json"):
        return problem(ProblemKind.SKIPPED, "", counts=False)
    try:
        data, modified, inode = _bytes(path)
    except OSError as error:
        return problem(ProblemKind.UNREADABLE, error.strerror or str(error))
    if inode in seen:
        return problem(ProblemKind.SKIPPED, "the same file was given twice", counts=False)
    seen.add(inode)
    got.bytes += len(data)
    if len(data) > MAX_BYTES:
        return problem(ProblemKind.TOO_LARGE, f"more than {MAX_BYTES:,} bytes", _host_in(data))
    try:
        document = _JSON.decode(data.decode(json.detect_encoding(data)))
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        return problem(ProblemKind.NOT_JSON, "empty" if not data.strip() else str(error), _host_in(data))
    schema = document.get("schema") if isinstance(document, dict) else None
    if not isinstance(schema, str) or not schema.startswith("netdoctor."):
        return problem(ProblemKind.NOT_OURS, "no netdoctor schema in it")
    if schema != REPORT_SCHEMA:
        if schema.startswith("netdoctor.report/"):
            return problem(ProblemKind.OTHER_SCHEMA, f"{schema}; this netdoctor reads {REPORT_SCHEMA}", _host_of(document))
        way = "; netdoctor diagnose FILE -o NODE.json makes a report of it" if schema.startswith("netdoctor.snapshot/") else ""
        return problem(ProblemKind.ANOTHER_DOCUMENT, schema + way, counts=False)
    try:
        got.runs.append(extract.run(document, as_line(path, 1000), modified))
    except MalformedReportError as error:
        return problem(ProblemKind.MALFORMED, str(error), _host_of(document))
    except Exception as error:  # noqa: BLE001 - the border: a report that nobody thought of costs itself, not the fleet's report
        return problem(ProblemKind.MALFORMED, f"{DEFECT}: {type(error).__name__}: {error}", _host_of(document))
    return None


def _host_of(document: Any) -> str:
    identity = document.get("identity")
    names = [identity.get(key) for key in ("node", "host")] if isinstance(identity, dict) else []
    return next((as_line(name, 253) for name in names if isinstance(name, str) and as_line(name)), "")


def _host_in(data: bytes) -> str:
    """Whom a report that was cut short is about: the name stands near its beginning."""
    found = re.search(rb'"identity"\s*:\s*(\{[^{}]{0,8192}\})', data[:65536])
    try:
        return _host_of({"identity": json.loads(found[1])}) if found else ""
    except (ValueError, RecursionError):
        return ""


def _bytes(path: str) -> tuple[bytes, float, tuple[int, int]]:
    """(content up to a byte beyond the limit, when it was written at the latest, identity) of a regular file; waits on none."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "not a regular file")
        parts: list[bytes] = []
        left = MAX_BYTES + 1
        while left and (block := os.read(fd, min(left, max(status.st_size + 1, 1 << 16)))):
            parts.append(block)
            left -= len(block)
        return b"".join(parts), min(status.st_mtime, time.time()), (status.st_dev, status.st_ino)
    finally:
        os.close(fd)


def expected_names(path: str) -> list[str]:
    """Node names of a hosts file: one a line, ``#`` starts a comment, repeated names count once.  OSError, ValueError."""
    text = given.whole(path, MAX_BYTES).decode("utf-8-sig", "replace")
    lines = [line.partition("#")[0].strip() for line in text.split("\n")]
    if short := next((line for line in lines if _SHORT.search(line)), None):
        raise ValueError(f"{path}: one name a line, not {as_line(short, 80)}: scontrol show hostnames writes it out")
    return list(dict.fromkeys(as_line(line, 253) or as_line(repr(line), 253) for line in lines if line))

"""The variables that NCCL and the programs around it read: one table, ``catalogue.tsv``, read when it is first asked for.

Columns: name, program (nccl, torch, gloo, ucx, libfabric, …; ``none``: in no release), first and last release that reads it
(NCCL only), default in the newest release, default history (``version:default;…``), what it accepts, section of NVIDIA's user
guide (``system`` or ``debugging``), note.  ``tools/refresh_catalogue.py`` brings the table up to a newer libnccl.

What ``accepts`` says: ``flag`` 0 or 1 · ``one`` acts for exactly 1 · ``int`` any integer · ``A..B`` and ``V|A..B`` integers ·
``X|Y`` one of these words · ``level algo proto ifname hca debug subsys commid cidr path bool alias text`` a grammar of its own.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from netdoctor.facts import tables
from netdoctor.facts.nccl_version import Version, parse, text
from netdoctor.model import record
from netdoctor.nccl.integers import strtoll


@record
class Variable:
    """One row."""

    name: str
    program: str
    first: Version | None
    last: Version | None
    default: str
    history: tuple[tuple[Version, str], ...]
    accepts: str
    section: str
    note: str

    @property
    def row(self) -> str:
        """The row as it is cited."""
        parts = [self.name, self.program]
        if self.first and self.last:
            parts.append(f"{text(self.first)}–{'' if self.last == newest() else text(self.last)}")
        if self.default:
            parts.append(f"default {self.default}")
        if self.section == "debugging":
            parts.append("for debugging")
        return " · ".join(parts)

    def default_in(self, version: Version | None) -> str:
        """The default in `version` ("undef": left to the communicator's configuration; "": a string that is not set)."""
        known = [value for since, value in self.history if version and since <= version]
        newest_known = not version or version >= newest()
        return self.default if newest_known or not known else known[-1]


# Names that plugins and frameworks take, by prefix.
# Sources: aws-ofi-nccl, Google's gIB/FasTrak/TCPX guides, nccl-tests, ext-tuner/ext-profiler of NCCL, Meta's NCCLX.
PREFIXES: Final = (
    ("NCCL_FASTRAK_", "gcp"),
    ("NCCL_GPUDIRECTTCPX", "gcp"),
    ("NCCL_SHIM", "gcp"),
    ("NCCL_GIB_", "gcp"),
    ("NCCL_TUNER_CONFIG_", "a tuner plugin"),
    ("NCCL_INSPECTOR_", "the inspector plugin"),
    ("NCCL_PROFILE_", "a profiler plugin"),
    ("NCCL_PROFILER_", "a profiler plugin"),
    ("NCCL_TESTS_", "nccl-tests"),
    ("NCCL_EP_", "NCCL EP"),
    ("NCCL_CTRAN_", "NCCLX"),
    ("NCCL_UCX_", "nccl-rdma-sharp-plugin"),
    ("NCCL_OFI_", "aws-ofi-nccl"),
    ("OFI_NCCL_", "aws-ofi-nccl"),
    ("TORCH_NCCL_", "torch"),
    ("TORCH_FR_", "torch"),
    ("TORCH_GLOO_", "torch"),
    ("TORCH_DISTRIBUTED_", "torch"),
    ("GLOO_", "gloo"),
    ("UCX_", "ucx"),
    ("FI_", "libfabric"),
    ("RCCL_", "rccl"),
    ("NCCL_", "nccl"),
)
# Programs whose names are all in the table: a name that is missing there is unknown to them.
COMPLETE: Final = frozenset({"nccl", "torch", "gloo"})


def is_default(name: str, value: str) -> bool:
    """Whether to NCCL this is the same as not set, in every release: the integer that it takes then."""
    row = lookup(name)
    number = strtoll(value)
    if row is None or row.program != "nccl" or not re.fullmatch(r"-?\d+", row.default) or not number.digits or number.rest:
        return False
    return all(str(number.value) == default for default in (row.default, *(old for _, old in row.history)))


def program_of(name: str) -> str | None:
    """Whose variable this is, by its prefix; None where netdoctor does not judge it."""
    return next((program for prefix, program in PREFIXES if name.startswith(prefix)), None)


@lru_cache(maxsize=1)
def table() -> dict[str, Variable]:
    """Every row by name."""
    _, *rows = tables.rows(__package__, "catalogue.tsv")
    return {row.name: row for row in map(_row, rows)}


def _row(cells: list[str]) -> Variable:
    name, program, first, last, default, history, accepts, section, note = cells
    past = []
    for entry in filter(None, history.split(";")):
        since, _, value = entry.partition(":")
        if version := parse(since):
            past.append((version, value))
    nccl = program == "nccl"
    return Variable(
        name,
        program,
        parse(first) if nccl else None,
        parse(last) if nccl else None,
        default,
        tuple(past),
        accepts,
        section,
        note,
    )


@lru_cache(maxsize=1)
def newest() -> Version:
    """The newest release that the table knows."""
    return max(row.last for row in table().values() if row.last)


def lookup(name: str) -> Variable | None:
    return table().get(name)


def accepts(name: str) -> str | None:
    """What the values of a variable look like; None: the table does not know it."""
    row = lookup(name)
    return None if row is None else row.accepts


def closest(name: str, version: Version | None = None) -> str | None:
    """The real name that was probably meant: by spelling, or the same words in another order."""
    for row in _by_words().get(tuple(sorted(name.split("_"))), ()):
        if not _gone(row, version):
            return row.name
    return next((row.name for _, row in _near(name) if not _gone(row, version)), None)


def _gone(row: Variable, version: Version | None) -> bool:
    return bool(version and row.last and row.last < version)


@lru_cache(maxsize=1024)  # a name is asked for once a release
def _near(name: str) -> tuple[tuple[int, Variable], ...]:
    """The rows that are few letters away, the nearest first."""
    limit = 1 if len(name) < 10 else 3 if len(name) > 20 else 2
    letters, found = _letters(name), []
    for length in range(len(name) - limit, len(name) + limit + 1):
        for row, its_letters in _by_length().get(length, ()):
            # An edit adds one letter and removes one, at most: sets of letters rule most rows out without the distance matrix.
            if (letters ^ its_letters).bit_count() <= 2 * limit and (distance := _distance(name, row.name, limit)) <= limit:
                found.append((distance, row))
    return tuple(sorted(found, key=lambda one: one[0]))


def mistyped(name: str) -> str | None:
    """The real name where another case, or one letter of the first word, was meant.

    The first letter counts: HCCL_, RCCL_ and MCCL_ are the names of other libraries, and each has a SOCKET_IFNAME.
    """
    if not re.match(r"[Nn]\w{0,4}_|(?i:torch_(?:nccl|distributed)|gloo)_", name) or program_of(name):
        return None
    upper = name.upper()
    if upper in table():
        return upper
    word, _, rest = upper.partition("_")
    return closest(f"NCCL_{rest}") if name == upper and word != "NCCL" and _distance(word, "NCCL", 1) == 1 else None


def _meant() -> list[Variable]:
    """The rows that somebody can have meant."""
    return [row for row in table().values() if row.program != "none" and row.accepts != "alias"]


@lru_cache(maxsize=1)
def _by_words() -> dict[tuple[str, ...], list[Variable]]:
    found: dict[tuple[str, ...], list[Variable]] = {}
    for row in _meant():
        found.setdefault(tuple(sorted(row.name.split("_"))), []).append(row)
    return found


@lru_cache(maxsize=1)
def _by_length() -> dict[int, list[tuple[Variable, int]]]:
    """With the letters that are in each."""
    found: dict[int, list[tuple[Variable, int]]] = {}
    for row in _meant():
        found.setdefault(len(row.name), []).append((row, _letters(row.name)))
    return found


def _letters(name: str) -> int:
    """A bit for each letter that is in it."""
    bits = 0
    for letter in set(name):
        bits |= 1 << (ord(letter) & 63)
    return bits


def _distance(a: str, b: str, limit: int) -> int:
    """Edit distance with swaps of neighbours (optimal string alignment), or limit + 1 where it is larger."""
    if abs(len(a) - len(b)) > limit:
        return limit + 1
    before: list[int] = []
    last = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            cost = min(last[j] + 1, row[j - 1] + 1, last[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
        if min(row) > limit:
            return limit + 1
        before, last = last, row
    return last[-1]

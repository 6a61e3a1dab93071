"""Mends by what failed, with which errno, where, on which fabric and with which NCCL: the first row that fits is the advice.

The rows stand in ``mends.yaml``.  One that the log itself refutes does not fit: nobody is told to remove a variable that is not
set, or to load what is loaded.  RCCL's GPUs are AMD's: what is NVIDIA's in a mend is said in AMD's words, or left out.
"""

from __future__ import annotations

import errno
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

from netdoctor.facts.nccl_version import parse
from netdoctor.model import Fix, record
from netdoctor.nccl.diagnosis.place import Place, place
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording


class Topic(Enum):
    """What is to be mended: a key of the table."""

    SHARED_MEMORY = auto()
    RDMA_DEVICES = auto()
    MEMLOCK = auto()
    GPUDIRECT = auto()
    GID = auto()
    LINK = auto()
    FIREWALL = auto()
    INTERFACE = auto()
    KILLED = auto()
    LATE = auto()
    STUCK = auto()


# What a row's `shows` asks of a log; beside them "set NAME" and "unset NAME".
_SHOWS: Final[Mapping[str, Callable[[LogFacts], bool]]] = {
    "dmabuf": lambda log: log.dmabuf is True,
    "registers GPU memory": lambda log: log.dmabuf is True or any(log.gdr_hca.values()),
    "peermem refused": lambda log: any(Wording.NOT_INSERTED.within(e.text) for e in log.of("peermem")),
    "roce": lambda log: log.roce,
    "ib": lambda log: log.link_layers == {"IB"},
    "slurm": lambda log: any("srun" in e.text or "slurm" in e.text for e in log.of("died", "ended")),
}


@record
class Mend:
    """A fix and when it is the right one; what a row does not name may be anything."""

    fix: Fix
    places: frozenset[Place]
    errnos: frozenset[int]
    since: tuple[int, ...]  # the first NCCL for which it holds
    until: tuple[int, ...]  # the first for which it does not
    shows: str

    @property
    def variable(self) -> str:
        """Whose value stands for <value> in the words."""
        return self.shows.removeprefix("set ") if self.shows.startswith("set ") else ""

    def fits(self, log: LogFacts, where: Place, errnos: frozenset[int], version: tuple[int, ...] | None) -> bool:
        if (self.places and where not in self.places) or (self.errnos and not errnos & self.errnos):
            return False
        if self.since and (version is None or version < self.since):
            return False
        if self.until and (version is None or version >= self.until):
            return False
        return not self.shows or self._shown(log)

    def _shown(self, log: LogFacts) -> bool:
        if self.variable:
            return self.variable in log.env
        if self.shows.startswith("unset "):  # by a log that shows what is set
            return "env" not in log.absent and self.shows.removeprefix("unset ") not in log.env
        return _SHOWS[self.shows](log)


@functools.cache
def table() -> Mapping[Topic, tuple[Mend, ...]]:
    """The rows of each topic; read when the first log needs one."""
    from importlib.resources import files

    import yaml

    document = yaml.safe_load(files("netdoctor.nccl.diagnosis").joinpath("mends.yaml").read_text("utf-8"))
    return {Topic[name]: tuple(_row(row) for row in rows) for name, rows in document.items()}


def _row(row: Mapping[str, Any]) -> Mend:
    return Mend(
        Fix(row["mend"], tuple(row.get("commands", ())), tuple(row.get("persistent", ()))),
        frozenset(Place(one) for one in row.get("place", ())),
        frozenset(getattr(errno, one) for one in row.get("errno", ())),
        parse(row.get("since", "")) or (),
        parse(row.get("until", "")) or (),
        row.get("shows", ""),
    )


def mend(fix: Fix | Topic | None, log: LogFacts, events: Iterable[Event] = ()) -> Fix | None:
    """The fix of a topic that fits this log and the errno of these lines."""
    if isinstance(fix, Topic):
        where, errnos, version = place(log), _errnos(events), parse(log.nccl_version or "")
        row = next(m for m in table()[fix] if m.fits(log, where, errnos, version))
        value = log.env.get(row.variable, "")
        fix = _said(row.fix, lambda text: text.replace("<value>", value)) if value else row.fix
    return _said(fix, in_amds_words) if fix is not None and amd(log) else fix


def _said(fix: Fix, say: Callable[[str], str]) -> Fix:
    commands, persistent = (tuple(filter(None, map(say, lines))) for lines in (fix.commands, fix.persistent))
    return replace(fix, summary=say(fix.summary), commands=commands, persistent=persistent)


# strerror(3)'s text -> errno: what lines hold is the text.
_ERRNO: Final = {os.strerror(number).lower(): number for number in errno.errorcode}


def _errnos(events: Iterable[Event]) -> frozenset[int]:
    return frozenset(number for e in events if (number := _ERRNO.get(e.data.get("errno", "").strip().lower())) is not None)


def amd(log: LogFacts) -> bool:
    return log.library == "RCCL"


# NVIDIA's tools and variables -> AMD's; what has no counterpart leaves with its whole line.  Sources: rocm.docs.amd.com (HIP
# environment variables, amd-smi), RCCL's own log.
_AMDS: Final = tuple(
    (re.compile(pattern), text)
    for pattern, text in (
        (r".*(?:fabricmanager|nvidia-imex|imex-channels|nvidia_drm|modinfo -F license nvidia|driver\.rdma\.enabled).*", ""),
        (r".*(?:modprobe|echo) nvidia_peermem.*", ""),
        (r"nvidia-smi topo\b[^;]*", "amd-smi topology"),
        (r"nvidia-smi nvlink\b[^;]*", "amd-smi xgmi"),
        (r"nvidia-smi -q -d ECC\S*[^;]*", "amd-smi metric --ecc"),
        (r"nvidia-smi -q[^;]*", "amd-smi static"),
        (r"nvidia-smi", "amd-smi"),
        (r"cat /proc/driver/nvidia/version", "cat /sys/module/amdgpu/version"),
        (r"grep -i xid", "grep -i amdgpu"),
        (r"CUDA_LAUNCH_BLOCKING=1", "AMD_SERIALIZE_KERNEL=3"),
        (r"compute-sanitizer", "rocgdb"),
        (r"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
        (r"nvidia_peermem with an RDMA stack that knows peer memory", "amdgpu with an RDMA stack that knows peer memory"),
        (r"\(open kernel modules, [^)]*\)", "(kernel >= 5.12 with PCI_P2PDMA)"),
        (r"nvidia[_-]peermem", "amdgpu's peer memory"),
        (r"\bCUDA (?=failed|cannot|error)", "HIP "),
        (r"libnccl", "librccl"),
        (r"the CUDA of this NCCL", "the ROCm of this RCCL"),
    )
)


def in_amds_words(text: str) -> str:
    """A mend, or what to look at, as it is on AMD's GPUs; "" where there is no such thing."""
    for pattern, other in _AMDS:
        text = pattern.sub(other, text)
    return text.strip()

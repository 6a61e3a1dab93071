"""Whether /dev/shm gave a child what the ranks of this node take of it at start, and the job beside them.

A fact, though it lies here: how much that is NCCL's version says.
"""

from __future__ import annotations

import re
from typing import Final

from netdoctor.facts.base import Fact
from netdoctor.facts.cgroups import Cgroups
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import wanted
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, mapping, question, read, value
from netdoctor.model import Kind, Unavailable, missing, record, size_text
from netdoctor.nccl.shared_memory import pool_bytes

# What ends a rank of NCCL as well.  Of any other it is not known whether this child alone met it (a filter, no O_TMPFILE).
REFUSED: Final = {
    "ENOSPC": "No space left on device",
    "EDQUOT": "the quota of this user is used up",
    "EFBIG": "larger than a file of this process may be (ulimit -f)",
    "EROFS": "mounted for reading only",
    "EACCES": "Permission denied",
}
_SPARE: Final = 2  # as much again must be left, for nobody may be killed for a question


@record
class ShmProof(Fact):
    """Whether /dev/shm took files of the size that NCCL's ranks need.

    Asked where ranks of NCCL are to start, from the job's own place.
    """

    size: int | Unavailable  # bytes that the child asked for
    error: str | Unavailable  # errno name; "": it had them, and gave them back
    inodes: bool = True  # there are enough for the files
    closed: bool = False  # EACCES, by the folder's mode: no file of this user can be made there, whatever its name

    @property
    def as_nccl(self) -> bool:
        """Whether NCCL is refused as well, of as much."""
        return self.error in REFUSED and (self.error != "EACCES" or self.closed)


def probe(
    host: Host, libraries: Libraries, gpus: Gpus, intent: Intent, cgroups: Cgroups, vantage: Vantage
) -> ShmProof | Unavailable:
    """Nothing is asked that could cost another process its memory."""
    alone = gpus.none_visible and intent.shm_bytes > 0  # what the job itself puts there takes no GPU
    if not gpus.visible and not alone:
        return gpus.visible if isinstance(gpus.visible, Unavailable) else Unavailable(Kind.UNSUPPORTED, "no GPU is seen")
    if not vantage.job_environment:
        return Unavailable(Kind.REFUSED, f"/dev/shm is the job's own, not this one: {vantage.elsewhere}")
    if alone:
        return _asked(host, (0, 0), intent, cgroups)
    path = wanted(libraries)
    library = path if isinstance(path, Unavailable) else libraries.at(path)
    if isinstance(library, Unavailable) or library is None or not library.version or not intent.ranks_most:
        return Unavailable(Kind.NOT_READ, "how much NCCL takes could not be told")
    least, most = pool_bytes(library.version, 1)
    return _asked(host, (intent.ranks_most * intent.communicators, most or least), intent, cgroups)


def _asked(host: Host, pools: tuple[int, int], intent: Intent, cgroups: Cgroups) -> ShmProof | Unavailable:
    """`pools`: how many, and bytes of each."""
    files, each = pools
    size = files * each + intent.shm_bytes
    if (lost := _too_much(host, size, intent.shm_bytes, cgroups)) is not None:
        return lost
    got = mapping(host, question("shm", files=files, each=each, beside=intent.shm_bytes))
    if isinstance(got, Unavailable):
        return got
    error = value(got.get("error"), str, "ask:shm")
    return ShmProof(size, error, inodes=got.get("inodes") is not False, closed=got.get("closed") is True)


def _too_much(host: Host, size: int, beside: int, cgroups: Cgroups) -> Unavailable | None:
    """Where memory is short the kernel ends some process of the cgroup, or all of them (memory.oom.group)."""
    text = read(host, "/proc/meminfo")
    found = text and re.search(r"^MemAvailable:\s+(\d{1,15}) kB$", text, re.ASCII | re.MULTILINE)
    if not found:
        return Unavailable(Kind.NOT_READ, "how much memory is free could not be told")
    if int(found[1]) << 10 < _SPARE * size:
        return Unavailable(Kind.REFUSED, f"the node has not {_SPARE} times {size_text(size)} of free memory")
    caps = [cap for cap in cgroups.memory or () if cap]
    # Limits that cannot be read do not stop what is NCCL's: its ranks take as much in any case, and more.
    lost = missing(cgroups.memory, *(cgroups.memory or ()), *(cap.used for cap in caps))
    if lost is not None and beside:
        return Unavailable(Kind.NOT_READ, f"memory limits of the cgroup: {lost}")
    for cap in caps:
        if cap.most - (cap.used or 0) < _SPARE * size:
            return Unavailable(Kind.REFUSED, f"{cap.file} does not leave {_SPARE} times {size_text(size)}")
    return None

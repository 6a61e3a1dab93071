"""Where absence is evidence: questions whose answer "not there" (ENOENT) says something, and why it may be believed.

Everywhere else a missing answer may only turn a result into unknown.  Each entry is a thing that its maker creates when, and
only when, what it stands for is there; that the place itself was readable is seen by other answers.  Denied, timed out, empty
and not recorded are never evidence.
"""

from __future__ import annotations

import re
from typing import Final

ABSENCE_IS_EVIDENCE: Final[tuple[tuple[str, str], ...]] = (
    (r"stat:/dev/infiniband/uverbs\d+", "a device node that is not there is not mapped: open(2) fails with ENOENT"),
    (r"dir:/sys/class/infiniband_verbs", "the class comes with the module ib_uverbs (drivers/infiniband/core/uverbs_main.c)"),
    (r"room:.+", "a folder that is not there takes no file: open(2) fails with ENOENT"),
    (r"dir:/sys/devices/system/edac/mc", "the folder comes with the module edac_core (drivers/edac/edac_module.c)"),
    (r"file:/proc/\d+/stat", "a task that is not there has ended: it stands nowhere"),
    (r"ask:ibverbs(\?.*)?", "the loader finds no libibverbs.so.1: NCCL's dlopen meets the same"),
)


def is_evidence(question: str) -> bool:
    """Whether "absent" as the answer to `question` may change a verdict to anything but unknown."""
    return any(re.fullmatch(pattern, question) for pattern, _ in ABSENCE_IS_EVIDENCE)

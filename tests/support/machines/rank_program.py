"""The rank program as the job's Python runs it: its parts in one namespace."""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

from netdoctor.allreduce import worker


@functools.cache
def parts() -> Any:
    """Its names; nothing of it is run."""
    names: dict[str, Any] = {"__name__": "rank_program"}
    for name in worker._RANK_PROGRAM:
        exec(compile(worker._source(name), name, "exec", 0, True), names)
    return SimpleNamespace(**names)

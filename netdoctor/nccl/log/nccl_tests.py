"""What nccl-tests prints: its header, the rows of its table, and the average."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.facts.nccl_version import parse, text
from netdoctor.nccl.log.accumulator import Accumulator

_HEADER: Final = re.compile(rb"# +Rank +(\d+) +(?:Group +\d+ +)?Pid +(\d+) on +(\S+) device +\d+ \[\S+\] (.{1,80})")
_LIBRARY: Final = re.compile(rb"# nccl-tests version \S{1,20} nccl-headers=\d{1,6} nccl-library=(\d{4,5})\b")  # src/common.cu
_FAILED: Final = b": Test failure "
_AVERAGE: Final = re.compile(rb"Avg bus bandwidth\s*:\s*([\d.]+)")
# size, count, type, redop, root, time, algbw, busbw
_ROW: Final = re.compile(
    rb"\b(\d{8,15}) +\d{1,15} +(?:float|half|double|bfloat16|u?int\d{1,2}|fp8\w{1,8}) +\w{1,12} +-?\d{1,6} +[\d.]{1,12} "
    rb"+[\d.]{1,12} +(\d{1,6}(?:\.\d{1,4})?) "
)
_LARGE: Final = 1 << 26  # bytes from which the time is bandwidth, not latency


def may_be(line: bytes) -> bool:
    """Whether lines of this line's shape may be of nccl-tests."""
    return b"Rank " in line or b"Avg bus" in line or _FAILED in line or _ROW.search(line) is not None


def read(accumulator: Accumulator, line: bytes) -> bool:
    """Keep what the line holds; whether it is of the header, and nothing else."""
    if header := _HEADER.search(line):
        accumulator.header(header[1].decode(), header[2].decode(), header[3].decode("ascii", "replace"))
        accumulator.gpus[header[4].decode("utf-8", "replace").strip()] = None
        return True
    if b"nccl-library=" in line and (code := _LIBRARY.search(line)) and (version := parse(code[1].decode())):
        accumulator.versions[text(version)] += 1
    if (row := _ROW.search(line)) and int(row[1]) >= _LARGE:
        accumulator.busbw_peak = max(accumulator.busbw_peak or 0.0, float(row[2]))
    if _FAILED in line:
        accumulator.rank_zeros.clear()  # the next header is another run's, not another process' of this one
    if average := _AVERAGE.search(line):
        accumulator.rank_zeros.clear()
        accumulator.busbw = float(average[1]) if re.fullmatch(rb"\d+(?:\.\d+)?", average[1]) else None
    return False

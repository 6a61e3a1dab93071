"""What a line without NCCL's tag may hold beside what a family knows: signs of work, NCCL's words without prefix, facts."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.nccl.log import benign, messages, nccl_tests, runs
from netdoctor.nccl.log.accumulator import Accumulator

# NCCL's messages where the prefix was cut off.
BARE: Final = re.compile(
    rb"\b(?:NET/(?:IB|Socket|Plugin|OFI) ?: |NET/OFI |Using network |Bootstrap ?: Using |GPU Direct RDMA "
    rb"|(?:Channel|Ring) \d+(?:/\d+)? : \d+.{0,40} via )"
)

_TORCH: Final = re.compile(rb"(?:torch|pytorch)[ _]version\s*[:=]?\s*'?(\d+\.\d+\.\d+\S{0,20})", re.IGNORECASE)
_PYNCCL: Final = re.compile(rb"using nccl==(\d+\.\d+\.\d+)")


class Plain(NamedTuple):
    """What a line without NCCL's tag may hold beside an event; found once for all lines of a shape."""

    work: bool  # a sign of work
    of_others: bool  # a library's that has nothing to do with the ranks' connections
    bare: bool  # NCCL's message, its prefix cut off
    facts: bool  # versions, a header or the result of nccl-tests
    figure: bool = False  # a loss that is a number


NOT_PLAIN: Final = Plain(False, False, False, False)


def plain(line: bytes) -> Plain:
    facts = b"version" in line or b"nccl==" in line or nccl_tests.may_be(line) or runs.may_be(line)
    return Plain(benign.progress(line), benign.of_others(line), BARE.search(line) is not None, facts, benign.figure(line))


def tell_facts(accumulator: Accumulator, line: bytes) -> bool:
    """Versions, and what nccl-tests prints; whether the line is nothing else."""
    messages.version(accumulator, None, -1, line)
    if torch := _TORCH.search(line):
        accumulator.torch_version = torch[1].decode("ascii", "replace")
    if pynccl := _PYNCCL.search(line):
        accumulator.versions[pynccl[1].decode()] += 1
    return nccl_tests.read(accumulator, line)

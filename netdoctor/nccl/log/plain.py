"""What a line without NCCL's tag may hold beside what a family knows: signs of work, NCCL's words without prefix, facts."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.nccl.log import benign, nccl_tests, runs

# NCCL's messages where the prefix was cut off.
BARE: Final = re.compile(
    rb"\b(?:NET/(?:IB|Socket|Plugin|OFI) ?: |NET/OFI |Using network |Bootstrap ?: Using |GPU Direct RDMA "
    rb"|(?:Channel|Ring) \d+(?:/\d+)? : \d+.{0,40} via )"
)


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

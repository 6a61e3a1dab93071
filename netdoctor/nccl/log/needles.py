"""What a line must hold to be worth a closer look: most lines of a training log hold none of it."""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import any_of
from netdoctor.nccl.log.patterns import PATTERNS

DECIMAL: Final = b"0123456789"
LOWER: Final = bytes(range(256)).lower()
# Lines of other programs that matter hold one of these, without decimal digits: a needle of a family, or what stands for a
# fact, a traceback or last words.
_MARKS: Final = (
    b"nccl|rror|ailed|illed|exception|imed out|connection |ccom warn|libibverbs|via net/|via p2p/|nvidia_peermem|using network "
    b"|avg bus bandwidth|  rank |net/ib|net : using|gpu direct rdma|traceback (most|exit code|watchdog|too old|not compatible"
    b"|lsf system <|the output (if any)|usage: |wandb: run data|find logs at:|agent starting run"
).split(b"|")
_NEEDLES: Final = {word.translate(None, DECIMAL) for word in (*_MARKS, *(n for p in PATTERNS for n in p.needles))}
NEEDLE: Final = any_of(_NEEDLES)
PART: Final = any_of(max(needle.split(), key=len) for needle in _NEEDLES)  # of a needle, within one word of a line

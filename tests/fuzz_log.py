"""``python -m tests.fuzz_log [LINES [SEED]]``: mutated log lines through parser, rules and renderers; no exception.

Lines are NCCL's and other programs' formats with numbers and names filled in, then cut, doubled, swapped, spliced and sprinkled
with bytes.  The default is a million lines.  A failure prints the seed of its batch.
"""

from __future__ import annotations

import random
import sys
import time

from netdoctor.cli.log import report
from netdoctor.cli.setup import decider
from netdoctor.config.load import Config
from netdoctor.model import Command
from netdoctor.nccl.log.parser import Parser
from netdoctor.report.formats import names, render
from tests.unit.test_log_parser import ERAS, PREFIXES
from tests.unit.test_log_rules import LOGS

_BATCH = 2000
_NASTY = (
    b"\x00",
    b"\x1b[2J",
    b"\x9b31m",
    b"\r",
    b"\n",
    b"\xff\xfe",
    b"%s",
    b"[",
    b"]",
    b"(",
    b"<",
    b":",
    b" -> ",
    b"via NET/",
    b"NCCL ",
    b"\xe2\x80\xae",
    b"9" * 40,
    b"-1",
    b"::",
)


def lines() -> list[bytes]:
    """All lines that the tests know, with and without prefixes."""
    texts = [text for log in LOGS.values() for text in log.split("\n")]
    texts += [message for row in ERAS for message in row[0].split("\n")]
    texts += [prefix.replace("MSG", "Using network IB") for prefix, *_ in PREFIXES]
    return [t.encode() for t in texts if t]


def mutate(dice: random.Random, line: bytes, others: list[bytes]) -> bytes:
    for _ in range(dice.randrange(4)):
        at = dice.randrange(len(line) + 1)
        match dice.randrange(7):
            case 0:
                line = line[:at]
            case 1:
                line = line[:at] + dice.choice(_NASTY) + line[at:]
            case 2:
                line = line[:at] + dice.choice(others)[dice.randrange(40) :]
            case 3:
                line = line[at:] + line[:at]
            case 4:
                line = line[:at] + bytes([dice.randrange(256)]) + line[at + 1 :]
            case 5:
                line = line * 2
            case _:
                line = line.replace(b" ", dice.choice((b"", b"  ", b"\t")))
        line = line[:4096]
    return line


def batch(seed: int, count: int, known: list[bytes]) -> int:
    """One log of `count` lines, fed in pieces; returns how many bytes it had."""
    dice = random.Random(seed)
    data = b"\n".join(mutate(dice, dice.choice(known), known) for _ in range(count))
    parser = Parser()
    at = 0
    while at < len(data):
        step = dice.choice((1, 7, 300, 65536))
        parser.feed(data[at : at + step * 97])
        at += step * 97
    made = report(parser.facts(), decider(Config(), command=Command.LOG))
    for format in names():
        text = render(made, format)
        bad = [c for c in text if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0]
        assert not bad, f"control characters in {format}: {bad[:5]!r}"
    return len(data)


def main() -> int:
    total = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    known = lines()
    begin, size = time.perf_counter(), 0
    for number in range((total + _BATCH - 1) // _BATCH):
        try:
            size += batch(first + number, _BATCH, known)
        except Exception:  # noqa: PERF203 (the seed of the batch is the point)
            print(f"failed with seed {first + number}: python -m tests.fuzz_log {_BATCH} {first + number}", file=sys.stderr)
            raise
    print(f"{total} mutated lines, {size / 1e6:.0f} MB, {time.perf_counter() - begin:.0f} s: no exception")
    return 0


if __name__ == "__main__":
    sys.exit(main())

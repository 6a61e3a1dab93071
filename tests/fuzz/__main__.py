"""``python -m tests.fuzz [--seconds N] [--inputs N] [--seed S] [TARGET …]``: no exception, no control character, no hang.

Whoever had the fewest inputs is next, but no target gets more than three times its share of the time.  An input that fails is
kept in build/fuzz; ``--again FILE TARGET`` reads it.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from tests.fuzz.targets import TARGETS, Target, inputs

FAILED = Path(__file__).parents[2] / "build" / "fuzz"
TURN = 1.0  # seconds of a target at a time
LONGEST = 20  # seconds that one input may take, on a busy machine
ENOUGH = 5  # failures of one target, after which it is left alone


class TooLong(Exception):  # noqa: N818
    """One input took longer than `LONGEST`."""


def overdue(*_: Any) -> None:
    raise TooLong(f"longer than {LONGEST} s")


def one(name: str, target: Target, data: bytes) -> bool:
    """Whether it was read well."""
    signal.alarm(LONGEST)
    try:
        target.feed(data)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        FAILED.mkdir(parents=True, exist_ok=True)
        path = FAILED / f"{name.replace(' ', '-')}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        where = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"{name}: {type(error).__name__}: {str(error)[:200]!r} at {where.filename}:{where.lineno}; {path}", file=sys.stderr
        )
        return False
    finally:
        signal.alarm(0)
    return True


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m tests.fuzz")
    asked.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS))
    asked.add_argument("--seconds", type=float, default=60.0)
    asked.add_argument("--inputs", type=int, default=1 << 62)
    asked.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(3), "big"))
    asked.add_argument("--again", metavar="FILE")
    given = asked.parse_args()
    chosen = {name: TARGETS[name] for name in given.targets or TARGETS}
    signal.signal(signal.SIGALRM, overdue)
    if given.again:
        return int(not all(one(name, target, Path(given.again).read_bytes()) for name, target in chosen.items()))
    streams = {name: inputs(target, given.seed) for name, target in chosen.items()}
    done, bad = dict.fromkeys(chosen, 0), dict.fromkeys(chosen, 0)
    end = time.monotonic() + given.seconds
    spent = dict.fromkeys(chosen, 0.0)
    turn = min(TURN, given.seconds / len(chosen) / 4)
    while time.monotonic() < end and sum(done.values()) < given.inputs:
        most = 3 * given.seconds / len(chosen) if len(chosen) > 3 else given.seconds
        left = [name for name in chosen if bad[name] < ENOUGH and spent[name] < most]
        if not left:
            break
        name, begin = min(left, key=lambda one: done[one]), time.monotonic()
        while time.monotonic() < min(begin + turn, end):
            bad[name] += not one(name, chosen[name], next(streams[name]))
            done[name] += 1
        spent[name] += time.monotonic() - begin
    for name in chosen:
        print(f"{name:16} {done[name]:>10,} inputs {bad[name]:>3} failed")
    print(f"{sum(done.values()):,} inputs, {sum(bad.values())} failed, seed {given.seed}")
    return 1 if any(bad.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

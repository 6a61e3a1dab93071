"""python -m tests.fakegpu.differential [--draws N] [--seed S] [VERSION…]: netdoctor's predictions against the real NCCL."""

from __future__ import annotations

import argparse
import sys

from tests.fakegpu import namespace
from tests.fakegpu.differential import runner


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fakegpu.differential", description=__doc__)
    parser.add_argument("versions", nargs="*", metavar="VERSION", help="all that make libnccl fetched where none is given")
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--area", action="append", choices=sorted(runner.AREAS), help="only these")
    parser.add_argument("--keep", action="store_true", help="each comparison to stderr")
    given = parser.parse_args()
    if why := namespace.missing() or runner.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return 77
    if not (versions := [runner.numbers(one) for one in given.versions] or runner.available()):
        parser.error("no libnccl is here (make libnccl)")
    results = runner.run(given.draws, given.seed, versions, given.area or tuple(runner.AREAS))
    if given.keep:
        for one in results:
            print(one.version, one.area, one.seed, one.what, one.predicted, one.seen, one.agrees, file=sys.stderr)
    print(runner.table(results))
    runner.write(results)
    return int(runner.agreement(results) < runner.WANTED)


if __name__ == "__main__":
    sys.exit(main())

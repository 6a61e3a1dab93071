"""python -m tests.fakegpu run --version 2.27.5 --machine two-a100 --ranks 2: the real NCCL on a machine that is not there."""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Iterator

from tests.fakegpu import build, lab, machine, namespace
from tests.support.machines import libnccl


def pairs(words: list[str]) -> Iterator[tuple[int | None, str, str]]:
    """``NAME=VALUE`` for all ranks, ``N:NAME=VALUE`` for rank N."""
    for word in words:
        name, _, value = word.partition("=")
        rank, colon, rest = name.partition(":")
        yield (int(rank), rest, value) if colon else (None, name, value)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m tests.fakegpu", description=__doc__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="start ranks and say what NCCL decided")
    run.add_argument("--machine", default="two-a100", help=f"a file, or one of {', '.join(machine.names())}")
    run.add_argument("--version", default="2.27.5", help="of the libnccl that make libnccl fetches")
    run.add_argument("--ranks", type=int, default=2)
    run.add_argument("--hosts", type=int, default=1, help="as how many hosts NCCL shall take them")
    run.add_argument("--device", type=int, action="append", help="GPU of each rank in turn; else its number on its host")
    run.add_argument("--steps", default="id", help="i init, r g b c s collectives, a abort, d destroy (rank.py)")
    run.add_argument("--count", type=int, default=1024, help="floats of a rank")
    run.add_argument("--seconds", type=float, default=20.0, help="of each wait")
    run.add_argument("--env", action="append", default=[], metavar="[RANK:]NAME=VALUE")
    run.add_argument("--set", action="append", default=[], metavar="PATH=VALUE", help="change the machine: gpus.0.state.lost=1")
    run.add_argument("--fault", action="append", default=[], metavar="'CALL WHICH RESULT'")
    run.add_argument("--event", action="append", default=[], metavar="'DEVICE KIND PORT AFTER'")
    run.add_argument(
        "--kernels",
        type=pathlib.Path,
        nargs="?",
        const=build.kernels,
        help="what stands in for NCCL's kernels: ours, or a library",
    )
    run.add_argument("--keep", type=pathlib.Path, metavar="FOLDER", help="where the logs go")
    run.add_argument("--network", action="store_true", help="the machine's own interfaces")
    run.add_argument("--trace", action="store_true", help="each call of the fakes, in the logs")
    run.add_argument("--log", action="store_true", help="print the logs")
    commands.add_parser("machines", help="what machines there are")
    commands.add_parser("versions", help="what libnccl there are")
    return top


def main() -> int:
    given = parser().parse_args()
    if given.command == "machines":
        print(*machine.names(), sep="\n")
        return 0
    if given.command == "versions":
        print(*(".".join(map(str, one)) for one in sorted(libnccl.libraries())), sep="\n")
        return 0
    if why := namespace.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return 77
    changes = dict(namespace.changes(given.set))
    for key in ("fault", "event"):
        if getattr(given, key):
            changes[f"{key}s"] = getattr(given, key)
    env = list(pairs(given.env))
    ranks = [
        lab.Rank(
            device=given.device[n % len(given.device)] if given.device else None,
            env={name: value for rank, name, value in env if rank in (None, n)},
        )
        for n in range(given.ranks)
    ]
    done = lab.run(
        machine.read(given.machine).with_changes(changes),
        given.version,
        ranks,
        hosts=given.hosts,
        steps=given.steps,
        kernels=given.kernels() if callable(given.kernels) else given.kernels,
        count=given.count,
        seconds=given.seconds,
        deadline=3 * given.seconds + 20,
        network=given.network,
        trace=given.trace,
        keep=given.keep,
    )
    for n, rank in enumerate(done.ranks):
        if given.log:
            print(rank.log)
        moved = {None: "no data moved (nothing stands in for the kernels)", True: "sums right", False: "data WRONG"}[rank.moved]
        if not any("wrong" in one for one in rank.steps):
            moved = "no collective asked for"
        if rank.unable:
            moved = f"could not move data: {rank.unable}"
        code = "killed at the deadline" if rank.code is None else f"exit {rank.code}"
        print(f"rank {n}: {code}; {', '.join(rank.via) or 'no connection'}; {moved}{'; ' + rank.failed if rank.failed else ''}")
    print("The driver is a fake: what NCCL decided is real, how long it took means nothing.")
    return 0 if done.ok else 1


if __name__ == "__main__":
    sys.exit(main())

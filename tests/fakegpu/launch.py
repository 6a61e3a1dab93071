"""Starts the ranks of one run, each in the mount namespace of its machine: python -m tests.fakegpu.launch RUN.json

A step of its own, so that all ranks are in one user namespace: peers write into each other's memory.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

from tests.fakegpu import namespace


def main(path: str) -> int:
    ranks = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    namespace.may_mount()
    namespace.connect(pathlib.Path(ranks[0]["shown"]))
    namespace.own_memory()  # what ranks that are killed leave there goes with them
    children = {}
    for number, rank in enumerate(ranks):
        child = os.fork()
        if child == 0:
            try:
                log = os.open(rank["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)
                os.dup2(log, 1)
                os.dup2(log, 2)
                namespace.show(pathlib.Path(rank["shown"]))
                os.execvpe(rank["command"][0], rank["command"], rank["env"])
            except OSError as error:
                print(f"fakegpu: {error}", file=sys.stderr, flush=True)
            os._exit(126)
        children[child] = number
    for _ in ranks:
        child, status = os.wait()
        pathlib.Path(ranks[children[child]]["log"] + ".code").write_text(
            str(os.waitstatus_to_exitcode(status)), encoding="ascii"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

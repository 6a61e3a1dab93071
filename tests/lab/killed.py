"""Killed at a random moment, by SIGTERM and by SIGKILL: nothing may be left of any command (``python -m tests.lab.killed``).

Processes, mounts, links, addresses, routes, namespaces, modules, sysctls, /dev/shm, System V IPC, sockets, devices, limits and
files (temporary ones included) are compared before and after, in a machine of its own (tests/support/namespaces/world.py).
"""

from __future__ import annotations

import os
import pathlib
import shutil
import sys
import tempfile
import time
from typing import Any, Final

from tests.lab import fixtures
from tests.support.namespaces import world
from tests.support.namespaces.kills import KILLED, KILLED_OTHERS, OTHERS

SEEDS: Final = int(os.environ.get("SEEDS", "50"))


def reports(folder: pathlib.Path) -> None:
    """A fleet of three: what `netdoctor fleet report` reads."""
    for slug in ("dgx-h100", "hgx-h100-roce", "cpu-node"):
        shutil.copy(fixtures.HOSTS / slug / "report.json", folder / f"{slug}.json")


def killed(what: str, python: str, first: int, seeds: int, folder: str = "") -> Any:
    """One run to the end and `seeds` killed ones: see tests/support/namespaces/kills.py."""
    patience = 120 + 120 * seeds  # for a machine that has much else to do; a seed takes ten seconds
    if what == "preflight":
        return world.run(KILLED, python, str(first), str(seeds), timeout=patience)
    return world.run(KILLED_OTHERS, what, python, str(first), str(seeds), folder, timeout=patience)


def main() -> int:
    """Every command, `SEEDS` (50) seeds each; words after the module's name choose commands."""
    if reason := world.why_not():
        print(f"killed: not run: {reason}")
        return 0
    bad = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        reports(pathlib.Path(name))
        for what in [a for a in sys.argv[1:] if a in ("preflight", *OTHERS)] or ("preflight", *OTHERS):
            begin = time.monotonic()
            seen = killed(what, sys.executable, 0, SEEDS, name)
            wrong = [row for row in [{"signal": "none", **seen}, *seen["killed"]] if row["changed"] or row["left"]]
            for row in wrong:
                print(f"  {what}: {row['signal']} at {row.get('delay', 0):.3f} s: {row['changed']} {row['left']}")
            ends = [row for row in seen["killed"] if row["signal"] == "SIGTERM" and row["exit"] == -15]
            silent = ", ".join(f"{row['delay']:.2f}" for row in ends) or "none"
            bad += len(wrong)
            said = f"{len(seen['killed'])} seeds within {seen['seconds']:.1f} s, {len(wrong)} left something"
            print(f"killed: {what} (exit {seen['exit']}): {said}; SIGTERM")
            print(f"  without a word at {silent} s; {time.monotonic() - begin:.0f} s", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

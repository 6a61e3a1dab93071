"""Each fault of rows.py by a live preflight on its machine, and the same preflight on the machine without it.

python -m tests.fakegpu.endtoend [WORD…]     a line a row; words: in the name of the fault or of the check
"""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from tests.fakegpu import doctor, machine
from tests.fakegpu.doctor import Around, Report
from tests.fakegpu.row import Row
from tests.fakegpu.rows import ROWS
from tests.support.machines import libnccl
from tests.support.namespaces import dgx


class Lab:
    """Jobs and healthy reports, each made once."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._jobs: dict[str | None, pathlib.Path] = {}
        self._healthy: dict[str, Report] = {}

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def job(self, torch: str | None) -> pathlib.Path:
        """A job's Python, without torch or with one whose files a shell script changed."""
        if torch not in self._jobs:
            version = libnccl.both()[0].parts[-5]
            made = doctor.job(version) if torch is None else _with_torch(torch)
            self._jobs[torch] = self._stack.enter_context(made)
        return self._jobs[torch]

    def healthy(self, row: Row) -> Report:
        """The same preflight on a machine without the fault."""
        torch = None if row.torch is None else ""
        key = repr((row.machine, row.healthy, row.base, row.nodes, row.runs, torch, row.job))
        if key not in self._healthy:
            self._healthy[key] = self._look(row, row.healthy, row.base, torch)
        return self._healthy[key]

    def faulty(self, row: Row) -> Report:
        env = {**row.base.env, **row.around.env}
        around = replace(row.around, env=env, config=row.around.config or row.base.config)
        return self._look(row, {**row.healthy, **row.changes}, around, row.torch)

    def _look(self, row: Row, changes: Any, around: Around, torch: str | None) -> Report:
        python = self.job(torch)
        one = machine.read(row.machine)
        one = (one if row.nodes else one.on_one_node()).with_changes(changes)
        options = ("--via", "nccl") if row.runs else ("--no-allreduce",)
        env = {name: value.replace("SITE", str(_site(python))) for name, value in {**row.job, **around.env}.items()}
        cpus = sorted(os.sched_getaffinity(0))
        wrap = around.wrap.replace("FIRST", str(cpus[0])).replace("LAST", str(cpus[-1]))
        return doctor.preflight(one, python, replace(around, env=env, wrap=wrap, options=(*around.options, *options)))


def _site(python: pathlib.Path) -> pathlib.Path:
    return next(python.parents[1].glob("lib/*/site-packages"))


@contextmanager
def _with_torch(script: str) -> Iterator[pathlib.Path]:
    with tempfile.TemporaryDirectory(dir="/run" if os.geteuid() == 0 else None) as name:
        os.chmod(name, 0o755)
        python = dgx.job_python(pathlib.Path(name) / "job")
        subprocess.run(["sh", "-ec", script], cwd=_site(python), check=True, timeout=60)
        yield python


def missed(row: Row, report: Report) -> str:
    """Why the fault was not found; "" where it was."""
    said = [one for one in report.of(row.check) if one["subject"] == row.subject]
    if any((one["status"], one.get("cause")) == ("fail", row.cause) for one in said):
        return ""
    seen = [f"{one['subject']}: {one['status']} {one.get('cause')}: {one['message']}" for one in report.of(row.check)]
    return f"no fail of {row.check} about {row.subject} with cause {row.cause}, but {'; '.join(seen) or 'nothing'}"


def main(words: list[str]) -> int:
    bad = 0
    with Lab() as lab:
        for row in ROWS:
            if words and not any(word in row.fault or word in row.check for word in words):
                continue
            try:
                why, unwell = missed(row, lab.faulty(row)), lab.healthy(row).fails
            except (RuntimeError, subprocess.SubprocessError) as error:
                why, unwell = str(error), []
            bad += bool(why or unwell)
            print(
                f"{row.check:24} {row.fault:55} {'found' if not why else 'MISSED'}",
                *filter(None, [why, *unwell]),
                sep="\n    ",
                flush=True,
            )
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Faults that only several nodes show: `netdoctor allreduce` of a job without torch on two hosts with GPUs that are not there.

python -m tests.fakegpu.nodes [WORD…]     a line a row
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tests.fakegpu import build, machine
from tests.fakegpu.doctor import Report
from tests.support.machines import libnccl, native
from tests.support.namespaces.hosts import ROOT, Hosts
from tests.support.namespaces.marks import all_gone

CHECK: Final = "allreduce.nodes"
NO_TORCH: Final = "/usr/bin/python3"  # -I sees no torch of a user's


@dataclass(frozen=True)
class Row:
    """What is wrong with node 1, and what node 0 must say of it; without `cause` nothing."""

    fault: str
    cause: str = ""
    subject: str = ""
    faults: Sequence[str] = ()  # of its machine
    env: Mapping[str, str] = field(default_factory=dict)
    setup: str = ""  # shell on it
    started: bool = True
    newer: bool = False  # it has another NCCL


ROWS: Final = (
    Row("its first kernel fails", "rank_died", "h1", faults=["kernel 1 719"]),
    Row("it never comes", "missing_node", "node 1", started=False),
    Row("it has another NCCL", "version_mismatch", "nodes, NCCL", newer=True),
    Row("a firewall before all that it listens on", "firewall_connect", "h1", setup="iptables -A INPUT -p tcp --syn -j DROP"),
    Row("a variable differs", "drift", "nodes, variable NCCL_PROTO", env={"NCCL_PROTO": "Simple"}),
)
HEALTHY: Final = Row("nothing")


def look(row: Row, folder: pathlib.Path) -> Report:
    """What node 0 says."""
    hosts = Hosts(2, folder)
    old, new = libnccl.both()
    try:
        with tempfile.TemporaryDirectory(dir=native.BUILD) as made:
            processes = []
            for number in range(2):
                own = row if number else HEALTHY
                file = pathlib.Path(made) / f"machine{number}"
                machine.read("one-gpu").with_changes({"faults": list(own.faults)}).write(file, kernels=str(build.kernels()))
                paths = [*map(str, build.libraries()), os.path.realpath((new if own.newer else old).parent)]
                variables = {"LD_LIBRARY_PATH": os.pathsep.join(paths), "FAKEGPU_MACHINE": str(file), **own.env}
                if own.setup:
                    hosts.sh(number, own.setup)
                if own.started:
                    processes.append(_started(hosts, number, variables))
            said: list[tuple[str, str]] = [one.communicate(timeout=240) for one in processes]
        out, err = said[0]
        if not out:
            raise RuntimeError(err[-3000:])
        report: dict[str, Any] = json.loads(out)
        assert all_gone(hosts.mark), "processes were left behind"
        return Report(report, err)
    finally:
        hosts.close()


def _started(hosts: Hosts, number: int, variables: Mapping[str, str]) -> subprocess.Popen[str]:
    where = ["--nodes", "2", "--node-rank", str(number), "--master", "h0:29400", "--wait", "12", "--stall", "60"]
    options = ["--python", NO_TORCH, "--via", "nccl", "--user", "root", "--only", f"{CHECK},allreduce.run", "-f", "json"]
    program = (sys.executable, "-m", "tests.fakegpu.doctor")
    own = {"PYTHONPATH": str(ROOT)}  # who enters a host's mounts is in "/"
    return hosts.spawn(number, *program, "allreduce", *where, *options, variables={**own, **variables})


def missed(row: Row, report: Report) -> str:
    """Why the fault was not found, or what else was; "" where all is as it should be."""
    bad = [(one["subject"], one["cause"], one["message"]) for one in report.of(CHECK) if one["status"] == "fail"]
    if not row.cause:
        return "; ".join(report.fails)
    found = any((subject, cause) == (row.subject, row.cause) for subject, cause, _ in bad)
    return "" if found else f"no fail about {row.subject} with cause {row.cause}, but {bad or report.findings}"


def main(words: list[str]) -> int:
    bad = 0
    for row in (HEALTHY, *ROWS):
        if words and not any(word in row.fault for word in words):
            continue
        with tempfile.TemporaryDirectory() as folder:
            why = missed(row, look(row, pathlib.Path(folder)))
        bad += bool(why)
        print(f"{CHECK:24} {row.fault:65} {'as told' if not why else f'NOT: {why}'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

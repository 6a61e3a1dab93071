"""Faults of the network between hosts, live: real all-reduces of `netdoctor allreduce` across network namespaces.

Each row builds its hosts, breaks one thing, starts netdoctor on all of them and compares every report with those of healthy
hosts.  All of it (processes, namespaces, cables) ends with the row, also when the lab is told to stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from netdoctor.model import Json
from tests.lab.hosts_rows import BRIDGE, EVERY, PLAIN, ROWS, Row, Said
from tests.support.machines import native
from tests.support.namespaces.hosts import ROOT, Hosts
from tests.support.namespaces.marks import all_gone, marked

Report = dict[str, Any]
Statuses = Mapping[tuple[str, str], str]  # (check, subject) -> status, with its cause where it failed
MACVLAN = (
    "ip link set eth0 down; ip link set eth0 name low0; ip addr flush dev low0; ip link set low0 up;"
    "ip link add eth0 link low0 type macvlan mode bridge; ip addr add {0}/24 dev eth0; ip link set eth0 up"
)
CHECKS = "allreduce.run,allreduce.bandwidth,net.port_range,net.socket_ifname,net.tcp_buffers"
# What every run that did not finish changes.
RUNS = ("allreduce.run", "allreduce.bandwidth", "allreduce.nodes")
NO_TORCH = "/usr/bin/python3"  # -I sees no torch of a user's: the nodes meet, and then say that they cannot run
LONGEST = 150.0  # seconds for the reports of one row


class Lab(Hosts):
    """The hosts of one row, made ready: sysfs of their own network, the configuration, and what the row changes."""

    def __init__(self, row: Row, folder: Path) -> None:
        super().__init__(row.hosts + row.routers, folder)
        try:
            self._prepare(row)
        except BaseException:
            self.close()
            raise

    def _prepare(self, row: Row) -> None:
        config = json.dumps(
            {
                "vantage": "job",
                "job": {"nodes": row.hosts, "ranks_per_node": row.ranks},
                "expected": {"rtt_ms": 0.2, **row.expect},
            }
        )
        # bbr, where it is the default, costs two thirds of what a veth can carry.
        ready = (
            "umount -l /sys; mount -t sysfs sysfs /sys; sysctl -q -w net.ipv4.tcp_congestion_control=reno;"
            f"echo '{config}' > /run/netdoctor.yaml"
        )
        for number in range(row.hosts):
            self.sh(number, ready)
            if row.macvlan:
                self.sh(number, MACVLAN.format(self.address(number)))
        for where, line in row.setup:
            line = line.replace("ROOT", str(ROOT)).replace("PYTHON", sys.executable)
            line = re.sub(r"\bPID([0-9])\b", lambda found: str(self.holders[int(found[1])].pid), line)
            if where == BRIDGE:
                self._sh(self.bridge, line)
            for number in range(row.hosts) if where == EVERY else [where] * (where != BRIDGE):
                self.sh(number, line)
        if row.cable is not None:
            self._cable(*row.cable)
        for number, command in row.beside.items():
            out = self.spawn(number, *command).stdout
            assert out is not None and out.readline().startswith("ready")

    def _cable(self, number: int, options: Sequence[str]) -> None:
        """A cable of two TAP devices in the place of a host's own, which delays, loses or shuffles what it carries."""
        self._sh(self.bridge, f"ip link del p{number}")
        program = [sys.executable, "-m", "tests.support.namespaces.cable"]
        ends = [str(self.holders[number].pid), "eth0", str(self.bridge.pid), f"p{number}"]
        made = subprocess.Popen([*program, *ends, *options], cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self.started.append(made)
        assert made.stdout is not None and made.stdout.readline() == "ready\n"
        self._sh(self.bridge, f"ip link set p{number} master br0 up")
        self.sh(number, f"ip addr add {self.address(number)}/24 dev eth0 && ip link set eth0 up")

    def netdoctor(self, row: Row, number: int) -> subprocess.Popen[str]:
        arguments = ["--nodes", str(row.hosts), "--node-rank", str(number), "--master", "h0:29400"]
        arguments += ["--wait", str(row.waits.get(number, row.wait)), "--stall", str(row.stall), "--only", CHECKS, "-f", "json"]
        arguments += ["--config", "/run/netdoctor.yaml"]
        python = row.pythons.get(number, sys.executable if row.torch else NO_TORCH)
        path = {"PYTHONPATH": f"/run/faulty_torch:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}
        given = {**path, **row.env, **row.variables.get(number, {})}
        if "OTHER_TIME" in given.values():
            given = {k: str(native.clock()) if v == "OTHER_TIME" else v for k, v in given.items()}
        return self.start(
            number, "allreduce", *arguments, "--python", python, "--ranks-per-node", str(row.ranks), variables=given
        )


@dataclass(frozen=True)
class Outcome:
    row: Row
    found: bool | None  # None: it could not run
    disturbed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()  # what should have been said
    seconds: float = 0.0
    why: str = ""
    reports: Mapping[int, Report] | None = None

    def as_row(self) -> dict[str, Json]:
        row: dict[str, Json] = {
            "fault": self.row.fault,
            "way": "hosts",
            "expected": {check: "; ".join(texts) for check, texts in self.row.expected().items()},
            "found": self.found,
            "disturbed": list(self.disturbed),
            "seconds": round(self.seconds, 2),
        }
        return {**row, "why": self.why} if self.found is None else row


def findings(report: Report) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for check in report["checks"]:
        for one in check["findings"]:
            yield check["id"], one


def statuses(report: Report) -> Statuses:
    return {(id, f["subject"]): f["status"] + (f" {f['cause']}" if f["status"] == "fail" else "") for id, f in findings(report)}


def compare(row: Row, healthy: Mapping[int, Report], seen: Mapping[int, Report]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What should have been said and was not; and what changed that should not have."""
    missing: list[str] = [
        f"node {number}: {said}"
        for said in row.said
        for number in (seen if said.by is None else said.by)
        if number not in seen or not any(said.met_by(id, one) for id, one in findings(seen[number]))
    ]
    expected = row.expected()
    free = {*expected, *row.also, *(RUNS if row.said else ())}
    disturbed = []
    for number, report in seen.items():
        before, after = statuses(healthy[number]), statuses(report)
        for id, one in findings(report):
            told = f"{id} {one['subject']}: {one['status']}: {one['message']}"
            wrong = one["status"] in ("fail", "error") and before.get((id, one["subject"])) != after[id, one["subject"]]
            if id == "allreduce.nodes" and wrong and row.severity not in ("", one["severity"]):
                missing.append(f"node {number}: severity {row.severity}, not {one['severity']}")
            if wrong and not row.loose and not any(said.met_by(id, one) for said in (*row.said, *row.may)):
                disturbed.append(f"{id} (node {number}): {told}")
        changed = {k for k in {*before, *after} if k[0] not in free and before.get(k, "nothing") != after.get(k, "nothing")}
        disturbed += [f"{id} (node {number}) {s}: {before.get((id, s))} -> {after.get((id, s))}" for id, s in sorted(changed)]
    return tuple(missing), tuple(dict.fromkeys(disturbed))


def look(row: Row) -> dict[int, Report]:
    """The report of every node of the row that gives one."""
    with tempfile.TemporaryDirectory(dir="/run", prefix="netdoctor-hosts-") as name, contextlib.ExitStack() as stack:
        lab = Lab(row, Path(name))
        stack.callback(_nothing_left, lab.mark)
        stack.callback(lab.close)
        processes: dict[int, subprocess.Popen[str]] = {}
        first = [n for n in range(row.hosts) if n not in row.absent and n not in row.late]
        for number in first:
            processes[number] = lab.netdoctor(row, number)
        said = {n: until(processes[n], line) for n, (line, _) in row.when.items() if n in processes}
        for number, (_, signum) in row.when.items():
            os.kill(processes[number].pid, signum)
        reports: dict[int, Report] = {}
        if row.late and row.after_the_others:
            reports |= gather({n: processes[n] for n in first}, said)
        processes |= {number: lab.netdoctor(row, number) for number in row.late}
        waited = {n: p for n, p in processes.items() if n not in reports and n not in row.when}
        return reports | gather(waited, said)


def _nothing_left(mark: str) -> None:
    if not all_gone(mark):
        raise RuntimeError(f"left behind: {[Path(f'/proc/{pid}/cmdline').read_bytes() for pid in marked(mark)]}")


def gather(processes: Mapping[int, subprocess.Popen[str]], said: Mapping[int, str]) -> dict[int, Report]:
    end = time.monotonic() + LONGEST
    return {n: _report(n, process, end, said.get(n, "")) for n, process in processes.items()}


def _report(number: int, process: subprocess.Popen[str], end: float, said: str) -> Report:
    try:
        out, err = process.communicate(timeout=max(1.0, end - time.monotonic()))
        report: Report = json.loads(out)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"node {number} gave no report within {LONGEST:g} s") from None
    except ValueError:
        raise RuntimeError(f"node {number} gave no report: {said}{err[-600:]}") from None
    return report


def until(process: subprocess.Popen[str], text: str) -> str:
    """Its progress up to a line with `text`."""
    assert process.stderr is not None
    seen = ""
    for line in process.stderr:
        seen += line
        if text in line:
            return seen
    raise RuntimeError(seen[-600:])


def outcomes(words: Sequence[str] = ()) -> Iterator[Outcome]:
    """Every row, or those whose name has one of `words` in it."""
    healthy: dict[object, dict[int, Report]] = {}
    for row in ROWS:
        if not words or any(word in row.fault for word in words):
            began = time.monotonic()
            try:
                yield one(row, healthy, began)
            except pytest.skip.Exception as skipped:
                yield Outcome(row, None, why=str(skipped))
            except (RuntimeError, AssertionError) as error:
                yield Outcome(row, False, (f"no reports: {error}",), seconds=time.monotonic() - began)


def one(row: Row, healthy: dict[object, dict[int, Report]], began: float) -> Outcome:
    if row.never:
        return Outcome(row, None, why=row.never)
    if lacking := [name for name in row.needs if not shutil.which(name) and not os.path.exists(name)]:
        return Outcome(row, None, why=f"there is no {', '.join(lacking)}")
    base = row.base()
    if base not in healthy:
        healthy[base] = look(base.row())
        wrong = [
            f"{id} {f['subject']}: {f['message']}"
            for r in healthy[base].values()
            for id, f in findings(r)
            if f["status"] in ("fail", "error")
        ]
        assert not wrong, f"the healthy hosts are not: {wrong}"
    seen = look(row)
    missing, disturbed = compare(row, healthy[base], seen)
    return Outcome(row, not missing, disturbed, missing, time.monotonic() - began, reports=seen)


def main(words: Sequence[str] = ()) -> int:
    """Print a line a row; 1 where something was not found or something else was disturbed."""
    from tests.lab import matrix

    if os.geteuid() != 0:
        print("hosts: not run: needs root")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was begun is cleaned up
    done, bad, begun = [], 0, time.monotonic()
    for outcome in outcomes(words):
        good = outcome.found is None or (outcome.found and not outcome.disturbed)
        bad += not good
        done.append(outcome.as_row())
        mark = "-   " if outcome.found is None else "ok  " if good else "BAD "
        print(
            f"{mark} {outcome.seconds:5.1f} s  {outcome.row.fault}{' (' + outcome.why + ')' if outcome.why else ''}", flush=True
        )
        for text in (*(f"missing: {text}" for text in outcome.missing), *(f"disturbed: {t}" for t in outcome.disturbed)):
            print(f"      {text}")
        if not good or os.environ.get("HOSTS_SAID"):
            _print(outcome.reports or {})
    if not words:
        matrix.write(done, "hosts")
    away = sum(row["found"] is None for row in done)
    print(f"{len(done)} faults between hosts, {bad} bad, {away} not run, {time.monotonic() - begun:.0f} s")
    return 1 if bad else 0


def _print(reports: Mapping[int, Report]) -> None:
    said: dict[str, list[int]] = {}
    for number, report in reports.items():
        for id, f in findings(report):
            if f["status"] != "pass" and (f["status"] != "skip"):
                said.setdefault(f"{id} [{f['subject']}] {f['status']} {f['cause']}: {f['message']}", []).append(number)
        for run in report["volatile"]["runs"]:
            said.setdefault(f"run: {run.get('reason')}", []).append(number)
    for text, numbers in said.items():
        print(f"        {','.join(map(str, numbers))}: {text}")


__all__ = ["PLAIN", "Said", "main", "outcomes"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

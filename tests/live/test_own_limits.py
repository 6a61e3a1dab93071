"""Limits and signals of netdoctor's own process: its shortage says nothing of the node, and the job gets all as it was."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

pytestmark = pytest.mark.live
NETDOCTOR = (sys.executable, "-m", "netdoctor")
ASKED = ("preflight", "-q", "-f", "json", "--only", "allreduce.run,net.socket_ifname,net.port_range")
BUDGET = ("--budget", "15")  # a rank that lacks a thread may wait for ever: that is unknown as well, and sooner

LIMITS = [
    *(("nofile", count) for count in (6, 7, 8, 10, 12, 14, 16, 20)),
    *(("as", kib << 10) for kib in (25_000, 30_000, 40_000, 60_000, 300_000, 700_000, 1_000_000)),
    *(("nproc", count) for count in (1, 2, 3, 4, 5, 6, 8)),  # threads of the user
]
# The limit of processes does not hold for root (kernel/fork.c).  This user keeps one right: to reach a Python below /root.
OTHER = (
    *("setpriv", "--reuid=64002", "--regid=64002", "--clear-groups", "--inh-caps=-all,+dac_read_search"),
    *("--ambient-caps=-all,+dac_read_search", "--bounding-set=-all,+dac_read_search"),
)


def limited(limit: str, value: int, *vantage: str) -> subprocess.CompletedProcess[str]:
    root = os.geteuid() == 0
    other = limit == "nproc" and root
    user = ("--user", "root") if root and not other else ()
    command = [*(OTHER if other else ()), "prlimit", f"--{limit}={value}", *NETDOCTOR, *ASKED, *BUDGET, *user, *vantage]
    return subprocess.run([*command, "--python", sys.executable], capture_output=True, text=True, timeout=180, check=False)


@pytest.mark.parametrize(("limit", "value"), LIMITS)
def test_a_shortage_of_its_own_is_unknown(limit: str, value: int) -> None:
    done = limited(limit, value, "--vantage", "node")  # a user's own are the job's as well
    assert done.returncode == 4, done.stderr
    assert "defect" not in done.stderr and "Traceback" not in done.stderr
    if not done.stdout.strip():
        assert any(f"too {what}" in done.stderr for what in ("little memory", "few descriptors", "few processes")), done.stderr
        return
    found = [f for c in json.loads(done.stdout)["checks"] for f in c["findings"]]
    assert {f["status"] for f in found if f["check"] == "allreduce.run"} == {"unknown"}, done.stdout
    assert not {f["status"] for f in found} & {"fail", "error"}, found


@pytest.mark.parametrize("whose", ["node", "job"])
@pytest.mark.parametrize(("limit", "value"), [("nofile", 24), ("nofile", 28), ("nproc", 12), ("nproc", 20)])
def test_a_limit_that_may_do(limit: str, value: int, whose: str) -> None:
    """It is told as the job's limit of open files, where the limits that are seen are the job's, or nothing is a fault."""
    done = limited(limit, value, "--vantage", whose)
    found = [f for c in json.loads(done.stdout)["checks"] for f in c["findings"] if f["check"] == "allreduce.run"]
    assert done.returncode in (0, 3, 4) and {f["status"] for f in found} <= {"pass", "fail", "unknown"}
    jobs = f"limit of open files, {value}" if whose == "job" else "nothing"
    assert all(jobs in f["message"] for f in found if f["status"] == "fail"), found


@pytest.mark.skipif(os.geteuid() != 0, reason="root may raise the limit")
def test_more_descriptors_than_select_takes() -> None:
    """What it inherits are the caller's: a launcher has thousands, and select(2) takes none from 1024 on."""
    open_them = f'exec {{x}}</dev/null; for i in $(seq 1100); do exec {{x}}</dev/null; done; exec {" ".join(NETDOCTOR)} "$@"'
    command = [
        "prlimit",
        "--nofile=4096",
        "bash",
        "-c",
        open_them,
        "-",
        *ASKED[:-2],
        "--only",
        "allreduce.run",
        "--user",
        "root",
    ]
    done = subprocess.run([*command, "--python", sys.executable], capture_output=True, text=True, timeout=180, check=False)
    (found,) = (c["status"] for c in json.loads(done.stdout)["checks"] if c["id"] == "allreduce.run")
    assert found == "pass" and done.returncode == 0, done


def test_a_job_gets_no_locale_of_pythons() -> None:
    environment = {"A": "1", "PATH": os.environ["PATH"], "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    command = [*NETDOCTOR, "run", "-q", "--via", "nccl", "--", "env", "-0"]
    said = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=120, check=True).stdout
    assert dict(line.split("=", 1) for line in said.split("\0") if line) == environment


def as_left(ignored: set[str], blocked: set[str]) -> None:
    for name in ignored:
        signal.signal(signal.Signals[name], signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.Signals[name] for name in blocked})


def told(command: tuple[str, ...], ignored: set[str], blocked: set[str]) -> Mapping[str, str]:
    done = subprocess.run(
        [*command, "grep", "^Sig", "/proc/self/status"],
        preexec_fn=lambda: as_left(ignored, blocked),
        stdout=subprocess.PIPE,
        text=True,
        timeout=120,
        check=True,
    )
    lines = dict(line.split(":\t") for line in done.stdout.splitlines())
    return {name: lines[name] for name in ("SigBlk", "SigIgn", "SigCgt")}


@pytest.mark.parametrize(
    ("ignored", "blocked"),
    [
        (set[str](), set[str]()),
        ({"SIGHUP"}, set()),
        ({"SIGQUIT", "SIGINT"}, {"SIGUSR1"}),
        ({"SIGCHLD"}, set()),
        ({"SIGHUP", "SIGUSR2", "SIGCHLD", "SIGTERM", "SIGTSTP"}, {"SIGUSR1", "SIGWINCH", "SIGTERM"}),
        ({f"SIG{name}" for name in ["ALRM", "TTIN", "TTOU", "PROF", "WINCH"]}, {"SIGHUP", "SIGQUIT", "SIGINT", "SIGCHLD"}),
    ],
)
def test_run_hands_signals_over_as_it_found_them(ignored: set[str], blocked: set[str]) -> None:
    """But SIGPIPE and SIGXFSZ, of which Python does not keep what it found: the job has their default."""
    wrapped = (*NETDOCTOR, "run", "-q", "--via", "nccl", "--")
    assert told(wrapped, ignored, blocked) == told((), ignored, blocked)


@pytest.mark.parametrize("blocked", [set[str](), {"SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGALRM"}], ids=["", "blocked"])
@pytest.mark.parametrize("name", ["SIGHUP", "SIGQUIT", "SIGINT", "SIGTERM"])
def test_a_signal_leaves_a_partial_report(tmp_path: Path, name: str, blocked: set[str]) -> None:
    """Also where whoever started it (PAM, an agent) left signals blocked."""
    out, number = tmp_path / "report.json", signal.Signals[name]
    user = ("--user", "root") if os.geteuid() == 0 else ()
    command = [*NETDOCTOR, "preflight", *user, "--python", sys.executable, "-o", str(out), "-f", "brief"]

    def begin() -> None:
        signal.signal(number, signal.SIG_DFL)  # a background job begins with some ignored
        as_left(set(), blocked)

    heeded = {"preexec_fn": begin}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **heeded) as process:
        assert process.stderr is not None
        process.stderr.readline()  # it looks
        process.send_signal(number)
        process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert name in json.loads(out.read_text())["partial"]


def test_nohup_is_heeded(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    command = [*NETDOCTOR, "preflight", "--no-allreduce", "-o", str(out), "-f", "brief"]
    ignore = {"preexec_fn": lambda: as_left({"SIGHUP"}, set())}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **ignore) as process:
        assert process.stderr is not None
        process.stderr.readline()
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=120)
    assert process.returncode in (0, 3, 4) and json.loads(out.read_text())["partial"] is None


def test_a_pipeline_ends_as_it_would_without() -> None:
    """SIGPIPE is not ignored: yes ends of it, with 141."""
    said = [
        subprocess.run(
            [*wrapped, "bash", "-c", "set -o pipefail; yes | head -1"], capture_output=True, timeout=120, check=False
        )
        for wrapped in ((), (*NETDOCTOR, "run", "-q", "--via", "nccl", "--"))
    ]
    assert [done.returncode for done in said] == [141, 141] and b"Broken pipe" not in said[1].stderr


COUNTED = """
import os, sys, threading
from netdoctor.host.helpers import tasks
end = threading.Event()
before = tasks.answer({})["threads"]
for _ in range(40):
    threading.Thread(target=end.wait, daemon=True).start()
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    for _ in range(20):
        threading.Thread(target=end.wait, daemon=True).start()
    os.write(writer, b"1")
    end.wait()
os.read(reader, 1)
print(before, tasks.answer({})["threads"])
os.kill(child, 9)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a user of its own, of whom nobody else starts anything meanwhile")
def test_threads_of_the_user_are_counted() -> None:
    other = [word.replace("64002", "64003") for word in OTHER]
    done = subprocess.run([*other, sys.executable, "-c", COUNTED], capture_output=True, text=True, timeout=60, check=False)
    before, after = map(int, done.stdout.split())
    assert (before, after) == (1, 62), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a /proc that is taken away")
def test_without_proc_no_rank_is_started() -> None:
    """The ranks meet by /proc/self/fd: without it torch's store waits until its end, which looks as a node that hangs."""
    asked = shlex.join([*NETDOCTOR, *ASKED[:-1], "allreduce.run", "--user", "root", "--python", sys.executable])
    script = f"mount --make-rprivate / && umount -l /proc && exec {asked}"
    began = time.monotonic()
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 4, done.stderr
    found = [f for c in json.loads(done.stdout)["checks"] for f in c["findings"]]
    assert {f["status"] for f in found} == {"unknown"}, found
    assert "/proc is not mounted" in done.stdout and "mount -t proc proc /proc" in done.stdout
    assert time.monotonic() - began < 20

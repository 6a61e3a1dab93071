"""The job's user against root's netdoctor: files, processes, memory, secrets.  `test_attacks_code.py` has code."""

from __future__ import annotations

import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from netdoctor.allreduce import worker as workers
from netdoctor.allreduce.runner import Session
from netdoctor.allreduce.shared import shared_memory
from netdoctor.cli import run as wrapper
from netdoctor.facts.runs import AllReduce, Run, State
from tests.support.namespaces.folders import own_folder
from tests.support.sources import ROOT

pytestmark = [pytest.mark.live, pytest.mark.root]
if os.geteuid() != 0:
    pytest.skip("needs root: it is root's netdoctor that is attacked", allow_module_level=True)

EVE, MALLORY = 64001, 64002
SYSTEM = "/usr/bin/python3"
SMALL = AllReduce("gloo", 2, "cpu", sizes=(4096,))
BEGIN = f"import sys; sys.path.append({str(ROOT)!r}); from netdoctor.__main__ import main; main()"
NETDOCTOR = (sys.executable, "-I", "-c", BEGIN)
STUB = ROOT / "tests/fakes/stub_torch/torch"
REPORT = ROOT / "fixtures/hosts/cpu-node/report.json"
SNAPSHOT = ROOT / "fixtures/hosts/cpu-node/snapshot.json"


def netdoctor(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], **variables}
    return subprocess.run([*NETDOCTOR, *words], env=environment, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        path.chmod(0o755)
        yield path


# Files that netdoctor writes where anybody may put something first (fs.protected_* look at O_CREAT alone)

LOOK = ("--no-allreduce", "-q", "--only", "net.socket_ifname")
OUTPUTS = {
    **{f"report.{form}": ("preflight", *LOOK, "-o") for form in ("json", "html", "xml", "txt")},
    "termination": ("preflight", *LOOK, "--termination-log"),
    "snapshot": ("snapshot", *LOOK, "-o"),
    "expectation": ("expect", str(SNAPSHOT), "-o"),
    "cleaned": ("clean", str(REPORT), "-o"),
    **{f"fleet.{form}": ("fleet", "report", str(REPORT), "-q", "-o") for form in ("html", "prom")},
    "list": ("fleet", "report", str(REPORT), "-q", "--lists"),
}


def plant(path: Path, what: str, target: Path) -> None:
    match what:
        case "pipe":
            os.mkfifo(path, 0o666)
        case "link":
            path.symlink_to(target)
        case "hard link":
            os.link(target, path)
        case _:
            path.write_text("eve's")
            path.chmod(0o666)
    if what != "hard link":
        os.chown(path, EVE, EVE, follow_symlinks=False)


@pytest.mark.parametrize("what", ["pipe", "link", "hard link", "file"])
@pytest.mark.parametrize("output", OUTPUTS)
def test_nothing_is_written_into_what_the_user_put_there(folder: Path, output: str, what: str) -> None:
    sticky, target = folder / "sticky", folder / "target"
    sticky.mkdir()
    sticky.chmod(0o1777)
    target.write_text("root's")
    place = sticky / output
    plant(sticky / "passing_nodes.txt" if output == "list" else place, what, target)
    path = sticky / "passing_nodes.txt" if output == "list" else place
    # eve waits, and keeps what she has open; by its own name, for root follows no link of hers (fs.protected_symlinks)
    held = os.open(os.path.realpath(path), os.O_RDWR | os.O_NONBLOCK)
    done = netdoctor(*OUTPUTS[output], str(sticky if output == "list" else place))
    with suppress(BlockingIOError):
        assert os.read(held, 1 << 16) in (b"eve's", b"root's"), done.stderr
    os.close(held)
    assert target.read_text() == "root's"
    now = path.lstat()
    if what in ("pipe", "link"):
        assert now.st_uid == EVE and "cannot be written" in done.stderr, done.stderr
    else:  # renamed over: what is there is root's, whole, and nobody had it open
        assert now.st_uid == 0 and not now.st_mode & 0o022 and now.st_nlink == 1


# What root reads for the user


@pytest.mark.parametrize("name", ["NCCL_CONF_FILE", "PBS_NODEFILE", "NETDOCTOR_CONFIG", "NCCL_TOPO_FILE", "PE_HOSTFILE"])
def test_a_file_of_roots_is_not_told(folder: Path, name: str) -> None:
    secret = folder / "shadow"
    secret.write_text("root:$6$abcdefgh$Qu1teAS3cretHash:19000:0:99999:7:::\n# NCCL_COMMENT a word\nUSER_KEY=swordfish\n")
    secret.chmod(0o600)
    out = folder / "s.json"
    done = netdoctor("snapshot", "-q", "--no-allreduce", "-o", str(out), **{name: str(secret)})
    seen = done.stderr + done.stdout + (out.read_text() if out.exists() else "")
    assert "cretHash" not in seen and "swordfish" not in seen and "a word" not in seen


def test_a_file_of_roots_that_a_conf_file_names_is_not_told(folder: Path) -> None:
    secret, conf, out = folder / "shadow", folder / "a.conf", folder / "s.json"
    secret.write_text("root:$6$abcdefgh$Qu1teAS3cretHash:19000:0:99999:7:::\n")
    conf.write_text(f"NCCL_TOPO_FILE={secret}\n")
    netdoctor("snapshot", "-q", "--no-allreduce", "-o", str(out), NCCL_CONF_FILE=str(conf))
    assert json.loads(out.read_text())["answers"][f"file:{secret}"] == {"ok": ""}


def test_what_a_conf_file_sets_is_kept_whatever_its_name(folder: Path) -> None:
    (folder / "any.txt").write_text("# who\nNCCL_IB_HCA=mlx5_0\nNCCL_AUTH_TOKEN=swordfish\nOTHER=word\n")
    out = folder / "s.json"
    netdoctor("snapshot", "-q", "--no-allreduce", "-o", str(out), NCCL_CONF_FILE=f"{folder}/any.txt")
    kept = json.loads(out.read_text())["answers"][f"file:{folder}/any.txt"]["ok"]
    assert "NCCL_IB_HCA=mlx5_0" in kept and "swordfish" not in kept and "word" not in kept and "who" not in kept


@pytest.mark.parametrize("what", ["/dev/zero", "pipe", "folder"])
def test_a_conf_file_without_an_end(folder: Path, what: str) -> None:
    path = what
    if what == "pipe":
        os.mkfifo(path := str(folder / "conf"))
    elif what == "folder":
        path = str(folder)
    done = netdoctor("preflight", "--no-allreduce", "-q", "-f", "brief", NCCL_CONF_FILE=path)
    assert done.returncode in (0, 3, 4), done.stderr


# What the job's Python does to those around it


def torch(folder: Path, text: str) -> Path:
    """A root-owned Python whose torch does `text` (with `say`, what a rank would say) when it is imported."""
    subprocess.run([SYSTEM, "-m", "venv", "--without-pip", folder / "venv"], check=True, timeout=60)
    (site,) = (folder / "venv").glob("lib/python3*/site-packages")
    subprocess.run(["cp", "-R", STUB, site], check=True)
    begin = (
        "import json, os, socket, sys, threading, time\ncontrol = socket.socket(fileno=os.dup(int(sys.argv[1])))\n"
        "def say(**event):\n    control.send(json.dumps({'p': 1, 't': time.monotonic(), **event}).encode())\n"
    )
    file = site / "torch/__init__.py"
    file.write_text(f"{begin}{text}\n{file.read_text()}")
    return folder / "venv/bin/python3"


def all_reduce(python: Path, **variables: str) -> Run:
    environment = {"PATH": os.environ["PATH"], **variables}
    with closing(Session(str(python), environment, lock=False)) as session:
        return session.run(SMALL)


@contextmanager
def of_mallory(name: str) -> Iterator[int]:
    """A process of another user that has a segment of NCCL's mapped, which everybody may read."""
    path = f"/dev/shm/{name}"
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(MALLORY, MALLORY, MALLORY)
            os.setresuid(MALLORY, MALLORY, MALLORY)
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            os.ftruncate(number, 4096)
            page = mmap.mmap(number, 4096)
            page[0] = 1
            time.sleep(60)
        finally:
            os._exit(0)
    end = time.monotonic() + 10
    while time.monotonic() < end and name not in Path(f"/proc/{child}/maps").read_text():
        time.sleep(0.01)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with suppress(OSError):
            os.unlink(path)


def test_a_forged_pid_costs_nobody_anything(folder: Path) -> None:
    name = f"nccl-test{os.getpid()}"
    with of_mallory(name) as pid:
        forge = f"def go():\n    while True:\n        say(event='forked', run=1, rank=0, pid={pid}); time.sleep(0.02)\n"
        run = all_reduce(torch(folder, forge + "threading.Thread(target=go, daemon=True).start()"))
        assert run.state is State.FAILED, run
        assert os.path.exists(f"/dev/shm/{name}") and os.path.exists(f"/proc/{pid}")


def test_a_rank_that_maps_what_is_anothers(folder: Path) -> None:
    """Or that has a mount namespace of its own, in which everything may have any name."""
    name = f"nccl-test{os.getpid()}"
    with of_mallory(name) as pid:
        assert shared_memory(pid, MALLORY) == {f"/dev/shm/{name}"}
        assert shared_memory(pid, EVE) == set()


def test_events_without_end_end_the_run(folder: Path) -> None:
    flood = "text = 'x' * 60000\nwhile True:\n    say(event='error', error=text)"
    before = int(Path("/proc/self/statm").read_text().split()[1])
    run = all_reduce(torch(folder, flood))
    after = int(Path("/proc/self/statm").read_text().split()[1])
    assert run.state is State.NOT_STARTED and "said more than" in run.reason, run
    assert (after - before) * mmap.PAGESIZE < 8 * workers.MAX_EVENTS


ODD = ("'x'", "None", "[]", "{}", "-1", "10**400", "float('nan')", "1e308", "True", "[[]]", "'9' * 4000", "{'a': 1}")


@pytest.mark.parametrize("value", ODD)
def test_words_of_another_kind(folder: Path, value: str) -> None:
    names = (
        "event rank run pid t status bytes seconds wrong main thread mapped error phase port id version hip nccl device_count "
        "cuda_available nccl_built backends backends_nccl backends_error cuda_warning system_cpu bytes_moved p absent"
    )
    kinds = "hello fact facts imported forked phase size verified result affinity exit error ended store"
    text = (
        f"for kind in {kinds.split()}:\n    for name in {names.split()}:\n"
        f"        event = {{'event': kind, 'run': 1, 'rank': 0, 'pid': 1, name: {value}}}\n"
        "        control.send(json.dumps({'p': 1, 't': time.monotonic(), **event}).encode())\n"
        "control.send(b'[' * 100000)\ncontrol.send(b'\\xff')"
    )
    run = all_reduce(torch(folder, text))
    assert run.state is not State.FINISHED


def test_it_has_no_rights_and_no_way_to_root(folder: Path) -> None:
    marks = folder / "marks"
    marks.mkdir()
    marks.chmod(0o1777)
    text = f"""
def tried(name, what):
    try:
        what()
        said = 'done'
    except Exception as error:
        said = type(error).__name__
    open({str(marks)!r} + '/' + name, 'w').write(said)
tried('kill the keeper', lambda: os.kill(os.getppid(), 9))
tried('become root', lambda: os.setuid(0))
tried('become mallory', lambda: os.setuid({MALLORY}))
tried('shadow', lambda: open('/etc/shadow').read())
tried('memory', lambda: open(f'/proc/{{os.getppid()}}/mem', 'rb').read(1))
tried('descriptors', lambda: os.listdir(f'/proc/{{os.getppid()}}/fd'))
tried('lock', lambda: open('/run/netdoctor/lock', 'w'))
open({str(marks)!r} + '/status', 'w').write(open('/proc/self/status').read())
"""
    all_reduce(torch(folder, text))
    said = {one.name: one.read_text() for one in marks.iterdir()}
    status = dict(line.split(":\t", 1) for line in said.pop("status").splitlines() if ":\t" in line)
    assert set(said.values()) <= {"PermissionError", "FileNotFoundError"} and len(said) == 7, said
    assert set(status["Uid"].split()) == {"65519"} and status["NoNewPrivs"] == "1" and status["Groups"].split() == ["65519"]
    # The right to lock memory (CAP_IPC_LOCK, 14), where root has it, and nothing else.
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} <= {0, 1 << 14}


def test_nothing_of_it_stays(folder: Path) -> None:
    mark = f"netdoctor-attack-{os.getpid()}"
    text = f"""
import signal, subprocess
subprocess.Popen([sys.executable, '-c', 'import os, signal, time\\nif os.fork() == 0:\\n    os.setsid()\\n'
    '    signal.signal(signal.SIGTERM, signal.SIG_IGN)\\n    time.sleep(120)', {mark!r}])
"""
    all_reduce(torch(folder, text))
    time.sleep(0.2)
    left = [one for one in Path("/proc").glob("[0-9]*/cmdline") if mark.encode() in one.read_bytes()]
    assert left == []


def test_a_job_number_makes_nobody_the_jobs_user(folder: Path) -> None:
    marks = folder / "marks"
    marks.mkdir()
    marks.chmod(0o1777)
    python = torch(folder, f"open({str(marks)!r} + '/uid', 'w').write(str(os.getuid()))")
    all_reduce(python, SLURM_JOB_UID=str(MALLORY), SLURM_JOB_ID="7", USER="mallory", LOGNAME="mallory")
    assert (marks / "uid").read_text() == "65519"


def test_a_verdict_of_the_users_is_not_roots(monkeypatch: pytest.MonkeyPatch) -> None:
    """eve sits on the name at which root's ranks ask for the verdict of their node."""
    monkeypatch.setattr(wrapper, "COME", 1.0)
    monkeypatch.setenv("SLURM_JOB_ID", f"attack{os.getpid()}")
    address = wrapper._address(os.environ)
    ready, go = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(EVE, EVE, EVE)
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
                door.bind(address)
                door.listen()
                os.write(go, b"x")
                while True:
                    door.accept()[0].sendall(b"0")
        finally:
            os._exit(0)
    os.read(ready, 1)
    try:
        told: list[int] = []
        monkeypatch.setattr(wrapper.signals, "restore", lambda: None)
        thread = threading.Thread(target=lambda: told.append(wrapper.ask_doctor(quiet=False)))
        thread.start()
        thread.join(30)
        assert told == [4]
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

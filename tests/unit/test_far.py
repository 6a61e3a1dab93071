"""What is asked of a path that may never answer is asked in a child that can be killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import pwd
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator

import pytest

from netdoctor.process import far, users

ROOT = pathlib.Path(__file__).parents[2]
INFO = """25 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
26 25 0:5 / /proc rw - proc proc rw
30 26 0:30 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw
40 25 0:50 / /home/my\\040data rw - nfs4 filer:/home rw,hard
41 25 0:51 / /jobs rw - fuse.sshfs me@far: rw
"""


def text_of(path: str) -> str:
    return pathlib.Path(path).read_text()


def streams_of() -> list[object]:
    return [os.getpid(), os.getcwd(), *(os.readlink(f"/proc/self/fd/{n}") for n in range(3))]


def held_by_this() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return found


def fail(text: str) -> None:
    raise FileNotFoundError(2, text)


@pytest.fixture
def distant() -> Iterator[far.Far]:
    """As on a machine with a mount that is a server's."""
    one = far.Far(limit=30.0)
    one._risky = [far.Mount("/jobs", "fuse.sshfs", "me@far:")]
    one._mounts = tuple(one._risky)
    yield one
    one.close()


def test_mounts_of_a_server_are_told_from_the_kernels() -> None:
    risky = [m for m in far.mounts(INFO) if m.kind not in far.LOCAL and not far._of_the_kernel(m)]
    assert risky == [far.Mount("/home/my data", "nfs4", "filer:/home"), far.Mount("/jobs", "fuse.sshfs", "me@far:")]


def test_without_such_a_mount_nothing_is_forked() -> None:
    one = far.Far()
    one._risky = []
    assert one.call(os.getpid) == os.getpid() and one._child is None


@pytest.mark.slow
def test_what_writes_is_a_child_of_its_own_each_time(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A local disk that is frozen answers no writer; the child has our folder as it is now, and none of our streams."""
    one = far.Far()
    one._risky = []
    monkeypatch.chdir(tmp_path)
    where = [one.call(streams_of, path=str(tmp_path), writes=True) for _ in range(2)]
    assert len({os.getpid(), *(pid for pid, *_ in where)}) == 3
    assert all(rest == [str(tmp_path), *["/dev/null"] * 3] for _, *rest in where)
    assert one.call(os.getpid, path="/dev/x", writes=True) == one.call(os.getpid, path="", writes=True) == os.getpid()
    with pytest.raises(far.HungError):
        one.call(time.sleep, 60, path=str(tmp_path), limit=0.5, writes=True)
    one.close()


@pytest.mark.slow
def test_a_fork_of_ours_has_a_child_of_its_own(distant: far.Far, tmp_path: pathlib.Path) -> None:
    """A site's checks run in one (process/apart.py): it can neither wait for the child of its parent nor may end it."""
    before = distant.call(os.getpid)
    child = os.fork()
    if child == 0:
        try:
            own = {distant.call(os.getpid), distant.call(os.getpid, path=str(tmp_path), writes=True)}
            distant.close()
            os._exit(42 if len(own - {before, os.getpid()}) == 2 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
    assert distant.call(os.getpid) == before


def test_our_own_shortage_keeps_no_report_from_a_disk(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    one = far.Far()
    one._risky = []
    monkeypatch.setattr(os, "fork", short)
    before = os.listdir("/proc/self/fd")
    assert one.call(os.getpid, path=str(tmp_path), writes=True) == os.getpid()
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user: root")
def test_who_becomes_another_user_looks_as_that_user() -> None:
    """No child that root made before answers for it."""
    child = os.fork()
    if child == 0:
        try:
            far.here()._risky = [far.Mount("/jobs", "fuse.sshfs", "me@far:")]
            before = far.call(os.geteuid)
            with contextlib.suppress(users.UserError):  # it may not read this Python
                users.become(f"{next(one.pw_uid for one in pwd.getpwall() if one.pw_uid)}")
            far.here()._risky = [far.Mount("/jobs", "fuse.sshfs", "me@far:")]
            os._exit(42 if before == 0 and far.call(os.geteuid) == os.geteuid() != 0 else 1)
        finally:  # it must not go on as a second worker of pytest
            traceback.print_exc()
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


@pytest.mark.slow
def test_the_child_has_nothing_of_ours_open(distant: far.Far, tmp_path: pathlib.Path) -> None:
    """A connection of the nodes' meeting that it kept was counted as one of the ranks': their network looked slow."""
    with socket.create_server(("127.0.0.1", 0)) as one, open(tmp_path / "lock", "w") as lock:
        free = os.open("/dev/null", os.O_RDONLY)
        high = fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, free + 50)  # behind the child's own pipes
        os.close(free)
        held = distant.call(held_by_this)
        ours = {os.readlink(f"/proc/self/fd/{fd}") for fd in (one.fileno(), high, lock.fileno())}
        os.close(high)
    assert len(held) >= 5 and not ours & set(held)


@pytest.mark.slow
def test_a_child_answers_and_stays(distant: far.Far, tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_text("y" * 300_000)
    assert distant.call(text_of, str(tmp_path / "x"), path=str(tmp_path / "x")) == "y" * 300_000
    first = distant._child
    with pytest.raises(FileNotFoundError) as told:
        distant.call(fail, "nothing here")
    assert told.value.strerror == "nothing here" and distant._child == first
    assert distant.call(os.getpid, path="/proc/self") == os.getpid(), "the kernel's own files are read here"


@pytest.mark.slow
def test_what_does_not_answer_is_named_and_left(distant: far.Far) -> None:
    assert distant.call(os.path.exists, "/", path="/")  # the child is there
    with pytest.raises(far.HungError) as told:
        distant.call(time.sleep, 60, path="/jobs/a/b", limit=2.0)
    assert told.value.mount == distant._risky[0]
    assert told.value.strerror == "/jobs (fuse.sshfs of me@far: on /jobs) did not answer within 2 s"
    assert distant._child is None
    with pytest.raises(far.HungError):  # at once: its mount is known now
        distant.call(time.sleep, 60, path="/jobs/other", limit=20.0)
    assert distant._child is not None, "nobody was killed for it"
    assert distant.call(os.path.exists, "/", path="/")


@pytest.mark.slow
def test_links_lead_the_way_to_the_mount(distant: far.Far, tmp_path: pathlib.Path) -> None:
    (tmp_path / "here").symlink_to("/jobs/env")
    distant._hung.append(distant._risky[0])
    with pytest.raises(far.HungError) as told:
        distant.call(time.sleep, 60, path=str(tmp_path / "here" / "bin"))
    assert told.value.path == "/jobs"


@pytest.mark.slow
def test_a_child_that_dies_is_no_hang(distant: far.Far) -> None:
    with pytest.raises(OSError, match="has died"):
        distant.call(os._exit, 3)
    assert distant.call(os.path.exists, "/", path="/")


@pytest.mark.slow
def test_an_interruption_leaves_no_answer_for_the_next(distant: far.Far, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bytes:
        raise KeyboardInterrupt

    assert distant.call(os.path.exists, "/", path="/")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(far, "_receive", interrupted)
        distant.call(os.path.exists, "/nowhere", path="/nowhere")
    assert distant._child is None and distant.call(os.path.exists, "/", path="/")


@pytest.mark.slow
def test_a_look_opens_nothing_twice() -> None:
    """The process that looks; of its children too, by strace: `make bench ARGS=cli`, opened_twice."""
    program = """
import collections, sys
from bench.trace import asked
opened = collections.Counter()
sys.addaudithook(lambda event, told: opened.update([str(told[0])]) if event == "open" and asked(str(told[0])) else None)
sys.argv = ["netdoctor", "preflight", "--no-allreduce", "--quiet", "--brief"]
from netdoctor.cli.main import main
try:
    main()
finally:
    print(len(opened), [path for path, number in opened.items() if number > 1], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    number, _, twice = done.stderr.strip().splitlines()[-1].partition(" ")
    assert int(number) > 10 and twice == "[]"

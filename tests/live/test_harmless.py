"""A doctor leaves the machine as it found it, also when it is killed in the middle; nothing planted makes it write or bind."""

from __future__ import annotations

import pathlib
import sys
import tempfile
from typing import Any

import pytest

from tests.lab.killed import killed, reports
from tests.support.machines import libnccl, native
from tests.support.machines.sysfs import dgx_h100
from tests.support.namespaces import world
from tests.support.namespaces.kills import KILLED, PLANTED

pytestmark = [pytest.mark.live, pytest.mark.root, pytest.mark.skipif(bool(world.why_not()), reason=world.why_not() or "-")]


@pytest.fixture(scope="module")
def seen() -> Any:
    """One whole run, then five that are killed."""
    return world.run(KILLED, sys.executable, "0", "5", timeout=300)


def test_a_whole_run_changes_nothing(seen: Any) -> None:
    assert seen["exit"] == 0, seen
    assert seen["changed"] == [] and seen["left"] == {}
    assert seen["seconds"] > 0.5  # the all-reduce was run


def test_a_killed_run_changes_nothing(seen: Any) -> None:
    assert len(seen["killed"]) == 5
    assert {row["signal"] for row in seen["killed"]} == {"SIGTERM", "SIGKILL"}
    bad = [row for row in seen["killed"] if row["changed"] or row["left"]]
    assert bad == []


@pytest.mark.parametrize("what", ["snapshot", "log", "fleet"])
def test_other_commands_that_are_killed_change_nothing(what: str, tmp_path: pathlib.Path) -> None:
    """All of them, at 50 moments each: ``python -m tests.lab.killed``."""
    reports(tmp_path)
    seen = killed(what, sys.executable, 1, 2, str(tmp_path))
    assert seen["exit"] in (0, 3, 4) and (what != "snapshot" or seen["own"])
    assert [row for row in (seen, *seen["killed"]) if row["changed"] or row["left"]] == []


def test_what_is_left_would_be_seen() -> None:
    """The comparison itself: one of each kind of thing that a program may leave behind."""
    left = world.run(r"""
before = state()
child = subprocess.Popen(["sleep", "600"])
pathlib.Path("/dev/shm/left").touch()
pathlib.Path("/var/left").touch()
sh("ip link add left0 type veth peer name left1", "mount -t tmpfs none /srv", "sysctl -q -w net.ipv4.tcp_mtu_probing=1")
unix = socket.socket(socket.AF_UNIX); unix.bind("\0left")
tcp = socket.create_server(("127.0.0.1", 0))
os.environ["LEFT"] = "1"; resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
say([settle(0), changed(before, state())])
""")
    assert list(left[0].values()) == ["sleep 600"]
    seen = {text.partition(":")[0] for text in left[1]}
    assert seen >= {"shm", "files", "links", "mounts", "sysctls", "sockets", "environment", "limits"}, left[1]


def test_planted_variables_write_nothing_and_bind_nothing() -> None:
    with tempfile.TemporaryDirectory(dir="/run") as folder:
        tree = dgx_h100(pathlib.Path(folder) / "sys", cpus=("0", "1"))
        folders = [native.nvml(), native.cuda(), native.ibverbs(), libnccl.newest().parent]
        seen = world.run(PLANTED, sys.executable, ":".join(map(str, folders)), str(tree))
    (run,) = seen["report"]["runs"]
    assert run["state"] == "finished", run
    assert seen["left"] == {}
    # The loader writes for netdoctor's own process before its first line: one file, none of a child.
    assert [name for name in seen["written"] if not name.startswith("/planted/LD_DEBUG_OUTPUT.")] == []
    assert len(seen["written"]) == 1
    assert seen["bound"] == [] and seen["dialled"] == []

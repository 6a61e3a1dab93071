"""The child that takes of /dev/shm what NCCL would, on file systems of every kind; it leaves nothing behind."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from netdoctor.host import programs
from tests.support.sources import ROOT

pytestmark = [pytest.mark.live, pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="needs root")]

PROGRAM = """
import json, os
from netdoctor.host.base import question
from netdoctor.host.live import LiveHost
from netdoctor.model import plain
host = LiveHost()
got = plain(host.ask(question("shm", files={files}, each={each}, beside={beside})))
host.close()
room = os.statvfs("/dev/shm")
print(json.dumps([got, os.listdir("/dev/shm"), room.f_blocks - room.f_bfree]))
"""


def asked(setup: str, beside: int = 0, prefix: str = "", *, files: int = 2, each: int = 33034240) -> Any:
    """Its answer, what is in the folder afterwards, and how many blocks are held."""
    script = (
        f"{setup}\nexec {prefix} {shlex.quote(sys.executable)} -c '{PROGRAM.format(beside=beside, files=files, each=each)}'"
    )
    run = ["unshare", "--mount", "sh", "-ec", script]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("setup", "beside", "error"),
    [
        ("mount -t tmpfs -o size=65536k shm /dev/shm", 0, ""),  # two pools of 2.27.5 just fit into Docker's 64 MiB
        ("mount -t tmpfs -o size=65536k shm /dev/shm", 8 << 20, "ENOSPC"),
        ("mount -t tmpfs -o size=60000k shm /dev/shm", 0, "ENOSPC"),
        ("mount -t tmpfs -o size=1g,nr_inodes=2 shm /dev/shm", 0, "ENOSPC inodes"),  # room, and no inode for a second file
        ("mount -t tmpfs -o ro shm /dev/shm", 0, "EROFS"),
        ("mount -t tmpfs -o size=0 shm /dev/shm", 0, ""),  # no limit
        ("mount -t tmpfs shm /dev/shm; ulimit -f 1000", 0, "EFBIG"),
        ("mount -t ramfs shm /dev/shm", 0, "ENOTSUP"),
        ("mount -t tmpfs -o mode=555 shm /dev/shm", 0, "EACCES closed"),
    ],
    ids=lambda one: str(one)[-30:],
)
def test_what_it_says_of_a_mount(setup: str, beside: int, error: str) -> None:
    name, _, more = error.partition(" ")
    drop = "setpriv --bounding-set -all --inh-caps -all" if name == "EACCES" else ""
    got, left, held = asked(setup, beside, drop)
    told = {"inodes": {"inodes": False}, "closed": {"closed": True}}.get(more, {})
    assert (got, left, held) == ({"error": name, **told}, [], 0)


def test_of_an_nccl_that_was_not_measured_the_jobs_own_is_tried() -> None:
    mount = "mount -t tmpfs -o size=9m shm /dev/shm"
    assert [asked(mount, size << 20, files=8, each=0)[0]["error"] for size in (8, 10)] == ["", "ENOSPC"]


def test_the_files_of_all_ranks_are_more_than_one_may_open() -> None:
    got, left, held = asked("mount -t tmpfs shm /dev/shm; ulimit -Sn 64", files=200, each=4096)
    assert (got, left, held) == ({"error": ""}, [], 0)


def test_killed_in_the_middle_it_leaves_nothing() -> None:
    """The files have no name: they end with the last that has them open."""
    text = programs.program("shm", {"files": "2", "each": "33034240", "beside": "0"}, None)
    assert text is not None
    held = text.replace("    for fd in held:\n", "    import time; time.sleep(60)\n    for fd in held:\n")
    assert held != text
    script = "mount -t tmpfs -o size=1g shm /dev/shm; exec sleep 60"
    with subprocess.Popen(["unshare", "--mount", "sh", "-ec", script]) as holder:
        # Its answer goes to descriptor 3, which `HelperPool` gives it.
        enter = ["sh", "-c", f'exec 3>/dev/null; exec nsenter --target {holder.pid} --mount "$@"', "sh"]

        def blocks() -> int:
            room = os.statvfs(f"/proc/{holder.pid}/root/dev/shm")
            return room.f_blocks - room.f_bfree

        try:
            while not pathlib.Path(f"/proc/{holder.pid}/comm").read_text().startswith("sleep"):
                time.sleep(0.01)
            with subprocess.Popen([*enter, sys.executable, "-c", held]) as child:
                while blocks() * os.sysconf("SC_PAGE_SIZE") < 2 * 33_034_240:
                    assert child.poll() is None
                    time.sleep(0.01)
                child.send_signal(signal.SIGKILL)
            assert blocks() == 0 and os.listdir(f"/proc/{holder.pid}/root/dev/shm") == []
        finally:
            holder.kill()

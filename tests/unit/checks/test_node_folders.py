"""node.folders: whether the folders that the job writes take files."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from netdoctor.host.live import LiveHost
from netdoctor.model import Finding, Severity, Status
from tests.support import facts as f
from tests.support.machines import composed

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN


def paths(number: int, *, free: int = 0, **changes: Any) -> dict[str, Finding]:
    made = composed.Composed("dgx-h100", {f"host.{name}": value for name, value in changes.items()}, {"job.paths": "/ckpt"})
    made.host.answers["room:/ckpt"] = {**f.room(number), "free": free}
    return {one.subject: one for one in made.judged("node.folders")}


@pytest.mark.parametrize(
    ("number", "words", "command"),
    [
        (errno.ENOSPC, "no inode is", "df -h /ckpt"),  # of bytes there are half a GiB
        (errno.EDQUOT, "quota", "df -h /ckpt"),
        (errno.EROFS, "for reading only", "findmnt -T /ckpt"),
        (errno.EACCES, "closed to this user", "findmnt -T /ckpt"),
        (errno.EIO, "input/output error", "findmnt -T /ckpt"),
        (errno.ENOTCONN, "the program behind its mount ended", "findmnt -T /ckpt"),
        (errno.ESTALE, "its server no longer has", "findmnt -T /ckpt"),
        (errno.ENOTDIR, "is no folder", "findmnt -T /ckpt"),
        (errno.ELOOP, "a circle of links", "findmnt -T /ckpt"),
    ],
)
def test_a_folder_that_the_job_writes_and_cannot(number: int, words: str, command: str) -> None:
    found = paths(number, free=1 << 29)["/ckpt"]
    assert (found.status, found.severity, found.cause) == (FAIL, Severity.CRITICAL, "node_storage")
    assert words in found.message
    assert found.fix is not None
    assert found.fix.commands[0] == command


def test_a_limit_of_the_process_is_not_the_folders_fault() -> None:
    found = paths(errno.EFBIG, free=1 << 40)["/ckpt"]
    assert (found.status, found.cause) == (FAIL, "process_limits") and "ulimit -f" in found.message
    assert found.fix is not None and found.fix.commands == ("ulimit -f unlimited",)


def test_a_folder_without_bytes_is_full() -> None:
    assert "it is full" in paths(errno.ENOSPC)["/ckpt"].message


def test_folders_of_the_job_that_are_well() -> None:
    found = paths(0, free=1 << 29)
    assert found["/ckpt"].status is PASS
    odd = paths(errno.EINVAL, free=1 << 29)["/ckpt"]
    assert odd.status is UNKNOWN and "EINVAL" in odd.message


@pytest.mark.parametrize(("uid", "status"), [(0, FAIL), (1000, PASS)])
def test_a_file_system_that_has_room_for_root_alone(uid: int, status: Status) -> None:
    """What it keeps back (ext4, 5 %) takes a file of root's, which says nothing of its users."""
    assert paths(0, uid=uid)["/ckpt"].status is status


def test_commands_are_for_a_shell() -> None:
    made = composed.Composed("dgx-h100", {}, {"job.paths": "/my data/$(id)"})
    made.host.answers["room:/my data/$(id)"] = f.room(errno.EROFS)
    (found,) = made.judged("node.folders")
    assert found.fix and found.fix.commands[0] == "findmnt -T '/my data/$(id)'"


def test_a_folder_that_was_not_tried_is_not_known_to_take_files() -> None:
    """NFS, Lustre and BeeGFS have no unnamed files: a quota that is used up shows in neither rights nor room."""
    made = composed.Composed("dgx-h100", {}, {"job.paths": "/ckpt"})
    made.host.answers["room:/ckpt"] = {**f.room(0), "tried": False}
    (found,) = made.judged("node.folders")
    assert found.status is UNKNOWN
    assert "no file could be tried there" in found.message


def test_a_prolog_is_not_the_jobs_user() -> None:
    """Root may write where the job may not, and the reverse (NFS with root_squash)."""
    where = {"uid": 0, "environment": {"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}}
    assert paths(errno.EACCES, free=1 << 29, **where)["/ckpt"].status is UNKNOWN
    other = paths(0, free=1 << 29, **where)["/ckpt"]
    assert other.status is UNKNOWN and "prolog" in other.message
    assert paths(errno.ENOSPC, **where)["/ckpt"].status is FAIL


@pytest.mark.slow
def test_where_nobody_comes_to_a_folder(tmp_path: Any) -> None:
    """Whoever would make it: a link that leads to itself, a file on the way, a folder above that is closed."""
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").touch()
    (tmp_path / "shut").mkdir(mode=0)
    rows = {"loop": errno.ELOOP, "loop/x": errno.ELOOP, "file": errno.ENOTDIR, "file/x": errno.ENOTDIR}
    for name, number in {**rows, **({} if os.geteuid() == 0 else {"shut/x": errno.EACCES})}.items():
        got = LiveHost().ask(f"room:{tmp_path}/{name}")
        assert isinstance(got, dict) and (got["errno"], got["tried"]) == (number, True), name

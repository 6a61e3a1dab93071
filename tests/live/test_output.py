"""Mount points, full and read-only file systems, other people's folders: in a mount namespace of the test's own."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [pytest.mark.live, pytest.mark.root]

if os.geteuid() != 0:
    pytest.skip("needs root: mounts", allow_module_level=True)

PROGRAM = """
import sys
from netdoctor.process.files import OutputError, write
try:
    print(write(sys.argv[1], sys.argv[2] * int(sys.argv[3])))
except OutputError as error:
    print(error)
"""


@pytest.fixture
def open_path() -> Iterator[Path]:
    """A folder that every user may enter: pytest's own are closed."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def inside(setup: str, path: Path, text: str = "new", times: int = 1, user: int | None = None, after: str = "true") -> str:
    """What `write` says after `setup` ran in a mount namespace of its own; `after` runs last."""
    python = [sys.executable, "-c", PROGRAM, str(path), text, str(times)]
    drop = f"setpriv --reuid={user} --regid={user} --clear-groups" if user is not None else ""
    script = f'set -e; {setup}; {drop} "$@"; {after}'
    command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *python]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    if done.returncode and "unshare" in done.stderr:
        pytest.skip(f"no mount namespace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_mount_point_is_written_in_place(tmp_path: Path) -> None:
    """What the kubelet does with /dev/termination-log: a file mounted over a file; rename(2) says EBUSY."""
    log, outside = tmp_path / "termination-log", tmp_path / "outside"
    log.write_text("")
    outside.write_text("a longer text that was there before")
    outside.chmod(0o666)
    assert inside(f"mount --bind {outside} {log}", log) == "in place"
    assert outside.read_text() == "new"
    assert sorted(os.listdir(tmp_path)) == ["outside", "termination-log"]


def test_a_mount_point_for_a_user_who_may_not_write_beside_it(open_path: Path) -> None:
    log, outside = open_path / "termination-log", open_path / "outside"
    log.write_text("")
    outside.write_text("old")
    outside.chmod(0o666)
    assert inside(f"mount --bind {outside} {log}", log, user=65534) == "in place"
    assert outside.read_text() == "new"


def test_no_snapshot_in_a_mount_point_that_others_read(tmp_path: Path) -> None:
    log, outside = tmp_path / "log", tmp_path / "outside"
    log.write_text("")
    outside.write_text("old")
    outside.chmod(0o644)
    said = inside(f"mount --bind {outside} {log}; umask 077", log)
    assert said == "in place"
    program = PROGRAM.replace("int(sys.argv[3]))", "int(sys.argv[3]), mode=0o600)")
    command = ["unshare", "--mount", "sh", "-c", f'mount --bind {outside} {log}; "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run([*command, str(log), "secret", "1"], capture_output=True, text=True, check=True)
    assert "others may read it" in done.stdout
    assert outside.read_text() == "new"


@pytest.mark.parametrize("bound", [False, True])
def test_a_full_disk_keeps_what_was_there(tmp_path: Path, bound: bool) -> None:
    disk, point = tmp_path / "disk", tmp_path / "point"
    disk.mkdir()
    point.write_text("")
    setup = f"mount -t tmpfs -o size=64k none {disk}; echo old > {disk}/r"
    target = disk / "r"
    if bound:
        setup += f"; mount --bind {disk}/r {point}"
        target = point
    said = inside(setup, target, "x" * 100, 10_000, after=f"cat {disk}/r; ls -A {disk}")
    first, *rest = said.splitlines()
    assert first.endswith("No space left on device (ENOSPC)")
    assert rest == ["old", "r"]


def test_a_read_only_file_system(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    said = inside(
        f"mount -t tmpfs none {disk}; echo old > {disk}/r; mount -o remount,ro {disk}", disk / "r", after=f"cat {disk}/r"
    )
    assert said.endswith("(EROFS)\nold")
    assert inside(f"mount -t tmpfs -o ro none {disk}", disk / "new").endswith("(EROFS)")


def test_root_does_not_follow_a_link_of_somebody_elses(tmp_path: Path) -> None:
    theirs, precious = tmp_path / "theirs", tmp_path / "precious"
    theirs.mkdir()
    precious.write_text("precious")
    (theirs / "report.json").symlink_to(precious)
    os.chown(theirs, 65534, 65534)
    assert "symbolic link in a folder that belongs to uid 65534" in inside("true", theirs / "report.json")
    assert precious.read_text() == "precious"
    assert inside("true", theirs / "other.json") == "renamed"


@pytest.mark.parametrize(("mode", "owner"), [(0o1777, 65534), (0o1777, 0), (0o755, 65534), (0o755, 0)])
def test_roots_own_link_in_roots_own_folder_is_followed(open_path: Path, mode: int, owner: int) -> None:
    """No other: /tmp/x -> /etc/shadow, and a link of somebody else's that was moved or given away."""
    (open_path / "theirs").mkdir()
    (open_path / "theirs").chmod(mode)
    (link := open_path / "theirs/x").symlink_to(open_path / "shadow")
    os.chown(link, owner, owner, follow_symlinks=False)
    (open_path / "shadow").write_text("root:*")
    said, ours = inside("true", link), (mode, owner) == (0o755, 0)
    assert said == "renamed" if ours else "is a symbolic link " in said
    assert (open_path / "shadow").read_text() == ("new" if ours else "root:*") and link.is_symlink()


def test_another_users_file_is_not_replaced(open_path: Path) -> None:
    (open_path / "r").write_text("root's")
    assert inside("true", open_path / "r", user=65534).endswith("(EACCES)")
    assert (open_path / "r").read_text() == "root's"

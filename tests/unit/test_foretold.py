"""What could not be written at the end is told before the look, which may take minutes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from netdoctor.process.files import obstacle
from tests.support.sources import ROOT

LOOK = ["--no-allreduce", "--no-cures"]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "netdoctor", *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_report_is_printed_though_its_file_has_no_place(tmp_path: Path) -> None:
    gone = tmp_path / "gone" / "r.json"
    done = run("preflight", "--only", "node.clock", *LOOK, "-o", str(gone))
    told = f"netdoctor: {gone}: cannot be written: No such file or directory (ENOENT)"
    lines = done.stderr.splitlines()
    assert lines.index(told) < lines.index("netdoctor: looking at the node")
    assert done.stderr.count(str(gone)) == 1, "once is enough"
    assert "node.clock" in done.stdout and done.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("command", ["snapshot", "expect"])
def test_nothing_is_looked_at_where_nothing_would_be_left_of_it(command: str, tmp_path: Path) -> None:
    done = run(command, *LOOK, "-o", str(tmp_path / "gone" / "x.json"))
    assert "cannot be written" in done.stderr and "looking at the node" not in done.stderr
    assert done.returncode == 1


@pytest.mark.slow
def test_files_of_logs_and_fleets_are_foretold(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("x\n")
    for command, path in (("log", str(log)), ("fleet", str(tmp_path))):
        words = [command, *(["report"] if command == "fleet" else []), path, "-o", str(tmp_path / "gone" / "r.json")]
        assert "cannot be written" in run(*words).stderr.splitlines()[0]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("new.json", ""),
        ("old.json", ""),
        ("folder", "EISDIR"),
        ("old.json/r.json", "ENOTDIR"),
        ("a/b", "ENOENT"),
        ("x\0", "NUL|null"),
    ],
)
def test_what_is_in_the_way_of_a_file(name: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("old")
    (tmp_path / "old.json").chmod(0o444)  # a new file takes its place
    (tmp_path / "folder").mkdir()
    said = obstacle(str(tmp_path / name))
    assert any(part in said for part in why.split("|")) if why else said == ""
    assert sorted(os.listdir(tmp_path)) == ["folder", "old.json"]  # nothing was made


@pytest.mark.parametrize("path", ["-", "/dev/stdout", "/dev/null", "/dev/full"])
def test_a_stream_or_a_device_is_asked_when_it_is_written(path: str) -> None:
    assert obstacle(path) == ""


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a folder that another user may not write to")
def test_a_folder_of_others_is_in_the_way_of_a_user() -> None:
    code = (
        "import os; from netdoctor.process.files import obstacle; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "print(obstacle('/etc/r.json'))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.splitlines() == ["/etc/r.json: cannot be written: Permission denied (EACCES)"], done.stderr

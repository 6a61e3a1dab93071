"""Standard streams that are closed, full, or left by their reader: the right exit code, and the report on stdout alone."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
ROOT = pathlib.Path(__file__).parents[2]
SNAPSHOT = str(ROOT / "fixtures/hosts/dgx-h100/snapshot.json")


def shell(line: str, *words: str) -> subprocess.CompletedProcess[str]:
    """What a shell line says in which $N is netdoctor; its exit code is netdoctor's."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "S": SNAPSHOT}
    script = f'N() {{ "{sys.executable}" -m netdoctor "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", script, "sh", *words], capture_output=True, text=True, env=environment, check=False)


HEALTHY_LOG = (
    "<(echo 'n1:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1 commId 0x2 - Init COMPLETE'; echo step 1 loss 2)"
)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("list", 1),
        ("--help", 1),
        ('diagnose "$S"', 1),
        ('diagnose "$S" -f html', 1),
        ("env", 1),
        (f"log {HEALTHY_LOG}", 1),
        ("log /dev/null", 1),  # inconclusive; only an unhealthy or interrupted run is greater news
    ],
)
@pytest.mark.parametrize("where", [">/dev/full", ">&-"])
def test_an_output_that_does_not_get_out(command: str, code: int, where: str) -> None:
    done = shell(f"N {command} {where}")
    assert done.returncode == code
    assert "could not be printed" in done.stderr and "defect" not in done.stderr and "Exception" not in done.stderr


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        ('diagnose "$S" -o /nowhere/x.json', 1, "dgx"),
        ("diagnose /nowhere/x.json", 2, ""),
        ("run --budget 1 -- echo started", 0, "started"),
    ],
)
def test_a_stderr_that_takes_nothing_ends_nothing(command: str, code: int, says: str) -> None:
    """A log on a full disk: what was to be said there is lost, and no more than that."""
    done = shell(f"N {command} 2>/dev/full")
    assert (done.returncode, done.stderr) == (code, "")
    assert says in done.stdout


@pytest.mark.parametrize("command", ["list", 'diagnose "$S" -f html'])
def test_a_reader_who_goes_away(command: str) -> None:
    # The reader is gone before anything is written: it reads the end of a pipe that is closed only afterwards.
    done = shell(f"{{ N {command}; echo $? >&2; }} | exec 0<&-")
    assert done.stderr.split() in (["141"], ["0"]) and "Exception" not in done.stderr


def test_no_stdin() -> None:
    done = shell("N diagnose - <&-")
    assert done.returncode == 2 and "empty" in done.stderr


def test_progress_does_not_enter_the_report_without_stderr() -> None:
    done = shell("N preflight --no-allreduce --only cpu.numa_affinity -f json 2>&- <&-")
    assert json.loads(done.stdout)["schema"] == "netdoctor.report/1"
    assert done.returncode in (0, 4)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"schema": "netdoctor.snapshot/1", "a":' + "[" * 100_000])
def test_a_snapshot_that_is_too_deep(tmp_path: pathlib.Path, text: str) -> None:
    (tmp_path / "deep.json").write_text(text)
    done = shell('N diagnose "$1"', str(tmp_path / "deep.json"))
    assert done.returncode == 2 and "not JSON" in done.stderr


@pytest.mark.parametrize(
    ("option", "says"), [("--exit-style bogus", "--exit-style"), ("--host-root /nonexistent", "no such directory")]
)
def test_a_wrong_command_is_said_before_anything_is_looked_at(option: str, says: str) -> None:
    done = shell(f"N preflight --no-allreduce {option}")
    assert done.returncode == 2 and says in done.stderr and not done.stdout and "looking" not in done.stderr


def test_a_policy_of_another_shape(tmp_path: pathlib.Path) -> None:
    data = json.loads(pathlib.Path(SNAPSHOT).read_text())
    (tmp_path / "s.json").write_text(json.dumps(data | {"policy": {"disabled": 1.5}}))
    done = shell('N diagnose "$1"', str(tmp_path / "s.json"))
    assert done.returncode == 2 and "another shape" in done.stderr


@pytest.mark.parametrize("format", ["text", "json", "junit", "brief", "html"])
def test_variables_that_are_no_text(format: str) -> None:
    """Bytes that are not UTF-8 reach a report written out; no probe falls over them."""
    rubbish = {
        b"NCCL_IB_HCA": b"mlx5_\xff\x1b[31m<script>",
        b"NCCL_\xff": b"1",
        b"MASTER_ADDR": b"h\xff",
        b"VIRTUAL_ENV": b"/\xff",
    }
    command = [sys.executable, "-m", "netdoctor", "preflight", "--no-allreduce", "--vantage", "job", "-q", "-f", format]
    environment = {**os.environb, b"PYTHONPATH": os.fsencode(ROOT), **rubbish}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert done.returncode in (0, 3, 4) and b"defect" not in done.stderr
    text = done.stdout.decode()
    assert "\x1b" not in text and "crashed" not in text
    if format == "text":
        assert "NCCL_\\xff" in text


def test_env_with_variables_that_are_no_text() -> None:
    environment = {**os.environb, b"PYTHONPATH": os.fsencode(ROOT), b"NCCL_\xff": b"\xfe"}
    done = subprocess.run([sys.executable, "-m", "netdoctor", "env"], env=environment, capture_output=True, check=False)
    assert done.returncode == 3 and "NCCL_\\xff" in done.stdout.decode()


def test_a_working_directory_that_is_gone(tmp_path: pathlib.Path) -> None:
    (tmp_path / "gone").mkdir()
    done = shell('cd "$1" && rmdir "$1" && N preflight --no-allreduce -q --python ./python3', str(tmp_path / "gone"))
    assert done.returncode == 2 and "working directory" in done.stderr

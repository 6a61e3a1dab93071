"""netdoctor.pyz: the installed netdoctor's report, from one file, on every Python, where nothing can be written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import pyz

pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def file() -> Iterator[Path]:
    yield pyz.built()
    pyz.forget()


def python(version: str) -> str:
    found = pyz.interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} on this machine")
    return found


def start(command: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment, **more)


def steady(text: str) -> dict[str, Any]:
    """A report without what differs from run to run."""
    report: dict[str, Any] = json.loads(text)
    del report["volatile"]
    return report


def test_two_builds_are_the_same_bytes(file: Path, tmp_path: Path) -> None:
    again = pyz.build(tmp_path / "again.pyz")
    assert again.read_bytes() == file.read_bytes()


def test_it_holds_no_compiled_code_and_nothing_of_this_machine(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        text = b"".join(archive.read(name) for name in names)
    assert not [name for name in names if name.endswith((".so", ".pyc", ".pyd")) or "__pycache__" in name]
    assert str(pyz.ROOT).encode() not in text
    assert {"netdoctor/checks/net_port_range.py", "netdoctor/host/helpers/nvml.py", "netdoctor/schemas/report-1.json"} <= set(
        names
    )
    assert not {name.partition("/")[0] for name in names} & {"rich", "pygments", "psutil"}


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    return steady(start([sys.executable, "-m", "netdoctor", *PREFLIGHT], cwd=pyz.ROOT).stdout)


PREFLIGHT = ["preflight", "--quiet", "--format", "json", "--python", sys.executable]


@pytest.mark.parametrize("version", pyz.VERSIONS)
def test_the_report_is_the_installed_ones(file: Path, version: str, installed: dict[str, Any]) -> None:
    done = start([python(version), "-I", str(file), *PREFLIGHT])
    assert steady(done.stdout) == installed, done.stderr
    assert done.returncode == installed["verdict"]["exit_code"]


PAGE = "preflight --no-allreduce --format html"
COMMANDS = (
    *("list", "explain net.port_range", "schema report", "env --explain NCCL_IB_HCA", "deploy kubernetes"),
    *(PAGE, "preflight --no-allreduce --format junit"),
)


@pytest.mark.parametrize(
    ("version", "command"), [*((pyz.VERSIONS[0], one) for one in COMMANDS), *((one, PAGE) for one in pyz.VERSIONS[1:])]
)
def test_every_command_finds_its_data(file: Path, version: str, command: str) -> None:
    done = start([python(version), "-I", str(file), *command.split()])
    assert done.returncode in (0, 4) and len(done.stdout) > 100, done.stderr
    assert "defect" not in done.stderr


def test_what_is_deployed_is_the_same_from_the_file(file: Path, tmp_path: Path) -> None:
    folder = pyz.ROOT / "netdoctor/deploy/kubernetes"
    done = start([python("3.10"), "-I", str(file), "deploy", "kubernetes", "--to", str(tmp_path / "k8s")])
    assert done.returncode == 0, done.stderr
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert (tmp_path / "k8s" / path.relative_to(folder)).read_bytes() == path.read_bytes()


def test_every_command_starts(file: Path) -> None:
    interpreter = python("3.10")
    for words in _commands():
        done = start([interpreter, "-I", str(file), *words, "--help"])
        assert done.returncode == 0 and done.stdout.lstrip().startswith("Usage:"), (words, done.stderr)


def _commands() -> list[list[str]]:
    from typer.main import get_command

    from netdoctor.cli.main import app

    def below(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, child in getattr(command, "commands", {}).items():
            yield from below(child, [*words, name])

    return list(below(get_command(app), []))


# Everything of this machine read-only, nothing at all under /tmp, /var/tmp and /dev/shm, no home, and uid 65534.
BARE = """
set -e
mount --make-rprivate /
for dir in /tmp /var/tmp /dev/shm /root/.cache /run; do test -d $dir && mount -t tmpfs -o ro,mode=000 none $dir; done
mkdir /mnt 2>/dev/null || true
for at in $(awk '{print $5}' /proc/self/mountinfo | grep -v -e ^/proc -e ^/sys -e ^/dev | sort -u); do
  mount -o remount,bind,ro "$at" 2>/dev/null || true
done
if touch /usr/.netdoctor-test 2>/dev/null; then echo "still writable" >&2; exit 99; fi
"$@"
"""


def bare(command: list[str]) -> subprocess.CompletedProcess[str]:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("needs root and unshare")
    return start(["unshare", "--mount", "sh", "-c", BARE, "sh", *command])


@pytest.mark.root
@pytest.mark.parametrize("version", (pyz.VERSIONS[0], pyz.VERSIONS[-2]))
def test_a_read_only_machine_without_tmp_gives_the_same_report(file: Path, version: str, installed: dict[str, Any]) -> None:
    done = bare([python(version), "-I", str(file), *PREFLIGHT])
    assert done.returncode != 99, done.stderr
    got = steady(done.stdout)
    lacking = {check["id"] for check in got["checks"]} ^ {check["id"] for check in installed["checks"]}
    assert not lacking
    for ours, theirs in zip(got["checks"], installed["checks"], strict=True):
        assert ours == theirs, ours["id"]
    assert done.returncode == installed["verdict"]["exit_code"], done.stderr


def test_the_jobs_pythonpath_stays_outside(file: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('the job took over')\n")
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    command = [python("3.11"), "-I", str(file), "list"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("version", ["3.8", "3.9"])
def test_an_older_python_is_told_in_one_line(file: Path, version: str) -> None:
    done = start([python(version), "-I", str(file), "preflight"])
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1
    assert "needs Python >= 3.10" in done.stderr and f"is {version}" in done.stderr


def test_without_the_compiled_packages_an_answer_says_so(file: Path) -> None:
    """psutil is for some architecture, so it is not in the file: its answer is Unavailable, or comes from the machine's own."""
    program = (
        f"import sys; sys.path[:] = [{str(file)!r}] + [p for p in sys.path if not p.endswith('-packages')]\n"
        "from netdoctor.host.live import LiveHost\nhost = LiveHost()\nprint(repr(host.ask('ask:psutil')))\nhost.close()\n"
    )
    done = start([python("3.10"), "-I", "-c", program])
    assert "Unavailable" in done.stdout and "psutil" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not os.access("/usr/bin/python3", os.X_OK), reason="needs root and /usr/bin/python3")
@pytest.mark.parametrize(("mode", "code"), [(0o644, (0, 3, 4)), (0o600, (2,))])
def test_it_becomes_another_user(file: Path, mode: int, code: tuple[int, ...]) -> None:
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        copy = Path(name) / "netdoctor.pyz"
        shutil.copyfile(file, copy)
        copy.chmod(mode)
        done = start(["/usr/bin/python3", str(copy), "preflight", "--only", "process.limits", "--user", "nobody"])
        assert done.returncode in code and "Traceback" not in done.stderr, done.stderr
        assert (f"{copy} is not readable by nobody" in done.stderr) is (mode == 0o600)

"""The standing look as systemd has it: units that systemd takes, and a command that needs no privilege."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]
UNITS = ROOT / "netdoctor" / "deploy" / "systemd"
pytestmark = pytest.mark.live
needs_systemd = pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd-analyze (Debian: systemd)")


@needs_systemd
def test_systemd_takes_the_units(tmp_path: pathlib.Path) -> None:
    for unit in UNITS.iterdir():
        shutil.copy(unit, tmp_path)
    argv = ["systemd-analyze", "verify", "--man=no", *map(str, sorted(tmp_path.iterdir()))]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and str(tmp_path) not in done.stderr, done.stderr


@pytest.mark.parametrize("setting", ["MemoryMax", "TasksMax", "ProtectKernelLogs", "ProtectProc"])
def test_what_it_may_use_is_bounded(setting: str) -> None:
    assert f"\n{setting}=" in (UNITS / "netdoctor.service").read_text()


@needs_systemd
def test_it_is_not_exposed(tmp_path: pathlib.Path) -> None:
    unit = shutil.copy(UNITS / "netdoctor.service", tmp_path)
    argv = ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=25", str(unit)]  # 2.5 of 10
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    if "unrecognized option" in done.stderr:
        pytest.skip("systemd-analyze is older than 250: no --offline")
    assert done.returncode == 0, done.stdout[-500:] + done.stderr


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root and setpriv (util-linux)")
def test_the_command_needs_no_privilege() -> None:
    lines = (UNITS / "netdoctor.service").read_text().splitlines()
    words = shlex.split(next(line for line in lines if line.startswith("ExecStart=")).removeprefix("ExecStart="))
    report = pathlib.Path("/run") / f"netdoctor-unit-{os.getpid()}"
    report.mkdir()
    try:
        os.chown(report, 65534, 65534)
        pyz = report / "netdoctor.pyz"
        subprocess.run([sys.executable, ROOT / "tools" / "build_pyz.py", pyz], check=True, capture_output=True, timeout=120)
        assert words[:3] == ["/usr/bin/python3", "-I", "/opt/netdoctor/netdoctor.pyz"]
        rest = [word.replace("${STATE_DIRECTORY}", str(report)) for word in words[3:]]
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--no-new-privs"]
        done = subprocess.run(
            [*nobody, "/usr/bin/python3", "-I", str(pyz), *rest],
            env={"PATH": "/usr/bin:/bin", "STATE_DIRECTORY": str(report)},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (0, 3), done.stderr
        written = json.loads((report / "report.json").read_text())
        assert written["verdict"]["exit_code"] == done.returncode and written["vantage"]["euid"] == 65534
        assert len(done.stdout.splitlines()) == 1
    finally:
        shutil.rmtree(report)

"""More than one netdoctor is there: which one this is, and what lies over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "import sys; del sys.path[0]; from netdoctor.__main__ import main; main()"]


def copied(to: Path) -> Path:
    ignore = shutil.ignore_patterns("__pycache__", "deploy")
    return Path(shutil.copytree(ROOT / "netdoctor", to / "netdoctor", ignore=ignore, symlinks=False))


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--version",), ("config", "show")])
def test_an_old_clone_on_pythonpath_is_told(words: tuple[str, ...], tmp_path: Path) -> None:
    old, installed = copied(tmp_path / "old clone"), copied(tmp_path / "installed")
    paths = [old.parent, installed.parent, *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([*COMMAND, *words], env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr.startswith(f"netdoctor: runs from {old} (PYTHONPATH); not used: {installed}"), done.stderr
    assert str(old) not in done.stdout


@pytest.mark.slow
def test_the_same_one_by_two_ways_is_one(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(ROOT)
    environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'link'}{os.pathsep}{ROOT}"}
    line = [*COMMAND, "--version"]
    done = subprocess.run(line, env=environment, cwd="/", capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


@pytest.mark.slow
def test_a_namesake_that_lies_over_us_is_told(tmp_path: Path) -> None:
    copied(tmp_path)
    command = [sys.executable, "-c", "from netdoctor.__main__ import main; main()", "config", "show"]
    words = []
    for name in ("cluster_netdoctor-0.1.0.dist-info", "netdoctor-0.1.1.dist-info"):
        (tmp_path / name).mkdir()
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
        words.append(done.stderr)
    assert "another project" not in words[0]
    assert "netdoctor-0.1.1, another project" in words[1]
    (tmp_path / "netdoctor/__init__.py").write_text("def main(): print('0.1.1')\n")  # installed after ours
    done = subprocess.run([sys.executable, "-m", "netdoctor"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and done.stderr.startswith("netdoctor: another project's netdoctor lies over this one")
    assert "pip uninstall netdoctor" in done.stderr and "Traceback" not in done.stderr

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


@pytest.mark.slow
@pytest.mark.parametrize("by", ["the working folder", "PYTHONPATH"])
def test_a_folder_of_our_name_that_hides_us_is_named(by: str, tmp_path: Path) -> None:
    """The parent of a clone holds a folder of our name without a package; somebody's package has ours behind it."""
    (tmp_path / "before/netdoctor").mkdir(parents=True)
    if by == "PYTHONPATH":
        (tmp_path / "before/netdoctor/__init__.py").touch()
    copied(tmp_path / "ours")
    mend = "take its folder out of PYTHONPATH" if by == "PYTHONPATH" else "start it in another folder"
    program = (
        "import sys, netdoctor; netdoctor.__path__.append(sys.argv[1])"  # as the finder of an editable install has it
        if by == "PYTHONPATH"
        else "import sys, types; made = sys.modules['netdoctor'] = types.ModuleType('netdoctor'); made.__path__ = "
        "[sys.argv[2], sys.argv[1]]"
    )
    program += "\nfrom netdoctor.__main__ import main\nmain()"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "ours/netdoctor"), str(tmp_path / "before/netdoctor")],
        cwd=tmp_path / "before",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "before") if by == "PYTHONPATH" else ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    said = f"netdoctor: {tmp_path}/before/netdoctor hides the netdoctor that lies in {tmp_path}/ours/netdoctor: {mend}\n"
    assert done.stderr == said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "content", "says"),
    [
        ("typing", "x = 1", "typing.py hides Python's own typing: take its folder out of PYTHONPATH"),
        ("typer", "raise ModuleNotFoundError('No module named typer', name='typer')", " has no typer: install netdoctor"),
    ],
)
def test_what_cannot_be_imported_is_one_line(module: str, content: str, says: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text(content)
    done = subprocess.run(
        [sys.executable, "-m", "netdoctor", "--version"],
        cwd="/",
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1

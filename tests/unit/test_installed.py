"""More than one netdoctor is there: which one this is, and what lies over it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import netdoctor
from netdoctor.process import imported

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


def version(*python: str, **variables: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, *python, "-m", "netdoctor", "--version"]
    return subprocess.run(words, cwd="/", env={**os.environ, **variables}, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_dependency_that_is_not_there_is_one_line() -> None:
    done = version("-S", PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{sys.executable} has no typer: install netdoctor" in done.stderr


HIDES = [
    ("typing", "x = 1", "hides Python's own typing"),
    ("typer", "x = 1", "hides the installed typer"),
    ("typer", "import nothing_of_this_name", "hides the installed typer"),
    ("json/__init__", "def loads(text): raise AttributeError", "hides Python's own json"),
    ("yaml", "x = 1", "hides the installed yaml"),
    ("yaml", "print(", "hides the installed yaml"),
    ("yaml", "raise RuntimeError('of the job')", "hides the installed yaml"),
    ("yaml/__init__", "", "hides the installed yaml"),
]


@pytest.mark.slow
@pytest.mark.parametrize("here", [False, True], ids=["PYTHONPATH", "the working folder"])
@pytest.mark.parametrize(("module", "content", "says"), HIDES)
def test_a_file_that_hides_a_module_is_named(module: str, content: str, says: str, here: bool, tmp_path: Path) -> None:
    """Whether the command line imports it, or a command later: of its own accord none of these is a defect of ours."""
    (file := tmp_path / "lies" / f"{module}.py").parent.mkdir(parents=True)
    file.write_text(content)
    (tmp_path / "lies/c.yaml").write_text("profile: default\n")
    folder = tmp_path / "lies"
    done = subprocess.run(
        [sys.executable, "-m", "netdoctor", "config", "show", "--config", str(folder / "c.yaml")],
        cwd=folder if here else "/",
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{'' if here else folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    mend = "give it another name, or start netdoctor in another folder" if here else "take its folder out of PYTHONPATH"
    assert done.returncode == 2 and done.stderr.splitlines()[-1] == f"netdoctor: {file} {says}: {mend}", done.stderr


def test_an_error_of_ours_is_not_blamed_on_who_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of another environment's site-packages in PYTHONPATH, which work."""
    monkeypatch.setenv("PYTHONPATH", str(Path(yaml.__file__).parents[1]))
    assert imported.hidden_by(AttributeError("x", name="x", obj=netdoctor)) == ""
    assert imported.hidden_by(ImportError("x", name="netdoctor.none")) == ""

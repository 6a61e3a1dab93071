"""`make preflight` and `make test` run from any folder: a path with blanks, below /tmp, one that belongs to others."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from netdoctor.host.trust import trusted
from netdoctor.process.imported import NEEDED
from tests.support.namespaces import checkout as copies

ROOT = Path(__file__).parents[2]
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes files of other users")
# A fake netdoctor: it says what it was called with.
SAY = '#!/bin/sh\nprintf "%s\\n" "$@"\n'


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_make_names_its_python_in_a_folder_with_blanks(tmp_path: Path) -> None:
    folder = tmp_path / "a b" / 'net "doctor" $x'
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    for name in ("bin/python", ".run", ".netdoctor-torch"):
        (folder / ".venv" / name).write_text(SAY)
        (folder / ".venv" / name).chmod(0o755)
    (programs / "pip").write_text(f"#!{programs}/python\n")
    (folder / ".venv" / ".torch").write_text("some\n")
    command = ["make", "-s", "-C", str(folder), "preflight", "TORCH=some", "ARGS=--brief --only 'a b'"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    options = ["--output", "build/report.json", "--python", f"{programs}/python", "--brief", "--only", "a b"]
    assert done.stdout.splitlines() == ["-I", "-m", "netdoctor", "preflight", *options]


# A fake Python: it makes a .venv whose programs say what they were called with, and pip, which names its path.
MAKES = """#!/bin/sh
[ "$1" = -c ] && exit 0
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "new: $*"\\n' > "$3/bin/python"; chmod 755 "$3/bin/python"
echo "#!$(pwd -P)/$3/bin/python3" > "$3/bin/pip"
"""


def _whole(venv: Path) -> None:
    """As it was made here."""


def _moved(venv: Path) -> None:
    (venv / "bin/pip").write_text("#!/where/it/was/.venv/bin/python3\n")


def _without_python(venv: Path) -> None:
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("/nowhere/python3")


def _interrupted(venv: Path) -> None:
    (venv / "bin/pip").unlink()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make"), reason="no make")
@pytest.mark.parametrize("hurt", [_whole, _moved, _without_python, _interrupted])
@pytest.mark.parametrize("name", ["clone", "a user's clone"])
def test_a_venv_that_cannot_be_used_is_made_anew(tmp_path: Path, hurt: Callable[[Path], None], name: str) -> None:
    folder, python = tmp_path / name, tmp_path / "python3"
    venv = folder / ".venv"
    folder.mkdir()
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "pyproject.toml").touch()
    python.write_text(MAKES)
    python.chmod(0o755)
    command = ["make", "-s", "-C", str(folder), "preflight", "TORCH=", f"PYTHON={python}"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    (venv / "bin/python").write_text((venv / "bin/python").read_text().replace("new", "old"))
    hurt(venv)
    link = tmp_path / "link"
    link.symlink_to(folder)
    again = [str(link) if word == str(folder) else word for word in command]
    done = subprocess.run(again, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    anew = hurt is not _whole
    assert done.stdout.splitlines()[-1].startswith(("new:" if anew else "old:") + " -I -m netdoctor preflight")
    assert ("anew" in done.stderr) is anew


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("make"), reason="no make")
def test_an_old_report_is_not_called_this_looks(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "python3").write_text(MAKES)
    (tmp_path / "python3").chmod(0o755)
    command = ["make", "-s", "-C", str(tmp_path), "preflight", "TORCH=", f"PYTHON={tmp_path}/python3"]
    subprocess.run(command, capture_output=True, check=True, timeout=60)
    for code, told in ((0, True), (3, True), (4, True), (1, False), (2, False), (127, False)):
        (tmp_path / ".venv/bin/python").write_text(f'#!/bin/sh\ncase "$*" in *preflight*) exit {code};; esac\n')
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert ("the whole report" in done.stderr) is told


NO_INDEX = "needs a package index"


@pytest.mark.skipif(not shutil.which("make"), reason="no make")
@pytest.mark.parametrize(
    ("folder", "said", "told", "not_told"),
    [
        ("a", "WARNING: Retrying\nERROR: No matching distribution found for x", NO_INDEX, "$"),
        ("a", "note: of a subprocess\nERROR: Failed to build x", "into .venv: ERROR: Failed to build x", NO_INDEX),
        ("a$x", "KeyError: 'x'\nERROR: Failed to build x", "takes a $ in the path", NO_INDEX),
    ],
)
def test_a_set_up_that_fails_says_why(tmp_path: Path, folder: str, said: str, told: str, not_told: str) -> None:
    where = tmp_path / folder
    where.mkdir()
    shutil.copy(ROOT / "Makefile", where)
    (where / "pyproject.toml").touch()
    (where / "said").write_text(said)
    (tmp_path / "python3").write_text(MAKES.replace('echo "new: $*"', "cat said; exit 1"))
    (tmp_path / "python3").chmod(0o755)
    command = ["make", "-s", "-C", str(where), "preflight", "TORCH=", f"PYTHON={tmp_path}/python3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    own = done.stderr.replace(said, "")
    assert told in own and not_told not in own.replace(folder, "")


# What users have in the folder where they start: named like modules of the standard library, and of others.
OWN_FILES = ("json", "typing", "struct", "random", "typer", "yaml", "dataclasses", "torch")


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_FILES)
def test_a_users_file_takes_no_modules_place(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the user was imported')\n")
    command = [sys.executable, "-m", "netdoctor", "list"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.6", "3.7", "3.8", "3.9"])
def test_an_old_python_is_told_by_the_clone_too(version: str) -> None:
    python = next((path for path in Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3")), None)
    found = shutil.which(f"python{version}") if python is None else str(python)
    if found is None:
        pytest.skip(f"no Python {version}")
    command = [found, "-B", "-m", "netdoctor", "preflight"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("netdoctor needs Python >= 3.10; ")
    assert f" is {version}: name another" in done.stderr


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A little one that belongs to others, with a virtual environment that knows its path."""
    folder = tmp_path / "a b" / "checkout"
    folder.mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / ".venv")], check=True, timeout=60)
    (site,) = (folder / ".venv/lib").glob("python*/site-packages")
    (site / "editable.pth").write_text(f"{folder}\n")
    (folder / ".venv/bin/tool").write_text(f"#!/bin/sh\n'''exec' \"{folder}/.venv/bin/python\" \"$0\" \"$@\"\n' '''\n")
    (folder / "module.py").write_text("import sys\nprint(__file__, sys.prefix, *sys.argv[1:], sep='\\n')\n")
    (folder / "build" / "other").mkdir(parents=True)
    (folder / ".git").mkdir()
    monkeypatch.setattr(copies, "ROOT", folder)
    return folder


@pytest.mark.slow
@needs_root
@pytest.mark.root
def test_the_copy_is_roots_and_means_itself(checkout: Path) -> None:
    for path in (checkout, checkout / "module.py", checkout / "build"):
        path.chmod(0o777)
        os.chown(path, 65534, 65534)
    assert trusted(str(checkout / "module.py"))
    with copies.placed() as target:
        assert copies.unfit(target) == ""
        assert [one for one in target.rglob("*") if not one.is_symlink() and trusted(str(one))] == []
        assert (target / "build" / "other").is_dir() and not (target / ".git").exists()
        python = target / ".venv/bin/python"
        done = subprocess.run([python, "-I", "-m", "module"], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.splitlines() == [f"{target}/module.py", f"{target}/.venv"]
        assert str(checkout) not in (target / ".venv/bin/tool").read_text()
    assert not target.parent.exists()


@pytest.mark.slow
@needs_root
@pytest.mark.root
def test_a_copy_is_made_while_others_work_there(checkout: Path) -> None:
    """Who imports a module writes its byte code into a file with another name first, which is gone a moment later."""
    over, made = threading.Event(), checkout / "build" / "other"

    def work() -> None:
        while not over.is_set():
            for number in range(200):
                (made / f"module.pyc.{number}").touch()
            for number in range(200):
                (made / f"module.pyc.{number}").unlink()

    worker = threading.Thread(target=work)
    worker.start()
    try:
        for _ in range(10):
            with copies.placed() as target:
                assert (target / "module.py").read_bytes() == (checkout / "module.py").read_bytes()
    finally:
        over.set()
        worker.join()


@pytest.mark.slow
@needs_root
@pytest.mark.root
def test_pytest_runs_in_the_copy_with_its_code_and_arguments(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of the checkout is the copy's; what is written elsewhere lands there."""
    written = checkout.parent / "written"
    (checkout / "pytest.py").write_text(
        "import os, pathlib, sys\n"
        f"pathlib.Path({str(written)!r}).write_text('\\n'.join([os.getcwd(), *sys.argv[1:], os.environ['NAMED']]))\n"
        "sys.exit(5)\n"
    )
    monkeypatch.setattr(sys, "executable", str(checkout / ".venv/bin/python"))
    monkeypatch.setenv("NAMED", f"{checkout}/build:{checkout}-2")
    assert copies.run(["-q", f"{checkout}/module.py::test", f"--junitxml={checkout}/out.xml"], checkout / "build") == 5
    here, *words, named = written.read_text().splitlines()
    target = Path(here).parent
    assert target != checkout and not target.exists()
    assert words == ["-q", f"{target}/module.py::test", f"--junitxml={checkout}/out.xml"]
    assert named == f"{target}/build:{checkout}-2"


@pytest.mark.slow
@needs_root
@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "mode", "owner", "why"),
    [
        ("plain", 0o755, 0, ""),
        ("open", 0o777, 0, "others can change it"),
        ("theirs", 0o755, 65534, "others can change it"),
        ("home", 0o700, 0, "is closed to other users"),
        ("a b", 0o755, 0, "its path needs quotes"),
    ],
)
def test_where_roots_tests_can_run(checkout: Path, name: str, mode: int, owner: int, why: str) -> None:
    with copies.placed() as target:
        folder = target / name
        folder.mkdir()
        folder.chmod(mode)
        os.chown(folder, owner, owner)
        inside = folder / "checkout"
        inside.mkdir(mode=0o755)
        said = copies.unfit(inside)
        assert why in said and bool(why) == bool(said)


@needs_root
@pytest.mark.root
def test_what_tests_mount_over_is_no_place() -> None:
    assert copies.unfit(Path("/tmp")) and copies.unfit(Path("/dev")) and copies.unfit(Path("/run"))


def test_what_is_needed_is_what_the_project_says() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    listed = re.search(r"(?m)^dependencies = \[(.*)\]$", text)
    assert listed
    imported = {"nvidia-ml-py": "pynvml", "pyyaml": "yaml"}
    named = re.findall(r'"([\w-]+)', listed[1])
    assert sorted(imported.get(name, name) for name in named) == sorted(NEEDED)

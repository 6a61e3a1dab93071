"""netdoctor.pyz as `make pyz` builds it, and the Pythons of this machine that it should run on."""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[3]
VERSIONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def build(target: Path) -> Path:
    """Build it there."""
    subprocess.run([sys.executable, str(ROOT / "tools/build_pyz.py"), str(target)], check=True, stdout=subprocess.DEVNULL)
    return target


@functools.cache
def built() -> Path:
    """One for all tests of this run, beside the other things that tests build."""
    (ROOT / "build").mkdir(exist_ok=True)
    return build(Path(tempfile.mkdtemp(prefix="pyz-", dir=ROOT / "build")) / "netdoctor.pyz")


def forget() -> None:
    """Remove what `built` made."""
    if built.cache_info().currsize:
        shutil.rmtree(built().parent)
        built.cache_clear()


@functools.cache
def interpreter(version: str) -> str | None:
    """A Python of this version: on PATH, of pyenv, or this one."""
    of_pyenv = sorted(str(p) for p in Path("~/.pyenv/versions").expanduser().glob(f"{version}.*/bin/python3"))
    for path in (shutil.which(f"python{version}"), *of_pyenv, sys.executable):
        if path is not None:
            say = [path, "-I", "-c", "import sys; print(sys.version)"]
            done = subprocess.run(say, capture_output=True, text=True, check=False)
            if done.returncode == 0 and re.match(rf"{re.escape(version)}\.", done.stdout):
                return path
    return None

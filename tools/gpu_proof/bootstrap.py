"""``make gpu-proof``: find or make a Python for netdoctor without any network, find the torch, and start the proof.

Standard library only, the syntax of Python 3.8: it runs in the Python that the caller has.  Options that are not known here go
to ``python -m tools.gpu_proof``.  Exit 2 with one line where something is missing.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, "build", "gpu-proof", "venv")
MODULES = ("typer", "psutil", "pyudev", "yaml", "pynvml", "pytest", "hypothesis")
HAS = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(n) for n in sys.argv[1:]) or sys.version_info < (3, 10))"


class MissingError(Exception):
    """Something that the caller must give."""


def requirements() -> list[str]:
    """netdoctor's own, from pyproject.toml, and what its tests are run with."""
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        found = re.search(r"^dependencies = (\[.*?\])$", file.read(), re.MULTILINE | re.DOTALL)
    if found is None:
        raise MissingError("pyproject.toml names no dependencies")
    return [*ast.literal_eval(found.group(1)), "pytest>=8", "hypothesis>=6"]


def has(python: str, *modules: str) -> bool:
    """Whether `python` is new enough and finds all of them."""
    try:
        done = subprocess.run([python, "-c", HAS, *modules], stderr=subprocess.DEVNULL, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def python_of_netdoctor(wheels: str) -> str:
    """One that has netdoctor's dependencies: the checkout's .venv, an earlier one of ours, the caller's, or a new one."""
    own = os.path.join(VENV, "bin", "python")
    for python in (os.path.join(ROOT, ".venv", "bin", "python"), own, sys.executable):
        if os.path.exists(python) and has(python, *MODULES):
            return python
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    if not wheels:
        needed = " ".join(f"'{one}'" for one in requirements())
        raise MissingError(
            f"no Python with netdoctor's dependencies; where there is a network: pip download -d wheels {needed}; "
            f"then here: make gpu-proof WHEELS=wheels (for Python {version})"
        )
    if not has(sys.executable):
        raise MissingError(f"netdoctor needs Python >= 3.10, this is {version}: give another with PYTHON=")
    say(f"making {os.path.relpath(VENV, ROOT)} from the wheels in {wheels}")
    call([sys.executable, "-m", "venv", "--without-pip", "--clear", VENV])
    site = os.path.join(VENV, "lib", "python" + version, "site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    call([*pip, "--no-index", "--find-links", os.path.abspath(wheels), "--target", site, *requirements()])
    with open(os.path.join(site, "netdoctor-checkout.pth"), "w") as file:
        file.write(ROOT + "\n")
    if not has(own, *MODULES):
        raise MissingError(f"the new environment lacks one of {', '.join(MODULES)}")
    return own


def python_of_torch(given: str, default: str) -> str:
    """The one that the caller named; else the first of the user's that has a torch; else netdoctor's own."""
    if given:
        return given if "/" not in given else os.path.abspath(given)
    finder = [sys.executable, os.path.join(ROOT, "tools", "find_torch.py")]
    found = subprocess.run(finder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return found.stdout.decode().strip() or default


def call(command: list[str]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines() or [""]
        raise MissingError(f"{' '.join(command[1:4])} ended with status {done.returncode}: {said[-1]}")


def say(text: str) -> None:
    sys.stderr.write(f"gpu-proof: {text}\n")
    sys.stderr.flush()


def main() -> int:  # noqa: RET503  (execv does not return)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--wheels", default="")
    parser.add_argument("--python", default="")
    given, rest = parser.parse_known_args()
    try:
        python = python_of_netdoctor(given.wheels)
        command = [python, "-m", "tools.gpu_proof", "--python", python_of_torch(given.python, python), *rest]
    except MissingError as error:
        say(str(error))
        return 2
    os.chdir(ROOT)
    os.execv(python, command)


if __name__ == "__main__":
    sys.exit(main())

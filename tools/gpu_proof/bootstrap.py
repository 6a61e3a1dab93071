"""``make gpu-proof``: find or make a Python for netdoctor without any network, find the torch, and start the proof.

Standard library only, the syntax of Python 3.8: it runs in the Python that the caller has.  Options that are not known here go
to ``python -m tools.gpu_proof``.  Exit 2 with one line where something is missing.
"""

import argparse
import ast
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, "build", "gpu-proof", "venv")
MODULES = ("typer", "psutil", "pyudev", "yaml", "pynvml", "pytest")
HAS = "import importlib.util as u, sys; sys.exit(not all(u.find_spec(n) for n in sys.argv[1:]) or sys.version_info < (3, 10))"


class MissingError(Exception):
    """Something that the caller must give."""


def requirements():
    """netdoctor's own, from pyproject.toml, and pytest."""
    with open(os.path.join(ROOT, "pyproject.toml")) as file:
        found = re.search(r"^dependencies = (\[.*?\])$", file.read(), re.MULTILINE | re.DOTALL)
    if found is None:
        raise MissingError("pyproject.toml names no dependencies")
    return [*ast.literal_eval(found.group(1)), "pytest>=8"]


def has(python, *modules):
    """Whether `python` is new enough and finds all of them."""
    try:
        return subprocess.run([python, "-c", HAS, *modules], stderr=subprocess.DEVNULL, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def python_of_netdoctor(wheels):
    """One that has netdoctor's dependencies: the checkout's .venv, an earlier one of ours, the caller's, or a new one."""
    own = os.path.join(VENV, "bin", "python")
    for python in (os.path.join(ROOT, ".venv", "bin", "python"), own, sys.executable):
        if os.path.exists(python) and has(python, *MODULES):
            return python
    needed = " ".join("'%s'" % one for one in requirements())
    version = "%d.%d" % sys.version_info[:2]
    if not wheels:
        raise MissingError(
            "no Python with netdoctor's dependencies; where there is a network: pip download -d wheels %s; "
            "then here: make gpu-proof WHEELS=wheels (for Python %s)" % (needed, version)
        )
    if sys.version_info < (3, 10):
        raise MissingError("netdoctor needs Python >= 3.10, this is %s: give another with PYTHON=" % version)
    say("making %s from the wheels in %s" % (os.path.relpath(VENV, ROOT), wheels))
    call([sys.executable, "-m", "venv", "--without-pip", "--clear", VENV])
    site = os.path.join(VENV, "lib", "python" + version, "site-packages")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    call([*pip, "--no-index", "--find-links", os.path.abspath(wheels), "--target", site, *requirements()])
    with open(os.path.join(site, "netdoctor-checkout.pth"), "w") as file:
        file.write(ROOT + "\n")
    if not has(own, *MODULES):
        raise MissingError("the new environment lacks one of %s" % ", ".join(MODULES))
    return own


def python_of_torch(given, default):
    """The one that the caller named; else the first of the user's that has a torch; else netdoctor's own."""
    if given:
        given = os.path.abspath(given)
        if not os.path.exists(given):
            raise MissingError("PYTHON=%s is not there" % given)
        return given
    found = subprocess.run(
        [sys.executable, os.path.join(ROOT, "tools", "find_torch.py")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    return found.stdout.decode().strip() or default


def call(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode:
        said = done.stdout.decode("utf-8", "replace").strip().splitlines()
        raise MissingError("%s ended with status %d: %s" % (" ".join(command[1:4]), done.returncode, said[-1] if said else ""))


def say(text):
    sys.stderr.write("gpu-proof: %s\n" % text)
    sys.stderr.flush()


def main():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--wheels", default="")
    parser.add_argument("--python", default="")
    given, rest = parser.parse_known_args()
    try:
        python = python_of_netdoctor(given.wheels)
        torch = python_of_torch(given.python, python)
    except MissingError as error:
        say(str(error))
        return 2
    os.chdir(ROOT)
    sys.stderr.flush()
    os.execv(python, [python, "-m", "tools.gpu_proof", "--python", torch, *rest])


if __name__ == "__main__":
    sys.exit(main())

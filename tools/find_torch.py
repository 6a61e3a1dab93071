"""Print the first Python of the user that has a torch, in the order netdoctor looks for the job's Python; exit 1 for none.

Needs nothing but the standard library, so that the Makefile can call it before anything is installed.
"""

import os
import shutil
import subprocess
import sys

HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


def candidates() -> "list[str]":
    found = [os.path.join(os.environ[n], "bin", "python") for n in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(n)]
    torchrun = shutil.which("torchrun")
    if torchrun:
        with open(torchrun, "rb") as script:
            first = script.readline(4096).decode("utf-8", "replace").strip()
        if first.startswith("#!"):
            found.append(first[2:].split()[0])
    python = shutil.which("python3")
    return found + ([python] if python else [])


def main() -> int:
    for python in candidates():
        try:
            done = subprocess.run([python, "-c", HAS_TORCH], capture_output=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        # A torch that an earlier `make` put into a .venv is not the user's.
        if done.returncode == 0 and not os.path.exists(os.path.join(os.path.dirname(python), "..", ".netdoctor-torch")):
            print(python)
            return 0
    return 1


sys.exit(main())

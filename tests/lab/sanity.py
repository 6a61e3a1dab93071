"""``python -m tests.lab sanity``: all of ansible-test's sanity tests, also the long ones that a test run leaves out."""

from __future__ import annotations

import os
import subprocess
import sys


def main() -> int:
    command = [sys.executable, "-m", "pytest", "-q", "tests/live/test_ansible.py", "-k", "sanity"]
    return subprocess.run(command, env={**os.environ, "NETDOCTOR_WHOLE_SANITY": "1"}, check=False).returncode

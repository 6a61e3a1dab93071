"""Probes on this machine with other files laid over /sys and /dev, in a mount namespace of their own."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[3]
_LOOK = """
import json, sys
from importlib import import_module
from netdoctor.host.base import RecordingHost
from netdoctor.host.live import LiveHost
from netdoctor.facts import registry as facts
from netdoctor.model import plain
host = LiveHost(trust=True)
seen = RecordingHost(host)
modules = [import_module("netdoctor.facts." + name) for name in sys.argv[1:]]
facts.prefetch(seen, facts.SOURCES)
print(json.dumps({m.__name__.rpartition(".")[2]: plain(m.probe(seen)) for m in modules}))
host.close()
"""


@functools.cache
def can_overlay() -> str:
    """Why overlays over /sys cannot be had here; "" where they can."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("unshare"):
        return "needs unshare (util-linux)"
    script = "mount -t tmpfs t /mnt && mkdir /mnt/fs && mount -t overlay o -o lowerdir=/mnt/fs:/sys /sys"
    tried = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, timeout=30, check=False)
    return f"no overlay over /sys: {tried.stderr.strip()}" if tried.returncode else ""


def probes(
    names: Iterable[str],
    *,
    sys_tree: pathlib.Path | None = None,
    dev_tree: pathlib.Path | None = None,
    setup: str = "",
    environment: Mapping[str, str] | None = None,
    wrap: str = "",
) -> dict[str, Any]:
    """Facts (as `model.plain`) by probe; `setup` are shell lines after the mounts, `wrap` stands before the interpreter."""
    if reason := can_overlay():
        pytest.skip(reason)
    lines = ["set -e", "mount --make-rprivate /"]
    for tree, where in ((sys_tree, "/sys"), (dev_tree, "/dev")):
        if tree is not None:
            lines.append(f"mount -t overlay over -o lowerdir={tree}:{where} {where}")
    lines += [setup, f'exec {wrap} "$@"']
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", "\n".join(lines), "sh", sys.executable, "-c", _LOOK, *names],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts

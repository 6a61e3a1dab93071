"""Every path and every fault of the fake machine on every libnccl, which are fetched first: build/fakegpu.json.

Then netdoctor's predictions against all of them, on 2,000 draws: build/differential.json.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
from typing import Any, Final

from tests.fakegpu import build, faults, namespace, paths, topology
from tests.fakegpu.differential import runner
from tests.support.machines import libnccl

DRAWS: Final = 2000
VERSIONS: Final = ("2.18.3", "2.20.5", "2.21.5", "2.23.4", "2.25.1", "2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.32.3")


def fetch() -> None:
    """The libnccl of all versions; what cannot be had is left out and said."""
    script = build.ROOT / "tests/support/machines/fetch_libnccl.sh"
    for version in VERSIONS:
        env = {**os.environ, "NCCL_VERSIONS": version, "PYTHON": sys.executable}
        if subprocess.run(["sh", str(script)], env=env, capture_output=True, timeout=600, check=False).returncode:
            print(f"fakegpu: libnccl {version} could not be fetched", file=sys.stderr)


def main() -> int:
    if why := namespace.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return 0
    fetch()
    rows: list[dict[str, Any]] = []
    for numbers in sorted(libnccl.libraries()):
        version = ".".join(map(str, numbers))
        for name, path in paths.PATHS.items():
            if path.since <= numbers:
                done = paths.run(path, version)
                fits = done.ok and bool(done.via) and all(map(path.fits, done.via))
                rows.append({"version": version, "path": name, "as told": fits, "via": done.via})
        for name, fault in faults.FAULTS.items():
            done = faults.run(fault, fault, version)
            rows.append({"version": version, "fault": name, "as told": bool(faults.said(done, fault))})
        bad = [row.get("path") or row.get("fault") for row in rows if row["version"] == version and not row["as told"]]
        print(f"fakegpu: NCCL {version}: {f'NOT as told: {bad}' if bad else 'as told'}", flush=True)
    newest = ".".join(map(str, max(libnccl.libraries())))
    for name in topology.names():
        differs = topology.compare(name, newest)
        rows.append({"version": newest, "machine": name, "as told": not differs, "differs": differs})
        print(f"fakegpu: topology of {name}: {differs or 'as told'}", flush=True)
    pathlib.Path("build/fakegpu.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return int(not all(row["as told"] for row in rows) or not differential())


def differential() -> bool:
    """Whether netdoctor's predictions are those of NCCL as often as is wanted."""
    if why := runner.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return True
    results = runner.run(DRAWS, "lab", runner.available(), tuple(runner.AREAS))
    runner.write(results)
    print(runner.table(results), flush=True)
    return runner.agreement(results) >= runner.WANTED

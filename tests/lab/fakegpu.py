"""Every path and every fault of the fake machine on every libnccl, which are fetched first: build/fakegpu.json.

Then what netdoctor says: of healthy machines (shapes.py), of every fault of rows.py and nodes.py, of every log (logs.py).
Then netdoctor's predictions against all of them, on 2,000 draws: build/differential.json.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any, Final

from tests.fakegpu import endtoend, faults, logs, namespace, nodes, paths, shapes, topology
from tests.fakegpu.differential import runner
from tests.support.machines import fetch, libnccl

DRAWS: Final = 2000
VERSIONS: Final = ("2.18.3", "2.20.5", "2.21.5", "2.23.4", "2.25.1", "2.27.5", "2.28.9", "2.29.7", "2.30.7", "2.32.3")


def main() -> int:
    if why := namespace.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return 0
    fetch.nccl(VERSIONS)
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
    versions = [".".join(map(str, one)) for one in sorted(libnccl.libraries())]
    called = shapes.walk(versions, list(shapes.SHAPES))
    missed = endtoend.main([]) + nodes.main([])
    scores = logs.walk(versions, list(faults.FAULTS))
    print(logs.table(scores), flush=True)
    bad = bool(called or missed) or not all(row["as told"] for row in rows) or not logs.good(scores)
    return int(not differential() or bad)


def differential() -> bool:
    """Whether netdoctor's predictions are those of NCCL as often as is wanted."""
    if why := runner.missing():
        print(f"fakegpu: {why}", file=sys.stderr)
        return True
    results = runner.run(DRAWS, "lab", runner.available(), tuple(runner.AREAS))
    runner.write(results)
    print(runner.table(results), flush=True)
    return runner.agreement(results) >= runner.WANTED

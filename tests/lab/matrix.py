"""The fault matrix: every fault on its machine, found or not, and what else changed; build/fault-matrix.json."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterable
from typing import Any, Final

from netdoctor.model import Finding
from tests.lab import fixtures
from tests.lab.faults import Fault, every

OUTPUT: Final = fixtures.ROOT / "build" / "fault-matrix.json"
Row = dict[str, Any]  # {fault, way, expected, found, disturbed, seconds}


@functools.cache
def _healthy(machine: str, runs: bool) -> dict[str, tuple[Finding, ...]]:
    return fixtures.findings(fixtures.facts_of(Fault("none", machine, (), {}, runs).before()))


def replay(fault: Fault, facts: dict[str, Any] | None = None) -> Row:
    """One row: the fault on the replayed machine; `facts` are those of the broken machine, where they were made already."""
    begin = time.perf_counter()
    before = _healthy(fault.machine, fault.runs)
    after = fixtures.findings(fixtures.facts_of(fault.after()) if facts is None else facts)
    check = fault.expect["check"]
    changed = {id for id in before if _statuses(before[id]) != _statuses(after[id])}
    return {
        "fault": fault.name,
        "way": "replay",
        "expected": {check: " ".join(v for k, v in fault.expect.items() if k != "check")},
        "found": any(fault.met_by(f) for f in after[check]) and not any(fault.met_by(f) for f in before[check]),
        "disturbed": sorted(_said(id, before[id], after[id]) for id in changed - {check} - set(fault.also)),
        "seconds": round(time.perf_counter() - begin, 3),
    }


def _statuses(findings: Iterable[Finding]) -> list[tuple[str, str]]:
    return sorted((f.subject, f.status.value) for f in findings)


def _said(check: str, before: Iterable[Finding], after: Iterable[Finding]) -> str:
    was, now = _statuses(before), _statuses(after)
    gone, new = [x for x in was if x not in now], [x for x in now if x not in was]
    return f"{check}: {gone} -> {new}"


def write(rows: Iterable[Row], way: str) -> None:
    """Put these rows into the file; rows of another way stay."""
    have = json.loads(OUTPUT.read_text(encoding="utf-8")) if OUTPUT.exists() else []
    OUTPUT.parent.mkdir(exist_ok=True)
    kept = [row for row in have if row.get("way") != way]
    OUTPUT.write_text(json.dumps([*kept, *rows], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def show(rows: Iterable[Row]) -> str:
    """Faults down, checks across: F the expected finding came, ! it did not, x another check was disturbed."""
    rows = list(rows)
    checks = sorted({spec.id for spec in fixtures.specs()})
    width = max(len(row["fault"]) for row in rows)
    lines = [" " * width + "  " + " ".join(f"{id.split('.')[-1][:9]:9}" for id in checks)]
    for row in rows:
        hit = dict.fromkeys(row["expected"], "F" if row["found"] else "!")
        hit |= {text.split(":")[0].split()[0]: "x" for text in row["disturbed"]}
        lines.append(f"{row['fault']:{width}}  " + " ".join(f"{hit.get(id, '.'):9}" for id in checks))
    missed, disturbed = [r for r in rows if not r["found"]], [r for r in rows if r["disturbed"]]
    lines.append(f"{len(rows)} faults: {len(rows) - len(missed)} found, {len(disturbed)} disturbed another check")
    lines += [f"  not found: {row['fault']}: {row['expected']}" for row in missed]
    lines += [f"  disturbed: {row['fault']}: {text}" for row in disturbed for text in row["disturbed"]]
    return "\n".join(lines)


def main() -> int:
    rows = [replay(fault) for fault in every()]
    write(rows, "replay")
    print(show(rows))
    return int(any(not row["found"] or row["disturbed"] for row in rows))

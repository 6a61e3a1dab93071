"""The fault matrix: every fault on its machine, found or not, and what else changed; build/fault-matrix.json."""

from __future__ import annotations

import functools
import json
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any, Final

from netdoctor import engine
from netdoctor.model import Finding
from netdoctor.plugins import needs
from tests.lab import fixtures
from tests.lab.faults import Fault, every

OUTPUT: Final = fixtures.ROOT / "build" / "fault-matrix.json"
Row = dict[str, Any]  # {fault, way, expected, found, disturbed, seconds}; found is None where it could not run, with `why`


Found = dict[str, tuple[Finding, ...]]


@functools.cache
def _healthy(machine: str, runs: bool, nodes: int | None) -> tuple[dict[str, Any], Found]:
    facts = fixtures.facts_of(Fault("none", machine, (), {}, runs, nodes=nodes).before())
    return facts, fixtures.findings(facts)


def _judged(facts: dict[str, Any], healthy: dict[str, Any], before: Found) -> Found:
    """What every check says; one whose facts are those of the healthy machine says what it said of that."""
    same = {name for name, fact in facts.items() if fact == healthy.get(name)}
    return {
        spec.id: before[spec.id] if {need.type.__name__ for need in needs(spec)} <= same else engine.judge(spec, facts)
        for spec in fixtures.specs()
    }


def replay(fault: Fault, facts: dict[str, Any] | None = None) -> Row:
    """One row: the fault on the replayed machine; `facts` are those of the broken machine, where they were made already."""
    begin = time.perf_counter()
    healthy, before = _healthy(fault.machine, fault.runs, fault.nodes)
    after = _judged(fixtures.facts_of(fault.after()) if facts is None else facts, healthy, before)
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


def summary(rows: Iterable[Row], begin: str = "") -> str:
    """How many were found, disturbed another check, or could not run (found is None), with the reasons."""
    rows = list(rows)
    away = [row for row in rows if row["found"] is None]
    found, disturbed = sum(row["found"] is True for row in rows), sum(bool(row["disturbed"]) for row in rows)
    reasons = sorted({row.get("why") or "no reason given" for row in away})
    text = f"{begin}{len(rows)} faults: found {found}, disturbed {disturbed}, not run {len(away)}"
    return f"{text} ({'; '.join(reasons)})" if away else text


def counts(rows: Iterable[Row]) -> Counter[str]:
    """Check -> how many rows expect something of it."""
    return Counter(id for row in rows for id in row["expected"])


def show(rows: Iterable[Row]) -> str:
    """Faults down, checks across: F the expected finding came, ! it did not, x another was disturbed, - it was not run."""
    rows = list(rows)
    checks = sorted({spec.id for spec in fixtures.specs()} | set(counts(rows)))
    width = max(len(_name(row)) for row in rows)
    lines = [" " * width + "  " + " ".join(f"{id.split('.')[-1][:9]:9}" for id in checks)]
    for row in rows:
        hit = dict.fromkeys(row["expected"], "-" if row["found"] is None else "F" if row["found"] else "!")
        hit |= {text.split(":")[0].split()[0]: "x" for text in row["disturbed"]}
        lines.append(f"{_name(row):{width}}  " + " ".join(f"{hit.get(id, '.'):9}" for id in checks).rstrip())
    for way in dict.fromkeys(row["way"] for row in rows):
        own = [row for row in rows if row["way"] == way]
        number = counts(own)
        lines.append(f"{'rows of ' + way:{width}}  " + " ".join(f"{number[id]:<9}" for id in checks).rstrip())
    lines += [summary((row for row in rows if row["way"] == way), f"{way}: ") for way in dict.fromkeys(r["way"] for r in rows)]
    lines += [f"  not found: {_name(row)}: {row['expected']}" for row in rows if row["found"] is False]
    lines += [f"  disturbed: {_name(row)}: {text}" for row in rows for text in row["disturbed"]]
    lines += [f"  not run: {_name(row)}: {row.get('why')}" for row in rows if row["found"] is None]
    return "\n".join(lines)


def _name(row: Row) -> str:
    return f"{row['way']}: {row['fault']}"


def everything() -> None:
    """Print the matrix of all ways, as it stands in the file."""
    if OUTPUT.exists():
        print(show(json.loads(OUTPUT.read_text(encoding="utf-8"))))


def main() -> int:
    """Replay every fault of fixtures/faults."""
    rows = [replay(fault) for fault in every()]
    write(rows, "replay")
    print(summary(rows, "replay: "))
    bad = [row for row in rows if not row["found"] or row["disturbed"]]
    if bad:
        print(show(bad))
    return int(bool(bad))

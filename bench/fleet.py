"""The fleet report over 10,000 node reports: time against reading and parsing the same files, memory, growth, and truth."""

from __future__ import annotations

import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator

from bench import Row, row

ROOT = pathlib.Path(__file__).parents[1]
NODES, FEWER, PLANTED = 10_000, 1_000, 200
TIMES = 3

# In a process of its own, so that memory is that of one fleet report and nothing else.
_REPORT = """
import json, resource, sys, time
begin = time.perf_counter()
from netdoctor.report import formats
from netdoctor.cli import fleet as command
from netdoctor.fleet.read import expected_names, read
from netdoctor.fleet.report import examine
fleet = examine(read([sys.argv[1]]), expected_names(sys.argv[2]))
report = command.report(fleet)
text, data = formats.render(report, "text"), formats.render(report, "json")
took = time.perf_counter() - begin
nodes = {n.name: [n.state, n.reasons] for n in fleet.nodes}
json.dump({"seconds": took, "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "nodes": nodes,
           "accounting": fleet.accounting, "bytes": len(text) + len(data)}, sys.stdout)
"""
_PARSE = """
import json, os, sys, time
begin = time.perf_counter()
for name in sorted(os.listdir(sys.argv[1])):
    with open(os.path.join(sys.argv[1], name), "rb") as file:
        json.loads(file.read())
json.dump(time.perf_counter() - begin, sys.stdout)
"""


def rows() -> Iterator[Row]:
    from tests.support.clusters import fleets

    with tempfile.TemporaryDirectory() as folder:
        planted = {count: fleets.Fleet() for count in (NODES, FEWER)}
        sizes: list[int] = []
        for count, into in planted.items():
            os.mkdir(f"{folder}/{count}")
            for one in fleets.fleet(count, PLANTED * count // NODES if count == NODES else 63, into=into):
                if one.text:
                    sizes.append(len(one.text))
                    pathlib.Path(folder, str(count), f"{one.name}.json").write_text(one.text)
            pathlib.Path(folder, f"{count}.txt").write_text("\n".join(into.expected))
        yield row("fleet.report_size", statistics.median(sizes), "B", None, ">= 30,000 B each", min(sizes) >= 30_000)
        yield from _figures(folder, planted)


def _figures(folder: str, planted: dict[int, object]) -> Iterator[Row]:
    from tests.support.clusters import fleets

    report: dict[int, list[float]] = {NODES: [], FEWER: []}
    parse: dict[int, list[float]] = {NODES: [], FEWER: []}
    memory: list[float] = []
    last = {}
    for _ in range(TIMES):
        for count in (NODES, FEWER):
            parse[count].append(float(_run(_PARSE, f"{folder}/{count}")))
            last = json.loads(_run(_REPORT, f"{folder}/{count}", f"{folder}/{count}.txt"))
            report[count].append(last["seconds"])
            if count == NODES:
                memory.append(last["mib"])
                full = last
    ours, theirs = statistics.median(report[NODES]), statistics.median(parse[NODES])
    yield row("fleet.text_and_json", ours, "s", theirs, "<= 3 x reading and json.loads", ours <= 3 * theirs)
    yield row("fleet.memory", max(memory), "MiB", None, "<= 500 MB", max(memory) * 1.048576 <= 500)
    each, fewer = ours / NODES * 1e3, statistics.median(report[FEWER]) / FEWER * 1e3
    yield row("fleet.per_node", each, "ms", fewer, "<= 1.25 x of 1,000 nodes (linear)", each <= 1.25 * fewer)
    into = planted[NODES]
    assert isinstance(into, fleets.Fleet)
    missed, false = _truth(full["nodes"], into)
    yield row("fleet.planted_found", PLANTED - missed, "", PLANTED, "all", missed == 0)
    yield row("fleet.false", false, "", None, "0 nodes wrongly blamed or excused", false == 0)
    have = full["accounting"]
    whole = have["given"] == sum(have[k] for k in ("good", "bad", "flaky", "unknown", "missing")) == NODES
    yield row("fleet.accounted", have["given"], "", NODES, "given = good + bad + flaky + unknown + missing", whole)


def _truth(nodes: dict[str, list[object]], into: object) -> tuple[int, int]:
    """(planted faults not found with their reason, other nodes in a state they should not be in)."""
    from tests.support.clusters import fleets

    assert isinstance(into, fleets.Fleet)
    missed = false = 0
    for name, (state, reasons) in nodes.items():
        one = into.planted.get(name)
        assert isinstance(reasons, list)
        right = state == (one.state if one else "good") and (one is None or any(one.says in r for r in reasons))
        if not right and one is not None and one.fault != "schema":
            missed += 1
        elif not right:
            false += 1
    return missed, false


def _run(code: str, *arguments: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout

"""Live faults that all nodes of a fleet share: looks at scenes of this machine, each as the reports of three nodes.

`netdoctor expect` writes down what the healthy scene has; the fleet's nodes agree with each other, and all of them lack it.

python -m tests.lab.live_fleet [WORD…]     a line a row
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from netdoctor.expectation.description import describe
from netdoctor.facts.job import Expected, expected_of
from netdoctor.fleet.extract import Extract
from netdoctor.fleet.nodes import Reading
from netdoctor.fleet.report import examine
from netdoctor.model import Status
from tests.lab.live import Place
from tests.support.machines.sysfs import GPU_BUSES
from tests.support.namespaces.dgx import Scene, machine

Doc = dict[str, Any]
NODES: Final = 3


@dataclass(frozen=True)
class Row:
    """What all nodes have, and the subject under which the fleet's report tells it of all of them."""

    fault: str
    scene: Scene
    subject: str
    base: Scene = field(default_factory=Scene)


def _gpu(number: int) -> str:
    return f"GPU 0000:{GPU_BUSES[number]:02x}:00.0"


FLEET_ROWS: Final = (
    Row("NVML shows seven GPUs", Scene(nvml="count=7", cuda="count=7"), "GPUs"),
    Row("a GPU is gone from PCI", Scene(tree={"gpus": 7}, nvml="count=7", cuda="count=7"), _gpu(7)),
    Row("another model of GPU", Scene(nvml="name=NVIDIA H100 PCIe"), _gpu(0)),
    Row("one GPU of another model", Scene(nvml="gpu3.name=NVIDIA H200"), _gpu(3)),
    Row("an older driver", Scene(nvml="driver=535.104.05"), "node"),
    Row("NVLinks by half", Scene(nvml="nvlinks=9"), _gpu(0)),
    Row("an NVLink down on one GPU", Scene(nvml="gpu5.nvlink7=0"), _gpu(5)),
    Row("a power limit on all GPUs", Scene(nvml="power_limit=350000"), _gpu(0)),
    Row("a power limit on one GPU", Scene(nvml="gpu2.power_limit=450000"), _gpu(2)),
    Row("seven rails", Scene(tree={"hcas": 7}), "node"),
    Row("older firmware on all HCAs", Scene(tree={"firmware": dict.fromkeys(range(8), "28.36.1010")}), "mlx5_0"),
    Row("older firmware on one HCA", Scene(tree={"firmware": {4: "28.36.1010"}}), "mlx5_4"),
    Row("all rails at half of their rate", Scene(tree={"rates": dict.fromkeys(range(8), 200)}), "node"),
    Row("a rail that is down", Scene(tree={"ports_down": {6}}), "node"),
    Row("no RDMA device", Scene(tree={"infiniband": False}), "node"),
)


def missed(row: Row, place: Place) -> str:
    """Why the fault was not found; "" where it was, and where the fleet without it has none."""
    healthy, faulty = (place.look(scene).report for scene in (row.base, row.scene))
    if not healthy or not faulty:
        return "no report"
    keys = describe(healthy["inventory"])
    if wrong := _told(_nodes(healthy), keys):
        return f"the healthy fleet is not: {wrong}"
    told = _told(_nodes(faulty), keys)
    return "" if told.get(row.subject) == NODES else f"of {row.subject} nothing is told of all nodes, but {told}"


def _nodes(report: Doc) -> list[Doc]:
    """One look as that of several nodes, each with GPUs and a name of its own."""
    docs = [copy.deepcopy(report) for _ in range(NODES)]
    for number, doc in enumerate(docs):
        doc["identity"] = {"host": f"n{number}", "kernel": doc["identity"].get("kernel")}
        gpus = doc["inventory"]["gpus"]
        for gpu in gpus if isinstance(gpus, list) else ():
            gpu["uuid"] = f"GPU-{number}-{gpu['index']}"
    return docs


def _told(docs: list[Doc], keys: Mapping[str, Any]) -> dict[str, int]:
    """Subject -> of how many nodes the report says that they lack what is expected of them."""
    plain = expected_of(keys)
    assert isinstance(plain, Expected)
    extract = Extract(plain)
    runs = [extract.run(doc, f"{doc['identity']['host']}.json", 1.0) for doc in docs]
    found = examine(Reading(runs, [], len(runs), 0, asked=True))
    fails = [one for check in found.checks if check.id == "fleet.expected" for one in check.findings]
    return {one.subject: len(one.nodes) for one in fails if one.status is Status.FAIL}


def main(words: list[str] | None = None) -> int:
    bad = 0
    with machine() as place:
        for row in FLEET_ROWS:
            if words and not any(word in row.fault for word in words):
                continue
            why = missed(row, place)
            bad += bool(why)
            print(f"{'MISSED' if why else 'found ':6} {row.fault}{': ' if why else ''}{why}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

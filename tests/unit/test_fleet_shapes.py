"""Nodes are compared with those of their shape: GPU model and fabric."""

from __future__ import annotations

import copy
import functools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from netdoctor.fleet.extract import Extract
from netdoctor.fleet.nodes import Reading
from netdoctor.fleet.report import Fleet, examine

HOSTS = pathlib.Path(__file__).parents[2] / "fixtures" / "hosts"
Doc = dict[str, Any]


@functools.cache
def _recorded(name: str) -> Doc:
    doc: Doc = json.loads((HOSTS / name / "report.json").read_text())
    return doc


def nodes(name: str, count: int) -> list[Doc]:
    """So many of one recorded machine, each with GPUs and a name of its own."""
    docs = [copy.deepcopy(_recorded(name)) for _ in range(count)]
    for number, doc in enumerate(docs):
        doc["identity"] = {"host": f"{name}-{number}", "kernel": doc["identity"].get("kernel")}
        doc["volatile"] = {"time": "2026-06-01T10:00:00Z", "seconds": {}, "runs": []}
        doc["runs"], doc["inventory"]["links"], doc["inventory"]["nccl_interface"] = [], [], None
        for gpu in doc["inventory"]["gpus"]:
            gpu["uuid"] = f"GPU-{name}-{number}-{gpu['index']}"
    return docs


def fleet(*docs: Sequence[Doc]) -> Fleet:
    extract = Extract()
    runs = [extract.run(doc, f"{doc['identity']['host']}.json", 1.0) for some in docs for doc in some]
    return examine(Reading(runs, [], len(runs), 0))


def kinds(found: Fleet) -> list[list[str]]:
    return sorted(sorted({n.name.rpartition("-")[0] for n in g.members}) for g in found.groups)


SHAPES = ("aws-p5", "azure-nd-h100-v5", "dgx-h100", "hgx-h100-roce")


@pytest.mark.parametrize("counts", [(8, 8, 8, 8), (8, 1, 2, 1), (1, 8, 1, 2), (2, 1, 8, 1), (1, 2, 1, 8), (1, 1, 1, 1)])
def test_eight_h100_on_four_fabrics_are_four_kinds(counts: tuple[int, ...]) -> None:
    found = fleet(*(nodes(name, count) for name, count in zip(SHAPES, counts, strict=True)))
    assert kinds(found) == [[name] for name in SHAPES]
    assert [row for row in found.drift if row.group in range(4)] == []


def _without_one(doc: Doc) -> None:
    del doc["inventory"]["nics"][3]


def _without_any(doc: Doc) -> None:
    doc["inventory"]["nics"] = []


def _as_ethernet(doc: Doc) -> None:
    for nic in doc["inventory"]["nics"]:
        for port in nic["ports"]:
            port["link_layer"] = "Ethernet"


def _other_cards(doc: Doc) -> None:
    for device in doc["inventory"]["pci"]:
        if device["kind"] == "nic":
            device["id"] = "15b3:101b"


def _no_driver(doc: Doc) -> None:
    doc["inventory"]["nics"] = {"unavailable": "denied", "detail": "x"}


@pytest.mark.parametrize("fault", [_without_one, _without_any, _as_ethernet, _other_cards, _no_driver])
def test_a_node_with_a_fault_stays_one_of_its_kind(fault: Callable[[Doc], None]) -> None:
    docs = nodes("dgx-h100", 8)
    fault(docs[2])
    found = fleet(docs, nodes("aws-p5", 4))
    assert kinds(found) == [["aws-p5"], ["dgx-h100"]]
    blamed = {n.name for n in found.nodes if n.blamed}
    assert blamed == (set() if fault in (_no_driver, _other_cards) else {"dgx-h100-2"})

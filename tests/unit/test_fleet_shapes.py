"""Nodes are compared with those of their shape: GPU model and fabric."""

from __future__ import annotations

import copy
import functools
import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from netdoctor.cli import fleet as command
from netdoctor.expectation.description import describe
from netdoctor.facts.job import Expected, expected_of
from netdoctor.fleet.extract import Extract
from netdoctor.fleet.nodes import Reading
from netdoctor.fleet.read import read
from netdoctor.fleet.report import Fleet, examine
from netdoctor.model import Status
from netdoctor.report import formats, html
from tests.support.clusters import fleets

pytestmark = pytest.mark.slow

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


def expecting(docs: list[Doc], keys: dict[str, Any]) -> Fleet:
    plain = expected_of(keys)
    assert isinstance(plain, Expected)
    extract = Extract(plain)
    runs = [extract.run(doc, f"{doc['identity']['host']}.json", 1.0) for doc in docs]
    return examine(Reading(runs, [], len(runs), 0, asked=True))


def _inventory(doc: Doc) -> Doc:
    found: Doc = doc["inventory"]
    return found


def _gpus_on_pci(doc: Doc) -> list[Doc]:
    return [one for one in _inventory(doc)["pci"] if one["kind"] == "gpu"]


def _link(doc: Doc, **changes: Any) -> None:
    links: list[Doc] = _inventory(doc)["links"]
    links[0].update(changes)


def _ports(doc: Doc) -> list[Doc]:
    return [port for nic in _inventory(doc)["nics"] for port in nic["ports"]]


def _functions(doc: Doc, virtual: int) -> None:
    """Of so many of its RDMA devices virtual functions alone are there."""
    nics: list[Doc] = _inventory(doc)["nics"]
    for place in range(virtual):
        nics[place : place + 1] = [{**nics[place], "name": f"v{place}", "virtual_function": True}]


# What is wrong with a node -> the subject under which it is told when all nodes have it.
SHARED: dict[str, tuple[Callable[[Doc], Any], str]] = {
    "seven GPUs": (lambda d: _inventory(d)["gpus"].pop(), "GPUs"),
    "seven rails": (lambda d: [_inventory(d)["nics"].pop() for _ in range(5)], "node"),
    "a GPU at another place": (lambda d: _gpus_on_pci(d)[0].update(address="0000:ff:00.0"), "GPU 0000:1b:00.0"),
    "an older driver": (lambda d: _inventory(d).update(driver="535.104.05"), "node"),
    "another model": (lambda d: [g.update(name="NVIDIA H100 PCIe") for g in _inventory(d)["gpus"]], "GPU 0000:1b:00.0"),
    "two NVLinks down": (lambda d: _inventory(d)["gpus"][2].update(nvlinks_up=16), "GPU 0000:52:00.0"),
    "all NVLinks down": (lambda d: [g.update(nvlinks_up=0) for g in _inventory(d)["gpus"]], "GPU 0000:1b:00.0"),
    "old firmware on all HCAs": (lambda d: [n.update(firmware="28.36.1010") for n in _inventory(d)["nics"]], "mlx5_0"),
    "old firmware on one HCA": (lambda d: _inventory(d)["nics"][0].update(firmware="28.36.1010"), "mlx5_0"),
    "all rails at half their rate": (lambda d: [p.update(rate_gbps=200.0) for p in _ports(d)], "node"),
    "a rail that is down": (lambda d: _ports(d)[0].update(state="DOWN"), "node"),
    "a smaller MTU": (lambda d: _link(d, mtu=1500), "ens1"),
    "no GPU": (lambda d: _inventory(d).update(gpus=[]), "node"),
    "no RDMA device": (lambda d: _inventory(d).update(nics=[]), "node"),
    "all GPUs gone from PCI": (
        lambda d: _inventory(d).update(pci=[p for p in _inventory(d)["pci"] if p["kind"] != "gpu"]),
        "GPU 0000:1b:00.0",
    ),
}


def _dgx(count: int) -> tuple[list[Doc], dict[str, Any]]:
    docs = nodes("dgx-h100", count)
    for doc in docs:
        _inventory(doc)["links"] = [{"name": "ens1", "kind": None, "physical": True, "up": True, "mtu": 9000, "addresses": []}]
    return docs, describe(_inventory(docs[0]))


@pytest.mark.parametrize("name", SHARED)
def test_a_fault_that_all_nodes_share_is_a_fault(name: str) -> None:
    docs, keys = _dgx(5)
    well = expecting(docs, keys)
    assert [c.status for c in well.checks if c.id == "fleet.expected"] == [Status.PASS]
    change, subject = SHARED[name]
    for doc in docs:
        change(doc)
    alike = {n for f in fleet(docs).checks for x in f.findings if x.status is Status.FAIL for n in x.nodes}
    assert not alike, "no difference between them"
    found = next(c for c in expecting(docs, keys).checks if c.id == "fleet.expected")
    shared = [x for x in found.findings if x.status is Status.FAIL and x.subject == subject]
    assert shared and len(shared[0].nodes) == 5


@pytest.mark.parametrize("name", SHARED)
def test_a_fault_of_one_node_is_told_of_it(name: str) -> None:
    docs, keys = _dgx(5)
    SHARED[name][0](docs[3])
    found = expecting(docs, keys)
    assert [n.name for n in found.nodes if n.state != "good"] == ["dgx-h100-3"]


def test_what_a_report_does_not_show_is_unknown() -> None:
    docs, keys = _dgx(3)
    _inventory(docs[1])["nics"] = {"unavailable": "denied", "detail": "x"}
    fleet = expecting(docs, keys)
    found = next(c for c in fleet.checks if c.id == "fleet.expected")
    assert {(x.status, x.nodes) for x in found.findings} == {
        (Status.UNKNOWN, ("dgx-h100-1",)),
        (Status.PASS, ()),
    }
    assert {n.name: n.state for n in fleet.nodes} == {"dgx-h100-0": "good", "dgx-h100-1": "unknown", "dgx-h100-2": "good"}
    assert (fleet.verdict.status, fleet.verdict.exit_code) == ("inconclusive", 4)
    assert "dgx-h100-1" not in command.lists(fleet)[0]["passing_nodes.txt"]


def test_what_is_as_the_site_expects_is_no_fault_in_metrics() -> None:
    docs, keys = _dgx(3)
    text = formats.render(command.report(expecting(docs, keys)), "prometheus")
    assert "netdoctor_fleet_faults{" not in text and 'netdoctor_fleet_nodes{state="good"} 3.0' in text
    _inventory(docs[1])["gpus"].pop()
    text = formats.render(command.report(expecting(docs, keys)), "prometheus")
    assert 'netdoctor_fleet_faults{cause="inventory"} 1.0' in text


def test_virtual_functions_are_no_cards_in_anybodys_report() -> None:
    docs, keys = _dgx(4)
    every = len(_inventory(docs[0])["nics"])
    del (counted := dict(keys))["hca_rate_gbps"]
    counted["hcas"] = every
    _functions(docs[1], 4)
    _functions(docs[3], every)  # a pod that was given nothing else
    found = next(c for c in expecting(docs, counted).checks if c.id == "fleet.expected")
    assert [(x.status, x.nodes) for x in found.findings] == [(Status.UNKNOWN, ("dgx-h100-1",)), (Status.PASS, ())]


def test_a_virtual_function_stands_in_for_no_port_that_is_down() -> None:
    docs, keys = _dgx(4)
    nics = _inventory(docs[2])["nics"]
    nics.append({**copy.deepcopy(nics[0]), "name": "v0", "virtual_function": True})
    nics[0]["ports"][0]["state"] = "DOWN"
    found = next(c for c in expecting(docs, keys).checks if c.id == "fleet.expected")
    assert ["rate" in x.message for x in found.findings if x.nodes == ("dgx-h100-2",)] == [True]


def test_what_is_expected_counts_no_virtual_functions() -> None:
    docs, keys = _dgx(1)
    _inventory(docs[0])["nics"] += [
        {**nic, "name": f"v{nic['name']}", "virtual_function": True} for nic in _inventory(docs[0])["nics"]
    ]
    assert describe(_inventory(docs[0])) == keys


def test_in_a_mixed_fleet_each_kind_is_compared_with_itself() -> None:
    """Another firmware on one HCA of one node of each kind: that node is blamed, and nobody for being of another kind."""
    every = [nodes(name, 5) for name in SHAPES]
    for docs in every:
        _inventory(docs[1])["nics"][0]["firmware"] = "28.36.1010"
    found = fleet(*every)
    assert kinds(found) == [[name] for name in SHAPES]
    assert {n.name for n in found.nodes if n.blamed} == {f"{name}-1" for name in SHAPES}


def test_the_map_has_each_node_once_by_its_name(tmp_path: pathlib.Path) -> None:
    """A row for each rack, in the order of numbers, each square with its state and a way to the node's page."""
    names = ["r1-n2", "r1-n10", "r2-n1.example", "r2-n03.example", "10.0.0.5", "10.0.0.12", "login"]
    for number, name in enumerate(names):
        doc = fleets.report(name, number=number + 1)
        (tmp_path / f"{number}.json").write_text(json.dumps(doc))
    page = html.render(command.report(examine(read([str(tmp_path)]), [*names, "r1-n3"])))
    part = page.partition('<div class="map">')[2].partition("<h2")[0]
    rows = [re.findall(r'title="([^"]*)"', row) for row in part.split('<span class="soft small">')[1:]]
    assert rows == [
        ["10.0.0.5: good", "10.0.0.12: good"],
        ["login: good"],
        ["r1-n2: good", "r1-n3: missing", "r1-n10: good"],
        ["r2-n1.example: good", "r2-n03.example: good"],
    ]
    data = json.loads(page.partition('<script type="application/json" id="data">')[2].partition("</script>")[0])
    for number, title in re.findall(r'href="#n(\d+)"[^>]*title="([^":]*): ', part):
        assert data["nodes"][int(number)]["name"] == title

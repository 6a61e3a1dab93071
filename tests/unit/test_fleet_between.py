"""What differs between nodes, and what is no difference: addresses, subnets, versions, kinds of nodes and figures."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from netdoctor.cli import fleet as command
from netdoctor.cluster.messages import read_ready, read_traits, trait_data
from netdoctor.cluster.observations import Cluster, Nodes
from netdoctor.compare.traits import Family, Marker, Trait, Traits, traits
from netdoctor.model import Status
from netdoctor.report import formats
from tests.support.clusters import fleets as reports
from tests.support.clusters.fleets import KINDS
from tests.support.facts import judged
from tests.unit.test_fleet_report import Doc, fleet_of, nodes, states

pytestmark = pytest.mark.slow

# Between nodes


def test_an_address_on_two_nodes() -> None:
    docs = nodes(6)
    docs[4]["inventory"]["links"][2]["addresses"] = docs[1]["inventory"]["links"][2]["addresses"]
    fleet = fleet_of(*docs)
    assert [n.name for n in fleet.nodes if n.state == "bad"] == ["n1", "n4"]
    assert judged.faults(fleet)[0].cause == "duplicate_address"


@pytest.mark.parametrize(
    "link",
    [
        {"name": "docker0", "kind": "bridge", "up": True, "mtu": 1500, "addresses": ["172.17.0.1/16"]},
        {"name": "kube-ipvs0", "kind": "dummy", "up": True, "mtu": 1500, "addresses": ["10.96.0.1/32"]},
        {"name": "tmfifo_net0", "kind": None, "up": True, "mtu": 1500, "addresses": ["192.168.100.1/30"]},
        {"name": "usb0", "kind": None, "up": True, "mtu": 1500, "addresses": ["169.254.3.1/24"]},
        {"name": "eth9", "kind": None, "up": True, "mtu": 1500, "addresses": ["10.9.0.1/24"]},
    ],
)
def test_addresses_that_every_node_has_are_no_conflict(link: Doc) -> None:
    docs = nodes(6)
    for doc in docs:
        doc["inventory"]["links"].append(link)
    assert not judged.faults(fleet_of(*docs))


@pytest.mark.parametrize(
    ("having", "of", "reported"), [(3, 5, True), (5, 5, False), (3, 3, False), (2, 2, True), (19, 20, False)]
)
def test_an_address_that_not_every_node_of_a_kind_has(having: int, of: int, reported: bool) -> None:
    docs = nodes(of) + [reports.report(f"l{i}", KINDS[3], i + 1) for i in range(40)]
    for doc in docs[:having]:
        doc["inventory"]["links"].append({"name": "eth9", "kind": None, "up": True, "mtu": 1500, "addresses": ["10.9.0.1/24"]})
    found = judged.faults(fleet_of(*docs))
    assert [(f.subject, len(f.nodes)) for f in found] == ([("10.9.0.1", having)] if reported else [])


def test_a_veth_that_nccl_takes_is_no_containers_own_affair() -> None:
    docs = nodes(4)
    for doc in docs[:2]:
        doc["inventory"]["links"][1] |= {"kind": "veth", "addresses": ["172.17.0.2/16"]}
        doc["inventory"]["nccl_interface"] |= {"address": "172.17.0.2"}
    assert "172.17.0.2" in [f.subject for f in judged.faults(fleet_of(*docs))]


def test_an_address_that_moves_between_nodes_is_no_conflict() -> None:
    docs = nodes(6)
    for doc in docs[:2]:
        doc["inventory"]["links"][1]["addresses"].append("10.1.9.9/32")
        # docker_gwbridge of each host gives out the same ones.
        doc["inventory"]["links"].append({"name": "eth1", "kind": "veth", "up": True, "addresses": ["172.18.0.3/16"]})
    assert not judged.faults(fleet_of(*docs))


def test_two_pods_of_one_machine_share_its_addresses() -> None:
    docs = nodes(4)
    twin = json.loads(json.dumps(docs[0]))
    twin["identity"]["host"] = "twin"
    assert not judged.faults(fleet_of(*docs, twin))


def test_racks_with_subnets_of_their_own_are_not_blamed() -> None:
    docs = nodes(8)
    for number, doc in enumerate(docs):
        ip = f"10.{number // 4}.0.{number + 1}"
        doc["inventory"]["nccl_interface"] |= {"address": ip, "prefix": 24}
        doc["inventory"]["links"][1]["addresses"] = [f"{ip}/24"]
    fleet = fleet_of(*docs)
    assert fleet.verdict.exit_code == 0
    assert [(f.status.value, f.nodes) for f in judged.faults(fleet)] == [("unknown", ())]


def test_two_nccl_versions_without_majority_blame_nobody() -> None:
    docs = nodes(4)
    for doc in docs[:2]:
        doc["inventory"]["nccl"]["version"] = "2.21.5"
    fleet = fleet_of(*docs)
    assert fleet.verdict.exit_code == 3 and fleet.accounting["good"] == 4
    (finding,) = [f for c in fleet.checks for f in c.findings if f.cause == "version_mismatch"]  # told once
    assert (finding.check, finding.subject, finding.nodes) == ("fleet.drift", "nccl", ())
    assert "pip show torch" in (finding.how or "")


def test_a_node_without_nccl_has_no_other_version() -> None:
    docs = nodes(4)
    for doc in docs[:2]:
        doc["inventory"]["nccl"]["version"] = {"unavailable": "absent", "detail": ""}
    fleet = fleet_of(*docs)
    assert fleet.verdict.exit_code == 0 and [row.majority for row in fleet.drift] == [None]


@pytest.mark.parametrize("index", ["3", "0x3", "03", "3 # RoCE v2"])  # NCCL reads each as 3
def test_a_fixed_gid_index_must_mean_the_same_everywhere(index: str) -> None:
    docs = [reports.report(f"n{i}", KINDS[1], i + 1) for i in range(6)]
    for doc in docs:
        doc["inventory"]["nccl_variables"]["NCCL_IB_GID_INDEX"] = index
    table = docs[0]["inventory"]["nics"][0]["ports"][0]["gids"]
    table[3]["index"] = 5  # an address came later: the entry moved
    fleet = fleet_of(*docs)
    assert [n.name for n in fleet.nodes if n.state == "bad"] == ["n0"]
    assert "index 3: nothing, most have RoCE v2 IPv4" in judged.faults(fleet)[0].message
    for doc in docs:
        del doc["inventory"]["nccl_variables"]["NCCL_IB_GID_INDEX"]
    assert fleet_of(*docs).verdict.exit_code == 0  # NCCL picks it by itself


def met(doc: Doc, rank: int, time: str = reports.TIME, count: int = 3, master: str = "n0:29400") -> Doc:
    doc["nodes"] = {"count": count, "rank": rank, "master": master, "launcher": None, "members": []}
    doc["volatile"]["time"] = time
    return doc


LATER, NEXT_DAY = "2026-03-01T08:01:00Z", "2026-03-02T08:00:00Z"


@pytest.mark.parametrize(
    ("second", "blamed"),
    [
        ({"rank": 1}, ["n1", "n2"]),
        ({"rank": 1, "time": LATER}, ["n1", "n2"]),
        ({"rank": 2}, None),
        ({"rank": 1, "time": NEXT_DAY}, None),  # of another run
        ({"rank": 1, "master": "n0:29401"}, None),
        ({"rank": 1, "count": 4}, None),
    ],
)
def test_two_nodes_with_one_rank(second: Doc, blamed: list[str] | None) -> None:
    docs = nodes(3)
    for number, doc in enumerate(docs[:2]):
        met(doc, number)
    met(docs[2], **second)
    found = judged.faults(fleet_of(*docs))
    assert [(f.check, list(f.nodes)) for f in found] == ([("fleet.node_rank", blamed)] if blamed else [])
    if blamed:
        reports.own_fail(docs[2])  # turned away, while n1 took part
        (finding,) = judged.faults(fleet_of(*docs))
        assert finding.nodes == ("n2",)
        assert "n1, n2 all say that they are node 1 of the 3 that meet at n0:29400" in finding.message


def test_a_master_that_tries_the_others_in_pairs() -> None:
    """Each of them is node 1 of two, within a minute, and each run was whole."""
    docs = nodes(5)
    for number, doc in enumerate(docs[1:], 1):
        met(doc, 1, f"2026-03-01T08:0{number}:00Z", 2)
    assert not judged.faults(fleet_of(*docs))
    reports.own_fail(docs[2])
    assert [f.nodes for f in judged.faults(fleet_of(*docs))] == [("n2",)]  # it may have been turned away


# Outliers


def test_a_figure_of_another_size_is_not_passed_over() -> None:
    """A node that got through smaller messages alone is compared with nobody, though its kind is."""
    docs = nodes(9)
    busbw = docs[4]["volatile"]["runs"][0]["busbw_gb_s"]
    del busbw[max(busbw, key=int)]
    reports.slow(docs[4], 0.3)
    (outliers,) = (c for c in fleet_of(*docs).checks if c.id == "fleet.outliers")
    assert outliers.status is Status.UNKNOWN
    assert [f.nodes for f in outliers.findings if f.status is Status.UNKNOWN] == [("n4",)]


def test_noise_is_no_outlier_and_a_fast_node_neither() -> None:
    docs = nodes(60)
    reports.slow(docs[0], 1.4)
    fleet = fleet_of(*docs)
    assert fleet.accounting["bad"] == 0


def test_noise_in_small_groups_blames_nobody() -> None:
    kinds = [
        replace(KINDS[0], gpu=f"GPU {size}-{n}", gpu_id=1000 * size + n, name=f"{size}-{n}")
        for size in range(3, 8)
        for n in range(6)
    ]
    docs = [
        reports.report(f"{k.name}-{i}", k, i + 1, random.Random(f"{k.name}{i}")) for k in kinds for i in range(int(k.name[0]))
    ]
    for doc in docs:
        doc["inventory"] = {k: v for k, v in doc["inventory"].items() if k not in ("links", "nccl_interface")}
    fleet = fleet_of(*docs)
    assert len(fleet.groups) == len(kinds) and fleet.accounting["bad"] == 0


def test_a_slow_node_among_three_is_found() -> None:
    docs = nodes(3)
    reports.slow(docs[0], 0.5)
    assert states(fleet_of(*docs)) == {"n0": "bad", "n1": "good", "n2": "good"}


def test_two_nodes_are_too_few_to_blame_one() -> None:
    docs = nodes(2)
    reports.slow(docs[0], 0.5)
    fleet = fleet_of(*docs)
    assert fleet.accounting["bad"] == 0 and not any(d.judged for d in fleet.distributions)


def test_figures_of_a_run_with_wrong_data_do_not_count() -> None:
    docs = nodes(5)
    docs[0]["runs"][0]["verified"] = False
    (busbw,) = [d for d in fleet_of(*docs).distributions if d.metric == "busbw"]
    assert len(busbw.values) == 4 and busbw.missing == 1


def test_what_fails_is_shown_before_what_is_unknown() -> None:
    """A text shows so many findings of a check: a missing node must not lie behind hundreds that could not tell."""
    docs = nodes(80)
    for doc in docs:
        doc["partial"] = f"interrupted on {doc['identity']['host']}"
    fleet = fleet_of(*docs, expected=[*(f"n{i}" for i in range(80)), "zz-gone"])
    assert "- FAIL [critical] zz-gone: no report was given" in formats.render(command.report(fleet), "text")


OWN = {"NCCL_SOCKET_IFNAME": "eth0", "GLOO_SOCKET_IFNAME": "eth0", "UCX_NET_DEVICES": "eth0"}
# The variables of three nodes, what the interface eth0 is called on the second, and which variables differ.
NCCL, GLOO = "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"
LOGS = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "NET", "NCCL_DEBUG_FILE": "/tmp/a"}
VARIABLES = {
    "other names": ((OWN, dict.fromkeys(OWN, "ens5"), OWN), "ens5", ()),
    "the beginning of a name": (({NCCL: "eth"}, {NCCL: "ens"}, {NCCL: "eth"}), "ens5", ()),
    "one names none": (({NCCL: "eth0"}, {NCCL: "ens5"}, {}), "ens5", (NCCL,)),
    "an interface of another node": (({NCCL: "eth0"}, {NCCL: "ens5"}, {NCCL: "ens5"}), "ens5", (NCCL,)),
    "another interface": (({GLOO: "eth0"}, {GLOO: "eth0"}, {GLOO: "mgmt0"}), "eth0", (GLOO,)),
    "logs": ((LOGS, {"NCCL_DEBUG": "WARN"}, {}), "eth0", ()),
    "a setting": (({"NCCL_ALGO": "Ring"}, {}, {}), "eth0", ("NCCL_ALGO",)),
}


@pytest.mark.parametrize(("given", "called", "differ"), VARIABLES.values(), ids=VARIABLES)
def test_variables_that_may_differ(given: tuple[dict[str, str], ...], called: str, differ: tuple[str, ...]) -> None:
    docs = nodes(3)
    for doc, variables in zip(docs, given, strict=True):
        doc["inventory"]["nccl_variables"] = variables
    docs[1]["inventory"]["links"][1]["name"] = called
    assert tuple(row.trait.name for row in fleet_of(*docs).drift if row.family is Family.ENV) == differ
    told = [trait_data(traits(doc["inventory"], "0")) for doc in docs]
    ready = {n: read_ready({"traits": one}) for n, one in enumerate(told)}
    live = Cluster(Nodes(3, 0, "m", 1), ready=ready).differences()
    assert tuple(row.trait.name for row in live if row.family is Family.ENV) == differ


def test_traits_are_read_back() -> None:
    given = Traits(
        {Trait(Family.ENV, "NCCL_ALGO"): Marker.EMPTY, Trait(Family.NCCL): "2.27.5"}, variables_read=True, links=("eth0",)
    )
    got = read_traits(trait_data(given))
    assert got == given and isinstance(got.values[Trait(Family.ENV, "NCCL_ALGO")], Marker)
    assert read_traits({"of a later version": "x", "nccl": "2.27.5", "kernel": "6.8"}) == Traits({Trait(Family.NCCL): "2.27.5"})
    with pytest.raises(ValueError, match="no such trait"):
        Trait.parse("of a later version")


@pytest.mark.parametrize(
    ("name", "one", "other", "same"),
    [
        ("NCCL_IB_HCA", "mlx5_1,mlx5_0:1", "mlx5_0:1,mlx5_1", True),
        ("NCCL_IB_HCA", "^=b,a", "^=a,b", True),
        ("NCCL_IB_HCA", "=b,a", "a,b", False),
        ("NCCL_IB_HCA", "b:1:0:1,a", "a,b:1:0:1", False),
        ("NCCL_SOCKET_IFNAME", "ib0,eth", "eth,ib0", True),
        ("GLOO_SOCKET_IFNAME", "ib0,eth0", "eth0,ib0", False),
    ],
)
def test_the_order_of_names_in_a_list_of_nccl(name: str, one: str, other: str, same: bool) -> None:
    had = [traits({"nccl_variables": {name: value}}, "") for value in (one, other)]
    assert (had[0] == had[1]) == same

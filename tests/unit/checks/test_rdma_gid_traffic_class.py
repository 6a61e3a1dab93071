"""rdma.gid: whether NCCL's packets go by a priority that the card pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.rdma_gid import gid
from netdoctor.compare.traits import Family, traits
from netdoctor.facts import dcb, rdma
from netdoctor.facts.environ import Environ
from netdoctor.facts.inventory import inventory
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Kind, Status, Unavailable
from tests.support import facts as f
from tests.support.facts import healthy

LOST = Unavailable(Kind.DENIED, "x")
EIGHTHS = tuple((dscp, dscp // 8) for dscp in range(64))
RAILS = [f"eth{n + 1}" for n in range(8)]
BOTH = (True, True)


def node(
    pfc: Any = 1 << 3, dscp: Any = None, tclass: Any = None, driver: str = "mlx5_core", trust: Any = None, **more: Any
) -> dict[type, Any]:
    """Eight rails of RoCE that all have this."""
    machine = dict(healthy.hgx_roce())
    net, devices = machine[Net], machine[Rdma].devices
    told = {"pfc": pfc, "dscp": EIGHTHS if dscp is None else None if dscp == () else dscp, "trust": trust, **more}
    links = tuple(replace(one, qos=replace(one.qos, **told)) if one.name in RAILS else one for one in net.links)
    cards = tuple(replace(one, traffic_class=tclass, driver=driver) for one in devices)
    return machine | {Net: replace(net, links=links), Rdma: replace(machine[Rdma], devices=cards)}


def judged(machine: dict[type, Any], setting: str | None) -> Finding | None:
    variables = {"NCCL_IB_TC": setting} if setting is not None else {}
    found = f.judge(gid, f.machine({**machine, Environ: f.environ(variables)}))
    assert sum(one.subject == "GIDs" and one.status is Status.PASS for one in found) == 1
    return next((one for one in found if one.subject == "traffic class"), None)


@pytest.mark.parametrize(
    ("machine", "setting", "status"),
    [
        pytest.param(node(), "106", Status.PASS, id="DSCP 26 goes by priority 3"),
        pytest.param(node(), "46", Status.FAIL, id="DSCP 11 does not"),
        pytest.param(node(), "0", Status.FAIL, id="set to 0"),
        pytest.param(node(), None, Status.SKIP, id="nobody set a class"),
        pytest.param(node(), "", Status.SKIP, id="nor by an empty variable"),
        pytest.param(node(tclass=106), None, Status.PASS, id="the driver's own class"),
        pytest.param(node(tclass=106), "46", Status.PASS, id="takes the place of NCCL's"),
        pytest.param(node(tclass=46), "106", Status.FAIL, id="also where it is the wrong one"),
        pytest.param(node(pfc=0), "106", None, id="nothing is paused: ECN alone"),
        pytest.param(node(pfc=None), "106", None, id="a driver that does not say"),
        pytest.param(node(dscp=()), "106", Status.FAIL, id="the card trusts the VLAN's priority"),
        pytest.param(node(dscp=()), "0", None, id="and nothing is asked of a DSCP"),
        pytest.param(node(dscp=()), None, None, id="or nobody set a class"),
        pytest.param(node(dscp=(), pfc=0), "106", None, id="nothing is paused, by whatever"),
        pytest.param(node(dscp=(), pfc=1), "106", None, id="priority 0 is paused here, and no tag says so"),
        pytest.param(node(dscp=(), trust="dscp"), "106", None, id="the driver's file says DSCP, and its table is not told"),
        pytest.param(node(trust="pcp"), "106", Status.FAIL, id="the driver's file says PCP"),
        pytest.param(node(trust=LOST), "106", Status.UNKNOWN, id="the file is not for this user"),
        pytest.param(node(pfc=0, ecn=(8, 8)), "106", Status.PASS, id="ECN in the place of pauses"),
        pytest.param(node(pfc=0, ecn=(0, 8)), "106", Status.FAIL, id="no sender is told"),
        pytest.param(node(pfc=0, ecn=(8, 0)), "106", Status.FAIL, id="what it is told it does not heed"),
        pytest.param(node(pfc=8, ecn=(0xF7, 0xFF)), "106", Status.FAIL, id="half of ECN beside pauses"),
        pytest.param(node(pfc=8, ecn=(0, 0)), "106", Status.PASS, id="pauses in the place of ECN"),
        pytest.param(node(pfc=0, ecn=(0, 0)), "106", Status.UNKNOWN, id="neither; it may pause all"),
        pytest.param(node(pfc=0, ecn=(0, 8)), None, None, id="half of ECN, and nobody set a class"),
        pytest.param(node(pfc=0, ecn=(1, 0xFF)), "106", Status.FAIL, id="ECN of another priority"),
        pytest.param(node(ecn=LOST), "106", Status.UNKNOWN, id="ECN was not read"),
        pytest.param(node(ecn=LOST), None, Status.SKIP, id="nor asked for"),
        pytest.param(node(dscp=((8, 1),)), "106", None, id="no priority for it"),
        pytest.param(node(driver="bnxt_en"), "46", None, id="another driver"),
        pytest.param(node(pfc=0xFF), "46", Status.PASS, id="all are paused"),
        pytest.param(node(pfc=0, pause=BOTH), "106", Status.PASS, id="the card pauses all of them"),
        pytest.param(node(pfc=0, pause=BOTH, dscp=()), "106", Status.PASS, id="by whatever priority"),
        pytest.param(node(pfc=0, pause=BOTH), None, None, id="and nobody set a class"),
        pytest.param(node(pfc=0, pause=(True, False)), "106", None, id="it heeds, and sends none"),
        pytest.param(node(pfc=0, pause=(False, True)), "106", None, id="it sends, and heeds none"),
        pytest.param(node(pfc=0, pause=BOTH, ecn=(0, 0)), "106", Status.PASS, id="it pauses all, without ECN"),
        pytest.param(node(pfc=0, pause=(False, False), ecn=(0, 0)), "106", Status.UNKNOWN, id="neither, nor all"),
        pytest.param(node(pfc=0, pause=(False, False), ecn=(8, 8)), "106", Status.PASS, id="it pauses none, and has ECN"),
        pytest.param(node(pfc=0, pause=BOTH, ecn=(0, 8)), "106", Status.FAIL, id="half of ECN beside pauses of all"),
        pytest.param(node(pause=BOTH), "46", Status.FAIL, id="a priority with pauses of its own leaves none for all"),
        pytest.param(node(pfc=0, pause=LOST), "106", Status.UNKNOWN, id="whether it pauses all was not read"),
        pytest.param(node(pfc=0, pause=LOST), None, None, id="and nobody asks"),
        pytest.param(node(pause=LOST), "106", Status.PASS, id="nor needed where priorities have pauses"),
        pytest.param(node(pfc=0, pause=LOST, ecn=(0, 0)), "106", Status.UNKNOWN, id="nor has it ECN"),
        pytest.param(node(pfc=LOST), "46", Status.UNKNOWN, id="what is paused was not read"),
        pytest.param(node(dscp=LOST), "46", Status.UNKNOWN, id="nor the table"),
        pytest.param(node(tclass=LOST), "46", Status.UNKNOWN, id="nor the driver's class"),
    ],
)
def test_what_is_said(machine: dict[type, Any], setting: str | None, status: Status | None) -> None:
    found = judged(machine, setting)
    assert (found and found.status) is status


def test_how_it_is_mended() -> None:
    found = judged(node(), "46")
    assert found and found.fix and found.cause == "env_misuse"
    assert "export NCCL_IB_TC=96   # DSCP 24" in found.fix.commands and "priority 3 alone is paused" in found.message
    unset = judged(node(), None)
    assert unset and "NCCL sends by priority 0" in unset.notes[0]


def test_a_service_level_is_the_priority_of_a_tag() -> None:
    variables = {"NCCL_IB_TC": "106", "NCCL_IB_SL": "3"}
    found = f.judge(gid, f.machine({**node(dscp=()), Environ: f.environ(variables)}))
    assert [one.status for one in found if one.subject == "traffic class"] == []
    wrong = judged(node(dscp=()), "106")
    assert wrong and wrong.fix and "mlnx_qos -i INTERFACE --trust dscp" in wrong.fix.commands
    assert "by priority 0 (NCCL_IB_SL), not by their DSCP" in wrong.message


def below(kind: str, *qos: dcb.Qos) -> dict[type, Any]:
    """The first rail's address is that of a bond or a VLAN, which has no DCB of its own."""
    machine = node()
    net = machine[Net]
    rail = next(one for one in net.links if one.name == "eth1")
    over = replace(rail, kind=kind, qos=dcb.Qos(), lower=100 if kind == "vlan" else None)
    held = {"controller": None if kind == "vlan" else rail.index}
    ports = [f.netlink_link(f"port{n}", 100 + n, driver="mlx5_core", qos=one, **held) for n, one in enumerate(qos)]
    links = tuple(over if one is rail else one for one in net.links)
    return machine | {Net: replace(net, links=(*links, *ports))}


GOOD, BAD = dcb.Qos(pfc=8, dscp=EIGHTHS), dcb.Qos(pfc=16, dscp=EIGHTHS)
TAG = dcb.Qos(pfc=8)


@pytest.mark.parametrize(
    ("machine", "status", "words"),
    [
        pytest.param(below("bond", GOOD, GOOD), Status.PASS, "on 8 rails goes by", id="a bond of two ports"),
        pytest.param(below("bond", GOOD, BAD), Status.FAIL, "mlx5_0 (port1): NCCL's packets have DSCP 26", id="one port"),
        pytest.param(below("bond", GOOD, dcb.Qos(pfc=0)), Status.FAIL, "another port of the bond does", id="one pauses none"),
        pytest.param(below("bond", GOOD, replace(GOOD, pfc=LOST)), Status.UNKNOWN, "could not be read", id="one was not read"),
        pytest.param(below("vlan", GOOD), Status.PASS, "on 8 rails goes by", id="a VLAN, and the card below it"),
        pytest.param(below("vlan", BAD), Status.FAIL, "mlx5_0 (port0)", id="which does not pause it"),
        pytest.param(below("vlan", TAG), Status.FAIL, "trusts the VLAN tag (PCP)", id="a tag of priority 0"),
    ],
)
def test_what_is_below_tells(machine: dict[type, Any], status: Status, words: str) -> None:
    found = judged(machine, "106")
    assert found and found.status is status and words in found.message


def test_a_port_that_pauses_nothing_is_mended_as_its_other_is() -> None:
    found = judged(below("bond", GOOD, dcb.Qos(pfc=0)), "106")
    assert found and found.fix and found.fix.summary.startswith("let this port and the switch's pause")
    whole = judged(below("bond", GOOD, BAD), "106")
    assert whole and whole.fix and whole.fix.summary.startswith("give NCCL the class")


def test_a_tag_tells_the_other_end_its_priority() -> None:
    variables = {"NCCL_IB_TC": "106", "NCCL_IB_SL": "3"}
    for machine, status in ((below("vlan", TAG), Status.PASS), (below("vlan", replace(TAG, pfc=4)), Status.FAIL)):
        found = f.judge(gid, f.machine({**machine, Environ: f.environ(variables)}))
        (one,) = (one for one in found if one.subject == "traffic class")
        assert one.status is status and ("on 8 rails goes by" in one.message) is (status is Status.PASS)


def test_words_of_pauses_of_all() -> None:
    for pause, words in (
        (None, ""),
        ((False, False), "nor are all priorities paused"),
        ((True, False), "; of all priorities it heeds pauses and sends none (ethtool -a)"),
        ((False, True), "; of all priorities it sends pauses and heeds none (ethtool -a)"),
        (LOST, "(ethtool -a) could not be read: "),
    ):
        found = judged(node(pfc=0, ecn=(0, 0), pause=pause), "106")
        assert found and words in found.message and ("ethtool -a" in found.message) is bool(words)
    found = judged(node(pfc=0, pause=BOTH), "106")
    assert found and found.message == "the cards of 8 rails pause whatever they send (ethtool -a)"


@pytest.mark.parametrize(
    ("pause", "said"),
    [
        (None, "its driver does not say whether it pauses"),
        ((False, False), "it pauses nothing"),
        ((True, False), "it heeds pauses and sends none"),
        ((False, True), "it sends pauses and heeds none"),
    ],
)
def test_one_that_pauses_nothing_beside_such(pause: Any, said: str) -> None:
    machine = node(pfc=0, pause=BOTH)
    net = machine[Net]
    links = tuple(replace(one, qos=replace(one.qos, pause=pause)) if one.name == "eth1" else one for one in net.links)
    found = judged(machine | {Net: replace(net, links=links)}, "106")
    assert found and found.status is Status.UNKNOWN and f"mlx5_0: {said} (ethtool -a), where" in found.message


@pytest.mark.parametrize(
    ("pfc", "pause", "said"),
    [
        (0, BOTH, True),
        (0, (True, False), False),
        (0, None, None),
        (0, LOST, LOST),
        (8, BOTH, None),  # each port sends either kind of frame
        (8, LOST, None),
        (None, BOTH, True),  # a driver that has no pauses of priorities
        (LOST, BOTH, LOST),
        (LOST, None, LOST),
    ],
)
def test_whether_a_card_pauses_all(pfc: Any, pause: Any, said: object) -> None:
    assert dcb.Qos(pfc=pfc, pause=pause).pauses_all == said


def test_ports_of_a_bond_in_words() -> None:
    one, other = dcb.Qos(pfc=8, trust="dscp", pause=BOTH), dcb.Qos(pfc=0, pause=(True, False), buffers=(0, 1) * 4)
    assert dcb.together([one, one])["pfc"] == "3" and dcb.together([one, other])["pfc"] == "3 / (none)"
    assert one.words() == {"pfc": "3", "trust": "dscp"}  # which has pauses of its own
    assert other.words() == {"pfc": "(none)", "pause": "rx on, tx off", "buffers": "0:0 1:1 2:0 3:1 4:0 5:1 6:0 7:1"}
    told = dcb.together([one, replace(other, trust=LOST)])
    assert told["trust"] == LOST and told["buffers"] is None and dcb.together([]) == {}


def test_which_half_of_ecn_is_missing() -> None:
    for ecn, point in (((0, 8), "roce_np"), ((8, 0), "roce_rp")):
        found = judged(node(pfc=0, ecn=ecn), "106")
        assert found and found.fix and found.fix.commands == (f"echo 1 > /sys/class/net/INTERFACE/ecn/{point}/enable/3",)


FOLDER = "/sys/class/net/eth1"


def files(**said: Any) -> dict[str, Any]:
    """As MLNX_OFED's mlx5 writes them, ECN on priority 3 alone."""
    enable = {f"file:{FOLDER}/ecn/{point}/enable/{n}": f"{int(n == 3)}\n" for point in ("roce_np", "roce_rp") for n in range(8)}
    usual = {f"file:{FOLDER}/qos/trust": "dscp\n", f"dir:{FOLDER}/ecn": ["roce_np", "roce_rp"], **enable}
    return usual | {f"file:{FOLDER}/{name}": value for name, value in said.items()}


@pytest.mark.parametrize(
    ("answers", "trust", "ecn"),
    [
        (files(), "dscp", (8, 8)),
        (files(**{"ecn/roce_np/enable/3": "0\n"}), "dscp", (0, 8)),
        (files(**{"qos/trust": "pcp\n"}), "pcp", (8, 8)),
        ({}, None, None),  # the driver of the kernel, or another recording
        (files(**{"qos/trust": LOST}), Kind.DENIED, (8, 8)),
        (files(**{"qos/trust": "both"}), Kind.UNSUPPORTED, (8, 8)),
        (files(**{"ecn/roce_rp/enable/7": LOST}), "dscp", Kind.DENIED),
        (files(**{"ecn/roce_rp/enable/7": "on"}), "dscp", Kind.UNSUPPORTED),
        (files(**{"ecn/roce_rp/enable/7": Unavailable(Kind.ABSENT)}), "dscp", Kind.ABSENT),
        ({f"dir:{FOLDER}/ecn": LOST}, None, Kind.DENIED),
    ],
)
def test_the_drivers_own_files(answers: dict[str, Any], trust: object, ecn: object) -> None:
    found = dcb.with_sysfs(ReplayHost(answers), dcb.Qos(), FOLDER)
    kinds = [one.kind if isinstance(one, Unavailable) else one for one in (found.trust, found.ecn)]
    assert kinds == [trust, ecn]


@pytest.mark.parametrize(
    ("told", "shares"),
    [
        (None, None),
        ({"classes": [0, 1, 2, 3, 4, 5, 6, 7], "kinds": [2] * 8, "shares": [12, 13, 12, 13, 12, 13, 12, 13]}, (12, 13) * 4),
        (
            {"classes": [0, 0, 0, 3, 0, 0, 6, 0], "kinds": [2, 0, 0, 2, 0, 0, 0, 0], "shares": [50, 0, 0, 50, 0, 0, 0, 0]},
            "3:50%",
        ),
        ({"classes": [9] * 8, "kinds": [2] * 8, "shares": [1] * 8}, Kind.MALFORMED),
        ({"classes": [0] * 7, "kinds": [2] * 8, "shares": [1] * 8}, Kind.MALFORMED),
        ([1], Kind.MALFORMED),
    ],
)
def test_shares_of_priorities(told: Any, shares: object) -> None:
    found = dcb.shares(told)
    if shares == "3:50%":
        text = dcb.Qos(shares=found).words()["ets"]
        assert "3:50%" in text and "6:strict" in text
    else:
        assert (found.kind if isinstance(found, Unavailable) else found) == shares


def test_rails_are_compared_in_words() -> None:
    table = tuple((dscp, 3 if dscp in (26, 27) else 0) for dscp in range(64))
    said = dcb.Qos(pfc=8, dscp=table, trust="dscp", ecn=(8, 0xFF)).words()
    ecn = "3 told of, 0 1 2 3 4 5 6 7 heeded"
    assert said == {"pfc": "3", "dscp": "0-25:0 26-27:3 28-63:0", "trust": "dscp", "ecn": ecn}
    assert dcb.Qos(pfc=LOST, ecn=(0, 0)).words() == {"ecn": "(none)"}


def test_the_fleet_compares_it() -> None:
    links = [
        {"name": name, "physical": True, "up": True, "qos": {"pfc": "3", "ecn": ecn}}
        for name, ecn in (("a", "3"), ("b", "(none)"))
    ]
    found = traits({"links": links}, "")
    assert {str(name): value for name, value in found.values.items() if name.family is Family.QOS} == {
        "qos a": "ecn 3; pfc 3",
        "qos b": "ecn (none); pfc 3",
    }
    net = dict(healthy.hgx_roce())[Net]
    link = replace(net.links[-1], qos=dcb.Qos(pfc=8, trust=LOST))
    assert inventory({"Net": replace(net, links=(link,))})["links"][0]["qos"] == {"pfc": "3"}


def test_of_another_environment_nothing_is_said() -> None:
    machine = f.machine({**node(), Environ: f.environ({"NCCL_IB_TC": "46"}), Vantage: f.outside()})
    assert [one.subject for one in f.judge(gid, machine) if one.subject == "traffic class"] == []


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("Global tclass=236\n", 236),
        ("", None),  # DOCA's driver, and no class of its own
        (Unavailable(Kind.ABSENT), None),
        (Unavailable(Kind.NOT_RECORDED), None),
        (Unavailable(Kind.DENIED), Kind.DENIED),
        ("Global tclass=106\nsrc_ip=1.2.3.4,tclass=32\n", Kind.UNSUPPORTED),
        ("106\n", Kind.UNSUPPORTED),
    ],
)
def test_the_drivers_own_class(answer: Any, wanted: object) -> None:
    found = rdma._traffic_class(ReplayHost({"file:/t": answer}), "/t")
    assert (found.kind if isinstance(found, Unavailable) else found) == wanted

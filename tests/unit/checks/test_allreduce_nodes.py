"""allreduce.nodes: what is made of what the nodes of a common run told each other."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from netdoctor import engine
from netdoctor.allreduce import verdict
from netdoctor.allreduce.interruption import Interruption, InterruptionKind
from netdoctor.causes.results import result
from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cli import setup
from netdoctor.cluster import combine, messages
from netdoctor.cluster.coordinator import SUBJECTS
from netdoctor.cluster.observations import Cluster, Endpoints, Fault, Gone, Miss, Nodes, OwnAddress, Ready
from netdoctor.config.load import Config
from netdoctor.facts.runs import AllReduce, CommonRun, Obstacle, Reason
from netdoctor.model import Finding, Severity, Status
from tests.support.facts import cluster

STALLED, FAILURE, LOST = InterruptionKind.STALLED, InterruptionKind.FAILURE, InterruptionKind.LOST


def findings(made: Cluster) -> tuple[Finding, ...]:
    return engine.judge(allreduce_nodes.__netdoctor_check__, {"Cluster": made})  # type: ignore[attr-defined]


# What is made of it


def heard(count: int = 4, **more: Any) -> Cluster:
    """Everybody came and told what it can run; nothing was tried or run yet."""
    if "reach" in more:
        more["reach"] = tried(more["reach"])
    return cluster(count, **{"reach": {}, "run": None, "first_ranks": {}, "addresses": {}, **more})


def tried(said: Mapping[int, Mapping[int, Any]]) -> dict[int, dict[int, Miss | None]]:
    """Who reaches whom, as nodes tell it to each other."""
    return {a: {b: messages.read_miss(why) for b, why in row.items()} for a, row in said.items()}


def fails(made: Cluster) -> dict[str, str | None]:
    return {f.subject: f.cause for f in findings(made) if f.status is Status.FAIL}


def part(*events: dict[str, Any], cut: Interruption | None = None) -> dict[str, Any]:
    told = json.loads(json.dumps(messages.result_data(events, cut, 100.0)))
    assert isinstance(told, dict)
    return told


def done(t: float = 1.0) -> list[dict[str, Any]]:
    """Events of a rank that did all of its work."""
    sizes = AllReduce("gloo", 1).sizes
    return [
        {"event": "forked", "rank": 0, "pid": 5, "t": t},
        *({"event": "phase", "rank": 0, "phase": p, "t": t} for p in ("import", "init", "first", "timed", "verify")),
        *(
            {"event": kind, "rank": 0, "bytes": s, "wrong": 0, "seconds": 0.1, "t": t}
            for s in sizes
            for kind in ("size", "verified")
        ),
        {"event": "phase", "rank": 0, "phase": "done", "t": t},
        {"event": "exit", "rank": 0, "status": 0, "t": t},
    ]


def common(made: Cluster, parts: dict[int, Any]) -> tuple[Cluster, CommonRun]:
    """What is known after the run of which the nodes told these parts."""
    plan = combine.experiments(made)
    assert not isinstance(plan, str)
    made = replace(made, first_ranks=combine.first_ranks(plan))
    made = combine.combine(made, plan, parts, verdict.not_started(plan[0], Reason(Obstacle.OTHER_NODE, "own")))
    assert made.run is not None
    return made, made.run


def test_node_0_on_another_host_than_the_master_s_is_asked_about() -> None:
    more = {"hosts": {0: "h0"}, "gone": {1: Gone("join", "late")}, "never_came": frozenset({1})}
    doubt, sure = (findings(heard(2, **more, master_elsewhere=there))[0] for there in (True, False))
    assert doubt.status is sure.status is Status.FAIL
    asked = "this host was told to be node 0, but h0 is no address of it: a wrong --node-rank, or --master?"
    assert doubt.message == f"{sure.message}; {asked}"


def test_ranks_of_all_nodes_are_one_run() -> None:
    made = heard(reach={a: {b: "" for b in range(4) if b != a} for a in range(4)})
    made, run = common(made, {n: part(*done()) for n in range(4)})
    assert (run.state, run.verified, run.experiment.ranks, [r.rank for r in run.ranks]) == ("finished", True, 4, [0, 1, 2, 3])
    assert set(run.busbw) == set(run.experiment.sizes)
    assert fails(made) == {}
    assert all(f.status is Status.PASS for f in findings(made))


@pytest.mark.parametrize(
    ("reach", "says"),
    [
        ({}, "nodes 0, 1, 2 tried no other node"),
        ({0: {1: "", 2: ""}, 1: {0: "", 2: ""}, 2: {}}, "node 2 tried no other node"),
        ({0: {1: ""}, 1: {0: ""}, 2: {0: ""}}, "no other node tried node 2"),
    ],
)
def test_a_node_that_no_way_was_tried_of_is_not_known(reach: Mapping[int, Mapping[int, Any]], says: str) -> None:
    """Its own all-reduce connected each pair once, in one direction."""
    made = cluster(3, reach=tried(reach))
    (doubt,) = (f for f in findings(made) if f.status is Status.UNKNOWN and says in f.message)
    results = (result("allreduce.nodes", "", "", findings(made)), result("allreduce.run", "", "", [Finding(Status.PASS, "x")]))
    decided = setup.decider(Config(), must=setup.OF_SEVERAL_NODES)(results, {})[1]
    assert doubt.subject == "ways" and (decided.status, decided.exit_code) == ("inconclusive", 4)
    assert not [f for f in findings(made) if f.status is Status.PASS and "ways between nodes were tried" in f.message]


def test_of_one_node_its_gpus_are_known() -> None:
    made = heard(1, ready={0: Ready(2, "nccl")})
    plan = combine.experiments(made)
    assert not isinstance(plan, str)
    made = replace(made, first_ranks=combine.first_ranks(plan))
    own = verdict.not_started(plan[0], Reason(Obstacle.OTHER_NODE, "own"))
    run = combine.combine(made, plan, {0: part(*done())}, own).run
    assert run is not None and run.experiment.gpus == (0, 1)


def test_a_node_without_a_data_comparison_makes_all_unknown() -> None:
    events = [e for e in done() if e["event"] != "verified"]
    assert common(heard(), {**{n: part(*done()) for n in range(3)}, 3: part(*events)})[1].verified is None


BEGUN = done()[:5]
CRY = {"event": "error", "rank": 0, "error": "Connection closed by peer [10.0.0.3]", "t": 1.9}
CRIES = part(*BEGUN, CRY)
KILLED = {"event": "exit", "rank": 0, "status": -9, "t": 2.0}
OURS = Interruption(FAILURE, 2.3, text="another node ended the run")
BEHIND = {n: Interruption(STALLED if n == 1 else FAILURE, 9.0, 4.0, (3 if n == 2 else 4,), (3,)) for n in range(4)}
ENDED = {
    0: None,
    1: Interruption(STALLED, 9.0, 4.0, (4,), (3,)),
    2: Interruption(FAILURE, 9.6, 0.0, (4,), (3,), (0,), text="another node ended the run"),
    3: Interruption(FAILURE, 9.6, 0.0, (4,), (3,), text="another node ended the run"),
}
STOPPED = {n: Interruption(STALLED if n == 1 else FAILURE, 9.0, 4.0, entered=(4,), left=(3,)) for n in (1, 3)} | {
    0: Interruption(FAILURE, 9.0, 4.0, entered=(3,), left=(2,)),
    2: Interruption(FAILURE, 9.0, 4.0, entered=(4,), left=(3,), stopped=(0,)),
}
LATE = {**CRY, "t": 9.1}
# What nodes 0 to 3 tell, and node 2 is to blame: how the run ended, words of the reason, the cause ("": allreduce.run says it)
BLAMED: dict[str, tuple[list[dict[str, Any]], str, str, str]] = {
    "killed, and others cry": (
        [CRIES, CRIES, part(*BEGUN, KILLED), CRIES],
        "failed",
        "rank 2 (h2) was ended by SIGKILL",
        "rank_died",
    ),
    "killed after another was cut": (
        [part(*BEGUN, {**KILLED, "t": 2.4}, cut=OURS), CRIES, part(*BEGUN, {**KILLED, "t": 2.5}), CRIES],
        "failed",
        "",
        "rank_died",
    ),
    "stopped, and another cries after the end": (
        [part(*BEGUN, *[LATE][n:], cut=cut) for n, cut in ENDED.items()],
        "hung",
        "rank 2 (h2)",
        "hang",
    ),
    "its ranks were lost": (
        [
            CRIES,
            CRIES,
            part(*BEGUN, cut=Interruption(LOST, 2.2, text="the process that forks them was ended by SIGKILL")),
            CRIES,
        ],
        "failed",
        "SIGKILL",
        "",
    ),
    "behind the others": ([part(*BEGUN, cut=BEHIND[n]) for n in range(4)], "hung", "rank 2 (h2)", "hang"),
    "stopped, and its victim is behind": (
        [part(*BEGUN, cut=STOPPED[n]) for n in range(4)],
        "hung",
        "rank 2 (h2) is stopped",
        "hang",
    ),
}


@pytest.mark.parametrize(("parts", "state", "words", "cause"), BLAMED.values(), ids=BLAMED)
def test_who_is_blamed(parts: list[dict[str, Any]], state: str, words: str, cause: str) -> None:
    made, run = common(heard(), dict(enumerate(parts)))
    assert (run.state, run.blamed) == (state, (2,))
    assert words in run.reason
    assert fails(made) == ({"h2": cause} if cause else {})


def test_a_node_that_went_away_is_blamed_whatever_the_others_say() -> None:
    made = heard()
    cry = {**CRY, "error": "ValueError: of my own"}
    plan = combine.experiments(made)
    assert not isinstance(plan, str)
    made = replace(made, first_ranks=combine.first_ranks(plan), gone={3: Gone("result", "its connection was closed")})
    own = verdict.not_started(plan[0], Reason(Obstacle.OTHER_NODE, "own"))
    made = combine.combine(made, plan, {n: part(*done()[:5], cry) for n in range(3)}, own)
    assert made.run is not None and (made.run.state, made.run.blamed) == ("failed", (3,))
    assert fails(made) == {"h3": "missing_node"}


def test_versions_and_variables_that_differ() -> None:
    said: list[dict[str, str]] = [{"env": "read", "torch": "2.9", "nccl": "2.28.9"} for _ in range(4)]
    said[1]["nccl"], said[2]["env NCCL_ALGO"] = "2.27.3", "Tree"
    made = heard(ready={n: messages.read_ready({"traits": one}) for n, one in enumerate(said)})
    assert fails(made) == {"h1, NCCL": "version_mismatch", "h2, variable NCCL_ALGO": "drift"}
    given = ({"torch": "2.9"}, {"torch": "2.8", "env NCCL_ALGO": "Tree"})
    two = heard(2, ready={n: messages.read_ready({"traits": one}) for n, one in enumerate(given)})
    assert fails(two) == {"nodes, torch": "version_mismatch"}  # node 0 did not tell its variables: no difference


def test_the_master_that_is_not_to_be_had() -> None:
    made = Cluster(Nodes(3, 1, "h0", 29400), {1: "h1"}, master=(Fault.TIMED_OUT, "connections to it time out"))
    found = {f.subject: f.status for f in findings(made)}
    assert found == {"node 0": Status.FAIL, "node 2": Status.UNKNOWN}
    made = replace(made, master=(Fault.NO_SUCH_HOST, "its name is not known"))
    (named,) = [one for one in allreduce_nodes(made) if one.status is Status.FAIL]
    assert (named.how or "").startswith("getent hosts h0: ") and "nc -vz" not in (named.how or "")
    made = replace(made, master=(Fault.NO_LOCAL_PORT, "no local port can be listened on: Address already in use"))
    assert fails(made) == {"h1": "bootstrap_ports"}
    made = replace(made, master=(Fault.OWN_ADDRESS, "10.0.0.1 is an address of this node, too: it reaches itself"))
    assert fails(made) == {"h1": "duplicate_address"}


def test_what_nodes_cannot_run_is_no_pass() -> None:
    made = heard()
    made = replace(made, ready={**made.ready, 2: Ready(0, cannot="no torch")})
    assert combine.experiments(made) == "node 2 (h2): no torch"
    assert all(f.status is Status.UNKNOWN for f in findings(made))


@pytest.mark.parametrize(
    "said",
    [
        None,
        [],
        "x",
        7,
        {"9": {}},
        {"1": None},
        {"1": {"host": "\x1b[2Jh" + os.urandom(4).hex(), "address": 5}},
        {"1": {"links": [[1], ["\x1bx", "10.0.0.1", 24, 9]], "gloo": ["x"], "takes": {"gloo": 7}}},
    ],
)
def test_rubbish_from_other_nodes(said: Any) -> None:
    made = Cluster(Nodes(2, 0, "h0", 1))
    for subject in SUBJECTS:
        made, _ = messages.take(made, subject, {"data": said, "gone": said, "refused": said})
    text = json.dumps(made.section()) + str(findings(made))
    assert "\\u001b" not in text and "\x1b" not in text
    assert isinstance(combine.experiments(made), str)
    assert messages.read_events([{"rank": 0, "event": "phase", "phase": ["x"]}, None, {"rank": 5}], 0, 1) == [
        {"event": "phase", "rank": 0}
    ]


# What their places and their tries show


def placed(*given: tuple[str, str, str, int]) -> dict[int, Endpoints]:
    """(what Gloo takes, its address, the own address in 10.0.0.0/24, its MTU) of each node."""
    return {
        n: messages.read_endpoints(
            json.loads(json.dumps({"space": f"s{n}", "gloo": [name, ip], "links": [["eth0", own, 24, mtu]], "own": [own]}))
        )
        for n, (name, ip, own, mtu) in enumerate(given)
    }


def usual(node: int, mtu: int = 1500) -> tuple[str, str, str, int]:
    return "eth0", f"10.0.0.{node}", f"10.0.0.{node}", mtu


REACHED = {a: {b: "" for b in range(3) if b != a} for a in range(3)}


def test_a_node_that_listens_where_nobody_comes_is_named() -> None:
    made = heard(3, reach=REACHED, endpoints=placed(usual(0), usual(1), ("eth1", "192.168.7.2", "10.0.0.2", 1500)))
    told = {n: {"2": "", "takes": {"gloo": {str(1 - int(n)): "", "2": "refused"}}} for n in ("0", "1")}
    made, _ = messages.take(made, "reach", {"data": told})
    assert fails(made) == {"h2": "socket_ifname"}
    cut = Interruption(STALLED, 9.0, 4.0, (0,), (0,))
    made, run = common(made, {n: part(*done()[:3], cut=cut) for n in range(3)})
    assert (run.told_cause, run.blamed) == ("socket_ifname", (2,))
    assert "h2): Gloo listens on 192.168.7.2 (eth1), where nodes 0, 1 cannot reach it: refused" in run.reason
    assert fails(made) == {"h2": "socket_ifname"}


def test_without_its_name_gloo_is_on_the_loopback() -> None:
    """Where the ranks met all the same, a name server answered them."""
    lost = ("", "127.0.0.1", "10.0.0.2", 1500)
    made = heard(3, reach=REACHED, endpoints=placed(usual(0), usual(1), lost))
    made = replace(made, listen_reach={"gloo": tried({0: {1: "", 2: "a loopback's address"}, 1: {2: "a loopback's address"}})})
    cry = {"event": "error", "rank": 0, "error": "RuntimeError: Gloo connectFullMesh failed with Connection refused", "t": 1.9}
    failed, run = common(made, {0: part(*done()[:3], cry), 1: part(*done()[:3]), 2: part(*done()[:3])})
    assert (run.told_cause, run.blamed) == ("socket_ifname", (2,))
    assert "h2): Gloo listens on 127.0.0.1 (its own name does not resolve there), where nodes 0, 1 cannot" in run.reason
    assert fails(failed) == {"h2": "socket_ifname"}
    assert fails(common(made, {n: part(*done()) for n in range(3)})[0]) == {}


def test_another_address_family_is_not_blamed_on_who_says_so() -> None:
    made = heard(3, reach=REACHED, endpoints=placed(usual(0), usual(1), ("eth1", "fe80::1", "10.0.0.2", 1500)))
    made = replace(made, listen_reach={"gloo": tried({0: {1: "", 2: "failed"}, 1: {0: "", 2: "failed"}})})
    cry = {"event": "error", "rank": 0, "error": "RuntimeError: ss1.ss_family == ss2.ss_family. 2 vs 10", "t": 1.9}
    made, run = common(made, {0: part(*done()[:3]), 1: part(*done()[:3], cry), 2: part(*done()[:3])})
    assert (run.state, run.blamed) == ("failed", (2,))


def test_an_unused_address_behind_a_firewall_is_no_fault() -> None:
    shut = {**REACHED, 0: {1: "", 2: "timed out"}, 1: {0: "", 2: "timed out"}}
    made = heard(3, reach=shut, endpoints=placed(usual(0), usual(1), usual(2)))
    made = replace(made, listen_reach={"gloo": tried({0: {2: "timed out"}, 1: {2: "timed out"}})})
    assert fails(made) == {"h2": "firewall_connect"}


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ({(0, 2), (1, 2), (2, 0), (2, 1)}, {"h2": "mtu"}),
        ({(0, 2), (1, 2)}, {"h2": "mtu"}),
        ({(2, 0), (2, 1)}, {"h2": "mtu"}),
        ({(0, 1)}, {"h0 to h1": "mtu"}),
    ],
)
def test_a_path_that_loses_large_segments_is_named(lost: set[tuple[int, int]], expected: dict[str, str]) -> None:
    why = ["loses segments of", 1448]
    made = heard(3, reach={a: {b: why if (a, b) in lost else "" for b in range(3) if b != a} for a in range(3)})
    assert fails(made) == expected
    cut = Interruption(STALLED, 9.0, 4.0, (52,), (51,))
    made, run = common(made, {n: part(*done()[:5], cut=cut) for n in range(3)})
    assert run.told_cause == "mtu" and "segments of 1448 bytes are lost" in run.reason
    made, _ = common(made, {n: part(*done()) for n in range(3)})  # it went all the same
    found = [f for f in findings(made) if f.status is Status.FAIL]
    assert {f.severity for f in found} == {Severity.CRITICAL}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ((usual(0), usual(1), usual(2)), {}),
        ((usual(0), usual(1, 9000), usual(2)), {"h1, MTU": "mtu"}),
        ((usual(0), usual(1, 9000)), {"nodes, MTU in 10.0.0.0/24": "mtu"}),
        ((usual(0), usual(1), usual(1)), {"h1, 10.0.0.1": "duplicate_address", "h2, 10.0.0.1": "duplicate_address"}),
    ],
)
def test_what_addresses_show(given: tuple[tuple[str, str, str, int], ...], expected: dict[str, str]) -> None:
    made = heard(len(given), endpoints=placed(*given), addresses={n: one[2] for n, one in enumerate(given)})
    twice = len(given) > 2 and given[1] == given[2]
    made = replace(made, reach=tried({0: {n: "timed out" if twice and n == 2 else "" for n in range(1, len(given))}}))
    assert fails(made) == expected  # who answers at a shared address depends on chance
    # Two processes of one network namespace have the same addresses; another network's MTU is nobody's business here.
    made = replace(made, reach={}, endpoints={n: replace(one, netns="one") for n, one in made.endpoints.items()})
    assert {k: v for k, v in fails(made).items() if v == "duplicate_address"} == {}
    made = replace(made, addresses={n: f"172.16.0.{n}" for n in range(len(given))})
    assert fails(made) == {}


@pytest.mark.parametrize(
    ("own", "count", "expected"),
    [
        (True, 2, True),
        (True, 4, True),
        (True, 5, False),  # on every node: a BMC's host link
        (False, 2, False),  # docker0
    ],
)
def test_an_address_of_two_hosts_outside_of_the_meeting(own: bool, count: int, expected: bool) -> None:
    places = placed(*(usual(n) for n in range(5)))
    extra = OwnAddress("ib0", "10.7.0.1", 16, 2044, own)
    places |= {n: replace(places[n], addresses=(*places[n].addresses, extra)) for n in range(count)}
    made = heard(5, reach={0: {1: "timed out"}}, endpoints=places, addresses={n: f"10.0.0.{n}" for n in range(5)})
    found = fails(made)
    assert {k: v for k, v in found.items() if v == "duplicate_address"} == (
        {f"h{n}, 10.7.0.1": "duplicate_address" for n in range(count)} if expected else {}
    )
    assert "firewall_connect" in found.values()  # they reached each other by other addresses: that tells as before

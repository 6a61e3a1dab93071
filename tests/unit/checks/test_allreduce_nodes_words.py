"""allreduce.nodes: the words, and what stands beside them, of every state of a meeting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from netdoctor import policy
from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.cluster import messages
from netdoctor.cluster.observations import Cluster, Endpoints, Fault, Flow, Gone, Nodes, Proof, Ready, Refused
from netdoctor.facts.runs import AllReduce, Baseline, CommonRun, RankResult, Run, State
from netdoctor.model import Kind, Unavailable, plain
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.snapshot import Snapshot, dumps, loads
from tests.support.facts import baseline, cluster, common_run
from tests.unit.checks.test_allreduce_nodes import REACHED, findings, heard, placed, tried, usual
from tests.unit.checks.test_allreduce_nodes_flows import GB, carried_by, ring

# The words, and what stands beside them

REFUSED = {0: {1: "", 2: "refused"}, 1: {0: "", 2: "refused"}, 2: {0: "", 1: ""}}
LOSING = {a: {b: ["loses segments of", 1448] if 1 in (a, b) else "" for b in range(3) if b != a} for a in range(3)}
ALONE = {a: {b: "timed out" if a == 1 else "" for b in range(3) if b != a} for a in range(3)}
ONE_WAY = {0: {1: "", 2: "no route"}, 1: {0: "", 2: ""}, 2: {0: "", 1: ""}}
STALLING = {0: {1: "", 2: Fault.STALLS.value}, 1: {0: "", 2: ""}, 2: {0: "", 1: ""}}


def failed(**more: Any) -> CommonRun:
    ranks = tuple(RankResult(n, "first" if n == 1 else "timed") for n in range(3))
    usual: dict[str, Any] = {"state": State.FAILED, "reason": "rank 1 (h1) was ended", "blamed": (1,), "ranks": ranks}
    told = more.pop("told", "")
    return common_run(Run(AllReduce("gloo", 3), **{**usual, **more}), told)


def ready(*traits: dict[str, str], cannot: tuple[str, ...] = ()) -> dict[int, Ready]:
    return {n: Ready(1, "gloo", dict(enumerate(cannot)).get(n, ""), messages.read_traits(one)) for n, one in enumerate(traits)}


NEW, OLD = {"torch": "2.9", "nccl": "2.27"}, {"torch": "2.8", "nccl": "2.27"}
STATES = {
    "all is well": lambda: cluster(3),
    "no meeting": lambda: Cluster.unread(Unavailable(Kind.NOT_READ, "x")),
    "interrupted": lambda: cluster(2, interrupted="interrupted by SIGINT"),
    "alone": lambda: Cluster(Nodes(1, 0, "h0", 1), {0: "h0"}),
    "alone, and interrupted": lambda: Cluster(Nodes(1, 0, "h0", 1), {0: "h0"}, interrupted="x"),
    "alone, and without a port": lambda: Cluster(Nodes(1, 0, "h0", 1), {0: "h0"}, master=(Fault.PORT_TAKEN, "in use")),
    "the first is gone": lambda: heard(3, gone={0: Gone("reach", "it left")}),
    "no master, and another is gone": lambda: heard(3, master=(Fault.LOST, "gone"), gone={1: Gone("reach", "it left")}),
    "the port is taken": lambda: heard(
        2, master=(Fault.PORT_TAKEN, "port 29400 cannot be listened on: in use"), hosts={0: "h0"}
    ),
    "two are one machine": lambda: cluster(3, endpoints={n: Endpoints("one" if n < 2 else "two") for n in range(3)}),
    "no thread": lambda: heard(2, master=(Fault.NO_THREAD, "it cannot take part: no thread"), hosts={0: "h0"}),
    "no local port": lambda: heard(2, master=(Fault.NO_LOCAL_PORT, "none"), hosts={0: "h0"}),
    "turned away": lambda: Cluster(Nodes(2, 1, "h0", 29400), {1: "h1"}, master=(Fault.TURNED_AWAY, "turned this node away: x")),
    "no master": lambda: Cluster(Nodes(2, 1, "h0", 29400), {1: "h1"}, master=(Fault.TIMED_OUT, "connections time out")),
    "the master was lost": lambda: cluster(
        2, nodes=Nodes(2, 1, "h0", 1), master=(Fault.LOST, "gone"), gone={0: Gone("result", "gone")}
    ),
    "never came": lambda: heard(2, hosts={0: "h0"}, gone={1: Gone("join", "it did not come within 3 s")}),
    "went early": lambda: heard(2, gone={1: Gone("reach", "it left")}),
    "went late": lambda: cluster(2, gone={1: Gone("result", "its connection was closed")}, run=failed()),
    "named by the launcher": lambda: heard(
        2, nodes=Nodes(2, 0, "h0", 1, names=("g1", "g2")), hosts={0: "g1"}, gone={1: Gone("join", "late")}
    ),
    "not known, by the launcher": lambda: Cluster(Nodes(3, 1, "h0", 1, names=("g0", "g1", "g2")), {1: "g1"}),
    "refused": lambda: heard(3, reach=REFUSED),
    "one way": lambda: heard(3, reach=ONE_WAY),
    "cut off": lambda: heard(3, reach=ALONE),
    "cut off, and it ran": lambda: cluster(3, reach=tried(ALONE)),
    "large ones are lost": lambda: heard(3, reach=LOSING),
    "large ones are lost, and it ran": lambda: cluster(3, reach=tried(LOSING)),
    "nothing follows": lambda: heard(3, reach=STALLING),
    "listens elsewhere": lambda: heard(
        3,
        reach=REACHED,
        endpoints=placed(usual(0), usual(1), ("eth1", "192.168.7.2", "10.0.0.2", 1500)),
        listen_reach={"gloo": tried({0: {1: "", 2: "refused"}, 1: {0: "", 2: "refused"}})},
    ),
    "another MTU": lambda: heard(3, endpoints=placed(usual(0), usual(1, 9000), usual(2)), addresses=ADDRESSES),
    "two MTUs": lambda: cluster(2, endpoints=placed(usual(0), usual(1, 9000)), addresses=ADDRESSES),
    "another MTU by name": lambda: heard(
        3,
        endpoints=placed(usual(0), usual(1, 9000), usual(2)),
        addresses=ADDRESSES,
        ready=ready({"mtu eth0": "1500"}, {"mtu eth0": "9000"}, {"mtu eth0": "1500"}),
    ),
    "one address twice": lambda: heard(3, endpoints=placed(usual(0), usual(1), usual(1)), addresses=ADDRESSES),
    "loses packets": lambda: carried_by({p: Flow(GB, 0.7, GB, GB // 50 if 2 in p else 0) for p in ring(1, 1, 1, 1)}, count=4),
    "loses packets one way": lambda: carried_by({p: Flow(GB, 0.7, GB, GB // 50 if p == (1, 2) else 0) for p in ring(1, 1, 1)}),
    "slow": lambda: carried_by(ring(0.7, 5.0, 5.5)),
    "slow one way": lambda: carried_by(ring(0.7, 0.7, 5.5)),
    "died": lambda: cluster(3, run=failed()),
    "two died": lambda: cluster(3, first_ranks={0: 0, 1: 1, 2: 3}, run=failed(blamed=(1, 2))),
    "out of ports": lambda: cluster(3, run=failed(ranks=(RankResult(1, "init", error="bind: address already in use"),))),
    "hung": lambda: cluster(3, run=failed(state=State.HUNG)),
    "told": lambda: cluster(3, run=failed(told="h1 was lost")),
    "not done": lambda: cluster(2, run=failed(state=State.UNFINISHED, blamed=(1,))),
    "nothing was run": lambda: heard(2),
    "cannot run": lambda: heard(2, ready={0: Ready(1, "gloo"), 1: Ready(0, cannot="no torch")}),
    "cannot run, and differs": lambda: heard(3, ready=ready(NEW, OLD, NEW, cannot=("", "no"))),
    "another version": lambda: cluster(3, ready=ready({"torch": "2.8", "nccl": "2.28"}, OLD, OLD)),
    "versions of two": lambda: cluster(2, ready=ready(OLD, NEW)),
    "versions of ten": lambda: cluster(10, ready=ready(*({"torch": f"2.{n}"} for n in range(10)))),
    "MTUs of ten": lambda: heard(10, endpoints=placed(*(usual(n, 1500 + n) for n in range(10))), addresses=ADDRESSES),
    "a stranger": lambda: cluster(2, refused=(Refused("10.9.9.9", "another job"),)),
    "a stranger, and it failed": lambda: cluster(2, refused=(Refused("10.9.9.9", "another job"),), run=failed(told="x")),
    "a stranger, and one is gone": lambda: cluster(2, refused=(Refused("x", "y"),), gone={1: Gone("result", "y")}),
    "two of one number": lambda: cluster(2, refused=(Refused("10.9.9.9", "node 1 is there already", 1, True),)),
    "came without the token": lambda: heard(
        2,
        hosts={0: "h0"},
        gone={1: Gone("join", "it did not come within 3 s")},
        never_came=frozenset({1}),
        refused=(Refused("10.9.9.9", "its token is another one", 1),),
    ),
    "nobody proved anything": lambda: cluster(2, proof=Proof.NOTHING),
    "nobody proved anything, and one died": lambda: cluster(3, proof=Proof.NOTHING, run=failed()),
    "nobody proved anything, and one is gone": lambda: heard(3, proof=Proof.NOTHING, gone={1: Gone("reach", "it left")}),
    "nobody proved anything, and one never came": lambda: heard(
        2, proof=Proof.NOTHING, hosts={0: "h0"}, gone={1: Gone("join", "late")}, never_came=frozenset({1})
    ),
    "the master did not prove itself": lambda: Cluster(Nodes(2, 1, "h0", 1), {1: "h1"}, master=(Fault.UNPROVEN, "is none")),
    "a sample": lambda: cluster(4, reach={n: {(n + 1) % 4: None} for n in range(4)}),
    "reached one way": lambda: cluster(2, reach={0: {1: None}, 1: {}}),
}
ADDRESSES = {n: f"10.0.0.{n}" for n in range(10)}


def words(name: str) -> list[dict[str, Any]]:
    """What the check says of one of `STATES`, as JSON has it."""
    kept = ("status", "subject", "message", "severity", "cause", "expected", "how", "why", "evidence", "measured")
    return [{key: value for key in kept if (value := plain(getattr(f, key)))} for f in findings(STATES[name]())]


WORDS = Path(__file__).parents[1] / "data" / "allreduce_nodes.json"


def write() -> None:
    """`python -m tests.unit.checks.test_allreduce_nodes_words` writes the words again; look at the diff."""
    data = {name: words(name) for name in STATES}
    WORDS.write_text(json.dumps(data, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


@pytest.mark.parametrize("name", STATES)
def test_the_words(name: str) -> None:
    assert words(name) == json.loads(WORDS.read_text(encoding="utf-8"))[name]


@pytest.mark.parametrize("name", STATES)
def test_a_recording_says_the_same(name: str) -> None:
    """What the nodes told is kept in a snapshot, and diagnosed from it with the same report."""
    made = STATES[name]()
    base = baseline(made.run) if made.run else Baseline.unread(Unavailable(Kind.OTHER_NODES, "x"))
    taken = Snapshot({}, {"Cluster": made, "Baseline": base}, {})
    again = loads(dumps(taken))
    assert again.runs["Cluster"] == made and again.runs["Cluster"].lost == made.lost
    specs = [allreduce_nodes.__netdoctor_check__, allreduce_run.__netdoctor_check__]  # type: ignore[attr-defined]
    reports = [diagnose(one, specs, lambda checks, facts: policy.decide(checks), "default") for one in (taken, again)]
    assert plain(reports[0].checks) == plain(reports[1].checks)
    assert plain(reports[0].nodes) == plain(reports[1].nodes)
    assert bool(reports[0].nodes) == (made.lost is None)


if __name__ == "__main__":
    write()

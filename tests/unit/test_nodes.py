"""Who takes part in an all-reduce across nodes, and what is made of what the nodes say."""

from __future__ import annotations

import errno
import json
import os
import socket
import time
from typing import Any

import pytest

from netdoctor.allreduce import across, verdict
from netdoctor.allreduce.across import Heard
from netdoctor.allreduce.experiment import AllReduce, Run
from netdoctor.allreduce.hub import Hub
from netdoctor.allreduce.meeting import Meeting, MeetingError, kind_of
from netdoctor.allreduce.nodes import Given, Nodes, NodesError, find, hosts
from netdoctor.allreduce.sandbox import sandbox
from netdoctor.commands import nodes_findings
from netdoctor.model import Status

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "gpu1", "MASTER_PORT": "29500",
}  # fmt: skip
SRUN = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "3", "SLURM_STEP_NUM_TASKS": "3", "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)", "SLURM_PROCID": "2", "SLURM_LOCALID": "0", "SLURM_STEP_NODELIST": "gpu[03,07-08]",
}  # fmt: skip
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4", "MASTER_ADDR": "m",
}  # fmt: skip
HYDRA = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "MASTER_ADDR": "m"}
INDEXED = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "3", "NNODES": "4", "MASTER_ADDR": "train-0.train"}
JOBSET = {"JOBSET_NAME": "js", "REPLICATED_JOB_NAME": "w", "JOB_COMPLETION_INDEX": "1", "NNODES": "2"}
TRAINJOB = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "t-node-0-0.t"}
LWS = {"LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2", "LWS_LEADER_ADDRESS": "l-0.l"}
PYTORCHJOB = {"KUBERNETES_SERVICE_HOST": "x", "MASTER_ADDR": "p-master-0", "RANK": "1", "WORLD_SIZE": "3"}
BY_NODE = {
    **OPENMPI,
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
}  # dealt out in turn: 1, 3, 5, 7 are node 1's


@pytest.mark.parametrize(
    ("variables", "count", "rank", "master", "local"),
    [
        (TORCHRUN, 2, 1, "gpu1", 1),
        (SRUN, 3, 2, "gpu03", 0),
        (OPENMPI, 2, 1, "m", 1),
        (BY_NODE, 2, 1, "m", 1),
        (HYDRA, 2, 1, "m", 0),
        (INDEXED, 4, 3, "train-0.train", 0),
        (JOBSET, 2, 1, "js-w-0-0.js", 0),
        (TRAINJOB, 2, 1, "t-node-0-0.t", 0),
        (LWS, 4, 2, "l-0.l", 0),
        (PYTORCHJOB, 3, 1, "p-master-0", 0),
    ],
)
def test_every_launcher_says_who_takes_part(variables: dict[str, str], count: int, rank: int, master: str, local: int) -> None:
    here = find(Given(), variables)
    assert (here.count, here.rank, here.master, here.local_rank) == (count, rank, master, local)
    assert str(here.port) != variables.get("MASTER_PORT")
    assert 20000 <= here.port < 29001
    assert find(Given(), dict(variables)).port == here.port


def test_options_win() -> None:
    here = find(Given(4, 3, "[2001:db8::1]:1234", 2), SRUN)
    assert (here.count, here.rank, here.master, here.port, here.ranks_per_node) == (4, 3, "2001:db8::1", 1234, 2)
    assert here.named() == "[2001:db8::1]:1234"
    assert find(Given(1, 0), {}).master == "127.0.0.1"


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (Given(), "--nodes"),
        (Given(0, 0, "h"), "--nodes"),
        (Given(9999, 0, "h"), "--nodes"),
        (Given(2, None, "h"), "--node-rank"),
        (Given(2, 2, "h"), "--node-rank"),
        (Given(2, 1), "--master"),
        (Given(2, 1, "h:0"), "--master"),
        (Given(2, 1, "h:70000"), "--master"),
        (Given(2, 1, "h:x"), "--master"),
        (Given(2, 1, "[::1"), "--master"),
        (Given(2, 1, "h", 65), "--ranks-per-node"),
    ],
)
def test_what_is_missing_is_said(given: Given, text: str) -> None:
    with pytest.raises(NodesError, match=text):
        find(given, {})


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("gpu[03-04,9],login1", ["gpu03", "gpu04", "gpu9", "login1"]), ("a", ["a"]), ("a-1.b,c", ["a-1.b", "c"]),
        ("r[9-10]n", ["r9n", "r10n"]), ("[1-2]", ["1", "2"]), ("", []), ("a[x]", []), ("a,b[x]", ["a"]), (",", []),
    ],
)  # fmt: skip
def test_slurms_list_of_nodes(nodelist: str, names: list[str]) -> None:
    assert list(hosts(nodelist)) == names


def test_a_node_that_did_not_come_has_the_name_that_slurm_gives_it() -> None:
    assert find(Given(), SRUN).names == ("gpu03", "gpu07", "gpu08")
    assert find(Given(nodes=2, node_rank=0), SRUN).names == ()  # the list is of other nodes
    assert find(Given(), {**SRUN, "SLURM_STEP_NODELIST": "gpu[0-999999999]"}).names == ()
    assert find(Given(), TORCHRUN).names == ()
    heard = Heard(find(Given(), SRUN), hosts={0: "gpu03", 2: "gpu08"}, gone={1: ("join", "did not come within 3 s")})
    (found,) = [f for f in nodes_findings.result(heard).findings if f.status is Status.FAIL]
    assert found.subject == "gpu07" and found.message == "node 1 (gpu07) is missing: did not come within 3 s"


def test_commas_in_variables_reach_the_ranks_as_they_are() -> None:
    box = sandbox({**SRUN, "NCCL_IB_HCA": "mlx5_0,mlx5_1", "MASTER_PORT": "29500"})
    assert box.environment["NCCL_IB_HCA"] == "mlx5_0,mlx5_1"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.ECONNREFUSED, "x"), "refused"),
        (OSError(errno.ETIMEDOUT, "x"), "timed out"),
        (TimeoutError("timed out"), "timed out"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route"),
        (OSError(errno.ENETUNREACH, "x"), "no route"),
        (OSError(errno.EPERM, "x"), "forbidden here"),
        (socket.gaierror(-2, "Name or service not known"), "no such host"),
        (OSError(errno.EADDRNOTAVAIL, "x"), "failed"),
    ],
)
def test_kinds_of_errors(error: OSError, kind: str) -> None:
    assert kind_of(error)[0] == kind


# The meeting, over loopback

LIMITS = {"join": 20.0, "reach": 5.0, "ready": 5.0, "result": 5.0}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def meeting(rank: int, port: int, count: int = 2, run: str = "", limits: dict[str, float] | None = None) -> Meeting:
    made = Meeting(Nodes(count, rank, "127.0.0.1", port, run=run), limits or LIMITS, 5.0)
    made.open()
    made.join({"host": f"h{rank}"}, time.monotonic() + 5)
    return made


def test_two_nodes_meet_and_reach_each_other() -> None:
    port = free_port()
    both = [meeting(0, port), meeting(1, port)]
    try:
        joined = [one.wait("join", time.monotonic() + 5) for one in both]
        assert [sorted(one["data"]) for one in joined] == [["0", "1"]] * 2
        assert [one.reach({int(k): v for k, v in j["data"].items()}) for one, j in zip(both, joined, strict=True)] == [
            {1: ""},
            {0: ""},
        ]
        both[1].close("enough")
        both[0].say("reach", data={})
        assert both[0].wait("reach", time.monotonic() + 5)["gone"] == {"1": "enough"}
    finally:
        for one in reversed(both):
            one.close()


def test_who_does_not_belong_is_turned_away() -> None:
    port = free_port()
    first = meeting(0, port, run="a")
    try:
        for rank, count, run, why in ((1, 2, "b", "another job"), (0, 2, "a", "there already"), (1, 3, "a", "2 are expected")):
            other = Meeting(Nodes(count, rank, "127.0.0.1", port, run=run), LIMITS, 5.0)
            other.door = socket.create_server(("127.0.0.1", 0))
            other.join({}, time.monotonic() + 5)
            with pytest.raises(MeetingError, match=why):
                other.wait("join", time.monotonic() + 5)
            other.close()
    finally:
        first.close()


@pytest.mark.parametrize(
    "rubbish", [b"\n", b"{}\n", b"[]\n", b"\xff\xfe\n", b'{"say":"join","node":"x"}\n', b"[" * 20000 + b"\n", b"x" * 70000]
)
def test_rubbish_does_not_disturb_the_meeting(rubbish: bytes) -> None:
    port = free_port()
    first = meeting(0, port)
    try:
        with socket.create_connection(("127.0.0.1", port), 5) as line:
            line.sendall(rubbish)
            line.shutdown(socket.SHUT_WR)
            while line.recv(4096):
                pass
        second = meeting(1, port)
        assert sorted(first.wait("join", time.monotonic() + 5)["data"]) == ["0", "1"]
        second.close()
    finally:
        first.close()


def test_a_port_in_use_is_said() -> None:
    with socket.create_server(("", 0)) as door, pytest.raises(MeetingError, match="in use"):
        Meeting(Nodes(2, 0, "127.0.0.1", door.getsockname()[1]), LIMITS, 5.0).open()


def test_a_hub_of_nobody_ends() -> None:
    door = socket.create_server(("127.0.0.1", 0))
    hub = Hub(door, 2, "", {**LIMITS, "join": 0.0}, 5.0)
    hub.start()
    hub.close()
    assert not hub.thread.is_alive()


# What is made of it


def heard(count: int = 4, **more: Any) -> Heard:
    made = Heard(Nodes(count, 0, "h0", 29400), {n: f"h{n}" for n in range(count)})
    made.ready = {n: {"ranks": 1, "backend": "gloo", "traits": {"env": "read", "torch": "2.9"}} for n in range(count)}
    for name, value in more.items():
        setattr(made, name, value)
    return made


def fails(made: Heard) -> dict[str, str | None]:
    return {f.subject: f.cause for f in nodes_findings.result(made).findings if f.status is Status.FAIL}


def part(*events: dict[str, Any], cut: verdict.Cut | None = None) -> dict[str, Any]:
    told = json.loads(json.dumps(across.outgoing(events, cut, 100.0)))
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


def common(made: Heard, parts: dict[int, Any]) -> Run:
    plan = across.experiments(made)
    assert not isinstance(plan, str)
    made.run = across.combine(made, plan, parts, verdict.not_started(plan[0], "own"))
    return made.run


def test_ranks_of_all_nodes_are_one_run() -> None:
    made = heard()
    run = common(made, {n: part(*done()) for n in range(4)})
    assert (run.state, run.verified, run.experiment.ranks, [r.rank for r in run.ranks]) == ("finished", True, 4, [0, 1, 2, 3])
    assert set(run.busbw) == set(run.experiment.sizes)
    assert fails(made) == {}
    assert all(f.status is Status.PASS for f in nodes_findings.result(made).findings)


def test_a_node_that_did_not_compare_its_data_makes_the_whole_unknown() -> None:
    events = [e for e in done() if e["event"] != "verified"]
    assert common(heard(), {**{n: part(*done()) for n in range(3)}, 3: part(*events)}).verified is None


def test_the_rank_that_was_killed_is_blamed_not_who_cried_first() -> None:
    made = heard()
    begun = done()[:5]
    cry = {"event": "error", "rank": 0, "error": "Connection closed by peer [10.0.0.3]", "t": 1.9}
    killed = {"event": "exit", "rank": 0, "status": -9, "t": 2.0}
    run = common(made, {0: part(*begun, cry), 1: part(*begun, cry), 2: part(*begun, killed), 3: part(*begun, cry)})
    assert (run.state, run.blamed) == ("failed", (2,))
    assert "rank 2 (h2) was ended by SIGKILL" in run.reason
    assert fails(made) == {"h2": "rank_died"}


def test_a_killed_rank_is_blamed_though_another_node_was_cut_before_it_was_reaped() -> None:
    made = heard()
    begun = done()[:5]
    cry = {"event": "error", "rank": 0, "error": "Connection closed by peer [10.0.0.3]", "t": 1.9}
    killed = {"event": "exit", "rank": 0, "status": -9, "t": 2.5}
    ended_by_us = {"event": "exit", "rank": 0, "status": -9, "t": 2.4}
    cut = verdict.Cut("failure", 2.3, text="another node ended the run")
    parts = {0: part(*begun, ended_by_us, cut=cut), 1: part(*begun, cry), 2: part(*begun, killed), 3: part(*begun, cry)}
    run = common(made, parts)
    assert (run.state, run.blamed) == ("failed", (2,))
    assert fails(made) == {"h2": "rank_died"}


def test_who_cries_after_a_stalled_run_was_ended_is_not_blamed() -> None:
    made = heard()
    begun = done()[:5]
    cuts = {
        1: verdict.Cut("stalled", 9.0, 4.0, (4,), (3,)),
        2: verdict.Cut("failure", 9.6, 0.0, (4,), (3,), (0,), text="another node ended the run"),
        3: verdict.Cut("failure", 9.6, 0.0, (4,), (3,), text="another node ended the run"),
    }
    cry = {"event": "error", "rank": 0, "error": "Connection closed by peer [10.0.0.2]", "t": 9.1}
    run = common(made, {n: part(*begun, *([cry] if n == 0 else []), cut=cuts.get(n)) for n in range(4)})
    assert (run.state, run.blamed) == ("hung", (2,))


def test_a_node_whose_ranks_were_lost_is_blamed_not_its_victims() -> None:
    made = heard()
    begun = done()[:5]
    cry = {"event": "error", "rank": 0, "error": "Connection closed by peer [10.0.0.3]", "t": 1.9}
    lost = verdict.Cut("lost", 2.2, text="the process that forks the ranks was ended by SIGKILL")
    run = common(made, {n: part(*begun, cut=lost) if n == 2 else part(*begun, cry) for n in range(4)})
    assert (run.state, run.blamed) == ("failed", (2,))
    assert "h2" in run.reason and "SIGKILL" in run.reason


def test_the_rank_that_is_behind_is_blamed_for_a_hang() -> None:
    made = heard()
    begun = done()[:5]
    cuts = {n: verdict.Cut("stalled" if n == 1 else "failure", 9.0, 4.0, (3 if n == 2 else 4,), (3,)) for n in range(4)}
    run = common(made, {n: part(*begun, cut=cuts[n]) for n in range(4)})
    assert (run.state, run.blamed) == ("hung", (2,))
    assert fails(made) == {"h2": "hang"}


def test_a_stopped_rank_is_blamed_for_a_hang_though_its_victim_is_a_collective_behind() -> None:
    made = heard()
    begun = done()[:5]
    kinds = {1: "stalled"}
    at = {0: {"entered": (3,), "left": (2,)}, 2: {"entered": (4,), "left": (3,), "stopped": (0,)}}
    usual = {"entered": (4,), "left": (3,)}
    cuts = {n: verdict.Cut(kinds.get(n, "failure"), 9.0, 4.0, **at.get(n, usual)) for n in range(4)}
    run = common(made, {n: part(*begun, cut=cuts[n]) for n in range(4)})
    assert (run.state, run.blamed) == ("hung", (2,))
    assert "rank 2 (h2) is stopped" in run.reason


def test_a_node_that_went_away_is_blamed_whatever_the_others_say() -> None:
    made = heard()
    cry = {"event": "error", "rank": 0, "error": "ValueError: of my own", "t": 1.9}
    made.firsts = {}
    plan = across.experiments(made)
    assert not isinstance(plan, str)
    made.gone = {3: ("result", "its connection was closed")}
    made.run = across.combine(made, plan, {n: part(*done()[:5], cry) for n in range(3)}, verdict.not_started(plan[0], "own"))
    assert (made.run.state, made.run.blamed) == ("failed", (3,))
    assert fails(made) == {"h3": "missing_node"}


@pytest.mark.parametrize(
    ("reach", "subject"),
    [
        ({0: {1: "", 2: "timed out"}, 1: {0: "", 2: "timed out"}, 2: {0: "", 1: ""}}, "h2"),
        ({0: {1: "", 2: ""}, 1: {0: "refused", 2: "refused"}, 2: {0: "", 1: ""}}, "h1"),
        ({0: {1: "", 2: ""}, 1: {0: "", 2: "no route"}, 2: {0: "", 1: ""}}, "h1 to h2"),
    ],
)
def test_who_is_behind_the_firewall(reach: dict[int, dict[int, str]], subject: str) -> None:
    assert fails(heard(3, reach=reach)) == {subject: "firewall_connect"}


def test_versions_and_variables_that_differ() -> None:
    made = heard()
    made.ready = {n: {"traits": {"env": "read", "torch": "2.9", "nccl": "2.27.3" if n == 1 else "2.28.9"}} for n in range(4)}
    made.ready[2] = {"traits": {**made.ready[2]["traits"], "env NCCL_ALGO": "Tree"}}
    assert fails(made) == {"h1, NCCL": "version_mismatch", "h2, variable NCCL_ALGO": "drift"}
    made.ready = {0: {"traits": {"torch": "2.9"}}, 1: {"traits": {"torch": "2.8", "env NCCL_ALGO": "Tree"}}}
    two = heard(2)
    two.ready = made.ready
    assert fails(two) == {"nodes, torch": "version_mismatch"}  # node 0 did not tell its variables: no difference


def test_the_master_that_is_not_to_be_had() -> None:
    made = Heard(Nodes(3, 1, "h0", 29400), {1: "h1"}, master=("timed out", "connections to it time out"))
    found = {f.subject: f.status for f in nodes_findings.result(made).findings}
    assert found == {"node 0": Status.FAIL, "node 2": Status.UNKNOWN}


def test_what_nodes_cannot_run_is_no_pass() -> None:
    made = heard()
    made.ready[2] = {"cannot": "no torch", "ranks": 0}
    assert across.experiments(made) == "node 2 (h2): no torch"
    assert all(f.status is Status.UNKNOWN for f in nodes_findings.result(made).findings)


@pytest.mark.parametrize(
    "said", [None, [], "x", 7, {"9": {}}, {"1": None}, {"1": {"host": "\x1b[2Jh" + os.urandom(4).hex(), "address": 5}}]
)
def test_rubbish_from_other_nodes(said: Any) -> None:
    made = Heard(Nodes(2, 0, "h0", 1))
    for subject in ("join", "reach", "ready", "result"):
        across.hear(made, subject, {"data": said, "gone": said, "refused": said})
    text = json.dumps(nodes_findings.section(made)) + str(nodes_findings.result(made))
    assert "\\u001b" not in text and "\x1b" not in text
    assert isinstance(across.experiments(made), str)
    assert across._events([{"rank": 0, "event": "phase", "phase": ["x"]}, None, {"rank": 5}], 0, 1) == [
        {"event": "phase", "rank": 0}
    ]


def test_one_node_alone_has_no_others() -> None:
    found = nodes_findings.result(Heard(Nodes(1, 0, "127.0.0.1", 1), {0: "h0"})).findings
    assert [f.status for f in found] == [Status.SKIP]

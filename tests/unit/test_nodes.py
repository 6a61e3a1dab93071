"""Who takes part in an all-reduce across nodes, and what is made of what the nodes say."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

import pytest

from netdoctor.allreduce import verdict
from netdoctor.allreduce.sandbox import sandbox
from netdoctor.cluster import combine, connectivity, endpoints, findings
from netdoctor.cluster.combine import Heard
from netdoctor.cluster.connectivity import Door, fault_of
from netdoctor.cluster.coordinator import PROTOCOL, SUBJECTS, Hub
from netdoctor.cluster.endpoints import Place
from netdoctor.cluster.member import Meeting, MeetingError
from netdoctor.cluster.membership import Given, Nodes, NodesError, find, hosts
from netdoctor.facts.net import Address, Link, Net
from netdoctor.facts.runs import AllReduce, CommonRun, Obstacle, Reason, Run
from netdoctor.model import Severity, Status, Unavailable
from tests.support.facts import environ

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "x",
    "RANK": "9",
    "WORLD_SIZE": "16",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "8",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "2",
    "MASTER_ADDR": "gpu1",
    "MASTER_PORT": "29500",
}
SRUN = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "gpu[03,07-08]",
}
OPENMPI = {
    "OMPI_COMM_WORLD_RANK": "5",
    "OMPI_COMM_WORLD_SIZE": "8",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
    "MASTER_ADDR": "m",
}
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
        ("gpu[03-04,9],login1", ["gpu03", "gpu04", "gpu9", "login1"]),
        ("a", ["a"]),
        ("a-1.b,c", ["a-1.b", "c"]),
        ("r[9-10]n", ["r9n", "r10n"]),
        ("[1-2]", ["1", "2"]),
        ("", []),
        ("a[x]", []),
        ("a,b[x]", ["a"]),
        (",", []),
    ],
)
def test_slurms_list_of_nodes(nodelist: str, names: list[str]) -> None:
    assert list(hosts(nodelist)) == names


def test_a_node_that_did_not_come_has_the_name_of_slurm() -> None:
    assert find(Given(), SRUN).names == ("gpu03", "gpu07", "gpu08")
    assert find(Given(nodes=2, node_rank=0), SRUN).names == ()  # the list is of other nodes
    assert find(Given(), {**SRUN, "SLURM_STEP_NODELIST": "gpu[0-999999999]"}).names == ()
    assert find(Given(), TORCHRUN).names == ()
    heard = Heard(find(Given(), SRUN), hosts={0: "gpu03", 2: "gpu08"}, gone={1: ("join", "did not come within 3 s")})
    (found,) = [f for f in findings.result(heard).findings if f.status is Status.FAIL]
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
        (OSError(errno.EADDRNOTAVAIL, "x"), "no local port"),
        (OSError(errno.EINVAL, "x"), "failed"),
    ],
)
def test_kinds_of_errors(error: OSError, kind: str) -> None:
    assert fault_of(error)[0] == kind


# The meeting, over loopback

FAILED = connectivity.Miss(connectivity.Fault.FAILED)
LIMITS = {"join": 20.0, "place": 5.0, "reach": 5.0, "ready": 5.0, "result": 5.0}


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
        every = {int(k): v for k, v in joined[0]["data"].items()}
        strays = {
            0: Place(takes={"gloo": ("lo", "127.0.0.1")}),
            1: Place(takes={"gloo": ("lo", "127.0.0.1"), "nccl": ("x", "fe80::1")}),
        }
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            closed = nobody.getsockname()[1]
        assert both[0].reach(every, strays) == ({1: None}, {"gloo": {1: None}, "nccl": {1: FAILED}})
        assert both[1].reach(every, strays) == ({0: None}, {"gloo": {0: None}, "nccl": {}})
        assert both[1].reach({0: {"port": closed}}, {})[0] == {0: connectivity.Miss(connectivity.Fault.REFUSED)}
        assert both[1].reach({0: {"port": every[1]["port"]}}, {})[0] == {0: connectivity.Miss(connectivity.Fault.ANOTHER_NODE)}
        assert both[1].reach({0: {"port": "x"}}, {})[0] == {0: FAILED}
        both[1].close("enough")
        both[0].say("place", data={})
        both[0].say("reach", data={})
        assert both[0].wait("reach", time.monotonic() + 5)["gone"] == {"1": "enough"}
    finally:
        for one in reversed(both):
            one.close()


@pytest.mark.parametrize(("passes", "why"), [(600, "loses segments of 32741 bytes"), (0, "carries no 64 KiB")])
def test_a_path_that_drops_large_segments(passes: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the test drops nothing: a listener that reads only what comes in small segments."""
    monkeypatch.setattr(connectivity, "TRY", 0.3)
    with connectivity.listen(0) as listener:

        def live() -> None:
            for _ in range(3 if passes else 2):
                guest, _ = listener.accept()
                with guest:
                    guest.sendall(f"{PROTOCOL} 1\n".encode())
                    guest.settimeout(2.0)
                    if guest.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= passes:
                        left = connectivity.BURST
                        while left > 0:
                            left -= len(guest.recv(1 << 16))
                        guest.sendall(connectivity.GOT)
                    while guest.recv(1 << 16):
                        pass

        thread = threading.Thread(target=live)
        thread.start()
        found = connectivity.knock("127.0.0.1", listener.getsockname()[1], 1)
        thread.join()
    assert str(found).split(" of ")[0] == why.split(" of ")[0]
    assert found is not None and found.of_data and connectivity.read(json.loads(json.dumps(connectivity.told(found)))) == found


@pytest.mark.parametrize("said", [7, None, "a word", ["loses segments of", "x", 1], {"a": 1}, [], ["", 5], [None, None]])
def test_a_meaningless_word_about_another_node_is_a_failure(said: object) -> None:
    assert connectivity.read(said) is not None and connectivity.read("") is None


def test_who_does_not_belong_is_turned_away() -> None:
    port = free_port()
    first = meeting(0, port, run="a")
    try:
        for rank, count, run, why in ((1, 2, "b", "another job"), (0, 2, "a", "there already"), (1, 3, "a", "2 are expected")):
            other = Meeting(Nodes(count, rank, "127.0.0.1", port, run=run), LIMITS, 5.0)
            other.door = Door(rank)
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
        setattr(made, name, tried(value) if name == "reach" else value)
    return made


def tried(said: Mapping[int, Mapping[int, Any]]) -> dict[int, dict[int, connectivity.Miss | None]]:
    """Who reaches whom, as nodes tell it to each other."""
    return {a: {b: connectivity.read(why) for b, why in row.items()} for a, row in said.items()}


def fails(made: Heard) -> dict[str, str | None]:
    return {f.subject: f.cause for f in findings.result(made).findings if f.status is Status.FAIL}


def part(*events: dict[str, Any], cut: verdict.Cut | None = None) -> dict[str, Any]:
    told = json.loads(json.dumps(combine.outgoing(events, cut, 100.0)))
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
    plan = combine.experiments(made)
    assert not isinstance(plan, str)
    made.run = combine.combine(made, plan, parts, verdict.not_started(plan[0], Reason(Obstacle.OTHER_NODE, "own")))
    return made.run


def test_ranks_of_all_nodes_are_one_run() -> None:
    made = heard()
    run = common(made, {n: part(*done()) for n in range(4)})
    assert (run.state, run.verified, run.experiment.ranks, [r.rank for r in run.ranks]) == ("finished", True, 4, [0, 1, 2, 3])
    assert set(run.busbw) == set(run.experiment.sizes)
    assert fails(made) == {}
    assert all(f.status is Status.PASS for f in findings.result(made).findings)


def test_a_node_without_a_data_comparison_makes_all_unknown() -> None:
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


def test_a_killed_rank_is_blamed_though_another_was_cut_first() -> None:
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


def test_a_stopped_rank_is_blamed_though_its_victim_is_behind() -> None:
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
    plan = combine.experiments(made)
    assert not isinstance(plan, str)
    made.gone = {3: ("result", "its connection was closed")}
    made.run = combine.combine(
        made,
        plan,
        {n: part(*done()[:5], cry) for n in range(3)},
        verdict.not_started(plan[0], Reason(Obstacle.OTHER_NODE, "own")),
    )
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
    found = {f.subject: f.status for f in findings.result(made).findings}
    assert found == {"node 0": Status.FAIL, "node 2": Status.UNKNOWN}
    made.master = (connectivity.Fault.NO_LOCAL_PORT, "no local port can be listened on: Address already in use")
    assert fails(made) == {"h1": "bootstrap_ports"}


def test_what_nodes_cannot_run_is_no_pass() -> None:
    made = heard()
    made.ready[2] = {"cannot": "no torch", "ranks": 0}
    assert combine.experiments(made) == "node 2 (h2): no torch"
    assert all(f.status is Status.UNKNOWN for f in findings.result(made).findings)


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
    made = Heard(Nodes(2, 0, "h0", 1))
    for subject in SUBJECTS:
        combine.hear(made, subject, {"data": said, "gone": said, "refused": said})
    text = json.dumps(findings.section(made)) + str(findings.result(made))
    assert "\\u001b" not in text and "\x1b" not in text
    assert isinstance(combine.experiments(made), str)
    assert combine._events([{"rank": 0, "event": "phase", "phase": ["x"]}, None, {"rank": 5}], 0, 1) == [
        {"event": "phase", "rank": 0}
    ]


def test_one_node_alone_has_no_others() -> None:
    found = findings.result(Heard(Nodes(1, 0, "127.0.0.1", 1), {0: "h0"})).findings
    assert [f.status for f in found] == [Status.SKIP]


# What their places and their tries show


def placed(*given: tuple[str, str, str, int]) -> dict[int, Place]:
    """(what Gloo takes, its address, the own address in 10.0.0.0/24, its MTU) of each node."""
    return {
        n: endpoints.read(json.loads(json.dumps({"space": f"s{n}", "gloo": [name, ip], "links": [["eth0", own, 24, mtu]]})))
        for n, (name, ip, own, mtu) in enumerate(given)
    }


def usual(node: int, mtu: int = 1500) -> tuple[str, str, str, int]:
    return "eth0", f"10.0.0.{node}", f"10.0.0.{node}", mtu


REACHED = {a: {b: "" for b in range(3) if b != a} for a in range(3)}


def test_a_node_that_listens_where_nobody_comes_is_named() -> None:
    made = heard(3, reach=REACHED, places=placed(usual(0), usual(1), ("eth1", "192.168.7.2", "10.0.0.2", 1500)))
    combine.hear(made, "reach", {"data": {"0": {"2": "", "takes": {"gloo": {"1": "", "2": "refused"}}}}})
    combine.hear(made, "reach", {"data": {"1": {"2": "", "takes": {"gloo": {"0": "", "2": "refused"}}}}})
    assert fails(made) == {"h2": "socket_ifname"}
    cut = verdict.Cut("stalled", 9.0, 4.0, (0,), (0,))
    run = common(made, {n: part(*done()[:3], cut=cut) for n in range(3)})
    assert isinstance(run, CommonRun) and (run.told_cause, run.blamed) == ("socket_ifname", (2,))
    assert "h2): Gloo listens on 192.168.7.2 (eth1), where nodes 0, 1 cannot reach it: refused" in run.reason
    assert fails(made) == {"h2": "socket_ifname"}


def test_another_address_family_is_not_blamed_on_who_says_so() -> None:
    made = heard(3, reach=REACHED, places=placed(usual(0), usual(1), ("eth1", "fe80::1", "10.0.0.2", 1500)))
    made.taken = {"gloo": tried({0: {1: "", 2: "failed"}, 1: {0: "", 2: "failed"}})}
    cry = {"event": "error", "rank": 0, "error": "RuntimeError: ss1.ss_family == ss2.ss_family. 2 vs 10", "t": 1.9}
    run = common(made, {0: part(*done()[:3]), 1: part(*done()[:3], cry), 2: part(*done()[:3])})
    assert (run.state, run.blamed) == ("failed", (2,))


def test_an_unused_address_behind_a_firewall_is_no_fault() -> None:
    shut = {**REACHED, 0: {1: "", 2: "timed out"}, 1: {0: "", 2: "timed out"}}
    made = heard(3, reach=shut, places=placed(usual(0), usual(1), usual(2)))
    made.taken = {"gloo": tried({0: {2: "timed out"}, 1: {2: "timed out"}})}
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
    cut = verdict.Cut("stalled", 9.0, 4.0, (52,), (51,))
    run = common(made, {n: part(*done()[:5], cut=cut) for n in range(3)})
    assert isinstance(run, CommonRun) and run.told_cause == "mtu" and "segments of 1448 bytes are lost" in run.reason
    common(made, {n: part(*done()) for n in range(3)})  # it went all the same
    found = [f for f in findings.result(made).findings if f.status is Status.FAIL]
    assert {f.severity for f in found} == {Severity.WARNING}


def test_a_path_on_which_nothing_follows_is_not_called_an_mtu() -> None:
    made = heard(3, reach={**REACHED, 0: {1: "", 2: connectivity.Fault.STALLS.value}})
    assert fails(made) == {"h0 to h2": "low_bandwidth"}


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
    made = heard(len(given), places=placed(*given), addresses={n: one[2] for n, one in enumerate(given)})
    twice = len(given) > 2 and given[1] == given[2]
    made.reach = tried({0: {n: "timed out" if twice and n == 2 else "" for n in range(1, len(given))}})
    assert fails(made) == expected  # who answers at a shared address hangs on chance
    # Two processes of one network namespace have the same addresses; another network's MTU is nobody's business here.
    made.reach = {}
    made.places = {n: dataclasses.replace(one, space="one") for n, one in made.places.items()}
    assert {k: v for k, v in fails(made).items() if v == "duplicate_address"} == {}
    made.addresses, made.reach = {n: f"172.16.0.{n}" for n in range(len(given))}, {}
    assert fails(made) == {}


def test_where_ranks_will_listen() -> None:
    one = Address("10.0.0.7", 24, 4, "global", label="eth0")
    six = Address("fe80::7", 64, 6, "link")
    link = Link(
        "eth0",
        2,
        True,
        True,
        False,
        None,
        1500,
        None,
        (six, one),
        Unavailable("absent"),
        Unavailable("absent"),
        Unavailable("absent"),
        Unavailable("absent"),
    )
    bare = dataclasses.replace(link, name="eth1", addresses=(dataclasses.replace(six, ip="fe80::8"),))
    net = Net((link, bare), ("127.0.1.1",), None, None, (), None)

    def gloo(named: str | None, **more: Any) -> Any:
        facts = {"Net": dataclasses.replace(net, **more), "Environ": environ({"GLOO_SOCKET_IFNAME": named} if named else {})}
        return endpoints.told(facts)["gloo"]

    assert gloo("eth0") == ("eth0", "10.0.0.7")  # IPv4 comes first, as getifaddrs(3) lists it
    assert gloo("eth1") == ("eth1", "fe80::8")
    assert gloo("eth") is None and gloo("eth9") is None
    assert gloo(None) == ("lo", "127.0.1.1")
    assert gloo(None, hostname_addresses=("10.9.9.9", "10.0.0.7")) == ("eth0", "10.0.0.7")
    assert gloo(None, hostname_addresses=("10.9.9.9",)) == ("lo", "127.0.0.1")  # torch falls back to it
    assert gloo(None, hostname_addresses=Unavailable("timed out")) is None
    assert endpoints.told({"Net": net})["gloo"] is None and set(endpoints.told({})) == {"space"}

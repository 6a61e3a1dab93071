"""Who takes part in an all-reduce across nodes, and what is made of what the nodes say."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import errno
import json
import random
import socket
import threading
import time
from typing import Any

import pytest

from netdoctor import engine, policy
from netdoctor.allreduce.interruption import InterruptionKind
from netdoctor.allreduce.sandbox import sandbox
from netdoctor.checks.allreduce_nodes import allreduce_nodes
from netdoctor.cli import setup
from netdoctor.cluster import connectivity, endpoints, messages
from netdoctor.cluster.connectivity import ProbeServer, fault_of
from netdoctor.cluster.coordinator import Coordinator
from netdoctor.cluster.member import MeetingError, Member
from netdoctor.cluster.membership import Given, NodesError, find
from netdoctor.cluster.observations import Cluster, Endpoints, Fault, Gone, Miss, Nodes, Proof
from netdoctor.cluster.secret import Secret
from netdoctor.config.load import Config
from netdoctor.facts.net import Address, Link, Net
from netdoctor.model import CheckResult, Status, Unavailable
from tests.support.facts import environ

pytestmark = pytest.mark.slow

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
STALLED, FAILURE, LOST = InterruptionKind.STALLED, InterruptionKind.FAILURE, InterruptionKind.LOST
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
    ("variables", "master"),
    [
        ({"LSB_MCPU_HOSTS": "a 8 b 8"}, "a"),
        ({"LSB_HOSTS": "b b a"}, "b"),
        ({"LSB_HOSTS": "b", "MASTER_ADDR": "m"}, "m"),
        ({"LSB_HOSTS": "-oProxyCommand=x"}, None),
    ],
)
def test_node_0_is_the_first_of_lsfs_list(variables: dict[str, str], master: str | None) -> None:
    told = {**variables, "LSB_JOBID": "3"}
    if master is None:
        with pytest.raises(NodesError, match="--master"):
            find(Given(nodes=2, node_rank=1), told)
    else:
        assert find(Given(nodes=2, node_rank=1), told).master == master


def test_a_node_that_did_not_come_has_the_name_of_slurm() -> None:
    assert find(Given(), SRUN).names == ("gpu03", "gpu07", "gpu08")
    assert find(Given(nodes=2, node_rank=0), SRUN).names == ()  # the list is of other nodes
    assert find(Given(), {**SRUN, "SLURM_STEP_NODELIST": "gpu[0-999999999]"}).names == ()
    assert find(Given(), TORCHRUN).names == ()
    gone = {1: Gone("join", "did not come within 3 s")}
    met = Cluster(find(Given(), SRUN), hosts={0: "gpu03", 2: "gpu08"}, gone=gone, never_came=frozenset({1}))
    (found,) = [f for f in allreduce_nodes(met) if f.status is Status.FAIL]
    assert found.subject == "gpu07" and found.message == "node 1 (gpu07) is missing: did not come within 3 s"


def test_commas_in_variables_reach_the_ranks_as_they_are() -> None:
    box = sandbox({**SRUN, "NCCL_IB_HCA": "mlx5_0,mlx5_1", "MASTER_PORT": "29500"}, ())
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
        (OSError(errno.EACCES, "x"), "prohibited here or by a firewall"),
        (OSError(errno.EINVAL, "x"), "blackhole route or no scope"),
        (OSError(errno.EMFILE, "x"), "failed"),
    ],
)
def test_kinds_of_errors(error: OSError, kind: str) -> None:
    assert fault_of(error)[0] == kind


def test_a_master_whose_address_this_node_has_is_named_so() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
        try:
            line.connect(("192.0.2.1", 9))  # TEST-NET-1 (RFC 5737): nothing is sent
        except OSError:
            pytest.skip("no address but the loopback's")
        here = line.getsockname()[0]
    assert [connectivity.own_address(host) for host in (here, "127.0.0.1", "192.0.2.1")] == [here, "", ""]
    with connectivity.listen(0) as listener:
        port = listener.getsockname()[1]
    member = Member(Nodes(2, 1, here, port), {}, 20.0)
    member.open()
    with pytest.raises(MeetingError) as error:
        member.join({}, time.monotonic())
    member.close()
    assert error.value.kind is Fault.OWN_ADDRESS


# The meeting, over loopback

FAILED = Miss(Fault.FAILED)
TOKEN = Secret(Proof.TOKEN, b"0123456789abcdef")
LIMITS = {"join": 20.0, "place": 5.0, "reach": 5.0, "ready": 5.0, "result": 5.0}


def free_port() -> int:
    """Below the range that the kernel gives to others' connections: one of these would take it in between."""
    while True:
        port = random.randrange(20000, 30000)
        with socket.socket() as one, contextlib.suppress(OSError):
            one.bind(("", port))
            return port


def meeting(rank: int, port: int, count: int = 2, run: str = "", limits: dict[str, float] | None = None) -> Member:
    made = Member(Nodes(count, rank, "127.0.0.1", port, run=run), limits or LIMITS, 5.0, TOKEN)
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
            0: Endpoints(listen={"gloo": ("lo", "127.0.0.1")}),
            1: Endpoints(listen={"gloo": ("lo", "127.0.0.1"), "nccl": ("x", "fe80::1")}),
        }
        with socket.create_server(("127.0.0.1", 0)) as nobody:
            closed = nobody.getsockname()[1]
        assert both[0].reach(every, strays) == ({1: None}, {"gloo": {1: None}, "nccl": {1: Miss(Fault.INVALID)}})
        assert both[1].reach(every, strays) == ({0: None}, {"gloo": {0: None}, "nccl": {}})
        assert both[1].reach({0: {"port": closed}}, {})[0] == {0: Miss(Fault.REFUSED)}
        assert both[1].reach({0: {"port": every[1]["port"]}}, {})[0] == {0: Miss(Fault.ANOTHER_NODE)}
        assert both[1].reach({0: {"port": "x"}}, {})[0] == {0: FAILED}
        both[1].close("enough")
        both[0].send("place", data={})
        both[0].wait("place", time.monotonic() + 5)
        both[0].send("reach", data={})
        assert both[0].wait("reach", time.monotonic() + 5)["gone"] == {"1": "enough"}
    finally:
        for one in reversed(both):
            one.close()


@pytest.mark.parametrize(("passes", "why"), [(600, "loses segments of 32741 bytes"), (0, "carries no 64 KiB")])
def test_a_path_that_drops_large_segments(passes: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of the test drops nothing: a listener that reads only what comes in small segments."""
    monkeypatch.setattr(connectivity, "TRY", 0.3)
    server = ProbeServer(1)
    with connectivity.listen(0) as listener:

        def live() -> None:
            for _ in range(3 if passes else 2):
                guest, _ = listener.accept()
                with guest:
                    if guest.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG) <= passes:
                        server._answer(guest)
                        continue
                    guest.sendall(connectivity._greeting(1, bytes(connectivity.NONCE)))
                    guest.settimeout(2.0)
                    while guest.recv(1 << 16):
                        pass

        thread = threading.Thread(target=live)
        thread.start()
        found = connectivity.probe("127.0.0.1", listener.getsockname()[1], 1)
        thread.join()
    server.close()
    assert str(found).split(" of ")[0] == why.split(" of ")[0]
    assert (
        found is not None and found.of_data and messages.read_miss(json.loads(json.dumps(messages.miss_data(found)))) == found
    )


@pytest.mark.parametrize("said", [7, None, "a word", ["loses segments of", "x", 1], {"a": 1}, [], ["", 5], [None, None]])
def test_a_meaningless_word_about_another_node_is_a_failure(said: object) -> None:
    assert messages.read_miss(said) is not None and messages.read_miss("") is None


def test_who_does_not_belong_is_turned_away() -> None:
    port = free_port()
    first = meeting(0, port, run="a")
    try:
        for rank, count, run, why in ((1, 2, "b", "another job"), (0, 2, "a", "there already"), (1, 3, "a", "2 are expected")):
            other = Member(Nodes(count, rank, "127.0.0.1", port, run=run), LIMITS, 5.0, TOKEN)
            other.probe_server = ProbeServer(rank)
            with pytest.raises(MeetingError, match=why):
                other.join({}, time.monotonic() + 5)
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
        hung_up = contextlib.suppress(OSError)  # by the other end, with more on its way
        with socket.create_connection(("127.0.0.1", port), 5) as line, hung_up:
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
        Member(Nodes(2, 0, "127.0.0.1", door.getsockname()[1]), LIMITS, 5.0).open()


def test_a_hub_of_nobody_ends() -> None:
    door = socket.create_server(("127.0.0.1", 0))
    hub = Coordinator([door], 2, "", {**LIMITS, "join": 0.0}, 5.0)
    hub.start()
    hub.close()
    assert not hub.thread.is_alive()


# Where a node listens


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
        return endpoints.endpoints_data(facts)["gloo"]

    assert gloo("eth0") == ("eth0", "10.0.0.7")  # IPv4 comes first, as getifaddrs(3) lists it
    assert gloo("eth1") == ("eth1", "fe80::8")
    assert gloo("eth") is gloo("eth9") is gloo(None, hostname_addresses=Unavailable("timed out")) is None
    assert gloo(None) == ("lo", "127.0.1.1")
    assert gloo(None, hostname_addresses=("10.9.9.9", "10.0.0.7")) == ("eth0", "10.0.0.7")
    assert gloo(None, hostname_addresses=("10.9.9.9",)) == ("lo", "127.0.0.1")  # torch falls back to it
    assert [gloo(None, hostname_addresses=Unavailable(x))[0] for x in ("absent", "failed")] == ["lo", ""]  # may answer later
    assert endpoints.endpoints_data({"Net": net})["own"] == ["10.0.0.7"]
    assert endpoints.endpoints_data({"Net": net})["gloo"] is None and set(endpoints.endpoints_data({})) == {"space"}


# Where the check of the nodes runs

CONFIG = Config()


def chosen(*only: str, cluster: bool = False, config: Config = CONFIG) -> set[str]:
    return {spec.id for spec in setup.load_checks(config, only, cluster=cluster)[0]}


def test_a_look_at_one_node_leaves_the_others_out() -> None:
    assert "allreduce.nodes" not in chosen()
    assert "allreduce.nodes" in chosen(cluster=True)
    assert chosen("allreduce.nodes") == {"allreduce.nodes"}
    (found,) = engine.judge(allreduce_nodes.__netdoctor_check__, {})  # type: ignore[attr-defined]
    assert (found.status, found.how) == (Status.UNKNOWN, "run `netdoctor allreduce` on every node")


def test_the_configuration_knows_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    until = datetime.date(2999, 1, 1)
    waiver = policy.Waiver("allreduce.nodes", "known", until)
    assert "allreduce.nodes" in chosen(
        cluster=True, config=dataclasses.replace(CONFIG, disabled=("allreduce.nodes",), waivers=(waiver,))
    )
    assert capsys.readouterr().err == ""
    (result,) = policy.decide((CheckResult("allreduce.nodes", "", "", ()),), disabled=("allreduce.nodes",))[0]
    assert result.status is Status.UNKNOWN

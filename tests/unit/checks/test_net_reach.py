"""net.reach: the other hosts answer in packets of the full size; the kernel keeps the job's neighbours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.net_reach import reach
from netdoctor.facts.environ import Environ, probe as probe_environ
from netdoctor.facts.intent import Intent, Told
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.net import Link, Net, Peer, Route
from netdoctor.facts.reach import SECONDS, Path, Reach, job_hosts, probe as probe_reach
from netdoctor.facts.runs import Baseline
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import RecordingHost, ReplayHost, question
from netdoctor.host.redact import Redactor
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from netdoctor.variables.catalogue import accepts
from tests.support import facts as f
from tests.support.facts import healthy

LOST = Unavailable(Kind.TIMED_OUT, "it hangs")
ROOM = "net.ipv4.neigh.default.gc_thresh3"
GPU8 = Peer("gpu8", ("10.1.0.8",), {"10.1.0.8": Route("eth0")}, local=False)


def path(size: int = 9000, **changes: Any) -> Path:
    told = {"small": True, "middle": True, "full": True, "told": None, "error": None, **changes}
    return Path("10.1.0.8", "eth0", size, **told)


def seen(one: Path | None = None, *hosts: Peer, named: int = 2) -> Reach:
    return Reach(hosts or (GPU8,), named, {} if one is None else {"gpu8": one})


def judged(changes: dict[type, Any]) -> dict[str, Finding]:
    base = {Intent: f.job(nodes=2), Reach: seen(path()), Kernel: f.kernel(sysctls={ROOM: "1024"}), Net: net()}
    return {one.subject: one for one in f.judge(reach, f.machine({**base, **changes}))}


def net(prefix: int = 24, **changes: Any) -> Net:
    link = f.netlink_link("eth0", 2)
    return f.net(replace(link, addresses=(f.address("10.1.0.7", prefix),)), **changes)


def beside(name: str, number: int, **changes: Any) -> Link:
    return replace(f.netlink_link(name, number), addresses=(f.address(f"172.{number}.0.1", 16),), **changes)


# Networks of containers and tunnels of a /16 each: no node of the job is their neighbour.
INSIDE = f.net(
    *net(16).links,
    beside("docker0", 17, kind="bridge"),
    beside("cni0", 18, kind="bridge"),
    beside("flannel.1", 19, kind="vxlan"),
    beside("eth1", 20, running=False),
)
STRANGE = Peer("head", Unavailable(Kind.ABSENT, "head: EAI_NONAME"), local=Unavailable(Kind.NOT_READ, "it does not resolve"))
ROUTE = Route("eth0")


OPEN = Intent(told=Told.LAUNCHER, why="lsf does not say how many nodes it has")
NO_RUN = Unavailable(Kind.REFUSED, "--no-allreduce")
WIDE = f.net(
    *(replace(one, addresses=(f.address(f"10.{one.index}.0.7", 16),)) for one in f.net().links or () if not one.loopback)
)


def host(name: str, *ips: str, route: Any = ROUTE) -> Peer:
    return Peer(name, ips, dict.fromkeys(ips, route), local=False)


NO_ROUTE = Unavailable(Kind.ABSENT, "ENETUNREACH")
UNNAMED = Peer("gpu9", Unavailable(Kind.ABSENT, "gpu9: EAI_NONAME"))


@pytest.mark.parametrize(
    ("changes", "subject", "status", "words"),
    [
        ({}, "hosts", Status.PASS, "1 host of the job answers"),
        ({Reach: seen(path(told=1400, full=False))}, "hosts", Status.PASS, "1 host"),  # TCP follows what a router says
        ({Reach: seen(path(full=False, pieces=0))}, "gpu8", Status.FAIL, "packets of 1500 bytes arrive at gpu8"),
        ({Reach: seen(path(full=False, pieces=0))}, "gpu8", Status.FAIL, "sent in pieces no answer comes"),
        ({Reach: seen(path(full=False, pieces=9000))}, "gpu8", Status.FAIL, "it is the way there"),
        ({Reach: seen(path(full=False, pieces=1500))}, "gpu8", Status.FAIL, "has another MTU"),
        ({Reach: seen(path(full=False))}, "gpu8", Status.UNKNOWN, "or that end has a smaller MTU"),
        ({Reach: seen(path(size=1500, middle=False, full=False, pieces=0))}, "gpu8", Status.FAIL, "small packets arrive"),
        (
            {Reach: seen(path(small=False, middle=False, full=False, error="EHOSTUNREACH"))},
            "gpu8",
            Status.FAIL,
            "nobody answers",
        ),
        ({Reach: seen(path(small=False, middle=False, full=False))}, "gpu8", Status.UNKNOWN, "ICMP may be filtered"),
        (
            {Reach: seen(path(small=False, middle=False, full=False, error="EPERM"))},
            "gpu8",
            Status.UNKNOWN,
            "a firewall of this node refuses it (EPERM)",
        ),
        # A firewall that answers for a host shows that the way leads there.
        *(
            ({Reach: seen(path(small=False, middle=False, full=False, error=error))}, "gpu8", Status.UNKNOWN, words)
            for error, words in {
                "EACCES": "a firewall refuses it (EACCES)",
                "ECONNREFUSED": "the host refuses it (ECONNREFUSED)",
                "ENETDOWN": "the kernel says ENETDOWN",
            }.items()
        ),
        ({Reach: seen(path(full=False, error="EACCES"))}, "gpu8", Status.UNKNOWN, "one of 9000 bytes: a firewall refuses it"),
        ({Reach: seen(path(full=False, error="EHOSTUNREACH"))}, "gpu8", Status.UNKNOWN, "one of 9000 bytes: the kernel says"),
        ({Reach: seen(None)}, "hosts", Status.UNKNOWN, "no host's address was tried"),
        ({Reach: seen(None, host("gpu9", "10.9.0.1", route=NO_ROUTE))}, "gpu9", Status.FAIL, "no route to gpu9"),
        ({Reach: seen(None, host("gpu9", "10.9.0.1", route=LOST))}, "gpu9", Status.UNKNOWN, "could not be read"),
        ({Reach: seen(path(), GPU8, UNNAMED)}, "gpu9", Status.UNKNOWN, "does not resolve here"),
        (
            {Environ: f.environ({"NCCL_SOCKET_FAMILY": "AF_INET6"})},
            "gpu8",
            Status.FAIL,
            "gpu8 has no IPv6 address (10.1.0.8)",
        ),
        ({Environ: f.environ({"NCCL_SOCKET_FAMILY": "AF_INET"})}, "hosts", Status.PASS, "answers"),
        ({Environ: LOST}, "hosts", Status.UNKNOWN, "it hangs"),
        ({Reach: LOST}, "hosts", Status.UNKNOWN, "it hangs"),
        ({Reach: Reach((GPU8,), 2, LOST)}, "hosts", Status.UNKNOWN, "it hangs"),
        ({Reach: Reach((), 0, {})}, "hosts", Status.UNKNOWN, "nothing here names another host"),
        (
            {Reach: Reach((), 0, {}), Intent: f.job(), Net: net(master=STRANGE)},
            "hosts",
            Status.UNKNOWN,
            "whether head is another",
        ),
        # One of two hosts that was not tried is not among those that answer.
        ({Reach: replace(seen(path()), untried=("gpu9",))}, "gpu9", Status.UNKNOWN, "gpu9 was not tried"),
        ({Reach: Reach((), 0, {}), Intent: f.job()}, "hosts", Status.SKIP, "nothing here names another host"),
        # A batch system that does not say how many nodes the job has may have given it others.
        ({Reach: Reach((), 0, {}), Intent: OPEN}, "hosts", Status.UNKNOWN, "nothing here names another host"),
        ({Intent: f.job(nodes=1)}, "node", Status.SKIP, "there are no other hosts"),
        ({Vantage: f.outside()}, "hosts", Status.UNKNOWN, "the job's network"),
        # The table of neighbours
        ({}, "neighbours", Status.PASS, "the job's 1 neighbour"),
        ({Intent: f.job(nodes=255)}, "neighbours", Status.PASS, "the job's 253 neighbours"),  # a /24, without this node
        ({Intent: f.job(nodes=1026), Net: net(16)}, "neighbours", Status.FAIL, "are 1025 neighbours"),
        # Another node is rank 0's: all meet there, and each other by Gloo alone.
        ({Intent: f.job(nodes=1026), Net: net(16, master=GPU8)}, "neighbours", Status.UNKNOWN, "by Gloo or by all"),
        (
            {Intent: f.job(nodes=1026, gloo_groups=1), Net: net(16, master=GPU8)},
            "neighbours",
            Status.FAIL,
            "are 1025 neighbours",
        ),
        (
            {Intent: f.job(nodes=1026, gloo_groups=0), Net: net(16, master=GPU8)},
            "neighbours",
            Status.PASS,
            "the job's 31 neighbours",
        ),
        (
            {Intent: f.job(nodes=1026, all_to_all=True), Net: net(16, master=GPU8)},
            "neighbours",
            Status.FAIL,
            "are 1025 neighbours",
        ),
        ({Intent: f.job(nodes=1025), Net: net(16)}, "neighbours", Status.PASS, "the job's 1,024 neighbours"),
        ({Intent: f.job(nodes=5000), Net: net(31)}, "hosts", Status.PASS, "answers"),  # routed host by host
        ({Intent: f.job(nodes=1025), Net: INSIDE}, "neighbours", Status.PASS, "the job's 1,024 neighbours"),
        ({Kernel: f.kernel(sysctls={ROOM: LOST})}, "neighbours", Status.UNKNOWN, "it hangs"),
        ({Kernel: f.kernel(sysctls={ROOM: Unavailable(Kind.ABSENT)})}, "neighbours", Status.UNKNOWN, "could not be read"),
    ],
)
def test_reach(changes: dict[type, Any], subject: str, status: Status, words: str) -> None:
    found = judged(changes)
    assert subject in found, found
    assert found[subject].status is status and words in found[subject].message, found[subject]


SIX = "net.ipv6.neigh.default.gc_thresh3"


def six(*addresses: tuple[str, int], **changes: Any) -> dict[type, Any]:
    """A job of 1,026 nodes on one interface of these addresses, by the kernel's own limits."""
    told = tuple(f.address(ip, prefix) for ip, prefix in (*addresses, ("fe80::1", 64)))
    links = (replace(f.netlink_link("eth0", 2), addresses=told),)
    sysctls = {ROOM: "1024", SIX: "1024", **changes.pop("sysctls", {})}
    return {Intent: f.job(nodes=1026), Net: f.net(*links), Kernel: f.kernel(sysctls=sysctls), **changes}


BY_SIX = {"NCCL_SOCKET_FAMILY": "AF_INET6"}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        (six(("fd00::7", 64)), Status.FAIL),
        (six(("fd00::7", 64), sysctls={SIX: "1025"}), Status.PASS),
        (six(("fd00::7", 64), sysctls={SIX: LOST}), Status.UNKNOWN),
        (six(("fd00::7", 64), ("10.1.0.7", 31)), None),  # IPv4 is what is taken
        ({**six(("fd00::7", 64), ("10.1.0.7", 31)), Environ: f.environ(BY_SIX)}, Status.FAIL),
        ({**six(("fd00::7", 64), ("10.1.0.7", 31)), Environ: f.environ({"NCCL_IB_ADDR_FAMILY": "AF_INET6"})}, Status.FAIL),
        ({**six(("fd00::7", 64), ("10.1.0.7", 31)), Environ: f.environ({"NCCL_SOCKET_FAMILY": "AF_INET"})}, None),
        (six(("fd00::7", 128)), None),  # routed host by host
        (six(), None),  # link-local alone
    ],
)
def test_neighbours_of_ipv6(changes: dict[type, Any], status: Status | None) -> None:
    found = judged(changes)
    assert (found["IPv6 neighbours"].status if "IPv6 neighbours" in found else None) is status
    if status is Status.FAIL:
        assert found["IPv6 neighbours"].fix and f"sysctl -w {SIX}=4100" in found["IPv6 neighbours"].fix.commands
        assert found["IPv6 neighbours"].why and "ndisc_cache" in found["IPv6 neighbours"].why


def test_what_it_costs() -> None:
    vanish, gone = path(full=False, pieces=0), path(small=False, middle=False, full=False, error="ENETUNREACH")
    assert judged({Reach: seen(vanish)})["gpu8"].severity is Severity.WARNING
    assert judged({Reach: seen(vanish)})["gpu8"].cause == "mtu"
    # Between ends of two MTUs TCP goes by the smaller: 4 % of headers more, where sockets carry the data.
    smaller = judged({Reach: seen(path(full=False, pieces=1500))})["gpu8"]
    assert smaller.loss is not None and smaller.loss.share == pytest.approx(0.041, abs=0.01)
    assert judged({**by("IB"), Reach: seen(path(full=False, pieces=1500))})["gpu8"].severity is Severity.INFO
    assert judged({**by("Socket"), Reach: seen(path(full=False, pieces=1500))})["gpu8"].severity is Severity.WARNING
    assert judged({Reach: seen(gone)})["gpu8"].severity is Severity.CRITICAL
    assert "neighbours" not in judged({Intent: f.job(nodes=5000), Net: net(31)})


def test_a_sample_says_so() -> None:
    (note,) = judged({Reach: seen(path(), named=64)})["hosts"].notes
    assert note == "of 64 hosts that are named 1 were asked"


def test_so_are_peers_of_the_configuration() -> None:
    peers = tuple(host(f"gpu{n}", f"10.1.0.{n}") for n in range(8, 48))
    (note,) = judged({Net: net(peers=peers), Reach: Reach((), 0, {"gpu8": path()})})["hosts"].notes
    assert note == "of 40 hosts that are named 1 were asked"


def test_the_list_of_the_step_comes_first() -> None:
    assert job_hosts(f.environ({"SLURM_STEP_NODELIST": "a", "SLURM_JOB_NODELIST": "a,b"})) == ["a"]
    assert job_hosts(f.environ({})) == []
    for cut in ("a[", "a,b[1-", "-a,b", ".a"):
        assert isinstance(job_hosts(f.environ({"SLURM_JOB_NODELIST": cut})), Unavailable)


LSF = {"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "a 8 b 8"}


@pytest.mark.parametrize(
    ("variables", "text", "expected"),
    [
        ({"PBS_NODEFILE": "/spool/3"}, "a\na\nb.cluster\nb.cluster\n", ["a", "b.cluster"]),
        ({"PBS_NODEFILE": "/spool/3"}, "", Unavailable("empty")),  # it lists this host at least
        ({"PBS_NODEFILE": "/spool/3"}, Unavailable("denied"), Unavailable("denied")),
        ({"PBS_NODEFILE": "spool/3"}, "a\n", Unavailable("not read")),  # of a working folder that nobody knows
        ({"PBS_NODEFILE": "/spool/3", "SLURM_JOB_NODELIST": "c"}, "a\n", ["c"]),
        ({**LSF, "LSB_DJOB_HOSTFILE": "/spool/3"}, "a\na\nb\nc\n", ["a", "b", "c"]),
        ({**LSF, "LSB_DJOB_HOSTFILE": "/spool/3"}, Unavailable("absent"), ["a", "b"]),
        (LSF, "", ["a", "b"]),
        ({"LSB_HOSTS": "a a b c c"}, "", ["a", "b", "c"]),
        ({"LSB_HOSTS": "a a b", "LSB_MCPU_HOSTS": "a 2 b 1 c 9"}, "", ["a", "b", "c"]),  # the first is left away where long
        ({"LSB_MCPU_HOSTS": "a 2 b"}, "", None),
        ({"LSB_MCPU_HOSTS": "a b"}, "", None),
        ({"LSB_HOSTS": "a -oProxyCommand=x"}, "", None),
        ({"LSB_HOSTS": "a $(x)"}, "", None),
        ({"LSB_HOSTS": "a " + "b" * 254}, "", None),
    ],
)
def test_lists_of_other_batch_systems(variables: dict[str, str], text: Any, expected: list[str] | Unavailable | None) -> None:
    environ = probe_environ(RecordingHost(ReplayHost({"env:": variables, "file:/spool/3": text}), Redactor(accepts)))
    assert isinstance(environ, Environ)
    found = job_hosts(environ)
    if isinstance(expected, list):
        assert found == expected
    else:
        assert isinstance(found, Unavailable)
        assert expected is None or found.kind is expected.kind


def test_a_list_of_very_many_hosts_is_cut() -> None:
    many = " ".join(f"n{n}" for n in range(70000))
    found = job_hosts(f.environ({"LSB_HOSTS": many}))
    assert isinstance(found, list) and len(found) == 1 << 16


def test_a_soft_limit_below_the_job_is_a_note() -> None:
    sysctls = {ROOM: "1024", "net.ipv4.neigh.default.gc_thresh2": "16"}
    found = judged({Kernel: f.kernel(sysctls=sysctls), Intent: f.job(nodes=100)})["neighbours"]
    assert found.status is Status.PASS
    assert found.notes == (
        "beyond net.ipv4.neigh.default.gc_thresh2 of 16 it drops those that were idle for 5 s, and asks for them again",
    )
    sysctls["net.ipv4.neigh.default.gc_thresh2"] = "512"
    assert judged({Kernel: f.kernel(sysctls=sysctls), Intent: f.job(nodes=100)})["neighbours"].notes == ()


def by(network: str) -> dict[type, Any]:
    """An all-reduce whose log says what carried the data."""
    return {Baseline: f.baseline(f.run(log=f.log(network=network, net=network)))}


@pytest.mark.parametrize(
    ("nodes", "facts", "status"),
    [
        (200, by("IB"), Status.PASS),  # by InfiniBand nobody asks for a neighbour: 199 of the bootstrap's interface
        (200, by("Socket"), Status.PASS),  # of each of eight the 24 of rings, trees and PAT
        (200, {**by("Socket"), Intent: f.job(nodes=200, all_to_all=True)}, Status.FAIL),  # all of each
        (200, {**by("Socket"), Intent: f.job(nodes=200, communicators=5)}, Status.FAIL),
        (200, {Baseline: NO_RUN}, Status.PASS),
        (200, {Baseline: NO_RUN, Intent: f.job(nodes=200, all_to_all=True)}, Status.UNKNOWN),
        (200, {Environ: LOST}, Status.UNKNOWN),
        (100, {Environ: LOST}, Status.PASS),
        (1200, {Net: WIDE}, Status.FAIL),  # on the bootstrap's alone
        # RoCE asks for those to whom it sends on each rail.
        (200, {**healthy.hgx_roce(), Intent: f.job(nodes=200)}, Status.PASS),
        (200, {**healthy.hgx_roce(), Intent: f.job(nodes=200, all_to_all=True)}, Status.FAIL),
    ],
)
def test_interfaces_by_which_nobody_talks_have_no_neighbours(nodes: int, facts: dict[type, Any], status: Status) -> None:
    base = {Kernel: f.kernel(sysctls={ROOM: "1024"})}
    found = {one.subject: one for one in f.judge(reach, f.machine({Intent: f.job(nodes=nodes), **facts, **base}))}
    assert found["neighbours"].status is status


def test_what_a_job_between_all_ranks_would_have_is_a_note() -> None:
    base = {Kernel: f.kernel(sysctls={ROOM: "1024"}), Intent: f.job(nodes=200)}
    found = {one.subject: one for one in f.judge(reach, f.machine({**base, **by("Socket")}))}
    (note,) = found["neighbours"].notes
    assert "between all ranks" in note and "it keeps 1024" in note


def several(*pieces: int | None) -> Reach:
    """Hosts on one interface, each by the largest packet that it sends; None: it takes full ones."""
    names = [f"gpu{n}" for n in range(len(pieces))]
    paths = {name: path(full=n is None, pieces=n) for name, n in zip(names, pieces, strict=True)}
    return Reach(tuple(host(name, "10.1.0.8") for name in names), len(pieces), paths)


@pytest.mark.parametrize(
    ("found", "subjects", "mend"),
    [
        (several(None, 1500, None), ["gpu1"], "on gpu1: "),
        (several(1500, 1500, 1500), ["eth0"], "this node's interface"),
        (several(1500), ["gpu0"], "both ends"),
        (several(None, 1500), ["gpu1"], "both ends"),
        (several(None, 1500, 1500), ["gpu1", "gpu2"], "both ends"),
        (several(1500, 1400), ["gpu0", "gpu1"], "both ends"),
        (several(None, None, 0), ["gpu2"], "ICMP"),
    ],
)
def test_which_end_is_the_odd_one(found: Reach, subjects: list[str], mend: str) -> None:
    told = {name: one for name, one in judged({Reach: found}).items() if one.status is Status.FAIL}
    assert list(told) == subjects
    assert all(one.fix and mend in one.fix.summary for one in told.values()), told


def test_a_containers_mtu_is_its_networks() -> None:
    (one,) = (x for x in judged({Reach: several(1500, 1500), Vantage: f.pod()}).values() if x.status is Status.FAIL)
    assert one.fix and "CNI" in one.fix.commands[0]


def test_a_dead_address_before_one_that_answers_is_a_note() -> None:
    (note,) = judged({Reach: replace(seen(path()), late={"gpu8": ("fd00::8",)})})["hosts"].notes
    assert note.startswith("gpu8: fd00::8 does not answer, and another address of it does")


@pytest.mark.parametrize(
    ("answers", "best", "late"),
    [
        ("yyyyy", 1, ()),
        ("ngyyy", 3, ("10.1.0.81", "10.1.0.82")),
        ("nnnny", 1, ()),  # of five the first four are asked, and silence of all is no lateness of one
        ("ggggy", 1, ()),
        ("gnggg", 2, ()),  # what may only drop echoes is better than who is not there, and answers no more
    ],
)
def test_a_name_is_as_good_as_the_best_of_its_paths(answers: str, best: int, late: tuple[str, ...]) -> None:
    """y: it answers; n: nothing comes; g: nobody is there."""
    told = {"y": {"small": True, "middle": True, "full": True}, "n": {}, "g": {"error": "EHOSTUNREACH"}}
    rows = [{"small": False, "middle": False, "full": False, **told[one]} for one in answers]
    ips = [f"10.1.0.8{n}" for n in range(1, 6)]
    peer = Peer("gpu8", tuple(ips), {ip: Route("eth0") for ip in ips}, local=False)
    asked = question("reach", to=",".join(f"{ip}/1500" for ip in ips[:4]), seconds=SECONDS)
    host = ReplayHost({asked: {"paths": dict(zip(ips, rows, strict=True))}})
    found = probe_reach(host, f.environ({}), net(peers=(peer,)))
    assert not isinstance(found, Unavailable) and found.paths
    assert (found.paths["gpu8"].address, found.late.get("gpu8", ())) == (ips[best - 1], late)

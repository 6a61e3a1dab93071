"""Faults between hosts as data: what is broken on which of h0, h1 …, and what their reports must say."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).parents[2]
EVERY, BRIDGE = -1, -2  # where a line of `setup` runs, besides a host's number
NODES, RUN, PORTS = "allreduce.nodes", "allreduce.run", "net.port_range"


@dataclass(frozen=True)
class Said:
    """A finding that must come.  `by`: the nodes in whose reports; None: in all that there are."""

    check: str
    text: str  # status and, for a fail, its cause
    subject: str = "node"
    words: str = ""
    by: tuple[int, ...] | None = None

    def met_by(self, check: str, finding: Mapping[str, Any]) -> bool:
        status, _, cause = self.text.partition(" ")
        return (
            (check, finding["status"]) == (self.check, status)
            and finding["subject"] in self.subject.split("|")
            and cause in ("", finding["cause"])
            and self.words in finding["message"]
        )

    def __str__(self) -> str:
        return " ".join(part for part in (self.check, self.text, self.subject, self.words) if part)


@dataclass(frozen=True)
class Base:
    """What healthy hosts are compared with."""

    hosts: int
    torch: bool
    ranks: int
    env: tuple[tuple[str, str], ...]
    macvlan: bool

    def row(self) -> Row:
        env = dict(self.env)
        return Row("healthy hosts", (), hosts=self.hosts, torch=self.torch, ranks=self.ranks, env=env, macvlan=self.macvlan)


@dataclass(frozen=True)
class Row:
    """One fault.  Where the nodes only have to meet, `torch` is False: they say that they cannot run, and it takes a second."""

    fault: str
    said: tuple[Said, ...]
    setup: tuple[tuple[int, str], ...] = ()
    variables: Mapping[int, Mapping[str, str]] = field(default_factory=dict)  # of one host
    hosts: int = 3
    torch: bool = False
    env: Mapping[str, str] = field(default_factory=dict)  # of all hosts, the healthy ones too
    ranks: int = 1  # of a host
    expect: Mapping[str, Any] = field(default_factory=dict)  # `expected:` of the configuration
    pythons: Mapping[int, str] = field(default_factory=dict)
    absent: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    after_the_others: bool = False  # the late ones come when the others have ended
    when: Mapping[int, tuple[str, int]] = field(default_factory=dict)  # host -> (line of its progress, signal it gets then)
    cable: tuple[int, Sequence[str]] | None = None  # the host that gets one (tests.support.namespaces.cable), and its options
    wait: float = 60.0
    waits: Mapping[int, float] = field(default_factory=dict)
    stall: float = 30.0
    also: tuple[str, ...] = ()  # checks that change rightly
    beside: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # host -> a command that says "ready" and stays
    routers: int = 0  # more namespaces like hosts, after them, without a netdoctor
    macvlan: bool = False  # eth0 is one over a veth: of which the speed is known
    loose: bool = False  # what the fault does to others depends on chance
    severity: str = ""  # of what allreduce.nodes says; "": any
    may: tuple[Said, ...] = ()  # findings that may come, or not
    never: str = ""  # why it cannot run anywhere that this lab knows
    needs: tuple[str, ...] = ("ip", "nsenter", "unshare")

    def base(self) -> Base:
        return Base(self.hosts, self.torch, self.ranks, tuple(sorted(self.env.items())), self.macvlan)

    def expected(self) -> dict[str, list[str]]:
        out: dict[str, list[str]] = {}
        for said in self.said:
            out.setdefault(said.check, []).append(f"{said.text} {said.subject} {said.words}".strip())
        return out


PLAIN: Final = Row("healthy hosts", ())


def nodes(subject: str, cause: str, words: str = "", by: tuple[int, ...] | None = None, status: str = "fail") -> Said:
    return Said(NODES, f"{status} {cause}".strip(), subject, words, by)


def run(cause: str, words: str = "", by: tuple[int, ...] | None = None) -> Said:
    return Said(RUN, f"fail {cause}", "node", words, by)


RANGE: Final = "sysctl -q -w net.ipv4.ip_local_port_range='40000 {0}'"
# Every ncclGetUniqueId opens the listener of a bootstrap root, which stays until its ranks have come.
ROOTS: Final = """
import ctypes, os, sys, time
os.environ.update(NCCL_NET_PLUGIN="none", NCCL_RAS_ENABLE="0")
library = ctypes.CDLL(sys.argv[1])
count = 0
while not library.ncclGetUniqueId(ctypes.create_string_buffer(128)):
    count += 1
print("ready", count, flush=True)
time.sleep(600)
"""


def exhausted(version: str) -> Row:
    path = f"{ROOT}/build/nccl/{version}/nvidia/nccl/lib/libnccl.so.2"
    return Row(
        f"libnccl {version} listens on every port",
        (
            Said(PORTS, "fail bootstrap_ports", "listeners", by=(2,)),
            nodes("h2", "bootstrap_ports", "no local port", by=(2,)),
            nodes("node 2", "missing_node", by=(0, 1)),
        ),
        ((2, RANGE.format(40199)),),
        beside={2: (sys.executable, "-c", ROOTS, path)},
        wait=5,
        needs=(path,),
    )


PORT_ROWS: Final = (
    exhausted("2.21.5"),
    exhausted("2.29.7"),
    Row(
        "the connection tracking table is full",
        (nodes("h2", "firewall_connect"),),
        never="net.netfilter.nf_conntrack_max is the machine's: a network namespace cannot set its own (EINVAL)",
    ),
    Row(
        "3 ports, 8 ranks",
        (Said(PORTS, "fail bootstrap_ports", "listeners"), run("bootstrap_ports"), nodes("h0|h1", "bootstrap_ports")),
        ((EVERY, RANGE.format(40002)),),
        hosts=2,
        torch=True,
        ranks=4,
        stall=8,
    ),
    Row(
        "24 ports, 8 ranks: enough for Gloo, one too few for NCCL with its RAS",
        (Said(PORTS, "fail bootstrap_ports", "listeners", "25 listeners"),),
        ((EVERY, RANGE.format(40023)),),
        hosts=2,
        torch=True,
        ranks=4,
    ),
    Row(
        "400 ports, 8 ranks",
        (),
        ((EVERY, RANGE.format(40399)),),
        hosts=2,
        torch=True,
        ranks=4,
    ),
    Row(
        "all but two ports reserved",
        (
            Said(PORTS, "fail bootstrap_ports", "listeners", by=(2,)),
            run("bootstrap_ports", "rank 2 failed"),
            nodes("h2", "bootstrap_ports", "Cannot assign requested address"),
        ),
        ((2, "sysctl -q -w net.ipv4.ip_local_reserved_ports=32768-60997"),),
        torch=True,
    ),
)


PHASES: Final = {
    "meeting": "in the rendezvous",
    "init": "in the initialisation",
    "between": "before its first collective",
    "first": "in its first collective",
    "timed": "in a later collective",
}
ACTIONS: Final = {
    "kill": "killed",
    "stop": "stopped",
    "sleep": "asleep",
    "7": "exiting",
    "rubbish": "printing rubbish",
    "flood": "flooding",
}


def died(phase: str, action: str, said: tuple[Said, ...], **more: Any) -> Row:
    return Row(
        f"a rank {ACTIONS[action]} {PHASES[phase]}",
        said,
        variables={2: {"TORCH_FAULT": f"{phase}:{action}"}},
        hosts=4,
        torch=True,
        stall=5,
        **more,
    )


def wrapped(action: str, line: str, said: tuple[Said, ...]) -> Row:
    """The job's Python on one host is a script that does this first."""
    make = f"mkdir /run/bad; cat > /run/bad/python3 <<'END'\n#!/bin/sh\n{line}\nEND\nchmod 755 /run/bad/python3"
    setup = ((2, make),)
    return Row(f"the job's Python {action} at its start on one host", said, setup, torch=True, pythons={2: "/run/bad/python3"})


GONE: Final = (
    nodes("h2, torch", "version_mismatch", "not there"),
    nodes("h2", "", "cannot run", (0, 1), "unknown"),
    Said(RUN, "unknown", words="before torch was imported"),
)
DEAD: Final = (run("rank_died"), nodes("h2", "rank_died"))
STILL: Final = (run("hang"), nodes("h2", "hang"))
RANKS: Final = (
    died("meeting", "kill", DEAD),
    died("first", "kill", DEAD),
    died("timed", "kill", DEAD),
    died("meeting", "stop", STILL),
    died("first", "stop", STILL),
    died("timed", "stop", STILL),
    died("between", "sleep", STILL),
    died("timed", "sleep", (run("hang", "all ranks are in it, and none comes out"),)),  # whose fault it is does not show
    died("init", "7", DEAD),
    died("timed", "7", DEAD),
    died("first", "rubbish", ()),
    died("timed", "flood", ()),
    wrapped("killed", "kill -KILL $$", GONE),
    wrapped("exiting", "exit 7", GONE),
    wrapped("printing rubbish", 'head -c 100000 /dev/urandom; exec PYTHON "$@"', ()),
    wrapped("flooding", 'head -c 64000000 /dev/zero; exec PYTHON "$@"', ()),
    Row(
        "netdoctor is killed on one host",
        (nodes("h2", "missing_node", "during the all-reduce"), run("rank_died", "was lost")),
        variables={1: {"TORCH_FAULT": "first:stop"}},
        when={2: ("all-reduce across the nodes", signal.SIGKILL)},
        torch=True,
        stall=20,
    ),
    Row(
        "netdoctor is stopped on the master",
        (nodes("h0", "missing_node", "silent"), run("rank_died", "node 0 (h0) was lost: was silent")),
        when={0: ("all-reduce across the nodes", signal.SIGSTOP)},
        torch=True,
        stall=5,
    ),
    Row(
        "two versions of netdoctor",
        (nodes("h2, netdoctor", "drift"),),
        (
            (2, "mkdir /run/other; cp -rL ROOT/netdoctor /run/other"),
            (2, "sed -i 's/^__version__.*/__version__ = \"0.0.1\"/' /run/other/netdoctor/__init__.py"),
        ),
        {2: {"PYTHONPATH": "/run/other"}},
    ),
)


def written() -> Iterator[Row]:
    """The rows of hosts.yaml."""
    where = {"every": EVERY, "bridge": BRIDGE}
    plain = Row("", ())
    for given in yaml.safe_load(Path(__file__).with_name("hosts.yaml").read_text(encoding="utf-8")):
        for name in ("said", "may"):
            given[name] = tuple(Said(*(tuple(x) if isinstance(x, list) else x for x in one)) for one in given.get(name, ()))
        given["setup"] = tuple((where.get(at, at), line) for at, line in given.get("setup", ()))
        given["needs"] = (*plain.needs, *given.get("needs", ()))
        beside = given.get("beside", {})
        given["beside"] = {n: tuple(word.replace("PYTHON", sys.executable) for word in line) for n, line in beside.items()}
        yield Row(**{name: tuple(x) if isinstance(x, list) else x for name, x in given.items()})


ROWS: Final = (*written(), *PORT_ROWS, *RANKS)

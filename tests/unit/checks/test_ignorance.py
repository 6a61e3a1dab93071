"""Losing evidence never makes a pass or a skip, and never hides a subject: every fact and every field taken away in turn."""

from __future__ import annotations

import dataclasses
import functools
import re
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from netdoctor.facts.cpu import Cpu
from netdoctor.facts.environ import Environ, Launcher
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Link, LocalPorts, Net, Peer, Route
from netdoctor.facts.rdma import Provider, Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.model import Finding, Status, Unavailable
from tests.lab.ignorance import WHYS
from tests.lab.oracle import worse
from tests.support import facts as f
from tests.support.facts.healthy import Machine, dgx_h100, hgx_roce
from tests.unit.checks.test_healthy import CHECKS, machines

pytestmark = pytest.mark.slow

LOST = Unavailable("not recorded")


def faulty() -> dict[str, Machine]:
    """Machines with one fault each, so that there are fails to lose."""
    dgx = dgx_h100()
    socket = tuple(range(56, 112))
    refused = tuple(f.hca(i, uverbs=f.uverbs(i, open_errno="EPERM")) for i in range(8))
    return {
        "no GPUDirect": dgx
        | {
            PathRun: f.path_run(*(f.hca_run(i, (i + 1) % 8, f"mlx5_{i}:1", False) for i in range(8))),
            Kernel: f.kernel(modules={"nvidia_peermem": Unavailable("absent")}),
            Rdma: f.rdma(devices=tuple(f.hca(i, provider=Provider(True, "", "EOPNOTSUPP")) for i in range(8))),
        },
        "nodes refused": dgx | {Rdma: f.rdma(devices=refused)},
        "port down": dgx | {Rdma: f.rdma(devices=tuple(f.hca(i, ports=(f.port(state="DOWN"),)) for i in range(8)))},
        "GID elsewhere": hgx_roce() | {Rdma: f.rdma(devices=tuple(f.hca(i, ports=(f.roce_port("gone"),)) for i in range(8)))},
        "memlock": dgx | {Kernel: f.kernel(limits={"memlock": 1 << 16}), PathRun: f.path_run()},
        "wrong socket": dgx
        | {Baseline: f.baseline(f.run(ranks=tuple(f.rank(i, affinity=socket, thread_affinity=socket) for i in range(8))))},
        "memory of one node": dgx | {Cpu: f.cpu(memory_allowed=frozenset({0}))},
        "a GPU lost": dgx | {Gpus: f.gpus(7)},
        "level set": dgx | {Environ: f.environ({"NCCL_NET_GDR_LEVEL": "LOC"}), PathRun: f.path_run()},
        "old library": dgx | {Libraries: f.libraries(nccl=(f.library(version=(2, 21, 5)),)), Baseline: LOST},
    }


LO, BR = f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("br-1a2b", 2, "172.18.0.1", kind="bridge")
ETH0, SLOW = f.netlink_link("eth0", 5, "10.0.0.7", speed_mbps=100000), f.netlink_link("eth1", 6, "10.1.0.7", speed_mbps=1000)
FAR = Peer("10.0.0.1", ("10.0.0.1",), {"10.0.0.1": Route("eth0")}, local=False, rtt_ms=1.0)
HERE = Peer("10.0.0.7", ("10.0.0.7",), {}, local=True)
DEFAULT = Route("eth0")


def ether(*links: Link, **changes: Any) -> Net:
    return f.net(*links, **{"default_route": DEFAULT, **changes})


SCENES: dict[str, dict[type, object]] = {
    "a bridge before the interface with the route": {Net: ether(LO, BR, ETH0, master=FAR)},
    "the same on a node by itself": {Net: ether(LO, BR, ETH0)},
    "the loopback by name": {Net: ether(LO, ETH0, master=FAR), Environ: f.environ({"NCCL_SOCKET_IFNAME": "lo"})},
    "a name that is not there": {Net: ether(LO, ETH0), Environ: f.environ({"NCCL_SOCKET_IFNAME": "ib"})},
    "a Gloo name that is not there": {Net: ether(LO, ETH0), Environ: f.environ({"GLOO_SOCKET_IFNAME": "ib0"})},
    "a host name on the loopback": {
        Net: ether(LO, ETH0, master=FAR, hostname_addresses=("127.0.1.1",)),
        Intent: f.job(gloo_groups=1),
    },
    "sockets over a slow interface": {
        Net: ether(LO, ETH0, SLOW, master=FAR),
        Baseline: f.baseline(f.run(log=f.log(net="Socket"))),
    },
    "sockets without RDMA over a slow interface": {Net: ether(LO, ETH0, SLOW, master=FAR), Rdma: f.no_rdma()},
    "several nodes by the launcher": {
        Net: ether(LO, default_route=None),
        Environ: f.environ(launcher=Launcher("torchrun", 0, 16, 0, 8, 2)),
    },
    "several nodes by the configuration": {Net: ether(LO, default_route=None), Intent: f.job(nodes=2)},
    "a narrow range": {LocalPorts: f.ports(low=40000, high=40040)},
    "a range that is reserved": {LocalPorts: f.ports(reserved=frozenset(range(32768, 60980)))},
    "many communicators": {LocalPorts: f.ports(low=40000, high=40999), Intent: f.job(communicators=64)},
    "a lowered floor": {LocalPorts: f.ports(low=1024, high=65535)},
    "a master port inside the range": {Net: ether(LO, ETH0, master=HERE, master_port=40000)},
    "a master port of somebody else": {
        Net: ether(LO, ETH0, master=HERE, master_port=29500),
        LocalPorts: f.ports(listening=frozenset({29500}), owners={29500: frozenset({7})}),
    },
    "no auto-tuning": {
        Net: ether(LO, ETH0, master=FAR),
        Rdma: f.no_rdma(),
        Baseline: LOST,
        Kernel: f.kernel(sysctls={**f.kernel().sysctls, "net.ipv4.tcp_moderate_rcvbuf": "0"}),
    },
}


_hints = functools.cache(typing.get_type_hints)


def losses(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    """(name, `value` with one field or entry lost), at every depth; of a tuple of many like things the first stands for all."""
    if isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
        for number, one in enumerate(value[: len(value) if len(value) < 5 else 1]):
            for name, less in losses(one, f"{where}[{number}]"):
                yield name, (*value[:number], less, *value[number + 1 :])
        return
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return
    hints = _hints(type(value))
    for field in dataclasses.fields(value):
        have, hint = getattr(value, field.name), hints[field.name]
        here = f"{where}.{field.name}"
        if Unavailable in typing.get_args(hint) and not isinstance(have, Unavailable):
            yield here, dataclasses.replace(value, **{field.name: LOST})
        if isinstance(have, Mapping) and Unavailable in [x for one in typing.get_args(hint) for x in typing.get_args(one)]:
            for key in have:
                yield f"{here}[{key}]", dataclasses.replace(value, **{field.name: {**have, key: LOST}})
        for name, less in losses(have, here):
            yield name, dataclasses.replace(value, **{field.name: less})


def without(machine: Machine, check: str) -> Iterator[tuple[str, Machine]]:
    """The machine with one thing lost that this check looks at."""
    wanted = {one for hint in typing.get_type_hints(CHECKS[check]).values() for one in (hint, *typing.get_args(hint))}
    for kind, value in machine.items():
        if kind in wanted:
            yield from ((f"{kind.__name__} ({why.kind})", machine | {kind: why}) for why in WHYS[:2])
            for name, less in losses(value, kind.__name__):
                yield name, machine | {kind: less}


def judged(check: str, machine: Machine) -> list[Finding]:
    """A GPU is called by its PCI address where nobody tells its number: pairs are compared by their HCA."""
    found = f.judge(CHECKS[check], machine)
    return [dataclasses.replace(one, subject=re.sub("^GPU.*–", "GPU–", one.subject)) for one in found]


FAULTY = faulty() | {name: f.machine({NcclChoice: LOST, **scene}) for name, scene in SCENES.items()}


def broken(check: str, machine: Machine, before: list[Finding]) -> list[str]:
    return [f"without {name}: {one}" for name, less in without(machine, check) for one in worse(before, judged(check, less))]


@pytest.mark.parametrize(("check", "machine"), [pytest.param(c, m, id=f"{c}-{n}") for c, n, m in machines()])
def test_less_evidence_is_never_better(check: str, machine: Machine) -> None:
    bad = broken(check, machine, judged(check, machine))
    assert not bad, "\n".join(bad[:20])


@pytest.mark.parametrize("fault", FAULTY)
def test_what_fails_is_not_lost_but_unknown(fault: str) -> None:
    """By the checks that find it: what passes there passes on the healthy machines too."""
    found = {check: judged(check, FAULTY[fault]) for check in CHECKS}
    failing = {check: said for check, said in found.items() if any(x.status is Status.FAIL for x in said)}
    bad = [f"{check} {one}" for check, before in failing.items() for one in broken(check, FAULTY[fault], before)]
    assert failing and not bad, "\n".join(bad[:20])

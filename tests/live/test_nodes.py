"""`netdoctor allreduce` on four hosts in namespaces: real sockets, Gloo and firewalls; every report names the right node."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.namespaces.hosts import Hosts
from tests.support.namespaces.marks import all_gone

pytestmark = [pytest.mark.live, pytest.mark.root]
TORCH = sys.executable
NO_TORCH = "/usr/bin/python3"  # -I sees no torch of a user's: the nodes meet, and then say that they cannot run
FAULTY = {"PYTHONPATH": "/run/faulty_torch"}
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="no torch in this Python")
Report = dict[str, Any]


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(4, tmp_path)
    try:
        yield made
        assert all_gone(made.mark), "processes were left behind"
    finally:
        made.close()


def start(
    hosts: Hosts, number: int, *more: str, python: str = NO_TORCH, wait: float = 30, stall: float = 30, **variables: str
) -> subprocess.Popen[str]:
    master = [] if "--master" in more else ["--master", "h0:29400"]
    arguments = ["--nodes", "4", "--node-rank", str(number), *master, "--wait", str(wait), "--stall", str(stall)]
    only = "allreduce.run,allreduce.bandwidth,net.tcp_buffers"
    return hosts.start(
        number,
        "allreduce",
        *arguments,
        "--python",
        python,
        "--only",
        only,
        "-f",
        "json",
        *more,
        variables={**FAULTY, **variables},
    )


def report(process: subprocess.Popen[str]) -> Report:
    out, said = process.communicate(timeout=120)
    assert process.returncode in (0, 3, 4), said
    made: Report = json.loads(out)
    assert made["schema"] == "netdoctor.report/1"
    assert made["verdict"]["exit_code"] == process.returncode
    return made


def reports(*processes: subprocess.Popen[str]) -> list[Report]:
    return [report(process) for process in processes]


def until(process: subprocess.Popen[str], text: str) -> None:
    """Read its progress up to a line."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if text in line:
            return
    raise AssertionError("".join(seen))


def findings(made: Report, check: str = "allreduce.nodes", status: str = "fail") -> dict[str, Report]:
    return {f["subject"]: f for c in made["checks"] if c["id"] == check for f in c["findings"] if f["status"] == status}


@needs_torch
def test_four_healthy_hosts_one_of_them_late(hosts: Hosts, tmp_path: Path) -> None:
    kept = tmp_path / "snapshot.json"
    dotted = ("--master", "h0.rack-1.example:29400")
    two = ("--ranks-per-node", "2", "--snapshot", str(kept))  # on the first host: five ranks in all
    first = [
        start(hosts, n, *dotted, *(two if n == 0 else ()), python=TORCH, NCCL_IB_HCA="mlx5_0,mlx5_1", MASTER_PORT="29400")
        for n in range(3)
    ]
    until(first[0], "waiting for the other nodes")
    made = reports(*first, start(hosts, 3, *dotted, python=TORCH, NCCL_IB_HCA="mlx5_0,mlx5_1"))
    for n, one in enumerate(made):
        # --only is no whole look, so never called healthy; yet nothing may have failed.
        assert one["verdict"]["exit_code"] == 0 and one["verdict"]["text"].startswith("nothing failed of what was asked for"), (
            one["verdict"]
        )
        assert one["identity"]["host"] == f"h{n}"
        assert one["nodes"]["rank"] == n
        assert [m["host"] for m in one["nodes"]["members"]] == ["h0", "h1", "h2", "h3"]
        assert {m["known_by"] for m in one["nodes"]["members"]} == {"this node", "token"} and not one["nodes"]["turned_away"]
        assert [(r["ranks"], r["state"], r["verified"]) for r in one["runs"]] == [(5, "finished", True)]
        assert set(findings(one, status="pass")) == {"h0", "h1", "h2", "h3", "nodes, clocks"} - {f"h{n}"}
        assert {c["id"] for c in one["checks"]} >= {"allreduce.run", "allreduce.bandwidth", "net.tcp_buffers"}
    assert len({json.dumps(one["volatile"]["runs"][0]["busbw_gb_s"]) for one in made}) == 1  # the same run
    again = subprocess.run([sys.executable, "-m", "netdoctor", "diagnose", kept, "-f", "json"], capture_output=True, check=True)
    stable = {**json.loads(again.stdout), "volatile": made[0]["volatile"]}
    assert stable == made[0]


@pytest.mark.parametrize(("tokens", "known"), [(("", "", "", ""), "nothing"), (("a" * 16, "a" * 16, "b" * 16, ""), "token")])
def test_nodes_that_do_not_prove_themselves_are_unknown(hosts: Hosts, tokens: tuple[str, ...], known: str) -> None:
    """No token at all: they meet, and none is healthy.  Another one, or none: that node is named and not there."""
    made = reports(*(start(hosts, n, wait=6, NETDOCTOR_TOKEN=token) for n, token in enumerate(tokens)))
    assert {one["verdict"]["exit_code"] for one in made} == {4} and not any(findings(one) for one in made)
    assert all(one["nodes"]["proof"] in (known, "nothing") for one in made)
    said = findings(made[0], status="unknown")
    if known == "nothing":
        assert "neither a token nor MUNGE" in said["meeting"]["message"]
    else:
        assert "its token is another one" in said["node 2"]["message"] and "neither" in said["node 3"]["message"]


def test_an_absent_host_is_named_and_comes_too_late(hosts: Hosts) -> None:
    made = reports(*(start(hosts, n, wait=3) for n in range(3)))
    for one in made:
        assert one["verdict"]["exit_code"] == 3
        named = findings(one)
        assert list(named) == ["node 3"]
        assert "did not come within 3 s" in named["node 3"]["message"]
        assert findings(one, "allreduce.run", "unknown")
    late = report(start(hosts, 3, wait=1))
    assert [f["evidence"]["kind"] for f in findings(late).values()] == ["refused"]
    assert "node 0 (master, h0:29400)" in findings(late)["node 0"]["message"]


def test_an_absent_master_is_named_and_how(hosts: Hosts) -> None:
    hosts.sh(1, "iptables -A OUTPUT -d 10.99.0.1 -j DROP")
    hosts.sh(2, "ip route add unreachable 10.99.0.1/32")
    made = reports(*(start(hosts, n, wait=2) for n in (1, 2, 3)))
    assert [findings(one)["node 0"]["evidence"]["kind"] for one in made] == ["timed out", "no route", "refused"]
    assert all(set(findings(one)) == {"node 0"} and one["verdict"]["exit_code"] == 3 for one in made)


@pytest.mark.parametrize(("target", "kind"), [("DROP", "timed out"), ("REJECT --reject-with tcp-reset", "refused")])
def test_a_firewalled_host_is_named_by_all(hosts: Hosts, target: str, kind: str) -> None:
    hosts.sh(2, f"iptables -A INPUT -i eth0 -p tcp --syn -j {target}")
    # Other variables on one host, of which NCCL takes the first differently: seen in the same meeting.
    made = reports(*(start(hosts, n, **({"NCCL_ALGO": "Tree"} if n == 1 else {})) for n in range(4)))
    for one in made:
        named = findings(one)
        assert set(named) == {"h2", "h1, variable NCCL_ALGO"}
        assert named["h2"]["cause"] == "firewall_connect"
        assert "cannot be reached by nodes 0, 1, 3" in named["h2"]["message"] and kind in named["h2"]["message"]
        assert named["h1, variable NCCL_ALGO"]["cause"] == "drift"


@needs_torch
def test_a_host_behind_a_firewall_hangs_the_others(hosts: Hosts) -> None:
    hosts.sh(0, "iptables -A INPUT -i eth0 -p tcp --syn ! --dport 29400 -j DROP")
    made = reports(*(start(hosts, n, python=TORCH, stall=4) for n in range(4)))
    for one in made:
        assert one["verdict"]["exit_code"] == 3
        assert {s: f["cause"] for s, f in findings(one).items()} == {"h0": "firewall_connect"}
        ran = findings(one, "allreduce.run")["node"]
        assert ran["cause"] == "firewall_connect" and "node 0 (h0) cannot be reached by nodes 1, 2, 3" in ran["message"]


@needs_torch
@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        ("timed:kill", "rank_died"),
        ("timed:stop", "hang"),
    ],
)
def test_a_host_whose_rank_dies_or_stops_is_named_by_all(hosts: Hosts, fault: str, cause: str) -> None:
    made = reports(*(start(hosts, n, python=TORCH, stall=4, **({"TORCH_FAULT": fault} if n == 2 else {})) for n in range(4)))
    for one in made:
        assert one["verdict"]["exit_code"] == 3
        assert {s: f["cause"] for s, f in findings(one).items()} == {"h2": cause}
        assert [f["evidence"]["ranks"] for f in findings(one, "allreduce.run").values()] == [[2]]
        assert "(h2)" in one["volatile"]["runs"][0]["reason"]


@needs_torch
@pytest.mark.parametrize("victim", [0, 3])
def test_a_netdoctor_that_is_killed_is_named_by_all(hosts: Hosts, victim: int) -> None:
    started = [start(hosts, n, python=TORCH, stall=20, **({"TORCH_FAULT": "first:stop"} if n == 2 else {})) for n in range(4)]
    until(started[victim], "all-reduce across the nodes")
    os.kill(started[victim].pid, signal.SIGKILL)
    made = reports(*(one for n, one in enumerate(started) if n != victim))
    for one in made:
        assert one["verdict"]["exit_code"] == 3
        assert set(findings(one)) == {f"h{victim}"}

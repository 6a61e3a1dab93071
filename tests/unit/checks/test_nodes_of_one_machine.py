"""allreduce.nodes: what is no other node, and a port that no job has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.cluster.observations import Cluster, Endpoints, Fault, Nodes
from netdoctor.model import Status
from tests.support.facts import cluster
from tests.unit.checks.test_allreduce_nodes import findings


def test_a_port_of_netdoctor_s_own_is_no_fault_of_a_job() -> None:
    taken = Cluster(Nodes(2, 0, "h0", 29400), {0: "h0"}, master=(Fault.PORT_TAKEN, "port 29400 cannot be listened on: in use"))
    assert {f.status for f in findings(taken)} == {Status.UNKNOWN}
    assert any((f.how or "").startswith("another port: --master") for f in findings(taken))


@pytest.mark.parametrize("here", range(3))
def test_processes_of_one_network_are_no_two_nodes(here: int) -> None:
    """Nothing between them leaves the machine.  Pods of one machine have networks of their own: a way that can break."""
    two = {n: Endpoints("shared" if n < 2 else "alone") for n in range(3)}
    found = {f.subject: f.status for f in findings(replace(cluster(3, endpoints=two), nodes=Nodes(3, here, "h0", 29400)))}
    expected = {0: Status.UNKNOWN, 1: Status.UNKNOWN, 2: Status.PASS}
    assert {n: found[f"h{n}"] for n in range(3) if n != here} == {n: s for n, s in expected.items() if n != here}
    for apart in ("", "other"):  # not told, or others
        places = {n: Endpoints(apart and f"{apart} {n}") for n in range(3)}
        assert {f.status for f in findings(cluster(3, endpoints=places)) if f.subject in ("h1", "h2")} == {Status.PASS}

"""`expected.hca_rate_gbps`: what a site says of the rate of its network is judged."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.facts.intent import Intent
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Severity, Status, Unavailable
from tests.support.facts import (
    NO_GPU,
    environ,
    expected,
    hca,
    job,
    judge,
    machine,
    pci,
    port,
    rdma,
)

FAST, SLOW = port(rate_gbps=400.0), port(rate_gbps=200.0)


def test_the_rate_counts_where_there_is_no_accelerator() -> None:
    facts = {**NO_GPU, Rdma: rdma(devices=(hca(0, ports=(SLOW,)),)), Pci: pci(0, 1), Expected: expected(hca_rate_gbps=400.0)}
    found = judge(dev_infiniband, machine(facts))
    assert {f.subject: f.status for f in found} == {"node": Status.SKIP, "rate": Status.FAIL}


def rates(*ports: Any, wanted: float | None = 400, **variables: str) -> dict[str, Status]:
    devices = rdma(devices=tuple(hca(i, ports=given) for i, given in enumerate(ports)))
    found = judge(dev_infiniband, machine({Rdma: devices, Expected: expected(hca_rate_gbps=wanted)} | environ_of(variables)))
    return {f.subject: f.status for f in found if "rate" in f.subject}


def environ_of(variables: dict[str, str]) -> dict[type, object]:
    return {type(environ()): environ(variables)} if variables else {}


def test_a_port_below_the_rate_fails_and_is_named() -> None:
    assert rates((FAST,), (FAST,)) == {"rate": Status.PASS}
    assert rates((FAST,), (SLOW,)) == {"rate": Status.FAIL}
    assert rates((SLOW,), wanted=None) == {}
    assert rates((SLOW,), wanted=200) == {"rate": Status.PASS}


def test_a_rate_that_could_not_be_read_is_unknown() -> None:
    assert rates((port(rate_gbps=Unavailable("denied")),)) == {"rate": Status.UNKNOWN}
    assert rates(Unavailable("denied")) == {"rate": Status.UNKNOWN}


def test_ports_that_are_not_the_jobs_do_not_count() -> None:
    assert rates((FAST,), (SLOW,), NCCL_IB_HCA="=mlx5_0") == {"rate": Status.PASS}
    assert rates((FAST, port(2, rate_gbps=10.0)), NCCL_IB_HCA="=mlx5_0:1") == {"rate": Status.PASS}
    assert rates((FAST, port(2, state="DOWN", rate_gbps=10.0))) == {"rate": Status.PASS}


def test_no_port_at_all_is_no_pass() -> None:
    assert rates((port(state="DOWN", rate_gbps=10.0),)) == {"rate": Status.UNKNOWN}


def test_who_is_slow_is_named() -> None:
    facts = {Rdma: rdma(devices=(hca(0), hca(1, ports=(SLOW,)))), Expected: expected(hca_rate_gbps=400.0)}
    found = next(f for f in judge(dev_infiniband, machine(facts)) if f.subject == "rate")
    assert found.message == "mlx5_1:1 runs at 200 Gb/s; 400 expected"


@pytest.mark.parametrize(("nodes", "severity"), [(2, Severity.CRITICAL), (None, Severity.WARNING)])
def test_hcas_without_a_cable_cost_a_job_of_several_nodes(nodes: int | None, severity: Severity) -> None:
    facts = {Rdma: rdma(devices=(hca(0, ports=(port(state="DOWN", physical="Disabled", rate_gbps=10.0),)),))}
    (found,) = judge(dev_infiniband, machine(facts | ({Intent: job(nodes=nodes)} if nodes else {Intent: Intent()})))
    told = found.perhaps or found
    assert told.loss is not None and told.loss.severity is severity

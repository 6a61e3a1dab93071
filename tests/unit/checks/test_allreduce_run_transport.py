"""`expected.transport`: what a site says of its network is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.causes.results import completed
from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.checks.rdma_dev_infiniband import dev_infiniband
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.nccl.log.facts import NetSource
from tests.support.facts import (
    NO_GPU,
    baseline,
    expected,
    hca_run,
    judge,
    log,
    machine,
    path_run,
    pci,
    port,
    rdma,
    run,
)

IB = log(net="IB", network="IB")
SOCKET = log(net="Socket", network="Socket")
EFA = log(net="Libfabric", network="AWS Libfabric")
GUESSED = log(net="Socket", network="Socket", net_inferred=NetSource.ERRORS)
FAST, SLOW = port(rate_gbps=400.0), port(rate_gbps=200.0)


def transport(wanted: str | None, first: Any, *paths: Any, **more: Any) -> Finding | None:
    runs = {
        Baseline: baseline(replace(run(), log=first)),
        PathRun: PathRun(tuple(hca_run(hca=f"mlx5_{i}:1", log=one) for i, one in enumerate(paths))),
    }
    found = judge(allreduce_run, machine({**runs, Expected: expected(transport=wanted)} | more.get("facts", {})))
    return next((f for f in found if f.subject == "transport"), None)


@pytest.mark.parametrize(
    ("wanted", "logs", "status", "severity"),
    [
        ("IB", (IB, IB), Status.PASS, None),
        ("RoCE", (IB,), Status.PASS, None),
        ("EFA", (EFA, EFA), Status.PASS, None),
        ("FasTrak", (log(net="FASTRAK", network="FASTRAK"),), Status.PASS, None),
        ("UCX", (log(net="UCX_v8", network="UCX_v8"),), Status.PASS, None),
        ("Socket", (SOCKET, SOCKET), Status.PASS, None),
        ("IB", (SOCKET, SOCKET), Status.FAIL, Severity.CRITICAL),
        ("IB", (IB, IB, SOCKET), Status.FAIL, Severity.CRITICAL),
        ("EFA", (IB, SOCKET), Status.FAIL, Severity.CRITICAL),
        ("Socket", (IB, IB), Status.FAIL, Severity.WARNING),
        ("IB", (None,), Status.UNKNOWN, None),
        ("IB", (IB, None), Status.UNKNOWN, None),
        ("IB", (GUESSED,), Status.UNKNOWN, None),
    ],
)
def test_the_transport_is_judged(wanted: str, logs: tuple[Any, ...], status: Status, severity: Severity | None) -> None:
    found = transport(wanted, *logs)
    assert found is not None and found.status is status
    assert completed(found, "allreduce.run", "hang").severity is severity
    assert found.cause == ("transport_fallback_tcp" if severity is Severity.CRITICAL else found.cause)


def test_without_a_statement_nothing_is_said_of_the_transport() -> None:
    assert transport(None, SOCKET) is None


def test_a_statement_that_was_not_read() -> None:
    found = transport(None, IB, facts={Expected: Unavailable("denied")})
    assert found and found.status is Status.UNKNOWN


def test_runs_that_are_not_there_show_nothing() -> None:
    lost = {Baseline: Unavailable("refused", "--no-allreduce"), PathRun: Unavailable("refused", "--no-allreduce")}
    found = transport("IB", IB, facts=lost)
    assert found is not None and found.status is Status.UNKNOWN and "--no-allreduce" in found.message
    half = transport("IB", IB, facts={PathRun: Unavailable("no budget")})
    assert half is not None and half.status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"transport": "IB"}, Status.FAIL),  # NCCL does not run at all
        ({"transport": "EFA"}, Status.FAIL),
        ({"transport": "IB", "gpus": 0}, Status.SKIP),  # the site says that this node has no GPU
        ({"transport": "Socket"}, Status.SKIP),
    ],
)
def test_a_machine_without_accelerator_has_no_transport(said: dict[str, Any], status: Status) -> None:
    found = transport(None, None, facts={**NO_GPU, Expected: expected(**said)})
    assert found is not None and found.status is status


PCI_OF = {"none": pci(8, 0), "eight": pci(8, 8), "no GPU": pci(0, 0)}


@pytest.mark.parametrize(
    ("said", "on_bus", "status"),
    [
        ({"hca_rate_gbps": 400.0}, "none", Status.FAIL),
        ({"hca_rate_gbps": 400.0}, "eight", Status.FAIL),
        ({"hca_rate_gbps": 400.0}, "no GPU", Status.FAIL),
        ({"hca_rate_gbps": 400.0, "hcas": 0}, "none", Status.SKIP),
        ({"transport": "RoCE"}, "none", Status.FAIL),
        ({"transport": "EFA"}, "none", Status.FAIL),
        ({"transport": "RoCE", "gpus": 0}, "no GPU", Status.SKIP),
        ({"transport": "Socket"}, "none", Status.SKIP),
        ({"transport": "FasTrak"}, "none", Status.SKIP),  # it goes over the host's own interfaces
    ],
)
def test_a_network_of_which_there_is_no_device_is_no_skip(said: dict[str, Any], on_bus: str, status: Status) -> None:
    none = {Rdma: rdma(0), Pci: PCI_OF[on_bus], **({Gpus: NO_GPU[Gpus]} if on_bus == "no GPU" else {})}
    found = judge(dev_infiniband, machine({**none, Expected: expected(**said)}))
    assert [f.status for f in found] == [status], found


def test_a_site_of_sockets_is_not_alarmed_by_sockets() -> None:
    runs = {Baseline: baseline(replace(run(), log=SOCKET)), PathRun: path_run(hca_run(log=SOCKET))}
    found = judge(allreduce_run, machine({**runs, Expected: expected(transport="Socket")}))
    assert not [f for f in found if f.status is Status.FAIL]
    without = judge(dev_infiniband, machine({Rdma: rdma(0), Pci: pci(8, 0), Expected: expected(transport="Socket")}))
    assert not [f for f in without if f.status is Status.FAIL]

"""Real NCCL on real GPUs: ranks of every kind that one node can have.  Needs an NVIDIA GPU and a CUDA build of torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from netdoctor.allreduce.cause import cause_of
from netdoctor.allreduce.plan import ONE_GPU_ENV
from netdoctor.allreduce.runner import Session
from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.facts import gpu, net, pci
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.job import Expected
from netdoctor.facts.nccl_version import parse as parse_version
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import AllReduce, Baseline, Run
from netdoctor.host.base import mapping, question
from netdoctor.host.helpers import elf
from netdoctor.host.live import LiveHost
from netdoctor.model import Status, Unavailable
from netdoctor.nccl import ifname
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from netdoctor.snapshot.snapshot import with_logs
from tests.support.facts import judge
from tests.support.machines import gpus

pytestmark = [pytest.mark.live, pytest.mark.gpu]
gpus.need()
Note = Callable[[str, object], None]
MULTI_RANK_FROM = (2, 30, 3)  # NCCL_MULTI_RANK_GPU_ENABLE (release notes)


@pytest.fixture(scope="module")
def host() -> Iterator[LiveHost]:
    made = LiveHost()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared(gpu_session: Session) -> Run:
    """Two ranks on GPU 0 as two hosts."""
    run: Run = with_logs(Baseline(gpus.tried(gpu_session.run(gpus.shared_gpu())), True)).run
    return run


def version_of(run: Run) -> tuple[int, int, int]:
    found = parse_version(run.nccl_version)
    assert found is not None, run.nccl_version
    return found


def note(record: Note, run: Run) -> None:
    """What a reader of the evidence wants to know of a run."""
    log = parse_text(run.log_text)
    record("nccl", run.nccl_version)
    record("torch", run.torch_version)
    record("transports", dict(log.transports))
    record("network", log.network)
    record("seconds", round(run.seconds, 2))
    record("latency_us", {size: round(taken * 1e6, 1) for size, taken in run.latency.items()})


def right(run: Run) -> None:
    assert (run.state, run.verified, run.blamed) == ("finished", True, ()), (run.state, run.reason, run.output[-1500:])


def test_a_world_of_one(gpu_session: Session, record_property: Note) -> None:
    run = gpus.tried(gpu_session.run(gpus.ONE))
    right(run)
    note(record_property, run)
    assert parse_text(run.log_text).comms_complete == 1, run.log_text[-2000:]  # NCCL itself says so
    assert all(value > 0 for value in run.latency.values())


def test_four_routes_give_one_version(gpu_session: Session, host: LiveHost, record_property: Note) -> None:
    run = gpus.tried(gpu_session.run(gpus.ONE))
    right(run)
    routes: dict[str, object] = {"torch": version_of(run), "log": parse_version(parse_text(run.log_text).nccl_version or "")}
    if not run.mapped:
        record_property("routes", routes)
        assert len(set(routes.values())) == 1
        pytest.skip("NCCL is linked into torch: no file to open, and none in the maps; torch and log agree")
    (path,) = run.mapped
    text = elf.version_text(path)
    routes["maps"] = parse_version((text or "").partition("+")[0])
    told = mapping(host, question("nccl", path=path))
    assert not isinstance(told, Unavailable), told
    routes["dlopen"] = tuple(told["version"])
    record_property("routes", {name: ".".join(map(str, v)) if isinstance(v, tuple) else v for name, v in routes.items()})
    assert len(set(routes.values())) == 1, routes


def test_two_ranks_on_one_gpu_as_two_hosts(shared: Run, record_property: Note) -> None:
    note(record_property, shared)
    right(shared)
    log = parse_text(shared.log_text)
    assert {via.transport for via in log.vias} == {"NET"}, log.transports
    assert log.nodes == 2 and log.nranks == 2
    record_property("nodes", log.nodes)


def test_the_interface_is_the_one_that_nccl_said(shared: Run, host: LiveHost, record_property: Note) -> None:
    right(shared)
    if not shared.mapped:
        pytest.skip("NCCL is linked into torch: there is no library to ask")
    log = parse_text(shared.log_text)
    told = mapping(host, question("nccl", path=shared.mapped[0]))
    assert not isinstance(told, Unavailable), told
    links = net.probe(host)
    assert not isinstance(links, Unavailable) and not isinstance(links.links, Unavailable)
    variables = {name: os.environ[name] for name in ifname.VARIABLES if name in os.environ}
    emulated = ifname.choose(links.links, version_of(shared), variables)
    assert not isinstance(emulated, Unavailable) and emulated
    used = {(one.ifname, one.address.partition("<")[0].partition("%")[0]) for one in log.bootstraps}
    record_property("bootstrap", sorted(name for name, _ in used))
    assert used == {(told["interface"], told["address"])}
    assert used == {(emulated[0].interface, emulated[0].address.partition("%")[0])}
    if log.net == "Socket":
        striped = ifname.choose(links.links, version_of(shared), variables, "socket")
        assert not isinstance(striped, Unavailable)
        record_property("sockets", len(striped))
        assert {one.ifname for one in log.socket_interfaces} == {one.interface for one in striped}


def test_two_ranks_on_one_gpu_by_nccls_own_switch(gpu_session: Session, shared: Run, record_property: Note) -> None:
    if version_of(shared) < MULTI_RANK_FROM:
        pytest.skip(f"NCCL {shared.nccl_version} has no NCCL_MULTI_RANK_GPU_ENABLE (from 2.30.3)")
    changes = (*ONE_GPU_ENV, ("NCCL_MULTI_RANK_GPU_ENABLE", "1"))
    run = gpus.tried(gpu_session.run(AllReduce("nccl", 2, "cuda", (4096, gpus.MIB), changes, gpus=(0, 0))))
    note(record_property, run)
    right(run)


def test_a_duplicate_gpu_is_a_finding(gpu_session: Session, host: LiveHost, record_property: Note) -> None:
    run = with_logs(Baseline(gpus.tried(gpu_session.run(AllReduce("nccl", 2, "cuda", (4096,), gpus=(0, 0)))), True)).run
    assert run.state == "failed" and run.blamed, (run.state, run.reason)
    assert cause_of(run) == "duplicate_gpu", (run.reason, run.log_text[-2000:])
    seen = {Pci: pci.probe(host), Gpus: gpu.probe(host), Expected: Expected()}
    found, *_ = judge(allreduce_run, {Baseline: Baseline(run, True), **seen})
    record_property("finding", found.message)
    record_property("nccl_said", [line for line in run.log_text.splitlines() if "Duplicate" in line][:1])
    assert (found.status, found.cause) == (Status.FAIL, "duplicate_gpu")
    assert "Traceback" not in found.message


def test_the_whole_preflight(record_property: Note) -> None:
    code, report, said = gpus.preflight()
    states = {c["id"]: c["status"] for c in report["checks"]}
    record_property("exit", code)
    record_property("checks", states)
    record_property("fails", [f["message"][:160] for c in report["checks"] for f in c["findings"] if f["status"] == "fail"])
    assert "error" not in states.values(), said[-1500:]
    assert gpus.finding(report, "allreduce.run")["status"] == "pass", gpus.finding(report, "allreduce.run")["message"]


def test_the_parser_reads_every_line_that_matters(gpu_session: Session, record_property: Note) -> None:
    run = gpus.tried(gpu_session.run(gpus.two_ranks()))
    right(run)
    log = parse_text(run.log_text)
    record_property("subsystems", sorted(log.subsystems))
    record_property("absent", sorted(log.absent))
    assert parse_version(log.nccl_version or "") == version_of(run)
    assert log.network and log.bootstraps and log.vias
    assert (log.nranks, log.comms_complete) == (run.experiment.ranks, run.experiment.ranks)
    assert log.cuda_version
    assert {via.src for via in log.vias} == set(range(run.experiment.ranks))
    record_property("rings", log.rings)  # 0 where the tuner took trees only
    fails = [f"{f.cause}: {f.message}" for f in diagnose(log) if f.status is Status.FAIL]
    assert not fails  # what `netdoctor log` would say about a healthy run

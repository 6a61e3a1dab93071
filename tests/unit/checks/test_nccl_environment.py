"""nccl.environment: facts to findings."""

from __future__ import annotations

from typing import Any

import pytest

from checks.nccl_environment import environment
from netdoctor.facts.environ import ConfFile, ConfRole, Environ, Rights, entries, probe, without_value
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from tests.support.facts import (
    environ,
    gpu,
    gpus,
    job,
    judge,
    libraries,
    library,
    machine,
    net,
    netlink_link,
    no_rdma,
    outside,
    plugin,
    rdma,
    vantage,
)
from tests.support.facts.variables import HEALTHY

ROOTS = {"stat:/etc/nccl.conf": {"uid": 0, "mode": 0o644}}
PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN


def found(variables: dict[str, str], **facts: Any) -> list[Finding]:
    kinds = {
        "environ": Environ,
        "libraries": Libraries,
        "rdma": Rdma,
        "job": Intent,
        "vantage": Vantage,
        "net": Net,
        "gpus": Gpus,
    }
    return judge(environment, machine({Environ: environ(variables), Intent: job(), **{kinds[k]: v for k, v in facts.items()}}))


def conf_file(text: str) -> ConfFile:
    return ConfFile("/etc/nccl.conf", entries(text, "/etc/nccl.conf"), ConfRole.SYSTEM, without_value(text))


def short(findings: list[Finding]) -> list[tuple[str, Status]]:
    return [(f.subject, f.status) for f in findings]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [("node", PASS)]),
        ({"NCCL_DEBUG": "WARN", "NCCL_IB_TIMEOUT": "22"}, [("node", PASS)]),
        ({"NCCL_IB_DISABLE": "true"}, [("NCCL_IB_DISABLE", FAIL)]),
        ({"NCCL_IB_DISABLE": "true", "NCCL_DEBUG": "WARN"}, [("NCCL_IB_DISABLE", FAIL), ("node", PASS)]),
        ({"NCCL_P2P_DISABLE": "1"}, [("NCCL_P2P_DISABLE", FAIL)]),
        ({"NCCL_NET": "InfiniBand"}, [("NCCL_NET", FAIL)]),
        ({"NCCL_NET": "tcp"}, [("NCCL_NET", FAIL)]),
        ({"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}, [("TORCH_NCCL_ASYNC_ERROR_HANDLING", FAIL)]),  # on one node, too
        ({"NCCL_IB_HCA": "mlx9"}, [("NCCL_IB_HCA", UNKNOWN)]),  # a fail if the job has other nodes
        ({"NCCL_RUN_DIAGNOSTICS": "1"}, [("NCCL_RUN_DIAGNOSTICS", FAIL)]),
        ({"UCX_NOT_KNOWN": "1"}, [("UCX_NOT_KNOWN", UNKNOWN)]),
        ({"NCCL_SOCKET_IFNAME": "ens"}, [("NCCL_SOCKET_IFNAME", FAIL)]),
        ({"GLOO_SOCKET_IFNAME": "eth0"}, [("node", PASS)]),
        ({"RANK": "0", "LD_LIBRARY_PATH": "/x"}, [("node", PASS)]),
        ({"RANK": "15", "WORLD_SIZE": "16"}, [("node", PASS)]),
        ({"RANK": "16", "WORLD_SIZE": "16"}, [("RANK", FAIL)]),
        ({"LOCAL_RANK": "8", "LOCAL_WORLD_SIZE": "8"}, [("LOCAL_RANK", FAIL)]),
        ({"PET_NODE_RANK": "2", "PET_NNODES": "2"}, [("PET_NODE_RANK", FAIL)]),
        ({"PET_NODE_RANK": "2", "PET_NNODES": "2:4"}, [("node", PASS)]),
    ],
)
def test_variables_of_the_job(variables: dict[str, str], expected: list[tuple[str, Status]]) -> None:
    assert short(found(variables)) == expected


@pytest.mark.parametrize(
    ("name", "answer", "severity"),
    [
        ("NCCL_GRAPH_FILE", Unavailable(Kind.ABSENT), Severity.CRITICAL),
        ("NCCL_TOPO_FILE", Unavailable(Kind.ABSENT), Severity.WARNING),
        ("NCCL_TOPO_FILE", {"type": "file"}, None),
    ],
)
def test_a_file_that_is_not_there(name: str, answer: Any, severity: Severity | None) -> None:
    seen = probe(ReplayHost({"env:": {name: "/x.xml"}, "stat:/x.xml": answer, "file:/etc/nccl.conf": "", **ROOTS}))
    assert [one.severity for one in found({}, environ=seen)] == [severity]


@pytest.mark.parametrize("name", ["NCCL_GRAPH_FILE", "NCCL_TOPO_FILE"])
@pytest.mark.parametrize("kind", [Kind.DENIED, Kind.TIMED_OUT, Kind.MALFORMED])
def test_a_file_that_could_not_be_read_is_no_pass(name: str, kind: Kind) -> None:
    answers = {"stat:/x.xml": {"type": "file"}, "file:/x.xml": Unavailable(kind), "file:/etc/nccl.conf": "", **ROOTS}
    seen = probe(ReplayHost({"env:": {name: "/x.xml"}, **answers}))
    assert (name, Status.UNKNOWN) in short(found({}, environ=seen))


def test_an_empty_name_of_a_graph_stops_nccl() -> None:
    assert [one.severity for one in found({"NCCL_GRAPH_FILE": ""})] == [Severity.CRITICAL]


TOPOLOGY = '<cpu numaid="0"><pci busid="0000:{}:00.0" class="0x030200"/><pci busid="0000:05:00.0" class="0x020700"/></cpu>'


@pytest.mark.parametrize(
    ("xml", "severities"),
    [
        (TOPOLOGY.format("1b"), [None]),
        (TOPOLOGY.format("1B") + TOPOLOGY.format("43"), [None]),  # a job that is given one of two
        (TOPOLOGY.format("43"), [Severity.WARNING, None]),
        ('<system version="1"><nic busid="0000:05:00.0" class="0x020700"/></system>', [None]),  # NCCL adds the GPUs
    ],
    ids=["of here", "of more", "of another machine", "without GPUs"],
)
def test_whose_topology_a_file_holds(xml: str, severities: list[Severity | None]) -> None:
    answers = {"stat:/x.xml": {"type": "file"}, "file:/x.xml": xml, "file:/etc/nccl.conf": "", **ROOTS}
    seen = probe(ReplayHost({"env:": {"NCCL_TOPO_FILE": "/x.xml"}, **answers}))
    assert [one.severity for one in found({}, environ=seen, gpus=gpus(1))] == severities


@pytest.mark.parametrize(("gpus_there", "severities"), [(1, [Severity.CRITICAL, None]), (2, [None])])
def test_a_file_of_graphs_with_more_gpus(gpus_there: int, severities: list[Severity | None]) -> None:
    xml = '<graphs version="1"><graph id="0"><channel><gpu dev="0"/><gpu dev="1"/></channel></graph></graphs>'
    answers = {"stat:/g.xml": {"type": "file"}, "file:/g.xml": xml, "file:/etc/nccl.conf": "NCCL_GRAPH_FILE=/g.xml\n", **ROOTS}
    seen = probe(ReplayHost({"env:": {}, **answers}))
    assert [one.severity for one in found({}, environ=seen, gpus=gpus(gpus_there))] == severities


@pytest.mark.parametrize("name", sorted(HEALTHY))
def test_healthy_setups(name: str) -> None:
    version, values = HEALTHY[name]
    here = libraries(nccl=(library(version=tuple(int(n) for n in version.split("."))),))  # type: ignore[arg-type]
    devices = rdma() if "dgx" not in name else Unavailable("denied")
    links = net(*(netlink_link(name, i, f"10.0.{i}.7") for i, name in enumerate(("lo", "ens5", "eth0", "eth1", "bond0"), 1)))
    statuses = {f.status for f in found(values, libraries=here, rdma=devices, net=links) if f.blocking}
    # NCCL_IB_HCA chooses from devices, which could not be read there
    assert statuses == ({PASS} if "dgx" not in name else {PASS, Status.UNKNOWN})


def test_the_version_is_the_one_that_the_jobs_torch_takes() -> None:
    old = libraries(nccl=(library(version=(2, 18, 1)),))
    assert short(found({"NCCL_RAS_ENABLE": "1"}, libraries=old)) == [("NCCL_RAS_ENABLE", FAIL)]
    assert short(found({"NCCL_RAS_ENABLE": "1"})) == [("node", PASS)]


@pytest.mark.parametrize("lost", ["not recorded", "denied", "timed out"])
def test_a_version_that_is_not_known_makes_no_pass_of_a_fail(lost: str) -> None:
    for variables in ({"NCCL_RAS_ENABLE": "1"}, {"NCCL_P2P_LEVEL": "P2C"}, {"NCCL_WORK_FIFO_DEPTH": "1"}):
        (first, *_) = found(variables, libraries=Unavailable(lost))
        assert first.status is UNKNOWN and "depends on the NCCL version" in first.message


def test_infiniband_off() -> None:
    variables = {"NCCL_IB_DISABLE": "1"}
    assert short(found(variables)) == [("NCCL_IB_DISABLE", UNKNOWN)]
    assert short(found(variables, rdma=no_rdma())) == [("node", PASS)]
    assert short(found(variables, rdma=Unavailable("denied"))) == [("NCCL_IB_DISABLE", UNKNOWN)]
    # Where aws-ofi-nccl and Google's plugins are installed by their guides: they carry the data.
    for path in ("/opt/amazon/ofi-nccl/lib", "/usr/local/gib/lib64", "/usr/local/tcpx/lib64", "/usr/local/tcpxo/lib64"):
        there = libraries(plugins=(plugin(f"{path}/libnccl-net.so"),))
        assert short(found(variables, libraries=there)) == [("node", PASS)], path
    assert short(found(variables, job=job(nodes=1))) == [("node", PASS)]
    (wrong,) = found(variables, job=job(nodes=2))
    (open_still,) = found(variables)
    assert (wrong.status, wrong.severity) == (FAIL, Severity.CRITICAL)
    assert open_still.perhaps is not None and open_still.perhaps.severity is Severity.CRITICAL  # a gate refuses it


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({}, UNKNOWN),
        ({"job": job(nodes=1)}, PASS),
        ({"job": job(nodes=8)}, FAIL),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "lo"}, Launcher("slurm", 0, 64, 0, 8, 8, 0))}, FAIL),
        ({"environ": environ({"NCCL_SOCKET_IFNAME": "lo"}, Launcher("slurm", 0, 8, 0, 8, 1, 0))}, PASS),
    ],
)
def test_lo_does_not_serve_several_nodes(facts: dict[str, Any], status: Status) -> None:
    assert found({"NCCL_SOCKET_IFNAME": "lo"}, **facts)[0].status is status


def test_interfaces_that_nothing_can_use_do_not_count() -> None:
    idle = netlink_link("virbr0", 4, "192.168.122.1", kind="bridge", running=False)
    links = net(netlink_link("lo", 1, "127.0.0.1"), netlink_link("eth1", 2, "10.0.0.7"), netlink_link("eth10", 3), idle)
    assert short(found({"NCCL_SOCKET_IFNAME": "eth1"}, net=links)) == [("node", PASS)]
    assert short(found({"NCCL_SOCKET_IFNAME": "^lo"}, net=links)) == [("node", PASS)]
    assert short(found({"NCCL_SOCKET_IFNAME": "eth10"}, net=links)) == [("NCCL_SOCKET_IFNAME", FAIL)]


def test_interfaces_that_are_not_the_jobs_are_not_matched() -> None:
    conf = conf_file("NCCL_SOCKET_IFNAME=eth0\n")
    lost = found({}, environ=environ(conf_files=(conf,)), vantage=outside())
    assert short(lost) == [("NCCL_SOCKET_IFNAME", UNKNOWN), ("node", UNKNOWN)]


def test_another_environment_says_what_the_node_sets_for_all() -> None:
    conf = conf_file("NCCL_IB_DISABLE=true\nNCCL_ALGO=Ring\n")
    effective = {one.name: one for one in conf.entries or ()}
    fact = environ({"NCCL_SHM_DISABLE": "1"}, conf_files=(conf,))
    fact = environ({"NCCL_SHM_DISABLE": "1"}, conf_files=(conf,), nccl={**fact.nccl, **effective})  # type: ignore[dict-item]
    assert short(found({}, environ=fact)) == [("NCCL_SHM_DISABLE", FAIL), ("NCCL_IB_DISABLE", FAIL), ("node", PASS)]
    assert short(found({}, environ=fact, vantage=outside())) == [("NCCL_IB_DISABLE", FAIL), ("node", UNKNOWN)]
    (alone,) = found({}, vantage=outside())
    assert alone.status is UNKNOWN and alone.message.endswith(": seen as root outside the job")


def test_what_could_not_be_read_is_unknown() -> None:
    lost = Unavailable("not recorded")
    assert short(found({}, environ=environ(variables=lost, nccl=lost))) == [("node", UNKNOWN)]
    conf = ConfFile("/etc/nccl.conf", lost)
    got = found({}, environ=environ({"NCCL_P2P_DISABLE": "1"}, conf_files=(conf,), nccl=Unavailable("not read")))
    assert short(got) == [("NCCL_P2P_DISABLE", FAIL), ("/etc/nccl.conf", UNKNOWN), ("nccl.conf", UNKNOWN)]


def test_a_conf_file_that_the_version_does_not_read_sets_nothing() -> None:
    variables = {"NCCL_CONF_FILE": "/x/n.conf"}
    conf = ConfFile("/x/n.conf", entries("NCCL_IB_DISABLE=true", "/x/n.conf"), ConfRole.NAMED)
    effective = {one.name: one for one in conf.entries or ()}
    base = environ(variables, conf_files=(conf,))
    fact = environ(variables, conf_files=(conf,), nccl={**base.nccl, **effective})  # type: ignore[dict-item]
    assert short(found({}, environ=fact)) == [("NCCL_IB_DISABLE", FAIL), ("node", PASS)]
    old = libraries(nccl=(library(version=(2, 21, 5)),))
    assert short(found({}, environ=fact, libraries=old)) == [("NCCL_CONF_FILE", FAIL)]


def test_conf_lines_that_do_not_arrive_are_told() -> None:
    conf = conf_file("NCCL_ALGO =Ring\nNCCL_DEBUG=INFO\nNCCL_NET IB\n# NCCL_IB_SL\nhello\n\ufeffNCCL_PROTO=LL\n")
    got = found({}, environ=environ({"NCCL_DEBUG": "WARN"}, conf_files=(conf,)))
    assert short(got) == [("NCCL_NET", FAIL), ("NCCL_ALGO", FAIL), ("NCCL_PROTO", FAIL), ("node", PASS)]
    assert any("the environment says WARN and wins" in note for note in got[-1].notes)


@pytest.mark.parametrize(
    ("variables", "more", "severity"),
    [
        ({"NCCL_P2P_DISABLE": "1"}, {}, Severity.CRITICAL),  # eight H100 with NVLink: 48 of 371 GB/s are left
        ({"NCCL_P2P_DISABLE": "1"}, {"gpus": gpus(all=tuple(gpu(i, nvlinks=()) for i in range(8)))}, Severity.WARNING),
        ({"NCCL_P2P_DISABLE": "1"}, {"gpus": gpus(1)}, Severity.INFO),  # one GPU has no peer
        ({"NCCL_P2P_DISABLE": "1"}, {"gpus": Unavailable("denied")}, Severity.WARNING),
        ({"NCCL_IB_DISABLE": "1"}, {"job": job(nodes=2)}, Severity.CRITICAL),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, {"job": job(nodes=2)}, Severity.CRITICAL),
    ],
)
def test_what_a_variable_switches_off_costs(variables: dict[str, str], more: dict[str, Any], severity: Severity) -> None:
    (one,) = (x for x in found(variables, **more) if x.status is FAIL)
    assert one.severity is severity and one.loss is not None


def rights(path: str, uid: int, mode: int, role: ConfRole) -> ConfFile:
    return ConfFile(path, entries("NCCL_DEBUG=WARN\n", path), role, rights=Rights(uid, mode))


ETC, NAMED = "/etc/nccl.conf", "/home/eve/n.conf"
ROOT = {"euid": 0, "user": "root"}


@pytest.mark.parametrize(
    ("path", "uid", "mode", "seen", "status"),
    [
        (ETC, 0, 0o644, {}, PASS),
        (ETC, 0, 0o664, {}, PASS),  # root's own group
        (ETC, 0, 0o666, {}, FAIL),
        (ETC, 1007, 0o644, {}, FAIL),
        (ETC, 1007, 0o644, ROOT, FAIL),
        (ETC, 1000, 0o644, {}, PASS),  # the looker's own
        (ETC, 65534, 0o644, {}, PASS),  # whose it is could not be told
        (ETC, 1007, 0o666, {"runtime": "docker"}, PASS),
        (ETC, 1007, 0o644, {"runtime": "podman", "root_is_root": False}, PASS),
        (ETC, 1007, 0o644, {"runtime": Unavailable("denied")}, UNKNOWN),
        (ETC, 0, 0o644, {"runtime": Unavailable("denied")}, PASS),
        (ETC, 1007, 0o644, {"root_is_root": Unavailable("denied")}, UNKNOWN),
        (NAMED, 1007, 0o644, {}, PASS),  # a job of ada's with a file of eve's: ada named it
        (NAMED, 1007, 0o644, ROOT, FAIL),
        (NAMED, 0, 0o602, ROOT, FAIL),
        (NAMED, 0, 0o600, ROOT, PASS),
        (NAMED, 1007, 0o644, {**ROOT, "runtime": "kubernetes"}, PASS),
    ],
)
def test_a_conf_file_that_others_may_write(path: str, uid: int, mode: int, seen: dict[str, Any], status: Status) -> None:
    file = rights(path, uid, mode, ConfRole.SYSTEM if path == ETC else ConfRole.NAMED)
    about = [one for one in found({}, environ=environ({}, conf_files=(file,)), vantage=vantage(**seen)) if one.subject == path]
    assert [one.status for one in about] == ([] if status is PASS else [status])
    assert all(one.severity is Severity.WARNING for one in about if one.status is FAIL)


def test_a_conf_file_of_others_that_is_not_read_is_no_fault() -> None:
    named, old = rights(NAMED, 1007, 0o666, ConfRole.NAMED), libraries(nccl=(library(version=(2, 21, 5)),))
    root = vantage(**ROOT)
    assert short(found({}, environ=environ({}, conf_files=(named,)), libraries=old, vantage=root)) == [("node", PASS)]
    assert short(found({}, environ=environ({}, conf_files=(named,)), vantage=outside())) == [("node", UNKNOWN)]
    node_s = environ({}, conf_files=(rights(ETC, 1007, 0o644, ConfRole.SYSTEM),))
    assert short(found({}, environ=node_s, vantage=outside())) == [(ETC, FAIL), ("node", UNKNOWN)]


@pytest.mark.parametrize("lost", [Unavailable("timed out"), {"mode": "rw", "uid": 0}, {}])
def test_rights_that_could_not_be_read_are_unknown(lost: Any) -> None:
    seen = probe(ReplayHost({"env:": {}, "file:/etc/nccl.conf": "NCCL_DEBUG=WARN\n", "stat:/etc/nccl.conf": lost}))
    assert (ETC, UNKNOWN) in short(found({}, environ=seen))
    there = {"mode": 0o666, "uid": 0}
    seen = probe(ReplayHost({"env:": {}, "file:/etc/nccl.conf": "NCCL_DEBUG=WARN\n", "stat:/etc/nccl.conf": there}))
    assert (ETC, FAIL) in short(found({}, environ=seen))

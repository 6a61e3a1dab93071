"""Evidence that was cut off, has the wrong type or is what no kernel says is not known: each row was judged wrongly once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from netdoctor.checks.net_tcp_buffers import tcp_buffers
from netdoctor.facts.cpu import probe as probe_cpu
from netdoctor.facts.environ import Environ
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.nccl_choice import NcclChoice, probe as probe_nccl
from netdoctor.facts.net import LocalPorts, Net, Route, probe as probe_net, probe_ports
from netdoctor.facts.rdma import Rdma, probe as probe_rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.nccl.rdma_access import usable
from tests.lab import fixtures
from tests.support import facts as f

Changes = dict[type, object]
LOST = Unavailable("not recorded")
Check = Callable[..., Iterable[Finding]]


def found(check: Check, changes: Changes) -> dict[str, Finding]:
    return {one.subject: one for one in f.judge(check, f.machine(changes))}


OVS = f.net(
    f.netlink_link("lo", 1, "127.0.0.1"),
    f.netlink_link("br-ex", 5, "10.0.0.7", kind="openvswitch", speed_mbps=LOST),
    default_route=Route("br-ex"),
)


def test_a_bridge_of_open_vswitch_is_judged_as_an_interface() -> None:
    have = found(tcp_buffers, {Net: OVS, Rdma: f.no_rdma(), Baseline: LOST, PathRun: LOST})
    assert set(have) == {"br-ex"}


PORT = "file:/sys/class/infiniband/mlx5_0/ports/1"


@pytest.mark.parametrize(
    ("question", "text"),
    [
        (f"{PORT}/link_layer", "Infin"),
        (f"{PORT}/link_layer", "\0\0"),
        (f"{PORT}/link_layer", ""),
        (f"{PORT}/state", "4: AC"),
        ("file:/sys/class/infiniband_verbs/uverbs0/ibdev", "mlx"),
    ],
)
def test_what_is_cut_off_is_not_known(question: str, text: str) -> None:
    answers = fixtures.snapshot("dgx-h100").answers
    assert question in answers
    cut = probe_rdma(ReplayHost({**answers, question: text}))
    assert not isinstance(cut.devices, Unavailable)
    state = usable(next(d for d in cut.devices if d.name == "mlx5_0"), cut, LOST)
    assert (state.yes, state.step) == (None, "unread")


@pytest.mark.parametrize("speed", ["4294967295", "65535", "-1", "99999999999999999999"])
def test_a_speed_that_no_interface_has_is_not_known(speed: str) -> None:
    answers = fixtures.snapshot("a100-pcie").answers
    net = probe_net(ReplayHost({**answers, "file:/sys/class/net/eno1/speed": speed}))
    assert isinstance(net, Net) and (link := net.link("eno1")) and isinstance(link.speed_mbps, Unavailable)


@pytest.mark.parametrize("name", ["tcp_congestion_control", "tcp_available_congestion_control"])
def test_an_empty_list_of_congestion_controls_is_no_fault(name: str) -> None:
    sysctls = {**f.kernel().sysctls, f"net.ipv4.{name}": ""}
    have = found(tcp_buffers, {Kernel: f.kernel(sysctls=sysctls), Net: OVS, Rdma: f.no_rdma(), Baseline: LOST, PathRun: LOST})
    assert set(have) == {"br-ex"}


def test_cpus_of_no_node_are_not_known() -> None:
    answers = fixtures.snapshot("a100-pcie").answers
    whole = probe_cpu(ReplayHost(answers))
    cut = probe_cpu(ReplayHost({**answers, "file:/sys/devices/system/node/node1/cpulist": ""}))
    assert (isinstance(whole.nodes, Unavailable), isinstance(cut.nodes, Unavailable)) == (False, True)


def test_a_port_without_a_gid_table_is_not_known() -> None:
    answers = fixtures.snapshot("hgx-h100-roce").answers
    masked = probe_rdma(ReplayHost({**answers, "dir:/sys/class/infiniband/mlx5_0/ports/1/gids": []}))
    assert not isinstance(masked.devices, Unavailable)
    device = next(d for d in masked.devices if d.name == "mlx5_0")
    assert not isinstance(device.ports, Unavailable) and device.ports[0].gids == Unavailable(
        "empty", "/sys/class/infiniband/mlx5_0/ports/1/gids"
    )


@pytest.mark.parametrize("rubbish", [{"interface": []}, {"address": True}, {"interface": {"unavailable": "failed"}}])
def test_an_interface_that_is_no_text_is_not_known(rubbish: dict[str, object]) -> None:
    answers = fixtures.snapshot("gb200-nvl72").answers
    question = next(q for q in answers if q.startswith("ask:nccl?"))
    told = answers[question]
    assert isinstance(told, dict)
    choice = probe_nccl(ReplayHost({**answers, question: {**told, **rubbish}}), f.libraries())
    assert isinstance(choice, NcclChoice) and any(isinstance(one, Unavailable) for one in (choice.interface, choice.address))


@pytest.mark.parametrize("lost", ["links", "addresses"])
def test_no_list_of_interfaces_is_no_empty_list(lost: str) -> None:
    answers = fixtures.snapshot("this-machine").answers
    told = answers["ask:netlink"]
    assert isinstance(told, dict)
    assert isinstance(probe_net(ReplayHost({**answers, "ask:netlink": {**told, lost: ""}})), Unavailable)


@pytest.mark.parametrize(
    ("variables", "bytes"),
    [
        ({"NCCL_SOCKET_RCVBUF": "0x10000"}, 0x10000),
        ({"NCCL_SOCKET_RCVBUF": "65536 "}, 65536),
        ({"NCCL_SOCKET_RCVBUF": "0"}, 67108864 // 2),
        ({"NCCL_SOCKET_RCVBUF": "-1"}, 67108864 // 2),
    ],
)
def test_buffers_are_read_as_nccl_reads_numbers(variables: dict[str, str], bytes: int) -> None:
    sysctls = {**f.kernel().sysctls, "net.core.rmem_max": "16777216"}
    usual: Changes = {NcclChoice: f.nccl_choice(version=(2, 27, 5)), Rdma: f.no_rdma(), Baseline: LOST, PathRun: LOST}
    have = found(tcp_buffers, {**usual, Net: OVS, Kernel: f.kernel(sysctls=sysctls), Environ: f.environ(variables)})
    assert have["br-ex"].evidence["window"] == bytes


@pytest.mark.parametrize("rmem", ["0 0 0", "-1 -1 -1", "4096 131072"])
def test_buffers_that_no_kernel_has_are_not_known(rmem: str) -> None:
    sysctls = {**f.kernel().sysctls, "net.ipv4.tcp_rmem": rmem}
    plain = f.net(f.netlink_link("lo", 1, "127.0.0.1"), f.netlink_link("eth0", 2, "10.0.0.7"))
    usual: Changes = {Kernel: f.kernel(sysctls=sysctls), Rdma: f.no_rdma(), Baseline: LOST, PathRun: LOST}
    have = found(tcp_buffers, {**usual, Net: plain})
    assert {one.status for one in have.values()} == {Status.UNKNOWN}


@pytest.mark.parametrize("span", ["60999 32768", "0 99999999", "32768 65536", "0 60999"])
def test_a_port_range_that_no_kernel_has_is_not_known(span: str) -> None:
    path = "file:/proc/sys/net/ipv4/ip_local_port_range"
    ports = probe_ports(ReplayHost({**fixtures.snapshot("this-machine").answers, path: span}))
    assert isinstance(ports, LocalPorts) and isinstance(ports.low, Unavailable) and isinstance(ports.high, Unavailable)

"""net.errors: facts to findings."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.net_errors import net_errors
from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent
from netdoctor.facts.net import Link, Net
from netdoctor.facts.net_errors import QUESTION, Errors, NetErrors, probe
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.host.helpers import net_errors as helper
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from tests.lab import fixtures
from tests.support import facts as f
from tests.support.facts import healthy

PASS, FAIL, SKIP, UNKNOWN = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN
DENIED = Unavailable(Kind.DENIED, "EACCES")
VIRTUAL = Unavailable(Kind.UNSUPPORTED, "a virtual function: not asked")
PORT_COUNTERS, LINK_COUNTERS = dict.fromkeys(helper.PMA, 0), dict.fromkeys((*filter(None, helper.STATS), "carrier_down"), 0)


def counted(seconds: float = 4.0, total: dict[str, Any] | None = None, **rose: Any) -> NetErrors:
    """Of mlx5_3:1 and eth4 what `rose`, of the others nothing."""
    ports = {f"mlx5_{n}:1": Errors(dict(PORT_COUNTERS), dict(PORT_COUNTERS)) for n in range(8)}
    links = {f"eth{n}": Errors(dict(LINK_COUNTERS), dict(LINK_COUNTERS)) for n in range(9)}
    for every, name, known in ((ports, "mlx5_3:1", helper.PMA), (links, "eth4", LINK_COUNTERS)):
        own = {k: v for k, v in rose.items() if k in known or k in helper.OWN}
        counts = {k: v for k, v in (total or {}).items() if k in known}
        every[name] = Errors({**every[name].rose, **own}, {**every[name].total, **counts})
    return NetErrors(seconds, links, ports)


def judged(errors: Any, machine: healthy.Machine | None = None, **changes: Any) -> list[Finding]:
    have = {**(machine or healthy.dgx_h100()), NetErrors: errors, **changes.get("changes", {})}
    return f.judge(net_errors, have)


# Four seconds at 400 Gb/s: 1.6 bits may be wrong.
@pytest.mark.parametrize(
    ("rose", "seconds", "status", "severity"),
    [
        ({}, 4.0, PASS, None),
        ({"link_downed": 1}, 4.0, FAIL, Severity.WARNING),
        ({"link_error_recovery": 1}, 4.0, FAIL, Severity.WARNING),
        ({"local_link_integrity_errors": 1}, 4.0, FAIL, Severity.WARNING),
        ({"local_ack_timeout_err": 1}, 4.0, FAIL, Severity.WARNING),
        ({"symbol_error": 1}, 4.0, PASS, None),
        ({"symbol_error": 2}, 4.0, FAIL, Severity.WARNING),
        ({"symbol_error": 40}, 100.0, PASS, None),
        ({"symbol_error": 41}, 100.0, FAIL, Severity.WARNING),
        ({"port_rcv_errors": 9}, 4.0, FAIL, Severity.WARNING),
        ({"port_rcv_remote_physical_errors": 9}, 4.0, FAIL, Severity.WARNING),
        ({"port_xmit_discards": 9}, 4.0, PASS, None),
        ({"rnr_nak_retry_err": 9, "out_of_sequence": 9}, 4.0, PASS, None),
        ({"symbol_error": DENIED}, 4.0, UNKNOWN, None),
        (dict.fromkeys(helper.PMA, VIRTUAL), 4.0, UNKNOWN, None),
        ({**dict.fromkeys(helper.PMA, VIRTUAL), "local_ack_timeout_err": 0}, 4.0, UNKNOWN, None),
        ({"symbol_error": DENIED, "link_downed": 1}, 4.0, FAIL, Severity.WARNING),
    ],
)
def test_what_a_port_counted(rose: dict[str, Any], seconds: float, status: Status, severity: Severity | None) -> None:
    found = judged(counted(seconds, **rose))
    own = [one for one in found if one.subject == "mlx5_3:1"]
    assert [(one.status, one.severity) for one in own] == ([] if status is PASS else [(status, severity)])
    rest = next(one for one in found if one.subject == "links")
    assert rest.status is PASS and rest.message.startswith("8 links" if status is PASS else "7 links")
    assert all(one.fix and one.loss for one in own if one.status is FAIL)


@pytest.mark.parametrize(
    ("rose", "status"),
    [
        ({"rx_crc_errors": 500}, FAIL),
        ({"rx_errors": 500}, FAIL),
        ({"rx_errors": 500, "rx_length_errors": 500}, PASS),  # jumbo frames of a neighbour that were flooded to all
        ({"rx_errors": 500, "rx_length_errors": 400}, FAIL),
        ({"rx_errors": 0, "rx_length_errors": DENIED}, PASS),
        ({"tx_errors": 500}, FAIL),
        ({"tx_errors": 500, "tx_aborted_errors": 500}, PASS),  # mlx5 counts what it discarded in congestion (if_out_discards)
        ({"tx_errors": 500, "tx_aborted_errors": 100, "tx_fifo_errors": 400}, PASS),
        ({"tx_carrier_errors": 500}, FAIL),
        ({"carrier_down": 1}, FAIL),
        ({"rx_crc_errors": 1}, PASS),
        ({"rx_dropped": 500, "rx_missed_errors": 500}, PASS),
    ],
)
def test_a_rail_of_roce_counts_at_its_interface(rose: dict[str, Any], status: Status) -> None:
    found = judged(counted(**rose), healthy.hgx_roce())
    assert [one.status for one in found if one.subject == "eth4"] == ([FAIL] if status is FAIL else [])
    assert not [one for one in found if one.status is FAIL and one.subject != "eth4"]


def test_a_sum_of_which_the_parts_are_not_known_tells_nothing() -> None:
    found = judged(counted(rx_errors=500, rx_length_errors=DENIED), healthy.hgx_roce())
    assert [one.status for one in found if one.subject == "eth4"] == [UNKNOWN]


def test_frames_of_another_length_are_a_note() -> None:
    (found,) = judged(counted(rx_errors=500, rx_length_errors=500), healthy.hgx_roce())
    assert any("eth4 got frames of a length" in note for note in found.notes)


OF_EFA = dict.fromkeys(helper.EFA, 0)
ABSENT = Unavailable(Kind.ABSENT, "ENOENT")


def on_efa(*without: str, **rose: Any) -> list[Finding]:
    """Of rdmap3s0 what `rose`, of the others nothing; `without`: what its driver does not count."""
    ports = {f"rdmap{n}s0:1": Errors({**dict.fromkeys(helper.PMA, ABSENT), **OF_EFA}, dict(OF_EFA)) for n in range(8)}
    own = {key: count for key, count in {**ports["rdmap3s0:1"].rose, **rose}.items() if key not in without}
    ports["rdmap3s0:1"] = Errors(own, dict(OF_EFA))
    return judged(NetErrors(4.0, {}, ports), healthy.aws_efa(), changes={Intent: f.job(nodes=2)})


CONNECTIONS = ("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events")


@pytest.mark.parametrize(
    ("without", "rose", "status"),
    [
        ((), {}, PASS),
        ((), {"impaired_remote_conn_events": 1}, FAIL),
        ((), {"unresponsive_remote_events": 1}, FAIL),
        ((), {"rdma_read_wr_err": 1}, FAIL),
        ((), {"rdma_write_wr_err": 1}, FAIL),
        ((), {"rx_drops": 9, "retrans_timeout_events": 9}, PASS),
        (CONNECTIONS, {}, UNKNOWN),
        (CONNECTIONS, {"rdma_read_wr_err": 1}, FAIL),
        ((), {"impaired_remote_conn_events": DENIED}, UNKNOWN),
        (helper.EFA, {}, UNKNOWN),
    ],
)
def test_what_an_efa_counted(without: tuple[str, ...], rose: dict[str, Any], status: Status) -> None:
    found = on_efa(*without, **rose)
    own = [one for one in found if one.subject == "rdmap3s0:1"]
    assert [one.status for one in own] == ([] if status is PASS else [status])
    rest = next(one for one in found if one.subject == "links")
    assert rest.message.startswith("8 links" if status is PASS else "7 links")
    assert all(one.severity is Severity.WARNING and one.fix for one in own if status is FAIL)


def test_an_efa_that_took_another_path_is_a_note() -> None:
    (found,) = on_efa(rx_drops=2, retrans_timeout_events=1)
    assert found.notes == (
        "rdmap3s0:1 lost packets for want of room or readers: rx_drops",
        "rdmap3s0:1 lost packets on the way, and sent them by another: retrans_timeout_events",
    )


def test_packets_that_were_dropped_are_a_note() -> None:
    (found,) = judged(counted(rx_dropped=500), healthy.hgx_roce())
    assert found.notes == ("eth4 lost packets for want of room or readers: rx_dropped",)


def test_sockets_alone() -> None:
    """Of a machine without RDMA the interface that NCCL takes; what another counts is nobody's."""
    (found,) = judged(counted(link_downed=9, rx_crc_errors=500), healthy.a100_pcie(), changes={Intent: f.job(nodes=2)})
    assert (found.status, found.message) == (PASS, "1 link had no errors while the all-reduce ran")


def test_far_more_than_its_like_since_boot_is_a_note() -> None:
    (found,) = judged(counted(total={"symbol_error": 40_000}))
    assert found.notes == ("since it is up mlx5_3:1 counted far more symbol_error than its like",)
    (few,) = judged(counted(total={"symbol_error": 9}))
    assert few.notes == ()
    (least,) = judged(counted(total={"symbol_error": 10}))
    assert least.notes == found.notes


@pytest.mark.parametrize(("most", "told"), [(99, False), (100, True)])
def test_ten_times_what_its_like_counted_is_far_more(most: int, told: bool) -> None:
    every = counted(total={"symbol_error": most})
    like = Errors(dict(PORT_COUNTERS), {**PORT_COUNTERS, "symbol_error": 10})
    ports = {name: one if name == "mlx5_3:1" else like for name, one in (every.ports or {}).items()}
    (found,) = judged(replace(every, ports=ports))
    assert bool(found.notes) is told


@pytest.mark.parametrize(
    ("errors", "changes", "status"),
    [
        (Unavailable(Kind.NOT_READ), {}, UNKNOWN),
        (Unavailable(Kind.CRASHED, "x"), {}, UNKNOWN),
        (NetErrors(4.0, DENIED, DENIED), {}, UNKNOWN),
        (NetErrors(4.0, {}, {}), {}, UNKNOWN),
        (counted(), {Rdma: DENIED}, UNKNOWN),
        (counted(), {Vantage: f.vantage(job_network=False)}, UNKNOWN),
    ],
)
def test_what_was_not_seen_is_no_pass(errors: Any, changes: dict[type, Any], status: Status) -> None:
    assert {one.status for one in judged(errors, changes=changes)} == {status}


def test_a_pods_interface_counts_elsewhere() -> None:
    socket = f.baseline(f.run(log=f.log(network="Socket", net="Socket")))
    found = judged(counted(), {**healthy.dgx_pod(), Rdma: f.no_rdma(), Baseline: socket, PathRun: f.path_run()})
    assert [(one.status, one.subject) for one in found] == [(UNKNOWN, "eth0")]


@pytest.mark.parametrize(
    ("answer", "field"),
    [({}, "seconds"), ({"seconds": 4, "interfaces": [], "ports": {}}, "interfaces"), ({"seconds": "x"}, "seconds")],
)
def test_rubbish_is_unread(answer: Any, field: str) -> None:
    found = probe(ReplayHost({"ask:net_errors?seconds=600": answer}))
    assert isinstance(found, NetErrors) and isinstance(getattr(found, field), Unavailable)


def test_counters_of_another_shape_are_unread() -> None:
    told = {"seconds": 4, "interfaces": {"eth0": 7, "eth1": {"rose": {"rx_errors": "x"}, "total": {}}}, "ports": {}}
    found = probe(ReplayHost({"ask:net_errors?seconds=600": told}))
    assert isinstance(found, NetErrors) and found.interfaces
    assert isinstance(found.interfaces["eth0"], Unavailable)
    eth1 = found.interfaces["eth1"]
    assert isinstance(eth1, Errors) and isinstance(eth1.rose["rx_errors"], Unavailable)


def answer_of(machine: str = "dgx-h100") -> dict[str, Any]:
    told = fixtures.snapshot(machine).answers[QUESTION]
    assert isinstance(told, dict)
    return json.loads(json.dumps(told))


RUBBISH = (None, -1, 1.5, "3", True, [], {}, {"unavailable": "denied"}, float("inf"), float("nan"))


@pytest.mark.parametrize("rubbish", RUBBISH, ids=str)
@pytest.mark.parametrize("place", [("rose",), ("rose", "symbol_error"), ("rose", "link_downed"), ()], ids=str)
def test_a_garbled_answer_acquits_no_port(place: tuple[str, ...], rubbish: Any) -> None:
    told = answer_of()
    holder, keys = told["ports"], ("mlx5_3:1", *place)
    for key in keys[:-1]:
        holder = holder[key]
    for without in (False, True):
        holder[keys[-1]] = rubbish
        if without:
            del holder[keys[-1]]
        found = {one.subject: one for one in judged(probe(ReplayHost({QUESTION: told})))}
        assert found["mlx5_3:1"].status is UNKNOWN and found["links"].message.startswith("7 links"), (keys, rubbish)
        assert FAIL not in {one.status for one in found.values()}


@pytest.mark.parametrize("seconds", [*RUBBISH[:2], *RUBBISH[3:], 1e9])
def test_a_time_that_cannot_be_allows_no_errors(seconds: Any) -> None:
    told = {**answer_of(), "seconds": seconds}
    told["ports"]["mlx5_3:1"]["rose"]["symbol_error"] = 10**6
    assert [one.status for one in judged(probe(ReplayHost({QUESTION: told})))] == [UNKNOWN]


@pytest.mark.parametrize(
    ("first", "last", "rose"),
    [(3, 5, 2), (0, 0, 0), (5, 3, None), (65535, 65535, None), ({"unavailable": "denied"}, 5, None)],
)
def test_by_how_much_a_counter_rose(first: Any, last: Any, rose: int | None) -> None:
    found = helper.rise("symbol_error", first, last)
    assert found == rose if rose is not None else "unavailable" in found


def test_a_pod_of_which_nothing_says_that_it_has_other_nodes() -> None:
    socket = f.baseline(f.run(log=f.log(network="Socket", net="Socket")))
    pod = {**healthy.dgx_pod(), Rdma: f.no_rdma(), Baseline: socket, PathRun: f.path_run(), Intent: f.job()}
    assert [(one.status, one.subject) for one in judged(counted(), pod)] == [(SKIP, "eth0")]
    both = f.net(link("lo", 1, "127.0.0.1"), link("eth0", 2, "10.244.3.7", kind="veth"), link("eth4", 3, "10.1.0.7"))
    found = judged(counted(rx_crc_errors=500), {**pod, Net: both})
    assert [(one.status, one.subject) for one in found] == [(SKIP, "eth0"), (FAIL, "eth4")]


def test_a_job_of_one_node_has_no_links() -> None:
    (found,) = judged(counted(link_downed=9), changes={Intent: f.job(nodes=1)})
    assert (found.status, found.subject) == (SKIP, "links")


@pytest.mark.parametrize(
    ("named", "status", "words"),
    [
        ({"NCCL_IB_HCA": "^mlx5_3"}, PASS, "7 links had no errors"),
        ({"NCCL_IB_HCA": "mlx5_3:1"}, FAIL, "mlx5_3:1, while the all-reduce ran: the link went down"),
        (DENIED, UNKNOWN, "which links the job uses could not be told: "),
    ],
)
def test_only_the_devices_that_the_job_names_are_judged(named: Any, status: Status, words: str) -> None:
    environ = f.environ(named) if isinstance(named, dict) else replace(f.environ(), variables=named)
    (found,) = judged(counted(link_downed=1), changes={Environ: environ})
    assert found.status is status and found.message.startswith(words)


def test_where_no_link_leads_to_other_nodes() -> None:
    (found,) = judged(counted(), {**healthy.a100_pcie(), Intent: f.job(nodes=2), Net: f.net(link("lo", 1, "127.0.0.1"))})
    assert (found.status, found.message) == (UNKNOWN, "no link that leads to other nodes is seen")


def link(name: str, index: int, *ips: str, **changes: Any) -> Link:
    return f.netlink_link(name, index, *ips, **changes)


ON_A_BOND = (
    link("bond0", 2, kind="bond"),
    link("eth3", 3, controller=2),
    link("eth4", 4, controller=2),
    link("bond0.7", 5, "10.0.0.7", kind="vlan", lower=2),
)
ON_A_BRIDGE = (
    link("br0", 2, "10.0.0.7", kind="bridge"),
    link("eth4", 3, controller=2),
    link("vnet0", 4, kind="tun", controller=2),
)


@pytest.mark.parametrize(
    ("links", "status", "subjects"),
    [
        (ON_A_BOND, FAIL, ["eth4"]),
        (ON_A_BRIDGE, FAIL, ["eth4"]),
        ((link("macvlan0", 2, "10.0.0.7", kind="macvlan", lower=3), link("eth4", 3)), FAIL, ["eth4"]),
        # Networks of containers and tunnels, which NET/Socket takes as well: nothing leaves the node by them.
        (
            (
                link("eth4", 2, "10.0.0.7"),
                link("cni0", 3, "10.244.0.1", kind="bridge"),
                link("tun0", 4, "10.8.0.1", kind="tun"),
            ),
            FAIL,
            ["eth4"],
        ),
        ((link("eth4.7", 2, "10.0.0.7", kind="vlan"), link("eth4", 3)), UNKNOWN, ["eth4.7"]),  # below lies another namespace
        ((link("a", 2, "10.0.0.7", kind="vlan", lower=3), link("b", 3, kind="vlan", lower=2)), UNKNOWN, ["a"]),  # rubbish
    ],
)
def test_what_lies_on_a_cable_of_this_namespace(links: tuple[Link, ...], status: Status, subjects: list[str]) -> None:
    changes = {Intent: f.job(nodes=2), Net: f.net(link("lo", 1, "127.0.0.1"), *links)}
    errors = counted(rx_crc_errors=500)
    assert errors.interfaces
    for name in ("bond0", "eth3"):
        errors = replace(errors, interfaces={**errors.interfaces, name: Errors(dict(LINK_COUNTERS), dict(LINK_COUNTERS))})
    found = judged(errors, {**healthy.a100_pcie(), **changes})
    assert [one.subject for one in found if one.status is status] == subjects
    assert all(one.status is PASS for one in found if one.status is not status)

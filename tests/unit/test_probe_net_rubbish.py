"""Answers of any shape never make the network's probes raise, and never look like less than they are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from netdoctor.facts import registry
from netdoctor.facts.job import probe_expected
from netdoctor.facts.nccl_choice import probe as probe_nccl
from netdoctor.facts.net import Net, probe, probe_ports
from netdoctor.host.base import ReplayHost, question
from netdoctor.model import Unavailable
from netdoctor.nccl import ifname, interfaces
from tests.support.facts import LIBNCCL, libraries
from tests.unit.test_probe_net import ANSWERS, hop

pytestmark = pytest.mark.slow

WHOLE: dict[str, Any] = {
    **ANSWERS,
    "env:": {"MASTER_ADDR": "node0", "MASTER_PORT": "29500"},
    "config:": {"job": {"nodes": 2}, "expected": {"peers": ["10.0.0.9:5201"], "busbw_floor": {"1": 2}}},
    question("resolve", name="node0"): {"addresses": ["10.0.0.1"]},
    question("netlink", routes="10.0.0.1,10.0.0.9"): {"routes": {"10.0.0.1": {"main": hop("eth0"), "via": ["eth0"]}}},
    question("rtt", host="10.0.0.1", port=29500, seconds=1): {"rtt_us": 250, "var_us": 10},
    question("nccl", path=LIBNCCL): {"version": [2, 27, 5], "code": 0, "interface": "e", "address": "", "error": "", "log": []},
}
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


def look(answers: dict[str, Any]) -> None:
    host = ReplayHost(answers)
    net = probe(host)
    if isinstance(net, Net):
        for version in ifname.EITHER:
            for purpose in ("bootstrap", "socket"):
                ifname.choose(net.links, version, {"NCCL_SOCKET_IFNAME": "^docker"}, purpose)
        interfaces.candidates(net)
    probe_ports(host)
    probe_nccl(host, libraries())
    registry.make(host, "Intent", {"Net": net})
    probe_expected(host)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(sorted(WHOLE)), json_values, max_size=4))
def test_whole_answers(changes: dict[str, Any]) -> None:
    look({**WHOLE, **changes})


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["links", "addresses"]),
    st.integers(0, 2),
    st.text(max_size=5) | st.sampled_from(["ip", "prefix"]),
    json_values,
)
def test_one_field_of_netlink(table: str, row: int, field: str, value: Any) -> None:
    told = {**WHOLE["ask:netlink"], table: [dict(one) for one in WHOLE["ask:netlink"][table]]}
    told[table][row][field] = value
    look({**WHOLE, "ask:netlink": told})


@pytest.mark.parametrize("lost", sorted(WHOLE))
def test_a_lost_answer_never_makes_the_network_look_bare(lost: str) -> None:
    whole, less = probe(ReplayHost(WHOLE)), probe(ReplayHost({**WHOLE, lost: Unavailable("denied")}))
    assert isinstance(whole, Net)
    if isinstance(less, Net):
        assert [link.name for link in less.links] == [link.name for link in whole.links]
        assert less.master is not None  # Unavailable, or there
        assert less.hostname_addresses != () and less.default_route is not None

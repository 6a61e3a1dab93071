"""rdma.gid: whether NCCL's packets go by a priority that the card pauses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.rdma_gid import gid
from netdoctor.facts import rdma
from netdoctor.facts.environ import Environ
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Kind, Status, Unavailable
from tests.support import facts as f
from tests.support.facts import healthy

LOST = Unavailable(Kind.DENIED, "x")
EIGHTHS = tuple((dscp, dscp // 8) for dscp in range(64))
RAILS = [f"eth{n + 1}" for n in range(8)]


def node(pfc: Any = 1 << 3, dscp: Any = None, tclass: Any = None, driver: str = "mlx5_core") -> dict[type, Any]:
    """Eight rails of RoCE that all have this."""
    machine = dict(healthy.hgx_roce())
    net, devices = machine[Net], machine[Rdma].devices
    told = {"pfc": pfc, "dscp": EIGHTHS if dscp is None else None if dscp == () else dscp}
    links = tuple(replace(one, **told) if one.name in RAILS else one for one in net.links)
    cards = tuple(replace(one, traffic_class=tclass, driver=driver) for one in devices)
    return machine | {Net: replace(net, links=links), Rdma: replace(machine[Rdma], devices=cards)}


def judged(machine: dict[type, Any], setting: str | None) -> Finding | None:
    variables = {"NCCL_IB_TC": setting} if setting is not None else {}
    found = f.judge(gid, f.machine({**machine, Environ: f.environ(variables)}))
    assert sum(one.subject == "GIDs" and one.status is Status.PASS for one in found) == 1
    return next((one for one in found if one.subject == "traffic class"), None)


@pytest.mark.parametrize(
    ("machine", "setting", "status"),
    [
        pytest.param(node(), "106", Status.PASS, id="DSCP 26 goes by priority 3"),
        pytest.param(node(), "46", Status.FAIL, id="DSCP 11 does not"),
        pytest.param(node(), "0", Status.FAIL, id="set to 0"),
        pytest.param(node(), None, Status.SKIP, id="nobody set a class"),
        pytest.param(node(), "", Status.SKIP, id="nor by an empty variable"),
        pytest.param(node(tclass=106), None, Status.PASS, id="the driver's own class"),
        pytest.param(node(tclass=106), "46", Status.PASS, id="takes the place of NCCL's"),
        pytest.param(node(tclass=46), "106", Status.FAIL, id="also where it is the wrong one"),
        pytest.param(node(pfc=0), "106", None, id="nothing is paused: ECN alone"),
        pytest.param(node(pfc=None), "106", None, id="a driver that does not say"),
        pytest.param(node(dscp=()), "106", None, id="the card trusts the VLAN's priority"),
        pytest.param(node(dscp=((8, 1),)), "106", None, id="no priority for it"),
        pytest.param(node(driver="bnxt_en"), "46", None, id="another driver"),
        pytest.param(node(pfc=0xFF), "46", Status.PASS, id="all are paused"),
        pytest.param(node(pfc=LOST), "46", Status.UNKNOWN, id="what is paused was not read"),
        pytest.param(node(dscp=LOST), "46", Status.UNKNOWN, id="nor the table"),
        pytest.param(node(tclass=LOST), "46", Status.UNKNOWN, id="nor the driver's class"),
    ],
)
def test_what_is_said(machine: dict[type, Any], setting: str | None, status: Status | None) -> None:
    found = judged(machine, setting)
    assert (found and found.status) is status


def test_how_it_is_mended() -> None:
    found = judged(node(), "46")
    assert found and found.fix and found.cause == "env_misuse"
    assert "export NCCL_IB_TC=96   # DSCP 24" in found.fix.commands and "priority 3 alone is paused" in found.message
    unset = judged(node(), None)
    assert unset and "NCCL sends by priority 0" in unset.notes[0]


def test_of_another_environment_nothing_is_said() -> None:
    machine = f.machine({**node(), Environ: f.environ({"NCCL_IB_TC": "46"}), Vantage: f.outside()})
    assert [one.subject for one in f.judge(gid, machine) if one.subject == "traffic class"] == []


@pytest.mark.parametrize(
    ("answer", "wanted"),
    [
        ("Global tclass=236\n", 236),
        ("", None),  # DOCA's driver, and no class of its own
        (Unavailable(Kind.ABSENT), None),
        (Unavailable(Kind.NOT_RECORDED), None),
        (Unavailable(Kind.DENIED), Kind.DENIED),
        ("Global tclass=106\nsrc_ip=1.2.3.4,tclass=32\n", Kind.UNSUPPORTED),
        ("106\n", Kind.UNSUPPORTED),
    ],
)
def test_the_drivers_own_class(answer: Any, wanted: object) -> None:
    found = rdma._traffic_class(ReplayHost({"file:/t": answer}), "/t")
    assert (found.kind if isinstance(found, Unavailable) else found) == wanted

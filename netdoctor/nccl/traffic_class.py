"""Whether what NCCL sends on RoCE goes by a priority that the card pauses (PFC), or is held back on where it is crowded (ECN).

NCCL gives its queue pairs the traffic class of NCCL_IB_TC, 0 where it is not set, and the service level of NCCL_IB_SL
(src/transport/net_ib, ncclIbRtrQp); the upper six bits of the class are the DSCP.  DOCA's driver puts a class of its own in its
place (tc/1/traffic_class of the device).  Where mlx5 trusts DSCP, that one has a priority by DCB; where it trusts PCP, the
service level is the priority (drivers/infiniband/hw/mlx5/qp.c, mlx5_set_path: eth_prio), whatever the DSCP.  What other drivers
do is their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from netdoctor.causes import cost
from netdoctor.facts.dcb import PRIORITIES, Qos
from netdoctor.facts.environ import Environ
from netdoctor.facts.net import Net
from netdoctor.model import Finding, Fix, Status, Unavailable, count, missing
from netdoctor.nccl.gid import Rail
from netdoctor.nccl.integers import param

SUBJECT: Final = "traffic class"
SETTING: Final = "NCCL_IB_TC"
LEVEL: Final = "NCCL_IB_SL"
_HOW: Final = "dcb pfc show dev INTERFACE; dcb app show dev INTERFACE; cat /sys/class/infiniband/*/tc/1/traffic_class"
_DRIVER: Final = "mlx5_core"
_Setting = str | None | Unavailable


class _Sent(NamedTuple):
    """By which priority a rail sends."""

    name: str
    dscp: int
    priority: int
    qos: Qos
    chosen: bool  # somebody set the class
    trusts: str

    @property
    def paused(self) -> bool:
        return bool((self.qos.pfc or 0) >> self.priority & 1)

    @property
    def ecn(self) -> tuple[bool, bool] | None:
        """Whether the card tells of congestion there, and heeds what it is told; None: its driver does not say."""
        told = self.qos.ecn
        return (bool(told[0] >> self.priority & 1), bool(told[1] >> self.priority & 1)) if told else None


def judge(rails: Sequence[Rail], net: Net, settings: Environ) -> Finding | None:
    """None: no card tells what becomes of that."""
    every = [_sent(rail, net, settings.get(SETTING), settings.get(LEVEL)) for rail in rails if rail.device.driver == _DRIVER]
    lost = missing(*every)
    sent = [one for one in every if isinstance(one, _Sent)]
    pauses = [one for one in sent if one.qos.pfc]
    if bad := [one for one in pauses if one.chosen and not one.paused]:
        return _fail(bad)
    if half := [one for one in sent if one.chosen and one.ecn in ((True, False), (False, True))]:
        return _half(half)
    lost = missing(lost, *(one.qos.ecn for one in sent if one.chosen))
    if lost is not None:
        return Finding(Status.UNKNOWN, f"by which priority NCCL sends could not be read: {lost}", SUBJECT, how=_HOW)
    if pauses:
        unset = [one for one in pauses if not one.paused]
        if unset:  # whoever pauses priorities for storage alone means it so
            one = unset[0]
            text = f"{SETTING} is not set: NCCL sends by priority {one.priority}, and {_named(one.qos.pfc)} alone is paused"
            return Finding(Status.SKIP, "nothing asks that what NCCL sends be paused", SUBJECT, notes=(text,))
        return Finding(
            Status.PASS, f"what NCCL sends on {count(len(pauses), 'rail')} goes by a priority that is paused (PFC)", SUBJECT
        )
    return _without_pauses([one for one in sent if one.chosen and one.ecn is not None])


def _without_pauses(sent: Sequence[_Sent]) -> Finding | None:
    """ECN alone is a design of its own (DCQCN on a network that drops)."""
    if not sent:
        return None
    if free := [one for one in sent if one.ecn == (False, False)]:
        text = f"{_names(free)}: priority {free[0].priority}, by which NCCL sends, is not paused (PFC) and has no ECN"
        how = f"ethtool -a INTERFACE, which says whether it pauses all of them; {_HOW}"
        return Finding(Status.UNKNOWN, f"{text}: whether anything holds its packets back is not known", SUBJECT, how=how)
    text = f"what NCCL sends on {count(len(sent), 'rail')} goes by a priority with ECN, and none is paused (PFC)"
    return Finding(Status.PASS, text, SUBJECT)


def _sent(rail: Rail, net: Net, setting: _Setting, level: _Setting) -> _Sent | None | Unavailable:
    own = rail.device.traffic_class
    link = net.link(rail.netdev) if rail.gid and rail.gid.kind == "RoCE v2" else None
    chosen = own is not None or setting not in (None, "")
    if link is None or (isinstance(link, Unavailable) and not chosen):
        return None
    if isinstance(link, Unavailable):
        return link
    qos = link.qos
    if qos.pfc is None or (qos.pfc == 0 and qos.ecn is None) or (qos.dscp is None and not chosen):
        return None
    if (lost := missing(qos.pfc, qos.trusts, qos.dscp, own, setting if own is None else None)) is not None:
        return lost
    dscp = (max(0, param(setting or None, -1)) if own is None else own or 0) >> 2 & 63
    if qos.trusts == "dscp":
        priority = dict(qos.dscp or ()).get(dscp)
    elif not (chosen and dscp):  # nobody asks for a priority by DSCP
        return None
    elif isinstance(level, Unavailable):
        return level
    else:
        priority = max(0, param(level, -1)) & 7
        if (
            qos.pfc or 0
        ) >> priority & 1:  # here; frames of an interface without a VLAN tell the switches and the other end none
            return None
    return None if priority is None else _Sent(rail.device.name, dscp, priority, qos, chosen, str(qos.trusts))


def _fail(bad: Sequence[_Sent]) -> Finding:
    one = bad[0]
    dscp = f"NCCL's packets have DSCP {one.dscp}, which goes by priority {one.priority}"
    level = (
        f"the card trusts the VLAN tag (PCP), so that NCCL's packets go by priority {one.priority} ({LEVEL}), not by their DSCP"
    )
    good = [dscp for dscp, by in one.qos.dscp or () if (one.qos.pfc or 0) >> by & 1]
    better = [f"export {SETTING}={4 * dscp}   # DSCP {dscp}" for dscp in good if dscp % 8 == 0 or len(good) == 1][:2]
    fix = Fix(
        "give NCCL the class that the network does not drop, or let the card and the switches pause this one",
        (*better, *_HOW.split("; ")),
    )
    trust = Fix("let the card trust DSCP, as the switches do", ("mlnx_qos -i INTERFACE --trust dscp", *_HOW.split("; ")))
    return Finding(
        Status.FAIL,
        f"{_names(bad)}: {dscp if one.trusts == 'dscp' else level}, and {_named(one.qos.pfc)} alone is paused (PFC)",
        SUBJECT,
        cause="env_misuse",
        loss=cost.MIGHT,
        expected="a priority that is paused, on every hop",
        why="what is not paused is dropped where the network is crowded, and sent again",
        fix=fix if one.trusts == "dscp" else trust,
    )


def _half(half: Sequence[_Sent]) -> Finding:
    """np and rp of the driver's files: DCQCN's notification point and reaction point."""
    one = half[0]
    tells, heeds = one.ecn or (False, False)
    does = (
        "slows down where it is told of congestion, and tells no sender"
        if heeds
        else "tells senders of congestion, and heeds none"
    )
    point = "roce_rp" if tells else "roce_np"
    return Finding(
        Status.FAIL,
        f"{_names(half)}: on priority {one.priority}, by which NCCL sends, the card {does}",
        SUBJECT,
        cause="env_misuse",
        loss=cost.MIGHT,
        expected="both halves of ECN (DCQCN) on the priority that carries the job, or neither",
        why="senders that nobody tells, or that do not heed it, fill the queues that all share",
        fix=Fix(
            "switch the other half on",
            (f"echo 1 > /sys/class/net/INTERFACE/ecn/{point}/enable/{one.priority}",),
            ("the same at every boot: a unit, or mlnx_qos' configuration",),
        ),
    )


def _names(some: Sequence[_Sent]) -> str:
    return ", ".join(each.name for each in some)


def _named(paused: int | None | Unavailable) -> str:
    return f"priority {', '.join(str(n) for n in range(PRIORITIES) if (paused or 0) >> n & 1)}"

"""Whether what NCCL sends on RoCE goes by a priority that the card pauses (PFC), where the card trusts DSCP.

NCCL gives its queue pairs the traffic class of NCCL_IB_TC, 0 where it is not set (src/transport/net_ib, ncclIbRtrQp), of which
the upper six bits are the DSCP; DOCA's driver puts a class of its own in its place (tc/1/traffic_class of the device).  mlx5
trusts DSCP exactly while a DSCP has a priority by DCB (en_dcbnl.c, mlx5e_dcbnl_ieee_setapp and _delapp), and then each has one;
what other drivers do is their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from netdoctor.causes import cost
from netdoctor.facts.net import Net
from netdoctor.model import Finding, Fix, Status, Unavailable, count, missing
from netdoctor.nccl.gid import Rail
from netdoctor.nccl.integers import param

SUBJECT: Final = "traffic class"
SETTING: Final = "NCCL_IB_TC"
_HOW: Final = "dcb pfc show dev INTERFACE; dcb app show dev INTERFACE; cat /sys/class/infiniband/*/tc/1/traffic_class"
_DRIVER: Final = "mlx5_core"


class _Sent(NamedTuple):
    """By which priority a rail sends."""

    name: str
    dscp: int
    priority: int
    paused: int  # priorities, a bit each
    chosen: bool  # somebody set the class
    good: tuple[int, ...]  # DSCPs whose priority is paused


def judge(rails: Sequence[Rail], net: Net, setting: str | None | Unavailable) -> Finding | None:
    """None: no card tells of a rail that it pauses anything by DSCP."""
    every = [_sent(rail, net, setting) for rail in rails if rail.device.driver == _DRIVER]
    lost = missing(*every)
    sent = [one for one in every if isinstance(one, _Sent)]
    bad = [one for one in sent if one.chosen and not one.paused >> one.priority & 1]
    if bad:
        return _fail(bad)
    if lost is not None:
        return Finding(Status.UNKNOWN, f"by which priority NCCL sends could not be read: {lost}", SUBJECT, how=_HOW)
    if not sent:
        return None
    unset = [one for one in sent if not one.paused >> one.priority & 1]
    if unset:  # whoever pauses priorities for storage alone means it so
        text = (
            f"{SETTING} is not set: NCCL sends by priority {unset[0].priority}, and {_named(unset[0].paused)} alone is paused"
        )
        return Finding(Status.SKIP, "nothing asks that what NCCL sends be paused", SUBJECT, notes=(text,))
    return Finding(
        Status.PASS, f"what NCCL sends on {count(len(sent), 'rail')} goes by a priority that is paused (PFC)", SUBJECT
    )


def _sent(rail: Rail, net: Net, setting: str | None | Unavailable) -> _Sent | None | Unavailable:
    own = rail.device.traffic_class
    link = net.link(rail.netdev) if rail.gid and rail.gid.kind == "RoCE v2" else None
    chosen = own is not None or setting not in (None, "")
    if link is None or (isinstance(link, Unavailable) and not chosen):
        return None
    if isinstance(link, Unavailable):
        return link
    if link.pfc in (0, None) or link.dscp is None:
        return None
    if isinstance(link.pfc, Unavailable) or isinstance(link.dscp, Unavailable) or isinstance(own, Unavailable):
        return missing(link.pfc, link.dscp, own)
    if own is None and isinstance(setting, Unavailable):
        return setting
    dscp = (max(0, param(setting, -1)) if own is None else own) >> 2 & 63
    priority, paused = dict(link.dscp).get(dscp), link.pfc or 0
    good = tuple(one for one, by in link.dscp if paused >> by & 1)
    return None if priority is None else _Sent(rail.device.name, dscp, priority, paused, chosen, good)


def _fail(bad: Sequence[_Sent]) -> Finding:
    one = bad[0]
    names = ", ".join(each.name for each in bad)
    text = f"{names}: NCCL's packets have DSCP {one.dscp}, which goes by priority {one.priority}"
    better = [f"export {SETTING}={4 * dscp}   # DSCP {dscp}" for dscp in one.good if dscp % 8 == 0 or len(one.good) == 1][:2]
    return Finding(
        Status.FAIL,
        f"{text}, and {_named(one.paused)} alone is paused (PFC)",
        SUBJECT,
        cause="env_misuse",
        loss=cost.MIGHT,
        expected="a DSCP whose priority is paused, on every hop",
        why="what is not paused is dropped where the network is crowded, and sent again",
        fix=Fix(
            "give NCCL the class that the network does not drop, or let the card and the switches pause this one",
            (*better, *_HOW.split("; ")),
        ),
    )


def _named(paused: int) -> str:
    return f"priority {', '.join(str(n) for n in range(8) if paused >> n & 1)}"

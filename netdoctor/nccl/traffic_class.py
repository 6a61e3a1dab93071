"""Whether what NCCL sends on RoCE goes by a priority that the card pauses (PFC), or is held back on where it is crowded (ECN).

NCCL gives its queue pairs the traffic class of NCCL_IB_TC, 0 where it is not set, and the service level of NCCL_IB_SL
(src/transport/net_ib, ncclIbRtrQp); the upper six bits of the class are the DSCP.  DOCA's driver puts a class of its own in its
place (tc/1/traffic_class of the device).  Where mlx5 trusts DSCP, that one has a priority by DCB; where it trusts PCP, the
service level is the priority (drivers/infiniband/hw/mlx5/qp.c, mlx5_set_path: eth_prio), whatever the DSCP.  What other drivers
do is their own; of what `dcb apptrust` asks for only switches' drivers tell (lan966x, sparx5, DSA), and no card for RDMA.
A bond has no DCB, its ports have; a VLAN's frames go by the interface below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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


class _Card(NamedTuple):
    """What a rail goes by: the card's own interface, each port of a bond, what is below a VLAN."""

    rail: Rail
    name: str
    qos: Qos
    chosen: bool  # somebody set the class
    tagged: bool  # its frames have a VLAN's tag, which tells the other end the priority


class _Sent(NamedTuple):
    """By which priority a card sends."""

    card: _Card
    dscp: int
    priority: int
    trusts: str

    @property
    def qos(self) -> Qos:
        return self.card.qos

    @property
    def chosen(self) -> bool:
        return self.card.chosen

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
    setting, level = settings.get(SETTING), settings.get(LEVEL)
    found = [one for rail in rails if rail.device.driver == _DRIVER for one in _cards(rail, net, setting)]
    cards = [one for one in found if isinstance(one, _Card)]
    every = [_sent(card, setting, level) for card in cards]
    lost = missing(*(one for one in found if isinstance(one, Unavailable)), *every)
    sent = [one for one in every if isinstance(one, _Sent)]
    pauses = [one for one in sent if one.qos.pfc]
    bare = [  # of a bond one port pauses none, and the bond sends by all of them
        one._replace(card=card)
        for one in pauses
        if one.chosen
        for card in cards
        if card.rail is one.card.rail and card.qos.pfc == 0
    ]
    if bad := [*(one for one in pauses if one.chosen and not one.paused), *bare]:
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
        text = f"what NCCL sends on {_rails(one.card for one in pauses)} goes by a priority that is paused (PFC)"
        return Finding(Status.PASS, text, SUBJECT)
    return _without_pauses([one for one in cards if one.chosen], [one for one in sent if one.chosen and one.ecn is not None])


def _without_pauses(cards: Sequence[_Card], sent: Sequence[_Sent]) -> Finding | None:
    """Frames that pause everything do as well (ethtool -a), and ECN alone is a design of its own (DCQCN on a network that
    drops)."""
    whole = [card for card in cards if card.qos.pauses_all is True]
    if free := [one for one in sent if one.ecn == (False, False) and one.card not in whole]:
        text = f"{_names(free)}: priority {free[0].priority}, by which NCCL sends, is not paused (PFC) and has no ECN"
        text = f"{text}: whether anything holds its packets back is not known"
        all_of_them = free[0].qos.pauses_all
        if isinstance(all_of_them, Unavailable):
            text = f"{text}; whether all priorities are paused (ethtool -a) could not be read: {all_of_them}"
        elif all_of_them is False:
            one = (
                "nor are all priorities paused"
                if free[0].qos.pause == (False, False)
                else f"of all priorities {_pausing(free[0])}"
            )
            text = f"{text}; {one} (ethtool -a)"
        return Finding(Status.UNKNOWN, text, SUBJECT, how=f"ethtool -a INTERFACE; {_HOW}")
    if (lost := missing(*(card.qos.pauses_all for card in cards))) is not None:
        text = f"whether the cards pause all priorities (ethtool -a) could not be read: {lost}"
        return Finding(Status.UNKNOWN, text, SUBJECT, how="ethtool -a INTERFACE")
    aware = [one.card for one in sent if one.ecn == (True, True)]
    if whole and (off := [card for card in cards if card not in whole and card not in aware]):
        alike = [card.name for card in off if card.qos.pause == off[0].qos.pause]
        text = f"{', '.join(alike)}: {_pausing(off[0])} (ethtool -a), where {whole[0].name} pauses whatever it sends"
        return Finding(Status.UNKNOWN, text, SUBJECT, how="ethtool -a INTERFACE")
    if whole:
        text = f"the cards of {_rails(whole)} pause whatever they send (ethtool -a)"
        return Finding(Status.PASS, text, SUBJECT)
    if not sent:
        return None
    text = f"what NCCL sends on {_rails(one.card for one in sent)} goes by a priority with ECN, and none is paused (PFC)"
    return Finding(Status.PASS, text, SUBJECT)


def _pausing(card: _Card | _Sent) -> str:
    """What a card that does not do both does with frames that pause whatever is sent."""
    words = {
        (False, False): "it pauses nothing",
        (True, False): "it heeds pauses and sends none",
        (False, True): "it sends pauses and heeds none",
    }
    does = card.qos.pause
    return words[does] if isinstance(does, tuple) and does in words else "its driver does not say whether it pauses"


def _cards(rail: Rail, net: Net, setting: _Setting) -> Iterator[_Card | Unavailable]:
    link = net.link(rail.netdev) if rail.gid and rail.gid.kind == "RoCE v2" else None
    chosen = rail.device.traffic_class is not None or setting not in (None, "")
    if isinstance(link, Unavailable):
        if chosen:
            yield link
    elif link is not None:
        cards = net.cards(link)
        for card in cards:
            name = rail.device.name if cards == (link,) else f"{rail.device.name} ({card.name})"
            yield _Card(rail, name, card.qos, chosen, link.kind == "vlan")


def _sent(card: _Card, setting: _Setting, level: _Setting) -> _Sent | None | Unavailable:
    qos, own = card.qos, card.rail.device.traffic_class
    if qos.pfc is None or (qos.pfc == 0 and qos.ecn is None) or (qos.dscp is None and not card.chosen):
        return None
    if (lost := missing(qos.pfc, qos.trusts, qos.dscp, own, setting if own is None else None)) is not None:
        return lost
    dscp = (max(0, param(setting or None, -1)) if own is None else own or 0) >> 2 & 63
    if qos.trusts == "dscp":
        priority = dict(qos.dscp or ()).get(dscp)
    elif not (card.chosen and dscp):  # nobody asks for a priority by DSCP
        return None
    elif isinstance(level, Unavailable):
        return level
    else:
        priority = max(0, param(level, -1)) & 7
        paused = (qos.pfc or 0) >> priority & 1
        if paused and not card.tagged:  # here; a frame without a tag tells neither switches nor the other end
            return None
    return None if priority is None else _Sent(card, dscp, priority, str(qos.trusts))


def _fail(bad: Sequence[_Sent]) -> Finding:
    one = bad[0]
    dscp = f"NCCL's packets have DSCP {one.dscp}, which goes by priority {one.priority}"
    level = (
        f"the card trusts the VLAN tag (PCP), so that NCCL's packets go by priority {one.priority} ({LEVEL}), not by their DSCP"
    )
    good = [dscp for dscp, by in one.qos.dscp or () if (one.qos.pfc or 0) >> by & 1]
    alone = (
        f"{_named(one.qos.pfc)} alone is paused (PFC)" if one.qos.pfc else "it pauses none (PFC), another port of the bond does"
    )
    better = [f"export {SETTING}={4 * dscp}   # DSCP {dscp}" for dscp in good if dscp % 8 == 0 or len(good) == 1][:2]
    fix = Fix(
        "give NCCL the class that the network does not drop, or let the card and the switches pause this one",
        (*better, *_HOW.split("; ")),
    )
    if not one.qos.pfc:
        fix = Fix("let this port and the switch's pause what the bond's other port pauses", tuple(_HOW.split("; ")))
    trust = Fix("let the card trust DSCP, as the switches do", ("mlnx_qos -i INTERFACE --trust dscp", *_HOW.split("; ")))
    return Finding(
        Status.FAIL,
        f"{_names(bad)}: {dscp if one.trusts == 'dscp' else level}, and {alone}",
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
    return ", ".join(each.card.name for each in some)


def _rails(cards: Iterable[_Card]) -> str:
    """A bond is one."""
    return count(len({card.rail.device.name for card in cards}), "rail")


def _named(paused: int | None | Unavailable) -> str:
    return f"priority {', '.join(str(n) for n in range(PRIORITIES) if (paused or 0) >> n & 1)}"

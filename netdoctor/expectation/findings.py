"""Shortfalls as findings: one of each subject and cause, with every source that says so, its cost and its mend."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import infiniband_packets, less, roce_frames
from netdoctor.expectation.model import Comparison, Expectation, Quantity, Shortfall, Source, judged
from netdoctor.model import NODE, Finding, Fix, Loss, Status, count, record
from netdoctor.nccl.rdma_access import PORT_UP

_LINK, _MISSING, _ODD = "link_degraded", "inventory", "odd_one_out"
CAUSES: Final = {
    **dict.fromkeys((Quantity.WIDTH, Quantity.SPEED, Quantity.RATE, Quantity.PORTS, Quantity.NVLINKS, Quantity.LANES), _LINK),
    **dict.fromkeys((Quantity.INTERFACE, Quantity.INTERFACE_SPEED, Quantity.BOND), _LINK),
    **dict.fromkeys((Quantity.THERE, Quantity.GPUS, Quantity.RAILS, Quantity.NEAREST, Quantity.GPUS_NEAR), _MISSING),
    **dict.fromkeys((Quantity.MTU, Quantity.PACKET), "mtu"),
    Quantity.GID_KINDS: "roce_gid",
    Quantity.FAMILIES: "roce_gid",
    **dict.fromkeys((Quantity.CLOCK, Quantity.POWER), "gpu_slow"),
    Quantity.CLIQUE: "fabric_manager",
    Quantity.BAR1: "gpu_error",
}
_STATE: Final = "state expected.{} in the configuration (netdoctor expect writes it)"
_KEYS: Final = {Quantity.RAILS: "hcas", Quantity.NVLINKS: "nvlinks"}
_PARTS_OF_MANY: Final = frozenset({Quantity.THERE, Quantity.PORTS, Quantity.NEAREST, Quantity.GPUS_NEAR})
_UNITS: Final = {
    Quantity.WIDTH: "PCIe lanes",
    Quantity.SPEED: "GT/s of the PCIe link",
    Quantity.RATE: "Gb/s of the port",
    Quantity.NVLINKS: "NVLinks",
    Quantity.RAILS: "RDMA devices",
    Quantity.GPUS: "GPUs",
    Quantity.LANES: "lanes of the port",
    Quantity.INTERFACE_SPEED: "Gb/s of the interface",
    Quantity.BOND: "ports of the bond",
    Quantity.CLOCK: "MHz of the SM clock",
}


@record
class About:
    """What all findings of one comparison share."""

    what: str  # the subject of what holds, and of what could not be read: "GPUs"
    number: int  # of the parts: one of so many that is lost costs its share
    needed: bool | None  # whether the job needs them
    place: str = ""  # where a mend must be made, if not here: "on the node: "
    others: bool | None = None  # whether the job needs the way to other nodes, for the parts that nothing else uses

    @property
    def counted(self) -> str:
        return count(self.number, self.what.removesuffix("s")) if self.number else f"no {self.what}"


def findings(comparison: Comparison, about: About) -> Iterator[Finding]:
    """Fails; one unknown for all that could not be read; a pass only where all that was asked was read and holds, and a skip
    where no source says anything of what is there."""
    result = judged(comparison.parts, comparison.expectations)
    for subject, short in result.by_subject.items():
        what = replace(about, needed=about.others) if subject in comparison.across else about
        for cause in dict.fromkeys(_cause(one) for one in short):
            some = [one for one in short if _cause(one) == cause]
            yield _of_several(_fail(subject, cause, some, what), some, result.shortfalls)
    known = {one.expectation.quantity for one in result.shortfalls}
    perhaps = [one for one in result.perhaps if one.expectation.quantity not in known]
    yield from (_perhaps(one, about) for one in perhaps)
    doubts = [one.text for one in result.doubts]
    if comparison.unread is not None:
        doubts.append(f"what is expected could not be told: {comparison.unread}")
    if doubts:
        more = f", and {len(doubts) - 1} more" if len(doubts) > 1 else ""
        yield Finding(Status.UNKNOWN, f"{doubts[0]}{more}", about.what)
    elif perhaps:
        return
    elif result.held and not result.shortfalls:
        titles = dict.fromkeys(one.quantity.title for one in result.held)
        sources = list(dict.fromkeys(str(one.source) for one in result.held))
        of = list(dict.fromkeys(one.subject for one in result.held))
        said = replace(about, number=min(len(of), about.number))  # of the others nobody said anything
        who = ", ".join(of) if said.number < about.number and len(of) <= 3 else said.counted
        text = f"{who} as expected: {', '.join(titles)}"
        yield Finding(Status.PASS, text, about.what, evidence={"sources": sources})
    elif not result.shortfalls:
        yield Finding(Status.SKIP, f"{about.counted}, and no source says more of what should be", about.what)


def _perhaps(one: Shortfall, about: About) -> Finding:
    """All have less than they could have: the site chose it, or it is a fault that all share."""
    fail = _fail(about.what, _cause(one), [one], about)
    should, why = one.expectation.text, "the choice of this site, or a fault"
    if one.expectation.quantity is Quantity.RAILS:
        text = f"{one.text}, there can be {should}: {why}"
    else:
        text = f"{one.text} of all {about.what}, which can do {should}: {why} that all share"
    subject = f"{one.expectation.quantity.title} of the {about.what}"
    fail = replace(fail, subject=subject)
    return Finding(
        Status.UNKNOWN,
        text,
        subject,
        evidence=fail.evidence,
        how=_STATE.format(_KEYS.get(one.expectation.quantity, "hca_rate_gbps")),
        perhaps=fail,
    )


def _cause(one: Shortfall) -> str:
    return CAUSES.get(one.expectation.quantity, _ODD)


def _fail(subject: str, cause: str, short: Sequence[Shortfall], about: About) -> Finding:
    have = dict.fromkeys(one.text for one in short)
    should = dict.fromkeys(one.expectation.text for one in short)
    sources = dict.fromkeys(str(one.expectation.source) for one in short)
    loss = max((loss_of(one, about) for one in short), key=lambda one: one.share or 0)
    return Finding(
        Status.FAIL,
        f"{subject if subject != NODE else 'this node'}: {', '.join(have)}; expected {', '.join(should)}",
        subject,
        cause=cause,
        expected="; ".join(dict.fromkeys(one.expectation.cited for one in short)),
        evidence={"sources": list(sources)},
        fix=_fix(subject, short[0].expectation, about.place),
        loss=loss,
    )


def _of_several(found: Finding, short: Sequence[Shortfall], every: Sequence[Shortfall]) -> Finding:
    """GPUs that lost NVLinks at once have what those lead to in common."""
    lost = {one.expectation.subject for one in every if one.expectation.quantity is Quantity.NVLINKS}
    if len(lost) < 2 or found.fix is None or short[0].expectation.quantity is not Quantity.NVLINKS:
        return found
    why = (
        f"{len(lost)} GPUs lost NVLinks at once: the NVSwitch or bridge that they share is likelier at fault than each of them"
    )
    return replace(found, why=why, fix=replace(found.fix, commands=(*found.fix.commands, _ALL_AT_ONCE)))


_ALL_AT_ONCE: Final = "nvidia-smi -r   # when nothing runs on them: all GPUs, and with them the NVSwitches"
_DIFFERS: Final = Loss(None, "it works, at another pace or in another way", None)
_OF_RAILS: Final = {Quantity.MTU: roce_frames, Quantity.PACKET: infiniband_packets}


def loss_of(one: Shortfall, about: About) -> Loss:
    """What a shortfall takes, by what it is short of."""
    quantity, should = one.expectation.quantity, one.expectation.should
    if quantity in _PARTS_OF_MANY:
        return less(about.number - 1, about.number, about.what, needed=about.needed)
    if isinstance(should, str) or isinstance(one.has, str):
        return _DIFFERS
    if one.expectation.source is Source.SIBLINGS and quantity in _OF_RAILS:  # the site's MTU is that of any interface
        return _OF_RAILS[quantity](one.has, should, needed=about.needed)
    if quantity not in _UNITS:
        return _DIFFERS
    if one.expectation.enough is not None and one.has >= one.expectation.enough:
        return Loss(0.0, "what is below it needs no more", about.needed)
    return less(one.has, should, _UNITS[quantity], needed=about.needed)


def _fix(subject: str, expected: Expectation, place: str) -> Fix:
    if expected.mend is not None:
        return replace(expected.mend, summary=f"{place}{expected.mend.summary}")
    summary, *commands = _FIXES.get(expected.quantity, _COMPARE)
    name = subject.removeprefix("GPU ").removesuffix(" under load")
    at = name if _ADDRESS.match(name) else f"$(basename $(readlink -f /sys/class/infiniband/{name}/device))"
    by_site = expected.source is Source.SITE  # whose MTU is that of any interface
    net = name if by_site else netdev_of(name)
    known = {"at": at, "net": net, "should": expected.should}
    return Fix(f"{place}{summary}", tuple(one.format(name, **known) for one in commands))


def netdev_of(device: str, port: int = 1) -> str:
    """What prints the interface of a port: beside it `device/net` has representors, another port's, IPoIB's children."""
    return f"$(rdma link show {device}/{port} | sed -n 's/.* netdev \\([^ ]*\\).*/\\1/p')"


_ADDRESS: Final = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:")  # as sysfs writes it, which is all that lspci -s takes


_PCI: Final = (
    "reseat the card or its riser, and look for errors of the link",
    "lspci -vv -s {at} | grep -e LnkCap -e LnkSta",
    "dmesg | grep -i -e aer -e pcieport",
)
_CABLE: Final = ("look at cable, transceiver and switch port", "ibstat {}", "rdma link show | grep {}")
_INTERFACE: Final = (_CABLE[0], "ibstat {0} || ethtool {0}", "rdma link show | grep {0}")
_BUS: Final = ("find the missing one: reseat, firmware, dmesg", "lspci -nn | grep -i -e nvidia -e mellanox", "dmesg")
_QOS: Final = "give its interface the quality of service of the other rails, and the switch's port the same"
_GIDS: Final = ("give its interface the addresses that the others have", "rdma link show | grep {}", "ip -br address")
_COMPARE: Final = ("make it as its like: compare the two", "lspci -nn", "nvidia-smi -q", "ibv_devinfo")
_FIXES: Final = {
    Quantity.WIDTH: _PCI,
    Quantity.SPEED: _PCI,
    Quantity.RATE: _CABLE,
    Quantity.PORTS: (PORT_UP, "ibstat {}   # State, Physical state", "sminfo", "rdma link show | grep {}"),
    Quantity.LANES: _CABLE,
    Quantity.INTERFACE: _CABLE,
    Quantity.INTERFACE_SPEED: _INTERFACE,
    Quantity.BOND: (
        "bring the port back (cable, switch port, LACP of the switch); of active-backup make the fastest port the active one",
        "grep . /proc/net/bonding/*",
        "ip -d link show type bond",
        "ip link set BOND type bond active_slave PORT   # of active-backup",
    ),
    Quantity.NVLINKS: ("look for NVLink errors, then reset the GPUs", "nvidia-smi nvlink -s -i {}", "dmesg | grep -i xid"),
    Quantity.GPUS: _BUS,
    Quantity.RAILS: _BUS,
    Quantity.NEAREST: _BUS,
    Quantity.GPUS_NEAR: _BUS,
    Quantity.MTU: (
        "give its interface the MTU of the others",
        "rdma link show; ip -br link",
        "ip link set dev {net} mtu {should}",
    ),
    Quantity.PREFIX: ("give its address the netmask of the others'", "ip -4 -br address", "ip route; rdma link show | grep {}"),
    Quantity.PACKET: (
        "give its port the MTU of the others: of the link, and of the partition (mtu= in the subnet manager's partitions.conf)",
        "ibv_devinfo -d {} | grep mtu",
        "smpquery -C {} -D portinfo 0 1 | grep -i mtu",
    ),
    Quantity.GID_KINDS: _GIDS,
    Quantity.FAMILIES: _GIDS,
    Quantity.PFC: (
        "pause on its port and on the switch's what the other rails pause: what is not paused is dropped where it is crowded",
        "dcb pfc show dev {net}",
        "mlnx_qos -i {net}",
    ),
    Quantity.DSCP: (_QOS, "dcb app show dev {net}", "mlnx_qos -i {net}"),
    Quantity.TRUST: (_QOS, "mlnx_qos -i {net}", "mlnx_qos -i {net} --trust dscp"),
    Quantity.SHARES: (_QOS, "dcb ets show dev {net}", "mlnx_qos -i {net}"),
    Quantity.PAUSE: (
        "pause on its port and on the switch's what the other rails pause: what is not paused is dropped where it is crowded",
        "ethtool -a {net}",
        "ethtool -A {net} rx on tx on",
    ),
    Quantity.BUFFERS: (_QOS, "dcb buffer show dev {net}", "mlnx_qos -i {net}"),
    Quantity.ECN: (
        "let its port tell of congestion and heed it on the priorities of the other rails",
        "grep . /sys/class/infiniband/{0}/device/net/*/ecn/roce_*/enable/*",
        "echo 1 > /sys/class/net/{net}/ecn/roce_np/enable/PRIORITY",
    ),
    Quantity.PKEY: (
        "give its port the partition of the others",
        "cat /sys/class/infiniband/{}/ports/*/pkeys/0",
        "smpquery -C {} -D pkeys 0",
    ),
    Quantity.CLOCK: ("see what lowers its clocks: heat, power, a lock", "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER -i {}"),
    Quantity.POWER: (
        "give it the power limit of the others",
        "nvidia-smi -q -d POWER -i {}",
        "nvidia-smi -i {} -pl {should:g}",
    ),
    Quantity.BAR1: (
        "let it map all its memory: firmware (Above 4G Decoding, MMIO High Size), or the hypervisor's MMIO space",
        "nvidia-smi -q -d MEMORY -i {}",
        "lspci -vv -s {at} | grep -e Region -e BAR",
    ),
    Quantity.CLIQUE: ("give it the partition of the others", "nvidia-smi -q -i {} | grep -A6 Fabric"),
    Quantity.ECC: ("switch ECC as on the others, then reset it", "nvidia-smi -i {} -e 1", "nvidia-smi -i {} -r"),
    Quantity.PERSISTENCE: ("let the daemon keep all GPUs up", "systemctl enable --now nvidia-persistenced"),
    Quantity.FIRMWARE: (
        "update its firmware to that of the others",
        "mlxfwmanager --query",
        "cat /sys/class/infiniband/{}/fw_ver",
    ),
}

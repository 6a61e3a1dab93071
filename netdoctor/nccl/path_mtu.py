"""Packets of the full size that vanish on the way to a host: a way that takes less than both its ends, or ends of two MTUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from netdoctor.causes import cost
from netdoctor.facts.reach import Path
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Fix, Status, count

_MEND: Final = Fix(
    "let routers and firewalls pass ICMP 'fragmentation needed' (type 3, code 4) and ICMPv6 'packet too big' (type 2), and "
    "give both ends and the switches between them one MTU",
    ("ip link show", "tracepath HOST", "sysctl -w net.ipv4.tcp_mtu_probing=1   # until it is mended"),
)


def vanished(name: str, path: Path, where: str, data: bool | None) -> Finding:
    """Between ends of two MTUs nothing is lost: TCP's ends tell each other what they take (RFC 9293, 3.7.1).  On a way that
    takes less than both ends it hangs."""
    largest = 1500 if path.middle and path.size > 1500 else None
    passed = f"packets of {largest} bytes arrive" if largest else "small packets arrive"
    lost = Finding(
        Status.FAIL,
        f"{passed} at {where}, those of {path.size} vanish, and no router says so",
        name,
        cause="mtu",
        loss=cost.SOMETIMES,
        expected=f"an answer to an echo of {path.size} bytes",
        why="connections are made, and what is larger hangs (RFC 2923)",
        fix=_MEND,
        evidence={"size": path.size},
    )
    if path.pieces is None:
        text = f"{lost.message}: the way takes less than both ends, and what is larger hangs, or that end has a smaller MTU"
        how = (
            "ip link show there; as root (CAP_NET_RAW), which may send packets in pieces: netdoctor preflight --only net.reach"
        )
        return Finding(Status.UNKNOWN, text, name, how=how, perhaps=lost)
    if path.pieces < path.size and path.pieces:
        return replace(_smaller(name, path.pieces, path.size, where), loss=cost.tcp_frames(path.pieces, path.size, needed=data))
    way = "; its own of that size arrive: it is the way there" if path.pieces else "; to one sent in pieces no answer comes"
    return replace(lost, message=f"{lost.message}{way}")


def _smaller(name: str, there: int, here: int, where: str) -> Finding:
    return Finding(
        Status.FAIL,
        f"{where} has another MTU: it sends packets of {there} bytes at most, this node of {here}",
        name,
        cause="mtu",
        expected="one MTU at both ends",
        why="TCP agrees on the smaller one; what is sent with the larger, and is not TCP, vanishes",
        fix=Fix("give both ends one MTU", ("ip link show", f"ping -M do -s {here - 28} {name}")),
        evidence={"size": here, "there": there},
    )


def odd_ones(found: Mapping[str, Finding], paths: Mapping[str, Path], vantage: Vantage) -> Iterator[Finding]:
    """Which end of two MTUs is the odd one, by the other hosts that this interface reaches."""
    for interface in dict.fromkeys(path.interface for path in paths.values()):
        same = {name: path for name, path in paths.items() if path.interface == interface}
        less = {name: path.pieces for name, path in same.items() if path.vanish and path.pieces and path.pieces < path.size}
        full = [name for name, path in same.items() if path.full]
        if len(less) > 1 and not full and len(set(less.values())) == 1:  # all of them have it: this node is the odd one
            (there,) = set(less.values())
            one, *_ = less
            text = f"{interface} has an MTU of {same[one].size}, and {count(len(less), 'other host')} {there} at most"
            yield replace(found[one], message=text, subject=interface, fix=_own_mtu(vantage, interface, there))
            continue
        for name in (one for one in same if one in found):
            odd = name in less and len(full) > len(less)
            commands = (f"ip link set dev INTERFACE mtu {same[name].size}   # there",)
            mend = Fix(f"on {name}: give its interface the MTU of the others", commands)
            text = f"{found[name].message}, as {count(len(full), 'other host')}"
            yield replace(found[name], message=text, fix=mend) if odd else found[name]


def _own_mtu(vantage: Vantage, interface: str, mtu: int) -> Fix:
    if vantage.in_container:
        return Fix("give this network the MTU of the other hosts", (f"mtu: {mtu} in the CNI plugin's configuration",))
    lasting = (f"MTUBytes={mtu} in its systemd.network, mtu: {mtu} in netplan", f"nmcli connection modify NAME mtu {mtu}")
    return Fix("give this node's interface the MTU of the other hosts", (f"ip link set dev {interface} mtu {mtu}",), lasting)

"""Which interfaces lead to other nodes, by address and route; names matter only where another interface has the route."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import ip_address, ip_interface, ip_network
from typing import Final

from netdoctor.facts.net import Link, Net
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.interface_names import INSIDE_NAMES, TUNNEL_NAMES

INSIDE_KINDS: Final = ("tun", "wireguard", "vxlan", "geneve", "dummy")  # networks of containers, and tunnels


def leading_out(net: Net) -> frozenset[str]:
    """Interfaces that lead to another node, or out of this one by the default route."""
    route = net.default_route
    default = frozenset[str]() if route is None or isinstance(route, Unavailable) else frozenset({route.interface})
    return default.union(*(one.reached_by() for one in net.others))


def candidates(net: Net, besides: str = "") -> tuple[str, ...]:
    """Interfaces to take instead of `besides`: up, with an address, and leading out."""
    leading = leading_out(net)
    return tuple(
        link.name
        for link in net.links or ()
        if link.name in leading and link.name != besides and link.up and not link.loopback and link.addresses
    )


def inside_node(net: Net, link: Link) -> bool:
    """A network of containers or a tunnel, by name or kind, unless hardware is part of it (a bridge over a NIC)."""
    if link.kind == "bridge":
        return not any(one.controller == link.index and one.kind in (None, "bond", "team", "vlan") for one in net.links or ())
    if link.kind == "openvswitch":  # br-ex has the host's own address, and no index tells that a NIC is its port
        return False
    return link.kind in INSIDE_KINDS or link.name.startswith(INSIDE_NAMES)


def meant(settings: Mapping[str, str]) -> bool:
    """Whether the job names the interfaces of its sockets; a list of those to leave out (^) means none of what is left."""
    value = settings.get("NCCL_SOCKET_IFNAME") or "^"
    return not value.startswith("^")


def stays(net: Net, link: Link, *, named: bool = False) -> bool:
    """Whether what goes by this interface stays in the node: the loopback, and a network of containers or a tunnel by which
    nothing leads to another node.  What the job names is the network that it means: a tunnel between hosts, or the dummy that
    carries a routed host's own address (BGP to the host)."""
    if link.loopback:
        return True
    tunnel = link.kind in INSIDE_KINDS or link.name.startswith(TUNNEL_NAMES)
    return inside_node(net, link) and link.name not in leading_out(net) and not (named and tunnel)


def one_network(links: Iterable[Link]) -> str | None:
    """What is to be said of interfaces in one IP network.

    NCCL's sockets are not bound to an interface (src/misc/socket.cc connects to the peer's address alone), so the kernel's
    route decides: of two entries for one network it takes the first (ip-route(8)).
    """
    holders: dict[str, list[str]] = {}
    for link in links:
        for network in sorted({str(ip_interface(f"{a.ip}/{a.prefix}").network) for a in link.addresses if a.scope == "global"}):
            holders.setdefault(network, []).append(link.name)
    shared = next(((network, names) for network, names in holders.items() if len(names) > 1), None)
    return f"{', '.join(shared[1])} are in {shared[0]}, to which the kernel sends through one of them" if shared else None


def dead_end(net: Net, name: str) -> str | None:
    """Why no other node comes to what listens on this interface, whatever the network is; None where one may."""
    link = net.link(name)
    if not link:
        return None
    if link.loopback:
        return "no other node reaches the loopback"
    if not link.up:
        return f"{name} is down, and no other node reaches it"
    # Those are told to the others without the number of the interface, without which nobody dials them (ipv6(7)).
    if link.addresses and all(is_link_local6(one.ip) for one in link.addresses):
        return f"{name} has only IPv6 link-local addresses, which no other node can dial"
    return None


def is_loopback(text: str) -> bool:
    """An address of the loopback, or ``localhost``."""
    try:
        return ip_address(text.partition("%")[0]).is_loopback
    except ValueError:
        return text == "localhost"


def is_link_local6(text: str) -> bool:
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return False
    return address.version == 6 and address.is_link_local


def fault(link: Link, ip: str, better: tuple[str, ...], net: Net, *, several: bool, named: bool) -> str | None:
    """What is wrong with listening on this address wherever the other nodes are; `better` are other interfaces to take."""
    address = next((one for one in link.addresses if one.ip == ip), None)
    if not link.up:
        return "which is down"
    if address is not None and "dadfailed" in address.flags:
        return "an IPv6 address that another host has too (duplicate address detection failed)"
    if is_link_local6(ip) and several:
        return "an IPv6 link-local address, whose scope is an interface number of this node: it leads nowhere on another"
    if link.loopback:
        return "the loopback, which no other node reaches" if several else None
    if better and stays(net, link, named=named):
        return f"a container or tunnel network; the route to other nodes leads through {better[0]}"
    if not link.running and better:
        return "which has no carrier"
    return None


def gloo_address(net: Net) -> str | Unavailable:
    """What Gloo listens on without GLOO_SOCKET_IFNAME: the address that the host name has here, "" where it has none, and
    then the loopback is taken (torch ProcessGroupGloo::createDefaultDevice)."""
    found = net.hostname_addresses
    if isinstance(found, Unavailable) and found.kind != Kind.ABSENT:
        return found
    own = {one.ip for link in net.links or () for one in link.addresses}
    return next((ip for ip in found or () if ip in own or is_loopback(ip)), "")


def neighbours(net: Net, family: int, others: int, *, asked: bool) -> int:
    """Entries that so many other nodes take in the kernel's table of neighbours, by the subnets of this node's interfaces.

    The data goes by IPv6 where it is `asked` for, or an interface has nothing else.
    """
    return sum(min(others, _on_link(family, link, asked)) for link in net.links or () if not stays(net, link))


def _on_link(family: int, link: Link, asked: bool) -> int:
    """Hosts that its largest subnet of this family may hold; 0: it leads to none."""
    if not link.up or not link.running or (family == 6 and not asked and any(one.family == 4 for one in link.addresses)):
        return 0
    own = [one for one in link.addresses if one.family == family and (family == 4 or one.scope == "global")]
    sizes = [ip_network(f"{one.ip}/{one.prefix}", strict=False).num_addresses for one in own]
    return max((0, *(size - (3 if family == 4 else 1) for size in sizes)))

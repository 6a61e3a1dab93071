"""Which interfaces lead to other nodes, by address and route; names matter only where another interface has the route."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_interface
from typing import Final

from netdoctor.causes.cost import STOPS
from netdoctor.facts.environ import Environ
from netdoctor.facts.nccl_version import Version
from netdoctor.facts.net import Link, Net
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable, missing
from netdoctor.nccl import ifname
from netdoctor.nccl.interface_names import INSIDE_NAMES, TUNNEL_NAMES

# Linux drivers/net/usb: the host's end of a Redfish host interface (DMTF DSP0270), by which it talks to its own BMC.
_BY_USB: Final = frozenset({"cdc_ether", "cdc_eem", "cdc_ncm", "cdc_subset", "rndis_host"})
INSIDE_KINDS: Final = ("tun", "wireguard", "vxlan", "geneve", "dummy")  # networks of containers, and tunnels


def loopback_down(links: tuple[Link, ...], vantage: Vantage) -> Iterator[Finding]:
    """Only what is wrong or open, of the job's own network namespace, of which each has one, down when it is made
    (drivers/net/loopback.c).  By it goes all that is sent to any address of the node itself (net/ipv4/route.c,
    ip_route_output_key_hash_rcu: RTN_LOCAL; net/ipv6/route.c): torchrun's store, and the sockets of ranks to each other."""
    if not vantage.job_network:
        return
    own = [link for link in links if link.loopback]
    if not own:
        yield Finding(Status.UNKNOWN, "no loopback interface is seen, by which ranks of one node reach each other", "loopback")
    elif not any(link.up for link in own):
        yield Finding(
            Status.FAIL,
            f"{own[0].name} is down: nothing reaches an address of this node from here, and ranks wait for each other",
            "loopback",
            loss=STOPS,
            why="torchrun's store, Gloo and NCCL connect the ranks of a node by it, whatever interface is named",
            fix=Fix("set it up", (f"ip link set {own[0].name} up",), ("whoever makes the network namespace sets it up",)),
        )


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


def to_choose(net: Net, *, several: bool) -> str:
    """Names of those with an address, in a job of several nodes of those that may lead out; all where none does."""
    there = [link for link in net.links or () if link.addresses]
    out = [link for link in there if not stays(net, link)] if several else there
    return ", ".join(link.name for link in out or there)


def to_set(variable: str, fine: tuple[str, ...]) -> str:
    """NAME=VALUE for the first of these interfaces; the bare name, to be unset, where there is none."""
    exact = "=" if variable.startswith("NCCL_") else ""  # NCCL's names are prefixes but behind a `=`; Gloo takes whole ones
    return f"{variable}={exact}{fine[0]}" if fine else variable


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
    if link.loopback or of_the_bmc(link):
        return True
    tunnel = link.kind in INSIDE_KINDS or link.name.startswith(TUNNEL_NAMES)
    return inside_node(net, link) and link.name not in leading_out(net) and not (named and tunnel)


def of_the_bmc(link: Link) -> bool:
    """The USB network of this node and its BMC, whose IPv4 addresses are link-local (RFC 3927), and the same on every node."""
    own = [one for one in link.addresses if not is_link_local6(one.ip)]
    return link.driver in _BY_USB and bool(own) and all(ip_address(one.ip).is_link_local for one in own)


def of_sockets(net: Net, environ: Environ, version: Version) -> tuple[tuple[Link, ...], tuple[Link, ...]] | Unavailable:
    """The interfaces that NET/Socket takes, and those of them that leave this node."""
    settings = {name: environ.get(name) for name in ifname.VARIABLES}
    if (lost := missing(net.links, *settings.values())) is not None:
        return lost
    known = {name: value for name, value in settings.items() if value}
    picks = ifname.choose(net.links or (), version, known, "socket")
    if isinstance(picks, Unavailable):
        return picks
    taken = tuple(link for pick in picks if (link := net.link(pick.interface)))
    return taken, tuple(link for link in taken if not stays(net, link, named=meant(known)))


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


def given_by_itself(ip: str) -> str:
    """Words behind an IPv4 address of a node that got none; hosts on one cable may mean it (RFC 3927), so it is no fault."""
    try:
        alone = ip_address(ip).version == 4 and ip_address(ip).is_link_local
    except ValueError:
        return ""
    return ": link-local, which a node gives itself where no DHCP server answers" if alone else ""


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
    if of_the_bmc(link):
        lead = f"; the route to other nodes leads through {better[0]}" if better else ""
        return f"the USB network of this node and its BMC, with an address that every node has{lead}" if several else None
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

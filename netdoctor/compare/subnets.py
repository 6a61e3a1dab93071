"""Networks of addresses, and nodes whose NCCL takes an interface in another network than the others'."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import ip_address, ip_network
from typing import Final, Generic

from netdoctor.compare.majority import N, clear_majority
from netdoctor.model import record

# One node alone in a subnet, while this share of its kind is in another one, is not a rack of its own.
ALONE_SHARE: Final = 0.9


@lru_cache(maxsize=1 << 16)  # of every node, asked again for every rule
def network(ip: str, prefix: int | None) -> str | None:
    """None where there is no other address in it: a single one says nothing about who is near (Google Cloud gives /32)."""
    if prefix is None:
        return None
    try:
        found = ip_network(f"{ip}/{prefix}", strict=False)
    except ValueError:
        return None
    return str(found) if found.num_addresses > 1 else None


def of_one_host(ip: str) -> bool:
    """A loopback or link-local address: equal networks of two hosts are not one network."""
    one = ip_address(ip)
    return one.is_loopback or one.is_link_local


def inside(ip: str, network: str) -> bool:
    return ip_address(ip) in ip_network(network)


@record
class Member(Generic[N]):
    """What NCCL takes on one node, and every address of that node with its interface."""

    node: N
    interface: str
    ip: str
    network: str
    addresses: tuple[tuple[str, str], ...] = ()


@record
class Outsider(Generic[N]):
    """A node whose NCCL takes another network than most, by choice of the wrong interface."""

    member: Member[N]
    majority: str  # their network
    usual: str  # the interface that they take
    own: str  # interface and address of this node in the majority's network; "": none
    others: int  # how many take the majority's


def by_network(members: Iterable[Member[N]]) -> dict[str, list[Member[N]]]:
    found: dict[str, list[Member[N]]] = defaultdict(list)
    for one in members:
        found[one.network].append(one)
    return dict(found)


def outsiders(networks: Mapping[str, list[Member[N]]]) -> list[Outsider[N]]:
    """NCCL's interface on another subnet than the others', where that shows a wrong choice and not a routed network.

    Racks and pods with subnets of their own are routed on purpose.  A wrong choice shows as a node that is alone in its
    subnet while most share one, with another interface name or with an own address in the majority's subnet.
    """
    most = clear_majority({name: len(members) for name, members in networks.items()})
    if len(networks) < 2 or most is None or len(networks[most]) < 2:
        return []
    others = len(networks[most])
    usual = Counter(one.interface for one in networks[most]).most_common(1)[0][0]
    nearly_all = others >= ALONE_SHARE * sum(map(len, networks.values()))
    found = []
    for name, members in sorted(networks.items()):
        for one in members if name != most else ():
            own = next((f"{interface} {ip}" for ip, interface in one.addresses if inside(ip, most)), "")
            if own or one.interface != usual or (nearly_all and len(members) == 1):
                found.append(Outsider(one, most, usual, own, others))
    return found

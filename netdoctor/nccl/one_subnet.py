"""Rails of one subnet whose ARP the kernel drops.

An ARP request passes the routing of what arrives (net/ipv4/arp.c, arp_process, ip_route_input): with strict rp_filter only on
the interface by which the way back to its sender leads, which of several in one subnet is the first (ip-route(8)), unless rules
choose by the rail's own address, or routes by that of the peer (a range of the subnet for each rail), or one route has several
next hops (fib_info_nh_uses_dev): the kernel is asked for each rail (`ip route get OWN from PEER iif RAIL`).  Nobody answers for
the others, and RoCE resolves its peers by ARP (drivers/infiniband/core/addr.c): ibv_modify_qp ends with 110 (ETIMEDOUT).  Two
namespaces with a cable for each rail show it (tests/live/test_netlink.py): with 1 the second rail's neighbour stays incomplete,
with 2, or with such routes, it answers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from netdoctor.causes.cost import SOMETIMES
from netdoctor.facts.flat_rails import FlatRails
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable, count, missing

SUBJECT: Final = "rails of one subnet"
_MEND: Final = Fix(
    "give each rail a subnet of its own, or rules by source; in one subnet: rp_filter 2, arp_ignore 1, arp_announce 2",
    ("ip rule", "ip neigh show nud failed nud incomplete", "sysctl net.ipv4.conf.all.rp_filter=2"),
)


def judge(flat: FlatRails, used: Collection[object]) -> Iterator[Finding]:
    """Only what is wrong or open.  `used`: interfaces of the rails that NCCL takes."""
    rails = flat.rails or ()
    if isinstance(flat.network, Unavailable) or len(rails) < 2:
        return  # what of interfaces and ports could not be read, others say
    deaf = [rail.name for rail in rails if rail.hears is False]
    lost = missing(*(rail.hears for rail in rails))
    text = f"{count(len(rails), 'rail')} are in {flat.network}"
    if deaf:
        where = "any but the first" if len(deaf) == len(rails) - 1 and rails[0].hears is not False else ", ".join(deaf)
        said = f"{text}, and strict rp_filter drops the ARP that comes in on {where}"
        silent = flat.incomplete or ()
        found = Finding(
            Status.FAIL,
            f"{said}: {count(len(silent), 'host')} of it did not answer" if silent else said,
            SUBJECT,
            loss=SOMETIMES,
            why="nobody answers for a rail whose way back leads through another: ibv_modify_qp ends with 110 (timed out)",
            fix=_MEND,
            evidence={"network": flat.network, "rails": sorted(deaf)},
            measured={"unanswered": list(silent)[:8]} if silent else {},
        )
        doubt = _doubt(flat, [name for name in deaf if name in used])
        unsure = Finding(Status.UNKNOWN, f"{said}, unless {doubt}", SUBJECT, how=_MEND.commands[1], perhaps=found)
        yield unsure if doubt else found
    elif lost is not None and lost.kind is not Kind.NOT_RECORDED:  # an older recording did not ask
        yield Finding(Status.UNKNOWN, f"{text}, and whether each answers ARP could not be read: {lost}", SUBJECT)


def _doubt(flat: FlatRails, used: Collection[str]) -> str:
    """What may make it harmless; switches that keep the rails apart do not: the request arrives on the rail whose way back is
    another's all the same."""
    if not used:
        return "NCCL goes by none of these"
    if isinstance(flat.fixed, Unavailable):
        return f"the MACs of the others are written down here and there, which could not be read: {flat.fixed}"
    return "the MACs of all hosts are written down on all (permanent neighbours), as some are here" if flat.fixed else ""

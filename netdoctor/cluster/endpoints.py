"""Where this node's ranks will listen, by the rules of Gloo and NCCL, and all its addresses: sent to the others."""

from __future__ import annotations

import hashlib
import os
from typing import Any

from netdoctor.cluster.messages import MAX_LINKS
from netdoctor.cluster.observations import UNSURE
from netdoctor.compare import addresses
from netdoctor.facts import registry
from netdoctor.facts.environ import Environ
from netdoctor.facts.inventory import inventory
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Net
from netdoctor.facts.registry import Facts
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl import interfaces
from netdoctor.process.proc import boot_id


def endpoints_data(facts: Facts) -> dict[str, Any]:
    """This node's endpoints, as it sends them to the others."""
    net = registry.of(facts, "Net")
    if isinstance(net.links, Unavailable):
        return {"space": _netns()}
    links = [
        [link.name, one.ip, one.prefix, link.mtu]
        for link in net.links
        for one in link.addresses
        if link.up and not link.loopback
    ]
    return {
        "space": _netns(),
        "gloo": _gloo(net, registry.of(facts, "Environ")),
        "nccl": _nccl(registry.of(facts, "NcclChoice")),
        "links": links[:MAX_LINKS],
        "own": [ip for ip, _ in addresses.own(inventory(facts))][:MAX_LINKS],
    }


def _gloo(net: Net, environ: Environ) -> tuple[str, str] | None:
    """The name in GLOO_SOCKET_IFNAME with its first address (gloo/transport/tcp/device.cc lookupAddrForIface), else the address
    of the host's name, else the loopback (torch ProcessGroupGloo::createDefaultDevice)."""
    named = environ.get("GLOO_SOCKET_IFNAME")
    if isinstance(named, Unavailable):
        return None
    if named is not None and len(named) > 1:  # shorter values are ignored
        name = named.split(",")[0]
        link = net.link(name)
        every = sorted(link.addresses, key=lambda one: one.family) if link else ()  # as getifaddrs(3) lists them
        return next(((name, one.ip) for one in every if link and name in (link.name, one.label)), None)
    if isinstance(net.hostname_addresses, Unavailable):
        # Whatever getaddrinfo(3) fails with is one to torch (doesHostnameResolveToUsableAddress).  A name server that does not
        # answer (EAI_AGAIN, without one in /etc/hosts) may do so when the ranks ask: `UNSURE`.
        doubt = {Kind.ABSENT: "lo", Kind.FAILED: UNSURE}.get(net.hostname_addresses.kind)
        return None if doubt is None else (doubt, "127.0.0.1")
    where = {one.ip: link.name for link in net.links or () for one in link.addresses}
    fitting = [ip for ip in net.hostname_addresses if ip in where or interfaces.is_loopback(ip)]
    return (where.get(fitting[0], "lo"), fitting[0]) if fitting else ("lo", "127.0.0.1")


def _nccl(choice: NcclChoice) -> tuple[str, str] | None:
    """What the job's libnccl itself answered."""
    if not isinstance(choice.interface, str) or not isinstance(choice.address, str):
        return None
    return choice.interface, choice.address.partition("%")[0]


def _netns() -> str:
    """Names this network namespace among those of all machines: a digest of the boot and its inode."""
    try:
        inode = os.stat("/proc/self/ns/net").st_ino
    except OSError:
        return ""
    boot = boot_id()
    return hashlib.sha256(f"{boot}{inode}".encode()).hexdigest()[:16] if boot else ""

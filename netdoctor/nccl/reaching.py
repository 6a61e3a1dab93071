"""Whether node 0 and the site's peers can be connected to: by their names, routes, a connection and an echo, read together.

Python and torch (c10d socket.cpp, SocketConnectOp::tryConnect) try each address of a name in turn: one that is dead costs
time, and a name is bad where none of its addresses answers.
"""

from __future__ import annotations

from typing import Final

from netdoctor.facts.peers import Peer
from netdoctor.facts.reach import Path
from netdoctor.model import Kind, Unavailable, record

ALL: Final = "netdoctor allreduce: it tries every pair of nodes, both ways"


@record
class Unreached:
    """Why nothing connects to a peer."""

    text: str
    how: str
    certain: bool = False  # else it may be well
    silent: bool = False  # nothing came back
    cause: str | None = None  # None: the check's own


def unreached(peer: Peer, path: Path | None) -> Unreached | None:
    """What keeps connections from it, whatever listens there; None where nothing is known to.  `path`: what echoes told."""
    what = f"{peer.variable}={peer.name}"
    if isinstance(peer.addresses, Unavailable):
        text = f"{what} does not resolve here (yet): {peer.addresses.detail or peer.addresses}"
        how = f"getent hosts {peer.host}: here, and where it is known; or name its address instead ({peer.variable})"
        return Unreached(text, how, peer.addresses.kind in (Kind.ABSENT, Kind.FAILED), peer.addresses.kind is Kind.TIMED_OUT)
    if peer.routed is False:
        how = f"ip route get {peer.addresses[0]}" if peer.addresses else "ip route"
        return Unreached(f"there is no route to {what}{peer.dead_end}", how, certain=True)
    how = f"is it up? nc -vz {peer.host} {peer.port or 'PORT'}"
    if isinstance(peer.routed, Unavailable):
        return Unreached(f"the route to {what} could not be read", how)
    if isinstance(peer.rtt_ms, Unavailable) and peer.rtt_ms.kind is Kind.ABSENT:
        return _nobody(peer, path, what, how)
    if isinstance(peer.rtt_ms, Unavailable) and peer.rtt_ms.kind is Kind.TIMED_OUT:
        return Unreached(f"{what} did not answer within a second", how, silent=True)
    return None


def _nobody(peer: Peer, path: Path | None, what: str, how: str) -> Unreached:
    """The kernel makes one errno of "host unreachable" and of a firewall's "prohibited" (icmp_err_convert, net/ipv4/icmp.c; the
    default of firewalld): the echo tells them apart.  The job itself needs node 0's port, and no other port of a peer."""
    assert isinstance(peer.rtt_ms, Unavailable)
    said, asked = peer.rtt_ms.detail, peer.variable != "expected.peers"
    if path is not None and path.gone:
        return Unreached(f"nobody answers at {what}: {said}", how, certain=True)
    if path is not None and path.there:
        evidence = "it answers an echo" if path.small else f"an echo is refused ({path.error})"
        text = f"a firewall there, or on the way, rejects port {peer.port} of {what}: {said}, and {evidence}"
        if asked:
            return Unreached(text, f"there: nft list ruleset; firewall-cmd --list-all; {how}", True, cause="firewall_connect")
        return Unreached(f"{text}; whether it passes the job's ports is not known", ALL, cause="firewall_connect")
    return Unreached(f"nobody answers at {what}, or a firewall rejects port {peer.port}: {said}", how, asked, silent=not asked)

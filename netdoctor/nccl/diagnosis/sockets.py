"""Sockets: interfaces, addresses, ports, firewalls.  Sources: NCCL src/bootstrap.cc, src/misc/socket.cc, src/os/linux.cc."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.context import (
    BRIDGED,
    CERTAIN,
    EFFECT,
    LIKELY,
    OPEN,
    QUIET,
    STRONG,
    Guess,
    Scene,
    is_ipv6,
    link_local,
    local_interface,
    loopback,
    unreachable_by_design,
)
from netdoctor.nccl.log.facts import Event

_IFNAME = Fix(
    "name the interface that reaches the other nodes, with a prefix that fits every node",
    ("export NCCL_SOCKET_IFNAME=<prefix>   # e.g. =bond0 for exactly bond0, eth for eth0 and eth1",),
)
_FIREWALL = Fix(
    "open the ephemeral ports between the nodes of the job, both ways: NCCL listens on ports that the kernel picks",
    ("sysctl net.ipv4.ip_local_port_range   # these TCP ports, not MASTER_PORT alone", "nft list ruleset; iptables -S"),
)
_PORTS = Fix(
    "widen the ephemeral port range, and keep service ports reserved",
    ("sysctl -w net.ipv4.ip_local_port_range='20000 65535'", "sysctl -w net.ipv4.ip_local_reserved_ports=29500,28028"),
    ("echo 'net.ipv4.ip_local_port_range = 20000 65535' > /etc/sysctl.d/90-netdoctor.conf",),
)


def no_interface(s: Scene) -> Iterator[Guess]:
    """No interface matches: NCCL finds or fails where the user named one (src/misc/socket.cc, ncclFindInterfaces)."""
    events = s.of("no_interface")
    if not events:
        return
    name = s.facts.env.get("NCCL_SOCKET_IFNAME")
    yield Guess(
        "socket_ifname",
        CERTAIN,
        f"no interface matches NCCL_SOCKET_IFNAME={name} on this node"
        if name
        else "NCCL found no usable network interface on this node",
        events,
        _IFNAME,
        notes=(
            "an interface name differs between nodes more often than not; an address family or a missing address counts too",
        ),
    )


def address_family(s: Scene) -> Iterator[Guess]:
    """A peer's address that is none: garbage from another version or plugin; or a kernel without that family."""
    for e in s.of("address_family")[:1]:
        if "family" in e.data:
            if "NCCL_SOCKET_IFNAME" in s.facts.env and not s.facts.bootstraps:
                # 2.27 goes on with an empty address where the named interface is not there (src/misc/socket.cc)
                name = s.facts.env["NCCL_SOCKET_IFNAME"]
                yield Guess(
                    "socket_ifname", STRONG, f"no interface matches NCCL_SOCKET_IFNAME={name} on this node", (e,), _IFNAME
                )
            broken = s.of("plugin_old", "plugin_load", "ofi_init") or s.facts.plugin_error
            first, second = (
                ("plugin_mismatch", "version_mismatch") if broken or s.facts.plugin else ("version_mismatch", "plugin_mismatch")
            )
            text = "a peer sent an address of no known family: the ranks do not speak the same handshake"
            yield Guess(first, LIKELY, text, (e,))
            yield Guess(second, OPEN, text, (e,))
        else:
            yield Guess("socket_ifname", STRONG, "the chosen address family is not available here", (e,), _IFNAME)


def bind(s: Scene) -> Iterator[Guess]:
    """bind() of a listener; NCCL binds port 0, so an address in use means that no ephemeral port is free."""
    for e in s.of("bind"):
        errno = e.data.get("errno", "").lower()
        if "in use" in errno:
            yield Guess(
                "bootstrap_ports",
                STRONG + 5,
                "no ephemeral port was free for a listener",
                (e,),
                _PORTS,
                notes=(
                    "closed connections hold a port for 60 s (TIME_WAIT): a communicator made every step uses ports up as well",
                    "NCCL_PXN_DISABLE=1 multiplies the connections of an all-to-all by the GPUs of a node",
                ),
            )
        elif "assign" in errno or "no such device" in errno:
            yield Guess(
                "socket_ifname",
                STRONG + 5,
                "NCCL chose an interface whose address cannot be bound (link-local, or not ready)",
                (e,),
                _IFNAME,
            )
        elif errno:
            yield Guess("bootstrap_ports", OPEN, f"a listener could not be bound: {e.data['errno']}", (e,), _PORTS)
    for e in s.of("store_port")[:1]:
        yield Guess(
            "bootstrap_ports",
            LIKELY,
            "the rendezvous port is taken by another process",
            (e,),
            Fix(
                "give the job a port of its own",
                ("export MASTER_PORT=<free port outside net.ipv4.ip_local_port_range>", "ss -ltnp"),
            ),
        )
    for e in s.loud("descriptors")[:1]:
        yield Guess(
            "bootstrap_ports",
            STRONG,
            "the process ran out of file descriptors: every connection is one",
            (e,),
            Fix(
                "lift the limit of open files", ("ulimit -n 1048576",), ("LimitNOFILE=1048576 in the unit that starts the job",)
            ),
        )


def connect(s: Scene) -> Iterator[Guess]:
    """connect() to a peer fails: who is wrong depends on the errno and on whose address it is."""
    events = s.of("connect", "connect_gave_up")
    f = s.facts
    if not s.loud("connect", "connect_gave_up") and f.comms_complete and f.comms_complete >= f.comms_started:
        return  # retried, then it worked
    if not events:
        return
    stale = _stale_id(s, events)
    if stale:
        yield stale
    peers = [p for p in (e.data.get("peer", "") for e in events) if p]
    errnos = Counter(e.data.get("errno", "").lower() for e in events for _ in range(e.count))
    errno = " ".join(errnos)
    many_ifs = len({a.ifname for a in f.socket_interfaces}) > 1
    odd_peer = next((p for p in peers if unreachable_by_design(p)), None)
    odd_if = next((a for a in f.bootstraps if local_interface(a.ifname)), None)
    base = EFFECT + 5 if s.broken_locally or stale else LIKELY
    at = f" to {peers[0]}" if peers else ""
    if odd_peer and not (loopback(odd_peer) and s.many_nodes is False):
        yield Guess(
            "socket_ifname", max(base, STRONG), f"a rank advertises {odd_peer}, which other nodes cannot reach", events, _IFNAME
        )
        return
    if odd_if and s.many_nodes is not False:
        yield Guess(
            "socket_ifname",
            base + 3,
            f"NCCL listens on {odd_if.ifname} ({odd_if.address}), which is local to its host",
            events,
            _IFNAME,
        )
    if "assign requested" in errno:
        if any(is_ipv6(p) for p in peers):
            yield Guess("socket_ifname", base + 3, f"connect{at}: no local address of that kind", events, _IFNAME)
        else:
            yield Guess("bootstrap_ports", base, f"connect{at}: no local port was free", events, _PORTS)
            yield Guess("socket_ifname", OPEN, f"connect{at}: the address is not usable from here", events, _IFNAME)
    elif "no route" in errno or "unreachable" in errno:
        wrong = many_ifs or any(is_ipv6(p) for p in peers) or "network is unreachable" in errno
        yield Guess(
            "socket_ifname",
            base + (3 if wrong else -10),
            f"no route{at}: an interface was chosen that the peer is not behind",
            events,
            _IFNAME,
        )
        yield Guess("firewall_connect", base, f"no route{at}: a firewall that rejects answers the same", events, _FIREWALL)
    elif "refused" in errno:
        yield Guess(
            "firewall_connect",
            base - 5,
            f"connection{at} refused: nothing listens there, or a firewall answers for it",
            events,
            _FIREWALL,
        )
        yield Guess("rank_died", base - 12, f"connection{at} refused: the rank that listened may have ended", events)
        yield Guess("socket_ifname", base - 14, f"connection{at} refused: the address may be another host's", events, _IFNAME)
    elif "software caused" in errno:
        # A second connect() on a socket whose first one failed: Linux answers ECONNABORTED, the errno that mattered is gone
        # (net/ipv4/af_inet.c, __inet_stream_connect).
        text = f"connection{at} failed; the kernel's reason was lost on a retry"
        yield Guess("socket_ifname", base + (3 if many_ifs else -5), text, events, _IFNAME)
        yield Guess("firewall_connect", base, text, events, _FIREWALL)
    elif "reset" in errno or "broken" in errno:
        yield Guess("rank_died", EFFECT + 8, f"connection{at} broke while it was made: look at the other rank first", events)
    else:
        yield Guess(
            "firewall_connect", base + 2, f"connection{at} timed out: packets are dropped on the way", events, _FIREWALL
        )
        yield Guess(
            "socket_ifname",
            base - 10,
            f"connection{at} timed out: the address may be on a network that does not reach it",
            events,
            _IFNAME,
        )


def _stale_id(s: Scene, events: tuple[Event, ...]) -> Guess | None:
    """Ranks of one communicator that start with different ids: one of them read the id of an earlier communicator."""
    ids: dict[int, dict[str, int]] = {}
    for p in s.facts.ranks:
        for identity in p.comm_ids:
            ids.setdefault(p.nranks or 0, {}).setdefault(identity, 0)
            ids[p.nranks or 0][identity] += 1
    for nranks, found in ids.items():
        lonely = [i for i, n in found.items() if n < nranks]
        if nranks > 1 and len(lonely) > 1 and any("refused" in e.data.get("errno", "").lower() for e in events):
            return Guess(
                "other",
                STRONG,
                "the ranks start one communicator with different ids: a rank uses the id of a communicator that is gone",
                events,
                Fix("use a fresh store or prefix for every process group; do not re-create one while ranks still join"),
                how="the order in which the ranks call destroy_process_group and init_process_group",
                notes=("not a firewall: the address answers, but nobody listens there any more",),
            )
    return None


def chosen_interface(s: Scene) -> Iterator[Guess]:
    """The interface that bootstrap took cannot reach another node."""
    f = s.facts
    if s.many_nodes is False or f.nranks == 1 or (f.comms_complete and not s.loud("connect")):
        return
    hosts = {a.host for a in f.bootstraps}
    by_address: dict[str, set[str]] = {}
    for a in f.bootstraps:
        by_address.setdefault(a.address, set()).add(a.host)
    # Containers of one node that share its network have one address too: only addresses that hosts give out themselves count.
    same = next((a for a, h in by_address.items() if len(h) > 1 and (unreachable_by_design(a) or BRIDGED.match(a))), None)
    if same and len(hosts) > 1:
        yield Guess(
            "socket_ifname",
            STRONG,
            f"{len(by_address[same])} hosts bootstrap on the same address {same}",
            (),
            _IFNAME,
            shown=(f"Bootstrap: Using …:{same}",),
        )
        return
    for a in f.bootstraps:
        odd = local_interface(a.ifname) or loopback(a.address)
        if odd or (link_local(a.address) and s.many_nodes):
            weight = LIKELY if s.many_nodes else QUIET - 5
            if weight < QUIET and (f.vias or s.facts.channels):
                continue
            yield Guess(
                "socket_ifname",
                weight,
                f"bootstrap took {a.ifname} ({a.address}), which other nodes cannot reach",
                (),
                _IFNAME,
                shown=(f"Bootstrap: Using {a.ifname}:{a.address}",),
                subject=a.host or None,
            )
            return


def store(s: Scene) -> Iterator[Guess]:
    """torch's TCPStore: the rendezvous itself does not come about (torch/csrc/distributed/c10d/TCPStore.cpp, socket.cpp)."""
    events = s.of("store")
    if not events:
        return
    weight = EFFECT + 5 if s.broken_locally or s.of("peer_closed") else OPEN
    text = "a rank cannot reach the rendezvous" + (f" at {events[0].data['peer']}" if events[0].data.get("peer") else "")
    if any("gai" in e.data for e in events):
        text = "the rendezvous host's name cannot be resolved"
    yield Guess(
        "firewall_connect",
        weight,
        text,
        events,
        _FIREWALL,
        notes=("MASTER_ADDR must be reachable from every node, and rank 0 must be up first",),
    )


def rank_twice(s: Scene) -> Iterator[Guess]:
    """src/bootstrap.cc: two processes of one job came with one rank number."""
    events = s.of("rank_twice")
    if events:
        fix = Fix(
            "start each rank once: one launcher sets RANK and WORLD_SIZE, not two", ("srun --ntasks-per-node=1 torchrun …",)
        )
        text = f"rank {events[0].data.get('rank', '?')} came twice: the launcher starts it more than once"
        yield Guess("env_misuse", STRONG, text, events, fix)
        yield Guess("device_mapping", OPEN - 5, "ranks are counted wrongly", events, fix)


RULES = (rank_twice, no_interface, address_family, bind, connect, chosen_interface, store)

"""Sockets: interfaces, addresses, ports, firewalls.  Sources: NCCL src/bootstrap.cc, src/misc/socket.cc, src/os/linux.cc."""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from netdoctor.model import Fix, record
from netdoctor.nccl.diagnosis.addresses import (
    given_out_by_hosts,
    is_ipv6,
    link_local,
    local_interface,
    loopback,
    of_a_bridge,
    unreachable_by_design,
)
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught, means
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import failed_by_itself
from netdoctor.nccl.log.facts import Address, Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_PORTS = Fix(
    "widen the ephemeral port range, and keep service ports reserved",
    ("sysctl -w net.ipv4.ip_local_port_range='20000 65535'", "sysctl -w net.ipv4.ip_local_reserved_ports=29500,28028"),
    ("echo 'net.ipv4.ip_local_port_range = 20000 65535' >> /etc/sysctl.d/99-zz-netdoctor.conf",),
)

_NAMES_DIFFER: Final = (
    "an interface name differs between nodes more often than not; an address family or a missing address counts too"
)


def no_interface(log: LogFacts) -> Iterator[Hypothesis]:
    """No interface matches: NCCL finds or fails where the user named one (src/misc/socket.cc, ncclFindInterfaces)."""
    events = log.of("no_interface")
    if given := tuple(e for e in events if e.data.get("peer")):
        yield _given_id(log, given)
    elif events:
        name = log.env.get("NCCL_SOCKET_IFNAME")
        text = _NO_MATCH.format(name) if name else "NCCL found no usable network interface on this node"
        yield Hypothesis("socket_ifname", Confidence.CERTAIN, text, events, Topic.INTERFACE, notes=(_NAMES_DIFFER,))


def _given_id(log: LogFacts, events: tuple[Event, ...]) -> Hypothesis:
    """NCCL_COMM_ID's address, of which NCCL asks the interface that shares its network (src/misc/socket.cc,
    ncclFindInterfaces, ncclFindInterfaceMatchSubnet), and where rank 0 listens (src/bootstrap.cc, bootstrapCreateRoot)."""
    named = events[0].data["peer"].partition("<")[0]
    refused = tuple(e for e in log.of("bind") if Wording.NOT_ASSIGNABLE.within(e.data.get("errno", "")))
    own = ", ".join(dict.fromkeys(f"{a.ifname} {a.address}" for a in (*log.bootstraps, *log.socket_interfaces)))
    variable = "NEURON_RT_ROOT_COMM_ID" if log.library == "Neuron" else "NCCL_COMM_ID"
    text = f"{variable} names {named}, and no interface here is in its network" + (f" ({own})" if own else "")
    if refused:
        text += ": rank 0 cannot listen there, for it is another host's address"
        text += ", or that of the host around this container" if any(of_a_bridge(a.address) for a in log.bootstraps) else ""
    confidence = Confidence.CERTAIN if refused or not log.came_up else Confidence.EFFECT_PLUS
    return Hypothesis("socket_ifname", confidence, text, (*events, *refused), Topic.INTERFACE, notes=(_ROOT,))


_ROOT: Final = (
    "it is the address and port of rank 0's own interface, on every rank, and no link-local one; torch does not need it"
)
_NO_MATCH: Final = "no interface matches NCCL_SOCKET_IFNAME={} on this node"


def address_family(log: LogFacts) -> Iterator[Hypothesis]:
    """An address of no known family: another version or plugin wrote it, or the kernel lacks the family."""
    for e in log.of("address_family")[:1]:
        if "family" not in e.data:
            text = "the chosen address family is not available here"
            yield Hypothesis("socket_ifname", Confidence.STRONG, text, (e,), Topic.INTERFACE)
            continue
        if "NCCL_SOCKET_IFNAME" in log.env and not log.bootstraps:
            # 2.27 goes on with an empty address where the named interface is not there (src/misc/socket.cc)
            text = _NO_MATCH.format(log.env["NCCL_SOCKET_IFNAME"])
            yield Hypothesis("socket_ifname", Confidence.STRONG, text, (e,), Topic.INTERFACE)
        causes = ["version_mismatch", "plugin_mismatch"]
        if log.of("plugin_old", "plugin_load", "ofi_init") or log.plugin_error or log.plugin:
            causes.reverse()
        text = "a peer sent an address of no known family: the ranks do not speak the same handshake"
        yield Hypothesis(causes[0], Confidence.LIKELY, text, (e,))
        yield Hypothesis(causes[1], Confidence.OPEN, text, (e,))


_PORTS_GO: Final = (
    "closed connections hold a port for 60 s (TIME_WAIT): a communicator made every step uses ports up as well",
    "NCCL_PXN_DISABLE=1 multiplies the connections of an all-to-all by the GPUs of a node",
)


def bind(log: LogFacts) -> Iterator[Hypothesis]:
    """bind() of a listener; NCCL binds port 0, so an address in use means that no ephemeral port is free."""
    for e in log.of("bind"):
        reason = e.data.get("errno", "")
        if Wording.IN_USE.within(reason):
            text = "no ephemeral port was free for a listener"
            yield Hypothesis("bootstrap_ports", Confidence.STRONG_PLUS, text, (e,), _PORTS, notes=_PORTS_GO)
        elif Wording.NOT_ASSIGNABLE.within(reason) and not any(o.data.get("peer") for o in log.of("no_interface")):
            text = "NCCL chose an interface whose address cannot be bound (link-local, or not ready)"
            yield Hypothesis("socket_ifname", Confidence.STRONG_PLUS, text, (e,), Topic.INTERFACE)
        elif reason and not Wording.NOT_ASSIGNABLE.within(reason):
            text = f"a listener could not be bound: {e.data['errno']}"
            yield Hypothesis("bootstrap_ports", Confidence.OPEN, text, (e,), _PORTS)


_DESCRIPTORS: Final = Hypothesis(
    "bootstrap_ports",
    Confidence.STRONG,
    "the process ran out of file descriptors: every connection is one",
    fault=Fault.EXHAUSTED,
    fix=Fix("lift the limit of open files", ("ulimit -n 1048576",), ("LimitNOFILE=1048576 in the unit that starts the job",)),
    how="netdoctor preflight --only process.limits",
    why="ranks that cannot open a further connection fail, or the others wait for them",
)
_LIMITS: Final = (
    means(
        "mpi_peer",
        Hypothesis(
            "socket_ifname",
            Confidence.LIKELY,
            "Open MPI reaches another process than it means: nodes share an address, as those of bridges and containers do",
            fix=Fix("name the interface that the nodes meet over", ("mpirun --mca btl_tcp_if_include <interface or network>",)),
        ),
        first=True,
    ),
    means(
        "threads",
        Hypothesis(
            "other",
            Confidence.STRONG,
            "no further thread could be started: the limit of processes, of the pod or of the memory is reached",
            fix=Fix(
                "lift the limit",
                ("ulimit -u; cat /sys/fs/cgroup/pids.max", "cat /proc/sys/kernel/threads-max /proc/sys/kernel/pid_max"),
                ("podPidsLimit of the kubelet; TasksMax= or LimitNPROC= of the unit that starts the job",),
            ),
            fault=Fault.EXHAUSTED,
        ),
        Hypothesis("bootstrap_ports", Confidence.OPEN_MINUS, "a resource of the process is used up: threads"),
        first=True,
    ),
    means(
        "polled",
        replace(
            _DESCRIPTORS,
            confidence=Confidence.STRONG_PLUS,
            message="NCCL's proxy ended: the limit of open files is below the 74 places (65 before 2.25) that it polls at once",
            why="whoever connects to that proxy waits for ever: the job hangs or fails at its first collective",
        ),
        info=False,
    ),
    means("descriptors", _DESCRIPTORS, info=False, first=True),
)


# The errno of a failed connect(), by words of its strerror(3) text, which is all that logs hold.
_STRERROR: Final = {
    "assign requested": errno.EADDRNOTAVAIL,
    "network is unreachable": errno.ENETUNREACH,
    "unreachable": errno.EHOSTUNREACH,
    "no route": errno.EHOSTUNREACH,
    "refused": errno.ECONNREFUSED,
    "software caused": errno.ECONNABORTED,
    "no pollout": errno.ECONNABORTED,  # poll(2) gave POLLERR or POLLHUP, and NCCL does not read why: src/misc/socket.cc
    "reset": errno.ECONNRESET,
    "broken": errno.EPIPE,
}
# Where a rank failed by itself or used a stale id, failed connections are the consequence, and count for less.
_AS_ECHO: Final = {
    Confidence.LIKELY_PLUS: Confidence.EFFECT_PLUS,
    Confidence.LIKELY: Confidence.EFFECT,
    Confidence.LIKELY_MINUS: Confidence.EFFECT,
    Confidence.OPEN_PLUS: Confidence.EFFECT_MINUS,
    Confidence.OPEN: Confidence.EFFECT_MINUS,
}


@record
class _FailedConnect:
    """What the lines about failed connections say together."""

    events: tuple[Event, ...]
    peers: tuple[str, ...]
    errnos: frozenset[int]
    echo: bool
    several_interfaces: bool

    @property
    def to(self) -> str:
        return f" to {self.peers[0]}" if self.peers else ""

    @property
    def ipv6(self) -> bool:
        return any(is_ipv6(p) for p in self.peers)

    def because(self, cause: str, confidence: Confidence, text: str, fix: Fix | Topic | None = None) -> Hypothesis:
        return Hypothesis(cause, _AS_ECHO[confidence] if self.echo else confidence, text, self.events, fix)


def _no_address(c: _FailedConnect) -> Iterator[Hypothesis]:
    if c.ipv6:
        yield c.because(
            "socket_ifname", Confidence.LIKELY_PLUS, f"connect{c.to}: no local address of that kind", Topic.INTERFACE
        )
        return
    yield c.because("bootstrap_ports", Confidence.LIKELY, f"connect{c.to}: no local port was free", _PORTS)
    text = f"connect{c.to}: the address is not usable from here"
    yield Hypothesis("socket_ifname", Confidence.OPEN, text, c.events, Topic.INTERFACE)


def _no_route(c: _FailedConnect) -> Iterator[Hypothesis]:
    wrong = c.several_interfaces or c.ipv6 or errno.ENETUNREACH in c.errnos
    text = f"no route{c.to}: an interface was chosen that the peer is not behind"
    yield c.because("socket_ifname", Confidence.LIKELY_PLUS if wrong else Confidence.OPEN_PLUS, text, Topic.INTERFACE)
    # net/ipv4/icmp.c, icmp_err_convert: a host that nobody answers for, and one that a firewall forbids, are one errno.
    text = f"no route{c.to}: a firewall rejects it, or NCCL chose an interface of the peer that is not reached from here"
    text += "; a ping that is answered means the firewall"
    yield c.because("firewall_connect", Confidence.LIKELY, text, Topic.FIREWALL)


def _refused(c: _FailedConnect) -> Iterator[Hypothesis]:
    start = f"connection{c.to} refused:"
    text = f"{start} nothing listens there, or a firewall answers for it"
    yield c.because("firewall_connect", Confidence.LIKELY_MINUS, text, Topic.FIREWALL)
    yield c.because("rank_died", Confidence.OPEN_PLUS, f"{start} the rank that listened may have ended")
    yield c.because("socket_ifname", Confidence.OPEN, f"{start} the address may be another host's", Topic.INTERFACE)


def _aborted(c: _FailedConnect) -> Iterator[Hypothesis]:
    """A second connect() on a socket whose first one failed: Linux answers ECONNABORTED, the errno that mattered is gone
    (net/ipv4/af_inet.c, __inet_stream_connect)."""
    text = f"connection{c.to} failed; the kernel's reason was lost on a retry"
    interface = Confidence.LIKELY_PLUS if c.several_interfaces else Confidence.LIKELY_MINUS
    yield c.because("socket_ifname", interface, text, Topic.INTERFACE)
    yield c.because("firewall_connect", Confidence.LIKELY, text, Topic.FIREWALL)


def _broke(c: _FailedConnect) -> Iterator[Hypothesis]:
    text = f"connection{c.to} broke while it was made: look at the other rank first"
    yield Hypothesis("rank_died", Confidence.EFFECT, text, c.events)


def _timed_out(c: _FailedConnect) -> Iterator[Hypothesis]:
    text = f"connection{c.to} timed out: packets are dropped on the way"
    yield c.because("firewall_connect", Confidence.LIKELY_PLUS, text, Topic.FIREWALL)
    text = f"connection{c.to} timed out: the address may be on a network that does not reach it"
    yield c.because("socket_ifname", Confidence.OPEN_PLUS, text, Topic.INTERFACE)


# Where lines name several errnos, the first here decides.
_BY_ERRNO: Final[dict[int, Callable[[_FailedConnect], Iterator[Hypothesis]]]] = {
    errno.EADDRNOTAVAIL: _no_address,
    errno.ENETUNREACH: _no_route,
    errno.EHOSTUNREACH: _no_route,
    errno.ECONNREFUSED: _refused,
    errno.ECONNABORTED: _aborted,
    errno.ECONNRESET: _broke,
    errno.EPIPE: _broke,
}


def connect(log: LogFacts) -> Iterator[Hypothesis]:
    """connect() to a peer fails: who is wrong depends on the errno and on whose address it is."""
    events = log.of("connect", "connect_gave_up")
    if not log.above_info("connect", "connect_gave_up") and log.comms_complete and log.comms_complete >= log.comms_started:
        return  # retried, then it worked
    if not events:
        return
    stale = _stale_id(log, events)
    if stale:
        yield stale
    text = " ".join(e.data.get("errno", "").lower() for e in events)
    failed = _FailedConnect(
        events,
        peers=tuple(caught(events, "peer")),
        errnos=frozenset(number for words, number in _STRERROR.items() if words in text),
        echo=failed_by_itself(log) or stale is not None,
        several_interfaces=len({a.ifname for a in log.socket_interfaces}) > 1,
    )
    silent = not failed.errnos or failed.errnos & {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.ECONNABORTED}
    unreachable = next((p for p in failed.peers if unreachable_by_design(p) or (silent and of_a_bridge(p))), None)
    if unreachable and not (loopback(unreachable) and log.many_nodes is False):
        text = f"a rank advertises {unreachable}, which other nodes cannot reach"
        yield Hypothesis("socket_ifname", Confidence.STRONG, text, events, Topic.INTERFACE)
        return
    local = next((a for a in log.bootstraps if local_interface(a.ifname)), None)
    if local and log.many_nodes is not False:
        text = f"NCCL listens on {local.ifname} ({local.address}), which is local to its host"
        yield failed.because("socket_ifname", Confidence.LIKELY_PLUS, text, Topic.INTERFACE)
    rule = next((rule for number, rule in _BY_ERRNO.items() if number in failed.errnos), _timed_out)
    inside = _over_inside(log) if rule in {_timed_out, _no_route, _aborted} else None
    if inside is not None:
        told = next((w for w in _STRERROR if w in text), "timed out")
        why = f"connection{failed.to} failed ({events[0].data.get('errno', told)}): a channel goes over {inside.ifname}"
        why += f" ({inside.address}), which other nodes do not reach"
        yield failed.because("socket_ifname", Confidence.LIKELY_PLUS, why, Topic.INTERFACE)
        yield failed.because("firewall_connect", Confidence.OPEN, f"connection{failed.to}: packets are dropped on the way")
        return
    yield from rule(failed)


def _over_inside(log: LogFacts) -> Address | None:
    """The interface of a channel's NIC that carries traffic within its host or its link only: NCCL takes each interface that
    NCCL_SOCKET_IFNAME allows for a NIC of its own, and spreads channels over them (src/transport/net_socket.cc)."""
    if log.many_nodes is False:
        return None
    used = {v.device for v in log.vias if v.transport == "NET" and v.detail.lower().startswith("socket")}
    for host in dict.fromkeys(a.host for a in log.socket_interfaces):
        of_host = [a for a in log.socket_interfaces if a.host == host]
        for n, a in enumerate(of_host):
            if n in used and len(of_host) > 1 and (local_interface(a.ifname) or link_local(a.address)):
                return a
    return None


def _stale_id(log: LogFacts, events: tuple[Event, ...]) -> Hypothesis | None:
    """Ranks of one communicator that start with different ids: one of them read the id of an earlier communicator."""
    if not any(Wording.REFUSED.within(e.data.get("errno", "")) for e in events):
        return None
    ids: dict[int, Counter[str]] = {}
    for p in log.ranks:
        ids.setdefault(p.nranks or 0, Counter()).update(p.comm_ids)
    if not any(nranks > 1 and sum(n < nranks for n in counts.values()) > 1 for nranks, counts in ids.items()):
        return None
    return Hypothesis(
        "other",
        Confidence.STRONG,
        "the ranks start one communicator with different ids: a rank uses the id of a communicator that is gone",
        events,
        Fix("use a fresh store or prefix for every process group; do not re-create one while ranks still join"),
        how="the order in which the ranks call destroy_process_group and init_process_group",
        notes=("not a firewall: the address answers, but nobody listens there any more",),
    )


def chosen_interface(log: LogFacts) -> Iterator[Hypothesis]:
    """The interface that bootstrap took cannot reach another node."""
    if log.many_nodes is False or log.nranks == 1 or (log.comms_complete and not log.above_info("connect")):
        return
    by_address: dict[str, set[str]] = {}
    for a in log.bootstraps:
        by_address.setdefault(a.address, set()).add(a.host)
    # Containers of one node that share its network have one address too: only addresses that hosts give out themselves count.
    shared = next((a for a, h in by_address.items() if len(h) > 1 and given_out_by_hosts(a)), None)
    if shared:
        text = f"{len(by_address[shared])} hosts bootstrap on the same address {shared}"
        yield Hypothesis("socket_ifname", Confidence.STRONG, text, fix=Topic.INTERFACE, shown=(f"Bootstrap: Using …:{shared}",))
        return
    if not log.many_nodes and (log.vias or log.channels):
        return  # connections were made
    for a in log.bootstraps:
        if local_interface(a.ifname) or loopback(a.address) or (link_local(a.address) and log.many_nodes):
            yield Hypothesis(
                "socket_ifname",
                Confidence.LIKELY if log.many_nodes else Confidence.EFFECT_PLUS,
                f"bootstrap took {a.ifname} ({a.address}), which other nodes cannot reach",
                fix=Topic.INTERFACE,
                shown=(f"Bootstrap: Using {a.ifname}:{a.address}",),
                subject=a.host or None,
            )
            return


def strangers(log: LogFacts) -> Iterator[Hypothesis]:
    """Connections of others to NCCL's ports.  NCCL ignores them; other jobs, scrapers and port scanners make them."""
    events = log.above_info("stranger")
    if events and (log.above_info("generic", "watchdog", "garbled") or not log.came_up):
        said = _ascii(events[0].data.get("got", ""))
        text = "something that is no rank of this job connected to NCCL's port"
        text += f"; it said {said!r}: an HTTP client, such as a scraper of metrics or a port scanner" if said else ""
        yield Hypothesis("other", Confidence.QUIET_PLUS, text, events)


def _ascii(magic: str) -> str:
    """The eight bytes as they came over the wire, little-endian, where they spell something."""
    raw = bytes.fromhex(magic.zfill(16))[::-1]
    return raw.decode("ascii") if all(32 <= byte < 127 for byte in raw) else ""


RULES = (strangers, no_interface, address_family, bind, *_LIMITS, connect, chosen_interface)

"""What all nodes of `netdoctor allreduce` say together: who is there, who reaches whom, and whether all run the same.

It names a node that is missing, late or unreachable, whose path drops large packets, that loses packets or is slower than all
others, whose versions or NCCL variables differ, whose GPUs are in another NVLink partition, whose clock is far off, and whose
rank died or stopped.  A look at one node alone meets no other node, and leaves this check out unless it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from netdoctor.api import (
    OBSTACLES,
    Cluster,
    Culprit,
    Finding,
    MeetingFault,
    Obstacle,
    Quantity,
    State,
    Status,
    cause_of,
    check,
    cluster_network,
    cost,
    fail,
    ok,
    skip,
    unknown,
)

# A fault, and the node or the way that it is about; None: it cannot be told which.
Fault = tuple[Culprit | None, Finding]


@check(id="allreduce.nodes", title="Every node of the run is there, reachable, and runs the same", cause="missing_node")
def allreduce_nodes(cluster: Cluster) -> Iterator[Finding]:
    if cluster.lost is not None:
        how = "run `netdoctor allreduce` on every node"
        yield unknown(f"no other node was met: {cluster.lost}", subject="nodes", how=how)
        return
    faults = [*_observed(cluster), *(_weighed(cluster, fault) for rule in RULES for fault in rule(cluster))]
    bad = {culprit.blamed for culprit, _ in faults if culprit is not None}
    found = [*(finding for _, finding in faults), *_turned_away(cluster), *_others(cluster, bad), *_meeting(cluster)]
    yield from found
    if cluster.nodes.count == 1 and not found:
        yield skip("one node alone was asked for")
    if cluster.interrupted:
        yield unknown(f"not all is known: {cluster.interrupted}", subject="run")


def _observed(cluster: Cluster) -> Iterator[Fault]:
    """What this node saw itself; what follows, others told."""
    yield from _master(cluster)
    yield from _missing(cluster)


def _weighed(cluster: Cluster, fault: Fault) -> Fault:
    """Where nobody proved who he is, a stranger may have told it: then it is not known."""
    culprit, finding = fault
    if cluster.proven or finding.status is not Status.FAIL:
        return fault
    text = f"{finding.message}: so somebody told who did not prove to be of this run"
    return culprit, replace(finding, status=Status.UNKNOWN, message=text, how=TOKEN, severity=None, cure=None, loss=None)


def _meeting(cluster: Cluster) -> Iterator[Finding]:
    """How it is known who took part, and how much of the network between them was tried."""
    if not cluster.proven and cluster.hosts.keys() - {cluster.nodes.rank}:
        text = "nothing shows that the nodes which met are those of this job: there is neither a token nor MUNGE"
        yield unknown(text, subject="meeting", how=TOKEN)
    if not _went(cluster):
        return
    tried, every = cluster.ways()
    left_out = cluster_network.left_out(cluster)
    for text in left_out:
        how = "run it again; ulimit -u and -n of the node, which tries each way in a thread of its own"
        yield unknown(f"{text}: only the all-reduce's own connections are known of it", subject="ways", how=how)
    if tried < every and not left_out:
        yield ok(f"{tried:,} of {every:,} ways between nodes were tried, some from and some to each node", subject="ways")


def _master(cluster: Cluster) -> Iterator[Fault]:
    """The meeting's own node 0 was not, or is no more, to be had."""
    if cluster.master is None:
        return
    fault, why = cluster.master
    here, port = cluster.nodes.rank, cluster.nodes.port
    name, subject = cluster.name(here), cluster.subject(here)
    if fault is MeetingFault.PORT_TAKEN:
        how = f"another port: --master HOST:PORT on every node; who has this one: ss -ltnp 'sport = :{port}'"
        text = f"this node is the master, and {why}: the port is netdoctor's own, a job takes others"
        finding = unknown(text, subject=subject, how=how)
    elif fault is MeetingFault.NO_LOCAL_PORT:
        how = "ss -tan; net.port_range of this report"
        finding = fail(f"{name}: {why}", subject=subject, cause="bootstrap_ports", how=how)
    elif fault is MeetingFault.NO_THREAD:
        finding = unknown(f"{name}: {why}", subject=subject, how="ulimit -u; pids.max of its cgroup")
    elif fault is MeetingFault.OWN_ADDRESS:
        how = "ip -br address, here and there; give one of them another address"
        finding = fail(f"{cluster.name(0)}: {why}", subject=subject, cause="duplicate_address", how=how)
    elif fault is MeetingFault.UNPROVEN:
        finding = unknown(f"{cluster.name(0)} {why}", subject=subject, how=SAME, kind=fault)
    elif fault in AWAY:
        finding = fail(f"{cluster.name(0)} {why}", subject=subject, kind=fault)
    else:
        host, port = cluster.nodes.master, cluster.nodes.port
        how = f"is it up, and was netdoctor started there in time? nc -vz {host} {port} from here; nft list ruleset there"
        if fault is MeetingFault.NO_SUCH_HOST:
            how = f"getent hosts {host}: here, and where it is known; or its address on every node: --master ADDRESS"
        how += f"; {_TWICE}" if fault in (MeetingFault.LOST, MeetingFault.SILENT) else ""
        text, master = f"{cluster.name(0)}: {why}", cluster.nodes.named()
        here, finding = 0, fail(text, subject=cluster.subject(0), how=how, kind=fault, master=master)
    yield Culprit(here), finding


AWAY: Final = (MeetingFault.TURNED_AWAY, MeetingFault.TWICE)
TOKEN: Final = "give every node one NETDOCTOR_TOKEN (drawn once: openssl rand -hex 32), and see docs/meeting.md"
SAME: Final = "one netdoctor and one NETDOCTOR_TOKEN on all nodes: docs/meeting.md"
# Connections to an address that two hosts have break, or fall silent, as soon as the other one's ARP reply comes.
_TWICE: Final = "does another host have its address (arping -D -I IF ADDRESS)?"


# Behind NAT or a Service it may be so by design, and then the others find it all the same.
_ELSEWHERE: Final = "this host was told to be node 0, but {} is no address of it: a wrong --node-rank, or --master?"


def _missing(cluster: Cluster) -> Iterator[Fault]:
    how = f"its own report, if there is one; is it up, and does it reach the master? {_TWICE}"
    for node, gone in sorted(cluster.gone.items()):
        if node == 0 and cluster.master is not None:
            continue
        phase = {"join": "", "result": " during the all-reduce"}.get(gone.subject, f" before the all-reduce ({gone.subject})")
        text = f"{_launchers_name(cluster, node)} is missing{phase}: {gone.why}"
        if node in cluster.never_came and (claims := cluster.claimed(node)):
            text = f"{text}; who said to be it did not prove it: {'; '.join(map(str, claims[:3]))}"
            yield Culprit(node), unknown(text, subject=cluster.subject(node), how=SAME)
            continue
        way = how
        if cluster.master_elsewhere and node in cluster.never_came:
            text = f"{text}; {_ELSEWHERE.format(cluster.nodes.master)}"
            way = f"ip -br address here: is {cluster.nodes.master} one of them? else its own --node-rank; {how}"
        told = not cluster.proven and node not in cluster.never_came
        found = Culprit(node), fail(text, subject=cluster.subject(node), how=way, missing_from=gone.subject)
        yield _weighed(cluster, found) if told else found


def _launchers_name(cluster: Cluster, node: int) -> str:
    """A node of which nothing was heard by the name that the launcher gives it."""
    if node and node not in cluster.hosts and cluster.nodes.names:
        return f"node {node} ({cluster.nodes.names[node]})"
    return cluster.name(node)


def _went(cluster: Cluster) -> bool:
    return cluster.run is not None and cluster.run.finished


# Of two nodes Gloo connects one to the other, once; NCCL's ranks connect both ways, and to others than this run's.
_DID_WITHOUT: Final = "The all-reduce went without it; a job that takes this way (NCCL connects in both directions) hangs there"


def _tried(cluster: Cluster) -> Iterator[Fault]:
    """What the nodes saw when they tried each other: no connection, no data after it, ranks that listen where nobody comes."""
    for one in (
        *cluster_network.unreachable(cluster),
        *cluster_network.losing(cluster),
        *cluster_network.unreachable_listeners(cluster),
    ):
        found = fail(
            one.text,
            subject=cluster.subject_of(one.culprit),
            cause=one.cause,
            loss=cost.STOPS,
            expected=one.expected,
            how=one.how,
            why=_DID_WITHOUT if _went(cluster) else None,
            **one.evidence,
        )
        yield one.culprit, found


def _mtus(cluster: Cluster) -> Iterator[Fault]:
    """One network, several MTUs; whether frames of the full size arrive is tried between all (`_tried`)."""
    for one in cluster.mtus():
        for finding, nodes in one.faults(cluster.name):
            yield from _each(cluster, finding, nodes, "MTU" if nodes else f"MTU in {one.network}")


def _shared_addresses(cluster: Cluster) -> Iterator[Fault]:
    """One address on several hosts."""
    for one in cluster.shared_addresses():
        finding, nodes = one.fault(cluster.name)
        yield from _each(cluster, finding, nodes, one.ip)


def _each(cluster: Cluster, finding: Finding, nodes: tuple[int, ...], what: str) -> Iterator[Fault]:
    """What a rule of netdoctor.compare found, of each node that it is about, or of all."""
    for node in nodes:
        message = f"{cluster.name(node)}: {finding.message}"
        yield Culprit(node), replace(finding, subject=f"{cluster.subject(node)}, {what}", message=message)
    if not nodes:
        yield None, replace(finding, subject=f"nodes, {what}")


def _lossy(cluster: Cluster) -> Iterator[Fault]:
    """TCP sent much again."""
    most = f"{cluster_network.LOST:.1%}"
    for culprit, flows in cluster_network.lossy(cluster).items():
        name = cluster.subject_of(culprit)
        ways = ", ".join(f"{a} to {b}" for a, b, _ in flows)
        share = max(flow.again / flow.sent for _, _, flow in flows)
        again = round(100 * share, 2)
        found = fail(
            f"{name} loses packets: TCP sent more than {most} of the bytes again (nodes {ways})",
            subject=name,
            cause="link_degraded",
            loss=cost.lost_packets(share, *cluster_network.way(cluster, flows)),
            why="with that loss TCP carries no more than Mathis' bound; how much less a job's collectives get was not measured",
            expected=f"less than {most} is sent again",
            how="ethtool -S: errors and drops; nstat TcpRetransSegs; the switch port, a policer, a duplex mismatch",
            measured={"sent_again": Quantity(again, "%")},
        )
        yield culprit, found


def _narrow(cluster: Cluster) -> Iterator[Fault]:
    """Connections with buffers of their own show what the kernel's cost, whatever the link carries."""
    for node, one in sorted(cluster.controls.items()):
        if (factor := one.narrowed) is None:
            continue
        way = Culprit(node, (node + 1) % cluster.nodes.count)
        name = cluster.subject_of(way)
        rates = {"kernel's_buffers": max(one.plain), "own_buffers": max(one.wide)}
        found = fail(
            f"TCP from {name} is held up by the kernel's buffers: with its own, a connection is twice as fast or more",
            subject=f"{name}, buffers",
            cause="tcp_tuning",
            loss=replace(cost.less(1, factor, "of the rate"), measured=True),
            expected="the same rate: the kernel's buffers grow as they are needed",
            how="sysctl net.ipv4.tcp_rmem net.ipv4.tcp_wmem net.ipv4.tcp_moderate_rcvbuf on both nodes; net.tcp_buffers",
            measured={key: Quantity(round(rate / 1e9, 4), "GB/s") for key, rate in rates.items()},
        )
        yield way, found


def _slow(cluster: Cluster) -> Iterator[Fault]:
    """One node or way is far slower than the rest, and the run waited for it."""
    if (slow := cluster_network.slow(cluster)) is None:
        return
    culprit, name = slow.culprit, cluster.subject_of(slow.culprit)
    what = f"all that goes to or from {cluster.name(culprit.node)}" if culprit.peer is None else f"what goes from {name}"
    slower = f"more than {cluster_network.SLOWER:g} times slower than the rest"
    rates = {"rate": slow.here, "elsewhere": slow.elsewhere}
    found = fail(
        f"the all-reduce waits for the network: {what} is {slower}",
        subject=name,
        cause="straggler",
        loss=replace(cost.less(slow.here, slow.elsewhere, "of the rest's rate"), measured=True),
        expected="the same rate between all nodes",
        how="link speed and duplex (ethtool), tc qdisc, a policer of the cloud or the switch, its cables",
        measured={key: Quantity(round(rate / 1e9, 3), "GB/s") for key, rate in rates.items()},
    )
    yield culprit, found


def _failed_ranks(cluster: Cluster) -> Iterator[Fault]:
    """Ranks that died or never arrived; what the nodes found out together about a failed run has its own finding."""
    run = cluster.run
    if run is None or run.state not in (State.FAILED, State.HUNG) or run.told:
        return
    died = run.state == State.FAILED
    by_node: dict[int, list[int]] = {}
    for rank in run.blamed:
        by_node.setdefault(cluster.node_of(rank), []).append(rank)
    for node, ranks in by_node.items():
        named = ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))
        phase = next((r.phase for r in run.ranks if r.rank in ranks), "")
        what = f"failed in phase {phase}: {run.reason}" if died else f"never arrived in phase {phase}"
        text, subject = f"{cluster.name(node)}: {named} {what}", cluster.subject(node)
        cause = cause_of(run) or ("rank_died" if died else "hang")
        how = "its own report; dmesg there"
        yield Culprit(node), fail(text, subject=subject, cause=cause, how=how, ranks=ranks, phase=phase)


def _differing(cluster: Cluster) -> Iterator[Fault]:
    """Versions and variables that are not the same everywhere."""
    for one in cluster.differences():
        for finding, nodes in one.faults(cluster.name):
            yield from _each(cluster, finding, nodes, one.title)


def _fabrics(cluster: Cluster) -> Iterator[Fault]:
    """GPUs that NVLink joins within a rack, and those of other nodes that it does not."""
    for one in cluster.fabrics():
        for finding, nodes in one.faults(cluster.name):
            yield from _each(cluster, finding, nodes, finding.subject)


def _clocks(cluster: Cluster) -> Iterator[Fault]:
    """srun and slurmd show each other credentials of MUNGE: of nodes so far apart none starts a step on the other."""
    for finding, nodes in cluster.clocks():
        refused = finding.status is Status.FAIL and cluster.nodes.launcher == "slurm" and not _went(cluster)
        yield from _each(cluster, replace(finding, loss=cost.STOPS) if refused else finding, nodes, finding.subject)


RULES = (
    _tried,
    _clocks,
    _fabrics,
    _mtus,
    _shared_addresses,
    _lossy,
    _narrow,
    _slow,
    _failed_ranks,
    _differing,
)


def _turned_away(cluster: Cluster) -> Iterator[Finding]:
    """Whoever was turned away says so itself; a stranger must not cost a run that is whole its verdict."""
    whole = cluster.run is not None and cluster.run.finished and not cluster.gone
    for who in cluster.refused:
        if who.node in cluster.gone and not who.proven:
            continue  # said of that node
        if whole and not who.proven:
            yield ok(f"the master turned somebody away, and every node took part: {who}", subject="meeting")
        else:  # two that are of this run say that they are one node: which of them took part is not known
            yield unknown(f"the master turned somebody away: {who}", subject="meeting", how="start every node once")


def _others(cluster: Cluster, bad: Iterable[int]) -> Iterator[Finding]:
    """Each other node that no fault is about; what a node cannot run is said beside its faults, this one's too."""
    here = cluster.nodes.rank
    if here in cluster.ready and cluster.ready[here].cannot:
        text = f"{cluster.name(here)}, this one, cannot run: {cluster.ready[here].cannot}"
        yield unknown(text, subject=cluster.subject(here), how=_mend(cluster, here))
    for node in range(cluster.nodes.count):
        cannot = node in cluster.ready and cluster.ready[node].cannot
        if node != here and node not in cluster.gone and (cannot or node not in bad):
            yield _other(cluster, node)


def _mend(cluster: Cluster, node: int) -> str:
    """What lets a node run that cannot; where it did not say what stands in its way, what tells."""
    obstacle = cluster.ready[node].obstacle
    return OBSTACLES[obstacle] if obstacle is not None else "netdoctor preflight on that node; --python names the job's Python"


def _other(cluster: Cluster, node: int) -> Finding:
    who, subject = _launchers_name(cluster, node), cluster.subject(node)
    if node == 0 and cluster.master is not None and cluster.master[0] in AWAY:
        return unknown(f"{who} is there, and turned this node away", subject=subject)
    if node not in cluster.hosts:
        how = "see what is said of node 0" if cluster.master else None
        return unknown(f"{who}: whether it is there is not known", subject=subject, how=how)
    if node in cluster.ready and (cannot := cluster.ready[node].cannot):
        return unknown(f"{who} is there, but cannot run: {cannot}", subject=subject, how=_mend(cluster, node))
    if twins := cluster.beside(node):
        text = f"{who} and {', '.join(cluster.name(one) for one in twins)} are processes of one machine and one network"
        return unknown(
            f"{text}: nothing was tried between nodes with it", subject=subject, how=OBSTACLES[Obstacle.SAME_MACHINE]
        )
    if cluster.run is None:
        return unknown(f"{who} is there; nothing was run with it", subject=subject)
    if not cluster.run.finished:
        text = f"{who} is there; the all-reduce did not finish ({cluster.run.state})"
        return unknown(text, subject=subject, how="see allreduce.run")
    here = cluster.nodes.rank
    tried = [cluster.reach[a][b] for a, b in ((here, node), (node, here)) if b in cluster.reach.get(a, {})]
    ways = ", reached both ways" if len(tried) == 2 and not any(tried) else ""
    how = {"token": ", known by the token", "munge": ", known by MUNGE"}.get(cluster.proof, "")
    return ok(f"{who} took part{how}{ways}", subject=subject, address=cluster.addresses.get(node))

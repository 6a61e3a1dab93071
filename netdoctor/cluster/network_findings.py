"""What an all-reduce across nodes says about the network between them: what was tried, and what their addresses show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

from netdoctor.cluster import network as paths
from netdoctor.cluster.combine import Heard, path_cause
from netdoctor.compare.majority import clear_majority
from netdoctor.model import Finding, Quantity, Severity, Status

Told = tuple[int | None, Finding]  # which node it is about
_MTU: Final = "ping -M do -s SIZE, larger and larger; ip link and the switch ports' MTU; let ICMP (fragmentation needed) pass"


def subject(heard: Heard, node: int) -> str:
    return heard.hosts.get(node) or (heard.nodes.names[node] if heard.nodes.names else f"node {node}")


def network(heard: Heard) -> Iterator[Told]:
    """Every fault of the network that the nodes saw together."""
    # What a run that finished did without may still be needed by another algorithm or ring.
    severity = Severity.WARNING if heard.run is not None and heard.run.finished else Severity.CRITICAL
    yield from _unreachable(heard, severity)
    yield from _losing(heard, severity)
    yield from _astray(heard, severity)
    yield from _frames(heard, severity)
    yield from _twice(heard)
    yield from _lossy(heard)
    yield from _slow(heard)


def _whom(heard: Heard, whom: paths.Whom) -> tuple[int, str]:
    if isinstance(whom, tuple):
        return whom[1], f"{subject(heard, whom[0])} to {subject(heard, whom[1])}"
    return whom, subject(heard, whom)


def _unreachable(heard: Heard, severity: Severity) -> Iterator[Told]:
    """Who cannot be reached, told apart from who cannot reach anybody."""
    for whom, pairs in paths.broken(paths.connections(paths.tried(heard))).items():
        node, name = _whom(heard, whom)
        yield (
            node,
            Finding(
                Status.FAIL,
                paths.who_and_whom(heard, whom, pairs),
                subject=name,
                cause="firewall_connect",
                severity=severity,
                expected="every node accepts connections of the others on the ports that its kernel gives out",
                evidence={"pairs": [[a, b, str(why)] for a, b, why in pairs]},
                how="nft list ruleset; iptables -S; the network policy",
            ),
        )


def _losing(heard: Heard, severity: Severity) -> Iterator[Told]:
    bad = paths.broken(paths.transfers(paths.tried(heard)))
    cause = path_cause(bad)
    for whom, pairs in bad.items():
        node, name = _whom(heard, whom)
        yield (
            node,
            Finding(
                Status.FAIL,
                paths.who_loses(heard, whom, pairs),
                subject=name,
                cause=cause,
                severity=severity,
                expected="64 KiB arrive at once on every connection between nodes",
                evidence={"pairs": [[a, b, str(why)] for a, b, why in pairs]},
                how=_MTU if cause == "mtu" else "ss -ti of a connection there: lost packets, or a rate limit",
            ),
        )


def _astray(heard: Heard, severity: Severity) -> Iterator[Told]:
    backend = heard.backend()
    for node, pairs in paths.astray(heard, backend).items() if backend else ():
        variable = {"gloo": "GLOO_SOCKET_IFNAME", "nccl": "NCCL_SOCKET_IFNAME"}[backend or "gloo"]
        interface, ip = heard.places[node].takes.get(backend or "", ("", "")) if node in heard.places else ("", "")
        yield (
            node,
            Finding(
                Status.FAIL,
                paths.who_strays(heard, backend or "", node, pairs),
                subject=subject(heard, node),
                cause="socket_ifname",
                severity=severity,
                expected="an address that the other nodes reach",
                evidence={"interface": interface, "address": ip, "pairs": [[a, b, str(why)] for a, b, why in pairs]},
                how=f"{variable} there, or what the host's own name resolves to; net.socket_ifname of its report",
            ),
        )


def _frames(heard: Heard, severity: Severity) -> Iterator[Told]:
    """One network, several MTUs: frames above the smaller one are dropped by whoever has it, without a word."""
    for network, have in paths.frames(heard):
        names = {f"mtu {interface}" for interface, _ in have.values()}
        if any(len(set(_values(heard, name).values())) > 1 for name in names):
            continue  # said by name already
        counts = Counter(str(mtu) for _, mtu in have.values())
        most = clear_majority(counts)
        if most is None:
            told = "; ".join(f"{heard.name(n)}: {interface} {mtu}" for n, (interface, mtu) in sorted(have.items())[:8])
            yield (
                None,
                Finding(
                    Status.FAIL,
                    f"the MTU differs in {network}: {told}",
                    subject=f"nodes, MTU in {network}",
                    cause="mtu",
                    severity=severity,
                    expected="one MTU in a network",
                    evidence={"mtus": {str(n): mtu for n, (_, mtu) in sorted(have.items())}},
                    how=_MTU,
                ),
            )
            continue
        for node, (interface, mtu) in sorted(have.items()):
            if str(mtu) != most:
                told = f"{heard.name(node)}: {interface} has an MTU of {mtu}, where the others in {network} have {most}"
                yield (
                    node,
                    Finding(
                        Status.FAIL,
                        told,
                        subject=f"{subject(heard, node)}, MTU",
                        cause="mtu",
                        severity=severity,
                        expected=most,
                        evidence={"interface": interface, "mtu": mtu, "others": int(most)},
                        how=_MTU,
                    ),
                )


def _values(heard: Heard, trait: str) -> Mapping[int, str]:
    found = {}
    for node, said in heard.ready.items():
        traits = said.get("traits")
        if isinstance(traits, Mapping) and isinstance(value := traits.get(trait), str):
            found[node] = value
    return found


def _twice(heard: Heard) -> Iterator[Told]:
    for ip, nodes in paths.twice(heard).items():
        for node in sorted(nodes):
            yield (
                node,
                Finding(
                    Status.FAIL,
                    paths.who_shares(heard, ip, nodes),
                    subject=f"{subject(heard, node)}, {ip}",
                    cause="duplicate_address",
                    expected="one host for an address",
                    evidence={"nodes": sorted(nodes)},
                    how=f"arping -D -I IF {ip}; give one of them another address",
                ),
            )


def _lossy(heard: Heard) -> Iterator[Told]:
    for whom, found in paths.lossy(heard).items():
        node, name = _whom(heard, whom)
        share = max(flow.again / flow.sent for _, _, flow in found)
        ways = ", ".join(f"{a} to {b}" for a, b, _ in found)
        told = f"{name} loses packets: TCP sent more than {paths.LOST:.1%} of the bytes again (nodes {ways})"
        yield (
            node,
            Finding(
                Status.FAIL,
                told,
                subject=name,
                cause="link_degraded",
                severity=Severity.WARNING,
                expected=f"less than {paths.LOST:.1%} is sent again",
                measured={"sent_again": Quantity(round(100 * share, 2), "%")},
                how="ethtool -S: errors and drops; nstat TcpRetransSegs; the switch port, a policer, a duplex mismatch",
            ),
        )


def _slow(heard: Heard) -> Iterator[Told]:
    if (found := paths.slow(heard)) is None:
        return
    whom, here, there = found
    node, name = _whom(heard, whom)
    what = f"all that goes to or from {heard.name(node)}" if isinstance(whom, int) else f"what goes from {name}"
    rates = {"rate": Quantity(round(here / 1e9, 3), "GB/s"), "elsewhere": Quantity(round(there / 1e9, 3), "GB/s")}
    told = f"the all-reduce waits for the network: {what} is more than {paths.SLOWER:g} times slower than the rest"
    yield (
        node,
        Finding(
            Status.FAIL,
            told,
            subject=name,
            cause="straggler",
            severity=Severity.WARNING,
            expected="the same rate between all nodes",
            measured=rates,
            how="link speed and duplex (ethtool), tc qdisc, a policer of the cloud or the switch, its cables",
        ),
    )

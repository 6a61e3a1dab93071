"""One network, several MTUs: connections agree on the smaller one, so that a job runs, with more headers.

Frames that vanish are seen where nodes meet, in segments of the full size (cluster.network.losing), and from one node by an
echo with DF (net.reach): a port between the nodes that takes less than both ends hangs them, and is another fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic

from netdoctor.causes.cost import smaller_frames
from netdoctor.compare.majority import Fault, N, sides
from netdoctor.model import Finding, Status, record

WHY: Final = (
    "the ends agree on the smaller one (TCP by its MSS, RFC 9293; NCCL's queue pairs by their ports' MTU); larger frames of "
    "traffic that does not agree first vanish without a word"
)
HOW: Final = "ping -M do -s SIZE, larger and larger; ip link and the switch ports' MTU; let ICMP (fragmentation needed) pass"


@record
class Port(Generic[N]):
    """How one node is in a network."""

    node: N
    network: str
    interface: str
    mtu: int


@record
class Difference(Generic[N]):
    """Ports of one network that do not have the same MTU."""

    network: str
    ports: tuple[Port[N], ...]

    def faults(self, name: Callable[[N], str]) -> Iterator[Fault[N]]:
        have = sides((port.node, str(port.mtu)) for port in self.ports)
        if (most := have.majority) is None:
            text = have.undecided(f"the MTU in {self.network}", name)
            yield self._finding(text, "one MTU in a network", mtus=dict(have.values)), ()
            return
        odd: dict[tuple[str, int], list[N]] = {}
        for port in self.ports:
            if str(port.mtu) != most:
                odd.setdefault((port.interface, port.mtu), []).append(port.node)
        for (interface, mtu), nodes in odd.items():
            text = f"{interface} has an MTU of {mtu}, where the others in {self.network} have {most}"
            yield self._finding(text, most, interface=interface, mtu=mtu, others=int(most)), tuple(nodes)

    def _finding(self, text: str, expected: str, **evidence: object) -> Finding:
        sizes = [port.mtu for port in self.ports]
        loss = smaller_frames(min(sizes), max(sizes))
        return Finding(Status.FAIL, text, self.network, None, "mtu", expected, evidence, how=HOW, why=WHY, loss=loss)


def differences(ports: Iterable[Port[N]]) -> Iterator[Difference[N]]:
    by: dict[str, list[Port[N]]] = {}
    for port in ports:
        by.setdefault(port.network, []).append(port)
    for network, members in sorted(by.items()):
        if len({port.mtu for port in members}) > 1:
            yield Difference(network, tuple(members))

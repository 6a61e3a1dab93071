"""How the ranks of a job find each other: torch's store, and the number that each brings along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.addresses import link_local, loopback, of_a_bridge
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, means
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import failed_by_itself
from netdoctor.nccl.log.facts import LogFacts
from netdoctor.nccl.log.wordings import Wording


def store(log: LogFacts) -> Iterator[Hypothesis]:
    """torch's TCPStore: the rendezvous itself does not come about (torch/csrc/distributed/c10d/TCPStore.cpp, socket.cpp)."""
    events = log.of("store")
    if not events:
        return
    confidence = Confidence.EFFECT if failed_by_itself(log) or log.above_info("peer_closed") else Confidence.OPEN
    if all(e.mild for e in events) and log.came_up:
        return
    joined = next((e for e in events if e.data.get("joined")), None)
    if joined and int(joined.data["joined"]) > int(joined.data["world"]):  # _store_based_barrier counts whoever comes
        text = (
            f"{joined.data['joined']} ranks came to a rendezvous of {joined.data['world']}: another start meets the same store,"
        )
        text += " or the launcher starts more processes than they are told"
        yield Hypothesis(
            "env_misuse", Confidence.OPEN_PLUS, text, (joined,), how="echo $WORLD_SIZE $MASTER_PORT   # on every rank"
        )
        return
    if joined:
        came = f"{joined.data['joined']} of {joined.data['world']} ranks"
        text = f"{came} came to the rendezvous: the others did not start, or cannot reach it"
        yield Hypothesis("hang", Confidence.OPEN_PLUS, text, (joined,), how="the logs of the ranks that did not come")
    if any(Wording.RENDEZVOUS_LATE.within(e.text) for e in events):
        text = "the rendezvous did not come about in its time: fewer nodes came than --nnodes asks for, or some cannot reach it"
        how = "the output of torchrun on every node: the same --rdzv-id and --rdzv-endpoint, and when did each begin?"
        yield Hypothesis("hang", max(confidence, Confidence.OPEN_PLUS), text, events, how=how)
    peer = events[0].data.get("peer")
    text = f"a rank cannot reach the rendezvous at {peer}" if peer else "a rank cannot reach the rendezvous"
    if any("gai" in e.data for e in events):
        return  # `surroundings.names` says it
    note = "MASTER_ADDR must be reachable from every node, and rank 0 must be up first"
    if peer and loopback(peer):
        text = f"the rendezvous at {peer}, of this node alone, was not opened: the process that should listen there (rank 0) is"
        text += " not up, stands still or has ended" + (
            "; ranks of other nodes look for it on their own" if log.many_nodes else ""
        )
        yield Hypothesis("hang", confidence, text, events, how="the log and the stack of that process: py-spy dump --pid <pid>")
        return
    if peer and (link_local(peer) or of_a_bridge(peer)):
        text = f"the rendezvous is at {peer}, an address that only its own host or link reaches"
        yield Hypothesis("socket_ifname", max(confidence, Confidence.OPEN_PLUS), text, events, Topic.INTERFACE, notes=(note,))
    yield Hypothesis("firewall_connect", confidence, text, events, _reach(peer, events[0].data.get("port")), notes=(note,))


def _reach(peer: str | None, port: str | None) -> Fix:
    """The port of the rendezvous is the one that is in question, not those that NCCL listens on later."""
    host, _, told = peer.partition(":") if peer and peer.count(":") == 1 else (peer, "", "")
    host, port = host or "<MASTER_ADDR>", port or told or "<MASTER_PORT>"
    return Fix(
        "see that the process of rank 0 listens at the rendezvous' port, and that this port is open from every node",
        (
            f"ss -ltn | grep {port}   # on {host}, while the others wait",
            f"nc -zv {host} {port}   # from every other node; on both: nft list ruleset; iptables -S",
        ),
    )


_ONCE = Fix("start each rank once: one launcher sets RANK and WORLD_SIZE, not two", ("srun --ntasks-per-node=1 torchrun …",))
_RANK_TWICE: Final = means(  # src/bootstrap.cc: two processes of one job came with one rank number
    "rank_twice",
    Hypothesis("env_misuse", Confidence.STRONG, "rank {rank} came twice: the launcher starts it more than once", fix=_ONCE),
    Hypothesis("device_mapping", Confidence.OPEN_MINUS, "ranks are counted wrongly", fix=_ONCE),
)
RULES = (_RANK_TWICE, store)

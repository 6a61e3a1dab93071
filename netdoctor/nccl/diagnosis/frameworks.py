"""What frameworks say of ranks that did not come, and of the process that all others register with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, caught, named
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import failed_by_itself
from netdoctor.nccl.diagnosis.went_on import overcome
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording


def stalled(log: LogFacts) -> Iterator[Hypothesis]:
    """Horovod's stall check and XLA's rendezvous: warnings that may pass, and that count where nothing goes on after them."""
    over = [e for e in log.of("stalled") if "over" in e.data]
    events = tuple(
        e
        for e in log.of("stalled")
        if "over" not in e.data and not overcome(log, e) and not any(o.file == e.file and o.last > e.last for o in over)
    )
    if not events:
        return
    missing, ready, what = (next(iter(caught(events, name)), "") for name in ("missing", "ready", "what"))
    who = named(missing) if missing else None
    text = f"{who or 'a rank'} did not come to {what or 'what the others wait in'}"
    if ready and not missing:
        text = f"ranks {ready} wait for the others, which did not come"
    if not missing and any("step" in e.data for e in events):
        text = "a step did not end in the time that its supervisor allows"
    yield Hypothesis("hang", Confidence.OPEN_PLUS, text, events, Topic.LATE, subject=who)


def coordinator(log: LogFacts) -> Iterator[Hypothesis]:
    """A process that cannot register, or has lost whom it registered with: by itself it says no more."""
    events = tuple(e for e in log.of("coordinator") if not overcome(log, e))
    if not events:
        return
    peer = next(iter(caught(events, "peer")), "")
    dead = failed_by_itself(log) or bool(log.above_info("died", "actor_died", "node_failed", "barrier"))
    confidence = Confidence.EFFECT if dead else Confidence.OPEN
    text = f"a process cannot reach the job's coordinator{f' at {peer}' if peer else ''}: {_why(events)}"
    if _REGISTERS in caught(events, "rpc") and Wording.DEADLINE.within(" ".join(e.text for e in events)):
        yield Hypothesis("hang", Confidence.OPEN_PLUS, _REGISTERED, events, _START_ALL)
        return
    note = "the coordinator (rank 0, Ray's head) must be up first, and its address and port reachable from every node"
    how = "the coordinator's own log: is it up, and when did it end?"
    yield Hypothesis("firewall_connect", confidence, text, events, Topic.FIREWALL, how, (note,))


def _why(events: tuple[Event, ...]) -> str:
    text = " ".join(e.text for e in events).lower()
    return next((said for mark, said in _WHYS.items() if mark in text), "it is not up yet, has ended, or is not let through")


def rdma(log: LogFacts) -> Iterator[Hypothesis]:
    """A failed completion that UCX or libmlx5 reports; `synd` is the HCA's own code (mlx5's programmer's reference, CQE)."""
    events = tuple(e for e in log.of("rdma_error") if not log.of("completion"))
    if not events:
        return
    synd = next((e.data["synd"].lower() for e in events if e.data.get("synd")), "")
    dev, what = (next(iter(caught(events, name)), "") for name in ("dev", "what"))
    text = f"a request over RDMA failed{f' on {dev}' if dev else ''}{f': {what}' if what else ''}"
    again = next(iter(caught(events, "again")), "")
    if again:
        synd = "16" if again.upper() == "RNR" else "15"
    if synd in _NO_ANSWER:
        text = f"RDMA requests got no answer{f' on {dev}' if dev else ''} ({_NO_ANSWER[synd]})"
    yield Hypothesis("ib_timeout", Confidence.LIKELY if synd in _NO_ANSWER else Confidence.OPEN, text, events)
    if any(e.data.get("link", "").lower() == "roce" for e in events):
        text = "the GIDs of the two ends may not fit, or PFC may not be set up"
        yield Hypothesis("roce_gid", Confidence.OPEN_MINUS, text, events)


_NO_ANSWER: Final = {"15": "transport retries exceeded", "16": "receiver not ready"}


def no_way(log: LogFacts) -> Iterator[Hypothesis]:
    """Launchers and MPI: processes that know each other's addresses and reach none of them."""
    events = tuple(e for e in log.of("no_way") if not overcome(log, e))
    if not events:
        return
    text = "processes of the job reach each other over none of the addresses that they told: a firewall, or the wrong interface"
    yield Hypothesis("firewall_connect", Confidence.OPEN_PLUS, text, events, Topic.FIREWALL)
    text = "the addresses may be of an interface that the other nodes do not reach (a bridge of containers, a second network)"
    yield Hypothesis("socket_ifname", Confidence.OPEN, text, events)


def unopened(log: LogFacts) -> Iterator[Hypothesis]:
    """An object of libfabric that a process cannot open on a device that it had found, also where other ranks' plugin works."""
    found = [e for e in log.above_info("ofi_init") if Wording.OPENED_ON_DEVICE.within(e.text)]
    events = tuple(e for e in found if log.reached.get(e.file, 0) < e.line)
    if not events:
        return
    said = log.of("device_refused")
    if said:  # not a plugin that is missing: the driver's own word says which device, and why
        told = said[-1].data
        text = f"EFA device {told['dev']} refused: its driver says: {told['why']}; {events[0].text[:120]}"
        yield Hypothesis(
            "dev_infiniband_missing", Confidence.STRONG, text, (*said, *events), _REFUSED, subject=told["dev"], why=_NO_FABRIC
        )
        return
    text = f"libfabric cannot use a device that it found: {events[0].text[:120]}"
    if Wording.INVALID_ARGUMENT.within(events[0].text):  # EINVAL: asked for what this device or its library does not know
        yield Hypothesis("plugin_mismatch", Confidence.LIKELY_PLUS, text, events, _REFUSED, why=_NO_FABRIC)
        return
    yield Hypothesis("dev_infiniband_missing", Confidence.LIKELY_PLUS, text, events, _REFUSED, why=_NO_FABRIC)
    yield Hypothesis("plugin_mismatch", Confidence.OPEN, "or the plugin asks the device for what it has not", events)


_NO_FABRIC: Final = "no connection over that device: the ranks fail, or NCCL takes TCP"
_REFUSED: Final = Fix(
    "see why the device or its driver refuses: its limits (protection domains, queues), the driver's version, locked memory",
    (
        "dmesg -T | grep -i -e efa -e infiniband",
        "fi_info -p efa; modinfo efa; ulimit -l",
        "rdma resource   # who holds what of the device",
    ),
)


def port(log: LogFacts) -> Iterator[Hypothesis]:
    """torch's store cannot listen on its port (torch/csrc/distributed/c10d/socket.cpp)."""
    events = log.of("store_port")
    if not events:
        return
    privileged = next((e for e in events if "refused" in e.data), None)
    text, fix = "the rendezvous port is taken by another process", _OTHER_PORT
    if privileged is not None:
        text = f"the process may not listen on the rendezvous port ({privileged.data['why']}): ports below 1024 are root's"
    yield Hypothesis("bootstrap_ports", Confidence.LIKELY, text, (privileged or events[0],), fix)


_OTHER_PORT: Final = Fix(
    "give the job a port of its own",
    ("export MASTER_PORT=<free port outside net.ipv4.ip_local_port_range>", "ss -ltnp"),
)
# A barrier (XLA's pjrt/distributed: cluster_register_with_barrier): nobody's call returns before all have called.
_REGISTERS: Final = "RegisterTask"
_REGISTERED: Final = "not every process of the job came to its coordinator in time: one was not started, or does not reach it"
_START_ALL: Final = Fix(
    "start every process, each with the coordinator's address as the others reach it, and with the same number of processes",
    (
        "jax.distributed.initialize(coordinator_address=…, num_processes=…, process_id=…)",
        "ss -ltnp   # on the coordinator's node",
    ),
)
_WHYS: Final = {  # strerror, and gRPC's status codes
    "connection refused": "nobody listens there: it is not up yet, or has ended",
    "deadline": "no answer in time: it waits for others itself, or a firewall drops the packets",
}

RULES = (stalled, coordinator, rdma, no_way, unopened, port)

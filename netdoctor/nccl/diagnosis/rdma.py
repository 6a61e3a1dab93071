"""RDMA verbs: registration, queue pairs, completions, events.  Sources: NCCL src/misc/ibvwrap.cc, src/transport/net_ib/*, and
ibv_wc_status of libibverbs/verbs.h (4 local protection, 5 flushed, 10 remote access, 12 retries exceeded, 13 RNR)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import SOMETIMES, STOPS
from netdoctor.facts.nccl_version import parse
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.addresses import link_local
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, caught, means
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import failed_by_itself
from netdoctor.nccl.diagnosis.went_on import before, recovered
from netdoctor.nccl.log.facts import Event, GdrUse, Level, LogFacts
from netdoctor.nccl.log.wordings import Wording


def _empty(gid: str) -> bool:
    return bool(gid) and re.fullmatch(r"[:0]+", gid.rstrip(".,")) is not None


# A queue pair that failed at level INFO in a job that came up: NCCL went on, so it is seldom the cause of what failed later.
_WEAKER = {
    Confidence.STRONG_PLUS: Confidence.LIKELY_MINUS,
    Confidence.STRONG: Confidence.OPEN_PLUS,
    Confidence.LIKELY_MINUS: Confidence.QUIET_PLUS,
    Confidence.OPEN: Confidence.EFFECT_PLUS,
}


def query_gid(log: LogFacts) -> Iterator[Hypothesis]:
    """A GID that the table does not have: NCCL asks for the one that NCCL_IB_GID_INDEX names (src/transport/net_ib)."""
    events = log.of("query_gid")
    index = log.env.get("NCCL_IB_GID_INDEX", "")
    if events:
        named = f": NCCL_IB_GID_INDEX={index} is beyond it" if index else ""
        text = f"the port's table has no such GID{named}"
        yield Hypothesis("roce_gid", Confidence.STRONG_PLUS if index else Confidence.STRONG_MINUS, text, events, Topic.GID)


def modify_qp(log: LogFacts) -> Iterator[Hypothesis]:
    """ibv_modify_qp INIT -> RTR is where the GIDs of both ends meet."""
    for e in log.of("modify_qp"):
        recovered = e.level is Level.INFO and log.comms_complete
        for h in _unconnected(log, e):
            yield replace(h, confidence=_WEAKER[h.confidence]) if recovered else h


_ADDRESS_HANDLE: Final = means(
    "address_handle",
    Hypothesis("roce_gid", Confidence.LIKELY, "no route to the peer's GID from this port", fix=Topic.GID),
    Hypothesis(
        "env_misuse",
        Confidence.OPEN,
        "a port that is not on the fabric is among the devices in use",
        notes=("check NCCL_IB_HCA and UCX_NET_DEVICES: prefixes take more devices than they seem to",),
    ),
    first=True,
)


def _unconnected(log: LogFacts, e: Event) -> Iterator[Hypothesis]:
    d = e.data
    number, reason = d.get("no") or d.get("errno", ""), d.get("errno", "")
    at = f" (index {d['index']})" if d.get("index") else ""
    if _empty(d.get("local", "")) or number == "61" or Wording.NO_DATA.within(reason):  # ENODATA
        port = d.get("dev", "the port")
        text = f"the local GID{at} of {port} is empty: the GID table moved, or the index never fitted"
        yield Hypothesis("roce_gid", Confidence.STRONG_PLUS, text, (e,), Topic.GID)
    elif _empty(d.get("remote", "")):
        yield Hypothesis("roce_gid", Confidence.STRONG_PLUS, "the other node's GID is empty: mend it there", (e,), Topic.GID)
    elif number == "22" or Wording.INVALID_ARGUMENT.within(reason):  # EINVAL
        text = f"the GIDs of the two ends{at} are of different kinds (RoCE v1 or v2, IPv4 or IPv6, InfiniBand)"
        yield Hypothesis("roce_gid", Confidence.STRONG, text, (e,), Topic.GID)
    else:
        ib_only = log.link_layers == {"IB"}
        own = d.get("dev", "the port") + (f" GID {d['local']}" if d.get("local") else "")
        path = f"the path from {own} to {d.get('remote', 'the peer')} does not resolve"
        # What any host gives itself; of an address, the log does not show whose network it is in.
        near = next((gid for gid in (d.get("local", ""), d.get("remote", "")) if link_local(gid)), "")
        text = f"{path}: another network's GID{at} was taken, or its subnet or VLAN does not lead there"
        if near:
            text = f"{path}: {near} is a link-local GID, which only its own link knows: take the index of an address"
        sure = Confidence.STRONG if near else Confidence.LIKELY_PLUS
        yield Hypothesis(
            "roce_gid",
            Confidence.OPEN if ib_only else sure,
            text,
            (e,),
            Topic.GID,
            notes=("point-to-point cabling: NCCL assumes that every NIC reaches every peer",),
        )
        text = f"{path}: the fabric or the other node does not answer"
        yield Hypothesis("ib_timeout", Confidence.STRONG if ib_only else Confidence.LIKELY_MINUS, text, (e,), Topic.LINK)


def completion(log: LogFacts) -> Iterator[Hypothesis]:
    """A work request ended with an error; status 5 (flushed) only follows another error."""
    seen = log.of("completion")
    if any(e.data.get("status") for e in seen):  # since 2.29 a line that names none goes before the one that does
        seen = tuple(e for e in seen if e.data.get("status"))
    statuses = dict.fromkeys(e.data.get("status", "") for e in seen)  # empty where a line names none
    events = {status: tuple(e for e in seen if e.data.get("status", "") == status) for status in statuses}
    yield from _retries(log, events.get("12", ()))
    yield from _local_protection(log, events.get("4", ()))
    for code in ("9", "10", "11"):
        if code in events:
            text = f"the peer's NIC refused a request (status {code}): look at the peer's log first"
            yield Hypothesis("rank_died", Confidence.OPEN_MINUS, text, events[code])
    if "13" in events:
        text = "the peer was not ready to receive for too long (status 13)"
        yield Hypothesis("straggler", Confidence.OPEN, text, events["13"])
        yield Hypothesis("ib_timeout", Confidence.OPEN_MINUS, "receiver not ready (status 13)", events["13"])
    rest = tuple(e for code in events if code not in {"4", "5", "9", "10", "11", "13"} for e in events[code])
    if rest and "12" not in events:
        yield Hypothesis("ib_timeout", Confidence.OPEN_MINUS, "RDMA requests ended with an error", rest, Topic.LINK)
    if events.keys() == {"5"}:
        text = "requests were flushed (status 5): the first error is on another rank"
        yield Hypothesis("rank_died", Confidence.EFFECT, text, events["5"])


def _local_protection(log: LogFacts, events: tuple[Event, ...]) -> Iterator[Hypothesis]:
    """Status 4."""
    if not events:
        return
    text = "the NIC was refused access to a local buffer (local protection error)"
    gpu_memory = "GPU memory behind an IOMMU, ACS or a broken peer-memory mapping"
    yield Hypothesis(
        "acs_iommu",
        Confidence.LIKELY_MINUS,
        f"{text}: {gpu_memory if log.gdrdma in {GdrUse.ALL, GdrUse.SOME} else 'a broken memory mapping'}",
        events,
        loss=STOPS,
        notes=("not a timeout: link and GID are not it; one node that always fails points at its HCA",),
    )
    yield Hypothesis("gdr_disabled", Confidence.OPEN, f"{text}: GPU memory registration may be broken", events, Topic.GPUDIRECT)
    yield Hypothesis("other", Confidence.OPEN, f"{text}: a faulty HCA, if it is always the same node", events)


def _retries(log: LogFacts, events: tuple[Event, ...]) -> Iterator[Hypothesis]:
    """Status 12: no answer within the retries.  Link, path, or a peer that is gone; the counters do not tell which."""
    if not events:
        return
    peers = sorted(caught(events, "peer"))
    hcas = sorted({*caught(events, "hca"), *_used(log, events)})
    gone = failed_by_itself(log)
    link = [e for e in log.of("async_event") if _port(e)]
    text = (
        "RDMA requests got no answer (status 12)"
        + (f" from {', '.join(peers[:3])}" if peers else "")
        + (f" over {', '.join(hcas[:3])}" if hcas else "")
    )
    notes = ["a peer that died leaves the same error: see that it still runs before you look at cables"]
    if len(peers) == 1:
        notes.append(f"all errors name one peer, {peers[0]}: start there")
    if log.roce:
        notes.append("on RoCE check the GID on both ends, MTU and PFC along the path")
    unanswered = Confidence.OPEN_MINUS if gone else Confidence.LIKELY_PLUS
    misrouted = Confidence.OPEN_MINUS if gone else Confidence.STRONG_MINUS
    if link:
        text_down = "a port went down before requests timed out"
        both = (*link, *events)
        yield Hypothesis("link_degraded", Confidence.STRONG, text_down, both, Topic.LINK, loss=STOPS)
    gids = [g for e in events for g in (e.data.get("local", ""), e.data.get("remote", "")) if g]
    local_gid = any(g.lower().startswith("fe80") for g in gids)
    # NCCL's default GID index is 0 up to 2.20.5, a link-local or RoCE v1 GID (src/transport/net_ib.cc); automatic from 2.21.5.
    version = parse(log.nccl_version or "")
    default_gid = log.roce and version is not None and version < (2, 21, 5) and "NCCL_IB_GID_INDEX" not in log.env
    beside = [d.name for d in log.devices if d.name in hcas and d.link == "RoCE" and "IB" in log.link_layers]
    leave = tuple(f"{name} is a RoCE port beside InfiniBand's: NCCL_IB_HCA=^={name} leaves it out" for name in beside[:3])
    if (log.roce and local_gid) or (default_gid and Level.INFO in log.levels and not gone):
        text_gid = "the GID in use is link-local or RoCE v1, which is not routed"
        if not local_gid:
            text_gid = "this NCCL takes GID index 0 where nothing is set, link-local or RoCE v1, which is not routed"
        why = "each request over it is tried again for about 30 s, then the job stops or hangs"
        # No line of the error shows the GID: what it rests on is shown beside.
        shown = () if local_gid else (f"NCCL version {log.nccl_version}", "no line that sets NCCL_IB_GID_INDEX")
        yield Hypothesis("roce_gid", misrouted, f"{text_gid}; {text}", events, Topic.GID, notes=leave, why=why, shown=shown)
    elif log.roce or any("ffff" in g for g in gids):
        text_apart = "the GIDs may be on networks that do not reach each other"
        yield Hypothesis("roce_gid", Confidence.OPEN_MINUS, text_apart, events, Topic.GID)
    yield Hypothesis("ib_timeout", unanswered, text, events, Topic.LINK, notes=tuple(notes))
    if log.above_info("peer_closed", "secondary") or gone:
        yield Hypothesis("rank_died", Confidence.QUIET_PLUS, "the peer may have died", events)


def _used(log: LogFacts, events: tuple[Event, ...]) -> frozenset[str]:
    """The RDMA devices of the ranks that say so, where each has one alone: its connections name no other."""
    ranks = {(e.rank, e.host) for e in events if e.rank is not None}
    found = [
        frozenset[str]().union(
            *(
                log.hcas(v)
                for v in log.vias
                if v.transport == "NET" and v.host == host and rank == (v.src if v.direction == "send" else v.dst)
            )
        )
        for rank, host in ranks
    ]
    return frozenset().union(*found) if all(len(one) == 1 for one in found) else frozenset()


def _port(e: Event) -> bool:
    return Wording.PORT_DOWN.within(e.data.get("event", ""))


def _back(log: LogFacts, e: Event) -> Event | None:
    """The port's own word that it is up again, after which a rank took two steps more: all ranks had ended the first."""
    for up in log.of("async_event"):
        same = up.file == e.file and up.data.get("dev") == e.data.get("dev") and (up.host, up.pid) == (e.host, e.pid)
        if same and up.last > e.last and Wording.PORT_UP.within(up.data.get("event", "")):
            steps = (sum(line > up.last for line in lines) for (file, _), lines in log.work.items() if file == e.file)
            if max(steps, default=0) > 1:
                return up
    return None


# ibv_get_async_event(3): the responder met a request that is too long or of an operation that it does not take, or that may not
# touch the memory it names; or the adapter gave the queue up.
_QUEUE_PAIR: Final = (
    "one NCCL and one network plugin on both ends? ibv_devinfo -v | grep fw_ver, on both; dmesg of the HCA's driver there"
)


def async_event(log: LogFacts) -> Iterator[Hypothesis]:
    """Events of the device: src/transport/net_ib/common.cc, ibv_event_type_str of libibverbs."""
    failing = bool(log.above_info("completion", "modify_qp", "generic", "peer_closed"))
    for e in log.of("async_event"):
        if recovered(log, e):
            continue
        said = (e.data.get("event") or e.text).lower()
        dev = e.data.get("dev", "a device")
        if _port(e):
            up = None if failing else _back(log, e)
            text = f"the port of {dev} went down while the job ran"
            if up is not None:
                text = f"the port of {dev} went down and came back ({up.where}); the job worked on"
            cost = STOPS if up is None else SOMETIMES
            yield Hypothesis("link_degraded", Confidence.STRONG_MINUS, text, (e,), Topic.LINK, loss=cost)
            if failing:
                yield Hypothesis("ib_timeout", Confidence.OPEN_MINUS, "requests over that port time out", (e,), Topic.LINK)
        elif (Wording.CATASTROPHIC.within(said) and not Wording.WORK_QUEUE.within(said)) or Wording.DEVICE_FATAL.within(said):
            text = f"{dev} reports a fatal error of the adapter (firmware or hardware)"
            how = "dmesg on that node; mlxfwreset, or replace it"
            yield Hypothesis("link_degraded", Confidence.STRONG, text, (e,), Topic.LINK, how, loss=STOPS)
            yield Hypothesis("inventory", Confidence.OPEN, f"{dev} is lost until its driver or firmware is reset", (e,))
        elif Wording.GID_CHANGE.within(said):
            text = f"the GID table of {dev} changed while the job ran: connections made before keep the old GID"
            confidence, loss = (Confidence.STRONG_MINUS, None) if failing else (Confidence.EFFECT_PLUS, SOMETIMES)
            yield Hypothesis("roce_gid", confidence, text, (e,), Topic.GID, loss=loss)
        elif Wording.QUEUE_PAIR_BROKE.within(said) or e.data.get("what") == "QP":
            text = f"a queue pair of {dev} broke: {said[:60]}"
            # An error of a request says why; but another rank's unanswered request comes after the queue pair broke.
            own = [o for o in log.above_info("completion", "modify_qp") if o.data.get("status", "12") not in {"5", "12"}]
            told = [o for o in log.above_info("completion") if o.data.get("status")]
            earlier = [o for o in told if (not e.at or o.at != e.at) and before(o, e)]
            confidence = Confidence.EFFECT if own or earlier else Confidence.STRONG_MINUS
            yield Hypothesis("other", confidence, f"{text}; it says nothing of the link", (e,), how=_QUEUE_PAIR, loss=STOPS)
            yield Hypothesis("ib_timeout", Confidence.EFFECT, text, (e,))


def unopened(log: LogFacts) -> str:
    """The only device that could not be opened, where the list of the others is at a level that this log does not have.

    A container without /dev/infiniband opens none of a node's adapters; work that went on shows no more than that it can.
    """
    events = log.of("open_device")
    names = caught(events, "dev")
    alone = len(names) == 1 and "devices" in log.absent
    return names[0] if alone and all(log.good.get(e.file, 0) > e.last for e in events) else ""


def left_out(log: LogFacts) -> Iterator[str]:
    """NCCL goes on to the next device of its list (src/transport/net_ib): a job that did its work had what it needed."""
    if name := unopened(log):
        where = log.of("open_device")[0].where
        yield f"the RDMA device {name} could not be opened, and NCCL went on without it ({where})"


def devices(log: LogFacts) -> Iterator[Hypothesis]:
    """RDMA devices that are listed and cannot be opened.  Virtual functions of other containers fail as well, which does no
    harm where a device of one's own opens."""
    events = log.of("open_device")
    if events and not log.devices and log.net != "IB" and not unopened(log):
        names = ", ".join(sorted(caught(events, "dev"))[:4])
        text = (
            f"RDMA devices are listed{f' ({names})' if names else ''} but cannot be opened: "
            "/dev/infiniband is not mapped, or not allowed, where the job runs"
        )
        yield Hypothesis("dev_infiniband_missing", Confidence.STRONG_PLUS, text, events, Topic.RDMA_DEVICES)
        yield Hypothesis("transport_fallback_tcp", Confidence.OPEN, "NCCL goes on over TCP", events)
    for e in log.of("provider")[:1]:
        if Wording.KERNEL_ABI.within(e.text):
            fix = Fix("install the rdma-core (or vendor driver libraries) of the host in the image")
            text = "the RDMA provider library in this image does not fit the kernel driver of the host"
            yield Hypothesis("plugin_mismatch", Confidence.STRONG, text, (e,), fix)
            yield Hypothesis("dev_infiniband_missing", Confidence.OPEN_MINUS, "no RDMA device is usable here", (e,))
        elif not log.devices and not e.data.get("driver"):
            fix = Fix("install rdma-core's provider libraries in the image", ("apt-get install ibverbs-providers",))
            text = "no provider library for the RDMA device is installed here"
            yield Hypothesis("dev_infiniband_missing", Confidence.LIKELY, text, (e,), fix)


_ONE_FABRIC = Fix("list the ports of one fabric only", ("export NCCL_IB_HCA==mlx5_0,mlx5_2   # '=' makes the names exact",))
_PERSISTENT = Fix("use persistent RDMA device names, or a topology file of this machine", ("echo $NCCL_TOPO_FILE",))
_MIXED: Final = means(
    "mixed_link",
    Hypothesis("env_misuse", Confidence.STRONG, "ports of different link layers were paired", fix=_ONE_FABRIC),
    Hypothesis("roce_gid", Confidence.OPEN_MINUS, "an InfiniBand port cannot talk to a RoCE port", fix=_ONE_FABRIC),
    info=False,
    first=True,
)


def odd_devices(log: LogFacts) -> Iterator[Hypothesis]:
    """Topology files that name other devices, and ranks that see more of them than others."""
    for e in log.above_info("topo_attribute")[:1]:
        mixed = {"IB", "RoCE"} <= log.link_layers
        odd = " and the device list mixes InfiniBand and RoCE: a device took another's name" if mixed else ""
        text = f"the topology does not fit the devices found ({e.data['attribute']} of {e.data['node']} is not there){odd}"
        yield Hypothesis("env_misuse", Confidence.LIKELY, text, (e,), _PERSISTENT)
        text = "a device that the topology file names is not there under that name"
        yield Hypothesis("inventory", Confidence.OPEN, text, (e,))
    for e in log.of("net_counts")[:1]:
        confidence = Confidence.OPEN if Wording.MISMATCH_IGNORED.within(e.text) else Confidence.STRONG_PLUS
        text = f"ranks see between {e.data.get('min', '?')} and {e.data.get('max', '?')} network devices"
        yield Hypothesis("inventory", confidence, text, (e,), notes=("NCCL_IGNORE_NET_MISMATCH only hides it",))
        text = "a rank's container has fewer RDMA devices mapped"
        yield Hypothesis("dev_infiniband_missing", Confidence.OPEN_MINUS, text, (e,))


_ADAPTER: Final = (
    means(
        "poll_cq",
        Hypothesis(
            "link_degraded",
            Confidence.LIKELY,
            "{call} failed: the adapter or its driver does not answer any more",
            how="dmesg on that node (mlx5_core: health, reset)",
            loss=STOPS,
        ),
        Hypothesis("other", Confidence.OPEN, "a verb failed that does not fail on a sound adapter"),
        info=False,
        first=True,
    ),
    means(
        "adapter_failed",
        Hypothesis("link_degraded", Confidence.LIKELY, "NCCL gave up an adapter after errors", loss=STOPS),
        info=False,
        first=True,
    ),
)

RULES = (*_ADAPTER, query_gid, modify_qp, _ADDRESS_HANDLE, completion, async_event, devices, _MIXED, odd_devices)

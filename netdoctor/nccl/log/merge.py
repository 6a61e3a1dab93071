"""From the parser's `Accumulator` to `LogFacts`: per rank, and merged over the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import Final

from netdoctor.environment import Of, names_of
from netdoctor.nccl.log.accumulator import Accumulator, CollectedEvent, Process
from netdoctor.nccl.log.connections import Tail, connection
from netdoctor.nccl.log.facts import (
    Address,
    Direction,
    Event,
    GdrRefusal,
    GdrUse,
    Level,
    LogFacts,
    NetDevice,
    NetSource,
    RankFacts,
    Via,
    family,
)
from netdoctor.textsafe import clean


def merge(accumulator: Accumulator) -> LogFacts:
    """The facts of all processes; each step adds the fields of one topic."""
    processes = [p for p in accumulator.processes if _is_nccls(p)]
    facts = _contents(accumulator)
    facts = _connections(facts, accumulator, processes)
    facts = _network(facts, accumulator, processes)
    facts = _features(facts, accumulator)
    facts = _job(facts, accumulator, processes)
    return _absent(facts)


def earlier(accumulator: Accumulator, begin: int) -> LogFacts:
    """What the run told that was over before line `begin`; of LSF, the next one's report comes before its begin is known."""
    told = merge(accumulator)
    return replace(told, lines=begin - 1, events=tuple(e for e in told.events if e.line < begin))


def _contents(accumulator: Accumulator) -> LogFacts:
    """What the log consists of, and its events."""
    # RAS listens on one port a node: the bind of a second job's fails, harmlessly (src/ras/client_support.cc).
    events = [e for e in accumulator.events.values() if "ras/" not in e.source and b"ras/" not in e.text[:200]]
    events = list(_without_the_steps_victims(accumulator, sorted(events, key=lambda e: (e.file, e.line))))
    launchers = {e.file for e in events if e.labelled and ("local_rank" in e.data or e.kind == "elastic")}
    return LogFacts(
        library=accumulator.library or ("NCCL" if accumulator.nccl_lines else None),
        nccl_version=_most_frequent(accumulator.versions),
        cuda_version=_most_frequent(accumulator.cuda_versions),
        torch_version=accumulator.torch_version or None,
        diagnostics=tuple(clean(d) for d in accumulator.diagnostics),
        levels=frozenset(accumulator.levels),
        subsystems=frozenset(accumulator.subsystems),
        events=tuple(_event(accumulator, event, launchers) for event in events),
        work={(clean(accumulator.files[n]), rank): tuple(lines) for (n, rank), lines in accumulator.good.items()},
        figures={clean(accumulator.files[n]): tuple(lines) for n, lines in accumulator.figures.items()},
        trained={clean(accumulator.files[n]): line for n, line in accumulator.trained.items()},
        anew={clean(accumulator.files[n]): tuple(lines) for n, lines in accumulator.anew.items()},
        counts={(clean(accumulator.files[n]), total): line for (n, total), line in accumulator.counts.items()},
        left=frozenset(accumulator.left),
        ordinary={clean(accumulator.files[n]): lines for n, lines in accumulator.ordinary.items()},
        up_at={clean(accumulator.files[n]): line for n, line in accumulator.up_at.items()},
        up_of={(clean(accumulator.files[n]), rank): line for (n, rank), line in accumulator.up_of.items()},
        runs=max(accumulator.runs.values(), default=1),
        counted=accumulator.counted if len(accumulator.files) == 1 else "",
        silence=accumulator.silence,
        documents=tuple(accumulator.files[n] for n in sorted(accumulator.documents)),
        earlier=tuple(accumulator.earlier),
        unended=bool(accumulator.unended),
        alone=accumulator.alone,
        files=tuple(accumulator.files),
        lines=accumulator.lines,
        nccl_lines=accumulator.nccl_lines,
        bytes_read=accumulator.bytes_read,
    )


def _without_the_steps_victims(accumulator: Accumulator, events: Iterable[CollectedEvent]) -> Iterator[CollectedEvent]:
    """Without srun's words of tasks that it ended itself, with the step, when it had told of one that had failed; of a step
    that began after it, nothing is left out."""
    failed, ended = set[int](), set[int]()  # files
    for e in events:
        of_a_task = e.kind == "died" and "task" in e.data
        if e.kind == "step_ended" and e.file in failed and _last_work(accumulator, e.file) < e.line:
            ended.add(e.file)
        killed = (of_a_task and e.data.get("how") == "Killed") or (e.kind == "ended" and e.data.get("why") == "Terminated")
        if killed and e.file in ended:
            continue
        if of_a_task:
            failed.add(e.file)
        if e.kind == "finished":
            ended.discard(e.file)
        yield e


def _last_work(accumulator: Accumulator, file: int) -> int:
    """The last line of a file in which somebody works or a communicator is set up."""
    worked = (line for (where, _), lines in accumulator.good.items() if where == file for line in lines)
    return max(accumulator.up_at.get(file, 0), *worked, 0)


def _connections(facts: LogFacts, accumulator: Accumulator, processes: list[Process]) -> LogFacts:
    vias = _vias(processes)
    use, reason = _gdr(accumulator, vias)
    return replace(
        facts,
        vias=vias,
        transports=_transports(vias),
        gdrdma=use,
        gdr_hca=dict(accumulator.gdr_hca),
        gdr_distance=dict(accumulator.gdr_distance),
        gdr_reason=reason,
    )


def _network(facts: LogFacts, accumulator: Accumulator, processes: list[Process]) -> LogFacts:
    """Interfaces, networks and devices; the connections are known already."""
    bootstraps = tuple(dict.fromkeys(Address(*p.bootstrap, p.host) for p in processes if p.bootstrap))
    ifname = _most_frequent(Counter(a.ifname for a in bootstraps))
    network, inferred = _used_network(accumulator, processes, facts.vias)
    devices = tuple(dict.fromkeys(NetDevice(*d) for listed in {p.devices: None for p in processes} for d in listed))
    oob = accumulator.oob
    return replace(
        facts,
        bootstrap_ifname=ifname,
        bootstrap_address=_most_frequent(Counter(a.address for a in bootstraps if a.ifname == ifname)),
        bootstraps=bootstraps,
        network=network,
        net=family(network) if network else None,
        net_inferred=inferred,
        plugin=clean(accumulator.plugin) or None,
        plugin_error=clean(accumulator.plugin_error) or None,
        libibverbs_missing=any(p.verbs_missing for p in processes),
        devices=devices,
        virtual_devices=_virtual(processes),
        no_ib_device=any(p.no_ib for p in processes) and not devices,
        oob=Address(oob[1], oob[2], oob[0]) if oob else None,
        socket_interfaces=tuple(Address(name, address, host) for host, name, address in accumulator.socket_interfaces),
    )


def _virtual(processes: list[Process]) -> dict[int, str]:
    """What all processes call by the same number; nodes may differ."""
    made: dict[int, set[str]] = {}
    for process in processes:
        for number, name in process.virtual.items():
            made.setdefault(number, set()).add(clean(name))
    return {number: names.pop() if len(names) == 1 else "" for number, names in made.items()}


def _features(facts: LogFacts, accumulator: Accumulator) -> LogFacts:
    return replace(
        facts,
        dmabuf=accumulator.dmabuf,
        nvls=accumulator.nvls,
        mnnvl=accumulator.mnnvl,
        sharp=accumulator.sharp,
        collnet=accumulator.collnet or any(v.transport == "COLLNET" for v in facts.vias) or None,
        channels=dict(accumulator.channels),
        algorithms=dict(accumulator.algorithms),
    )


def _job(facts: LogFacts, accumulator: Accumulator, processes: list[Process]) -> LogFacts:
    """Nodes, ranks, communicators, and what was set for them."""
    affinity = dict.fromkeys(f"GPU {g}: {mask}" for p in processes for g, mask in sorted(p.affinity.items()))
    nranks = accumulator.nranks or accumulator.ring_ranks or None
    listed = {p.devices: tuple(NetDevice(*d) for d in p.devices) for p in processes}  # shared by the ranks of a node
    return replace(
        facts,
        nodes=accumulator.nodes or (1 if nranks == 1 else None),
        nranks=nranks,
        hosts=tuple(dict.fromkeys([p.host for p in processes if p.host] + list(accumulator.header_hosts))),
        ranks=tuple(_rank(p, listed[p.devices]) for p in processes),
        comms_started=sum(p.comms_started for p in processes),
        comms_complete=sum(p.comms_complete for p in processes),
        rings=accumulator.rings,
        init_seconds=max((p.init_seconds for p in processes), default=0.0) or None,
        busbw=accumulator.busbw,
        busbw_peak=accumulator.busbw_peak,
        gpus=tuple(accumulator.gpus),
        env=_env(processes),
        env_differs=_env_differs(processes),
        affinity=tuple(affinity)[:64],
    )


def _most_frequent(counted: Counter[str]) -> str | None:
    """The most frequent, or of equally frequent ones the first."""
    return counted.most_common(1)[0][0] if counted else None


def _is_nccls(p: Process) -> bool:
    """Whether a process is one of NCCL's: lines without a prefix belong to a process of their own, which may be empty."""
    return p.pid >= 0 or bool(
        p.host or p.network or p.devices or p.bootstrap or p.vias or p.verbs_missing or p.no_ib or p.env or p.ranks
    )


def _used_network(
    accumulator: Accumulator, processes: list[Process], vias: tuple[Via, ...]
) -> tuple[str | None, NetSource | None]:
    """The network, and what it was read from where no line names it."""
    named = Counter(p.network for p in processes if p.network)
    if named:
        return _most_frequent(named), None
    by_via: Counter[str] = Counter()
    for v in vias:
        if v.transport in {"NET", "COLLNET"}:
            by_via[v.detail] += v.count
    if by_via:
        return _most_frequent(by_via), NetSource.CONNECTIONS
    if accumulator.networks_inferred:
        return _most_frequent(accumulator.networks_inferred), NetSource.ERRORS
    return ("IB", NetSource.DEVICES) if accumulator.ib_used else (None, None)


def _vias(processes: list[Process]) -> tuple[Via, ...]:
    """All connections; the lines of one are counted."""
    counts: dict[tuple[int, int, Direction, Tail, str], int] = {}
    read: dict[bytes, tuple[int, int, Direction, Tail] | None] = {}
    for p in processes:
        for rest, count in p.vias.items():
            if rest not in read:
                read[rest] = connection(rest)
            ends = read[rest]
            if ends is not None:
                key = (*ends, p.host)
                counts[key] = counts.get(key, 0) + count
    return tuple(Via(src, dst, way, *tail, host, count) for (src, dst, way, tail, host), count in counts.items())


def _transports(vias: tuple[Via, ...]) -> dict[str, int]:
    out: Counter[str] = Counter()
    for v in vias:
        device = f"/{v.device}" if v.device is not None else ""
        out[f"{v.transport}/{v.detail}{device}{'/GDRDMA' if v.gdrdma else ''}"] += v.count
    return dict(out)


def _gdr(accumulator: Accumulator, vias: tuple[Via, ...]) -> tuple[GdrUse | None, GdrRefusal | None]:
    """Whether connections that cross the network use GPUDirect RDMA, and what refuses it where they do not.

    The proof is the suffix /GDRDMA of a "via NET" line.  Without such lines an HCA that refuses is proof of the contrary;
    an HCA that offers it is no proof of use.
    """
    on = sum(v.count for v in vias if v.gdrdma)
    off = sum(v.count for v in vias if v.gdrdma is False and v.transport == "NET")
    hca_off = [name for name, enabled in accumulator.gdr_hca.items() if not enabled]
    all_off = bool(accumulator.gdr_hca) and len(hca_off) == len(accumulator.gdr_hca)
    reason = GdrRefusal.HCA if hca_off else None
    if not hca_off and accumulator.gdr_distance["disabled"] and not accumulator.gdr_distance["enabled"]:
        reason = GdrRefusal.TOPOLOGY
    if on and not off:
        return GdrUse.ALL, None
    if on or off or all_off:
        return GdrUse.SOME if on else GdrUse.NONE, reason
    return None, reason


def _rank(p: Process, devices: tuple[NetDevice, ...]) -> RankFacts:
    return RankFacts(
        host=clean(p.host),
        pid=p.pid if p.pid >= 0 else None,
        ranks=tuple(sorted(set(p.ranks.values()))) or ((p.rank_hint,) if p.rank_hint >= 0 else ()),
        nranks=max(p.nranks.values(), default=0) or None,
        nodes=p.nodes or None,
        nccl_version=p.nccl_version or None,
        bootstrap=Address(*p.bootstrap, p.host) if p.bootstrap else None,
        network=p.network or None,
        devices=devices,
        comms_started=p.comms_started,
        comms_complete=p.comms_complete,
        comm_ids=tuple(p.comm_ids),
        init_seconds=p.init_seconds or None,
        env={k: clean(v) for k, v in p.env.items()},
        affinity=dict(p.affinity),
        cpu_conflict=dict(p.cpu_conflict),
        plugin_env=frozenset(p.plugin_env),
        devs=frozenset(p.devs),
    )


def _env(processes: list[Process]) -> dict[str, str]:
    out: dict[str, str] = {}
    for p in processes:
        for name, value in p.env.items():
            out.setdefault(name, clean(value))
    return out


# A variable that names this node's own things may differ between nodes.
_OWN: Final = frozenset(names_of(Of.PROCESS, Of.DEVICES, Of.INTERFACES, Of.LOG))


def _env_differs(processes: list[Process]) -> dict[str, tuple[str, ...]]:
    values: dict[str, dict[str, None]] = {}
    for p in processes:
        for name, value in p.env.items():
            values.setdefault(name, {})[clean(value)] = None
    return {n: tuple(v) for n, v in values.items() if len(v) > 1 and n not in _OWN}


def _event(accumulator: Accumulator, event: CollectedEvent, launchers: Collection[int]) -> Event:
    """`launchers`: files in which the tasks that srun numbers are torchrun's agents, each of several ranks."""
    process = accumulator.processes[event.process]
    own = process.ranks.get(event.dev, -1)
    agents = event.labelled and event.file in launchers
    rank = own if agents else event.rank if event.rank >= 0 else process.rank(event.dev)
    return Event(
        event.kind,
        clean(accumulator.files[event.file]),
        event.line,
        clean(event.text.decode("utf-8", "replace"))[:1000],
        clean(process.host),
        process.pid if process.pid >= 0 else None,
        rank if rank >= 0 else None,
        event.at,
        event.count,
        event.level,
        event.last,
        event.mild,
        clean(event.source),
        {k: clean(v) for k, v in event.data.items()},
        () if agents else tuple(sorted(event.ranks)),
        event.spoken,
        event.outlived,
        tuple(sorted(event.nodes)),
        event.amid,
    )


# What only the level INFO prints (src/debug.cc: the default mask is INIT, ENV from 2.16.5, BOOTSTRAP from 2.23).
_AT_INFO = frozenset(
    (
        "nccl_version",
        "cuda_version",
        "bootstrap_ifname",
        "bootstrap_address",
        "network",
        "net",
        "plugin",
        "devices",
        "vias",
        "transports",
        "gdrdma",
        "dmabuf",
        "nvls",
        "mnnvl",
        "sharp",
        "collnet",
        "channels",
        "affinity",
        "nodes",
        "nranks",
        "init_seconds",
        "env",
        "gdr_hca",
        "gdr_distance",
        "algorithms",
        "socket_interfaces",
        "oob",
    )
)


def _absent(facts: LogFacts) -> LogFacts:
    unseen: list[tuple[str, str]] = []
    absent: set[str] = set()
    if Level.INFO not in facts.levels:
        absent |= {name for name in _AT_INFO if not getattr(facts, name)}
        unseen.append(("how NCCL initialised: version, interface, network, transports", "NCCL_DEBUG=INFO"))
    else:
        if "NET" not in facts.subsystems:
            absent |= {"gdr_hca", "gdr_distance"}
            unseen.append(("which NIC offers GPUDirect RDMA", "NCCL_DEBUG_SUBSYS=INIT,ENV,NET"))
        if "TUNING" not in facts.subsystems:
            absent.add("algorithms")
            unseen.append(("algorithm and protocol per size", "NCCL_DEBUG_SUBSYS=INIT,ENV,NET,TUNING"))
        if not facts.vias:
            absent |= {"vias", "transports"} | ({"gdrdma"} if facts.gdrdma is None else set())
            # From 2.22 connections are made at the first collective (NCCL_RUNTIME_CONNECT=1, src/init.cc).
            unseen.append(("transport per connection", "a first collective after init, at NCCL_DEBUG=INFO"))
        if facts.mnnvl is None:
            absent.add("mnnvl")
        if not facts.bootstraps:
            absent |= {"bootstrap_ifname", "bootstrap_address"}
    return replace(facts, absent=frozenset(absent), unseen=tuple(unseen))

"""From what the parser remembers to `LogFacts`: per rank, and merged over the job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from netdoctor.environment import Of, names_of
from netdoctor.nccl.log.accumulator import Accumulator, CollectedEvent, Process
from netdoctor.nccl.log.connections import Tail, connection
from netdoctor.nccl.log.facts import Address, Event, LogFacts, NetDevice, NetSource, RankFacts, Via
from netdoctor.textsafe import clean

# Networks as printed -> family.  Sources: NCCL (IB, Socket), nccl-rdma-sharp-plugins (IBext*, UCX*), aws-ofi-nccl
# (AWS Libfabric before 1.9, Libfabric after), Google (FasTrak, GPUDirectTCPX*, gIB).
_FAMILY = (("aws libfabric", "Libfabric"), ("libfabric", "Libfabric"), ("socket", "Socket"), ("ib", "IB"))


def family(network: str) -> str:
    """``AWS Libfabric`` and ``Libfabric`` are one family, ``IBext_v8`` is IB's; other names stand for themselves."""
    low = network.lower()
    return next((name for start, name in _FAMILY if low.startswith(start)), network)


def merge(accumulator: Accumulator) -> LogFacts:
    processes = [p for p in accumulator.processes if _spoke(p)]
    networks = Counter(p.network for p in processes if p.network)
    vias, lines = _vias(processes)
    network, inferred = _network(accumulator, networks, vias)
    hosts = tuple(dict.fromkeys([p.host for p in processes if p.host] + list(accumulator.header_hosts)))
    bootstraps = tuple(dict.fromkeys(Address(*p.bootstrap, p.host) for p in processes if p.bootstrap))
    main = _first(a.ifname for a in bootstraps)
    known = {p.devices: tuple(NetDevice(*d) for d in p.devices) for p in processes}
    devices = tuple(dict.fromkeys(d for one in known.values() for d in one))
    gdrdma, reason = _gdr(accumulator, vias)
    nranks = accumulator.nranks or accumulator.ring_ranks or None
    facts = LogFacts(
        library=accumulator.library or ("NCCL" if accumulator.nccl_lines else None),
        nccl_version=accumulator.versions.most_common(1)[0][0] if accumulator.versions else None,
        nccl_versions=dict(accumulator.versions),
        cuda_version=accumulator.cuda_versions.most_common(1)[0][0] if accumulator.cuda_versions else None,
        cuda_driver_version=accumulator.driver_version or None,
        torch_version=accumulator.torch_version or None,
        bootstrap_ifname=main,
        bootstrap_address=_first(a.address for a in bootstraps if a.ifname == main),
        bootstraps=bootstraps,
        network=network,
        net=family(network) if network else None,
        networks=dict(networks),
        net_inferred=inferred,
        plugin=clean(accumulator.plugin) or None,
        plugin_error=clean(accumulator.plugin_error) or None,
        libibverbs_missing=any(p.verbs_missing for p in processes),
        devices=devices,
        no_ib_device=any(p.no_ib for p in processes) and not devices,
        oob=Address(accumulator.oob[1], accumulator.oob[2], accumulator.oob[0]) if accumulator.oob else None,
        socket_interfaces=tuple(Address(name, address, host) for host, name, address in accumulator.socket_ifs),
        vias=vias,
        transports=_transports(vias),
        gdrdma=gdrdma,
        gdr_hca=dict(accumulator.gdr_hca),
        gdr_distance=dict(accumulator.gdr_distance),
        gdr_reason=reason,
        dmabuf=accumulator.dmabuf,
        nvls=accumulator.nvls,
        mnnvl=accumulator.mnnvl,
        sharp=accumulator.sharp,
        collnet=accumulator.collnet or any(v.transport == "COLLNET" for v in vias) or None,
        channels=dict(accumulator.channels),
        algorithms=dict(accumulator.algorithms),
        affinity=tuple(dict.fromkeys(f"GPU {g}: {mask}" for p in processes for g, mask in sorted(p.affinity.items())))[:64],
        nodes=accumulator.nodes or (1 if nranks == 1 else None),
        nranks=nranks,
        hosts=hosts,
        ranks=tuple(_rank(p, *lines[at], known) for at, p in enumerate(processes)),
        comms_started=sum(p.started for p in processes),
        comms_complete=sum(p.complete for p in processes),
        rings=accumulator.rings,
        init_seconds=max((p.init_seconds for p in processes), default=0.0) or None,
        env=_env(processes),
        env_differs=_env_differs(processes),
        busbw=accumulator.busbw,
        gpus=tuple(accumulator.gpus),
        diagnostics=tuple(clean(d) for d in accumulator.diagnostics),
        levels=frozenset(accumulator.levels),
        subsystems=frozenset(accumulator.subsystems),
        events=tuple(_event(accumulator, s) for s in sorted(accumulator.events.values(), key=lambda s: (s.file, s.line))),
        files=tuple(accumulator.files),
        lines=accumulator.lines,
        nccl_lines=accumulator.nccl_lines,
        bytes_read=accumulator.bytes_read,
    )
    return _with_absent(facts)


def _first(values: Iterable[str]) -> str | None:
    """The most frequent, of equals the first."""
    counted = Counter(values)
    return counted.most_common(1)[0][0] if counted else None


def _spoke(p: Process) -> bool:
    """Whether a process is one of NCCL's: lines without a prefix belong to a process of their own, which may be empty."""
    return p.pid >= 0 or bool(
        p.host or p.network or p.devices or p.bootstrap or p.vias or p.verbs_missing or p.no_ib or p.env or p.ranks
    )


def _network(accumulator: Accumulator, networks: Counter[str], vias: tuple[Via, ...]) -> tuple[str | None, NetSource | None]:
    """The network, and what it was read from where no line names it."""
    if networks:
        return networks.most_common(1)[0][0], None
    by_via: Counter[str] = Counter()
    for v in vias:
        if v.transport in {"NET", "COLLNET"}:
            by_via[v.detail] += v.count
    if by_via:
        return by_via.most_common(1)[0][0], NetSource.CONNECTIONS
    if accumulator.networks_inferred:
        return accumulator.networks_inferred.most_common(1)[0][0], NetSource.ERRORS
    if accumulator.ib_used:
        return "IB", NetSource.DEVICES
    return None, None


def _vias(processes: list[Process]) -> tuple[tuple[Via, ...], dict[int, tuple[int, int]]]:
    """All connections, and for each process how many lines say NET, and how many of those GDRDMA."""
    out: dict[tuple[Any, ...], int] = {}
    tails: dict[int, tuple[int, int]] = {}
    read: dict[bytes, tuple[int, int, str, Tail] | None] = {}
    for at, p in enumerate(processes):
        net = gdr = 0
        for rest, count in p.vias.items():
            if rest not in read:
                read[rest] = connection(rest)
            one = read[rest]
            if one is None:
                continue
            src, dst, way, tail = one
            key = (src, dst, way, *tail, p.host)
            out[key] = out.get(key, 0) + count
            if tail[0] == "NET":
                net, gdr = net + count, gdr + count * bool(tail[3])
        tails[at] = net, gdr
    return tuple(Via(a, b, c, d, e, f, g, h, n) for (a, b, c, d, e, f, g, h), n in out.items()), tails


def _transports(vias: tuple[Via, ...]) -> dict[str, int]:
    out: Counter[str] = Counter()
    for v in vias:
        device = f"/{v.device}" if v.device is not None else ""
        out[f"{v.transport}/{v.detail}{device}{'/GDRDMA' if v.gdrdma else ''}"] += v.count
    return dict(out)


def _gdr(accumulator: Accumulator, vias: tuple[Via, ...]) -> tuple[bool | str | None, str | None]:
    """Whether connections that cross the network use GPUDirect RDMA, and what refuses it where they do not.

    The proof is the suffix /GDRDMA of a "via NET" line.  Without such lines an HCA that refuses is proof of the contrary;
    an HCA that offers it is no proof of use.
    """
    on = sum(v.count for v in vias if v.gdrdma)
    off = sum(v.count for v in vias if v.gdrdma is False and v.transport == "NET")
    hca_off = [name for name, enabled in accumulator.gdr_hca.items() if not enabled]
    all_off = bool(accumulator.gdr_hca) and len(hca_off) == len(accumulator.gdr_hca)
    reason = (
        "hca"
        if hca_off
        else "topology"
        if accumulator.gdr_distance.get("disabled") and not accumulator.gdr_distance.get("enabled")
        else None
    )
    if on or off:
        return (True if not off else "mixed" if on else False), (reason if off else None)
    if all_off:
        return False, reason
    return None, reason


def _rank(p: Process, net: int, gdr: int, known: dict[tuple[tuple[str, int, str], ...], tuple[NetDevice, ...]]) -> RankFacts:
    return RankFacts(
        host=clean(p.host),
        pid=p.pid if p.pid >= 0 else None,
        ranks=tuple(sorted(set(p.ranks.values()))) or ((p.rank_hint,) if p.rank_hint >= 0 else ()),
        cuda_devs=tuple(sorted(d for d in p.ranks if d >= 0)),
        nranks=max(p.nranks.values(), default=0) or None,
        nodes=p.nodes or None,
        nccl_version=p.version or None,
        bootstrap=Address(*p.bootstrap, p.host) if p.bootstrap else None,
        network=p.network or None,
        devices=known[p.devices],
        comms_started=p.started,
        comms_complete=p.complete,
        comm_ids=tuple(p.comm_ids),
        init_seconds=p.init_seconds or None,
        env={k: clean(v) for k, v in p.env.items()},
        affinity=dict(p.affinity),
        net_lines=net,
        net_gdr_lines=gdr,
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
_OWN: Final = frozenset(names_of(Of.PROCESS, Of.DEVICES))


def _env_differs(processes: list[Process]) -> dict[str, tuple[str, ...]]:
    values: dict[str, dict[str, None]] = {}
    for p in processes:
        for name, value in p.env.items():
            values.setdefault(name, {})[clean(value)] = None
    return {n: tuple(v) for n, v in values.items() if len(v) > 1 and n not in _OWN}


def _event(accumulator: Accumulator, seen: CollectedEvent) -> Event:
    process = accumulator.processes[seen.process]
    rank = seen.rank if seen.rank >= 0 else process.rank(seen.dev)
    return Event(
        seen.kind,
        clean(accumulator.files[seen.file]),
        seen.line,
        clean(seen.text.decode("utf-8", "replace"))[:1000],
        clean(process.host),
        process.pid if process.pid >= 0 else None,
        rank if rank >= 0 else None,
        seen.at,
        seen.count,
        clean(seen.source),
        {k: clean(v) for k, v in seen.data.items()},
    )


# What only the level INFO prints (src/debug.cc: the default mask is INIT, ENV from 2.16.5, BOOTSTRAP from 2.23).
_AT_INFO = frozenset(
    (
        "nccl_version",
        "cuda_version",
        "cuda_driver_version",
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


def _with_absent(facts: LogFacts) -> LogFacts:
    unseen: list[tuple[str, str]] = []
    absent: set[str] = set()
    if "INFO" not in facts.levels:
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

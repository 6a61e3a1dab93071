"""Which network carried the data, and why not the faster one: TCP fallback, plugins, GPUDirect RDMA."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from netdoctor.causes import CAUSES
from netdoctor.causes.cost import MIGHT, STOPS, sockets
from netdoctor.facts.nccl_version import parse
from netdoctor.model import Finding, Fix, Status, record
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis, means
from netdoctor.nccl.diagnosis.mends import Topic, mend
from netdoctor.nccl.log.facts import SOCKET, Direction, GdrRefusal, Level, LogFacts, NetSource, Via
from netdoctor.nccl.log.wordings import Wording
from netdoctor.nccl.transport import network_family

_PLUGIN = Fix(
    "install the plugin with all its libraries where the job runs, and require it",
    ("ldd libnccl-net.so", "export NCCL_NET=<name>   # fails instead of falling back"),
)
_EFA = Fix("see that the peer is alive; then let the security group pass all traffic within itself, both ways")
_NETDEV = re.compile(r"(?:\^|=)*(?:eth|en[ospx]|bond|ib\d|ibp|ibs|hsn|em\d|p\d+p)")


_NOT_FOUND: Final = means(
    "net_not_found",
    Hypothesis("plugin_mismatch", Confidence.CERTAIN, "NCCL_NET asks for {name}, which no plugin offers", fix=_PLUGIN),
    Hypothesis("env_misuse", Confidence.OPEN, "NCCL_NET names a network that is not there"),
    info=False,
    first=True,
)


def plugins(log: LogFacts) -> Iterator[Hypothesis]:
    """Network plugins that cannot be loaded or find no device.  src/plugin/net.cc, aws-ofi-nccl src/nccl_ofi_net.cpp."""
    alone = log.many_nodes is False
    old = log.of("plugin_old")
    if not (log.net and log.net not in {SOCKET, "IB"} and log.came_up):  # no plugin works
        yield from _uninitialised(log, alone)
        load = log.of("plugin_load")
        if load:
            text = f"a plugin's library cannot be loaded: {load[0].data.get('why', load[0].text)[:140]}"
            yield Hypothesis("plugin_mismatch", Confidence.STRONG, text, load, _PLUGIN)
        elif log.plugin_error and not alone:
            text = f"the network plugin cannot be loaded: {log.plugin_error[:140]}"
            yield Hypothesis("plugin_mismatch", Confidence.LIKELY, text, shown=(log.plugin_error[:200],), fix=_PLUGIN)
    if old and not log.plugin and not alone:
        yield Hypothesis("plugin_mismatch", Confidence.OPEN, "the network plugin is too old for this NCCL", old, _PLUGIN)


def _uninitialised(log: LogFacts, alone: bool) -> Iterator[Hypothesis]:
    # What could not be opened on a device that was found is `frameworks.unopened`'s.
    init = tuple(e for e in log.above_info("ofi_init") if not Wording.OPENED_ON_DEVICE.within(e.text))
    if log.library == "Neuron" and init and all(log.good.get(e.file, 0) > e.last for e in init):
        return  # the plugin is tried on every instance; without EFA one instance works by itself
    warned = tuple(e for e in log.of("ofi_any") if e.level is Level.WARN)
    if init:
        no_device = any(Wording.EFA_OR_PROVIDER.within(e.text) for e in init)
        text = "libfabric has no usable EFA device here" if no_device else "the libfabric plugin could not be initialised"
        confidence, loss = (Confidence.LIKELY, MIGHT) if alone else (Confidence.STRONG, None)
        fix = Topic.RDMA_DEVICES if no_device else _PLUGIN
        yield Hypothesis("plugin_mismatch", confidence, text, init, fix, loss=loss)
        if no_device:
            yield Hypothesis("dev_infiniband_missing", Confidence.OPEN, text, init, fix, loss=loss)
    elif warned and log.of("generic", "peer_closed"):
        text = f"the libfabric plugin complains: {warned[0].data.get('what', '')[:120]}"
        yield Hypothesis("plugin_mismatch", Confidence.QUIET_PLUS, text, warned, _PLUGIN)


def requests(log: LogFacts) -> Iterator[Hypothesis]:
    """Requests of aws-ofi-nccl that failed."""
    for e in log.of("ofi_request")[:1]:
        error = e.data.get("error", e.text)
        if Wording.PEER_UNRESPONSIVE.within(error):
            text = "the EFA peer is known but does not complete its handshake"
            yield Hypothesis("firewall_connect", Confidence.STRONG_MINUS, text, (e,), _EFA)
            yield Hypothesis("rank_died", Confidence.OPEN, "the peer may have died", (e,))
        else:
            text = f"a libfabric request failed ({error[:100]}): the fabric to the peer may be closed to it"
            yield Hypothesis("firewall_connect", Confidence.OPEN, text, (e,), _EFA)
            yield Hypothesis("hang", Confidence.OPEN_MINUS, "a libfabric request failed, and its peer waits", (e,))
    for e in log.above_info("ofi_register")[:1]:
        if Wording.NOT_ALLOCATED.within(e.text):
            text = "libfabric could not register memory: the locked-memory limit is too low"
            yield Hypothesis("memlock", Confidence.LIKELY_PLUS, text, (e,))
        text, why = "a buffer could not be registered with the NIC", "the program stops: it was promised a registration"
        yield Hypothesis("gdr_disabled", Confidence.LIKELY, text, (e,), Topic.GPUDIRECT, loss=STOPS, why=why)


def gdrcopy(log: LogFacts) -> Iterator[Hypothesis]:
    """Plugins and libfabric copy without it (aws-ofi-nccl, libfabric's src/hmem_cuda_gdrcopy.c): a communicator that came up
    after the warning shows that nothing needed it."""
    events = tuple(e for e in log.above_info("gdrcopy") if log.up_at.get(e.file, 0) <= e.line)[:1]
    if events:
        text = "GDRCopy is not usable here: /dev/gdrdrv is not mapped, or the library is missing"
        fix = Fix("map /dev/gdrdrv into the container", ("docker run --device=/dev/gdrdrv …",))
        yield Hypothesis("plugin_mismatch", Confidence.OPEN, text, events, fix)
        yield Hypothesis("env_misuse", Confidence.OPEN_MINUS, "a feature that needs GDRCopy is switched on", events)


_PLUGINS_GPUDIRECT: Final = (
    gdrcopy,
    means(
        "gdr_off_plugin",
        Hypothesis("gdr_disabled", Confidence.OPEN, "the plugin switched GPUDirect off on an instance type that has it"),
        first=True,
    ),
)


_TUNES_RDMA: Final = ("NCCL_IB_GID_INDEX", "NCCL_IB_TC", "NCCL_IB_SL", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_NET_GDR_LEVEL")


@record
class _TcpEvidence:
    """What a log whose data went over TCP sockets says about RDMA."""

    log: LogFacts
    hints: tuple[str, ...]  # that RDMA hardware is expected here
    requested: bool  # a hint is a setting, not only a name or a plugin that an image brings along
    slingshot: bool

    @property
    def expected(self) -> bool:
        return bool(self.hints) or self.slingshot

    @property
    def switched_off(self) -> bool:
        return self.log.env.get("NCCL_IB_DISABLE") == "1"

    @property
    def unread(self) -> bool:
        """Whether nobody could look for RDMA devices, on machines that may have them, and nothing shows work without."""
        works = self.log.workstation or self.log.good or self.log.of("finished")
        return self.log.libibverbs_missing and not works

    @property
    def hca(self) -> str:
        return self.log.env.get("NCCL_IB_HCA", "")

    @property
    def invisible(self) -> bool:
        return self.log.no_ib_device or self.log.libibverbs_missing

    @property
    def shown(self) -> tuple[str, ...]:
        library = ("Failed to open libibverbs",) if self.log.libibverbs_missing else ()
        device = ("NET/IB : No device found",) if self.log.no_ib_device else ()
        return ("Using network Socket", *self.hints, *library, *device)


def _tcp_evidence(log: LogFacts) -> _TcpEvidence:
    asked = {
        "NCCL_IB_HCA": bool(log.env.get("NCCL_IB_HCA")),
        "NCCL_IB_DISABLE": log.env.get("NCCL_IB_DISABLE") == "0",
        "NCCL_NET": log.env.get("NCCL_NET", "").upper().startswith("IB"),
        **{name: name in log.env for name in _TUNES_RDMA},
    }
    variables = [f"{name}={log.env[name]}" for name, holds in asked.items() if holds]
    low = (log.plugin or "").lower()
    rdma_plugin = low.startswith("ibext") or "sharp" in low or "rdma plugin" in low
    names = {a.ifname for a in (*log.bootstraps, *log.socket_interfaces)}
    ipoib = [f"IPoIB interface {name}" for name in sorted(names) if re.match(r"ib(?:p\d|s\d|\d|b)", name)]
    return _TcpEvidence(
        log,
        (*variables, *([f"network plugin {log.plugin}"] if rdma_plugin else ()), *ipoib),
        # A plugin that an image brings along says nothing about a job on one node.
        requested=bool(variables or (rdma_plugin and log.many_nodes)),
        slingshot=any(name.startswith("hsn") for name in names),
    )


class _TcpReason(NamedTuple):
    """Why NCCL took TCP although there may be RDMA; `{hca}` in a text is the value of NCCL_IB_HCA."""

    applies: Callable[[_TcpEvidence], bool]
    cause: str
    confidence: Confidence
    text: str
    fix: Fix | Topic
    shown: str | None = None  # None: all that `_TcpEvidence` shows


# The first that applies is the reason.
_TCP_REASONS: Final = (
    _TcpReason(
        lambda e: e.log.env.get("NCCL_NET") == SOCKET,
        "env_misuse",
        Confidence.OPEN_MINUS,
        "NCCL_NET=Socket asks for TCP",
        Fix("remove it", ("unset NCCL_NET",)),
        "NCCL_NET set to Socket",
    ),
    _TcpReason(
        lambda e: e.switched_off,
        "env_misuse",
        Confidence.OPEN_MINUS,
        "NCCL_IB_DISABLE=1 switches RDMA off",
        Fix("remove it", ("unset NCCL_IB_DISABLE",)),
        "NCCL_IB_DISABLE set to 1",
    ),
    _TcpReason(
        lambda e: e.log.no_ib_device and _NETDEV.match(e.hca) is not None,
        "env_misuse",
        Confidence.LIKELY_MINUS,
        "NCCL_IB_HCA={hca} names network interfaces, it wants RDMA devices such as mlx5_0",
        Fix("name RDMA devices", ("ibdev2netdev   # the first column", "export NCCL_IB_HCA=mlx5_0")),
        "NCCL_IB_HCA set to {hca}",
    ),
    _TcpReason(
        lambda e: e.slingshot,
        "plugin_mismatch",
        Confidence.LIKELY_MINUS,
        "Slingshot (hsn0) needs the libfabric plugin, and none was loaded",
        _PLUGIN,
    ),
    _TcpReason(
        lambda e: e.requested and e.invisible,
        "dev_infiniband_missing",
        Confidence.LIKELY_MINUS,
        "RDMA is asked for, but no device is visible where the job runs",
        Topic.RDMA_DEVICES,
    ),
    _TcpReason(
        lambda e: e.unread or bool(e.hints),
        "dev_infiniband_missing",
        Confidence.QUIET_PLUS,
        "the container may lack the RDMA devices or libraries",
        Topic.RDMA_DEVICES,
    ),
)


def sockets_between_nodes(log: LogFacts) -> bool:
    """Whether data went over TCP and may have left the node: on one node NCCL always names Socket, and nothing crosses it."""
    if log.net != SOCKET or log.net_inferred is NetSource.ERRORS or log.many_nodes is False or log.nranks == 1:
        return False
    return not any(v.transport == "NET" and v.detail != SOCKET for v in log.vias)


def fallback(log: LogFacts) -> Iterator[Hypothesis]:
    """TCP sockets between nodes."""
    if not sockets_between_nodes(log):
        return
    evidence = _tcp_evidence(log)
    if log.many_nodes and (evidence.expected or (evidence.unread and not evidence.switched_off)):
        reason = next((r for r in _TCP_REASONS if r.applies(evidence)), None)
        yield _over_tcp(evidence, reason)
        if reason:
            shown = (reason.shown.format(hca=evidence.hca),) if reason.shown else evidence.shown
            text = reason.text.format(hca=evidence.hca)
            yield Hypothesis(reason.cause, reason.confidence, text, shown=shown, fix=reason.fix)
    elif evidence.requested and evidence.invisible:
        text = "RDMA is asked for, but NCCL found no device and took TCP"
        yield Hypothesis("dev_infiniband_missing", Confidence.QUIET_PLUS, text, shown=evidence.shown, fix=Topic.RDMA_DEVICES)


def _over_tcp(evidence: _TcpEvidence, reason: _TcpReason | None) -> Hypothesis:
    return Hypothesis(
        "transport_fallback_tcp",
        Confidence.OPEN_PLUS if evidence.expected or evidence.unread else Confidence.OPEN_MINUS,
        "data between the nodes goes over TCP sockets" + (", though RDMA is asked for" if evidence.requested else ""),
        shown=evidence.shown,
        fix=reason.fix if reason else Topic.RDMA_DEVICES,
        loss=sockets(needed=True if evidence.expected or evidence.switched_off else None),
    )


# Adapters and platforms that have no GPUDirect RDMA with NCCL, so that its absence is no fault.
_NO_GDR_DEVICE = re.compile(r"hfi1|opa|qib|i40iw|irdma")
_OLD = "NCCL up to 2.22.3 does not see nvidia_peermem without /sys/kernel/mm/memory_peers: a newer NCCL may be the mend"
_GB10_DEVICES = frozenset({"rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"})


def _gb10(log: LogFacts, names: set[str]) -> bool:
    """NVIDIA GB10 (DGX Spark): its ConnectX ports have these names, and the platform has no GPUDirect RDMA by design."""
    second_port = any(n.startswith("roceP2") for n in names)
    spark = "spark" in " ".join(log.hosts).lower()
    return (
        (names <= _GB10_DEVICES and second_port) or any("GB10" in g for g in log.gpus) or bool(names & _GB10_DEVICES and spark)
    )


def _off(vias: tuple[Via, ...]) -> list[Via]:
    """Connections over InfiniBand or RoCE without GPUDirect that should have it.

    [send] without and [receive] with is how a GPU before Ampere without NVLink looks: NCCL does not let the NIC read there
    (src/graph/paths.cc, ncclTopoCheckGdr).
    """
    ib = [v for v in vias if v.transport == "NET" and v.detail.lower().startswith("ib")]
    received = [v for v in ib if v.direction is Direction.RECEIVE]
    return [v for v in received or ib if not v.gdrdma]


def gpudirect(log: LogFacts) -> Iterator[Hypothesis]:
    """GPUDirect RDMA is not in use on RDMA connections between nodes."""
    if log.many_nodes is False or log.net != "IB":
        return
    names = {d.name for d in log.devices} | {n.rpartition("/")[2] for n in log.gdr_hca}
    none_has_it = names and all(_NO_GDR_DEVICE.match(n) for n in names)
    if none_has_it or _gb10(log, names) or log.workstation:
        return
    off, on = _off(log.vias), [v for v in log.vias if v.gdrdma]
    refused = sorted(n for n, enabled in log.gdr_hca.items() if not enabled)
    if not off and (on or not refused or len(refused) < len(log.gdr_hca)):
        return
    if off and not refused and not names:
        return  # which adapter this is, the log does not say
    if names and all(re.match(r"rxe|siw", n) for n in names):
        yield from _software_device(tuple(refused[:4]))
        return
    hosts = sorted({v.host for v in off if v.host} - {v.host for v in on if v.host})
    some = bool(on and hosts)
    text, fix = _refusal(log, f" on {', '.join(hosts[:3])} only" if some else "")
    version = parse(log.nccl_version or "")
    old = log.gdr_reason is GdrRefusal.HCA and version is not None and (2, 4) <= version[:2] <= (2, 22)
    yield Hypothesis(
        "gdr_disabled",
        Confidence.QUIET_PLUS if some else Confidence.QUIET,
        text,
        shown=tuple(f"GPU Direct RDMA Disabled for HCA {n}" for n in refused[:4])
        or tuple(f"{v.src} -> {v.dst} via NET/{v.detail}/{v.device}" for v in off[:3]),
        fix=fix,
        notes=(_OLD,) if old else (),
        subject=hosts[0] if some else None,
    )


def _software_device(shown: tuple[str, ...]) -> Iterator[Hypothesis]:
    yield Hypothesis(
        "gdr_disabled",
        Confidence.QUIET,
        "the RDMA device is a software one (Soft-RoCE), over an ordinary network interface",
        shown=shown,
        fix=Fix("use a hardware adapter, or none", ("rdma link show",)),
        notes=("`Using network IB` is not RDMA hardware here",),
    )
    text = "traffic runs through the kernel's network stack"
    yield Hypothesis("transport_fallback_tcp", Confidence.EFFECT_PLUS, text, shown=shown)


def _refusal(log: LogFacts, where: str) -> tuple[str, Fix | Topic]:
    """What refuses GPUDirect, and what to do."""
    level = log.env.get("NCCL_NET_GDR_LEVEL", "")
    if level in {"LOC", "0"}:
        remove = Fix("remove it", ("unset NCCL_NET_GDR_LEVEL",))
        return f"GPUDirect RDMA is switched off by NCCL_NET_GDR_LEVEL={level}", remove
    if log.gdr_reason is GdrRefusal.TOPOLOGY:
        nearer = Fix("let each rank use the NIC under its GPU's PCIe switch", ("nvidia-smi topo -m",))
        return "GPUDirect RDMA is off because GPU and NIC are too far apart", nearer
    return f"GPUDirect RDMA is not in use{where}", Topic.GPUDIRECT


RULES = (_NOT_FOUND, plugins, requests, *_PLUGINS_GPUDIRECT, fallback, gpudirect)


def expected(log: LogFacts, wanted: str) -> Finding:
    """What carries the data between the nodes against what the site says that it should (``expected.transport``)."""
    shown = network_family(log.net) if log.net and log.net_inferred is not NetSource.ERRORS else None
    evidence = {"expected": wanted, "network": log.network}
    if log.many_nodes is False or log.nranks == 1:
        text = f"{wanted} is expected between nodes, and this job has one"
        return Finding(Status.PASS, text, "transport", evidence=evidence, check="log")
    if shown is None:
        text = f"{wanted} is expected, and the log does not say what carries the data"
        return Finding(Status.UNKNOWN, text, "transport", evidence=evidence, how="NCCL_DEBUG=INFO", check="log")
    if shown == network_family(wanted):
        return Finding(Status.PASS, f"{shown} carries the data, as expected", "transport", evidence=evidence, check="log")
    cause = "transport_fallback_tcp" if shown == SOCKET else "env_misuse"
    return Finding(
        Status.FAIL,
        f"the log says network {shown}, {wanted} is expected",
        "transport",
        cause=cause,
        expected=wanted,
        evidence=evidence,
        how="NCCL_NET, NCCL_IB_HCA and the network plugins",
        why=CAUSES[cause].costs,
        loss=CAUSES["transport_fallback_tcp"].loss,
        fix=mend(Topic.RDMA_DEVICES, log) if shown == SOCKET and network_family(wanted) == "IB" else None,
        check="log",
    )

"""Which network carried the data, and why not the faster one: TCP fallback, plugins, GPUDirect RDMA."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.model import Fix, Severity
from netdoctor.nccl.diagnosis.context import CERTAIN, LIKELY, OPEN, QUIET, STRONG, Guess, Scene
from netdoctor.nccl.log.facts import SOCKET, NetSource, Via

_DEVICES = Fix(
    "map the RDMA devices and their user-space libraries into the container",
    ("docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1:-1 …", "ls -l /dev/infiniband; ibv_devinfo"),
)
_PLUGIN = Fix(
    "install the plugin with all its libraries where the job runs, and require it",
    ("ldd libnccl-net.so", "export NCCL_NET=<name>   # fails instead of falling back"),
)
_GDR = Fix(
    "load nvidia_peermem, or use DMA-BUF (open kernel modules, kernel >= 5.12, NCCL >= 2.13.4)",
    ("modprobe nvidia_peermem", "modinfo -F license nvidia"),
    ("echo nvidia_peermem > /etc/modules-load.d/nvidia_peermem.conf",),
)
_NETDEV = re.compile(r"(?:\^|=)*(?:eth|en[ospx]|bond|ib\d|ibp|ibs|hsn|em\d|p\d+p)")


def plugins(s: Scene) -> Iterator[Guess]:
    """Network plugins that cannot be loaded or find no device.  src/plugin/net.cc, aws-ofi-nccl src/nccl_ofi_net.cpp."""
    f = s.facts
    works = bool(f.net and f.net not in {"Socket", "IB"} and s.came_up)
    for e in s.loud("net_not_found")[:1]:
        yield Guess(
            "plugin_mismatch",
            CERTAIN - 3,
            f"NCCL_NET asks for {e.data.get('name', 'a network')}, which no plugin offers",
            (e,),
            _PLUGIN,
        )
        yield Guess("env_misuse", OPEN, "NCCL_NET names a network that is not there", (e,))
    for e in s.loud("net_none")[:1]:
        if "initialize any" in e.text:
            forced = f.env.get("NCCL_NET", "").upper().startswith("IB") or f.no_ib_device
            yield Guess(
                "dev_infiniband_missing",
                STRONG + 3 if forced else OPEN,
                "no network could be initialised: the one that is asked for finds no device here",
                (e,),
                _DEVICES,
            )
            yield Guess(
                "plugin_mismatch", LIKELY if forced else STRONG, "no network plugin could be initialised", (e,), _PLUGIN
            )
        elif not s.loud("ofi_init", "plugin_load"):
            yield Guess("plugin_mismatch", OPEN - 10, "two ranks have no transport in common", (e,))
    init = s.loud("ofi_init")
    if init and not works:
        alone = s.many_nodes is False
        text = (
            "libfabric has no usable EFA device here"
            if re.search(r"efa|provider", " ".join(e.text for e in init), re.IGNORECASE)
            else "the libfabric plugin could not be initialised"
        )
        yield Guess(
            "plugin_mismatch", LIKELY if alone else STRONG, text, init, _PLUGIN, severity=Severity.WARNING if alone else None
        )
    warned = tuple(e for e in s.of("ofi_any") if e.data.get("level") == "WARN")
    if warned and not init and not works and s.of("generic", "peer_closed"):
        text = f"the libfabric plugin complains: {warned[0].data.get('what', '')[:120]}"
        yield Guess("plugin_mismatch", OPEN - 8, text, warned, _PLUGIN)
    load = s.of("plugin_load")
    if load and not works:
        yield Guess(
            "plugin_mismatch",
            STRONG,
            f"a plugin's library cannot be loaded: {load[0].data.get('why', load[0].text)[:140]}",
            load,
            _PLUGIN,
        )
    elif f.plugin_error and not works and s.many_nodes is not False:
        yield Guess(
            "plugin_mismatch",
            LIKELY,
            f"the network plugin cannot be loaded: {f.plugin_error[:140]}",
            shown=(f.plugin_error[:200],),
            fix=_PLUGIN,
        )
    old = s.of("plugin_old")
    if old and not f.plugin and s.many_nodes is not False:
        yield Guess("plugin_mismatch", OPEN + 2, "the network plugin is too old for this NCCL", old, _PLUGIN)
    yield from _requests(s)


def _requests(s: Scene) -> Iterator[Guess]:
    for e in s.of("ofi_request")[:1]:
        error = e.data.get("error", e.text).lower()
        if re.search(r"unresponsive|unreachable|handshake|host is down|timed? ?out", error):
            fix = Fix("see that the peer is alive; then let the security group pass all traffic within itself, both ways")
            yield Guess("firewall_connect", STRONG - 2, "the EFA peer is known but does not complete its handshake", (e,), fix)
            yield Guess("rank_died", OPEN, "the peer may have died", (e,))
        else:
            yield Guess("hang", OPEN, f"a libfabric request failed: {e.data.get('error', e.text)[:100]}", (e,))
            yield Guess("firewall_connect", OPEN - 5, "the fabric to the peer may be closed", (e,))
    for e in s.loud("ofi_register")[:1]:
        low = e.text.lower()
        if "cannot allocate" in low or "-12" in low:
            yield Guess("memlock", LIKELY + 3, "libfabric could not register memory: the locked-memory limit is too low", (e,))
        yield Guess("gdr_disabled", LIKELY, "libfabric could not register a buffer", (e,), severity=Severity.CRITICAL)
    for e in s.loud("gdrcopy")[:1]:
        yield Guess(
            "plugin_mismatch",
            OPEN,
            "GDRCopy is not usable here: /dev/gdrdrv is not mapped, or the library is missing",
            (e,),
            Fix("map /dev/gdrdrv into the container", ("docker run --device=/dev/gdrdrv …",)),
        )
        yield Guess("env_misuse", OPEN - 3, "a feature that needs GDRCopy is switched on", (e,))
    for e in s.of("gdr_off_plugin")[:1]:
        yield Guess("gdr_disabled", OPEN, "the plugin switched GPUDirect off on an instance type that has it", (e,))


def fallback(s: Scene) -> Iterator[Guess]:
    """TCP sockets between nodes.  On one node no data crosses the network, and Socket is what NCCL always shows there."""
    f = s.facts
    if f.net != "Socket" or f.net_inferred is NetSource.ERRORS or s.many_nodes is False or f.nranks == 1:
        return
    if any(v.transport == "NET" and v.detail != SOCKET for v in f.vias):
        return
    wanted = s.wants_rdma
    shown = ["Using network Socket", *wanted]
    if f.libibverbs_missing:
        shown.append("Failed to open libibverbs")
    if f.no_ib_device:
        shown.append("NET/IB : No device found")
    hca = f.env.get("NCCL_IB_HCA", "")
    # A plugin that an image brings along says nothing about a job on one node.
    weak = ("IPoIB",) if s.many_nodes else ("IPoIB", "network plugin")
    asked = [w for w in wanted if not w.startswith(weak)]
    if not s.many_nodes:
        if asked and (f.no_ib_device or f.libibverbs_missing):
            yield Guess(
                "dev_infiniband_missing",
                QUIET + 3,
                "RDMA is asked for, but NCCL found no device and took TCP",
                shown=tuple(shown),
                fix=_DEVICES,
            )
        return
    slingshot = any(a.ifname.startswith("hsn") for a in (*f.bootstraps, *f.socket_interfaces))
    expected = bool(wanted) or slingshot
    off = f.env.get("NCCL_IB_DISABLE") == "1"
    weight = OPEN + 4 if expected or f.libibverbs_missing else OPEN - 5
    yield Guess(
        "transport_fallback_tcp",
        weight,
        "data between the nodes goes over TCP sockets" + (", though RDMA is asked for" if asked else ""),
        shown=tuple(shown),
        fix=Fix("remove NCCL_IB_DISABLE", ("unset NCCL_IB_DISABLE",)) if off else _DEVICES,
        severity=None if expected or off else Severity.WARNING,
        notes=()
        if expected
        else ("the log does not show whether these nodes have an RDMA network; without one, TCP is what they have",),
    )
    if off:
        yield Guess(
            "env_misuse",
            weight - 6,
            "NCCL_IB_DISABLE=1 switches RDMA off",
            shown=("NCCL_IB_DISABLE set to 1",),
            fix=Fix("remove it", ("unset NCCL_IB_DISABLE",)),
        )
    elif hca and f.no_ib_device and _NETDEV.match(hca):
        yield Guess(
            "env_misuse",
            OPEN + 8,
            f"NCCL_IB_HCA={hca} names network interfaces, it wants RDMA devices such as mlx5_0",
            shown=(f"NCCL_IB_HCA set to {hca}",),
            fix=Fix("name RDMA devices", ("ibdev2netdev   # the first column", "export NCCL_IB_HCA=mlx5_0")),
        )
    elif slingshot:
        yield Guess(
            "plugin_mismatch",
            OPEN + 6,
            "Slingshot (hsn0) needs the libfabric plugin, and none was loaded",
            shown=tuple(shown),
            fix=_PLUGIN,
        )
    elif asked and (f.no_ib_device or f.libibverbs_missing):
        yield Guess(
            "dev_infiniband_missing",
            OPEN + 6,
            "RDMA is asked for, but no device is visible where the job runs",
            shown=tuple(shown),
            fix=_DEVICES,
        )
    elif f.libibverbs_missing or wanted:
        yield Guess(
            "dev_infiniband_missing",
            OPEN - 8,
            "the container may lack the RDMA devices or libraries",
            shown=tuple(shown),
            fix=_DEVICES,
        )


# Adapters and platforms that have no GPUDirect RDMA with NCCL, so that its absence is no fault.
_NO_GDR_DEVICE = re.compile(r"hfi1|opa|qib|i40iw|irdma")
_GB10_DEVICES = frozenset({"rocep1s0f0", "rocep1s0f1", "roceP2p1s0f0", "roceP2p1s0f1"})


def _gb10(s: Scene) -> bool:
    """NVIDIA GB10 (DGX Spark): its ConnectX ports have these names, and the platform has no GPUDirect RDMA by design."""
    names = {d.name for d in s.facts.devices} | {n.rpartition("/")[2] for n in s.facts.gdr_hca}
    hosts = " ".join(s.facts.hosts).lower()
    return (
        bool(names and names <= _GB10_DEVICES and any(n.startswith("roceP2") for n in names))
        or any("GB10" in g for g in s.facts.gpus)
        or (bool(names & _GB10_DEVICES) and "spark" in hosts)
    )


def _off(vias: tuple[Via, ...]) -> list[Via]:
    """Connections over InfiniBand or RoCE without GPUDirect that should have it.

    [send] without and [receive] with is how a GPU before Ampere without NVLink looks: NCCL does not let the NIC read there
    (src/graph/paths.cc, ncclTopoCheckGdr).
    """
    ib = [v for v in vias if v.transport == "NET" and v.detail.lower().startswith("ib")]
    received = [v for v in ib if v.direction == "receive"]
    if received:
        return [v for v in received if not v.gdrdma]
    return [v for v in ib if not v.gdrdma]


def gpudirect(s: Scene) -> Iterator[Guess]:
    """GPUDirect RDMA is not in use on RDMA connections between nodes."""
    f = s.facts
    if s.many_nodes is False or f.net != "IB":
        return
    names = {d.name for d in f.devices} | {n.rpartition("/")[2] for n in f.gdr_hca}
    if _gb10(s) or (names and all(_NO_GDR_DEVICE.match(n) for n in names)) or any("geforce" in g.lower() for g in f.gpus):
        return
    off = _off(f.vias)
    on = [v for v in f.vias if v.gdrdma]
    refused = sorted(n for n, enabled in f.gdr_hca.items() if not enabled)
    if not off and (on or not refused or len(refused) < len(f.gdr_hca)):
        return
    if off and not refused and not names:
        return  # which adapter this is, the log does not say
    if names and all(re.match(r"rxe|siw", n) for n in names):
        yield Guess(
            "gdr_disabled",
            QUIET,
            "the RDMA device is a software one (Soft-RoCE), over an ordinary network interface",
            shown=tuple(refused[:4]),
            fix=Fix("use a hardware adapter, or none", ("rdma link show",)),
            notes=("`Using network IB` is not RDMA hardware here",),
        )
        yield Guess(
            "transport_fallback_tcp", QUIET - 5, "traffic runs through the kernel's network stack", shown=tuple(refused[:4])
        )
        return
    hosts = sorted({v.host for v in off if v.host} - {v.host for v in on if v.host})
    some = f" on {', '.join(hosts[:3])} only" if on and hosts else ""
    shown = tuple(f"GPU Direct RDMA Disabled for HCA {n}" for n in refused[:4]) or tuple(
        f"{v.src} -> {v.dst} via NET/{v.detail}/{v.device}" for v in off[:3]
    )
    old = f.gdr_reason == "hca" and (2, 4) <= tuple(int(x) for x in (f.nccl_version or "9.9").split(".")[:2]) <= (2, 22)
    level = f.env.get("NCCL_NET_GDR_LEVEL", "")
    if level in {"LOC", "0"}:
        text, fix = (
            f"GPUDirect RDMA is switched off by NCCL_NET_GDR_LEVEL={level}",
            Fix("remove it", ("unset NCCL_NET_GDR_LEVEL",)),
        )
    elif f.gdr_reason == "topology":
        text, fix = (
            "GPUDirect RDMA is off because GPU and NIC are too far apart",
            Fix("let each rank use the NIC under its GPU's PCIe switch", ("nvidia-smi topo -m",)),
        )
    else:
        text, fix = f"GPUDirect RDMA is not in use{some}", _GDR
    notes = (
        ("NCCL up to 2.22.3 does not see nvidia_peermem without /sys/kernel/mm/memory_peers: a newer NCCL may be the mend",)
        if old
        else ()
    )
    yield Guess(
        "gdr_disabled", QUIET + (1 if some else 0), text, shown=shown, fix=fix, notes=notes, subject=hosts[0] if some else None
    )


RULES = (plugins, fallback, gpudirect)

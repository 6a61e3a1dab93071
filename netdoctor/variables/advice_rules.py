"""Rules about values that NCCL does take: transports left off, debugging left on, pins, popular advice that is wrong.

A fail here is a switch that NVIDIA's user guide calls a debugging one and that takes a transport away or costs on every call;
what merely pins or tunes is a note.  What a network plugin's own guide sets is no fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from netdoctor.causes.cost import NOTHING, SOMETIMES, staged
from netdoctor.facts.nccl_version import AUTOMATIC_GID, Version
from netdoctor.nccl.gpudirect import level_of
from netdoctor.nccl.integers import strtoll
from netdoctor.variables.catalogue import Variable
from netdoctor.variables.issue import Context, Issue, harms, note, stops

# search.cc, ncclTopoGetNetDev: level 1 reads the device for which ncclTopoGetPxnRanks gives no place (up to 2.30.7).
PXN_LEVEL_BREAKS: Version = (2, 21, 5)
CHANNELS_64: Version = (2, 25, 1)  # src/include/device.h: MAXCHANNELS 32, then 64

# What these plugins' guides and the plugins themselves set (aws-ofi-nccl platform-aws; Google's nccl-env-profile.sh).
SET_BY_PLUGIN = frozenset(
    (
        *("NCCL_BUFFSIZE", "NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE"),
        *("NCCL_NVLS_CHUNKSIZE", "NCCL_PROTO", "NCCL_ALGO", "NCCL_TOPO_FILE", "NCCL_TUNER_PLUGIN"),
        *("NCCL_NVLS_ENABLE", "NCCL_NVLSTREE_MAX_CHUNKSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"),
        *("NCCL_CROSS_NIC", "NCCL_NET_GDR_LEVEL", "NCCL_P2P_PXN_LEVEL", "NCCL_IB_GID_INDEX", "NCCL_IB_TC"),
        *("NCCL_NET_FORCE_FLUSH", "NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS", "NCCL_IB_ADAPTIVE_ROUTING"),
        "NCCL_IB_QPS_PER_CONNECTION",
    )
)
_PINS = frozenset(
    (
        *("NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE", "NCCL_LL128_BUFFSIZE", "NCCL_NTHREADS", "NCCL_LL128_NTHREADS"),
        *("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_MIN_CTAS", "NCCL_MAX_CTAS", "NCCL_NVLS_NCHANNELS"),
        *("NCCL_P2P_NET_CHUNKSIZE", "NCCL_P2P_PCI_CHUNKSIZE", "NCCL_P2P_NVL_CHUNKSIZE"),
    )
)
# Fails that depend on whether the job is one for which it was set.
SWITCHES: Final = frozenset(
    {"p2p-off", "shm-off", "ib-off", "gdr-off", "checks", "debug-trace", "debug-detail", "hang"}
    | {"loopback", "bridge", "readmits-lo"}
)
_OFF = {
    "NCCL_NVLS_ENABLE": "NVLink SHARP is off; where it was failing, the cause (Fabric Manager, reset GPUs) is still there",
    "NCCL_DMABUF_ENABLE": "GPUDirect RDMA over DMA-BUF is off: nvidia_peermem must be loaded instead",
    "NCCL_RAS_ENABLE": "RAS is off: nothing can be asked about a job that hangs",
    "NCCL_CUMEM_ENABLE": "turns off user buffer registration, NVLink SHARP and multi-node NVLink as well",
    "NCCL_MNNVL_ENABLE": "multi-node NVLink is off",
    "NCCL_NET_GDR_READ": "reads for sending are staged through host memory",
    "NCCL_IB_PCI_RELAXED_ORDERING": "slow on hosts whose PCIe needs relaxed ordering (virtual machines, AMD)",
    "TORCH_NCCL_ENABLE_MONITORING": "a stuck watchdog is not noticed: the job may hang for ever",
}


_HOSTID: Final = (
    "ranks with different values count as different hosts (no NVLink, no shared memory between them), and nodes with one value"
    " as one: NCCL then ends with Duplicate GPU detected, or looks for a peer's memory that is elsewhere"
)


def usage_issues(name: str, value: str, row: Variable, context: Context) -> list[Issue]:
    """Advice and faults of a value that is read as it is written."""
    number = strtoll(value).value
    rule = _RULES.get(name)
    if rule:
        return rule(name, value, number, context)
    if name in ("NCCL_NTHREADS", "NCCL_LL128_NTHREADS") and number > 0 and number % 32:
        return harms("out-of-range", "not a multiple of 32: NCCL takes another value", expected="a multiple of 32")
    if name.endswith(("_NCHANNELS", "_NRINGS", "_CTAS")) and (wrong := _channels(name, number, context)):
        return wrong
    if name in _OFF and row.default_in(context.version) != "0" and number == 0:
        issues = note("feature-off", _OFF[name])
        return [] if name in SET_BY_PLUGIN and context.plugin else issues
    issues = _named(name, value, number, context)
    if issues:
        return issues
    if (name in ("NCCL_ALGO", "NCCL_PROTO") or name in _PINS) and number != -2:
        if context.plugin and name in SET_BY_PLUGIN:
            return []
        return note("pinned", row.note or "pins what NCCL chooses by itself; leave unset outside experiments")
    default = row.default_in(context.version)
    if row.program == "nccl" and default not in ("", "undef") and value == default:
        return note("is-default", "this is the default; it need not be set")
    if row.section == "debugging" and not (context.plugin and name in SET_BY_PLUGIN):
        return note("debugging", "NVIDIA's user guide lists it for debugging, not for production")
    return []


# What is written for NCCL's own networks, whose names are IB (RoCE, too) and Socket (`.name` in net_ib.cc and net_socket.cc,
# compared whole by plugin/net.cc).  Plugins that are known are called otherwise.
_MEANT: Final = {
    **dict.fromkeys(("infiniband", "roce", "rocev2", "rdma", "verbs", "ibverbs", "net/ib", "mlx5"), "IB"),
    **dict.fromkeys(("sockets", "tcp", "tcp/ip", "ethernet", "eth", "net/socket"), "Socket"),
}


def _network(_name: str, value: str, _number: int, context: Context) -> list[Issue]:
    if value.lower() == "socket":
        return _sockets_only(context, "TCP sockets are forced")
    if not value or context.plugin or value.upper() == "IB":
        return []
    if meant := _MEANT.get(value.strip().lower()):
        message = f"no network of NCCL's is called {value!r}: it stops at start"
        return stops("net-named", message, expected=f"{meant}, or no NCCL_NET: NCCL takes the fastest by itself")
    return note("net-named", f"NCCL stops where no plugin calls its network {value!r}")


def _switch(name: str, _value: str, number: int, context: Context) -> list[Issue]:
    if number == 0:
        more = "; it does not force InfiniBand" if name == "NCCL_IB_DISABLE" else ""
        return note("is-default", f"this is the default; it need not be set{more}")
    if name == "NCCL_P2P_DISABLE":
        return harms("p2p-off", "a debugging switch left on: no NVLink, no PCIe peer-to-peer between GPUs", "p2p_disabled")
    if name == "NCCL_SHM_DISABLE":
        message = "a debugging switch left on: ranks of one node talk over the network"
        return harms("shm-off", message, "shm_disabled_or_small")
    if name == "NCCL_CHECK_POINTERS":
        return harms("checks", "a debugging switch left on: every pointer of every call is checked", loss=NOTHING)
    if context.plugin:
        return note("ib-off", f"NCCL's own InfiniBand and RoCE transport is off; {context.plugin} carries the data")
    return _sockets_only(context, "a debugging switch left on: no InfiniBand, no RoCE")


def _sockets_only(context: Context, message: str) -> list[Issue]:
    if context.hcas is not None and not context.hcas:
        return note("ib-off", f"{message}; this node has no RDMA device")
    if context.nodes == 1:
        return note("ib-off", f"{message}; one node needs none")
    if context.sockets:
        return note("ib-off", "no InfiniBand, no RoCE: the site says that sockets carry its data")
    return context.without_rdma("ib-off", message)


def _distance(name: str, value: str, _number: int, context: Context) -> list[Issue]:
    level = level_of(value, context.version)
    if level == "LOC" and name == "NCCL_P2P_LEVEL":
        return harms("p2p-off", "no GPU pair is near enough: peer-to-peer is off", "p2p_disabled")
    if level == "LOC":
        message = "no NIC is near enough: GPUDirect RDMA is off"
        return harms("gdr-off", message, "gdr_disabled", loss=staged(needed=context.between))
    if level == "SYS" and name == "NCCL_NET_GDR_LEVEL":
        message = "lets GPUDirect RDMA cross CPU sockets: often slower than staging; measure it"
        return [] if context.plugin else note("gdr-far", message)
    if name == "NCCL_P2P_LEVEL":
        return note("debugging", "pins which GPU pairs may talk directly; NCCL decides by the platform where it is not set")
    return []


def _sockets(name: str, _value: str, _number: int, context: Context) -> list[Issue]:
    """src/transport/net_socket.cc: at most 16 threads, at most 64 sockets; sockets count only with threads."""
    threads, each = context.integer("NCCL_SOCKET_NTHREADS"), context.integer("NCCL_NSOCKS_PERTHREAD")
    if name == "NCCL_NSOCKS_PERTHREAD" and threads == 0 and each is not None and each > 1:
        return harms("no-effect", "no effect with NCCL_SOCKET_NTHREADS=0: without helper threads there is one socket")
    if name == "NCCL_NSOCKS_PERTHREAD" and threads is None and not context.plugin:
        message = "on NICs other than AWS ENA and GCP gVNIC no effect without NCCL_SOCKET_NTHREADS: there are no helper threads"
        return note("sockets-alone", message)
    if threads and each and threads > 0 and each > 0 and threads * each > 64:
        lowered = f"NCCL lowers the sockets to {64 // threads} each"
        message = f"{threads} threads × {each} sockets = {threads * each}, more than 64: {lowered}"
        return harms("socket-product", message, expected="threads × sockets ≤ 64")
    return [] if context.plugin else note("sockets-tuned", "counts only where TCP sockets carry the data")


def _logging(name: str, value: str, _number: int, context: Context) -> list[Issue]:
    level = context.values.get("NCCL_DEBUG", "").strip().upper()  # judged together with the others of its file
    if name == "NCCL_DEBUG":
        if level == "TRACE":
            message = "a debugging level left on: log volume on every call (release builds print no more than INFO and calls)"
            return harms("debug-trace", message, loss=NOTHING)
        return note("debug-info", "log volume of every rank; WARN suffices in production") if level == "INFO" else []
    if name == "TORCH_DISTRIBUTED_DEBUG":
        if value.upper() == "DETAIL":
            message = "a debugging level left on: every collective is checked across ranks first"
            return harms("debug-detail", message, loss=NOTHING)
        if value.upper() in ("OFF", "INFO"):
            return []
        # torch/csrc/distributed/c10d/debug.cpp (loadDebugLevelFromEnvironment) throws where torch.distributed is imported.
        return stops("grammar", "no such level: torch raises an error at import", expected="OFF, INFO or DETAIL")
    if name == "NCCL_DEBUG_SUBSYS":
        return [] if level in ("INFO", "TRACE", "ABORT") else note("no-effect", "acts only with NCCL_DEBUG=INFO")
    if level in ("", "VERSION"):
        return note("no-effect", "acts only with NCCL_DEBUG=WARN or more")
    if "%h" not in value and "%p" not in value and not value.startswith("/dev/"):
        return note("one-file", "without %h and %p all ranks write into one file and overwrite each other")
    return []


# The variables whose every value is judged by one rule.
_RULES: Final[dict[str, Callable[[str, str, int, Context], list[Issue]]]] = {
    "NCCL_NET": _network,
    **dict.fromkeys(("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_CHECK_POINTERS"), _switch),
    **dict.fromkeys(("NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"), _distance),
    **dict.fromkeys(("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS"), _sockets),
    **dict.fromkeys(("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "TORCH_DISTRIBUTED_DEBUG"), _logging),
}


def _channels(name: str, number: int, context: Context) -> list[Issue]:
    most = 64 if context.version >= CHANNELS_64 else 32
    if number > most:
        return harms("out-of-range", f"this version has at most {most} channels: NCCL lowers it", expected=f"at most {most}")
    if name.startswith("NCCL_MIN_"):
        high = context.integer(name.replace("_MIN_", "_MAX_"))
        if high is not None and 0 < high < number:
            return harms("min-above-max", f"more than {name.replace('_MIN_', '_MAX_')}={high}")
    return []


def _named(name: str, value: str, number: int, context: Context) -> list[Issue]:
    """Advice on single variables."""
    if name == "NCCL_IB_GID_INDEX" and number >= 0:
        if context.version < AUTOMATIC_GID:
            return []
        message = "pinned: since 2.21.5 NCCL chooses the GID of each HCA itself; an index drifts and differs between hosts"
        return note("gid-pinned", message)
    if name == "NCCL_P2P_PXN_LEVEL" and number == 1 and context.version >= PXN_LEVEL_BREAKS:
        return note("pxn-level", "NCCL ends by a segmentation fault in init where the job has other nodes; 0 and 2 work")
    if name == "NCCL_IB_TIMEOUT" and number > 22:
        return note(
            "timeout-long", f"about {4.096e-6 * 2**number:.0f} s a try: a broken link hides that long before anything says so"
        )
    if name == "NCCL_IB_TIMEOUT" and number == 0:
        return note("timeout-long", "0 waits for ever: a broken link hangs the job")
    if name == "NCCL_IGNORE_CPU_AFFINITY" and number:
        return note("affinity", "binding each rank to the CPUs near its GPU is better than ignoring the mask")
    if name in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING") and number == 0:
        return harms("hang", "when a rank dies, the others wait for ever", "hang", loss=SOMETIMES)
    if name == "FI_HMEM_DISABLE_P2P" and number:
        message = "peer-to-peer is off: every byte is staged through host memory"
        return harms("gdr-off", message, "gdr_disabled", loss=staged(needed=context.between))
    if name == "FI_EFA_FORK_SAFE" and number:
        return note("fork-safe", "not needed on kernels from 5.13 on, and costs memory registration")
    if name in ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_DESYNC_DEBUG", "TORCH_NCCL_NAN_CHECK", "TORCH_NCCL_ENABLE_TIMING"):
        on = value.strip().lower() in ("1", "true", "t", "yes", "y")
        return note("debugging", "for debugging; it costs on every collective") if on else []
    if name == "NCCL_HOSTID":
        return note("host-id", _HOSTID)
    return []

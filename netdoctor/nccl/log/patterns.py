# ruff: noqa: E501  (a row a line: a pattern that is broken over lines cannot be read or searched for)
"""What can go wrong, as lines: one row a message family, with the pattern that finds it and what it catches.

Wordings and their versions are from NCCL's sources (src/…, tags 2.4 to 2.32), torch's c10d (ProcessGroupNCCL.cpp, TCPStore.cpp),
Gloo (gloo/transport/tcp), aws-ofi-nccl, libibverbs and Linux.  A row says that a line *is* such a message; what it means for the
job is the business of the rules.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from netdoctor.nccl.log.facts import EventKind


class Pattern(NamedTuple):
    """`needles`: lower-case; a line that has none of them is not looked at further."""

    kind: EventKind
    needles: tuple[bytes, ...]
    regex: re.Pattern[bytes]
    key: tuple[str, ...] = ()  # groups whose values tell events of one kind apart
    follow: int = 0  # lines after it that may belong to it


def _row(kind: EventKind, needles: str, regex: str, key: str = "", follow: int = 0) -> Pattern:
    return Pattern(
        kind,
        tuple(n.encode() for n in needles.split("|")),
        re.compile(regex.encode(), re.IGNORECASE),
        tuple(key.split()),
        follow,
    )


_ERRNO: Final = r"(?P<errno>[A-Za-z][A-Za-z /\-]{3,60})"

PATTERNS: Final = (
    # shared memory: src/misc/shmutils.cc, src/os/linux.cc, src/include/shm.h
    _row(
        "shm_full",
        "fallocate|failed to extend|unable to allocate shared",
        rf"posix_fallocate failed ?: ?{_ERRNO}|posix_fallocate failed|failed to extend (?P<path>\S+) to (?P<bytes>\d+) bytes(?:, error: {_ERRNO.replace('errno', 'errno2')})?|Unable to allocate shared memory",
    ),
    _row(
        "shm_error",
        "shared memory|ncclshmopen|could not map /dev/shm",
        rf"Error while (?P<how>creating|attaching to|[a-z ]+?) shared memory segment (?P<path>\S*) ?\(size (?P<bytes>\d+)\)(?:, error: {_ERRNO})?|shm_open failed to open|failed to create shared memory file|Could not map /dev/shm|ncclShmOpen|failure in mmap of /dev/shm|out of shared memory|insufficient shared memory",
    ),
    _row(
        "shm_error",
        "bus error|no space left on device",
        r"bus error.{0,120}shared memory|no space left on device.{0,160}(?:shm|psm_)|(?:/dev/shm|\bshm\b).{0,200}no space left on device",
    ),
    # interfaces: src/bootstrap.cc, src/misc/socket.cc, src/transport/net_socket.cc
    _row(
        "no_interface",
        "interface found|nccl_oob_net_ifname",
        r"no socket interface found|no usable listening interface found|NET/Socket ?: no interface found|No IP interface found|No interface found in the same subnet as remote address (?P<peer>\S+)|no device found (?:matching|after excluding) .{0,200}NCCL_OOB_NET_IFNAME",
    ),
    _row(
        "address_family",
        "with family|address family",
        r"connecting to address (?P<peer>\S*) ?with family (?P<family>\d+) is neither|Address family not supported",
    ),
    # connections
    _row(
        "connect",
        "connect",
        rf"\b(?:call to )?connect(?: to (?P<peer>[^\s<]+)(?:<(?P<port>\d+)>)?)? (?:failed ?: ?|returned (?:\d+ ?\()?|failed with error ){_ERRNO}|PollConnect to (?P<peer2>[^\s<]+)\S* failed with error {_ERRNO.replace('errno', 'errno2')}",
        "errno errno2 peer peer2",
    ),
    _row(
        "connect_gave_up",
        "exceeded",
        r"(?:StartConnect|PollConnect)\S*: exceeded (?P<what>retries|timeouts) \((?P<n>\d+)\)",
        "what",
    ),
    _row(
        "bind",
        "bind failed|call to listen",
        r"(?:Call to (?P<call>bind|listen) failed|bind failed) ?: ?(?P<errno>[A-Za-z][A-Za-z ]+)",
        "errno",
    ),
    _row("descriptors", "too many open files", r"too many open files"),
    _row(
        "threads",
        "pthread_create|thread creation failed|can't start new thread",
        r"pthread_create failed|thread creation failed|can't start new thread",
    ),
    _row(
        "peer_closed",
        "closed by remote peer|closed by peer|closed by localrank|connection reset|broken pipe|connection aborted|likely closed",
        r"(?:connection )?closed (?:by remote peer|by peer|by localRank|when) ?:?\[?(?P<peer>[^\s<,\]]*)|connection reset by peer|broken pipe|connection aborted|connection was likely closed|Call to (?:recv|send) (?:from|to) (?P<peer2>[^\s<]+)\S* failed",
        "peer",
    ),
    _row(
        "secondary",
        "accept failed|proxy call|clientgetfd|proxy service|service thread|socket recv failed|could not receive type|proxycall",
        r"accept failed|Proxy Call to rank \d+ failed|ClientGetFd call|Failed to execute operation|Could not receive type from localRank|Socket recv failed while polling|Error encountered progressing operation|ProxyCallBlocking\w* call",
    ),
    # verbs: src/misc/ibvwrap.cc, src/transport/net_ib*
    _row(
        "completion",
        "got completion|got cqe with error",
        r"Got completion (?:from peer (?P<peer>[^\s<]+)\S* )?with (?:error |status=)(?:(?P<name>[A-Z_]+)\()?(?P<status>\d+)|Got CQE with error",
        "status peer hca",
        1,
    ),
    _row(
        "async_event",
        "async|gid table change|unknown event type",
        r"async (?:error )?event ?: ?(?P<event>.{1,80})|async fatal event(?: on [^:]*)?: (?P<event2>.{1,80})|(?P<event3>GID table change)d?|(?P<event4>unknown event type \(\d+\))",
        "event event2 event3",
    ),
    _row(
        "modify_qp", "ibv_modify_qp", rf"ibv_modify_qp failed(?: with)?(?: error)?(?: (?P<no>\d+))?(?: {_ERRNO})?", "no dev", 3
    ),
    _row("query_gid", "ibv_query_gid", r"ibv_query_gid failed"),
    _row("address_handle", "ibv_create_ah", rf"ibv_create_ah\w*\(?.{{0,200}}failed:? ?{_ERRNO}|Call to ibv_create_ah failed"),
    _row(
        "register",
        "ibv_reg_|ibv_create_cq|ibv_create_qp|ibv_alloc_pd|mlx5dv_reg_dmabuf_mr",
        rf"(?P<call>ibv_reg_mr\w*|ibv_reg_dmabuf_mr|mlx5dv_reg_dmabuf_mr|ibv_create_cq|ibv_create_qp|ibv_alloc_pd)\S* failed(?: with)?(?: error)?(?: \d+)? ?{_ERRNO}?",
        "call errno",
        2,
    ),
    _row(
        "open_device",
        "ibv_open_device|unable to open device",
        r"ibv_open_device failed|Unable to open device (?P<dev>[\w.\-]+)",
        "dev",
    ),
    _row(
        "provider",
        "kernel abi|userspace device-specific driver|load driver",
        r"does not support the kernel ABI|no userspace device-specific driver found for (?P<dev>\S+)|couldn't load driver '(?P<driver>[^']+)'",
        "driver",
    ),
    _row(
        "mixed_link",
        "link_layer|incompatible device|incompatible with the local",
        r"different link_layer|incompatible devices|is incompatible with the local",
    ),
    _row(
        "net_counts",
        "device counts across ranks",
        r"Detected mixed local (?P<what>Net|CollNet) device counts across ranks \(min (?P<min>\d+), max (?P<max>\d+)\)",
    ),
    _row("topo_attribute", "attribute", r"Attribute (?P<attribute>\S+) of node (?P<node>\S+) not found", "attribute node"),
    # network plugins
    _row(
        "ofi_init",
        "net/ofi|ofi plugin|libfabric|efa|fi_getinfo|eligible providers",
        r"Only EFA provider is supported|No eligible providers|aws-ofi-nccl initialization failed|initNet\(\) failed|OFI plugin is not installed|EFA is not enabled|fi_getinfo.{0,80}(?:failed|no data available)|NET/OFI .{0,80}(?:failed to initialize|initialization failed|could not find|endpoint.{0,60}failed|Unable to (?:find|initialize|open)|Couldn't (?:find|open|create|initialize)|OFI NCCL failure)|endpoint creation failed|provider \w+ output empty list",
        follow=1,
    ),
    _row("ofi_any", "net/ofi", r"NET/OFI (?P<what>.{1,200})"),
    _row(
        "ofi_request",
        "completed with error|unresponsive receiver",
        r"Request \S+ completed with error\. RC: (?P<rc>-?\d+)\. Error: (?P<error>.{1,200})|unresponsive receiver",
        "rc",
    ),
    _row(
        "ofi_register",
        "register memory|fi_mr_reg",
        r"(?:could not|unable to|failed to) register memory.{0,200}|fi_mr_reg.{0,80}failed",
    ),
    _row("gdrcopy", "gdrcopy", r"failed to initialize GDRCopy|GDRCOPY failure|gdr_open.{0,40}failed"),
    _row(
        "plugin_load",
        "libnccl-net|libnccom-net|libfabric|libnccl-ofi",
        r"(?!lib(?:nccl-net|nccom-net)[\w.\-]*: cannot open shared object file: No such)(?P<library>lib(?:nccl-net|nccom-net|fabric|nccl-ofi)[\w.\-]*)(?: load failed\.?|:) ?(?P<why>.{0,200}(?:cannot open shared object|undefined symbol|version `|no version information|not found|wrong ELF).{0,80})",
        "library",
    ),
    _row(
        "plugin_old",
        "are not supported|is unsupported",
        r"ncclNetPlugin symbols v\d+ and lower are not supported|External network plugin (?P<library>\S+) is unsupported",
    ),
    _row("net_not_found", "not found.", r"Error: network (?P<name>.{1,60}) not found"),
    _row("net_none", "any net plugin|no transport found", r"Failed to initialize any NET plugin|No transport found"),
    # CUDA, NVLS, fabric
    _row(
        "nvls_bind",
        "nvlink sharp (nvls)",
        r"Failed to bind NVLink SHARP \(NVLS\) Multicast memory(?: of size (?P<bytes>\d+))? ?: CUDA error (?P<code>\d+)(?: '(?P<what>[^']*)'?)?",
        "code",
    ),
    _row("multicast", "multicast support requested", r"Multicast support requested for team but none available"),
    _row("rank_twice", "already checked in", r"rank (?P<rank>\d+) of \d+ ranks has already checked in"),
    _row(
        "cuda",
        "cuda failure|cuda error|cudaerror|error 80|cuda ipc handle|failed to peer with device|failed to open cuda",
        r"failed to (?:open|get|peer with).{0,40}(?:handle|device \d+) ?: ?(?P<code3>\d+) (?P<what4>[a-z][^\n]{3,100})|Cuda error \S+ '(?P<what5>[^']{1,200})'|CUDA error (?P<code4>\d+) at \S+ (?P<what6>.{1,120})|Cuda failure (?:(?P<code>\d+) )?'(?P<what>[^']{1,200})'|CUDA (?:driver )?error: ?(?P<what2>[^\n(]{1,120})|Error (?P<code2>80\d): (?P<what3>.{1,80})",
        "what what2 what3 what4 what5 what6",
    ),
    _row(
        "driver",
        "nvidia driver|cuda driver version|cuda library|nvml|libnvidia-ml|no gpus found|no cuda gpus|forward compatibility",
        r"Found no NVIDIA driver|NVIDIA driver on your system is too old|CUDA Driver version found is \d+\. Minimum|Failed to find CUDA library|nvmlInit\w*\(\) failed: (?P<what>.{1,80})|Driver/library version mismatch|Failed to open libnvidia-ml|no GPUs found|No CUDA GPUs are available|forward compatibility was attempted|CUDA driver version is insufficient",
    ),
    _row(
        "imex",
        "imex|mnnvl",
        r"MNNVL \(cliqueSize \d+\) is available but not (?:working|supported) on this system|Check the IMEX|MNNVL is not supported on this system",
    ),
    _row(
        "fabric_manager",
        "partition|fabric manager|fabricmanager|fabric state|system not yet initialized",
        r"GPUs in the partition need to be reset|cannot find exporter GPU in partition|failed to add multicast team|fabric.?manager.{0,60}(?:not running|inactive|dead|failed to start|is not installed)|system not yet initialized",
    ),
    _row("nvlink_p2p", "nvlink connected gpus", r"P2P is disabled between NVLINK connected GPUs (?P<a>\d+) and (?P<b>\d+)"),
    _row("nvlink_degraded", "fabric health|degraded_bandwidth", r"NVLink fabric health reports \S+|DEGRADED_BANDWIDTH"),
    _row(
        "duplicate_gpu",
        "same gpu|duplicate gpu",
        r"Duplicate GPU detected ?: ?rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<bus>[0-9a-f]+)|Multiple ranks (?:are|detected) using the same GPU",
    ),
    # versions
    _row(
        "version",
        "mismatched nccl|nccl library|too old version of nccl|nccl version mismatch|undefined symbol: nccl|libnccl",
        r"Mismatched NCCL (?:git )?versions? detected ?: ?(?P<detail>.{0,120})|NCCL library (?:version )?is (?:too old|not backwards compatible)|compiled with too old version of NCCL|NCCL version mismatch with remote peer (?P<peer>\S+)|undefined symbol: (?P<symbol>nccl\w+)|libnccl\.so[.\d]*: cannot open shared object|Failed to load NCCL library|failed to load libnccl",
    ),
    _row(
        "garbled",
        "mismatch in|message truncated|wrong type|wrong magic|wrong socket type",
        r"Bootstrap Root : mismatch in (?:rank count|info)|Message truncated : received (?P<got>[\d,]+) bytes instead of (?P<want>[\d,]+)|socketFinalizeAccept.{0,80}wrong (?:type|magic)",
    ),
    _row(
        "sizes_differ",
        "collective mismatch error|message truncated : receiving|incorrect receive info|bytes instead of",
        r"collective mismatch error,? ?local size (?P<a>\d+) remote(?: size)? (?P<b>\d+)|receiving (?P<a2>\d+) bytes instead of (?P<b2>\d+)|posted incorrect receive info",
    ),
    _row(
        "order_differs",
        "mismatched collective|collective mismatch around|mismatch between collectives|collectives differ",
        r"Mismatched collective detected|may be caused by a collective mismatch around rank (?P<near>\d+)|Detected mismatch between collectives|collectives differ",
    ),
    # variables
    _row(
        "variable",
        "invalid value|unrecognized|algorithm/protocol|invalid nccl_comm_id|xml|ignoring nccl_|is greater than the maximum|out of range",
        r"Invalid value (?P<value>\S+) for (?P<name>NCCL_\w+)|Unrecognized (?:element|prefix) token \"?(?P<value2>[^\"]{0,60})|no algorithm/protocol available|Invalid (?P<name2>NCCL_COMM_ID)|Could not open XML (?:topology|graph) file (?P<value3>\S+)|ignoring (?P<name3>NCCL_ALGO)=|(?P<name4>NCCL_SOCKET_NTHREADS|total number of sockets) is greater than the maximum|(?P<name5>NCCL_IB_SUBNET_PREFIX_LEN)=\S+ is out of range",
        "name name2 value2 value3",
    ),
    # torch, Gloo, launchers
    _row(
        "watchdog",
        "watchdog caught|operation timeout",
        r"(?:\[Rank (?P<rank>\d+)\].{0,40})?Watchdog caught collective operation timeout: WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)",
        "rank",
    ),
    _row(
        "store",
        "client socket|tcpstore|diststoreerror|distnetworkerror|failed to connect to|gai error|waiting for clients",
        r"client socket has (?:timed out|failed to connect)|failed to connect to \(|socket has timed out|gai error: (?P<gai>-?\d+)|Timed out after \d+ seconds waiting for clients|connect\(\) timed out",
        follow=1,
    ),
    _row("store_port", "failed to listen|eaddrinuse", r"server socket has failed to listen|EADDRINUSE"),
    _row(
        "gloo_address",
        "unable to find address for|unable to find interface for|ifa != nullptr|unsupported gloo device",
        r"Unable to find address for:? ?(?P<name>\S+)|Unable to find interface for:? ?\[?(?P<name2>[^\]\s]+)|ifa != nullptr|unsupported gloo device",
        "name",
    ),
    _row(
        "gloo_connect",
        "connectfullmesh|gloo/transport",
        r"connectFullMesh failed with (?P<why>.{1,300})|gloo/transport/tcp/\S+\] (?P<why2>.{1,300})",
    ),
    _row("gloo_loopback", "loopback address as fallback", r"Using the loopback address as fallback"),
    _row("gloo_timeout", "waiting", r"Timed out waiting \d+ms for (?:send|recv) operation to complete"),
    _row(
        "barrier",
        "monitoredbarrier",
        r"received errors while waiting for send/recv from rank (?P<peer>\d+)|Ranks? (?P<missing>[\d, ]+) failed to pass monitoredBarrier",
    ),
    _row(
        "no_backend",
        "no backend type associated|doesn't have nccl built in",
        r"No backend type associated with device type (?P<device>\w+)|Distributed package doesn't have NCCL built in",
    ),
    _row(
        "generic",
        "nccl",
        r"nccl(?:UnhandledCuda|System|Internal|InvalidUsage|InvalidArgument|Remote)Error|unhandled (?:cuda|system) error|NCCL error(?: in)?:|remote process exited or there was a network error",
    ),
    # deaths
    _row(
        "died",
        "exit|killed|signal|segmentation|bus error|oom",
        r"srun: error: (?P<host>[\w.\-]+): tasks? (?P<task>[\d,\-]+): (?P<how>Exited with exit code [1-9]\d*|Killed|Segmentation fault|Aborted|Out Of Memory|Bus error)|exited on signal (?!(?:2|15)\b)(?P<signal>\d+)|(?:exitcode|exit code) ?:? ?-(?P<signal2>\d+)|died with <Signals\.(?P<signal3>\w+)|oom.?kill(?:er|ed)? |Killed process (?P<pid>\d+)|(?:^|[\s:])Segmentation fault|Caught signal (?P<signal4>\d+)",
        "task host",
    ),
    _row("elastic", "root cause (first observed", r"Root Cause \(first observed failure\)", follow=7),
    _row("oom", "out of memory|outofmemory", r"(?P<what>CUDA out of memory|OutOfMemoryError|out of memory)"),
    # the node itself, where people paste it: lspci, dmesg, modprobe, ulimit
    _row(
        "acs",
        'acsctl|missing "iommu|iommu=pt',
        r"ACSCtl:\s*(?P<flags>.{0,200}(?:SrcValid\+|ReqRedir\+|CmpltRedir\+|UpstreamFwd\+).{0,100})|(?P<iommu>Missing \"?iommu=pt)",
    ),
    _row("iommu_fault", "io_page_fault|dmar:", r"IO_PAGE_FAULT|DMAR: .{0,80}fault"),
    _row("xid", "xid", r"NVRM: Xid \([^)]*\): (?P<xid>\d+)", "xid"),
    _row(
        "peermem",
        "nvidia_peermem|nvidia-peermem|nv_peer_mem|modeset",
        r"could not insert '?(?:nvidia[_-]peermem|nv_peer_mem)'?|(?:nvidia[_-]peermem|nv_peer_mem)\S* (?:is )?not (?:loaded|found)|modeset ?[=:] ?[0N]\b",
    ),
    _row(
        "memlock",
        "locked memory|memlock|ulimit -l|ulimit -hl",
        r"max locked memory\D{0,40}(?P<limit>\d+)|RLIMIT_MEMLOCK|\bmemlock\b.{0,40}?(?P<limit2>\d+)|ulimit -H?l\D{0,10}(?P<limit3>\d+)",
    ),
    _row("mkey", "create_mkey", r"CREATE_MKEY.{0,120}"),
    _row("wrong_data", "out of bounds values", r"Out of bounds values : (?P<n>[1-9]\d*) FAILED"),
    _row("gdr_off_plugin", "gdr", r"GDR disabled on GDR-supported instance type"),
    _row("diag", "nccl diag", r"NCCL DIAG (?P<text>.*)", "text"),
)


def matching(text: bytes) -> tuple[Pattern, ...]:
    """The rows whose pattern is in this line."""
    low = text.lower()
    return tuple(p for p in PATTERNS if any(n in low for n in p.needles) and p.regex.search(text))


# Details that stand elsewhere in the same message, or in a line after it.
_DETAILS: Final[dict[EventKind, tuple[bytes, ...]]] = {
    "completion": (
        rb"vendor[_ ]err[ =](?P<vendor>\d+)",
        rb"hca (?P<hca>[\w.\-]+)",
        rb"local ?Gids? ?<?(?P<local>[0-9a-fA-F:.]*::?[0-9a-fA-F:.]*)",
        rb"remote ?Gids? ?<?(?P<remote>[0-9a-fA-F:.]*::?[0-9a-fA-F:.]*)",
        rb"\((?P<side>Send|Recv)\)|req_type=(?P<side2>\w+)",
    ),
    "modify_qp": (
        rb"dev (?P<dev>[\w.\-]+)",
        rb"GID index (?P<index>\d+)",
        rb"local GID (?!index)(?P<local>[^\s,'\"]+)",
        rb"remote GID (?P<remote>[^\s,'\"]+)",
        rb"curr(?:ent)? state (?P<state>\w+)",
    ),
    "async_event": (rb"(?P<dev>[\w.\-]+:\d+) (?:[Gg]ot|async|GID|unknown)",),
    "gloo_connect": (rb"remote=\[?(?P<remote>[^\],\s]+)", rb"local=\[?(?P<local>[^\],\s]+)"),
    "gloo_address": (rb"[Uu]nable to find (?:address|interface) for:? ?\[?(?P<name>[^\]\s]+)",),
    "elastic": (rb"\brank +: (?P<rank>\d+)", rb"exitcode +: (?P<code>-?\d+)", rb"\bhost +: (?P<host>\S+)"),
    "register": (rb"(?P<errno>Cannot allocate memory|Bad address|Invalid argument|Operation not permitted)",),
    "store": (rb"(?:connect to|connecting to) \(?\[?(?P<peer>[\w.:\-]+)",),
}
_COMPILED: Final = {kind: tuple(re.compile(r) for r in regexes) for kind, regexes in _DETAILS.items()}


def details(kind: EventKind, text: bytes, match: re.Match[bytes] | None) -> dict[str, str]:
    """All named parts of a message that are there; names that end in a digit are alternatives of the name without it."""
    out: dict[str, str] = {}
    more = (regex.search(text) for regex in _COMPILED.get(kind, ()))
    for m in (match, *more):
        for name, value in m.groupdict().items() if m else ():
            if value:
                out.setdefault(name.rstrip("23456"), value.decode("utf-8", "replace").strip()[:300])
    return out

# ruff: noqa: E501  (a row a line: a pattern that is broken over lines cannot be read or searched for)
"""What can go wrong in NCCL, in its network plugins and in CUDA, as lines: one row a message family.

Wordings and their versions are from NCCL's sources (src/…, tags 2.4 to 2.32), aws-ofi-nccl and libibverbs.  A row says that a
line *is* such a message; what it means for the job is the business of the rules.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import APOSTROPHE, ERRNO, QUOTE, row

PATTERNS: Final = (
    # shared memory: src/misc/shmutils.cc, src/os/linux.cc, src/include/shm.h
    row(
        "shm_full",
        "fallocate|failed to extend|unable to allocate shared",
        rf"posix_fallocate failed ?: ?{ERRNO}|posix_fallocate failed|failed to extend (?P<path>\S+) to (?P<bytes>\d+) bytes(?:, error: {ERRNO.replace('errno', 'errno2')})?|Unable to allocate shared memory",
    ),
    row(
        "shm_error",
        "shared memory|ncclshmopen|could not map /dev/shm|mmap of /dev/shm|shm_open failed",
        rf"Error while (?P<how>creating|attaching to|[a-z ]+?) shared memory segment (?P<path>\S*) ?\(size (?P<bytes>\d+)\)(?:, error: {ERRNO})?|shm_open failed to open|failed to create shared memory file|Could not map /dev/shm|ncclShmOpen|failure in mmap of /dev/shm|out of shared memory|insufficient shared memory",
    ),
    row(
        "shm_error",
        "bus error|no space left on device",
        r"bus error.{0,120}shared memory|no space left on device.{0,160}(?:shm|psm_)|(?:/dev/shm|\bshm\b).{0,200}no space left on device",
    ),
    # interfaces: src/bootstrap.cc, src/misc/socket.cc, src/transport/net_socket.cc
    row(
        "no_interface",
        "interface found|nccl_oob_net_ifname",
        r"no socket interface found|no usable listening interface found|NET/Socket ?: no interface found|No IP interface found|No interface found in the same subnet as remote address (?P<peer>\S+)|no device found (?:matching|after excluding) .{0,200}NCCL_OOB_NET_IFNAME",
    ),
    row(
        "address_family",
        "with family|address family",
        r"connecting to address (?P<peer>\S*) ?with family (?P<family>\d+) is neither|^(?!.*(?:c10d|client socket|server socket)).*Address family not supported",
    ),
    # connections
    row(
        "connect",
        "connect",
        rf"\b(?:call to )?connect(?: to (?P<peer>[^\s<]+)(?:<(?P<port>\d+)>)?)? (?:failed ?: ?|returned (?:\d+ ?\()?|failed with error ){ERRNO}|PollConnect to (?P<peer2>[^\s<]+)\S* failed with error {ERRNO.replace('errno', 'errno2')}|\bconnect\(fd=\d+, dest_addr=(?P<peer3>[\d.]+)[^)]{{0,40}}\) failed: {ERRNO.replace('errno', 'errno3')}|socketPollConnect poll\(\) returned -?\d+, (?P<errno4>no POLLOUT events)",
        "errno peer",
    ),
    row(
        "connect_gave_up",
        "exceeded",
        r"(?:StartConnect|PollConnect)\S*: exceeded (?P<what>retries|timeouts) \((?P<n>\d+)\)",
        "what",
    ),
    row(
        "bind",
        "bind failed|call to listen",
        r"(?:Call to (?P<call>bind|listen) failed|bind failed) ?: ?(?P<errno>[A-Za-z][A-Za-z ]+)",
        "errno",
    ),
    # EINVAL: more places than RLIMIT_NOFILE, poll(2); the proxy's thread ends with it
    row("polled", "poll failed", r"Poll failed(?: with error 22|: Invalid argument)"),
    row("descriptors", "too many open files", r"too many open files"),
    row(
        "threads",
        "pthread_create|thread creation|start new thread|resource temporarily unavailable",
        rf"pthread_create failed|thread creation failed|can{APOSTROPHE}t start new thread|Proxy thread.{{0,60}}Resource temporarily unavailable|libgomp: Thread creation",
    ),
    row(
        "peer_closed",
        "failed on socketimpl|coordination service|stopped sending heart|jax distributed service|closed by |closed when|connection reset|broken pipe|connection aborted|likely closed|call to recv|call to send",
        r"\[c10d\] (?:send|recv)\w+ failed on SocketImpl\(.{0,200}?\bremote=(?P<store>[^)\s]{1,160})\)|(?:connection )?closed (?:by remote peer|by peer|by localRank|when) ?:?\[?(?P<peer>[^\s<,\]]*)|connection reset by peer|broken pipe|connection aborted|connection was likely closed|Call to (?:recv|send) (?:from|to) (?P<peer2>[^\s<]+)\S* failed|Polled (?:an )?error from coordination service|stopped sending heartbeats|JAX distributed service detected fatal errors(?!.{0,300}DEADLINE_EXCEEDED)",
        "peer store",
    ),
    row(
        "secondary",
        "accept failed|proxy call|clientgetfd|proxy service|service thread|socket recv failed|could not receive type|proxycall|proxy thread error|a fatal error|in abort|abort state|saw abortflag|job error|ncclasyncjobcomplete|sets state|was revoked|proxy response|uds:|ncclproxyclient|failed to execute operation|progressing operation|commdestroysync|destroys proxy",
        r"accept failed|communicator encountered a fatal error|Proxy thread error|in abort, error|ncclAsyncJobComplete: job|in commDestroySync, error|commDestroySync: comm|destroys proxy resource error|Comm \S+ is in abort state|Saw abortFlag while waiting|UDS: (?:Sending|Receiving) data over socket|ncclProxyClient\w+ call|\[Service thread\]|\[Proxy Service\](?! (?:Poll|Failed to set CUDA))|error comm \S+ sets state|communicator was revoked|Proxy Call to rank \d+ failed|ClientGetFd call|Failed to execute operation|Could not receive type from localRank|Socket recv failed while polling|Error encountered progressing operation|ProxyCallBlocking\w* call",
    ),
    # verbs: src/misc/ibvwrap.cc, src/transport/net_ib*
    row(
        "completion",
        "got completion|got cqe with error",
        r"Got completion (?:from peer (?P<peer>[^\s<]+)\S* )?with (?:error |status=)(?:(?P<name>[A-Z_]+)\()?(?P<status>\d+)|Got CQE with error",
        "status peer hca",
        1,
    ),
    row(
        "async_event",
        "async|gid table change|unknown event type",
        r"(?:(?P<dev>[\w.\-]+:\d+) [Gg]ot (?:[\w\-]+ )?)?async (?:error )?event ?: ?(?P<event>.{1,80})|async fatal event(?: on (?P<what>\w+)[^:]*)?: (?P<event2>.{1,80})|(?P<event3>GID table change)d?|(?P<event4>unknown event type \(\d+\))",
        "event dev",
    ),
    row("modify_qp", "ibv_modify_qp", rf"ibv_modify_qp failed(?: with)?(?: error)?(?: (?P<no>\d+))?(?: {ERRNO})?", "no dev", 3),
    row(
        "poll_cq",
        "ibv_poll_cq|ibv_post_send|ibv_post_recv",
        r"Call to (?P<call>ibv_poll_cq)\(\) returned -?\d+|(?P<call2>ibv_post_(?:send|recv))\(\) failed with error (?P<errno>[^,]{3,60})",
    ),
    row(
        "adapter_failed",
        "marked as failed|detected 1 failed devices|failed devices out of",
        r"NET/IB: .{0,40}Device \d+ marked as failed|Detected \d+ failed devices out of \d+ devices",
    ),
    row("query_gid", "ibv_query_gid", r"ibv_query_gid failed"),
    row("address_handle", "ibv_create_ah", rf"ibv_create_ah\w*\(?.{{0,200}}failed:? ?{ERRNO}|Call to ibv_create_ah failed"),
    row(
        "register",
        "ibv_reg_|ibv_create_cq|ibv_create_qp|ibv_alloc_pd|mlx5dv_reg_dmabuf_mr",
        rf"(?P<call>ibv_reg_mr\w*|ibv_reg_dmabuf_mr|mlx5dv_reg_dmabuf_mr|ibv_create_cq|ibv_create_qp|ibv_alloc_pd)(?:\([^)]{{0,160}}\))?\S* failed:?(?: with)?(?: error)?(?: \d+)? ?{ERRNO}?",
        "call errno",
        2,
    ),
    row(
        "open_device",
        "ibv_open_device|unable to open device",
        r"ibv_open_device failed|Unable to open device (?P<dev>[\w.\-]+)",
        "dev",
    ),
    row(
        "provider",
        "kernel abi|userspace device-specific driver|load driver",
        r"does not support the kernel ABI|no userspace device-specific driver found for (?P<dev>\S+)|couldn't load driver '(?P<driver>[^']+)'",
        "driver",
    ),
    row(
        "mixed_link",
        "link_layer|incompatible device|incompatible with the local",
        r"different link_layer|incompatible devices|is incompatible with the local",
    ),
    row(
        "net_counts",
        "device counts across ranks",
        r"Detected mixed local (?P<what>Net|CollNet) device counts across ranks \(min (?P<min>\d+), max (?P<max>\d+)\)",
    ),
    row("topo_attribute", "attribute", r"Attribute (?P<attribute>\S+) of node (?P<node>\S+) not found", "attribute node"),
    # network plugins
    row(
        "ofi_init",
        "net/ofi|ofi plugin|libfabric|efa|fi_getinfo|eligible providers|aws-ofi-nccl|initnet() failed|endpoint creation|output empty list",
        r"Only EFA provider is supported|No eligible providers|aws-ofi-nccl initialization failed|initNet\(\) failed|OFI plugin is not installed|EFA is not enabled|fi_getinfo.{0,80}(?:failed|no data available)|NET/OFI .{0,80}(?:failed to initialize(?! GDRCopy)|initialization failed|could not find|endpoint.{0,60}failed|Unable to (?:find|initialize|open)|Couldn't (?:find|open|create|initialize)|OFI NCCL failure)|endpoint creation failed|provider \w+ output empty list",
        follow=1,
    ),
    row("ofi_any", "net/ofi", r"NET/OFI (?P<what>.{1,200})"),
    row(
        "ofi_request",
        "completed with error|unresponsive receiver",
        r"Request \S+ completed with error\. RC: (?P<rc>-?\d+)\. Error: (?P<error>.{1,200}?)(?=\. Completed length|$)|(?P<error2>Operation with NULL context) completed with error|unresponsive receiver",
        "rc",
    ),
    row(
        "ofi_register",
        "register memory|fi_mr_reg",
        r"(?:could not|unable to|failed to) register memory.{0,200}|fi_mr_reg.{0,80}failed",
    ),
    row("gdrcopy", "gdrcopy|gdr_open", r"failed to initialize GDRCopy|GDRCOPY failure|gdr_open.{0,40}failed"),
    row(
        "plugin_load",
        "libnccl-net|libnccom-net|libfabric|libnccl-ofi",
        r"(?!lib(?:nccl-net|nccom-net)[\w.\-]*: cannot open shared object file: No such)(?P<library>lib(?:nccl-net|nccom-net|fabric|nccl-ofi)[\w.\-]*)(?: load failed\.?|:) ?(?P<why>.{0,200}(?:cannot open shared object|undefined symbol|version `|no version information|not found|wrong ELF).{0,80})",
        "library",
    ),
    row(
        "plugin_old",
        "are not supported|is unsupported",
        r"ncclNetPlugin symbols v\d+ and lower are not supported|External network plugin (?P<library>\S+) is unsupported",
    ),
    row("net_not_found", "error: network ", r"Error: network (?P<name>.{1,60}) not found"),
    row("net_none", "any net plugin|no transport found", r"Failed to initialize any NET plugin|No transport found"),
    # CUDA, NVLS, fabric
    row(
        "nvls_bind",
        "nvlink sharp",
        r"Failed to bind NVLink SHARP(?: \(NVLS\) Multicast memory(?: of size (?P<bytes>\d+))? ?: CUDA error (?P<code>\d+)(?: '(?P<what>[^']*)'?)?)?",
        "code",
        follow=2,
    ),
    row("multicast", "multicast support requested", r"Multicast support requested for team but none available"),
    row("rank_twice", "already checked in", r"rank (?P<rank>\d+) of \d+ ranks has already checked in"),
    row(
        "cuda",
        "cudaevent|cudastream|cudamem|cudamalloc|cudaset|cudaget|cudadevice|cudalaunch|cudaipc|hipipc|cudahost|cudafree|cuda failure|cuda error|cuda_error_|cuda runtime error|cudaerror|triton error|error 80|failed to open|failed to get|failed to peer with|thcudacheck|hip failure|hip error|cuda driver error|hip driver error",
        # by the driver's name those alone after which the context is lost: of the others programs ask, and go on
        r"\bCUDA_ERROR_(?:ILLEGAL_(?:ADDRESS|INSTRUCTION)|MISALIGNED_ADDRESS|INVALID_(?:ADDRESS_SPACE|PC)|LAUNCH_FAILED|ASSERT"
        r"|HARDWARE_STACK_ERROR|ECC_UNCORRECTABLE): (?P<what11>[a-z][^\n]{3,120})|"
        # src/transport/p2p.cc, and RCCL's of it
        r"\b(?P<what13>(?:cuda|hip)Ipc(?:Get|Open)MemHandle failed ?: [a-z][^\n]{3,120})|"
        # Horovod throws the name of the call (gpu_context_impl.cc)
        r"\bcuda(?:Event|Stream|Mem|Malloc|Set|Get|Device|Launch|Ipc|Host|Free)\w{0,40} failed: (?P<what12>[a-z][^\n]{3,120})|"
        rf"\bcudaError(?P<name>[A-Z]\w{{3,60}}): (?P<what10>[a-z][^\n]{{3,120}})|failed to (?:open|get|peer with).{{0,40}}(?:handle|device \d+(?:\(=\w+\))?) ?: ?(?P<code3>\d+) (?P<what4>[a-z][^\n]{{3,100}})|Cuda error \S+ '(?P<what5>[^']{{1,200}})'|CUDA error (?P<code4>\d+) at \S+ (?P<what6>.{{1,120}})|CUDA runtime error \((?P<code5>\d+)\) ?: (?P<what8>.{{1,120}}?)(?= at /|$)|THCudaCheck FAIL .{{1,300}} error=(?P<code6>\d+) : (?P<what9>.{{1,120}})|Test (?:CUDA|HIP) failure \S+ {QUOTE}(?P<what7>[^'\"\n]{{1,160}})|(?:Cuda|HIP) failure (?:[\w./\-]{{1,200}}:\d{{1,6}} (?=['\"]))?(?:(?P<code>\d+) )?{QUOTE}(?P<what>[^'\"`\xe2\n]{{1,200}})|(?:(?:CUDA|HIP) (?:driver )?error|CUDA runtime error in .{{1,160}}?\)(?=: [a-z])|Triton Error \[\w+\]): ?(?P<what2>(?:[^\n(]|\(s\)){{1,120}})|Error (?P<code2>80\d): (?P<what3>.{{1,80}})",
        "what",
    ),
    # src/include/alloc.h; the reason is in the WARN before it, which torch's "Last error:" leaves out
    row("cuda_alloc", "failed to cuda", r"Failed to CUDA (?:calloc|malloc|host alloc)(?: async)? (?P<bytes>\d+) bytes"),
    row(
        "driver",
        "nvidia driver|driver/library|cuda driver version|cuda library|nvml|libnvidia-ml|no gpus found|no cuda gpus|forward compatibility",
        r"Found no NVIDIA driver|NVIDIA driver on your system is too old|CUDA Driver version found is \d+\. Minimum|Failed to find CUDA library|nvmlInit\w*\(\) failed: (?P<what>.{1,80})|Driver/library version mismatch|Failed to open libnvidia-ml|no GPUs found|No CUDA GPUs are available|forward compatibility was attempted|CUDA driver version is insufficient",
    ),
    row(
        "imex",
        "imex|mnnvl",
        r"MNNVL \(cliqueSize \d+\) is available but not (?:working|supported) on this system|Check the IMEX|MNNVL is not supported on this system",
    ),
    row(
        "fabric_manager",
        "partition|fabric manager|fabricmanager|fabric-manager|multicast team|system not yet initialized",
        r"GPUs in the partition need to be reset|cannot find exporter GPU in partition|failed to add multicast team|fabric[ -]?manager.{0,60}(?:not running|inactive|dead|failed to start|is not installed)|system not yet initialized",
    ),
    row("nvlink_p2p", "nvlink connected gpus", r"P2P is disabled between NVLINK connected GPUs (?P<a>\d+) and (?P<b>\d+)"),
    row("nvlink_degraded", "fabric health|degraded_bandwidth", r"NVLink fabric health reports \S+|DEGRADED_BANDWIDTH"),
    row(
        "duplicate_gpu",
        "same gpu|duplicate gpu",
        r"Duplicate GPU detected ?: ?rank (?P<a>\d+) and rank (?P<b>\d+) both on CUDA device (?P<bus>[0-9a-f]+)|Multiple ranks (?:are|detected) using the same GPU",
    ),
    # versions
    row(
        "version",
        "mismatched nccl|nccl library|too old version of nccl|nccl version mismatch|undefined symbol: nccl|libnccl|load nccl library",
        r"Mismatched NCCL (?:git )?versions? detected ?: ?(?P<detail>.{0,120})|NCCL library (?:version )?is (?:too old|not backwards compatible)|compiled with too old version of NCCL|NCCL version mismatch with remote peer (?P<peer>\S+)|undefined symbol: (?P<symbol>nccl\w+)|libnccl\.so[.\d]*: cannot open shared object|(?:Failed|Unable) to load NCCL library|failed to load libnccl",
    ),
    row(
        "garbled",
        "mismatch in|message truncated|wrong type|wrong magic|wrong socket type",
        r"Bootstrap Root : mismatch in (?:rank count|info)|Message truncated : received (?P<got>[\d,]+) bytes instead of (?P<want>[\d,]+)|(?:socketFinalizeAccept.{0,80}wrong type|wrong socket type.{0,60}\(peer) (?P<type>\d) != (?:expected )?(?P<own>\d)|mismatch in magic",
        "type own",
    ),
    # NCCL closes such a connection and accepts again: src/misc/socket.cc, socketFinalizeAccept
    row("stranger", "wrong magic", r"wrong magic (?P<got>[0-9a-f]{1,16}) != (?P<want>[0-9a-f]{1,16})", "got"),
    row(
        "sizes_differ",
        "collective mismatch error|message truncated : receiving|incorrect receive info|bytes instead of",
        r"collective mismatch error,? ?local size (?P<a>\d+) remote(?: size)? (?P<b>\d+)|receiving (?P<a2>\d+) bytes instead of (?P<b2>\d+)|posted incorrect receive info",
    ),
    # variables
    row(
        "variable",
        "invalid value|unrecognized|algorithm/protocol|invalid nccl_comm_id|xml|ignoring nccl_|is greater than the maximum|out of range|expected, but not set",
        r"Invalid value (?P<value>\S+) for (?P<name>NCCL_\w+)|Unrecognized (?:element|prefix) token \"?(?P<value2>[^\"]{0,60})|no algorithm/protocol available|Invalid (?P<name2>NCCL_COMM_ID)|Could not open XML (?:topology|graph) file (?P<value3>\S+)|ignoring (?P<name3>NCCL_ALGO)=|(?P<name4>NCCL_SOCKET_NTHREADS|total number of sockets) is greater than the maximum|(?P<name5>NCCL_IB_SUBNET_PREFIX_LEN)=\S+ is out of range|environment variable (?P<name6>\w+) expected, but not set",
        "name value",
    ),
    # the way of an error up through NCCL's functions, an INFO line each
    row("trail", " -> ", r"^\S{1,100}\.(?:cc|cu|h|cpp):\d{1,6} (?:\(\w{1,100}\) )?-> (?P<code>[1-9])\b", "code"),
)

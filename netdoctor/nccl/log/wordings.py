"""What others' programs write in a message beside its kind: words in one place, asked for by name.

A row of `patterns` says what a line is; a wording tells apart lines of one kind.  Sources: NCCL (src/…), torch's c10d, Gloo,
aws-ofi-nccl, libibverbs (ibv_event_type_str), Linux and glibc (strerror), as in `patterns`.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cached_property


class Wording(Enum):
    """Each value is a regular expression; capitals do not count where it does not say so."""

    NO_SPACE = "no space"  # ENOSPC
    OUT_OF_MEMORY = "oom|out of memory|MEMLIMIT|killed: v?mem|low on memory|exceeded (?:job |step )?memory limit"
    # Linux mm/oom_kill.c, and schedulers that report it
    OOM_KILLER = "oom|Killed process|MEMLIMIT|killed: v?mem|running low on memory|exceeded (?:job |step )?memory limit"
    NOT_INSERTED = "could not insert"  # modprobe
    OF_A_POD = r"\bpods?[ /]|kubelet|OOMKilled|Evicted|NodeNotReady|CrashLoopBackOff|ImagePull"
    # Ray lists what it might have been: src/ray/core_worker, worker_pool.cc
    MIGHT_HAVE_BEEN = r"\b(?:some|potential|possible|common|likely) (?:\w+ )?(?:root )?causes?\b"
    MEMORY_GROUP = "memory cgroup|oom_kill event|OOMKilled"  # Linux mm/memcontrol.c, slurmstepd, kubelet
    STORAGE = (
        "no space left on device|disk quota exceeded|stale file handle|read-only file system"  # ENOSPC, EDQUOT, ESTALE, EROFS
    )
    ABORTED = "(?-i:Aborted)"  # strsignal(SIGABRT), as a shell or srun reports it
    CODE_OF_SIGKILL = r"\b137$"  # 128 + SIGKILL, as shells count it
    EXIT_OF_ABORT = "134"  # 128 + SIGABRT
    ABORTED_ITSELF = r"rank (?P<rank>\d{1,7}) nranks (?P<n>\d{1,5}) .{0,80}Abort COMPLETE"  # src/init.cc
    REMOTE = "remote"  # ncclRemoteError, and its text
    LAST_ERROR = r"Last error:\s*(?P<word>\S.{0,160})"  # torch's NCCLUtils.cpp, getNcclErrorDetailStr
    # Python
    ECHO_EXCEPTION = (
        r"BrokenPipe|Connection\w*Error|EOFError|SystemExit|ChildFailed|CalledProcess|ChildProcess|ProcessRaised|ProcessExited"
        r"|Rendezvous|ObjectLost|OwnerDied|LocalRayletDied|ActorUnavailable"
        r"|DistBackend|DistStore|DistNetwork|DistError|RayTaskError|RayActorError|ActorDied|EngineDead|BrokenProcessPool|Timeout"
    )
    # Lib/traceback.py names the class with its module, which nobody writes who tells of an exception
    LAST_OF_A_TRACEBACK = (
        r"^(?:\[(?:rank|default)\d+\]: ?|\(\w+ pid=[^)]*\) ?| *\d{1,7}: )*torch\.(?:cuda\.)?OutOfMemoryError: "
    )
    # whose exceptions torch's watchdog throws on: c10's, and up to 1.12 std::runtime_error (ProcessGroupNCCL.cpp)
    THROWN_BY_OTHERS = r"an instance of '(?:gloo::|std::(?!runtime_error))"
    # of who asks a server, which is none of the ranks
    OF_A_CLIENT = r"^(?:requests|urllib3?|httpx|httpcore|aiohttp|huggingface_hub|openai|botocore|redis|pymongo)\."
    # a class's name by custom, and c10's own (c10/util/Exception.h, TORCH_INTERNAL_ASSERT)
    NAMES_AN_EXCEPTION = r"INTERNAL ASSERT FAILED at |(?-i:\b[A-Z]\w{0,60}(?:Error|Exception)\b\W)"
    ASSERTED_BY_C10 = r"^INTERNAL ASSERT FAILED at "
    TRACEBACK = r"Traceback \(most recent call last\)"
    # behind a mark, a time or a logger's name
    CALLED_AN_ERROR = r"^(?:.{0,80}?[\])>:\-|\d] ?)?(?-i:(?:ERROR|FATAL|CRITICAL)\b|[Ee]rror:(?!:))"
    # of c10's loggers, of Gloo, oneCCL and NCCL, and of exceptions about a peer: ranks say so of each other when they leave
    OF_A_RANK = (
        r"\.(?:cpp|hpp|cc):\d+|CCL_ERROR|Abort COMPLETE|INTERNAL ASSERT|BrokenPipe|Connection\w*Error|Dist\w*Error|EOFError"
    )
    TERMINATES = "terminate called"  # libstdc++'s std::terminate, which aborts
    # torch (elastic, distributed/launcher), DeepSpeed, Slurm, MPI: of what they started, not of themselves
    OF_WHO_STARTS = (
        r"launch\.py:\d|elastic|closing signal|\b(?:srun|slurmstepd|torchrun|mpirun|mpiexec|prterun): |^\S+ FAILED$"
        r"|the job to be terminated|, thus causing$"
        # torchrun's report (elastic/multiprocessing/errors)
        r"|^(?: *\d{1,7}: )?(?:Failures:$| {2}(?:error_file|traceback) *: )"
    )
    OF_C10 = r"\.cpp:\d+\] "
    COMPLAINT = ": error: "  # argparse, compilers (GNU coding standards, errors)
    # strerror(3), as Python quotes it behind the number (Objects/exceptions.c, OSError)
    ADDRESS_IN_USE = r"\[Errno 98\]|address already in use"
    NO_WAY_OUT = r"\[Errno (?:101|-2|-3|110)\]|network is unreachable|name or service not known|temporary failure in name"
    OF_A_DOWNLOAD = r"\burllib|\brequests\.|https?://|\bhttpx|\bhttpcore|URLError|ClientConnector|huggingface|\bHub\b"
    CONNECTION_REFUSED = r"\[Errno 111\]|connection refused"
    PERMISSION = r"^PermissionError\b|\[Errno (?:1|13|30)\]"
    NO_MODULE = r"^ModuleNotFoundError: No module named '(?P<name>[\w.]{1,100})'"
    NO_KEY = r"^KeyError: '(?P<name>\w{1,100})'"
    NO_SUCH_FILE = r"^FileNotFoundError: .*\[Errno 2\]"
    TERSE = r"^[^:]*(?::\s*(?:\S+(?:\s+\S+){0,2})?\s*)?$"  # three words after the name, which say little by themselves
    SAYS_WHY = r"^SystemExit: (?!-?\d+$)\S"
    # What a launcher raises when one of its processes failed, and where
    OF_A_LAUNCHER = r"ChildFailed|CalledProcess|ProcessRaised|ProcessExited"
    LAUNCHER_FILE = r"/bin/(?:torchrun|accelerate|deepspeed|[\w\-]+-cli)$|torch/distributed/(?:run|launch)"
    OF_THE_SCRIPT = "^CommandNotFoundError: "  # conda, which a job's script calls before it starts a rank
    COMMAND_NOT_FOUND = r"\b(?:command )?not found$"  # bash and dash, which go on after it
    MARK_OF_A_TASK = r"^(?: *\d{1,7}: |\[\d{1,6},\d{1,7}\]<)"  # srun --label, mpirun --tag-output
    STORE = r"\bTCPStore\b"  # torch/csrc/distributed/c10d/TCPStore.cpp
    NOTICED = "noticed that process rank"  # Open MPI, help-orterun.txt
    RENDEZVOUS_VARIABLE = "environment variable .{0,30}expected, but not set"  # torch/distributed/rendezvous.py
    EVICTED = "Evicted|low on resource|node had condition|exceeds the (?:total )?limit"  # kubelet, pkg/kubelet/eviction
    MEMORY = "memory"
    OWN_LIMIT = "exceeds the (?:total )?limit"  # the pod's, pkg/kubelet/eviction
    DEADLINE = r"deadline[ _]exceeded"  # gRPC's status code
    NOT_COMPILED = "not compiled with CUDA"  # torch/cuda/__init__.py
    NO_GPU_HERE = "no cuda gpus are available|no gpus found"
    OWN_PROXY = r"operation=(?:Connect|Setup|Init|SharedInit|Register)\b|Socket recv failed while polling"  # src/proxy.cc
    # vLLM's front, and Gloo: what a pair of processes says is of the other one
    # of whoever started a process, and looks now and then whether it is there
    WATCHES = (
        r"\bprocess(?:es)?\b.{0,40}\b(?:exit(?:ed|s)?|terminated|died|ended|failed|crashed)\b.{0,12}\b(?:return|exit|with|status)"
        r"? ?(?:code|status)\b.{0,4}-?[1-9]"
    )
    CAUSE_ELSEWHERE = (
        # an exception about a child that is gone: Hugging Face's datasets, concurrent.futures, torch's DataLoader and joblib
        r"\b(?:(?:sub)?process\w*|workers?)\b.{0,80}\b(?:(?:abruptly|unexpectedly) (?:died|terminated|exited)"
        r"|(?:died|terminated|exited|crashed) (?:abruptly|unexpectedly))"
        r"|see root cause above|see stack trace \(?(?:above|for root cause)|check the logs for the root cause"
        r"|gloo/transport/tcp/pair\.cc"
    )
    NO_GROUP = "process group has not been initialized"  # torch/distributed/distributed_c10d.py
    TORCH_FILE = r"torch/(?:distributed|utils|nn|autograd)/"
    # src/misc/argcheck.cc; torch's words
    REFUSED_ARGUMENT = r"invalid (?:argument|usage), NCCL|ncclInvalid(?:Argument|Usage)|NCCL Error \d+: invalid"
    TOO_OLD = "driver on your system is too old"  # torch/csrc/cuda, c10::cuda::device_count
    DIVIDES = "divisible|valid GPU counts|micro_batch_per_gpu"  # Megatron, DeepSpeed
    OF_A_DEVICE = "device"  # a GPU's number, or how many there are
    ENDS_ITSELF = "received sigquit from a child"  # SGLang
    NO_CONTEXT = "invalid device context"  # CUDA_ERROR_INVALID_CONTEXT: no context is current in this thread
    CRASH = "segfault|segmentation fault|abort|bus error|illegal instruction|floating point|general protection"
    # errors after which the process must end, by CUDA's runtime (driver_types.h): cudaErrorAssert and its like
    CONTEXT_LOST = (
        r"device-side assert triggered|illegal memory access|unspecified launch failure|illegal instruction was encountered"
        r"|misaligned address|hardware stack error|invalid program counter|CUDA error: invalid address space"
    )
    # CUDA and NVLS
    SHUTTING_DOWN = "driver shutting down"
    NVML = "nvml"
    # src/misc/nvmlwrap.cc, src/misc/cudawrap.cc: dlopen of what comes with the driver
    DRIVERS_LIBRARY = r"(?:failed to open|failed to find CUDA library(?: in)?) (?P<library>lib(?:nvidia-ml|cuda)\.so[.\d]*)"
    MISMATCH = "mismatch"  # of driver and library: NVML_ERROR_LIB_RM_VERSION_MISMATCH
    NOT_READY = "system not yet initialized"  # cudaErrorSystemNotReady
    WITHOUT_NVLS = "proceeding without nvls"  # src/transport/nvls.cc
    NVLS_SOURCE = r"nvls\.cc"
    # network plugins
    BY_PID = "received by pid"  # torch's elastic agent: a line a process
    NO_LIBRARY = "to load nccl library|failed to load libnccl|cannot open shared object"
    NO_NET_AT_ALL = "initialize any"  # src/plugin/net.cc
    # an object of libfabric on a device that fi_getinfo has found: aws-ofi-nccl src/nccl_ofi_sendrecv.c
    OPENED_ON_DEVICE = r"Couldn't (?:open|create) |endpoint creation failed"
    EFA_OR_PROVIDER = "efa|provider|no data available"  # -FI_ENODATA of fi_getinfo: libfabric found no device
    PEER_UNRESPONSIVE = "unresponsive|unreachable|handshake|host is down|timed? ?out"
    NOT_ALLOCATED = "cannot allocate|-12"  # ENOMEM
    # verbs
    NOT_REGISTRABLE = "bad address|invalid argument|not permitted"  # EFAULT, EINVAL, EPERM
    NO_MORE = "temporarily unavailable"  # EAGAIN
    NO_DATA = "no data"  # ENODATA
    INVALID_ARGUMENT = "invalid argument"  # EINVAL
    PORT_DOWN = "port err|port down|port_err|link down"
    PORT_UP = "port active|port_active"  # IBV_EVENT_PORT_ACTIVE
    CATASTROPHIC = "catastrophic"
    WORK_QUEUE = "work queue"
    DEVICE_FATAL = "device fatal|health compromised|firmware internal error|recovery flow aborted"
    GID_CHANGE = "gid|unknown event type"
    QUEUE_PAIR_BROKE = "access|work queue|fatal"
    KERNEL_ABI = "abi"
    MISMATCH_IGNORED = "ignoring"  # src/init.cc, NCCL_IGNORE_NET_MISMATCH
    ABSENT = "no such file"  # ENOENT
    SHORT_OF_SHM = "(?:out of|insufficient) shared memory"  # torch/utils/data/_utils/signal_handling.py
    ITS_NODE_DIED = r"the actor (?:is dead|died) because its node has died"  # Ray's src/ray/gcs, GenNodeDiedCause
    # src/misc/socket.cc, of the caller's own descriptor: EBADF, EINVAL, ENOTSOCK
    OWN_SOCKET = "socketTryAccept: Accept failed:? (?P<why>Bad file descriptor|Invalid argument|Socket operation on non-socket)"
    FAILED_CALL = r"\b(?P<call>ncclComm\w+|ncclGroupEnd)\("
    RENDEZVOUS_LATE = "RendezvousTimeoutError"  # torch/distributed/elastic/rendezvous
    # sockets
    DNS_SILENT = "temporary failure|errno -3|gai error: -3"  # EAI_AGAIN
    IN_USE = "in use"  # EADDRINUSE
    NOT_ASSIGNABLE = "assign|no such device"  # EADDRNOTAVAIL, ENODEV
    REFUSED = "refused"  # ECONNREFUSED
    RETRIES_SPENT = r"connect\b.{0,80} returned .{0,40}, exceeded error retry count"  # src/misc/socket.cc, ncclRemoteError
    PEER_GONE = "reset by peer|closed by peer|broken pipe"  # ECONNRESET, Gloo, EPIPE
    LOOPBACK = r"127\.|::1"
    DROPPED = "timed out|no route"  # ETIMEDOUT, EHOSTUNREACH
    # variables
    XML_FILE = "xml"
    INVALID_VALUE = "invalid value"  # src/misc/param.cc
    CLIPPED = "greater than the maximum|ignoring nccl_algo"  # src/transport/net_socket.cc
    NOTHING_LEFT = "algorithm/protocol|unrecognized"  # src/enqueue.cc, src/graph/tuning.cc

    @cached_property
    def _regex(self) -> re.Pattern[str]:  # when it is asked for: a look at a node imports these and reads no log
        return re.compile(self.value, re.IGNORECASE)

    def before(self, text: str) -> str:
        """A message up to these words."""
        found = self._regex.search(text)
        return text if found is None else text[: found.start()]

    def found(self, text: str) -> re.Match[str] | None:
        """Where these words are in a message, with what they name."""
        return self._regex.search(text)

    def within(self, text: str) -> bool:
        """Whether these words are in a message, or in what a pattern caught of it."""
        return self._regex.search(text) is not None

# ruff: noqa: E501  (a row a line)
"""What stands around a job and fails it: names, hubs of models and data, file systems, GPUs that were asked for, sanitizers.

Sources: glibc (gai_strerror), musl and Rust's standard library, gRPC's resolvers; requests' raise_for_status, huggingface_hub's
errors, transformers and datasets; Linux (strerror), torch's writer of zip files, safetensors; Ray's autoscaler and placement groups,
vLLM's executor on Ray, verl; NCCL's and NVML's words of a GPU that is not found; compute-sanitizer; uvicorn, SGLang and Triton; the
examples that Open MPI brings along; the agents of torchrun, DeepSpeed and DLRover.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, Pattern, row

_NAME: Final = r"[\w][\w.\-]{0,252}"
# A bar of tqdm's that is full: its last cell stands before the mark, which no other bar has.  Not one of an epoch among others.
_BAR: Final = Pattern(
    "finished",
    (b"#|", b"\xe2\x96\x88|"),
    r"(?P<left>^(?:\(\w+ pid=[^)]*\) ?|\[rank\d+\]: ?)?(?:(?:(?:Train\w*|Step|Iter\w*|Generat\w*|Infer\w*)\b(?:(?!epoch)[^|]){0,40}|Epochs?|Epoch (?P<epoch>\d+)/(?P=epoch)\b[^|]{0,40}):?)? *(?P<bar>100%)\|[^|]{0,200}(?:#|\xe2\x96\x88)\| ?(?P<all>\d+)/(?P=all) \[)",
    ("left", "bar"),
)
PATTERNS: Final = (
    row(
        "unresolved",
        "gaierror|gai error|name or service not known|name resolution|nodename nor servname|no address associated|could not resolve host|dns resolution failed|failed to lookup address|no such host|failed to resolve|unknownhostexception|could not translate host name|temporary failure in name|name does not resolve|getaddrinfo|can't resolve",
        rf"^(?!.*(?:ssh: Could not|cannot be retrieved\. err=)).*?(?:addresses of \(\[?(?P<host>{_NAME}(?:\[[\d,\-]{{1,80}}\])?).{{0,40}}gai error|Could not resolve host(?:name)?:? [`'\"]?(?P<host2>{_NAME})|DNS resolution failed for [`'\"]?(?P<host3>{_NAME})|lookup (?P<host4>{_NAME})(?: on \S+)?: no such host|failed to resolve (?:host(?:name)? [`'\"]?|[`'\"])(?P<host5>{_NAME})|could not translate host name [`'\"](?P<host6>{_NAME})|UnknownHostException: (?P<host7>{_NAME})|nslookup: can't resolve '(?P<host8>{_NAME})'|socket\.gaierror|Name or service not known|Temporary failure in name resolution|nodename nor servname provided|No address associated with hostname|failed to lookup address information|Name does not resolve|getaddrinfo(?:\(\))? failed)",
        "host",
    ),
    # requests: "%s Client Error: %s for url: %s"; huggingface_hub and transformers after it
    row(
        "service",
        "client error|server error|gatedrepo|gated repo|repositorynotfound|entrynotfound|localentrynotfound|revisionnotfound|hfhubhttperror|valid model identifier|couldn't connect to|offlinemodeisenabled|invalid username or password|invalid user token|too many requests|is not a valid repo|datasetnotfound|accessdenied|invalidaccesskeyid|expiredtoken|nocredentials|nosuchkey|requesttimetooskewed|token is required|access to model|http error|slowdown|nosuchbucket|unable to locate credentials",
        r"(?P<code>40[0-9]|41[06]|429|50[0-4]) (?:Client|Server) Error|HTTP Error (?P<code2>40[0-9]|429|50[0-4])\b|(?P<gated>GatedRepoError|gated repo|Access to model \S+ is restricted)|(?P<token>Invalid username or password|Invalid user token|token is required|ExpiredToken|InvalidAccessKeyId|NoCredentialsError|Unable to locate credentials|\bAccessDenied\b)|(?P<absent>RepositoryNotFoundError|(?<!Local)EntryNotFoundError|RevisionNotFoundError|DatasetNotFoundError|NoSuchKey\b|NoSuchBucket\b|is not a valid model identifier|is not a local folder and is not a valid model identifier)|(?P<unreached>LocalEntryNotFoundError|OfflineModeIsEnabled|couldn't connect to 'https?://)|(?P<many>\bToo Many Requests\b|\bSlowDown\b)",
        "code gated token absent unreached many",
    ),
    row(
        "storage",
        "errno 28|errno 122|errno 30|errno 116|errno 5]|errno 107|errno 108|errno 121|os error |no space left on device|disk quota exceeded|stale file handle|stale nfs|read-only file system|input/output error|iostream error|failed writing|file write failed|storagefull|transport endpoint|unexpected pos|os { code: |unexpectedly eof|remote i/o error|enospc|edquot",
        r"^(?!.*(?:/dev/shm|/sys/fs/cgroup|torch_\d|psm_|nccl-\w|shared.memory|\bshm\b|NCCL WARN|ptl_tcp|gloo/|\bUCX\b|\.c:\d+ +(?:Fatal|Assertion)|\bib_|ibv_|mlx[45]|libfabric|fi_|MPI_)).*?(?:(?P<full>\[Errno 28\]|No space left on device|StorageFull|os error 28\b|Os \{ code: 28\b|\bENOSPC\b)|(?P<quota>\[Errno 122\]|Disk quota exceeded|os error 122\b|Os \{ code: 122\b|\bEDQUOT\b)|(?P<read_only>\[Errno 30\]|Read-only file system|os error 30\b)|(?P<gone>\[Errno 116\]|Stale file handle|Stale NFS file handle|os error 116\b|\[Errno 10[78]\]|(?:Transport|Cannot send after transport) endpoint)|(?P<broken>\[Errno 5\]|Input/output error(?=[:'\")\s]*/)|(?:/|['\"][\w.~\-]{1,200}['\"]|\b(?:file|read|writ|open|sav|load|copy|director|disk|mount)\w*\b).{0,200}?Input/output error(?=[:'\")\s]*(?: \[repeated \d+x across cluster\])? *$)|os error 5\b|\[Errno 121\]|Remote I/O error)|(?P<write>PytorchStreamWriter failed writing|file write failed|basic_ios::clear: iostream error|inline_container\.cc:\d+\] \. unexpected pos))",
        "full quota read_only gone broken write",
    ),
    # the kernel's word of a disk and of what lies on it: block/blk-core.c (print_req_error), fs/ext4/super.c, fs/xfs/xfs_error.c,
    # drivers/nvme/host
    row(
        "storage",
        "i/o error|error, dev |ext4-fs error|corruption|metadata i/o|controller is down",
        r"(?:\]|kernel:) (?P<broken>(?:(?:blk_update_request: )?(?:critical \w+|I/O) error, dev (?!sr|fd|loop)\w+|Buffer I/O error on dev|EXT4-fs error \(device \w+\)"
        r"|XFS \([\w\-]+\): (?:Corruption|Metadata (?:I/O Error|corruption)|log I/O error)|nvme nvme\d+: controller is down).{0,120})",
        "broken",
    ),
    # GPUs that a cluster does not have, as those say that ask for them
    row(
        "short",
        "total desired gpus|number of required|not enough gpu|but only|has no gpu|but your machine only|exceeds the total number of available gpus|exceeds available|infeasible|number of required gpus|gpu request|more gpus than|ngpus|gpus are available|world size|gpus requested|no available node|cannot be scheduled|insufficient gpu|gpu is required|not enough gpus|insufficient resources|requires at least|current platform",
        r"(?P<said>Total available GPUs [\d.]+ is less than total desired GPUs [\d.]+|number of required \w*GPUs? exceeds the total number of available \w*GPUs?.{0,60}|(?:total )?number of \w*GPUs? requested.{0,40}exceeds (?:the )?available.{0,60}|Placement group .{0,60}(?:is )?infeasible.{0,60}|cannot (?:be )?(?:fulfill|schedule)\w* .{0,40}infeasible.{0,60}|(?:Not enough|Insufficient) GPUs?\b.{0,80}|requested \d+ GPUs? but only \d+.{0,60}|world size \(?\d+\)? is larger than the number of available GPUs.{0,60}|Current node has no GPU available\.?.{0,60}|(?:You (?:requested|specified)|requested) gpu: .{0,80}But your machine only has: .{0,60})",
    ),
    # NVML does not know a GPU that CUDA shows: NVML_ERROR_NOT_FOUND, …_NO_PERMISSION, …_UNKNOWN
    row(
        "nvml",
        "nvmldevicegethandleby|initialize nvml|nvmldevicegetp2pstatus|nvmlerror",
        r"nvmlDeviceGetHandleBy(?P<by>PciBusId|Index|UUID)(?:_v2)?(?:\((?P<gpu>[\da-fA-F:.]*)\))? ?failed ?: (?P<why>Not Found|Insufficient Permissions|Unknown Error|Invalid Argument)|Failed to initialize NVML: (?P<why2>Unknown Error|Insufficient Permissions)|NVMLError_(?P<why3>NotFound|NoPermission|Unknown)\b",
    ),
    # compute-sanitizer, which prefixes each of its lines
    row(
        "kernel_assert",
        "========= ",
        r"========= (?P<what>(?:Invalid|Misaligned) __\w+__ (?:read|write|atomic).{0,80}|(?:Race reported|Uninitialized __\w+__ memory|Barrier error detected|Program hit invalid device function).{0,80})",
    ),
    # a rendezvous of torchrun's that another agent has closed
    row("rendezvous_closed", "rendezvousclosed", r"RendezvousClosedError"),
    # a node that a check between nodes found too slow: DLRover
    row(
        "straggler",
        "straggler|network is breakdown|by network check",
        r"(?:The node|node \S+) is a straggler|(?P<broken>The node network is breakdown|The node is unavailable by network check)|stragglers? (?:are|is|nodes?|rank list)\W{1,4}(?P<host>\d[\d, ]*)",
    ),
    # UCX without its modules for CUDA: it takes a GPU's memory for the host's (src/ucp/core/ucp_context.c)
    row(
        "ucx_no_cuda",
        "cuda_copy|cuda_ipc|gdr_copy",
        r"UCX .{0,120}transports? .{0,20}(?:cuda_copy|cuda_ipc|gdr_copy).{0,60} (?:is|are) not available",
    ),
    # DCGM's health watches and its diagnostics
    row(
        "dcgm",
        "nvlink link|volatile ecc|page retirement|row remap",
        r"(?P<said>NvLink link \d+ is currently down|uncorrectable volatile ECC errors|pending page retirements?|row remap(?:ping)? (?:failure|pending).{0,40})",
    ),
    # a process that a signal ended, in the words of torch's elastic agent and of its C++ handler
    row(
        "died",
        "received by pid|segfault encountered",
        r"Signal (?!(?:2|15) )(?P<signal>\d+) \(SIG\w+\) received by PID|(?P<how>Segfault) encountered",
        "signal how",
    ),
    # LSF's report (bsub -e)
    row("stderr_elsewhere", "read file <", r"Read file <(?P<path>[^>]{1,400})> for stderr output of this job"),
    # srun ends a step (src/srun/libsrun/launch.c)
    row("step_ended", "job step|stepid=", r"srun: (?:\S{1,80}: ){0,3}(?:Terminating (?:job step |StepId=)\d|Job step aborted)"),
    row("unstarted", "unable to confirm allocation", r"Unable to confirm allocation for job \d+: (?P<launch>.{1,100})"),
    # a server that is up
    row(
        "serving",
        "application startup complete|uvicorn running on|fired up and ready|started httpservice|started grpcinferenceservice|webserver: connected",
        r"Application startup complete|Uvicorn running on |The server is fired up and ready to roll|Started (?:HTTPService|GRPCInferenceService) at",
    ),
    # a process or a part of the work that came to its end: DeepSpeed's launcher, smoke tests of collectives
    row(
        "finished",
        "exits successfully|process group destroyed| succeeded| success| passed| ok|:ok|=ok",
        r"(?P<left>(?P<one>Process \d+ exits successfully)|Process group destroyed|\bjob .{0,80} succeeded\b|^(?!.*(?:NCCL (?:INFO|WARN)|\bnot\b|fail|error(?!\W{1,3}\d[\d.]*e-\d)|unsuccess|expect|time[sd]? ?out|\bhang|stuck|lost|abort|mismatch|refused)).{0,80}\b(?:all_?reduce|all_?gather|broadcast|reduce_?scatter|nccl|barrier|distributed|collective\w*|gpu)\b.{0,80}(?: (?:ok|passed|success|successful|successfully|succeeded)|[:=]ok)\b(?! (?:rate|ratio|count|if|when|after)\b))",
        "left",
    ),
    # a program's own last words: MLPerf's log and the script of its submissions, verl's trainer, Megatron's print_datetime, torchvision's references
    row(
        "finished",
        "run_stop|ending timing run|[after training is done]|training time|final validation metrics",
        rf"\brun_stop(?:: |\", ).{{0,200}}\bsuccess\b|{BEGIN}\(?[\"']Final validation metrics: |{BEGIN}ENDING TIMING RUN AT \d|\[after training is done\] datetime: \d|{BEGIN}(?:\w+ )?Training time:? (?:\d+ days?, )?\d+:\d\d:\d\d",
    ),
    # LLaMA-Factory's last line of a prediction, behind its figures (save_predictions of its sft trainer)
    row("finished", "saving prediction results to", r"Saving prediction results to \S{1,1000}\.jsonl\b"),
    # a process that took itself down in good order, which tells nothing of what came before: uvicorn, W&B, SGLang, torch's ProcessGroupNCCL
    row(
        "finished",
        "shutdown complete|find logs at:|watchdog thread terminated normally|shutdown triggered|draining requests and shutting down",
        r"(?P<left>(?P<closed>\bApplication shutdown complete\b|(?P<asked>\] API server: shutdown triggered|\bSIGTERM received\. signum=\S{1,20} frame=.{1,200}Draining requests and shutting down)|watchdog thread terminated normally|\bwandb\b.{0,24}: .{0,12}Find logs at:))",
        "left closed asked",
    ),
    # Python's multiprocessing.resource_tracker, which outlives its program, and cleans up what that left behind
    row("orphaned", "resource_tracker: there appear", r"resource_tracker: There appear to be \d{1,9} leaked \w+ objects"),
    _BAR,
    # one line a rank, of programs that only show that all came: MPI's hello_c.c, mpi4py's, torch's smoke tests
    row(
        "hello",
        "hello|greetings|reporting",
        r"\b(?:hello|greetings|reporting)[ ,!].{0,100}?\b(?:rank|process|processor|task|I am)\W{1,3}(?P<rank>\d{1,6}),?\s*(?:/|out\s+of|of)\s*(?P<n>\d{1,6})\b",
        "rank",
    ),
)

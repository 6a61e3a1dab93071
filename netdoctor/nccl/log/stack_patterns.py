# ruff: noqa: E501  (a row a line)
"""What training frameworks, inference servers, launchers, schedulers and containers print of a job that ends badly.

One row a family, after the words in their sources: torch (c10d's reducer, MapAllocator, multiprocessing.spawn), Gloo's pairs,
DeepSpeed's ZeRO and launcher, Accelerate's operations, Lightning's DDP strategy, the rank monitor of nvidia-resiliency-ext, vLLM's
multiprocess executor and KV cache, SGLang's scheduler and engine, the launcher of text-generation-inference, TensorRT-LLM's
executor, DeepEP, Ray's raylet, Horovod's controller and runner, TensorFlow's collectives, the help texts of Open MPI and PRRTE,
hydra of MPICH and Intel MPI, UCX, libibverbs (ibv_wc_status_str), srun and its MPI plugins, pyxis and enroot, PBS, the kubelet's
events, the training operator, Docker, NVIDIA's driver and device plugin, compute-sanitizer.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, END, ERRNO, QUOTE, row

_DEAD: Final = (
    # a process of the job, as those that started it or talked to it report it
    row(
        "died",
        "worker proc |scheduler is dead|sigquit from a child|failed to start|crashed|shardcannotstart|shardfailed|terminated with the following error",
        r"Worker proc (?P<host>[\w.\-]+) died unexpectedly|Rank (?P<of>\d+) scheduler is dead|Received sigquit from a child process|\bShard (?P<of2>\d+) (?:failed to start|crashed)|Error: Shard(?:CannotStart|Failed)\b|^(?:\[rank\d+\]: ?)?-- Process (?P<of3>\d+) terminated with the following error",
        "host of",
    ),
    row(
        "died",
        "root cause|initialization failed|childfailederror|enginedeaderror|engine process failed|localrayletdied|ownerdied",
        r"Engine core initialization failed|EngineDeadError\b|Engine process failed to start|Initialization failed\. Please see the error messages above|errors\.ChildFailedError\b|LocalRayletDiedError|OwnerDiedError",
    ),
    row(
        "died",
        "tasks have crashed|are unhealthy|current incarnation|cluster check alive|deadlock detected",
        r"tasks have crashed(?:.{0,60}/task:(?P<task>\d+))?|tasks are unhealthy|/task:(?P<task2>\d+)\S* current incarnation doesn.t match|Cluster check alive failed, \S*?task:(?P<task3>\d+) is down|DeadLock detected from rank: (?P<of>\d+)",
        "task of",
        follow=2,
    ),
    row(
        "died",
        "has exited due to process|called mpi_abort|in comm|mpi_errors_are_fatal",
        r"(?:mpirun|mpiexec|prterun|orterun) has exited due to process rank (?P<of>\d+)|called MPI_Abort\(.{0,80}?\) - process (?P<of2>\d+)|Abort\(-?\d+\) on node \d+ \(rank (?P<of3>\d+) in comm|MPI_ERRORS_ARE_FATAL \(processes in this communicator will now abort",
        "of",
    ),
    row(
        "died",
        "memory limit|memory pressure|segfault at|general protection|replica(s) failed|backoff limit|due to task failure",
        r"(?P<how>[Ee]xceeded (?:job |step )?memory limit)|[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure \(OOM\)|\[\d+\]: (?P<how2>segfault) at \w|traps: \S+\[\d+\] (?P<how3>general protection)|Job \S+ is (?:failed|restarting) because \d+ \w+ replica\(s\) failed|reached the specified backoff limit|CANCELLED AT \S+ DUE TO TASK FAILURE",
        "how",
    ),
    # C++'s own word of an exception that nobody caught; those of torch, Gloo and the standard library are watchdogs' and others'
    row(
        "died",
        "terminate called after throwing",
        r"terminate called after throwing an instance of '(?P<how>(?!c10::|std::|gloo::|at::)[\w:]{1,80})'",
        follow=1,
    ),
    row(
        "node_failed",
        "has lost communication with a remote daemon",
        r"(?P<daemon>\b(?:ORTE|PRTE) has lost communication with a remote daemon)",
        follow=4,
    ),
    row(
        "node_failed",
        "requested job terminate",
        r"PBS: job killed: node \d+ \((?P<host>[\w.\-]+)\) requested job terminate",
    ),
    row(
        "peer_closed",
        "got 0 bytes|rendezvousclosed|rendezvousgraceful|has been shut down|actorunavailable",
        r"failed to recv, got 0 bytes|Rendezvous(?:Closed|GracefulExit)Error|Horovod has been shut down|ActorUnavailableError",
    ),
    # Open MPI: help-mpi-btl-tcp.txt, [peer hung up], which names the peer's host some lines below
    row(
        "peer_closed",
        "mpi communication peer process",
        r"MPI communication peer process has unexpectedly disconnected",
        follow=15,
    ),
)
_WAITING: Final = (
    row(
        "stalled",
        "watchdog timeout (|hang detected|heartbeat. waited|get a response from|collective timeout|deepep|health check failure",
        r"(?P<step>\bwatchdog timeout \(self\.|\bHang detected(?:,| on| after)|Server couldn.t get a response from)|(?:\[RankMonitorServer:(?P<missing>\d+)\] )?Did not get (?:initial|subsequent) heartbeat\. Waited|mpi/pmix\S*: .{1,160}collective timeout|DeepEP (?:error: )?(?:CPU recv |dispatch |combine )?timeout|Health Check failure: Failed to initialize",
        "missing",
    ),
    row(
        "torch_echo",
        "watchdog at work sequence id|error set by processgroupnccl",
        r"failure detected by watchdog at work sequence id|NCCL communicator encountered error set by ProcessGroupNCCL",
    ),
    # libfabric's EFA provider, prov/efa/src: what aws-ofi-nccl reports as a request
    row("ofi_request", "unresponsive remote", r"(?P<error>Unresponsive remote)"),
    row(
        "coordinator",
        "running ray instance|timed out during startup|response from front-end",
        r"Could not find any running Ray instance|The current node timed out during startup|Did not receive response from front-end",
    ),
    # nobody among several processes finds a way to the other
    row(
        "no_way",
        "for mpi communications|failed to tcp connect|complete a tcp connection|common task-to-task|novalidaddresses|destination is unreachable|timed out waiting for tasks",
        r"are unable to reach each other for MPI communications|Open MPI failed to TCP connect to a peer|unable to complete a TCP connection|find a set of common task-to-task communication interfaces|NoValidAddressesFound|UCX +ERROR .{0,120}Destination is unreachable|Timed out waiting for tasks to start\. Please check connectivity",
        follow=8,
    ),
)
_CALLS: Final = (
    # ranks that do not hold or do the same
    row(
        "order_differs",
        "disagreement between rank|mismatched |shape mismatches|same model across|appears not to match",
        r"(?P<apart>disagreement between rank0 and rank\d+)|Mismatched .{1,60}: One (?:rank|or more)|(?P<apart2>Cannot apply desired operation due to shape mismatches)|(?P<apart3>expects same model across all ranks.{0,120})|(?P<apart4>appears not to match \w+ of the same param in process)",
    ),
    row(
        "sizes_differ",
        "op.preamble.length",
        r"op\.preamble\.length <= op\.nbytes\. (?P<a>\d+) vs (?P<b>\d+)",
    ),
    row(
        "tensor",
        "scatter/gather must match|total dim 0 size|divide equally|world_size times input|tensor found on device|process group twice",
        r"Tensor list input to scatter/gather must match|Split sizes doesn.t match total dim 0 size|dim 0 does not divide equally across group size|output tensor size must be equal to world_size times input|Tensor found on device \S+ but expected|initialize the default process group twice",
    ),
    row("world_size", "runtime world size", r"Engine world size \((?P<a>[\d *]+)\) != Runtime world size \((?P<b>\d+)\)"),
    # argparse (Lib/argparse.py), and TensorRT-LLM's assertions (cpp/include/tensorrt_llm/common/assert.h)
    row(
        "trouble",
        ": error: |][error] assertion failed",
        rf"{BEGIN}(?P<what>(?:torchrun|[\w.\-]+\.py): error: (?:unrecognized arguments|the following arguments|argument |ambiguous option)).{{0,160}}|(?P<what2>\[TensorRT-LLM\]\[ERROR\] Assertion failed: .{{1,160}})",
        "what",
    ),
)
_GPUS: Final = (
    row(
        "cuda",
        "cudnn error|cublas error|cusolver error|cufft error|cuda unknown error|program hit cuda|dnn library init|invalid number of gpus|rocm error|hsa_status_error",
        rf"(?:cuDNN|cuBLAS|cuSOLVER|cuFFT) error:? ?(?P<what>\w+)|CUDA (?P<what2>unknown error) - this may be due|(?P<what4>DNN library initialization failed)|(?P<what5>Invalid number of GPUs: \d+ requested but only \d+ were found)|ROCm error: (?P<what6>[^\n]{{3,120}})|(?P<what7>HSA_STATUS_ERROR_\w+)|Program hit cuda\w+ \(error (?P<code>\d+)\) due to {QUOTE}(?P<what3>[^\"\xe2]{{1,160}})",
        "what",
    ),
    # too little of a GPU's memory is left for what an inference server keeps there
    row(
        "oom",
        "error in memory profiling|cache blocks|stored in kv cache|available kv cache memory|desired gpu memory utilization|--mem-fraction-static|code out of memory|fill out of memory",
        r"Error in memory profiling\. Initial free memory|(?P<more>No available memory for the cache blocks|maximum number of tokens that can be stored in KV cache|larger than the available KV cache memory|Not enough memory\. Please try to increase --mem-fraction-static)|(?P<less>Free memory on device .{1,80} is less than desired GPU memory utilization)|(?:Decode|Prefill) out of memory",
    ),
    row(
        "driver",
        "nvml init failed|api mismatch",
        r"nvml init failed: (?P<what>\w{1,60})|NVRM: API mismatch: (?P<what2>.{1,80})",
    ),
    row("gpu_lost", "rminitadapter", r"NVRM: (?:GPU (?P<gpu>[\da-fA-F:.]+): )?RmInitAdapter failed"),
    row("xid", "xidcriticalerror", r"XidCriticalError: Xid=(?P<xid>\d+) on Device=(?P<gpu>[^,;\s]+)", "xid gpu"),
    row("xid", "sxid (", r"SXid \(PCI:(?P<gpu>[\da-fA-F:.]+)\): (?P<sxid>\d+), (?:Fatal|FATAL)", "sxid gpu"),
    row("fabric_manager", "nvidia-fabricmanager", r"Failed to start nvidia-fabricmanager"),
)
_MEMORY: Final = (
    row(
        "shm_error",
        "</torch_|to write total of|/proc/",
        rf"unable to (?:write to|resize|open shared memory object|mmap \d+ bytes from|allocate shared memory).{{0,30}}</torch_[^>]{{1,80}}>(?!.{{0,80}}Too many open files)(?: (?:in read-write mode|to the right size): {ERRNO})?|Not enough memory to write total of (?P<bytes>\d+) bytes\. Please check that /dev/shm|open\(file_name=/proc/\d+/fd/\d+ flags=\w+\) failed: {ERRNO.replace('errno', 'errno2')}",
    ),
    row("descriptors", "items of ancdata", r"received 0 items of ancdata"),
)
_RDMA: Final = (
    row(
        "rdma_error",
        "retry counter exceeded|endpoint timeout",
        r"(?P<again>transport|RNR) retry counter exceeded|(?P<again2>Endpoint timeout)' on \w+/(?P<dev>[\w.\-]+:\d+)",
    ),
    row(
        "modify_qp",
        "failed to modify qp|ibv_modify_qp(",
        rf"Failed to modify QP to (?:INIT|RTR|RTS)(?:, check [\w ,]+)?: {ERRNO}|ibv_modify_qp\(\w+\) failed: {ERRNO.replace('errno', 'errno2')}",
        follow=1,
    ),
)
_UNSTARTED: Final = (
    # Open MPI, PRRTE, Intel MPI
    row(
        "unstarted",
        "tried to fork a new process|tried to bind a new process|slurm process starter|failed after launch|prte was unable|specified executable|could not access or execute|could not find an executable|run as root|already filled|ppr for this|processes than cpus|pmi support|_init failed for some|bstrap_proxy",
        rf"(?P<launch>An? (?:ORTE|PRTE) daemon has unexpectedly failed after launch)|(?P<launch2>PRTE was unable to reliably start one or more daemons)|(?P<launch3>unable to find the specified executable file)|(?P<launch4>could not (?:access or execute|find) an executable)|(?P<launch5>mpirun has detected an attempt to run as root)|(?P<slots>All nodes which are allocated for this job are already filled|more processes than the ppr for this topology|binding more processes than cpus on a resource)|(?P<launch6>was not built with SLURM{QUOTE}s PMI support)|(?P<launch7>It looks like \w+_init failed for some reason)|(?P<launch9>(?:PRTE|Open MPI) tried to (?:fork a new process via the|bind a new process, but something went wrong\. +The{END}).{{0,40}})|(?P<launch10>The SLURM process starter for OpenMPI was unable to locate a)|unable to run (?P<launch8>bstrap_proxy) on (?P<host>[\w.\-]+)",
        "host",
        follow=12,
    ),
    # Slurm, pyxis, enroot
    row(
        "unstarted",
        "unable to create step|unable to allocate resources|batch job submission failed|launch failed: |invalid mpi type|mpi plugin for|load pmix library|pyxis: |enroot-",
        r"(?:Batch job submission failed|srun: error: Unable to (?:create step for job \d+|allocate resources)): (?P<launch>.{1,160})|task \d+ launch failed: (?P<launch2>.{1,160})|(?P<launch3>Invalid MPI type '[^']{1,40}'|cannot find mpi plugin for \S+|can not load PMIx library)|(?P<launch4>pyxis: failed to import docker image)|pyxis: +(?P<launch5>(?:\[ERROR\]|nvidia-container-cli:|enroot-\w+:|--container-\S+ |container exited too soon|a previous task terminated).{0,160})|(?:^|[\s>:])(?P<launch6>enroot-\w+: failed .{1,160})",
        "host launch",
    ),
    # ssh and what starts processes over it: 255 is ssh's own failure, ssh(1)
    row(
        "unstarted",
        "reachable via ssh|exit status 255|ssh exited with|ssh was not successful|ssh: connect to host|launcher '",
        r"host=(?P<host>[\w.\-]+) (?P<ssh>was not reachable via ssh)|pdsh@\S+: (?P<host2>[\w.\-]+): (?P<ssh2>ssh exited with exit code 255)|Command '\[?'?ssh (?:-o ?\S{1,80} |-[a-zA-Z] ?\d{0,5} )*(?P<host4>[\w.@\-]+)(?= ).{1,200}(?P<ssh4>returned non-zero exit status 255)|(?P<ssh3>SSH was not successful on hosts)|ssh: connect to host (?P<host3>[\w.\-]+) port \d+: (?P<launch>[A-Z][\w ]{3,60})|(?P<launch2>launcher '\w+' not installed)",
        "host",
    ),
    # Ray, kubelet, gang schedulers
    row(
        "unstarted",
        "cannot be scheduled right now|gang unschedulable|failedmount|failedattachvolume|pod sandbox|failed to pull image|exceeded quota",
        r"(?P<unplaced>(?:cannot be scheduled right now|tasks in gang unschedulable).{0,160})|(?P<waits>Failed(?:Mount|AttachVolume) .{0,200}|Failed to create pod sandbox: .{1,200}|Failed to pull image .{1,200})|is forbidden: (?P<launch>exceeded quota: .{1,160})",
        "host",
    ),
    row(
        "unstarted",
        "response from daemon|unresolvable cdi|failed to start container|error from server (",
        r"Error response from daemon: (?P<launch>.{1,200})|(?P<launch2>unresolvable CDI devices .{1,80})|(?P<launch3>failed to start container .{1,160})|(?<![a-z]: )(?<![\"'`])Error from server \((?!NotFound|AlreadyExists)(?P<launch4>\w{1,40}\): .{1,200})",
    ),
    # kube-scheduler's own log: pkg/scheduler/schedule_one.go, structured by klog
    row(
        "unstarted",
        "unable to schedule pod; no",
        r"(?P<unplaced>\"Unable to schedule pod; no (?P<fit>fit|nodes are registered to the cluster); waiting\") pod=\"(?:[\w.\-]+/)?(?P<pod>[\w.\-]+)\""
        r"(?: err=\"\d+/\d+ +nodes are available: (?P<lacks>.{1,200}?)\.?(?: preemption:|[. ]*\"))?",
        "host pod",
    ),
    row(
        "placed",
        "successfully bound pod",
        r"\"Successfully bound pod to node\" pod=\"(?:[\w.\-]+/)?(?P<pod>[\w.\-]+)\" node=\"(?P<host>[\w.\-]+)",
        "pod",
    ),
    # the kernel's word of a command that an EFA device refused: drivers/infiniband/hw/efa/efa_com.c, efa_com_cmd.c
    row(
        "device_refused",
        "infiniband efa|infiniband rdmap",
        r"infiniband (?P<dev>(?:efa_|rdmap)\w{1,20}): (?P<why>Failed to \w[^\n]{3,120})",
        "dev",
    ),
    # what `ray status` prints of what is in use (format_info_string of its autoscaler)
    row("gpus_free", ".0 gpu", r"(?<![\w./])(?P<used>\d{1,6}\.\d{1,4})/(?P<every>\d{1,6}\.0) GPU\b", "used every"),
    row("placed", "started container", r"\bStarted container \S+"),
)
# A pod that used more than it may: pkg/kubelet/eviction/eviction_manager.go
_ENDED: Final = (
    row(
        "ended",
        "exceeds the total limit|exceeds the limit|longer than specified deadline",
        r"Pod (?P<why>ephemeral local storage) usage exceeds the total limit|Usage of (?P<why2>EmptyDir volume) \S+ exceeds the limit|Job was active longer than specified (?P<why3>deadline)",
        "why",
    ),
)
PATTERNS: Final = (*_DEAD, *_WAITING, *_CALLS, *_GPUS, *_MEMORY, *_RDMA, *_UNSTARTED, *_ENDED)

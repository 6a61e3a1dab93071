# ruff: noqa: E501  (a row a line)
"""What torch, Gloo, launchers, schedulers, Python and the kernel print when a job ends badly: one row a message family.

Sources: torch's c10d (ProcessGroupNCCL.cpp, TCPStore.cpp, socket.cpp) and elastic, Gloo
(gloo/transport/tcp), Slurm (src/slurmd/slurmstepd, src/srun), Kubernetes, Ray, Open MPI and MPICH, Linux.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import APOSTROPHE, BEGIN, END, row

PATTERNS: Final = (
    # torch: ProcessGroupNCCL.cpp, ProcessGroupNCCL's watchdog and heartbeat monitor
    row(
        "watchdog",
        "watchdog caught|operation timeout",
        r"(?:\[?Rank (?P<rank>\d+)\].{0,40})?Watchdog caught collective operati(?:on timeout)?(?:: WorkNCCL\((?:SeqNum=(?P<seq>\d+))?(?:(?:, )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?)?)?",
        "rank",
    ),
    row(
        "heartbeat",
        "watchdog got stuck|heartbeat monitor timed out|could not acquire gil",
        r"(?:Rank (?P<rank>\d+)\].{0,120})?(?:ProcessGroupNCCL'?s watchdog got stuck for (?P<n>\d+) seconds|Heartbeat monitor timed out|Could not acquire GIL within (?P<n2>\d+))",
        "rank",
    ),
    row(
        "torch_echo",
        "watchdog thread terminated|dump signal|data inconsistency|have failed or timed out|terminate called after|timeout at nccl work|detected by watchdog at work|communicator was aborted|terminating the process after|timeout signal|these inconsistencies",
        r"watchdog thread terminated with exception|Received a (?:global )?(?:dump|timeout) signal|Observed flight recorder dump signal|To avoid (?:data inconsistency|these inconsistencies)|Some NCCL operations have failed or timed out|terminate called after throwing(?! an instance of '(?!c10::|std::|gloo::|at::))|Timeout at NCCL work: \d+|detected by watchdog at work: \d+|NCCL communicator was aborted(?: on rank (?P<rank>\d+))?|Terminating the process after attempting to dump debug info",
    ),
    # what a rank's process group had begun and ended when it was told to dump, and where it waits
    row(
        "enqueued",
        "last enqueued",
        r"\bPG (?:ID \d+ PG GUID )?(?P<pg>[^\]]{1,60}?) Rank (?P<rank>\d+)\].{0,400}?last enqueued (?:NCCL )?work: (?P<begun>\d+), last completed (?:NCCL )?work: (?P<ended>\d+)",
        "pg rank",
    ),
    row(
        "stack",
        "stack trace of the failed",
        r"(?:\[rank(?P<rank>\d+)\].{0,120})?Stack trace of the failed collective",
        "rank",
        follow=8,
    ),
    row(
        "order_differs",
        "mismatched collective|collective mismatch around|mismatch between collectives|collectives differ|_mismatch",
        r"Mismatched collective detected|may be caused by a collective mismatch around rank (?P<near>\d+)|Detected mismatch between collectives on ranks\.?(?: Rank (?P<a>\d+) is running collective: CollectiveFingerPrint\((?:SequenceNumber=\d+,? ?)?OpType=(?P<op>\w+).{0,600}?, ?but Rank (?P<b>\d+) is running (?:inconsistent )?collective: CollectiveFingerPrint\((?:SequenceNumber=\d+,? ?)?OpType=(?P<other>\w+))?|collectives differ|Error type: (?:COLLECTIVE_TYPE|SIZE_OR_SYNTAX|COLLECTIVE_DTYPE)_MISMATCH",
    ),
    # torch's report of a desynchronised job (TraceUtils.h, up to 2.7), and torchfrtrace's
    row(
        "lagging",
        "lagging ranks|collective|missing ranks",
        r"ranks \[(?P<late>[\d, ]+)\] are the lagging ranks|\[(?P<late2>\d+)\] (?:joined but didn't finish|finished collective #\d+.{0,60}but didn't join) collective|missing ranks: \{(?P<late3>[\d, ]+)\}",
        "late",
    ),
    row(
        "store_get",
        "store->get",
        r"retr(?:ie|ei)ving ncclUniqueId from \[(?P<peer>\d+)\].{0,200}store->get\(.{0,60}\) got error: ?(?P<why>.{1,160})",
    ),
    row(
        "store",
        "store based barrier|client socket|failed to connect to|socket has timed out|gai error|waiting for clients|connect() timed out|rendezvoustimeouterror|c10d store has failed|wait timeout after",
        # an agent says of a rendezvous that it has joined that it cannot keep it alive or shut it down: the host of the store
        # went before it (elastic/rendezvous, the dynamic one)
        r"^(?!.*ncclUniqueId)(?!.*\bhas failed to (?:send a keep-alive heartbeat to|shutdown) the rendezvous\b)(?:.*)(?:in store based barrier.{0,160}\(world_size=(?P<world2>\d+), worker_count=(?P<joined2>\d+)|client socket has (?:timed out|failed to connect)(?!.{0,120}errno: 97)|failed to connect to \(|socket has timed out|gai error: (?P<gai>-?\d+)|Timed out after \d+ seconds waiting for clients(?:\. (?P<joined>\d+)/(?P<world>\d+) clients joined)?|connect\(\) timed out|connection to the C10d store has failed|RendezvousTimeoutError|wait timeout after \d+ms, keys: (?P<keys>\S{1,100}))",
        follow=1,
    ),
    row(
        "store_port",
        "failed to listen|eaddrinuse|has failed to bind",
        r"server socket has failed to listen|EADDRINUSE|server socket has failed to bind to \S+ \(errno: (?:98|(?P<refused>1|13) - (?P<why>[\w ]+))",
    ),
    row(
        "world_size",
        "invalid rank|world size|world_size|world-size|worldsize|nranks|rank count from procs|improper usage of",
        r"Invalid rank requested : (?P<rank>\d+)/(?P<n>\d+)|improper usage of ncclCommInitRank|invalid rank \d+, (?:rank )?should be in the interval|world size \d+ is not (?:equal|divisible)|world[ _-]?size \(\d+\) is (?:less|not)|mismatch in rank count from procs (?P<a>\d+) : (?P<b>\d+)|mismatch in info from procs, nranks (?!(?P<same>\d+) vs (?P=same),)(?P<a2>\d+) vs (?P<b2>\d+)",
    ),
    row(
        "tensor",
        "tensor|no backend type|scalar type|is not a valid pointer|argument is null|invalid root|invalid type|invalid reduction|user-created ncclredop|config |ncclconfig_t|already been destroyed|before the previous operation|not in a group|on device|unsupported data type|device count|must be initialized via|process group has not been initialized",
        r"Tensors must be (?:contiguous|CUDA and dense|non-overlapping)|All tensor operands to \w+ must have the same|Invalid usage of tensors with different|Unsupported data type for NCCL|Invalid scalar type|Expected all tensors to be on the same device|\w+ : \w+ (?:\S+ is not a valid pointer|argument is NULL|allocated on device \d+ mismatchs with NCCL device \d+)|\w+ : invalid (?:root|type|reduction operation) \d+|Data type supplied to user-created ncclRedOp_t|Invalid config .{1,40}attribute value|ncclConfig_t argument not initialized|comm \S+ has already been destroyed|Attempt to use communicator before the previous operation|ncclGroupEnd: not in a group call|Invalid device count requested|invalid device count \(\d+\)|must be initialized via NCCL_\w+_INITIALIZER|Default process group has not been initialized",
    ),
    # torch/csrc/distributed/c10d/reducer.cpp: a parameter whose gradient did not come, or came twice
    row(
        "reducer",
        "finished reduction in the prior|ready only once|did not receive grad",
        r"Expected to have finished reduction in the prior iteration|(?P<twice>Expected to mark a variable ready only once)|Parameter(?: indice)?s which did not receive grad for rank (?P<rank>\d+): (?P<which>.{1,200})",
        "twice rank",
    ),
    # from gloo/transport/tcp
    row(
        "gloo_address",
        "unable to find address for|unable to find interface for|ifa != nullptr|unsupported gloo device",
        r"Unable to find address for:? ?(?P<name>\S+)|Unable to find interface for:? ?\[?(?P<name2>[^\]\s]+)|ifa != nullptr|unsupported gloo device",
        "name",
    ),
    row(
        "gloo_connect",
        "connectfullmesh|gloo/transport",
        r"gloo/transport/tcp/\S+\] (?P<buffer>(?:writev|[Rr]ead)\w*\b.{0,120}: Bad address\b)|connectFullMesh failed (?:with )?(?P<why>.{1,300})|gloo/transport/tcp/\S+\] (?!Timed out waiting|op\.preamble)(?P<why2>.{1,300})",
        "buffer",
        follow=1,
    ),
    row(
        "gloo_loopback",
        "loopback address as fallback",
        r"(?:\[rank(?P<rank>\d+)\].{0,200}?)?Using the loopback address as fallback",
        "rank",
    ),
    row("gloo_timeout", "waiting", r"Timed out waiting \d+ms for (?:send|recv) operation to complete"),
    row(
        "barrier",
        "monitoredbarrier|waiting for send/recv from rank|barrier timed out|reached the barrier",
        r"received errors while waiting for send/recv from rank (?P<peer>\d+)|Barrier timed out\. (?:Barrier_id|Id): \S+ |# of tasks that reached the barrier: \d|Ranks? (?P<missing>[\d, ]+) failed to pass monitoredBarrier",
        follow=24,  # XLA lists up to 20 tasks
    ),
    row(
        "no_backend",
        "no backend type associated|have nccl built in|nccl is not available|without nccl",
        rf"No backend type associated with device type (?P<device>\w+)|Distributed package doesn{APOSTROPHE}t have NCCL\S* built in|(?:torch|PyTorch).{{0,40}}(?:compiled|built) without NCCL|NCCL is not available",
    ),
    row(
        "generic",
        "nccl|unhandled cuda error|unhandled system error|remote process exited|report this issue to the",
        r"nccl(?:UnhandledCuda|System|Internal|InvalidUsage|InvalidArgument|Remote)Error|unhandled (?:cuda|system) error|NCCL error(?: in)?:|Test NCCL failure|NCCL Error \d+:|NCCL operation \w.{0,200}? failed: |internal error - please report this issue to the NCCL|NCCL failure \S+:\d+|remote process exited or there was a network error",
        follow=3,
    ),
    # Python's faulthandler, of the thread that a signal ended: the frame in which it stood is on the next line
    row(
        "stood",
        "current thread 0x",
        r"Current thread 0x[0-9a-f]+ .{0,60}\(most recent call first\):",
        follow=1,
    ),
    # the stack of native code of a process that a signal ended: UCX (ucs/debug/debug.c), Open MPI (opal/util/stacktrace.c)
    row(
        "stood",
        "==== backtrace (tid|*** process received signal",
        r"==== backtrace \(tid: *(?P<tid>\d+)\) ====|\*\*\* Process received signal \*\*\*",
        follow=14,
    ),
    # the same of a thread that nothing ended: its dump after a time (faulthandler.dump_traceback_later), or on a signal
    row(
        "stands",
        "thread 0x",
        r"(?<!Current )\bThread 0x(?P<thread>[0-9a-f]+) .{0,60}\(most recent call first\):",
        "thread",
        follow=1,
    ),
    # how processes die: torch elastic, Slurm, MPI, Ray, Kubernetes, shells
    row(
        "died",
        "heartbeat timeout|exit|killed|signal|segmentation|bus error|oom|abort|core dumped|died|out of memory|return code|term_|double free|free():|malloc():|corrupted size|stack smashing|terminate called|libc++abi|assertion `|panic|returncode|exception|fatal python error|illegal instruction|trap|system call",
        r"Task \S*task:(?P<task2>\d+) heartbeat timeout|srun: error: (?P<host>[\w.\-]+): tasks? (?P<task>[\d,\-]+): (?P<how>Exited with exit code [1-9]\d*|Killed|Segmentation fault|Aborted|Out Of Memory|Bus error)|exited on signal (?!(?:2|15)\b)(?P<signal>\d+)|(?:exitcode|exit code|returncode) ?[:=]? ?-(?!(?:2|15)\b)(?P<signal2>\d+)(?:\) local_rank: (?P<local_rank>\d+))?|failed \(exitcode: (?P<code>[1-9]\d*)\)(?: local_rank: (?P<local_rank2>\d+))?|exitcode=-(?!SIG(?:TERM|INT)\b)(?P<signal9>SIG\w+)|died with <Signals\.(?P<signal3>\w+)|(?P<host2>[a-z0-9][\w.\-]*) +\d+/\d+ +OOMKilled|\bpods?[ /]\"?(?P<host3>[a-z0-9][\w.\-]*).{0,120}OOMKilled|systemd-oomd\[\d+\]: Killed \S|(?<!SIGKILL by )oom.?kill(?:er|ed)? (?!0\b)|\bOOM.?Killed\b|Killed process (?P<pid>\d+)|Out of memory: Kill|(?:^|[\s:])Segmentation fault(?=\s*(?:[(:]|$))|Caught signal (?P<signal4>\d+)|Signal: .{0,40}\((?P<signal5>4|6|7|8|9|11)\)|Fatal Python error: (?P<how2>.{1,60})|Bus error \(core dumped\)|Aborted \(core dumped\)|\bexit(?:ed with|s with)? (?:exit )?(?:code|status) (?P<code2>13[4-79]|[1-9]\d{0,2})\b|EXIT CODE: (?P<code3>[1-9]\d*)(?!\d*\. The process receives a SIGTERM)|returned a non-zero exit code|exited with non-zero status|MPI_ABORT was invoked on rank (?P<of>\d+)|return code = -(?!(?:1|2|15)\b)(?P<signal6>\d+)|return code = (?P<code4>[1-9]\d*)|rank (?P<of5>\d+) died from signal (?!(?:2|15)\b)(?P<signal8>\d+)|terminated with signal (?!SIG(?:TERM|INT)\b)(?P<signal7>SIG\w+)|line \d+: +\d+ (?P<how4>Killed|Bus error|Segmentation fault|Aborted)\b|TERM_(?P<how5>MEMLIMIT|OWNER)|PBS: job killed: (?P<how6>mem|vmem)|DataLoader worker \(pid\(?s?\)? [\d, ]+\) (?:is killed by signal: (?P<how3>[\w ]+)|exited unexpectedly)|killed due to the node running low on memory|(?P<how7>Floating point exception|Illegal instruction|Trace/breakpoint trap|Bad system call)"
        rf"(?: +\(core dumped\)|{END})|{BEGIN} *(?P<how8>Killed){END}|"
        r"(?P<how9>double free or corruption|free\(\): invalid|malloc\(\): |corrupted size vs|stack smashing detected)|terminate called without an active exception|libc\+\+abi: terminating|\.(?:c|cc|cpp|cu|h|hpp):\d+: .{1,200}: Assertion `|thread '[^']{1,60}' panicked at|"
        rf"{BEGIN}panic: ",
        "task host signal code how",
    ),
    row(
        "actor_died",
        "actordiederror|actor died|rayactorerror|worker died|nodediederror|workercrashederror|actor is dead",
        r"ActorDiedError|RayActorError|The actor (?:died|is dead)|(?P<raylet>worker died or was killed)(?!.*receives a SIGTERM)|NodeDiedError|WorkerCrashedError",
        "raylet",
        follow=9,
    ),
    # Open MPI (orte/mca/plm/base/help-plm-base.txt), OpenSSH, busybox's nslookup, kubelet
    row(
        "unstarted",
        "could not resolve hostname|can't resolve|unable to reliably start|placement group|no available node types|crashloopbackoff|imagepull|host key verification|permission denied (|not enough slots|unexpectedadmissionerror",
        r"ssh: (?P<unresolved>Could not resolve hostname) (?P<host>[\w.\-]+)|nslookup: can't resolve '(?:\(null\)|(?P<host2>[^']{1,253}))'|Init:CrashLoopBackOff|(?:Err|Back-off )ImagePull|ImagePullBackOff|ORTE was unable to reliably start one or more daemons|(?P<unplaced>Failed to create placement group|No available node types can fulfill resource request(?: \{[^}]{0,200}?'node:(?P<address>[^']{1,253})')?)|(?P<unhealthy>UnexpectedAdmissionError)|(?P<ssh>Host key verification failed|Permission denied \((?:publickey|gssapi|password|keyboard)[\w\-,]*\))|(?P<slots>There are not enough slots available)",
        "host unhealthy",
    ),
    row("elastic", "root cause (first observed", r"Root Cause \(first observed failure\)", follow=7, each=True),
    row(
        "oom",
        "out of memory|outofmemory|resource_exhausted|cublas_status_alloc_failed|memoryallocation",
        r"(?P<what>CUDA out of memory|(?:torch\.|cuda\.|HIP )OutOfMemoryError|HIP out of memory|CUDA error: out of memory|CUDA runtime api error \"out of memory\"|RESOURCE_EXHAUSTED: .{0,40}Out of memory|CUBLAS_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation)(?:.{0,30}Tried to allocate (?P<bytes>[\d.]+ \w+))?(?:.{0,30}GPU (?P<gpu>\d+))?",
    ),
    row(
        "node_failed",
        "not responding|node failure|node_fail|nodelost|nodenotready|node is not ready|marked dead|marked as dead",
        r"error: Nodes? (?P<host2>[\w.\-,\[\]]{1,200}) not responding, setting DOWN|DUE TO NODE FAILURE|Node failure on (?P<host>[\w.\-]+)|NODE_FAIL|NodeLost|NodeNotReady|node is not ready|marked (?:as )?dead because.{0,80}heartbeats",
    ),
    # Slurm's src/slurmctld/ping_nodes.c and node_mgr.c: a ping without an answer, which is sent again, and the answer
    row(
        "node_silent",
        "not responding|now responding|containerstatusunknown",
        r"ContainerStatusUnknown|error: Nodes? (?P<host>[\w.\-,\[\]]{1,200}) not responding\b(?!, setting DOWN)|\bNodes? (?P<host2>[\w.\-,\[\]]{1,200}) (?P<over>now responding)\b",
        "host over",
    ),
    row(
        "ended",
        "return code = -|forcing job term|has been revoked|node had condition|probe, will be|crashed with exit code|cancelled at|sigusr|sigint|due to |preempt|evicted|sigterm|death signal|got signal|keyboardinterrupt|force terminated|low on resource|terminated|sighup|signal 15|signal 2|interrupt|imminent|term_runlimit|walltime",
        r"Container \S+ (?P<why16>failed (?:liveness|startup) probe), will be restarted|CANCELLED AT \S+(?! DUE TO TASK FAILURE)(?: DUE TO (?P<why>TIME LIMIT|PREEMPTION|JOB REQUEUE|SIGNAL \w+))?|(?P<why2>DUE TO TIME LIMIT|DUE TO PREEMPTION)|(?:reason|status|phase)\W{1,12}(?P<why3>Evicted)\b|node was (?P<why4>low on resource)(?:: (?P<resource>[\w\-]+))?|The node had condition: \[(?P<why21>\w+)|\b(?P<why22>Preempted) by (?:a )?pod\b|Received (?:Signals\.)?(?P<why5>SIGTERM|SIGINT|SIGHUP|15|2|1) death signal|got signal: (?P<why6>15|2|1)\b|(?P<why7>KeyboardInterrupt)(?!(?:: |\([\"'])terminated)|KeyboardInterrupt(?:: |\([\"'])(?P<why19>terminated)|srun: (?P<why8>Force Terminated)|srun: (?P<why24>forcing job termination)|exited on signal (?P<why9>15|2)\b|tasks? [\d,\-]+: (?P<why10>Terminated)|(?P<why11>imminent node shutdown)|\b(?:received|receiving|caught|got|handling) (?:signal:? |\w+ signal )?(?P<why12>SIGTERM|SIGINT|SIGHUP|SIGUSR[12])\b|(?:(?:received|died from) signal |crashed with exit code -)(?P<why17>15|2)\b|The process receives a (?P<why18>SIGTERM)\b|(?:job|pod|node|instance|machine|VM)\b.{0,60} (?P<why13>preempted)\b|(?P<why14>TERM_RUNLIMIT)|PBS: job killed: (?P<why15>walltime)|salloc: Job allocation \d+ has been (?P<why20>revoked)|return code = -(?P<why23>15|2|1)\b",
        "why",
    ),
    row(
        "finished",
        "worker group|passed|out of bounds values|avg bus|destroy complete|train_runtime|training complete|training finished|training has |finished training|max_epochs|max_steps|destroy_process_group|has not been destroyed before|training done|training is|training over|exit code 0|completed successfully|saving final|run finished",
        r"(?P<right>Out of bounds values : 0 OK)|(?P<whole>worker group (?:successfully finished|finished \(SUCCEEDED\))|^=+ \d+ passed(?:, \d+ (?:skipped|warnings?|deselected|xfailed))* in )|Avg bus bandwidth|train_runtime|(?P<words>(?<!once )(?<!when )(?<!until )(?<!after )training (?:has |is )?(?:completed?|finished|done|over(?! \w))|finished training)|`?max_(?:epochs|steps)(?:=\d+)?`? reached|(?P<left>(?P<destroyed>Destroy COMPLETE)|destroy_process_group\(\) was not called before program exit|process group has NOT been destroyed before|(?P<words2>completed successfully)|(?P<words3>exit code 0\b))",
        "left right whole destroyed words",  # a process, or a part of the work, came to its end: also where another one had died
    ),
    # Paddle's launcher, of all processes of a node (launch.py of its fleet), and GROMACS (src/gromacs/mdrun/runner.cpp)
    row(
        "finished",
        "finished mdrun|local processes completed",
        r"(?P<whole>\blaunch\.py:\d{1,6}\] Local processes completed\.|\bFinished mdrun on (?:rank|node) 0 )",
        "whole",
    ),
    # what ncclras prints, pasted: src/ras/client_support.cc
    row(
        "ras",
        "operation counts|launched up to operation",
        r"Communicator ranks have different (?P<op>\w+) operation counts|(?P<n>\d+) ranks? ha(?:s|ve) launched up to operation \d+",
        follow=6,
    ),
    # Open MPI: opal/mca/btl/tcp/btl_tcp_endpoint.c, help-mpi-btl-tcp.txt
    row(
        "mpi_peer",
        "unexpected process identifier|cannot find a corresponding process",
        r"received unexpected process identifier|cannot find a corresponding process",
    ),
    # how many processes DeepSpeed's launcher starts on a host
    row("spawned", "num_local_procs", r"\bnum_local_procs=(?P<n>\d{1,5})\b(?:, node_rank=(?P<node>\d{1,5}))?", "node"),
    # a fault that a program reports and no family knows
    row(
        "trouble",
        "[e|[f|ccl_error|error|fatal|abort|exception| failed|normally, but|could not override|could not append|assert failed at",
        r"\[[EF](?:\d{3,4})? ?[\d:.]* ?(?P<what>\S+\.(?:cpp|hpp|cc):\d+)\]|\d{4} \d\d:\d\d:\d\d\S* +\d+ \S+\.(?:cpp|cc):\d+\] fatal|Abort COMPLETE|(?:^|\s|>:)(?:(?-i:FATAL)[: ]|(?:fatal|fatal error): )|\[(?:ERROR|FATAL)\] .{0,80}(?:nccl|rank|worker|distributed)|"
        rf"{BEGIN}(?P<what2>(?:\w+\.)*(?:(?-i:[A-Z])\w*Error|(?-i:[A-Z]\w*)?(?-i:Exception))): |"
        r"(?P<what4>INTERNAL ASSERT FAILED at \S{1,200})|CCL_ERROR\||\bSTEP \S+ ON \S+ FAILED|Primary job +terminated normally, but|\*\*\* \[.{1,200}\] Error [1-9]"
        # click (exceptions.py, UsageError) and Hydra (config_loader_impl.py) of the caller's arguments
        rf"|{BEGIN}(?P<what3>(?-i:Error: (?:No such (?:option|command)|Missing (?:option|argument|parameter)|Invalid value for|Got unexpected extra argument)|Could not (?:override|append to config) ')).{{1,160}}"
        rf"|{BEGIN}=+ (?:\d+ \w+, ){{0,6}}\d+ (?:failed|errors?)\b.{{0,80}} in \d",
        "what",
    ),
    # the node itself, where people paste it: lspci, dmesg, modprobe, ulimit
    row(
        "acs",
        'acsctl|missing "iommu|iommu=pt',
        r"ACSCtl:\s*(?P<flags>.{0,200}(?:SrcValid\+|ReqRedir\+|CmpltRedir\+|UpstreamFwd\+).{0,100})|(?P<iommu>Missing \"?iommu=pt)",
    ),
    row("iommu_fault", "io_page_fault|dmar:", r"IO_PAGE_FAULT|DMAR: .{0,80}fault"),
    row(
        "xid",
        "xid",
        r"(?:(?P<host>[\w.\-]+) kernel: .{0,40})?NVRM: Xid \((?:PCI:)?(?P<gpu>[\da-fA-F]+:[\da-fA-F:.]*)?[^)]*\): (?P<xid>\d+)",
        "host gpu xid",
    ),
    row(
        "gpu_lost",
        "gpu is lost|fallen off the bus|device handle for gpu|gpu has fallen",
        r"^.*NVRM: (?:The NVIDIA )?GPU (?P<gpu2>[\da-fA-F]{4,8}:[\da-fA-F:.]+).{0,80}fallen off the bus|^(?!.*NVRM: Xid).*(?:GPU is lost|fallen off the bus)|Unable to determine the device handle for GPU ?(?P<gpu>\S*)",
    ),
    row(
        "kernel_assert",
        "assertion `|memory access fault by gpu",
        r"block: \[[\d,]+\], thread: \[[\d,]+\] Assertion `(?P<what>.{1,160}?)` failed|(?P<what2>Memory access fault by GPU .{1,160})",
    ),
    row(
        "too_old",
        "hiperrornobinaryforgpu|is not compatible with the current pytorch|no kernel image is available|sm_|maxsharedmem",
        r"(?P<shared>exceeds device/fn maxSharedMem)|with CUDA capability (?P<sm>sm_\d+) is not compatible with the current PyTorch|no kernel image is available|(?P<hip>hipErrorNoBinaryForGpu): Unable to find code object",
        follow=24,
    ),
    row(
        "peermem",
        "nvidia_peermem|nvidia-peermem|nv_peer_mem|modeset",
        r"could not insert '?(?:nvidia[_-]peermem|nv_peer_mem)'?|(?:nvidia[_-]peermem|nv_peer_mem)\S* (?:is )?not (?:loaded|found)|modeset ?[=:] ?[0N]\b",
    ),
    row(
        "memlock",
        "locked memory|memlock|ulimit -l|ulimit -hl",
        r"max locked memory\D{0,40}(?P<limit>\d+)|RLIMIT_MEMLOCK|\bmemlock\b.{0,40}?(?P<limit2>\d+)|ulimit -H?l\D{0,10}(?P<limit3>\d+)",
    ),
    row("mkey", "create_mkey", r"CREATE_MKEY.{0,120}"),
    row("wrong_data", "out of bounds values", r"Out of bounds values : (?P<n>[1-9]\d*) FAILED"),
    row("gdr_off_plugin", "gdr", r"GDR disabled on GDR-supported instance type"),
    row("diag", "nccl diag", r"NCCL DIAG (?P<text>.*)", "text"),
)

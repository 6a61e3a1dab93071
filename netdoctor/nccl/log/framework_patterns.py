# ruff: noqa: E501  (a row a line)
"""What frameworks beside torch, and what starts programs, print of a job that cannot begin or stands still: one row a family.

Sources: Horovod (horovod/common/stall_inspector.cc, operations.cc), XLA (xla/service/rendezvous.cc,
xla/pjrt/distributed), gRPC (subchannel list), Ray (src/ray/gcs), Paddle (distributed/launch), Lightning (strategies/launchers),
Slurm (src/api/step_launch.c, src/slurmd/slurmstepd/task.c), kubelet (pkg/kubelet/kuberuntime), runc, nvidia-container-toolkit.
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, END, QUOTE, row

PATTERNS: Final = (
    # a framework's own word that some ranks have not come to what the others wait in
    row(
        "stalled",
        "missing ranks:|ready ranks:|subset of ranks|may be stuck|join the rendezvous|thread is unstuck|termination timeout for|rpc call to",
        r"RPC call to (?P<what3>\w{1,60}) timed out|\[missing ranks: ?(?P<missing>\d[\d, ]*)\]|\[ready ranks: ?(?P<ready>\d[\d, ]*)\]|submitted to be reduced, gathered or broadcasted by subset of ranks|(?P<over>Thread is unstuck)|waiting for `(?P<what>[^`]{1,80})[^`]*` for \d+ seconds and may be stuck|Expected \d+ threads to join the rendezvous|Termination timeout for `(?P<what2>[^`]{1,80})",
        "missing ready over",
    ),
    # Horovod's list, a rank a line
    row("stalled", "missing ranks:", rf"(?<!\[)Missing ranks:{END}", follow=17),
    # torch's blocking wait, and a C++ trace of its watchdog whose head is not in the log
    row(
        "watchdog",
        "timed out in blocking wait",
        r"Work WorkNCCL\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)(?:, NumelIn=(?P<numel>\d+))?.{0,200}\) timed out in blocking wait",
    ),
    row("torch_echo", "raised from ncclcommwatchdog", r"Exception raised from ncclCommWatchdog"),
    # torch up to 1.7, XLA and TensorFlow, Ray
    row("store_port", "runtimeerror: address already in use", r"RuntimeError: Address already in use"),
    row(
        "oom",
        "ran out of memory in memory|oom when allocating",
        r"Ran out of memory in memory space|OOM when allocating tensor",
    ),
    row("node_failed", "marked as dead by the gcs", r"marked as dead by the GCS"),
    # the process that all others register with: JAX's and TensorFlow's coordination service, Ray's GCS, anything behind gRPC
    row(
        "coordinator",
        "jax distributed service|coordinationservice/|coordination service agent in error|failed to connect to all addresses|to gcs|to the gcs|failed to register worker|watchtasks",
        r"JAX distributed service detected fatal errors.{0,300}DEADLINE_EXCEEDED|CoordinationService/(?P<rpc>\w+)|Coordination service agent in error status|failed to connect to all addresses|(?:Failed|Unable) to connect to (?:the )?GCS|Failed to register worker .{0,80}Raylet|WatchTasks\w* failed",
        "rpc",
        follow=1,
    ),
    # RDMA that is not NCCL's: UCX (src/uct/ib/mlx5/ib_mlx5_log.c) and what libmlx5 prints of any failed completion (cq.c)
    row(
        "rdma_error",
        "(synd 0x|got completion with error:",
        r"(?P<what>[A-Z][\w \-]{3,50}?) on (?P<dev>[\w.\-]+:\d+)/(?P<link>IB|RoCE) \(synd 0x(?P<synd>[0-9a-f]+)|\bmlx5: (?P<host>\S+): got completion with error:",
        "host",
        follow=5,
    ),
    # the name of a rendezvous in torch's words up to 1.4
    row("store", "host not found: ", r"host not found: (?P<gai>[A-Z][\w ]{3,60})"),
    row(
        "mpi_peer", "inbound mpi tcp connection request", r"Open MPI detected an inbound MPI TCP connection request from a peer"
    ),
    row(
        "placed", "successfully assigned", r"Successfully assigned (?:[\w.\-]+/)?(?P<pod>[\w.\-]+) to (?P<host>[\w.\-]+)", "pod"
    ),  # kube-scheduler: it had waited for a node
    row(
        "unstarted",
        "task launch for|application launch failed|execve()|unable to contact slurm controller|back-off restarting failed|failedscheduling|oci runtime|executable file not found|nvidia-container-cli: |could not select device driver|createcontainer|runcontainererror|container start failed|start container|spank: required plugin|not found|open file",
        rf"Task launch for .{{1,60}} failed on node (?P<host>[\w.\-]+): (?P<launch>.{{1,160}})|srun: error: Application launch failed: (?P<launch2>.{{1,160}})|error: execve\(\): (?P<launch3>.{{1,200}})|Unable to contact slurm controller(?P<launch4>)|Back-off restarting failed container (?:(?P<launch5>\S+) in pod (?P<host2>[a-z0-9.\-]+))?|(?P<unplaced>FailedScheduling (?: *pod/(?P<pod>[\w.\-]+))?.{{0,200}}(?:Insufficient|nodes are available))|OCI runtime (?:create|exec) failed(?P<launch6>.{{0,200}})|(?P<launch7>exec:? .{{1,100}}executable file not found)|(?P<launch8>nvidia-container-cli: .{{1,160}})|(?P<launch9>could not select device driver .{{1,100}})|(?:CreateContainer(?:Config)?|RunContainer)Error(?P<launch10>)|(?P<launch11>pyxis: container start failed|pyxis: couldn{QUOTE}t start container|spank: required plugin \S+ \w+\(\) failed.{{0,60}})|(?P<launch12>\b(?:torchrun|python3?|deepspeed|accelerate|mpirun|mpiexec|srun|ray|\w+_perf): (?:command )?not found)|(?P<launch13>python\S*: can{QUOTE}t open file .{{1,200}})",
        "host pod launch",
    ),
    row(
        "died",
        "status failed cmd|terminated with code|exit with status code|exit code: |exitcode |exited with a non-zero status|signaled to shutdown",
        r"Container rank (?P<of>\d+) status failed cmd .{1,4000}? code (?P<code>-?[1-9]\d*) log|\[rank: (?P<of2>\d+)\] Child process with PID \d+ terminated with code (?!-?(?:2|15)\b)(?P<code2>-?[1-9]\d*)|Process (?P<of3>\d+) exit with status code (?P<code3>[1-9]\d*)|Exit Code: +(?!143\b)(?P<code4>[1-9]\d*)(?!\d*\. The process receives a SIGTERM)|exited with a non-zero status of (?P<code5>[1-9]\d*)|\bExitCode (?!143\b)(?P<code6>[1-9]\d*)\b|was signaled to shutdown with signal (?!(?:2|15)\b)(?P<signal>\d+)(?: rank=(?P<of4>\d+))?",
        "of code signal",
    ),
    # The last line of a traceback, also where another family knows what it says: nobody has caught it.
    row("raised", "error: |exception: ", rf"{BEGIN}(?:\w+\.)*(?-i:[A-Z])(?P<type>\w*(?:Error|Exception)): "),
)

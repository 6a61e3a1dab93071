# ruff: noqa: E501  (a row a line)
"""What libraries and the kernel say at the level of an error, often right before a process ends: one row a speaker.

Sources: Linux (net/sunrpc/clnt.c, kernel/hung_task.c, kernel/watchdog.c, mlx5/core/health.c, fs/smb/client/connect.c, fs/ceph/mds_client.c), Lustre
(lustre/ptlrpc/import.c), UCX (src/ucs/debug/log.c: the component, then the level in five letters), TensorRT's loggers ("[TRT] [E]",
"[TensorRT-LLM][ERROR]", and the runtime's own "Error Code N: Kind (text)"), NVSHMEM (src/include/util.h), Open MPI
(orte/mca/plm/base/help-plm-base.txt), TensorFlow (tensorflow/python/lib/core/py_func.cc).
"""

from __future__ import annotations

from typing import Final

from netdoctor.nccl.log.pattern import BEGIN, row

PATTERNS: Final = (
    # an extension that a program tried to import, and goes on without: ld.so's words (elf/dl-load.c), of vLLM and others
    row(
        "unloaded",
        "cannot open shared object",
        r"^(?!(?:\w+\.)*\w*(?:Error|Exception): ).*?(?:failed to|could not|couldn't|unable to|cannot) (?:import|load)\b.{0,40}?(?:from |module |extension )?['`]?(?P<module>[A-Za-z_][\w.]{1,100})['`]? .{0,60}?(?P<library>lib[\w.+\-]{1,80}\.so[.\d]*): cannot open shared object file",
        "module library",
    ),
    # a file system's server that does not answer, or that answers again
    row(
        "mount",
        "nfs: server |operations using this service|connection restored to|has not responded in|ceph: mds",
        r"(?:(?P<host>[\w.\-]+) kernel: .{0,60}?)?(?:nfs: server (?P<server>\S+) (?:not responding, (?:still trying|timed out)|(?P<over>OK))|Lustre\w*: .{0,160}?Connection to (?P<server2>\S+) (?:\(at \S+\) )?was lost; in progress operations using this service|Lustre\w*: .{0,160}?(?P<over2>Connection restored) to (?P<server3>\S+)|This client was evicted by (?P<server4>\S+); in progress operations using this service|CIFS: .{0,160}?(?P<server5>\\\\\S+) has not responded in \d+ seconds|ceph: mds\d+ (?:hung|(?P<over3>recovery completed)))",
        "server over",
    ),
    # the kernel's watch over tasks that sleep and cannot be woken; the stack after it says in which module
    row(
        "blocked",
        "blocked for more than|blocked in i/o wait for",
        r"(?:(?P<host>[\w.\-]+) kernel: .{0,60}?)?INFO: task (?P<program>\S{1,40}):(?P<pid>\d+) (?:<\S+> )?blocked (?:in I/O wait )?for more than (?P<n>\d+) seconds",
        "host pid",
        follow=12,
    ),
    row(
        "engine",
        "version tag does not match|engine plan file is",
        r"Version tag does not match\. Note: Current Version: (?P<here>\d+), Serialized Engine Version: (?P<built>\d+)|Version tag does not match|engine plan file is (?:not compatible with this version of TensorRT, expecting library version (?P<here2>[\d.]+) got (?P<built2>[\d.]+)|generated on an incompatible device, expecting compute (?P<gpu>[\d.]+) got compute (?P<gpu_built>[\d.]+))",
        "here built",
    ),
    row(
        "library",
        "ucx  error|ucx  fatal|[tensorrt-llm][error]|[trt] [e]|[tensorrt] error:|error code |non-zero status: |null value",
        r"\b(?P<who>UCX)  (?:ERROR|FATAL) (?!.*Destination is unreachable)(?P<said>.{1,300})|\[(?P<who2>TensorRT-LLM)\]\[ERROR\] (?!Assertion failed)(?P<said2>.{1,300})|\[TRT\] \[E\] (?P<said3>.{1,300})|\[TensorRT\] ERROR: (?P<said4>.{1,300})|(?P<said5>Error Code \d+: (?-i:[A-Z])[\w ]{2,40}\(.{1,300})|(?P<said6>\.(?:cpp|cu):\d+: (?:non-zero status: \d+|NULL value) .{1,200})",
        "said",
    ),
    # the kernel's watch over its own CPUs: kernel/watchdog.c, kernel/rcu/tree_stall.h
    row(
        "lockup",
        "soft lockup|hard lockup|detected stalls|detected expedited|self-detected stall",
        r"(?:(?P<host>[\w.\-]+) kernel: .{0,60}?)?(?:(?P<what>soft lockup) - CPU#\d+ stuck for \d+s|Watchdog detected (?P<what2>hard LOCKUP) on cpu \d+|(?P<what3>rcu_\w+ (?:detected stalls|detected expedited stalls|self-detected stall)))",
        "host what",
    ),
    # mlx5's health poll: drivers/net/ethernet/mellanox/mlx5/core/health.c
    row(
        "async_event",
        "health compromised|firmware internal error|recovery flow aborted|health recovery succeeded",
        r"(?:(?P<host>[\w.\-]+) kernel: .{0,60}?)?mlx5_core (?P<dev>[\da-f:.]{12,16}): .{0,120}?(?P<event>health compromised|firmware internal error|health recovery flow aborted|(?P<over>health recovery succeeded))",
        "host dev over",
    ),
    # ROCr (core/runtime/runtime.cpp): the driver reset a GPU, or a kernel on it never ended
    row("cuda", "hw exception by gpu", r"HW Exception by GPU .{1,120}?reason ?: ?(?P<what>[^\n]{3,80})", "what"),
    # systemd (src/core/service.c) of a unit that failed: any node has some that do, and no word says that one is the job's
    row(
        "unit",
        "main process exited|failed with result",
        r"(?:(?P<unit>[\w@:.\\\-]{1,200}\.\w{4,9}): )?(?:Main process exited, code=(?:killed|dumped|exited), status=(?!(?:0|2|15)/)\d+/|Failed with result ')",
        "unit",
    ),
    # SkyPilot of its nodes, of which those that it ended itself name SIGTERM; timeout of coreutils (src/timeout.c, with -v)
    row(
        "died",
        "return code list",
        r"failed with return code list: \[(?:-?\d+, )*-?(?!(?:0|143|15)\b)(?P<code>[1-9]\d*)",
        "code",
    ),
    row(
        "ended",
        "main process exited|timeout: sending signal",
        r"Main process exited, code=killed, status=(?P<why>2|15)/|(?P<why2>timeout: sending signal) \w+ to command",
        "why",
    ),
    # Open MPI (help-orterun.txt, help-odls-default.txt)
    row(
        "unstarted",
        "unable to launch the specified application",
        r"unable to launch the (?P<launch>specified application.{0,60})",
        "host",
        follow=2,
    ),
    # Open MPI's name of the process that ended first: [[job,step],rank]
    row("died", "process name: [[", r"Process name: \[\[\d+,\d+\],(?P<of>\d+)\]", "of", follow=1),
    # the interpreter is being taken down, after the program's last line; the last line of evaluations, and of MLPerf's CosmoFlow
    row(
        "finished",
        "interpreter state is not initialized|saved to|written to|exported to|saved →|saved ->|all done",
        rf"(?P<left>(?P<words>(?:{BEGIN}|\bINFO:? )All done\b(?!\W? ?\w))|Python interpreter state is not initialized\. The process may be terminated|\b(?:results?|predictions?|metrics|scores|summary)\b.{{0,30}} (?:(?:saved|written|exported) to\b|saved (?:->|→)))",
        "left words",
    ),
)

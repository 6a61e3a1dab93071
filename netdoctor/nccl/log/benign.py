"""Warnings after which NCCL goes on as if nothing were: what no rule explains and no `benign` knows is trouble.

Found in the sources of 2.18 to 2.30 (tags of github.com/NVIDIA/nccl): a WARN that no path of its function turns into an error.
Each pattern holds the file that prints it and, where they are not all, the versions.
"""

# ruff: noqa: E501  (a row a line)

from __future__ import annotations

import re
from typing import Final

_ROWS: Final = (
    r"Could not find real path of",  # transport/net_ib/init.cc
    r"NET/IB ?: Unable to query (?:port|device)",  # transport/net_ib/init.cc: the device is left out
    r"Missing \"(?:iommu=pt|amd_iommu=on|HSA_FORCE_FINE_GRAIN_PCIE=1)\"|NUMA auto balancing enabled|LL cutoff points not detected",  # RCCL's advice on every start: src/init.cc
    r"lib wrapper not initialized",  # misc/{ibv,gdr,mlx5dv}wrap.cc
    r"Failed to open libibverbs\.so",  # to 2.18; `messages.verbs_missing` keeps it as a fact
    r"Call to ibv_(?:set|query)_ece failed",  # optional: misc/ibvwrap.cc
    r"NET/IB ?: Ip address .* is invalid for family",  # 2.21 to 2.23
    r"Warning: remote FLID configured as zero",  # transport/net_ib/connect.cc
    r"NET/IB: .{0,60}(?:Resiliency (?:requires|is enabled|context is NULL)|Encountered a stale CQE|OOO RQ is force enabled|There are still \d+ outstanding recovery)",  # 2.29 and later
    r"NET/IB ?: [RT]X MR #\d+ has non-zero",  # on closing
    r"(?:RMA|GIN)/Socket : rma_socket requires GDRCopy|No (?:GIN|RMA)-capable devices found|GIN is disabled",  # 2.28 and later, at start
    r"CollNet (?:currently only supports|does not support|is not supported)|Cannot initialize CollNet",  # init.cc, coll_net.cc
    r"Could not (?:create rings, falling back|find a path for pattern -?\d+, falling back)",  # graph/search.cc
    r"TOPO/NET : Tried merging multiple devices together and failed",  # graph/topo.cc
    r"NCCL_NET_MERGE_POLICY: unknown value",
    r"(?:sched_[gs]etaffinity|nvmlDevice\w*CpuAffinity\(\)|Failed to set CPU affinity)",
    r"User asked for a (?:minimum|maximum) of|(?:min|max)CTAs -?\d+ is larger than|splitShare -?\d+ is not a valid|NCCL_M(?:IN|AX)_NRINGS set to|NCCL_CGA_CLUSTER_SIZE value",  # init.cc, graph/connect.cc
    r"NCCL_WORK_FIFO_\w+=|Both NCCL_CTA_POLICY_ZERO|graphStreamOrdering=0 with|NCCL_GIN_\w+_POOL_SIZE has invalid",
    r"Invalid (?:NCCL_NTHREADS|NCCL_LL128_NTHREADS|\w+) -?\d+ \((?:must be a multiple|maximum|minimum)",  # graph/tuning.cc
    r"Ignoring SHM locality|Max rings reached, limiting",
    r"Unable to open \S+, not dumping topology",
    r"No NVML(?: device handle)?[.,]",  # graph/xml.cc, init.cc
    r"Unable to create thread context due to old driver",
    r"Profiler init failed with error \(\d+\)\. Continue without profiler",
    r"Tuner plugin refcount is 0",
    r"NCCL_DEVICE_UNPACK plugin has incompatible version .*not using it",
    r"CC On, Multi-GPU CC Off",
    r"(?:unlink|munmap of) shared memory|\[Service thread\] (?:shm close|shm unlink|proxy ops shm unlink) failed|Legacy IPC cleanup callback failed|proxyDestroy failed",  # on leaving
    r"rank \d+ deregister (?:NET|NVLS|COLLNET|IPC) buffer",
    r"PARAM: Duplicate",
    r"RAS (?:received unknown|thread)|fatal error - RAS thread terminating",  # RAS serves ncclras only
    r"MemManager: MemStats not supported",
    r"KV Convert to|Could not find real path",
    r"dlsym failed on|dlvsym failed on|ncclOsDlsym failed on|Failed to open libgdrapi|gdr_close\(\)",  # probed in turn: misc/*symbols.cc, gdrwrap.cc
    r"Failed to find ncclNetPlugin|Failed to find ncclCollNetPlugin",  # symbols of plugin versions, probed in turn: plugin/net.cc
)
_BENIGN: Final = re.compile("|".join(_ROWS).encode(), re.IGNORECASE)
# Libraries of a program that speak of their own connections: what they say is not about the ranks.
_OTHERS: Final = re.compile(
    rb"urllib3|botocore|boto3|\bwandb\b|huggingface_hub|requests\.exceptions|aiohttp|httpx|httpcore|s3fs|fsspec|mlflow|tensorboard"
    rb"|datadog|opentelemetry|to avoid out of memory|GLOO_LOG|paramiko"
    # libfabric probes the libraries of every vendor's GPUs: src/hmem.c, src/hmem_ze.c
    rb"|hmem_dl_init\(\)|Failed to initialize hmem iface"
    # git, asked by trackers of experiments which version of the program runs (GitPython's words, and git's: setup.c)
    rb"|git root error|detected dubious ownership|add an exception for this directory"
    rb"|not a git repository"
    # numexpr (utils.py) goes on with as many threads as it may have
    rb"|nthreads cannot be larger than environment variable"
    # DeepSpeed's report of ops says what each would need, which most jobs do not use (op_builder, async_io and gds)
    rb"|\[WARNING\].{0,12}(?:async_io|gds)(?: requires the dev libaio|:)|\bGDS is not compatible\b"
    rb"|If libaio is already installed \(perhaps from source\)"
    # Paddle counts a model's operations (dynamic_flops.py of its hapi) and leaves out those it knows no rule for
    rb"|Cannot find suitable count function for "
    # Ray says so above 95 % at the level of an error, of what it would meet if it had to spill: file_system_monitor.cc
    rb"|file_system_monitor\.cc.{1,300} will fail if ",
    re.IGNORECASE,
)
_FOLDERS: Final = re.compile(rb"'/[^']{1,1000}'")  # as Python quotes a file's name: whose folder it is says not who speaks
# Lines that say that work goes on: a training loop's, a benchmark's.  "STEP 7.0 ON n1 CANCELLED" is Slurm's.
_PROGRESS: Final = re.compile(
    rb"\b(?:iter(?:ation)?s?|steps?|epochs?|loss|it/s|s/it|tokens?/s(?:ec)?|samples?/s(?:ec)?|images?/s(?:ec)?|throughput)\b\W{0,12}\d(?!\d*\.\w+ ON )"
    rb"|(?:Application startup complete|Uvicorn running on |fired up and ready to roll)|Completed store-based barrier|\"POST \S{1,80} HTTP/1\.\d\" 200|Compiler status PASS|\b(?:inference|iteration|step|batch|epoch|forward|backward|elapsed|training) time\b\W{0,12}\d|\d\s?(?:it/s|s/it|tokens/s|TFLOP)|^ {2,}\d{1,14} +\d{1,14} +(?:float|half|bfloat16|u?int\d*|fp8\w*|double) ",
    re.IGNORECASE,
)


# The loss that is trained: a scale, a weight, a reward, or the part of a layer may be a number where it is none.
_LOSS: Final = re.compile(
    rb"^(?!.*(?:\b|_)(?:nan|inf(?:inity)?)\b).*(?<![a-z])(?<!aux[_ /])(?<!auxiliary[_ /])(?<!balance[_ /])(?<!balancing[_ /])"
    rb"(?<!router[_ /])(?<!moe[_ /])(?<!reg[_ /])(?:loss(?:es)?(?!_?(?:scal|weight|coef|fn))|ppl|perplexity|nll)\w{0,12}\b"
    rb"['\"]?\W{1,12}(?:tensor\()?\d",
    re.IGNORECASE,
)
# A program's text that stands in a log, as where it prints itself or a shell runs with -x: what it would say, it has not said.
_TEXT: Final = re.compile(
    rb"\s*(?:(?:raise|throw|return|assert|elif|if|except|def|class|import|from) .{0,200}[:(]|\++ ?(?:echo|printf|grep|awk|sed) "
    rb"|(?:[\w.]{1,60}\.)?(?:print|printf|fprintf|cout|echo|debug|info|warn|warning|error|exception|fatal|critical|log)"
    rb"(?: ?\(| )[^\"'`]{0,40}[fr]?[\"'`])"
)


# What UCX tells those who ask for it (src/ucs/debug/log.c): below a warning, of what it tries in turn.
_UCX_TELLS: Final = re.compile(rb"\bUCX  (?:DIAG|INFO|DEBUG|TRACE|REQ|DATA|ASYNC|FUNC|POLL)\b.{1,300}\bfailed\b")


def says_nothing(line: bytes) -> bool:
    """Whether a line is a statement of a program, and no word of it while it runs, or what UCX tries in turn."""
    return _TEXT.match(line) is not None or _UCX_TELLS.search(line) is not None


_SLURMS: Final = re.compile(rb"^.{0,60}?\b(?:srun|slurmstepd|salloc|scancel): ")  # its steps are no work
# A step that was not taken, because something failed.
_SKIPPED: Final = re.compile(rb"\bskip\w*\b.{0,80}\b(?:\w*Error\b|(?:CUDA|NCCL|HIP) )")
# How many there are to be, in a list of settings: no work yet.
_SETTING: Final = re.compile(
    rb"\b(?:epochs|steps|iters|iterations)\b['\"]?\s{0,4}[:=]\s{0,4}\d{1,12}\b(?! {0,12}(?:/|of\b))", re.IGNORECASE
)

# An option of a command, in the list of Python's that a launcher prints or as it was typed: how much it was asked for.
_OPTION: Final = re.compile(
    rb"(?<![\w\-])--?[A-Za-z][\w.\-]{0,80}(?:['\"],? {1,4}['\"]?|=['\"]?| {1,4})[\w.+\-]{1,80}['\"]?(?=[\s,\])]|$)"
)


def benign(message: bytes) -> bool:
    """Whether a warning of NCCL's is known to do no harm."""
    return _BENIGN.search(message) is not None


def of_others(line: bytes) -> bool:
    """Whether a line without NCCL's tag is of a library that has nothing to do with the ranks' connections: not a launcher's,
    where an option names one."""
    return _OTHERS.search(line) is not None and _OTHERS.search(_OPTION.sub(b"", _FOLDERS.sub(b"", line))) is not None


def figure(line: bytes) -> bool:
    """Whether a line tells a loss that is a number."""
    return _LOSS.search(line) is not None


def progress(line: bytes) -> bool:
    """Whether a line shows work; wandb sums up a run's last figures also where the run died, and nccl-tests' first line tells
    what it is about to do ("step: 2(factor) warmup iters: 5")."""
    found = _PROGRESS.search(line) is not None and b"wandb: " not in line[:40] and b"# nThread " not in line
    found = found and _SLURMS.search(line) is None and _SKIPPED.search(line) is None
    if found and b"-" in line and _OPTION.search(line) is not None:
        line = _OPTION.sub(b"", line)
        found = _PROGRESS.search(line) is not None
    return found and (_SETTING.search(line) is None or _PROGRESS.search(_SETTING.sub(b"", line)) is not None)

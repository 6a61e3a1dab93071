"""GPUs: CUDA and driver, mapping, NVLS, fabric, peer-to-peer, shared memory, affinity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import MIGHT, STOPS
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught, means
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.log.facts import Event, Level, LogFacts
from netdoctor.nccl.log.wordings import Wording

_MAP = Fix(
    "one rank a GPU: each rank takes the GPU of its LOCAL_RANK, and every rank of a node sees all of them",
    ("torch.cuda.set_device(int(os.environ['LOCAL_RANK']))", "echo $CUDA_VISIBLE_DEVICES"),
)
_DRIVER = Fix("use a driver that the CUDA of this NCCL supports", ("nvidia-smi", "cat /proc/driver/nvidia/version"))
_FM = Fix(
    "stop the jobs of the node, stop Fabric Manager, reset the GPUs, start Fabric Manager of the driver's version",
    (
        "systemctl stop nvidia-fabricmanager && nvidia-smi -r && systemctl start nvidia-fabricmanager",
        "journalctl -u nvidia-fabricmanager; less /var/log/fabricmanager.log",
    ),
)
_IMEX = Fix(
    "start nvidia-imex on every node of the rack with the same node list, and give the job an IMEX channel",
    ("nvidia-imex-ctl -N", "ls /dev/nvidia-caps-imex-channels"),
)


def duplicate(log: LogFacts) -> Iterator[Hypothesis]:
    """src/init.cc: two ranks of one host with one bus id (up to 2.29), or one GPU UUID (2.30.7)."""
    events = log.of("duplicate_gpu")
    if events:
        a, b = events[0].data.get("a"), events[0].data.get("b")
        text = f"ranks {a} and {b} took one GPU" if a and b else "several ranks took one GPU"
        yield Hypothesis("duplicate_gpu", Confidence.CERTAIN, text, events, _MAP)


def shared_memory(log: LogFacts) -> Iterator[Hypothesis]:
    """/dev/shm cannot hold NCCL's segments: 64 MB is Docker's default (src/misc/shmutils.cc)."""
    full = tuple(e for e in log.of("shm_full") if e.level is not Level.INFO or Wording.NO_SPACE.within(e.text))
    events = full + log.above_info("shm_error")
    if full or any(Wording.NO_SPACE.within(e.text) or Wording.SHORT_OF_SHM.within(e.text) for e in events):
        size = next((n for n in caught(events, "bytes") if n.isdecimal()), None)
        text = f"a segment of {int(size):,} bytes did not fit into /dev/shm" if size else "/dev/shm is too small"
        note = "NCCL_SHM_DISABLE=1 only moves the traffic to the network"
        yield Hypothesis("shm_disabled_or_small", Confidence.CERTAIN, text, events, Topic.SHARED_MEMORY, notes=(note,))
    elif any(Wording.ABSENT.within(e.text) for e in events):
        text = "a rank cannot open the shared memory that another rank of its node made: that one has its own /dev/shm"
        text += " (another container or pod), or it has ended and taken its segment away"
        yield Hypothesis("shm_disabled_or_small", Confidence.LIKELY, text, events, Topic.SHARED_MEMORY)
        yield Hypothesis("rank_died", Confidence.OPEN_PLUS, "the rank that made the segment may have ended before", events)
    elif events:
        text = "a shared-memory segment could not be made or opened: /dev/shm is full, absent, or another container's"
        yield Hypothesis("shm_disabled_or_small", Confidence.LIKELY, text, events, Topic.SHARED_MEMORY)


class _CudaFailure:
    """What a failed CUDA call means, by its error text (cudaGetErrorString's), its code, or NCCL's source file that made it.

    `{what}` in a message is the error text.
    """

    def __init__(self, text: str, *hypotheses: Hypothesis, source: str = "", code: str = "") -> None:
        self.hypotheses = hypotheses
        self._text, self._source, self._code = re.compile(text), source, code

    def fits(self, text: str, source: str, code: str) -> bool:
        by_source = bool(self._source) and self._source in source
        return by_source or (bool(code) and code == self._code) or self._text.search(text) is not None


_UNUSABLE = Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, "CUDA cannot be used here: {what}", fix=_DRIVER)
# The first that fits decides.  A failure in nvls.cc is judged before them, whatever its error is.
_CUDA_FAILURES: Final = (
    _CudaFailure(
        "fabric",
        Hypothesis("imex", Confidence.STRONG, "multi-node NVLink could not be set up: {what}", fix=_IMEX),
        source="mnnvl",
    ),
    _CudaFailure(
        "system not yet initialized",
        Hypothesis(
            "fabric_manager",
            Confidence.STRONG_PLUS,
            "CUDA error 802: the NVSwitch fabric is not initialised, Fabric Manager does not run",
            fix=_FM,
        ),
        Hypothesis("cuda_driver_mismatch", Confidence.OPEN_MINUS, "CUDA cannot be initialised", fix=_DRIVER),
        code="802",
    ),
    _CudaFailure(
        "invalid device ordinal|invalid number of gpus",
        Hypothesis(
            "device_mapping",
            Confidence.STRONG_PLUS,
            "a GPU that a rank must open is not visible to it",
            fix=_MAP,
            notes=("ranks of one node must all see every GPU of the job on it (CUDA_VISIBLE_DEVICES, --gpus-per-task)",),
        ),
        Hypothesis("env_misuse", Confidence.OPEN_MINUS, "CUDA_VISIBLE_DEVICES differs between ranks of a node"),
    ),
    _CudaFailure(
        "no cuda-capable device",
        _UNUSABLE,
        Hypothesis("device_mapping", Confidence.OPEN_MINUS, "no GPU is visible to this process", fix=_MAP),
    ),
    _CudaFailure(
        "busy or unavailable",  # cudaErrorDevicesUnavailable: also where the process may open no further descriptor
        Hypothesis(
            "other",
            Confidence.OPEN,
            "the GPU cannot be opened: another process has it for itself, or this one may not ({what})",
            how="nvidia-smi -q -d COMPUTE,PIDS   # exclusive mode, and who; ulimit -n; ls -l /dev/nvidia*; MIG",
        ),
    ),
    _CudaFailure(
        "driver shutting down",  # what the runtime answers in a process that is leaving: the echo of any failed exit
        Hypothesis("rank_died", Confidence.EFFECT_MINUS, "the process was leaving already: something failed before"),
    ),
    _CudaFailure(
        "no kernel image|invalid device function",  # cudaErrorNoKernelImageForDevice, cudaErrorInvalidDeviceFunction
        Hypothesis(
            "cuda_driver_mismatch",
            Confidence.STRONG_PLUS,
            "the program holds no code for this GPU: {what}",
            fix=Fix(
                "install a torch (and NCCL) that was built for this GPU",
                ("python -c 'import torch; print(torch.cuda.get_arch_list())'",),
            ),
            fault=Fault.TOO_OLD,
        ),
    ),
    _CudaFailure(
        "kernel image is invalid",  # CUDA_ERROR_INVALID_IMAGE, as the driver answers cuModuleLoadData of what it cannot read
        Hypothesis(
            "cuda_driver_mismatch",
            Confidence.STRONG_PLUS,
            "a kernel was compiled in a form that this driver or this GPU does not take: {what}",
            fix=Fix(
                "compile kernels with a CUDA that the driver knows, and for this GPU; Triton brings a ptxas of its own",
                (
                    "nvidia-smi   # the newest CUDA that the driver knows",
                    "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas; rm -rf ~/.triton/cache",
                ),
            ),
            fault=Fault.TOO_OLD,
        ),
    ),
    _CudaFailure(
        "driver version is insufficient|initialization error|forward compat|unsupported toolchain"
        "|unsupported ptx|not supported in the installed|unsupported display driver"
        "|shared object initialization",
        _UNUSABLE,
    ),
    _CudaFailure(
        "out of memory|alloc_failed",
        Hypothesis(
            "other",
            Confidence.LIKELY,
            "the GPU's memory was full when NCCL asked for buffers",
            fix=Fix(
                "leave room for NCCL's buffers (about 1 GB a communicator on many channels)",
                ("nvidia-smi   # another process on that GPU?",),
            ),
            fault=Fault.GPU_MEMORY,
        ),
        Hypothesis("rank_died", Confidence.LIKELY_MINUS, "a rank ran out of GPU memory"),
    ),
    _CudaFailure(
        "illegal memory access|illegal address|launch failure|launch failed|misaligned|assert|illegal instruction"
        "|hardware stack",
        Hypothesis(
            "rank_died",
            Confidence.LIKELY,
            "a kernel of the program broke the GPU context ({what}); NCCL only reports it",
            fix=Fix("find the kernel", ("CUDA_LAUNCH_BLOCKING=1 python …", "compute-sanitizer python …")),
            fault=Fault.KERNEL,
        ),
    ),
    _CudaFailure(
        "uncorrectable nvlink",  # cudaErrorNvlinkUncorrectable
        Hypothesis(
            "gpu_error",
            Confidence.STRONG_MINUS,
            "an NVLink of a GPU had an error that it could not correct: {what}",
            how="dmesg | grep -i xid   # 74; nvidia-smi nvlink -e; nvidia-smi nvlink -s",
        ),
        Hypothesis("link_degraded", Confidence.OPEN, "an NVLink, its bridge or its switch may be bad"),
    ),
    _CudaFailure(
        "ecc|uncorrectable",
        Hypothesis(
            "other",
            Confidence.LIKELY,
            "a memory error of the GPU that it could not correct: {what}",
            how="dmesg | grep -i xid; nvidia-smi -q -d ECC,ROW_REMAPPER   # which GPU, and whether it needs a reset",
            fault=Fault.ECC,
        ),
        Hypothesis("inventory", Confidence.LIKELY_MINUS, "the GPU may need a reset or replacement: its counters tell"),
        Hypothesis("rank_died", Confidence.OPEN, "the rank on that GPU ended"),
    ),
    _CudaFailure(
        "gpu is lost",
        Hypothesis("inventory", Confidence.STRONG, "a GPU is lost to its driver", how="dmesg | grep -i xid; nvidia-smi"),
    ),
    _CudaFailure(
        "nvlink was|hardware error|unspecified hardware",
        Hypothesis("rank_died", Confidence.LIKELY, "the GPU failed: {what}", how="dmesg | grep -i xid; nvidia-smi -q -d ECC"),
        Hypothesis("inventory", Confidence.OPEN, "the GPU may need a reset: dmesg tells"),
    ),
    _CudaFailure(
        "peer access|mapping of buffer",
        Hypothesis(
            "p2p_disabled",
            Confidence.STRONG_MINUS,
            "peer-to-peer between GPUs does not work: {what}",
            loss=STOPS,
        ),
        Hypothesis("acs_iommu", Confidence.OPEN_MINUS, "ACS or the IOMMU may stand between the GPUs"),
        source="p2p.cc",
    ),
    _CudaFailure(
        "", Hypothesis("other", Confidence.OPEN, "CUDA failed: {what}")
    ),  # also "unknown error", which condemns no GPU
)


def cuda(log: LogFacts) -> Iterator[Hypothesis]:
    """``Cuda failure '…'`` (src/include/checks.h), and the same in torch's words."""
    for e in log.of("cuda"):
        if e.level is Level.INFO and log.above_info("cuda"):
            continue  # NCCL prints the call stack of a failure again, as INFO
        what = e.data.get("what", e.text)
        source = f"{e.source} {e.text[:80]}".lower()
        if Wording.NVLS_SOURCE.within(source):
            yield from _nvls(log, (e,), what)
            continue
        failure = next(row for row in _CUDA_FAILURES if row.fits(what.lower(), source, e.data.get("code", "")))
        for h in failure.hypotheses:
            # Calls on a GPU that has left the bus fail with whatever the driver has for it, a kernel's error among others.
            confidence = min(h.confidence, Confidence.EFFECT) if lost(log) else h.confidence
            yield replace(h, message=h.message.format(what=what), events=(e,), confidence=confidence)


def lost(log: LogFacts) -> bool:
    """Whether the driver, or what asks it, says that a GPU no longer answers."""
    return bool(log.of("gpu_lost")) or any(e.data.get("xid") == "79" for e in log.of("xid"))


def allocation(log: LogFacts) -> Iterator[Hypothesis]:
    """NCCL got no memory on the GPU, and the CUDA error is not in the log."""
    events = log.above_info("cuda_alloc")
    if events and not log.above_info("cuda", "oom"):
        text = f"NCCL got no memory on the GPU ({caught(events, 'bytes')[0]} bytes): it is full, or its context is broken"
        how = "NCCL_DEBUG=WARN prints the CUDA error itself; nvidia-smi for other processes on that GPU"
        yield Hypothesis("other", Confidence.LIKELY, text, events, how=how, fault=Fault.GPU_MEMORY)
        yield Hypothesis("rank_died", Confidence.OPEN, "the rank on that GPU ended", events)


def driver(log: LogFacts) -> Iterator[Hypothesis]:
    """The driver is missing or another one than CUDA's; NVML alone failing does no harm to a job that came up."""
    events = log.of("driver")
    if not events or log.of("cuda"):
        return
    unseen = tuple(e for e in events if Wording.NO_GPU_HERE.within(e.text))
    if unseen:
        text = "the process sees no GPU: none was given to it (CUDA_VISIBLE_DEVICES, num_gpus of an actor, --gpus)"
        yield Hypothesis("device_mapping", Confidence.STRONG_PLUS, text, unseen, _MAP, fault=Fault.NO_GPU)
        yield Hypothesis("cuda_driver_mismatch", Confidence.LIKELY, "or the driver is missing here", unseen, _DRIVER)
        return
    nvml_only = all(Wording.NVML.within(e.text) and not Wording.MISMATCH.within(e.text) for e in events)
    if not (nvml_only and log.came_up):
        text = f"driver and CUDA do not fit together, or there is no driver: {events[0].text[:100]}"
        yield Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, text, events, _DRIVER)


def _nvls(log: LogFacts, events: tuple[Event, ...], what: str) -> Iterator[Hypothesis]:
    went_on = all(Wording.WITHOUT_NVLS.within(e.text) or e.level is Level.INFO for e in events)
    manager = log.of("fabric_manager")
    yield Hypothesis(
        "nvls_failure",
        Confidence.CERTAIN,
        f"NVLink SHARP multicast memory could not be bound: {what}",
        events + manager,
        _FM,
        loss=MIGHT if went_on else None,
        how="fabricmanager.log, `nvidia-smi -q | grep -A3 Fabric`; nvidia-smi looks clean while multicast is stuck",
        notes=("NCCL_NVLS_ENABLE=0 only hides it: reductions are slower without",),
    )
    text = "Fabric Manager or an NVSwitch is in a bad state"
    yield Hypothesis("fabric_manager", Confidence.STRONG if manager else Confidence.OPEN, text, events + manager, _FM)


def nvls(log: LogFacts) -> Iterator[Hypothesis]:
    """src/transport/nvls.cc"""
    bind, manager = log.of("nvls_bind"), log.of("fabric_manager")
    if bind:
        yield from _nvls(log, bind, f"CUDA error {bind[0].data.get('code', '?')} {bind[0].data.get('what', '')}".strip())
    elif manager:
        text = "Fabric Manager reports a fault"
        if all(Wording.NOT_READY.within(e.text) for e in manager):
            text = (
                "CUDA error 802: the NVSwitch fabric is not initialised; Fabric Manager does not run, or is of another version"
            )
        yield Hypothesis("fabric_manager", Confidence.STRONG_PLUS, text, manager, _FM)


# Multi-node NVLink, and links that are down: src/mnnvl.cc, src/graph/paths.cc.
_NVLINK: Final = (
    means(
        "multicast",
        Hypothesis("nvls_failure", Confidence.LIKELY, "multicast was asked for and is not available", fix=_FM),
        info=False,
    ),
    means(
        "imex",
        Hypothesis(
            "imex", Confidence.STRONG_PLUS, "multi-node NVLink is there but does not work: IMEX is not set up", fix=_IMEX
        ),
        info=False,
    ),
    means(
        "nvlink_p2p",
        Hypothesis(
            "p2p_disabled",
            Confidence.STRONG_PLUS,
            "GPUs that are linked by NVLink cannot reach each other: a hardware fault",
            loss=STOPS,
            how="nvidia-smi nvlink -s; nvidia-smi topo -p2p r",
        ),
        Hypothesis("link_degraded", Confidence.OPEN, "an NVLink may be down"),
    ),
    means(
        "nvlink_degraded",
        Hypothesis(
            "link_degraded", Confidence.STRONG, "the NVLink fabric reports reduced bandwidth", how="nvidia-smi nvlink -s"
        ),
    ),
)
_ACS = Fix(
    "switch ACS off on the bridges between GPUs and NICs (or IOMMU to pass-through)",
    ("setpci -s <bridge> ECAP_ACS+0x6.w=0000",),
    ("BIOS: ACS off; kernel command line: iommu=pt",),
)


def acs(log: LogFacts) -> Iterator[Hypothesis]:
    """lspci's ACSCtl, and what RCCL says of the IOMMU."""
    events = log.of("acs")
    if (
        events
        and all(e.data.get("iommu") for e in events)
        and log.came_up
        and not log.above_info("generic", "watchdog", "cuda")
    ):
        return  # RCCL's standing advice, which it gives on every start without the option (src/init.cc)
    if events:
        iommu = any(e.data.get("iommu") for e in events)
        text = "the kernel runs without iommu=pt" if iommu else "ACS redirects peer-to-peer traffic on a PCIe bridge"
        yield Hypothesis("acs_iommu", Confidence.STRONG, text, events, _ACS)


RULES = (
    duplicate,
    shared_memory,
    cuda,
    allocation,
    driver,
    nvls,
    *_NVLINK,
    acs,
    means("iommu_fault", Hypothesis("acs_iommu", Confidence.STRONG_MINUS, "the IOMMU refused accesses of a device")),
    means(
        "wrong_data",
        Hypothesis(
            "wrong_data",
            Confidence.CERTAIN,
            "the reduced values are wrong",
            how="nvidia-smi -q -d ECC; the same test pairwise",
        ),
        info=False,
    ),
)

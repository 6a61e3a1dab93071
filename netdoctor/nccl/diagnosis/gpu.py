"""GPUs: CUDA and driver, mapping, NVLS, fabric, peer-to-peer, shared memory, affinity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from netdoctor.causes.cost import MIGHT, STOPS
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.cuda_failures import CUDA_FAILURES, DRIVER, FABRIC_MANAGER, IMEX, MAP
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught, means
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.log.facts import Event, Level, LogFacts
from netdoctor.nccl.log.wordings import Wording

_DRIVERS_LIBRARIES = Fix(
    "let the loader find the driver's libraries: a container gets them from NVIDIA's runtime, a host from the driver's package",
    (
        "ldconfig -p | grep -e libcuda.so -e libnvidia-ml.so; echo $LD_LIBRARY_PATH   # as the job's user",
        "docker run --gpus all -e NVIDIA_DRIVER_CAPABILITIES=compute,utility …   # utility: libnvidia-ml.so.1",
    ),
)


def duplicate(log: LogFacts) -> Iterator[Hypothesis]:
    """src/init.cc: two ranks of one host with one bus id (up to 2.29), or one GPU UUID (2.30.7)."""
    events = log.of("duplicate_gpu")
    if events:
        a, b = events[0].data.get("a"), events[0].data.get("b")
        text = f"ranks {a} and {b} took one GPU" if a and b else "several ranks took one GPU"
        yield Hypothesis("duplicate_gpu", Confidence.CERTAIN, text, events, MAP)


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
        failure = next(row for row in CUDA_FAILURES if row.fits(what.lower(), source, e.data.get("code", "")))
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
        known = log.of("gpu_lost") or any(
            {"gpu_probe", "no_nv"} & e.data.keys() for e in log.of("told", "told_node")
        )  # the driver's own word of why
        confidence = Confidence.OPEN if known else Confidence.STRONG_PLUS
        yield Hypothesis("device_mapping", confidence, text, unseen, MAP, fault=Fault.NO_GPU)
        yield Hypothesis("cuda_driver_mismatch", Confidence.LIKELY, "or the driver is missing here", unseen, DRIVER)
        return
    lacks = next((m["library"] for e in events if (m := Wording.DRIVERS_LIBRARY.found(e.text))), None)
    if lacks is not None and not log.came_up:
        text = f"the driver's library {lacks} is not where the loader looks"
        yield Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, text, events, _DRIVERS_LIBRARIES)
        return
    nvml_only = all(Wording.NVML.within(e.text) and not Wording.MISMATCH.within(e.text) for e in events)
    if not (nvml_only and log.came_up):
        text = f"driver and CUDA do not fit together, or there is no driver: {events[0].text[:100]}"
        yield Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, text, events, DRIVER)


def _nvls(log: LogFacts, events: tuple[Event, ...], what: str) -> Iterator[Hypothesis]:
    went_on = all(Wording.WITHOUT_NVLS.within(e.text) or e.level is Level.INFO for e in events)
    manager = log.of("fabric_manager")
    yield Hypothesis(
        "nvls_failure",
        Confidence.CERTAIN,
        f"NVLink SHARP multicast memory could not be bound: {what}",
        events + manager,
        FABRIC_MANAGER,
        loss=MIGHT if went_on else None,
        how="fabricmanager.log, `nvidia-smi -q | grep -A3 Fabric`; nvidia-smi looks clean while multicast is stuck",
        notes=("NCCL_NVLS_ENABLE=0 only hides it: reductions are slower without",),
    )
    text = "Fabric Manager or an NVSwitch is in a bad state"
    yield Hypothesis(
        "fabric_manager", Confidence.STRONG if manager else Confidence.OPEN, text, events + manager, FABRIC_MANAGER
    )


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
        yield Hypothesis("fabric_manager", Confidence.STRONG_PLUS, text, manager, FABRIC_MANAGER)


# Multi-node NVLink, and links that are down: src/mnnvl.cc, src/graph/paths.cc.
_NVLINK: Final = (
    means(
        "multicast",
        Hypothesis("nvls_failure", Confidence.LIKELY, "multicast was asked for and is not available", fix=FABRIC_MANAGER),
        info=False,
    ),
    means(
        "imex",
        Hypothesis(
            "imex", Confidence.STRONG_PLUS, "multi-node NVLink is there but does not work: IMEX is not set up", fix=IMEX
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
    advice = bool(events) and all(e.data.get("iommu") for e in events)
    worked = all(log.good.get(e.file, 0) > e.last for e in events)
    if advice and (log.came_up or worked) and not log.above_info("generic", "watchdog", "cuda"):
        return  # RCCL's standing advice, which it gives on every start without the option (src/init.cc)
    if advice and any(e.level is Level.WARN and e.kind not in {"acs", "generic"} for e in log.events):
        return  # it warns of what failed, and of the option it would have done so anyway
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

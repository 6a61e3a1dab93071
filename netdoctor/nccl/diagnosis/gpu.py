"""GPUs: CUDA and driver, mapping, NVLS, fabric, peer-to-peer, shared memory, affinity."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Final, NamedTuple

from netdoctor.model import Fix, Severity
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.log.facts import Event, LogFacts

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
_SHM = Fix(
    "give the container a larger /dev/shm",
    ("docker run --shm-size=8g …   # or --ipc=host", "df -h /dev/shm; ls -l /dev/shm/nccl-*   # left behind by a crash?"),
    ("volumes: [{name: shm, emptyDir: {medium: Memory}}] mounted at /dev/shm",),
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
        yield Hypothesis(
            "duplicate_gpu",
            Confidence.CERTAIN,
            f"ranks {a} and {b} took one GPU" if a and b else "several ranks took one GPU",
            events,
            _MAP,
        )


def shared_memory(log: LogFacts) -> Iterator[Hypothesis]:
    """/dev/shm cannot hold NCCL's segments: 64 MB is Docker's default (src/misc/shmutils.cc)."""
    full = tuple(e for e in log.of("shm_full") if e.data.get("level") != "INFO" or "no space" in e.text.lower())
    events = full + log.above_info("shm_error")
    if not events:
        return
    text = " ".join(e.text.lower() for e in events)
    size = next((e.data["bytes"] for e in events if e.data.get("bytes")), None)
    what = (
        f"a segment of {int(size):,} bytes did not fit into /dev/shm" if size and size.isdecimal() else "/dev/shm is too small"
    )
    if "no space" in text or full:
        yield Hypothesis(
            "shm_disabled_or_small",
            Confidence.CERTAIN,
            what,
            events,
            _SHM,
            notes=("NCCL_SHM_DISABLE=1 only moves the traffic to the network",),
        )
    else:
        yield Hypothesis(
            "shm_disabled_or_small",
            Confidence.LIKELY,
            "a shared-memory segment could not be made or opened: /dev/shm is full, absent, or another container's",
            events,
            _SHM,
        )


class _CudaFailure(NamedTuple):
    """What a failed CUDA call means, by its error text (cudaGetErrorString's), its code, or NCCL's source file that made it.

    `{what}` in a message is the error text.
    """

    hypotheses: tuple[Hypothesis, ...]
    text: re.Pattern[str] | None = None
    source: str | None = None
    code: str | None = None

    def fits(self, text: str, source: str, code: str | None) -> bool:
        return bool(
            (self.text and self.text.search(text))
            or (self.source and self.source in source)
            or (self.code and self.code == code)
        )


_UNUSABLE = Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, "CUDA cannot be used here: {what}", fix=_DRIVER)
# The first that fits decides.  A failure in nvls.cc is judged before them, whatever its error is.
_CUDA_FAILURES: Final = (
    _CudaFailure(
        (Hypothesis("imex", Confidence.STRONG, "multi-node NVLink could not be set up: {what}", fix=_IMEX),),
        text=re.compile("fabric"),
        source="mnnvl",
    ),
    _CudaFailure(
        (
            Hypothesis(
                "fabric_manager",
                Confidence.STRONG_PLUS,
                "CUDA error 802: the NVSwitch fabric is not initialised, Fabric Manager does not run",
                fix=_FM,
            ),
            Hypothesis("cuda_driver_mismatch", Confidence.OPEN_MINUS, "CUDA cannot be initialised", fix=_DRIVER),
        ),
        text=re.compile("system not yet initialized"),
        code="802",
    ),
    _CudaFailure(
        (
            Hypothesis(
                "device_mapping",
                Confidence.STRONG_PLUS,
                "a GPU that a rank must open is not visible to it",
                fix=_MAP,
                notes=("ranks of one node must all see every GPU of the job on it (CUDA_VISIBLE_DEVICES, --gpus-per-task)",),
            ),
            Hypothesis("env_misuse", Confidence.OPEN_MINUS, "CUDA_VISIBLE_DEVICES differs between ranks of a node"),
        ),
        text=re.compile("invalid device ordinal"),
    ),
    _CudaFailure(
        (_UNUSABLE, Hypothesis("device_mapping", Confidence.OPEN_MINUS, "no GPU is visible to this process", fix=_MAP)),
        text=re.compile("no cuda-capable device"),
    ),
    _CudaFailure(
        (_UNUSABLE,),
        text=re.compile(
            r"driver version is insufficient|initialization error|forward compat|unsupported toolchain|no kernel image"
            r"|unsupported ptx|not supported in the installed|unsupported display driver|driver shutting down"
            r"|shared object initialization"
        ),
    ),
    _CudaFailure(
        (
            Hypothesis(
                "rank_died",
                Confidence.LIKELY,
                "the GPU's memory was full when NCCL asked for buffers",
                fix=Fix(
                    "leave room for NCCL's buffers (about 1 GB a communicator on many channels)",
                    ("nvidia-smi   # another process on that GPU?",),
                ),
            ),
        ),
        text=re.compile("out of memory"),
    ),
    _CudaFailure(
        (
            Hypothesis(
                "rank_died",
                Confidence.LIKELY,
                "a kernel of the program broke the GPU context ({what}); NCCL only reports it",
                fix=Fix("find the kernel", ("CUDA_LAUNCH_BLOCKING=1 python …", "compute-sanitizer python …")),
            ),
        ),
        text=re.compile(
            r"illegal memory access|illegal address|launch failure|launch failed|misaligned|assert|illegal instruction"
            r"|hardware stack"
        ),
    ),
    _CudaFailure(
        (
            Hypothesis(
                "rank_died", Confidence.LIKELY, "the GPU failed: {what}", how="dmesg | grep -i xid; nvidia-smi -q -d ECC"
            ),
            Hypothesis("inventory", Confidence.OPEN, "the GPU needs a reset or replacement"),
        ),
        text=re.compile(r"ecc|nvlink was|hardware error|gpu is lost|unspecified hardware|unknown error"),
    ),
    _CudaFailure(
        (
            Hypothesis(
                "p2p_disabled",
                Confidence.STRONG_MINUS,
                "peer-to-peer between GPUs does not work: {what}",
                severity=Severity.CRITICAL,
            ),
            Hypothesis("acs_iommu", Confidence.OPEN_MINUS, "ACS or the IOMMU may stand between the GPUs"),
        ),
        text=re.compile("peer access|mapping of buffer"),
        source="p2p.cc",
    ),
)
_OTHER_FAILURE: Final = _CudaFailure((Hypothesis("other", Confidence.OPEN, "CUDA failed: {what}"),))


def cuda(log: LogFacts) -> Iterator[Hypothesis]:
    """``Cuda failure '…'`` (src/include/checks.h), and the same in torch's words."""
    for e in log.of("cuda"):
        if e.data.get("level") == "INFO" and log.above_info("cuda"):
            continue  # NCCL prints the call stack of a failure again, as INFO
        what = e.data.get("what", e.text)
        source = f"{e.source} {e.text[:80]}".lower()
        if "nvls.cc" in source:
            yield from _nvls(log, (e,), what)
            continue
        failure = next((row for row in _CUDA_FAILURES if row.fits(what.lower(), source, e.data.get("code"))), _OTHER_FAILURE)
        for h in failure.hypotheses:
            yield replace(h, message=h.message.format(what=what), events=(e,))


def driver(log: LogFacts) -> Iterator[Hypothesis]:
    """The driver is missing or another one than CUDA's; NVML alone failing does no harm to a job that came up."""
    events = log.of("driver")
    if not events or log.of("cuda"):
        return
    nvml_only = all("nvml" in e.text.lower() and "mismatch" not in e.text.lower() for e in events)
    if not (nvml_only and log.came_up):
        text = f"driver and CUDA do not fit together, or there is no driver: {events[0].text[:100]}"
        yield Hypothesis("cuda_driver_mismatch", Confidence.STRONG_PLUS, text, events, _DRIVER)


def _nvls(log: LogFacts, events: tuple[Event, ...], what: str) -> Iterator[Hypothesis]:
    went_on = all("proceeding without nvls" in e.text.lower() or e.data.get("level") == "INFO" for e in events)
    yield Hypothesis(
        "nvls_failure",
        Confidence.CERTAIN,
        f"NVLink SHARP multicast memory could not be bound: {what}",
        events + log.of("fabric_manager"),
        _FM,
        severity=Severity.WARNING if went_on else None,
        how="fabricmanager.log, `nvidia-smi -q | grep -A3 Fabric`; nvidia-smi looks clean while multicast is stuck",
        notes=("NCCL_NVLS_ENABLE=0 only hides it: reductions are slower without",),
    )
    yield Hypothesis(
        "fabric_manager",
        Confidence.STRONG if log.of("fabric_manager") else Confidence.OPEN,
        "Fabric Manager or an NVSwitch is in a bad state",
        events + log.of("fabric_manager"),
        _FM,
    )


def nvlink(log: LogFacts) -> Iterator[Hypothesis]:
    """NVLS, multi-node NVLink, links that are down.  src/transport/nvls.cc, src/mnnvl.cc, src/graph/paths.cc."""
    bind = log.of("nvls_bind")
    if bind:
        yield from _nvls(log, bind, f"CUDA error {bind[0].data.get('code', '?')} {bind[0].data.get('what', '')}".strip())
    elif log.of("fabric_manager"):
        yield Hypothesis(
            "fabric_manager", Confidence.STRONG_PLUS, "Fabric Manager reports a fault", log.of("fabric_manager"), _FM
        )
    if log.above_info("multicast"):
        yield Hypothesis(
            "nvls_failure", Confidence.LIKELY, "multicast was asked for and is not available", log.above_info("multicast"), _FM
        )
    if log.above_info("imex"):
        yield Hypothesis(
            "imex",
            Confidence.STRONG_PLUS,
            "multi-node NVLink is there but does not work: IMEX is not set up",
            log.above_info("imex"),
            _IMEX,
        )
    if log.of("nvlink_p2p"):
        yield Hypothesis(
            "p2p_disabled",
            Confidence.STRONG_PLUS,
            "GPUs that are linked by NVLink cannot reach each other: a hardware fault",
            log.of("nvlink_p2p"),
            severity=Severity.CRITICAL,
            how="nvidia-smi nvlink -s; nvidia-smi topo -p2p r",
        )
        yield Hypothesis("link_degraded", Confidence.OPEN, "an NVLink may be down", log.of("nvlink_p2p"))
    if log.of("nvlink_degraded"):
        yield Hypothesis(
            "link_degraded",
            Confidence.STRONG,
            "the NVLink fabric reports reduced bandwidth",
            log.of("nvlink_degraded"),
            how="nvidia-smi nvlink -s",
        )


def hardware(log: LogFacts) -> Iterator[Hypothesis]:
    """lspci, dmesg and RCCL lines about PCIe; Xid numbers by NVIDIA's Xid catalogue."""
    acs = log.of("acs")
    if acs:
        iommu = any(e.data.get("iommu") for e in acs)
        text = "the kernel runs without iommu=pt" if iommu else "ACS redirects peer-to-peer traffic on a PCIe bridge"
        fix = Fix(
            "switch ACS off on the bridges between GPUs and NICs (or IOMMU to pass-through)",
            ("setpci -s <bridge> ECAP_ACS+0x6.w=0000",),
            ("BIOS: ACS off; kernel command line: iommu=pt",),
        )
        yield Hypothesis("acs_iommu", Confidence.STRONG, text, acs, fix)
    if log.of("iommu_fault"):
        yield Hypothesis("acs_iommu", Confidence.STRONG_MINUS, "the IOMMU refused accesses of a device", log.of("iommu_fault"))
    for e in log.of("xid"):
        xid = e.data.get("xid", "")
        if xid == "79":
            yield Hypothesis("inventory", Confidence.STRONG, "a GPU has fallen off the bus (Xid 79)", (e,))
        elif xid == "74":
            yield Hypothesis("link_degraded", Confidence.STRONG, "NVLink error (Xid 74)", (e,))
        elif xid in {"48", "63", "64", "92", "94", "95"}:
            yield Hypothesis("rank_died", Confidence.LIKELY, f"uncorrectable memory error of a GPU (Xid {xid})", (e,))
        else:
            yield Hypothesis("rank_died", Confidence.OPEN_MINUS, f"the driver reports Xid {xid}", (e,))
    if log.above_info("wrong_data"):
        yield Hypothesis(
            "wrong_data",
            Confidence.CERTAIN,
            "the reduced values are wrong",
            log.above_info("wrong_data"),
            how="nvidia-smi -q -d ECC; the same test pairwise",
        )


def switches(log: LogFacts) -> Iterator[Hypothesis]:
    """Peer-to-peer or shared memory switched off by a variable while several ranks share a node."""
    if log.nranks == 1 or (log.ranks and log.nodes and log.nranks == log.nodes):
        return
    geforce = any("geforce" in g.lower() for g in log.gpus)
    staged = [t for t in log.transports if t.startswith("SHM")]
    if log.env.get("NCCL_P2P_DISABLE") == "1" and (staged or not log.transports) and not geforce:
        yield Hypothesis(
            "p2p_disabled",
            Confidence.QUIET,
            "NCCL_P2P_DISABLE=1: GPUs of a node exchange data through host memory",
            shown=("NCCL_P2P_DISABLE set to 1", *staged[:2]),
            fix=Fix("remove the variable; if jobs hang without it, look for ACS and the IOMMU", ("unset NCCL_P2P_DISABLE",)),
        )
    if log.env.get("NCCL_SHM_DISABLE") == "1" and any(t.startswith("NET") for t in log.transports) and log.many_nodes is False:
        yield Hypothesis(
            "shm_disabled_or_small",
            Confidence.QUIET,
            "NCCL_SHM_DISABLE=1: ranks of one node talk over the network",
            shown=("NCCL_SHM_DISABLE set to 1",),
            fix=Fix("remove the variable and enlarge /dev/shm instead", ("unset NCCL_SHM_DISABLE",)),
            severity=Severity.WARNING,
        )


def _bits(mask: str) -> int:
    return (
        sum(int(p, 16).bit_count() for p in mask.split(",") if re.fullmatch(r"[0-9a-f]{1,16}", p))
        if re.fullmatch(r"[0-9a-f]{1,8}(,[0-9a-f]{8})*", mask)
        else 0
    )


def affinity(log: LogFacts) -> Iterator[Hypothesis]:
    """src/graph/topo.cc, ncclTopoGetCpuAffinity: the GPU's CPUs against those that the process may use."""
    fix = Fix(
        "bind each rank to the NUMA node of its GPU",
        ("srun --gpus-per-task=1 --gpu-bind=closest --cpu-bind=cores …", "numactl --cpunodebind=<node> --membind=<node> …"),
    )
    clash = [(p, g, c) for p in log.ranks for g, c in p.cpu_conflict.items()]
    if clash:
        p, gpu, (mine, theirs) = clash[0]
        yield Hypothesis(
            "numa_affinity",
            Confidence.QUIET,
            f"GPU {gpu} of {p.host or 'this host'} belongs to CPUs {mine}, the process may only use {theirs}",
            shown=(f"Affinity for GPU {gpu} is empty",),
            fix=fix,
            subject=p.host or None,
        )
    squeezed: dict[tuple[str, str], set[int]] = {}
    for p in log.ranks:
        for gpu, mask in p.affinity.items():
            if _bits(mask) == 1:
                squeezed.setdefault((p.host, mask), set()).add(gpu)
    for (host, mask), gpus in squeezed.items():
        if len(gpus) > 1:
            yield Hypothesis(
                "numa_affinity",
                Confidence.QUIET_MINUS,
                f"{len(gpus)} ranks of {host or 'one host'} share one CPU (mask {mask})",
                shown=(f"Setting affinity for GPU {min(gpus)} to {mask}",),
                fix=fix,
                subject=host or None,
            )
            return


RULES = (duplicate, shared_memory, cuda, driver, nvlink, hardware, switches, affinity)

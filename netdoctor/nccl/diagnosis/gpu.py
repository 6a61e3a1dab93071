"""GPUs: CUDA and driver, mapping, NVLS, fabric, peer-to-peer, shared memory, affinity."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.model import Fix, Severity
from netdoctor.nccl.diagnosis.context import CERTAIN, EFFECT, LIKELY, OPEN, QUIET, STRONG, Guess, Scene
from netdoctor.nccl.log.facts import Event

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


def duplicate(s: Scene) -> Iterator[Guess]:
    """src/init.cc: two ranks of one host with one bus id (up to 2.29), or one GPU UUID (2.30.7)."""
    events = s.of("duplicate_gpu")
    if events:
        a, b = events[0].data.get("a"), events[0].data.get("b")
        yield Guess(
            "duplicate_gpu",
            CERTAIN,
            f"ranks {a} and {b} took one GPU" if a and b else "several ranks took one GPU",
            events,
            _MAP,
        )


def shared_memory(s: Scene) -> Iterator[Guess]:
    """/dev/shm cannot hold NCCL's segments: 64 MB is Docker's default (src/misc/shmutils.cc)."""
    full = tuple(e for e in s.of("shm_full") if e.data.get("level") != "INFO" or "no space" in e.text.lower())
    events = full + s.loud("shm_error")
    if not events:
        return
    text = " ".join(e.text.lower() for e in events)
    size = next((e.data["bytes"] for e in events if e.data.get("bytes")), None)
    what = (
        f"a segment of {int(size):,} bytes did not fit into /dev/shm" if size and size.isdecimal() else "/dev/shm is too small"
    )
    if "no space" in text or full:
        yield Guess(
            "shm_disabled_or_small",
            CERTAIN - 2,
            what,
            events,
            _SHM,
            notes=("NCCL_SHM_DISABLE=1 only moves the traffic to the network",),
        )
    else:
        yield Guess(
            "shm_disabled_or_small",
            LIKELY,
            "a shared-memory segment could not be made or opened: /dev/shm is full, absent, or another container's",
            events,
            _SHM,
        )


_MISMATCH = re.compile(
    r"no cuda-capable device|driver version is insufficient|initialization error|forward compat|unsupported toolchain"
    r"|no kernel image|unsupported ptx|not supported in the installed|unsupported display driver|driver shutting down"
    r"|shared object initialization"
)
_BROKEN = re.compile(
    r"illegal memory access|illegal address|launch failure|launch failed|misaligned|assert|illegal instruction|hardware stack"
)
_HARDWARE = re.compile(r"ecc|nvlink was|hardware error|gpu is lost|unspecified hardware|unknown error")


def cuda(s: Scene) -> Iterator[Guess]:
    """``Cuda failure '…'`` (src/include/checks.h), and the same in torch's words; the text is cudaGetErrorString's."""
    for e in s.of("cuda"):
        what = e.data.get("what", e.text)
        low, source = what.lower(), f"{e.source} {e.text[:80]}".lower()
        echo = EFFECT if e.data.get("level") == "INFO" and s.loud("cuda") else 0
        if echo:
            continue
        if "nvls.cc" in source:
            yield from _nvls(s, (e,), what)
        elif "mnnvl" in source or "fabric" in low:
            yield Guess("imex", STRONG, f"multi-node NVLink could not be set up: {what}", (e,), _IMEX)
        elif "system not yet initialized" in low or e.data.get("code") == "802":
            yield Guess(
                "fabric_manager",
                STRONG + 6,
                "CUDA error 802: the NVSwitch fabric is not initialised, Fabric Manager does not run",
                (e,),
                _FM,
            )
            yield Guess("cuda_driver_mismatch", OPEN - 5, "CUDA cannot be initialised", (e,), _DRIVER)
        elif "invalid device ordinal" in low:
            yield Guess(
                "device_mapping",
                STRONG + 5,
                "a GPU that a rank must open is not visible to it",
                (e,),
                _MAP,
                notes=("ranks of one node must all see every GPU of the job on it (CUDA_VISIBLE_DEVICES, --gpus-per-task)",),
            )
            yield Guess("env_misuse", OPEN - 5, "CUDA_VISIBLE_DEVICES differs between ranks of a node", (e,))
        elif _MISMATCH.search(low):
            yield Guess("cuda_driver_mismatch", STRONG + 5, f"CUDA cannot be used here: {what}", (e,), _DRIVER)
            if "no cuda-capable" in low:
                yield Guess("device_mapping", OPEN - 5, "no GPU is visible to this process", (e,), _MAP)
        elif "out of memory" in low:
            yield Guess(
                "rank_died",
                LIKELY,
                "the GPU's memory was full when NCCL asked for buffers",
                (e,),
                Fix(
                    "leave room for NCCL's buffers (about 1 GB a communicator on many channels)",
                    ("nvidia-smi   # another process on that GPU?",),
                ),
            )
        elif _BROKEN.search(low):
            yield Guess(
                "rank_died",
                LIKELY,
                f"a kernel of the program broke the GPU context ({what}); NCCL only reports it",
                (e,),
                Fix("find the kernel", ("CUDA_LAUNCH_BLOCKING=1 python …", "compute-sanitizer python …")),
            )
        elif _HARDWARE.search(low):
            yield Guess("rank_died", LIKELY, f"the GPU failed: {what}", (e,), how="dmesg | grep -i xid; nvidia-smi -q -d ECC")
            yield Guess("inventory", OPEN, "the GPU needs a reset or replacement", (e,))
        elif "p2p.cc" in source or "peer access" in low or "mapping of buffer" in low:
            yield Guess(
                "p2p_disabled", STRONG - 2, f"peer-to-peer between GPUs does not work: {what}", (e,), severity=Severity.CRITICAL
            )
            yield Guess("acs_iommu", OPEN - 5, "ACS or the IOMMU may stand between the GPUs", (e,))
        else:
            yield Guess("other", OPEN, f"CUDA failed: {what}", (e,))
    events = tuple(e for e in s.of("driver"))
    if events and not s.of("cuda"):
        nvml = all("nvml" in e.text.lower() and "mismatch" not in e.text.lower() for e in events)
        if not (nvml and s.came_up):
            yield Guess(
                "cuda_driver_mismatch",
                STRONG + 5,
                f"driver and CUDA do not fit together, or there is no driver: {events[0].text[:100]}",
                events,
                _DRIVER,
            )


def _nvls(s: Scene, events: tuple[Event, ...], what: str) -> Iterator[Guess]:
    went_on = all("proceeding without nvls" in e.text.lower() or e.data.get("level") == "INFO" for e in events)
    yield Guess(
        "nvls_failure",
        CERTAIN - 2,
        f"NVLink SHARP multicast memory could not be bound: {what}",
        events + s.of("fabric_manager"),
        _FM,
        severity=Severity.WARNING if went_on else None,
        how="fabricmanager.log, `nvidia-smi -q | grep -A3 Fabric`; nvidia-smi looks clean while multicast is stuck",
        notes=("NCCL_NVLS_ENABLE=0 only hides it: reductions are slower without",),
    )
    yield Guess(
        "fabric_manager",
        STRONG if s.of("fabric_manager") else OPEN,
        "Fabric Manager or an NVSwitch is in a bad state",
        events + s.of("fabric_manager"),
        _FM,
    )


_IMEX = Fix(
    "start nvidia-imex on every node of the rack with the same node list, and give the job an IMEX channel",
    ("nvidia-imex-ctl -N", "ls /dev/nvidia-caps-imex-channels"),
)


def nvlink(s: Scene) -> Iterator[Guess]:
    """NVLS, multi-node NVLink, links that are down.  src/transport/nvls.cc, src/mnnvl.cc, src/graph/paths.cc."""
    bind = s.of("nvls_bind")
    if bind:
        yield from _nvls(s, bind, f"CUDA error {bind[0].data.get('code', '?')} {bind[0].data.get('what', '')}".strip())
    elif s.of("fabric_manager"):
        yield Guess("fabric_manager", STRONG + 3, "Fabric Manager reports a fault", s.of("fabric_manager"), _FM)
    if s.loud("multicast"):
        yield Guess("nvls_failure", LIKELY, "multicast was asked for and is not available", s.loud("multicast"), _FM)
    if s.loud("imex"):
        yield Guess(
            "imex", STRONG + 5, "multi-node NVLink is there but does not work: IMEX is not set up", s.loud("imex"), _IMEX
        )
    if s.of("nvlink_p2p"):
        yield Guess(
            "p2p_disabled",
            STRONG + 3,
            "GPUs that are linked by NVLink cannot reach each other: a hardware fault",
            s.of("nvlink_p2p"),
            severity=Severity.CRITICAL,
            how="nvidia-smi nvlink -s; nvidia-smi topo -p2p r",
        )
        yield Guess("link_degraded", OPEN, "an NVLink may be down", s.of("nvlink_p2p"))
    if s.of("nvlink_degraded"):
        yield Guess(
            "link_degraded",
            STRONG,
            "the NVLink fabric reports reduced bandwidth",
            s.of("nvlink_degraded"),
            how="nvidia-smi nvlink -s",
        )


def hardware(s: Scene) -> Iterator[Guess]:
    """lspci, dmesg and RCCL lines about PCIe; Xid numbers by NVIDIA's Xid catalogue."""
    acs = s.of("acs")
    if acs:
        iommu = any(e.data.get("iommu") for e in acs)
        text = "the kernel runs without iommu=pt" if iommu else "ACS redirects peer-to-peer traffic on a PCIe bridge"
        fix = Fix(
            "switch ACS off on the bridges between GPUs and NICs (or IOMMU to pass-through)",
            ("setpci -s <bridge> ECAP_ACS+0x6.w=0000",),
            ("BIOS: ACS off; kernel command line: iommu=pt",),
        )
        yield Guess("acs_iommu", STRONG, text, acs, fix)
    if s.of("iommu_fault"):
        yield Guess("acs_iommu", STRONG - 2, "the IOMMU refused accesses of a device", s.of("iommu_fault"))
    for e in s.of("xid"):
        xid = e.data.get("xid", "")
        if xid == "79":
            yield Guess("inventory", STRONG, "a GPU has fallen off the bus (Xid 79)", (e,))
        elif xid == "74":
            yield Guess("link_degraded", STRONG, "NVLink error (Xid 74)", (e,))
        elif xid in {"48", "63", "64", "92", "94", "95"}:
            yield Guess("rank_died", LIKELY, f"uncorrectable memory error of a GPU (Xid {xid})", (e,))
        else:
            yield Guess("rank_died", OPEN - 2, f"the driver reports Xid {xid}", (e,))
    if s.loud("wrong_data"):
        yield Guess(
            "wrong_data",
            CERTAIN - 3,
            "the reduced values are wrong",
            s.loud("wrong_data"),
            how="nvidia-smi -q -d ECC; the same test pairwise",
        )


def switches(s: Scene) -> Iterator[Guess]:
    """Peer-to-peer or shared memory switched off by a variable while several ranks share a node."""
    f = s.facts
    if f.nranks == 1 or (f.ranks and f.nodes and f.nranks == f.nodes):
        return
    geforce = any("geforce" in g.lower() for g in f.gpus)
    staged = [t for t in f.transports if t.startswith("SHM")]
    if f.env.get("NCCL_P2P_DISABLE") == "1" and (staged or not f.transports) and not geforce:
        yield Guess(
            "p2p_disabled",
            QUIET,
            "NCCL_P2P_DISABLE=1: GPUs of a node exchange data through host memory",
            shown=("NCCL_P2P_DISABLE set to 1", *staged[:2]),
            fix=Fix("remove the variable; if jobs hang without it, look for ACS and the IOMMU", ("unset NCCL_P2P_DISABLE",)),
        )
    if f.env.get("NCCL_SHM_DISABLE") == "1" and any(t.startswith("NET") for t in f.transports) and s.many_nodes is False:
        yield Guess(
            "shm_disabled_or_small",
            QUIET,
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


def affinity(s: Scene) -> Iterator[Guess]:
    """src/graph/topo.cc, ncclTopoGetCpuAffinity: the GPU's CPUs against those that the process may use."""
    fix = Fix(
        "bind each rank to the NUMA node of its GPU",
        ("srun --gpus-per-task=1 --gpu-bind=closest --cpu-bind=cores …", "numactl --cpunodebind=<node> --membind=<node> …"),
    )
    clash = [(p, g, c) for p in s.facts.ranks for g, c in p.cpu_conflict.items()]
    if clash:
        p, gpu, (mine, theirs) = clash[0]
        yield Guess(
            "numa_affinity",
            QUIET,
            f"GPU {gpu} of {p.host or 'this host'} belongs to CPUs {mine}, the process may only use {theirs}",
            shown=(f"Affinity for GPU {gpu} is empty",),
            fix=fix,
            subject=p.host or None,
        )
    squeezed: dict[tuple[str, str], set[int]] = {}
    for p in s.facts.ranks:
        for gpu, mask in p.affinity.items():
            if _bits(mask) == 1:
                squeezed.setdefault((p.host, mask), set()).add(gpu)
    for (host, mask), gpus in squeezed.items():
        if len(gpus) > 1:
            yield Guess(
                "numa_affinity",
                QUIET - 1,
                f"{len(gpus)} ranks of {host or 'one host'} share one CPU (mask {mask})",
                shown=(f"Setting affinity for GPU {min(gpus)} to {mask}",),
                fix=fix,
                subject=host or None,
            )
            return


RULES = (duplicate, shared_memory, cuda, nvlink, hardware, switches, affinity)

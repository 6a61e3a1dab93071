"""What stands around a job and fails it: names that do not resolve, hubs that refuse, file systems, GPUs that are not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, author, caught
from netdoctor.nccl.diagnosis.went_on import After, after, before, order
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_NAMES: Final = "getent hosts {}   # on every node, and in the container"
_STORAGE: Final = {
    # what the pattern of `storage` caught -> what is wrong, and what mends it
    "full": ("the file system is full", Fix("make room in it, or write elsewhere", ("df -h <folder>; df -i <folder>",))),
    "quota": ("the quota is used up", Fix("make room, or ask for a larger quota", ("quota -s; lfs quota -h <folder>",))),
    "read_only": (
        "the file system is mounted read-only: on purpose, or the kernel made it so after an error",
        Fix("write elsewhere, or see why it is read-only", ("findmnt -T <folder>; dmesg | tail -50",)),
    ),
    "gone": (
        "the file system's server forgot the file or is gone (NFS, Lustre, FUSE)",
        Fix("mount it again, and see its server", ("findmnt -T <folder>; ls <folder>; dmesg | tail -50",)),
    ),
    "broken": (
        "the device or the server below the file system gives errors",
        Fix("see what the kernel says of the disk or the mount", ("dmesg | tail -50; findmnt -T <folder>",)),
    ),
    "write": (
        "a file could not be written whole: a full disk, a quota, or a mount that went away",
        Fix("see the folder that it was written to", ("df -h <folder>; df -i <folder>; quota -s; findmnt -T <folder>",)),
    ),
}
_HUB: Final = {
    "gated": ("the model or data is gated: the account has no access, or no token came with the request", "token"),
    "token": ("the credentials are missing, wrong or expired", "token"),
    "401": ("the credentials are missing, wrong or expired (HTTP 401)", "token"),
    "403": ("the account may not read it (HTTP 403)", "token"),
    "absent": ("it has no such model, data set, revision or file, or shows it to nobody without a token", "absent"),
    "404": ("it has no such model, data set, revision or file (HTTP 404)", "absent"),
    "429": ("too many requests: its limit of requests is reached (HTTP 429)", "many"),
    "many": ("too many requests: its limit of requests is reached", "many"),
    "unreached": ("it cannot be reached from here, and the file is not in the cache", "cache"),
}
_HUB_FIXES: Final = {
    "token": Fix("log in with an account that may read it", ("huggingface-cli whoami", "export HF_TOKEN=<token>")),
    "absent": Fix("see the name, the revision and the path; private ones need a token", ("huggingface-cli whoami",)),
    "many": Fix("fetch it once for all ranks and read the cache, or wait", ("export HF_HUB_OFFLINE=1",)),
    "cache": Fix("fetch it where there is a way out, or set the proxy", ("echo $HTTPS_PROXY",)),
}
_NVML: Final = {
    "not found": (
        "CUDA shows a GPU that NVML does not know: the container, the virtual machine or WSL shows the GPUs in part",
        "inventory",
    ),
    "unknown error": (
        "NVML may not open the GPU: the container has lost its devices (systemd reloaded the cgroups), or the GPU is lost",
        "device_mapping",
    ),
}
_SEE_GPUS: Final = Fix(
    "see which GPUs the driver, NVML and the container know, and start the container again",
    ("nvidia-smi -L; ls -l /dev/nvidia*; cat /proc/driver/nvidia/gpus/*/information", "dmesg | grep -i -e xid -e nvrm"),
)

_TRIES: Final = 8  # of each it warns twice, by IPv6 and by IPv4: two tries go by while a name server learns a new name
_ONE_HOST: Final = Fix(
    "give the name of one host, the first of the list",
    ('export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',),
)


def _last(log: LogFacts, kind: EventKind) -> tuple[Event, ...]:
    """Those after which nothing went on."""
    return tuple(e for e in sorted(log.of(kind), key=order) if not e.mild and after(log, e) is After.STOPPED)


def _in_vain(log: LogFacts, e: Event) -> bool:
    """Whether torch's warning came again with each try (c10d's socket.cpp), until somebody ended what came no further."""
    return e.count >= _TRIES and after(log, e) is After.STOPPED and any(before(e, o) for o in log.of("ended"))


def names(log: LogFacts) -> Iterator[Hypothesis]:
    """getaddrinfo(3) has no address for a name, in glibc's, Python's, Go's or Rust's words."""
    events = _last(log, "unresolved") or tuple(
        e for e in log.of("unresolved") if e.mild and (log.above_info("store") or _in_vain(log, e))
    )
    if not events:
        return
    host = next(iter(caught(events, "host")), None)
    if host and "[" in host:
        text = f"{host} is a list of nodes as Slurm writes it, and no host's name: it does not resolve"
        yield Hypothesis("missing_node", Confidence.STRONG_MINUS, text, events, _ONE_HOST, subject=host)
        return
    text = f"the name {host} does not resolve" if host else "the name of a host does not resolve"
    text += ": DNS or /etc/hosts does not know it where this process runs"
    if any(Wording.DNS_SILENT.within(e.text) for e in events):
        text = f"{f'the name {host}' if host else 'the name of a host'} was not resolved: no name server answered (EAI_AGAIN)"
    fix = Fix(
        "see that every node resolves the name, or give the address instead",
        (_NAMES.format(host or "<name>"), "cat /etc/resolv.conf /etc/hosts; echo $MASTER_ADDR"),
        ("in Kubernetes: a headless Service whose selector matches the pods, with publishNotReadyAddresses: true",),
    )
    yield Hypothesis("missing_node", Confidence.STRONG_MINUS, text, events, fix, subject=host)
    text = "the name server may be out of reach from here"
    yield Hypothesis("firewall_connect", Confidence.OPEN_MINUS, text, events, fix, subject=host)


def services(log: LogFacts) -> Iterator[Hypothesis]:
    """A hub of models or data, or an object store, that refused a request of the program's."""
    events = _last(log, "service")
    ended = log.of("exception", "raised", "died", "elastic") or not (log.nccl_lines or log.work)
    if not events or not ended or log.above_info("generic", "watchdog", "cuda"):
        return
    told = ((e, key) for key in _HUB for e in events if key in e.data or key == e.data.get("code"))
    e, key = next(told, (events[0], ""))
    said, mend = _HUB.get(key, ("it answered with an error", "cache"))
    yield Hypothesis(
        "other",
        Confidence.STRONG_MINUS,
        f"a hub of models or data, or an object store, refused the program: {said}",
        (e, *(other for other in events[:4] if other is not e)),
        _HUB_FIXES[mend],
        fault=Fault.SERVICE,
    )


def storage(log: LogFacts) -> Iterator[Hypothesis]:
    """A file could not be read or written, for what strerror(3), torch's writer or safetensors say."""
    events = tuple(e for e in _last(log, "storage") if e.level is None)  # NCCL writes to no file system but /dev/shm
    if not events:
        return
    key = next((key for key in _STORAGE for e in events if key in e.data), "write")
    said, fix = _STORAGE[key]
    text = f"a file system of the job fails it: {said}"
    yield Hypothesis("node_storage", Confidence.LIKELY_PLUS, text, events[:4], fix, fault=Fault.STORAGE)


def short(log: LogFacts) -> Iterator[Hypothesis]:
    """More GPUs asked for than a cluster, a node or a placement group has."""
    events = _last(log, "short")
    if events:
        text = f"the job asks for more GPUs than there are: {events[0].data.get('said', '')}"
        fix = Fix(
            "see how many GPUs the cluster shows, and lower the parallel sizes or add nodes",
            ("ray status; nvidia-smi -L; echo $CUDA_VISIBLE_DEVICES",),
        )
        yield Hypothesis("missing_node", Confidence.STRONG_MINUS, text, events, fix)
        text = "a node or process may see fewer GPUs than it has"
        yield Hypothesis("device_mapping", Confidence.OPEN, text, events, fix)


def nvml(log: LogFacts) -> Iterator[Hypothesis]:
    """NVML does not find a GPU that CUDA enumerates, or may not open it: src/misc/nvmlwrap.cc, nvml.h (nvmlReturn_t)."""
    events = tuple(e for e in log.above_info("nvml") if log.reached.get(e.file, 0) < e.line)
    if not events:
        return
    why = next(iter(caught(events, "why")), "").lower().replace("notfound", "not found")
    said, cause = _NVML.get(why, ("NVML does not give the process the GPU that CUDA shows", "device_mapping"))
    gpu = next(iter(caught(events, "gpu")), "")
    text = f"{said}{f' (GPU {gpu})' if gpu else ''}"
    yield Hypothesis(cause, Confidence.STRONG_MINUS, text, events, _SEE_GPUS)
    other = "device_mapping" if cause == "inventory" else "inventory"
    yield Hypothesis(other, Confidence.OPEN, text, events, _SEE_GPUS)
    yield Hypothesis("cuda_driver_mismatch", Confidence.OPEN_MINUS, "or NVML's library is of another driver", events)


def closed(log: LogFacts) -> Iterator[Hypothesis]:
    """An agent marks the rendezvous closed when its workers have ended; those that come later are refused."""
    events = _last(log, "rendezvous_closed")
    if events:
        text = "the rendezvous was closed: another node's agent had ended, well or badly, or its run id is used again"
        how = "the log of the node that ended first; a run id (--rdzv-id) that no earlier job had"
        who = author(events)
        yield Hypothesis("rank_died", Confidence.EFFECT_PLUS, text, events, how=how, subject=None if who == "job" else who)


def stragglers(log: LogFacts) -> Iterator[Hypothesis]:
    """A supervisor timed the nodes against each other before the job, and put a slow one out."""
    events = _last(log, "straggler")
    cut_off = tuple(e for e in events if "broken" in e.data)
    if cut_off:
        text = "the supervisor's check of the network between the nodes failed on this node, and it was put out of the job"
        how = "netdoctor preflight, on that node and another"
        yield Hypothesis("firewall_connect", Confidence.STRONG_MINUS, text, cut_off, how=how)
    elif events:
        host = next(iter(caught(events, "host")), None)
        who = f"node {host}" if host else "this node"
        text = f"{who} is slower than the others, by the supervisor's own check of the nodes, and was put out of the job"
        how = "netdoctor preflight, on that node and another; nvidia-smi -q -d PERFORMANCE,CLOCK"
        yield Hypothesis("straggler", Confidence.STRONG_MINUS, text, events, how=how, subject=host and who)


def ucx(log: LogFacts) -> Iterator[Hypothesis]:
    """UCX was told to use its CUDA transports and has none: what fails after it (ibv_reg_mr) follows."""
    events = log.of("ucx_no_cuda")
    if events and not log.of("finished") and not log.good:
        text = (
            "UCX has no CUDA transports (cuda_copy, cuda_ipc): it takes a GPU's memory for the host's, and cannot register it"
        )
        fix = Fix(
            "use a UCX that was built with CUDA, whose modules load here", ("ucx_info -d | grep -i cuda; ldd libuct_cuda.so",)
        )
        yield Hypothesis("plugin_mismatch", Confidence.STRONG_MINUS, text, events, fix)


RULES = (names, services, storage, short, nvml, closed, stragglers, ucx)

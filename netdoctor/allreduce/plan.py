"""Which all-reduces this node gets: the baseline as the job would run it, and the inter-node path, one HCA port at a time."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor.allreduce.verdict import not_started
from netdoctor.facts.gpu import Gpu
from netdoctor.facts.gpu_users import GpuUsers
from netdoctor.facts.intent import Intent
from netdoctor.facts.layers import MAX_RANKS
from netdoctor.facts.registry import of
from netdoctor.facts.runs import (
    AllReduce,
    Baseline,
    Caller,
    NcclFacts,
    Obstacle,
    Path,
    PathRun,
    Reason,
    Run,
    State,
    TorchFacts,
    Way,
)
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl import hcas, selector
from netdoctor.nccl.integers import integer
from netdoctor.textsafe import listed

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session

# Facts that the plan is made from (names as the engine keeps them).
NEEDS: Final = ("Gpus", "GpuUsers", "Rdma", "Pci", "Intent", "Environ", "Expected")

MIB: Final = 1 << 20
# NVLink needs about 256 MiB to come near its limit (nccl-tests' own curves on 8 GPUs); a NIC does at 64 MiB.
CUDA_SIZES: Final = (1 << 12, MIB, 64 * MIB, 256 * MIB)
PATH_SIZES: Final = (MIB, 64 * MIB)
# Two ranks on one GPU take turns in time slices: they prove the path and the data, not the bandwidth.
SHARED_GPU_SIZES: Final = (1 << 12, MIB)

BUSY_PERCENT: Final = 5
LEAST_SECONDS: Final = 5.0  # a run of the path needs that much to be worth its start

# Off: everything by which ranks of one node reach each other without the network (NCCL docs, environment variables).
NETWORK_ONLY: Final = (
    ("NCCL_P2P_DISABLE", "1"),
    ("NCCL_SHM_DISABLE", "1"),
    ("NCCL_NVLS_ENABLE", "0"),
    ("NCCL_MNNVL_ENABLE", "0"),
    ("NCCL_COLLNET_ENABLE", "0"),
)
# Two ranks on one GPU are refused, unless NCCL takes them for two hosts (src/init.cc: hostHash of NCCL_HOSTID).
TWO_HOSTS: Final = ((("NCCL_HOSTID", "netdoctor-0"),), (("NCCL_HOSTID", "netdoctor-1"),))
ONE_GPU_ENV: Final = (("NCCL_MAX_CTAS", "1"), ("NCCL_MNNVL_ENABLE", "0"), ("NCCL_NVLS_ENABLE", "0"))

GLOO: Final = AllReduce("gloo", 2, "cpu")


def baseline(session: Session, facts: Mapping[str, Any], deadline: float) -> Baseline:
    """The all-reduce as the job would run it on this node: a rank a GPU, else two Gloo ranks."""
    answered = session.facts(deadline)
    if isinstance(answered, Unavailable) and session.via is Caller.NCCL:
        experiment = AllReduce("nccl", 2, "cuda", CUDA_SIZES)
        run = session.run(experiment, deadline)  # which says why not
    else:
        experiment = first_experiment(answered, of(facts, "Intent"))
        run = _run(session, experiment, facts, deadline)
    return Baseline(run, experiment.backend == "nccl" and run.state != State.NOT_STARTED)


def path_run(session: Session, facts: Mapping[str, Any], deadline: float) -> PathRun:
    """The path that leaves the node, proven without leaving it.  Unavailable where NCCL cannot run here at all."""
    answered = session.facts(deadline)
    if isinstance(answered, Unavailable):
        return PathRun.unread(answered)
    experiments = over_the_path(answered, facts)
    if isinstance(experiments, Unavailable):
        return PathRun.unread(experiments)
    runs = []
    for experiment in experiments:
        if time.monotonic() + LEAST_SECONDS > deadline and not (busy(facts, experiment)):
            runs.append(not_started(experiment, Reason(Obstacle.TIME, "no time left for this path"), answered, via=session.via))
        else:
            runs.append(_run(session, experiment, facts, deadline))
    return PathRun(tuple(runs))


def over_the_path(answered: TorchFacts | NcclFacts, facts: Mapping[str, Any]) -> tuple[AllReduce, ...] | Unavailable:
    """The runs of the inter-node path, or why there are none."""
    if (unneeded := path_unneeded(of(facts, "Intent"))) is not None:
        return unneeded
    if (count := gpus_of(answered)) == 0:
        return Unavailable(Kind.UNSUPPORTED, "the job's torch sees no CUDA device, so NCCL has no path to prove")
    return path_experiments(count, facts)


def usual_seconds(experiment: AllReduce) -> float:
    """On a healthy node, about: below 10 s for the CUDA contexts of 8 GPUs and 5 s for NCCL's initialisation (`runner.LIMITS`),
    and a second or two for the data."""
    return 6.0 + 1.25 * len(set(experiment.gpus)) if experiment.backend == "nccl" else 2.0


def path_unneeded(intent: Intent) -> Unavailable | None:
    """Why the path to other nodes is not tried."""
    needed, why = intent.across
    return Unavailable(Kind.UNSUPPORTED, f"{why}: nothing goes to other nodes") if needed is False else None


def first_experiment(answered: TorchFacts | NcclFacts | Unavailable, job: Intent) -> AllReduce:
    """The baseline for what the job's torch, or the driver, shows."""
    count = 0 if isinstance(answered, Unavailable) else gpus_of(answered)
    if count == 0:
        return GLOO
    if count == 1:
        alone = (("NCCL_NET", "Socket"),) if job.others is False else ()  # then the network must not fail what needs none
        return replace(_shared_gpu(), env=(*ONE_GPU_ENV, *alone))
    wanted = min(count, job.ranks_per_node) if job.ranks_per_node else count
    ranks = max(2, min(wanted, MAX_RANKS))
    return AllReduce("nccl", ranks, "cuda", CUDA_SIZES, gpus=tuple(range(ranks)))


def path_experiments(count: int, facts: Mapping[str, Any]) -> tuple[AllReduce, ...]:
    """One run a port of the HCAs that the job uses; one over all ports where the site says that its rails are routed, and
    where NCCL's own InfiniBand transport is not what would carry the data."""
    two_gpus = AllReduce("nccl", 2, "cuda", PATH_SIZES, NETWORK_ONLY, path=Path(Way.INTER_NODE), gpus=(0, 1))
    base = _shared_gpu() if count == 1 else two_gpus
    ports = _ports(facts)
    expected = of(facts, "Expected")
    one_by_one = tuple(
        replace(
            base,
            env=(*base.env, ("NCCL_IB_HCA", f"={device}:{port}")),
            path=Path(Way.INTER_NODE, device, port),
            gpus=(0, 0) if count == 1 else near,
        )
        for device, port, near in ports
    )
    return (*one_by_one, base) if expected.rails_routed or not one_by_one else one_by_one


def _shared_gpu() -> AllReduce:
    return AllReduce("nccl", 2, "cuda", SHARED_GPU_SIZES, ONE_GPU_ENV, TWO_HOSTS, path=Path(Way.INTER_NODE), gpus=(0, 0))


def _ports(facts: Mapping[str, Any]) -> list[tuple[str, int, tuple[int, int]]]:
    """(HCA, port, two GPUs near it) of every active port that the job's NCCL would take."""
    rdma, gpus, pci, environ = (of(facts, name) for name in ("Rdma", "Gpus", "Pci", "Environ"))
    if isinstance(rdma.devices, Unavailable):
        return []
    network, off = environ.get("NCCL_NET"), environ.get("NCCL_IB_DISABLE")
    if (isinstance(network, str) and network.lower() != "ib") or (off and integer(off)):
        return []  # the job's choice: then one run over whatever carries its data
    choice = selector.parse_hcas(environ.get("NCCL_IB_HCA") or "")
    places = hcas.places(gpus, pci)
    among = hcas.candidates(rdma.devices, pci)
    meant = [(p.ordinal, among.nearest(p)[1]) for p in places or () if p.ordinal is not None]
    out = []
    for device in (one.device for one in hcas.subjects(rdma.devices, places, pci, choice)):
        near = [ordinal for ordinal, own in meant if device in own]
        others = [n for n in range(2) if n not in near]
        pair = (*near, *others)[:2]
        numbers = [p.number for p in hcas.active_ports(device) if choice is None or choice.takes(device.name, p.number)]
        out += [(device.name, number, (pair[0], pair[1])) for number in numbers]
    return out


def _run(session: Session, experiment: AllReduce, facts: Mapping[str, Any], deadline: float) -> Run:
    session.gpus = of(facts, "Intent").gpus or ()
    if reason := busy(facts, experiment):
        return session.busy(experiment, reason, deadline)
    return session.run(experiment, deadline)


def busy(facts: Mapping[str, Any], experiment: AllReduce) -> Reason | None:
    """Why the GPUs are left alone; None where they are free.  NVML is blind for processes of other PID namespaces, so memory
    and utilisation count as well."""
    if experiment.device != "cuda":
        return None
    pairs = of(facts, "Gpus").of_the_job
    if isinstance(pairs, Unavailable):
        return Reason(Obstacle.GPU_UNREAD, f"whether the GPUs are in use could not be read ({pairs})")
    known = {seen.ordinal: gpu for seen, gpu in pairs}
    users: GpuUsers = of(facts, "GpuUsers")
    found = [(n, reason) for n in sorted(set(experiment.gpus)) if (reason := _in_use(known.get(n), users))]
    if not found:
        return None
    first = next((reason for _, reason in found if reason.obstacle is Obstacle.GPU_BUSY), found[0][1])
    return replace(first, text=listed([f"GPU {n} {reason}" for n, reason in found], 3, between="; "))


def _in_use(gpu: Gpu | None, users: GpuUsers) -> Reason | None:
    if gpu is None:
        return Reason(Obstacle.GPU_UNREAD, "is not known to NVML: whether it is in use could not be read")
    if isinstance(gpu.processes, int) and gpu.processes:
        return Reason(Obstacle.GPU_BUSY, f"is in use by {users.of(gpu)}")
    if gpu.held:
        return Reason(Obstacle.GPU_BUSY, f"is in use: {(gpu.memory_used or 0) // MIB} MiB of its memory")
    if isinstance(gpu.utilization, int) and gpu.utilization > BUSY_PERCENT:
        return Reason(Obstacle.GPU_BUSY, f"is in use: {gpu.utilization} % busy")
    if isinstance(gpu.memory_used, Unavailable) and isinstance(gpu.processes, Unavailable):
        return Reason(Obstacle.GPU_UNREAD, f"does not tell whether it is in use ({gpu.memory_used})")
    return None


def gpus_of(answered: TorchFacts | NcclFacts) -> int:
    """CUDA devices that NCCL could use; a ROCm torch calls its devices cuda too, and RCCL is not judged."""
    if isinstance(answered, NcclFacts):
        return answered.device_count or 0
    torch = answered
    return (torch.device_count or 0) if torch.cuda_available and torch.nccl_built and not torch.hip else 0

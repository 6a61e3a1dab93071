"""Each rank of the job on this node has a GPU of its own, and it is the job's: nobody else computes on it.

How many GPUs the job sees is hardware.accelerator's to say; this is about who takes which.  A driver before R570 shows a
process the first MIG instance of its mask alone; to NCCL before 2.30.3 two instances of one GPU are one GPU.
From the node, outside any job: GPUs that a process holds which ended or stands in the kernel, and memory that none explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Environ,
    Finding,
    Fix,
    Gift,
    Gpus,
    GpuUsers,
    Launcher,
    Libraries,
    Pci,
    Ranks,
    Unavailable,
    Vantage,
    Version,
    check,
    cost,
    count,
    devices,
    expectation,
    fail,
    in_use,
    layers,
    missing,
    ok,
    skip,
    unknown,
    used_nccl,
)

RANKS, GIVEN = "ranks", "GPUs that were given"
PARTS = "name one MIG instance for each rank: CUDA_VISIBLE_DEVICES=MIG-UUID (nvidia-smi -L)"
FIT = "see what NCCL makes of it: NCCL_DEBUG=WARN, netdoctor allreduce"


@check(id="gpu.mapping", title="Each rank has a GPU of its own, and it is the job's", cause="device_mapping")
def gpu_mapping(
    pci: Pci, gpus: Gpus, users: GpuUsers, ranks: Ranks, environ: Environ, vantage: Vantage, libraries: Libraries, run: Baseline
) -> Iterator[Finding]:
    if (nothing := expectation.without_gpus(pci, gpus)) is not None:
        yield nothing
        return
    if vantage.outside or not vantage.job_environment:
        yield from in_use.left_behind(gpus, users)
    if vantage.outside:
        yield skip(f"who gets which GPU is the job's: {vantage.elsewhere}")
        return
    if not vantage.job_environment:
        yield unknown(f"which rank gets which GPU is not seen: {vantage.elsewhere}", how=FROM_JOB)
        return
    lost = missing(gpus.all, gpus.visible, environ.variables, environ.launcher)
    if lost is not None or isinstance(environ.launcher, Unavailable):
        yield unknown(f"which rank gets which GPU could not be read: {lost}", how=layers.look_for_gpus(gpus, vantage))
        return
    gone = layers.lost(layers.gpu_layers(pci, gpus, run), vantage)
    yield _ranks(gpus, ranks, environ, environ.launcher, used_nccl(libraries, run), gone)
    yield _given(gpus, environ, vantage)
    yield in_use.judge(gpus, users, ranks, environ)


def _ranks(
    gpus: Gpus, ranks: Ranks, environ: Environ, launcher: Launcher, nccl: Version | Unavailable, gone: tuple[str, ...]
) -> Finding:
    """`gone`: GPUs that the driver lost."""
    if launcher.local_rank is None:
        return skip("this process is no rank: its launcher gives GPUs to ranks when it starts", subject=RANKS)
    if isinstance(ranks.seen, Unavailable):
        return unknown(f"the other ranks of this node could not be read: {ranks.seen}", subject=RANKS)
    own = [one for one in ranks.seen if one.same]
    taken = devices.taken(own, gpus)
    shared, text = devices.shared(taken, gpus, nccl, layers.crowds(environ)), ""
    masks = {one.local_rank: one.mask for one in own}
    if shared is not None:
        by = (
            "by CUDA_VISIBLE_DEVICES and their numbers"
            if any(masks[rank] is not None for rank in shared.ranks)
            else "the only one"
        )
        text = f"{_named(shared.ranks)} of this node take {shared.what}, {by}"
        if shared.allowed is False:
            why = "NCCL ends with: Duplicate GPU detected"
            fix = devices.mend([masks[rank] for rank in shared.ranks], gpus, environ, gone)
            return fail(text, subject=RANKS, cause="duplicate_gpu", loss=cost.STOPS, fix=fix, why=why, gpu=shared.device)
    if some := taken.without:
        without = [masks[rank] for rank in some]
        if any(mask is not None for mask in without):
            text = f"CUDA_VISIBLE_DEVICES leaves no GPU for {_named(some)} here"
        else:
            there = f"{count(devices.shown(gpus), 'GPU')} for {count(len(masks), 'rank')}"
            text = f"there is no GPU for {_named(some)} of this node: NVML shows {there}"
        text += f"; PCI shows {', '.join(gone)} as well, which the driver lost" if gone else ""
        return fail(text, subject=RANKS, loss=cost.STOPS, fix=devices.mend(without, gpus, environ, gone))
    if taken.unclear:
        rank, lost = min(taken.unclear.items())
        return unknown(f"which GPU rank {rank} takes is not known: {lost}", subject=RANKS, how=PARTS)
    if shared is not None and isinstance(shared.allowed, Unavailable):
        return unknown(f"{text}: whether NCCL takes them is not known: {shared.allowed}", subject=RANKS, how=FIT)
    should = launcher.local_world
    if len(own) < len(ranks.seen) or not should or len(own) < should:
        text = f"{len(own)} of {should or 'the'} ranks of this node were seen, each with a GPU of its own"
        return unknown(text, subject=RANKS, how="the others start later, or have GPUs of their own by cgroup")
    if shared is not None:
        return skip(f"{text}, and NCCL_MULTI_RANK_GPU_ENABLE lets them", subject=RANKS)
    return ok(f"{count(len(own), 'rank')} of this node, each with a GPU of its own", subject=RANKS)


def _named(ranks: Sequence[int]) -> str:
    return f"{'ranks' if ranks[1:] else 'rank'} {', '.join(map(str, ranks))}"


def _given(gpus: Gpus, environ: Environ, vantage: Vantage) -> Finding:
    """Libcuda shows the job no more than Slurm or the container's runtime gave it; the others are somebody else's."""
    visible = gpus.visible or ()
    modes = [gpu.mig for gpu in gpus.all or () if isinstance(gpu.uuid, str)]  # which a cgroup does not keep away
    if True in modes:
        return skip("GPUs in MIG mode are given by instance", subject=GIVEN)
    if (lost := missing(*modes)) is not None:
        return unknown(f"whether a GPU is in MIG mode, and given by instance, could not be read: {lost}", subject=GIVEN)
    said = environ.get("NVIDIA_VISIBLE_DEVICES") if vantage.in_container else None
    names = layers.named_gpus(said) if isinstance(said, str) and layers.gift(said) is Gift.LIST else ()
    if names and all(name.startswith("GPU-") for name in names):
        strange = [one.uuid for one in visible if not one.uuid.startswith(names)]
        if strange and len(visible) > len(names):
            given = count(len(names), "GPU")
            return _others(f"this container was given {given}, libcuda shows it {', '.join(strange)} as well")
        if strange:
            text = f"this container was given {', '.join(names)}, and libcuda shows it {', '.join(strange)}"
            return unknown(text, subject=GIVEN, how="who set CUDA_VISIBLE_DEVICES, and is the container privileged?")
        return ok("libcuda shows no GPU but those that this container was given", subject=GIVEN)
    if (others := devices.of_another_job(gpus, environ)) is not None:
        return _others(others)
    by_slurm = environ.get("SLURM_GPUS_ON_NODE")
    if isinstance(by_slurm, str) and by_slurm.isdecimal() and int(by_slurm):
        if len(visible) > int(by_slurm):
            return _others(f"Slurm gave this job {count(int(by_slurm), 'GPU')} here, libcuda shows it {len(visible)}")
        return ok("libcuda shows no more GPUs than Slurm gave this job", subject=GIVEN)
    return skip("neither Slurm nor a container's runtime says which GPUs were given", subject=GIVEN)


def _others(text: str) -> Finding:
    return fail(
        f"{text}: some are another job's",
        subject=GIVEN,
        loss=cost.SOMETIMES,
        fix=Fix("leave CUDA_VISIBLE_DEVICES to Slurm; ConstrainDevices=yes keeps others away", ("echo $CUDA_VISIBLE_DEVICES",)),
    )

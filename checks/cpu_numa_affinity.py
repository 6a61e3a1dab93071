"""Ranks may run on CPUs, and take memory, near their GPUs.

Near is by SLIT distance, not by equality: on AMD with four nodes a socket the neighbour is 12 away, the other socket 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    WITH_RUN,
    Baseline,
    Cpu,
    Cure,
    Environ,
    Finding,
    Fix,
    Gpus,
    Intent,
    Interrupts,
    Kind,
    Libraries,
    Net,
    Node,
    PathRun,
    Pci,
    RankResult,
    Ranks,
    Rdma,
    Run,
    SeenRank,
    Status,
    Unavailable,
    Vantage,
    affinity,
    check,
    cost,
    fail,
    fix_container,
    fix_environment,
    hcas,
    missing,
    nccl_integer,
    ok,
    others,
    record,
    skip,
    slurm_cpus,
    transport,
    unknown,
)

# A rank keeps two threads busy: its own, and the proxy that moves what goes through host memory or a NIC (NCCL src/proxy.cc).
TURNS = "cores that the rank's main thread and NCCL's proxy thread need"
EACH = "srun … bash -c 'grep Cpus_allowed_list /proc/self/status; echo $CUDA_VISIBLE_DEVICES', in each rank"
MORE = Fix("give the job more cores (--cpus-per-task, cpuset, taskset)", ("grep Cpus_allowed_list /proc/self/status",))
DEISOLATE = Fix(
    "take isolcpus away from a node of jobs; until then bind each rank's threads to cores of their own (taskset)",
    ("cat /sys/devices/system/cpu/isolated", "cat /proc/cmdline"),
    ("tuned-adm profile throughput-performance   # instead of cpu-partitioning, then reboot",),
)
# set_mempolicy(2): where pages come from; without nodes "preferred" is the node of the CPU that asks.
PREFERRED = frozenset({"preferred", "preferred many"})
ONLY_FROM = frozenset({"bind", "interleave", "weighted interleave"})
MEMORY = frozenset({"default", "local", *PREFERRED, *ONLY_FROM})


@record
class Here:
    cpu: Cpu
    every: tuple[Node, ...]
    vantage: Vantage
    run: Run | None  # one whose ranks had the mask that they inherit
    binders: Mapping[str, str] | Unavailable
    ignores_mask: bool  # NCCL_IGNORE_CPU_AFFINITY=1
    masks: tuple[frozenset[int], ...] | None  # inside a launcher's rank: its own, and those of the others that were seen
    start: int = 1  # ranks that certainly start from here, and inherit this process's mask where nobody binds them

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Those with CPUs."""
        return tuple(n for n in self.every if n.cpus)


@check(id="cpu.numa_affinity", title="Ranks may run near their GPUs", cause="numa_affinity")
def numa_affinity(
    cpu: Cpu,
    gpus: Gpus,
    pci: Pci,
    rdma: Rdma,
    environ: Environ,
    vantage: Vantage,
    baseline: Baseline,
    path: PathRun,
    libraries: Libraries,
    net: Net,
    interrupts: Interrupts,
    intent: Intent,
    ranks: Ranks,
) -> Iterator[Finding]:
    places = hcas.places(gpus, pci)
    if isinstance(places, Unavailable):
        yield unknown(f"GPUs could not be read: {places}")
    elif not places:
        yield _no_gpu(pci, gpus)
    elif isinstance(cpu.nodes, Unavailable):
        yield unknown(f"NUMA nodes could not be read: {cpu.nodes}")
    else:
        run = baseline.run if baseline.run and baseline.run.experiment.gpus and not baseline.run.experiment.binding else None
        ignore = environ.get("NCCL_IGNORE_CPU_AFFINITY")
        ignores = nccl_integer(ignore or "") != 0
        launcher = environ.launcher or None
        rank = launcher.local_rank if launcher and not launcher.one_task else None
        beside = [one for one in ranks.seen or () if one.local_rank != rank]
        known = (cpu.allowed, *(one.cpus for one in beside)) if rank is not None else None
        masks = tuple(one for one in known if not isinstance(one, Unavailable)) if known else None
        here = Here(cpu, cpu.nodes, vantage, run, affinity.binders(environ), ignores, masks, intent.ranks_here or 1)
        # Inside one rank of a launcher the mask is that rank's, and so is one GPU; one task alone may start ranks.
        mine = places[rank : rank + 1] if rank is not None and rank < len(places) else places
        among = hcas.candidates(rdma.devices or (), pci)
        for gpu in mine:
            yield _of_gpu(gpu, here, affinity.hca_node(gpu, among))
        if launcher and rank == 0 and 1 not in (launcher.local_world, launcher.world):  # it looks for all of them
            placed = [(one, affinity.place_of(one, places, gpus, pci)) for one in beside]
            yield from _others(placed, ranks.seen, launcher.local_world, here)
        if vantage.job_environment:
            yield from slurm_cpus.judge(environ, cpu.allowed)
        yield _memory([affinity.node_of(gpu) for gpu in mine], here)
        carried = transport.data_by_sockets(rdma, environ, libraries, (baseline, path), net, intent)
        yield _interrupts(carried, net, interrupts, here)


def _others(
    placed: list[tuple[SeenRank, hcas.GpuPlace | Unavailable]], seen: object, local_world: int | None, here: Here
) -> Iterator[Finding]:
    """The masks that the launcher gave the other ranks of this node; they wait while the first one looks."""
    lost = dict[str, list[int]]()
    for rank, gpu in placed:
        if isinstance(gpu, Unavailable) or isinstance(rank.cpus, Unavailable):
            lost.setdefault(str(missing(gpu, rank.cpus)), []).append(rank.local_rank)
            continue
        found = _squeezed(None, rank.cpus, here) or _placed(gpu, here, rank.cpus, f"local rank {rank.local_rank}", None)
        found = _if_moved(found, here)
        if found.status is Status.PASS and here.run is None:
            found = unknown(f"{found.message}; no run showed whether it stays so when torch is imported", how=WITH_RUN)
        yield replace(found, subject=gpu.label, cure=None)
    why = [f"{'ranks' if some[1:] else 'rank'} {', '.join(map(str, some))}: {words}" for words, some in lost.items()]
    if isinstance(seen, Unavailable):
        why = [str(seen)]
    elif local_world is None or len(placed) + 1 < local_world:
        why.append(f"{len(placed) + 1} of {local_world or 'an unsaid number'} were seen")
    if why:
        yield unknown(f"CPU masks of this node's other ranks: {'; '.join(why)}", subject="other ranks", how=EACH)


def _no_gpu(pci: Pci, gpus: Gpus) -> Finding:
    if why := hcas.nothing_for_nccl(pci, gpus):
        return skip(why)
    if pci.foreign_accelerators:
        return unknown(f"accelerators that netdoctor does not judge: {others(pci.foreign_accelerators)}")
    return unknown("whether there is an accelerator could not be read")


def _of_gpu(gpu: hcas.GpuPlace, here: Here, hca: int | None) -> Finding:
    rank = affinity.rank_with(gpu, here.run)
    shown = rank if rank is not None and rank.affinity else None
    mask = frozenset(shown.affinity) if shown else here.cpu.allowed
    if isinstance(mask, Unavailable):
        return unknown(f"the CPU mask could not be read: {mask}", subject=gpu.label)
    if not here.vantage.job_user:
        return unknown(f"the mask of the job is not seen from here: {here.vantage.why_not}", subject=gpu.label, how=FROM_JOB)
    if (squeezed := _squeezed(rank, mask, here)) is not None:
        return replace(squeezed, subject=gpu.label)
    placed = replace(_placed(gpu, here, mask, f"rank {shown.rank}" if shown else "this process", hca), subject=gpu.label)
    placed = _if_moved(placed, here)
    if placed.status is Status.PASS and not shown:
        unread = "OpenMP's variables could not be read" if isinstance(here.binders, Unavailable) else "a launcher may bind"
        what = ", ".join(f"{name}={value}" for name, value in (here.binders or {}).items()) or unread
        return unknown(f"{placed.message}; no run showed the mask of the ranks ({what})", subject=gpu.label, how=WITH_RUN)
    return placed


def _if_moved(found: Finding, here: Here) -> Finding:
    """No pass where CPUs may be among these to which the scheduler moves nothing (isolcpus)."""
    lost = missing(here.cpu.isolated)
    if found.status is not Status.PASS or lost is None or lost.kind in (Kind.ABSENT, Kind.NOT_RECORDED):
        return found  # an older kernel, or an older recording, tells of none
    return unknown(f"{found.message}; which CPUs are isolated could not be read: {lost}", subject=found.subject)


def _squeezed(rank: RankResult | None, mask: frozenset[int], here: Here) -> Finding | None:
    """One CPU for everything: NCCL's threads inherit it, and take turns with the main thread."""
    threads = frozenset(rank.thread_affinity) if rank is not None and rank.thread_affinity else mask
    # The ranks of our own run all have the mask of who started it: what the launcher gave to each does not show there.
    beside = here.masks.count(mask) if here.masks is not None else _of_run(mask, here) if rank is not None else 1
    if (alone := _isolated(mask, beside, here)) is not None:
        return alone
    if 1 < len(mask) < beside and not mask >= (here.cpu.online or mask):
        return fail(
            f"{beside} ranks share {len(mask)} CPUs",
            expected="a core a rank at least",
            fix=MORE,
            cure=_wider(rank, here.cpu.online, here, "on every CPU"),
            loss=cost.less(len(mask), beside, "cores that the main threads of these ranks need"),
            ranks=beside,
            cpus=sorted(mask),
        )
    if min(len(mask), len(threads)) != 1 or len(here.cpu.online or ()) == 1:
        return None
    cpu = next(iter(mask if len(mask) == 1 else threads))
    if len(here.cpu.allowed or ()) < 2:
        return fail(
            f"the job may run on CPU {cpu} only",
            expected="several cores a rank",
            fix=MORE,
            cure=_wider(rank, here.cpu.online, here, "on every CPU"),
            loss=cost.less(1, 2, TURNS),
            narrowed_by="mask",
        )
    binders = here.binders or {}
    name = next(iter(binders), "")
    cure = None
    if name and here.run is not None:
        base = here.run.experiment
        change = replace(base, env=(*base.env, *((one, None) for one in binders)), fresh_import=True)
        cure = Cure(change, base, f"without {name}")
    mend = Fix("find what binds the process while torch is imported", ("env | grep -e OMP_ -e KMP_ -e GOMP_",))
    return fail(
        f"importing torch bound the rank to CPU {cpu}{f': {name}={binders[name]}' if name else ''}",
        expected="the mask that the launcher gave",
        why="NCCL's proxy threads inherit the mask and share one core with the main thread",
        fix=fix_environment(here.vantage, name, unset=True) if name else mend,
        cure=cure,
        loss=cost.less(1, 2, TURNS),
        narrowed_by=name or "not known",
    )


def _isolated(mask: frozenset[int], beside: int, here: Here) -> Finding | None:
    """What isolcpus leaves: among CPUs that are in no scheduling domain no thread is moved, and none is started on another than
    its parent's (Documentation/admin-guide/kernel-parameters.txt; kernel/sched/fair.c, select_task_rq_fair)."""
    isolated, online = here.cpu.isolated or frozenset(), here.cpu.online or frozenset()
    if not isolated:
        return None
    spread = len(mask - isolated) or 1
    if mask == online - isolated and here.run is None and here.masks is None:  # as the kernel starts every process
        beside = max(beside, here.start)
    needed = beside + (mask <= isolated)  # where nothing is moved a rank's own two threads are on one CPU, too
    if len(mask) == 1 or spread >= needed:
        return None
    every = online if mask.isdisjoint(isolated) else mask
    shut, of = len(isolated & every), len(every)
    return fail(
        f"{f'{beside} ranks share' if beside > 1 else 'the rank has'} {spread} of {of} CPUs: "
        f"{shut} are isolated (isolcpus), and the scheduler moves no thread there",
        expected="a core a rank at least, and one for NCCL's proxy",
        fix=DEISOLATE,
        loss=cost.less(spread, needed, TURNS),
        ranks=beside,
        isolated=shut,
    )


def _of_run(mask: frozenset[int], here: Here) -> int:
    return sum(frozenset(one.affinity) == mask for one in here.run.ranks) if here.run else 1


def _wider(rank: RankResult | None, cpus: frozenset[int] | Unavailable, here: Here, where: str) -> Cure | None:
    """The run with one rank on other CPUs; a cpuset may forbid it, and then the run says so."""
    if rank is None or here.run is None or not cpus or not all(one.affinity for one in here.run.ranks):
        return None
    base = here.run.experiment
    binding = tuple(tuple(sorted(cpus)) if one.rank == rank.rank else one.affinity for one in here.run.ranks)
    return Cure(replace(base, binding=binding), base, f"rank {rank.rank} {where}")


def _placed(gpu: hcas.GpuPlace, here: Here, mask: frozenset[int], seen: str, hca: int | None) -> Finding:
    """Whether the mask reaches CPUs near the GPU."""
    if len(here.nodes) == 1:
        return ok(f"one NUMA node with CPUs, and {seen} may run on {len(mask)} of them")
    said, node = affinity.found_cpus(gpu, here.run), affinity.node_of(gpu)
    mine = frozenset(n.id for n in here.nodes if n.cpus & mask)
    if isinstance(node, Unavailable) or node < 0:
        lost = isinstance(node, Unavailable)
        text = f"NUMA node of the GPU: {node}" if lost else "the firmware names no NUMA node for the GPU"
        if said is False:
            return fail(f"NCCL found no CPU of the mask near the GPU ({text})", fix=_fix(None), nodes=sorted(mine))
        return unknown(text, how="lscpu; nvidia-smi topo -m")
    near = affinity.near_nodes(node, here.every)
    if isinstance(near, Unavailable):
        if node in mine:
            return ok(f"{seen} may run on the GPU's node {node}", node=node)
        return unknown(f"how far the nodes are apart could not be read: {near}")
    evidence: dict[str, Any] = {"node": node, "mask_nodes": sorted(mine), "near": sorted(near)}
    if hca is not None:
        evidence["hca_node"] = hca
    if mine & near:
        notes = []
        if said is False:
            notes.append("NCCL's own rule looks at the nearest node alone and found the mask empty there")
        if hca is not None and hca not in near:
            notes.append(f"its nearest HCA sits on node {hca}: staged traffic crosses the socket link")
        return ok(f"{seen} may run on node {_list(mine & near)}, near the GPU", notes=notes, **evidence)
    if here.ignores_mask and said is not False:
        note = "NCCL_IGNORE_CPU_AFFINITY moves NCCL's threads to the GPU; the rank's own threads stay far"
        return ok("NCCL ignores the mask", notes=(note,), **evidence)
    near_cpus = frozenset[int]().union(*(n.cpus for n in here.nodes if n.id in near))
    return fail(
        f"{seen} may run only on node {_list(mine)}, the GPU is on node {node}",
        expected=f"CPUs of node {_list(near)}",
        why="every copy and every proxy thread crosses the socket link",
        how={None: None, False: "NCCL's log says the same", True: "NCCL's log shows another mask"}[said],
        fix=_fix(node),
        cure=_wider(affinity.rank_with(gpu, here.run), near_cpus, here, f"on the CPUs of node {_list(near)}"),
        **evidence,
    )


def _fix(node: int | None) -> Fix:
    return Fix(
        "bind each rank to the CPUs of its GPU's node",
        (
            f"numactl --cpunodebind={node if node is not None else 'NODE'} --localalloc python …",
            "srun --cpu-bind=… --gpu-bind=closest …",
        ),
        ("Kubernetes: kubelet --topology-manager-policy=single-numa-node", "Slurm: gres.conf Cores=… for each GPU"),
    )


def _memory(nodes: list[int | Unavailable], here: Here) -> Finding:
    """Where memory may come from: the cpuset, and a policy that is inherited (numactl --membind)."""
    allowed, policy = here.cpu.memory_allowed, here.cpu.memory_policy
    if not here.vantage.job_user:
        text = f"the job's memory policy is not seen from here: {here.vantage.why_not}"
        return unknown(text, subject="memory", how=FROM_JOB)
    if isinstance(allowed, Unavailable):
        return unknown(f"Mems_allowed_list could not be read: {allowed}", subject="memory")
    if policy and policy.mode not in MEMORY:
        return unknown("the memory policy is one that netdoctor does not know", subject="memory", mode=policy.mode)
    bound = policy if policy and policy.nodes and policy.mode in PREFERRED | ONLY_FROM else None
    may = allowed & bound.nodes if bound else allowed
    if len(here.every) > 1:
        lost: Unavailable | None = None
        for node in nodes:
            near = affinity.near_nodes(node, here.every) if isinstance(node, int) and node >= 0 else None
            if isinstance(near, Unavailable) and node not in may:
                lost = near
            if near and not may & near:
                bind = Fix("bind per rank, to the node of its GPU", ("numactl --localalloc …",))
                by = "its memory policy" if bound else "its cpuset"
                where = f"of node {_list(may)} {'first' if bound and bound.mode in PREFERRED else 'only'}"
                return fail(
                    f"{by} gives the job memory {where}, a GPU is on node {node}",
                    subject="memory",
                    expected=f"memory of node {_list(near)}",
                    fix=fix_container(here.vantage, "numa") if here.vantage.in_container else bind,
                    node=node,
                )
        if lost is not None:
            return unknown(f"memory comes from some nodes only; distances could not be read: {lost}", subject="memory")
        if isinstance(policy, Unavailable):
            return unknown(f"the memory policy could not be read: {policy}", subject="memory", how="numactl --show")
        if any(isinstance(n, Unavailable) for n in nodes) and may != frozenset(n.id for n in here.every):
            return unknown("memory comes from some nodes only, and the GPUs' nodes could not be read", subject="memory")
    return ok("memory may come from near every GPU", subject="memory")


def _interrupts(carried: transport.Carrier, net: Net, interrupts: Interrupts, here: Here) -> Finding:
    """Interrupts matter where sockets carry the data: RDMA polls."""
    if len(here.nodes) == 1:
        return ok("one NUMA node with CPUs serves every interrupt", subject="interrupts")
    if carried.sockets is False:
        return skip(f"interrupts do not matter: {carried.why}", subject="interrupts")
    if carried.sockets is None:
        return unknown(f"whether sockets carry the data is not known: {carried.why}", subject="interrupts")
    if isinstance(interrupts.cpus, Unavailable) or isinstance(net.links, Unavailable):
        return unknown(f"interrupts could not be read: {missing(interrupts.cpus, net.links)}", subject="interrupts")
    served = affinity.interrupts(net.links, interrupts.cpus, here.every)
    if served.far:
        return fail(
            "; ".join(f"{name} is on node {node}, its interrupts on node {_list(on)}" for name, node, on in served.far),
            subject="interrupts",
            loss=cost.NOTHING,
            expected="interrupts on the interface's own node",
            why="each packet crosses the socket link",
            fix=Fix("let irqbalance run, or set the affinity by hand", ("cat /proc/irq/N/smp_affinity_list",)),
        )
    if served.unread or not served.near:
        why = "; ".join(served.unread) or "no interface shows interrupts here"
        return unknown(why, subject="interrupts", how="on the node: /proc/irq/*/effective_affinity_list")
    return ok("interrupts are served near their interfaces", subject="interrupts")


def _list(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"

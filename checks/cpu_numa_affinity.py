"""Ranks may run on CPUs, and take memory, near their GPUs.

Near is by SLIT distance, not by equality: on AMD with four nodes a socket the neighbour is 12 away, the other socket 32.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from netdoctor.api import (
    FROM_JOB,
    Baseline,
    Cpu,
    Cure,
    Environ,
    Finding,
    Fix,
    Gpus,
    Interrupts,
    Kind,
    Libraries,
    Net,
    Node,
    PathRun,
    Pci,
    RankResult,
    Rdma,
    Run,
    Severity,
    Unavailable,
    Vantage,
    check,
    fail,
    fix_container,
    fix_environment,
    hcas,
    nccl_integer,
    ok,
    parse_version,
    skip,
    transport,
    unknown,
)

# ACPI SLIT: 10 is the node itself.  Sub-NUMA neighbours in one socket are 11 to 15, other sockets 17 and more.
SAME_SOCKET = 15
# OpenMP runtimes that bind the importing thread to one place: GCC's (libgomp manual), LLVM's and Intel's.
BINDERS = ("OMP_PROC_BIND", "OMP_PLACES", "KMP_AFFINITY", "GOMP_CPU_AFFINITY")
OFF = frozenset({"false", "disabled", "none", ""})
LOCAL_MEMORY = frozenset({"default", "local", "preferred", "preferred many", "interleave", "weighted interleave"})


@dataclass(frozen=True)
class Here:
    cpu: Cpu
    nodes: tuple[Node, ...]  # those with CPUs
    vantage: Vantage
    run: Run | None
    binders: tuple[str, ...]
    binders_unread: bool
    ignores_mask: bool  # NCCL_IGNORE_CPU_AFFINITY=1


@check(id="cpu.numa_affinity", title="Ranks may run near their GPUs", cause="numa_affinity")
def numa_affinity(
    cpu: Cpu,
    gpus: Gpus | Unavailable,
    pci: Pci | Unavailable,
    rdma: Rdma | Unavailable,
    environ: Environ | Unavailable,
    vantage: Vantage,
    baseline: Baseline | Unavailable,
    path: PathRun | Unavailable,
    libraries: Libraries | Unavailable,
    net: Net | Unavailable,
    interrupts: Interrupts | Unavailable,
) -> Iterator[Finding]:
    places = hcas.places(gpus, pci)
    if isinstance(places, Unavailable):
        yield unknown(f"GPUs could not be read: {places}")
        return
    if not places:
        yield _no_gpu(pci, gpus)
        return
    if isinstance(cpu.nodes, Unavailable):
        yield unknown(f"NUMA nodes could not be read: {cpu.nodes}")
        return
    bind, unread = _binders(environ)
    ignore = environ.get("NCCL_IGNORE_CPU_AFFINITY") if isinstance(environ, Environ) else None
    here = Here(
        cpu,
        tuple(n for n in cpu.nodes if n.cpus),
        vantage,
        _run(baseline),
        bind,
        unread,
        isinstance(ignore, str) and nccl_integer(ignore) != 0,
    )
    for gpu in _mine(places, environ):
        yield _of_gpu(gpu, here, _hca_node(gpu, rdma, pci))
    yield _memory([_node_of(g) for g in _mine(places, environ)], here)
    yield _interrupts(transport.data_by_sockets(rdma, environ, libraries, baseline, path, net), net, interrupts, here)


def _no_gpu(pci: Pci | Unavailable, gpus: Gpus | Unavailable) -> Finding:
    if hcas.no_accelerator(pci, gpus):
        return skip("no accelerator: PCI was read and shows none, libcuda shows none")
    if isinstance(pci, Pci) and isinstance(pci.foreign_accelerators, tuple) and pci.foreign_accelerators:
        return unknown(f"accelerators that netdoctor does not judge: {', '.join(pci.foreign_accelerators)}")
    return unknown("whether there is an accelerator could not be read")


def _binders(environ: Environ | Unavailable) -> tuple[tuple[str, ...], bool]:
    """The variables that bind threads when OpenMP starts, and whether some could not be read."""
    if isinstance(environ, Unavailable) or isinstance(environ.variables, Unavailable):
        return (), True
    have = ((name, environ.variables.get(name)) for name in BINDERS)
    return tuple(f"{name}={value}" for name, value in have if value is not None and value.lower() not in OFF), False


def _run(baseline: Baseline | Unavailable) -> Run | None:
    """A run whose ranks had the mask that they inherit."""
    run = baseline if isinstance(baseline, Unavailable) else baseline.run
    if isinstance(run, Unavailable) or run.experiment.binding or not run.experiment.gpus:
        return None
    return run


def _mine(places: tuple[hcas.GpuPlace, ...], environ: Environ | Unavailable) -> tuple[hcas.GpuPlace, ...]:
    """Inside one rank of a launcher the mask is that rank's, and so is one GPU."""
    rank = environ.launcher.local_rank if isinstance(environ, Environ) and environ.launcher else None
    return places[rank : rank + 1] if rank is not None and rank < len(places) else places


def _node_of(gpu: hcas.GpuPlace) -> int | Unavailable:
    if gpu.gpu is not None and not isinstance(gpu.gpu.numa_node, Unavailable):
        return gpu.gpu.numa_node
    if isinstance(gpu.device, Unavailable):
        return gpu.device
    return gpu.device.numa_node


def _hca_node(gpu: hcas.GpuPlace, rdma: Rdma | Unavailable, pci: Pci | Unavailable) -> int | None:
    if isinstance(rdma, Unavailable) or isinstance(rdma.devices, Unavailable) or not rdma.devices:
        return None
    kind, near = hcas.nearest(gpu, rdma.devices, pci)
    node = near[0].numa_node
    return node if kind and isinstance(node, int) and node >= 0 else None


def near_nodes(node: int, nodes: Iterable[Node], every: Iterable[Node]) -> frozenset[int] | Unavailable:
    """The nodes with CPUs that are as good as local to `node`: in its socket, or in the nearer half of the distances."""
    own = next((n for n in every if n.id == node), None)
    if own is None:
        return Unavailable(Kind.ABSENT, f"there is no NUMA node {node}")
    if isinstance(own.distances, Unavailable):
        return own.distances
    known = {n.id: own.distances[n.id] for n in nodes if n.id in own.distances}
    if not known:
        return Unavailable(Kind.MALFORMED, f"no distances of NUMA node {node}")
    limit = max(SAME_SOCKET, (10 + max(known.values())) / 2, min(known.values()))
    return frozenset(n for n, d in known.items() if d <= limit)


def _of_gpu(gpu: hcas.GpuPlace, here: Here, hca: int | None) -> Finding:
    rank = _rank(gpu, here.run)
    mask = frozenset(rank.affinity) if rank is not None and rank.affinity else here.cpu.allowed
    seen = f"rank {rank.rank}" if rank is not None and rank.affinity else "this process"
    if isinstance(mask, Unavailable):
        return unknown(f"the CPU mask could not be read: {mask}", subject=gpu.label)
    if not here.vantage.job_user:
        return unknown(f"the mask of the job is not seen from here: {here.vantage.why_not}", subject=gpu.label, how=FROM_JOB)
    if (squeezed := _squeezed(rank, mask, here)) is not None:
        return replace(squeezed, subject=gpu.label)
    placed = _placed(gpu, here, mask, seen, hca)
    if placed.status.value == "pass" and (rank is None or not rank.affinity):
        what = ", ".join(here.binders) or (
            "OpenMP's variables could not be read" if here.binders_unread else "a launcher may bind"
        )
        return unknown(f"{placed.message}; no run showed the mask of the ranks ({what})", subject=gpu.label)
    return placed


def _rank(gpu: hcas.GpuPlace, run: Run | None) -> RankResult | None:
    """The rank that had this GPU."""
    if run is None or gpu.ordinal is None or gpu.ordinal not in run.experiment.gpus:
        return None
    number = run.experiment.gpus.index(gpu.ordinal)
    return next((r for r in run.ranks if r.rank == number), None)


def _squeezed(rank: RankResult | None, mask: frozenset[int], here: Here) -> Finding | None:
    """One CPU for everything: NCCL's threads inherit it, and take turns with the main thread."""
    threads = frozenset(rank.thread_affinity) if rank is not None and rank.thread_affinity else mask
    online = here.cpu.online
    if min(len(mask), len(threads)) != 1 or (not isinstance(online, Unavailable) and len(online) == 1):
        return None
    inherited = here.cpu.allowed
    narrowed = not isinstance(inherited, Unavailable) and len(inherited) > 1
    only = min(mask, threads, key=len)
    cpu = next(iter(only))
    if not narrowed:
        return fail(
            f"the job may run on CPU {cpu} only",
            expected="several cores a rank",
            fix=Fix(
                "give the job more cores (--cpus-per-task, cpuset, taskset)", ("grep Cpus_allowed_list /proc/self/status",)
            ),
            narrowed_by="mask",
        )
    named = next(iter(here.binders), "")
    name = named.partition("=")[0]
    cure = None
    if named and here.run is not None:
        base = here.run.experiment
        change = replace(base, env=(*base.env, *((b.partition("=")[0], None) for b in here.binders)), fresh_import=True)
        cure = Cure(change, base, f"without {name}")
    mend = Fix("find what binds the process while torch is imported", ("env | grep -e OMP_ -e KMP_ -e GOMP_",))
    return fail(
        f"importing torch bound the rank to CPU {cpu}{f': {named}' if named else ''}",
        expected="the mask that the launcher gave",
        why="NCCL's proxy threads inherit the mask and share one core with the main thread",
        fix=fix_environment(here.vantage, name, unset=True) if named else mend,
        cure=cure,
        narrowed_by=name or "not known",
    )


def _placed(gpu: hcas.GpuPlace, here: Here, mask: frozenset[int], seen: str, hca: int | None) -> Finding:
    """Whether the mask reaches CPUs near the GPU."""
    said = _nccl_says(gpu, here.run)
    mine = frozenset(n.id for n in here.nodes if n.cpus & mask)
    if len(here.nodes) == 1:
        return ok(f"one NUMA node with CPUs, and {seen} may run on {len(mask)} of them", subject=gpu.label)
    node = _node_of(gpu)
    if isinstance(node, Unavailable) or node < 0:
        text = (
            f"NUMA node of the GPU: {node}" if isinstance(node, Unavailable) else "the firmware names no NUMA node for the GPU"
        )
        if said is False:
            return fail(
                f"NCCL found no CPU of the mask near the GPU ({text})", subject=gpu.label, fix=_fix(None), nodes=sorted(mine)
            )
        return unknown(text, subject=gpu.label, how="lscpu; nvidia-smi topo -m")
    near = near_nodes(node, here.nodes, here.cpu.nodes if not isinstance(here.cpu.nodes, Unavailable) else ())
    if isinstance(near, Unavailable):
        if node in mine:
            return ok(f"{seen} may run on the GPU's node {node}", subject=gpu.label, node=node)
        return unknown(f"how far the nodes are apart could not be read: {near}", subject=gpu.label)
    evidence: dict[str, Any] = {"node": node, "mask_nodes": sorted(mine), "near": sorted(near)}
    if hca is not None:
        evidence["hca_node"] = hca
    if mine & near:
        notes = []
        if said is False:
            notes.append("NCCL's own rule looks at the nearest node alone and found the mask empty there")
        if hca is not None and hca not in near:
            notes.append(f"its nearest HCA sits on node {hca}: staged traffic crosses the socket link")
        return ok(
            f"{seen} may run on node {_list(mine & near)}, near the GPU",
            subject=gpu.label,
            notes=notes,
            measured=None,
            **evidence,
        )
    if here.ignores_mask and said is not False:
        note = "NCCL_IGNORE_CPU_AFFINITY moves NCCL's threads to the GPU; the rank's own threads stay far"
        return ok("NCCL ignores the mask", subject=gpu.label, notes=(note,), measured=None, **evidence)
    return fail(
        f"{seen} may run only on node {_list(mine)}, the GPU is on node {node}",
        subject=gpu.label,
        expected=f"CPUs of node {_list(near)}",
        why="every copy and every proxy thread crosses the socket link",
        how=None if said is None else ("NCCL's log says the same" if said is False else "NCCL's log shows another mask"),
        fix=_fix(node),
        measured=None,
        **evidence,
    )


def _nccl_says(gpu: hcas.GpuPlace, run: Run | None) -> bool | None:
    """Whether NCCL found CPUs of the mask near the GPU.

    Since 2.28.3 it says "empty, ignoring"; before, it says nothing where the intersection is empty (src/graph/topo.cc,
    ncclTopoGetCpuAffinity; src/init.cc).  Silence counts only in a log that shows such lines and of a run that finished.
    """
    if run is None or run.log is None or not run.finished or gpu.ordinal is None or "affinity" in run.log.absent:
        return None
    found = [mask for rank in run.log.ranks for dev, mask in rank.affinity.items() if dev == gpu.ordinal]
    if found:
        return "empty" not in found[0]
    version = parse_version(run.nccl_version)
    return False if run.log.affinity and version is not None and version < (2, 28, 3) else None


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
        return unknown(f"the job's memory policy is not seen from here: {here.vantage.why_not}", subject="memory")
    every = here.cpu.nodes if not isinstance(here.cpu.nodes, Unavailable) else ()
    if isinstance(allowed, Unavailable):
        return unknown(f"Mems_allowed_list could not be read: {allowed}", subject="memory")
    if not isinstance(policy, Unavailable) and policy.mode not in (*LOCAL_MEMORY, "bind"):
        return unknown("the memory policy is one that netdoctor does not know", subject="memory", mode=policy.mode)
    bound = not isinstance(policy, Unavailable) and policy.mode == "bind"
    may = allowed & policy.nodes if bound and not isinstance(policy, Unavailable) else allowed
    if len(every) > 1:
        for node in nodes:
            near = near_nodes(node, here.nodes, every) if isinstance(node, int) and node >= 0 else None
            if isinstance(near, frozenset) and not may & near:
                bind = Fix("bind per rank, to the node of its GPU", ("numactl --localalloc …",))
                by = "its memory policy" if bound else "its cpuset"
                return fail(
                    f"{by} gives the job memory of node {_list(may)} only, a GPU is on node {node}",
                    subject="memory",
                    expected=f"memory of node {_list(near)}",
                    fix=fix_container(here.vantage, "numa") if here.vantage.in_container else bind,
                    node=node,
                )
        if isinstance(policy, Unavailable):
            return unknown(f"the memory policy could not be read: {policy}", subject="memory", how="numactl --show")
        if any(isinstance(n, Unavailable) for n in nodes) and may != frozenset(n.id for n in every):
            return unknown("memory comes from some nodes only, and the GPUs' nodes could not be read", subject="memory")
    return ok("memory may come from near every GPU", subject="memory")


def _interrupts(
    carried: transport.Carrier, net: Net | Unavailable, interrupts: Interrupts | Unavailable, here: Here
) -> Finding:
    """Interrupts matter where sockets carry the data: RDMA polls."""
    if len(here.nodes) == 1:
        return ok("one NUMA node with CPUs serves every interrupt", subject="interrupts")
    if carried.sockets is False:
        return skip(f"interrupts do not matter: {carried.why}", subject="interrupts")
    if carried.sockets is None:
        return unknown(f"whether sockets carry the data is not known: {carried.why}", subject="interrupts")
    cpus = interrupts if isinstance(interrupts, Unavailable) else interrupts.cpus
    if isinstance(cpus, Unavailable) or isinstance(net, Unavailable):
        return unknown(f"interrupts could not be read: {cpus if isinstance(cpus, Unavailable) else net}", subject="interrupts")
    every = here.cpu.nodes if not isinstance(here.cpu.nodes, Unavailable) else ()
    far, seen, unread = [], False, []
    for link in net.links or ():
        served = cpus.get(link.name)
        if served is None or not link.up or (isinstance(link.numa_node, int) and link.numa_node < 0):
            continue
        near = link.numa_node if isinstance(link.numa_node, Unavailable) else near_nodes(link.numa_node, here.nodes, every)
        if isinstance(served, Unavailable) or isinstance(near, Unavailable):
            unread.append(f"{link.name}: {served if isinstance(served, Unavailable) else near}")
            continue
        seen = True
        on = frozenset(n.id for n in here.nodes if n.cpus & served)
        if not on & near:
            far.append(f"{link.name} is on node {link.numa_node}, its interrupts on node {_list(on)}")
    if far:
        return fail(
            "; ".join(far),
            subject="interrupts",
            severity=Severity.INFO,
            expected="interrupts on the interface's own node",
            why="each packet crosses the socket link",
            fix=Fix("let irqbalance run, or set the affinity by hand", ("cat /proc/irq/N/smp_affinity_list",)),
        )
    if unread or not seen:
        why = "; ".join(unread) or "no interface shows interrupts here"
        return unknown(why, subject="interrupts", how="on the node: /proc/irq/*/effective_affinity_list")
    return ok("interrupts are served near their interfaces", subject="interrupts")


def _list(nodes: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(nodes))) or "none"

"""cpu.numa_affinity: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from netdoctor.checks.cpu_numa_affinity import numa_affinity
from netdoctor.facts.cpu import Cpu, MemoryPolicy
from netdoctor.facts.environ import Environ, Launcher
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.interrupts import Interrupts
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma
from netdoctor.facts.runs import Baseline, PathRun
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Severity, Status, Unavailable
from netdoctor.nccl.affinity import near_nodes
from netdoctor.nccl.log.facts import RankFacts
from tests.support import facts as f

LOST = Unavailable("not recorded")
Changes = dict[type, object]
FIRST, SECOND = tuple(range(56)), tuple(range(56, 112))  # one socket each


def judged(changes: Changes) -> dict[str, Finding]:
    found = f.judge(numa_affinity, f.machine(changes))
    assert len({x.subject for x in found}) == len(found)
    return {x.subject: x for x in found}


def ranks(mask: Iterable[int], threads: Iterable[int] | None = None, **changes: Any) -> Baseline:
    """A run whose ranks all had this mask."""
    cpus = tuple(mask)
    thread = cpus if threads is None else tuple(threads)
    return f.baseline(f.run(ranks=tuple(f.rank(i, affinity=cpus, thread_affinity=thread) for i in range(8)), **changes))


def nccl_says(mask: str | None, cpus: Iterable[int] = FIRST, version: str = "2.28.3") -> Baseline:
    """NCCL's affinity lines: of GPU 0 this one (None: no line), of the others a usual one; `cpus` is the ranks' mask."""
    lines = dict.fromkeys(range(1, 8), "0-55") | ({} if mask is None else {0: mask})
    log = f.log(ranks=(RankFacts("dgx1", 1, affinity=lines),), affinity=("GPU 1: 0-55",))
    return ranks(cpus, log=log, nccl_version=version)


def nps4() -> Cpu:
    """Two sockets of AMD with four nodes each: 12 inside the socket, 32 to the other."""
    near = [[10 if a == b else 12 if a // 4 == b // 4 else 32 for b in range(8)] for a in range(8)]
    nodes = tuple(f.node(n, range(8 * n, 8 * n + 8), dict(enumerate(near[n]))) for n in range(8))
    return f.cpu(nodes=nodes, allowed=frozenset(range(64)), online=frozenset(range(64)), memory_allowed=frozenset(range(8)))


PASSES: dict[str, Changes] = {
    "each rank on its socket": {},
    "one NUMA node": {Cpu: f.cpu(nodes=(f.node(0, range(224), {0: 10}),))},
    "one NUMA node, whatever the memory policy": {Cpu: f.cpu(nodes=(f.node(0, range(224), {0: 10}),), memory_policy=LOST)},
    "a machine of one CPU": {
        Cpu: f.cpu(nodes=(f.node(0, {0}, {0: 10}),), allowed=frozenset({0}), online=frozenset({0})),
        Baseline: ranks((0,)),
    },
    "memory of the one node that has GPUs": {
        Gpus: f.gpus(4),
        Pci: f.pci(4, 4),
        Cpu: f.cpu(memory_allowed=frozenset({0})),
        Baseline: ranks(FIRST),
    },
    "neighbour node in one socket": {Cpu: nps4(), Baseline: ranks(range(8, 64))},
    "memory-only nodes do not count": {
        Cpu: f.cpu(nodes=(f.node(0, range(224), {0: 10, 1: 80}), f.node(1, (), {0: 80, 1: 10}))),
        Gpus: f.gpus(all=tuple(f.gpu(i, numa_node=0) for i in range(8))),
    },
    "distances lost, but the mask has the very node": {
        Cpu: f.cpu(nodes=(f.node(0, FIRST, LOST), f.node(1, SECOND, LOST))),
    },
    "NCCL ignores the mask": {Environ: f.environ({"NCCL_IGNORE_CPU_AFFINITY": "1"}), Baseline: ranks(SECOND)},
    "memory interleaved over both": {Cpu: f.cpu(memory_policy=MemoryPolicy("interleave", frozenset({0, 1})))},
    "memory preferred of the CPU's own node": {Cpu: f.cpu(memory_policy=MemoryPolicy("preferred", frozenset()))},
    "inside one rank of a launcher": {
        Baseline: ranks(FIRST),
        Cpu: f.cpu(allowed=frozenset(FIRST)),
        Environ: f.environ(launcher=Launcher("slurm", 3, 16, 3, 8)),
    },
    "inside a rank that is shown its own GPU only": {
        Gpus: f.gpus(1),
        Environ: f.environ(launcher=Launcher("slurm", 1, 16, 1, 8)),
    },
}


@pytest.mark.parametrize("changes", PASSES.values(), ids=PASSES)
def test_pass(changes: Changes) -> None:
    found = judged(changes)
    assert {x.status for name, x in found.items() if name != "interrupts"} == {Status.PASS}, found
    assert {"memory", "interrupts"} < set(found), "and at least one GPU"


FAILS: dict[str, tuple[Changes, str, str]] = {
    "other socket": ({Baseline: ranks(SECOND)}, "GPU0", "may run only on node 1"),
    "other socket, AMD": ({Cpu: nps4(), Baseline: ranks(range(32, 64))}, "GPU0", "may run only on node 4, 5, 6, 7"),
    "one CPU by the launcher": ({Cpu: f.cpu(allowed=frozenset({3})), Baseline: LOST}, "GPU0", "CPU 3 only"),
    "one CPU by the launcher, which CPUs are online lost": (
        {Cpu: f.cpu(allowed=frozenset({3}), online=LOST), Baseline: LOST},
        "GPU0",
        "CPU 3 only",
    ),
    "one of two CPUs after import": ({Baseline: ranks((5,)), Cpu: f.cpu(allowed=frozenset({5, 6}))}, "GPU0", "importing torch"),
    "NCCL does not ignore the mask although the variable is set": (
        {Environ: f.environ({"NCCL_IGNORE_CPU_AFFINITY": "1"}), Baseline: nccl_says("empty, ignoring", SECOND)},
        "GPU0",
        "may run only on node 1",
    ),
    "one CPU after import": (
        {Baseline: ranks((5,)), Environ: f.environ({"OMP_PROC_BIND": "true"})},
        "GPU0",
        "OMP_PROC_BIND=true",
    ),
    "threads squeezed": ({Baseline: ranks(FIRST, (7,)), Environ: f.environ({"KMP_AFFINITY": "compact"})}, "GPU0", "KMP"),
    "memory by cpuset": ({Cpu: f.cpu(memory_allowed=frozenset({0}))}, "memory", "cpuset"),
    "memory interleaved": (
        {Cpu: f.cpu(memory_policy=MemoryPolicy("interleave", frozenset({1})))},
        "memory",
        "only",
    ),
    "memory by numactl, preferred": ({Cpu: f.cpu(memory_policy=MemoryPolicy("preferred", frozenset({0})))}, "memory", "first"),
    "memory by numactl": ({Cpu: f.cpu(memory_policy=MemoryPolicy("bind", frozenset({1})))}, "memory", "memory policy"),
}


@pytest.mark.parametrize(("changes", "subject", "words"), FAILS.values(), ids=FAILS)
def test_fail(changes: Changes, subject: str, words: str) -> None:
    found = judged(changes)[subject]
    assert found.status is Status.FAIL, found
    assert words in found.message
    assert found.fix is not None


def test_the_other_socket_is_wrong_for_its_gpus_only() -> None:
    found = judged({Baseline: ranks(SECOND)})
    assert [found[f"GPU{i}"].status for i in range(8)] == [Status.FAIL] * 4 + [Status.PASS] * 4


def test_the_variable_that_squeezes_is_tried_without() -> None:
    found = judged({Baseline: ranks((5,)), Environ: f.environ({"OMP_PROC_BIND": "true"})})["GPU0"]
    assert found.cure is not None and found.fix is not None
    assert (found.cure.label, found.cure.change.env) == ("without OMP_PROC_BIND", (("OMP_PROC_BIND", None),))
    assert found.cure.change.fresh_import
    assert found.fix.commands == ("unset OMP_PROC_BIND",)
    assert found.evidence["narrowed_by"] == "OMP_PROC_BIND"


def test_what_squeezes_is_not_known_where_no_variable_does() -> None:
    found = judged({Baseline: ranks((5,))})["GPU0"]
    assert found.cure is None and found.fix is not None
    assert "find what binds" in found.fix.summary
    assert found.evidence["narrowed_by"] == "not known"


def test_inside_one_rank_of_a_launcher_its_gpu_alone_is_judged() -> None:
    found = judged({Environ: f.environ(launcher=Launcher("slurm", 3, 16, 3, 8))})
    assert set(found) == {"GPU3", "memory", "interrupts"}


NO_NODE = f.gpus(all=tuple(f.gpu(i, numa_node=-1) for i in range(8)))


@pytest.mark.parametrize(
    ("says", "status"),
    [
        (nccl_says("empty, ignoring"), Status.FAIL),
        (nccl_says(None, version="2.27.7"), Status.FAIL),  # silence of an old version
        (nccl_says(None), Status.UNKNOWN),  # silence of a version that would say "empty"
        (nccl_says("0-55"), Status.UNKNOWN),
    ],
)
def test_nccl_is_heard_where_the_firmware_names_no_node(says: Baseline, status: Status) -> None:
    assert judged({Gpus: NO_NODE, Baseline: says})["GPU0"].status is status


def test_skip_without_accelerator() -> None:
    assert judged({Pci: f.pci(0, 0), Gpus: f.gpus(0)})["node"].status is Status.SKIP


NO_PLACE = Unavailable("not read", "no NUMA node of it was read")
UNKNOWNS: dict[str, tuple[Changes, str]] = {
    "PCI and GPUs lost": ({Pci: LOST, Gpus: LOST}, "GPUs could not be read"),
    "accelerators of others lost": ({Pci: f.pci(0, 0, foreign_accelerators=LOST), Gpus: f.gpus(0)}, "whether there is"),
    "nodes lost": ({Cpu: f.cpu(nodes=LOST)}, "NUMA nodes could not be read"),
    "mask lost, no run": ({Cpu: f.cpu(allowed=LOST), Baseline: LOST}, "the CPU mask could not be read"),
    "outside the job": ({Vantage: f.outside()}, "not seen from here: seen as root outside the job"),
    "OpenMP binds, and no run showed what": (
        {Baseline: LOST, Environ: f.environ({"OMP_PROC_BIND": "close"})},
        "no run showed the mask of the ranks (OMP_PROC_BIND=close)",
    ),
    "no run showed the ranks' masks": ({Baseline: LOST}, "(a launcher may bind)"),
    "environment lost, no run": ({Baseline: LOST, Environ: LOST}, "(OpenMP's variables could not be read)"),
    "the firmware names no node": ({Gpus: NO_NODE}, "the firmware names no NUMA node"),
    "the GPU's node is lost": (
        {
            Gpus: f.gpus(all=tuple(f.gpu(i, numa_node=LOST) for i in range(8))),
            Pci: f.pci(devices=tuple(f.gpu_device(i, numa_node=NO_PLACE) for i in range(8))),
        },
        f"NUMA node of the GPU: {NO_PLACE}",
    ),
    "the GPU's node is none of those that are shown": (
        {Gpus: f.gpus(all=tuple(f.gpu(i, numa_node=5) for i in range(8)))},
        "there is no NUMA node 5",
    ),
    "distances lost, mask on another node": (
        {Cpu: f.cpu(nodes=(f.node(0, FIRST, LOST), f.node(1, SECOND, LOST))), Baseline: ranks(SECOND)},
        f"could not be read: {LOST}",
    ),
    "distances to other nodes only, mask on another node": (
        {Cpu: f.cpu(nodes=(f.node(0, FIRST, {7: 20}), f.node(1, SECOND, {7: 20}))), Baseline: ranks(SECOND)},
        "no distances of NUMA node 0",
    ),
}


@pytest.mark.parametrize(("changes", "words"), UNKNOWNS.values(), ids=UNKNOWNS)
def test_unknown(changes: Changes, words: str) -> None:
    judgements = judged(changes)
    found = judgements.get("GPU0") or judgements["node"]
    assert found.status is Status.UNKNOWN and words in found.message, found


@pytest.mark.parametrize("lost", [f.cpu(memory_allowed=LOST), f.cpu(memory_policy=LOST)])
def test_memory_unknown(lost: Cpu) -> None:
    assert judged({Cpu: lost})["memory"].status is Status.UNKNOWN


@pytest.mark.parametrize(("allowed", "status"), [({0}, Status.UNKNOWN), ({0, 1}, Status.PASS)])
def test_place_of_gpus_matters_if_memory_comes_from_some_nodes(allowed: set[int], status: Status) -> None:
    nowhere = f.gpus(all=tuple(f.gpu(i, numa_node=LOST) for i in range(8)))
    found = judged({Gpus: nowhere, Pci: LOST, Cpu: f.cpu(memory_allowed=frozenset(allowed))})
    assert found["memory"].status is status


SOCKETS = f.run(log=f.log(network="Socket", net="Socket"))
RUNNING: Changes = {Baseline: f.baseline(SOCKETS), PathRun: f.path_run()}


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, Status.SKIP),  # RDMA carried the path run
        (RUNNING | {Interrupts: f.interrupts({"eth0": frozenset(range(8))})}, Status.PASS),
        (RUNNING | {Interrupts: f.interrupts({"eth0": frozenset(SECOND)})}, Status.FAIL),
        (RUNNING | {Interrupts: f.interrupts({"eth0": LOST})}, Status.UNKNOWN),
        (RUNNING | {Interrupts: f.interrupts({})}, Status.UNKNOWN),
        (RUNNING | {Interrupts: LOST}, Status.UNKNOWN),
        (RUNNING | {Net: LOST, Interrupts: f.interrupts({"eth0": frozenset(SECOND)})}, Status.UNKNOWN),
        ({Baseline: LOST, PathRun: LOST}, Status.UNKNOWN),
    ],
)
def test_interrupts_where_sockets_carry_the_data(changes: Changes, status: Status) -> None:
    base: Changes = {PathRun: f.path_run(f.hca_run())}
    assert judged(base | changes)["interrupts"].status is status


FAR_AWAY = f.net(f.netlink_link("eth0", 2, "10.0.0.7", numa_node=5))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({Interrupts: LOST}, f"interrupts could not be read: {LOST}"),
        ({Net: LOST, Interrupts: f.interrupts({"eth0": frozenset(FIRST)})}, f"interrupts could not be read: {LOST}"),
        ({Interrupts: f.interrupts({"eth0": LOST})}, f"eth0: {LOST}"),
        ({Net: FAR_AWAY, Interrupts: f.interrupts({"eth0": frozenset(FIRST)})}, "eth0: there is no NUMA node 5"),
        ({Interrupts: f.interrupts({})}, "no interface shows interrupts here"),
    ],
)
def test_what_is_missing_about_interrupts_is_said(changes: Changes, words: str) -> None:
    found = judged(RUNNING | changes)["interrupts"]
    assert found.status is Status.UNKNOWN and found.message == words


@pytest.mark.parametrize(
    ("node", "pci", "shown", "noted"),
    [
        (1, f.pci(devices=(*(f.gpu_device(i) for i in range(8)), f.hca_device(7))), 1, True),
        (0, f.pci(devices=(*(f.gpu_device(i) for i in range(8)), f.hca_device(7))), 0, False),
        (-1, f.pci(devices=(*(f.gpu_device(i) for i in range(8)), f.hca_device(7))), None, False),
        (LOST, f.pci(devices=(*(f.gpu_device(i) for i in range(8)), f.hca_device(7))), None, False),
        (1, LOST, None, False),  # which HCA is nearest cannot be told
    ],
)
def test_an_hca_on_the_other_socket_is_a_note(node: Any, pci: Any, shown: int | None, noted: bool) -> None:
    found = judged({Rdma: f.rdma(devices=(f.hca(7, numa_node=node),)), Pci: pci})["GPU0"]
    assert found.status is Status.PASS, found
    assert found.evidence.get("hca_node") == shown and any("HCA" in note for note in found.notes) is noted


@pytest.mark.parametrize(
    ("distances", "near"),
    [
        ({0: 10, 1: 21}, {0}),  # two sockets of Intel
        ({0: 10, 1: 21, 2: 31}, {0}),  # four, one of them two hops away
        ({0: 10, 1: 12, 2: 32, 3: 32}, {0, 1}),  # AMD with two nodes a socket
        ({0: 10, 1: 11}, {0, 1}),  # sub-NUMA clusters
        ({0: 10, 1: 15}, {0, 1}),
        ({0: 10, 1: 16}, {0}),  # two sockets of Opteron
        ({0: 10, 1: 20, 2: 40}, {0, 1}),
    ],
)
def test_near_is_by_distance(distances: dict[int, int], near: set[int]) -> None:
    nodes = [f.node(n, (n,), distances if n == 0 else {}) for n in distances]
    assert near_nodes(0, nodes) == frozenset(near)


def test_a_memory_policy_of_a_newer_kernel_is_not_known() -> None:
    found = judged({Cpu: f.cpu(memory_policy=MemoryPolicy("9", frozenset()))})["memory"]
    assert found.status is Status.UNKNOWN and found.evidence["mode"] == "9"


@pytest.mark.parametrize(("cpus", "share"), [((0,), 0.5), ((0, 1), 0.75), (range(7), 1 / 8)])
def test_ranks_that_share_too_few_cores(cpus: Iterable[int], share: float) -> None:
    found = judged({Baseline: ranks(cpus)})["GPU0"]
    assert found.status is Status.FAIL and found.loss is not None
    assert (found.loss.share, found.severity) == (pytest.approx(share), Severity.CRITICAL)
    assert found.cure is None or len(found.cure.change.binding) == 8


def test_a_core_a_rank_is_enough_and_so_is_a_small_machine() -> None:
    one = (f.node(0, range(4), {0: 10}),)
    small = f.cpu(nodes=one, allowed=frozenset(range(4)), online=frozenset(range(4)))
    assert judged({Baseline: ranks(range(8))})["GPU0"].status is Status.PASS
    assert judged({Baseline: ranks(range(4)), Cpu: small})["GPU0"].status is Status.PASS


def test_a_rank_on_the_wrong_socket_is_tried_on_its_own() -> None:
    found = judged({Baseline: ranks(SECOND)})["GPU0"]
    assert found.cure is not None and found.cure.label == "rank 0 on the CPUs of node 0"
    assert set(FIRST) <= set(found.cure.change.binding[0]) and not set(SECOND) & set(found.cure.change.binding[0])
    assert found.cure.change.binding[1] == tuple(SECOND)

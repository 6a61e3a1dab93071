"""allreduce.run: each state of a run to its true status."""

import dataclasses
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.allreduce_run import allreduce_run
from netdoctor.cluster.session import beside, shared
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_health import GpuHealth, GpuState
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import WITH_RUN, AllReduce, Baseline, Caller, CommonRun, Obstacle, PathRun, Run, State, TorchFacts
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Kind, Status, Unavailable
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts import (
    NO_GPU,
    baseline,
    gloo_run,
    gpu,
    gpus,
    hca_run,
    job,
    judge,
    log,
    machine,
    only,
    path_run,
    pci,
    rank,
    run,
)


def one(given: Run) -> tuple[Status, str | None]:
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
    return found.status, found.cause


def test_a_healthy_node_passes() -> None:
    found = only(judge(allreduce_run, machine()))
    assert found.status is Status.PASS
    assert "8 ranks on 8 GPUs" in found.message


@pytest.mark.parametrize(
    ("given", "status", "cause"),
    [
        (run(state="not started", verified=None, reason="GPU 3 is in use: 70000 MiB"), Status.UNKNOWN, None),
        (run(state="not started", verified=None, reason="no torch: ModuleNotFoundError"), Status.UNKNOWN, None),
        (run(state="unfinished", verified=None, reason="rank 0 in phase timed"), Status.UNKNOWN, None),
        (run(verified=None), Status.UNKNOWN, None),
        (gloo_run(experiment=AllReduce("gloo", 1, "cpu"), ranks=(rank(0),)), Status.UNKNOWN, None),
        (run(state="hung", verified=None, blamed=(3,)), Status.FAIL, "hang"),
        (run(state="hung", verified=None, blamed=()), Status.FAIL, "hang"),
        (run(state="failed", verified=None, blamed=(1,)), Status.FAIL, "rank_died"),
        (run(verified=False, ranks=(rank(0), rank(1, wrong=5))), Status.FAIL, "wrong_data"),
        (run(2, state="hung", verified=None, experiment=AllReduce("nccl", 2, "cuda", gpus=(0, 0))), Status.UNKNOWN, None),
    ],
)
def test_states(given: Run, status: Status, cause: str | None) -> None:
    assert one(given) == (status, cause)


@pytest.mark.parametrize(
    ("mode", "ordinals", "status"),
    [(0, (0, 0), Status.FAIL), (3, (0, 0), Status.UNKNOWN), (1, (0, 0), Status.UNKNOWN), (3, (0, 1), Status.FAIL)],
)
def test_one_process_alone_may_compute(mode: int, ordinals: tuple[int, ...], status: Status) -> None:
    no = Unavailable("unsupported")
    fields: dict[str, Any] = {**dict.fromkeys(GpuState.__dataclass_fields__, no), "uuid": gpu(0).uuid, "compute_mode": mode}
    experiment = AllReduce("nccl", 2, "cuda", gpus=ordinals)
    failed = run(2, state="failed", verified=None, experiment=experiment, blamed=(1,))
    facts = {Baseline: baseline(failed), Gpus: gpus(2), Pci: pci(2, 0), GpuHealth: GpuHealth((GpuState(**fields),))}
    assert only(judge(allreduce_run, machine() | facts)).status is status


@pytest.mark.parametrize(("shown", "status"), [(log(net="IB"), "pass"), (log(net="", vias=()), "unknown"), (None, "unknown")])
def test_a_port_whose_run_has_no_log(shown: Any, status: str) -> None:
    facts = machine() | {PathRun: path_run(replace(hca_run(), log=shown)), Intent: job(nodes=2)}
    found = {one.subject: one.status for one in judge(allreduce_run, facts)}
    assert found["inter-node mlx5_0:1"] == status


def test_of_a_missing_node_the_next_step_is_to_start_it() -> None:
    missing = Unavailable(Kind.MISSING_NODE, "node 1: it did not come within 4 s")
    found = next(iter(judge(allreduce_run, machine() | {Baseline: missing})))
    assert found.message == "no all-reduce was run: node 1: it did not come within 4 s"
    assert found.how is not None and "missing node" in found.how
    nodes = "see allreduce.nodes"  # which says what each node lacks
    for kind, how in ((Kind.OTHER_NODES, nodes), (Kind.THIS_NODE, nodes), (Kind.FAILED, WITH_RUN)):
        found = next(iter(judge(allreduce_run, machine() | {Baseline: Unavailable(kind, missing.detail)})))
        assert found.how == how, "the kind counts, not the words"


def test_who_is_on_the_same_machine() -> None:
    assert beside({0: {"boot": "a"}, 1: {"boot": "b"}, 2: {"boot": "a"}}, 0) == (2,)
    assert beside({0: {"boot": ""}, 1: {"boot": ""}}, 0) == beside({0: {}, 1: {}}, 0) == beside({1: {"boot": "a"}}, 0) == ()


def test_two_nodes_on_one_machine_are_told_to_part() -> None:
    reason = shared(0, (1,))
    found = only(
        judge(
            allreduce_run,
            machine() | {Baseline: baseline(run(state="not started", reason=reason, obstacle=Obstacle.SAME_MACHINE))},
        )
    )
    assert "nodes 0, 1 of this run are the same machine" in found.message
    assert found.how is not None and "machine of its own" in found.how


@pytest.mark.parametrize("state", ["finished", "not started"])
def test_the_report_says_which_python_was_tried(state: str) -> None:
    python = "/usr/bin/python3 (python3 on PATH; the command does not tell)"
    given = run(state=state, reason="", notes=("as user ada",), interpreter=python)
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
    assert found.notes == ("as user ada", f"taken for the job's Python: {python}")


@pytest.mark.parametrize("state", ["finished", "failed", "hung", "not started"])
def test_processes_that_were_left_behind_are_told(state: str) -> None:
    given = run(state=state, reason="", abandoned=(4711,))
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
    assert found.notes == ("processes that hang in the kernel were left behind",)
    assert found.measured["left_behind"] == (4711,)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: ifa != nullptr. Unable to find address for: nosuch0", "socket_ifname"),
        ("RuntimeError: rv != -1. -1 vs -1. bind: Address already in use", "bootstrap_ports"),
        (
            "DistBackendError: NCCL error / Last error: / Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000",
            "duplicate_gpu",
        ),
        ("RuntimeError: planted", "rank_died"),
    ],
)
def test_the_error_of_the_rank_that_failed_gives_the_cause(error: str, cause: str) -> None:
    given = gloo_run(state="failed", verified=None, blamed=(1,), ranks=(rank(0), rank(1, phase="init", error=error)))
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
    assert (found.status, found.cause) == (Status.FAIL, cause)
    assert "rank 1 failed in phase init" in found.message
    assert found.measured["errors"] == {1: error}


def test_what_all_nodes_found_counts_more_than_what_one_saw() -> None:
    common: dict[str, Any] = {"told": "nothing came from node-b on 10.0.0.2:29500", "told_cause": "firewall_connect"}
    seen = run(2, state="failed", verified=None, blamed=(1,), ranks=(rank(0), rank(1, error="Connection reset by peer")))
    fields = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(CommonRun(**fields, **common))}))
    assert (found.status, found.cause, found.how) == (Status.FAIL, "firewall_connect", "see allreduce.nodes")
    assert "nothing came from node-b" in found.message and found.evidence["ranks"] == [1]
    alone = only(judge(allreduce_run, machine() | {Baseline: baseline(CommonRun(**fields, told="", told_cause=""))}))
    assert (alone.cause, alone.how) == ("rank_died", "the rank's own error, and its NCCL log")


def test_what_strangers_may_have_told_is_no_fail() -> None:
    seen = run(state="failed", verified=None, blamed=(1,), reason="rank 1 died")
    fields = {field.name: getattr(seen, field.name) for field in dataclasses.fields(seen)}
    found = only(
        judge(allreduce_run, machine() | {Baseline: baseline(CommonRun(**fields, told="", told_cause="", proven=False))})
    )
    assert (found.status, found.how) == (Status.UNKNOWN, "see allreduce.nodes")


def test_seconds_are_measured_to_the_millisecond() -> None:
    assert only(judge(allreduce_run, machine() | {Baseline: baseline(run(seconds=1.23456))})).measured["seconds"] == 1.235


def test_no_memory_on_a_gpu_that_others_use_is_no_fault() -> None:
    ranks = (rank(0), rank(1, phase="first", error="OutOfMemoryError: CUDA out of memory. Tried to allocate 256 MiB"))
    assert one(run(2, state="failed", verified=None, blamed=(1,), ranks=ranks)) == (Status.UNKNOWN, None)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to allocate 67108864 bytes. Error code 12", None),
        ("MemoryError", None),
        ("terminate called after throwing an instance of 'std::bad_alloc'", None),
        ("RuntimeError: uncorrectable ECC error encountered", "rank_died"),
    ],
)
def test_a_limit_of_our_own_is_no_fault_of_the_node(error: str, cause: str | None) -> None:
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(failed_with(error))}))
    assert (found.status, found.cause if found.status is Status.FAIL else None) == (
        (Status.FAIL if cause else Status.UNKNOWN),
        cause,
    )


def failed_with(error: str) -> Run:
    ranks = (rank(0), rank(1, phase="first", error=error))
    return run(2, state="failed", verified=None, blamed=(1,), ranks=ranks)


def test_gloo_is_a_pass_only_where_there_is_no_accelerator() -> None:
    given = baseline(gloo_run(), nccl_ran=False)
    found = only(judge(allreduce_run, machine() | {Baseline: given, **NO_GPU}))
    assert found.status is Status.PASS
    assert "NCCL did not run" in found.message
    for facts in ({}, {**NO_GPU, Pci: Unavailable("denied")}, {**NO_GPU, Pci: pci(0, 0, foreign_accelerators=("AMD",))}):
        assert only(judge(allreduce_run, machine() | {Baseline: given} | facts)).status is Status.UNKNOWN


def test_no_run_is_unknown() -> None:
    assert only(judge(allreduce_run, machine() | {Baseline: Unavailable("refused", "--no-allreduce")})).status is Status.UNKNOWN


def test_each_path_is_judged() -> None:
    stuck = hca_run(hca="mlx5_1:1", state="hung", verified=None, blamed=(1,))
    late = hca_run(hca="mlx5_2:1", state="not started", verified=None, reason="no time left for this path")
    sockets = hca_run(hca="mlx5_3:1")
    sockets = replace(sockets, log=log(net="Socket", network="Socket"))
    found = judge(allreduce_run, machine() | {PathRun: path_run(hca_run(), stuck, late, sockets)})
    assert [(f.subject, f.status, f.cause) for f in found[1:]] == [
        ("inter-node mlx5_0:1", Status.PASS, None),
        ("inter-node mlx5_1:1", Status.FAIL, "hang"),
        ("inter-node mlx5_2:1", Status.UNKNOWN, None),
        ("inter-node mlx5_3:1", Status.FAIL, "transport_fallback_tcp"),
    ]


def test_a_path_that_was_not_tried_is_said() -> None:
    lost = {PathRun: Unavailable("no budget")}
    found = judge(allreduce_run, machine() | lost)
    assert [(x.subject, x.status) for x in found] == [("node", Status.PASS), ("inter-node", Status.UNKNOWN)]
    nothing = judge(allreduce_run, machine() | lost | {Baseline: Unavailable("refused")})
    assert [(x.subject, x.status) for x in nothing] == [("node", Status.UNKNOWN)]
    cpu = judge(allreduce_run, machine() | lost | NO_GPU | {Baseline: baseline(gloo_run(), nccl_ran=False)})
    assert [(x.subject, x.status) for x in cpu] == [("node", Status.PASS)]


@pytest.mark.parametrize(
    ("obstacle", "reason", "words"),
    [
        (Obstacle.GPU_BUSY, "GPU 3 is in use: 70000 MiB", "when the GPUs are free"),
        (Obstacle.LOCK, "another netdoctor holds the lock", "when the GPUs are free"),
        (Obstacle.REFUSED, "the interpreter was refused: it belongs to ada", "--user"),
        (Obstacle.NO_TORCH, "no torch: ModuleNotFoundError", "--python"),
        (Obstacle.TIME, "rank 0 in phase timed", "more time"),
        (Obstacle.TIME, "import torch was not done after 180 s", "more time"),
        # words that say something else than they seem to
        (Obstacle.IMPORT, "import torch fails: No module named 'filelock'", "import torch with that interpreter"),
        (Obstacle.IMPORT, "import torch fails: io_uring is blocked by seccomp", "import torch with that interpreter"),
        (Obstacle.LOST, "the process ended: connection refused", "dmesg"),
        (None, "a recording of an older netdoctor, whose lock is refused", "netdoctor preflight"),
    ],
)
def test_what_to_do_fits_the_obstacle_and_no_word(obstacle: Obstacle | None, reason: str, words: str) -> None:
    given = run(state=State.NOT_STARTED, verified=None, reason=reason, obstacle=obstacle)
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
    assert found.status is Status.UNKNOWN and words in (found.how or "") and reason in found.message


def test_a_driver_that_is_not_ready_is_the_fabrics() -> None:
    reason = "LibraryError: cuInit: CUDA_ERROR_SYSTEM_NOT_READY: system not yet initialized"
    given = run(state=State.NOT_STARTED, verified=None, reason=reason, obstacle=Obstacle.NOT_READY)
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
    assert (found.status, found.cause) == (Status.FAIL, "fabric_manager") and reason in found.message


@pytest.mark.parametrize("obstacle", Obstacle)
def test_every_obstacle_has_its_next_step(obstacle: Obstacle) -> None:
    given = run(state=State.UNFINISHED, verified=None, reason="r", obstacle=obstacle)
    assert only(judge(allreduce_run, machine() | {Baseline: baseline(given)})).how


def test_sizes_read_well() -> None:
    sizes = (512, 1 << 10, 1 << 20, 1 << 30)
    for first, last, words in ((0, 1, "512 B to 1 KiB"), (1, 2, "1 KiB to 1 MiB"), (2, 3, "1 MiB to 1 GiB")):
        experiment = replace(run().experiment, sizes=(sizes[first], sizes[last]))
        assert words in only(judge(allreduce_run, machine() | {Baseline: baseline(run(experiment=experiment))})).message


@pytest.mark.parametrize(("wrong", "words"), [({1: 5}, "on rank 1"), ({0: 2, 1: 5}, "on ranks 0, 1")])
def test_ranks_with_wrong_sums_are_named(wrong: dict[int, int], words: str) -> None:
    ranks = tuple(rank(i, wrong=wrong.get(i, 0)) for i in range(3))
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(run(3, ranks=ranks))}))
    assert found.message.endswith(words) and found.measured["wrong_elements"] == wrong


@pytest.mark.parametrize(("blamed", "words"), [((2,), "rank 2 never arrived"), ((1, 2), "ranks 1, 2 never arrived")])
def test_ranks_that_are_missing_are_named(blamed: tuple[int, ...], words: str) -> None:
    given = run(3, state="hung", verified=None, blamed=blamed)
    assert words in only(judge(allreduce_run, machine() | {Baseline: baseline(given)})).message


def test_wrong_elements_count_whatever_the_run_says_of_itself() -> None:
    assert one(run(verified=True, ranks=(rank(0), rank(1, wrong=5)))) == (Status.FAIL, "wrong_data")
    assert one(run(verified=False, ranks=(rank(0), rank(1)))) == (Status.FAIL, "wrong_data")


SEVEN = run(7, experiment=AllReduce("nccl", 7, "cuda", gpus=tuple(range(7))))


@pytest.mark.parametrize(
    ("given", "changes", "status"),
    [
        (SEVEN, {}, Status.UNKNOWN),
        (
            replace(SEVEN, torch=TorchFacts(device_count=7)),
            {},
            Status.PASS,
        ),  # which torch shows fewer is hardware.accelerator's
        (replace(SEVEN, torch=TorchFacts(device_count=8)), {}, Status.UNKNOWN),
        (SEVEN, {Intent: job(ranks_per_node=7)}, Status.PASS),
        (SEVEN, {Gpus: gpus(8, visible=Unavailable("timed out"))}, Status.UNKNOWN),
        (replace(SEVEN, via=Caller.NCCL, torch=TorchFacts(device_count=7)), {}, Status.UNKNOWN),
        (run(8, experiment=AllReduce("nccl", 8, "cuda", gpus=(0, 1, 2, 3, 4, 5, 6, 6))), {}, Status.UNKNOWN),
    ],
)
def test_a_run_with_fewer_gpus_says_nothing_of_the_others(given: Run, changes: dict[type, object], status: Status) -> None:
    found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)} | changes))
    assert found.status is status, found.message


EMFILE = "RuntimeError: [enforce fail at gloo/transport/tcp/listener.cc] socket: Too many open files"
NCCL = "ncclSystemError: System call (e.g. socket, malloc) failed\nLast error:\nsocketInit: socket failed, Too many open files"
LOG = "n:7:7 [0] NCCL WARN socket.cc:415 NCCL WARN Call to socket failed: Too many open files\n"
ENFILE = "RuntimeError: socket: Too many open files in system"
THREADS = "RuntimeError: can't start new thread"
CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer"
ENDED = "terminate called without an active exception\n"  # of the other rank


@pytest.mark.parametrize(
    ("error", "logged", "jobs", "status", "words"),
    [
        (EMFILE, "", False, Status.UNKNOWN, "too few descriptors"),
        (NCCL, "", False, Status.UNKNOWN, "too few descriptors"),
        (NCCL, LOG, False, Status.UNKNOWN, "too few descriptors"),
        (EMFILE, "", True, Status.FAIL, "rank 1 came to the job's limit of open files, 1024"),
        (NCCL, LOG, True, Status.FAIL, "rank 1 came to the job's limit of open files, 1024"),
        (ENFILE, "", False, Status.FAIL, "rank 1 failed"),  # the node's own table, whoever looks
        (THREADS, "", True, Status.UNKNOWN, "descriptors or processes"),
        (THREADS, "", False, Status.UNKNOWN, "descriptors or processes"),
        (CLOSED, "", False, Status.UNKNOWN, "descriptors or processes"),
    ],
)
def test_whose_limit_a_rank_came_to(error: str, logged: str, jobs: bool, status: Status, words: str) -> None:
    given = run(state="failed", verified=None, blamed=(1,), ranks=(rank(0), rank(1, error=error)), log_text=logged)
    given = replace(given, output=ENDED) if error == CLOSED else given
    facts = machine() | {Baseline: baseline(given)}
    facts |= {
        Kernel: replace(facts[Kernel], limits={**facts[Kernel].limits, "nofile": 1024}),
        Vantage: replace(facts[Vantage], job_user=jobs),
    }
    found = only(judge(allreduce_run, facts))
    assert found.status is status and words in found.message, found
    assert status is not Status.FAIL or found.cause == ("process_limits" if jobs else "bootstrap_ports")


POLLED = "n:7:9 [1] proxy.cc:1666 NCCL WARN [Proxy Service] Poll failed: Invalid argument\n"
REFUSED = "n:7:9 [0] NCCL WARN socketPollConnect: connect to 10.0.0.7<40001> returned Connection refused, exceeded retries\n"


@pytest.mark.parametrize(("jobs", "status"), [(True, Status.FAIL), (False, Status.UNKNOWN)])
@pytest.mark.parametrize("blamed", [(), (1,)])
@pytest.mark.parametrize("state", ["failed", "hung"])
def test_a_proxy_that_polls_more_than_it_may_open(jobs: bool, status: Status, blamed: tuple[int, ...], state: str) -> None:
    given = run(state=state, verified=None, blamed=blamed, ranks=(rank(0), rank(1)), log=parse_text(POLLED))
    facts = machine() | {Baseline: baseline(given)}
    facts |= {
        Kernel: replace(facts[Kernel], limits={**facts[Kernel].limits, "nofile": 64}),
        Vantage: replace(facts[Vantage], job_user=jobs),
    }
    found = only(judge(allreduce_run, facts))
    assert (found.status, found.cause) == (status, "process_limits" if jobs else None), found
    assert not jobs or found.message.endswith("came to the job's limit of open files, 64")


def test_who_cannot_reach_a_rank_without_threads_is_its_victim() -> None:
    for output, status in ((f"  what():  {THREADS[14:]}\n", Status.UNKNOWN), ("", Status.FAIL)):
        ranks = (rank(0), rank(1, exit=-6))
        given = run(state="failed", verified=None, blamed=(1,), ranks=ranks, log=parse_text(REFUSED), output=output)
        found = only(judge(allreduce_run, machine() | {Baseline: baseline(given)}))
        assert (found.status, found.cause) == (status, None if output else "firewall_connect"), found

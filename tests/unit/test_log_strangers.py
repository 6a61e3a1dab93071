"""Mechanisms that logs of strangers asked for: severity, how an end bears on what came before, and who is named."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Severity, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import BLOCKS, CAME_UP

HEAD = "node01:100:130 [0] "
APART = HEAD + "bootstrap.cc:77 NCCL WARN Bootstrap Root : mismatch in rank count from procs 8 : 16\n"


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


def test_a_job_that_stands_still_at_a_warning_is_stopped_by_it() -> None:
    """The log merely stops: no line says that the job failed."""
    assert first(BLOCKS["@TWO"].split("\n")[0] + "\n" + APART).severity is Severity.CRITICAL
    assert first(APART + CAME_UP + "step 1 loss 2.0\n" * 9).severity is not Severity.CRITICAL


def test_what_came_before_a_good_end_stopped_nothing() -> None:
    down = HEAD + "transport/net_ib/common.cc:179 NCCL WARN NET/IB : mlx5_3:1 Got non-fatal async event: port error(10)\n"
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100\n"
    assert [(f.cause, f.severity) for f in diagnose(parse_text(CAME_UP + down + end))] == [("link_degraded", Severity.WARNING)]
    assert first(CAME_UP + down).severity is Severity.CRITICAL
    wrong = "# Out of bounds values : 3 FAILED\n# Avg bus bandwidth    : 100\n"
    assert (first(CAME_UP + wrong).cause, first(CAME_UP + wrong).severity) == ("wrong_data", Severity.CRITICAL)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param(
            "  0%|   | 17/6000 [00:58<4:50:05,  2.91s/it][rank0]: Traceback (most recent call last):\n"
            '[rank0]:   File "/w/train.py", line 928, in main\n[rank0]: ValueError: loss scale at minimum\n',
            "rank 0 ended by an uncaught exception, ValueError at /w/train.py:928",
            id="a traceback that begins behind a progress bar",
        ),
        pytest.param(
            '[rank0]: Traceback (most recent call last):\n[rank0]:   File "/w/train.py", line 9, in save\n'
            "[rank0]: RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 19 vs 18\n"
            "OSError: [Errno 28] No space left on device\n",
            "the file system is full",
            id="the file system's own words",
        ),
        pytest.param(
            "E0612 09:52:41.7 203 api.py:869] failed (exitcode: -9) local_rank: 5 (pid: 20405) of binary: /bin/python\n"
            "[Thu Jun 12 09:52:39 2025] Memory cgroup out of memory: Killed process 20405 (python) total-vm:2kB\n",
            "the memory limit of its container",
            id="what the kernel says of a death that a launcher reports",
        ),
        pytest.param(
            " 33%|####Memory access fault by GPU node-3 (Agent handle: 0x5a) on address 0x709. Reason: Write access.\n",
            "a kernel of the program failed: Memory access fault by GPU node-3",
            id="an illegal access on a GPU of AMD's",
        ),
        pytest.param(
            "x.cc:954] UNAVAILABLE: Task /job:jax_worker/replica:0/task:37 heartbeat timeout.\n",
            "task 37 ended first",
            id="a task of JAX",
        ),
        pytest.param(
            "nslookup: can't resolve 'mnist-master-0'\nwaiting for master\n",
            "the name mnist-master-0 does not resolve",
            id="a pod that waits for another's name",
        ),
    ],
)
def test_what_failed_is_named(text: str, words: str) -> None:
    finding = first(text)
    assert finding.status is Status.FAIL and words in finding.message


def test_the_standing_advice_of_rccl_is_no_fault() -> None:
    advice = "".join(
        f'{HEAD}src/init.cc:12{n} NCCL WARN Missing "{what}" which can lead to system instablity or hang!\n'
        for n, what in enumerate(('iommu=pt" from kernel command line', 'HSA_FORCE_FINE_GRAIN_PCIE=1" from environment'))
    )
    assert first(advice + CAME_UP + "step 1 loss 2.0\n" * 9).status is Status.PASS


def test_sockets_between_workstations_are_no_fallback() -> None:
    def log(gpu: str) -> str:
        header = "".join(f"#  Rank  {n} Group  0 Pid  12 on  node0{n} device  0 [0x01] {gpu}\n" for n in (0, 1))
        missing = f"{HEAD}NCCL INFO Failed to open libibverbs.so[.1]\n{HEAD}NCCL INFO Using network Socket\n"
        return header + missing + BLOCKS["@TWO"]

    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.4\n"
    assert first(log("NVIDIA RTX A2000") + end).status is first(log("NVIDIA A10G") + end).status is Status.PASS
    assert [first(log(f"NVIDIA {gpu}")).cause for gpu in ("RTX A2000", "A10G")] == [None, "transport_fallback_tcp"]


def test_an_address_is_no_rank() -> None:
    failed = "Call to ibv_modify_qp failed with 61 No data available, on dev rocep1s0f0:1, curr state INIT, next state RTR, "
    finding = first(f"NCCL WARN {failed}local GID index 3, local GID ::, remote GID ::ffff:10.0.0.2\n")
    assert (finding.cause, finding.subject) == ("roce_gid", "job")


def test_an_order_before_a_new_start_is_not_the_end() -> None:
    order = "slurmstepd: error: *** JOB 1 ON n1 CANCELLED AT 2024-01-01T00:00:00 DUE TO PREEMPTION ***\n"
    again = "Resuming from step 4\n" + "step 5 loss 2.0\n" * 4
    assert first(CAME_UP + order + again).status is Status.PASS
    assert first(CAME_UP + order + "step 5 loss 2.0\n").status is Status.UNKNOWN


def test_an_evicted_pod_gets_the_advice_of_what_ran_out() -> None:
    evicted = "Warning  Evicted  pod/bert-worker-0  The node was low on resource: {}. Threshold quantity: 24068434671.\n"
    disk, memory = (first(CAME_UP + evicted.format(what)) for what in ("ephemeral-storage", "memory"))
    assert (
        "low on ephemeral-storage" in disk.message and "ephemeral-storage" in repr(disk.fix) and "memory" not in repr(disk.fix)
    )
    assert "low on memory" in memory.message and "memory" in repr(memory.fix)


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (
            f"{HEAD}x:1 NCCL WARN NET/OFI OFI fi_getinfo() call failed: No data available\n",
            "plugin_mismatch",
            "no usable EFA device",
        ),
        (
            "XlaRuntimeError: Barrier timed out. Barrier_id: PjRT_Client_Connect. Timed out task names:\n/job:w/task:6\n",
            *("hang", "rank 6 did not come to the barrier"),
        ),
        (
            "Waiting in store based barrier to initialize process group for rank: 3, key: a (world_size=8, worker_count=3)\n",
            *("hang", "3 of 8 ranks came to the rendezvous"),
        ),
        (
            "[rank8] Gloo connectFullMesh failed ... timed out connecting: refused,\n    remote=[127.0.0.1]:14\n",
            *("gloo_backend", "Gloo advertises the loopback address"),
        ),
    ],
)
def test_words_of_others_are_read(text: str, cause: str, words: str) -> None:
    assert (first(text).cause, words in first(text).message) == (cause, True)


def test_a_barrier_that_all_came_to_is_no_hang() -> None:
    waiting = (
        "Waiting in store based barrier to initialize process group for rank: 3, key: a:1 (world_size=8, worker_count=3)\n"
    )
    done = "Rank 3: Completed store-based barrier for key:a:1 with 8 nodes.\n"
    assert first(CAME_UP + waiting + done).status is Status.PASS


def test_a_program_that_ran_to_its_end_needs_no_line_of_nccl() -> None:
    assert first("step 1 loss 2.0\n{'train_runtime': 9.1}\n").status is Status.PASS
    assert first("{'train_runtime': 9.1}\n").status is Status.PASS
    assert first("{'train_runtime': 9.1}\n" + "some other line\n" * 40).status is Status.UNKNOWN  # not its last words


def test_no_mend_that_the_log_refutes() -> None:
    refused = "modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\n"
    register = f"{HEAD}x.cc:1 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Bad address\n"
    assert "modprobe nvidia_peermem" in repr(first(register).fix)
    assert "modprobe nvidia_peermem" not in repr(first(register + refused).fix)

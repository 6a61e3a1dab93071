"""What the kernel or a library says right before a crash or a hang is the cause, and these are its echo."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Severity, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS

KERNEL = "[c7] Feb  3 04:11:09 c7 kernel: "
LATE = "".join(
    f"[rank{n}]:[E203 04:40:00.1 ProcessGroupNCCL.cpp:607] [Rank {n}] Watchdog caught collective operation timeout: "
    f"WorkNCCL(SeqNum=77, OpType=ALLGATHER, NumelIn=8, NumelOut=16, Timeout(ms)=600000) ran for 600010 milliseconds\n"
    for n in (0, 1, 3)
)
CRASH = "srun: error: c7: task 2: Segmentation fault\n"
SILENT = KERNEL + "nfs: server 172.20.1.9 not responding, timed out\n"
SLEEPS = KERNEL + "INFO: task pt_main_thread:412 blocked for more than 245 seconds.\n"
FRAME = KERNEL + " rpc_wait_bit_killable+0x1e/0xa0 [sunrpc]\n"
ENGINE = "[TRT] [E] 1: [rt.cpp::r::40] Error Code 1: Serialization (Version tag does not match. Note: Current Version: 205, "
LUSTRE = (
    "Lustre: scratch-OST0003-osc-ff: Connection to scratch-OST0003 (at 10.1.9.4@o2ib) was lost; in progress operations "
    "using this service will wait for recovery to complete\n"
)
UCX = "2: [171.2] [c7:91:0]  cuda_copy_md.c:90   UCX  ERROR "


def of(text: str) -> tuple[Finding, ...]:
    return diagnose(parse_text(text))


@pytest.mark.parametrize(
    ("text", "cause", "words"),
    [
        (SILENT + STEPS[:30] + LATE, "node_storage", "the server 172.20.1.9 of a file system does not answer on c7"),
        (STEPS + SILENT + SLEEPS + FRAME + LATE, "node_storage", "pt_main_thread sleeps in the kernel and waits for it"),
        (STEPS + SLEEPS + FRAME + LATE, "node_storage", "in its file system (sunrpc)"),
        (SLEEPS + KERNEL + " xfs_buf_lock+0x37/0xf0\n" + LATE, "node_storage", "in its file system (xfs)"),
        (STEPS + SLEEPS + LATE, "hang", "pt_main_thread sleeps in the kernel on c7 for more than 245 s"),
        (
            LUSTRE + LATE,
            *("node_storage", "the server scratch-OST0003 of a file system does not answer"),
        ),
        (ENGINE + "Serialized Engine Version: 213)\n" + CRASH, "other", "by another TensorRT (213) than runs here (205)"),
        (
            "[E] The engine plan file is generated on an incompatible device, expecting compute 8.9 got compute 8.0, please\n",
            *("other", "another compute capability (8.0) than this one (8.9)"),
        ),
        (UCX + "cuPointerGetAttributes() is failed. ret:invalid device context\n" + CRASH, "rank_died", "no CUDA context"),
        (UCX + "mem handle is of another device\n" + CRASH, "rank_died", "UCX reports an error right before the crash: mem"),
    ],
)
def test_the_first_word_is_the_cause(text: str, cause: str, words: str) -> None:
    first = of(text)[0]
    assert (first.cause, first.severity) == (cause, Severity.CRITICAL)
    assert words in first.message


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(SILENT + KERNEL + "nfs: server 172.20.1.9 OK\n" + STEPS, id="a server that is back"),
        pytest.param(SILENT + SLEEPS.replace("245", "120") + KERNEL + "nfs: server 172.20.1.9 OK\n" + STEPS, id="and a task"),
        pytest.param(SILENT + STEPS, id="work that goes on"),
        pytest.param(UCX + "no such transport\n" + STEPS.replace("step", "2: step"), id="an error after which work goes on"),
    ],
)
def test_what_was_overcome_is_no_fault(text: str) -> None:
    assert [f.status for f in of(text)] == [Status.PASS]


def test_a_server_that_came_back_did_not_stop_what_hangs_later() -> None:
    assert of(SILENT + KERNEL + "nfs: server 172.20.1.9 OK\n" + STEPS + LATE)[0].cause == "hang"


def test_a_last_error_of_a_library_is_not_overheard() -> None:
    (only,) = of(UCX + "mem handle is of another device\n")
    assert only.status is Status.UNKNOWN


PING = "slurmctld: error: Nodes n7 not responding\n"
FEW = "".join(f"step {n}/1000 loss 2.{n}\n" for n in range(400, 500, 10))
REST = "".join(f"step {n}/1000 loss 1.{n}\n" for n in range(510, 1001, 10))


@pytest.mark.parametrize(
    "text",
    [
        f"{FEW}{PING}{REST}Training finished.\n",
        f"error: Nodes n7 not responding\n[2026-11-27T10:01:00] Node n7 now responding\n{FEW}{REST}Training finished.\n",
        f"{FEW}{REST}{PING}slurmctld: Node n7 now responding\nTraining finished.\n",
    ],
)
def test_a_node_that_answered_again_was_not_lost(text: str) -> None:
    assert all(finding.status is Status.PASS for finding in of(text))


@pytest.mark.parametrize(
    "text",
    [
        f"{FEW}{PING}",
        f"{FEW}{PING}slurmctld: Node n8 now responding\n",
        f"{FEW}slurmctld: Node n7 now responding\n{PING}",
        f"{FEW}{PING.strip()}, setting DOWN\n{REST}",
        f"{FEW}srun: error: Node failure on n7\n{REST}",
    ],
)
def test_a_node_that_does_not_answer_again_is_lost(text: str) -> None:
    first = of(text)[0]
    assert (first.status, first.cause, first.subject) == (Status.FAIL, "rank_died", "n7")

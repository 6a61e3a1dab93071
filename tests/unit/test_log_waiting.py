"""Ranks that wait in vain: for one that does not come, for nobody, or for those that an exception led elsewhere."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

UP = "".join(
    f"node01:10{rank}:120 [{rank}] NCCL INFO Bootstrap : Using eth0:10.0.0.1<0>\n"
    f"node01:10{rank}:120 [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {1 - rank}[{1 - rank}] [send] via NET/IB/0\n"
    f"node01:10{rank}:120 [{rank}] NCCL INFO comm 0x5{rank} rank {rank} nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0\n"
    f"node01:10{rank}:120 [{rank}] NCCL INFO comm 0x5{rank} rank {rank} nranks 2 cudaDev {rank} busId 1b000 - Init COMPLETE\n"
    for rank in range(2)
)
FORBIDDEN = "node01:100:120 [0] NCCL INFO NCCL_P2P_LEVEL set by environment to LOC\n"


def waits(rank: int, seq: int = 1, op: str = "ALLREDUCE") -> str:
    return (
        f"[rank{rank}]:[E923 15:45:08.084919234 ProcessGroupNCCL.cpp:607] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800048 ms\n"
    )


def test_where_all_ranks_came_none_is_missing() -> None:
    (found,) = [f for f in diagnose(parse_text(UP + FORBIDDEN + waits(0) + waits(1))) if f.status is Status.FAIL]
    assert found.cause == "hang"
    assert "all 2 ranks waited in the same collective" in found.message
    assert "ALLREDUCE number 1" in found.message
    assert found.fix is not None
    assert "did not come" not in f"{found.message}{found.fix.summary}"
    assert "set here: NCCL_P2P_LEVEL=LOC; run once without them" in found.notes
    assert any("over the network (NET/IB/0)" in note for note in found.notes)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_network_within_one_host_is_told_of_one_host_alone(nodes: int) -> None:
    up = UP.replace("nNodes 2 localRanks 1", f"nNodes {nodes} localRanks {2 // nodes}")
    if nodes == 2:
        up = "".join(line.replace("node01", f"node0{1 + n // 4}") + "\n" for n, line in enumerate(up.splitlines()))
    (found,) = [f for f in diagnose(parse_text(up + waits(0) + waits(1))) if f.status is Status.FAIL]
    assert "all 2 ranks waited" in found.message
    assert any(note.startswith("GPUs of one host reach each other over the network") for note in found.notes) is (nodes == 1)


@pytest.mark.parametrize(
    "log",
    [
        pytest.param(UP + waits(1), id="one says nothing"),
        pytest.param(UP + waits(0) + waits(1, seq=2), id="one is behind"),
        pytest.param(UP + waits(0) + waits(1, op="BROADCAST"), id="another operation"),
        pytest.param(waits(0) + waits(1), id="nobody tells how many there are"),
        pytest.param(UP.replace("nranks 2", "nranks 3") + waits(0) + waits(1), id="a third is in no line"),
    ],
)
def test_what_does_not_show_that_all_ranks_came(log: str) -> None:
    assert "no rank is missing" not in diagnose(parse_text(log))[0].message


def test_without_their_number_it_is_said_of_the_ranks_there_are() -> None:
    found = diagnose(parse_text(waits(0) + waits(1)))[0]
    assert any(note.startswith("all 2 ranks of this log waited in it: where the job has no others") for note in found.notes)


ABORTED = (
    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: -6) local_rank: 1 (pid: 77) of binary: python3\n"
    "srun: error: n1: task 0: Exited with exit code 1\n"
)


@pytest.mark.parametrize(
    "said",
    [
        '---error stack.size() INTERNAL ASSERT FAILED at "../torch/csrc/autograd/profiler_python.cpp":964, please report a bug',
        "RuntimeError: shape '[4, 8]' is invalid for input of size 31",
        "[rank2]: ValueError: the batch is empty",
        "skipping this model: RuntimeError('the batch is empty')",
    ],
)
def test_an_exception_comes_before_the_wait_that_follows_from_it(said: str) -> None:
    begun = "loading the model\nwarming up\n"
    found = diagnose(parse_text(f"{begun}{said}\ntraining model now: gpt2-medium\n{waits(1, seq=701)}{ABORTED}"))[0]
    assert (found.status, found.cause, found.evidence["fault"]) == (Status.FAIL, "rank_died", "uncaught exception")
    assert said[-20:].strip(")'") in found.message
    assert found.subject != "rank 1"


def test_what_was_printed_after_the_wait_is_no_reason_for_it() -> None:
    assert diagnose(parse_text(f"{waits(1)}RuntimeError: the watchdog is gone\n"))[0].cause == "hang"


def test_what_work_followed_is_no_reason_for_a_wait() -> None:
    work = "".join(f"step {n} loss 2.0\n" for n in range(9))
    found = diagnose(parse_text(f"RuntimeError: no such folder\n{work}{waits(1)}"))[0]
    assert found.cause == "hang"

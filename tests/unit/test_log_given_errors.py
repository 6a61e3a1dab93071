"""Logs in which NCCL gave an error, and what hands it on says nothing more: nccl-tests, and torch's watchdog."""

from __future__ import annotations

from netdoctor.model import Finding
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.documents import document
from netdoctor.nccl.log.parser import parse_text

REMOTE = "remote process exited or there was a network error"


def table(test: str, host: str, pid: int) -> str:
    """A launch of nccl-tests on four GPUs that ends at init; src/common.cu."""
    ranks = [
        f"#  Rank {n:2} Group  0 Pid {pid + n} on {host} device {n:2} [0000:{n + 1}b:00] NVIDIA A100-SXM4-80GB\n"
        for n in range(4)
    ]
    head = f"# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703\n# Collective test starting: {test}\n"
    ends = f"{host}: Test NCCL failure common.cu:1201 '{REMOTE} / '\n .. {host} pid {pid}: Test failure common.cu:1034\n"
    return (
        head + "# nThread 1 nGpus 4 minBytes 8 maxBytes 134217728 step: 2(factor)\n#\n# Using devices\n" + "".join(ranks) + ends
    )


def fails(text: str) -> list[Finding]:
    return [one for one in diagnose(parse_text(text)) if one.status == "fail"]


def test_a_table_that_begins_like_headings_is_a_log() -> None:
    assert not document(table("all_reduce_perf", "node07", 4100).encode())
    (one,) = fails(table("all_reduce_perf", "node07", 4100))
    assert one.cause == "rank_died"
    assert "remote process" in one.message


def test_runs_after_each_other_are_no_processes_without_mpi() -> None:
    found = fails(table("all_reduce_perf", "node07", 4100) + table("sendrecv_perf", "node07", 5100))
    assert [one.cause for one in found] == ["rank_died"]


def test_processes_at_once_are() -> None:
    begun = table("all_reduce_perf", "node07", 4100).split("node07: Test")[0]
    assert fails(begun + table("all_reduce_perf", "node07", 4200))[0].cause == "other"


def test_an_error_that_nccl_gave_is_no_rank_that_was_waited_for() -> None:
    given = (
        "[rank2]:[E ProcessGroupNCCL.cpp:1414] [PG 0 Rank 2] Process group watchdog thread terminated with exception: "
        "NCCL error: internal error - please report this issue to the NCCL developers, NCCL version 2.21.5\n"
        "ncclInternalError: Internal check failed.\nLast error:\nthe provider gave up\n"
    )
    text = (
        "[rank2]:[E ProcessGroupNCCL.cpp:577] [Rank 2] Some NCCL operations have failed or timed out. Due to the asynchronous "
        "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.\n"
        f"{given}terminate called after throwing an instance of 'c10::DistBackendError'\n"
        "[node07:00912] *** Process received signal ***\n[node07:00912] Signal: Aborted (6)\n"
    )
    (one,) = fails(text)
    assert (one.cause, one.subject) == ("rank_died", "rank 2")
    assert one.message.endswith("for an error that NCCL gave: the provider gave up")

"""How a job ended by its own words: servers, greetings and bars that show a good end, orders to end, and no good ends."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import BLOCKS, CAME_UP

LEFT = (
    "[rank0]:[W203 10:00:00.1 ProcessGroupNCCL.cpp:1496] Warning: WARNING: destroy_process_group() was not called before "
    "program exit, which can leak resources.\n"
)
BAR = "100%|##########| 100/100 [01:00<00:00,  1.66it/s]\n"
UP = "INFO:     Application startup complete.\nINFO:     Uvicorn running on http://0.0.0.0:8000 (Press CTRL+C to quit)\n"
HELLO = "".join(f"Hello world from processor n{n // 2}, rank {n} out of 4 processors\n" for n in range(4))
EXITS = "[2024-01-01 10:00:05,000] [INFO] [launch.py:351:main] Process 1234 exits successfully.\n"
SPAWNED = "[2024-01-01 09:00:00,000] [INFO] [launch.py:164:main] nnodes=1, num_local_procs=1, node_rank=0\n"
RAISED = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\nKeyError: 1\n'


def status(text: str) -> Status:
    return diagnose(parse_text(text))[0].status


@pytest.mark.parametrize("text", [LEFT, BAR + "peak memory: 31 GB\n", UP, HELLO, SPAWNED + EXITS, "rank 0: all_reduce ok\n"])
def test_a_good_end_in_any_words(text: str) -> None:
    assert status(text) is Status.PASS
    assert status(text + RAISED) is Status.FAIL


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("Loading checkpoint shards: 100%|####| 4/4 [00:01<00:00,  3.0it/s]\n", id="a bar of something loaded"),
        pytest.param(EXITS, id="one process of nobody knows how many"),
        pytest.param(SPAWNED.replace("procs=1", "procs=2") + EXITS, id="one process of two"),
        pytest.param(HELLO.replace("rank 3", "rank 2"), id="a rank that did not say hello"),
        pytest.param("all_reduce not ok\n", id="a denial"),
        pytest.param("nccl broadcast success rate 12%\n", id="a share of successes"),
        pytest.param("collective timed out; barrier ok\n", id="trouble in the same line"),
        pytest.param("gpu 3 lost; gpu 4 ok\n", id="a loss in the same line"),
        pytest.param(LEFT + "another line\n" * 40, id="it goes on after it"),
        pytest.param(UP + "node01:100:130 [0] x.cc:9 NCCL WARN something of its own\n", id="trouble after it"),
    ],
)
def test_what_is_no_good_end(text: str) -> None:
    assert status(text) is Status.UNKNOWN


ONE, ALL = (
    "".join(
        f"node01:10{rank}:12{rank} [{rank}] NCCL INFO {word} comm 0x{rank} rank {rank} nranks 2 cudaDev 0 busId 1b000 {end}\n"
        for word, end, ranks in (
            ("ncclCommInitRank", "commId 0xabc - Init START", 2),
            ("ncclCommInitRank", "commId 0xabc - Init COMPLETE", 2),
            ("", "- Destroy COMPLETE", destroyed),
        )
        for rank in range(ranks)
    )
    for destroyed in (1, 2)
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(ONE, id="one rank of two took its communicator apart"),
        pytest.param("training is over budget\n", id="more words follow"),
        pytest.param("=== 3 passed in 2.1s ===\n=== 1 failed, 2 passed in 2.1s ===\n", id="tests that failed after others"),
        pytest.param("=== 3 passed in 2.1s ===\n=== 2 errors in 0.1s ===\n", id="tests that did not begin after others"),
    ],
)
def test_the_end_of_a_part_is_none_of_the_whole(text: str) -> None:
    assert status(text) is Status.UNKNOWN
    assert status(ALL) is Status.PASS


@pytest.mark.parametrize(
    ("text", "full"),
    [
        (BAR, True),
        ("Epoch 10/10: " + BAR, True),
        ("Epoch: 100%|##########| 3/3 [01:00<00:00,  1.66it/s]\n", True),
        ("Epoch 1/10: " + BAR, False),
        ("Training epoch 3: " + BAR, False),
        ("Evaluating: " + BAR, False),  # within a training, where many hang
    ],
)
def test_a_full_bar_is_an_end_where_the_program_told_more(text: str, full: bool) -> None:
    alone = diagnose(parse_text(text))[0]
    assert (alone.status, alone.evidence["outcome"]) == (Status.UNKNOWN, "not in this log")
    assert not full or "whether that was the end" in alone.message
    assert status(text + "peak memory: 31 GB\n") is (Status.PASS if full else Status.UNKNOWN)
    for begun in ("saving the model\n", "out of disk space\n", "Epoch 2:  3%|#         | 3/100 [00:01<00:30,  3.2it/s]\n"):
        assert status(text + begun) is Status.UNKNOWN


def test_a_schedulers_word_says_who_sent_the_signal() -> None:
    signal = "Received signal 15: SIGTERM\n"
    order = "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2026-01-01T00:00:00 ***\n"
    assert "cancelled it" in diagnose(parse_text("step 1 loss 2.0\n" + signal + order))[0].message


def test_a_hub_that_was_asked_again_is_no_fault() -> None:
    refused = "huggingface_hub: 429 Client Error: Too Many Requests for url: https://huggingface.co/x\n"
    steps = "".join(f"step {n} loss 2.0\n" for n in range(9))
    assert status(refused + steps) is Status.PASS


def test_a_bare_assertion_is_told_by_its_line() -> None:
    text = 'Traceback (most recent call last):\n  File "/w/a.py", line 3, in f\n    assert samples > 0\nAssertionError\n'
    assert "AssertionError: assert samples > 0" in diagnose(parse_text(text))[0].message


def test_sockets_for_want_of_a_device_are_a_note() -> None:
    none = "node01:100:100 [0] NCCL INFO NET/IB : No device found.\n"
    (finding,) = diagnose(parse_text(none + BLOCKS["@SOCKET"] + BLOCKS["@TWO"] + CAME_UP))
    assert finding.status is Status.PASS
    assert "No device found" in finding.notes[0]
    alone = diagnose(parse_text(none + BLOCKS["@SOCKET"] + CAME_UP))
    assert not any("No device found" in note for one in alone for note in one.notes), "of one node nothing goes out"
    hca = "node01:100:100 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n"
    asked = diagnose(parse_text(none + hca + BLOCKS["@SOCKET"] + BLOCKS["@TWO"] + CAME_UP))
    assert asked[0].status is Status.FAIL
    assert not any("No device found" in note for one in asked for note in one.notes), "the finding says it"


def test_sockets_that_a_variable_asks_for_are_a_note() -> None:
    asked = "node01:100:100 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"
    (finding,) = diagnose(parse_text(asked + BLOCKS["@SOCKET"] + BLOCKS["@TWO"] + CAME_UP))
    assert finding.status is Status.PASS
    assert "NCCL_IB_DISABLE=1" in finding.notes[0]
    hca = "node01:100:100 [0] NCCL INFO NCCL_IB_HCA set to mlx5_0\n"
    assert diagnose(parse_text(asked + hca + BLOCKS["@SOCKET"] + BLOCKS["@TWO"] + CAME_UP))[0].status is Status.FAIL

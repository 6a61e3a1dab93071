"""A good end, a verified one, a quiet one: what a log without a cause may be called."""

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS
from tests.unit.test_log_rules import CAME_UP

HEAD = "node01:100:130 [0] "
DONE = STEPS + "Training finished.\n"
RIGHT = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 100\n"
ODD = HEAD + "net_fast.cc:8 NCCL WARN The moon is in the wrong phase for queue 3.\n"
LEAVES = (
    "2026-02-03 04:05:06.7: W external/xla/tsl/coordination/agent.cc:66] Polling was CANCELLED:\n"
    "Additional GRPC error information from remote target coordination_service while calling /x.CoordinationService/PollAll\n"
)
DIED = 'Traceback (most recent call last):\n  File "/w/t.py", line 9, in <module>\nValueError: x\n'


def steps(first: str, last: str = "") -> str:
    return "".join(f"2026-03-04 {first}:0{n} step {n} loss 2.0\n" for n in range(9)) + (f"2026-03-04 {last}" if last else "")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(DONE + LEAVES, id="what others say on the way out"),
        pytest.param(CAME_UP + ODD + RIGHT, id="a warning that verified values refute"),
        pytest.param(STEPS + "[TensorRT-LLM][INFO] [json.exception.type_error.302] no such key\n", id="information"),
        pytest.param(STEPS + "0: [1.2] [c1:7:0]  sock.c:3  UCX  DEBUG ioctl() failed: No such device\n", id="for debugging"),
        pytest.param(
            STEPS + "W0203 04:05:06.7 9 metrics.cc:63] Unable to get, an error occurred\n", id="a warning of Triton's"
        ),
        pytest.param(
            STEPS + "2026-02-03 04:05:06.7: W tf/x.cc:1] Error occurred: Python interpreter state is not initialized. "
            "The process may be terminated.\n",
            id="an interpreter that is taken down",
        ),
        pytest.param("a table\n 3  Corruption of a row  0.3\nAll results saved to: ./r.json\n", id="results that are written"),
        pytest.param(steps("10:00", "10:20:00 saving\n"), id="a pause"),
        pytest.param(steps("10:00", "11:20:00 done, training finished\n"), id="a pause before a good end"),
    ],
)
def test_a_good_end_or_progress_passes(text: str) -> None:
    assert [f.status for f in diagnose(parse_text(text))] == [Status.PASS]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(CAME_UP + STEPS + ODD, id="a warning that nothing refutes"),
        pytest.param(CAME_UP + ODD + DONE, id="a program that says it is done has not looked"),
        pytest.param(CAME_UP + RIGHT + ODD, id="a warning after the values were looked at"),
        pytest.param(LEAVES, id="a coordinator that is gone, and no end"),
        pytest.param(STEPS + "All results saved to: ./r.json\nthe writer crashed\n", id="trouble after a part's end"),
        pytest.param(STEPS + "INFO 03-04 10:11:12 shm.py:9] still waiting for a free block\n", id="a wait that is told calmly"),
        pytest.param(steps("10:00", "11:20:00 heartbeat\n"), id="a silence longer than any collective's timeout"),
        pytest.param(STEPS + "E0203 04:05:06.7 9 model.cc:63] it failed\n", id="an error of Triton's"),
    ],
)
def test_what_nobody_can_tell_is_no_pass(text: str) -> None:
    assert Status.PASS not in {f.status for f in diagnose(parse_text(text))}


def test_figures_of_a_run_that_died_are_no_work() -> None:
    figures = "".join(f"wandb: {name}/loss 1.{n}\n" for n, name in enumerate(("train", "eval", "test", "best")))
    assert diagnose(parse_text(STEPS + DIED + figures))[0].cause == "rank_died"


def test_an_earlier_bar_is_not_the_end_of_a_program() -> None:
    bar = "100%|##########| 40/40 [00:05<00:00, 78.56it/s]\n"
    assert outcome(
        parse_text(bar + STEPS + DIED.replace("ValueError: x", "OSError: [Errno 122] Disk quota exceeded"))
    ).ending is (Ending.FAILED)


def test_a_mere_warning_of_a_log_that_breaks_off_is_not_well() -> None:
    """Ranks that count each other differently need not stop a job; nothing shows that this one went on."""
    told = "[TensorRT-LLM][WARNING] Engine world size (2) != Runtime world size (8)\n"
    assert [f.status for f in diagnose(parse_text(told))][-1] is Status.UNKNOWN
    assert Status.UNKNOWN not in {f.status for f in diagnose(parse_text(told + STEPS))}

"""What a job went on after is no cause of its end: a helper of its script, a traceback that a logger printed as a warning."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.diagnosis.outcome import Ending, outcome
from netdoctor.nccl.log.parser import parse_text

SCRIPT = "/var/spool/slurmd/job77/slurm_script: line 36: python: command not found\n"
HELPER = (
    "Traceback (most recent call last):\n"
    '  File "/home/u/.local/bin/tracker", line 5, in <module>\n'
    "    from tracker.cli import cli\n"
    "ModuleNotFoundError: No module named 'dataclasses'\n"
)
TASKS = "".join(f" {rank}: /usr/lib/torch/cuda/__init__.py:64: FutureWarning: it is deprecated\n" for rank in range(4))
LIMIT = (
    " 0: [2026-06-24T15:14:07.032] error: *** STEP 77.1 ON n1 CANCELLED AT 2026-06-24T15:14:07 DUE TO TIME LIMIT ***\n"
    "[2026-06-24T15:14:07.032] error: *** JOB 77 ON n1 CANCELLED AT 2026-06-24T15:14:07 DUE TO TIME LIMIT ***\n"
)
GLOG = "3: [rank3]:W0624 15:07:12.862000 162450 torch/_inductor/codecache.py:1052] [1/1] "
VLLM = "(EngineCore pid=24969) WARNING 06-25 16:32:09 [import_utils.py:408] "


def raised(mark: str, said: str) -> str:
    return (
        f"{mark}Traceback (most recent call last):\n"
        f'{mark}  File "/w/train.py", line 104, in load\n'
        f"{mark}    with open(path) as f:\n"
        f"{mark}{said}\n"
    )


def warned(mark: str) -> str:
    return f"{mark}the cache cannot be read\n" + raised(mark, "FileNotFoundError: [Errno 2] No such file: '/tmp/x.tmp'")


def own(rank: int, said: str = "AssertionError: class input 1 and checkpoint value 2 do not match") -> str:
    return raised(f" {rank}: [rank{rank}]: ", said)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(SCRIPT, id="a program that the batch script did not find"),
        pytest.param(HELPER, id="a helper of the batch script"),
        pytest.param(HELPER + SCRIPT, id="both"),
    ],
)
def test_what_a_script_lacked_before_its_tasks_ended_nothing(before: str) -> None:
    limited = parse_text(before + TASKS + LIMIT)
    assert outcome(limited).ending is Ending.ENDED
    assert {f.status for f in diagnose(limited)} == {Status.UNKNOWN}
    failed = diagnose(parse_text(before + TASKS + own(3) + "srun: error: n1: task 3: Exited with exit code 1\n"))
    assert "AssertionError" in failed[0].message
    assert not any("command not found" in f.message or "dataclasses" in f.message for f in failed)


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        pytest.param(SCRIPT, "missing_node", id="nothing came after it"),
        pytest.param(TASKS + SCRIPT, "missing_node", id="the tasks had spoken before"),
        pytest.param(
            " 1: bash: line 1: python: command not found\n" + TASKS.replace(" 1: ", " 2: "), "missing_node", id="a task's own"
        ),
        pytest.param(HELPER + "[rank0]:[W624 15:06:40.065492515 socket.cpp:3] a warning\n", "rank_died", id="no task's mark"),
    ],
)
def test_what_may_be_of_a_task_counts(text: str, cause: str) -> None:
    assert diagnose(parse_text(text))[0].cause == cause


@pytest.mark.parametrize("mark", [GLOG, VLLM])
def test_a_traceback_that_is_printed_as_a_warning_was_caught(mark: str) -> None:
    log = parse_text(warned(mark) + "step 1 loss 2.0\n" + LIMIT)
    assert not log.of("exception")
    assert outcome(log).ending is Ending.ENDED


@pytest.mark.parametrize("mark", [GLOG.replace(":W", ":E"), GLOG.replace(":W", ":I"), VLLM.replace("WARNING", "ERROR")])
def test_one_that_is_an_error_or_passed_on_was_not(mark: str) -> None:
    assert parse_text(warned(mark)).of("exception")


AGENT = (
    "E0414 18:38:58.509000 291469 torch/distributed/elastic/multiprocessing/api.py:880] failed (exitcode: 2) local_rank: 2 "
    "(pid: 291890) of binary: /opt/venv/bin/python\n"
    "Root Cause (first observed failure):\n[0]:\n  time      : 2026-04-14_18:38:58\n  host      : n7\n"
    "  rank      : 26 (local_rank: 2)\n  exitcode  : 2 (pid: 291890)\n"
)


@pytest.mark.parametrize("mark", ["", "[default2]:", "3: [default2]:", "[rank3]: "])
def test_a_refused_command_line_outranks_its_exit_code(mark: str) -> None:
    refused = f"{mark}usage: train.py [-h]\n{mark}train.py: error: unrecognized arguments: --keep 5\n"
    found = diagnose(parse_text(refused + AGENT))
    assert "the program refused its command line" in found[0].message and "--keep 5" in found[0].message


def test_the_task_of_a_launcher_is_no_rank() -> None:
    assert diagnose(parse_text("3: [default2]:train.py: error: unrecognized arguments: --keep 5\n"))[0].subject == "job"


STEPS = "".join(f"step:{n}/1335 train_time:{n * 59}ms\n" for n in range(1300, 1335))
STACK = (
    "55: [rank55]:[W626 15:11:03.092144172 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=75, addr=[n1]:44624, "
    "remote=[n2]:8891): Connection reset by peer\n"
    "55: Exception raised from recvBytes at /w/torch/csrc/distributed/c10d/Utils.hpp:679 (most recent call first):\n"
    "55: frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0xd4 (0x4000262639f4 in /w/libc10.so)\n"
    "55: frame #2: c10d::ProcessGroupNCCL::HeartbeatMonitor::runLoop() + 0x2ec (0x400040ea2c9c in /w/libtorch_cuda.so)\n"
)
LEFT = "55: [rank55]:[W626 15:11:02.9 ProcessGroupNCCL.cpp:1569] destroy_process_group() was not called before program exit\n"
MLLOG = (
    ':::MLLOG {"namespace": "", "time_ms": 16, "event_type": "INTERVAL_END", "key": "%s", "value": null, "metadata": {%s}}\n'
)
TRACEBACK = raised("(TaskRunner pid=5) ", "RuntimeError: DataLoader worker (pid 56) is killed by signal: Killed. ")


def unwritten(text: str) -> list[Status]:
    return [f.status for f in diagnose(replace(parse_text(text), written=False))]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(STEPS + LEFT + STACK, id="the stack of a warning"),
        pytest.param(STEPS + MLLOG % ("run_stop", '"lineno": 5, "status": "success"'), id="MLPerf, from 0.7 on"),
        pytest.param(STEPS + TRACEBACK + "(TaskRunner pid=5) (\"Final validation metrics: {'x': \"\n", id="verl"),
        pytest.param(STEPS + "2020-10-24 06:45:42,086 INFO All done!\n", id="CosmoFlow"),
        pytest.param(STEPS + "Results saved \N{RIGHTWARDS ARROW} /w/r.json\n", id="results that are saved"),
        pytest.param(
            STEPS + "step:1335/1335 val_loss:3.2\npeak memory allocated: 31266 MiB\n", id="all steps of its own count"
        ),
        pytest.param(
            "Epoch [5/5], Step [600/600], Loss: 0.2\nEpoch [5/5], Step [600/600], Loss: 0.3\n" * 3 + "Test accuracy: 0.9\n",
            id="of its own epochs",
        ),
    ],
)
def test_a_good_end_that_programs_tell(text: str) -> None:
    assert unwritten(text) == [Status.PASS]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(STEPS, id="steps that stop"),
        pytest.param(STEPS + LEFT + STACK.replace("[W", "[E"), id="the stack of an error"),
        pytest.param(STEPS + LEFT.replace("55", "54") + STACK.partition("\n")[2], id="a stack of which nobody knows whose"),
        pytest.param(STEPS + MLLOG % ("run_stop", '"lineno": 5, "status": "aborted"'), id="MLPerf, aborted"),
        pytest.param(STEPS + MLLOG % ("eval_stop", '"status": "success"'), id="MLPerf, a part"),
        pytest.param(STEPS + TRACEBACK, id="a worker that is killed before the end"),
        pytest.param(STEPS + "step:1335/1335 val_loss:3.2\n", id="nothing after the last step"),
        pytest.param(STEPS + "step:1335/1335 val_loss:3.2\nsaving the model\n", id="what it began after the last step"),
        pytest.param(STEPS + "step:1335/1335 val_loss:3.2\npeak memory al", id="the middle of a line"),
        pytest.param(
            STEPS + "{'train_runtime': 6311.5}\n" + "  (norm): LayerNorm()\n" * 120, id="what began behind a good end"
        ),
        pytest.param("Epoch [1/5], Step [600/600], Loss: 0.2\n" * 9 + "Test accuracy: 0.9\n", id="an epoch among others"),
        pytest.param("Epoch: 0 step 600/600 loss 0.2\n" * 9 + "Test accuracy: 0.9\n", id="an epoch of nobody knows how many"),
    ],
)
def test_what_is_no_good_end(text: str) -> None:
    assert Status.PASS not in unwritten(text) or Status.FAIL in unwritten(text)


def test_a_route_that_is_not_there_is_a_firewall_or_an_interface() -> None:
    found = diagnose(parse_text("Last error:\nsocketStartConnect: Connect to 192.168.19.14<52822> failed : No route to host\n"))
    assert [f.cause for f in found[:2]] == ["firewall_connect", "socket_ifname"]
    assert "interface" in found[0].message and "ping" in found[0].message


COUNTED = "".join(f"step {n}/90 loss 2.{n}\n" for n in range(30, 41))
EVALUATED = "".join(f"eval step {n}/8 loss 2.{n}\n" for n in range(1, 9)) + "Training finished\n"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB\n"
AT_THE_BOTTOM = 'Traceback (most recent call last):\n  File "/w/train.py", line 210, in <module>\n    main()\n'


@pytest.mark.parametrize("record", ["", "2026-01-01 10:00:00,123 - WARNING - slow batch\n"])
@pytest.mark.parametrize("raised", [AT_THE_BOTTOM + OOM, OOM, AT_THE_BOTTOM + "ValueError: no such column\n"])
def test_what_follows_the_end_of_a_program_is_anothers(raised: str, record: str) -> None:
    """An evaluation that a script starts behind the training has counts of its own; who works on counts on."""
    for behind in (EVALUATED, EVALUATED.replace("Training finished\n", "")):
        found = diagnose(replace(parse_text(COUNTED + record + raised + behind), written=False))
        assert [f.status for f in found] == [Status.UNKNOWN]
        assert raised.splitlines()[-1][:40] in found[0].evidence["lines"][0]
    again = COUNTED + record + raised + COUNTED.replace("step 3", "step 8") + "step 90/90 loss 2.1\n" + EVALUATED
    assert [f.status for f in diagnose(replace(parse_text(again), written=False))] == [Status.PASS]


def test_what_ended_before_any_work_may_have_been_a_probe() -> None:
    probed = AT_THE_BOTTOM + "ModuleNotFoundError: No module named 'flash_attn'\n"
    full = "".join(f"step {n}/90 loss 2.1\n" for n in range(85, 91))
    assert [f.status for f in diagnose(replace(parse_text(probed + full + EVALUATED), written=False))] == [Status.PASS]


@pytest.mark.parametrize("word", ["Training finished", "finished training", "All done!", "Job completed successfully"])
@pytest.mark.parametrize(
    "ended",
    [
        AT_THE_BOTTOM + "ValueError: no such column\n",
        AT_THE_BOTTOM + OOM,
        AT_THE_BOTTOM + "ValueError: no such column\nEpoch 0:   0%|          | 0/10 [00:00<?, ?it/s]\n",
        "RuntimeError: connect() timed out. Original timeout was 60000 ms.\n",
        "RuntimeError: [/w/third_party/gloo/gloo/transport/tcp/pair.cc:799] connect [10.0.0.7]:13195: Connection timed out\n",
    ],
)
def test_a_scripts_word_behind_a_program_that_died_is_no_end(ended: str, word: str) -> None:
    """A batch script says so whatever its program came to; what the program did after it would show."""
    found = diagnose(replace(parse_text(f"{ended}{word}\n"), written=False))
    assert found[0].status is Status.FAIL

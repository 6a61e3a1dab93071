"""What real jobs of two ranks under torchrun wrote on one GPU when they were made to fail: torch 2.9, NCCL 2.28.9."""

# ruff: noqa: E501  (log lines are as long as NCCL writes them)

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.support.facts.nccl_logs import STEPS

AGENT = "E1127 07:42:04.094000 5873 torch/distributed/elastic/multiprocessing/api.py:986] failed (exitcode: 1) local_rank: 0 (pid: 6073) of binary: /usr/bin/python3\n"
ROOT = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-27_07:42:16\n  host      : localhost\n  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 6479)\n  error_file: <N/A>\n"
_NET = "vm:6081:6081 [0] NCCL INFO NET/IB : No device found.\nvm:6081:6081 [0] NCCL INFO NET/IB : Using [RO]; OOB eth0:192.0.2.2<0>\n"
_NONE = "vm:6081:6081 [0] plugin/net.cc:379 NCCL WARN Failed to initialize any NET plugin\n"
_LAST = (
    "[rank0]: torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.28.9\n"
    "[rank0]: ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n[rank0]: Last error:\n"
)
_QUIET = _LAST + "[rank0]: Failed to initialize any NET plugin\n"
_CPU = '[rank1]: Traceback (most recent call last):\n[rank1]:   File "/w/job.py", line 58, in <module>\n[rank1]: RuntimeError: No backend type associated with device type cpu\n'
_LEFT = "[rank1]:[W1127 07:42:15.819463135 ProcessGroupNCCL.cpp:1575] Warning: WARNING: destroy_process_group() was not called before program exit, which can leak resources.\n"
_CLOSED = "[2026-11-27 07:42:16] vm:6274:6519 [0] misc/socket.cc:881 NCCL WARN socketProgress: Connection closed by remote peer vm<40118>\n"
_BUSY = 'Traceback (most recent call last):\n  File "/w/job.py", line 17, in <module>\ntorch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable\n'
_CAUGHT = (
    "[rank{rank}]:[E1127 07:41:14.549978934 ProcessGroupNCCL.cpp:689] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn={n}, NumelOut={n}, Timeout(ms)=12000) ran for 12067 milliseconds before timing out.\n"
    "[rank{rank}]:[E1127 07:41:14.550157350 ProcessGroupNCCL.cpp:2303] [PG ID 0 PG GUID 0(default_pg) Rank {rank}]  failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq}, last completed work: {ended}\n"
)


def fails(text: str) -> list[Finding]:
    return [f for f in diagnose(parse_text(text)) if f.status is Status.FAIL]


@pytest.mark.parametrize(
    ("text", "cause", "word"),
    [
        pytest.param(_NET + _NONE + AGENT, "dev_infiniband_missing", "NCCL_NET asks for RDMA", id="NCCL_NET=IB without RDMA"),
        pytest.param(_QUIET + AGENT, "plugin_mismatch", "NCCL_NET asks for", id="NCCL_NET, and no line of NCCL's own"),
        pytest.param(_CPU + AGENT + ROOT, "gloo_backend", "no backend for tensors of cpu", id="a tensor of the CPU"),
        pytest.param(_BUSY + AGENT, "other", "CUDA-capable device(s) is/are busy or unavailable", id="a bracket in the words"),
        pytest.param(
            STEPS + _LEFT + _CLOSED, "rank_died", "rank 1 came to the end of its program", id="a rank that returns early"
        ),
        pytest.param(
            STEPS + _CAUGHT.format(rank=0, seq=10, n=65536, ended=9) + _CAUGHT.format(rank=1, seq=11, n=1, ended=10),
            "hang",
            "not called the same collectives in one order",
            id="a rank that called another collective before",
        ),
        pytest.param(
            "gpu/nccl_utils.cc:133: NCCL operation ncclGetUniqueId(&id) failed: Unable to load NCCL library. Multi-GPU collectives will not work.;\n",
            "version_mismatch",
            "cannot load NCCL's library",
            id="no NCCL library",
        ),
    ],
)
def test_the_first_cause_in_the_words_that_fit(text: str, cause: str, word: str) -> None:
    first = fails(text)[0]
    assert (first.cause, word in first.message) == (cause, True), first.message


def test_what_nccl_says_that_it_refused_is_no_wrong_rank() -> None:
    assert "device_mapping" not in {f.cause for f in fails(_QUIET + AGENT)}
    assert "device_mapping" not in {f.cause for f in fails(_LAST + "[rank0]: Bootstrap : no socket interface found\n" + AGENT)}


def test_a_network_that_is_asked_for_is_no_advice_to_ask_for_it() -> None:
    first = fails(_QUIET + AGENT)[0]
    assert first.fix is not None
    assert any("unset NCCL_NET" in c for c in first.fix.commands)


_ONE = "[2026-03-18 14:38:12] gpu1:87178{n}:871848 [{n}] p2p_plugin.c:565 NCCL WARN NET/IB : Unable to open device mlx5_an0\n"


def test_one_device_that_cannot_be_opened_stops_no_work() -> None:
    text = "".join(_ONE.format(n=n) for n in range(4)) + STEPS
    assert [f.status for f in diagnose(parse_text(text))] == [Status.UNKNOWN]
    done = diagnose(parse_text(text + "training finished\n"))
    assert [f.status for f in done] == [Status.PASS]
    assert any("mlx5_an0 could not be opened" in note for note in done[0].notes)
    assert fails("".join(_ONE.format(n=n) for n in range(4)))  # nothing shows that it goes on
    assert fails(_ONE.format(n=0) + _ONE.format(n=1).replace("an0", "0") + STEPS)  # nor that there is another


_OOM = "0: [rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {wanted}. GPU 1 has a total capacity of 79.18 GiB of which 16.88 MiB is free. Including non-PyTorch memory, this process has {own} memory in use.\n"


@pytest.mark.parametrize(
    ("wanted", "own", "word"),
    [
        pytest.param("20.00 MiB", "48.46 GiB", "end what else holds", id="others hold what is wanted"),
        pytest.param("60.00 GiB", "48.46 GiB", "lower the batch", id="and it would not do"),
        pytest.param("20.00 MiB", "78.46 GiB", "lower the batch", id="nobody else"),
    ],
)
def test_whose_memory_it_is_says_what_mends_it(wanted: str, own: str, word: str) -> None:
    first = fails(_OOM.format(wanted=wanted, own=own))[0]
    assert first.fix is not None
    assert (word in first.fix.summary, first.subject) == (True, "rank 1")  # torch's mark, behind srun's of the node


def test_ranks_killed_at_once_are_nobodys_fault() -> None:
    line = "  traceback : Signal 9 (SIGKILL) received by PID {}\n"
    killed = AGENT.replace("exitcode: 1", "exitcode: -9")
    assert fails(killed + line.format(7))[0].subject == "local rank 0"
    several = fails(killed + "".join(map(line.format, range(211328, 211336))))[0]
    assert (several.subject, "8 processes were killed" in several.message) == ("job", True)


def test_arguments_that_are_refused_are_no_exception() -> None:
    first = fails("usage: train.py [-h]\ntrain.py: error: argument --kind: invalid choice: 'x' (choose from 'a', 'b')\n")[0]
    assert "refused its command line" in first.message


_DOWN = "(APIServer pid=41356) INFO:     Application shutdown complete.\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        pytest.param(":::MLLOG run_stop: {'value': null, 'metadata': {'status': 'success'}}\n", Status.PASS, id="MLPerf"),
        pytest.param("ENDING TIMING RUN AT 2019-05-23 02:50:20 AM\n", Status.PASS, id="MLPerf's script"),
        pytest.param("[after training is done] datetime: 2024-09-22 09:17:12 \n", Status.PASS, id="Megatron"),
        pytest.param("Training time 1:02:03\n", Status.PASS, id="torchvision"),
        pytest.param(_DOWN, Status.PASS, id="a server that is taken down"),
        pytest.param("the engine crashed\n" + _DOWN, Status.UNKNOWN, id="after words that nobody knows"),
        pytest.param(
            "[rank0]:[E1127 07:42:20.771094629 ProcessGroupX.cpp:2636] the queue is gone\n" + _DOWN,
            Status.UNKNOWN,
            id="after trouble",
        ),
        pytest.param(
            ":::MLLOG run_stop: {'value': null, 'metadata': {'status': 'aborted'}}\n", Status.UNKNOWN, id="MLPerf, aborted"
        ),
    ],
)
def test_good_ends(text: str, status: Status) -> None:
    facts = replace(parse_text(STEPS + text), written=False)
    assert [f.status for f in diagnose(facts)] == [status]


_RTR = "[2026-01-05 10:00:00] n1:7:9 [0] misc/ibvwrap.cc:309 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, curr state INIT, next state RTR, local GID index 3, local GID {}, remote GID {}\n"


@pytest.mark.parametrize(
    ("local", "remote", "word", "high"),
    [
        pytest.param("::ffff:10.0.1.2", "::ffff:10.0.2.2", "another network's GID", False, id="two addresses"),
        pytest.param("fe80::1", "fe80::2", "fe80::1 is a link-local GID", True, id="link-local"),
        pytest.param("::ffff:10.0.1.2", "fe80::2", "fe80::2 is a link-local GID", True, id="of the peer"),
    ],
)
def test_a_path_between_gids(local: str, remote: str, word: str, high: bool) -> None:
    first = fails(_RTR.format(local, remote))[0]
    assert (first.cause, word in first.message) == ("roce_gid", True), first.message
    assert (first.evidence["confidence"] == "high") is high


def test_srun_s_label_before_torchrun_is_no_rank() -> None:
    broken = '  File "/w/train.py", line 9\n    grouped (4 GPUs)\n             ^^^^\nSyntaxError: invalid syntax\n'
    agent = "E0325 15:32:00.741000 76 site-packages/torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: 1)"
    agent += " local_rank: 0 (pid: 767) of binary: /usr/bin/python\n"
    report = "Failures:\n[1]:\n  time      : 2026-03-25_15:32:00\n  rank      : 1 (local_rank: 1)\n  exitcode  : 1 (pid: 8)\n"
    report += (
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html\n"
    )
    report += "Root Cause (first observed failure):\n[0]:\n  time      : 2026-03-25_15:32:00\n  host      : n0\n"
    report += "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 7)\n  error_file: <N/A>\n"
    one = "".join(f"{label}: {line}\n" for label in "01" for line in (broken * 2 + agent).splitlines())
    one += "".join(f"0: {line}\n" for line in report.splitlines())
    end = "srun: error: n0: task 0: Exited with exit code 1\n"
    assert "SyntaxError" in diagnose(parse_text(one + end))[0].message
    bare = "".join(f"0: {line}\n" for line in (agent + report).splitlines()) + end
    assert "error_file" not in diagnose(parse_text(bare))[0].message


def test_vllm_s_mark_of_a_worker_says_whose_a_line_is() -> None:
    trace = [
        "Traceback (most recent call last):",
        '  File "/w/run.py", line 3, in <module>',
        "    go()",
        "ValueError: no such x",
    ]
    said = "".join(f"(VllmWorker rank=5 pid=97) ERROR 04-01 08:04:31 [multiproc_executor.py:383] {line}\n" for line in trace)
    assert "rank 5" in diagnose(parse_text(said))[0].message


def test_dali_s_word_of_a_full_gpu_is_memory() -> None:
    said = (
        'Traceback (most recent call last):\n  File "/w/run.py", line 3, in <module>\n    go()\nRuntimeError: Critical error in'
    )
    said += ' pipeline: [/opt/dali/dali/util/cuda_utils.h:69] CUDA runtime api error "out of memory"\n'
    assert "the memory of a GPU is used up" in diagnose(parse_text(said))[0].message


@pytest.mark.parametrize("op", ["async_io", "gds"])
def test_an_op_that_deepspeed_cannot_build_is_no_trouble(op: str) -> None:
    warned = f"\x1b[93m [WARNING] \x1b[0m {op} requires the dev libaio .so object and headers but these were not found.\n"
    warned += f"\x1b[93m [WARNING] \x1b[0m {op}: please install the libaio-dev package with apt\n"
    finding = diagnose(parse_text(warned + "NCCL version 2.27.5+cuda12.9\n"))[0]
    assert (finding.status, "begun" in finding.message) == (Status.UNKNOWN, True)

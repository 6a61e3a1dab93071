"""The last error that a log tells, where no rule knows it, and what of a program's last lines is none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_told import DONE, WORK

ELASTIC = (
    "E1003 08:20:12.1 41 torch/distributed/elastic/multiprocessing/api.py:874] failed (exitcode: 1) local_rank: 3 (pid: 5)\n"
)
RULE = "-" * 74 + "\n"
BOX = f"{RULE}The application asked the launcher for a thing\nthat it has not, and ends here.\n\n  Node: n2\n{RULE}"
MPI = f"{RULE}mpirun detected that one or more processes exited with non-zero status, thus causing\nthe job to be terminated."
MPI += f" The first process to do so was:\n\n  Process name: [[31337,1],3]\n  Exit code:    1\n{RULE}"
SRUN = "srun: error: n2: task 3: Exited with exit code 1\n"


def findings(text: str, *, written: bool | None = False) -> tuple[Finding, ...]:
    return diagnose(replace(parse_text(text), written=written))


ERRORS = [
    pytest.param("srun: error: Hostlist is empty!  Can not run job.", id="srun"),
    pytest.param("slurmstepd: error: Could not generate a path for n2", id="slurmstepd"),
    pytest.param("[mpiexec@n1] HYDU_sock_listen (lib/utils/sock.c:45): no such port", id="Hydra"),
    pytest.param("FATAL:   While setting bind mounts: no such path", id="Apptainer"),
    pytest.param("enroot-mount: invalid fstab entry at /etc/enroot/mounts.d/10", id="enroot"),
    pytest.param("2026-10-03 08:12:44.123456: E horovod/common/operations.cc:612] the set was removed", id="TensorFlow's form"),
    pytest.param("[2026-10-03 08:12:44,123] ERROR planner:212: no plan for PE 3", id="a logger of Python's"),
    pytest.param("/opt/nvshmem/src/host/init/init.cu:412: non-zero status: 7 building the map failed", id="NVSHMEM"),
]


@pytest.mark.parametrize("error", ERRORS)
def test_a_log_that_ends_with_an_error_is_no_open_question(error: str) -> None:
    first = findings(f"job 8 starts\n{error}\n")[0]
    assert first.status is Status.FAIL and error[-20:] in first.message
    assert Status.FAIL not in {f.status for f in findings(f"job 8 starts\n{error}\n{WORK}{DONE}")}
    assert Status.FAIL not in {f.status for f in findings(f"{error}: retrying\n")}
    served = findings(f"INFO:     Application startup complete.\n{error}\n")
    assert Status.FAIL not in {f.status for f in served}
    still = findings(f"job 8 starts\n{error}\n", written=True)
    assert Status.FAIL not in {f.status for f in still}


@pytest.mark.parametrize(
    "error",
    [
        "[2026-10-03 08:12:44,123] ERROR planner:212: no plan for PE 3",
        "2026-10-03 08:12:44.123456: E horovod/common/operations.cc:612] the set was removed",
        "planning failed for PE 3",
    ],
)
@pytest.mark.parametrize("death", [ELASTIC, SRUN, MPI], ids=["torchrun", "srun", "mpirun"])
def test_what_was_complained_of_is_told_with_the_exit(error: str, death: str) -> None:
    first = findings(f"job 8 starts\n{error}\n{death}")[0]
    assert first.cause == "rank_died" and error[-16:] in first.message


def test_an_exit_code_in_pythons_words_is_no_complaint() -> None:
    first = findings(f"loss is NaN, training failed at 412\nSystemExit: 1\n{SRUN}")[0]
    assert "loss is NaN" in first.message


def test_what_a_rank_says_of_its_peer_is_told_with_its_exit() -> None:
    trace = '[rank3]: Traceback (most recent call last):\n[rank3]:   File "/w/t.py", line 3, in <module>\n[rank3]:     main()\n'
    said = "[rank3]: torch.distributed.DistStoreError: wait timeout after 300000ms, keys: /default_pg/0\n"
    root = "Root Cause (first observed failure):\n[0]:\n  time      : 2026-10-03_08:20:11\n  host      : n2\n"
    root += "  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 4321)\n"
    assert "wait timeout after" in findings(trace + said + ELASTIC + root)[0].message


def test_the_help_text_of_mpi_is_told_and_not_its_summary() -> None:
    for text in (BOX, BOX + MPI):
        assert "The application asked the launcher for a thing" in findings("job 8 starts on n1\n" + text)[0].message
    assert "asked the launcher" not in findings(MPI)[0].message
    assert Status.FAIL not in {f.status for f in findings(BOX + WORK + DONE)}


def test_a_fatal_line_is_told_and_not_its_abort() -> None:
    for said in (
        "2026-10-03 08:12:44.1: F xla/service/gpu/nvptx.cc:12] the assembler gave an answer that nobody knows",
        "F1003 08:12:44.123456  8812 server.cc:12] Check failed: n > 0 (0 vs. 0)",
        "[2026-10-03 08:12:44,123 C 88 88] (raylet) dlmalloc.cc:211:  Check failed: *ptr != MAP_FAILED mmap failed",
    ):
        first = findings(f"{said}\nAborted (core dumped)\n{SRUN}")[0]
        assert said[-20:] in first.message and "calls fatal" in first.message


def test_an_exception_alone_is_told_behind_an_exit_code() -> None:
    said = "[rank2]: torch._inductor.exc.InductorError: RuntimeError: `ptxas` gave nothing\n"
    assert "`ptxas` gave nothing" in findings(said + ELASTIC)[0].message
    killed = ELASTIC.replace("exitcode: 1", "exitcode: -9")
    assert "ptxas" not in findings(said + killed)[0].message


def test_an_exception_whose_name_begins_small_is_one() -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'
    assert "nixlBackendError at /w/t.py:3" in findings(f"{trace}nixl._bindings.nixlBackendError: NIXL_ERR_BACKEND\n")[0].message


@pytest.mark.parametrize("last", ["Logging to wandb", "Logging results to tensorboard", "wandb: Syncing run dashing-sun-3"])
def test_what_a_tracker_says_hides_no_full_count(last: str) -> None:
    assert findings(f"{WORK}{last}\n")[0].status is Status.PASS
    assert findings(f"{WORK}saving the model\n")[0].status is Status.UNKNOWN
    assert findings(f"{WORK}Saving the model to /m\n{last}\n")[0].status is Status.UNKNOWN


@pytest.mark.parametrize("last", ["fatal: 0, errors: 0", "ERROR | 0", "Error: None", "error: 12.3 % WER"])
def test_a_figure_or_a_flag_is_no_error_by_its_level(last: str) -> None:
    assert Status.FAIL not in {f.status for f in findings(f"{WORK}{last}\n")}
    assert Status.FAIL in {f.status for f in findings("job 8 starts\nERROR: 2 of 8 plans have no entry\n")}


def test_a_table_of_results_is_no_help_text_of_mpi() -> None:
    table = f"{RULE}Accuracy on each of the held out tasks is listed here\n{RULE}mmlu 71.2\n"
    assert Status.FAIL not in {f.status for f in findings(f"loading\n{table}")}


@pytest.mark.parametrize(
    "meant",
    [
        "+ python train.py --device cpu",
        "export JAX_PLATFORMS=cpu",
        "python t.py --no-cuda",
        "CUDA_VISIBLE_DEVICES=-1 python t.py",
    ],
)
def test_the_cpu_that_was_asked_for_is_no_question(meant: str) -> None:
    assert findings(f"{meant}\ndevice: cpu\n{WORK}{DONE}")[0].status is Status.PASS
    for unmeant in ("", "CUDA_VISIBLE_DEVICES=\n"):  # what a script prints where its scheduler gave no GPU
        assert findings(f"{unmeant}device: cpu\n{WORK}{DONE}")[0].status is Status.UNKNOWN


def test_an_option_in_an_exceptions_words_hides_none() -> None:
    trace = 'Traceback (most recent call last):\n  File "/w/t.py", line 3, in <module>\n    main()\n'
    assert "only use one" in findings(f"{trace}ValueError: You can only use one of `--cpu`, `--tpu` at a time.\n")[0].message


def test_exit_code_0_excuses_no_error_before_it() -> None:
    lost = (
        "Lustre: lfs1-MDT0000: Connection to lfs1-MDT0000 (at 10.0.9.2) was lost; in progress operations using this service\n"
    )
    assert findings(f"{WORK}{lost}exit code 0\n")[0].status is not Status.PASS


def test_an_xid_of_another_program_is_no_fault_of_the_job() -> None:
    xid = "[8.1] NVRM: Xid (PCI:0000:8d:00): 43, pid=9999, name=other, Ch 00000008\n"
    assert Status.FAIL not in {f.status for f in findings(WORK + xid + WORK + DONE)}
    assert findings(xid + "CUDA error: unspecified launch failure\n")[0].status is Status.FAIL


def test_what_ucx_tries_in_turn_is_no_fault() -> None:
    tried = "[1727.1] [n2:8:0]  ib_md.c:287 UCX  DIAG  ibv_reg_mr(address=0x7f) failed: Bad address\n"
    assert Status.FAIL not in {f.status for f in findings(tried + WORK + DONE)}


def test_a_buffer_that_was_registered_otherwise_is_no_fault() -> None:
    error = "[2026-10-03 08:12:44,123] ERROR nixl_registry:212: Failed to register memory of type VRAM\n"
    assert Status.FAIL not in {f.status for f in findings(error + WORK + DONE)}


def test_ranks_that_do_not_divide_are_told_as_such() -> None:
    text = "AssertionError: world size (12) is not divisible by total_model_size (total_model_size=8)\n"
    assert "does not fit what the program is told to divide them into" in findings(text)[0].message


@pytest.mark.parametrize(
    ("log", "cause", "words"),
    [
        (
            "n1:1:2 [0] NCCL WARN NET/OFI Couldn't open a fabric provider. RC: -19, ERROR: No such device\n",
            "dev_infiniband_missing",
            "cannot use a device",
        ),
        (
            "NVRM: GPU 0000:8d:00.0: RmInitAdapter failed! (0x62:0xffff:2327)\nRuntimeError: No CUDA GPUs are available\n",
            "inventory",
            "is lost to its driver",
        ),
        (
            "slurmstepd: error: *** STEP 8.0 ON n2 CANCELLED AT 2026-10-03T08:20:14 DUE TO TASK FAILURE ***\n",
            "rank_died",
            "a process ended",
        ),
        (
            "srun: error: Unable to create step for job 8: Memory required by task is not available\n",
            "missing_node",
            "Memory required by task",
        ),
        (
            "docker: Error response from daemon: OCI runtime create failed: runc create failed: error running hook #0\n\
nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.\n",
            "missing_node",
            "driver not loaded",
        ),
        (
            'PRTE tried to fork a new process via the "execve" system call but\nfailed.  Your job will now\nabort.\n',
            "missing_node",
            "tried to fork a new process",
        ),
        ("RuntimeError: PyTorch was compiled without NCCL\n", "gloo_backend", "NCCL"),
    ],
)
def test_causes_that_were_told_as_others(log: str, cause: str, words: str) -> None:
    first = findings(log)[0]
    assert (first.status, first.cause) == (Status.FAIL, cause)
    assert words in first.message

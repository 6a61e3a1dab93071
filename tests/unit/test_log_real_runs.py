"""What jobs on a real GPU (one H200, torch 2.11, CuPy, JAX 0.11) printed that was told wrongly; paths and names are made up."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

SITE = "/opt/venv/lib/python3.12/site-packages"
OOM = (
    "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked} GiB. GPU 0 has a total capacity of 139.80"
    " GiB of which 132.63 GiB is free. Process 81 has 2.46 GiB memory in use. Including non-PyTorch memory, this process has"
    " 1.37 GiB memory in use. Process 80 has 3.34 GiB memory in use. {allowed}Of the allocated memory 261.02 MiB is allocated\n"
)
LAUNCH = (
    "[rank1]:[E1127 18:48:01.806268839 ProcessGroupNCCL.cpp:2119] Process group watchdog thread terminated with exception: "
)
SPACE = "operation not supported on global/shared address space"
CUPY = f"""Traceback (most recent call last):
  File "/home/u/simulate.py", line 30, in <module>
    main()
  File "cupy_backends/cuda/api/runtime.pyx", line 146, in cupy_backends.cuda.api.runtime.check_status
cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorInvalidAddressSpace: {SPACE}
Traceback (most recent call last):
  File "cupy_backends/cuda/api/driver.pyx", line 73, in cupy_backends.cuda.api.driver.check_status
cupy_backends.cuda.api.driver.CUDADriverError: CUDA_ERROR_INVALID_ADDRESS_SPACE: {SPACE}
Exception ignored in: 'cupy.cuda.function.Module.__dealloc__'
"""
JAX = """INFO jax._src.distributed: Starting JAX distributed service on [::]:20030
F1127 18:47:21.821397    1165 client.h:86] Terminating process because the JAX distributed service detected fatal errors. This \
most likely indicates that another task died; see the other task logs for more details. absl::Status: {status}

RPC: /xla.coordination.CoordinationService/{rpc}
job.sh: line 6:  1165 Aborted                 python3 pretrain.py
"""
CRASH = """record 2: 3 tokens, loss 0.9547
Fatal Python error: Segmentation fault

Thread 0x00007f459a26c6c0 (most recent call first):
  <no Python frame>

Current thread 0x00007f48b374f140 (most recent call first):
  File "/home/u/train_tok.py", line 11 in encode
  File "/home/u/train_tok.py", line 19 in <module>
"""
STREAM = f"""[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/u/dpo.py", line 14, in <module>
[rank1]:     loss = model(x).mean()
[rank1]:   File "{SITE}/torch/nn/parallel/_functions.py", line 174, in _get_stream
[rank1]:     if _streams[device.index] is None:
[rank1]: IndexError: list index out of range
"""
REFUSED = """2026-11-27 18:49:20,{at:03} [worker-1] ERROR request {at} failed
Traceback (most recent call last):
  File "/home/u/infer.py", line 19, in worker
    raise ValueError(f"request {{rid}} is too long")
ValueError: request {at} is too long
"""
ANSWERED = "2026-11-27 18:49:20,{at:03} [MainProcess] INFO request {at} -> 200\n"


def first(text: str) -> Finding:
    return diagnose(parse_text(text))[0]


def test_a_share_that_torch_was_given_is_used_up_not_the_gpu() -> None:
    found = first(OOM.format(asked="8.00", allowed="2.80 GiB allowed; "))
    assert "the 2.80 GiB that it may use of GPU 0, which has more free: 8.00 GiB more" in found.message
    assert found.fix is not None and "end what else" not in found.fix.summary


@pytest.mark.parametrize(("asked", "allowed"), [("8.00", ""), ("134.00", "2.80 GiB allowed; ")])
def test_where_no_share_is_in_the_way_others_may_hold_it(asked: str, allowed: str) -> None:
    found = first(OOM.format(asked=asked, allowed=allowed))
    assert "the memory of GPU 0 is used up: " in f"{found.subject}: {found.message}"


def test_ranks_are_counted_from_0() -> None:
    fails = [f for f in diagnose(parse_text("vm:57:57 [0] init.cc:1987 NCCL WARN Invalid rank requested : 2/2\n")) if f.cause]
    assert [f.cause for f in fails] == ["env_misuse"]
    assert "rank 2 of 2: ranks are counted from 0 to 1" in fails[0].message


def test_torchs_check_for_nan_leaves_a_launch_failure() -> None:
    found = first(f"{LAUNCH}CUDA error: unspecified launch failure\n")
    assert any("TORCH_NCCL_NAN_CHECK" in note for note in found.notes)
    assert not any("NAN" in note for note in first(f"{LAUNCH}CUDA error: an illegal memory access was encountered\n").notes)


def test_a_kernels_address_space_is_a_fault_of_the_kernel() -> None:
    found = first(CUPY)
    assert "a kernel of the program broke the GPU context" in found.message
    assert found.fix is not None and found.fix.summary == "find the kernel"


@pytest.mark.parametrize("name", ["NO_DEVICE", "OUT_OF_MEMORY"])
def test_what_programs_ask_the_driver_and_go_on_is_no_fault(name: str) -> None:
    said = f"E0000 00:00:1 1 cuda_diagnostics.cc:98] failed call to cuInit: CUDA_ERROR_{name}: said of it\n"
    assert not [f for f in diagnose(parse_text(said)) if f.status is Status.FAIL]


def test_who_registers_with_jax_waits_for_all() -> None:
    found = first(JAX.format(status="DEADLINE_EXCEEDED: Deadline Exceeded", rpc="RegisterTask"))
    assert (found.cause, "not every process of the job came" in found.message) == ("hang", True)


def test_another_task_of_jax_died() -> None:
    found = first(JAX.format(status="UNAVAILABLE: The following tasks are unhealthy", rpc="PollForError"))
    assert (found.cause, "not every process" in found.message) == ("rank_died", False)


def test_where_python_stood_when_a_signal_came_is_told() -> None:
    assert "it stood at /home/u/train_tok.py:11, in encode" in first(CRASH).message
    assert "it stood" not in first(CRASH.partition("Current")[0]).message


def test_a_list_as_long_as_the_gpus_ends_at_a_rank_without_one() -> None:
    assert first(STREAM).cause == "device_mapping"
    assert first(STREAM.replace("_functions", "_other")).cause == "rank_died"


def test_what_a_program_outlived_time_and_again_ended_nothing() -> None:
    """It stood before an end that is near: too few lines followed the last."""
    parts = [REFUSED.format(at=n) + ANSWERED.format(at=n) * 2 for n in range(6)]
    assert first("".join(parts)).status is Status.UNKNOWN
    assert first("".join(parts[:2])).status is Status.FAIL
    assert first("".join(parts) + "failed (exitcode: 1) local_rank: 0 (pid: 9) of binary: python\n").status is Status.FAIL

"""What a program went on with by its own words: fewer than it was to have, no GPU, a broken context, a faulty file."""

from __future__ import annotations

import dataclasses

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text
from tests.unit.test_log_rules import CAME_UP

WORK = "".join(f"step {n}/5 loss 2.{n}\n" for n in range(1, 6))
END = "Training finished\n"
SUM = "checkpoint shard model-00002-of-00004.safetensors"


def of(text: str) -> Finding:
    """The first finding, of a log that nobody writes any more."""
    return diagnose(dataclasses.replace(parse_text(text), written=False))[0]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("7 joined of 8, going on with 7", "fewer than it was to have"),
        ("7 nodes ready out of 8 after 600 s, proceeding with 7", "fewer than it was to have"),
        ("Using 7 GPUs (1 unavailable: Xid 79)", "fewer than it was to have"),
        ("Dropping node n3 from the job: no answer for 300 s, continuing with 7 nodes", "fewer than it was to have"),
        ("Expected 8 GPUs but only 7 visible; proceeding with 7", "fewer than it was to have"),
        ("GPU 3 unavailable: using 7 GPUs", "fewer than it was to have"),
        ("WARNING: using CPU because torch.cuda.is_available() is False", ""),
        ("Ultralytics 8.3.0 Python-3.10.12 torch-2.5.1+cu124 CPU (Intel Xeon)", "its device is the CPU"),
        ("Device: cpu (0 GPUs)", "its device is the CPU"),
        ("I | fairseq_cli.train | training on 0 devices (GPUs/TPUs)", "the CPU, for want of a GPU"),
        (
            "I cudart_stub.cc:32] Could not find cuda drivers on your machine, GPU will not be used.",
            "the CPU, for want of a GPU",
        ),
        ("Running on 1 of 8 GPUs", "fewer than it was to have"),
        ("using 3/4 nodes", "fewer than it was to have"),
        ("[rank0]: Using device: cpu", "its device is the CPU"),
        ("Device set to use cpu", "its device is the CPU"),
        ("2026-01-01 10:00:00 - INFO - device: cpu", "its device is the CPU"),
        ("Process rank: -1, device: cpu, n_gpu: 0, distributed training: False", "its device is the CPU"),
        ("WARNING: could not restore /ckpt/last: starting from scratch", "the checkpoint could not be read"),
        ("[rank0]: CUDA not available, falling back to CPU", "the CPU, for want of a GPU"),
        ("WARNING: No: GPU is not detected; fallback to the CPU", "the CPU, for want of a GPU"),
        (f"WARNING: checksum of {SUM} differs from the index", "a file whose checksum"),
        (f"WARNING {SUM}: sha256 does not match, loaded anyway", "a file whose checksum"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_what_it_went_on_with_is_unknown(said: str, words: str, first: bool) -> None:
    finding = of((f"{said}\n{WORK}" if first else f"{WORK}{said}\n") + END)
    assert finding.status is Status.UNKNOWN
    assert words in finding.message


@pytest.mark.parametrize(
    "said",
    [
        "8 joined of 8, going on with 8",
        "3 joined of 8, waiting for more",
        "Using 8 GPUs (0 unavailable)",
        "Using 8 GPUs, 2 nodes",
        "Running on 8 of 8 GPUs",
        "Using 4 of 8 GPUs for training, 4 for rollout (vLLM)",
        "Expected 8 GPUs, 8 visible; proceeding with 8",
        "Running rank 1 of 8 ranks",
        "device: cuda:0",
        "offload device: cpu",
        "Config:\n  device: cpu",
        "DeepSpeedCPUAdam: Using CPU",
        "Ultralytics 8.3.0 Python-3.10.12 torch-2.5.1+cu124 CUDA:0 (NVIDIA H100, 81559MiB)",
        'loading the checkpoint, map_location="cpu"',
        "Process rank: 0, device: cuda:0, n_gpu: 1",
        "pip: checksum mismatch of torch.whl, will retry the download",
        "verified: no checksum mismatch",
        "checksum of shard 3 matches",
        "flash-attn is not available, falling back to sdpa",
        "could not find a checkpoint to load, training from scratch",
        "no checkpoint to restore: starting from scratch",
    ],
)
def test_what_is_whole_passes(said: str) -> None:
    assert of(f"{said}\n{WORK}{END}").status is Status.PASS


@pytest.mark.parametrize(
    "fault", ["device-side assert triggered", "an illegal memory access was encountered", "unspecified launch failure"]
)
def test_behind_a_broken_context_no_good_end_is_its_own(fault: str) -> None:
    error = f"RuntimeError: CUDA error: {fault}\n"
    assert of(f"{WORK}{error}{WORK}{END}").status is not Status.PASS
    skipped = "".join(f"step {n}/5 skipped: {error}" for n in range(1, 6))
    assert of(skipped + END).status is not Status.PASS
    assert of(skipped).status is not Status.PASS


@pytest.mark.parametrize(
    "said",
    ["Training over capacity, exiting", "out of disk space, exiting", "over quota: giving up", "Insufficient budget, exit"],
)
def test_a_full_count_does_not_mend_a_bad_last_word(said: str) -> None:
    assert of(f"{WORK}{said}\n").status is Status.UNKNOWN
    assert of(f"{WORK}exiting\n").status is Status.PASS


@pytest.mark.parametrize(("started", "status"), [(1, Status.PASS), (2, Status.PASS), (3, Status.UNKNOWN)])
def test_one_process_of_several_is_not_the_end(started: int, status: Status) -> None:
    begun = f"[INFO] [launch.py:164:main] nnodes=1, num_local_procs={started}, node_rank=0\n"
    left = "".join(f"[launch.py:351:main] Process {pid} exits successfully.\n" for pid in (411, 412))
    assert of(begun + WORK.replace("/5", "/50") + left).status is status


@pytest.mark.parametrize(
    "said", ["done, batch size used: 32768", "I2026-11-27 18:48:47,103 train_flow] finished with batch 65536"]
)
def test_an_end_in_a_programs_own_words(said: str) -> None:
    steps = "".join(f"batch 64 step {n} loss 1.{n}\n" for n in range(5))
    assert of(f"{steps}{said}\n").status is Status.PASS
    assert of(f"{steps}{said} with errors\n").status is Status.UNKNOWN


def test_where_threads_stood_is_said_beside_an_order_to_end() -> None:
    dumps = "".join(
        f"Timeout (0:00:10)!\nThread 0x00007f{rank}b64bc9d140 (most recent call first):\n"
        f'  File "/srv/{file}.py", line {at} in {within}\n  File "/srv/prepare.py", line 33 in <module>\n'
        for rank, file, at, within in ((0, "prepare", 21, "wait_for_cache"), (1, "torch/distributed_c10d", 3068, "all_reduce"))
    )
    ordered = "W1127 18:49:38.420000 4339 torch/distributed/elastic/agent/server/api.py:739] Received 15 death signal\n"
    finding = of(f"rank 1: waiting\n{dumps}{ordered}")
    assert finding.status is Status.UNKNOWN
    assert "in wait_for_cache (/srv/prepare.py:21), in all_reduce (/srv/torch/distributed_c10d.py:3068)" in finding.message


def test_a_communicator_refutes_that_the_device_is_the_cpu() -> None:
    assert of(f"device: cpu\n{CAME_UP}{WORK}{END}").status is Status.PASS


COUNTED = "".join(f"step {n}/90 loss 2.{n}\n" for n in range(30, 41))


@pytest.mark.parametrize(
    ("work", "status"),
    [
        pytest.param(COUNTED, Status.UNKNOWN, id="in the midst"),
        pytest.param(COUNTED + WORK, Status.UNKNOWN, id="in the midst, evaluated"),
        pytest.param(COUNTED + "Early stopping: no better for 9 steps\n", Status.PASS, id="early, by its own word"),
        pytest.param("".join(f"step {n}/90 loss 2.1\n" for n in (25, 50, 75)), Status.PASS, id="every 25th is told"),
        pytest.param("".join(f"epoch {e}/2 step {n}/90\n" for e in (1, 2) for n in (30, 60)), Status.PASS, id="of two epochs"),
        pytest.param("".join(f"epoch {e}/9 step {n}/90\n" for e in (1, 2) for n in (30, 60)), Status.UNKNOWN, id="of nine"),
        pytest.param(
            "".join(f"step {n}/90 loss 2\nstep {n - 2}/90 loss 2\n" for n in range(70, 91)), Status.PASS, id="a rank lags"
        ),
    ],
)
def test_its_own_count_takes_the_good_word_back(work: str, status: Status) -> None:
    finding = of(work + END)
    assert finding.status is status
    assert status is Status.PASS or "its own count has not come to its end" in finding.message


def test_the_word_of_one_rank_is_not_that_of_the_job() -> None:
    for said in ("rank 3: training finished", "[rank3]: training finished", "training finished on worker 3"):
        finding = of(f"{WORK}{said}\n")
        assert finding.status is Status.UNKNOWN, said
        assert "the end of one rank alone" in finding.message and said in finding.evidence["lines"][0]
    assert of(f"{WORK}rank 0: training finished\n").status is Status.PASS

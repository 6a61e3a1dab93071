"""A good end of a job that had gone on with something wrong: a loss that is no number, the CPU, a new start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.model import Finding, Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

WORK = "".join(f"step {n}/40 loss 2.{n}\n" for n in range(30, 41))
STEPS = "".join(f"step {n} loss 2.{n}\n" for n in range(30, 41))
END = "Training finished\n"
BARS = "".join(f"{n}%|####      | {n}/100 [00:05<00:00, 78.56it/s]\n" for n in range(81, 101))


def of(text: str) -> Finding:
    """The first finding, of a log that nobody writes any more."""
    return diagnose(replace(parse_text(text), written=False))[0]


LOST = "".join(f"step {n} loss nan\n" for n in range(41, 50))


@pytest.mark.parametrize("more", ["", BARS, "".join(f"step time: 3.{n} s\n" for n in range(9))])
@pytest.mark.parametrize(
    "lost",
    [
        LOST,
        "{'loss': 0.0, 'grad_norm': nan, 'epoch': 1}\n" * 4,
        "step 50 ppl nan lr 0.1\n",
        "step 50 loss tensor(nan, device='cuda:0')\n",
        "Loss is nan, stopping\n",
        "Non-finite loss encountered\n",
        "iteration 9/ 99 | lm loss: NaN | grad norm: 3.1 | number of skipped iterations:   0 |\n",
    ],
)
def test_bars_behind_a_loss_that_is_nan_are_no_progress(lost: str, more: str) -> None:
    finding = of(STEPS + lost + more + END)
    assert finding.status is Status.UNKNOWN
    assert "is no number from this line on" in finding.message
    assert of(STEPS + lost + more + STEPS + END).status is Status.PASS, "it is a number again"


def test_a_step_that_was_skipped_for_its_loss_did_no_harm() -> None:
    for skipped in ("skipping step 3: loss nan, the scale is halved\n", "step 3: loss nan, skipped\n"):
        assert of(skipped + BARS + END).status is Status.PASS
        assert of(BARS + skipped + END).status is Status.UNKNOWN


@pytest.mark.parametrize(
    "said",
    [
        "best_reward: -inf",
        "best val loss: inf",
        "min_loss=inf",
        "loss_min: inf",
        "metrics/best/loss: inf",
        "best_loss = inf",
        "eval ppl: inf (baseline)",
    ],
)
def test_the_best_figure_begins_as_infinite(said: str) -> None:
    assert of(f"{WORK}{said}\n{END}").status is Status.PASS
    plain = said.replace("best", "last").replace("min_", "").replace("_min", "").replace(" (baseline)", "")
    assert of(f"{WORK}{plain}\n{END}").status is Status.UNKNOWN


def test_the_quantity_that_is_no_number_is_named() -> None:
    assert of(f"{WORK}reward: nan\n{END}").message.startswith("the reward is no number")
    assert of(f"{WORK}policy_loss: nan\n{END}").message.startswith("the policy_loss is no number")


@pytest.mark.parametrize(
    "figure", ["loss_scale: 1.0", "moe_aux_loss: 0.01", "reward_mean: 0.0", "aux loss: 0.1", "loss_weight=0.5"]
)
def test_a_loss_that_is_nan_is_refuted_by_its_own_numbers_only(figure: str) -> None:
    more = "".join(f"step {n} {figure}\n" for n in range(50, 60))
    for lost in ("loss: nan\n", "WARNING loss became nan at step 50\n", "NaN detected in loss at step 51\n"):
        assert of(f"{STEPS}{lost}{more}{END}").status is Status.UNKNOWN
        assert of(f"{STEPS}{lost}{more}{STEPS}{END}").status is Status.PASS


def test_only_a_step_that_is_skipped_undoes_its_loss() -> None:
    for what, status in (("eval", Status.UNKNOWN), ("checkpoint save", Status.UNKNOWN), ("this batch", Status.PASS)):
        assert of(f"step 9 loss: nan, skipping {what}\n{BARS}{END}").status is status, what
    assert of(f"step 9 loss: nan skipped_iters: 51\n{BARS}{END}").status is Status.UNKNOWN


@pytest.mark.parametrize(
    ("calm", "bad"),
    [
        ("No checkpoint found, starting from scratch", "Checkpoint loading failed, starting from scratch"),
        ("Resume is off, starting from step 0", "Resume failed (corrupt checkpoint), starting from step 0"),
        ("Checkpoint is complete: going on", "Checkpoint is corrupt: ignoring it and starting over"),
        ("Reading the configuration; starting fresh", "Failed to read checkpoint; starting fresh"),
        ("no checkpoint yet: starting training from zero", "No such checkpoint readable: restarting training from zero"),
    ],
)
def test_a_lost_checkpoint_is_told_in_either_order(calm: str, bad: str) -> None:
    assert of(f"{calm}\n{WORK}{END}").status is Status.PASS
    finding = of(f"{bad}\n{WORK}{END}")
    assert finding.status is Status.UNKNOWN
    assert finding.message.startswith("by its own words it started anew: the checkpoint could not be read")


@pytest.mark.parametrize(
    "said",
    [
        "UserWarning: User provided device_type of 'cuda', but CUDA is not available. Disabling",
        "UserWarning: torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
        "WARNING:jax._src.xla_bridge:No GPU/TPU found, falling back to CPU.",
        "An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.",
        "W gpu_device.cc:1960] Cannot dlopen some GPU libraries. Skipping registering GPU devices...",
        "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
        "GPU available: True (cuda), used: False",
        "WARNING: no CUDA device found, running on CPU instead",
        "UserWarning: CUDA initialization: Found no NVIDIA driver on your system.",
        "UserWarning: CUDA initialization: The NVIDIA driver on your system is too old (found version 11040).",
        "Using device: cpu (cuda requested but not available)",
        "cuda requested but unavailable: using cpu",
        "GPU decoder... CUDA unavailable: falling back to CPU training",
        "bitsandbytes was compiled without GPU support. 8-bit optimizers are unavailable.",
        "onnxruntime: Failed to create CUDAExecutionProvider. Falling back to CPUExecutionProvider",
        "NCCL backend not available, using gloo on CPU",
        "using gloo backend because nccl is not available",
    ],
)
def test_a_job_that_went_on_without_its_gpu_is_no_pass(said: str) -> None:
    assert of(f"{said}\n{WORK}{END}").status is Status.UNKNOWN


@pytest.mark.parametrize(
    "said",
    [
        "device: cuda:0",
        "GPU available: True (cuda), used: True",
        "TPU available: False, using: 0 TPU cores",
        "flash-attn is not available, falling back to sdpa",
        "The operator 'aten::unique' will fall back to run on the CPU",
        "CPU offload of the optimizer is on",
        "apex is not available, falling back to torch AdamW",
        "fall back to CPU offload",
        "GPU not available for tokenization, using CPU",
        "DALI: no GPU decoder found, using CPU decoder",
        "FAISS index: falling back to CPU for IVF training",
        "Using CPU for data loading (GPU not available for JPEG decode)",
    ],
)
def test_what_is_on_the_cpu_by_intent_passes(said: str) -> None:
    assert of(f"{said}\n{WORK}{END}").status is Status.PASS

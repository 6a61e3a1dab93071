"""A node of AMD's, Intel's, Amazon's or Google's accelerators: one line says what is not judged, and nothing else guesses."""

from __future__ import annotations

import pytest

from netdoctor.facts.accelerator import others
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.pci import Pci
from netdoctor.facts.runs import AllReduce, Baseline, PathRun
from netdoctor.model import Status, Unavailable
from tests.support import facts as f
from tests.unit.checks.test_healthy import CHECKS

AMD = (*(f"AMD Instinct MI300X (0000:{n:02x}:00.0)" for n in range(8)), "/dev/kfd")
GONE = Unavailable("absent", "NVML Shared Library Not Found")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (AMD, "8 × AMD Instinct MI300X"),
        (("Intel Gaudi (0000:0a:00.0)", "/dev/hl0"), "Intel Gaudi"),
        (tuple(f"/dev/neuron{n}" for n in range(16)), "16 × /dev/neuron"),
        (("/dev/kfd",), "/dev/kfd"),
        (("Google TPU (0000:00:04.0)", "Google TPU (0000:00:05.0)", "AMD (0000:c1:00.0)"), "2 × Google TPU, AMD"),
    ],
)
def test_they_are_named_in_a_few_words(found: tuple[str, ...], words: str) -> None:
    assert others(found) == words


def test_one_line_says_what_is_not_judged() -> None:
    gloo = f.run(2, experiment=AllReduce("gloo", 2, "cpu"), log=None)
    facts = f.machine(
        {
            Pci: f.pci(0, 8, foreign_accelerators=AMD),
            Gpus: f.gpus(0, all=GONE, visible=GONE),
            Baseline: Baseline(gloo, False),
            PathRun: Unavailable("unsupported", "torch sees no CUDA device"),
            Intent: f.job(nodes=1),
        }
    )
    others = ("hardware.past", "node.system", "node.clock")  # which ask for more than this machine tells
    told = {id: f.judge(check, facts) for id, check in CHECKS.items() if id not in others}
    assert {id for id, found in told.items() if any(one.status is Status.UNKNOWN for one in found)} == {
        "hardware.accelerator",
        "allreduce.run",  # which no profile but audit does without
    }
    assert not [one for found in told.values() for one in found if one.status in (Status.FAIL, Status.ERROR)]
    said = [one.message for found in told.values() for one in found if "MI300X" in one.message]
    assert all(message.count("MI300X") == 1 and "0000:" not in message for message in said)
    (line,) = told["hardware.accelerator"]
    assert line.message == "accelerators that netdoctor does not judge: 8 × AMD Instinct MI300X" and "rocm-smi" in (
        line.how or ""
    )

"""gpu.mapping: what masks leave of the GPUs, in every form that CUDA takes."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts.ranks import masked
from netdoctor.model import Finding, Status
from tests.support import facts as f
from tests.support.machines import composed

GPUS = f.gpus()
UUIDS = [str(gpu.uuid) for gpu in GPUS.all or ()]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("0,-1,1", UUIDS[:1]),
        ("1,0", [UUIDS[1], UUIDS[0]]),
        (" 2 , 3", UUIDS[2:4]),
        ("0,99,1", UUIDS[:1]),
        ("0,0", []),
        (UUIDS[5], [UUIDS[5]]),
        (f"{UUIDS[5]},5", []),
        ("GPU-", []),
        ("GPU-nobody's", []),
        ("0,GPU-nobody's,1", UUIDS[:1]),
        ("NoDevFiles", []),
        ("0,,1", UUIDS[:1]),
    ],
)
def test_what_a_mask_leaves(mask: str | None, expected: list[str]) -> None:
    assert list(masked(mask, GPUS)) == expected


def used(process: dict[str, Any] | None, machine: str = "dgx-h100", **device: Any) -> Finding:
    """What is said of GPUs in use, where the first has these."""
    made = composed.read(machine)
    told: Any = made.host.answers["ask:nvml"]
    told["devices"][0] |= device
    if process is not None:
        told["devices"][0] |= {"processes": 1, "pids": [4711]}
        made.host.answers["ask:psutil?pids=4711"] = {"processes": {"4711": {"name": "python", "user": "eve", **process}}}
    (found,) = (one for one in made.judged("gpu.mapping") if one.subject == "GPUs in use")
    return found


@pytest.mark.parametrize(
    ("status", "words", "mend"),
    [
        ("sleeping", "python (pid 4711, eve)", "see whose it is"),
        ("zombie", "python (pid 4711, eve, ended)", "no signal ends it"),
        ("disk-sleep", "python (pid 4711, eve, stuck in the kernel)", "no signal ends it"),
        ({"unavailable": "denied", "detail": ""}, "python (pid 4711, eve)", "see whose it is"),
    ],
)
def test_one_that_no_signal_ends_is_told_so(status: Any, words: str, mend: str) -> None:
    found = used({"status": status})
    assert found.status is Status.FAIL
    assert words in found.message
    assert found.fix is not None
    assert found.fix.summary.startswith(mend)


@pytest.mark.parametrize(
    ("held", "machine", "words"),
    [
        (70 << 30, "dgx-h100", "no process explains it"),
        (70 << 30, "pod-with-devices", "this PID namespace does not show by whom"),
        (256 << 20, "dgx-h100", ""),
    ],
)
def test_memory_that_no_process_explains_is_unknown(held: int, machine: str, words: str) -> None:
    found = used(None, machine, memory_used=held)
    assert found.status is (Status.UNKNOWN if words else Status.PASS)
    assert words in found.message

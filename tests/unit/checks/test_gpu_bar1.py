"""gpu.health: BAR1 of one GPU, by its model and its memory."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.api import expectation
from netdoctor.facts.gpu_health import GpuHealth, probe
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Status
from tests.support.machines import composed

NOT_SUPPORTED = {"unavailable": "unsupported", "detail": "NVML: Not Supported"}


def alone(name: str, bar1: Any, memory: Any = 80 << 30, **changes: Any) -> Finding | None:
    """What is said of one GPU's BAR1 by itself, with no other beside it."""
    told: Any = composed.read("dgx-h100").host.answers["ask:nvml"]["devices"][0]
    made = {"name": name, "memory_total": memory, "mig": False, **changes, "health": {**told["health"], "bar1": bar1}}
    gpu = probe(ReplayHost({"ask:nvml": {"devices": [{**told, **made}], "p2p": []}}))
    assert isinstance(gpu, GpuHealth)
    about = expectation.About("GPU itself", 1, True)
    return next((one for one in expectation.findings(expectation.health(gpu.gpus or ()), about) if one.status != "skip"), None)


SMALL, WHOLE = [256 << 20, 1 << 20], [128 << 30, 1 << 20]
SLOW = {"unavailable": "timed out", "detail": "x"}


@pytest.mark.parametrize(
    ("name", "bar1", "more", "status"),
    [
        ("NVIDIA H100 80GB HBM3", WHOLE, {}, Status.PASS),
        ("NVIDIA H100 80GB HBM3", SMALL, {}, Status.FAIL),
        ("NVIDIA H100 80GB HBM3", [(80 << 30) - 1, 0], {}, Status.FAIL),
        ("NVIDIA A100-SXM4-40GB", SMALL, {}, Status.FAIL),
        ("NVIDIA A100-PCIE-40GB", SMALL, {}, Status.FAIL),
        ("Tesla V100-SXM2-16GB", [16 << 30, 0], {"memory": 16 << 30}, Status.PASS),
        ("NVIDIA B200", SMALL, {}, Status.FAIL),
        ("NVIDIA H100 NVL", [0, 0], {}, None),  # it has none: by whatever mode
        ("NVIDIA H100 80GB HBM3", SMALL, {"memory": SLOW}, Status.UNKNOWN),
        ("NVIDIA H100 80GB HBM3", SMALL, {"mig": True}, None),
        ("NVIDIA H100 80GB HBM3", SMALL, {"mig": SLOW}, None),
        ("NVIDIA H100 80GB HBM3", NOT_SUPPORTED, {}, None),
        ("NVIDIA A100-40C", SMALL, {}, None),  # vGPUs
        ("NVIDIA H100XM-80C", SMALL, {}, None),
        ("GRID V100D-32Q", SMALL, {}, None),
        ("NVIDIA GB200", SMALL, {}, None),  # the CPU maps its memory by NVLink
        ("NVIDIA GH200 480GB", SMALL, {}, None),
        ("Tesla T4", SMALL, {}, None),
        ("NVIDIA L40S", SMALL, {}, None),
        ("NVIDIA A40", SMALL, {}, None),
        ("NVIDIA A800 40GB Active", SMALL, {}, None),
        ("NVIDIA GeForce RTX 4090", SMALL, {}, None),
    ],
)
def test_a_board_without_a_screen_maps_all_its_memory(name: str, bar1: Any, more: Any, status: Status | None) -> None:
    found = alone(name, bar1, **more)
    assert (found.status if found else None) is status
    if status is Status.FAIL:
        assert found is not None
        assert (found.cause, str(found.severity)) == ("gpu_error", "warning")

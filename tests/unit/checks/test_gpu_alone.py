"""gpu.health of a machine with one GPU."""

from __future__ import annotations

from typing import Any

from tests.support.machines import composed


def test_one_gpu_is_no_one_of_one() -> None:
    """A workstation's."""
    made = composed.read("dgx-h100")
    told: Any = made.host.answers["ask:nvml"]
    told["devices"], told["p2p"] = told["devices"][:1], []
    told["devices"][0]["health"] |= {"power_limit": 200000, "power_default": 300000}
    (found,) = (one for one in made.judged("gpu.health") if one.subject == "power limit")
    assert found.message.startswith("the GPU's power is limited: 200 W, the board's default is 300 W: ")

"""When the kernel's SDR is no word for a speed (drivers/infiniband/core/sysfs.c, rate_show)."""

from __future__ import annotations

import pytest

from netdoctor.facts.ib_speed import unnamed

CX5, CX7, CX8, NEW, VF = "15b3:1019", "15b3:1021", "15b3:1023", "15b3:1025", "15b3:101e"


@pytest.mark.parametrize(
    ("model", "speed", "known", "doubted"),
    [
        (CX7, "SDR", ("SDR",) * 8, True),
        (CX7, "", ("",) * 8, True),  # before the kernel wrote SDR in words
        (CX7, "SDR", ("SDR", "NDR"), False),  # it knows NDR, the most that this card does
        (CX7, "SDR", ("SDR", "HDR"), True),  # storage on an older fabric proves nothing of NDR
        (CX8, "SDR", ("SDR", "NDR"), True),
        (CX8, "SDR", ("SDR", "XDR"), False),
        (CX5, "SDR", ("SDR",), False),  # every kernel knows EDR
        (NEW, "SDR", ("SDR", "NDR"), True),
        (VF, "SDR", ("SDR",), True),
        (CX7, "HDR", ("HDR",), False),
        (CX7, "EDR", ("SDR",), False),
    ],
)
def test_whose_speed_the_kernel_may_not_know(model: str, speed: str, known: tuple[str, ...], doubted: bool) -> None:
    assert unnamed(model, speed, known) is doubted

"""When the kernel's SDR is no word for a speed (drivers/infiniband/core/sysfs.c, rate_show)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from netdoctor.expectation.rails import rails
from netdoctor.facts.ib_speed import unnamed
from netdoctor.facts.rdma_ports import UNNAMED
from netdoctor.model import Unavailable
from netdoctor.nccl import hcas, net_device, net_path
from tests.support import facts as f

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


SILENT = f.port(rate_gbps=UNNAMED, speed="SDR", unnamed=True)


@pytest.mark.parametrize(
    ("storage", "names"),
    [
        ((), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),
        ((400.0, 400.0), None),  # as much as four ports of whatever speed, or not
        ((400.0,), ["mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"]),  # alone of its kind
    ],
)
def test_a_speed_without_a_name_makes_no_card_the_slower(storage: tuple[float, ...], names: list[str] | None) -> None:
    """On a machine that shows no switch the fastest kind is the GPUs'."""
    flat = f.pci(devices=tuple(replace(one, path=()) for one in f.pci().devices or ()))
    cards = [f.hca(n, ports=(SILENT,)) for n in range(4)]
    cards += [f.hca(n, driver="other", ports=(f.port(rate_gbps=rate),)) for n, rate in enumerate(storage, 4)]
    got = rails(flat, f.rdma(devices=tuple(cards)), f.net(), None)
    assert (None if isinstance(got, Unavailable) else [one.name for one in got.devices]) == names


def test_a_speed_without_a_name_may_be_that_of_its_like() -> None:
    one, other = f.hca(0, ports=(SILENT,)), f.hca(1)
    assert hcas.alike(one, other) and hcas.alike(other, one)
    assert hcas.prefer([one, other]) == (one, other)
    assert net_device.bandwidth(one, (one, other), (2, 27, 5)) == net_path.UNKNOWN

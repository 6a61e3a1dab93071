"""rdma.dev_infiniband: nodes with several RDMA devices a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from netdoctor.facts.pci import Pci
from netdoctor.facts.rdma import Rdma, RdmaDevice
from netdoctor.model import Status
from tests.support import facts as f
from tests.unit.checks.test_rdma_dev_infiniband import Changes, judged


def twins(*refused: int) -> Changes:
    """Two HCAs a GPU, mlx5_0 to 7 and mlx5_8 to 15; what is refused does not open."""

    def hca(n: int) -> RdmaDevice:
        wrong = {"open_errno": "EPERM"} if n in refused else {}
        at = {} if n < 8 else {"name": f"mlx5_{n}", "pci": f.bdf(f.HCA_BUSES[n - 8], 0, 1)}
        return f.hca(n % 8, uverbs=f.uverbs(n, **wrong), **at)

    devices = tuple(hca(n) for n in range(16))
    second = (f.hca_device(i, address=f.bdf(f.HCA_BUSES[i], 0, 1)) for i in range(8))
    rdma = f.rdma(devices=devices, verbs_devices=tuple(one.name for one in devices))
    return {Rdma: rdma, Pci: f.pci(devices=(*f.pci().devices, *second))}


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        ((), Status.PASS),
        (range(8, 16), Status.UNKNOWN),  # each GPU has one of its two
        ((9,), Status.UNKNOWN),
        ((4, 5, 6, 7, 12, 13, 14, 15), Status.FAIL),  # as many work as there are GPUs, and GPU 4 to 7 have none
        (range(1, 16), Status.FAIL),
    ],
)
def test_of_several_hcas_a_gpu_each_counts(refused: Sequence[int], status: Status) -> None:
    found = judged(twins(*refused))
    assert [found[f"mlx5_{n}"].status for n in range(16)] == [status if n in refused else Status.PASS for n in range(16)]
    if refused and status is Status.FAIL:
        assert found["mlx5_15"].loss is not None

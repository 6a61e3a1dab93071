"""Healthy machines of many kinds, composed from public documentation; each becomes fixtures/hosts/<slug>/snapshot.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.support.machines import owned, rented
from tests.support.machines.parts import Built

HOSTS: Final[Mapping[str, Callable[[], Built]]] = {
    "dgx-h100": owned.dgx_h100,
    "hgx-h100-roce": owned.hgx_h100_roce,
    "pod-with-devices": rented.pod_with_devices,
    "pod-unprivileged": rented.pod_unprivileged,
    "pod-without-gpus": rented.pod_without_gpus_on_a_gpu_node,
    "aws-p5": rented.aws_p5,
    "azure-nd-h100-v5": rented.azure_nd_h100_v5,
    "a100-pcie": owned.a100_pcie,
    "gb200-nvl72": owned.gb200_nvl72,
    "dgx-spark": owned.dgx_spark,
    "cpu-node": owned.cpu_node,
}

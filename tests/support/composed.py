"""Healthy machines of many kinds, composed from public documentation; each becomes fixtures/hosts/<slug>/snapshot.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.support import hosts_away as away
from tests.support import hosts_own as own
from tests.support.hosts_parts import Built

HOSTS: Final[Mapping[str, Callable[[], Built]]] = {
    "dgx-h100": own.dgx_h100,
    "hgx-h100-roce": own.hgx_h100_roce,
    "pod-with-devices": away.pod_with_devices,
    "pod-unprivileged": away.pod_unprivileged,
    "pod-without-gpus": away.pod_without_gpus_on_a_gpu_node,
    "aws-p5": away.aws_p5,
    "azure-nd-h100-v5": away.azure_nd_h100_v5,
    "a100-pcie": own.a100_pcie,
    "gb200-nvl72": own.gb200_nvl72,
    "dgx-spark": own.dgx_spark,
    "cpu-node": own.cpu_node,
}

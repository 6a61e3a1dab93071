"""GPUs: what NVML sees, joined by UUID to what libcuda shows the job."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class Gpu:
    """One GPU as NVML knows it."""

    uuid: str | Unavailable
    index: int  # NVML's
    name: str | Unavailable
    pci: str | Unavailable  # "0000:1b:00.0"
    numa_node: int | Unavailable  # the PCI device's numa_node, never nvmlDeviceGetNumaNodeId
    memory_total: int | Unavailable  # bytes
    memory_used: int | Unavailable  # bytes; reserved excluded where NVML can (v2)
    utilization: int | Unavailable  # percent
    processes: int | Unavailable  # blind across PID namespaces
    nvlinks: tuple[bool, ...] | Unavailable  # state per link; () none
    mig: bool | Unavailable
    capability: tuple[int, int] | Unavailable  # compute capability, (9, 0)


@dataclass(frozen=True)
class VisibleGpu:
    """One device that libcuda shows the job, in the job's order."""

    ordinal: int
    uuid: str  # GPU-… or MIG-…
    name: str
    gpudirect_rdma: bool | Unavailable  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED (116)
    dmabuf: bool | Unavailable  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED (124)
    integrated: bool | Unavailable  # CU_DEVICE_ATTRIBUTE_INTEGRATED (18)


@dataclass(frozen=True)
class Gpus:
    """All of them."""

    driver: str | Unavailable  # "580.95.05"
    cuda_driver: int | Unavailable  # 13000, from libcuda or NVML
    all: tuple[Gpu, ...] | Unavailable  # () only where NVML answered 0
    visible: tuple[VisibleGpu, ...] | Unavailable  # () only where libcuda answered 0 or CUDA_ERROR_NO_DEVICE

    @property
    def of_the_job(self) -> tuple[tuple[VisibleGpu, Gpu | None], ...] | Unavailable:
        """Visible GPUs in the job's order, each with NVML's view of it where the UUIDs meet."""
        if isinstance(self.visible, Unavailable):
            return self.visible
        known = {} if isinstance(self.all, Unavailable) else {g.uuid: g for g in self.all if isinstance(g.uuid, str)}
        return tuple((v, known.get(v.uuid)) for v in self.visible)

"""Live faults of the hardware against what it should be, as data (tests/lab/row.py): links, GPUs, rails."""

from __future__ import annotations

from typing import Final

from tests.lab.row import CPU, GDR, GPUS, HARDWARE, LINKS, PORTS, RAILS, RDMA, Row
from tests.support.machines.sysfs import GPU_BUSES, HCA_BUSES
from tests.support.namespaces.dgx import Scene


def _told(what: str, bus: int, value: str, device: str = "00.0") -> str:
    """A file of one PCI function, by its bus, says something else."""
    return f"for f in $(find devices -path '*0000:{bus:02x}:{device}/{what}'); do echo '{value}' > $f; done"


def _port(what: str, value: str, name: str = "mlx5_*") -> str:
    return f"for f in $(find devices -path '*/{name}/{what}'); do echo '{value}' > $f; done"


FASTER: Final = {GDR: "NCCL takes a faster one", RDMA: "NCCL takes a faster one"}
HARDWARE_ROWS: Final = (
    Row("a GPU with eight lanes", Scene(tree={"gpu_width": {2: 8}}), {LINKS: "fail link_degraded"}),
    Row("an HCA with four lanes", Scene(tree={"hca_width": {5: 4}}), {LINKS: "fail link_degraded"}),
    Row("every HCA with eight lanes", Scene(tree={"hca_width": dict.fromkeys(range(8), 8)}), {LINKS: "fail link_degraded"}),
    Row(
        "an HCA at a quarter of its speed",
        Scene(sys=_told("current_link_speed", HCA_BUSES[1], "8.0 GT/s PCIe")),
        {LINKS: "fail link_degraded"},
    ),
    Row(
        "a switch with eight lanes to the root",
        Scene(sys=_told("current_link_width", HCA_BUSES[4] - 2, "8")),
        {LINKS: "fail link_degraded"},
    ),
    Row(
        "a root port at half of its speed",
        Scene(sys=_told("current_link_speed", HCA_BUSES[6] - 3, "16.0 GT/s PCIe", "01.0")),
        {LINKS: "fail link_degraded"},
    ),
    Row("a GPU with an NVLink down", Scene(nvml="gpu3.nvlink7=0"), {GPUS: "fail link_degraded"}),
    Row("GPUs with half of their NVLinks", Scene(nvml="nvlinks=9"), {GPUS: "fail link_degraded"}),
    Row("a GPU with three NVLinks", Scene(nvml="gpu6.nvlinks=3"), {GPUS: "fail link_degraded"}),
    Row("a GPU of another model", Scene(nvml="gpu1.name=NVIDIA H200"), {GPUS: "fail odd_one_out"}),
    Row(
        "a GPU on another NUMA node than its root port",
        Scene(sys=_told("numa_node", GPU_BUSES[2], "1")),
        {GPUS: "fail odd_one_out"},
        {CPU: "its node is the other one", GDR: "its path is longer"},
    ),
    Row("a rail at half of the rate", Scene(tree={"rates": {3: 200}}), {RAILS: "fail link_degraded"}, FASTER),
    Row("a rail with other firmware", Scene(tree={"firmware": {6: "28.36.1010"}}), {RAILS: "fail odd_one_out"}),
    Row(
        "a rail that is Ethernet",
        Scene(sys=_port("ports/1/link_layer", "Ethernet", "mlx5_5")),
        {RAILS: "fail odd_one_out"},
        FASTER,
    ),
    Row(
        "a rail on another NUMA node than its root port",
        Scene(sys=_told("numa_node", HCA_BUSES[7], "1")),
        {RAILS: "fail odd_one_out"},
        {GDR: "its path is longer", RDMA: "another is nearer"},
    ),
    Row(
        "seven rails for eight GPUs",
        Scene(tree={"hcas": 7}),
        {RAILS: "fail inventory"},
        {
            HARDWARE: "the site expects eight",
            "hardware.hca": "libibverbs shows eight",
            LINKS: "one link less",
            GDR: "its GPU takes another",
            RDMA: "one device less",
            PORTS: "one device less",
        },
    ),
)

"""Live faults of the hardware against what it should be, as data (tests/lab/row.py): links, GPUs, rails."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tests.lab.row import CPU, ENVIRONMENT, FABRIC, GDR, GIDS, GPUS, HEALTH, LINKS, MAPPING, PORTS, RAILS, RDMA, WAY, Row
from tests.support.machines.sysfs import GPU_BUSES, HCA_BUSES
from tests.support.namespaces.dgx import Scene


def _told(what: str, bus: int, value: str, device: str = "00.0") -> str:
    """A file of one PCI function, by its bus, says something else."""
    return f"for f in $(find devices -path '*0000:{bus:02x}:{device}/{what}'); do echo '{value}' > $f; done"


def _ranks(fault: str, first: str, second: str, expected: str) -> Row:
    """Two ranks of torchrun's on this node with masks of their own: netdoctor in the place of the first, the second sleeps."""
    env = {"TORCHELASTIC_RUN_ID": "a", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "RANK": "0", "LOCAL_RANK": "0"}
    other = "TORCHELASTIC_RUN_ID=a RANK=1 LOCAL_RANK=1 CUDA_VISIBLE_DEVICES={} sleep 30 >/dev/null 2>&1 &"
    scene = Scene(env={**env, "CUDA_VISIBLE_DEVICES": first}, setup=other.format("1"))
    return Row(fault, replace(scene, setup=other.format(second)), {MAPPING: expected}, {}, scene)


def _port(what: str, value: str, name: str = "mlx5_*") -> str:
    return f"for f in $(find devices -path '*/{name}/{what}'); do echo '{value}' > $f; done"


ROCE: Final = Scene(
    tree={"roce": True, "gids": 4},  # link-local, and an IPv4 address as v2, v1, v2
    setup="for n in 1 2 3 4 5 6 7 8; do ip link add eth$n link low0 type macvlan mode bridge; ip link set eth$n up; done",
)
NOTHING, LOCAL = "0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:a088:c203:0000:0001"


def _gids(n: int, value: str, *indexes: int) -> str:
    return "; ".join(_port(f"ports/1/gids/{index}", value, f"mlx5_{n}") for index in indexes)


def _on_rails(fault: str, sys: str, **env: str) -> Row:
    also = {RAILS: "it differs from its like", **({ENVIRONMENT: "a variable is read"} if env else {})}
    return Row(fault, replace(ROCE, sys=sys, env=env), {GIDS: "fail roce_gid"}, also, ROCE)


def _turns_back(
    fault: str, bits: tuple[int, int], *numbers: int, expected: str = "fail acs_iommu", scene: Scene | None = None
) -> Row:
    """Ports of the switches of some GPUs, to the HCA and to the GPU."""
    ports = {f"0000:{HCA_BUSES[n] - 1:02x}:0{which}.0": bits[which] for n in numbers for which in (0, 1)}
    return Row(fault, replace(scene or Scene(), tree={"acs": ports}), {WAY: expected}, {}, scene or Scene())


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
    Row("a GPU with errors of its memory", Scene(nvml="gpu2.ecc_dram=1"), {HEALTH: "fail gpu_memory"}),
    Row("a GPU whose rows could not be remapped", Scene(nvml="gpu0.remap_failed=1"), {HEALTH: "fail gpu_memory"}),
    Row("a GPU whose clocks the power supply holds", Scene(nvml="gpu5.reasons=136"), {HEALTH: "fail gpu_slow"}),
    Row("a GPU with a lower power limit", Scene(nvml="gpu7.power_limit=350000"), {HEALTH: "fail gpu_slow"}),
    Row("a GPU that may not be used", Scene(nvml="gpu1.compute_mode=2"), {HEALTH: "fail gpu_error"}),
    Row("a GPU with a corrupted InfoROM", Scene(nvml="gpu4.inforom_corrupted=1"), {HEALTH: "fail gpu_error"}),
    Row("a GPU that has not registered with its fabric", Scene(nvml="gpu3.fabric_state=1"), {FABRIC: "fail fabric_manager"}),
    Row("a GPU whose registration failed", Scene(nvml="gpu1.fabric_status=999"), {FABRIC: "fail fabric_manager"}),
    Row("a GPU in another clique", Scene(nvml="gpu6.fabric_clique=2"), {FABRIC: "fail fabric_manager"}),
    Row("a GPU whose routes are broken", Scene(nvml="gpu0.fabric_health=16"), {FABRIC: "fail link_degraded"}),
    Row("a GPU that its peers may not access", Scene(nvml="gpu2.p2p=4"), {FABRIC: "fail p2p_disabled"}),
    Row("no IMEX channel in a rack's fabric", Scene(nvml="fabric_cluster=171"), {FABRIC: "fail imex"}),
    _ranks("two ranks with masks of one GPU", "0,1", "0", "fail duplicate_gpu"),
    _ranks("two ranks that take one GPU of different masks", "0,1", "3,0", "fail duplicate_gpu"),
    _ranks("a rank whose mask is empty", "0,1", "", "fail device_mapping"),
    _ranks("a rank whose mask begins with no GPU", "0,1", "9,1", "fail device_mapping"),
    Row("a GPU that somebody else computes on", Scene(nvml="gpu3.processes=1"), {MAPPING: "fail device_mapping"}),
    Row("Slurm gave fewer GPUs than there are", Scene(env={"SLURM_GPUS_ON_NODE": "4"}), {MAPPING: "fail device_mapping"}),
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
            "hardware.site": "the site expects eight",
            "hardware.hca": "libibverbs shows eight",
            LINKS: "one link less",
            GDR: "its GPU takes another",
            RDMA: "one device less",
            PORTS: "one device less",
        },
    ),
    _on_rails("a pinned GID index that is empty", "", NCCL_IB_GID_INDEX="9"),
    _on_rails("a pinned GID index that drifted", _gids(4, LOCAL, 1), NCCL_IB_GID_INDEX="1"),
    _on_rails("a rail with RoCE v1 alone", _gids(2, NOTHING, 1, 3)),
    _on_rails("a rail with link-local GIDs alone", _gids(5, NOTHING, 2, 3) + "; " + _gids(5, LOCAL, 1)),
    _on_rails("a rail with 169.254", _gids(1, "0000:0000:0000:0000:0000:ffff:a9fe:0105", 1, 2, 3)),
    _on_rails("two rails with one address", _gids(6, "0000:0000:0000:0000:0000:ffff:0a00:0001", 1, 2, 3)),
    _turns_back("switches turn back all that comes by", (0x1D, 0x1D), *range(8)),
    _turns_back("a switch turns back all that comes by", (0x1D, 0x1D), 3),
    _turns_back("a switch turns back what an HCA writes", (0x04, 0), 6),
    _turns_back("a switch turns back what an HCA reads", (0, 0x08), 1),
    _turns_back("a switch that controls what leaves it", (0x20, 0x20), 5),
    Row("switches that check sources alone", Scene(tree={"acs": {f"0000:{bus - 1:02x}:00.0": 0x11 for bus in HCA_BUSES}})),
    Row(
        "configuration space without rights",
        Scene(wrap="setpriv --bounding-set -sys_admin --inh-caps -sys_admin"),
        {WAY: "unknown: for root alone"},
    ),
    _on_rails("a GID of another namespace's interface", _port("ports/1/gid_attrs/ndevs/1", "eth99", "mlx5_3")),
)

"""What a check may import: a name that goes away breaks checks that others wrote."""

from __future__ import annotations

from netdoctor import api

NAMES = """
Accelerator Action Address Baseline Bound CLOSED Caller Cap Cgroups Cluster CommonRun Control Cpu Culprit Cure Dcgm DcgmHealth
DeviceNames DirectPaths Environ Expected FROM_JOB Fabric Finding Fix GdrProof Gid Gift Gpu GpuHealth GpuLayers GpuLoad
GpuState GpuUsers Gpus HW_SLOWDOWN HW_THERMAL Incident Intent Interrupts JobPython Kernel KernelLog Kind Launcher Libraries
Link Linkage LocalPorts LogFacts Loss MeetingFault MemoryPolicy Module Nccl NcclChoice NcclLibrary Net Node Obstacle
POWER_BRAKE Pair Past PathLimit PathRun Pci PciDevice PciLink PciPath Peer Platform Plugin Provider Quantity RankResult Ranks
Rdma RdmaDevice RdmaPort Room Route Run SOCKET STATE_NODES STATE_RANKS SW_THERMAL Said Clock XidEvent Scarce SeenRank Selector
Setting Severity Spread State Status Step System SystemEvent Told Torch TorchFacts Trouble UNLIMITED Unavailable Usable Uverbs
Vantage Version VisibleGpu Way accelerator affinity assigned at_a_limit between_nodes cause_of check cluster_network cost
count direct_paths expectation fail fix_container fix_environment fix_gpudirect fix_rdma_device fix_sysctl gdr_mechanisms
gdr_proof gdr_sends gids gpudirect hcas if_it_starts_more ifname interfaces inventory job_torch layers loader_rules_say
missing nccl_environment nccl_integer nccl_param nccl_plugins nccl_ports net_plugin node_variables ok others out_of_memory
parse_hcas parse_version path_limit rails rdma_handles reaching seen_loaded shm_pool size_text skip tcp_window transport unknown
usable used_nccl version_text without_p2p Path Reach
neighbours partition record slurm_cpus one_subnet gloo_rate FlatRails
Tasks shm_connections SHM_REFUSED ShmProof Errors NetErrors SysctlFiles
LimitsMet
GIVE_PYTHON OBSTACLES WITH_RUN LOOK_AT_LOG WHOLE_LOG
devices in_use locked_memory path_mtu traffic_class Counted Diagnosed Outcome footprint open_errors
"""


def test_the_names_of_the_api() -> None:
    assert sorted(api.__all__) == sorted(NAMES.split())
    assert not [name for name in api.__all__ if not hasattr(api, name)]

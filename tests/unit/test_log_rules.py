"""Each mechanism in NCCL's own wording: which cause comes first, and what must stay silent.

Lines are written from the format strings of NCCL's sources (and torch's, Gloo's, aws-ofi-nccl's); hosts and numbers are made up.
"""

# ruff: noqa: E501  (log lines are as long as NCCL writes them)

from __future__ import annotations

import pytest

from netdoctor.model import Status
from netdoctor.nccl.diagnosis import diagnose
from netdoctor.nccl.log.parser import parse_text

A = "node01:100:100 [0] NCCL INFO "
B = "node02:200:200 [0] NCCL INFO "
WA = "node01:100:130 [0] "
TWO = f"""{A}comm 0x5500 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
{B}comm 0x5600 rank 1 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
"""
ONE = f"{A}comm 0x5500 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0\n"
DONE = f"{A}ncclCommInitRank comm 0x5500 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xaa - Init COMPLETE\n{B}ncclCommInitRank comm 0x5600 rank 1 nranks 2 cudaDev 0 nvmlDev 0 busId 1000 commId 0xaa - Init COMPLETE\n"
MLX = f"{A}NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n{A}Using network IB\n"
ROCE = f"{A}NET/IB : Using [0]mlx5_0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n{A}Using network IB\n"
SOCKET = f"{A}NET/Socket : Using [0]eth0:10.0.0.1<0>\n{A}Using network Socket\n{B}Using network Socket\n"

FIRST = [
    (
        "shm 2.12 wording",
        "shm_disabled_or_small",
        WA + "misc/shmutils.cc:38 NCCL WARN Error: failed to extend /dev/shm/nccl-aB3dEf to 9637892 bytes",
    ),
    (
        "shm 2.22 wording",
        "shm_disabled_or_small",
        "[2026-01-02 03:04:05] "
        + WA
        + "misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-aB3dEf to 33030532 bytes, error: No space left on device (28)\n"
        + WA
        + "proxy.cc:1500 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable",
    ),
    (
        "shm 2.30 wording",
        "shm_disabled_or_small",
        WA
        + "os/linux.cc:795 (ncclOsShmOpen) NCCL WARN Error: failed to extend /dev/shm/nccl-aB3dEf to 33030532 bytes, error: No space left on device (28)",
    ),
    (
        "shm 2.4 wording",
        "shm_disabled_or_small",
        WA + "include/shm.h:41 NCCL WARN Unable to allocate shared memory (4194664 bytes) : No space left on device",
    ),
    (
        "shm by torch",
        "shm_disabled_or_small",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
    ),
    (
        "duplicate 2.8",
        "duplicate_gpu",
        WA + "init.cc:584 NCCL WARN Duplicate GPU detected : rank 7 and rank 0 both on CUDA device f000",
    ),
    (
        "duplicate 2.30.3",
        "duplicate_gpu",
        WA
        + "graph/topo.cc:1977 NCCL WARN Multiple ranks detected using the same GPU on this node. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
    ),
    (
        "duplicate 2.30.7",
        "duplicate_gpu",
        WA
        + "init.cc:1057 (initTransportsRank) NCCL WARN Multiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_RANK_GPU_ENABLE=1 to enable this configuration.",
    ),
    (
        "no interface",
        "socket_ifname",
        A
        + "NCCL_SOCKET_IFNAME set by environment to eno1\n"
        + WA
        + "bootstrap.cc:126 NCCL WARN Bootstrap : no socket interface found",
    ),
    (
        "no interface with NCCL_COMM_ID",
        "socket_ifname",
        WA + "bootstrap.cc:120 NCCL WARN NET/Socket : No usable listening interface found",
    ),
    (
        "OOB net interface",
        "socket_ifname",
        WA + "bootstrap.cc:577 NCCL WARN no device found matching mlx5_9, verify NCCL_OOB_NET_IFNAME",
    ),
    (
        "bind link-local",
        "socket_ifname",
        A
        + "Bootstrap : Using vethab12:fe80::1%vethab12<0>\n"
        + WA
        + "misc/socket.cc:379 NCCL WARN Call to bind failed : Cannot assign requested address",
    ),
    (
        "bind veth of another namespace",
        "socket_ifname",
        WA + "misc/socket.cc:379 NCCL WARN Call to bind failed: No such device",
    ),
    (
        "lo across hosts",
        "socket_ifname",
        f"{A}Bootstrap : Using lo:127.0.0.1<0>\n{B}Bootstrap : Using lo:127.0.0.1<0>\n{WA}misc/socket.cc:485 NCCL WARN socketStartConnect: Connect to 127.0.0.1<41000> failed : Connection refused",
    ),
    (
        "docker0 across hosts",
        "socket_ifname",
        f"{A}Bootstrap : Using docker0:172.17.0.1<0>\n{B}Bootstrap : Using docker0:172.17.0.1<0>\n",
    ),
    (
        "docker0 peer",
        "socket_ifname",
        WA + "misc/socket.cc:456 NCCL WARN Net : Connect to 172.17.0.1<39533> failed : Connection refused",
    ),
    (
        "old format, lo first",
        "socket_ifname",
        "node01:7:7 [0] INFO NET : Using interface lo:127.0.0.1<0>\nnode02:8:8 [0] INFO NET : Using interface lo:127.0.0.1<0>\nnode01:7:7 [0] include/socket.h:361 WARN Call to connect failed : Connection refused",
    ),
    (
        "link-local IPoIB",
        "socket_ifname",
        f"{A}Bootstrap : Using ib1:fe80::5:6%ib1<0>\n{B}Bootstrap : Using ib1:fe80::5:7%ib1<0>\n",
    ),
    (
        "firewall drops",
        "firewall_connect",
        WA + "misc/socket.cc:302 NCCL WARN socketPollConnect: connect to 10.0.0.2<45213> failed : Connection timed out",
    ),
    (
        "firewall drops, 2.2 without tag",
        "firewall_connect",
        "node01:7:7 [0] include/socket.h:361 WARN Call to connect failed : Connection timed out",
    ),
    ("gave up", "firewall_connect", WA + "misc/socket.cc:477 NCCL WARN socketStartConnect: exceeded timeouts (3)"),
    (
        "reject",
        "firewall_connect",
        WA + "misc/socket.cc:456 NCCL WARN Net : Connect to 10.0.0.2<39533> failed : No route to host",
    ),
    (
        "no route among many interfaces",
        "socket_ifname",
        f"{A}NET/Socket : Using [0]eth0:10.0.0.1<0> [1]eth1:192.168.5.1<0>\n{WA}misc/socket.cc:456 NCCL WARN Net : Connect to 192.168.5.2<39533> failed : No route to host",
    ),
    (
        "retried for a minute, 2.27",
        "firewall_connect",
        WA
        + "os/linux.cc:288 NCCL WARN socketPollConnect: connect to 10.0.0.2<45213> returned Connection timed out, exceeded error retry count after 35 attempts",
    ),
    (
        "store",
        "firewall_connect",
        "[E socket.cpp:922] [c10d] The client socket has timed out after 60000ms while trying to connect to (10.0.0.1, 29500).",
    ),
    ("ports at scale", "bootstrap_ports", WA + "misc/socket.cc:150 NCCL WARN Call to bind failed: Address already in use"),
    ("ports 2.4", "bootstrap_ports", WA + "include/socket.h:303 NCCL WARN Call to bind failed : Address already in use"),
    (
        "descriptors",
        "bootstrap_ports",
        WA + "misc/socket.cc:728 NCCL WARN ncclSocketInit: Socket creation failed : Too many open files",
    ),
    (
        "modify_qp drift",
        "roce_gid",
        WA
        + "misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 61 No data available, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 3, local GID ::, remote GID ::ffff:10.1.1.2",
    ),
    (
        "modify_qp old wording",
        "roce_gid",
        WA + "misc/ibvwrap.cc:212 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
    ),
    (
        "modify_qp network unreachable",
        "roce_gid",
        WA
        + "misc/ibvwrap.cc:376 NCCL WARN Call to ibv_modify_qp failed with 101 Network is unreachable, on dev mlx5_3:1, curr state INIT, next state RTR, local GID index 1, local GID fe80::1, remote GID fe80::2",
    ),
    (
        "modify_qp on InfiniBand",
        "ib_timeout",
        MLX + WA + "misc/ibvwrap.cc:212 NCCL WARN Call to ibv_modify_qp failed with error Connection timed out",
    ),
    (
        "status 12, 2.9",
        "ib_timeout",
        MLX + WA + "transport/net_ib.cc:846 NCCL WARN NET/IB : Got completion with error 12, opcode 1, len 0, vendor err 129",
    ),
    (
        "status 12, 2.10",
        "ib_timeout",
        MLX
        + WA
        + "transport/net_ib.cc:1261 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<38000> with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        "status 12, 2.20",
        "ib_timeout",
        WA
        + "transport/net_ib.cc:1909 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<38000> with status=12 opcode=0 len=0 vendor err 129 (Recv) localGid fd00::1 remoteGids fd00::2",
    ),
    (
        "status 12, 2.28.7",
        "ib_timeout",
        WA
        + "transport/net_ib/p2p.cc:688 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<38000> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Recv hca mlx5_1",
    ),
    (
        "status 12, IBext plugin",
        "ib_timeout",
        WA
        + "ib_plugin.c:1320 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<38000> with error 12, opcode 32, len 20, vendor err 249",
    ),
    (
        "status 12 among flushed ones",
        "ib_timeout",
        WA
        + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with error 5, opcode 0, len 0, vendor err 244\n"
        + "node02:9:9 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        "status 12 on the default RoCE GID",
        "roce_gid",
        "NCCL version 2.18.3+cuda12.2\n"
        + ROCE
        + WA
        + "transport/net_ib.cc:1261 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<38000> with error 12, opcode 0, len 0, vendor err 129",
    ),
    (
        "status 12 after a port went down",
        "link_degraded",
        WA
        + "transport/net_ib.cc:212 NCCL WARN NET/IB : mlx5_2:1 Got async error event: port error\n"
        + WA
        + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Send)",
    ),
    (
        "status 12 and an OOM kill",
        "rank_died",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=7.0. Some of the step tasks have been OOM Killed.\n"
        + WA
        + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Send)",
    ),
    (
        "local protection",
        "acs_iommu",
        WA
        + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=4 opcode=0 len=0 vendor err 81 (Send)",
    ),
    (
        "flushed only",
        "rank_died",
        WA
        + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=5 opcode=0 len=0 vendor err 249 (Recv)",
    ),
    ("port error, 2.19", "link_degraded", WA + "transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : port error"),
    (
        "adapter fatal",
        "link_degraded",
        WA + "transport/net_ib.cc:103 NCCL WARN NET/IB : mlx5_0:1 Got async event : local catastrophic error",
    ),
    (
        "GID table under a running job",
        "roce_gid",
        WA
        + "transport/net_ib/common.cc:153 NCCL WARN NET/IB : mlx5_bond_0:1 GID table changed\n"
        + WA
        + "transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<1> with status=12 opcode=0 len=0 vendor err 129 (Send)\n",
    ),
    (
        "memlock",
        "memlock",
        WA + "misc/ibvwrap.cc:160 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory",
    ),
    (
        "memlock, completion queue",
        "memlock",
        WA + "misc/ibvwrap.cc:190 NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory",
    ),
    (
        "registration of GPU memory",
        "gdr_disabled",
        WA + "misc/ibvwrap.cc:160 NCCL WARN Call to ibv_reg_mr failed with error Bad address",
    ),
    (
        "HCA keys",
        "other",
        "kernel: mlx5_core 0000:3b:00.0: mlx5_cmd_check: CREATE_MKEY(0x200) op_mod(0x0) failed, status limits exceeded(0x8), syndrome (0x18af6)\n"
        + WA
        + "misc/ibvwrap.cc:160 NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    ),
    (
        "devices not mapped",
        "dev_infiniband_missing",
        WA
        + "misc/ibvwrap.cc:93 NCCL WARN Call to ibv_open_device failed\n"
        + WA
        + "transport/net_ib.cc:169 NCCL WARN NET/IB : Unable to open device mlx5_bond_0\n"
        + f"{A}NET/IB : No device found.\n"
        + SOCKET
        + TWO,
    ),
    (
        "container without RDMA",
        "dev_infiniband_missing",
        f"{A}Bootstrap : Using ibp12s0:10.1.0.1<0>\n{A}Plugin Path : /opt/hpcx/nccl_rdma_sharp_plugin/lib/libnccl-net.so\n{A}NET/Plugin: Loaded net plugin IBext (v5)\n{A}NCCL_IB_HCA set to mlx5\n{A}NET/IB : No device found.\n"
        + SOCKET
        + TWO,
    ),
    (
        "IB variables but TCP",
        "dev_infiniband_missing",
        f"{A}NCCL_IB_DISABLE set by environment to 0.\n{A}NCCL_IB_HCA set to mlx5_0\n{A}Failed to open libibverbs.so[.1]\n"
        + SOCKET
        + TWO,
    ),
    (
        "NCCL_NET=IB without devices",
        "dev_infiniband_missing",
        f"{A}NCCL_NET set by environment to IB.\n{A}NET/IB : No device found.\n{A}Failed to initialize NET plugin IB\n{WA}plugin/net.cc:349 NCCL WARN Failed to initialize any NET plugin",
    ),
    (
        "netdev names as HCAs",
        "env_misuse",
        f"{A}NCCL_IB_HCA set to enp12s0f0,enp12s0f1\n{A}NET/IB : No device found.\n{A}Failed to initialize NET plugin IB\n"
        + SOCKET
        + TWO,
    ),
    ("TCP between nodes", "transport_fallback_tcp", f"{A}NET/IB : No device found.\n" + SOCKET + TWO + DONE),
    ("IB switched off", "transport_fallback_tcp", f"{A}NCCL_IB_DISABLE set by environment to 1.\n" + SOCKET + TWO + DONE),
    (
        "Slingshot without plugin",
        "plugin_mismatch",
        f"{A}Bootstrap : Using hsn0:10.0.0.1<0>\n{A}NET/Plugin : Plugin load (libnccl-net.so) returned 2 : libnccl-net.so: cannot open shared object file: No such file or directory\n{A}NET/IB : No device found.\n{A}NET/Socket : Using [0]hsn0:10.0.0.1<0>\n{A}Using network Socket\n"
        + TWO,
    ),
    (
        "provider ABI",
        "plugin_mismatch",
        "libibverbs: Warning: Driver bnxt_re does not support the kernel ABI of 6 (supports 1 to 1) for device /sys/class/infiniband/bnxt_re0\n"
        f"{A}NET/IB : No device found.\n" + SOCKET + TWO,
    ),
    (
        "plugin needs another rdma-core",
        "plugin_mismatch",
        f"{A}NET/Plugin: Plugin load returned 2 : libnccl-net-ofi.so: /opt/rdma-core/lib/libibverbs.so.1: version `IBVERBS_PRIVATE_34' not found (required by /lib/libefa.so.1) when loading libnccl-net-ofi.so\n"
        + SOCKET
        + TWO,
    ),
    ("NCCL_NET of another cluster", "plugin_mismatch", WA + "net.cc:232 NCCL WARN Error: network AWS Libfabric not found."),
    (
        "no EFA in the container",
        "plugin_mismatch",
        WA
        + "nccl_net_ofi_create_plugin:213 NCCL WARN NET/OFI Failed to initialize sendrecv protocol\n"
        + WA
        + "nccl_net_ofi_create_plugin:334 NCCL WARN NET/OFI aws-ofi-nccl initialization failed\n"
        + SOCKET
        + TWO,
    ),
    (
        "old plugin",
        "plugin_mismatch",
        f"{A}NET/Plugin: Failed to find ncclNetPlugin symbol (>= v5). ncclNetPlugin symbols v4 and lower are not supported.\n"
        + SOCKET
        + TWO,
    ),
    (
        "GPUDirect off at the HCA",
        "gdr_disabled",
        MLX
        + f"{A}NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
        + TWO,
    ),
    (
        "GPUDirect off, 2.5 wording",
        "gdr_disabled",
        MLX
        + f"{A}NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)\n{A}Ring 00 : 1[1000] -> 0[1000] [receive] via NET/IB/0\n{B}Ring 00 : 0[1000] -> 1[1000] [receive] via NET/IB/0\n",
    ),
    (
        "GPUDirect on one node only",
        "gdr_disabled",
        MLX
        + TWO
        + f"{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n{B}Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0\n",
    ),
    (
        "mixed link layers",
        "env_misuse",
        WA
        + "transport/net_ib/init.cc:230 NCCL WARN NET/IB : Attempted to merge incompatible devices: [0]mlx5_0:1/IB and [1]mlx5_1:1/RoCE. Try selecting NICs of only one link type using NCCL_IB_HCA",
    ),
    (
        "NIC counts differ",
        "inventory",
        WA
        + "init.cc:1335 (initTransportsRank) NCCL WARN Detected mixed local Net device counts across ranks (min 1, max 2). Set NCCL_IGNORE_NET_MISMATCH=1 to continue.",
    ),
    (
        "driver too old",
        "cuda_driver_mismatch",
        WA + "init.cc:98 NCCL WARN Cuda failure 'CUDA driver version is insufficient for CUDA runtime version'",
    ),
    ("driver cannot start", "cuda_driver_mismatch", WA + "misc/cudawrap.cc:33 NCCL WARN Cuda failure 'initialization error'"),
    (
        "no driver",
        "cuda_driver_mismatch",
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU",
    ),
    (
        "Fabric Manager down",
        "fabric_manager",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
    ),
    ("ordinal", "device_mapping", WA + "transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'"),
    (
        "kernel of the program",
        "rank_died",
        WA
        + "enqueue.cc:1400 NCCL WARN Cuda failure 'an illegal memory access was encountered'\nnode02:9:9 [0] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer node01<4000>",
    ),
    (
        "NVLS bind",
        "nvls_failure",
        WA
        + "transport/nvls.cc:376 (nvlsGroupBindMem) NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 999 'unknown error'.\nThis is usually caused by a system or configuration error in the Fabric Manager or NVSwitches.",
    ),
    ("NVLS before 2.27", "nvls_failure", WA + "transport/nvls.cc:244 NCCL WARN Cuda failure 1 'invalid argument'"),
    (
        "IMEX",
        "imex",
        WA
        + "mnnvl.cc:74 NCCL WARN MNNVL (cliqueSize 8) is available but not working on this system. Check the IMEX channel configuration (/dev/nvidia-caps-imex-channels). Set NCCL_MNNVL_ENABLE=0 to ignore this issue.",
    ),
    (
        "NVLink broken",
        "p2p_disabled",
        WA
        + "graph/paths.cc:396 NCCL WARN P2P is disabled between NVLINK connected GPUs 1 and 0. This should not be the case given their connectivity, and is probably due to a hardware issue. If you still want to proceed, you can set NCCL_IGNORE_DISABLED_P2P=1.",
    ),
    ("fabric degraded", "link_degraded", WA + "init.cc:1 (f) NCCL ATTN NVLink fabric health reports DEGRADED_BANDWIDTH"),
    (
        "P2P switched off",
        "p2p_disabled",
        ONE
        + f"{A}NCCL_P2P_DISABLE set by environment to 1.\n{A}Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n{A}Connected all rings\n",
    ),
    (
        "squeezed",
        "numa_affinity",
        f"{A}Setting affinity for GPU 0 to 01\nnode01:101:101 [1] NCCL INFO Setting affinity for GPU 1 to 01\n{A}Connected all rings\n",
    ),
    (
        "NUMA clash",
        "numa_affinity",
        f"{A}ncclTopoGetCpuAffinity: Affinity for GPU 0 is empty, ignoring. (GPU affinity = 0-31 ; CPU affinity = 32-63).\n{A}Connected all rings\n",
    ),
    (
        "versions",
        "version_mismatch",
        WA + "init.cc:1043 NCCL WARN Mismatched NCCL version detected : rank 0 version 22304 rank 8 version 22105",
    ),
    (
        "symbol",
        "version_mismatch",
        "ImportError: /opt/venv/lib/python3.10/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister",
    ),
    (
        "handshake of two versions",
        "version_mismatch",
        WA + "bootstrap.cc:75 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ),
    (
        "family 0",
        "version_mismatch",
        WA
        + "misc/socket.cc:585 NCCL WARN ncclSocketInit: connecting to address  with family 0 is neither AF_INET(2) nor AF_INET6(10)",
    ),
    (
        "sizes",
        "env_misuse",
        WA
        + "transport/net_ib.cc:1119 NCCL WARN NET/IB : req 0/1 tag 7 peer 10.0.0.2<38000> collective mismatch error, local size 496640 remote size 65536",
    ),
    (
        "sizes over sockets",
        "env_misuse",
        WA
        + "transport/net_socket.cc:500 NCCL WARN NET/Socket : peer 10.0.0.2<1> message truncated : receiving 524288 bytes instead of 65536. If you believe your socket network is in a healthy state, there may be a mismatch in collective sizes or environment settings",
    ),
    (
        "order",
        "hang",
        WA
        + "init.cc:2000 NCCL WARN Mismatched collective detected, please check your collective calls at and around rank 39. You can use NCCL_DEBUG=INFO",
    ),
    (
        "algorithm",
        "env_misuse",
        f"{A}NCCL_ALGO set by environment to NVLSTree\n"
        + WA
        + "enqueue.cc:1971 NCCL WARN Error : no algorithm/protocol available for function Broadcast with datatype ncclInt8. NCCL_ALGO was set to NVLSTree.",
    ),
    (
        "comm id",
        "env_misuse",
        WA
        + "bootstrap.cc:114 NCCL WARN Invalid NCCL_COMM_ID, please use format: <ipv4>:<port> or [<ipv6>]:<port> or <hostname>:<port>",
    ),
    (
        "Gloo name",
        "gloo_backend",
        "RuntimeError: [enforce fail at ../third_party/gloo/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: enp129s0f1",
    ),
    (
        "Gloo with NCCL's syntax",
        "gloo_backend",
        "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: ^lo,docker,veth",
    ),
    (
        "Gloo with an address",
        "env_misuse",
        "RuntimeError: [enforce fail at device.cc:84] ifa != nullptr. Unable to find address for: 10.0.0.5",
    ),
    ("Gloo host name is a number", "gloo_backend", "RuntimeError: Unable to find interface for: [0.0.0.17]"),
    (
        "Gloo on loopback",
        "gloo_backend",
        "[rank8]: RuntimeError: Gloo connectFullMesh failed with [../third_party/gloo/gloo/transport/tcp/pair.cc:144] Connection refused, remote=[127.0.0.1]:5000, local=[127.0.0.1]:5001",
    ),
    (
        "Gloo timed out",
        "gloo_backend",
        "RuntimeError: Gloo connectFullMesh failed with [pair.cc:144] timed out connecting: SO_ERROR: Connection timed out, remote=[10.0.0.9]:5000",
    ),
    (
        "Gloo victim",
        "rank_died",
        "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:41234",
    ),
    (
        "victim",
        "rank_died",
        "[2026-01-01 00:00:00] node02:9:9 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node01.cluster<4000>",
    ),
    (
        "watchdog",
        "hang",
        "[rank2]:[E1120 10:00:00.000 ProcessGroupNCCL.cpp:616] [Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=41, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600026 milliseconds before timing out.",
    ),
    (
        "elastic",
        "rank_died",
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\n========\ntrain.py FAILED\n--------\nRoot Cause (first observed failure):\n[0]:\n  time      : 2026-01-01_00:00:00\n  host      : node03\n  rank      : 13 (local_rank: 5)\n  exitcode  : 1 (pid: 77)\n",
    ),
    (
        "EFA peer",
        "firewall_connect",
        WA
        + "ofi_process_cq:67 NCCL WARN NET/OFI Request 0x7f completed with error. RC: 103. Error: 4126 (Unresponsive receiver (reachable by EFA device but handshake failed)). Completed length: 0, Request: { dev: 0 }",
    ),
    (
        "interface not there, 2.27",
        "socket_ifname",
        A
        + "NCCL_SOCKET_IFNAME set by environment to eth2\n[trainer0|0]:ncclInternalError: Internal check failed.\n[trainer0|0]:Last error:\n[trainer0|0]:ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
    ),
    (
        "link-local peer, errno lost",
        "socket_ifname",
        WA
        + "misc/socket.cc:483 NCCL WARN socketStartConnect: Connect to fe80::1:2:3%ib1<17943> failed : Software caused connection abort",
    ),
    (
        "CUDA IPC refused",
        "p2p_disabled",
        WA
        + "transport/p2p.cc:238 NCCL WARN failed to open CUDA IPC handle : 217 peer access is not supported between these two devices",
    ),
    (
        "rank started twice",
        "env_misuse",
        WA + "bootstrap.cc:131 NCCL WARN Bootstrap Root : rank 1 of 8 ranks has already checked in",
    ),
    (
        "EFA endpoint",
        "plugin_mismatch",
        WA
        + "nccl_net_ofi_domain_get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid argument\n"
        + SOCKET
        + TWO,
    ),
    (
        "EFA, old wording",
        "plugin_mismatch",
        WA + "create_nccl_ofi_component:459 NCCL WARN NET/OFI Couldn't open AV. RC: -22, ERROR: Invalid argument",
    ),
    (
        "NVLS by torch",
        "nvls_failure",
        "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.",
    ),
    (
        "Gloo falls back to loopback",
        "gloo_backend",
        "[rank8] Warning: Unable to resolve hostname to a (local) address. Using the loopback address as fallback. Manually set the network interface with GLOO_SOCKET_IFNAME\nRuntimeError: Gloo connectFullMesh failed with [pair.cc:144] timed out connecting: SO_ERROR: Connection refused, remote=[127.0.0.1]:14215",
    ),
    ("ACS", "acs_iommu", "\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"),
    (
        "RCCL and the IOMMU",
        "acs_iommu",
        WA + 'init.cc:1 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
    ),
    ("wrong values", "wrong_data", "# Out of bounds values : 8 FAILED"),
]

SILENT = [
    (
        "RAS port of another job",
        "[2026-01-01 00:00:00] "
        + WA
        + "ras/client_support.cc:159 NCCL WARN Call to bind failed: Address already in use\n"
        + A
        + "RAS failed to establish a client listening socket at localhost:28028\n"
        + ONE
        + DONE,
    ),
    (
        "one node on Socket",
        f"{A}NET/IB : No device found.\n{A}Failed to open libibverbs.so[.1]\n{A}Using network Socket\n" + ONE + DONE,
    ),
    (
        "one rank",
        f"{A}Bootstrap : Using lo:127.0.0.1<0>\n{A}Using network Socket\n{A}Channel 00/32 :    0\n{A}comm 0x1 rank 0 nranks 1 cudaDev 0 busId 10 - Init COMPLETE",
    ),
    (
        "plugin probes newest first",
        f"{A}NET/Plugin: Failed to find ncclNetPlugin_v10 symbol.\n{A}NET/Plugin: Loaded net plugin IBext_v9 (v9)\n{A}NET/Plugin: Failed to find ncclCollNetPlugin_v10 symbol.\n{A}TUNER/Plugin: Could not find: libnccl-tuner.so\n{A}PROFILER/Plugin: Could not find: libnccl-profiler.so\n"
        + MLX.replace("Using network IB", "Using network IBext_v9")
        + f"{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IBext_v9/0/GDRDMA\n"
        + TWO
        + DONE,
    ),
    (
        "no plugin, internal IB",
        f"{A}NET/Plugin : No plugin found (libnccl-net.so), using internal implementation\n"
        + MLX
        + f"{A}Channel 00 : 1[1000] -> 0[1000] [receive] via NET/IB/0/GDRDMA\n"
        + TWO
        + DONE,
    ),
    (
        "read direction before Ampere",
        MLX
        + f"{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n{A}Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0\n"
        + TWO
        + DONE,
    ),
    (
        "Omni-Path has no GPUDirect",
        MLX.replace("mlx5_0", "hfi1_0")
        + f"{A}NET/IB : GPU Direct RDMA Disabled for HCA 0 'hfi1_0' (no module)\n{A}Channel 00 : 1[1000] -> 0[1000] [receive] via NET/IB/0\n"
        + TWO
        + DONE,
    ),
    (
        "GB10 has no GPUDirect",
        f"{A}NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n{A}Using network IB\n{A}NET/IB : GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'\n{A}NET/IB : GPU Direct RDMA Disabled for HCA 1 'roceP2p1s0f0'\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
        + TWO
        + DONE,
    ),
    (
        "other functions cannot be opened",
        WA
        + "misc/ibvwrap.cc:93 NCCL WARN Call to ibv_open_device failed\n"
        + WA
        + "transport/net_ib.cc:169 NCCL WARN NET/IB : Unable to open device mlx5_17\n"
        + MLX
        + f"{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
        + TWO
        + DONE,
    ),
    (
        "proxy threads end",
        f"{A}[Service thread] Connection closed by localRank 3\n"
        + ONE
        + DONE
        + f"{A}comm 0x5500 rank 0 nranks 2 cudaDev 0 busId 1000 - Destroy COMPLETE",
    ),
    (
        "ranks of a test that is over leave one by one",
        ONE
        + DONE
        + "# Avg bus bandwidth    : 187.5\n"
        + WA
        + "misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node02<4000>",
    ),
    ("retried, then connected", f"{A}Call to connect returned Connection refused, retrying\n" + ONE + DONE),
    (
        "EFA between nodes",
        f"{A}NET/OFI Initializing aws-ofi-nccl 1.13.0\n{A}NET/OFI Selected provider is efa, fabric is efa (found 4 nics)\n{A}NET/OFI Setting NCCL_TOPO_FILE environment variable to /opt/x.xml\n{A}Using network Libfabric\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/Libfabric/0/GDRDMA\n"
        + TWO
        + DONE,
    ),
    (
        "small EFA instances have no GPUDirect",
        f"{A}NET/OFI Selected Provider is efa\n{A}Using network AWS Libfabric\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0\n"
        + TWO
        + DONE,
    ),
    (
        "GPU without CPUs of its own",
        f"{A}ncclTopoGetCpuAffinity: Affinity for GPU 0 is empty, ignoring. (GPU affinity =  ; CPU affinity = 0).\n"
        + ONE
        + DONE,
    ),
    (
        "GPUs without peer-to-peer",
        f"{A}P2P is disabled between connected GPUs 1 and 0. You can repress this message with NCCL_IGNORE_DISABLED_P2P=1.\n{A}Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\n"
        + ONE
        + DONE,
    ),
    ("no NVLS", f"{A}NVLS multicast support is not available on dev 0\n" + ONE + DONE),
    (
        "container without NUMA calls",
        f"{A}cuMem host allocations do not appear to be working; falling back to a /dev/shm/ based implementation. This could be due to the container runtime disabling NUMA support.\n"
        + ONE
        + DONE,
    ),
    (
        "far NICs refuse by distance",
        MLX
        + f"{A}GPU Direct RDMA Disabled for GPU 0 / HCA 3 (distance 8 > 4)\n{A}GPU Direct RDMA Enabled for GPU 0 / HCA 0 (distance 4 <= 4), read 1 mode Default\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA\n"
        + TWO
        + DONE,
    ),
    ("port becomes active", f"{A}NET/IB : mlx5_0:1 Got non-fatal async event: port active(9)\n" + MLX + TWO + DONE),
    (
        "GCP",
        f"{A}NET/gIB : Initializing\n{A}Using network gIB\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/gIB/0/GDRDMA\n"
        + TWO
        + DONE,
    ),
]


def first(text: str) -> str | None:
    """The cause of the first fail."""
    fails = [f for f in diagnose(parse_text(text)) if f.status is Status.FAIL]
    return fails[0].cause if fails else None


@pytest.mark.parametrize(("name", "cause", "text"), FIRST, ids=[row[0] for row in FIRST])
def test_the_likeliest_cause(name: str, cause: str, text: str) -> None:
    assert first(text) == cause


@pytest.mark.parametrize(("name", "text"), SILENT, ids=[row[0] for row in SILENT])
def test_what_is_benign_stays_silent(name: str, text: str) -> None:
    findings = diagnose(parse_text(text))
    assert [f.status for f in findings] == [Status.PASS], findings


def shown(text: str) -> list[str]:
    return [line for finding in diagnose(parse_text(text)) for line in finding.evidence["lines"]]


@pytest.mark.parametrize("text", [row[-1] for row in FIRST], ids=[row[0] for row in FIRST])
def test_a_message_of_two_kinds_is_shown_once(text: str) -> None:
    for finding in diagnose(parse_text(text)):
        places = [line.split(": ")[0] for line in finding.evidence["lines"]]
        assert len(places) == len(set(places))


def test_two_messages_on_one_line_are_both_shown() -> None:
    """Of two writers, one overtook the other's newline."""
    extend = "Error: failed to extend /dev/shm/nccl-aB3dEf to 9637892 bytes, error: No space left on device (28)"
    attach = "Error while attaching to shared memory segment /dev/shm/nccl-x (size 9637888)"
    glued = f"{WA}misc/shmutils.cc:38 NCCL WARN {extend}node02:200:230 [0] misc/shmutils.cc:81 NCCL WARN {attach}\n"
    assert sorted(shown(glued)) == [f"-:1: {attach}", f"-:1: {extend}"]


def test_how_often_a_message_of_two_kinds_came_is_kept() -> None:
    line = f"{WA}misc/shmutils.cc:38 NCCL WARN Error: failed to extend /dev/shm/nccl-a to 9637892 bytes, error: No space left on device\n"
    (one,) = shown(line * 3)
    assert one.endswith(" (and 2 more like it)")


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("mpirun noticed that process rank 3 with PID 1 on node node01 exited on signal 6 (Aborted).", "rank_died"),
        ("[ 1.0] DMAR: [DMA Read NO_PASID] Request device [3b:00.0] fault addr 0xfe", "acs_iommu"),
        ("[ 9.0] mlx5_core 0000:3b:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0 address=0x0]", "acs_iommu"),
    ],
)
def test_a_lone_line_of_another_program_after_a_job_that_came_up(line: str, cause: str) -> None:
    findings = diagnose(parse_text(ONE + DONE + "step 1 loss 2.0\n" * 100 + line))
    assert [(f.status, f.cause) for f in findings] == [(Status.FAIL, cause)]


def test_a_job_that_somebody_ended_did_not_fail() -> None:
    text = "mpirun noticed that process rank 3 with PID 1 on node node01 exited on signal 15 (Terminated)."
    (finding,) = diagnose(parse_text(ONE + DONE + text))
    assert finding.status is Status.PASS


def test_of_many_kinds_the_earliest_are_shown() -> None:
    """Six lines are shown; the first that failed must be among them."""
    lines = [
        "[ 9.0] NVRM: Xid (PCI:0000:1b:00): 31, pid=1, name=python",
        f"{WA}enqueue.cc:1402 NCCL WARN Cuda failure 'an illegal memory access was encountered'",
        f"{WA}transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.9<4000> with status=9 opcode=0 len=0 vendor err 136",
        "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer",
        f"{WA}proxy.cc:1500 NCCL WARN [Service thread] Accept failed Resource temporarily unavailable",
        "srun: error: node02: task 3: Exited with exit code 1",
        "Root Cause (first observed failure):",
    ]
    (finding,) = (f for f in diagnose(parse_text("\n".join(lines))) if f.cause == "rank_died")
    assert [int(one.split(":")[1]) for one in finding.evidence["lines"]] == [1, 2, 3, 4, 5, 6]


def test_a_line_of_another_lines_shape_breaks_no_rule() -> None:
    """Shapes leave out hexadecimal letters: "Xi" is read as "Xid" was, and its pattern catches nothing."""
    lines = ("NVRM: Xid (PCI:0): 79, x", "NVRM: Xi (PCI:0): 79, x")
    facts = parse_text("".join(f"n{i}:1:1 [0] NCCL WARN {line}\n" for i, line in enumerate(lines)))
    assert [e.data for e in facts.of("xid")] == [{"xid": "79"}, {}]
    assert diagnose(facts)[0].cause == "inventory"

"""Live faults as data: what is changed on the machine of tests.support.namespaces.dgx, and what must be found (row.py)."""

from __future__ import annotations

import re
from typing import Final

from tests.lab.row import (
    BACKEND,
    BUFFERS,
    BY_SOCKETS,
    CPU,
    ENVIRONMENT,
    GDR,
    GIDS,
    HARDWARE,
    HCA,
    IFNAME,
    NVML_GONE,
    PLUGIN,
    PORTS,
    RDMA,
    REACH,
    SHM,
    UNPRIVILEGED,
    VERSION,
    WAY,
    Row,
    by_environment,
    by_sockets,
)
from tests.support.machines.sysfs import Extra
from tests.support.namespaces.dgx import Scene

ALL_ON_0 = dict.fromkeys(range(8), 0)  # as dgx.HERE has it
EVERY = range(8)
SITE = "hardware.site"
RANGE = "sysctl -q -w net.ipv4.ip_local_port_range='{0} {1}'"
# A real libnccl takes one port a listener: bind them until EADDRINUSE, as many communicators would.
EXHAUST = """sysctl -q -w net.ipv4.ip_local_port_range='40000 40099'
python3 -c '
import os, socket, sys, time
keep = []
try:
    while True:
        one = socket.socket(); one.bind(("", 0)); one.listen(1); keep.append(one)
except OSError:
    pass
for one in keep[:10]: one.close()
os.close(1); os.close(2)
time.sleep(90)' &
HOLDER=$!
while [ "$(ss -Hltn | wc -l)" -lt 90 ]; do sleep 0.05; done
"""
BUILT_AGAINST = """mkdir torch-2.9.1+cu129.dist-info
echo 'Requires-Dist: nvidia-nccl-cu12==2.27.5' > torch-2.9.1+cu129.dist-info/METADATA"""
NUMBERS = "for n in 0 1 2 3 4 5 6 7; do {0}; done"
LAST_HCA = "$(readlink -f bus/pci/devices/0000:dc:00.0)/uevent"
NO_DEVICE = "rm class/infiniband/mlx5_7 class/infiniband_verbs/uverbs7"
WITHOUT = {
    "hardware.rails": "a rail less",
    GDR: "the pair is another",
    CPU: "the HCA is not known",
}

ROWS: Final = (
    # RDMA devices
    Row("no uverbs nodes in /dev", Scene(dev="rm -r infiniband"), {RDMA: "fail dev_infiniband_missing"}, BY_SOCKETS),
    Row(
        "ib_uverbs not loaded",
        Scene(sys="rm -r class/infiniband_verbs; find devices -name infiniband_verbs | xargs rm -r"),
        {RDMA: "fail dev_infiniband_missing"},
        BY_SOCKETS,
    ),
    Row(
        "uverbs nodes of mode 0600 and another user",
        Scene(dev="chmod 600 infiniband/*; chown 1000:1000 infiniband/*", wrap=UNPRIVILEGED),
        {RDMA: "fail dev_infiniband_missing"},
        BY_SOCKETS,
        Scene(wrap=UNPRIVILEGED),
    ),
    Row(
        "/dev/infiniband mounted nodev",
        Scene(setup="mount --bind /dev/infiniband /dev/infiniband; mount -o remount,bind,nodev /dev/infiniband"),
        {RDMA: "fail dev_infiniband_missing"},
        BY_SOCKETS,
    ),
    Row(
        "uverbs nodes from before a driver reload",
        Scene(sys="for f in $(find devices -path '*infiniband_verbs/uverbs*/dev'); do echo 1:99 > $f; done"),
        {RDMA: "fail dev_infiniband_missing"},
        BY_SOCKETS,
    ),
    Row(
        "uverbs nodes without a driver (ENXIO)",
        Scene(
            sys="for f in $(find devices -path '*infiniband_verbs/uverbs*/dev'); do echo 231:192 > $f; done",
            dev="rm infiniband/*; " + NUMBERS.format("mknod -m 666 infiniband/uverbs$n c 231 192"),
        ),
        {RDMA: "fail dev_infiniband_missing"},
        BY_SOCKETS,
    ),
    Row("all ports down", Scene(tree={"ports_down": EVERY}), {RDMA: "fail link_degraded"}, BY_SOCKETS),
    Row(
        "one port of eight down",
        Scene(tree={"ports_down": [3]}),
        {RDMA: "fail link_degraded"},
        {"hardware.rails": "it differs"},
    ),
    Row("one uverbs node missing", Scene(dev="rm infiniband/uverbs5"), {RDMA: "fail dev_infiniband_missing"}),
    Row(
        "RoCE whose interfaces are in another namespace",
        Scene(tree={"roce": True, "gids": 4}),
        {RDMA: "fail roce_gid"},
        BY_SOCKETS,
    ),
    Row(
        "no provider library",
        Scene(ibverbs="count=0"),
        {RDMA: "fail dev_infiniband_missing"},
        {**BY_SOCKETS, GDR: "nobody asked for DMA-BUF"},
    ),
    Row(
        "a provider that crashes",
        Scene(ibverbs="crash.list=1"),
        {RDMA: "unknown"},
        {**BY_SOCKETS, GDR: "nobody asked for DMA-BUF", HCA: "nobody asked for the node's devices"},
    ),
    Row(
        "a provider that hangs",
        Scene(ibverbs="hang.list=1"),
        {RDMA: "unknown"},
        {**BY_SOCKETS, GDR: "nobody asked for DMA-BUF", HCA: "nobody asked for the node's devices"},
    ),
    Row(
        "64 KiB of locked memory",
        Scene(wrap=f"prlimit --memlock=65536:65536 {UNPRIVILEGED}"),
        {RDMA: "fail memlock"},
    ),
    Row(
        "RDMA drivers not loaded",
        Scene(tree={"infiniband": False}),
        {RDMA: "fail dev_infiniband_missing", HCA: "unknown"},
        {**BY_SOCKETS, **dict.fromkeys((GDR, GIDS, WAY, "hardware.rails"), "no RDMA device to judge")},
    ),
    Row(
        "one HCA without an RDMA device",
        Scene(sys=NO_DEVICE, ibverbs="count=7"),
        {HCA: "fail inventory", RDMA: "fail inventory"},
        WITHOUT,
    ),
    Row(
        "one HCA without a driver",
        Scene(sys=f"{NO_DEVICE}; sed -i /DRIVER/d {LAST_HCA}", ibverbs="count=7"),
        {HCA: "fail inventory", RDMA: "fail inventory"},
        WITHOUT,
    ),
    Row(
        "one HCA on vfio-pci",
        Scene(sys=f"{NO_DEVICE}; sed -i s/mlx5_core/vfio-pci/ {LAST_HCA}", ibverbs="count=7"),
        {HCA: "unknown: a virtual machine may have it", RDMA: "fail inventory"},
        WITHOUT,
    ),
    Row(
        "one HCA in another network namespace",
        Scene(sys=f"{NO_DEVICE}; echo N > module/ib_core/parameters/netns_mode", ibverbs="count=7"),
        {HCA: "unknown: another network namespace may have it", RDMA: "fail inventory"},
        WITHOUT,
    ),
    Row(
        "libibverbs shows an HCA that sysfs lacks",
        Scene(sys=NO_DEVICE),
        {HCA: "fail inventory", RDMA: "fail inventory"},
        WITHOUT,
    ),
    Row(
        "HCAs absent from PCI",
        Scene(tree={"hcas": 0}),
        {RDMA: "fail dev_infiniband_missing"},
        {HCA: "none to compare", **BY_SOCKETS, GDR: "no device", "hardware.rails": "none is there"},
    ),
    by_environment(
        "NCCL_IB_HCA selects nothing", {RDMA: "fail env_misuse"}, {**BY_SOCKETS, GDR: "no device"}, NCCL_IB_HCA="=mlx5_9"
    ),
    # GPUs
    Row("NVML lacks a GPU", Scene(nvml="count=7"), {HARDWARE: "fail inventory"}, NVML_GONE),
    Row(
        "NVML and libcuda lack a GPU",
        Scene(nvml="count=7", cuda="count=7"),
        {HARDWARE: "fail inventory", SITE: "fail inventory"},
        {GDR: "the GPU has no pair", CPU: "nothing is said of the GPU", RDMA: "a spare HCA", PORTS: "seven ranks"},
    ),
    Row(
        "a GPU fell off the bus",
        Scene(tree={"gpus": 7}, nvml="count=7", cuda="count=7"),
        {SITE: "fail inventory"},
        {
            "hardware.rails": "a rail without its GPU",
            GDR: "the GPU has no pair",
            CPU: "nothing is said of the GPU",
            RDMA: "a spare HCA",
            PORTS: "seven ranks",
        },
    ),
    Row("NVML hangs", Scene(nvml="hang.init=1"), {HARDWARE: "unknown"}, NVML_GONE),
    Row("NVML crashes", Scene(nvml="crash.init=1"), {HARDWARE: "unknown"}, NVML_GONE),
    Row(
        "driver and library versions differ",
        Scene(nvml="error.init=18"),
        {HARDWARE: "unknown"},
        NVML_GONE,
    ),
    Row(
        "an accelerator of another vendor",
        Scene(tree={"extra": [Extra(0xF0, 0x1002, 0x74A1, 0x120000, "amdgpu")]}),
        {HARDWARE: "unknown"},
    ),
    # CPUs
    Row(
        "a GPU on the other node",
        Scene(tree={"gpu_numa": {**ALL_ON_0, 3: 1}}),
        {CPU: "fail numa_affinity"},
        {GDR: "farther", "hardware.rails": "its HCA is not where its root port is"},
    ),
    Row("one CPU for all", Scene(wrap="taskset -c 0"), {CPU: "fail numa_affinity"}),
    Row("firmware without NUMA nodes", Scene(tree={"gpu_numa": dict.fromkeys(EVERY, -1)}), {}, {CPU: "memory"}),
    # GPUDirect
    Row("no nvidia_peermem, and DMA-BUF serves", Scene(tree={"peermem": False})),
    Row("neither nvidia_peermem nor DMA-BUF", Scene(tree={"peermem": False}, ibverbs="dmabuf=95"), {GDR: "fail gdr_disabled"}),
    # Whether the module fits the RDMA core shows only when memory is registered.
    Row(
        "no DMA-BUF, and nvidia_peermem is loaded", Scene(ibverbs="dmabuf=95"), {GDR: "unknown: a peer-memory module is loaded"}
    ),
    Row(
        "NCCL_DMABUF_ENABLE=0 without nvidia_peermem",
        Scene(tree={"peermem": False}, env={"NCCL_DMABUF_ENABLE": "0"}),
        {GDR: "fail gdr_disabled"},
        {ENVIRONMENT: "it judges the variable too"},
    ),
    by_environment("NCCL_NET_GDR_LEVEL=LOC", {GDR: "fail"}, NCCL_NET_GDR_LEVEL="LOC"),
    # Interfaces
    by_environment("NCCL_SOCKET_IFNAME of no interface", {IFNAME: "fail socket_ifname"}, NCCL_SOCKET_IFNAME="nosuch0"),
    by_environment("NCCL_SOCKET_IFNAME=lo", {IFNAME: "fail socket_ifname"}, NCCL_SOCKET_IFNAME="lo"),
    by_environment("NCCL_SOCKET_IFNAME=^docker lets lo in", {IFNAME: "fail socket_ifname"}, NCCL_SOCKET_IFNAME="^docker"),
    by_environment("NCCL_SOCKET_IFNAME==eth", {IFNAME: "fail socket_ifname"}, NCCL_SOCKET_IFNAME="=eth"),
    by_environment("NCCL_SOCKET_IFNAME=eth0", {}, NCCL_SOCKET_IFNAME="eth0"),
    by_environment("GLOO_SOCKET_IFNAME of no interface", {IFNAME: "fail socket_ifname"}, GLOO_SOCKET_IFNAME="nosuch0"),
    by_environment("GLOO_SOCKET_IFNAME=eth, which is no prefix", {IFNAME: "fail socket_ifname"}, GLOO_SOCKET_IFNAME="eth"),
    by_environment(
        "MASTER_ADDR=127.0.0.1 on two nodes",
        {IFNAME: "fail socket_ifname"},
        {PORTS: "MASTER_PORT"},
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    ),
    Row("the host's name is the loopback", Scene(hosts="127.0.0.1 localhost gpu7\n"), {IFNAME: "unknown"}),
    Row("the host's name is 127.0.1.1", Scene(hosts="127.0.0.1 localhost\n127.0.1.1 gpu7\n"), {IFNAME: "unknown"}),
    Row("the host's name does not resolve", Scene(hosts="127.0.0.1 localhost\n"), {IFNAME: "unknown"}),
    Row("the interface is down", Scene(setup="ip link set eth0 down"), {IFNAME: "fail socket_ifname"}, {PORTS: "no route"}),
    Row(
        "the interface has no carrier",
        Scene(setup="ip link set low0p down"),
        {IFNAME: "fail socket_ifname"},
        {PORTS: "no route", REACH: "no neighbours where there is no carrier"},
    ),
    Row(
        "a bridge of Docker comes first",
        Scene(
            setup="ip link add br-1a2b type bridge; ip addr add 172.18.0.1/16 dev br-1a2b; ip link set br-1a2b up;"
            "ip link add p0 type veth peer name p1; ip link set p0 master br-1a2b up; ip link set p1 up",
            env={"NCCL_SOCKET_IFNAME": "br-"},
        ),
        {IFNAME: "fail socket_ifname"},
        {ENVIRONMENT: "it judges the variable too"},
    ),
    Row(
        "docker0 beside it",
        Scene(setup="ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up"),
    ),
    Row(
        "no route to MASTER_ADDR",
        Scene(setup="ip route add unreachable 192.0.2.0/24", env={"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "29500"}),
        {IFNAME: "fail socket_ifname"},
        {PORTS: "MASTER_PORT"},
    ),
    # Ports
    Row("a range of 3 ports", Scene(setup=RANGE.format(40000, 40002)), {PORTS: "fail bootstrap_ports"}),
    Row("a range of 24 ports", Scene(setup=RANGE.format(40000, 40023)), {PORTS: "fail bootstrap_ports"}),
    Row("a range of 2000 ports", Scene(setup=RANGE.format(40000, 41999)), {}),
    Row(
        "all but ten ports reserved",
        Scene(setup="sysctl -q -w net.ipv4.ip_local_reserved_ports=32778-60999"),
        {PORTS: "fail bootstrap_ports"},
    ),
    Row("listeners until EADDRINUSE", Scene(setup=EXHAUST), {PORTS: "fail bootstrap_ports"}),
    Row("a range from 1024 on", Scene(setup=RANGE.format(1024, 65535)), {PORTS: "fail"}),
    Row(
        "MASTER_PORT inside the range",
        Scene(env={"MASTER_ADDR": "10.0.0.7", "MASTER_PORT": "40000"}),
        {PORTS: "fail"},
        {IFNAME: "MASTER_ADDR"},
    ),
    # Buffers
    by_sockets("16 KiB send buffers", "sysctl -q -w net.ipv4.tcp_wmem='4096 8192 16384'", {BUFFERS: "fail tcp_tuning"}),
    by_sockets("16 KiB receive buffers", "sysctl -q -w net.ipv4.tcp_rmem='4096 8192 16384'", {BUFFERS: "fail tcp_tuning"}),
    by_sockets("no window scaling", "sysctl -q -w net.ipv4.tcp_window_scaling=0", {BUFFERS: "fail tcp_tuning"}),
    by_sockets("receive buffers that do not grow", "sysctl -q -w net.ipv4.tcp_moderate_rcvbuf=0", {BUFFERS: "fail tcp_tuning"}),
    by_sockets(
        "a congestion control that the kernel lacks",
        "echo nosuch > /dev/shm/cc; mount --bind /dev/shm/cc /proc/sys/net/ipv4/tcp_congestion_control",
        {BUFFERS: "fail tcp_tuning"},
    ),
    by_sockets(
        "another congestion control than sysctl.d says",
        "mount -t tmpfs none /etc/sysctl.d; echo net.ipv4.tcp_congestion_control=reno > /etc/sysctl.d/90-lab.conf",
        {BUFFERS: "fail tcp_tuning"},
    ),
    by_sockets("timestamps off", "sysctl -q -w net.ipv4.tcp_timestamps=0", {}),
    # Libraries
    Row(
        "another libnccl by LD_PRELOAD",
        Scene(
            env={"LD_PRELOAD": "OLD_NCCL"},
            site=BUILT_AGAINST,
        ),
        {VERSION: "fail version_mismatch"},
        {GDR: "by the rules of the other version", IFNAME: "by the rules of the other version", PORTS: "the same"},
        Scene(site=BUILT_AGAINST),
    ),
    Row(
        "another libnccl in LD_LIBRARY_PATH, which DT_RPATH precedes",
        Scene(env={"LD_LIBRARY_PATH": "LIBRARIES:OLD_FOLDER"}),
    ),
    Row(
        "an older libnccl in the place of torch's own",
        Scene(site=f"{BUILT_AGAINST}; ln -sf OLD_NCCL nvidia/nccl/lib/libnccl.so.2"),
        {VERSION: "fail version_mismatch"},
        {GDR: "by the rules of the other version", IFNAME: "by the rules of the other version", PORTS: "the same"},
        Scene(site=BUILT_AGAINST),
    ),
    Row(
        "a torch built against an NCCL that is newer",
        Scene(site=re.sub(r"==[\d.]+", "==2.99.1", BUILT_AGAINST)),
        {VERSION: "fail version_mismatch"},
    ),
    Row(
        "a libnccl that is no library",
        Scene(site="rm nvidia/nccl/lib/libnccl.so.2; head -c 4096 /dev/zero > nvidia/nccl/lib/libnccl.so.2"),
        {VERSION: "fail version_mismatch"},
        {GDR: "no version", IFNAME: "no library to ask", PORTS: "no version", SHM: "no version"},
    ),
    Row(
        "no libnccl for torch",
        Scene(site="rm nvidia/nccl/lib/libnccl.so.2"),
        {VERSION: "unknown: find no libnccl"},
        {SHM: "no version", GDR: "no version", IFNAME: "no library to ask", PORTS: "no version"},
    ),
    Row(
        "a torch for CPUs",
        Scene(site='sed -i "s/^cuda.*/cuda = None/; s/cu129/cpu/" torch/version.py; rm torch/lib/libtorch_cuda.so'),
        {BACKEND: "fail gloo_backend"},
        {
            VERSION: "no NCCL",
            PLUGIN: "no NCCL",
            SHM: "no NCCL",
            GDR: "no version",
            IFNAME: "no library to ask",
            PORTS: "no version",
        },
    ),
    Row(
        "no torch",
        Scene(site="rm -r torch"),
        {VERSION: "unknown"},
        {BACKEND: "no torch", PLUGIN: "no torch", SHM: "no torch", GDR: "no version", IFNAME: "-", PORTS: "-"},
    ),
    # Shared memory
    *(
        Row(
            f"{what} in /dev/shm",
            Scene(setup=f"mount -t tmpfs -o size={size} shm /dev/shm", env={"NCCL_RUNTIME_CONNECT": "0"}),
            {SHM: "fail shm_disabled_or_small"},
        )
        for what, size in (("4 KiB", "4k"), ("64 MiB", "64m"), ("a little less than eight ranks take", "251m"))
    ),
    Row("another file system on /dev/shm", Scene(setup="mount -t ramfs ram /dev/shm"), {SHM: "unknown: no tmpfs"}),
    # Variables
    by_environment("a name that nothing reads", {ENVIRONMENT: "fail env_misuse"}, NCCL_SOKET_IFNAME="eth0"),
    by_environment("NCCL_DEBUG=TRACE left on", {ENVIRONMENT: "fail"}, NCCL_DEBUG="TRACE"),
    by_environment("a number that is none", {ENVIRONMENT: "fail env_misuse"}, NCCL_BUFFSIZE="4M"),
    by_environment("NCCL_P2P_DISABLE=1 left on", {ENVIRONMENT: "fail"}, NCCL_P2P_DISABLE="1"),
    by_environment(
        "NCCL_IB_DISABLE=1 beside eight HCAs", {ENVIRONMENT: "fail"}, {**BY_SOCKETS, RDMA: "-", GDR: "-"}, NCCL_IB_DISABLE="1"
    ),
    Row(
        "a misspelt name in nccl.conf",
        Scene(setup="echo NCCL_SOKET_IFNAME=eth0 > /dev/shm/nccl.conf", env={"NCCL_CONF_FILE": "/dev/shm/nccl.conf"}),
        {ENVIRONMENT: "fail env_misuse"},
    ),
)

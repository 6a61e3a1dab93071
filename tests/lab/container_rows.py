"""Faults of containers as data: what `podman run` gives or withholds, and what must be found inside (tests/lab/row.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from tests.lab.row import (
    BACKEND,
    BANDWIDTH,
    BUFFERS,
    BY_SOCKETS,
    CPU,
    ENVIRONMENT,
    GDR,
    HARDWARE,
    IFNAME,
    LIMITS,
    NONE,
    OF_HARDWARE,
    PLUGIN,
    PORTS,
    RDMA,
    RUN,
    SHM,
    SYSTEM,
    VERSION,
    Row,
)
from tests.support.clusters.containers import Box

BOX: Final = Box()
# Without fakes, and with the all-reduce.  The floor is far below what two CPUs reach (0.7 to 1 GB/s), also when they are busy.
BARE: Final = Box(bare=True, options=(), config="{expected: {busbw_floor: {64MiB: 0.02}}}")
# With a fifth of one it is 0.14 GB/s.
QUARTER: Final = replace(BARE, config="{expected: {busbw_floor: {64MiB: 0.25}}}")
LOW: Final = {BANDWIDTH: "fail low_bandwidth"}
SMALL: Final = {SHM: "fail shm_disabled_or_small"}
NO_DEVICE: Final = {RDMA: "fail dev_infiniband_missing"}
VOLUME: Final = "-v=MADE/dev/infiniband:/dev/infiniband"
# `podman run --ulimit` replaces all that containers.conf says.
ULIMITS: Final = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=4096:4096")


def box(
    fault: str,
    *more: str,
    expected: dict[str, str] | None = None,
    also: dict[str, str] | None = None,
    needs: tuple[str, ...] = (),
    base: Box = BOX,
    **change: Any,
) -> Row:
    return Row(fault, replace(base, more=more, **change), expected or {}, also or {}, base, needs)


DEVICES: Final = (
    box("no RDMA device given", expected=NO_DEVICE, also=BY_SOCKETS, without=("--device",)),
    box(
        "uverbs nodes as a volume, which the device cgroup denies (EPERM)",
        VOLUME,
        expected=NO_DEVICE,
        also=BY_SOCKETS,
        without=("--device",),
    ),
    box(
        "uverbs nodes made by hand inside (EPERM)",
        expected=NO_DEVICE,
        also=BY_SOCKETS,
        without=("--device",),
        inside="mkdir /dev/infiniband; for n in 0 1 2 3 4 5 6 7; do mknod -m 666 /dev/infiniband/uverbs$n c 10 229; done",
    ),
    box(
        "devices for reading only",
        *(f"--device=MADE/dev/infiniband/uverbs{n}:/dev/infiniband/uverbs{n}:r" for n in range(8)),
        expected=NO_DEVICE,
        also=BY_SOCKETS,
        without=("--device",),
    ),
    box(
        "uverbs nodes on a volume without devices",
        f"{VOLUME}:nodev",
        "--device-cgroup-rule=c 10:229 rwm",
        expected=NO_DEVICE,
        also=BY_SOCKETS,
        without=("--device",),
    ),
    box("a volume and a cgroup rule instead of devices", VOLUME, "--device-cgroup-rule=c 10:229 rwm", without=("--device",)),
    box("seven devices of eight", expected=NO_DEVICE, without=("--device=MADE/dev/infiniband/uverbs3",)),
    # Root without CAP_DAC_OVERRIDE is a user like others.
    box(
        "devices of another user and group (EACCES)",
        "--cap-drop=ALL",
        expected=NO_DEVICE,
        also=BY_SOCKETS,
        dev="chmod 660 infiniband/*; chown 1000:1000 infiniband/*",
    ),
    box("no libibverbs in the image", expected=NO_DEVICE, also={**BY_SOCKETS, GDR: "-"}, ibverbs="count=0"),
)

LIMITED: Final = (
    box(
        "64 KiB of locked memory",
        *ULIMITS,
        "--ulimit=memlock=65536:65536",
        expected={RDMA: "fail memlock"},
        without=("--cap-add",),
    ),
    box("locked memory by default, without CAP_IPC_LOCK", expected={RDMA: "fail memlock"}, without=("--cap-add",)),
    box(
        "unlimited locked memory without CAP_IPC_LOCK",
        *ULIMITS,
        "--ulimit=memlock=-1:-1",
        without=("--cap-add",),
        needs=("unlimited memlock",),
    ),
    box("every capability dropped", "--cap-drop=ALL", expected={RDMA: "fail memlock"}, without=("--cap-add",)),
    box("every capability but CAP_IPC_LOCK dropped", "--cap-drop=ALL"),
    # Of a nested namespace, as rootless containers have: CAP_IPC_LOCK there lifts no limit of the machine's.
    box(
        "root of a user namespace inside",
        "--security-opt=seccomp=unconfined",
        expected={RDMA: "fail memlock"},
        wrap="unshare --user --map-root-user",
    ),
    box(
        "root of a user namespace by the runtime",
        "--uidmap=0:100000:65536",
        "--gidmap=0:100000:65536",
        expected={RDMA: "fail memlock"},
        needs=("mapped root file system",),
    ),
    box("a root file system for reading only", "--read-only", "--read-only-tmpfs=false"),
    box("64 KiB in /dev/shm", "--shm-size=64k", "--env=NCCL_RUNTIME_CONNECT=0", expected=SMALL),
    box("what podman gives of itself in /dev/shm", "--shm-size=64m", "--env=NCCL_RUNTIME_CONNECT=0", expected=SMALL),
    box(
        "one CPU in the cpuset",
        "--cpuset-cpus=0",
        expected={CPU: "fail numa_affinity", LIMITS: "fail process_limits"},
        needs=("cgroup cpuset",),
    ),
    box(
        "/sys/bus/pci masked",
        "--security-opt=mask=/sys/bus/pci",
        expected={HARDWARE: "unknown"},
        also=dict.fromkeys(
            (RDMA, GDR, CPU, BACKEND, VERSION, PLUGIN, SHM, PORTS, IFNAME, BUFFERS, *OF_HARDWARE), "PCI was not read"
        ),
    ),
    box(
        "/sys/class masked",
        "--security-opt=mask=/sys/class",
        expected={RDMA: "unknown", HARDWARE: "unknown"},
        also=dict.fromkeys((GDR, CPU, IFNAME, BUFFERS, PORTS, VERSION, PLUGIN, *OF_HARDWARE), "RDMA devices were not read"),
    ),
    box("1000 processes at most", "--pids-limit=1000"),
    box(
        "three processes at most",
        "--pids-limit=3",
        also=dict.fromkeys(
            (RDMA, GDR, CPU, BACKEND, VERSION, PLUGIN, SHM, PORTS, IFNAME, BUFFERS, LIMITS, *OF_HARDWARE),
            "no helper can be started",
        ),
        expected={HARDWARE: "unknown"},
        needs=("cgroup pids",),
    ),
)

NETWORK: Final = (
    box(
        "a sysctl that narrows the range of ports",
        "--sysctl=net.ipv4.ip_local_port_range=40000 40010",
        expected={PORTS: "fail bootstrap_ports"},
    ),
    box("the host's name is the loopback", "--add-host=gpu7:127.0.0.1", expected={IFNAME: "fail"}, without=("--add-host",)),
    box(
        "a variable of another machine",
        expected={IFNAME: "fail socket_ifname"},
        also={ENVIRONMENT: "it judges the variable too"},
        env={"NCCL_SOCKET_IFNAME": "ib0"},
    ),
    box("no network", expected={IFNAME: "fail"}, also={PORTS: "no route"}, network="none"),
    box(
        "no library of the driver in the image",
        expected={HARDWARE: "unknown", BACKEND: "unknown: no driver library shows any"},
        also=dict.fromkeys(
            (GDR, CPU, RDMA, VERSION, PLUGIN, SHM, PORTS, LIMITS, *OF_HARDWARE), "neither NVML nor libcuda is there"
        ),
        env={"LD_LIBRARY_PATH": "IBVERBS"},
    ),
    box(
        "two GPUs of the eight",
        expected={HARDWARE: "fail inventory"},
        nvml="count=2",
        cuda="count=2",
        also=dict.fromkeys((GDR, CPU, RDMA, PORTS), "two GPUs are judged"),
    ),
)

RUNS: Final = (
    box("64 KiB in /dev/shm, in a run", "--shm-size=64k", base=BARE),
    box(
        "a root file system for reading only, in a run",
        "--read-only",
        "--read-only-tmpfs=false",
        base=BARE,
        also={SYSTEM: "no folder takes a temporary file, and a job that makes none can do without"},
    ),
    box("every capability dropped, in a run", "--cap-drop=ALL", base=BARE, without=("--cap-add",)),
    box("no new privileges, in a run", "--security-opt=no-new-privileges", base=BARE),
    box("no network, in a run", base=BARE, network="none", also=dict.fromkeys((BUFFERS, PORTS), "no interface but lo")),
    box("a fifth of one CPU's time", "--cpus=0.2", base=QUARTER, expected=LOW, needs=("cgroup cpu",)),
    box(
        "memory of which the ranks are killed",
        "--memory=320m",
        base=BARE,
        expected={RUN: "fail rank_died"},
        also=NONE,
        needs=("cgroup memory",),
    ),
    box(
        "memory in which torch cannot be imported",
        "--memory=100m",
        base=BARE,
        expected={RUN: "unknown"},
        also=NONE,
        needs=("cgroup memory",),
    ),
    # netdoctor itself gets no thread for the ranks' keeper; a little more, and a rank gets none.
    box(
        "six processes at most, in a run",
        "--pids-limit=6",
        base=BARE,
        expected={RUN: "unknown: could not start"},
        also=NONE,
        needs=("cgroup pids",),
    ),
    box(
        "nine processes at most, in a run",
        "--pids-limit=9",
        base=BARE,
        expected={RUN: "fail rank_died"},
        also=NONE,
        needs=("cgroup pids",),
    ),
    box(
        "24 open files",
        "--ulimit=nofile=24:24",
        ULIMITS[1],
        base=BARE,
        expected={RUN: "unknown"},
        # What is asked while the helper programs run finds no descriptor either.
        also=dict.fromkeys(
            (BANDWIDTH, ENVIRONMENT, IFNAME, PORTS, BUFFERS, HARDWARE, RDMA, GDR, VERSION, PLUGIN, SHM, BACKEND, CPU), "-"
        ),
    ),
)

ROWS: Final = (*DEVICES, *LIMITED, *NETWORK, *RUNS)

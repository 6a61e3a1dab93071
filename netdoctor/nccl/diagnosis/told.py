"""What a line of `told_patterns` means: a cause, words for people and a mend; a row for each group of those patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.diagnosis.outcome import good_ends
from netdoctor.nccl.diagnosis.went_on import After, after, before, order
from netdoctor.nccl.log.facts import Event, LogFacts

_NAMED, _MAY = Confidence.STRONG_MINUS, Confidence.LIKELY_MINUS


class Told(NamedTuple):
    """`text`: with {} where the line's own words go."""

    cause: str
    text: str
    fix: Fix | Topic | None = None
    confidence: Confidence = _NAMED
    fault: Fault | None = None


_COMPONENTS = Fix(
    "load the Open MPI, and the libraries that its components need, for which the job was built, on every node",
    ("ompi_info | grep -e pml -e btl -e mtl; ldd $(dirname $(which mpirun))/../lib/openmpi/*.so | grep 'not found'",),
)
_CLOCK = Fix(
    "set the clocks of all nodes by one source", ("timedatectl; chronyc tracking   # on every node; munge -n | unmunge",)
)
_KEY = Fix("give every node the same key of MUNGE, and start munged anew", ("munge -n | ssh <node> unmunge",))
_QUOTA = Fix("wait until others give it back, or ask for less", ("kubectl describe clusterqueue; kubectl get workloads -A",))
_MEMORY = Fix("drain the node and test its memory", ("dmesg -T | grep -i -e mce -e edac; ras-mc-ctl --errors",))
_REBOOT = Fix("drain and reboot the node; its stack says in which driver", ("dmesg -T | grep -i -A30 -e BUG: -e Oops",))
_CABLE = Fix(
    "see that cable and module are seated, of a kind that the adapter takes, and cool",
    ("mlxlink -d <dev> -m -c; ethtool -m <if>",),
)
_CONNTRACK = Fix(
    "make the table larger, or track no connections of the job's network", ("sysctl -w net.netfilter.nf_conntrack_max=<n>",)
)
_NEIGHBOURS = Fix("make the table larger", ("sysctl -w net.ipv4.neigh.default.gc_thresh3=<n>; ip neigh | wc -l",))
_SERVERS = Fix(
    "see why the file system's servers do not answer that node, then start the job again", ("findmnt; dmesg -T | tail -50",)
)
_SCRIPT = Fix("write the script with the line ends of Unix, and #!/bin/bash first", ("sed -i 's/\\r$//' <script>",))
_DRIVER = Fix("take a container of an older CUDA, or install a newer driver", ("nvidia-smi",))
_PORT = Fix("end what holds the port (an earlier start of the program, mostly), or give another one", ("ss -ltnp",))
_RESET = Fix("drain the node, and reset the GPU or reboot", ("nvidia-smi -q; dmesg -T | grep -i -e nvrm -e amdgpu",))

MEANS: Final = {
    # Open MPI
    "mpi_unreachable": Told(
        "firewall_connect",
        "MPI found no way between two of its processes: no network of Open MPI's takes them ({})",
        _COMPONENTS,
    ),
    "mpi_handshake": Told("firewall_connect", "a peer of MPI took the connection and did not answer: {}", Topic.FIREWALL, _MAY),
    "shm_backing": Told("shm_disabled_or_small", "no room for MPI's shared memory ({})", Topic.SHARED_MEMORY),
    "ofi_call": Told("other", "libfabric refused a call of Open MPI's ({})", fault=Fault.LIBRARY),
    "ofi_peer": Told(
        "other", "a process of MPI has no libfabric endpoint, so the others do not reach it ({})", fault=Fault.LIBRARY
    ),
    "mpi_memory": Told("memlock", "memory could not be registered for MPI's network: {}", Topic.MEMLOCK),
    "psm_link": Told("link_degraded", "the Omni-Path network of a node is not up: {}", Topic.LINK),
    "mpi_cuda": Told("other", "a CUDA call of Open MPI's failed for good ({})", fault=Fault.LIBRARY),
    "mpi_component": Told(
        "rank_died", "Open MPI lacks a component that it was told to use: {}", _COMPONENTS, _MAY, Fault.LIBRARY
    ),
    "mpi_framework": Told(
        "rank_died", "Open MPI could open no component of its framework {}", _COMPONENTS, fault=Fault.LIBRARY
    ),
    "hydra_connect": Told("firewall_connect", "a node's proxy of MPI does not reach the launcher ({})", Topic.FIREWALL),
    "no_address": Told("missing_node", "the name {} has no address where the launcher runs"),
    # UCX, EFA
    "ucx_devices": Told(
        "dev_infiniband_missing",
        "UCX finds none of the devices that it was told to use: {}",
        Fix("see what UCX finds", ("ucx_info -d; echo $UCX_NET_DEVICES $UCX_TLS",)),
    ),
    "ucx_shm": Told("shm_disabled_or_small", "UCX gets no shared memory: {}", Topic.SHARED_MEMORY),
    "ucx_open": Told("dev_infiniband_missing", "an RDMA device may not be opened here: {}", Topic.RDMA_DEVICES),
    "efa_memory": Told("memlock", "the EFA provider could not lock memory: {}", Topic.MEMLOCK),
    "efa_peer": Told(
        "firewall_connect",
        "the EFA device knows no way to a peer: {}",
        Fix("let the security group pass all traffic between its members; both nodes in one subnet"),
    ),
    # Slurm
    "slurm_clock": Told(
        "clock", "Slurm refused what another node had signed: its clock is off ({})", _CLOCK, Confidence.STRONG
    ),
    "slurm_trust": Told("missing_node", "Slurm refused what another node had signed: another key ({})", _KEY, _MAY),
    "slurm_unkillable": Told("node_error", "processes of the job could not be killed: they hang in the kernel ({})"),
    "slurm_lost": Told("missing_node", "srun lost its connection to a node of the step: {}"),
    "batch_script": Told("rank_died", "sbatch refused the script: {}", _SCRIPT),
    # frameworks
    "sleeps": Told("node_error", "a rank hangs in the kernel and cannot be killed: {}"),
    "stragglers": Told("straggler", "the training was ended because ranks are slower than the others: {}"),
    "gpu_miscounts": Told("gpu_error", "a GPU computed another result when the same was computed again: {}", _RESET),
    "ray_workers": Told(
        "missing_node", "Ray did not get all workers in time: too few free GPUs, or nodes that do not start them ({})"
    ),
    "horovod_slots": Told("missing_node", "Horovod did not find as many slots as it needs: {}"),
    "horovod_blacklist": Told("rank_died", "workers failed on every host, and Horovod gave up ({})", confidence=_MAY),
    "prefill": Told("rank_died", "the decoding server does not reach the prefill server: {}", confidence=_MAY),
    "mooncake_device": Told(
        "dev_infiniband_missing", "the program is told to use the RDMA device {}, which is not here", Topic.RDMA_DEVICES
    ),
    "bad_alloc": Told("rank_died", "a program got no memory of the host ({})", Topic.KILLED, fault=Fault.HOST_MEMORY),
    "ngc": Told(
        "cuda_driver_mismatch", "the container asks for a newer driver than this node has ({})", _DRIVER, Confidence.CERTAIN
    ),
    "http_port": Told("bootstrap_ports", "the port on which the server is to listen is taken: {}", _PORT),
    "no_nv": Told("cuda_driver_mismatch", "the container was given nothing of NVIDIA's driver: this node has none ({})"),
    "gpus_unequal": Told("other", "GPUs of the job have less free memory than others: {}", fault=Fault.GPU_MEMORY),
    # Kubernetes
    "jobset": Told("rank_died", "a job of the JobSet failed: {}", confidence=Confidence.OPEN),
    "no_quota": Told("missing_node", "the queue has not the free quota that the job asks for: {}", _QUOTA),
    "ray_head": Told("missing_node", "Ray's head did not come up: workers wait for it ({})"),
    "arch": Told("rank_died", "a program of the container is built for another kind of CPU, or has no #! line: {}"),
    "pod_config": Told("missing_node", "a pod was not started for want of what its spec names: {}"),
    # DCGM, Fabric Manager
    "dcgm_memory": Told("gpu_memory", "DCGM's diagnosis found wrong data in a GPU's memory: {}", _RESET),
    "dcgm_link": Told("link_degraded", "DCGM's diagnosis found a slow PCIe link: {}"),
    "dcgm_slow": Told("gpu_slow", "DCGM's diagnosis found a slow GPU: {}"),
    "dcgm_fail": Told("gpu_error", "DCGM's diagnosis failed a GPU: {}", confidence=_MAY),
    "fm_ends": Told("fabric_manager", "the Fabric Manager gave up: {}"),
    # the kernel
    "node_memory": Told("node_error", "the node's memory or CPU has an error that was not corrected: {}", _MEMORY),
    "oops": Told("node_error", "the node's kernel has failed: {}", _REBOOT),
    "pages": Told("node_error", "the node's kernel found no memory in one piece ({})", confidence=_MAY),
    "netdev": Told("link_degraded", "a network adapter of the node stands still: {}", Topic.LINK),
    "array": Told("node_storage", "a disk of the node failed: {}"),
    "btrfs": Told("node_storage", "a file system of the node has an error: {}"),
    "panic": Told("node_error", "the node's kernel stopped: {}"),
    "pcie": Told("node_error", "a PCIe device of the node reports an error that was not corrected: {}"),
    "cable": Told("link_degraded", "a network adapter refuses its cable or module: {}", _CABLE),
    "link_down": Told("link_degraded", "a network link went down: {}", _CABLE, _MAY),
    "hca_command": Told("dev_infiniband_missing", "an RDMA adapter gave no further object: {}", confidence=_MAY),
    "conntrack": Told("firewall_connect", "the node's table of connections is full: it drops packets ({})", _CONNTRACK, _MAY),
    "neighbours": Told(
        "firewall_connect", "the node's table of neighbours is full: it does not reach all ({})", _NEIGHBOURS, _MAY
    ),
    "gpfs": Told("node_storage", "GPFS unmounted its file systems: {}", _SERVERS),
    "beegfs": Told("node_storage", "BeeGFS does not reach a server: {}", _SERVERS, _MAY),
    "amd_ring": Told("gpu_error", "the driver of an AMD GPU got no answer of it: {}", _RESET),
    "amd_memory": Told("gpu_memory", "the memory of an AMD GPU has errors that were not corrected: {}", _RESET),
    "gpu_probe": Told("inventory", "the driver could not take a GPU of the node: {}"),
    "throttled": Told("straggler", "a CPU of the node is throttled for its heat ({})", confidence=_MAY),
}


def told(log: LogFacts) -> Iterator[Hypothesis]:
    """Each thing that was told, of which nothing shows that it was overcome; of a node, before the job's good end."""
    ends = good_ends(log)
    events = [e for e in sorted(log.of("told", "told_node"), key=order) if not e.mild and after(log, e) is After.STOPPED]
    events = [e for e in events if e.kind == "told" or not any(before(f, e) for f in ends)]
    named: dict[str, list[Event]] = {}
    for e in events:
        named.setdefault(next(name for name in e.data if name in MEANS), []).append(e)
    for name, alike in named.items():
        means = MEANS[name]
        host = next(iter(caught(alike, "host")), None)
        component = next((e.data["component"] for e in alike if "component" in e.data), "")
        text = means.text.format(component or alike[0].data[name].rstrip(" .,;"))
        yield Hypothesis(means.cause, means.confidence, text, tuple(alike[:4]), means.fix, subject=host, fault=means.fault)


def fatal(log: LogFacts) -> Iterator[Hypothesis]:
    """What a program said last at the level at which its logger ends it: the abort, and what others print of it, follow."""
    events = tuple(e for e in sorted(log.of("fatal"), key=order) if after(log, e) is After.STOPPED)
    if events:
        text = f"a program ended itself at an error that it calls fatal: {events[0].data['said'].rstrip()[:300]}"
        yield Hypothesis("rank_died", Confidence.LIKELY_PLUS, text, events[:4], fault=Fault.LIBRARY)


RULES = (told, fatal)

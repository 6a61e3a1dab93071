"""Mends, said for the place that netdoctor looks from, with what makes them last.

Containers of Docker, Podman and Kubernetes have a network namespace of their own; those of Enroot and Apptainer share the
host's network, /dev and limits (NVIDIA enroot doc/standard-hooks.md; apptainer.org "Bind Paths and Mounts").
"""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Final

from netdoctor.causes import limits
from netdoctor.causes.limits import Written
from netdoctor.facts.rdma import RdmaDevice
from netdoctor.facts.vantage import Place, Vantage
from netdoctor.model import Fix
from netdoctor.nccl.gpudirect import Mechanisms, NoGdr
from netdoctor.nccl.rdma_access import CGROUP, PORT_UP, Step

# Per network namespace (net/ipv4/sysctl_net_ipv4.c, ipv4_net_table; net/core/sysctl_net_core.c, netns_core_table).
_NETWORK_NAMESPACE: Final = ("net.ipv4.", "net.ipv6.", "net.core.somaxconn")
# These are not; of the neighbours the table is one: net/core/neighbour.c, neigh_sysctl_register.
_WHOLE_NODE: Final = frozenset(
    {"net.ipv4.tcp_mem", "net.ipv4.udp_mem", *(f"net.ipv{v}.neigh.default.gc_thresh{n}" for v in (4, 6) for n in (1, 2, 3))}
)
_SHARES_THE_HOSTS_NETWORK: Final = frozenset({"enroot", "apptainer"})
# kubernetes/pkg/kubelet/sysctl/safe_sysctls.go; the second set grew with releases 1.27, 1.29 and 1.32.
_SAFE_IN_A_POD: Final = frozenset({"net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"})
_SAFE_LATER: Final = {
    "net.ipv4.ip_local_reserved_ports": "1.27",
    "net.ipv4.tcp_rmem": "1.32",
    "net.ipv4.tcp_wmem": "1.32",
}
# sysctl.d(5): in the order of names, whatever the folder, and the last wins; a site's own file is often a 99-.
SYSCTL_FILE: Final = "/etc/sysctl.d/99-zz-netdoctor.conf"


def fix_sysctl(vantage: Vantage, name: str, value: str, *more: tuple[str, str]) -> Fix:
    """Set a sysctl, and `more` of the same kind in their order, where the job will see them."""
    pairs = ((name, value), *more)
    what = " and ".join(f"{key} to {text}" for key, text in pairs)
    own = all(key.startswith(_NETWORK_NAMESPACE) and key not in _WHOLE_NODE for key, _ in pairs)
    if not vantage.in_container or not own or vantage.runtime in _SHARES_THE_HOSTS_NETWORK:
        where = "on the node" if vantage.in_container else "here"
        return Fix(
            f"set {what} {where}",
            tuple(f"sysctl -w {key}={shlex.quote(text)}" for key, text in pairs),
            tuple(f"echo {shlex.quote(f'{key} = {text}')} >> {SYSCTL_FILE}" for key, text in pairs),
        )
    if vantage.runtime == "kubernetes":
        entries = ", ".join(f'{{name: {key}, value: "{text}"}}' for key, text in pairs)
        return Fix(
            f"set {what} in the pod's own network namespace (with hostNetwork: on the node)",
            (),
            (f"securityContext: {{sysctls: [{entries}]}}   # of the pod", *(x for key, _ in pairs for x in _allow(key))),
        )
    runs = {
        "docker": f"docker run {' '.join(f'--sysctl {key}={shlex.quote(text)}' for key, text in pairs)} …",
        "podman": f"podman run {' '.join(f'--sysctl {_podman(key, text)}' for key, text in pairs)} …",
    }
    chosen = runs.get(vantage.runtime or "")
    return Fix(
        f"set {what} in the container's own network namespace (with --network=host: on the node)",
        (chosen,) if chosen else tuple(runs.values()),
    )


def _podman(name: str, value: str) -> str:
    """Podman splits what --sysctl is given at commas, as a line of CSV (cmd/podman/common/create.go, StringSliceVar)."""
    return shlex.quote(f'"{name}={value}"') if "," in value else f"{name}={shlex.quote(value)}"


def _allow(name: str) -> tuple[str, ...]:
    """Kubernetes lets a pod set only what its kubelet calls safe, or was told to allow."""
    if name in _SAFE_IN_A_POD:
        return ()
    since = f" before Kubernetes {_SAFE_LATER[name]}" if name in _SAFE_LATER else ""
    return (f"kubelet --allowed-unsafe-sysctls={name}   # needed{since}: not in the safe set",)


def fix_module(name: str) -> Fix:
    """Load a kernel module now and at boot (modules-load.d(5))."""
    return Fix(
        f"load the kernel module {name} on the node",
        (f"modprobe {name}",),
        (f"echo {name} > /etc/modules-load.d/{name}.conf",),
    )


def fix_environment(vantage: Vantage, change: str, *, unset: bool = False) -> Fix:
    """Set ``NAME=VALUE`` (or unset ``NAME``) where the job gets its environment."""
    name, _, value = change.partition("=")
    quoted = shlex.quote(name)  # the kernel takes any name; people paste this into a shell
    verb = f"unset {quoted}" if unset else f"export {quoted}={shlex.quote(value)}"
    lasting = {
        "kubernetes": f"take {name} out of env: of the container in the pod spec"
        if unset
        else f'env: [{{name: {name}, value: "{value}"}}]   # of the container in the pod spec',
        "docker": f"docker run without -e {quoted} …" if unset else f"docker run -e {quoted}={shlex.quote(value)} …",
        "podman": f"podman run without -e {quoted} …" if unset else f"podman run -e {quoted}={shlex.quote(value)} …",
    }.get(vantage.runtime or "")
    if lasting is None:
        # nccl.conf is read where the variable is not set (NCCL src/misc/param.cc, setEnvFile).
        conf = ", or /etc/nccl.conf for every job of the node" if name.startswith("NCCL_") and not unset else ""
        lasting = f"in the job script{conf}"
        if unset:
            lasting = f"take {name} out of the job script, of what it sources and of /etc/nccl.conf"
    what = f"remove {name} from" if unset else f"set {change} in"
    return Fix(f"{what} the job's environment", (verb,), (lasting,), ((name, None if unset else value),))


NEWER: Final = "use a GPU driver (CUDA 11.7 or newer), kernel, HCA driver and NCCL (2.13.4 or newer) with DMA-BUF"


def fix_gpudirect(vantage: Vantage, able: Mechanisms) -> Fix:
    """Where neither way of GPUDirect RDMA is there: the mend that can help here, and no modprobe where it cannot."""
    if able.dmabuf.rule is NoGdr.DMABUF_SWITCHED_OFF:
        return fix_environment(vantage, "NCCL_DMABUF_ENABLE", unset=True)
    if able.peermem.rule is NoGdr.MODULE_NOT_LOOKED_AT:
        words = "use NCCL 2.23.4 or newer, which looks at /sys/module/nvidia_peermem"
        return Fix(words, ("pip install 'nvidia-nccl-cu12>=2.23.4'",))
    if able.dmabuf.rule is NoGdr.DMABUF_NOT_OFFERED:
        return Fix(
            "install the driver's open kernel modules (DMA-BUF), or load nvidia_peermem where ib_core has the peer-memory API",
            ("cat /proc/driver/nvidia/version   # says 'Open Kernel Module' where they are in use", "modprobe nvidia-peermem"),
            ("echo nvidia-peermem > /etc/modules-load.d/nvidia-peermem.conf",),
        )
    if able.dmabuf.rule is NoGdr.VERBS_TOO_OLD:
        return Fix("install rdma-core 34 or newer where the job runs", ("apt-get install libibverbs1 ibverbs-providers",))
    if able.peermem.rule is NoGdr.NO_MODULE:  # whether ib_core has the API shows only when a module registers itself
        words = f"load nvidia_peermem where ib_core has the peer-memory API (MLNX_OFED, DOCA-OFED), or {NEWER}"
        return replace(fix_module("nvidia-peermem"), summary=words)
    return Fix(NEWER)


def fix_rdma_device(vantage: Vantage, step: Step, device: RdmaDevice) -> Fix:
    """An RDMA device that cannot be used: each step (nccl/rdma_access) and each errno has its own mend."""
    inside = vantage.in_container
    if step is Step.NOT_MAPPED:
        # sysfs has its uverbs device, so the module is loaded: what lacks is the node, which udev makes.
        remake = ("udevadm trigger --subsystem-match=infiniband_verbs", "ls -l /dev/infiniband")
        return fix_container(vantage, "devices") if inside else Fix("have udev make the nodes", remake)
    if step in (Step.EPERM, Step.MODULE, Step.EACCES):
        return _fix_refused(vantage, step)
    if step in (Step.ENXIO, Step.STALE):
        words = "start the container again: its nodes are from before a driver reload" if inside else "load the driver again"
        again = f"modprobe {device.driver or 'DRIVER'} ib_uverbs"
        return Fix(words, () if inside else (again, "udevadm trigger"))
    if step is Step.NO_UVERBS:
        return fix_module("ib_uverbs")
    if step is Step.CONTEXT and device.provider and device.provider.error == CGROUP:
        at = "/sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)"
        return Fix(
            "raise the rdma limit of the job's cgroup: each rank takes a handle of each device, and hundreds of objects",
            (f"grep . {at}/rdma.max {at}/rdma.current   # and of the cgroups above it",),
            ("echo 'DEVICE hca_handle=max hca_object=max' > …/rdma.max   # by whoever makes the job's cgroup",),
        )
    if step in (Step.NO_LIBRARY, Step.NO_PROVIDER, Step.CONTEXT):
        return Fix(
            "install rdma-core's libraries where the job runs (in its image)",
            ("apt-get install libibverbs1 ibverbs-providers   # or: dnf install libibverbs rdma-core",),
        )
    if step is Step.GID:
        return Fix(
            "give the job the network namespace of the interface, or the interface to its namespace",
            ("docker run --network=host …", "rdma system set netns exclusive; rdma dev set DEV netns NS"),
            ("hostNetwork: true, or an SR-IOV network whose RDMA device moves with its interface",),
        )
    if step is Step.PORT:
        return Fix(PORT_UP, (f"ibstat {device.name}   # State, Physical state", "sminfo"))
    return Fix("see why the node does not open", (f"strace -f -e openat ibv_devinfo -d {device.name}",))


def _fix_refused(vantage: Vantage, step: Step) -> Fix:
    """The node is there, and the kernel does not let this process open it."""
    inside = vantage.in_container
    if step is Step.EPERM:
        if inside:
            return fix_container(vantage, "devices")
        return Fix(
            "let the job's cgroup use the device",
            ("scontrol show config | grep -i constraindevices   # Slurm: cgroup.conf ConstrainDevices, gres.conf",),
        )
    if step is Step.MODULE:
        # In words that are the same of every device: what refuses one mostly refuses all, which is then one block.
        mounts = "for one in /dev/infiniband/uverbs*; do findmnt -no TARGET,OPTIONS -T $one; done   # nodev?"
        find = (mounts, "dmesg | grep -i -e apparmor -e avc   # on the node")
        if inside:
            give = "docker run --device=/dev/infiniband …   # or podman; not -v /dev/infiniband"
            return Fix("give the container the device as a device, or a security profile that allows it", (*find, give))
        return Fix("mount what holds the device without nodev, or let the security module allow it", find)
    if inside:
        return Fix(
            "give the container the host's group of the device (or a mode that lets it in), and /dev without nodev",
            ("docker run --group-add $(stat -c %g /dev/infiniband/uverbs0) …", "podman run --group-add keep-groups …"),
            ("securityContext: {supplementalGroups: [GID of the device on the node]}",),
        )
    return Fix(
        "let the job's user open the device: rdma-core's udev rules give mode 0666",
        ("udevadm trigger --subsystem-match=infiniband_verbs",),
        ("apt-get install rdma-core   # ships the udev rules",),
    )


def fix_container(vantage: Vantage, need: str, *, file: str = "", hard: str = "") -> Fix:
    """What a container needs: ``devices`` (/dev/infiniband), ``memlock``, ``ipc_lock``, ``shm``, ``numa`` (bind memory); on a
    host what mends it there, where there is such a thing, else the flags of every runtime.  `file`: of a cgroup that has the
    limit; `hard`: see `limits.of_process`."""
    if (fix := limits.of_process(need, hard, host=vantage.runtime is None)) is not None:
        return fix
    flags, chosen = CONTAINER_FLAGS[need], CONTAINER_FLAGS[need].get(vantage.runtime or "")
    if chosen is not None:
        return Fix(_SUMMARY[need], (), (chosen,)) if isinstance(chosen, Written) else Fix(_SUMMARY[need], (chosen,))
    if vantage.runtime is None and need in _HOST:
        return limits.of_cgroup(_HOST[need], file)
    return Fix(_SUMMARY[need], (), tuple(f"{runtime}: {text}" for runtime, text in flags.items()))


def _place(runtime: str | None) -> Vantage:
    """A place to say a mend for, where nobody looks from."""
    kind = Place.CONTAINER if runtime else Place.HOST
    return Vantage(kind, runtime, 0, "", True, frozenset(), {}, "", job_user=True, job_network=True, job_environment=True)


RUNTIMES: Final = (None, "docker", "podman", "enroot", "apptainer", "kubernetes")


def mends(cause: str) -> tuple[tuple[tuple[str, ...], Fix], ...]:
    """Every mend of a cause that can be said without looking: (places, what), a place being one of `RUNTIMES` or "host".

    Placeholders are in capitals.  () where the mend depends on what is found.
    """
    out: dict[str, tuple[list[str], Fix]] = {}
    for runtime in RUNTIMES:
        for fix in _for_cause(cause, _place(runtime)):
            out.setdefault(repr(fix), ([], fix))[0].append(runtime or "host")
    return tuple((tuple(places), fix) for places, fix in out.values())


def _for_cause(cause: str, vantage: Vantage) -> tuple[Fix, ...]:
    if needs := _NEEDS.get(cause):
        known = [
            need for need in needs if (vantage.runtime or "host") in (*CONTAINER_FLAGS[need], *(["host"] * (need in _HOST)))
        ]
        return tuple(fix_container(vantage, need) for need in known)
    if sysctls := _SYSCTLS.get(cause):
        return tuple(fix_sysctl(vantage, name, value) for name, value in sysctls)
    plain = _PLAIN.get(cause, ()) if vantage.runtime is None else ()
    return (*plain, *(fix_environment(vantage, change) for change in _VARIABLES.get(cause, ())))


_SUMMARY: Final = {
    "devices": "map the RDMA devices into the container",
    "ipc_lock": "give the container CAP_IPC_LOCK",
    "shm": "give the container a larger /dev/shm",
    "numa": "let the container bind memory to NUMA nodes",
    **limits.SUMMARY,
}
CONTAINER_FLAGS: Final[dict[str, dict[str, str]]] = {
    "devices": {
        # docs.docker.com, "docker container run": a directory of --device adds every device in it.
        "docker": "docker run --device=/dev/infiniband …",
        "podman": "podman run --device=/dev/infiniband …",
        "kubernetes": Written(
            "resources: {limits: {rdma/hca: 1}}   # the device plugin's name: kubectl describe node | grep rdma/"
        ),
        # enroot doc/standard-hooks.md: 10-devices.sh takes /dev away if ENROOT_RESTRICT_DEV is set, 99-mellanox.sh brings HCAs.
        "enroot": "export MELLANOX_VISIBLE_DEVICES=all   # before srun; needed where ENROOT_RESTRICT_DEV is set",
        # apptainer.org, "Apptainer Configuration Files": mount dev = yes | minimal | no; --contain makes it minimal.
        "apptainer": "apptainer exec --bind /dev/infiniband …   # with --contain; without, /dev is the host's",
    },
    "ipc_lock": {
        "docker": "docker run --cap-add=IPC_LOCK …",
        "podman": "podman run --cap-add=IPC_LOCK …   # rootful: it counts in the initial user namespace only",
        "kubernetes": Written(
            'securityContext: {capabilities: {add: ["IPC_LOCK"]}}   # effective for a process that runs as root'
        ),
    },
    "shm": {
        "docker": "docker run --shm-size=8g …   # or --ipc=host",
        "podman": "podman run --shm-size=8g …   # or --ipc=host",
        "kubernetes": Written("volumes: [{name: shm, emptyDir: {medium: Memory, sizeLimit: 8Gi}}] with mountPath: /dev/shm"),
        "enroot": Written("/dev/shm is the host's; enlarge it there: mount -o remount,size=50% /dev/shm"),
        "apptainer": Written("/dev/shm is the host's; enlarge it there: mount -o remount,size=50% /dev/shm"),
    },
    # moby profiles/seccomp/default.json allows mbind and set_mempolicy only with CAP_SYS_NICE; so do podman, containerd.
    "numa": {
        "docker": "docker run --cap-add=SYS_NICE …",
        "podman": "podman run --cap-add=SYS_NICE …",
        "kubernetes": Written('securityContext: {capabilities: {add: ["SYS_NICE"]}}'),
    },
    **limits.FLAGS,
}
_HOST: Final = {
    "shm": Fix(
        "enlarge /dev/shm",
        ("mount -o remount,size=50% /dev/shm",),
        ("tmpfs /dev/shm tmpfs defaults,size=50% 0 0   # in /etc/fstab",),
    ),
    "devices": fix_module("ib_uverbs"),
    **limits.HOST,
}

# What can be said of a cause before anything was looked at.
_NEEDS: Final = {
    "dev_infiniband_missing": ("devices",),
    "memlock": ("memlock", "ipc_lock"),
    "shm_disabled_or_small": ("shm",),
    "process_limits": ("nofile", "nproc", "pids", "cpu", "memory"),
}
_SYSCTLS: Final = {
    "bootstrap_ports": (("net.ipv4.ip_local_port_range", "LOW HIGH"),),
    "tcp_tuning": (("net.ipv4.tcp_rmem", "MIN DEFAULT MAX"), ("net.ipv4.tcp_wmem", "MIN DEFAULT MAX")),
}
_VARIABLES: Final = {
    "socket_ifname": ("NCCL_SOCKET_IFNAME==INTERFACE",),
    "roce_gid": ("NCCL_IB_GID_INDEX=INDEX",),
}
_PLAIN: Final = {
    "gdr_disabled": (
        fix_module("nvidia-peermem"),
        Fix("or use DMA-BUF: open GPU kernel modules, Linux 5.12 or newer, NCCL 2.13 or newer", ("modinfo -F license nvidia",)),
    ),
    "numa_affinity": (
        Fix(
            "bind each rank to the CPUs near its GPU, and leave each more than one core",
            ("srun --cpu-bind=verbose,ldoms …", "numactl --cpunodebind=NODE --membind=NODE python …"),
            ("take OMP_PROC_BIND, KMP_AFFINITY and GOMP_CPU_AFFINITY out of the job script",),
        ),
    ),
    "gloo_backend": (
        Fix(
            "name the backend, and use a torch that was built with CUDA and NCCL",
            ('torch.distributed.init_process_group(backend="cpu:gloo,cuda:nccl")',),
        ),
    ),
    "version_mismatch": (
        Fix(
            "let every rank load one libnccl: the one that torch was installed with",
            ("python -c 'import torch; print(torch.cuda.nccl.version())'   # on every node",),
            ("take other copies of libnccl out of LD_LIBRARY_PATH and LD_PRELOAD",),
        ),
    ),
    "link_degraded": (
        Fix(
            "find the link that is down or slow: cable, transceiver, switch port, slot",
            ("ibstat", "nvidia-smi nvlink -s", "lspci -vv | grep -e LnkCap -e LnkSta", "dmesg | grep -i -e aer -e xid"),
        ),
    ),
    "inventory": (
        Fix(
            "find the missing ones: reseat, firmware, dmesg",
            ("lspci -nn | grep -i -e nvidia -e mellanox", "nvidia-smi -L", "rdma link", "dmesg"),
        ),
    ),
    "gpu_memory": (
        Fix(
            "drain the node, then reset the GPU; one that shows it again is replaced",
            ("nvidia-smi -q -d ECC,ROW_REMAPPER,PAGE_RETIREMENT", "nvidia-smi -r -i GPU", "dcgmi diag -r 3"),
        ),
    ),
    "gpu_error": (
        Fix(
            "drain the node, then reset the GPU; one that shows it again goes to the vendor",
            ("dmesg | grep -i xid", "nvidia-smi -r -i GPU", "nvidia-bug-report.sh"),
        ),
    ),
    "gpu_slow": (
        Fix(
            "see what lowers the clocks: fans and air, power supplies, a power limit or locked clocks",
            ("nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER,CLOCK", "nvidia-smi -rgc", "ipmitool sdr type fan"),
        ),
    ),
    "odd_one_out": (
        Fix("make it as its like: compare the two", ("nvidia-smi -q", "ibv_devinfo", "lspci -nn", "mlxfwmanager --query")),
    ),
    "acs_iommu": (
        Fix(
            "turn ACS redirection off on the PCIe switches (bare metal), or set the IOMMU to passthrough",
            ("setpci -s BRIDGE ECAP_ACS+0x6.w=0000",),
            ("pci=disable_acs_redir=BRIDGE;…   # kernel command line, or iommu=pt",),
        ),
    ),
    "fabric_manager": (
        Fix(
            "start the Fabric Manager of the driver's version",
            ("systemctl restart nvidia-fabricmanager", "systemctl status nvidia-fabricmanager"),
            ("systemctl enable --now nvidia-fabricmanager",),
        ),
    ),
    "clock": (Fix("keep all clocks by the same servers, and step what is off", ("chronyc tracking", "chronyc makestep")),),
    "imex": (
        Fix(
            "start IMEX with the addresses of all nodes of the NVLink domain",
            ("cat /etc/nvidia-imex/nodes_config.cfg   # an address a line", "systemctl restart nvidia-imex"),
            ("systemctl enable --now nvidia-imex",),
        ),
    ),
}

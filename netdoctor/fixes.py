"""Mends, said for the place that netdoctor looks from, with what makes them last."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from netdoctor.model import Fix
from netdoctor.probes.vantage import Vantage

# Per network namespace: a container may carry its own value.  (Documentation/networking/ip-sysctl.rst, namespaced in net/ipv4.)
_NETWORK_NAMESPACE = ("net.ipv4.", "net.ipv6.", "net.core.somaxconn")


def fix_sysctl(vantage: Vantage, name: str, value: str) -> Fix:
    """Set a sysctl where the job will see it."""
    node = (f"sysctl -w {name}={shlex.quote(value)}",)
    lasting = (f"echo {shlex.quote(f'{name} = {value}')} > /etc/sysctl.d/90-netdoctor.conf",)
    if not vantage.in_container or not name.startswith(_NETWORK_NAMESPACE):
        where = "on the node" if vantage.in_container else "here"
        return Fix(f"set {name} to {value} {where}", node, lasting)
    if vantage.runtime == "kubernetes":
        return Fix(
            f"set {name} in the pod: its network namespace starts at the kernel's default (not with hostNetwork)",
            (),
            (
                f'securityContext: {{sysctls: [{{name: {name}, value: "{value}"}}]}}',
                f"kubelet --allowed-unsafe-sysctls={name}   # unless the sysctl is in Kubernetes' safe set",
            ),
        )
    return Fix(
        f"give the container {name}={value}",
        (f"docker run --sysctl {name}={shlex.quote(value)} …", f"podman run --sysctl {name}={shlex.quote(value)} …"),
    )


def fix_module(name: str) -> Fix:
    """Load a kernel module now and at boot."""
    return Fix(
        f"load the kernel module {name} on the node",
        (f"modprobe {name}",),
        (f"echo {name} > /etc/modules-load.d/{name}.conf",),
    )


def fix_environment(vantage: Vantage, change: str, *, unset: bool = False) -> Fix:
    """Set ``NAME=VALUE`` (or unset ``NAME``) where the job gets its environment."""
    name = change.partition("=")[0]
    verb = f"unset {name}" if unset else f"export {change}"
    where = {"kubernetes": ("in the container's env: list of the pod spec",), "slurm": ("in the sbatch script",)}
    return Fix(
        f"{'remove' if unset else 'set'} {change if not unset else name} in the job's environment",
        (verb,),
        where.get(vantage.runtime or "", ("in the job script, or /etc/nccl.conf for every job of the node",)),
    )


def fix_container(vantage: Vantage, need: str) -> Fix:
    """Container flags for a need: ``devices`` (/dev/infiniband), ``memlock``, ``ipc_lock``, ``shm``, ``numa`` (SYS_NICE)."""
    flags = _FLAGS[need]
    chosen = [text for runtime, text in flags.items() if runtime == vantage.runtime]
    return Fix(_SUMMARY[need], tuple(chosen or _every(flags)), ())


def _every(flags: dict[str, str]) -> Iterable[str]:
    return (f"{runtime}: {text}" for runtime, text in flags.items())


_SUMMARY = {
    "devices": "map the RDMA devices into the container",
    "memlock": "lift the locked-memory limit of the container",
    "ipc_lock": "give the container CAP_IPC_LOCK",
    "shm": "give the container a larger /dev/shm",
    "numa": "let the container bind memory to NUMA nodes",
}
_FLAGS: dict[str, dict[str, str]] = {
    "devices": {
        "docker": "docker run --device=/dev/infiniband …",
        "podman": "podman run --device=/dev/infiniband … (or CDI: --device nvidia.com/…)",
        "kubernetes": "resources.limits: {rdma/hca: 1} of the cluster's RDMA device plugin",
        "enroot": "export MELLANOX_VISIBLE_DEVICES=all before srun --container-image",
        "apptainer": "apptainer exec --nv binds /dev as a whole; add --bind /dev/infiniband where it is contained",
    },
    "memlock": {
        "docker": "docker run --ulimit memlock=-1:-1 …",
        "podman": "podman run --ulimit memlock=-1:-1 …",
        "kubernetes": "LimitMEMLOCK=infinity in containerd's systemd unit (a pod spec cannot set ulimits), or add IPC_LOCK",
        "enroot": "LimitMEMLOCK=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        "apptainer": "ulimit -l unlimited in the job (limits.d: '* - memlock unlimited')",
    },
    "ipc_lock": {
        "docker": "docker run --cap-add=IPC_LOCK …",
        "podman": "podman run --cap-add=IPC_LOCK …",
        "kubernetes": 'securityContext: {capabilities: {add: ["IPC_LOCK"]}}',
    },
    "shm": {
        "docker": "docker run --shm-size=8g … (or --ipc=host)",
        "podman": "podman run --shm-size=8g …",
        "kubernetes": "volumes: [{name: shm, emptyDir: {medium: Memory}}] mounted at /dev/shm",
        "enroot": "/dev/shm is the host's; enlarge it there: mount -o remount,size=50% /dev/shm",
        "apptainer": "/dev/shm is the host's; enlarge it there: mount -o remount,size=50% /dev/shm",
    },
    "numa": {
        "docker": "docker run --cap-add=SYS_NICE …",
        "podman": "podman run --cap-add=SYS_NICE …",
        "kubernetes": 'securityContext: {capabilities: {add: ["SYS_NICE"]}}',
    },
}

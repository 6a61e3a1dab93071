"""Where the ranks ran, by the names of their hosts, and mends that are others in a pod, in a container and on a host."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import Enum
from typing import Final

from netdoctor.model import Fix
from netdoctor.nccl.log.facts import LogFacts


class Place(Enum):
    """What kind of thing has the host names of a log."""

    POD = "pod"
    CONTAINER = "container"
    UNKNOWN = "not told"  # a host, or a container that shares its name


Placed = Mapping[Place, Fix]

# Replicas of training operators and of a Deployment (a hash of its template, five letters), and indexed Jobs.
_POD: Final = re.compile(
    r"-(?:worker|master|launcher|server|chief|ps)-\d{1,5}\Z|-[0-9a-f]{8,10}-[bcdfghjklmnpqrstvwxz2456789]{5}\Z"
)
_CONTAINER: Final = re.compile(r"[0-9a-f]{12}\Z")  # Docker's default: the start of the container's id


def place(log: LogFacts) -> Place:
    if not log.hosts:
        return Place.UNKNOWN
    if all(_POD.search(host) for host in log.hosts):
        return Place.POD
    return Place.CONTAINER if all(_CONTAINER.match(host) for host in log.hosts) else Place.UNKNOWN


def _placed(unknown: Fix, pod: Fix, container: Fix) -> Placed:
    return {Place.UNKNOWN: unknown, Place.POD: pod, Place.CONTAINER: container}


_LEFT: Final = "df -h /dev/shm; ls -l /dev/shm/nccl-*   # left behind by a crash?"
_EMPTY_DIR: Final = "volumes: [{name: shm, emptyDir: {medium: Memory}}] mounted at /dev/shm"
SHARED_MEMORY: Final = _placed(
    Fix("give the container a larger /dev/shm", ("docker run --shm-size=8g …   # or --ipc=host", _LEFT), (_EMPTY_DIR,)),
    Fix("give the pod a larger /dev/shm: without a volume it has 64 MiB", (_LEFT,), (_EMPTY_DIR,)),
    Fix("give the container a larger /dev/shm", ("docker run --shm-size=8g …   # or --ipc=host", _LEFT)),
)
_SEEN: Final = "ls -l /dev/infiniband; ibv_devinfo"
_RESOURCE: Final = (
    "resources.limits: {rdma/hca: 1}   # the name is the RDMA device plugin's; vpc.amazonaws.com/efa on EKS",
    "securityContext.capabilities.add: [IPC_LOCK]",
)
_RUN: Final = "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1:-1 …"
_MAP: Final = "map the RDMA devices and their user-space libraries into the container"
RDMA_DEVICES: Final = _placed(
    Fix(_MAP, (_RUN, _SEEN), ("resources.limits: {rdma/hca: 1}",)),
    Fix("ask for the RDMA devices in the pod's limits, and have their user-space libraries in the image", (_SEEN,), _RESOURCE),
    Fix(_MAP, (_RUN, _SEEN)),
)
_LIFT: Final = "lift the locked-memory limit of the process that runs NCCL"
_UNIT: Final = "'* - memlock unlimited' in /etc/security/limits.d, LimitMEMLOCK=infinity in the unit of slurmd or containerd"
MEMLOCK: Final = _placed(
    Fix(_LIFT, ("ulimit -l unlimited", "docker run --ulimit memlock=-1:-1 --cap-add=IPC_LOCK …"), (_UNIT,)),
    Fix(
        "give the pod IPC_LOCK, or the runtime that starts it an unlimited locked-memory limit",
        ("ulimit -l   # in the pod",),
        (_RESOURCE[1], "LimitMEMLOCK=infinity in the unit of containerd"),
    ),
    Fix(_LIFT, ("docker run --ulimit memlock=-1:-1 --cap-add=IPC_LOCK …",)),
)

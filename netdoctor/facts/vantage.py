"""Who looks, and from where.  Evidence that must be the job's own, seen from elsewhere, never makes a pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from netdoctor.environment import Role, named
from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, link, mapping, names, read
from netdoctor.model import Kind, Unavailable, Word, missing, record

# What to do where evidence is not the job's own.
FROM_JOB: Final = "netdoctor run -- CMD, in the job; or --vantage job, if this is where the job runs"


class Place(Word):
    """The kind of place that netdoctor looks from; the configuration's `vantage` may name it."""

    HOST = "host"
    CONTAINER = "container"
    POD_INIT = "pod-init"
    POD = "pod"
    PROLOG = "prolog"
    WRAPPER = "wrapper"
    HOST_ROOT = "host-root"  # real root outside any job


@record
class Vantage(Fact):
    """The place that netdoctor looks from."""

    kind: Place | Unavailable
    # "docker" "podman" "kubernetes" "apptainer" "enroot" "lxc" "unknown container"; None on a host
    runtime: str | None | Unavailable
    euid: int | Unavailable
    user: str | Unavailable
    root_is_root: bool | Unavailable  # uid_map is the identity: uid 0 here is uid 0 of the host
    capabilities: frozenset[str] | Unavailable  # effective, e.g. {"CAP_IPC_LOCK"}
    namespaces: Mapping[str, str] | Unavailable  # {"net": "4026531840", "user": …}; a missing key could not be read
    cgroup: str | Unavailable
    job_user: bool = False  # openness, memlock and masks seen here are the job's own
    job_network: bool = False  # interfaces, ports and buffers seen here are the job's own
    job_environment: bool = False  # variables, libraries and interpreter seen here are the job's own
    why_not: str = ""  # e.g. "seen as root outside the job"
    outside: bool = False  # known to be no place where the job's own environment is seen

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        """Nothing that is seen is known to be the job's own."""
        return {**super()._unread(why), "why_not": f"seen by a process of which nothing could be told: {why}"}

    @property
    def in_container(self) -> bool:
        return bool(self.runtime)

    @property
    def of_the_job(self) -> bool:
        """All that is seen here is the job's own."""
        return self.job_user and self.job_network and self.job_environment

    @property
    def elsewhere(self) -> str:
        """What keeps this place from being the job's own, for a finding that must not pass."""
        return self.why_not or "seen outside the job"

    @property
    def network_elsewhere(self) -> str:
        """The same of evidence that only its network namespace shows."""
        return self.why_not or "seen outside the job's network namespace"

    @property
    def initial_pids(self) -> bool:
        """Whether a PID that the kernel's drivers tell is the same process here."""
        return not isinstance(self.namespaces, Unavailable) and self.namespaces.get("pid") == _INITIAL_PID_NAMESPACE


IDENTITY: Final = ((0, 0, 4294967295),)  # uid_map of the initial user namespace (user_namespaces(7))
_NAMESPACES: Final = ("net", "user", "mnt", "pid", "ipc", "uts", "cgroup")
_INITIAL_PID_NAMESPACE: Final = "4026531836"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
# Variables that only a process of a job has: set by torchrun, mpirun, srun, batch systems and Kubernetes operators for ranks.
_LAUNCHED: Final = frozenset(
    (*named(Role.RANK), *named(Role.LOCAL_RANK), *named(Role.IN_JOB), *named(Role.MASTER), *named(Role.WORLD, "torch"))
)
_STEP: Final = (*named(Role.IN_JOB, "slurm"), *named(Role.RANK, "slurm"))
# Capabilities by bit (include/uapi/linux/capability.h).
_CAPABILITIES: Final = (
    *("CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE"),
    *("NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO"),
    *("SYS_CHROOT", "SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME"),
    *("SYS_TTY_CONFIG", "MKNOD", "LEASE", "AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG"),
    *("WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ", "PERFMON", "BPF", "CHECKPOINT_RESTORE"),
)
_PLACES: Final = {place.value: place for place in Place}
OWN: Final = frozenset({"job", *(p.value for p in (Place.HOST, Place.CONTAINER, Place.POD, Place.WRAPPER))})  # the job's own
# cpumanager and devicemanager of the kubelet hand an init container's CPUs and devices on, but promise nothing.
_MAY_DIFFER: Final = "an init container: the main one may be given other CPUs and devices"
_OUTSIDE: Final = "seen as root outside the job"


def probe(host: Host) -> Vantage | Unavailable:
    """Who looks, and what of the job's own this place shows."""
    status = read(host, "/proc/self/status")
    if isinstance(status, Unavailable):
        return _said(host, status)
    uids = re.search(r"^Uid:\s+\d+\s+(\d{1,10})\s", status, re.MULTILINE)
    if uids is None:
        return Unavailable(Kind.MALFORMED if status.strip() else Kind.EMPTY, "/proc/self/status")
    euid = int(uids.group(1))
    found = mapping(host, "env:")
    variables: Mapping[str, Any] = {} if isinstance(found, Unavailable) else found
    runtime = runtime_of(host)
    mapped = uid_map(host)
    root_is_root = mapped if isinstance(mapped, Unavailable) else mapped == IDENTITY
    cgroup = read(host, "/proc/self/cgroup")
    kind, own = _place(host, variables, euid, None if isinstance(runtime, Unavailable) else runtime, root_is_root)
    # What tells a container or a job may be what was not read: then it is not known.
    told = missing(found, runtime, mapped, cgroup, mapping(host, "config:"), names(host, "/"), link(host, "/proc/self/ns/pid"))
    outside = not own.environment and told is None
    if isinstance(runtime, Unavailable) and not own.asserted:
        own = _Own(False, False, False, f"cannot tell whether this is a container: {runtime}")
    if isinstance(found, Unavailable):
        own = _Own(own.user, own.network, False, own.why or f"no environment: {found}")
    return Vantage(
        kind=kind,
        runtime=None if isinstance(runtime, Unavailable) else runtime,
        euid=euid,
        user=_user(euid, variables),
        root_is_root=root_is_root,
        capabilities=_capabilities(status),
        namespaces=_namespaces(host),
        cgroup=cgroup if isinstance(cgroup, Unavailable) else cgroup.strip(),
        job_user=own.user,
        job_network=own.network,
        job_environment=own.environment,
        why_not=own.why,
        outside=outside,
    )


def _said(host: Host, lost: Unavailable) -> Vantage | Unavailable:
    """Nothing of this process was read (a tree of another machine's files): the configuration's word alone."""
    settings = mapping(host, "config:")
    said = (settings or {}).get("vantage")
    if lost.kind != Kind.NOT_RECORDED or said not in OWN:
        return lost
    kind = _PLACES.get(str(said), Place.WRAPPER)
    return Vantage(kind, None if kind is Place.HOST else lost, lost, lost, lost, lost, lost, lost, True, True, True)


@record
class _Own:
    """What is the job's own here, and why the rest is not."""

    user: bool
    network: bool
    environment: bool
    why: str = ""
    asserted: bool = False  # the configuration said it


def _place(
    host: Host, variables: Mapping[str, Any], euid: int, runtime: str | None, root_is_root: bool | Unavailable
) -> tuple[Place, _Own]:
    settings = mapping(host, "config:")
    config: Mapping[str, Any] = {} if isinstance(settings, Unavailable) else settings
    said, profile = config.get("vantage"), config.get("profile")
    real_root = euid == 0 and root_is_root is not False
    named = _PLACES.get(str(said))
    kind = named or _kind(variables, real_root, runtime, profile)
    if named in (Place.HOST, Place.CONTAINER, Place.POD, Place.WRAPPER):
        return kind, _Own(True, True, True, asserted=True)
    if said == "job":
        why = _MAY_DIFFER if kind is Place.POD_INIT else ""
        kind = Place.WRAPPER if kind in (Place.HOST, Place.HOST_ROOT) else kind
        return kind, _Own(True, True, True, why, asserted=True)
    if said == "node":
        return kind, _Own(False, False, False, "the configuration says that this is not the job's place")
    if kind is Place.PROLOG:
        return kind, _Own(False, False, False, "seen by the batch system's prolog, outside the job")
    if profile in ("audit", "prolog"):
        return kind, _Own(False, False, False, f"profile {profile}: seen from outside the job")
    if kind is Place.HOST_ROOT:
        # Jobs of a kubelet have a network namespace of their own, other jobs of this host share its init's.
        pods = mapping(host, "stat:/var/lib/kubelet")
        shared = isinstance(pods, Unavailable) and pods.kind == Kind.ABSENT and _network_of_init(host)
        return kind, _Own(False, shared, False, _OUTSIDE)
    if kind is Place.POD_INIT:
        return kind, _Own(True, True, False, "an init container has an image and an environment of its own")
    return kind, _Own(True, True, True)


def _network_of_init(host: Host) -> bool:
    """Whether this is the network of the machine itself, not one that ip-netns(8), nsenter(1) or unshare(1) led to."""
    mine, inits = link(host, "/proc/self/ns/net"), link(host, "/proc/1/ns/net")
    return isinstance(mine, str) and mine == inits


def _kind(variables: Mapping[str, Any], real_root: bool, runtime: str | None, profile: object) -> Place:
    context = str(variables.get("SLURM_SCRIPT_CONTEXT", ""))
    step = any(name in variables for name in _STEP)
    # slurmd starts Prolog and Epilog as root without PATH (https://slurm.schedmd.com/prolog_epilog.html).
    slurm = "SLURM_JOB_ID" in variables and not step and ("PATH" not in variables or real_root)
    if profile == "prolog" or slurm or re.match(r"(?:pro|epi)log_slurm", context):
        return Place.PROLOG
    if runtime == "kubernetes":
        return Place.POD_INIT if profile == "gate" else Place.POD
    if runtime is not None:
        return Place.CONTAINER
    return Place.HOST_ROOT if real_root and not _LAUNCHED & variables.keys() else Place.HOST


_TOLD_BY: Final = {
    "KUBERNETES_SERVICE_HOST": "kubernetes",
    "APPTAINER_CONTAINER": "apptainer",
    "SINGULARITY_CONTAINER": "apptainer",
}


def runtime_of(host: Host) -> str | None | Unavailable:
    """The container runtime, from the marks that each leaves; None only where the sources were read and show none."""
    found = mapping(host, "env:")
    variables: Mapping[str, Any] = {} if isinstance(found, Unavailable) else found
    if named := next((runtime for name, runtime in _TOLD_BY.items() if name in variables), None):
        return named
    cgroup = read(host, "/proc/self/cgroup")
    by_cgroup = None if isinstance(cgroup, Unavailable) else _runtime_of_cgroup(cgroup)
    if by_cgroup == "kubernetes":
        return by_cgroup
    root, space = names(host, "/"), link(host, "/proc/self/ns/pid")
    entries = frozenset() if isinstance(root, Unavailable) else frozenset(root)
    if ".singularity.d" in entries:
        return "apptainer"
    kind, text = _root_mount(host)
    if "/enroot/" in text or (any(name.startswith("ENROOT_") for name in variables) and uid_map(host) != IDENTITY):
        return "enroot"
    said = str(variables.get("container", ""))  # https://systemd.io/CONTAINER_INTERFACE
    if said:
        return said if said in ("docker", "podman", "lxc", "enroot") else "unknown container"
    # A machine that was made from a container image keeps these files: in the initial PID namespace they count only on a
    # root of layers (docker run --pid=host).
    initial = isinstance(space, str) and _number(space) == _INITIAL_PID_NAMESPACE
    layers = kind in ("overlay", "fuse.fuse-overlayfs", "btrfs", "zfs", "aufs")
    by_file = None
    if layers or not initial:
        podman = not isinstance(mapping(host, "stat:/run/.containerenv"), Unavailable)
        by_file = "podman" if podman else "docker" if ".dockerenv" in entries else None
    found_by = by_file or by_cgroup
    if found_by or (unread := missing(space, root)) is None:
        return found_by or (None if initial else "unknown container")
    return unread


def _root_mount(host: Host) -> tuple[str, str]:
    """File system type and the whole line of the mount on "/" (proc_pid_mountinfo(5)); empty where it cannot be told."""
    text = read(host, "/proc/self/mountinfo")
    for line in () if isinstance(text, Unavailable) else reversed(text.splitlines()):
        left, _, right = line.partition(" - ")
        if left.split()[4:5] == ["/"]:
            return right.partition(" ")[0], line
    return "", ""


def _runtime_of_cgroup(text: str) -> str | None:
    """The runtime that named the cgroup; with a cgroup namespace (the default of v2) it says nothing."""
    if "/kubepods" in text or "kubepods-" in text or "kubepods.slice" in text:
        return "kubernetes"
    if re.search(r"/docker/[0-9a-f]{64}|/docker-[0-9a-f]{64}\.scope", text):
        return "docker"
    if re.search(r"/libpod[-_][0-9a-z_]*[0-9a-f]{64}", text):
        return "podman"
    return "lxc" if re.search(r"/lxc(?:\.payload)?[./]", text) else None


def uid_map(host: Host) -> tuple[tuple[int, int, int], ...] | Unavailable:
    """Rows of /proc/self/uid_map: first id inside, first id outside, how many (user_namespaces(7))."""
    text = read(host, "/proc/self/uid_map")
    if isinstance(text, Unavailable):
        return text
    rows = []
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 3 or not all(re.fullmatch(r"\d{1,10}", f, re.ASCII) for f in fields):
            return Unavailable(Kind.MALFORMED, f"/proc/self/uid_map: {line[:60]!r}")
        rows.append((int(fields[0]), int(fields[1]), int(fields[2])))
    return tuple(rows) or Unavailable(Kind.EMPTY, "/proc/self/uid_map")


def _capabilities(status: str) -> frozenset[str] | Unavailable:
    found = re.search(r"^CapEff:\s+([0-9a-f]{1,16})\s*$", status, re.MULTILINE)
    if found is None:
        return Unavailable(Kind.MALFORMED, "/proc/self/status has no CapEff")
    bits = int(found.group(1), 16)
    return frozenset(f"CAP_{name}" for n, name in enumerate(_CAPABILITIES) if bits >> n & 1)


def _namespaces(host: Host) -> dict[str, str]:
    found = {name: link(host, f"/proc/self/ns/{name}") for name in _NAMESPACES}
    return {name: number for name, got in found.items() if isinstance(got, str) and (number := _number(got))}


def _number(target: str) -> str:
    """ "net:[4026531840]" as "4026531840"."""
    found = re.fullmatch(r"[a-z_]+:\[(\d{1,20})\]", target, re.ASCII)
    return found.group(1) if found else ""


def _user(euid: int, variables: Mapping[str, Any]) -> str:
    if euid == 0:
        return "root"
    return str(variables.get("USER") or variables.get("LOGNAME") or f"uid {euid}")

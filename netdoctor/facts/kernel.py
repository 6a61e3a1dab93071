"""The kernel: release, command line, modules, sysctls, limits of this process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from netdoctor.facts import spare
from netdoctor.facts.base import Fact, no_evidence
from netdoctor.host.base import Host, mapping, matching, names, read, value
from netdoctor.model import Kind, Unavailable, record

UNLIMITED = -1


@record
class Module:
    """One entry of /sys/module (built in or loaded)."""

    version: str | None  # None: /sys/module/NAME exists without a version file


@record
class Kernel(Fact):
    """Facts of the running kernel as this process sees them."""

    release: str | Unavailable  # "6.8.0-1019-nvidia"
    command_line: str | Unavailable
    modules: Mapping[str, Module | Unavailable]  # of `MODULES`; absent ones are Unavailable(Kind.ABSENT)
    memory_peers: Mapping[str, str | Unavailable]  # /sys/kernel/mm/memory_peers/NAME/version by NAME, of `MEMORY_PEERS`
    sysctls: Mapping[str, str | Unavailable]  # dotted name -> text
    limits: Mapping[str, int | Unavailable]  # soft ones: "memlock", "stack", "as" (bytes), "nofile", "nproc"; or `UNLIMITED`
    shm_size: int | Unavailable  # bytes that /dev/shm may hold
    shm_free: int | Unavailable  # of them those that nobody holds now
    threads: int | Unavailable = Unavailable(Kind.NOT_READ, "/proc/loadavg was not read")  # of all users, on the whole machine
    hard: Mapping[str, int] = field(
        default_factory=dict
    )  # of `limits`, as far as they are told: what their owner may raise them to
    shm_by_default: bool | Unavailable = False  # nobody chose `shm_size`: it is half of the memory
    threads_seen: int = 0  # that there are at least: of a container, where LXCFS shows its own as the machine's
    memory: spare.Memory | Unavailable = Unavailable(Kind.NOT_READ, "/proc/meminfo was not read")
    open_files: tuple[int, int] | Unavailable = Unavailable(Kind.NOT_READ, "file-nr was not read")  # and how many may be

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        """Of each entry that would be looked for it is not known whether it is there."""
        why = no_evidence(why)
        entries = {"modules": MODULES, "memory_peers": MEMORY_PEERS, "sysctls": SYSCTLS, "limits": _LIMITS.values()}
        return {**super()._unread(why), **{field: dict.fromkeys(names, why) for field, names in entries.items()}}

    def sysctl(self, name: str) -> str | Unavailable:
        """A sysctl's text."""
        return self.sysctls.get(name, Unavailable(Kind.NOT_READ, f"{name} was not asked"))

    def limit(self, name: str) -> int | Unavailable:
        """A soft limit of this process, or `UNLIMITED`."""
        return self.limits.get(name, Unavailable(Kind.NOT_READ, f"{name} was not asked"))

    def sysctl_ints(self, name: str) -> tuple[int, ...] | Unavailable:
        """A sysctl that holds integers, e.g. ``net.ipv4.tcp_rmem`` -> (4096, 131072, 6291456)."""
        text = self.sysctl(name)
        if isinstance(text, Unavailable):
            return text
        try:
            values = tuple(int(v) for v in text.split())
        except ValueError:
            return Unavailable(Kind.MALFORMED, f"{name}: {text[:60]!r}")
        return values or Unavailable(Kind.EMPTY, name)


# Modules that NCCL, GPUDirect and RDMA depend on.
MODULES: Final = (
    *("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem", "nv_peer_mem", "gdrdrv"),
    *("ib_core", "ib_uverbs", "ib_umad", "ib_ipoib", "rdma_cm", "rdma_ucm", "rdma_rxe", "siw"),
    *("mlx5_core", "mlx5_ib", "mlx4_core", "mlx4_ib", "bnxt_en", "bnxt_re", "ice", "irdma", "efa", "ena", "mana", "mana_ib"),
    *("amdgpu", "vfio_pci"),
)
# NCCL looks for these (src/transport/net_ib gdr.cc); an ofed or distribution kernel with peer memory has the folder.
MEMORY_PEERS: Final = ("nv_mem", "nv_mem_nc", "nvidia-peermem")
SYSCTLS: Final = (
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_wmem",
    "net.ipv4.tcp_mem",
    "net.ipv4.tcp_congestion_control",
    "net.ipv4.tcp_available_congestion_control",
    "net.ipv4.tcp_moderate_rcvbuf",
    "net.ipv4.tcp_adv_win_scale",
    "net.ipv4.tcp_window_scaling",
    "net.ipv4.tcp_slow_start_after_idle",
    "net.ipv4.tcp_mtu_probing",
    "net.ipv4.tcp_syn_retries",
    "net.ipv4.neigh.default.gc_thresh1",
    "net.ipv4.neigh.default.gc_thresh2",
    "net.ipv4.neigh.default.gc_thresh3",
    "net.ipv6.neigh.default.gc_thresh1",
    "net.ipv6.neigh.default.gc_thresh2",
    "net.ipv6.neigh.default.gc_thresh3",
    "net.core.rmem_max",
    "net.core.wmem_max",
    "net.core.somaxconn",
    "kernel.numa_balancing",
    "kernel.pid_max",
    "kernel.threads-max",
)
_LIMITS: Final = {
    "Max locked memory": "memlock",
    "Max open files": "nofile",
    "Max stack size": "stack",
    "Max processes": "nproc",
    "Max address space": "as",
}


def probe(host: Host) -> Kernel:
    """Each source for itself: what could not be read is Unavailable in its own field."""
    release = read(host, "/proc/sys/kernel/osrelease")
    return Kernel(
        release=release and (release.strip() or Unavailable(Kind.EMPTY, "/proc/sys/kernel/osrelease")),
        command_line=read(host, "/proc/cmdline"),
        modules=_modules(host),
        memory_peers=_memory_peers(host),
        sysctls={name: read(host, f"/proc/sys/{name.replace('.', '/')}") for name in SYSCTLS},
        limits=_limits(host),
        hard={name: most for name, most in _limits(host, 1).items() if not isinstance(most, Unavailable)},
        shm_size=_shm_size(host),
        shm_free=_shm_free(host),
        shm_by_default=_shm_by_default(host),
        threads=_threads(host),
        threads_seen=_counted(host) or 0,
        memory=spare.memory(host),
        open_files=spare.open_files(host),
    )


def _threads(host: Host) -> int | Unavailable:
    """proc_loadavg(5): the kernel's count of all, in whatever PID namespace this is (fs/proc/loadavg.c, nr_threads).

    LXCFS lays a container's own count over it (src/proc_loadavg.c), and gVisor's kernel counts none (pkg/sentry/fsimpl/proc).
    """
    over = mounted(host, "/proc/loadavg")
    if not isinstance(over, Unavailable):
        return Unavailable(Kind.NOT_READ, f"/proc/loadavg is shown by {over[0]}, which may count a container's alone")
    return _counted(host) if over.kind is Kind.ABSENT else over


def _counted(host: Host) -> int | Unavailable:
    found = matching(host, "/proc/loadavg", r"(?:\d{1,9}\.\d\d ){3}\d{1,9}/([1-9]\d{0,8}) ")
    return found if isinstance(found, Unavailable) else int(found[1])


def _shm_size(host: Host) -> int | Unavailable:
    """statvfs(3), for /proc/self/mountinfo also lists mounts that another covers.

    A tmpfs without a limit gives no blocks at all (mm/shmem.c, shmem_statfs), and so does what is no tmpfs.
    """
    size = _shm(host, "size")
    if isinstance(size, Unavailable) or size:
        return size
    mount = mounted(host, "/dev/shm")
    if isinstance(mount, Unavailable):
        return mount
    return _memory(host) if mount[:1] == ["tmpfs"] else Unavailable(Kind.UNSUPPORTED, "what is mounted on /dev/shm is no tmpfs")


def _shm_by_default(host: Host) -> bool | Unavailable:
    """mm/shmem.c, shmem_show_options: a tmpfs of the default size, half of the memory, shows none."""
    mount = mounted(host, "/dev/shm")
    if isinstance(mount, Unavailable):
        return False if mount.kind is Kind.ABSENT else mount
    return mount[:1] == ["tmpfs"] and "size=" not in mount[-1]


def mounted(host: Host, place: str) -> list[str] | Unavailable:
    """Kind, source and options of what was mounted there last (proc_pid_mountinfo(5))."""
    text = read(host, "/proc/self/mountinfo")
    if isinstance(text, Unavailable):
        return no_evidence(text)
    if not text:
        return Unavailable(Kind.EMPTY, "/proc/self/mountinfo")  # there is always a root
    for line in reversed(text.splitlines()):
        left, _, right = line.partition(" - ")
        if left.split()[4:5] == [place] and right.split():
            return right.split()
    return Unavailable(Kind.ABSENT, f"nothing is mounted on {place}")


def _shm_free(host: Host) -> int | Unavailable:
    size = _shm(host, "size")
    return _shm(host, "free") if isinstance(size, Unavailable) or size else _shm_size(host)


def _shm(host: Host, which: str) -> int | Unavailable:
    got = mapping(host, "statvfs:/dev/shm")
    told = got if isinstance(got, Unavailable) else value(got.get(which), int, "statvfs of /dev/shm")
    return Unavailable(Kind.MALFORMED, f"statvfs of /dev/shm: {told}") if isinstance(told, int) and told < 0 else told


def _memory(host: Host) -> int | Unavailable:
    """Bytes of memory (proc_meminfo(5), in KiB)."""
    text = read(host, "/proc/meminfo")
    if isinstance(text, Unavailable):
        return text
    found = re.search(r"^MemTotal:\s+(\d{1,15}) kB$", text, re.ASCII | re.MULTILINE)
    return int(found[1]) << 10 if found else Unavailable(Kind.MALFORMED, "/proc/meminfo has no MemTotal")


def _modules(host: Host) -> dict[str, Module | Unavailable]:
    """Loaded and built-in modules are folders in /sys/module; /proc/modules lacks the built-in ones."""
    listed = names(host, "/sys/module")
    if not isinstance(listed, Unavailable) and not listed:
        listed = Unavailable(Kind.EMPTY, "/sys/module is empty")  # every kernel has built-in modules with parameters
    if isinstance(listed, Unavailable):
        missing = Unavailable(Kind.NOT_READ, str(listed)) if listed.kind == Kind.ABSENT else listed
        return dict.fromkeys(MODULES, missing)
    there = frozenset(listed)
    return {name: _module(host, name) if name in there else Unavailable(Kind.ABSENT) for name in MODULES}


def _module(host: Host, name: str) -> Module | Unavailable:
    version = read(host, f"/sys/module/{name}/version")
    if isinstance(version, Unavailable):
        return Module(None) if version.kind == Kind.ABSENT else version
    return Module(version.strip() or None)


def _memory_peers(host: Host) -> dict[str, str | Unavailable]:
    folder = "/sys/kernel/mm/memory_peers"
    found = {name: read(host, f"{folder}/{name}/version") for name in MEMORY_PEERS}
    if all(isinstance(got, Unavailable) and got.kind == Kind.ABSENT for got in found.values()):
        above = names(host, "/sys/kernel/mm")
        if isinstance(above, Unavailable) or not above:  # without /sys/kernel/mm nothing can be said about what is in it
            return dict.fromkeys(MEMORY_PEERS, Unavailable(Kind.NOT_READ, "/sys/kernel/mm is not seen"))
    return found


def _limits(host: Host, column: int = 0) -> dict[str, int | Unavailable]:
    """The soft ones of /proc/self/limits, or the hard ones: name in 26 columns, soft, hard, unit (proc(5)); memory in bytes."""
    text = read(host, "/proc/self/limits")
    if isinstance(text, Unavailable):
        return dict.fromkeys(_LIMITS.values(), text)
    found: dict[str, int | Unavailable] = dict.fromkeys(_LIMITS.values(), Unavailable(Kind.MALFORMED, "/proc/self/limits"))
    for line in text.splitlines():
        name = line[:26].strip()
        if name in _LIMITS:
            soft = line[26:].split()[column : column + 1]
            if soft == ["unlimited"] or (soft and re.fullmatch(r"\d{1,20}", soft[0], re.ASCII)):
                found[_LIMITS[name]] = UNLIMITED if soft == ["unlimited"] else int(soft[0])
    return found

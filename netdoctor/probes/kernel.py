"""The kernel: release, command line, modules, sysctls, limits of this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from netdoctor.model import Unavailable

UNLIMITED = -1


@dataclass(frozen=True)
class Module:
    """One entry of /sys/module (built in or loaded)."""

    name: str
    version: str | None  # None: /sys/module/NAME exists without a version file
    state: str | None  # "live", None for a built-in one


@dataclass(frozen=True)
class Limit:
    """A resource limit; bytes or counts, `UNLIMITED` (-1) for none."""

    soft: int
    hard: int


@dataclass(frozen=True)
class Kernel:
    """Facts of the running kernel as this process sees them."""

    release: str | Unavailable  # "6.8.0-1019-nvidia"
    command_line: str | Unavailable
    modules: Mapping[
        str, Module | Unavailable
    ]  # the modules that checks name: nvidia, nvidia_peermem, ib_core, mlx5_core…; absent ones are Unavailable("absent")
    memory_peers: Mapping[
        str, str | Unavailable
    ]  # /sys/kernel/mm/memory_peers/NAME/version by NAME (nv_mem, nv_mem_nc, nvidia-peermem)
    sysctls: Mapping[str, str | Unavailable]  # dotted name -> text
    limits: Mapping[str, Limit | Unavailable]  # "memlock" (bytes), "nofile", "stack" (bytes), "nproc"
    driver: str | Unavailable  # first line of /proc/driver/nvidia/version

    @property
    def version(self) -> tuple[int, int] | Unavailable:
        """(major, minor) of `release`."""
        if isinstance(self.release, Unavailable):
            return self.release
        head = self.release.split("-")[0].split(".")
        try:
            return int(head[0]), int(head[1])
        except (ValueError, IndexError):
            return Unavailable("malformed", f"kernel release {self.release!r}")

    def sysctl_ints(self, name: str) -> tuple[int, ...] | Unavailable:
        """A sysctl that holds integers, e.g. ``net.ipv4.tcp_rmem`` -> (4096, 131072, 6291456)."""
        text = self.sysctls.get(name, Unavailable("not read", name))
        if isinstance(text, Unavailable):
            return text
        try:
            values = tuple(int(v) for v in text.split())
        except ValueError:
            return Unavailable("malformed", f"{name}: {text[:60]!r}")
        return values or Unavailable("empty", name)

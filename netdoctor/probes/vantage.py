"""Who looks, and from where.  Evidence that must be the job's own, seen from elsewhere, never makes a pass."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class Vantage:
    """The place that netdoctor looks from."""

    kind: str  # "host" | "container" | "pod-init" | "pod" | "prolog" | "wrapper" | "host-root"
    runtime: str | None  # "docker" "podman" "kubernetes" "apptainer" "enroot" "lxc" "unknown container"; None on a host
    euid: int
    user: str
    root_is_root: bool | Unavailable  # uid_map is the identity: uid 0 here is uid 0 of the host
    capabilities: frozenset[str] | Unavailable  # effective, e.g. {"CAP_IPC_LOCK"}
    namespaces: dict[str, str]  # {"net": "4026531840", "user": …}; a missing key could not be read
    cgroup: str | Unavailable
    job_user: bool  # openness, memlock and masks seen here are the job's own
    job_network: bool  # interfaces, ports and buffers seen here are the job's own
    job_environment: bool  # variables, libraries and interpreter seen here are the job's own
    why_not: str = ""  # e.g. "seen as root outside the job"

    @property
    def in_container(self) -> bool:
        return self.runtime is not None

"""The container, if any: runtime, user mapping, /dev/shm, memlock."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.model import Unavailable


@dataclass(frozen=True)
class Container:
    """What the runtime gave this process."""

    runtime: str | None | Unavailable  # as Vantage.runtime; None: no container
    uid_map: tuple[tuple[int, int, int], ...] | Unavailable
    shm_size: int | Unavailable  # bytes of /dev/shm
    shm_free: int | Unavailable
    devices_from_host: bool | Unavailable  # /dev is a devtmpfs (the host's) rather than a container's tmpfs

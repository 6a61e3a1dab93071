"""What each check may find beside its own cause: `netdoctor explain` says it, and tests hold every finding against it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from netdoctor.causes import CAUSES

# Of what the site or the past expects (netdoctor/expectation/findings.py, by quantity).
_EXPECTED: Final = ("inventory", "link_degraded", "odd_one_out", "mtu", "roce_gid", "gpu_slow", "fabric_manager", "gpu_error")
# Theirs may be any cause that the log of a run shows.
BY_LOG: Final = frozenset({"allreduce.run", "allreduce.nodes"})
FINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "allreduce.bandwidth": ("transport_fallback_tcp", "tcp_tuning", "link_degraded"),
    "gpu.dcgm": ("gpu_memory", "gpu_slow", "link_degraded"),
    "gpu.fabric": ("p2p_disabled", "nvls_failure", "link_degraded", "device_mapping", "imex"),
    "gpu.health": ("gpu_memory", "gpu_slow", "link_degraded", "odd_one_out"),
    "gpu.mapping": ("duplicate_gpu",),
    "hardware.accelerator": ("cuda_driver_mismatch",),
    "hardware.gpus": ("link_degraded", "odd_one_out"),
    "hardware.hca": ("dev_infiniband_missing",),
    "hardware.rails": ("roce_gid", "mtu", "link_degraded", "odd_one_out"),
    "hardware.past": _EXPECTED,
    "hardware.site": _EXPECTED,
    "nccl.environment": (
        *("transport_fallback_tcp", "gdr_disabled", "socket_ifname", "p2p_disabled", "shm_disabled_or_small", "hang"),
    ),
    "net.reach": ("mtu",),
    "net.socket_ifname": ("firewall_connect", "env_misuse", "mtu", "low_bandwidth"),
    "node.folders": ("process_limits",),
    "node.system": ("firewall_connect", "node_storage", "process_limits"),
    "rdma.dev_infiniband": (
        *("transport_fallback_tcp", "memlock", "ib_timeout", "roce_gid", "env_misuse", "link_degraded", "inventory"),
    ),
    "rdma.gid": ("env_misuse",),
    "torch.backend": ("cuda_driver_mismatch", "device_mapping"),
}


def found_by(check: str, own: str) -> tuple[str, ...]:
    """Causes that a check may find beside its `own`; of a site's check those that name it."""
    listed = CAUSES if check in BY_LOG else FINDS.get(check, ())
    named = [name for name, cause in CAUSES.items() if check in cause.look]
    return tuple(name for name in CAUSES if name in {*listed, *named} - {own})

"""What a line of a log can be: a row of `patterns` finds it."""

from __future__ import annotations

from typing import Literal

_Connect = Literal[
    "no_interface",
    "address_family",
    "connect",
    "connect_gave_up",
    "bind",
    "peer_closed",
    "secondary",
    "stranger",
    "mpi_peer",
    "no_way",
]
_Memory = Literal["shm_full", "shm_error", "oom", "memlock", "mkey", "descriptors", "polled", "threads"]
_Verbs = Literal[
    "completion",
    "async_event",
    "modify_qp",
    "query_gid",
    "poll_cq",
    "adapter_failed",
    "address_handle",
    "register",
    "open_device",
    "provider",
    "rdma_error",
]
_Devices = Literal["mixed_link", "net_counts", "topo_attribute", "acs", "iommu_fault", "xid", "gpu_lost", "peermem", "imex"]
_Plugins = Literal["net_not_found", "net_none", "plugin_load", "plugin_old", "gdrcopy", "gdr_off_plugin"]
_Libfabric = Literal["device_refused", "ofi_init", "ofi_any", "ofi_request", "ofi_register"]
_Gpu = Literal[
    "cuda", "cuda_alloc", "driver", "duplicate_gpu", "fabric_manager", "nvls_bind", "multicast", "nvlink_p2p", "nvlink_degraded"
]
_Ranks = Literal["version", "garbled", "sizes_differ", "order_differs", "variable", "rank_twice", "generic", "died", "diag"]
_Torch = Literal[
    "watchdog",
    "heartbeat",
    "torch_echo",
    "store",
    "store_get",
    "store_port",
    "ras",
    "lagging",
    "enqueued",
    "stack",
    "barrier",
    "elastic",
    "no_backend",
]
_Caller = Literal[
    "exception",
    "raised",
    "handled",
    "bad_answer",
    "stood",
    "test_failed",
    "tensor",
    "reducer",
    "world_size",
    "kernel_assert",
    "too_old",
    "unloaded",
    "wrong_data",
    "no_number",
    "lessened",
    "meant_cpu",
    "stands",
    "spawned",
    "no_launcher",
]
_Endings = Literal[
    "ended",
    "node_failed",
    "node_silent",
    "unit",
    "unstarted",
    "placed",
    "gpus_free",
    "coordinator",
    "stalled",
    "actor_died",
    "finished",
    "last_words",
]
_Surroundings = Literal[
    "unresolved",
    "service",
    "storage",
    "short",
    "nvml",
    "rendezvous_closed",
    "straggler",
    "step_ended",
    "stderr_elsewhere",
    "ucx_no_cuda",
    "dcgm",
    "serving",
    "hello",
    "mount",
    "blocked",
    "lockup",
    "engine",
    "library",
    "orphaned",
    "fatal",
    "help",
    "told",
    "told_node",
]  # what stands around a job
_Unknown = Literal["trouble", "warning", "trail"]  # lines that say that something failed, and that no rule explains
_Gloo = Literal["gloo_address", "gloo_connect", "gloo_loopback", "gloo_timeout"]
EventKind = (
    _Connect
    | _Memory
    | _Verbs
    | _Devices
    | _Plugins
    | _Libfabric
    | _Gpu
    | _Ranks
    | _Torch
    | _Gloo
    | _Caller
    | _Endings
    | _Surroundings
    | _Unknown
)

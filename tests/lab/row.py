"""What a live row is, and the ways to write one: a change of a healthy machine, and what must be found.

`expected` is check -> the status (and, for a fail, its cause) of a finding that the healthy machine does not have; an empty one
is a change that harms nothing.  ``unknown: words`` is an unknown that says these words, which the healthy machine's does not:
without an all-reduce much is unknown there too, for another reason.  `also` names checks that a fault changes rightly, with the
reason; no other may change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from tests.support.namespaces.dgx import Scene

RDMA, HARDWARE, CPU, GDR = "rdma.dev_infiniband", "hardware.accelerator", "cpu.numa_affinity", "rdma.gpudirect"
HCA, GIDS = "hardware.hca", "rdma.gid"
IFNAME, PORTS, BUFFERS = "net.socket_ifname", "net.port_range", "net.tcp_buffers"
PLUGIN, REACH = "net.plugin", "net.reach"
VERSION, BACKEND, ENVIRONMENT, SHM = "nccl.version", "torch.backend", "nccl.environment", "nccl.shared_memory"
RUN, BANDWIDTH, ERRORS = "allreduce.run", "allreduce.bandwidth", "net.errors"
NONE = {BANDWIDTH: "the run gave none", ERRORS: "a run that did not start shows no link"}
LINKS, GPUS, RAILS = "hardware.links", "hardware.gpus", "hardware.rails"
HEALTH, FABRIC, MAPPING = "gpu.health", "gpu.fabric", "gpu.mapping"
SITE, PAST, LIMITS, SYSTEM = "hardware.site", "hardware.past", "process.limits", "node.system"
WAY = "pci.path"
FOLDERS, DCGM, CLOCK = "node.folders", "gpu.dcgm", "node.clock"

SOCKETS: Final = Scene(tree={"hcas": 0}, config="{job: {nodes: 2}, expected: {gpus: 8, rtt_ms: 0.2}}")
CPUS: Final = Scene(bare=True, options=("--vantage", "job"), config="{expected: {busbw_floor: {64MiB: 0.1}}}")
# Without a usable RDMA device sockets carry the data, and these judge what they had no reason to judge.
BY_SOCKETS: Final = dict.fromkeys((BUFFERS, CPU, IFNAME), "sockets carry the data now")
NVML_GONE: Final = dict.fromkeys(
    (GDR, CPU, RDMA, HEALTH, FABRIC, MAPPING, "pci.path", "hardware.gpus", "hardware.rails", "hardware.site"),
    "which GPU sits where is known from NVML",
)
OF_GPUS: Final = ("gpu.dcgm", "gpu.fabric", "gpu.health", "gpu.mapping", "pci.path")
OF_HARDWARE: Final = ("hardware.hca", "hardware.gpus", "hardware.links", "hardware.rails", "hardware.site", *OF_GPUS)
UNPRIVILEGED: Final = "setpriv --bounding-set -all --inh-caps -all"  # root without CAP_DAC_OVERRIDE is a user like others


@dataclass(frozen=True)
class Row:
    fault: str
    scene: Scene
    expected: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[str, str] = field(default_factory=dict)
    base: Scene = field(default_factory=Scene)
    needs: tuple[str, ...] = ()  # programs, or names of tests.lab.live.NEEDS: without them the row is counted as not run
    source: str = ""  # of the expectation (`expectation.model.Source`) that a fail of it must name


def by_environment(fault: str, expected: Mapping[str, str], also: Mapping[str, str] | None = None, **env: str) -> Row:
    too = {} if ENVIRONMENT in expected else {ENVIRONMENT: "it judges the variable too"}
    return Row(fault, Scene(env=env), expected, {**too, **(also or {})})


def in_a_run(fault: str, expected: Mapping[str, str], setup: str = "", options: tuple[str, ...] = (), **env: str) -> Row:
    """A change of a machine without GPU, whose two Gloo ranks are real."""
    also = NONE if RUN in expected else {}
    return Row(fault, replace(CPUS, setup=setup, env=env, options=(*CPUS.options, *options)), expected, also, CPUS)


def planted(fault: str, where: str, expected: Mapping[str, str], *options: str) -> Row:
    """A fault in the ranks themselves: tests/fakes/faulty_torch is the real torch, but for what TORCH_FAULT names."""
    return in_a_run(fault, expected, "", options, PYTHONPATH="FAKES/faulty_torch:ROOT", TORCH_FAULT=where)


def by_sockets(fault: str, setup: str, expected: Mapping[str, str], **env: str) -> Row:
    """A change of the network of a machine whose sockets carry the data."""
    return Row(fault, replace(SOCKETS, setup=setup, env={**SOCKETS.env, **env}), expected, {}, SOCKETS)

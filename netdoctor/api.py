"""The only module that a check may import: facts, findings and how to make them.  A test pins its names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from netdoctor.allreduce.cause import OBSTACLES, Scarce, at_a_limit, cause_of, out_of_memory
from netdoctor.allreduce.limits import Limit as PathLimit, path_limit, without_p2p
from netdoctor.causes import CAUSES, cost
from netdoctor.cluster import network as cluster_network
from netdoctor.cluster.observations import Cluster, Culprit, Fault as MeetingFault
from netdoctor.expectation import comparisons as expectation
from netdoctor.facts import layers
from netdoctor.facts.accelerator import Accelerator, accelerator, others
from netdoctor.facts.cgroups import Cap, Cgroups, Counted, LimitsMet
from netdoctor.facts.clock import Clock
from netdoctor.facts.cpu import Cpu, MemoryPolicy, Node
from netdoctor.facts.dcgm import Dcgm, Diagnosed, Health as DcgmHealth, Incident, Outcome
from netdoctor.facts.device_names import DeviceNames
from netdoctor.facts.environ import Environ, Launcher, Setting
from netdoctor.facts.fabric import Fabric
from netdoctor.facts.flat_rails import FlatRails
from netdoctor.facts.gpu import Gpu, Gpus, VisibleGpu
from netdoctor.facts.gpu_health import HW_SLOWDOWN, HW_THERMAL, POWER_BRAKE, SW_THERMAL, GpuHealth, GpuState
from netdoctor.facts.gpu_load import GpuLoad
from netdoctor.facts.gpu_users import GpuUsers
from netdoctor.facts.intent import STATE_NODES, STATE_RANKS, Intent, Told, between_nodes, if_it_starts_more
from netdoctor.facts.interrupts import Interrupts
from netdoctor.facts.inventory import inventory
from netdoctor.facts.job import Expected
from netdoctor.facts.kernel import UNLIMITED, Kernel, Module
from netdoctor.facts.kernel_log import LOOK_AT_LOG, WHOLE_LOG, Action, KernelLog, SystemEvent, Trouble, XidEvent
from netdoctor.facts.layers import Bound, Gift, GpuLayers, Said
from netdoctor.facts.libraries import Libraries, NcclLibrary
from netdoctor.facts.library_search import GIVE_PYTHON, JobPython, Linkage, Torch
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.nccl_version import Version, parse as parse_version, text as version_text
from netdoctor.facts.net import Address, Link, LocalPorts, Net, Peer, Route
from netdoctor.facts.net_errors import Errors, NetErrors
from netdoctor.facts.past import Past
from netdoctor.facts.pci import Pci, PciDevice, PciLink
from netdoctor.facts.pci_path import PciPath
from netdoctor.facts.platform import Platform
from netdoctor.facts.plugins import Plugin
from netdoctor.facts.ranks import Ranks, SeenRank
from netdoctor.facts.rdma import Provider, Rdma, RdmaDevice, Uverbs
from netdoctor.facts.rdma_ports import Gid, RdmaPort
from netdoctor.facts.reach import Path, Reach
from netdoctor.facts.runs import (
    WITH_RUN,
    Baseline,
    Caller,
    CommonRun,
    Control,
    Cure,
    Obstacle,
    PathRun,
    RankResult,
    Run,
    State,
    TorchFacts,
    Way,
)
from netdoctor.facts.sysctl_files import SysctlFiles
from netdoctor.facts.system import CLOSED, Room, System
from netdoctor.facts.tasks import Tasks
from netdoctor.facts.vantage import FROM_JOB, Vantage
from netdoctor.fixes import fix_container, fix_environment, fix_gpudirect, fix_rdma_device, fix_sysctl
from netdoctor.model import NODE, Finding, Fix, Kind, Loss, Quantity, Severity, Status, Unavailable, count, missing, size_text
from netdoctor.model.records import record
from netdoctor.nccl import (
    affinity,
    devices,
    direct_paths,
    footprint,
    gid as gids,
    gloo_rate,
    gpudirect,
    hcas,
    ifname,
    in_use,
    interfaces,
    locked_memory,
    neighbours,
    net_plugin,
    one_subnet,
    open_errors,
    partition,
    path_mtu,
    plugins as nccl_plugins,
    ports as nccl_ports,
    rails,
    rdma_handles,
    reaching,
    slurm_cpus,
    tcp_window,
    traffic_class,
    transport,
)
from netdoctor.nccl.assignment import assigned
from netdoctor.nccl.direct_paths import Pair, Paths as DirectPaths
from netdoctor.nccl.gdr_evidence import GdrProof, gdr_mechanisms, gdr_proof, gdr_sends
from netdoctor.nccl.integers import integer as nccl_integer, param as nccl_param
from netdoctor.nccl.log.facts import SOCKET, LogFacts
from netdoctor.nccl.rdma_access import Step, Usable, usable
from netdoctor.nccl.selector import Selector, parse_hcas
from netdoctor.nccl.shared_memory import pool_bytes as shm_pool
from netdoctor.nccl.shm_connections import bytes_of as shm_connections
from netdoctor.nccl.shm_proof import REFUSED as SHM_REFUSED, ShmProof
from netdoctor.nccl.spread import Spread
from netdoctor.nccl.turns import Nccl
from netdoctor.nccl.used_version import job_torch, loader_rules_say, seen_loaded, used_nccl
from netdoctor.variables import hardware_rules as node_variables, judge as nccl_environment

Judge = Callable[..., Iterable[Finding]]
J = TypeVar("J", bound=Judge)


@record
class CheckSpec:
    """What `check` attaches to a judge function: ``__netdoctor_check__``."""

    id: str
    title: str  # the healthy statement
    cause: str
    judge: Judge


def check(*, id: str, title: str, cause: str) -> Callable[[J], J]:
    """Declare a check.  `id` is ``area.name``, `title` says what is true on a healthy node, `cause` is of the vocabulary.

    The function's parameters are its needs, by type: ``net: Net``.  A fact is always there; a field of it that could not be
    read is Unavailable and says why.  Raises ValueError for a cause that is not in the vocabulary.
    """
    if cause not in CAUSES:
        raise ValueError(f"check {id}: no such cause: {cause}")

    def mark(judge: J) -> J:
        judge.__netdoctor_check__ = CheckSpec(id, title, cause, judge)  # type: ignore[attr-defined]
        return judge

    return mark


def ok(
    message: str,
    *,
    subject: str = NODE,
    measured: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
    **evidence: Any,
) -> Finding:
    """A pass.  `notes` carry advice; keyword arguments are stable evidence."""
    return Finding(Status.PASS, message, subject, evidence=evidence, measured=measured or {}, notes=tuple(notes))


def skip(message: str, *, subject: str = NODE, **evidence: Any) -> Finding:
    """Does not apply; `message` is the positive evidence that it does not."""
    return Finding(Status.SKIP, message, subject, evidence=evidence)


def unknown(
    message: str,
    *,
    subject: str = NODE,
    how: str | None = None,
    measured: Mapping[str, Any] | None = None,
    **evidence: Any,
) -> Finding:
    """Applies, but could not tell; `how` says how to find out."""
    return Finding(Status.UNKNOWN, message, subject, evidence=evidence, measured=measured or {}, how=how)


def fail(
    message: str,
    *,
    subject: str = NODE,
    severity: Severity | None = None,
    cause: str | None = None,
    expected: str | None = None,
    fix: Fix | None = None,
    why: str | None = None,
    how: str | None = None,
    cure: Cure | None = None,
    loss: Loss | None = None,
    measured: Mapping[str, Any] | None = None,
    **evidence: Any,
) -> Finding:
    """Something is wrong.  `loss` says what it takes from the job (`cost` has the formulas), and so how bad it is; both
    default to those of the check's cause.  `severity` is for a site's own checks; the engine tries `cure`."""
    said = (message, subject, severity, cause, expected, evidence, measured or {})
    return Finding(Status.FAIL, *said, how=how, why=why, fix=fix, cure=cure, loss=loss)


__all__ = [
    "CLOSED",
    "FROM_JOB",
    "GIVE_PYTHON",
    "HW_SLOWDOWN",
    "HW_THERMAL",
    "LOOK_AT_LOG",
    "OBSTACLES",
    "POWER_BRAKE",
    "SHM_REFUSED",
    "SOCKET",
    "STATE_NODES",
    "STATE_RANKS",
    "SW_THERMAL",
    "UNLIMITED",
    "WHOLE_LOG",
    "WITH_RUN",
    "Accelerator",
    "Action",
    "Address",
    "Baseline",
    "Bound",
    "Caller",
    "Cap",
    "Cgroups",
    "Clock",
    "Cluster",
    "CommonRun",
    "Control",
    "Counted",
    "Cpu",
    "Culprit",
    "Cure",
    "Dcgm",
    "DcgmHealth",
    "DeviceNames",
    "Diagnosed",
    "DirectPaths",
    "Environ",
    "Errors",
    "Expected",
    "Fabric",
    "Finding",
    "Fix",
    "FlatRails",
    "GdrProof",
    "Gid",
    "Gift",
    "Gpu",
    "GpuHealth",
    "GpuLayers",
    "GpuLoad",
    "GpuState",
    "GpuUsers",
    "Gpus",
    "Incident",
    "Intent",
    "Interrupts",
    "JobPython",
    "Kernel",
    "KernelLog",
    "Kind",
    "Launcher",
    "Libraries",
    "LimitsMet",
    "Link",
    "Linkage",
    "LocalPorts",
    "LogFacts",
    "Loss",
    "MeetingFault",
    "MemoryPolicy",
    "Module",
    "Nccl",
    "NcclChoice",
    "NcclLibrary",
    "Net",
    "NetErrors",
    "Node",
    "Obstacle",
    "Outcome",
    "Pair",
    "Past",
    "Path",
    "PathLimit",
    "PathRun",
    "Pci",
    "PciDevice",
    "PciLink",
    "PciPath",
    "Peer",
    "Platform",
    "Plugin",
    "Provider",
    "Quantity",
    "RankResult",
    "Ranks",
    "Rdma",
    "RdmaDevice",
    "RdmaPort",
    "Reach",
    "Room",
    "Route",
    "Run",
    "Said",
    "Scarce",
    "SeenRank",
    "Selector",
    "Setting",
    "Severity",
    "ShmProof",
    "Spread",
    "State",
    "Status",
    "Step",
    "SysctlFiles",
    "System",
    "SystemEvent",
    "Tasks",
    "Told",
    "Torch",
    "TorchFacts",
    "Trouble",
    "Unavailable",
    "Usable",
    "Uverbs",
    "Vantage",
    "Version",
    "VisibleGpu",
    "Way",
    "XidEvent",
    "accelerator",
    "affinity",
    "assigned",
    "at_a_limit",
    "between_nodes",
    "cause_of",
    "check",
    "cluster_network",
    "cost",
    "count",
    "devices",
    "direct_paths",
    "expectation",
    "fail",
    "fix_container",
    "fix_environment",
    "fix_gpudirect",
    "fix_rdma_device",
    "fix_sysctl",
    "footprint",
    "gdr_mechanisms",
    "gdr_proof",
    "gdr_sends",
    "gids",
    "gloo_rate",
    "gpudirect",
    "hcas",
    "if_it_starts_more",
    "ifname",
    "in_use",
    "interfaces",
    "inventory",
    "job_torch",
    "layers",
    "loader_rules_say",
    "locked_memory",
    "missing",
    "nccl_environment",
    "nccl_integer",
    "nccl_param",
    "nccl_plugins",
    "nccl_ports",
    "neighbours",
    "net_plugin",
    "node_variables",
    "ok",
    "one_subnet",
    "open_errors",
    "others",
    "out_of_memory",
    "parse_hcas",
    "parse_version",
    "partition",
    "path_limit",
    "path_mtu",
    "rails",
    "rdma_handles",
    "reaching",
    "record",
    "seen_loaded",
    "shm_connections",
    "shm_pool",
    "size_text",
    "skip",
    "slurm_cpus",
    "tcp_window",
    "traffic_class",
    "transport",
    "unknown",
    "usable",
    "used_nccl",
    "version_text",
    "without_p2p",
]

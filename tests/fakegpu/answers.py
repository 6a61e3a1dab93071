"""What netdoctor's helper programs answer on a machine: for what is recorded of it without its being started.

A live test lets the real helpers ask the fake libraries and compares.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

import pynvml

from netdoctor.facts import ib_speed
from netdoctor.host.base import Answer
from netdoctor.host.helpers import net_errors as counters
from netdoctor.host.helpers.cuda import ATTRIBUTES
from netdoctor.host.helpers.nvml import why
from netdoctor.model import Kind, Unavailable
from tests.fakegpu.machine import Machine
from tests.fakegpu.parts import Gpu

LO_FLAGS, UP_FLAGS, DOWN_FLAGS = 65609, 69699, 4099  # as the kernel gives them in RTM_NEWLINK
MISSING = "cannot open shared object file: No such file or directory"


def _absent(text: str) -> Unavailable:
    return Unavailable(Kind.ABSENT, text)


def nvml(machine: Machine) -> Answer:
    if not machine.gpus or not machine.shown:
        return _absent("NVML: NVML Shared Library Not Found")
    devices = [_nvml_device(machine, n, gpu) for n, gpu in enumerate(machine.gpus)]
    unknown = why(pynvml, pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND))
    secret = {"on": False, "ready": unknown}  # as c/nvml_health.c, which lacks the second function
    return {
        "driver": machine.driver,
        "cuda": machine.cuda,
        "devices": devices,
        "p2p": _pairs(machine),
        "confidential": secret,
    }


def _pairs(machine: Machine) -> list[list[int]]:
    """Each pair of GPUs: reading, writing, NVLink."""
    out = []
    for a, b in itertools.combinations(range(len(machine.gpus)), 2):
        status = machine.p2p.get((a, b), machine.p2p.get((b, a), 0))
        out.append([a, b, status, status, status or (0 if machine.gpus[a].nvlinks else 5)])
    return out


def _health(gpu: Gpu) -> dict[str, Any]:
    """As c/nvml_health.c tells it."""
    told: Mapping[str, Any] = gpu.state
    refused = why(pynvml, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    ecc = not told.get("consumer")
    counted = ecc and told.get("ecc.mode", 1)
    return {
        "ecc": [told.get("ecc.mode", 1), told.get("ecc.pending_mode", told.get("ecc.mode", 1))] if ecc else refused,
        "remapped": [told.get(f"remapped.{one}", 0) for one in ("corrected", "uncorrected", "pending", "failed")]
        if ecc
        else refused,
        "retired_pending": refused,
        "reasons": told.get("throttle", 1),
        "power_limit": told.get("power.limit", 700000),
        "power_default": told.get("power.default", 700000),
        "temperature": told.get("temperature", 35),
        "slowdown": told.get("temperature.slowdown", 89),
        "persistence": told.get("persistence", 1),
        "compute_mode": told.get("compute_mode", 0),
        "replays": told.get("replays.before", 0),
        "uncorrected": {"dram": told.get("ecc.uncorrected", 0), "sram": told.get("ecc.sram", 0)} if counted else refused,
        "uncorrected_ever": {"dram": told.get("ecc.uncorrected_aggregate", 0), "sram": 0} if counted else refused,
        "retired": refused,
        "sram_threshold": bool(told.get("ecc.sram_threshold", 0)) if ecc else refused,
        "recovery": told.get("recovery", 0) if ecc else refused,
        "bar1": [
            told.get("bar1", max(131072 << 20, 1 << (gpu.memory - 1).bit_length())),  # a BAR's size is a power of two
            told.get("bar1.used", 1 << 20),
        ],
        "inforom": not told.get("inforom.corrupted"),
    }


def _fabric(gpu: Gpu) -> dict[str, Any]:
    told: Mapping[str, Any] = gpu.state
    if "fabric.state" not in told:
        return why(pynvml, pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED))
    cluster = str(told.get("fabric.cluster", ""))
    return {
        **{name: told.get(f"fabric.{name}", 0) for name in ("state", "status", "clique", "health")},
        "cluster": cluster if len(cluster) >= 32 else "0" * 32,
    }


def gpu_load(machine: Machine) -> Answer:
    """What the helper that looks on during an all-reduce would have seen on a machine where it runs well."""
    devices: list[dict[str, Any]] = [
        {
            "uuid": uuid(gpu),
            "samples": gpu.state.get("samples", 20),
            "clock": gpu.state.get("clock.sm", 1980),
            "clock_max": gpu.state.get("clock.sm_max", 1980),
            "reasons": {},
            "replays": gpu.state.get("replays.rising", 0),
            "nvlink": [0] * len(gpu.nvlinks),
        }
        for gpu in machine.gpus
    ]
    return {"seconds": 4.0, "devices": devices}


def net_errors(machine: Machine) -> Answer:
    """What the counters of interfaces and ports tell before and after an all-reduce on a machine where nothing is wrong."""
    clean = dict.fromkeys((*filter(None, counters.STATS), "carrier_down"), 0)
    names = ["lo", *(one.name for one in machine.interfaces)]
    efa = {"unavailable": "absent", "detail": "No such file or directory"}  # it has no agent for performance
    own = dict.fromkeys(counters.EFA, 0)
    of_ports: dict[str, dict[str, Any]] = {
        f"{hca.name}:{number}": {**dict.fromkeys(counters.PMA, efa), **own}
        if hca.driver == "efa"
        else dict.fromkeys(counters.PMA, 0)
        for hca in machine.hcas
        for number in range(1, len(hca.ports) + 1)
    }
    return {
        "seconds": 4.0,
        "interfaces": {name: {"total": clean, "rose": clean} for name in names},
        "ports": {name: {"total": told, "rose": told} for name, told in of_ports.items()},
    }


def _nvml_device(machine: Machine, index: int, gpu: Gpu) -> dict[str, Any]:
    place = gpu.place.address
    memory = _refused(machine, "nvmlDeviceGetMemoryInfo")
    return {
        "index": index,
        "uuid": uuid(gpu),
        "name": gpu.name,
        "pci": f"{int(place[:4], 16):08X}:{place[5:].upper()}",
        "memory_total": memory or gpu.memory,
        "memory_used": memory or gpu.state.get("used", 4 << 20),
        "utilization": gpu.state.get("utilization", 0),
        "processes": gpu.state.get("processes", 0),
        "pids": [],
        "graphics": gpu.state.get("graphics", 0),
        "nvlinks": [link.up for link in gpu.nvlinks],
        "mig": False,
        "mig_waits": bool(gpu.state.get("mig.pending", 0)),
        "mig_uuids": [],
        "capability": list(divmod(gpu.capability, 10)),
        "health": _health(gpu),
        "fabric": _fabric(gpu),
    }


def uuid(gpu: Gpu) -> str:
    return f"GPU-{UUID(gpu.uuid)}"


def _refused(machine: Machine, call: str) -> dict[str, Any] | None:
    """The answer about a call that fails whenever it is made, by the machine's faults."""
    for name, which, result in (one.split() for one in machine.faults):
        if (name, which) == (call, "*"):
            return why(pynvml, pynvml.NVMLError(int(result)))
    return None


def cuda(machine: Machine) -> Answer:
    if not machine.gpus or not machine.shown:
        return _absent(f"libcuda.so.1: {MISSING}")
    devices: list[dict[str, Any]] = [
        {
            "ordinal": n,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "attributes": {str(number): gpu.attributes.get(number, 0) for number in ATTRIBUTES},
        }
        for n, gpu in enumerate(machine.gpus)
    ]
    return {"driver_version": machine.cuda, "devices": devices}


def ibverbs(machine: Machine, library: str) -> Answer:
    if not machine.hcas:
        return _absent(f"libibverbs.so.1: {MISSING}")
    devices = {
        hca.name: {
            "context": True,
            "error": "",
            "dmabuf": "EBADF" if hca.dmabuf else "EOPNOTSUPP",
            "mtu": {str(n): port.mtu for n, port in enumerate(hca.ports, 1)},
            "link": {str(n): _numbers(port.rate) for n, port in enumerate(hca.ports, 1)},
        }
        for hca in machine.hcas
        if hca.node is not None and hca.mode is not None
    }
    return {"library": library, "devices": devices}


def _numbers(rate: float) -> list[int]:
    """Width and speed of a port of this rate, four lanes before others, as `link_of` of c/verbs.c has them."""
    codes = [(width, speed) for width in (2, 1, 4) for speed in (1, 2, 4, 16, 32, 64, 128)]
    return next(([*pair] for pair in codes if (found := ib_speed.by_number(*pair)) and found[0] == rate), [1, 1])


def netlink(machine: Machine, listening: Iterable[int] = ()) -> Answer:
    indexes = {one.name: one.index for one in machine.interfaces}
    return {
        "links": [
            _link("lo", 1, "00:00:00:00:00:00", flags=LO_FLAGS, type=772, mtu=65536),
            *(
                _link(
                    one.name,
                    one.index,
                    one.mac,
                    flags=UP_FLAGS if one.nic.up else DOWN_FLAGS,
                    type=32 if one.nic.infiniband else 1,
                    mtu=one.nic.mtu,
                    kind=one.nic.kind or None,
                    controller=indexes.get(one.nic.controller),
                )
                for one in machine.interfaces
            ),
        ],
        "addresses": list(_addresses(machine)),
        "default": {
            "4": {"error": "ENETUNREACH"}
            if machine.default is None
            else {**dict(zip(("oif", "source", "gateway"), machine.default, strict=True)), "kind": "unicast"},
            "6": {"error": "ENETUNREACH"},
        },
        "listening": [[port, 0] for port in listening],
    }


def _link(name: str, index: int, mac: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "index": index, "kind": None, "controller": None, "address": mac, **more}


def _addresses(machine: Machine) -> Iterator[dict[str, Any]]:
    """IPv4 first, as the kernel lists them."""
    yield _address("127.0.0.1", 1, "lo", 8, "host")
    for one in machine.interfaces:
        ip, _, prefix = one.address.partition("/")
        if ip:
            yield _address(ip, one.index, one.name, int(prefix), "global")
    yield _address("::1", 1, None, 128, "host")


def _address(ip: str, index: int, label: str | None, prefix: int, scope: str) -> dict[str, Any]:
    family = 6 if ":" in ip else 4
    return {"family": family, "flags": [], "index": index, "ip": ip, "label": label, "prefix": prefix, "scope": scope}

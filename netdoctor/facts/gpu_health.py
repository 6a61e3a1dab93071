"""The state of each GPU, as NVML tells it: memory errors, clocks, temperature, power, its place in an NVLink fabric."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final, TypeVar

from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import pci_address
from netdoctor.host.base import Host, mapping, value
from netdoctor.model import Kind, Unavailable, missing, record, unavailable_in

T = TypeVar("T")

# nvmlClocksEventReason*: what lowers the clocks and is not the job's, an idle GPU's or the site's own setting.
HW_SLOWDOWN: Final = 0x8
SW_THERMAL: Final = 0x20
HW_THERMAL: Final = 0x40
POWER_BRAKE: Final = 0x80
# What else keeps them low, each with a reason of its own: idle, the power limit, another GPU of a group, a display.
IDLE: Final = 0x1
SW_POWER: Final = 0x4
SYNC_BOOST: Final = 0x10
DISPLAY: Final = 0x100
EXCLUSIVE: Final = (1, 3)  # nvmlComputeMode_t: one thread, one process
_UUID: Final = re.compile("[0-9a-f]{32}")


_NOT_ASKED: Final = Unavailable(Kind.UNSUPPORTED, "NVML was not asked for it")


@record
class FabricInfo:
    """nvmlGpuFabricInfo_v2_t."""

    state: int  # 0 in no fabric, 1 not started, 2 in progress, 3 completed
    status: int  # nvmlReturn_t, of a state that is completed
    clique: int
    cluster: str  # 32 hex digits, all 0 where the fabric is the node's own
    health: int  # bits: NVML_GPU_FABRIC_HEALTH_MASK_*


@record
class GpuState:
    """What NVML tells of one GPU; a field that this GPU or driver does not have is Unavailable(UNSUPPORTED)."""

    pci: str | Unavailable
    uuid: str | Unavailable
    name: str | Unavailable
    mig: bool | Unavailable
    ecc: bool | Unavailable
    uncorrected: Mapping[str, int] | Unavailable  # by location, since the driver was loaded
    uncorrected_ever: Mapping[str, int] | Unavailable  # in the board's life
    remapped: tuple[int, int, bool, bool] | Unavailable  # rows for corrected and uncorrected errors, pending, failed
    retired: int | Unavailable  # pages, before Ampere
    retired_pending: bool | Unavailable
    sram_threshold: bool | Unavailable  # so many uncorrectable errors of the SRAM that NVIDIA replaces the board
    recovery: int | Unavailable  # nvmlDeviceGpuRecoveryAction_t, 0: none is needed
    reasons: int | Unavailable  # bits
    power_limit: int | Unavailable  # mW, that the driver keeps to, whoever set it
    temperature: int | Unavailable  # °C
    slowdown: int | Unavailable  # °C
    persistence: bool | Unavailable
    compute_mode: int | Unavailable
    replays: int | Unavailable
    bar1: tuple[int, int] | Unavailable  # bytes, and those in use
    inforom: bool | Unavailable  # its checksums hold
    fabric: FabricInfo | Unavailable
    ecc_waits: bool | Unavailable = _NOT_ASKED  # another ECC mode than the present one is pending
    mig_waits: bool | Unavailable = _NOT_ASKED
    power_default: int | Unavailable = Unavailable(Kind.NOT_READ, "NVML was not asked for it")  # mW, of the board as it boots
    memory: int | Unavailable = Unavailable(Kind.NOT_READ, "NVML was not asked for it")  # bytes

    @property
    def hot(self) -> bool | Unavailable:
        """So hot that the hardware lowers the clocks."""
        lost = missing(self.temperature, self.slowdown)
        return lost if lost is not None else (self.temperature or 0) >= (self.slowdown or 0) > 0

    @property
    def place(self) -> str:
        """As findings name it."""
        return f"GPU {self.pci if isinstance(self.pci, str) else self.uuid}"


@record
class Pair:
    """What NVML says of two GPUs' access to each other: nvmlGpuP2PStatus_t, 0 is fine."""

    one: int  # NVML's indexes
    other: int
    read: int | Unavailable
    write: int | Unavailable
    nvlink: int | Unavailable


@record
class GpuHealth(Fact):
    """The state of the GPUs that NVML shows."""

    gpus: tuple[GpuState, ...] | Unavailable
    pairs: tuple[Pair, ...] | Unavailable = field(default=Unavailable(Kind.NOT_READ, "NVML was not asked for it"))

    def exclusive(self, uuid: str | Unavailable) -> bool:
        """Whether NVML says of this GPU that one process alone may compute on it."""
        return any(gpu.uuid == uuid and gpu.compute_mode in EXCLUSIVE for gpu in self.gpus or ())


def probe(host: Host) -> GpuHealth | Unavailable:
    """From the same answer as the inventory of GPUs: NVML is started once."""
    nvml = mapping(host, "ask:nvml")
    if isinstance(nvml, Unavailable):
        return nvml
    devices: list[Any] | Unavailable = value(nvml.get("devices"), list, "devices of NVML")
    pairs: list[Any] | Unavailable = value(nvml.get("p2p"), list, "P2P of the GPUs")
    return GpuHealth(
        devices if isinstance(devices, Unavailable) else tuple(_gpu(one if isinstance(one, dict) else {}) for one in devices),
        pairs if isinstance(pairs, Unavailable) else tuple(pair for one in pairs if (pair := _pair(one)) is not None),
    )


def _gpu(one: dict[str, Any]) -> GpuState:
    lost = unavailable_in(one)  # NVML gives no handle
    told: dict[str, Any] | Unavailable = value(one.get("health"), dict, "state of the GPU") if lost is None else lost

    def top(name: str, kind: type[T]) -> T | Unavailable:
        return value(one.get(name), kind, f"NVML {name}") if lost is None else lost

    def of(name: str, kind: type[T]) -> T | Unavailable:
        got = told if isinstance(told, Unavailable) else value(told.get(name), kind, f"NVML {name}")
        return got if not isinstance(got, int) or _whole(got) else _odd(got, name)

    def flag(name: str) -> bool | Unavailable:
        got = told if isinstance(told, Unavailable) else told.get(name)
        return bool(got) if isinstance(got, int) else value(got, bool, f"NVML {name}")

    def numbers(name: str, count: int) -> tuple[int, ...] | Unavailable:
        got = of(name, list)
        if isinstance(got, Unavailable) or (len(got) == count and all(map(_whole, got))):
            return got if isinstance(got, Unavailable) else tuple(got)
        return _odd(got, name)

    def counts(name: str) -> Mapping[str, int] | Unavailable:
        got = of(name, dict)
        return got if isinstance(got, Unavailable) or (got and all(map(_whole, got.values()))) else _odd(got, name)

    pci, ecc, rows, bar1 = top("pci", str), numbers("ecc", 2), numbers("remapped", 4), numbers("bar1", 2)
    return GpuState(
        pci=pci if isinstance(pci, Unavailable) else pci_address(pci),
        uuid=top("uuid", str),
        name=top("name", str),
        mig=top("mig", bool),
        ecc=ecc if isinstance(ecc, Unavailable) else ecc[0] == 1,
        uncorrected=counts("uncorrected"),
        uncorrected_ever=counts("uncorrected_ever"),
        remapped=rows if isinstance(rows, Unavailable) else (rows[0], rows[1], rows[2] != 0, rows[3] != 0),
        retired=of("retired", int),
        retired_pending=flag("retired_pending"),
        sram_threshold=flag("sram_threshold"),
        recovery=of("recovery", int),
        reasons=of("reasons", int),
        power_limit=of("power_limit", int),
        temperature=of("temperature", int),
        slowdown=of("slowdown", int),
        persistence=flag("persistence"),
        compute_mode=of("compute_mode", int),
        replays=of("replays", int),
        bar1=bar1 if isinstance(bar1, Unavailable) else (bar1[0], bar1[1]) if bar1[1] <= bar1[0] else _odd(bar1, "bar1"),
        inforom=flag("inforom"),
        fabric=_fabric(one.get("fabric") if lost is None else lost),
        power_default=of("power_default", int),
        ecc_waits=ecc if isinstance(ecc, Unavailable) else ecc[0] != ecc[1],
        memory=top("memory_total", int),
        mig_waits=top("mig_waits", bool) if "mig_waits" in one or lost is not None else _NOT_ASKED,
    )


def _whole(got: object) -> bool:
    """All numbers of NVML are unsigned, of 64 bits at most (nvml.h)."""
    return type(got) is int and 0 <= got < 1 << 64


def _odd(got: object, name: str) -> Unavailable:
    return got if isinstance(got, Unavailable) else Unavailable(Kind.MALFORMED, f"NVML {name}: {str(got)[:40]}")


def _fabric(got: object) -> FabricInfo | Unavailable:
    told: dict[str, Any] | Unavailable = got if isinstance(got, Unavailable) else value(got, dict, "NVLink fabric")
    if isinstance(told, Unavailable):
        return told
    numbers = [told.get(name) for name in ("state", "status", "clique", "health")]
    cluster = told.get("cluster")
    if not all(type(one) is int for one in numbers) or not isinstance(cluster, str) or not _UUID.fullmatch(cluster):
        return _odd(told, "fabric")
    state, status, clique, health = (int(one or 0) for one in numbers)
    return FabricInfo(state, status, clique, cluster, health)


def _pair(one: object) -> Pair | None:
    if not isinstance(one, list) or len(one) != 5 or type(one[0]) is not int or type(one[1]) is not int:
        return None
    read, write, nvlink = (value(got, int, "P2P status") for got in one[2:])
    return Pair(one[0], one[1], read, write, nvlink)

"""A node as the site's expectation: `expected:` of a configuration, from the inventory of a node that is known to be good."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any, Final

from netdoctor.expectation.site import own, rows
from netdoctor.model import Json, record

# What a floor leaves to chance.  Run-to-run spread of an all-reduce on one node is 1 to 3 % (fleet.outliers); 10 % less is also
# what counts as critical and where an A/B pair counts as different.
FLOOR_MARGIN: Final = 0.10
FLOOR_FROM: Final = 16 << 20  # bytes: smaller ones measure latency


class Part(Enum):
    """What may be left out, because nodes differ by it."""

    ADDRESSES = "addresses"  # of GPUs and RDMA devices on PCI
    FLOORS = "floors"
    FIRMWARE = "firmware"
    DRIVER = "driver"
    MTU = "mtu"
    TRANSPORT = "transport"


def describe(inventory: Mapping[str, Any], runs: Iterable[Run] = (), without: Collection[Part] = ()) -> dict[str, Json]:
    """The keys of `expected:` by which a node like this one is known; nothing of what could not be read."""
    out: dict[str, Json] = {}
    gpus, nics, pci = (rows(inventory.get(name)) for name in ("gpus", "nics", "pci"))
    nics = nics and own(nics)  # virtual functions come and go with those that they are given to
    if gpus is not None:
        out["gpus"] = len(gpus)
        out |= _one("gpu_model", (gpu.get("name") for gpu in gpus))
        out |= _one("nvlinks", (gpu.get("nvlinks_up") for gpu in gpus))
        out |= _one("gpu_power_limit_w", (gpu.get("power_limit_w") for gpu in gpus))
    if nics is not None:
        out["hcas"] = _alike(nics)
        out |= _rate(nics)
        out["hca_firmware"] = sorted({nic["firmware"] for nic in nics if isinstance(nic.get("firmware"), str)}) or None
    if pci is not None:
        out["gpu_addresses"] = sorted(str(d["address"]) for d in pci if d.get("kind") == "gpu") or None
    if nics is not None:
        out["hca_addresses"] = sorted(nic["pci"] for nic in nics if isinstance(nic.get("pci"), str)) or None
    out["driver"] = _text(inventory.get("driver"))
    out["mtu"] = {
        str(link["name"]): link["mtu"]
        for link in rows(inventory.get("links")) or ()
        if link.get("physical") is True and link.get("up") is True and isinstance(link.get("mtu"), int)
    } or None
    out |= _of_runs(tuple(runs))
    left_out = {key for part in without for key in _KEYS[part]}
    return {key: value for key, value in out.items() if value is not None and key not in left_out}


@record
class Run:
    """A run of the node as floors need it."""

    device: str
    network: str | None  # the family that NCCL's log names
    busbw: Mapping[int, float]


_KEYS: Final[Mapping[Part, tuple[str, ...]]] = {
    Part.ADDRESSES: ("gpu_addresses", "hca_addresses"),
    Part.FLOORS: ("busbw_floor",),
    Part.FIRMWARE: ("hca_firmware",),
    Part.DRIVER: ("driver",),
    Part.MTU: ("mtu",),
    Part.TRANSPORT: ("transport",),
}


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _one(key: str, values: Iterable[Any]) -> dict[str, Json]:
    """What all have; nothing where they differ, or one could not be read."""
    every = list(values)
    same = bool(every) and all(value == every[0] for value in every)
    return {key: every[0]} if same and isinstance(every[0], str | int) and every[0] not in ("", 0) else {}


def _alike(nics: list[dict[str, Any]]) -> int:
    """Devices of the kind that there are most of, by link layer and rate: rails, without those of storage and management."""
    kinds = [tuple((p.get("link_layer"), str(p.get("rate_gbps"))) for p in rows(nic.get("ports")) or ()) for nic in nics]
    return max((kinds.count(kind) for kind in kinds), default=0)


def _rate(nics: list[dict[str, Any]]) -> dict[str, Json]:
    """What most ports have; whether the check of the job's HCAs then passes the node itself is tried by who writes it."""
    ports = [_dict(port) for nic in nics for port in rows(nic.get("ports")) or ()]
    rates = Counter(p["rate_gbps"] for p in ports if p.get("state") == "ACTIVE" and isinstance(p.get("rate_gbps"), int | float))
    return {"hca_rate_gbps": max(rates, key=lambda rate: (rates[rate], rate))} if rates else {}


def _of_runs(runs: tuple[Run, ...]) -> dict[str, Json]:
    """Floors of what ran on GPUs (ranks on CPUs measure what else the CPUs do: 20 times more or less within a minute)."""
    out: dict[str, Json] = {}
    floors: dict[int, float] = {}
    for run in runs:
        if run.network:
            out["transport"] = run.network
        if run.device == "cpu":
            continue
        for size, rate in run.busbw.items():
            if size >= FLOOR_FROM:
                floors[size] = min(floors.get(size, rate), rate)
    if floors:
        out["busbw_floor"] = {_size(size): float(f"{rate * (1 - FLOOR_MARGIN):.4g}") for size, rate in sorted(floors.items())}
    return out


def _size(size: int) -> str:
    return f"{size >> 20}M" if size % (1 << 20) == 0 else str(size)

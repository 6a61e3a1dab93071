"""What DCGM's health watches say of the GPUs, where DCGM is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import Gpus
from netdoctor.host.base import Host, mapping, question, value
from netdoctor.model import Kind, Unavailable, Word, missing

# Packages, and the archives of older versions; root's folders alone, for what is here runs.
PROGRAMS: Final = ("/usr/bin/dcgmi", "/usr/local/dcgm/bin/dcgmi")
# DCGM_FR_IMEX_UNHEALTHY (dcgmlib/dcgm_errors.h) is told of healthy nodes: where IMEX is not meant to run, and where its daemons
# run in pods (NVIDIA/DCGM#308, NVIDIA/NVSentinel#1471).  gpu.fabric asks IMEX itself.
_IMEX: Final = re.compile(
    r"IMEX (?:domain|daemon) status is [^()]{0,40}\([^)]{0,40}\)|"
    "Check IMEX installation, configuration, domain and daemon status, and network connectivity"
)
_SKIPPED: Final = " ,;."
_HEALTHY: Final = "Healthy"


class Health(Word):
    """dcgmHealthWatchResults_t, as dcgmi writes it (dcgmi/Health.cpp, HelperHealthToString)."""

    WARNING = "Warning"
    FAILURE = "Failure"
    ERROR = "Internal error"


@dataclass(frozen=True)
class Incident:
    """What a watch found."""

    entity: str  # "GPU 3": DCGM's number
    system: str  # "Memory system"
    health: Health
    text: str


@dataclass(frozen=True)
class Dcgm(Fact):
    """`watching` False: its daemon answers, and nobody told it to watch."""

    installed: bool | Unavailable  # dcgmi is there
    watching: bool | Unavailable
    incidents: tuple[Incident, ...] | Unavailable  # but those of IMEX


def probe(host: Host, gpus: Gpus) -> Dcgm | Unavailable:
    """Not where there is no NVML, or no GPU by it: there DCGM has nothing to watch."""
    if gpus.all == ():
        return Unavailable(Kind.UNSUPPORTED, "NVML shows no GPU")
    if isinstance(gpus.all, Unavailable) and gpus.all.kind in (Kind.ABSENT, Kind.UNSUPPORTED):
        return gpus.all
    found = {path: mapping(host, f"stat:{path}") for path in PROGRAMS}
    program = next((path for path, there in found.items() if not isinstance(there, Unavailable)), None)
    if program is None:
        lost = next((one for one in found.values() if isinstance(one, Unavailable) and one.kind is not Kind.ABSENT), None)
        return Dcgm(False, False, ()) if lost is None else lost
    got = mapping(host, question("dcgm", program=program))
    if isinstance(got, Unavailable):
        return Dcgm(True, got, got)
    watching = value(got.get("watching"), bool, "whether DCGM watches")
    return Dcgm(True, watching, _incidents(got) if watching else ())


def _incidents(told: Mapping[str, Any]) -> tuple[Incident, ...] | Unavailable:
    """What it found; Unavailable too where it calls the whole anything but healthy and names nothing."""
    rows: list[Any] | Unavailable = value(told.get("incidents"), list, "incidents of DCGM")
    overall: str | Unavailable = value(told.get("overall"), str, "overall health by DCGM")
    if (lost := missing(rows, overall if not rows else None)) is not None:
        return lost
    if not rows and overall != _HEALTHY:
        return Unavailable(Kind.MALFORMED, f"it calls the whole {overall or 'nothing'}, and names nothing")
    if not all(isinstance(row, dict) for row in rows or ()):
        return Unavailable(Kind.MALFORMED, "incidents of DCGM")
    return tuple(one for row in rows or () if (one := _incident(row)))


def _incident(row: Mapping[str, Any]) -> Incident | None:
    """None: it says nothing but what is said of healthy nodes."""
    one = {name: str(row.get(name, "")) for name in ("entity", "id", "system", "health", "text")}
    text = _IMEX.sub("", one["text"]).strip(_SKIPPED)
    if one["text"] and not text:
        return None
    health = next((kind for kind in Health if kind.value == one["health"]), Health.ERROR)
    return Incident(f"{one['entity']} {one['id']}", one["system"], health, text)

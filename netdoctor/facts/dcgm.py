"""What DCGM's health watches say of the GPUs, where DCGM is installed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from netdoctor.facts import layers
from netdoctor.facts.base import Fact
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, mapping, names, question, value
from netdoctor.model import Kind, Unavailable, Word, missing, record

# Packages, and the archives of older versions; root's folders alone, for what is here runs.
PROGRAMS: Final = ("/usr/bin/dcgmi", "/usr/local/dcgm/bin/dcgmi")
SERVICES: Final = ("nvidia-dcgm.service", "dcgm.service")
WANTS: Final = "multi-user.target.wants"
UNITS: Final = ("/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system")
# DCGM_FR_IMEX_UNHEALTHY (dcgmlib/dcgm_errors.h) is told of healthy nodes: where IMEX is not meant to run, and where its daemons
# run in pods (NVIDIA/DCGM#308, NVIDIA/NVSentinel#1471).  gpu.fabric asks IMEX itself.
_IMEX: Final = re.compile(
    r"IMEX (?:domain|daemon) status is [^()]{0,40}\([^)]{0,40}\)|"
    "Check IMEX installation, configuration, domain and daemon status, and network connectivity"
)
# Of dcgmi diag, by level: NVIDIA names seconds, two minutes, half an hour and one to two hours (DCGM Diagnostics, Run Levels);
# twice as much and more, for they grow with the GPUs.
SECONDS: Final = {1: 180, 2: 900, 3: 3600, 4: 14400}
_SKIPPED: Final = " ,;."
_HEALTHY: Final = "Healthy"


class Health(Word):
    """dcgmHealthWatchResults_t, as dcgmi writes it (dcgmi/Health.cpp, HelperHealthToString)."""

    WARNING = "Warning"
    FAILURE = "Failure"
    ERROR = "Internal error"


@record
class Incident:
    """What a watch found."""

    entity: str  # "GPU 3": DCGM's number
    system: str  # "Memory system"
    health: Health
    text: str


class Outcome(Word):
    """dcgmDiagResult_t, as dcgmi writes it (dcgmi/Diag.cpp, HelperDisplayDiagResult)."""

    PASS = "Pass"
    SKIP = "Skip"
    WARN = "Warn"
    FAIL = "Fail"


@record
class DiagResult:
    """What its diagnostic says of one test."""

    test: str  # "Memory Bandwidth"
    entity: str  # "GPU 3", "" where it names none
    outcome: Outcome
    text: str


@record
class Diagnosed:
    """The diagnostic that was asked for."""

    level: int
    results: tuple[DiagResult, ...] | Unavailable


@record
class Dcgm(Fact):
    """What DCGM's own daemon and diagnostic say of the GPUs.

    `watching` False: its daemon answers, and nobody told it to watch.
    """

    installed: bool | Unavailable  # dcgmi is there
    watching: bool | Unavailable
    incidents: tuple[Incident, ...] | Unavailable  # but those of IMEX
    diagnosed: Diagnosed | None | Unavailable = None  # None: nobody asked for it
    meant: bool | Unavailable = True  # False: no daemon runs, and systemd is not to start one


def probe(host: Host, gpus: Gpus, vantage: Vantage, environ: Environ) -> Dcgm | Unavailable:
    """Not where there is no NVML, or no GPU by it: there DCGM has nothing to watch."""
    if gpus.all == ():
        return Unavailable(Kind.UNSUPPORTED, "NVML shows no GPU")
    if isinstance(gpus.all, Unavailable) and gpus.all.kind in (Kind.ABSENT, Kind.UNSUPPORTED):
        return gpus.all
    found = {path: mapping(host, f"stat:{path}") for path in PROGRAMS}
    program = next((path for path, there in found.items() if not isinstance(there, Unavailable)), None)
    if program is None:
        lost = next((one for one in found.values() if isinstance(one, Unavailable) and one.kind is not Kind.ABSENT), None)
        absent = Unavailable(Kind.ABSENT, "no dcgmi")
        return Dcgm(False, False, (), _asked(host, lambda _: absent)) if lost is None else lost
    got = mapping(host, question("dcgm", program=program))
    if isinstance(got, Unavailable):
        return Dcgm(True, got, got, _asked(host, lambda _: got))
    if got.get("running") is False:
        none = Unavailable(Kind.FAILED, "its daemon (nv-hostengine) does not run")
        return Dcgm(True, none, none, _asked(host, lambda _: none), meant=_meant(host))
    watching = value(got.get("watching"), bool, "whether DCGM watches")
    diagnosed = _asked(host, lambda level: _diagnose(host, program, level, not_idle(gpus, vantage, environ)))
    return Dcgm(True, watching, _incidents(got) if watching else (), diagnosed)


def _meant(host: Host) -> bool | Unavailable:
    """Whether systemd starts a daemon of DCGM's, or what asks one (dcgm-exporter); its package enables none."""
    units, wanted = set[str](), set[str]()
    for folder in UNITS:
        found = names(host, folder)
        if isinstance(found, Unavailable):
            if found.kind is not Kind.ABSENT or folder == UNITS[0]:
                return found
            continue
        units.update(found)
        if WANTS in found:
            some = names(host, f"{folder}/{WANTS}")
            if isinstance(some, Unavailable):
                return some
            wanted.update(some)
    if any("dcgm" in name for name in wanted):
        return True
    return False if units.intersection(SERVICES) else Unavailable(Kind.NOT_READ, "systemd has no unit of it here")


def _asked(host: Host, run: Callable[[int], tuple[DiagResult, ...] | Unavailable]) -> Diagnosed | None | Unavailable:
    """Only on request (dcgm_diag)."""
    config = mapping(host, "config:")
    if isinstance(config, Unavailable):
        return config
    level = config.get("dcgm_diag")
    return Diagnosed(level, run(level)) if type(level) is int and level in SECONDS else None


def not_idle(gpus: Gpus, vantage: Vantage, environ: Environ) -> str | None:
    """Why the daemon's GPUs may be another's, or this job's own ranks may be on them: a diagnostic would disturb them."""
    launcher = environ.launcher
    if isinstance(launcher, Unavailable) or launcher.local_rank is not None:
        return "this is a rank of a job, and others may be on these GPUs"
    if layers.may_share(vantage):
        return "DCGM's daemon sees all GPUs of the node, and here may be a share of them: ask for it on the node itself"
    if (lost := missing(gpus.all)) is not None or not gpus.all:
        return f"which GPUs there are could not be read: {lost}"
    for gpu in gpus.all:
        if (lost := missing(gpu.processes, gpu.memory_used)) is not None:
            return f"whether {gpu.place} is in use could not be read: {lost}"
        if gpu.processes or gpu.held:
            return f"{gpu.place} is in use"
    return None


def _diagnose(host: Host, program: str, level: int, busy: str | None) -> tuple[DiagResult, ...] | Unavailable:
    if busy is not None:
        return Unavailable(Kind.REFUSED, busy)
    got = mapping(host, question("dcgm_diag", level=level, program=program, seconds=SECONDS[level]))
    rows: list[Any] | Unavailable = got if isinstance(got, Unavailable) else value(got.get("results"), list, "DCGM's tests")
    if isinstance(rows, Unavailable):
        return rows
    lost = Unavailable(Kind.MALFORMED, "more tests than are read") if (got or {}).get("left_out") else None
    known = {one.value: one for one in Outcome}
    if not rows or not all(isinstance(row, list) and len(row) == 4 and all(isinstance(x, str) for x in row) for row in rows):
        return Unavailable(Kind.MALFORMED, "DCGM's tests" if rows else "it names no test")
    odd = next((row[2] for row in rows if row[2] not in known), None)
    if odd is not None:
        lost = Unavailable(Kind.MALFORMED, f"a test ended with {odd[:40]!r}")
    found = tuple(DiagResult(test, entity, known[status], text) for test, entity, status, text in rows if status in known)
    return found if lost is None or any(one.outcome is Outcome.FAIL for one in found) else lost


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

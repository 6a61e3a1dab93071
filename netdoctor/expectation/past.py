"""Source: this node's own past.  Figures against those of like runs, hardware against that of the last good look."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from netdoctor.compare.chance import MAD_TO_SIGMA, beyond
from netdoctor.expectation.description import Part, describe
from netdoctor.expectation.model import Comparison, Source
from netdoctor.expectation.site import comparison
from netdoctor.facts.job import expected_of
from netdoctor.facts.past import Entry, Past
from netdoctor.facts.runs import Run
from netdoctor.model import Kind, Unavailable, record
from netdoctor.nccl.transport import shown_network

FEWEST: Final = 8  # looks at like runs, before a figure is judged
LEAST: Final = 0.10  # of the median; run-to-run spread on one node is 1 to 3 %, and 10 % is what counts as critical
FLOOR: Final = 0.02  # the least spread that is believed, as a share of the median
BEYOND: Final = 0.05  # and it lies so far below every one of them
# Ranks on CPUs measure what else the CPUs have to do: one healthy, busy machine is fast and 20 times slower within a minute.
CPU_FACTOR: Final = 20.0
_VOLATILE: Final = frozenset({Part.FLOORS, Part.FIRMWARE, Part.DRIVER, Part.MTU, Part.TRANSPORT})
_HARDWARE: Final = {"gpu_model": str, "gpu_addresses": list, "nvlinks": int, "hca_addresses": list}


@record
class Fall:
    """A figure that is lower than this node's own."""

    now: float
    usual: float  # the median of like runs
    lowest: float
    looks: int
    since: str  # day of the newest of them


def shape(run: Run, inventory: Mapping[str, Any]) -> str:
    """What must be equal for two figures to be of one thing: also NCCL's version and settings, and how many CPUs a rank had."""
    one = run.experiment
    gpus = sorted({str(gpu.get("name")) for gpu in inventory.get("gpus") or () if isinstance(gpu, dict)})
    variables = inventory.get("nccl_variables")
    cpus = [len(rank.affinity) for rank in run.ranks]
    ran = (one.env, one.rank_env, one.binding, one.gpus, one.sizes, cpus)
    more = (str(run.via), run.nccl_version, shown_network(run), gpus, variables, ran)
    key = hashlib.sha256(repr(more).encode()).hexdigest()[:12]
    return f"{one.backend} {one.device} ×{one.ranks} {one.path} {key}"


def entry_of(day: str, run: Run | None, inventory: Mapping[str, Any]) -> Entry:
    """What is kept of a good look."""
    has = {key: value for key, value in describe(_own(inventory), (), _VOLATILE).items() if key in _HARDWARE}
    size = max(run.busbw, default=0) if run is not None and run.finished and run.verified is True else 0
    if run is None or not size:
        return Entry(day, "", 0, 0.0, True, has)
    return Entry(day, shape(run, inventory), size, run.busbw[size], run.experiment.device == "cpu", has)


def _own(inventory: Mapping[str, Any]) -> Mapping[str, Any]:
    """Without virtual functions: those come and go with virtual machines."""
    nics = inventory.get("nics")
    if not isinstance(nics, list):
        return inventory
    return {**inventory, "nics": [nic for nic in nics if isinstance(nic, dict) and nic.get("virtual_function") is False]}


def like(past: Past, now: Entry) -> tuple[Entry, ...]:
    """Looks at the same experiment, the oldest first."""
    return tuple(one for one in past.entries or () if now.shape and (one.shape, one.size) == (now.shape, now.size))


def fall(past: Past, now: Entry) -> Fall | None:
    """What the ring's own spread does not explain; None: nothing, or fewer like runs than can tell."""
    import statistics

    ring = like(past, now)
    if len(ring) < FEWEST:
        return None
    figures = sorted(one.busbw for one in ring)
    usual = statistics.median(figures)
    rest = sorted(figures, key=lambda one: abs(one - usual))[:-1]  # one wild run does not hide a fall
    sigma = max(MAD_TO_SIGMA * statistics.median(abs(one - usual) for one in figures), statistics.stdev(rest), FLOOR * usual)
    bound = usual * (1 - beyond(sigma / usual, len(figures), LEAST)) if usual > 0 else 0.0
    bound = min(bound, figures[0] * (1 - BEYOND))
    if now.cpu:
        bound = min(bound, figures[0] / CPU_FACTOR)
    return Fall(now.busbw, usual, figures[0], len(figures), ring[-1].day) if now.busbw < bound else None


def hardware(past: Past, inventory: Mapping[str, Any], mig: bool) -> Comparison:
    """What good looks saw of the hardware: of each part the last that could see it.  With MIG on, NVLinks rest."""
    seen: dict[str, Any] = {}
    day = ""
    for one in past.entries or ():
        seen |= {key: value for key, value in one.hardware.items() if key in _HARDWARE}
        day = one.day
    moved = {key for key, now in _places(inventory).items() if _moved(seen.get(key), now)}
    keys = {key: value for key, value in seen.items() if key not in moved and not (mig and key == "nvlinks")}
    odd = [key for key, value in keys.items() if type(value) is not _HARDWARE[key]]
    expected = Unavailable(Kind.MALFORMED, f"{odd[0]} of a look until {day}") if odd else expected_of(keys)
    if isinstance(expected, Unavailable):
        return Comparison((), (), expected)
    return comparison(expected, inventory, Source.PAST, f"this node on {day}")


def _places(inventory: Mapping[str, Any]) -> Mapping[str, object]:
    return {key: value for key, value in describe(_own(inventory)).items() if key.endswith("_addresses")}


def _moved(then: object, now: object) -> bool:
    """No fewer, at other places: a card more, new firmware or a virtual machine started elsewhere numbers the bus anew."""
    return (
        isinstance(then, list) and isinstance(now, list) and len(now) >= len(then) and not {*map(str, then)} <= {*map(str, now)}
    )

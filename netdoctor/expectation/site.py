"""Source: the site.  What `expected:` says, against a node's inventory: of this node, or of one that sent its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from netdoctor.expectation.model import Comparison, Expectation, Part, Quantity, Source, Value
from netdoctor.facts.job import Expected
from netdoctor.model import NODE, Kind, Unavailable, missing, unavailable_in

KEYS: Final = (
    *("gpus", "gpu_model", "gpu_addresses", "nvlinks", "gpu_power_limit_w"),
    *("hca_addresses", "hca_firmware", "driver", "mtu"),
)
THERE, MISSING = "there", "missing"
GPUS: Final = "GPUs"  # the subject of how many there are
_NO_HCA: Final = Unavailable(Kind.NOT_READ, "no RDMA device is seen from here")
_HERE: Final = Unavailable(Kind.NOT_READ, "no such interface is seen from here")
_ODD: Final = Unavailable(Kind.MALFORMED, "the inventory")


def comparison(
    expected: Expected,
    inventory: Mapping[str, Any],
    source: Source = Source.SITE,
    because: str = "expected: of the site",
    *,
    share: bool = False,
    network: bool = False,
) -> Comparison:
    """GPUs, models, places, NVLinks, driver, firmware and MTU; with `network` also HCAs and their rate.  On the node itself
    these (what the job can use of them), transport and floors have checks of their own.  With `share` a job may be given some
    of the GPUs.
    """
    gpus, nics, links = (rows(inventory.get(name)) for name in ("gpus", "nics", "links"))
    has: dict[str, dict[Quantity, Value | None | Unavailable]] = {NODE: {Quantity.DRIVER: _value(inventory.get("driver"))}}
    for one in gpus or ():
        has[_gpu_name(one)] = {
            Quantity.MODEL: _value(one.get("name")),
            Quantity.NVLINKS: _value(one.get("nvlinks_up")),
            Quantity.POWER: _value(one.get("power_limit_w")),
        }
    if not gpus:
        lost = None if gpus is not None else _why(inventory.get("gpus"))
        has[NODE] |= {Quantity.MODEL: "none" if lost is None else lost}
        has[NODE] |= dict.fromkeys((Quantity.NVLINKS, Quantity.POWER), 0 if lost is None else lost)
    has |= {_name(one): {Quantity.FIRMWARE: _value(one.get("firmware"))} for one in nics or ()}
    for one in links or ():
        has.setdefault(_name(one), {})[Quantity.MTU] = _value(one.get("mtu"))
    wanted: list[tuple[str, Quantity, Value]] = [(NODE, Quantity.DRIVER, expected.driver)] if expected.driver else []
    wanted += _of_gpus(expected, [_gpu_name(one) for one in gpus or ()] or [NODE])
    if not nics and expected.hca_firmware:
        has[NODE][Quantity.FIRMWARE] = _why(inventory.get("nics")) if nics is None else _NO_HCA
        wanted.append((NODE, Quantity.FIRMWARE, " or ".join(expected.hca_firmware)))
    wanted += _one_of(expected.hca_firmware, nics or [])
    for name, mtu in (expected.mtu or {}).items():
        has.setdefault(name, {}).setdefault(Quantity.MTU, _HERE if links is not None else _ODD)
        wanted.append((name, Quantity.MTU, mtu))
    places = _places(rows(inventory.get("pci")))
    for name, address in _named(expected):
        found = places if isinstance(places, Unavailable) else THERE if address in places else MISSING
        has.setdefault(name, {})[Quantity.THERE] = found
        wanted.append((name, Quantity.THERE, THERE))
    if expected.gpus:
        has[GPUS] = {Quantity.GPUS: _gpus(inventory, expected.gpus, share=share)}
        wanted.append((GPUS, Quantity.GPUS, expected.gpus))
    if network:
        if expected.hcas:
            has[NODE][Quantity.RAILS] = _why(inventory.get("nics")) if nics is None else _hcas(nics, expected.hcas)
            wanted.append((NODE, Quantity.RAILS, expected.hcas))
        if isinstance(rate := expected.hca_rate_gbps, int | float) and rate:
            has[NODE][Quantity.RATE] = _why(inventory.get("nics")) if nics is None else _rate(nics, expected.hcas, rate)
            wanted.append((NODE, Quantity.RATE, rate))
    unread = missing(*(getattr(expected, key) for key in KEYS))
    parts = tuple(Part(name, values) for name, values in has.items())
    return Comparison(parts, tuple(Expectation(n, q, should, source, because) for n, q, should in wanted), unread)


def rows(value: Any) -> list[dict[str, Any]] | None:
    """A list of an inventory; None: it could not be read."""
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else None


def _value(value: Any) -> Value | Unavailable:
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return value
    return _why(value)


def _why(value: Any) -> Unavailable:
    """Why there is nothing, as the inventory has it."""
    said = unavailable_in(value)
    return _ODD if said is None else said


def _number(inventory: Mapping[str, Any], name: str) -> int | Unavailable:
    found = rows(inventory.get(name))
    return _why(inventory.get(name)) if found is None else len(found)


def _gpus(inventory: Mapping[str, Any], wanted: int, *, share: bool) -> int | Unavailable:
    """Those that NVML shows; that PCI shows too few is known without it."""
    seen, pci = _number(inventory, "gpus"), rows(inventory.get("pci"))
    on_bus = sum(one.get("kind") == "gpu" for one in pci or ())
    if isinstance(seen, Unavailable):
        return seen if pci is None or on_bus >= wanted else on_bus
    return Unavailable(Kind.NOT_READ, f"NVML shows {seen} of {on_bus} on PCI") if share and seen < wanted <= on_bus else seen


def own(nics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """RDMA devices that are cards of their own; where there are none, the virtual functions that somebody was given."""
    hardware = [nic for nic in nics if nic.get("pci", "") is not None]  # none: software; not said: an older report
    return [nic for nic in hardware if nic.get("virtual_function") is not True] or hardware


def _hcas(nics: list[dict[str, Any]], wanted: int) -> int | Unavailable:
    """A report does not say how many virtual functions are of one card."""
    cards, every = len(own(nics)), len(nics)
    more = Unavailable(Kind.NOT_READ, f"{every} are there, and {every - cards} of them virtual functions, or software")
    return more if cards < wanted <= every else every


def _rate(nics: list[dict[str, Any]], number: int | None | Unavailable, least: float) -> Value | Unavailable:
    """The rate of so many devices: which are the job's a report does not say, and those of storage may be slower."""
    best, lost = list[float](), None
    for nic in own(nics):
        ports = rows(nic.get("ports"))
        lost = missing(lost, _why(nic.get("ports")) if ports is None else None)
        rates = [port.get("rate_gbps") for port in ports or () if port.get("state") == "ACTIVE"]
        best.append(max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0))
        lost = missing(lost, *(_why(rate) for rate in rates if not isinstance(rate, int | float)))
    counted = number if isinstance(number, int) and number else 1
    slowest = min(sorted(best, reverse=True)[:counted], default=0.0)
    return lost if lost is not None and slowest < least else slowest


def _name(row: Mapping[str, Any]) -> str:
    return str(row.get("name"))


def _gpu_name(row: Mapping[str, Any]) -> str:
    place = row.get("pci")
    return f"GPU {place if isinstance(place, str) else row.get('index')}"


def _places(pci: list[dict[str, Any]] | None) -> frozenset[str] | Unavailable:
    return _ODD if pci is None else frozenset(str(one.get("address")) for one in pci)


def _named(expected: Expected) -> Iterator[tuple[str, str]]:
    yield from ((f"GPU {address}", address) for address in expected.gpu_addresses or ())
    yield from ((f"RDMA device {address}", address) for address in expected.hca_addresses or ())


def _of_gpus(expected: Expected, names: list[str]) -> Iterator[tuple[str, Quantity, Value]]:
    for name in names:
        if expected.gpu_model:
            yield name, Quantity.MODEL, expected.gpu_model
        if expected.nvlinks:
            yield name, Quantity.NVLINKS, expected.nvlinks
        if expected.gpu_power_limit_w:
            yield name, Quantity.POWER, expected.gpu_power_limit_w


def _one_of(versions: tuple[str, ...] | Unavailable, nics: list[dict[str, Any]]) -> Iterator[tuple[str, Quantity, Value]]:
    """Each device has one of these versions: the one that it has, or all of them."""
    for nic in nics if versions else ():
        has = nic.get("firmware")
        known = isinstance(has, str) and has in (versions or ())
        yield _name(nic), Quantity.FIRMWARE, str(has) if known else " or ".join(versions or ())

"""What the site expects, from the configuration."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field, fields
from typing import Any

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, mapping
from netdoctor.model import Kind, Unavailable, record


@record
class Expected(Fact):
    """What the site's configuration says must be there.

    None: nothing said.
    """

    gpus: int | None | Unavailable = None
    hcas: int | None | Unavailable = None
    hca_rate_gbps: float | None | Unavailable = None
    transport: str | None | Unavailable = None  # "IB" "Socket" "OFI" …
    busbw_floor: Mapping[int, float] | Unavailable = field(default_factory=dict)  # bytes -> GB/s
    rails_routed: bool | Unavailable = False
    peers: tuple[str, ...] | Unavailable = ()  # host names or addresses to measure RTT to (host:port)
    rtt_ms: float | None | Unavailable = None
    gpu_model: str | None | Unavailable = None
    gpu_addresses: tuple[str, ...] | Unavailable = ()
    nvlinks: int | None | Unavailable = None  # up, of each GPU
    gpu_power_limit_w: float | None | Unavailable = None  # of each GPU, at least
    gpu_clock_mhz: float | None | Unavailable = None  # SM clock of each GPU under load, at least
    hca_addresses: tuple[str, ...] | Unavailable = ()
    hca_firmware: tuple[str, ...] | Unavailable = ()  # each device has one of these
    driver: str | None | Unavailable = None  # NVIDIA's
    instance_type: str | None | Unavailable = None  # of a cloud, where nothing on the machine says it
    mtu: Mapping[str, int] | Unavailable = field(default_factory=dict)  # by interface


def probe_expected(host: Host) -> Expected | Unavailable:
    """``expected:`` of the configuration."""
    given = section(host, "expected")
    return given if isinstance(given, Unavailable) else expected_of(given)


def expected_of(given: Mapping[str, Any]) -> Expected | Unavailable:
    """`expected:` as it is recorded."""
    stated = known([one.name for one in fields(Expected)], given)
    if isinstance(floor := stated.get("busbw_floor"), Mapping):
        try:
            stated["busbw_floor"] = {int(size): float(rate) for size, rate in floor.items()}
        except (TypeError, ValueError):
            return Unavailable(Kind.MALFORMED, f"expected.busbw_floor: {str(floor)[:60]}")
    stated |= {name: tuple(map(str, value)) for name, value in stated.items() if isinstance(value, list)}
    return Expected(**stated)


def section(host: Host, name: str) -> Mapping[str, Any] | Unavailable:
    """One mapping of the configuration; without it an empty one."""
    config = mapping(host, "config:")
    if isinstance(config, Unavailable):
        return config
    given = config.get(name)
    if given is None:
        return {}
    return (
        given if isinstance(given, Mapping) else Unavailable(Kind.MALFORMED, f"{name}: of the configuration is not a mapping")
    )


def known(names: Iterable[str], given: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of these names; the configuration's own loader refuses the others."""
    return {name: given[name] for name in names if given.get(name) is not None}

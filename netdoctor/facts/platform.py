"""What the firmware calls this machine (SMBIOS, by Linux' /sys/class/dmi/id): a product, or the type of a cloud's instance."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, read
from netdoctor.model import Kind, Unavailable

_WHERE = "/sys/class/dmi/id"


@dataclass(frozen=True)
class Platform(Fact):
    """Names that the maker gave; "" where the firmware has none, as on most machines without SMBIOS."""

    vendor: str | Unavailable  # "NVIDIA", "Amazon EC2"
    product: str | Unavailable  # "DGXH100", "p5.48xlarge"
    asset_tag: str | Unavailable  # of the chassis: clouds name themselves there ("OracleCloud.com")


def probe(host: Host) -> Platform:
    """The names that everybody may read."""
    return Platform(*(_name(host, name) for name in ("sys_vendor", "product_name", "chassis_asset_tag")))


def _name(host: Host, name: str) -> str | Unavailable:
    text = read(host, f"{_WHERE}/{name}")
    if isinstance(text, Unavailable):
        return "" if text.kind == Kind.ABSENT else text
    return text.strip()

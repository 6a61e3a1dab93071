"""What the firmware calls this machine (SMBIOS, by Linux' /sys/class/dmi/id): a product, or the type of a cloud's instance."""

from __future__ import annotations

from netdoctor.facts.base import Fact
from netdoctor.host.base import Host, mapping, read
from netdoctor.model import Kind, Unavailable, record

_WHERE = "/sys/class/dmi/id"
_AMAZON = "Amazon EC2"
_MICROSOFT = "Microsoft Corporation"  # Azure's firmware does not say the type; its cloud-init is told (Google's, Oracle's not)


@record
class Platform(Fact):
    """The names that the machine's maker gave it (DMI).

    "" where the firmware has none, as on most machines without SMBIOS.
    """

    vendor: str | Unavailable  # "NVIDIA", "Amazon EC2"
    product: str | Unavailable  # "DGXH100", "p5.48xlarge"
    asset_tag: str | Unavailable  # of the chassis: clouds name themselves there ("OracleCloud.com")
    instance_type: str | Unavailable = ""  # the cloud's name of it: "p5.48xlarge", "Standard_ND96isr_H100_v5"; "" not told


def probe(host: Host) -> Platform:
    """The names that everybody may read, and the instance type: nobody is asked over the network."""
    vendor, product, tag = (_name(host, name) for name in ("sys_vendor", "product_name", "chassis_asset_tag"))
    return Platform(vendor, product, tag, _instance_type(host, vendor, product))


def _instance_type(host: Host, vendor: str | Unavailable, product: str | Unavailable) -> str | Unavailable:
    """The firmware of an EC2 instance says it, cloud-init was told it when the machine started."""
    if isinstance(vendor, Unavailable) or vendor == _AMAZON:
        return product if vendor == _AMAZON else vendor
    told = mapping(host, "ask:instance") if vendor == _MICROSOFT else {}
    if isinstance(told, Unavailable):
        return "" if told.kind == Kind.ABSENT else told
    return str(told.get("type") or "")


def _name(host: Host, name: str) -> str | Unavailable:
    text = read(host, f"{_WHERE}/{name}")
    if isinstance(text, Unavailable):
        return "" if text.kind == Kind.ABSENT else text
    return text.strip()

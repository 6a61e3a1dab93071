"""What in a file tells which machine or person it came from.  Rules of form, so that they bite wherever the tests run.

Addresses name nobody where they are for documentation (RFC 5737, RFC 3849), private (RFC 1918, RFC 4193, RFC 6598),
link-local, loopback or multicast.  A hardware address must be a locally administered one (IEEE 802, bit 0x02 of the first
octet), as the builder and pseudonyms make them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final

_V4: Final = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_V6: Final = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![\w:.])")
_MAC: Final = re.compile(r"(?<![\w:])(?:[0-9a-fA-F]{2}:){5}(?:(?:[0-9a-fA-F]{2}:){14})?[0-9a-fA-F]{2}(?![\w:])")
# Of a GPU that somebody made up the digits of each group are alike.
_GPU: Final = re.compile(r"(?:GPU|MIG)-(?!([0-9])\1{7}-)[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_HOME: Final = re.compile(r"/(?:home|Users)/([\w.-]+)")
_MAIL: Final = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_SERIAL: Final = re.compile(
    r"""(?i)["']?[\w /]*(?:serial|product_uuid|asset_tag|vpd)\w*["']?\s*[:=]\s*["']?"""
    r"""(?!null|None|\{|<redacted>|OracleCloud\.com|7783-7084-3265-9085-8269-3286-77|Amazon EC2)[^\s"',}]"""
)
_MACHINE_ID: Final = re.compile(r"/etc/machine-id\"\s*:\s*\{\s*\"ok\"\s*:\s*\"(?!netdoctor-)")
_LOG_LINE: Final = re.compile(r"(?:^|\\n|\")([A-Za-z][\w.-]*):\d+:\d+ \[")
_HOST_NAME: Final = re.compile(r"/(?:kernel|etc)/hostname\"\s*:\s*\{\s*\"ok\"\s*:\s*\"([^\"\\]+)")
# The first person that the composed machines have.
_PEOPLE: Final = frozenset({"ada"})
_PSEUDONYM: Final = re.compile(r"node-[0-9a-f]{8}")
_SILENT: Final = tuple(
    IPv4Network(text)
    for text in re.findall(
        r"\S+",
        """0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 169.254.0.0/16 172.16.0.0/12 192.0.2.0/24 192.168.0.0/16
        198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 255.255.255.255/32""",
    )
)
_GLOBAL: Final = IPv6Network("2000::/3")
_DOCUMENTATION: Final = IPv6Network("2001:db8::/32")
# Makers of HCAs and adapters (IEEE OUI): the first half of a real GUID.  NVIDIA and Mellanox; QLogic, Intel, Broadcom.
_MAKERS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        0002c9 043f72 08c0eb 0c42a1 1070fd 1c34da 248a07 48b02d 506b4b 5c2573 7c8c09 7cfe90 900a84 946dae 9c0591 9c63c0 98039b
        a088c2 b0cf0e b83fd2 b8599f b8cef6 c470bd e09d73 e41d2d e8ebd3 ec0d9a f45214 fc6a1c
        001175 001b21 3cfdfe 40a6b7 6805ca 90e2ba b49691 000af7 001018 bc97e1 d404e6""",
    )
)


def of_form(text: str) -> Iterator[str]:
    """Traces in any fixture."""
    for found in _V4.finditer(text):
        if all(int(part) < 256 for part in found.group().split(".")) and not _private(IPv4Address(_plain(found.group()))):
            yield f"address {found.group()}"
    for found in _V6.finditer(text):
        address = _v6(found.group())
        if address is None:
            continue
        if address.ipv4_mapped is not None and not _private(address.ipv4_mapped):
            yield f"address {found.group()}"
        if address in _GLOBAL and address not in _DOCUMENTATION:
            yield f"address {found.group()}"
    for found in _MAC.finditer(text):
        digits = set(found.group().lower()) - {":"}
        if digits not in ({"0"}, {"f"}) and not int(found.group()[:2], 16) & 2:
            yield f"hardware address {found.group()}"
    yield from (f"home of {one}" for one in _HOME.findall(text) if one not in _PEOPLE)
    yield from (f"mail {one}" for one in _MAIL.findall(text))
    yield from (f"serial number: {found.group()}" for found in _SERIAL.finditer(text))
    yield from ("a machine id as it is" for _ in _MACHINE_ID.finditer(text))


def of_recording(text: str) -> Iterator[str]:
    """Traces in what was recorded: there host names and interface identifiers are pseudonyms, and GPUs have no UUID."""
    yield from (f"GPU {one}" for one in [m.group() for m in _GPU.finditer(text)])
    for found in _V6.finditer(text):
        address = _v6(found.group())
        if address is not None and address.is_link_local and address.packed[8:11].hex() in _MAKERS:
            yield f"GUID {found.group()}"
    for name in (*_HOST_NAME.findall(text), *_LOG_LINE.findall(text)):
        if not _PSEUDONYM.fullmatch(name):
            yield f"host {name}"


def of_composition(text: str, made: Collection[str]) -> Iterator[str]:
    """Traces in what was composed: GPUs that the builder did not make."""
    yield from (f"GPU {one}" for one in [m.group() for m in _GPU.finditer(text)] if one not in made)


def gpus(text: str) -> frozenset[str]:
    return frozenset([m.group() for m in _GPU.finditer(text)])


def words(text: str, telling: Collection[str]) -> Iterator[str]:
    """Which of `telling` stand in `text`, short ones only as whole strings or before the numbers of a log line."""
    for word in telling:
        if len(word) > 3:
            if re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text):
                yield word
        elif re.search(rf'"{re.escape(word)}(?:\\n)?"|(?:^|\\n|"){re.escape(word)}:\d+:\d+ \[', text):
            yield word


def _plain(text: str) -> str:
    """Without leading zeros, which ipaddress refuses."""
    return ".".join(str(int(part)) for part in text.split("."))


def _private(address: IPv4Address) -> bool:
    return any(address in network for network in _SILENT)


def _v6(text: str) -> IPv6Address | None:
    try:
        return IPv6Address(text)
    except ValueError:
        return None

"""What must not leave the machine in a recording: its names, its addresses, its users and their folders."""

from __future__ import annotations

import functools
import getpass
import ipaddress
import os
import pathlib
import re
import socket
import sys
from collections.abc import Iterator, Mapping

_V4 = re.compile(r"(?<![\d.])(?:\d{1,3}\.){3}\d{1,3}(?![\d.])")
_V6 = re.compile(r"(?<![0-9a-fA-F:])(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}(?![0-9a-fA-F:])")
_MAC = re.compile(r"(?:[0-9a-fA-F]{2}:){5,19}[0-9a-fA-F]{2}")
_GUID = re.compile(r"\b(?:0x)?[0-9a-fA-F]{16}\b")
_UUID = re.compile(r"\b(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


@functools.cache
def words() -> tuple[str, ...]:
    """What tells who recorded this: host name, user, home, the checkout and the interpreter's folder."""
    name = socket.gethostname()
    found = {name, name.partition(".")[0], str(pathlib.Path.home()), str(pathlib.Path(__file__).parents[2]), sys.prefix}
    try:
        found.add(getpass.getuser())
    except (KeyError, OSError):
        pass
    found |= {os.path.dirname(os.path.dirname(os.environ.get("NETDOCTOR_TORCH_PYTHON", "")))}
    # Names that everybody has; others are replaced wherever they stand.
    plain = ("root", "/root", "localhost", "/usr", "/usr/local", "user", "users", "admin", "ubuntu", "debian", "nvidia", "cuda")
    return tuple(sorted((w for w in found if len(w) > 3 and w not in plain), key=len, reverse=True))


@functools.cache
def own_addresses() -> frozenset[str]:
    """The addresses of this machine's interfaces: IP and hardware."""
    from netdoctor.host.live import LiveHost

    host = LiveHost()
    try:
        told = host.ask("ask:netlink")
    finally:
        host.close()
    return frozenset(text for text in _strings(told) if _names_somebody(text))


def _names_somebody(text: str) -> bool:
    if _MAC.fullmatch(text):
        return text.strip("0:") != "" and text.lower().strip("f:") != ""
    return bool(_V4.fullmatch(text) or _V6.fullmatch(text)) and not _harmless(text)


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for one in value.values():
            yield from _strings(one)
    elif isinstance(value, list):
        for one in value:
            yield from _strings(one)


def telling(text: str) -> list[str]:
    """What of this machine's names and addresses is in `text`."""
    whole = re.compile(r"[0-9a-fA-F:.]+")
    return [word for word in words() if word in text] + sorted(own_addresses() & set(whole.findall(text)))


class Cleaner:
    """Replaces consistently over several texts: equal stays equal."""

    def __init__(self) -> None:
        self._addresses: dict[str, str] = {}
        self._others: dict[str, str] = {}

    def text(self, text: str) -> str:
        for number, word in enumerate(words()):
            text = text.replace(word, f"/path-{number}" if word.startswith("/") else f"node-{number}")
        # A short name is a word of other things, too; before the numbers of a line of NCCL it is the host's.
        host = re.escape(socket.gethostname().partition(".")[0])
        text = re.sub(rf"(?<![\w.-]){host}(?=:\d+:\d+ \[)", "node-00000000", text)
        text = _UUID.sub(lambda m: self._other(m[0], f"{m[0][:3]}-00000000-0000-4000-8000-{{:012x}}"), text)
        lines = [
            _GUID.sub(self._guid, line) if "NET/IB" in line or "guid" in line.lower() else line for line in text.split("\n")
        ]
        text = _V4.sub(lambda m: self._address(m[0]), "\n".join(lines))
        return _V6.sub(lambda m: self._address(m[0]), text)

    def deep(self, value: object) -> object:
        """The same for every string in JSON data."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(k)): self.deep(v) for k, v in value.items()}
        return [self.deep(v) for v in value] if isinstance(value, list | tuple) else value

    def _guid(self, match: re.Match[str]) -> str:
        prefix = "0x" if match[0].startswith("0x") else ""
        return self._other(match[0], prefix + "a088c20300{:06x}")

    def _other(self, found: str, pattern: str) -> str:
        return self._others.setdefault(found, pattern.format(len(self._others) + 1))

    def _address(self, found: str) -> str:
        """An address of the ranges for documentation (RFC 5737, RFC 3849)."""
        if _harmless(found):
            return found
        number = len(self._addresses) + 1
        return self._addresses.setdefault(found, f"2001:db8::{number:x}" if ":" in found else f"192.0.2.{number}")


def _harmless(text: str) -> bool:
    """No address at all (a version, a time), or one that tells nothing."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return True
    if any(address in net for net in _DOCUMENTATION if net.version == address.version):
        return True
    return address.is_loopback or address.is_unspecified


_DOCUMENTATION = tuple(ipaddress.ip_network(n) for n in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32"))

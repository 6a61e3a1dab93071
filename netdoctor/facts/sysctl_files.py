"""What the node's files say that its sysctls are to be (sysctl.d(5)); what they are is the `Kernel`'s."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from netdoctor.facts.base import Fact
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, names, read
from netdoctor.model import Kind, Unavailable, record

# A file of an earlier folder takes the place of one of the same name in a later one.  /etc/sysctl.conf is read where the
# distribution links it here (99-sysctl.conf).
FOLDERS: Final = ("/etc/sysctl.d", "/run/sysctl.d", "/usr/local/lib/sysctl.d", "/usr/lib/sysctl.d")
WANTED: Final = ("net.ipv4.tcp_congestion_control",)
_LINE: Final = re.compile(r"^\s*-?\s*([\w./*-]+)\s*=\s*(.*?)\s*$", re.ASCII)


class Said(NamedTuple):
    """A value, and the file that says it last."""

    value: str
    file: str


@record
class SysctlFiles(Fact):
    """What the files of sysctl.d(5) set, of what checks judge."""

    said: Mapping[str, Said] | Unavailable


def probe(host: Host, vantage: Vantage) -> SysctlFiles | Unavailable:
    """A container has files of its image, which nobody applies; and they are meant for the network of the machine itself."""
    if vantage.in_container:
        return Unavailable(Kind.UNSUPPORTED, "a container's files are its image's")
    if not vantage.job_network:
        return Unavailable(Kind.UNSUPPORTED, "they are those of another network")
    files: dict[str, str] = {}
    for folder in FOLDERS:
        listed = names(host, folder)
        if isinstance(listed, Unavailable) and listed.kind is not Kind.ABSENT:
            return Unavailable(Kind.NOT_READ, f"{folder}: {listed}")
        files = {**{name: f"{folder}/{name}" for name in listed or () if name.endswith(".conf")}, **files}
    said: dict[str, Said] = {}
    for name in sorted(files):
        text = read(host, files[name])
        if isinstance(text, Unavailable):
            if text.kind is Kind.ABSENT:  # a link to nothing: how a file is masked
                continue
            return Unavailable(Kind.NOT_READ, f"{files[name]}: {text}")
        for line in text.splitlines():
            if found := wanted(line):
                said[found[0]] = Said(found[1], files[name])
    return SysctlFiles(said)


def wanted(line: str) -> tuple[str, str] | None:
    """(name, value) of a line that sets one of `WANTED`."""
    found = _LINE.match(line)
    return (key, found[2]) if found and (key := found[1].replace("/", ".")) in WANTED else None

"""What a recording may keep.  Applied to every answer as it comes in, so that report and snapshot see the same.

The environment, the command line of the kernel and files that a variable names are kept by allow-list; everything else is
scrubbed of what looks like a credential.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final

from netdoctor import environment as table
from netdoctor.credentials import GONE, scrub, secret_name
from netdoctor.host.base import Answer
from netdoctor.model import Json, Kind, Unavailable
from netdoctor.textsafe import HOST_NAME

# machine-id(5): the id is confidential; what is shown is an HMAC of a constant of the program, keyed by the id, as
# sd_id128_get_machine_app_specific(3) makes it.
_OURS: Final = bytes.fromhex("4b2f1c0a8d6e4f7b9a53c1d2e8f60719")
_MACHINE_ID: Final = re.compile(r"[0-9a-f]{32}")

# Kernel parameters that say something about NUMA, IOMMU, PCI, huge pages, cgroups; the values of others are dropped.
_KERNEL_PARAMETER: Final = re.compile(
    r"^(iommu|intel_iommu|amd_iommu|pci|pcie_[a-z_]+|numa[a-z_]*|hugepages[a-z]*|default_hugepagesz|transparent_hugepage|"
    r"isolcpus|nohz[a-z_]*|rcu_nocbs|mitigations|nosmt|ipv6\.disable|cgroup[a-z_]*|systemd\.unified_cgroup_hierarchy|"
    r"nvidia[-_a-z.]*|nvme[a-z_.]*|selinux|apparmor|security|lsm|processor\.[a-z_]+|intel_idle\.[a-z_]+|intel_pstate|ro|rw|quiet)(=|$)"
)

# What tells as little as a switch does, whatever it is called.
_LITTLE: Final = re.compile(r"(?i)[-+]?\d{1,6}[kmg]?|true|false|yes|no|on|off|y|n|")
_A_NUMBER: Final = re.compile(r"flag|int|one|bool|[-\d|.]+")  # what the catalogue says of a variable that takes one
_LONGEST_NUMBER: Final = 24
# NCCL reads a number up to what is none (strtoll, src/misc/param.cc): docker --env-file leaves a comment behind it.
_NUMBER: Final = re.compile(r"\s*([-+]?(?:0[xX][0-9a-fA-F]{1,16}|\d{1,16}))(?=[\s#,;])")
# Clouds write their name there (Oracle's and Azure's documents on detecting them); others the number of their inventory.
_CLOUDS: Final = frozenset({"OracleCloud.com", "7783-7084-3265-9085-8269-3286-77", "Amazon EC2"})
_GONE_LINE: Final = f"{GONE}\n"
_CONF_NAME: Final = re.compile(r"\s*(?:export\s+)?NCCL_\w*\s*")

Accepts = Callable[[str], str | None]
_TOPOLOGY, _GRAPH = "NCCL_TOPO_FILE", "NCCL_GRAPH_FILE"
_PCI: Final = re.compile(r'<pci busid="([0-9a-fA-F:.]{7,16})" class="(0x03[0-9a-fA-F]{0,4})"')


class Redactor:
    """What a recording keeps of each answer.

    `accepts` says of a variable what its values look like, as the catalogue has it (``flag``, ``A..B``, ``text``); None: it
    does not know the name, and the value is kept where it tells as little as a switch does.
    """

    def __init__(self, accepts: Accepts) -> None:
        self._accepts = accepts
        self._named: dict[str, Callable[[str], str]] = {}  # files that a variable named, by what is read of them

    def __call__(self, question: str, answer: Answer) -> Answer:
        """The answer as it may be kept."""
        if isinstance(answer, Unavailable):
            return Unavailable(answer.kind, scrub(answer.detail))
        if question == "env:" and isinstance(answer, dict):
            return self._environment({str(k): str(v) for k, v in answer.items()})
        if isinstance(answer, str) and (reduced := self._reader(question)):
            return reduced(answer)
        if question == "file:/sys/class/dmi/id/chassis_asset_tag" and isinstance(answer, str):
            return answer if answer.strip() in _CLOUDS else _GONE_LINE
        if question == "file:/etc/machine-id" and isinstance(answer, str):
            return _machine_id(answer.strip())
        if question.startswith(("file:/sys/", "again:/sys/", "dir:/sys/", "link:/sys/", "stat:", "statvfs:", "room:", "open:")):
            return answer  # written by the kernel
        return _deep(answer)

    def value(self, name: str, value: str) -> str:
        """The value of a variable as it may be shown; blanks around a name, a slip of nccl.conf, make it no other."""
        name = name.strip()
        known = table.exact(name) or self._accepts(name)
        if secret_name(name) or (known is None and not _LITTLE.fullmatch(value)):
            return value and GONE
        if known and _A_NUMBER.fullmatch(known) and len(value) > _LONGEST_NUMBER:
            said = _NUMBER.match(value)
            return f"{said[1]} {GONE}" if said else GONE
        return scrub(value)

    def _environment(self, variables: dict[str, str]) -> Json:
        # Whatever a variable names, a file is kept as what it is read as.
        reduced = {
            **dict.fromkeys(table.HOST_FILES, _hosts),
            _TOPOLOGY: _gpus,
            _GRAPH: _numbers,
            "NCCL_CONF_FILE": self._conf,
        }  # the last wins
        self._named |= {f"file:{variables[name]}": how for name, how in reduced.items() if name in variables}
        return {name: self.value(name, value) for name, value in sorted(variables.items()) if table.kept(name)}

    def _reader(self, question: str) -> Callable[[str], str] | None:
        if question.startswith("file:") and question.endswith("nccl.conf"):
            return self._conf
        if question in self._named:
            return self._named[question]
        return {"file:/proc/cmdline": _command_line, "file:/etc/passwd": _accounts}.get(question)

    def _conf(self, text: str) -> str:
        return "\n".join(map(self._conf_line, text.split("\n")))

    def _conf_line(self, line: str) -> str:
        name, equals, value = line.partition("=")
        if line.startswith("#"):
            return "#"
        if name in (_TOPOLOGY, _GRAPH):
            self._named.setdefault(f"file:{value}", _gpus if name == _TOPOLOGY else _numbers)
        if not _CONF_NAME.fullmatch(name if equals else (name.split() or [""])[0]):
            return ""
        return f"{name}={self.value(name.split()[-1], value)}" if equals else name.split()[0]


def _machine_id(text: str) -> Answer:
    if text.startswith("netdoctor-"):  # from a recording
        return text
    if not _MACHINE_ID.fullmatch(text):  # "uninitialized", or empty in an image
        return Unavailable(Kind.MALFORMED, "no machine id")
    return "netdoctor-" + hmac.new(bytes.fromhex(text), _OURS, hashlib.sha256).hexdigest()[:32]


def _accounts(text: str) -> str:
    return "".join(map(_account, text.splitlines()))


def _hosts(text: str) -> str:
    """A list of host names, one a line (pbs_resources(7)); of another file nothing."""
    return "\n".join(line for line in text.splitlines() if HOST_NAME.fullmatch(line))


def _gpus(text: str) -> str:
    """The GPUs of a topology file (NCCL src/graph/xml.cc), a line each; of another file nothing."""
    return "\n".join(f'<pci busid="{bus}" class="{kind}"/>' for bus, kind in _PCI.findall(text))


def _numbers(text: str) -> str:
    """The GPUs of a file of graphs (NCCL src/graph/search.cc), a line each; of another file nothing."""
    return "\n".join(sorted(set(re.findall(r'<gpu dev="\d{1,4}"', text))))


def _account(line: str) -> str:
    """Of a line of passwd(5) its name, numbers and home; no password, no full name or telephone number (GECOS), no shell."""
    row = line.split(":")
    return scrub(f"{row[0]}::{row[2]}:{row[3]}::{row[5]}:") + "\n" if len(row) == 7 else ""


def _command_line(text: str) -> str:
    return " ".join(w if _KERNEL_PARAMETER.match(w) else _nameless(w) for w in text.split())


def _nameless(word: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}={GONE}" if equals else GONE


def _deep(value: Json) -> Json:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [_deep(v) for v in value]
    if isinstance(value, dict):
        return {k: _deep(v) for k, v in value.items()}
    return value

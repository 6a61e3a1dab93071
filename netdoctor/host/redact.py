"""What a recording may keep.  Applied to every answer as it comes in, so that report and snapshot see the same.

The environment and the kernel command line are kept by allow-list, everything else is scrubbed of what looks like a secret.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

from netdoctor import environment as table
from netdoctor.host.base import Answer
from netdoctor.model import Json, Kind, Unavailable

GONE: Final = "<redacted>"
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

_SCRUB: Final = (
    (re.compile(r"(?<=//)[^/\s@]+(?=@)"), GONE),  # user:password@ of a URL
    (
        re.compile(
            r"(?i)\b([a-z0-9_.-]*(?:token|secret|passw(?:or)?d|passwd|credential|api[_-]?key|access[_-]?key|authorization)"
            r"[a-z0-9_.-]*)(\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|(?:bearer\s+|basic\s+)?[^\s\"',;&]+)"
        ),
        rf"\1\2{GONE}",
    ),
    (  # as NCCL echoes variables
        re.compile(
            r"(?i)\b([a-z0-9_]*(?:token|secret|passw|credential|api_?key|access_?key)[a-z0-9_]*"
            r" set (?:by environment )?to )\S+"
        ),
        rf"\1{GONE}",
    ),
    (re.compile(r"(?i)\bbearer\s+[a-z0-9._~+/=-]{8,}"), f"Bearer {GONE}"),
    (
        re.compile(
            r"\b(?:gh[pousr]_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{16,}|AKIA[A-Z0-9]{12,}|eyJ[\w-]{8,}\.[\w.-]+"
            r"|sk-[\w-]{16,}|xox[a-z]-[\w-]{8,})"
        ),
        GONE,
    ),
)
_HINT: Final = re.compile(
    r"(?i)//[^/\s]*@|token|secret|passw|credential|key|authorization|bearer|gh[pousr]_|hf_|AKIA|eyJ|sk-|xox"
)


def scrub(text: str) -> str:
    """`text` without what looks like a password, token or key."""
    if not _HINT.search(text):
        return text
    for pattern, replacement in _SCRUB:
        text = pattern.sub(replacement, text)
    return text


def redact(question: str, answer: Answer) -> Answer:
    """The answer as it may be kept."""
    if isinstance(answer, Unavailable):
        return Unavailable(answer.kind, scrub(answer.detail))
    if question == "env:" and isinstance(answer, dict):
        return environment({str(k): str(v) for k, v in answer.items()})
    if question == "file:/proc/cmdline" and isinstance(answer, str):
        return _command_line(answer)
    if question == "file:/etc/machine-id" and isinstance(answer, str):
        return _machine_id(answer.strip())
    if question == "file:/etc/passwd" and isinstance(answer, str):
        return "".join(_account(line) for line in answer.splitlines())
    if question.startswith("file:") and question.endswith("nccl.conf") and isinstance(answer, str):
        return "\n".join(_conf_line(line) for line in answer.split("\n"))
    if question.startswith(("file:/sys/", "dir:/sys/", "link:/sys/", "stat:", "statvfs:", "open:")):
        return answer  # written by the kernel
    return _deep(answer)


def environment(variables: dict[str, str]) -> Json:
    """Variables by the table; values of names that sound secret are dropped, others are scrubbed."""
    return {n: GONE if table.secret(n) else scrub(v) for n, v in sorted(variables.items()) if table.kept(n)}


def _machine_id(text: str) -> Answer:
    if text.startswith("netdoctor-"):  # from a recording
        return text
    if not _MACHINE_ID.fullmatch(text):  # "uninitialized", or empty in an image
        return Unavailable(Kind.MALFORMED, "no machine id")
    return "netdoctor-" + hmac.new(bytes.fromhex(text), _OURS, hashlib.sha256).hexdigest()[:32]


def _account(line: str) -> str:
    """Of a line of passwd(5) its name, numbers and home; no password, no full name or telephone number (GECOS), no shell."""
    row = line.split(":")
    return scrub(f"{row[0]}::{row[2]}:{row[3]}::{row[5]}:") + "\n" if len(row) == 7 else ""


def _command_line(text: str) -> str:
    return " ".join(w if _KERNEL_PARAMETER.match(w) else _nameless(w) for w in text.split())


def _nameless(word: str) -> str:
    name, equals, _ = word.partition("=")
    return f"{name}={GONE}" if equals else GONE


def _conf_line(line: str) -> str:
    name, equals, value = line.partition("=")
    if not equals or not name.lstrip().startswith("NCCL_"):
        return "" if not line.startswith("#") else "#"
    return f"{name}={GONE if table.secret(name) else scrub(value)}"


def _deep(value: Json) -> Json:
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, list):
        return [_deep(v) for v in value]
    if isinstance(value, dict):
        return {k: _deep(v) for k, v in value.items()}
    return value

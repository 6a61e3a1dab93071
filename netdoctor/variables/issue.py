"""What the rules about variables are given (`Context`) and what they say (`Issue`)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from netdoctor.facts.nccl_version import Version
from netdoctor.model import Severity, Unavailable
from netdoctor.nccl.integers import strtoll


@dataclass(frozen=True)
class Issue:
    """One thing to say about one setting; without a severity it is a note."""

    rule: str
    message: str
    severity: Severity | None = None
    cause: str = "env_misuse"
    expected: str | None = None


def note(rule: str, message: str) -> list[Issue]:
    return [Issue(rule, message)]


def warning(rule: str, message: str, cause: str = "env_misuse", expected: str | None = None) -> list[Issue]:
    return [Issue(rule, message, Severity.WARNING, cause, expected)]


def critical(rule: str, message: str, cause: str = "env_misuse", expected: str | None = None) -> list[Issue]:
    return [Issue(rule, message, Severity.CRITICAL, cause, expected)]


@dataclass(frozen=True)
class Known:
    """What is known of the job and of its node beside the variables.

    Devices are Unavailable where they were asked for and could not be read, and None where no node was looked at.
    """

    version: Version | None = None
    plugin: str | None = None  # "aws-ofi-nccl", "gcp", "nccl-rdma-sharp-plugin" or another network plugin in use
    links: Collection[str] | Unavailable | None = None  # interfaces, lo included
    hcas: Collection[str] | Unavailable | None = None  # RDMA devices; empty: there are none
    nodes: int | None = None  # of the job
    sockets: bool = False  # the site says that they carry its data


@dataclass(frozen=True)
class Context:
    """What the rules may look at beside the one value."""

    version: Version
    values: dict[str, str]  # every variable in effect
    plugin: str | None
    links: Collection[str] | None  # None: not known
    hcas: Collection[str] | None
    nodes: int | None
    sockets: bool = False  # the site says that they carry its data
    spelling: bool = True  # whether a name that was meant is looked for

    def integer(self, name: str) -> int | None:
        """The value of an integer variable as NCCL reads it; None where it is unset."""
        value = self.values.get(name, "")
        return strtoll(value).value if value else None

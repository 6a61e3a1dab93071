"""What the rules about variables are given (`Context`) and what they say (`Issue`)."""

from __future__ import annotations

from collections.abc import Collection

from netdoctor.causes.cost import MIGHT, STOPS, sockets
from netdoctor.facts.nccl_version import Version
from netdoctor.model import Loss, Unavailable, record
from netdoctor.nccl.integers import strtoll


@record
class Issue:
    """One thing to say about one setting; what takes nothing is a note."""

    rule: str
    message: str
    loss: Loss | None = None
    cause: str = "env_misuse"
    expected: str | None = None


def note(rule: str, message: str) -> list[Issue]:
    return [Issue(rule, message)]


def harms(
    rule: str, message: str, cause: str = "env_misuse", expected: str | None = None, *, loss: Loss = MIGHT
) -> list[Issue]:
    return [Issue(rule, message, loss, cause, expected)]


def stops(rule: str, message: str, cause: str = "env_misuse", expected: str | None = None) -> list[Issue]:
    """The job does not start with it."""
    return harms(rule, message, cause, expected, loss=STOPS)


@record
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


@record
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

    @property
    def between(self) -> bool | None:
        """Whether the job needs RDMA to other nodes; None: nothing says."""
        if self.nodes == 1 or self.sockets or (self.hcas is not None and not self.hcas):
            return False
        return True if self.nodes else None

    @property
    def rdma_unwanted(self) -> bool:
        """Whether NCCL is told, or the site says, that its own RDMA carries nothing (src/init.cc, src/transport/net_ib)."""
        return self.sockets or bool(self.integer("NCCL_IB_DISABLE")) or (self.values.get("NCCL_NET") or "IB").lower() != "ib"

    def without_rdma(self, rule: str, message: str, expected: str | None = None) -> list[Issue]:
        """NCCL takes TCP sockets instead, and does not say so."""
        words = f"{message}: NCCL silently takes TCP sockets"
        return harms(rule, words, "transport_fallback_tcp", expected, loss=sockets(needed=self.between))

    def integer(self, name: str) -> int | None:
        """The value of an integer variable as NCCL reads it; None where it is unset."""
        value = self.values.get(name, "")
        return strtoll(value).value if value else None

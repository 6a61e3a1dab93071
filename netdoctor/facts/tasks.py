"""Processes and threads that this user has already, which its limit of processes counts."""

from __future__ import annotations

from dataclasses import dataclass

from netdoctor.facts.base import Fact
from netdoctor.facts.kernel import UNLIMITED, Kernel
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, mapping, value
from netdoctor.model import Unavailable

_FREE = frozenset(("CAP_SYS_RESOURCE", "CAP_SYS_ADMIN"))


@dataclass(frozen=True)
class Tasks(Fact):
    """Asked where the limit holds."""

    of_user: int | None | Unavailable  # that /proc shows; None: the limit does not hold, and nobody counted

    @staticmethod
    def limited(kernel: Kernel, vantage: Vantage) -> bool:
        """Whether RLIMIT_NPROC holds: not for root of the machine, nor with these capabilities there (kernel/fork.c)."""
        free = vantage.root_is_root and (vantage.euid == 0 or (vantage.capabilities or frozenset()) & _FREE)
        return kernel.limit("nproc") != UNLIMITED and not free


def probe(host: Host, kernel: Kernel, vantage: Vantage) -> Tasks:
    if not Tasks.limited(kernel, vantage):
        return Tasks(None)
    got = mapping(host, "ask:tasks")
    return Tasks(got if isinstance(got, Unavailable) else value(got.get("threads"), int, "processes and threads of the user"))

"""Processes and threads that this user has already, which its limit of processes counts."""

from __future__ import annotations

import re

from netdoctor.facts.base import Fact
from netdoctor.facts.kernel import UNLIMITED, Kernel, mounted
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import Host, mapping, value
from netdoctor.model import Kind, Unavailable, record

_FREE = frozenset(("CAP_SYS_RESOURCE", "CAP_SYS_ADMIN"))


@record
class Tasks(Fact):
    """How many tasks the job's user has, where a limit of that holds."""

    of_user: int | None | Unavailable  # that /proc shows; None: the limit does not hold, and nobody counted
    hidden: bool | Unavailable = False  # /proc may not show all of them: those that may not be traced (hidepid)

    @staticmethod
    def limited(kernel: Kernel, vantage: Vantage) -> bool:
        """Whether RLIMIT_NPROC holds: not for root of the machine, nor with these capabilities there (kernel/fork.c)."""
        free = vantage.root_is_root and (vantage.euid == 0 or (vantage.capabilities or frozenset()) & _FREE)
        return kernel.limit("nproc") != UNLIMITED and not free


def probe(host: Host, kernel: Kernel, vantage: Vantage) -> Tasks:
    if not Tasks.limited(kernel, vantage):
        return Tasks(None)
    got = mapping(host, "ask:tasks")
    told = got if isinstance(got, Unavailable) else value(got.get("threads"), int, "processes and threads of the user")
    odd = isinstance(told, int) and told < 1  # who counts is there himself
    return Tasks(Unavailable(Kind.MALFORMED, f"threads of the user: {told}") if odd else told, _hidden(host))


def _hidden(host: Host) -> bool | Unavailable:
    """With hidepid even one's own process is seen only where it may be traced (fs/proc/base.c, has_pid_permissions), which
    one that has had other rights may not: sshd's, that of a setuid program or of file capabilities (PR_SET_DUMPABLE)."""
    mount = mounted(host, "/proc")
    if isinstance(mount, Unavailable):
        return False if mount.kind is Kind.ABSENT else mount
    return re.search(r"hidepid=(?!0|off)", mount[-1]) is not None

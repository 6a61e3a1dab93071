"""What each kind of line says of a job's end: one table, from which every rule takes its sets of kinds.

A kind that is not here says nothing of how a job went.  The order is that of what says most about how it ended.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Final, NamedTuple

from netdoctor.nccl.log.event_kinds import EventKind


class Role(Enum):
    """Where such a line stands in a story."""

    ORIGIN = auto()  # others' words may follow from it
    ECHO = auto()  # what a rank prints because another one has gone, was killed, or is late
    BOTH = auto()  # either, by what it says
    OTHER = auto()


class Retry(Enum):
    """Whether a program may go on after it, and what shows that it did."""

    NEVER = auto()
    WORK = auto()  # it is caught or restarted: work of the rank itself, or of all
    STEP = auto()  # a later step alone: an end that comes after it may be of a work that is worth nothing
    AT_ONCE = auto()  # it is tried again: any later work shows that it came about


class Kind(NamedTuple):
    role: Role
    retry: Retry = Retry.NEVER
    how: str = ""  # how the job ended, where the line is a sign that it failed
    ends_process: bool = False
    trouble: bool = False  # says that something failed, also where no rule explains it
    leaving: bool = False  # ranks print it of each other when they leave one after the other
    by_itself: bool = False  # a rank failed by itself: network errors of others may be its consequence


_O, _E, _B, _N = Role.ORIGIN, Role.ECHO, Role.BOTH, Role.OTHER
_W, _A = Retry.WORK, Retry.AT_ONCE
KINDS: Final[dict[EventKind, Kind]] = {
    "node_failed": Kind(_O, how="a node failed"),
    "node_silent": Kind(_O, _A, how="a node failed"),
    "unstarted": Kind(_O, _W, "its processes could not be started on every node"),
    "elastic": Kind(_E, _W, "torchrun names a rank that failed first", ends_process=True, trouble=True),
    "died": Kind(_O, _W, "a process ended by a signal or with an exit code", ends_process=True, trouble=True),
    "actor_died": Kind(_O, _W, "an actor of Ray died", ends_process=True, trouble=True),
    "exception": Kind(_O, _W, "an exception that nobody caught", ends_process=True, trouble=True),
    "watchdog": Kind(_E, how="torch's watchdog ended it: a collective timed out", trouble=True),
    "heartbeat": Kind(_E, how="torch's heartbeat monitor ended it: its watchdog was stuck", trouble=True),
    "torch_echo": Kind(_E, _W, "torch's watchdog, or an exception of C++, ended it", trouble=True, leaving=True),
    "oom": Kind(_O, _W, "the memory of a GPU was used up", ends_process=True, by_itself=True),
    "cuda": Kind(_O, _W, "a CUDA call failed", ends_process=True, trouble=True, by_itself=True),
    "gloo_connect": Kind(_E, _W, "Gloo failed"),
    "barrier": Kind(_E, _W, "a barrier timed out"),
    "store": Kind(_E, _A, "the rendezvous failed", leaving=True),
    "coordinator": Kind(_E, _A, trouble=True, leaving=True),
    "stalled": Kind(_E, _W),
    "rdma_error": Kind(_E, trouble=True),
    "no_way": Kind(_E, _A, trouble=True),
    "generic": Kind(_E, _W, "NCCL returned an error", ends_process=True, trouble=True),
    "secondary": Kind(_E, _W, "NCCL returned an error", trouble=True, leaving=True),
    "peer_closed": Kind(_E, _W, "a connection between ranks was closed", trouble=True, leaving=True),
    "trouble": Kind(_E, _W, "a program reports an error", trouble=True, leaving=True),
    "unit": Kind(_E, _W, trouble=True),  # of systemd, on a node that has many
    "test_failed": Kind(_O, _W, "tests failed"),
    "raised": Kind(_N, _W, "an exception that nobody caught", ends_process=True, leaving=True),
    "ended": Kind(_O),
    "xid": Kind(_O),
    "gpu_lost": Kind(_O),
    "kernel_assert": Kind(_O, how="a kernel of the program failed"),
    "duplicate_gpu": Kind(_O, by_itself=True),
    "shm_full": Kind(_O, by_itself=True),
    "tensor": Kind(_O, _W, "NCCL or torch refused what it was called with"),
    "no_backend": Kind(_O, _W, "torch refused what it was called with", ends_process=True),
    "reducer": Kind(_O, _W, "torch's DDP waits for gradients that did not come"),
    "world_size": Kind(_O),
    "nvls_bind": Kind(_O, by_itself=True),
    "driver": Kind(_O, _A, by_itself=True),
    "too_old": Kind(_O, _A),
    "completion": Kind(_B, trouble=True),
    "connect": Kind(_E, _A),
    "connect_gave_up": Kind(_E, _A),
    "store_port": Kind(_N, _A),
    "store_get": Kind(_E),
    "gloo_timeout": Kind(_E, _W),
    "ofi_request": Kind(_E),
    "ofi_register": Kind(_N, _A),  # tried with another kind of memory, or without
    "unresolved": Kind(_O, _A, "a host's name did not resolve", ends_process=True),
    "service": Kind(_N, _A, ends_process=True),
    "storage": Kind(_O, _W, ends_process=True, by_itself=True),
    "short": Kind(_O, _W, ends_process=True),
    "nvml": Kind(_O, _A, trouble=True),
    "mount": Kind(_O, _W),
    "blocked": Kind(_O, _W),
    "lockup": Kind(_O, _W),
    "engine": Kind(_O, _W, "TensorRT refused its engine"),
    "library": Kind(_O, _W, trouble=True),
    "straggler": Kind(_O, _A),
    "help": Kind(_N, _A),
    "fatal": Kind(_O, _W, "a program ended itself", ends_process=True, trouble=True),
    "told": Kind(_O, _W, "a program says what failed", trouble=True),
    "told_node": Kind(_O, _A, trouble=True),
    "rendezvous_closed": Kind(_E, _A),
    "trail": Kind(_E, _A, trouble=True),
    "warning": Kind(_E, trouble=True),
    "no_number": Kind(_N, Retry.STEP, trouble=True),
    "lessened": Kind(_N, trouble=True),
    "order_differs": Kind(_E),
    "sizes_differ": Kind(_E),
    "descriptors": Kind(_N, _W),
    "polled": Kind(_N, _W),
    "threads": Kind(_N, _W, "a process could start no further thread", trouble=True),
    "async_event": Kind(_N, trouble=True),
    "modify_qp": Kind(_N, trouble=True),
    "ofi_any": Kind(_N, trouble=True),
    "stranger": Kind(_N, trouble=True),
}
_SILENT: Final = Kind(Role.OTHER)


def kind(name: EventKind) -> Kind:
    return KINDS.get(name, _SILENT)


def _those(holds: Callable[[Kind], bool]) -> tuple[EventKind, ...]:
    return tuple(name for name, row in KINDS.items() if holds(row))


SIGNS: Final = _those(lambda row: bool(row.how))
ORIGINS: Final = _those(lambda row: row.role in {Role.ORIGIN, Role.BOTH})
TROUBLE: Final = _those(lambda row: row.trouble)
BY_ITSELF: Final = _those(lambda row: row.by_itself)

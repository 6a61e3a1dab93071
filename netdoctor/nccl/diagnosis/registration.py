"""Memory that could not be registered with an RDMA adapter, by libibverbs' calls (NCCL src/misc/ibvwrap.cc, UCX)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from netdoctor.causes.cost import STOPS
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.diagnosis.mends import Topic
from netdoctor.nccl.log.facts import LogFacts
from netdoctor.nccl.log.wordings import Wording

_REFUSED = "the job stops: NCCL does not go on without a registration that it was promised"
# What NCCL asks the HCA for before any memory of a program's (src/misc/ibvwrap.cc).
_OBJECTS: Final = {
    "ibv_create_cq": "a completion queue",
    "ibv_create_qp": "a queue pair",
    "ibv_alloc_pd": "a protection domain",
}


# What UCX could not register (src/ucp/core/ucp_mm.c): newer versions tell whose memory it is.
_UCX_MEMORY: Final = re.compile(r"failed to register address 0x[0-9a-f]+ (?:\(([\w\-]+)\) |mem_type bit 0x([0-9a-f]+) )?length")
_HOSTS: Final = {"host", "1"}


def register(log: LogFacts) -> Iterator[Hypothesis]:
    """Registration fails: ENOMEM is the locked-memory limit, or GPU memory that cannot be pinned at all."""
    events = log.above_info("register")
    if not events:
        return
    keys, peermem, limits = log.of("mkey"), log.of("peermem"), log.of("memlock")
    errno = " ".join(e.data.get("errno", "") for e in events)
    calls = {e.data.get("call", "").lower() for e in events}
    if keys:
        text = "the HCA ran out of memory keys; the locked-memory limit is not it"
        yield Hypothesis("other", Confidence.STRONG_PLUS, text, events + keys, how="dmesg | grep CREATE_MKEY")
    if Wording.NO_MORE.within(errno):  # kernel/cgroup/rdma.c, rdmacg_try_charge; memory that may not be locked is ENOMEM
        text = "the rdma limit of the job's cgroup is reached: it gets no more objects of the HCA"
        how = "grep . /sys/fs/cgroup$(sed -n s/^0:://p /proc/self/cgroup)/rdma.max in the job; dmesg of the HCA's driver"
        yield Hypothesis("dev_infiniband_missing", Confidence.STRONG_PLUS, text, events, how=how, loss=STOPS)
    elif any("dmabuf" in c for c in calls) or Wording.NOT_REGISTRABLE.within(errno):
        text = "GPU memory could not be registered with the NIC: peer memory or DMA-BUF does not work here"
        yield Hypothesis("gdr_disabled", Confidence.STRONG, text, events + peermem, Topic.GPUDIRECT, loss=STOPS, why=_REFUSED)
        yield Hypothesis("memlock", Confidence.OPEN, "the locked-memory limit can do the same", events, Topic.MEMLOCK)
    elif calls & _OBJECTS.keys():
        made = next(what for call, what in _OBJECTS.items() if call in calls)
        text = f"not even {made} could be made: most often its buffer may not be locked into memory"
        yield Hypothesis("memlock", Confidence.STRONG_PLUS, text, events + limits, Topic.MEMLOCK)
    else:
        confidence, other = (
            (Confidence.OPEN_MINUS, Confidence.STRONG) if peermem else (Confidence.STRONG, Confidence.OPEN_MINUS)
        )
        confidence = Confidence.OPEN_MINUS if keys else confidence
        text = "memory could not be locked for RDMA: the limit of the process (or container) is too low"
        memory = {found[1] or found[2] for e in events for found in _UCX_MEMORY.finditer(e.text)}
        if memory - _HOSTS and not (peermem or keys):  # UCX registers what the program gives it, a GPU's too
            confidence, other = (Confidence.OPEN_PLUS,) * 2 if None in memory else (Confidence.OPEN_MINUS, Confidence.STRONG)
            text += ", or it is a GPU's memory, which nothing here can pin"
        yield Hypothesis("memlock", confidence, text, events + limits, Topic.MEMLOCK)
        yield Hypothesis(
            "gdr_disabled",
            other,
            "GPU memory could not be registered: neither peer memory nor DMA-BUF is there",
            events + peermem,
            Topic.GPUDIRECT,
            loss=STOPS,
            notes=(
                "the same errno: `ulimit -l` in the process's container tells, or an all-reduce with NCCL_NET_GDR_LEVEL=LOC",
            ),
        )


RULES = (register,)

"""Handles of RDMA devices that the cgroups give the ranks of this node.

Sources: NCCL src/transport/net_ib/init.cc (every rank opens every device, and passes over one that does not open),
kernel/cgroup/rdma.c (an open device takes a handle).
"""

from __future__ import annotations

from collections.abc import Iterator

from netdoctor.causes.cost import less
from netdoctor.facts.cgroups import Cap
from netdoctor.facts.intent import Intent, between_nodes, if_it_starts_more
from netdoctor.model import Finding, Status, Unavailable, missing

SUBJECT = "rdma"


def judge(caps: tuple[Cap | Unavailable, ...] | Unavailable, certain: int, ranks: int, intent: Intent) -> Iterator[Finding]:
    """Only what is wrong or open; `certain` of the `ranks` start in any case.  Without RDMA devices rdma.max is empty."""
    tight = min((one for one in caps or () if one), key=lambda cap: cap.most, default=None)
    if tight is not None and tight.most < ranks:
        found = Finding(
            Status.FAIL,
            f"rdma.max gives {int(tight.most)} handles of an RDMA device; {ranks} ranks take one each",
            SUBJECT,
            loss=less(tight.most, ranks, "ranks of this node get the device"),
            expected=f"hca_handle={ranks} at least",
            measured={"file": tight.file},
            how=f"cat {tight.file}; whoever makes the job's cgroup writes 'DEVICE hca_handle=max hca_object=max' into it",
        )
        yield between_nodes(found if tight.most < certain else if_it_starts_more(found, intent), intent)
    elif (lost := missing(caps, *(caps or ()))) is not None:
        text = f"limits of the cgroup on RDMA devices could not be read: {lost}"
        yield between_nodes(Finding(Status.UNKNOWN, text, SUBJECT), intent)

"""Reports to render: one for each verdict, and strategies that make hostile ones."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st

from netdoctor.causes import CAUSES
from netdoctor.causes.results import result
from netdoctor.model import CheckResult, Cost, Finding, Fix, Kind, Quantity, Report, Severity, Status, Unavailable
from netdoctor.policy import Seen, Waiver, decide

TODAY = datetime.date(2026, 6, 15)
IDENTITY: Mapping[str, Any] = {"host": "gpu-node-17", "kernel": "6.8.0-45-generic"}
VANTAGE: Mapping[str, Any] = {"kind": "container", "runtime": "docker", "user": "root", "euid": 0, "why_not": ""}
RUN = {
    "backend": "gloo",
    "device": "cpu",
    "ranks": 2,
    "path": "default",
    "sizes": [4096, 1 << 26],
    "state": "finished",
    "verified": True,
}
FIGURES = {"path": "default", "reason": "", "seconds": 1.5, "busbw_gb_s": {"4096": 0.01, "67108864": 1.234}}


def check(id: str, *findings: Finding, cause: str = "other", title: str = "") -> CheckResult:
    return result(id, title or f"{id} is as it should be", cause, findings)


def report(*checks: CheckResult, profile: str = "default", seen: Seen | None = None, **more: Any) -> Report:
    """A report as the engine makes it; `more` goes to policy (waivers, partial) or to Report."""
    policy = {k: more.pop(k) for k in ("waivers", "disabled", "fail_on") if k in more}
    partial = more.get("partial")
    seen = seen or Seen(gpu=False, library=False, rdma=False)
    results, verdict = decide(checks, profile, seen=seen, today=TODAY, partial=partial, **policy)
    given: dict[str, Any] = {
        "tool_version": "1.2.3",
        "identity": IDENTITY,
        "vantage": VANTAGE,
        "profile": profile,
        "checks": results,
        "verdict": verdict,
        "runs": (RUN,),
        "volatile": {"time": "2026-06-15T10:00:00Z", "seconds": {"probe Net": 0.01}, "runs": [FIGURES]},
        "inventory": {"driver": "580.95.05", "gpus": Unavailable("absent", "no NVML")},
        **more,
    }
    return Report(**given)


PASS = check("net.port_range", Finding(Status.PASS, "28232 usable ports, 12 listeners", evidence={"usable": 28232}))
NOTED = check("net.tcp_buffers", Finding(Status.PASS, "enough up to 1.2 ms", notes=("bbr is set, but not in the kernel",)))
SKIP = check("cpu.numa_affinity", Finding(Status.SKIP, "one NUMA node with CPUs: /sys was read", evidence={"nodes": 1}))
UNKNOWN = check(
    "allreduce.run",
    Finding(Status.UNKNOWN, "no torch that is the job's", how="netdoctor preflight --python /path/to/the/jobs/python"),
)
ERROR = check("site.own", Finding(Status.ERROR, "the check crashed: ZeroDivisionError: division by zero"))
FAIL = check(
    "net.socket_ifname",
    Finding(
        Status.FAIL,
        "NCCL takes docker0, which has no route to MASTER_ADDR",
        expected="ib0",
        evidence={"chosen": "docker0", "candidates": ("docker0", "ib0"), "route": Unavailable("denied", "EACCES")},
        measured={"busbw": Quantity(2.7, "GB/s"), "pid": 4711},
        how="NCCL_DEBUG=INFO shows the interface in the line 'NET/Socket : Using'",
        notes=("eth0 would do as well",),
        fix=Fix(
            "set NCCL_SOCKET_IFNAME=ib0 in the job's environment",
            ("export NCCL_SOCKET_IFNAME=ib0",),
            ("echo NCCL_SOCKET_IFNAME=ib0 >> /etc/nccl.conf",),
        ),
        cost=Cost(
            "2.7 GB/s; with NCCL_SOCKET_IFNAME=ib0 11.2 GB/s: 4.1 times",
            Quantity(2.7, "GB/s"),
            Quantity(11.2, "GB/s"),
            4.1,
            True,
        ),
    ),
    cause="socket_ifname",
)
PAIRS = check(
    "rdma.gpudirect",
    Finding(Status.PASS, "DMA-BUF is used", "gpu0-mlx5_0"),
    *(Finding(Status.FAIL, "neither peermem nor DMA-BUF", f"gpu{n}-mlx5_{n}", evidence={"peermem": False}) for n in (1, 2)),
    Finding(Status.UNKNOWN, "mlx5_3 does not open: EACCES", "gpu3-mlx5_3", how="look as the job's user"),
    cause="gdr_disabled",
)
WAIVER = Waiver("net.socket_ifname", "docker0 is the data network here", datetime.date(2026, 12, 31))
GPU = Seen(gpu=True, library=True, rdma=True)

# Every verdict, by name.
EVERY: dict[str, Report] = {
    "healthy": report(PASS, NOTED, SKIP),
    "healthy with unknowns": report(PASS, UNKNOWN),
    "below the threshold": report(PASS, PAIRS),
    "waived": report(PASS, FAIL, waivers=[WAIVER]),
    "unhealthy": report(PASS, FAIL, PAIRS, SKIP, UNKNOWN, ERROR),
    "inconclusive": report(PASS, UNKNOWN, seen=GPU),
    "a check broke": report(PASS, ERROR, profile="strict"),
    "audit that saw nothing": report(UNKNOWN, profile="audit"),
    "interrupted": report(PASS, UNKNOWN, partial="interrupted by SIGINT"),
    "interrupted and unhealthy": report(FAIL, UNKNOWN, partial="interrupted by SIGTERM"),
    "nothing ran": report(runs=(), volatile={}, inventory={}),
    "a check without findings": report(PASS, check("a.b")),
}

# Other people's strings.
hostile_text = st.one_of(
    st.sampled_from(
        [
            "\x1b]0;owned\x07\x1b[2J\x1b[1;1Hhealthy: all passed",
            '"><script>alert(1)</script>',
            "]]>",
            "&amp;<![CDATA[",
            "\u202etxt.elif",
            "line one\nPASS     forged.check  all is well\r\n",
            "a|b;c$(id)`id`",
            "\udcff\ud800",
            "\x00\x08\x0b\x0c\x7f\x85\u2028\ufffe\uffff",
            "",
            "x" * 3000,
            "漢字" * 50,
        ]
    ),
    st.text(max_size=40),
)
_leaf = st.one_of(
    hostile_text,
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.builds(Quantity, st.floats(), hostile_text),
    st.builds(Unavailable, st.sampled_from(Kind), hostile_text),
)
values = st.recursive(
    _leaf, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(hostile_text, inner, max_size=3)), max_leaves=5
)
mappings = st.dictionaries(hostile_text, values, max_size=3)
_maybe = st.one_of(st.none(), hostile_text)
_quantity = st.one_of(st.none(), st.builds(Quantity, st.floats(), hostile_text))
findings = st.builds(
    Finding,
    status=st.sampled_from(Status),
    message=hostile_text,
    subject=hostile_text,
    severity=st.one_of(st.none(), st.sampled_from(Severity)),
    cause=st.one_of(st.none(), st.sampled_from(sorted(CAUSES))),
    expected=_maybe,
    evidence=mappings,
    measured=mappings,
    how=_maybe,
    why=_maybe,
    notes=st.lists(hostile_text, max_size=2).map(tuple),
    fix=st.one_of(
        st.none(),
        st.builds(
            Fix, hostile_text, st.lists(hostile_text, max_size=2).map(tuple), st.lists(hostile_text, max_size=2).map(tuple)
        ),
    ),
    cure=_maybe,
    cost=st.one_of(
        st.none(), st.builds(Cost, hostile_text, _quantity, _quantity, st.one_of(st.none(), st.floats()), st.booleans())
    ),
)
checks = st.builds(
    result,
    id=st.sampled_from(["net.port_range", "rdma.gpudirect", "allreduce.run", "site.check"]),
    title=hostile_text,
    cause=st.sampled_from(sorted(CAUSES)),
    findings=st.lists(findings, max_size=4).map(tuple),
)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    """Reports in which every string is somebody else's."""
    return report(
        *draw(st.lists(checks, max_size=4, unique_by=lambda c: c.id)),
        profile=draw(st.sampled_from(["default", "gate", "audit", "strict"])),
        partial=draw(st.one_of(st.none(), hostile_text.filter(bool))),
        waivers=draw(st.sampled_from([(), (Waiver("site.check", "why not", TODAY),)])),
        identity=draw(mappings) | {"host": draw(hostile_text)},
        vantage=draw(mappings) | {"kind": draw(hostile_text), "why_not": draw(hostile_text)},
        volatile=draw(mappings),
        runs=tuple(draw(st.lists(mappings, max_size=2))),
        inventory=draw(mappings),
        tool_version=draw(hostile_text),
    )


# To draw a report takes longer than to render it; tests/fuzz renders what it mutates in every format for longer.
DRAWN = settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None, max_examples=25)

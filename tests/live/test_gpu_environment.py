"""Wrong variables, given to a real NCCL on a GPU, against what `netdoctor env` says about them.  Needs an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from netdoctor.allreduce.cause import cause_of
from netdoctor.allreduce.runner import Session
from netdoctor.facts import registry
from netdoctor.facts.environ import Setting
from netdoctor.facts.intent import Intent
from netdoctor.facts.nccl_version import parse as parse_version
from netdoctor.facts.runs import Baseline, Run
from netdoctor.host.live import LiveHost
from netdoctor.model import Status
from netdoctor.nccl.log.parser import parse_text
from netdoctor.snapshot.snapshot import with_logs
from netdoctor.variables import judge as environ
from tests.support.machines import gpus

pytestmark = [pytest.mark.live, pytest.mark.gpu]
gpus.need()
Note = Callable[[str, object], None]
REFUSED_FROM = (2, 24, 0)  # unknown names in NCCL_ALGO and NCCL_PROTO end the init (src/graph/tuning.cc)


@dataclass(frozen=True)
class Case:
    """`nccl` is what it does with the value: stops, ignores, or "any" where the source leaves it open."""

    name: str
    value: str
    nccl: str
    env: str  # "fail" | "note"
    cause: str | None = None


CASES = {
    "ifname": Case("NCCL_SOCKET_IFNAME", "=nosuch0", "stops", "fail", "socket_ifname"),
    "hca": Case("NCCL_IB_HCA", "=nosuch0", "falls back", "by hardware"),
    "algo": Case("NCCL_ALGO", "nonsense", "stops", "fail"),
    "proto": Case("NCCL_PROTO", "LL256", "stops", "fail"),
    "p2p_level": Case("NCCL_P2P_LEVEL", "bogus", "ignores", "fail"),
    "buffsize": Case("NCCL_BUFFSIZE", "4M", "any", "fail"),
    "net": Case("NCCL_NET", "nosuch", "stops", "note"),
}


LIMITS = {"init": 12.0, "first": 8.0, "timed": 8.0, "verify": 8.0}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_env_says_what_nccl_does(gpu_session: Session, case: Case, record_property: Note) -> None:
    base = gpus.two_ranks()
    made = gpus.tried(gpu_session.run(replace(base, sizes=(4096, gpus.MIB), env=(*base.env, (case.name, case.value)))))
    run: Run = with_logs(Baseline(made, True)).run
    log = parse_text(run.log_text)
    record_property("nccl", f"{run.nccl_version}: {run.state}: {run.reason}"[:300])
    version = parse_version(run.nccl_version)
    assert version is not None
    host = LiveHost()
    try:
        have: dict[str, Any] = {}
        for name in ("Environ", "Libraries", "Net", "Rdma"):
            have[name] = registry.make(host, name, have)
    finally:
        host.close()
    known = replace(environ.known_of(have["Libraries"], have["Net"], have["Rdma"], Intent()), version=version)
    found = environ.judge([Setting(case.name, case.value)], known)
    record_property("env", [f"{f.status.value}: {f.message} {' '.join(f.notes)}".strip() for f in found])
    old = case.name in ("NCCL_ALGO", "NCCL_PROTO") and version < REFUSED_FROM
    if case.nccl == "stops" and not old:
        assert run.state == "failed", (run.state, run.reason)
        if case.cause:
            assert cause_of(run) == case.cause, run.reason
    elif case.nccl in ("ignores", "falls back"):
        assert (run.state, run.verified) == ("finished", True), (run.state, run.reason)
    if case.name == "NCCL_IB_HCA":
        assert not log.devices
        assert any(f.status is Status.FAIL for f in found) == bool(known.hcas)  # without HCAs there is nothing to lose
    elif case.env == "fail":
        assert any(f.status is Status.FAIL for f in found)
    else:
        assert any(f.notes for f in found)
    assert run.abandoned == ()

"""rdma.dev_infiniband: the entry of the P_Key table that NCCL takes."""

from __future__ import annotations

import pytest

from netdoctor.model import Finding, Kind, Unavailable
from tests.support.machines.composed import NO_CUDA, Composed

JOB = {"job.nodes": 2, "vantage": "job"}
HEALTHY = Composed._runs  # over InfiniBand, which NCCL's path run finished
LIMITED = [0x7FFF, 0x8012]  # of the default partition; the tenant's own


@pytest.fixture(autouse=True)
def nothing_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Composed, "_runs", lambda *_: {"PathRun": NO_CUDA})


def said(table: list[int], index: str | None = None, config: dict[str, object] = JOB, **environment: str) -> list[Finding]:
    changes = {"hca.pkeys": table, "host.environment": {**({"NCCL_IB_PKEY": index} if index else {}), **environment}}
    found = Composed("dgx-h100", changes, config).judged("rdma.dev_infiniband")
    return [one for one in found if one.subject == "partition key"]


@pytest.mark.parametrize(
    ("table", "index", "words", "mend"),
    [
        (LIMITED, "0x8012", "takes NCCL_IB_PKEY=0x8012, and the table has 3 entries", "NCCL_IB_PKEY=1"),
        (LIMITED, "-1", "takes NCCL_IB_PKEY=-1, and the table has 3 entries", "NCCL_IB_PKEY=1"),
        (LIMITED, "2", "takes NCCL_IB_PKEY=2, and that entry is empty", "NCCL_IB_PKEY=1"),
        ([0x8000], None, "and that entry is empty", "-D pkeys 0"),
    ],
)
def test_a_key_by_which_nothing_comes_through(table: list[int], index: str | None, words: str, mend: str) -> None:
    (one,) = said(table, index)
    assert (one.status, str(one.severity)) == ("fail", "critical")
    assert words in one.message
    assert one.fix is not None
    assert mend in f"{one.fix.summary} {one.fix.commands}"


@pytest.mark.parametrize(
    ("table", "mend"),
    [(LIMITED, "NCCL_IB_PKEY=1"), ([0x7FFF], "-D pkeys 0")],
)
def test_a_limited_member_works_among_full_ones(table: list[int], mend: str) -> None:
    (one,) = said(table)
    assert one.status == "unknown" and "takes index 0 of the table, which is 0x7fff: a limited member" in one.message
    assert one.fix is not None and mend in f"{one.fix.summary} {one.fix.commands}"
    assert one.perhaps is not None and (one.perhaps.status, str(one.perhaps.severity)) == ("fail", "critical")


@pytest.mark.parametrize(
    ("table", "index"),
    [
        ([0xFFFF], None),
        ([0xFFFF], "nothing"),  # strtoll makes 0 of it
        (LIMITED, "1"),
        ([0x8003, 0x7FFF], None),  # Azure: full where NCCL looks
    ],
)
def test_a_full_member_says_nothing(table: list[int], index: str | None) -> None:
    assert said(table, index) == []


def test_a_run_that_came_through_says_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Composed, "_runs", HEALTHY)
    assert said(LIMITED) == []


def test_one_node_needs_no_partition() -> None:
    assert said(LIMITED, None, {**JOB, "job.nodes": 1}) == []


def test_a_key_by_its_value_nccl_looks_for_itself() -> None:
    assert said(LIMITED, NCCL_IB_PKEY_VALUE="0x8012") == []


def test_what_was_not_read_is_not_known() -> None:
    machine = Composed("dgx-h100", {"hca.pkeys": LIMITED}, JOB)
    for path in machine.files.files:
        if path.endswith("/pkeys/0"):
            machine.files.errors[path] = Unavailable(Kind.DENIED, "EACCES")
    (one,) = (one for one in machine.judged("rdma.dev_infiniband") if one.subject == "partition key")
    assert (one.status, "could not be read" in one.message) == ("unknown", True)

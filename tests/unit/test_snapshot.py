"""Snapshots: what goes in comes out; what is cut, newer or no snapshot is said in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.facts.runs import AllReduce, Baseline, PathRun, RankResult, Run
from netdoctor.model import Unavailable
from netdoctor.policy import PROFILE_ORDER
from netdoctor.snapshot import snapshot
from netdoctor.snapshot.diagnose import diagnose
from netdoctor.snapshot.snapshot import Snapshot, SnapshotError, dumps, loads
from tests.lab import fixtures

RUN = Run(
    AllReduce("nccl", 2, "cuda", (4096,), (("NCCL_X", None),), gpus=(0, 1)),
    "finished",
    verified=True,
    ranks=(RankResult(0, "done", exit=0, seconds={4096: 1e-3}, affinity=(0, 1)), RankResult(1, "done", exit=None)),
    busbw={4096: 1.5},
    latency={4096: 1e-3},
    changes=(("RANK", None), ("NCCL_RAS_ENABLE", "0")),
    log_text="n1:1:1 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>\n",
    system_cpu_per_gb=0.25,
)
WHOLE = Snapshot(
    {"file:/a": "x\n", "file:/b": Unavailable("denied", "EACCES"), "ask:nvml": {"devices": []}},
    {"Baseline": Baseline(RUN, True), "PathRun": PathRun(Unavailable("no budget"))},
    {"profile": "gate", "fail_on": "critical", "disabled": [], "waivers": []},
    ("a.b",),
    ("a.b", "plugin.broken"),
    "0.1.0",
    "2026-01-01T00:00:00Z",
)


def test_round_trip() -> None:
    got = loads(dumps(WHOLE))
    assert (
        got.answers == WHOLE.answers and got.policy == WHOLE.policy and (got.selected, got.ran) == (WHOLE.selected, WHOLE.ran)
    )
    baseline = got.runs["Baseline"]
    assert isinstance(baseline, Baseline) and baseline.run.ranks == RUN.ranks and baseline.run.experiment == RUN.experiment
    assert baseline.run.changes == RUN.changes and baseline.run.busbw == RUN.busbw
    assert baseline.run.log is not None  # made again from the text
    assert got.runs["PathRun"] == WHOLE.runs["PathRun"]
    assert dumps(got) == dumps(WHOLE)


def test_secrets_in_a_log_stay_out_of_facts_and_file() -> None:
    run = Run(AllReduce("nccl", 1), "finished", log_text="x NCCL INFO NCCL_FOO_TOKEN set by environment to hunter2\n")
    fact = snapshot.with_logs(Baseline(run, True))
    assert "hunter2" not in fact.run.log_text


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        (dumps(WHOLE)[: len(dumps(WHOLE)) // 2], "cut short"),
        ("[]", "not a netdoctor snapshot"),
        ('{"a": 1}', "not a netdoctor snapshot"),
        ('{"schema": "netdoctor.snapshot/2"}', "newer"),
        ('{"schema": "other/1"}', "other/1"),
        ('{"schema": "netdoctor.snapshot/1"}', "incomplete"),
        ('{"schema": "netdoctor.snapshot/1", "answers": [], "runs": {}, "policy": {}}', "incomplete"),
    ],
)
def test_what_is_no_snapshot(text: str, says: str) -> None:
    with pytest.raises(SnapshotError, match=says):
        loads(text)


@pytest.mark.parametrize("run", [1, {}, {"run": 5}, {"run": {"experiment": {"backend": 1}}}, []])
def test_a_run_of_another_shape_is_unavailable(run: object) -> None:
    data = json.loads(dumps(WHOLE))
    data["runs"]["Baseline"] = run
    got = loads(json.dumps(data)).runs["Baseline"]
    assert got.run == got.lost and got.lost.kind == "malformed"


def test_a_run_that_was_not_made_is_written_as_why() -> None:
    data = json.loads(dumps(replace(WHOLE, runs={"Baseline": Baseline.unread(Unavailable("refused", "--no-allreduce"))})))
    assert data["runs"] == {"Baseline": {"unavailable": "refused", "detail": "--no-allreduce"}}
    got = loads(json.dumps(data)).runs["Baseline"]
    assert got.run == got.lost == Unavailable("refused", "--no-allreduce")


def test_an_answer_of_another_shape_is_unavailable() -> None:
    data = json.loads(dumps(WHOLE))
    data["answers"]["file:/a"] = {"okay": 1}
    got = loads(json.dumps(data)).answers["file:/a"]
    assert isinstance(got, Unavailable) and got.kind == "malformed"


@pytest.mark.parametrize("busbw", [{"": 1.0}, {"x": 1.0}, {"1": "fast"}])
def test_a_run_with_sizes_that_are_no_numbers(busbw: dict[str, object]) -> None:
    data = json.loads(dumps(WHOLE))
    data["runs"]["Baseline"]["run"]["busbw"] = busbw
    got = loads(json.dumps(data)).runs["Baseline"]
    assert got.run == got.lost and got.lost.kind == "malformed"


def test_a_run_that_nobody_knows_is_no_run() -> None:
    """Found by tests/fuzz: it ended `diagnose` as a defect."""
    text = dumps(Snapshot({}, {}, {}))
    data = json.loads(text)
    data["runs"] = {"": {"unavailable": "absent"}, "\x1b": {"ok": 1}}
    assert loads(json.dumps(data)).runs == {}


NOTHING: list[dict[str, dict[str, Any]]] = [{"answers": {}}, {"runs": {}}, {"answers": {}, "runs": {}}]


@pytest.mark.slow
@pytest.mark.parametrize("profile", PROFILE_ORDER)
@pytest.mark.parametrize("emptied", NOTHING, ids=" and ".join)
@pytest.mark.parametrize("slug", ["dgx-h100", "aws-p5", "gb200-nvl72", "cpu-node"])
def test_what_is_not_there_leads_nobody_to_healthy(slug: str, emptied: dict[str, Any], profile: str) -> None:
    taken = replace(fixtures.snapshot(slug), **emptied)
    config = Config(profile=profile)
    report = diagnose(taken, fixtures.specs(), setup.decider(config, taken.selected, taken.partial), profile)
    assert report.verdict.status == "inconclusive"
    assert report.verdict.exit_code == (0 if profile in ("audit", "prolog") else 4)

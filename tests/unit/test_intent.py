"""How many nodes the job has, how that is known, and what becomes of a finding about the way to other nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.facts.environ import Environ
from netdoctor.facts.intent import Intent, Told, between_nodes, probe
from netdoctor.facts.launcher import detect
from netdoctor.facts.net import Net, Peer
from netdoctor.host.base import ReplayHost
from netdoctor.model import CheckResult, Finding, Severity, Status, Unavailable
from netdoctor.policy import Seen, decide
from tests.support import facts as f

FAR = Peer("train-0", ("10.0.0.9",), {}, local=False)


def told(stated: dict[str, Any], variables: dict[str, str] | Unavailable, master: Peer | None = None) -> Intent:
    launcher = variables if isinstance(variables, Unavailable) else detect(variables)
    return f.job(**stated)({Environ: replace(f.environ(), launcher=launcher), Net: f.net(master=master)})


@pytest.mark.parametrize(
    ("stated", "variables", "expected"),
    [
        pytest.param({}, {}, (None, None, Told.NOTHING), id="nothing"),
        pytest.param({"nodes": 1}, {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4"}, (1, False, Told.CONFIGURATION), id="stated 1"),
        pytest.param({"nodes": 4}, {}, (4, True, Told.CONFIGURATION), id="configured 4"),
        pytest.param({}, {"SLURM_JOB_ID": "7", "SLURM_NNODES": "4"}, (4, True, Told.LAUNCHER), id="Slurm, 4 nodes"),
        pytest.param({}, {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}, (1, False, Told.LAUNCHER), id="Slurm, one node"),
        pytest.param({}, {"SLURM_JOB_ID": "7"}, (None, None, Told.LAUNCHER), id="Slurm says no number"),
        pytest.param(
            {},
            {"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"},
            (1, False, Told.WORLD),
            id="torchrun, world = local world",
        ),
        pytest.param(
            {},
            {"TORCHELASTIC_RUN_ID": "a", "RANK": "0", "WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"},
            (2, True, Told.WORLD),
            id="torchrun, two nodes",
        ),
        pytest.param({}, {"RANK": "0", "WORLD_SIZE": "1"}, (1, False, Told.WORLD), id="one rank"),
        pytest.param({}, {"RANK": "0", "WORLD_SIZE": "8"}, (None, None, Told.LAUNCHER), id="a world without a local one"),
        pytest.param({}, {"JOBSET_NAME": "a", "JOB_COMPLETION_INDEX": "3"}, (None, True, Told.INDEX), id="an index"),
        pytest.param({}, {"JOBSET_NAME": "a", "JOB_COMPLETION_INDEX": "0"}, (None, None, Told.LAUNCHER), id="its first pod"),
        pytest.param({}, Unavailable("denied"), (None, None, Told.LAUNCHER), id="the environment could not be read"),
    ],
)
def test_how_many_nodes(stated: dict[str, Any], variables: Any, expected: tuple[Any, ...]) -> None:
    found = told(stated, variables)
    assert (found.nodes, found.others, found.told) == expected and found.why


@pytest.mark.parametrize(
    ("behind", "launched", "nodes"),
    [([], "16", 2), (["job.nodes"], "16", 16), (["job.nodes"], "1", 2), (["job.all_to_all"], "16", 2)],
)
def test_behind_a_lock_the_job_is_as_large_as_launched(behind: list[str], launched: str, nodes: int) -> None:
    environ = replace(f.environ(), launcher=detect({"SLURM_JOB_ID": "7", "SLURM_NNODES": launched}))
    host = ReplayHost({"config:": {"job": {"nodes": 2}, "behind_lock": behind}})
    found = probe(host, environ, f.net(), f.gpus(), f.expected())
    assert isinstance(found, Intent) and found.nodes == nodes


@pytest.mark.parametrize("variables", [{}, {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}], ids=["nothing", "Slurm says one node"])
def test_rank_0_on_another_node_counts(variables: dict[str, str]) -> None:
    assert told({}, variables, FAR).others is True
    assert told({"nodes": 1}, variables, FAR).others is False


FAIL = Finding(Status.FAIL, "no HCA opens", "mlx5_0", Severity.CRITICAL)


def test_one_node_needs_no_way_to_others() -> None:
    found = between_nodes(FAIL, told({"nodes": 1}, {}))
    assert found.status is Status.SKIP and found.subject == "mlx5_0" and "the configuration" in found.message


def test_several_nodes_need_it() -> None:
    assert between_nodes(FAIL, told({"nodes": 2}, {})) is FAIL


@pytest.mark.parametrize("stated", [{}, None], ids=["nothing says", "the configuration is lost"])
def test_not_known_is_unknown_and_says_what_to_state(stated: dict[str, Any] | None) -> None:
    intent = Intent.unread(Unavailable("malformed")) if stated is None else told(stated, {})
    found = between_nodes(FAIL, intent)
    assert found.status is Status.UNKNOWN and found.perhaps is FAIL and "job.nodes" in (found.how or "")
    passed = Finding(Status.PASS, "opens")
    assert between_nodes(passed, intent) is passed


@pytest.mark.parametrize(
    ("severity", "profile", "code"),
    [
        (Severity.CRITICAL, "default", 4),
        (Severity.WARNING, "default", 0),
        (Severity.WARNING, "gate", 4),
        (Severity.CRITICAL, "audit", 0),
        (Severity.CRITICAL, "prolog", 0),
    ],
)
def test_who_is_content_without_knowing(severity: Severity, profile: str, code: int) -> None:
    fail = replace(FAIL, check="rdma.dev_infiniband", severity=severity)
    found = (between_nodes(fail, told({}, {})), Finding(Status.PASS, "so it is"))
    checks = (
        CheckResult("rdma.dev_infiniband", "t", "other", found),
        CheckResult("net.port_range", "t", "other", (Finding(Status.PASS, "there are"),)),
    )
    assert decide(checks, profile, seen=Seen(gpu=False, library=False, rdma=False))[1].exit_code == code

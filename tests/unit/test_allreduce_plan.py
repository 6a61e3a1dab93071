"""Which experiments a node gets, and when the GPUs are left alone."""

import ast
from pathlib import Path
from typing import Any

import pytest

from netdoctor.allreduce import plan
from netdoctor.facts.intent import Intent
from netdoctor.facts.runs import NcclFacts, Obstacle, TorchFacts
from netdoctor.model import Unavailable
from tests.support.facts import environ, expected, gpu, gpus, hca, intent, pci, port, rdma

CUDA = TorchFacts(version="2.9.1", nccl_built=True, cuda_available=True, device_count=8)


def facts(**more: Any) -> dict[str, Any]:
    return {
        "Gpus": gpus(),
        "Rdma": rdma(),
        "Pci": pci(),
        "Intent": intent(),
        "Environ": environ(),
        "Expected": expected(),
        **more,
    }


def torch(**changes: Any) -> TorchFacts:
    return TorchFacts(**{**CUDA.__dict__, **changes})


@pytest.mark.parametrize(
    ("answered", "shape", "backend", "ranks", "ordinals"),
    [
        (CUDA, intent(), "nccl", 8, tuple(range(8))),
        (CUDA, intent(ranks_per_node=4), "nccl", 4, tuple(range(4))),
        (CUDA, intent(ranks_per_node=1), "nccl", 2, (0, 1)),
        (CUDA, Intent.unread(Unavailable("malformed")), "nccl", 8, tuple(range(8))),
        (torch(device_count=1), intent(), "nccl", 2, (0, 0)),
        (NcclFacts("2.27.5", 4), intent(), "nccl", 4, (0, 1, 2, 3)),
        (NcclFacts("2.27.5", 1), intent(), "nccl", 2, (0, 0)),
        (torch(device_count=64), intent(), "nccl", 16, tuple(range(16))),
        (torch(device_count=0), intent(), "gloo", 2, ()),
        (torch(cuda_available=False), intent(), "gloo", 2, ()),
        (torch(nccl_built=False), intent(), "gloo", 2, ()),
        (torch(hip="6.2"), intent(), "gloo", 2, ()),
        (TorchFacts(), intent(), "gloo", 2, ()),
        (Unavailable("failed"), intent(), "gloo", 2, ()),
    ],
)
def test_the_first(answered: Any, shape: Any, backend: str, ranks: int, ordinals: tuple[int, ...]) -> None:
    experiment = plan.first_experiment(answered, shape)
    assert (experiment.backend, experiment.ranks, experiment.gpus) == (backend, ranks, ordinals)


def test_two_ranks_on_one_gpu_are_two_hosts() -> None:
    experiment = plan.first_experiment(torch(device_count=1), intent())
    assert [dict(changes)["NCCL_HOSTID"] for changes in experiment.rank_env] == ["netdoctor-0", "netdoctor-1"]
    assert max(experiment.sizes) <= 1 << 20


def paths(count: int = 8, **more: Any) -> list[str]:
    return [str(e.path) for e in plan.path_experiments(count, facts(**more))]


def test_each_port_alone() -> None:
    found = plan.path_experiments(8, facts())
    assert [str(e.path) for e in found] == [f"inter-node mlx5_{i}:1" for i in range(8)]
    assert all(dict(e.env)["NCCL_IB_HCA"] == f"={e.path.pinned}" for e in found)
    assert all(dict(e.env)["NCCL_P2P_DISABLE"] == dict(e.env)["NCCL_SHM_DISABLE"] == "1" for e in found)
    assert found[3].gpus[0] == 3  # the GPU behind the same switch
    assert all(len(set(e.gpus)) == 2 for e in found)


@pytest.mark.parametrize(
    ("more", "expected_paths"),
    [
        ({"Rdma": rdma(0)}, ["inter-node"]),
        ({"Rdma": Unavailable("denied")}, ["inter-node"]),
        ({"Environ": environ({"NCCL_IB_HCA": "=mlx5_2:1"})}, ["inter-node mlx5_2:1"]),
        ({"Environ": environ({"NCCL_NET": "AWS Libfabric"})}, ["inter-node"]),
        ({"Environ": environ({"NCCL_IB_DISABLE": "1"})}, ["inter-node"]),
        ({"Environ": environ({"NCCL_IB_DISABLE": "0"}), "Rdma": rdma(1)}, ["inter-node mlx5_0:1"]),
        ({"Rdma": rdma(devices=(hca(0, ports=(port(1), port(2, state="DOWN"))),))}, ["inter-node mlx5_0:1"]),
        ({"Rdma": rdma(devices=(hca(0, ports=(port(link_layer="Unspecified"),)),))}, ["inter-node"]),
        ({"Rdma": rdma(1), "Expected": expected(rails_routed=True)}, ["inter-node mlx5_0:1", "inter-node"]),
    ],
)
def test_paths(more: dict[str, Any], expected_paths: list[str]) -> None:
    assert paths(**more) == expected_paths


def test_one_gpu_and_no_port_needs_no_second_run() -> None:
    assert plan.path_experiments(1, facts(Rdma=rdma(0))) == (plan.first_experiment(torch(device_count=1), intent()),)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({}, None),
        ({"processes": 1}, "in use by 1 process"),
        ({"memory_used": 600 << 20}, "600 MiB"),
        ({"utilization": 99}, "99 % busy"),
        ({"memory_used": 4 << 20, "utilization": 0}, None),
        ({"memory_used": Unavailable("unsupported"), "processes": Unavailable("unsupported")}, "does not tell"),
        ({"utilization": Unavailable("unsupported")}, None),  # MIG
    ],
)
def test_busy(changes: dict[str, Any], text: str | None) -> None:
    have = facts(Gpus=gpus(all=(*(gpu(i) for i in range(7)), gpu(7, **changes))))
    reason = plan.busy(have, plan.first_experiment(CUDA, intent()))
    assert (reason is None) is (text is None)
    assert text is None or text in str(reason)


def test_all_busy_gpus_are_named() -> None:
    some = (gpu(0, utilization=50), *(gpu(i) for i in range(1, 6)), *(gpu(i, processes=1) for i in (6, 7)))
    reason = plan.busy(facts(Gpus=gpus(all=some)), plan.first_experiment(CUDA, intent()))
    assert str(reason) == "GPU 0 is in use: 50 % busy; GPU 6 is in use by 1 process; GPU 7 is in use by 1 process"
    unread = gpus(all=(gpu(0, memory_used=Unavailable("denied")), gpu(1, processes=1)))
    reason = plan.busy(facts(Gpus=unread), plan.first_experiment(torch(device_count=2), intent()))
    assert reason is not None and reason.obstacle is Obstacle.GPU_BUSY


def test_gpus_that_are_not_known_are_left_alone() -> None:
    experiment = plan.first_experiment(CUDA, intent())
    assert plan.busy(facts(Gpus=Unavailable("crashed")), experiment)
    assert plan.busy(facts(Gpus=gpus(7)), experiment)
    assert plan.busy(facts(Gpus=Unavailable("crashed")), plan.GLOO) is None


@pytest.mark.parametrize("name", ["rank.py", "by_torch.py", "by_nccl.py", "zygote.py"])
def test_the_rank_program_is_python_3_8_without_netdoctor(name: str) -> None:
    text = (Path(plan.__file__).parent / name).read_text()
    tree = ast.parse(text, feature_version=(3, 8))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            node.body = []
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert not [m for m in imported if m.startswith("netdoctor")]

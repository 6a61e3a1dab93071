"""A container that was given no GPU: whoever misses one says how a container gets it, and not how torch is mended."""

from __future__ import annotations

import pytest

from checks.allreduce_run import allreduce_run
from checks.gpu_fabric import gpu_fabric
from checks.gpu_mapping import gpu_mapping
from checks.hardware_accelerator import accelerator
from checks.torch_backend import torch_backend
from netdoctor.facts.fabric import Fabric
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_load import GpuLoad
from netdoctor.facts.runs import Baseline
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Kind, Status, Unavailable
from tests.support import facts as f

ABSENT = Unavailable(Kind.ABSENT, "libcuda.so.1: cannot open shared object file")
CHECKS = (allreduce_run, gpu_fabric, gpu_mapping, accelerator, torch_backend)
PLACES = {
    "pod": (f.pod(), "nvidia.com/gpu"),
    "docker": (f.pod(runtime="docker", kind="container"), "docker run --gpus all"),
    "host": (f.vantage(), ""),
}


@pytest.mark.parametrize("check", CHECKS, ids=lambda one: one.__name__)
@pytest.mark.parametrize(("vantage", "way"), PLACES.values(), ids=PLACES)
def test_what_the_container_must_ask_for(check: object, vantage: Vantage, way: str) -> None:
    bare = {
        Vantage: vantage,
        Gpus: f.gpus(all=ABSENT, visible=ABSENT),
        Fabric: Fabric.unread(ABSENT),
        Baseline: f.baseline(f.gloo_run()),
    }
    found = [x for x in f.judge(check, f.machine(bare)) if x.status is Status.UNKNOWN and x.how]  # type: ignore[arg-type]
    told = [x.how for x in found if x.how and "nvidia.com/gpu" in x.how]
    assert bool(told) is bool(way) and all(way in how for how in told)
    assert not way or not any(word in str(x.how) for x in found for word in ("python -c", "nvidia-smi"))


def test_a_driver_that_fails_is_no_container_without_gpus() -> None:
    sick = Unavailable(Kind.FAILED, "NVML: Driver/library version mismatch")
    found = f.judge(accelerator, f.machine({Vantage: f.pod(), Gpus: f.gpus(all=sick, visible=ABSENT)}))
    assert not any("nvidia.com/gpu" in (x.how or "") for x in found)


def test_why_nothing_was_seen_under_load() -> None:
    """Where nothing ran nobody looks; what a recording lacks is another reason."""
    words = {Kind.NOT_READ: "nobody looked", Kind.NOT_RECORDED: "not recorded", Kind.DENIED: "EACCES"}
    for kind, said in words.items():
        load = GpuLoad.unread(Unavailable(kind, "EACCES" if kind is Kind.DENIED else ""))
        assert str(load.why_not) == said
    assert GpuLoad(1.0, {}).why_not is None

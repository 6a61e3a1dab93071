"""nccl.version: pass, fail, skip and unknown each for a true reason."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.allreduce.experiment import Baseline
from netdoctor.checks.nccl_version import nccl_version
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.probes.environ import Environ
from netdoctor.probes.gpu import Gpus
from netdoctor.probes.job import JobShape
from netdoctor.probes.libraries import JobPython, Libraries
from netdoctor.probes.pci import Pci
from netdoctor.probes.rdma import Rdma
from netdoctor.probes.vantage import Vantage
from tests.support import facts as f

LOST = Unavailable("not recorded")
Changes = dict[type, object]
SYSTEM = "/usr/lib/x86_64-linux-gnu/libnccl.so.2.21.5"
OLD = f.library(SYSTEM, (2, 21, 5), found_by=("loader cache",))


def judged(changes: Changes) -> dict[str, Finding]:
    return {x.subject: x for x in f.judge(nccl_version, f.machine(changes))}


def loaded(changes: Changes) -> Finding:
    found = judged(changes)
    return found.get("loaded") or found["node"]


def mapped(*paths: str, version: str = "2.27.5", **changes: Any) -> Baseline:
    ranks = tuple(f.rank(i, mapped=paths) for i in range(8))
    return f.baseline(f.run(ranks=ranks, mapped=paths, nccl_version=version, **changes))


def no_run(**torch: Any) -> Changes:
    return {Baseline: LOST, Libraries: f.libraries(torch=f.torch(**torch), nccl=(f.library(), OLD))}


PASSES: dict[str, Changes] = {
    "the wheel's library, mapped by the run": {},
    "static build": {Baseline: mapped()},
    "another version lies about": {Libraries: f.libraries(nccl=(f.library(), OLD))},
    "the same version at two paths": {
        Libraries: f.libraries(nccl=(f.library(), f.library("/opt/nccl/libnccl.so.2"))),
        Baseline: mapped(f.LIBNCCL, "/opt/nccl/libnccl.so.2"),
    },
    "newer than compiled": {
        Libraries: f.libraries(torch=f.torch(nccl_compiled=(2, 21, 5))),
    },
    "NGC: the system's library, no wheel": {
        Libraries: f.libraries(nccl=(OLD,), torch=f.torch(nccl_path=SYSTEM, nccl_compiled=None)),
        Baseline: mapped(SYSTEM, version="2.21.5"),
    },
}


@pytest.mark.parametrize("changes", PASSES.values(), ids=PASSES)
def test_pass(changes: Changes) -> None:
    assert loaded(changes).status is Status.PASS, loaded(changes)


FAILS: dict[str, tuple[Changes, str]] = {
    "two versions in one process": (
        {Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: mapped(f.LIBNCCL, SYSTEM)},
        "different NCCL versions",
    ),
    "static build, and another one mapped": (
        {Libraries: f.libraries(nccl=(OLD,)), Baseline: mapped(SYSTEM, version="2.27.5")},
        "different NCCL versions",
    ),
    "older than compiled": (
        {Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: mapped(SYSTEM, version="2.21.5")},
        "built against NCCL 2.27.5",
    ),
    "older than compiled, by the rules": (no_run(nccl_path=SYSTEM, nccl_why="LD_PRELOAD"), "built against NCCL 2.27.5"),
    "the library is a text file": (
        {
            Baseline: LOST,
            Libraries: f.libraries(nccl=(f.library(version=Unavailable("malformed", "not an ELF file")),)),
        },
        "no library",
    ),
}


@pytest.mark.parametrize(("changes", "words"), FAILS.values(), ids=FAILS)
def test_fail(changes: Changes, words: str) -> None:
    found = loaded(changes)
    assert found.status is Status.FAIL, found
    assert words in found.message and found.fix is not None


def test_ranks_that_differ_are_a_fail() -> None:
    ranks = (f.rank(0), f.rank(1, mapped=(SYSTEM,)))
    run = f.run(ranks=ranks, mapped=(f.LIBNCCL, SYSTEM))
    assert loaded({Libraries: f.libraries(nccl=(f.library(), OLD)), Baseline: f.baseline(run)}).status is Status.FAIL


SKIPS: dict[str, Changes] = {
    "no accelerator": {Pci: f.pci(0, 0), Gpus: f.gpus(0)},
    "no accelerator, no driver": {Pci: f.pci(0, 0), Gpus: f.gpus(0, visible=Unavailable("absent"))},
    "CPU build": {Libraries: f.libraries(torch=f.torch(cuda=None, nccl_linkage="none", nccl_path=None), nccl=())},
}


@pytest.mark.parametrize("changes", SKIPS.values(), ids=SKIPS)
def test_skip(changes: Changes) -> None:
    assert loaded(changes).status is Status.SKIP


UNKNOWNS: dict[str, Changes] = {
    "netdoctor's own torch": {Libraries: f.libraries(python=JobPython("/opt/netdoctor/.venv/bin/python", "VIRTUAL_ENV", True))},
    "no torch": {Libraries: f.libraries(torch=Unavailable("absent"))},
    "ROCm": {Libraries: f.libraries(torch=f.torch(version="2.9.1+rocm6.4", cuda=None))},
    "static, no run": no_run(nccl_linkage="static", nccl_path=None),
    "which file is lost": no_run(nccl_path=LOST),
    "linkage lost": no_run(nccl_linkage=LOST),
    "version lost": {Baseline: LOST, Libraries: f.libraries(nccl=(f.library(version=LOST),))},
    "two mapped, one version lost": {
        Libraries: f.libraries(nccl=(f.library(),)),
        Baseline: mapped(f.LIBNCCL, "/opt/other/libnccl.so.2"),
    },
    "the loader finds none": no_run(nccl_path=None),
    "outside the job": {Vantage: f.outside()},
    "no accelerator? PCI lost": {Pci: LOST, Gpus: f.gpus(0), Libraries: f.libraries(torch=LOST)},
}


@pytest.mark.parametrize("changes", UNKNOWNS.values(), ids=UNKNOWNS)
def test_unknown(changes: Changes) -> None:
    assert loaded(changes).status is Status.UNKNOWN, loaded(changes)


def test_without_a_run_the_loaders_rules_are_no_pass() -> None:
    found = loaded(no_run(nccl_why="DT_RPATH of libtorch_cuda.so"))
    assert found.status is Status.UNKNOWN and "DT_RPATH" in found.message


def test_other_nodes_are_said_to_be_unseen() -> None:
    assert any("other nodes" in note for note in loaded({JobShape: f.job(nodes=4, stated=True)}).notes)


EFA = f.rdma(devices=tuple(f.hca(i, name=f"rdmap{i}s0", driver="efa") for i in range(8)))
OFI = f.run(log=f.log(network="Libfabric", net="Libfabric"))
WITH_OFI: Changes = {Rdma: EFA, Baseline: f.baseline(OFI), Libraries: f.libraries(plugins=(f.plugin(),))}
PLUGIN: dict[str, tuple[Changes, Status]] = {
    "none needed": ({}, Status.SKIP),
    "EFA with its plugin in use": (
        {Rdma: EFA, Baseline: f.baseline(OFI), Libraries: f.libraries(plugins=(f.plugin(),))},
        Status.PASS,
    ),
    "fits, NCCL did not run": (
        {Baseline: f.baseline(nccl_ran=False), Libraries: f.libraries(plugins=(f.plugin(),))},
        Status.PASS,
    ),
    "fits, no run": ({Baseline: LOST, Libraries: f.libraries(plugins=(f.plugin(),))}, Status.UNKNOWN),
    "there, the run used sockets, devices lost": (
        {Rdma: LOST, Baseline: f.baseline(f.run(log=f.log(network="Socket"))), Libraries: f.libraries(plugins=(f.plugin(),))},
        Status.UNKNOWN,
    ),
    "EFA without a plugin": ({Rdma: EFA}, Status.FAIL),
    "EFA, the plugin is there and unused": (
        {Rdma: EFA, Baseline: f.baseline(f.run(log=f.log(network="Socket"))), Libraries: f.libraries(plugins=(f.plugin(),))},
        Status.FAIL,
    ),
    "too old an interface": ({Libraries: f.libraries(plugins=(f.plugin(symbols=("ncclNetPlugin_v4",)),))}, Status.FAIL),
    "its symbols are lost": ({Libraries: f.libraries(plugins=(f.plugin(symbols=LOST),))}, Status.UNKNOWN),
    "plugins lost": ({Libraries: f.libraries(plugins=LOST)}, Status.UNKNOWN),
    "no plugin, devices lost": ({Rdma: LOST}, Status.UNKNOWN),
    "named, not found, no run": ({Baseline: LOST, Environ: f.environ({"NCCL_NET_PLUGIN": "ofi"})}, Status.UNKNOWN),
    "environment lost": ({Environ: LOST}, Status.UNKNOWN),
}


@pytest.mark.parametrize(("changes", "status"), PLUGIN.values(), ids=PLUGIN)
def test_plugin(changes: Changes, status: Status) -> None:
    assert judged(changes)["plugin"].status is status, judged(changes)["plugin"]

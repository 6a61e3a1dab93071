"""The helper programs with real dynamic loading: fake NVML, CUDA and verbs libraries in the place of the vendors'."""

from __future__ import annotations

import os
import pathlib
import pwd
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from netdoctor.allreduce import plan
from netdoctor.facts import fabric, gpu, gpu_health, gpu_users, rdma
from netdoctor.facts.intent import Intent
from netdoctor.facts.runs import TorchFacts
from netdoctor.host.children import HelperPool
from netdoctor.host.live import LiveHost
from netdoctor.host.trust import trusted
from netdoctor.model import Unavailable
from tests.support import facts as f
from tests.support.machines import native

pytestmark = pytest.mark.live
Look = Callable[..., LiveHost]


@pytest.fixture
def look(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Look]:
    """A host whose loader finds the fakes, with the given lines in their configuration."""
    folders = [native.nvml(), native.cuda(), native.ibverbs()]
    if os.geteuid() == 0 and (reason := trusted(str(folders[0]))):
        pytest.skip(f"root loads nothing from this checkout: {reason}")
    hosts: list[LiveHost] = []

    def make(nvml: str = "", cuda: str = "", ibv: str = "", limit: float = 30.0, *, trust: bool = True) -> LiveHost:
        monkeypatch.setenv("LD_LIBRARY_PATH", ":".join(map(str, folders)))
        for name, text in (("NVML", nvml), ("CUDA", cuda), ("IBV", ibv)):
            file = tmp_path / f"{name}.conf"
            file.write_text(text.replace(" ", "\n"))
            monkeypatch.setenv(f"FAKE_{name}_CONF", str(file))
        host = LiveHost()
        # Root's helpers go by no variable of a fake's, unless the job is root's own.
        host._pool = HelperPool(deadlines=dict.fromkeys(("nvml", "cuda", "ibverbs"), limit), trust=trust)
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.close()


def all_gpus(fact: gpu.Gpus) -> tuple[gpu.Gpu, ...]:
    assert not isinstance(fact.all, Unavailable), fact.all
    return fact.all


def visible(fact: gpu.Gpus) -> tuple[gpu.VisibleGpu, ...]:
    assert not isinstance(fact.visible, Unavailable), fact.visible
    return fact.visible


def test_eight_gpus_from_both_sides(look: Look) -> None:
    fact = gpu.probe(look())
    assert fact.driver == "580.95.05" and fact.cuda_driver == 13000
    assert [g.pci for g in all_gpus(fact)][:2] == ["0000:1b:00.0", "0000:43:00.0"]
    assert all(g.nvlinks == (True,) * 18 and g.capability == (9, 0) and g.mig is False for g in all_gpus(fact))
    # used memory leaves out what the driver reserves (600 MiB here), which is version 2 of the structure
    assert all(g.memory_used == 4 << 20 and g.processes == 0 for g in all_gpus(fact))
    assert all(v.gpudirect_rdma is True and v.dmabuf is True and v.integrated is False for v in visible(fact))
    joined = fact.of_the_job
    assert not isinstance(joined, Unavailable) and all(g is not None and g.uuid == v.uuid for v, g in joined)


def test_the_job_sees_what_its_environment_says(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    fact = gpu.probe(look())
    assert [g.uuid for g in all_gpus(fact)][3] == visible(fact)[0].uuid and len(visible(fact)) == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu.probe(look()).visible == ()


def test_mig(look: Look) -> None:
    fact = gpu.probe(look(nvml="gpu0.mig=2", cuda="count=1 gpu0.uuid=MIG-fa4e0000-0000-4000-8000-000001000000"))
    first = all_gpus(fact)[0]
    assert first.mig is True and not isinstance(first.mig_uuids, Unavailable) and len(first.mig_uuids) == 2
    assert visible(fact)[0].uuid == first.mig_uuids[0]
    assert fact.of_the_job == ((visible(fact)[0], first),)


@pytest.mark.parametrize(
    ("nvml", "kind", "words"),
    [
        ("error.init=9", "failed", "Driver Not Loaded"),
        ("error.init=18", "failed", "RM version mismatch"),
        ("error.init=4", "denied", "Insufficient Permissions"),
        ("error.count=999", "failed", "Unknown Error"),
        ("crash.name=1", "crashed", "SIGSEGV"),
    ],
)
def test_nvml_that_fails_says_so_and_cuda_still_answers(look: Look, nvml: str, kind: str, words: str) -> None:
    fact = gpu.probe(look(nvml=nvml))
    assert isinstance(fact.all, Unavailable) and fact.all.kind == kind and words in fact.all.detail
    assert len(visible(fact)) == 8


def test_nvml_that_hangs(look: Look) -> None:
    fact = gpu.probe(look(nvml="hang.init=1", limit=1.0))
    assert isinstance(fact.all, Unavailable) and fact.all.kind == "timed out"
    assert len(visible(fact)) == 8


def test_a_field_that_fails_is_one_field(look: Look) -> None:
    fact = gpu.probe(look(nvml="gpu6.error.uuid=15 gpu2.nvlink7=0 gpu1.error.nvlink=3 gpu3.error.mig=3 gpu5.error.handle=15"))
    gpus = all_gpus(fact)
    assert len(gpus) == 8
    assert isinstance(gpus[6].uuid, Unavailable) and "GPU is lost" in gpus[6].uuid.detail and gpus[6].name
    assert gpus[2].nvlinks == (True,) * 7 + (False,) + (True,) * 10 and gpus[1].nvlinks == ()
    assert gpus[3].mig is False  # a GPU that cannot do MIG
    assert isinstance(gpus[5].uuid, Unavailable) and isinstance(gpus[5].pci, Unavailable) and gpus[5].index == 5


@pytest.mark.parametrize(
    ("nvml", "cuda", "closed"),
    [
        ("cc=1\ncc_ready=0", "error.init=802", True),
        ("cc=1\ncc_ready=1", "error.init=802", False),  # it waits for its fabric
        ("cc=0", "error.init=802", False),
        ("", "error.init=802", None),  # a driver that knows no confidential computing
        ("cc=1\ncc_ready=1", "", None),  # nobody waits
    ],
)
def test_gpus_of_a_confidential_machine(look: Look, nvml: str, cuda: str, closed: bool | None) -> None:
    host = look(nvml=nvml, cuda=cuda)
    found = fabric.probe(host, gpu_health.probe(host), f.net())
    assert found.not_ready is bool(cuda) and found.closed is closed


def test_a_function_that_the_driver_lacks_is_unsupported(look: Look) -> None:
    fact = gpu.probe(look(nvml="gpu0.error.utilization=13"))
    got = all_gpus(fact)[0].utilization
    assert isinstance(got, Unavailable) and got.kind == "unsupported"


@pytest.mark.parametrize(
    ("cuda", "kind", "words"),
    [
        ("error.init=802", "failed", "CUDA_ERROR_SYSTEM_NOT_READY (802)"),
        ("error.init=803", "failed", "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
        ("error.init=47", "failed", "CUDA error 47"),
        ("crash.get=1", "crashed", "SIGSEGV"),
        ("gpu4.error.get=999", "failed", "CUDA_ERROR_UNKNOWN"),
    ],
)
def test_cuda_that_fails_is_not_a_machine_without_gpus(look: Look, cuda: str, kind: str, words: str) -> None:
    fact = gpu.probe(look(cuda=cuda))
    assert isinstance(fact.visible, Unavailable) and fact.visible.kind == kind and words in fact.visible.detail
    assert len(all_gpus(fact)) == 8
    assert fact.libcuda == (str(native.cuda() / "libcuda.so.1") if cuda.startswith("error.init") else "")


def test_attributes_that_the_driver_does_not_know(look: Look) -> None:
    seen = visible(gpu.probe(look(cuda="attr124=-1 gpu1.attr116=0")))
    assert isinstance(seen[0].dmabuf, Unavailable) and seen[0].dmabuf.kind == "unsupported"
    assert seen[0].gpudirect_rdma is True and seen[1].gpudirect_rdma is False


def providers(host: LiveHost) -> dict[str, rdma.Provider | Unavailable]:
    """The provider part of the probe, for eight devices as sysfs would list them."""
    answer = host.ask("ask:ibverbs")
    if isinstance(answer, Unavailable):
        return {n: rdma._provider(host, n, answer, True) for n in (f"mlx5_{i}" for i in range(8))}
    assert isinstance(answer, dict)
    listed = rdma._listing(answer.get("devices"))
    return {n: rdma._provider(host, n, listed, False) for n in (f"mlx5_{i}" for i in range(8))}


def test_verbs(look: Look) -> None:
    host = look(ibv="count=7 gpu1.error.open=13 gpu2.dmabuf=95 gpu3.error.pd=12 warning=couldn't_load_driver")
    answer = host.ask("ask:ibverbs")
    assert isinstance(answer, dict) and answer["library"].endswith("libibverbs.so.1")
    got = providers(host)
    assert got["mlx5_0"] == rdma.Provider(True, "", "EBADF")
    assert got["mlx5_1"] == rdma.Provider(False, "EACCES", Unavailable("not read", "no context"))
    assert got["mlx5_2"] == rdma.Provider(True, "", "EOPNOTSUPP")
    assert got["mlx5_3"] == rdma.Provider(True, "", Unavailable("not read", "ibv_alloc_pd: ENOMEM"))
    assert got["mlx5_7"] == Unavailable("absent", "libibverbs does not list it")


def test_a_provider_that_crashes(look: Look) -> None:
    got = providers(look(ibv="gpu3.crash.open=1"))
    assert isinstance(got["mlx5_3"], Unavailable) and "SIGSEGV" in got["mlx5_3"].detail
    assert all(isinstance(one, rdma.Provider) for name, one in got.items() if name != "mlx5_3")


def test_a_kernel_without_rdma(look: Look) -> None:
    assert rdma.probe(look(ibv="error.list=38")).verbs_devices == Unavailable("unsupported", "ibv_get_device_list: ENOSYS")


def test_who_holds_a_gpu(look: Look) -> None:
    """A real process holds the fake's GPU; the number of one that is gone is told as a number."""
    with subprocess.Popen(["sleep", "600"]) as holder:
        try:
            seen = gpu.probe(look(nvml=f"gpu3.processes=2 gpu3.pid={holder.pid}"))
            where = replace(f.vantage(), namespaces={"pid": "4026531836"})
            facts = {"Gpus": seen, "GpuUsers": gpu_users.probe(look(), seen, where)}
            reason = plan.busy(
                facts, plan.first_experiment(TorchFacts(nccl_built=True, cuda_available=True, device_count=8), Intent())
            )
        finally:
            holder.kill()
    user = pwd.getpwuid(os.geteuid()).pw_name
    assert str(reason).startswith(f"GPU 3 is in use by sleep (pid {holder.pid}, {user}), "), reason
    assert f"pid {holder.pid + 1}" in str(reason)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what root refuses")
def test_root_does_not_load_from_a_folder_of_others(
    look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    host = look(trust=False)
    (tmp_path / "libnvidia-ml.so.1").symlink_to(native.nvml() / "libnvidia-ml.so.1")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    got = host.ask("ask:nvml")
    assert isinstance(got, Unavailable) and got.kind in ("refused", "failed") and str(tmp_path) in got.detail


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: what root refuses")
def test_a_library_that_is_not_the_jobs_says_nothing(
    look: Look, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Root withholds a folder and finds another libibverbs: it lists no device, and the job's may list them all."""
    for name, refused in (("libibverbs.so.1", True), ("libmlx5-rdmav34.so", True), ("libz.so.1", False)):
        host = look(ibv="count=0", trust=False)
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir(exist_ok=True)
        (folder / name).touch()
        monkeypatch.setenv("LD_LIBRARY_PATH", f"{folder}:{os.environ['LD_LIBRARY_PATH']}")
        got = host.ask("ask:ibverbs")
        assert (isinstance(got, Unavailable) and got.kind == "refused" and str(folder) in got.detail) is refused, (name, got)
        assert refused or (isinstance(got, dict) and got["devices"])

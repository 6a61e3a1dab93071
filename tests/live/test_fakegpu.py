"""The real libnccl on a machine that is not there: the paths that it takes, and that every knob of the fake bites.

What NCCL decides is real, what it takes is not: no test here looks at a time.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakegpu import build, faults, lab, machine, namespace, paths, topology
from tests.lab import fixtures
from tests.support.clusters import pyz
from tests.support.machines import libnccl
from tests.support.namespaces import dgx

# Root's helpers go by no variable of a fake's, unless the job is root's own.
AS_ROOT = ("--no-allreduce", "--vantage", "job", "--user", "root")
pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(namespace.missing()), reason=namespace.missing() or "-")]
ROOT = pathlib.Path(__file__).parents[2]
STATES = """
import json, pynvml as n
n.nvmlInit()
d = n.nvmlDeviceGetHandleByIndex(0)
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(d, n.nvmlEventTypeXidCriticalError, events)
try:
    event = n.nvmlEventSetWait_v2(events, 1)
    xid = event.eventData if event.eventType == n.nvmlEventTypeXidCriticalError else None
except n.NVMLError:
    xid = None
fabric = n.c_nvmlGpuFabricInfo_v2_t()
fabric.version = n.nvmlGpuFabricInfo_v2
n.nvmlDeviceGetGpuFabricInfoV(d, n.byref(fabric))
print(json.dumps({
    "ecc": n.nvmlDeviceGetTotalEccErrors(d, n.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, n.NVML_VOLATILE_ECC),
    "ecc mode": n.nvmlDeviceGetEccMode(d)[0],
    "rows": n.nvmlDeviceGetRemappedRows(d),
    "mig": n.nvmlDeviceGetMigMode(d)[0],
    "clock": n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_SM),
    "throttle": n.nvmlDeviceGetCurrentClocksThrottleReasons(d),
    "temperature": n.nvmlDeviceGetTemperature(d, n.NVML_TEMPERATURE_GPU),
    "links": [n.nvmlDeviceGetNvLinkState(d, link) for link in range(18)],
    "replays": n.nvmlDeviceGetNvLinkErrorCounter(d, 3, n.NVML_NVLINK_ERROR_DL_REPLAY),
    "fabric": [fabric.state, fabric.status],
    "generation": n.nvmlDeviceGetCurrPcieLinkGeneration(d),
    "persistence": n.nvmlDeviceGetPersistenceMode(d),
    "used": n.nvmlDeviceGetMemoryInfo(d).used,
    "xid": xid,
}))
"""


HELPERS = """
import importlib, json
names = ("nvml", "cuda", "ibverbs")
print(json.dumps({name: importlib.import_module(f"netdoctor.host.helpers.{name}").answer({}) for name in names}))
"""


def version(old: bool = True) -> str:
    """The newest libnccl before 2.28, or of all; skips the test without both."""
    return libnccl.both()[0 if old else 1].parts[-5]


OLD = ("P2P/IPC", "NET/IB peermem", "NET/IB dma-buf")  # every path on every version: `make lab`


@pytest.mark.parametrize(("name", "old"), [*((name, False) for name in paths.PATHS), *((name, True) for name in OLD)])
def test_nccl_takes_the_path(name: str, old: bool) -> None:
    path = paths.PATHS[name]
    done = paths.run(path, version(old))
    assert done.ok, done.log[-2000:]
    assert done.via and all(map(path.fits, done.via)), done.via
    assert not [one for one in done.log.splitlines() if "MISSING in the fake driver" in one]


def test_all_of_a_machine_with_nvswitches() -> None:
    """Two of its GPUs, as two hosts: each takes the rail beside it, by RDMA from GPU memory."""
    one = machine.read("hgx-h100")
    done = lab.run(one, version(), [lab.Rank(2), lab.Rank(5)], hosts=2, network=True)
    assert done.ok and done.via and all("GDRDMA" in via for via in done.via), done.log[-2000:]
    for rank, hca in zip(done.ranks, ("mlx5_2", "mlx5_5"), strict=True):
        assert rank.lines(r"NET/IB : Using \[0\]mlx5_0:1/RoCE \[1\]mlx5_1:1/RoCE.* OOB eth0:10\.0\.0\.7")
        number = int(re.search(r"via NET/IB/(\d+)", rank.log)[1])  # type: ignore[index]
        listed = rank.lines(r"NET/IB : Using")[0]
        assert f"[{number}]{hca}:1/RoCE" in listed, "the rail beside the GPU"


def test_without_kernels_no_run_says_that_data_moved() -> None:
    done = lab.run(machine.read("two-a100"), version(), 2, steps="ird", seconds=5)
    assert [rank.code for rank in done.ranks] == [2, 2]
    assert [rank.moved for rank in done.ranks] == [None, None]


def test_one_rank_needs_no_kernel() -> None:
    """NCCL copies: so the sums of a single rank are right, and a rank that says so tells the truth."""
    done = lab.run(machine.read("one-gpu"), version(), 1, steps="ird")
    assert [rank.code for rank in done.ranks] == [0] and done.ranks[0].moved is True


@functools.cache
def healthy(base: str, one: str, hosts: int, steps: str, env: str) -> str:
    """What the same run says where nothing is wrong."""
    like = next(
        fault
        for fault in faults.FAULTS.values()
        if (str(fault.base), fault.machine, fault.hosts, fault.steps, str(fault.env)) == (base, one, hosts, steps, env)
    )
    return faults.run(None, like, version()).log


@pytest.mark.parametrize("name", faults.SLICE)
def test_a_knob_bites(name: str) -> None:
    """NCCL (or the driver, to the rank) says it with the knob turned, and does not say it otherwise."""
    fault = faults.FAULTS[name]
    done = faults.run(fault, fault, version())
    assert faults.said(done, fault), done.log[-3000:]
    told = healthy(str(fault.base), fault.machine, fault.hosts, fault.steps, str(fault.env))
    pattern = fault.says.removeprefix("!")
    assert bool(re.search(pattern, told)) is (pattern != fault.says), "the healthy run says the same"


def looked(one: machine.Machine, *command: str, network: bool = False, **more: str) -> subprocess.CompletedProcess[str]:
    """A command in the machine's namespace."""
    with namespace.scratch() as folder:
        namespace.prepare(one, folder, network)
        one.write(folder / "machine")
        program = (
            "import os, pathlib, sys; from tests.fakegpu import namespace as n; at = pathlib.Path(sys.argv[1]); "
            "n.may_mount(); n.connect(at); n.show(at); os.execvp(sys.argv[2], sys.argv[2:])"
        )
        env = {k: v for k, v in os.environ.items() if not k.startswith("NCCL_")}
        return subprocess.run(
            [sys.executable, "-c", program, str(folder), *command],
            cwd=ROOT,
            env={**env, **namespace.environment(folder), **more},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )


@pytest.mark.skipif(not shutil.which("ip"), reason="the line asks for a network namespace: no ip command")
def test_the_line_of_the_documentation_finds_a_healthy_machine() -> None:
    """As it stands there: without `--user root` the helpers of root get no variable of the fake's, as of any stranger's."""
    prompt = "python -m tests.fakegpu.namespace "
    (line,) = [one for one in (ROOT / "docs" / "fakegpu.md").read_text(encoding="utf-8").splitlines() if one.startswith(prompt)]
    env = {**os.environ, "PATH": f"{sys.prefix}/bin:{os.environ['PATH']}", "NETDOCTOR_JOB_NODES": "2"}
    done = subprocess.run(["/bin/sh", "-c", line], cwd=ROOT, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode in (0, 4) and "FAIL" not in done.stdout, done.stdout + done.stderr
    for check in (r"hardware\W+accelerator", r"rdma.dev_infiniband"):
        assert re.search(rf"^pass\b.*{check}", done.stdout, re.MULTILINE), done.stdout


def states(**changes: Any) -> dict[str, Any]:
    """What NVML tells of GPU 0 of a machine with NVSwitches."""
    one = machine.read("hgx-h100").with_changes({f"gpus.0.{key.replace('__', '.')}": value for key, value in changes.items()})
    done = looked(one, sys.executable, "-c", STATES)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def test_nvml_tells_the_states_that_it_is_told() -> None:
    usual = states()
    assert usual["ecc"] == 0 and usual["links"] == [1] * 18 and usual["xid"] is None and usual["mig"] == 0
    told = states(
        state__ecc__uncorrected=7,
        state__remapped__pending=1,
        state__mig=2,
        state__clock__sm=345,
        state__throttle=0x40,
        state__temperature=93,
        state__fabric__state=2,
        state__xid=79,
        state__persistence=0,
        state__used=1 << 30,
        links_down=[4],
        link__generation=3,
    )
    assert told == {
        **usual,
        "ecc": 7,
        "rows": [0, 0, 1, 0],
        "mig": 1,
        "clock": 345,
        "throttle": 0x40,
        "temperature": 93,
        "fabric": [2, 0],
        "xid": 79,
        "persistence": 0,
        "used": 1 << 30,
        "links": [int(link != 4) for link in range(18)],
        "generation": 3,
    }


UNKNOWN = """
import ctypes
cuda, found = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
assert cuda.cuGetProcAddress_v2(b"cuOfTomorrow", ctypes.byref(found), 13000, ctypes.c_uint64(0), None) == 0
print(ctypes.CFUNCTYPE(ctypes.c_int)(found.value)())
"""


def test_a_function_that_the_fake_lacks_says_its_name() -> None:
    done = looked(machine.read("one-gpu"), sys.executable, "-c", UNKNOWN)
    assert done.stdout.strip() == "801", done.stderr  # CUDA_ERROR_NOT_SUPPORTED
    assert "MISSING in the fake driver, and called: cuOfTomorrow" in done.stderr


@pytest.fixture(scope="module")
def job() -> Iterator[pathlib.Path]:
    """A Python whose torch is there as files, and the real libnccl that it would load."""
    libnccl.newest()
    with tempfile.TemporaryDirectory(dir="/run" if os.geteuid() == 0 else None) as name:
        os.chmod(name, 0o755)
        yield dgx.job_python(pathlib.Path(name) / "job")


@pytest.mark.parametrize("name", [*machine.names(), "dgx-h100", "a100-pcie", "gb200-nvl72", "dgx-spark"])
def test_netdoctor_finds_nothing_wrong_with_a_healthy_machine(name: str, job: pathlib.Path) -> None:
    one = machine.read(name).on_one_node()
    options = (
        "preflight",
        *AS_ROOT,
        "--format",
        "json",
        "--quiet",
        "--python",
        str(job),
    )
    done = looked(one, sys.executable, "-m", "netdoctor", *options, network=bool(shutil.which("ip")))
    assert "Traceback" not in done.stderr and done.stdout, done.stderr[-2000:]
    report = json.loads(done.stdout)
    found = [(check["id"], one) for check in report["checks"] for one in check["findings"]]
    # How much memory may be locked is this process's own limit, whatever the machine.
    failed = [(id, f["subject"], f["message"]) for id, f in found if f["status"] == "fail" and f["subject"] != "memlock"]
    assert not failed
    passed = {(id, f["subject"]) for id, f in found if f["status"] == "pass"}
    assert ("hardware.accelerator", "GPUs") in passed
    usable = {subject for id, subject in passed if id == "rdma.dev_infiniband"} & {hca.name for hca in one.hcas}
    assert bool(usable) is bool(one.hcas)


def test_netdoctor_sees_what_a_knob_does(job: pathlib.Path) -> None:
    one = machine.read("two-a100").on_one_node().with_changes({"hcas.1.state": "DOWN", "hcas.0.mode": "none"})
    two_nodes = ("/usr/bin/env", "NETDOCTOR_JOB_NODES=2")
    options = (
        "preflight",
        *AS_ROOT,
        "--format",
        "json",
        "--quiet",
        "--python",
        str(job),
    )
    done = looked(one, *two_nodes, sys.executable, "-m", "netdoctor", *options)
    report = json.loads(done.stdout)
    found = {(check["id"], f["subject"]): f["status"] for check in report["checks"] for f in check["findings"]}
    assert found["rdma.dev_infiniband", "mlx5_0"] == found["rdma.dev_infiniband", "mlx5_1"] == "fail"


def other_user() -> list[str]:
    """A command that runs Python with the tests' packages as nobody; skips where there is none."""
    site = f"{sys.prefix}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    python = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    drop = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    command = [*drop, "env", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1", f"PYTHONPATH={site}", python]
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("needs root and setpriv (util-linux) to be somebody else")
    tried = subprocess.run([*command, "-c", "import yaml, pytest"], capture_output=True, text=True, check=False, cwd=ROOT)
    if tried.returncode:
        pytest.skip(f"no Python that everybody can run: {(tried.stderr.strip().splitlines() or ['-'])[-1]}")
    return command


def test_nobody_needs_root() -> None:
    """In a user namespace, where the kernel gives one: RDMA between two processes of somebody who is not root."""
    build.libraries()
    libnccl.both()
    command = [*other_user(), "-m", "tests.fakegpu", "run", "--hosts", "2", "--version", version()]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=120)
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0 and done.stdout.count("GDRDMA") == 2, done.stdout + done.stderr


def test_the_layouts_of_libibverbs_are_those_of_its_header() -> None:
    if not pathlib.Path("/usr/include/infiniband/verbs.h").exists():
        pytest.skip("no infiniband/verbs.h (libibverbs-dev) to compare with")
    subprocess.run(["gcc", "-fsyntax-only", str(build.SOURCES / "check_verbs_abi.c")], check=True, timeout=60)


def test_a_flag_that_rdma_brought_is_behind_its_data(tmp_path: pathlib.Path) -> None:
    """By process_vm_writev() alone some lines of LL128 in a million are torn (check_order plain)."""
    program = str(tmp_path / "order")
    sources = [str(build.SOURCES / one) for one in ("check_order.c", "verbs_place.c")]
    subprocess.run(["gcc", *build.FLAGS, "-o", program, *sources], check=True, timeout=60)
    assert subprocess.run([program], capture_output=True, text=True, check=True, timeout=300).stdout == "0\n"


def test_nothing_of_it_is_shipped(tmp_path: pathlib.Path) -> None:
    packed = zipfile.ZipFile(pyz.built()).namelist()
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path)]
    source = tmp_path / "source"
    source.mkdir()
    for name in ("netdoctor", "tests", "pyproject.toml", "README.md", "LICENSE"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, source / name)
    (source / "build" / "fakegpu" / "lib").mkdir(parents=True)
    (source / "build" / "fakegpu" / "lib" / "libcuda.so.1").write_text("a fake", encoding="ascii")
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        pytest.skip(f"no wheel can be built here: {done.stderr.strip().splitlines()[-1]}")
    (wheel,) = tmp_path.glob("*.whl")
    for names in (packed, zipfile.ZipFile(wheel).namelist()):
        assert any(name.startswith("netdoctor/") for name in names)
        assert not [name for name in names if re.search(r"fakegpu|libcuda|nvidia-ml|libibverbs|^tests/", name)]
    pyz.forget()


@pytest.mark.parametrize("name", ["pcie-l40s", "a100-pcie", "gb200-nvl72"])
def test_nccl_sees_what_netdoctor_says(name: str) -> None:
    """By the recording where there is one.  `make lab` does this for all machines."""
    assert not topology.compare(name, version())


@pytest.mark.parametrize("old", [True, False], ids=["before 2.28", "from 2.28"])
def test_without_numa_nodes_all_is_on_one_cpu(old: bool) -> None:
    """A firmware that names none (-1 everywhere): NCCL makes one CPU of it, and no way crosses sockets."""
    above = ("board", "switch0", "switch1")
    one = machine.read("two-a100").with_changes({f"above.{name}.numa": -1 for name in above})
    claims, seen = topology.claimed(one, version(old)), topology.look(one, version(old))
    assert not list(topology.differences(claims, seen))
    assert {kind for kind, _, _ in seen.paths.values()} == {"PIX", "PHB"}


@pytest.mark.parametrize("name", ["a100-pcie", "dgx-spark", "gb200-nvl72", "aws-p5"])
def test_the_fakes_answer_as_a_recording_says(name: str) -> None:
    """The real helper programs ask the fake libraries of the machine whose snapshot was composed."""
    done = looked(machine.read(name), sys.executable, "-c", HELPERS)
    assert done.returncode == 0, done.stderr
    told = fixtures.snapshot(name).answers
    said = {f"ask:{helper}": answer for helper, answer in json.loads(done.stdout).items()}
    for one in (said, told):
        for gpu in one["ask:cuda"]["devices"]:
            gpu["attributes"].pop("132")  # multicast: the fake libcuda has none, whatever its machine has
        if isinstance(one["ask:ibverbs"], dict):
            one["ask:ibverbs"] = one["ask:ibverbs"]["devices"]
    for helper in ("ask:nvml", "ask:cuda", *(["ask:ibverbs"] if machine.read(name).hcas else [])):
        assert said[helper] == told[helper]


@pytest.mark.parametrize("name", ["two-a100", "pcie-l40s", "hgx-h100"])
def test_a_snapshot_of_the_machine_is_its_description(name: str, tmp_path: pathlib.Path) -> None:
    """The description, shown to netdoctor, recorded and read again: each of the three would show what it loses."""
    one, file = machine.read(name), tmp_path / "snapshot.json"
    options = ("snapshot", *AS_ROOT, "--quiet", "--output", str(file))
    done = looked(one, sys.executable, "-m", "netdoctor", *options, network=bool(shutil.which("ip")))
    assert file.exists(), done.stderr[-2000:]
    again = machine.read(file)
    assert [(x.place, x.link, x.name, x.uuid, x.device, x.capability, x.memory) for x in again.gpus] == [
        (x.place, x.link, x.name, x.uuid, x.device, x.capability, x.memory) for x in one.gpus
    ]
    for seen, told in zip(again.gpus, one.gpus, strict=True):
        assert len(seen.nvlinks) == len(told.nvlinks)
        assert {key: seen.attributes[key] for key in (110, 116, 124)} == {key: told.attributes[key] for key in (110, 116, 124)}
    assert [(x.place, x.link, x.name, x.firmware, x.device, x.node) for x in again.hcas] == [
        (x.place, x.link, x.name, x.firmware, x.device, x.node) for x in one.hcas
    ]
    for seen_hca, told_hca in zip(again.hcas, one.hcas, strict=True):
        port, usual = seen_hca.ports[0], told_hca.ports[0]
        assert (port.state, port.layer, port.rate, port.gids) == (usual.state, usual.layer, usual.rate, usual.gids)
    assert (again.driver, again.cuda, again.peermem) == (one.driver, one.cuda, one.peermem)

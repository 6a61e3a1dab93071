"""A whole `netdoctor preflight` on a DGX that is laid over this machine: /sys, /dev, network and libraries are the scene's.

Mount, network and UTS namespaces are unnamed and end with the run.  The GPUs and the RDMA library are fakes in C, libnccl and
the network are real; the uverbs nodes are /dev/null under other names, for a node of a driver that is not there does not open.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.machines import libnccl, native
from tests.support.machines.sysfs import HCA_BUSES, dgx_h100
from tests.support.namespaces import workers

ROOT = Path(__file__).parents[3]
NULL = (1, 3)  # /dev/null (Documentation/admin-guide/devices.txt)
# This machine's process may use node 0 only, so that is where the healthy machine has its GPUs.
HERE = {
    "cpus": ("0-1", "2-3"),
    "gpu_numa": dict.fromkeys(range(8), 0),
    "hca_numa": dict.fromkeys(range(8), 0),
}
# A macvlan, for a veth has no speed; what is below it has no address, and its other end is in the same namespace.
NETWORK = """
ip link set lo up
ip link add low0 type veth peer name low0p
for name in low0 low0p; do sysctl -q -w net.ipv6.conf.$name.disable_ipv6=1; ip link set $name up; done
ip link add eth0 link low0 type macvlan mode bridge
ip addr add 10.0.0.7/24 dev eth0
ip link set eth0 up
ip route add default via 10.0.0.1
"""
VERSION_PY = "__version__ = '2.9.1+cu129'\ndebug = False\ncuda = '12.9'\nhip = None\n"


@dataclass(frozen=True)
class Scene:
    """What differs from the healthy machine."""

    tree: Mapping[str, Any] = field(default_factory=dict)  # fields of sysfs.Shape
    dev: str = ""  # shell, in the folder that is laid over /dev
    sys: str = ""  # shell, in the folder that is laid over /sys
    setup: str = ""  # shell, as root in the namespaces, last before netdoctor
    env: Mapping[str, str] = field(default_factory=dict)
    nvml: str = ""  # lines of fake_conf.h
    cuda: str = ""
    ibverbs: str = ""
    site: str = ""  # shell, in the job's site-packages
    config: str = "{job: {nodes: 2}, expected: {gpus: 8, hcas: 8}}"
    wrap: str = ""  # before the interpreter: setpriv, taskset, …
    options: Sequence[str] = ("--vantage", "job", "--no-allreduce")
    hosts: str = "127.0.0.1 localhost\n10.0.0.7 gpu7\n"
    name: str = "gpu7"
    roots_own: bool = True  # the job is root's: --user root
    bare: bool = False  # this machine's own /sys, /dev and libraries, and the torch of this Python
    cgroup: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # controller (v1) -> file -> what is written into it


@dataclass(frozen=True)
class Seen:
    exit: int
    report: Any
    err: str
    out: str = ""

    def statuses(self) -> dict[tuple[str, str], str]:
        """(check, subject) -> status, with its cause where it failed."""
        found = {}
        for check in self.report["checks"]:
            for one in check["findings"]:
                said = one["status"] + (f" {one['cause']}" if one["status"] == "fail" else "")
                found[check["id"], one["subject"]] = said
        return found

    def sources(self, check: str) -> set[str]:
        """The sources of expectation that its fails name."""
        rows = [f for c in self.report["checks"] if c["id"] == check for f in c["findings"] if f["status"] == "fail"]
        return {str(source) for f in rows for source in (f.get("evidence") or {}).get("sources", ())}

    def of(self, check: str, status: str) -> list[str]:
        """What the findings of `check` with this status say."""
        rows = [f for c in (self.report or {"checks": ()})["checks"] if c["id"] == check for f in c["findings"]]
        return [f"{f['subject']}: {f['message']}" for f in rows if f["status"] == status]


def looked(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str], timeout: float, late: Callable[[], object] = lambda: None
) -> Seen:
    """What netdoctor said; where it does not end in time, `late` is called and its whole session killed."""
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=cwd, env=environment, start_new_session=True, **streams) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            late()
            os.killpg(process.pid, signal.SIGKILL)
            raise
    try:
        report = json.loads(out)
    except ValueError:
        report = None
    return Seen(process.returncode, report, err, out)


class Machine:
    """The files of one scene, in a folder that root alone can change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def look(self, scene: Scene, timeout: float = 100) -> Seen:
        """Lay the scene over this machine and run netdoctor in it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as name, cgroups(scene.cgroup) as groups:
            made = Path(name)
            made.chmod(0o755)
            command = self._command(scene, made, groups)
            environment = {k: v for k, v in os.environ.items() if not k.startswith(("LD_", "NCCL_", "NETDOCTOR_"))}
            environment |= {**variables(scene, made), "SCENE_NAME": scene.name}
            return looked(command, ROOT, environment, timeout)

    def _command(self, scene: Scene, made: Path, groups: Sequence[Path]) -> list[str]:
        python = files(scene, made)
        lines = [
            "set -e",
            *(f"echo $$ > {group}/cgroup.procs" for group in groups),
            "mount --make-rprivate /",
            "mount -t sysfs sysfs /sys",
            *(() if scene.bare else (f"mount -t overlay over -o lowerdir={made}/{d}:/{d} /{d}" for d in ("sys", "dev"))),
            "mount -t tmpfs -o mode=1777 shm /dev/shm",
            f"mount --bind {made}/hosts /etc/hosts",
            # hostname(1) refuses what the kernel takes
            'printf %s "$SCENE_NAME" > /proc/sys/kernel/hostname; unset SCENE_NAME',
            NETWORK,
            scene.setup,
            f'exec {scene.wrap} "$@"',
        ]
        return ["unshare", "--mount", "--net", "--uts", "sh", "-c", "\n".join(lines), "sh", *doctor(scene, made, python)]


_SITE = f"job/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


def files(scene: Scene, made: Path, numbers: tuple[int, int] = NULL) -> Path:
    """Everything that the scene lays over the machine; the uverbs nodes have these numbers.  Returns the job's Python."""
    dgx_h100(made / "sys", **{**HERE, **scene.tree})
    uverbs(made, numbers)
    (made / "hosts").write_text(scene.hosts)
    (made / "config.yaml").write_text(scene.config)
    python = job_python(made / "job")
    for folder, script in (("sys", scene.sys), ("dev", scene.dev), (_SITE, scene.site)):
        if script:
            subprocess.run(["sh", "-ec", script], cwd=made / folder, check=True, timeout=60)
    return Path(sys.executable) if scene.bare else python


def variables(scene: Scene, made: Path) -> dict[str, str]:
    """What netdoctor's environment has beside the machine's own; writes what the fake libraries are told."""
    for name in ("nvml", "cuda", "ibverbs"):
        (made / f"{name}.conf").write_text(getattr(scene, name) + "\n")
    folders = "" if scene.bare else ":".join(map(str, (native.nvml(), native.cuda(), native.ibverbs())))
    return {
        **({} if scene.bare else {"LD_LIBRARY_PATH": folders}),
        "FAKE_NVML_CONF": str(made / "nvml.conf"),
        "FAKE_CUDA_CONF": str(made / "cuda.conf"),
        "FAKE_IBV_CONF": str(made / "ibverbs.conf"),
        "PYTHONPATH": str(ROOT),
        "HOME": "/root",
        **{k: v.replace("SITE", str(made / _SITE)).replace("LIBRARIES", folders) for k, v in scene.env.items()},
    }


def doctor(scene: Scene, made: Path, python: Path) -> list[str]:
    """The command that looks at it."""
    command = [sys.executable, "-m", "netdoctor", "preflight", "-f", "json", "--quiet", "--config", f"{made}/config.yaml"]
    if scene.roots_own:  # else root's helpers go by no variable of a fake's
        command += ["--user", "root"]
    return [*command, *scene.options, *(() if "--python" in scene.options else ("--python", str(python)))]


def uverbs(made: Path, numbers: tuple[int, int] = NULL) -> None:
    """/dev/infiniband/uverbs0 to 7, and their numbers in sysfs."""
    folder = made / "dev" / "infiniband"
    folder.mkdir(parents=True)
    for n in range(8):
        os.mknod(folder / f"uverbs{n}", stat.S_IFCHR | 0o666, os.makedev(*numbers))
        (folder / f"uverbs{n}").chmod(0o666)
        bus = HCA_BUSES[n]
        for file in (made / "sys").glob(f"devices/*/*/*/*/0000:{bus:02x}:00.0/infiniband_verbs/uverbs{n}/dev"):
            file.write_text(f"{numbers[0]}:{numbers[1]}\n")


def job_python(folder: Path) -> Path:
    """A virtual environment with a torch of which only the files are there, and a real libnccl that its library asks for."""
    site = folder.parent / _SITE
    (site / "torch" / "lib").mkdir(parents=True)
    (site / "nvidia" / "nccl" / "lib").mkdir(parents=True)
    (site / "torch" / "version.py").write_text(VERSION_PY)
    (site / "nvidia" / "nccl" / "lib" / "libnccl.so.2").symlink_to(libnccl.newest())
    shutil.copy(_torch_cuda(), site / "torch" / "lib" / "libtorch_cuda.so")
    (folder / "bin").mkdir()
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    (folder / "bin" / "python3").symlink_to(base)
    (folder / "pyvenv.cfg").write_text(f"home = {base.parent}\nversion = {sys.version.split()[0]}\n")
    return folder / "bin" / "python3"


def _torch_cuda() -> Path:
    """A library that needs libnccl.so.2 and looks for it where torch's does."""
    made = native.BUILD / "torch_cuda" / "libtorch_cuda.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        source = made.with_suffix(".c")
        source.write_text("extern int ncclGetVersion(int *); int use(int *v) { return ncclGetVersion(v); }\n")
        flags = (
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            "-Wl,--disable-new-dtags",
            "-Wl,-rpath,$ORIGIN/../../nvidia/nccl/lib",
        )
        subprocess.run([native.gcc(), *flags, "-o", str(made), str(source), str(libnccl.newest())], check=True, timeout=60)
    return made


@contextmanager
def cgroups(wanted: Mapping[str, Mapping[str, str]]) -> Iterator[list[Path]]:
    """One cgroup for each controller of `wanted`; what is still in them at the end is killed."""
    made: list[Path] = []
    try:
        for controller, settings in wanted.items():
            made.append(Path("/sys/fs/cgroup", controller, f"netdoctor-lab-{os.getpid()}"))
            made[-1].mkdir()
            for name, value in settings.items():
                (made[-1] / name).write_text(value)
        yield made
    finally:
        end = time.monotonic() + 20
        for group in made:
            while group.exists():
                for pid in map(int, (group / "cgroup.procs").read_text().split()):
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                try:
                    group.rmdir()
                except OSError:  # EBUSY until the last one is reaped
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.02)


@contextmanager
def machine() -> Iterator[Machine]:
    """A place for scenes; of root alone, for root loads nothing from where others may write."""
    with tempfile.TemporaryDirectory(dir=workers.scratch(), prefix="netdoctor-scene-") as name:
        Path(name).chmod(0o755)
        yield Machine(Path(name))

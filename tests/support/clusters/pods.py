"""Pods on this machine: podman with runc, images made here, no registry, everything removed at the end."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tempfile
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.clusters import pyz
from tests.support.namespaces import checkout

ROOT = Path(__file__).parents[3]
CONTAINERFILE = ROOT / "netdoctor/deploy/kubernetes/Containerfile"
# Limits above the hard ones of this machine are refused (setrlimit), crun wants cgroup v2 alone, there is no journal.
CONFIGURATION = """\
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
"""
# The job's image: Python, what rdma-core gives it, and what torch is linked to.
PACKAGES = "python3,libc-bin,base-files,dash,coreutils,iproute2,grep,hostname,libibverbs1,ibverbs-providers,libstdc++6,zlib1g"
JOB, NETDOCTOR = "localhost/netdoctor-test-job:1", "localhost/netdoctor-test:1"


def missing() -> str:
    """Why no pod can be started here; "" where one can."""
    if os.geteuid() != 0:
        return "needs root"
    lacking = [name for name in ("podman", "runc", "catatonit", "mmdebstrap") if not _there(name)]
    return f"needs {', '.join(lacking)}" if lacking else ""


def _there(name: str) -> bool:
    """On PATH, or where a distribution hides what only podman calls."""
    return bool(shutil.which(name)) or any(
        Path(p, name).exists() for p in ("/usr/libexec/podman", "/usr/sbin", "/usr/libexec/catatonit")
    )


class Podman:
    """One store with the two images, below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "containers.conf").write_text(CONFIGURATION)
        self._environment = os.environ | {"CONTAINERS_CONF": str(folder / "containers.conf")}

        self._base = ("podman", "--root", f"{folder}/store", "--runroot", f"{folder}/run")

    def start(self, *words: str) -> subprocess.Popen[str]:
        """One that goes on meanwhile."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([*self._base, *words], env=self._environment, **pipes)

    def __call__(self, *words: str, check: bool = True, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [*self._base, *words], env=self._environment, capture_output=True, text=True, check=False, timeout=timeout
        )
        assert not check or done.returncode == 0, (words, done.stdout, done.stderr)
        return done

    @contextmanager
    def default_sysctl(self, setting: str) -> Iterator[None]:
        """Every pod that is made meanwhile gets it; "": none does."""
        file = self.folder / "containers.conf"
        if setting:
            file.write_text(CONFIGURATION.replace("[containers]", f'[containers]\ndefault_sysctls = ["{setting}"]'))
        try:
            yield
        finally:
            file.write_text(CONFIGURATION)

    def images(self) -> None:
        """Make both; skips where the packages of the job's image cannot be fetched."""
        tar = checkout.cache() / f"pods-{zlib.crc32(PACKAGES.encode()):08x}.tar"
        if not tar.exists():
            tar.parent.mkdir(exist_ok=True)
            half = tar.with_suffix(".half.tar")
            command = ["mmdebstrap", "--variant=extract", f"--include={PACKAGES}", "bookworm", str(half)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
            if done.returncode != 0:
                half.unlink(missing_ok=True)
                pytest.skip(f"mmdebstrap made no root file system: {done.stderr.strip()[-200:]}")
            half.rename(tar)
        path = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self("import", "--change", path, str(tar), JOB)
        context = self.folder / "context"
        context.mkdir()
        shutil.copy(pyz.built(), context / "netdoctor.pyz")
        self("build", "--network=none", f"--build-arg=BASE={JOB}", "-t", NETDOCTOR, "-f", str(CONTAINERFILE), str(context))

    def size(self, image: str) -> int:
        return int(self("image", "inspect", "--format", "{{.Size}}", image).stdout)

    def remove(self) -> None:
        self("pod", "rm", "--all", "--force", "--time=0", check=False)
        self("rm", "--all", "--force", "--time=0", check=False)
        self("rmi", "--all", "--force", check=False)
        for line in Path("/proc/self/mountinfo").read_text().splitlines()[::-1]:
            if (at := line.split()[4]).startswith(f"{self.folder}/"):
                subprocess.run(["umount", "-l", at], check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def podman() -> Iterator[Podman]:
    """A store of its own with both images; skips with the reason where that cannot be."""
    if reason := missing():
        pytest.skip(f"pods: {reason}")
    one = Podman(Path(tempfile.mkdtemp(prefix="netdoctor-pods-")))
    try:
        one.images()
        yield one
    finally:
        one.remove()


class Played:
    """What became of a pod."""

    def __init__(self, podman: Podman, name: str, done: subprocess.CompletedProcess[str], message: str, folder: Path) -> None:
        self._podman, self._name = podman, name
        self.code, self.stderr, self.message, self.folder = done.returncode, done.stderr, message, folder

    def logs(self, container: str) -> str:
        done = self._podman("logs", f"{self._name}-{container}", check=False)
        return done.stdout + done.stderr

    def state(self, container: str) -> tuple[str, int]:
        """("created", 0): it never started."""
        got = json.loads(self._podman("inspect", f"{self._name}-{container}").stdout)[0]["State"]
        return got["Status"], got["ExitCode"]


@contextmanager
def played(
    podman: Podman,
    objects: list[dict[str, Any]],
    *,
    sysctl: str = "",
    sys_tree: Path | None = None,
    libraries: tuple[Path, ...] = (),
) -> Iterator[Played]:
    """Play the Job among `objects` as a Pod, with what the kubelet adds to one, and take it away again.

    podman 4.3 plays Pods, not Jobs, knows half of the downward API and no pod sysctls (`sysctl` is one), gives an emptyDir to
    its first user instead of to everybody (the kubelet: mode 0777), and has no termination message; so these are done here.
    `sys_tree` is laid over the pod's /sys; `libraries` are what the runtime of a GPU would mount.
    """
    (job,) = [one for one in objects if one["kind"] == "Job"]
    name = f"nd-{uuid.uuid4().hex[:8]}"
    folder = podman.folder / name
    folder.mkdir()
    shared, message = folder / "shared", folder / "termination-log"
    shared.mkdir()
    shared.chmod(0o777)
    message.touch()
    message.chmod(0o666)
    spec = job["spec"]["template"]["spec"]
    for volume in spec["volumes"]:
        if volume["name"] == "netdoctor":
            volume.pop("emptyDir")
            volume["hostPath"] = {"path": str(shared), "type": "Directory"}
    spec["volumes"].append({"name": "message", "hostPath": {"path": str(message), "type": "File"}})
    if sys_tree is not None:
        over = folder / "sys"
        over.mkdir()
        subprocess.run(["mount", "-t", "overlay", "over", "-o", f"lowerdir={sys_tree}:/sys", str(over)], check=True)
        spec["volumes"].append({"name": "sys", "hostPath": {"path": str(over), "type": "Directory"}})
    driver = [{"name": f"driver{n}", "hostPath": {"path": str(one), "type": "File"}} for n, one in enumerate(libraries)]
    spec["volumes"] += driver
    for container in [*spec["initContainers"], *spec["containers"]]:
        container["imagePullPolicy"] = "Never"
        container["image"] = {"train": JOB, "netdoctor": NETDOCTOR}[container["image"].removesuffix(":latest")]
        if sys_tree is not None:
            container.setdefault("volumeMounts", []).append({"name": "sys", "mountPath": "/sys", "readOnly": True})
        container.setdefault("volumeMounts", []).extend(
            {"name": volume["name"], "mountPath": f"/usr/lib/{platform.machine()}-linux-gnu/{one.name}", "readOnly": True}
            for volume, one in zip(driver, libraries, strict=True)
        )
        container["resources"] = {"limits": {"memory": "1Gi"}}
        variables = [
            v if "value" in v else {"name": v["name"], "value": "stands-for-downward"} for v in container.get("env", ())
        ]
        container["env"] = [*variables, {"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"}]
        if container.get("terminationMessagePath"):
            container["volumeMounts"].append({"name": "message", "mountPath": container["terminationMessagePath"]})
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {"app": "train"}}, "spec": spec}
    file = folder / "pod.yaml"
    maps = [one for one in objects if one["kind"] == "ConfigMap"]
    file.write_text("---\n".join(yaml.safe_dump(one) for one in [*maps, pod]))
    try:
        with podman.default_sysctl(sysctl):
            done = podman("kube", "play", "--network=none", str(file), check=False)
        if done.returncode == 0:
            podman("wait", f"{name}-{spec['containers'][0]['name']}")
        yield Played(podman, name, done, message.read_text(), shared)
    finally:
        podman("kube", "down", str(file), check=False)
        if sys_tree is not None:
            subprocess.run(["umount", str(folder / "sys")], check=False)

"""The gate in real pods: a healthy node starts the job, an unhealthy one does not, and the termination message says why."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clusters import kustomize, pods, pyz
from tests.support.machines import native
from tests.support.machines.sysfs import dgx_h100, scratch
from tests.support.namespaces.overlay import can_overlay

pytestmark = [pytest.mark.live, pytest.mark.root]
OVERLAYS = Path(__file__).parents[2] / "netdoctor/deploy/kubernetes/overlays"


@pytest.fixture(scope="module")
def podman() -> Iterator[pods.Podman]:
    with pods.podman() as one:
        yield one
    pyz.forget()


def training_pod(config: str = "profile: gate\njob: {nodes: 1}\n") -> list[dict[str, Any]]:
    """The overlay as it is shipped, with a job that says that it ran and with the site's configuration."""
    objects = kustomize.render(OVERLAYS / "training-pod")
    for one in objects:
        if one["kind"] == "ConfigMap":
            one["data"]["config.yaml"] = config
        if one["kind"] == "Job":
            main = one["spec"]["template"]["spec"]["containers"][0]
            main["command"] = [
                "python3",
                "-c",
                "import json; print('RAN', json.load(open('/netdoctor/report.json'))['schema'])",
            ]
    return objects


def test_a_healthy_pod_starts_its_main_container(podman: pods.Podman) -> None:
    with pods.played(podman, training_pod()) as pod:
        assert pod.code == 0, pod.stderr + pod.logs("netdoctor-gate")
        assert pod.state("train") == ("exited", 0)
        assert pod.logs("train") == "RAN netdoctor.report/1\n"
        assert pod.message.startswith(("netdoctor: healthy: ", "netdoctor: nothing failed "))
        report = json.loads((pod.folder / "report.json").read_text())
    assert report["profile"] == "gate"
    assert report["vantage"]["kind"] == "pod-init"
    assert report["identity"]["node"] == "stands-for-downward"
    assert "may be given other CPUs" in report["vantage"]["why_not"]


def blocked(pod: pods.Played, code: int) -> list[str]:
    """The main container never started; lines of the termination message."""
    assert pod.code == 125, pod.stderr
    assert pod.state("train")[0] == "created"
    assert pod.state("netdoctor-gate") == ("exited", code), pod.logs("netdoctor-gate")
    assert len(pod.message.encode()) <= 4096
    return pod.message.splitlines()


def test_a_narrow_port_range_blocks_the_job(podman: pods.Podman) -> None:
    objects = training_pod("profile: gate\njob: {ranks_per_node: 8}\n")
    with pods.played(podman, objects, sysctl="net.ipv4.ip_local_port_range=50000 50010") as pod:
        first, *rest = blocked(pod, 3)
        report = json.loads((pod.folder / "report.json").read_text())
    assert first.startswith("netdoctor: unhealthy: ") and "bootstrap_ports (net.port_range)" in first
    (line,) = [one for one in rest if one.startswith("fail net.port_range: listeners:")]
    assert "50000 50010" in line and "net.ipv4.ip_local_port_range" in line
    assert report["verdict"]["exit_code"] == 3


def test_absent_rdma_devices_that_the_site_expects_block_the_job(podman: pods.Podman) -> None:
    if os.path.exists("/sys/class/infiniband") and os.listdir("/sys/class/infiniband"):
        pytest.skip("this machine has RDMA devices")
    with pods.played(podman, training_pod("profile: gate\nexpected: {hcas: 8}\n")) as pod:
        first, *rest = blocked(pod, 3)
    assert "dev_infiniband_missing (rdma.dev_infiniband)" in first
    assert any("no RDMA device at all, 8 expected" in one for one in rest), rest


@pytest.mark.skipif(bool(can_overlay()), reason=can_overlay() or "-")
def test_hcas_that_are_not_mapped_into_the_pod_block_the_job(podman: pods.Podman) -> None:
    """A node with eight HCAs, and a pod that did not ask for rdma/hca: /sys shows them, /dev/infiniband is not there."""
    objects = training_pod("profile: gate\njob: {nodes: 2}\n")
    libraries = (native.cuda() / "libcuda.so.1", native.nvml() / "libnvidia-ml.so.1")  # fakes that show eight GPUs
    with (
        scratch() as folder,
        pods.played(podman, objects, sys_tree=dgx_h100(folder / "sys"), libraries=libraries) as pod,
    ):
        first, *rest = blocked(pod, 3)
    assert "dev_infiniband_missing (rdma.dev_infiniband)" in first
    mlx = [one for one in rest if one.startswith("fail rdma.dev_infiniband: mlx5_")]
    assert mlx and all("rdma/hca" in one for one in mlx)


def test_bad_configuration_is_told_apart(podman: pods.Podman) -> None:
    """Exit 2, no report: the kubelet takes the end of the log for the message (FallbackToLogsOnError)."""
    with pods.played(podman, training_pod("profil: gate\n")) as pod:
        assert not blocked(pod, 2)
        assert "did you mean profile" in pod.logs("netdoctor-gate")


def test_an_inconclusive_gate_blocks_the_job(podman: pods.Podman) -> None:
    with pods.played(podman, training_pod("profile: strict\nlock: true\n")) as pod:
        first, *rest = blocked(pod, 4)
    assert first.startswith("netdoctor: inconclusive: ")
    assert any(one.startswith("unknown allreduce.run: ") for one in rest)


def test_the_image_needs_neither_root_nor_a_writable_root(podman: pods.Podman) -> None:
    done = podman(
        "run", "--rm", "--network=none", "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", pods.NETDOCTOR, "list"
    )
    assert "net.port_range" in done.stdout
    who = podman("image", "inspect", "--format", "{{.User}}", pods.NETDOCTOR).stdout.strip()
    assert who == "65532:65532"


def test_the_image_adds_little_to_its_base(podman: pods.Podman) -> None:
    """The base here has rdma-core's libraries already; in Debian 12 those are 9 MB."""
    assert podman.size(pods.NETDOCTOR) - podman.size(pods.JOB) < 20 << 20


def test_standing_health_writes_a_status_that_the_plugin_reads(podman: pods.Podman, tmp_path: Path) -> None:
    folder = OVERLAYS / "node-health"
    tmp_path.chmod(0o755)
    mounts = [f"-v={folder}:/etc/netdoctor-watch:ro", f"-v={tmp_path}:/run/netdoctor"]
    limits = ["--network=none", "--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--user=0", "--env=PERIOD=once"]
    podman("run", "--rm", "--entrypoint=sh", *limits, *mounts, pods.NETDOCTOR, "/etc/netdoctor-watch/watch.sh")
    plugin = ["--entrypoint=sh", "--network=none", *mounts, pods.JOB, "/etc/netdoctor-watch/npd.sh"]
    done = podman("run", "--rm", *plugin, check=False)
    code = int((tmp_path / "status").read_text().split()[0])
    assert done.returncode == code and code in (0, 2)
    assert 0 < len(done.stdout.strip()) <= 80
    assert json.loads((tmp_path / "report.json").read_text())["profile"] == "audit"


@pytest.fixture
def cable() -> Iterator[tuple[str, str]]:
    """Two network namespaces with 10.77.0.1 and 10.77.0.2 as eth0, joined."""
    if not shutil.which("ip"):
        pytest.skip("needs ip")
    names = tuple(f"nd{uuid.uuid4().hex[:8]}" for _ in range(2))

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", names[1])
        for number, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")
        yield names[0], names[1]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


MOUNTS = [f"-v={one}:{one}:ro" for one in {sys.prefix, sys.base_prefix}]


@pytest.fixture(scope="module")
def torch_in_a_pod(podman: pods.Podman) -> None:
    """The torch of this Python, mounted into the job's image, works there."""
    done = podman("run", "--rm", "--network=none", *MOUNTS, pods.JOB, sys.executable, "-c", "import torch", check=False)
    if done.returncode != 0:
        pytest.skip(f"the torch of {sys.executable} does not work in the pods' image: {done.stderr.strip()[-200:]}")


def member(podman: pods.Podman, namespace: str, index: int, folder: Path, *more: str) -> subprocess.Popen[str]:
    """The all-reduce container of the multi-node job as pod `index`, with the torch of this Python mounted for the image's."""
    objects = kustomize.render(OVERLAYS / "multi-node")
    (job,) = [one for one in objects if one["kind"] == "Job"]
    init = job["spec"]["template"]["spec"]["initContainers"]
    (container,) = [one for one in init if one["name"] == "netdoctor-allreduce"]
    values = {"JOB_COMPLETION_INDEX": str(index), "NETDOCTOR_TOKEN": "0123456789abcdef" * 2} | {
        v["name"]: v["value"] for v in container["env"] if "value" in v
    }
    command = list(container["command"])
    for name, value in values.items():
        command = [word.replace(f"$({name})", value) for word in command]
    shutil.copy(pyz.built(), folder / "netdoctor.pyz")
    (folder / "message").touch()
    mounts = [*MOUNTS, f"-v={folder}:/netdoctor", f"-v={folder}/message:/dev/termination-log"]
    variables = [f"-e={name}={value}" for name, value in values.items()]
    # The kubelet writes a pod's own name into its hosts file; the Service gives the others'.
    hosts = [f"--hostname=train-{index}", f"--add-host=train-{index}:10.77.0.{index + 1}", "--add-host=train-0.train:10.77.0.1"]
    network = [f"--network=ns:/run/netns/{namespace}", *hosts]
    return podman.start("run", "--rm", *network, *mounts, *variables, pods.JOB, *command, f"--python={sys.executable}", *more)


@pytest.mark.usefixtures("torch_in_a_pod")
def test_the_pods_of_a_job_meet_in_one_all_reduce(podman: pods.Podman, cable: tuple[str, str], tmp_path: Path) -> None:
    folders = [tmp_path / str(n) for n in range(2)]
    for one in folders:
        one.mkdir()
    started = [member(podman, cable[n], n, folders[n]) for n in range(2)]
    said = [one.communicate(timeout=240) for one in started]
    assert [one.returncode for one in started] == [0, 0], "".join(out + err for out, err in said)
    for folder in folders:
        assert json.loads((folder / "allreduce.json").read_text())["verdict"]["status"] == "healthy"
        assert (folder / "message").read_text().startswith(("netdoctor: healthy", "netdoctor: nothing failed "))


@pytest.mark.usefixtures("torch_in_a_pod")
def test_a_pod_that_does_not_come_is_named(podman: pods.Podman, cable: tuple[str, str], tmp_path: Path) -> None:
    one = member(podman, cable[0], 0, tmp_path, "--wait=5")
    said = one.communicate(timeout=240)
    assert one.returncode in (3, 4), said
    message = (tmp_path / "message").read_text()
    assert re.search(r"\bnode 1\b", message), message

"""The gate in real pods: a healthy node starts the job, an unhealthy one does not, and the termination message says why."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import kustomize, pods, pyz
from tests.support.overlay import can_overlay
from tests.support.trees import dgx_h100, scratch

pytestmark = [pytest.mark.live, pytest.mark.root]
OVERLAYS = Path(__file__).parents[2] / "netdoctor/deploy/kubernetes/overlays"


@pytest.fixture(scope="module")
def podman() -> Iterator[pods.Podman]:
    with pods.podman() as one:
        yield one
    pyz.forget()


def training_pod(config: str = "profile: gate\n") -> list[dict[str, Any]]:
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
        assert pod.message.startswith("netdoctor: healthy: ")
        report = json.loads((pod.folder / "report.json").read_text())
    assert report["profile"] == "gate"
    assert report["vantage"]["kind"] == "pod-init"
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
    assert any("no RDMA device at all, 8 expected" in one for one in rest)


@pytest.mark.skipif(bool(can_overlay()), reason=can_overlay() or "-")
def test_hcas_of_the_node_that_are_not_mapped_into_the_pod_block_the_job(podman: pods.Podman) -> None:
    """A node with eight HCAs, and a pod that did not ask for rdma/hca: /sys shows them, /dev/infiniband is not there."""
    with scratch() as folder, pods.played(podman, training_pod(), sys_tree=dgx_h100(folder / "sys", gpus=0)) as pod:
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

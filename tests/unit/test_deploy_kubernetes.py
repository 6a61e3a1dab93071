"""The manifests: rendered, validated, and what each must say so that a gate neither dead-locks nor looks at something else."""

from __future__ import annotations

import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from netdoctor.cli.main import app
from tests.support.clusters import kustomize

FOLDER = Path(__file__).parents[2] / "netdoctor/deploy/kubernetes"
OVERLAYS = sorted(p.parent.name for p in FOLDER.glob("overlays/*/kustomization.yaml"))
COPIED = ("image", "imagePullPolicy", "env", "envFrom", "resources", "securityContext", "volumeMounts")


@functools.cache
def rendered(overlay: str) -> dict[tuple[str, str], dict[str, Any]]:
    """By our own kustomize: a test compares it with kubectl's, which takes a second a time."""
    return {kustomize.key(one): one for one in kustomize.render(FOLDER / "overlays" / overlay)}


def pods(overlay: str) -> Iterator[dict[str, Any]]:
    for one in rendered(overlay).values():
        spec = one.get("spec", {})
        spec = spec.get("jobTemplate", {}).get("spec", spec)
        if "template" in spec:
            yield spec["template"]["spec"]


def containers(pod: dict[str, Any]) -> list[dict[str, Any]]:
    return [*pod.get("initContainers", ()), *pod["containers"]]


def named(pod: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in containers(pod) if one["name"] == name]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_our_kustomize_gives_what_kubectl_gives(overlay: str) -> None:
    theirs = kustomize.by_kubectl(FOLDER / "overlays" / overlay)
    if theirs is None:
        pytest.skip("no kubectl to compare with")
    ours = kustomize.render(FOLDER / "overlays" / overlay)
    assert sorted(ours, key=kustomize.key) == sorted(theirs, key=kustomize.key)


def test_every_object_is_valid(tmp_path: Path) -> None:
    program = shutil.which("kubernetes-validate") or shutil.which("kubernetes-validate", path=str(Path(sys.executable).parent))
    if program is None:
        pytest.skip("kubernetes-validate is not installed (pip install kubernetes-validate)")
    objects = [one for overlay in OVERLAYS for one in rendered(overlay).values()]
    file = tmp_path / "all.yaml"
    file.write_text("---\n".join(yaml.safe_dump(one) for one in objects))
    done = subprocess.run([program, "--strict", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed") == len(objects)


# What the pods of a job know each other by; the job itself does not get it.
TOKEN = {"name": "NETDOCTOR_TOKEN", "valueFrom": {"secretKeyRef": {"name": "netdoctor-token", "key": "token"}}}


@pytest.mark.parametrize(
    ("overlay", "gate"),
    [("training-pod", "netdoctor-gate"), ("multi-node", "netdoctor-gate"), ("multi-node", "netdoctor-allreduce")],
)
def test_the_gate_has_all_that_the_main_container_has(overlay: str, gate: str) -> None:
    (pod,) = pods(overlay)
    main, init = pod["containers"][0], named(pod, gate)
    for field in COPIED:
        own = [TOKEN] if field == "env" and gate == "netdoctor-allreduce" else []
        assert init[field] == (own + main[field] if own else main[field]), field
    # Nothing else of the main one is left behind, so a field that is added to it must be copied as well.
    assert set(main) - {"name", "command", *COPIED} == set()
    assert init["terminationMessagePolicy"] == "FallbackToLogsOnError"


@pytest.mark.slow
def test_a_field_of_a_users_job_reaches_the_gate(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "k8s")
    job = tmp_path / "k8s/base/job.yaml"
    spec = yaml.safe_load(job.read_text())
    main = spec["spec"]["template"]["spec"]["containers"][0]
    main |= {"name": "mine", "image": "mine:1"}
    main["env"].append({"name": "NCCL_IB_HCA", "value": "mlx5"})
    main["envFrom"].append({"configMapRef": {"name": "nccl"}})
    job.write_text(yaml.safe_dump(spec))
    for by in (kustomize.render, kustomize.by_kubectl):
        objects = by(tmp_path / "k8s/overlays/training-pod")
        for one in objects or ():
            if one["kind"] == "Job":
                gate = named(one["spec"]["template"]["spec"], "netdoctor-gate")
                assert gate["image"] == "mine:1"
                assert {"name": "NCCL_IB_HCA", "value": "mlx5"} in gate["env"]
                assert gate["envFrom"][1:] == [{"configMapRef": {"name": "nccl"}}]


BARE = """
apiVersion: batch/v1
kind: Job
metadata: {name: mine}
spec:
  template:
    spec:
      restartPolicy: OnFailure
      containers:
        - name: work
          image: mine:1
          command: [python3, train.py]
          resources: {limits: {nvidia.com/gpu: 8}}
"""


def user_job(tmp_path: Path, text: str, by: Any) -> dict[str, Any]:
    shutil.copytree(FOLDER, tmp_path / "k8s")
    (tmp_path / "k8s/base/job.yaml").write_text(text)
    objects = by(tmp_path / "k8s/overlays/training-pod")
    if objects is None:
        pytest.skip("no kubectl to render with")
    (job,) = [one for one in objects if one["kind"] == "Job"]
    pod: dict[str, Any] = job["spec"]["template"]["spec"]
    return pod


@pytest.mark.slow
@pytest.mark.parametrize("by", [kustomize.render, kustomize.by_kubectl])
def test_a_bare_job_gets_its_gate(tmp_path: Path, by: Any) -> None:
    pod = user_job(tmp_path, BARE, by)
    (main,), (first, gate) = pod["containers"], pod["initContainers"]
    assert (first["name"], gate["name"], pod["restartPolicy"]) == ("netdoctor-copy", "netdoctor-gate", "Never")
    assert gate["image"] == "mine:1" and gate["resources"] == main["resources"]
    assert gate["command"][:4] == ["python3", "-I", "/netdoctor/netdoctor.pyz", "preflight"]
    assert main["command"] == ["python3", "train.py"]
    assert gate["volumeMounts"] == main["volumeMounts"]
    assert {m["name"] for m in main["volumeMounts"]} == {v["name"] for v in pod["volumes"]} == {"netdoctor", "netdoctor-config"}


@pytest.mark.slow
@pytest.mark.parametrize("by", [kustomize.render, kustomize.by_kubectl])
def test_what_is_the_jobs_alone_stays_with_it(tmp_path: Path, by: Any) -> None:
    """An init container may have no probe and no lifecycle, and `args` would be taken for netdoctor's."""
    spec = yaml.safe_load(BARE)
    alone = {
        "args": ["--lr=1"],
        "ports": [{"containerPort": 29500}],
        "livenessProbe": {"exec": {"command": ["true"]}},
        "lifecycle": {"preStop": {"exec": {"command": ["true"]}}},
        "stdin": True,
        "tty": True,
    }
    pod = spec["spec"]["template"]["spec"]
    pod["containers"][0] |= alone | {"workingDir": "/job"}
    pod["initContainers"] = [{"name": "own", "image": "own:1"}]
    got = user_job(tmp_path, yaml.safe_dump(spec), by)
    assert [one["name"] for one in got["initContainers"]] == ["netdoctor-copy", "netdoctor-gate", "own"]
    gate = named(got, "netdoctor-gate")
    assert not alone.keys() & gate.keys() and gate["workingDir"] == "/job"
    assert alone.items() <= got["containers"][0].items()


@pytest.mark.parametrize("overlay", ["training-pod", "multi-node"])
def test_a_failed_gate_frees_its_gpus_and_exit_codes_are_known(overlay: str) -> None:
    job = rendered(overlay)["Job", "train"]["spec"]
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    gates = [one["name"] for one in pod["initContainers"] if "netdoctor.pyz" in " ".join(one["command"][:3])]
    gates = [name for name in gates if name != "netdoctor-copy"]
    rules = [r["onExitCodes"] | {"action": r["action"]} for r in job["podFailurePolicy"]["rules"] if "onExitCodes" in r]
    for gate, code in itertools.product(gates, (2, 3, 4)):
        (rule,) = [r for r in rules if r["containerName"] == gate and r["operator"] == "In" and code in r["values"]]
        tried_elsewhere = code == 3 and overlay == "training-pod"
        assert rule["action"] == ("Count" if tried_elsewhere else "FailJob")
    assert {r["containerName"] for r in rules} == set(gates)


def test_pods_that_wait_have_names_before_they_are_ready() -> None:
    objects = rendered("multi-node")
    service, job = objects["Service", "train"]["spec"], objects["Job", "train"]["spec"]
    labels = job["template"]["metadata"]["labels"]
    pod = job["template"]["spec"]
    assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"] is True
    assert service["selector"].items() <= labels.items()
    assert pod["subdomain"] == "train"
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"]
    for name, nodes in (("netdoctor-allreduce", "--nodes"), (pod["containers"][0]["name"], "--nnodes")):
        command = named(pod, name)["command"]
        assert f"{nodes}={job['completions']}" in command
        # addCompletionIndexEnvVariables of kubernetes/pkg/controller/job/indexed_job_utils.go: in every container of such a Job
        assert "--node-rank=$(JOB_COMPLETION_INDEX)" in command
    master = next(one for one in named(pod, "netdoctor-allreduce")["command"] if one.startswith("--master="))
    assert re.fullmatch(r"--master=train-0\.train:(\d+)", master)
    port = int(master.rpartition(":")[2])
    jobs_own = next(int(one.partition("=")[2]) for one in pod["containers"][0]["command"] if one.startswith("--master-port="))
    assert port != jobs_own
    assert {port, jobs_own} <= {one["port"] for one in service["ports"]}
    low = int(pod["securityContext"]["sysctls"][0]["value"].split()[0])
    assert low > max(port, jobs_own, 28028)  # no connection may be given a port that somebody must bind


def test_a_job_without_env_has_its_way_between_pods_tried(tmp_path: Path) -> None:
    shutil.copytree(FOLDER, tmp_path / "k8s")
    file = tmp_path / "k8s/base/job.yaml"
    job = yaml.safe_load(file.read_text())
    del job["spec"]["template"]["spec"]["containers"][0]["env"]
    file.write_text(yaml.safe_dump(job))
    overlay = tmp_path / "k8s/overlays/multi-node"
    (made,) = [one for one in kustomize.render(overlay) if one["kind"] == "Job"]
    inits = made["spec"]["template"]["spec"]["initContainers"]
    assert [one["name"] for one in inits] == ["netdoctor-copy", "netdoctor-gate", "netdoctor-allreduce"]
    assert [one["name"] for one in inits[2]["env"]] == ["NETDOCTOR_TOKEN"] and "env" not in inits[1]
    theirs = kustomize.by_kubectl(overlay)
    assert theirs is None or made in theirs


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_no_pod_asks_for_more_than_it_needs(overlay: str) -> None:
    for pod in pods(overlay):
        assert pod["automountServiceAccountToken"] is False
        sysctls = pod.get("securityContext", {}).get("sysctls", ())
        assert not (pod.get("hostNetwork") and sysctls), "the kubelet refuses net sysctls with hostNetwork"
        assert not pod.get("hostPID") and not pod.get("hostIPC")
        for one in containers(pod):
            context = one["securityContext"]
            assert not context.get("privileged") and context["allowPrivilegeEscalation"] is False, one["name"]
            assert context["capabilities"]["drop"] == ["ALL"]
            assert set(context["capabilities"].get("add", ())) <= {"IPC_LOCK"}
            assert one["resources"]["limits"]["memory"]
        for volume in pod["volumes"]:
            assert volume.get("hostPath", {}).get("path", "/run/netdoctor") == "/run/netdoctor"
        mounted = {m["name"] for one in containers(pod) for m in one["volumeMounts"]}
        assert mounted == {volume["name"] for volume in pod["volumes"]}


def test_rights_on_nodes_are_opt_in_and_two_verbs() -> None:
    kinds = {kind for overlay in OVERLAYS if overlay != "node-health-taints" for kind, _ in rendered(overlay)}
    assert not kinds & {"ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "ServiceAccount"}
    objects = rendered("node-health-taints")
    assert objects["ClusterRole", "netdoctor-taint"]["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}
    ]
    pod = objects["DaemonSet", "netdoctor"]["spec"]["template"]["spec"]
    holders = [one["name"] for one in pod["containers"] if any(m["name"] == "api" for m in one["volumeMounts"])]
    assert holders == ["taint"]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_commands_are_ones_that_netdoctor_has(overlay: str) -> None:
    commands: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    for pod in pods(overlay):
        for one in containers(pod):
            words = one["command"]
            if words[:3] != ["python3", "-I", "/netdoctor/netdoctor.pyz"]:
                continue
            if words[3] not in commands:
                pytest.skip(f"netdoctor has no command {words[3]}")
            options = {name for parameter in commands[words[3]].params for name in parameter.opts}
            assert {word.partition("=")[0] for word in words[4:]} <= options


def test_the_plugin_is_ten_lines_its_configuration_says_eighty() -> None:
    text = (FOLDER / "overlays/node-health/npd.sh").read_text().splitlines()
    assert len([line for line in text if line and not line.startswith("#")]) <= 10
    monitor = json.loads((FOLDER / "overlays/node-health/netdoctor-monitor.json").read_text())
    assert monitor["pluginConfig"]["max_output_length"] == 80
    assert {rule["condition"] for rule in monitor["rules"]} == {one["type"] for one in monitor["conditions"]}

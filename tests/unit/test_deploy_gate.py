"""`deploy kubernetes --gate`: the gate of the kustomize overlay in every kind of object that makes pods."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from netdoctor.cli import main
from tests.support.clusters import kustomize

FOLDER = Path(__file__).parents[2] / "netdoctor/deploy/kubernetes"
KINDS: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "data/workloads.yaml").read_text())
AGAIN = "is tried again where it is and keeps its GPUs"  # the note of pods that are not let go


def gated(file: Path, *more: str) -> tuple[int, list[Any], str]:
    done = CliRunner().invoke(main.app, ["deploy", "kubernetes", "--gate", str(file), *more], catch_exceptions=False)
    return done.exit_code, [one for one in yaml.safe_load_all(done.stdout) if one], done.stderr


IMAGE = "netdoctor: the gate's image is called netdoctor: name the one that your nodes pull with --image"


def given(folder: Path, *objects: dict[str, Any]) -> Path:
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump_all(objects))
    return file


def pods(at: Any) -> list[dict[str, Any]]:
    if isinstance(at, dict):
        own = [at] if isinstance(at.get("containers"), list) else []
        return own + [pod for value in at.values() for pod in pods(value)]
    return [pod for value in at for pod in pods(value)] if isinstance(at, list) else []


def test_a_job_gets_what_kustomize_gives_it() -> None:
    code, made, notes = gated(FOLDER / "base/job.yaml")
    assert code == 0 and notes.splitlines() == [IMAGE]
    of_overlay = kustomize.render(FOLDER / "overlays/training-pod")
    for one in of_overlay:  # `images` there is a place for the site's own registry
        for pod in pods(one):
            for container in pod.get("initContainers", ()):
                container["image"] = container["image"].removesuffix(":latest")
    assert sorted(made, key=kustomize.key) == sorted(of_overlay, key=kustomize.key)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_gate_before_its_gpus(kind: str, tmp_path: Path) -> None:
    code, (one, config), notes = gated(given(tmp_path, KINDS[kind]), "--image", "reg.example/netdoctor:1")
    assert code == 0 and config["kind"] == "ConfigMap"
    assert config["metadata"].get("namespace") == KINDS[kind]["metadata"].get("namespace")
    found, before = pods(one), pods(KINDS[kind])
    with_gpus = [n for n, pod in enumerate(before) if "gpu" in str(pod)] or range(len(before))
    for number, (pod, old) in enumerate(zip(found, before, strict=True)):
        if number not in with_gpus:
            assert pod == old
            continue
        first, gate, *own = pod["initContainers"]
        assert (first["name"], gate["name"]) == ("netdoctor-copy", "netdoctor-gate") and own == old.get("initContainers", [])
        assert first["image"] == "reg.example/netdoctor:1"
        main = next(c for c in pod["containers"] if c["image"] == "mine:1")
        assert gate["image"] == "mine:1" and gate.get("resources") == main.get("resources")
        assert gate["volumeMounts"] == main["volumeMounts"] and gate["command"][3] == "preflight"
        assert {v["name"] for v in pod["volumes"]} == {"netdoctor", "netdoctor-config"}
    lasting = kind in {"Deployment", "StatefulSet", "PyTorchJob", "MPIJob", "LeaderWorkerSet", "RayCluster"}
    assert (AGAIN in notes) == lasting and len(notes.splitlines()) == len(set(notes.splitlines()))
    assert ("restartPolicy Never" in notes) == (
        kind in {"PyTorchJob", "MPIJob", "RayCluster"}
    )  # the others take none but Always
    assert (f"{kind} " in notes and "looks at each pod alone" in notes) == (kind not in {"Pod", "Deployment", "CronJob"})


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("nvidia.com/gpus", "nvidia.com/gpu"),
        ("nvidia.com/GPU", "nvidia.com/gpu"),
        ("amd.com/gpus", "amd.com/gpu"),
        ("nvidia.com/gpu", ""),
        ("nvidia.com/gpu.shared", ""),
        ("nvidia.com/mig-1g.10gb", ""),
        ("nvidia.com/a100", ""),
        ("example.com/gpu", ""),
        ("memory", ""),
    ],
)
def test_a_resource_that_no_plugin_gives_is_told(name: str, meant: str, tmp_path: Path) -> None:
    job = yaml.safe_load((FOLDER / "base/job.yaml").read_text())
    job["spec"]["template"]["spec"]["containers"][0]["resources"] = {"limits": {name: 8}}
    said = gated(given(tmp_path, job), "--image", "reg.example/netdoctor:1")[2]
    assert (f"asks for {name}, which no device plugin gives; did you mean {meant}?" in said) == bool(meant), said


def test_an_indexed_job_is_told_of_the_overlay(tmp_path: Path) -> None:
    job = yaml.safe_load((FOLDER / "base/job.yaml").read_text())
    job["spec"] |= {"completionMode": "Indexed", "completions": 2, "parallelism": 2}
    notes = gated(given(tmp_path, job), "--image", "reg.example/netdoctor:1")[2].splitlines()
    assert len(notes) == 1 and "overlays/multi-node" in notes[0]


@pytest.mark.parametrize(("kind", "at"), [("CronJob", 0), ("JobSet", 1), ("ClusterTrainingRuntime", 0)])
def test_what_is_a_job_within_lets_a_failed_pod_go(kind: str, at: int, tmp_path: Path) -> None:
    _, (one, _), _ = gated(given(tmp_path, KINDS[kind]))
    assert pods(one)[at]["restartPolicy"] == "Never"
    rules = str(one).count("podFailurePolicy")
    assert rules == 1 and "'containerName': 'netdoctor-gate'" in str(one)


def test_a_site_s_own_failure_rules_stay(tmp_path: Path) -> None:
    job = yaml.safe_load((FOLDER / "base/job.yaml").read_text())
    own = {"action": "FailJob", "onExitCodes": {"containerName": "train", "operator": "In", "values": [42]}}
    job["spec"]["podFailurePolicy"] = {"rules": [own]}
    _, (made, _), _ = gated(given(tmp_path, job))
    rules = made["spec"]["podFailurePolicy"]["rules"]
    assert rules[-1] == own and len(rules) == 5


def test_other_objects_of_a_file_stay_as_they_are(tmp_path: Path) -> None:
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"clusterIP": "None"}}
    _, made, _ = gated(given(tmp_path, service, KINDS["Pod"], KINDS["JobSet"]))
    assert made[0] == service and [one["kind"] for one in made] == ["Service", "Pod", "JobSet", "ConfigMap", "ConfigMap"]


def test_whose_pods_are_elsewhere_is_said_of_these_alone(tmp_path: Path) -> None:
    """Beside what has a pod, a TrainJob keeps its words, a Service has none, and neither has a TrainJob with a pod in it."""
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}}
    train = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob", "metadata": {"name": "t"}}
    told = "no pod is in it: they are its runtime's"
    _, _, notes = gated(given(tmp_path, service, train, KINDS["Pod"]))
    assert notes.count("no pod is in it") == notes.count(told) == 1
    _, _, notes = gated(given(tmp_path, {**train, "spec": KINDS["Pod"]["spec"]}))
    assert "no pod is in it" not in notes


def test_gating_twice_is_gating_once(tmp_path: Path) -> None:
    _, made, _ = gated(given(tmp_path, KINDS["Pod"]))
    _, again, notes = gated(given(tmp_path, *made[:1]))
    assert again[0] == made[0] and "has its gate already" in notes


# Nine of nine of nine …: 9^8 values in nine lines.
BOMB = "".join(f"{n}: &n{n} [{', '.join([f'*n{n - 1}'] * 9) if n else 'x'}]\n" for n in range(9))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "kind: TrainJob\nmetadata: {name: t}\nspec: {runtimeRef: {name: torch}}\n",
            "gate what kubectl get clustertrainingruntime",
        ),
        ("kind: Service\n", "no pod is in it"),
        ("{", "no YAML"),
        ("- 1\n- [x]\n", "no pod is in it"),
        ("spec: {containers: [1]}", "no pod is in it"),
        ("what: {spec: {containers: [{name: a, image: b}]}}", "it is no manifest"),
        # What Kubernetes refuses as well, and what is a part of itself or far larger than it looks.
        ("kind: Pod\nspec: {containers: [{name: c, resources: abc}]}", "none that Kubernetes takes"),
        ("kind: Pod\nspec: {containers: [{name: c, resources: {limits: [1]}}]}", "none that Kubernetes takes"),
        ("kind: Pod\nspec: {volumes: x, containers: [{name: c}]}", "none that Kubernetes takes"),
        ("kind: Pod\nspec: {initContainers: {a: b}, containers: [{name: c}]}", "none that Kubernetes takes"),
        ("a: &a [*a]\nkind: Pod\nspec: {containers: [{name: c}]}", "its aliases repeat it"),
        (f"{BOMB}kind: Pod\nspec: {{containers: [{{name: c}}]}}", "its aliases repeat it"),
    ],
)
def test_what_cannot_be_served_says_so(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(text)
    code, made, notes = gated(tmp_path / "x.yaml")
    assert (code, made) == (2, []) and says in notes


def test_usage(tmp_path: Path) -> None:
    assert gated(tmp_path / "gone.yaml")[0] == 2
    done = CliRunner().invoke(main.app, ["deploy", "slurm", "--gate", "x"])
    assert done.exit_code == 2 and "kubernetes alone" in done.stderr


@pytest.mark.slow
def test_from_standard_input() -> None:
    text = yaml.safe_dump(KINDS["Pod"])
    command = [sys.executable, "-m", "netdoctor", "deploy", "kubernetes", "--gate", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    assert "netdoctor-gate" in done.stdout

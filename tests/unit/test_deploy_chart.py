"""The Helm chart renders what kustomize renders, with the site's values in it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from netdoctor import __version__
from tests.support.clusters import kustomize
from tests.support.machines.fetch import HELM

FOLDER = Path(__file__).parents[2] / "netdoctor/deploy/kubernetes"
OVERLAYS = sorted(FOLDER.glob("overlays/*/kustomization.yaml"))
PROGRAM = shutil.which("helm") or (str(HELM) if HELM.exists() else None)
needs_helm = pytest.mark.skipif(PROGRAM is None, reason="no helm: make parts")


def helm(*values: str, namespace: str = "netdoctor") -> list[dict[str, Any]]:
    sets = [word for value in values for word in ("--set", value)]
    command = [str(PROGRAM), "template", "netdoctor", str(FOLDER), "--namespace", namespace, *sets]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


@needs_helm
@pytest.mark.parametrize(
    ("overlay", "values"),
    [
        ("node-health", ()),
        ("node-health-taints", ("taints.enabled=true",)),
        ("nightly-allreduce", ("nodeHealth.enabled=false", "nightly.enabled=true")),
    ],
)
def test_the_chart_renders_what_the_overlay_does(overlay: str, values: tuple[str, ...]) -> None:
    theirs = kustomize.render(FOLDER / "overlays" / overlay)
    ours = helm("namespace.create=true", *values) if overlay != "nightly-allreduce" else helm(*values)
    assert sorted(ours, key=kustomize.key) == sorted(theirs, key=kustomize.key)


@needs_helm
@pytest.mark.parametrize(
    "value",
    ["imag=x", "nodeHealth.periodSecond=60", "nightly.enable=true", "nodeHealth.taint=true", "nodeHealth.periodSeconds=often"],
)
def test_a_value_that_nothing_reads_is_refused_by_its_name(value: str) -> None:
    command = [str(PROGRAM), "template", "netdoctor", str(FOLDER), "--set", value]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert value.partition("=")[0].rpartition(".")[2] in done.stderr


def test_the_schema_of_the_values_knows_each_of_them() -> None:
    def names(values: Any, schema: Any) -> None:
        assert set(values) == set(schema["properties"]) - {"global"}
        assert schema["additionalProperties"] is False
        for name, value in values.items():
            if isinstance(value, dict) and name != "nodeSelector":
                names(value, schema["properties"][name])

    names(yaml.safe_load((FOLDER / "values.yaml").read_text()), json.loads((FOLDER / "values.schema.json").read_text()))


@pytest.mark.slow
@pytest.mark.parametrize("by", ["kustomize", "kubectl", "helm"])
def test_metrics_are_one_more_container(by: str, tmp_path: Path) -> None:
    """The component that the overlay has in a comment, and the chart's value: the same."""
    shutil.copytree(FOLDER, tmp_path / "k8s")
    file = tmp_path / "k8s/overlays/node-health/kustomization.yaml"
    file.write_text(file.read_text().replace("# components:\n#  ", "components:\n "))
    ours = kustomize.render(file.parent)
    if by == "helm" and PROGRAM is None:
        pytest.skip("no helm: make parts")
    theirs = helm("namespace.create=true", "metrics.enabled=true") if by == "helm" else kustomize.by_kubectl(file.parent)
    assert theirs is None or sorted(ours, key=kustomize.key) == sorted(theirs, key=kustomize.key)
    (pod,) = [one["spec"]["template"] for one in ours if one["kind"] == "DaemonSet"]
    assert pod["metadata"]["annotations"]["prometheus.io/port"] == "9469"
    assert [one["name"] for one in pod["spec"]["containers"]] == ["netdoctor", "metrics"]


@needs_helm
def test_values_reach_what_they_are_about() -> None:
    made = {
        kustomize.key(one): one
        for one in helm(
            "image=reg.example/netdoctor:1",
            "taints.enabled=true",
            "nightly.enabled=true",
            "nightly.image=reg.example/train:2",
            "nightly.schedule=1 2 * * *",
            "nodeHealth.periodSeconds=60",
            "nodeHealth.runtimeClassName=nvidia",
            "nodeHealth.nodeSelector.pool=gpu",
            "gate.namespaces={team-a}",
            "gate.config=profile: strict",
            namespace="ops",
        )
    }
    assert ("Namespace", "ops") not in made
    pod = made["DaemonSet", "netdoctor"]["spec"]["template"]["spec"]
    assert {one["image"] for one in pod["containers"]} == {"reg.example/netdoctor:1"}
    assert {"name": "PERIOD", "value": "60"} in pod["containers"][0]["env"]
    assert (pod["runtimeClassName"], pod["nodeSelector"]["pool"]) == ("nvidia", "gpu")
    nightly = made["CronJob", "netdoctor-nightly"]["spec"]
    (own,) = nightly["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    assert (nightly["schedule"], own["image"]) == ("1 2 * * *", "reg.example/train:2")
    config = made["ConfigMap", "netdoctor-config"]
    assert (config["metadata"]["namespace"], config["data"]) == ("team-a", {"config.yaml": "profile: strict"})
    assert {one["metadata"].get("namespace", "ops") for one in made.values()} == {"ops", "team-a"}
    policy = str(made["ValidatingAdmissionPolicy", "netdoctor-taint-own-node-only"])
    assert "serviceaccount:netdoctor:" not in policy


@needs_helm
def test_helm_finds_nothing_wrong_with_it() -> None:
    done = subprocess.run([str(PROGRAM), "lint", "--strict", str(FOLDER)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_chart_has_netdoctors_version() -> None:
    chart = yaml.safe_load((FOLDER / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.parent.name)
def test_every_overlay_says_where_its_image_is_pulled_from(overlay: Path) -> None:
    rows = yaml.safe_load(overlay.read_text())["images"]
    assert rows[0]["name"] == "netdoctor" and all({"newName", "newTag"} < row.keys() for row in rows)
    images = {
        one["image"] for obj in kustomize.render(overlay.parent) for one in _containers(obj) if "netdoctor" in one["image"]
    }
    assert images == {"netdoctor:latest"}


def _containers(at: Any) -> list[dict[str, Any]]:
    if isinstance(at, dict):
        own = [one for name in ("containers", "initContainers") for one in at.get(name) or ()]
        return own + [one for value in at.values() for one in _containers(value)]
    return [one for value in at for one in _containers(value)] if isinstance(at, list) else []

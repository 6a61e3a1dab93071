"""What the taint's service account may do, by the admission policy's own CEL: one node, one taint, one label."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from netdoctor.deploy.kubernetes.components.taints.taint import wanted
from tests.support.sources import ROOT

celpy = pytest.importorskip("celpy", reason="cel-python is not installed (pip install cel-python)")

POLICY = ROOT / "netdoctor/deploy/kubernetes/components/taints/own-node-only.yaml"
SPEC = next(yaml.safe_load_all(POLICY.read_text()))["spec"]
NODE: dict[str, Any] = {
    "metadata": {"name": "gpu7", "resourceVersion": "5", "labels": {"zone": "a"}, "annotations": {"a": "b"}},
    "spec": {
        "providerID": "x",
        "podCIDRs": ["10.0.0.0/24"],
        "taints": [{"key": "gpu", "value": "only", "effect": "NoSchedule"}],
    },
}
EXTRA = "authentication.kubernetes.io/node-name"


def value(expression: str, activation: dict[str, Any]) -> Any:
    environment = celpy.Environment()
    program = environment.program(environment.compile(expression))
    return program.evaluate({name: celpy.json_to_cel(one) for name, one in activation.items()})


def refused(change: dict[str, Any], node: str = "gpu7", old: dict[str, Any] = NODE) -> list[str]:
    """The messages of the validations that fail for what the server makes of a merge patch (RFC 7396)."""
    user = {"username": "system:serviceaccount:netdoctor:netdoctor-taint", "extra": {EXTRA: [node]} if node else {}}
    activation: dict[str, Any] = {"object": merged(old, change), "oldObject": old, "request": {"userInfo": user}}
    assert all(value(one["expression"], activation) for one in SPEC["matchConditions"])
    variables: dict[str, Any] = {}
    for one in SPEC["variables"]:
        variables[one["name"]] = value(one["expression"], activation)
    activation["variables"] = variables
    return [one["message"] for one in SPEC["validations"] if not value(one["expression"], activation)]


def merged(target: Any, change: Any) -> Any:
    if not isinstance(change, dict):
        return change
    out = copy.deepcopy(target) if isinstance(target, dict) else {}
    for key, one in change.items():
        if one is None:
            out.pop(key, None)
        else:
            out[key] = merged(out.get(key), one)
    return out


OURS = {"key": "netdoctor/unhealthy", "value": "true", "effect": "NoSchedule"}


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize("ours", [True, False])
def test_what_the_program_itself_does(healthy: bool, ours: bool) -> None:
    old = merged(NODE, {"spec": {"taints": [*NODE["spec"]["taints"], OURS]}}) if ours else NODE
    change = wanted(old, healthy)
    assert change is not None and refused(change, old=old) == []


def without_parts(name: str) -> dict[str, Any]:
    return {"metadata": {name: None}} if name in NODE["metadata"] else {"spec": {name: None}}


BAD: dict[str, dict[str, Any]] = {
    "takes another's taint away": {"spec": {"taints": []}},
    "another taint": {"spec": {"taints": [*NODE["spec"]["taints"], {"key": "x", "effect": "NoSchedule"}]}},
    "evicts every pod": {"spec": {"taints": [*NODE["spec"]["taints"], {**OURS, "effect": "NoExecute"}]}},
    "another value of its taint": {"spec": {"taints": [*NODE["spec"]["taints"], {**OURS, "value": "x"}]}},
    "cordons": {"spec": {"unschedulable": True}},
    "another label": {"metadata": {"labels": {"zone": "b"}}},
    "a new label": {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
    "takes a label away": {"metadata": {"labels": {"zone": None}}},
    "takes all labels away": without_parts("labels"),
    "a word of its own": {"metadata": {"labels": {"netdoctor/health": "sure"}}},
    "an annotation": {"metadata": {"annotations": {"a": "c"}}},
    "no annotations": without_parts("annotations"),
    "a finalizer": {"metadata": {"finalizers": ["x/y"]}},
    "an owner": {"metadata": {"ownerReferences": [{"uid": "1"}]}},
    "another machine": {"spec": {"providerID": "y"}},
    "other pods' addresses": {"spec": {"podCIDRs": ["10.9.0.0/24"]}},
}


@pytest.mark.parametrize("change", BAD.values(), ids=BAD)
def test_what_its_token_may_not_do(change: dict[str, Any]) -> None:
    assert refused(change), change


@pytest.mark.parametrize("node", ["gpu8", ""])
def test_another_node_or_a_token_without_one(node: str) -> None:
    assert refused({"metadata": {"labels": {"netdoctor/health": "healthy"}}}, node)


def test_others_are_not_held_to_it() -> None:
    held: Callable[[str], Any] = lambda name: value(  # noqa: E731
        SPEC["matchConditions"][0]["expression"], {"request": {"userInfo": {"username": name}}}
    )
    assert not held("system:node:gpu7") and held("system:serviceaccount:netdoctor:netdoctor-taint")
    # kustomize's namespace, namePrefix and nameSuffix, and Helm's namespace, rename the account: it is held all the same
    for account in ("ops:netdoctor-taint", "ops:site-netdoctor-taint", "ops:netdoctor-taint-a", "ops:site-netdoctor-taint-a"):
        assert held(f"system:serviceaccount:{account}")
    for account in ("netdoctor:default", "ops:taint", "ops:netdoctor", "ops:netdoctor-tainted", "a:b:netdoctor-taint"):
        assert not held(f"system:serviceaccount:{account}")

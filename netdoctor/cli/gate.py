"""``netdoctor deploy kubernetes --gate FILE``: any manifest that holds pods, with the gate in each of them.

What is put in are the files of ``deploy/kubernetes/components/gate``, as kustomize merges them into a Job: Pod, Deployment,
StatefulSet, JobSet, PyTorchJob, MPIJob, LeaderWorkerSet, RayCluster, a training runtime and kinds that nobody has heard of hold
the same pod somewhere.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import yaml

from netdoctor.textsafe import clean, nearest

if TYPE_CHECKING:
    from importlib.abc import Traversable

_MOST: Final = 1 << 18  # values; etcd takes an object of 1.5 MiB
_KEYS: Final = {"volumes": "name", "initContainers": "name", "volumeMounts": "mountPath"}  # strategic merge: lists by these
_ELSEWHERE: Final = {
    "TrainJob": "they are its runtime's: gate what kubectl get clustertrainingruntime NAME -o yaml gives, and name that here"
}
# Whose pods do not compute together; of the others an indexed Job's alone have the all-reduce over all (overlays/multi-node).
_APART: Final = frozenset({"Pod", "Deployment", "ReplicaSet", "DaemonSet", "Job", "CronJob"})
# Their pods always restart (Kubernetes, pkg/apis/apps/validation, of restartPolicy); a LeaderWorkerSet makes StatefulSets.
_ALWAYS: Final = frozenset({"Deployment", "ReplicaSet", "DaemonSet", "StatefulSet", "LeaderWorkerSet"})
_ASKS: Final = ("gpu", "mig-")  # nvidia.com/gpu, nvidia.com/mig-1g.10gb, amd.com/gpu, gpu.intel.com/xe
# What device plugins give.  A site may rename NVIDIA's (nvidia.com/gpu.shared, …/a100): only a slip of a letter is told.
_GIVEN: Final = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915", "gpu.intel.com/xe")

Object = dict[str, Any]


class GateError(ValueError):
    """One line: why nothing was gated."""


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - yaml's own signature
        return True


def gated(text: str, folder: Traversable, image: str | None) -> str:
    """The manifest with its gates, the configuration of the gate last.  Notes go to stderr.  Raises GateError."""
    try:
        objects = [one for one in yaml.safe_load_all(text) if one is not None]
    except (yaml.YAMLError, RecursionError) as error:
        raise GateError(f"no YAML: {' '.join(str(error).split())[:200]}") from None
    _bounded(objects)
    try:
        return _gated(objects, folder, image)
    except (AttributeError, TypeError, KeyError) as error:  # a list where Kubernetes has a mapping, or a text
        raise GateError(f"a pod in it is none that Kubernetes takes: {error}") from None


def _bounded(objects: list[Any]) -> None:
    """Aliases can make a few lines larger than any memory, or a thing a part of itself."""
    left, todo = _MOST, list(objects)
    while todo:
        one = todo.pop()
        inside = one.values() if isinstance(one, dict) else one if isinstance(one, list) else ()
        left -= len(inside)
        if left < 0:
            raise GateError(f"more than {_MOST} values: it is no manifest, or its aliases repeat it")
        todo.extend(inside)


def _gated(objects: list[Any], folder: Traversable, image: str | None) -> str:
    parts = {name: next(yaml.safe_load_all((folder / name).read_text())) for name in _FILES}
    each = [one for top in objects for one in _each(top)]
    places = [(one, place) for one in each for place in _pods(one, ())]
    asking = [row for row in places if _asking(row[1][-1][1])]
    for one in each:
        if (why := _ELSEWHERE.get(str(one.get("kind")))) and not any(p[0] is one for p in places):
            _note(one, f"no pod is in it: {why}")
    if not places:
        raise GateError("no pod is in it: nothing was gated")
    if any(not isinstance(one.get("kind"), str) for one, _ in places):
        raise GateError("a pod is in what has no kind: it is no manifest")
    told: dict[int, tuple[Object, dict[str, None]]] = {}
    for one, way in asking or places:
        said = told.setdefault(id(one), (one, {}))[1]
        said |= dict.fromkeys(_misspelt(way[-1][1]))
        said |= dict.fromkeys(_gate(one, way, parts))
    for one, said in told.values():
        for words in (*said, *_together(one)):
            _note(one, words)
    spaces = dict.fromkeys(_namespace(one) for one, _ in asking or places)
    own = parts["config.yaml"]
    kept = {_namespace(one) for one in each if _is(one, own)}  # the site's own, changed perhaps
    made = [*objects, *(_config(own, space) for space in spaces if space not in kept)]
    unnamed = list(_netdoctor(made))
    for container in unnamed:
        container["image"] = image or container["image"]
    if unnamed and not image:
        print(
            "netdoctor: the gate's image is called netdoctor: name the one that your nodes pull with --image", file=sys.stderr
        )
    return "---\n".join(yaml.dump(one, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120) for one in made)


_FILES: Final = ("config.yaml", "copy/init-containers.yaml", "init-container.yaml", "failure-policy.yaml")
Way = tuple[tuple[str, Any], ...]  # (name of the step, what is there), the pod's spec last


def _each(one: Any) -> Iterator[Object]:
    """The objects of a List (kubectl get -o yaml), or the object itself."""
    if isinstance(one, dict):
        items = one.get("items") if str(one.get("kind", "")).endswith("List") else None
        yield from (item for item in items if isinstance(item, dict)) if isinstance(items, list) else (one,)


def _is(one: Object, config: Object) -> bool:
    same = (one.get("metadata") or {}).get("name") == config["metadata"]["name"]
    return bool(same and one.get("kind") == config["kind"])


def _pods(at: Any, way: Way) -> Iterator[tuple[tuple[str, Any], ...]]:
    """The way to every pod: a mapping under `spec` whose `containers` have names."""
    if isinstance(at, dict):
        rows = at.get("containers")
        named = isinstance(rows, list) and rows and all(isinstance(row, dict) and "name" in row for row in rows)
        if named and way and way[-1][0] == "spec":
            yield way
            return
        for name, value in at.items():
            yield from _pods(value, (*way, (str(name), value)))
    elif isinstance(at, list):
        for value in at:
            yield from _pods(value, (*way, ("", value)))


def _asking(pod: Object) -> list[Object]:
    """The containers that ask for GPUs."""
    found = []
    for one in pod["containers"]:
        wanted = one.get("resources") or {}
        names = [*(wanted.get("limits") or {}), *(wanted.get("requests") or {}), *("gpu" for _ in wanted.get("claims") or ())]
        if any(sign in name for name in names for sign in _ASKS):
            found.append(one)
    return found


def _misspelt(pod: Object) -> Iterator[str]:
    """Resources that no device plugin gives: such a pod waits for ever, and its gate never looks."""
    for one in pod["containers"]:
        wanted = one.get("resources") or {}
        for name in dict.fromkeys([*(wanted.get("limits") or {}), *(wanted.get("requests") or {})]):
            if name not in _GIVEN and (meant := nearest(str(name), _GIVEN, cutoff=0.95)):
                yield f"asks for {name}, which no device plugin gives{meant}"


def _gate(one: Object, way: Way, parts: Object) -> tuple[str, ...]:
    """Put it in; what is to be said of that."""
    pod = way[-1][1]
    if any(init.get("name") == "netdoctor-gate" for init in pod.get("initContainers") or ()):
        return ("has its gate already",)
    main = (_asking(pod) or pod["containers"])[0]
    gate = copy.deepcopy(main)
    _merge(pod, copy.deepcopy(parts["copy/init-containers.yaml"]["spec"]["template"]["spec"]))
    place = next(n for n, init in enumerate(pod["initContainers"]) if init["name"] == "netdoctor-gate")
    gate["name"] = "netdoctor-gate"
    own = copy.deepcopy(parts["init-container.yaml"]["spec"]["template"]["spec"]["initContainers"][1])
    _merge(gate, own)
    pod["initContainers"][place] = gate
    main["volumeMounts"] = copy.deepcopy(gate["volumeMounts"])
    job = _job(one, way)
    if job is not None:
        pod["restartPolicy"], ours = "Never", copy.deepcopy(parts["failure-policy.yaml"][1]["value"])
        ours["rules"] += (job.get("podFailurePolicy") or {}).get("rules") or []
        job["podFailurePolicy"] = ours
    elif (pod.get("restartPolicy") or _beside(way) or "Always") != "Never":
        frees = "restartPolicy Never frees them" if one.get("kind") not in _ALWAYS else "delete it to have it tried elsewhere"
        return (f"a pod whose gate fails is tried again where it is and keeps its GPUs meanwhile; {frees}",)
    return ()


def _together(one: Object) -> Iterator[str]:
    """Where several pods make one job: that each was gated for itself, and what tries the way between them."""
    if (one.get("spec") or {}).get("completionMode") == "Indexed":
        yield "its gate looks at each pod alone; overlays/multi-node runs one all-reduce over all of them as well"
    elif one.get("kind") not in _APART:
        how = "to try the way between pods, start netdoctor allreduce once in the place of the job's own command"
        yield f"its gate looks at each pod alone, an all-reduce over all pods is of indexed Jobs; {how}"


def _job(one: Object, way: Way) -> Object | None:
    """The spec of the batch/v1 Job that the pod is of: it alone has a podFailurePolicy."""
    names = [name for name, _ in way]
    whole = names == ["spec", "template", "spec"] and one.get("kind") == "Job"
    within = names[-5:-2] in (["", "template", "spec"], ["spec", "jobTemplate", "spec"]) and names[-2:] == ["template", "spec"]
    job: Object | None = way[-3][1] if whole or within else None
    return job


def _beside(way: Way) -> str | None:
    """The restartPolicy that an operator (PyTorchJob, MPIJob) puts into its pods."""
    said = way[-3][1].get("restartPolicy") if len(way) > 2 and isinstance(way[-3][1], dict) else None
    return said if isinstance(said, str) else None


def _merge(at: Object, patch: Object) -> None:
    """As kustomize merges strategically: null takes away, lists by their key with the patch's elements in front."""
    for name, value in patch.items():
        if value is None:
            at.pop(name, None)
        elif isinstance(value, dict):
            _merge(at.setdefault(name, {}), value)
        elif name in _KEYS:
            by, old = _KEYS[name], at.get(name) or []
            taken = {part[by] for part in value}
            at[name] = [*value, *(one for one in old if one.get(by) not in taken)]
        else:
            at[name] = value


def _config(config: Object, space: str | None) -> Object:
    own = copy.deepcopy(config)
    if space:
        own["metadata"]["namespace"] = space
    return own


def _namespace(one: Object) -> str | None:
    space = (one.get("metadata") or {}).get("namespace")
    return space if isinstance(space, str) else None


def _netdoctor(objects: list[Any]) -> Iterator[Object]:
    for one in objects:
        for way in _pods(one, ()):
            yield from (init for init in way[-1][1].get("initContainers", ()) if init.get("image") == "netdoctor")


def _note(one: Object, text: str) -> None:
    name = (one.get("metadata") or {}).get("name", "")
    print(clean(f"netdoctor: {one.get('kind')} {name}: {text}"), file=sys.stderr)

"""As much of kustomize as the manifests use: resources, components, patches, replacements, ConfigMaps from files.

Where kubectl is installed a test compares the two; where it is not, the manifests are rendered all the same.
"""

from __future__ import annotations

import copy
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]
_KNOWN = {
    "apiVersion",
    "kind",
    "resources",
    "components",
    "patches",
    "replacements",
    "configMapGenerator",
    "generatorOptions",
    "images",
}

_MERGE_KEYS = {"volumes": "name", "initContainers": "name", "containers": "name", "env": "name", "volumeMounts": "mountPath"}


def render(folder: Path) -> list[Object]:
    """All objects of one kustomization."""
    return _accumulate(folder, [])


def by_kubectl(folder: Path) -> list[Object] | None:
    """The same by kubectl; None where there is none."""
    if shutil.which("kubectl") is None:
        return None
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def key(one: Object) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def _accumulate(folder: Path, objects: list[Object]) -> list[Object]:
    text = yaml.safe_load((folder / "kustomization.yaml").read_text())
    unknown = text.keys() - _KNOWN
    assert not unknown, f"{folder}: this kustomize does not know {unknown}"
    for name in text.get("resources", ()):
        path = folder / name
        if path.is_dir():
            objects = _accumulate(path, objects)
        else:
            objects += [one for one in yaml.safe_load_all(path.read_text()) if one]
    for generator in text.get("configMapGenerator", ()):
        objects.append(_config_map(folder, generator))
    for name in text.get("components", ()):
        objects = _accumulate(folder / name, objects)
    for patch in text.get("patches", ()):
        operations = yaml.safe_load(patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text())
        for one in objects:
            if _selected(one, patch["target"]):
                if isinstance(operations, dict):
                    _merge(one, {k: v for k, v in operations.items() if k not in {"apiVersion", "kind", "metadata"}})
                    continue
                for operation in operations:
                    _operate(one, copy.deepcopy(operation))
    for replacement in text.get("replacements", ()):
        _replace(objects, replacement)
    for image in text.get("images", ()):
        _rename(objects, image)
    return objects


def _rename(at: Any, image: Object) -> None:
    """In every list of containers, however deep."""
    for name, value in at.items() if isinstance(at, dict) else enumerate(at) if isinstance(at, list) else ():
        if name in ("containers", "initContainers"):
            for one in value:
                if one.get("image", "").partition(":")[0] == image["name"]:
                    one["image"] = f"{image['newName']}:{image['newTag']}"
        _rename(value, image)


def _config_map(folder: Path, generator: Object) -> Object:
    metadata = {k: generator[k] for k in ("name", "namespace") if k in generator}
    data = {name: (folder / name).read_text() for name in generator["files"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _selected(one: Object, target: Object) -> bool:
    return one["kind"] == target["kind"] and target.get("name") in (None, one["metadata"]["name"])


def _merge(at: Object, patch: Object) -> None:
    """A strategic merge: null takes away, lists of Kubernetes' merge keys are merged with the patch's elements in front."""
    for name, value in patch.items():
        if value is None:
            at.pop(name, None)
        elif isinstance(value, dict):
            _merge(at.setdefault(name, {}), value)
        elif name in _MERGE_KEYS:
            by, old = _MERGE_KEYS[name], at.get(name, [])
            front: list[Object] = [next((one for one in old if one[by] == part[by]), {}) for part in value]
            rest = [one for one in old if not any(one is other for other in front)]
            for one, part in zip(front, value, strict=True):
                _merge(one, part)
            at[name] = front + rest
        else:
            at[name] = copy.deepcopy(value)


def _operate(root: Object, operation: Object) -> None:
    """One operation of RFC 6902: add or replace."""
    *way, last = operation["path"].lstrip("/").split("/")
    at: Any = root
    for part in way:
        at = at[int(part)] if isinstance(at, list) else at[part]
    value = operation["value"]
    if isinstance(at, list):
        if operation["op"] == "add":
            at.insert(len(at) if last == "-" else int(last), value)
        else:
            at[int(last)] = value
    else:
        assert operation["op"] == "add" or last in at, operation
        at[last] = value


def _replace(objects: list[Object], replacement: Object) -> None:
    source = replacement["source"]
    (origin,) = [one for one in objects if _selected(one, source)]
    ((holder, last),) = _places(origin, source["fieldPath"])
    for target in replacement["targets"]:
        for one in objects:
            if _selected(one, target["select"]):
                for path in target["fieldPaths"]:
                    for at, name in _places(one, path):
                        at[_step(at, name)] = copy.deepcopy(holder[_step(holder, last)])


def _step(at: Any, name: str) -> Any:
    return int(name) if isinstance(at, list) else name


def _places(root: Object, path: str) -> list[tuple[Any, Any]]:
    """(holder, key) of every place that a field path names; ``[name=x]`` takes every name with x in it, as kustomize does."""
    parts = re.findall(r"\[[^]]*\]|[^.]+", path)
    holders: list[Any] = [root]
    for part in parts[:-1]:
        below = []
        for at in holders:
            if part.startswith("["):
                name, _, value = part[1:-1].partition("=")
                below += [one for one in at if re.search(value, str(one.get(name)))]
            else:
                below.append(at[int(part)] if isinstance(at, list) else at[part])
        holders = below
    return [(at, parts[-1]) for at in holders]

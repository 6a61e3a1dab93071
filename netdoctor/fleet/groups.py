"""Nodes of one kind: the same GPUs and RDMA devices, seen from the same vantage.  Only like is compared with like."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from netdoctor.compare.traits import Family, Marker
from netdoctor.fleet.nodes import Node, NodeRun, Shape

# Nodes of one model with another number of devices are a kind of their own if there are so many of them; else they are
# nodes of that model with something missing.
OWN_KIND_NODES: Final = 3
OWN_KIND_SHARE: Final = 0.10

Likeness = tuple[object, ...]


@dataclass(slots=True)
class Group:
    """Nodes that are compared with one another."""

    name: str
    members: list[Node]


def group(nodes: list[Node]) -> list[Group]:
    """Groups, the largest first; each node that has a run gets its group's index."""
    names = _ids_by_name(nodes)
    families: dict[Likeness, dict[tuple[object, ...], list[Node]]] = defaultdict(lambda: defaultdict(list))
    for node in nodes:
        if node.run is not None:
            shape = node.run.shape
            families[_family(shape, names)][shape.gpus, shape.nic_count].append(node)
    _adopt(families)
    groups = [Group("", members) for shapes in families.values() for members in _kinds(shapes)]
    groups.sort(key=lambda g: (-len(g.members), g.members[0].name))
    taken: Counter[str] = Counter()
    for index, one in enumerate(groups):
        label = _label([n.run for n in one.members if n.run])
        taken[label] += 1
        one.name = label if taken[label] == 1 else f"{label} ({taken[label]})"
        for node in one.members:
            node.group = index
    return groups


def _ids_by_name(nodes: list[Node]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """PCI ids by GPU names, for nodes whose NVML or PCI did not answer."""
    return {
        n.run.shape.gpu_names: n.run.shape.gpu_ids
        for n in nodes
        if n.run and n.run.shape.gpu_names is not None and n.run.shape.gpu_ids
    }


def _family(shape: Shape, names: dict[tuple[str, ...], tuple[str, ...]]) -> Likeness:
    ids = shape.gpu_ids
    if ids is None and shape.gpu_names is not None:
        ids = names.get(shape.gpu_names)
    return (ids if ids is not None else ("names", shape.gpu_names), shape.vantage)


def _adopt(families: dict[Likeness, dict[tuple[object, ...], list[Node]]]) -> None:
    """A few nodes that show no GPU at all but the RDMA devices of a GPU node are GPU nodes that lost them."""
    for family in [f for f in families if f[0] in ((), ("names", ()))]:
        for (gpus, nics), members in list(families[family].items()):
            if not nics or len(members) >= OWN_KIND_NODES:
                continue
            drivers = members[0].run.shape.nics if members[0].run else None
            for other, shapes in families.items():
                like = [m for (_, n), many in shapes.items() if n == nics for m in many]
                if other != family and other[1] == family[1] and len(like) >= OWN_KIND_NODES > len(members):
                    run = like[0].run
                    if run is not None and run.shape.nics == drivers and run.shape.gpus:
                        shapes[gpus, nics] += members
                        del families[family][gpus, nics]
                        break


def _kinds(shapes: dict[tuple[object, ...], list[Node]]) -> list[list[Node]]:
    """Shapes of one family: small ones join the largest."""
    if not shapes:
        return []
    ordered = sorted(shapes.values(), key=lambda members: (-len(members), members[0].name))
    total = sum(map(len, ordered))
    kinds = [ordered[0]]
    for members in ordered[1:]:
        if len(members) >= max(OWN_KIND_NODES, OWN_KIND_SHARE * total):
            kinds.append(members)
        else:
            kinds[0].extend(members)
    return kinds


def _label(runs: list[NodeRun]) -> str:
    """``8 × NVIDIA H100 80GB HBM3, 8 × mlx5_core``: what most members have."""
    gpus = _most(r.traits.of(Family.GPUS) for r in runs)
    nics = _most(r.traits.of(Family.NICS) for r in runs)
    parts = [
        "GPUs unknown" if gpus is None else "no GPU" if isinstance(gpus, Marker) else gpus,
        *([] if nics is None or isinstance(nics, Marker) else [nics]),
    ]
    vantage = runs[0].shape.vantage
    return ", ".join(parts) + ("" if vantage in ("", "host") else f" (seen from: {vantage})")


def _most(values: object) -> str | None:
    counted = Counter(v for v in values if isinstance(v, str))  # type: ignore[attr-defined]
    return min(counted, key=lambda v: (-counted[v], v)) if counted else None

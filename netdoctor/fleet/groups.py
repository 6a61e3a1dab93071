"""Nodes of one kind: the same GPUs and fabric, seen from the same vantage.  Only like is compared with like."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Final

from netdoctor.compare.traits import Family, Marker
from netdoctor.fleet.nodes import Fabric, Node, NodeRun, Shape

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
    _join(families)
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
    gpus = ids if ids is not None else ("names", shape.gpu_names)
    return (gpus, shape.vantage, shape.fabric if shape.gpus or ids else None)


def _join(families: dict[Likeness, dict[tuple[object, ...], list[Node]]]) -> None:
    """A few nodes are of the larger kind, with something wrong, if their fabric is not seen, or is another in its devices or in
    its link layer on as many (cards that were replaced, ports set to Ethernet).  Where both differ they are their own.
    """
    sizes = {family: sum(map(len, shapes.values())) for family, shapes in families.items()}
    for family, shapes in list(families.items()):
        larger = [f for f in families if f[:2] == family[:2] and sizes[f] >= OWN_KIND_NODES > sizes[family]]
        for (gpus, nics), members in list(shapes.items()):
            drivers = members[0].run.shape.nics if members[0].run else None
            near = [f for f in larger if family[2] is None or _half(family[2], f[2])]
            like = [f for f in near if family[2] is None or (nics, drivers) in _counts(families[f])]
            if like:
                families[max(like, key=sizes.__getitem__)][gpus, nics] += members
                del shapes[gpus, nics]
        if not shapes:
            del families[family]


def _half(one: object, other: object) -> bool:
    return isinstance(one, Fabric) and isinstance(other, Fabric) and (one.device == other.device or one.layer == other.layer)


def _counts(shapes: dict[tuple[object, ...], list[Node]]) -> set[tuple[object, object]]:
    """RDMA devices and their drivers, as nodes of a family have them."""
    return {(nics, node.run.shape.nics) for (_, nics), members in shapes.items() for node in members if node.run}


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
    fabric = Counter(r.shape.fabric.layer for r in runs if r.shape.fabric and r.shape.gpus)
    parts = [
        "GPUs unknown" if gpus is None else "no GPU" if isinstance(gpus, Marker) else gpus,
        *([] if nics is None or isinstance(nics, Marker) else [nics]),
    ]
    parts += [layer for layer, _ in fabric.most_common(1) if layer not in ("", "Unspecified")]
    vantage = runs[0].shape.vantage
    return ", ".join(parts) + ("" if vantage in ("", "host") else f" (seen from: {vantage})")


def _most(values: object) -> str | None:
    counted = Counter(v for v in values if isinstance(v, str))  # type: ignore[attr-defined]
    return min(counted, key=lambda v: (-counted[v], v)) if counted else None

"""Which HCA a rank uses, and whether by GPUDirect: the way of a send and of a receive between two hosts that are alike."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterator
from typing import Any, Final

from netdoctor.api import GdrProof, Nccl, Unavailable, assigned, gdr_sends, hcas, parse_hcas
from netdoctor.checks.rdma_gpudirect import Node, Pair
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import UNSAID, Draw, Row, Version, settings_text
from tests.fakegpu.differential.world import World

LEVELS: Final = ("LOC", "PIX", "PXB", "PXN", "PHB", "SYS", "P2C", "NVL", "0", "1", "2", "3", "4", "9", "phb", "", "x", " PHB")
POLICIES: Final = ("AUTO", "ALL", "all", "MAX:1", "max:2", "MAX:3", "MAX:0", "MAX:", "MAX: 1", "MAX:x", "FEW", "")
# NCCL's own end (net.cc) where a GPU sends by another one's and GPUDirect is off for reads alone.
ENDS: Final = "PXN should not use host buffers for data"
NUMBERS: Final = ("0", "1", "2", "-1", "-2", "", "x", "false", " 0", "0x1", "00")


def settings(rng: random.Random, names: tuple[str, ...], version: Version) -> dict[str, str]:
    found = {}
    if rng.random() < 0.5:
        found["NCCL_NET_GDR_LEVEL"] = rng.choice(LEVELS)
    for name in ("NCCL_NET_GDR_READ", "NCCL_DMABUF_ENABLE", "NCCL_NET_GDR_C2C"):
        if rng.random() < 0.25:
            found[name] = rng.choice(NUMBERS)
    if names and rng.random() < 0.2:
        found["NCCL_IB_HCA"] = rng.choice(("=", "", "^")) + rng.choice(names)
    if rng.random() < 0.05:
        found["NCCL_IB_DISABLE"] = rng.choice(NUMBERS)
    if rng.random() < 0.4:
        found["NCCL_PXN_DISABLE"] = rng.choice(("1", "1", *NUMBERS))
    if rng.random() < 0.2:
        # 1 ends every NCCL from 2.21.5 on: ncclTopoGetPxnRanks gives it no place for the device (search.cc)
        found["NCCL_P2P_PXN_LEVEL"] = rng.choice(("0", "1", "2") if version < (2, 21, 0) else ("0", "2"))
    if rng.random() < 0.2:
        found["NCCL_NETDEVS_POLICY"] = rng.choice(POLICIES)
    return found


def compare(draw: Draw, world: World) -> Iterator[Row]:
    rng, machine = draw.random, world.machine
    chosen = settings(rng, tuple(one.name for one in machine.hcas), draw.version)
    count = len(machine.gpus)
    each = rng.sample(range(count), min(count, rng.choice((1, 1, 2))))
    each.sort()
    shared = {**ranks.SMALL, "NCCL_RUNTIME_CONNECT": "0", **chosen}
    every = [ranks.Process({**shared, "NCCL_HOSTID": f"host{host}"}, device) for host in (0, 1) for device in each]
    done = world.ranks(draw, every, exchange=len(each) > 1, deadline=120.0)
    what = f"{machine.name} GPUs {each} {settings_text(chosen)}"
    predicted = predict(draw, world, chosen, each)
    seen = ways(done, len(each))
    if not done.ok:
        if ENDS in done.failure:
            return
        yield Row(what, "ranks that end well", done.failure, "hca")
        return
    alike = len({(one.ports[0].rate, one.link) for one in machine.hcas}) < 2
    for n, device in enumerate(each):
        for direction, rows in seen[n].items():
            said, offered = predicted[device][direction]
            # Over HCAs that differ NCCL may spread rings and all-to-all farther: then those that are named must be among them.
            rows = [row for row in rows if alike or said is UNSAID or row[0] in said]
            used = sorted({name for name, _ in rows} - {""})
            yield Row(f"{what}: GPU {device} {direction}: HCA", said, used, "hca")
            if said is not UNSAID and said == used and used:
                direct = {with_gpudirect for _, with_gpudirect in rows}
                told = direct.pop() if len(direct) == 1 else None
                yield Row(f"{what}: GPU {device} {direction} by {used}: GPUDirect", offered, told, "gpudirect")


def predict(draw: Draw, world: World, chosen: dict[str, str], each: list[int]) -> dict[int, dict[str, Any]]:
    facts = world.facts
    environ = world.environ(chosen)
    gpus = facts["Gpus"]
    gpus = dataclasses.replace(gpus, visible=tuple(one for one in gpus.visible if one.ordinal in each))
    node = Node(draw.version, facts["Kernel"], gpus, environ, facts["Vantage"], (), len(each), False, False, ())
    places = hcas.places(gpus, facts["Pci"])
    none: dict[int, dict[str, Any]] = {device: {"send": ([], None), "receive": ([], None)} for device in each}
    devices = facts["Rdma"].devices
    choice = parse_hcas(node.setting("NCCL_IB_HCA") or "", draw.version)
    candidates = hcas.selected(devices, choice) if choice else devices
    if node.unasked is not None or not any(hcas.active_ports(one) for one in candidates):
        return none
    assert not isinstance(places, Unavailable)
    found: dict[int, dict[str, Any]] = {}
    for device, one in zip(
        each,
        assigned(places, candidates, facts["Pci"], Nccl.told(draw.version, node.setting), node.direct, by_place=False),
        strict=True,
    ):
        taken = sorted({one.name for one in one.taken})
        pairs = [Pair(one.gpu, hca, node, GdrProof(), draw.version, one.taken_kind) for hca in one.taken]
        receive = _both([_direct(pair) for pair in pairs])
        reads = gdr_sends(one.gpu, node.count, node.setting("NCCL_NET_GDR_READ"), draw.version).yes
        send = False if receive is False or reads is False else None if None in (receive, reads) else True
        found[device] = {"send": (taken or UNSAID, send), "receive": (taken or UNSAID, receive)}
    return found


def _direct(pair: Pair) -> bool | None:
    if pair.able.yes is False or pair.near is False:
        return False
    return None if None in (pair.able.yes, pair.near) else True


def _both(answers: list[bool | None]) -> bool | None:
    return answers[0] if len(set(answers)) == 1 else None


def ways(done: ranks.Done, each: int) -> list[dict[str, list[tuple[str, bool]]]]:
    """For each rank of the first host and each direction: the HCA of each channel by name, and whether with GPUDirect."""
    found = []
    kind = 0 if each == 1 else 1  # rings of a GPU that is alone; else send and receive, where each GPU has a way of its own
    channel = rf"Channel \d+/{kind} : (\d+)\S* -> (\d+)\S* \[(send|receive)\] via NET/(\w+)/(\d+)(\S*)"
    for n in range(each):
        devices = names(done, n)
        rows: dict[str, list[tuple[str, bool]]] = {"send": [], "receive": []}
        for one in done.said(channel, n):
            name = devices.get(int(one[5]), f"?{one[5]}") if one[4] == "IB" else ""
            rows[one[3]].append((name, "GDRDMA" in one[6]))
        found.append(rows)
    return found


def names(done: ranks.Done, n: int) -> dict[int, str]:
    """NCCL's device numbers; since 2.25 those that it says it made, before the places in its list, where the ports of a card
    are one device: ``[0]={[0] mlx5_0:1/IB, [1] mlx5_0:2/IB} [2]mlx5_1:1/IB``."""
    if made := {int(m[1]): m[2] for m in done.said(r"Made virtual device \[(\d+)\] name=(\S+)", n)}:
        return {number: name.partition("+")[0] for number, name in made.items()}
    listed = done.said(r"NET/IB : Using (.*)", n)
    return (
        dict(enumerate(re.findall(r"\[\d+\](?:=\{\[\d+\] )?(\w[^:\s]*):[^ ,]*(?:, \[\d+\] [^,}]*)*", listed[0][1])))
        if listed
        else {}
    )

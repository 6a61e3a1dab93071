"""Which HCAs and ports NCCL takes: NCCL_IB_HCA in all its forms, asked of a communicator of one."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Final

from netdoctor.api import Unavailable, hcas, parse_hcas, usable
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import UNSAID, Draw, Row, settings_text
from tests.fakegpu.differential.world import World

PORTS: Final = ("", "", "", ":1", ":2", ":0", ":", ":x", ":1x", ": 1", ":01", ":0x1", ":1:0", ":1:", "::", ":-1", ":11")


def settings(rng: random.Random, names: list[str]) -> dict[str, str]:
    if rng.random() < 0.1:
        return {}
    mark = rng.choice(("", "", "=", "^", "^=", "=^", "=="))
    words = [
        rng.choice((*names, "mlx5", "mlx5_", "m", "mlx5_1", "mlx4", "eth0", "", "MLX5_0"))
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    text = ",".join(word + rng.choice(PORTS) for word in words)
    return {"NCCL_IB_HCA": mark + text + rng.choice(("", "", "", ",", " "))}


def compare(draw: Draw, world: World) -> Iterator[Row]:
    machine = world.machine
    chosen = settings(draw.random, [one.name for one in machine.hcas])
    env = {**ranks.SMALL, "NCCL_MAX_NCHANNELS": "1", "NCCL_NET_PLUGIN": "none", **chosen}
    done = world.ranks(draw, [ranks.Process(env)])
    what = f"{machine.name} ({' '.join(f'{one.name}:{len(one.ports)}' for one in machine.hcas)}) {settings_text(chosen)}"
    if not done.ok:
        yield Row(what, "a rank that ends well", done.failure)
        return
    listed = done.said(r"NET/IB : Using (.*?);")
    seen = sorted(set(re.findall(r"(\w[^:\s\]]*):(\d+)(?::\d+)?/(?:IB|RoCE)", listed[0][1]))) if listed else []
    yield Row(what, predict(draw, world, chosen), [list(one) for one in seen])


def predict(draw: Draw, world: World, chosen: dict[str, str]) -> list[list[str]] | None:
    facts = world.facts
    devices = facts["Rdma"].devices
    assert not isinstance(devices, Unavailable)
    choice = parse_hcas(chosen.get("NCCL_IB_HCA", ""), draw.version)
    found = []
    for device in hcas.selected(devices, choice) if choice else devices:
        step = usable(device, facts["Rdma"], facts["Net"])
        if step.yes is None:
            return UNSAID
        ports = [port for port in hcas.active_ports(device) if choice is None or choice.takes(device.name, port.number)]
        found += [[device.name, str(port.number)] for port in ports if step.yes]
    return sorted(found)

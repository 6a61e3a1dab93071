"""What netdoctor says that a setting takes away between GPUs of one node, against the same ranks with it and without it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from netdoctor.facts.environ import Setting
from netdoctor.variables import judge
from netdoctor.variables.issue import Known
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import UNSAID, Draw, Row, settings_text
from tests.fakegpu.differential.world import World

NUMBERS: Final = ("0", "1", "1", "1", "2", "-1", "", "true", "false", "01", "0x1", " 1")
LEVELS: Final = ("LOC", "LOC", "NVL", "PIX", "SYS", "0", "5", "loc", "", "0x0")
RULES: Final = {
    "NCCL_P2P_DISABLE": ("p2p-off", "P2P"),
    "NCCL_P2P_LEVEL": ("p2p-off", "P2P"),
    "NCCL_SHM_DISABLE": ("shm-off", "SHM"),
}


def compare(draw: Draw, world: World) -> Iterator[Row]:
    rng, count = draw.random, len(world.machine.gpus)
    if count < 2:
        return
    pair = tuple(sorted(rng.sample(range(count), 2)))
    name = rng.choice(tuple(RULES))
    value = rng.choice(LEVELS if name.endswith("LEVEL") else NUMBERS)
    rule, transport = RULES[name]
    # Where P2P works there is no SHM to take away.
    fixed = {"NCCL_P2P_LEVEL": "LOC"} if transport == "SHM" else {}
    found = judge.judge([Setting(name, value)], Known(draw.version))
    rules = {one.evidence.get("rule") for one in found}
    # A level that is read is noted, and whether a pair is that near is left open.
    predicted = True if rule in rules else UNSAID if rules & {"debugging", "legacy-level"} else False
    before = _used(world, draw.version, pair, tuple(fixed.items()))
    if transport not in before:
        return  # nothing that it could take away: these GPUs have no such way
    after = _used(world, draw.version, pair, tuple({**fixed, name: value}.items()))
    yield Row(
        f"{world.machine.name} GPUs {pair}: {settings_text({name: value})} takes {transport} away",
        predicted,
        transport not in after,
    )


@functools.cache
def _used(
    world: World, version: tuple[int, int, int], pair: tuple[int, ...], settings: tuple[tuple[str, str], ...]
) -> frozenset[str]:
    env = {**ranks.SMALL, "NCCL_MAX_NCHANNELS": "1", "NCCL_RUNTIME_CONNECT": "0", **dict(settings)}
    done = world.ranks(Draw("intra", version, ""), [ranks.Process(env, device) for device in pair])
    if not done.ok:
        raise RuntimeError(done.failure)
    return frozenset(m[1] for n in (0, 1) for m in done.said(r"Channel \d+\S* .* via ([A-Z0-9]+)", n))

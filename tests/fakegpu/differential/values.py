"""Whether a variable is read, and as what value: asked of the library's own functions, which need no GPU.

Every integer variable has a function (``ncclParam…``) that reads it once and says so ("set by environment to 5."); levels have
ncclGetLevel.  A variable that NCCL reads in the middle of something else has none, and is left out: `WITHOUT_FUNCTION`.
"""

from __future__ import annotations

import functools
import json
import os
import pathlib
import random
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from netdoctor.model import Finding
from netdoctor.nccl import gpudirect, integers
from netdoctor.variables import catalogue, judge, parsing_rules
from netdoctor.variables.issue import Context, Known
from tests.fakegpu import lab
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import Draw, Row, Version
from tests.fakegpu.differential.world import World
from tools.libnccl_params import Library

NUMBER: Final = "12345"
TEXTS: Final = (
    *(
        "0",
        "1",
        "2",
        "-1",
        "-2",
        "7",
        "16",
        "64",
        "4194304",
        "2147483648",
        "-2147483649",
        "010",
        "08",
        "0x10",
        "0X1f",
        "0x",
        "00",
    ),
    *(
        "",
        " ",
        " 5",
        "5 ",
        "\t5",
        "+5",
        "--5",
        "5,6",
        "5.5",
        "1e3",
        "4K",
        "4k",
        "4M",
        "2G",
        "1MB",
        "12abc",
        "abc",
        "true",
        "false",
    ),
    *("yes", "no", "on", "off", '"5"', "'1'", "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1_000"),
)
LEVELS: Final = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
LEVEL_TEXTS: Final = (
    *LEVELS,
    "0",
    "1",
    "2",
    "3",
    "4",
    "5",
    "9",
    "pix",
    "Sys",
    "",
    " PIX",
    "PIX ",
    "x",
    "-1",
    "1x",
    "0x2",
    "07",
    "DIS",
)
LEVEL_NAMES: Final = (("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL"), ("NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_LEVEL"))
NAME_RULES: Final = frozenset({"unknown-name", "never-existed", "removed", "not-yet", "another-program", "old-name"})
WITHOUT_FUNCTION: Final = frozenset(
    (
        *("NCCL_P2P_DISABLE", "NCCL_COLLNET_ENABLE", "NCCL_RAS_TIMEOUT_FACTOR", "NCCL_SET_THREAD_NAME"),
        "NCCL_WARN_ENABLE_DEBUG_INFO",
    )
)


def compare(draw: Draw, world: World) -> Iterator[Row]:
    rng = draw.random
    kind = rng.choice(("integer", "integer", "integer", "name", "level", "conf"))
    if kind == "level":
        yield _level(draw, rng, world)
        return
    name = _name(rng, kind, draw.version)
    value = rng.choice(TEXTS) if rng.random() < 0.7 else str(rng.randrange(-10, 1 << rng.choice((4, 8, 20, 33))))
    if kind == "conf":
        yield from _conf(draw, world, name, value, rng)
        return
    seen = _seen(draw, world, name, {name: value})
    yield Row(f"{name}={value!r}", predict(draw, name, value), seen)


def _name(rng: random.Random, kind: str, version: Version) -> str:
    """An integer variable, mostly of this version; or, for `name`, one that is not there or is spelt wrong."""
    rows = [row for row in catalogue.table().values() if _integer(row)]
    own = [row for row in rows if row.first and row.last and row.first <= version <= row.last]
    one = rng.choice(own if rng.random() < 0.8 else rows).name
    if kind != "name":
        return one
    if rng.random() < 0.3:
        return rng.choice([row.name for row in catalogue.table().values() if row.program == "none"])
    at = rng.randrange(5, len(one))
    return rng.choice(
        (one[:at] + one[at + 1 :], one[:at] + rng.choice("AES_") + one[at:], one + "S", one.replace("NCCL_", "NCCL_NET_"))
    )


def _integer(row: catalogue.Variable) -> bool:
    if row.program != "nccl" or row.name in WITHOUT_FUNCTION or not row.name.startswith("NCCL_"):
        return False
    return row.accepts in ("flag", "one", "int", "bool") or integers.ranges(row.accepts) is not None


def predict(draw: Draw, name: str, value: str) -> str | int | None:
    """ "not read", "default" or a number; by the rules that `netdoctor env` judges with."""
    found = parsing_rules.name_issues(
        name, catalogue.lookup(name), Context(draw.version, {name: value}, None, None, None, None)
    )
    if isinstance(found, Finding):
        return None  # unknown: netdoctor says so
    if any(issue.rule in NAME_RULES for issue in found):
        return "not read"
    far = 1 << 70
    number = integers.param(value, far, draw.version)
    return "default" if number == far else number


def _seen(draw: Draw, world: World, name: str, settings: Mapping[str, str]) -> str | int:
    if not _is_read(draw.text, world.folder, name):
        return "not read"
    log, _ = ask(draw.text, world.folder, settings)
    echoed = re.findall(rf"\b{name} set by environment to (-?\d+)\.", log)
    return int(echoed[0]) if echoed else "default"


@functools.cache
def _is_read(version: str, folder: pathlib.Path, name: str) -> bool:
    return bool(re.search(rf"\b{name} set by environment to {NUMBER}\.", ask(version, folder, {name: NUMBER})[0]))


@functools.cache
def library(version: str) -> Library:
    return Library(str(lab.library(version)))


def ask(
    version: str, folder: pathlib.Path, settings: Mapping[str, str], level: tuple[str, str] | None = None
) -> tuple[str, Any]:
    """NCCL's log while each of its functions reads its variable in a fork, and the answer of ncclGetLevel."""
    answer = folder / "answer"
    loaded = library(version)

    def work(_n: int, _one: ranks.Process) -> None:
        told = loaded.level(*level)["level"] if level else len(loaded.params())
        answer.write_text(json.dumps(told), encoding="utf-8")

    env = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "ALL", "HOME": os.devnull, "NCCL_CONF_FILE": "/dev/null", **settings}
    done = ranks.run([ranks.Process(env)], folder, work)
    if not done.ok:
        raise RuntimeError(done.failure)
    return done.logs[0], json.loads(answer.read_text("utf-8"))


def _level(draw: Draw, rng: random.Random, world: World) -> Row:
    """NCCL_P2P_LEVEL and NCCL_NET_GDR_LEVEL: the farthest distance that they allow, by name."""
    on, name = rng.choice(LEVEL_NAMES)
    value = rng.choice(LEVEL_TEXTS)
    numbers = _level_numbers(draw.text, world.folder)
    on = "NCCL_NOT_SET"
    _, number = ask(draw.text, world.folder, {name: value}, (on, name))
    seen = numbers.get(number, "not read" if number < 0 else f"?{number}")
    if name == "NCCL_NET_GDR_LEVEL":
        level, given = gpudirect.level(draw.version, value)
        return Row(f"{name}={value!r}", level if given else "not read", seen)
    return Row(f"{name}={value!r}", gpudirect.level_of(value, draw.version) or "not read", seen)


@functools.cache
def _level_numbers(version: str, folder: pathlib.Path) -> dict[int, str]:
    """This version's number of each level."""
    found: dict[int, str] = {}
    for name in LEVELS:
        number = ask(version, folder, {"NCCL_P2P_LEVEL": name}, ("NCCL_NOT_SET", "NCCL_P2P_LEVEL"))[1]
        if number >= 0:
            found[number] = name
    return found


def _conf(draw: Draw, world: World, name: str, value: str, rng: random.Random) -> Iterator[Row]:
    """A line of nccl.conf, as it may be written; perhaps with another that comes first, or in the environment, too."""
    line = rng.choice((f"{name}={value}", f"{name}={value}", f" {name}={value}", f"export {name}={value}", f"#{name}={value}"))
    line = rng.choice(
        (line, line, f"{name}={value}\n{name}=77", f"{name}=77\n{name}={value}", f"{name} = {value}", f"{name} {value}")
    )
    file = world.folder / "nccl.conf"
    file.write_text(f"# drawn\n\n{line}{rng.choice(('', chr(10), chr(13) + chr(10)))}", encoding="utf-8")
    settings = {"NCCL_CONF_FILE": str(file), **({name: "66"} if rng.random() < 0.2 else {})}
    environ = world.environ(settings)
    findings = judge.judge_fact(environ, Known(draw.version))
    assert not isinstance(environ.nccl, tuple)
    took = (environ.nccl or {}).get(name)
    judged = any(one.subject == name and one.evidence.get("rule") not in ("conf-name", "conf-line") for one in findings)
    predicted: str | int | None = predict(draw, name, took.value) if took is not None and judged else None
    if took is None or not judged:
        predicted = "not read" if predict(draw, name, NUMBER) == "not read" else "default"
    yield Row(f"nccl.conf {file.read_text('utf-8')!r} {settings.get(name, '')}", predicted, _seen(draw, world, name, settings))

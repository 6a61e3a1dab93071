"""Inputs that are nearly right: bytes cut, doubled and sprinkled, and JSON with one value or key in another's place."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

LONGEST = 1 << 16  # bytes of what is mutated as bytes
NASTY = (
    *(
        b"\x00",
        b"\x1b[2J",
        b"\x9b31m",
        b"\r",
        b"\n",
        b"\xff\xfe",
        b"%s",
        b"[",
        b"]",
        b"(",
        b"<",
        b":",
        b" -> ",
        b"via NET/",
        b"NCCL ",
    ),
    *(
        b"\xe2\x80\xae",
        b"9" * 40,
        b"-1",
        b"::",
        b"=",
        b'"',
        b"'",
        b"$(",
        b"${",
        b"\\",
        b"#",
        b"../",
        b"/dev/zero",
        b"\xd9\xa3",
        b"\t",
    ),
    *(b"0x7fffffffffffffff", b"1e400", b"nan", b"{", b"}", b"- ", b"&a *a", b"!!python/object", b"<<EOF\n", b"export "),
)
ODD: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 10**400, 1e308, -0.0, float("nan"), float("inf")),
    *("", "x", "0", "-1", "\x1b[0m", "9" * 400, "\u202e", "\ud800", "\0", "/", "nan", "Ring", "é" * 300, "٣", "</script>"),
    *([], [[]], [None], {}, {"": None}, {"a": {}}, [1e400], ["x"] * 300),
)


def of_bytes(dice: random.Random, data: bytes, others: list[bytes]) -> bytes:
    for _ in range(1 + dice.randrange(4)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(8):
            case 0:
                data = data[:at]
            case 1:
                data = data[:at] + dice.choice(NASTY) + data[at:]
            case 2:
                other = dice.choice(others)
                begin = dice.randrange(len(other) + 1)
                data = data[:at] + other[begin : begin + dice.randrange(400)] + data[at:]
            case 3:
                data = data[at:] + data[:at]
            case 4:
                data = data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
            case 5:
                data = data[:at] + data[at : at + dice.randrange(200)] * 2 + data[at:]
            case 6:
                data = data[:at] + data[at + dice.randrange(60) :]
            case _:
                data = data.replace(b" ", dice.choice((b"", b"  ", b"\t")), dice.randrange(4))
        data = data[:LONGEST]
    return data


def of_json(dice: random.Random, data: bytes, others: list[bytes]) -> bytes:
    """One value or more is another; sometimes the text itself is mutated."""
    if dice.randrange(6) == 0:
        return of_bytes(dice, data, others)
    document = json.loads(data)
    for _ in range(1 + dice.randrange(3)):
        document = _changed(dice, document)
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _changed(dice: random.Random, document: Any) -> Any:
    way: list[Any] = []
    at = document
    while isinstance(at, (dict, list)) and at and (dice.randrange(8) or not way):
        step = dice.choice(list(at) if isinstance(at, dict) else range(len(at)))
        way.append(step)
        at = at[step]
    if not way:
        return dice.choice(ODD)
    holder = document
    for step in way[:-1]:
        holder = holder[step]
    last = way[-1]
    match dice.randrange(5):
        case 0:
            del holder[last]
        case 1 if isinstance(holder, list):
            holder.append(copy.deepcopy(at))
        case 1 | 2 if isinstance(holder, dict):
            holder[str(dice.choice(("", "x", "rank", "\x1b", "9" * 30, "__class__")))] = copy.deepcopy(at)
        case 3 if isinstance(at, str):
            text = of_bytes(dice, at.encode("utf-8", "surrogatepass"), [b"x"])
            holder[last] = text.decode("utf-8", "replace")
        case _:
            holder[last] = copy.deepcopy(dice.choice(ODD))
    return document

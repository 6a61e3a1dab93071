"""How NCCL reads an integer variable: strtoll(3) with base 0 (src/misc/param.cc)."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.facts.nccl_version import Version
from netdoctor.model import record


@record
class Number:
    """What strtoll made of a text."""

    value: int  # 0 where there is no number
    digits: str  # what it took as the number, without sign; "" where there is none
    rest: str  # what it passed over after the number
    octal: bool  # a leading zero made it octal
    overflow: bool  # out of 64 bits: NCCL then takes its default


def strtoll(value: str) -> Number:
    """`value` by the rules of strtoll(3), base 0: blanks, sign, 0x hexadecimal, 0 octal, then anything is passed over."""
    match = re.match(r"[ \t\n\v\f\r]*([+-]?)(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)", value)
    if not match:
        return Number(0, "", value, False, False)
    sign, digits = match.groups()
    octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xX"
    number = int(digits, 16) if digits[:2] in ("0x", "0X") else int(digits, 8) if octal else decimal(digits)
    number = -number if sign == "-" else number
    return Number(number, digits, value[match.end() :], octal, not -(1 << 63) <= number < 1 << 63)


def decimal(digits: str) -> int:
    """Decimal digits; what is far beyond 64 bits is just that (int() refuses more than 4300 digits)."""
    kept = digits.lstrip("0")
    return int(kept or "0") if len(kept) < 40 else 10**40


def integer(value: str) -> int:
    """What strtoll returns: 0 where there is no number, and the nearest of 64 bits where it does not fit."""
    return max(-(1 << 63), min(strtoll(value).value, (1 << 63) - 1))


WORDS_ARE_DEFAULT: Final[Version] = (
    2,
    32,
    0,
)  # "Invalid value false for NCCL_…, using default", as 2.32.3 says; 0 up to 2.30.7


def param(value: object, default: int, version: Version | None = None) -> int:
    """What NCCL_PARAM makes of a variable: the default where it is not set (or not known), empty, or out of 64 bits, and since
    2.32 where there is no number in it."""
    number = strtoll(value) if isinstance(value, str) and value else None
    if number is None or number.overflow:
        return default
    return default if not number.digits and version is not None and version >= WORDS_ARE_DEFAULT else number.value


def ranges(accepts: str) -> tuple[tuple[int | None, int | None], ...] | None:
    """``-2|0..16`` as ((-2, -2), (0, 16)); an open end is None; None where `accepts` is not of this form."""
    found: list[tuple[int | None, int | None]] = []
    for part in accepts.split("|"):
        match = re.fullmatch(r"(-?\d+)(?:(\.\.)(-?\d+)?)?", part)
        if not match:
            return None
        low = int(match.group(1))
        found.append((low, low if not match.group(2) else int(match.group(3)) if match.group(3) else None))
    return tuple(found)


def inside(number: int, accepted: tuple[tuple[int | None, int | None], ...]) -> bool:
    return any((low is None or low <= number) and (high is None or number <= high) for low, high in accepted)

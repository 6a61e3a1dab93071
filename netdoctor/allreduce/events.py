"""What a rank says of itself: other people's code, so each field is let in as what it is, or not at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

MAX_TEXT: Final = 4000  # characters; a rank sends 800 of an error (rank.py)
MAX_LIST: Final = 8192  # the CPUs of a machine, the libraries of a process
_WORDS: Final = (
    *("event", "phase", "error", "id", "gpu"),
    *("version", "hip", "nccl", "cuda_warning", "backends_error", "backends_nccl_error"),
)
_NUMBERS: Final = (
    *("p", "run", "rank", "t", "pid", "status", "bytes", "seconds", "wrong", "system_cpu", "user_cpu", "bytes_moved"),
    *("collective_seconds", "port", "device_count", "link_speed"),
)


def word(value: object) -> bool:
    return isinstance(value, str)


def number(value: object) -> bool:
    """One that a float can hold."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _switch(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _numbers(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_LIST and all(type(one) is int for one in value)


def _words(value: object) -> bool:
    return isinstance(value, list) and len(value) <= MAX_LIST and all(map(word, value))


def _table(value: object) -> bool:
    return isinstance(value, Mapping) and len(value) <= MAX_LIST and all(map(word, value.values()))


_FITS: Final = {
    **dict.fromkeys(_WORDS, word),
    **dict.fromkeys(_NUMBERS, number),
    **dict.fromkeys(("nccl_built", "cuda_available", "absent", "not_ready"), _switch),
    **dict.fromkeys(("main", "thread"), _numbers),
    "mapped": _words,
    **dict.fromkeys(("backends", "backends_nccl"), _table),
}


def tidy(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event without what its fields cannot hold."""
    fit = {name: value for name, value in event.items() if (fits := _FITS.get(name)) and fits(value)}
    return {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in fit.items()}

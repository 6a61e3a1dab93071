"""NVML while an all-reduce runs: clocks and why they are lowered, sampled; error counters before and after.

It ends when it is told to (SIGUSR1), or by itself after `seconds`.

Answer: {"seconds", "devices": [{"uuid", "samples": under load, "clock": the highest of them in MHz, "clock_max": that of the
board, "reasons": {BIT: samples}, "replays": of PCIe, "nvlink": [errors of each link]}]}; counters are by how much they rose;
every field may be {"unavailable", "detail"}.
"""

from __future__ import annotations

import signal
import time

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS
EVERY = 0.1  # seconds: NVML's own samples of the utilisation are a sixth of a second to a second apart (nvml.h)
BUSY = 50  # percent
SM = 1  # NVML_CLOCK_SM
# What a link sent again, and how often it was trained anew (nvmlNvLinkErrorCounter_t); CRC errors are in the first.
COUNTERS = (0, 1)
told: list[bool] = []


def answer(parameters: dict[str, str]) -> object:
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))
    try:
        import pynvml as n
    except ImportError as error:
        return {"unavailable": "failed", "detail": f"nvidia-ml-py: {error}"}
    try:
        n.nvmlInit()
        handles = [n.nvmlDeviceGetHandleByIndex(i) for i in range(n.nvmlDeviceGetCount())]
    except n.NVMLError as error:
        return {"unavailable": "failed", "detail": f"NVML: {error}"}
    begin, end = time.monotonic(), time.monotonic() + float(parameters["seconds"])
    before = [counters(n, one) for one in handles]
    seen: list[dict[str, Any]] = [{"samples": 0, "clock": 0, "reasons": {}} for _ in handles]
    while not told and time.monotonic() < end:
        for handle, one in zip(handles, seen, strict=True):
            sample(n, handle, one)
        time.sleep(EVERY)
    after = [counters(n, one) for one in handles]
    return {
        "seconds": time.monotonic() - begin,
        "devices": [
            {
                "uuid": field(n, n.nvmlDeviceGetUUID, handle),
                **one,
                "clock_max": field(n, n.nvmlDeviceGetMaxClockInfo, handle, SM),
                "replays": rise(first["replays"], last["replays"]),
                "nvlink": [rise(*pair) for pair in zip(first["nvlink"], last["nvlink"], strict=False)],
            }
            for handle, one, first, last in zip(handles, seen, before, after, strict=True)
        ],
    }


def field(n: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        got = function(*arguments)
    except n.NVMLError as error:
        kind = "unsupported" if error.value in (n.NVML_ERROR_NOT_SUPPORTED, n.NVML_ERROR_FUNCTION_NOT_FOUND) else "failed"
        return {"unavailable": kind, "detail": f"NVML: {error}"}
    return got.decode("utf-8", "replace") if isinstance(got, bytes) else got


def sample(n: Any, handle: Any, seen: dict[str, Any]) -> None:
    rates = field(n, n.nvmlDeviceGetUtilizationRates, handle)
    if isinstance(rates, dict):
        seen["samples"] = rates
    elif isinstance(seen["samples"], int) and rates.gpu >= BUSY:
        seen["samples"] += 1
        clock = field(n, n.nvmlDeviceGetClockInfo, handle, SM)
        seen["clock"] = clock if isinstance(clock, dict) or isinstance(seen["clock"], dict) else max(seen["clock"], clock)
        bits = field(n, n.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
        if isinstance(bits, dict) or "unavailable" in seen["reasons"]:
            seen["reasons"] = bits if isinstance(bits, dict) else seen["reasons"]
            return
        for bit in range(bits.bit_length()):
            if bits >> bit & 1:
                seen["reasons"][str(1 << bit)] = seen["reasons"].get(str(1 << bit), 0) + 1


def counters(n: Any, handle: Any) -> dict[str, Any]:
    links = []
    for link in range(MAX_LINKS):
        state = field(n, n.nvmlDeviceGetNvLinkState, handle, link)
        if isinstance(state, dict):
            break
        every = [field(n, n.nvmlDeviceGetNvLinkErrorCounter, handle, link, one) for one in COUNTERS]
        numbers = [one for one in every if isinstance(one, int)]
        links.append(sum(numbers) if numbers else every[0])
    return {"replays": field(n, n.nvmlDeviceGetPcieReplayCounter, handle), "nvlink": links}


def rise(before: Any, after: Any) -> Any:
    """By how much a counter rose; one that was set back (by a reset) tells nothing."""
    if isinstance(before, dict) or isinstance(after, dict):
        return before if isinstance(before, dict) else after
    return max(0, after - before)

"""NVML: every GPU of the node, whatever CUDA_VISIBLE_DEVICES says.

Answer: {"driver", "cuda", "devices": [{"index", "uuid", "name", "pci", "memory_total", "memory_used", "utilization",
"processes", "pids", "nvlinks", "mig", "mig_uuids", "capability"}]}; every field may be {"unavailable", "detail"}.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


MAX_LINKS = 18  # NVML_NVLINK_MAX_LINKS


def answer(parameters: dict[str, str]) -> object:
    try:
        import pynvml as n
    except ImportError as error:
        return {"unavailable": "failed", "detail": f"nvidia-ml-py: {error}"}
    try:
        n.nvmlInit()
    except n.NVMLError as error:
        return why(n, error)
    count = field(n, n.nvmlDeviceGetCount)
    return {
        "driver": field(n, n.nvmlSystemGetDriverVersion),
        "cuda": field(n, n.nvmlSystemGetCudaDriverVersion_v2),
        "devices": [device(n, i) for i in range(count)] if isinstance(count, int) else count,
    }


def why(n: Any, error: Exception) -> dict[str, Any]:
    """An NVML error as an unavailable; a function that the library lacks is an old driver."""
    kinds = {
        n.NVML_ERROR_LIBRARY_NOT_FOUND: "absent",
        n.NVML_ERROR_GPU_IS_LOST: "absent",
        n.NVML_ERROR_NO_PERMISSION: "denied",
        n.NVML_ERROR_NOT_SUPPORTED: "unsupported",
        n.NVML_ERROR_FUNCTION_NOT_FOUND: "unsupported",
        n.NVML_ERROR_TIMEOUT: "timed out",
    }
    code = getattr(error, "value", None)
    return {"unavailable": kinds.get(code, "failed"), "detail": f"NVML: {error}", "code": code}


def field(n: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        got = function(*arguments)
    except n.NVMLError as error:
        return why(n, error)
    except Exception as error:  # noqa: BLE001 - one property that the driver refuses costs that property
        return {"unavailable": "malformed", "detail": f"{type(error).__name__}: {error}"}
    return got.decode("utf-8", "replace") if isinstance(got, bytes) else got


def device(n: Any, index: int) -> dict[str, Any]:
    handle = field(n, n.nvmlDeviceGetHandleByIndex, index)
    if isinstance(handle, dict):
        return dict(handle, index=index)
    pci = field(n, n.nvmlDeviceGetPciInfo, handle)
    memory = memory_of(n, handle)
    rates = field(n, n.nvmlDeviceGetUtilizationRates, handle)
    processes = field(n, n.nvmlDeviceGetComputeRunningProcesses, handle)
    mig = field(n, n.nvmlDeviceGetMigMode, handle)
    if isinstance(mig, dict) and mig.get("code") == n.NVML_ERROR_NOT_SUPPORTED:
        mig = (0, 0)  # this GPU cannot do MIG
    on = mig if isinstance(mig, dict) else mig[0] == 1
    return {
        "index": index,
        "uuid": field(n, n.nvmlDeviceGetUUID, handle),
        "name": field(n, n.nvmlDeviceGetName, handle),
        "pci": pci if isinstance(pci, dict) else text(pci.busId),
        "memory_total": memory if isinstance(memory, dict) else memory.total,
        "memory_used": memory if isinstance(memory, dict) else memory.used,
        "utilization": rates if isinstance(rates, dict) else rates.gpu,
        "processes": processes if isinstance(processes, dict) else len(processes),
        "pids": processes if isinstance(processes, dict) else [one.pid for one in processes],
        "nvlinks": nvlinks(n, handle),
        "mig": on,
        "mig_uuids": mig_uuids(n, handle) if on is True else [],
        "capability": field(n, n.nvmlDeviceGetCudaComputeCapability, handle),
    }


def text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def memory_of(n: Any, handle: Any) -> Any:
    """Version 2 leaves out what the driver reserves; drivers before 510 know only version 1."""
    try:
        return n.nvmlDeviceGetMemoryInfo(handle, n.nvmlMemory_v2)
    except (n.NVMLError, TypeError, AttributeError):
        return field(n, n.nvmlDeviceGetMemoryInfo, handle)


def nvlinks(n: Any, handle: Any) -> Any:
    """The state of each link; [] where the GPU has none."""
    states = []
    for link in range(MAX_LINKS):
        state = field(n, n.nvmlDeviceGetNvLinkState, handle, link)
        if isinstance(state, dict):
            if state.get("code") in (n.NVML_ERROR_NOT_SUPPORTED, n.NVML_ERROR_INVALID_ARGUMENT):
                break
            return state
        states.append(state == 1)
    return states


def mig_uuids(n: Any, handle: Any) -> Any:
    count = field(n, n.nvmlDeviceGetMaxMigDeviceCount, handle)
    if isinstance(count, dict):
        return count
    found = []
    for index in range(count):
        instance = field(n, n.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if not isinstance(instance, dict):
            uuid = field(n, n.nvmlDeviceGetUUID, instance)
            if isinstance(uuid, str):
                found.append(uuid)
    return found

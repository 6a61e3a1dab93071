"""NVML: every GPU of the node, whatever CUDA_VISIBLE_DEVICES says.

Answer: {"driver", "cuda", "devices": [{"index", "uuid", "name", "pci", "memory_total", "memory_used", "utilization",
"processes", "pids", "graphics", "nvlinks", "mig", "mig_waits", "mig_uuids", "capability", "health", "fabric"}], "p2p":
[[INDEX, INDEX, read, write, nvlink]], "confidential": {"on", "ready"}}; every field may be {"unavailable", "detail"},
and so may each of "health" and "fabric".  Where NVML does not start each field says so, with nvmlReturn_t as "code".
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
        lost = why(n, error)
        return dict.fromkeys(("driver", "cuda", "devices", "p2p", "confidential"), lost)
    count = field(n, n.nvmlDeviceGetCount)
    return {
        "driver": field(n, n.nvmlSystemGetDriverVersion),
        "cuda": field(n, n.nvmlSystemGetCudaDriverVersion_v2),
        "devices": [device(n, i) for i in range(count)] if isinstance(count, int) else count,
        "p2p": field(n, pairs, n, count) if isinstance(count, int) else count,
        "confidential": field(n, confidential, n),
    }


def confidential(n: Any) -> dict[str, Any]:
    """Whether the GPUs of this confidential virtual machine compute in secret, and take work: by default they do not until
    somebody attested them (nvidia-smi conf-compute -srs 1)."""
    ready = field(n, n.nvmlSystemGetConfComputeGpusReadyState)
    return {
        "on": n.nvmlSystemGetConfComputeState().ccFeature == n.NVML_CC_SYSTEM_FEATURE_ENABLED,
        "ready": ready if isinstance(ready, dict) else ready == n.NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE,
    }


def why(n: Any, error: Exception) -> dict[str, Any]:
    """An NVML error as an unavailable; a function that the library lacks is an old driver."""
    kinds = {
        n.NVML_ERROR_LIBRARY_NOT_FOUND: "absent",
        n.NVML_ERROR_GPU_IS_LOST: "absent",
        n.NVML_ERROR_RESET_REQUIRED: "absent",  # nvml.h: "requires a reset before it can be used again"
        n.NVML_ERROR_NO_PERMISSION: "denied",
        n.NVML_ERROR_NOT_SUPPORTED: "unsupported",
        n.NVML_ERROR_FUNCTION_NOT_FOUND: "unsupported",
        n.NVML_ERROR_TIMEOUT: "timed out",
    }
    code, text = getattr(error, "value", None), str(error)
    text = text if text.startswith("NVML") else f"NVML: {text}"
    return {"unavailable": kinds.get(code, "failed"), "detail": text, "code": code}


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
    drawing = field(n, n.nvmlDeviceGetGraphicsRunningProcesses, handle)
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
        "graphics": drawing if isinstance(drawing, dict) else sum(one.usedGpuMemory or 0 for one in drawing),
        "nvlinks": nvlinks(n, handle),
        "mig": on,
        "mig_waits": mig if isinstance(mig, dict) else mig[0] != mig[1],
        "mig_uuids": mig_uuids(n, handle) if on is True else [],
        "capability": field(n, n.nvmlDeviceGetCudaComputeCapability, handle),
        "health": field(n, health, n, handle),
        "fabric": field(n, fabric, n, handle),
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


# What NVML tells of a GPU's state: name in the answer, function, what it takes beside the handle.
STATE = (
    ("ecc", "nvmlDeviceGetEccMode", ()),  # [now, after a reset]
    ("remapped", "nvmlDeviceGetRemappedRows", ()),  # [for corrected, for uncorrected errors, pending, failed]
    ("retired_pending", "nvmlDeviceGetRetiredPagesPendingStatus", ()),
    ("reasons", "nvmlDeviceGetCurrentClocksThrottleReasons", ()),  # bits
    ("power_limit", "nvmlDeviceGetEnforcedPowerLimit", ()),  # mW
    ("power_default", "nvmlDeviceGetPowerManagementDefaultLimit", ()),  # mW, "at boot up"
    ("temperature", "nvmlDeviceGetTemperature", (0,)),  # of the GPU, °C
    ("slowdown", "nvmlDeviceGetTemperatureThreshold", (1,)),  # °C from which on the hardware lowers the clocks
    ("persistence", "nvmlDeviceGetPersistenceMode", ()),
    ("compute_mode", "nvmlDeviceGetComputeMode", ()),
    ("replays", "nvmlDeviceGetPcieReplayCounter", ()),
)
LOCATIONS = ("l1", "l2", "dram", "registers", "texture", "shared", "cbu", "sram")  # nvmlMemoryLocation_t
UNCORRECTED, VOLATILE, AGGREGATE = 1, 0, 1  # since the driver was loaded; in the board's life
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, R565


def health(n: Any, handle: Any) -> dict[str, Any]:
    found = {name: field(n, getattr(n, function), handle, *more) for name, function, more in STATE}
    bar1 = field(n, n.nvmlDeviceGetBAR1MemoryInfo, handle)
    whole = field(n, n.nvmlDeviceValidateInforom, handle)
    corrupted = isinstance(whole, dict) and whole.get("code") == n.NVML_ERROR_CORRUPTED_INFOROM
    return {
        **found,
        "uncorrected": ecc(n, handle, VOLATILE),
        "uncorrected_ever": ecc(n, handle, AGGREGATE),
        "retired": retired(n, handle),
        "sram_threshold": sram(n, handle),
        "recovery": value_of(n, handle, RECOVERY_ACTION),
        "bar1": bar1 if isinstance(bar1, dict) else [bar1.bar1Total, bar1.bar1Used],
        "inforom": False if corrupted else True if whole is None else whole,
    }


def ecc(n: Any, handle: Any, counter: int) -> Any:
    """Uncorrected errors by location; the first refusal where no location is told."""
    found, refused = {}, None
    for location, name in enumerate(LOCATIONS):
        got = field(n, n.nvmlDeviceGetMemoryErrorCounter, handle, UNCORRECTED, counter, location)
        if isinstance(got, int):
            found[name] = got
        else:
            refused = refused or got
            if got.get("code") not in (n.NVML_ERROR_NOT_SUPPORTED, n.NVML_ERROR_INVALID_ARGUMENT):
                return got
    return found or refused


def retired(n: Any, handle: Any) -> Any:
    """Pages taken out of use, for whatever reason (GPUs before Ampere)."""
    total = 0
    for cause in (0, 1):  # several single-bit errors, a double-bit error
        pages = field(n, n.nvmlDeviceGetRetiredPages, handle, cause)
        if isinstance(pages, dict):
            return pages
        total += len(pages)
    return total


def sram(n: Any, handle: Any) -> Any:
    try:
        status = n.c_nvmlEccSramErrorStatus_v1_t()
    except AttributeError as error:
        return {"unavailable": "unsupported", "detail": str(error)}
    refused = field(n, n.nvmlDeviceGetSramEccErrorStatus, handle, n.byref(status))
    return refused if isinstance(refused, dict) else bool(status.bThresholdExceeded)


def value_of(n: Any, handle: Any, number: int) -> Any:
    got = field(n, n.nvmlDeviceGetFieldValues, handle, [number])
    if isinstance(got, dict):
        return got
    one = got[0]
    return why(n, n.NVMLError(one.nvmlReturn)) if one.nvmlReturn else one.value.uiVal


def fabric(n: Any, handle: Any) -> dict[str, Any]:
    """The GPU's place in an NVLink fabric; state 0: it is in none (nvmlGpuFabricState_t)."""
    told = n.c_nvmlGpuFabricInfo_v2_t()
    refused = field(n, n.nvmlDeviceGetGpuFabricInfoV, handle, n.byref(told))
    if isinstance(refused, dict):
        return refused
    return {
        "state": told.state,
        "status": told.status,
        "clique": told.cliqueId,
        "cluster": bytes(told.clusterUuid).hex(),
        "health": told.healthMask,
    }


def pairs(n: Any, count: int) -> list[list[Any]]:
    """nvmlGpuP2PStatus_t of each pair: for reading, writing, and by NVLink (nvmlGpuP2PCapsIndex_t 0, 1, 2)."""
    handles = [field(n, n.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
    good = [i for i, handle in enumerate(handles) if not isinstance(handle, dict)]
    return [
        [a, b, *(field(n, n.nvmlDeviceGetP2PStatus, handles[a], handles[b], what) for what in (0, 1, 2))]
        for a in good
        for b in good
        if a < b
    ]

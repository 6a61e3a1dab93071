"""libcuda: what the CUDA driver shows the job, in the job's own environment (CUDA_VISIBLE_DEVICES, MIG, device order).

Answer: {"driver_version", "devices": [{"ordinal", "name", "uuid", "attributes": {number: value}}]}.
`uuid` is 32 hex digits; devices are listed only where cuInit succeeds, and are [] after CUDA_ERROR_NO_DEVICE.  Where it fails,
"library" is the file that the loader took for libcuda.so.1.
"""

from __future__ import annotations

import ctypes

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any

# CUdevice_attribute of cuda.h: 18 INTEGRATED, 116 GPU_DIRECT_RDMA_SUPPORTED, 124 DMA_BUF_SUPPORTED, 132 MULTICAST_SUPPORTED
ATTRIBUTES = (18, 116, 124, 132)
NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE


def answer(parameters: dict[str, str]) -> object:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        text = str(error)
        missing = "libcuda.so.1: cannot open shared object file: No such file" in text
        return {"unavailable": "absent" if missing else "failed", "detail": text}
    try:
        return ask(cuda)
    except AttributeError as error:  # a function that this library lacks
        return {"unavailable": "unsupported", "detail": str(error)}


def ask(cuda: Any) -> dict[str, Any]:
    version = ctypes.c_int(-1)
    code = cuda.cuDriverGetVersion(ctypes.byref(version))  # needs no cuInit
    out: dict[str, Any] = {"driver_version": failure(cuda, code) if code else version.value}
    code = cuda.cuInit(0)
    if code == NO_DEVICE:
        out["devices"] = []
    elif code:
        out["devices"] = failure(cuda, code, "cuInit: ")
        out["library"] = taken()
    else:
        count = ctypes.c_int(-1)
        code = cuda.cuDeviceGetCount(ctypes.byref(count))
        out["devices"] = failure(cuda, code) if code else [device(cuda, n) for n in range(count.value)]
    return out


def taken() -> str:
    """By this process' own map (proc_pid_maps(5)): the file behind all links.  "" where it does not show one."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="backslashreplace") as lines:
            paths = (line.rstrip("\n").partition("/") for line in lines)
            return next((f"/{path}" for _, _, path in paths if path.rpartition("/")[2].startswith("libcuda.so")), "")
    except OSError:
        return ""


def device(cuda: Any, ordinal: int) -> dict[str, Any]:
    handle = ctypes.c_int(-1)
    if code := cuda.cuDeviceGet(ctypes.byref(handle), ordinal):
        return {"ordinal": ordinal, **failure(cuda, code)}
    name = ctypes.create_string_buffer(256)
    code = cuda.cuDeviceGetName(name, len(name), handle)
    out: dict[str, Any] = {"ordinal": ordinal, "name": failure(cuda, code) if code else name.value.decode("utf-8", "replace")}
    uuid = ctypes.create_string_buffer(16)
    # _v2 gives the UUID of a MIG instance where the device is one (CUDA 11.4); the first version gives its GPU's.
    get_uuid = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    code = get_uuid(uuid, handle)
    out["uuid"] = failure(cuda, code) if code else uuid.raw.hex()
    out["attributes"] = {str(number): attribute(cuda, handle, number) for number in ATTRIBUTES}
    return out


def attribute(cuda: Any, handle: Any, number: int) -> Any:
    value = ctypes.c_int(-1)
    code = cuda.cuDeviceGetAttribute(ctypes.byref(value), number, handle)
    if code == 1:  # CUDA_ERROR_INVALID_VALUE: a driver older than the attribute
        return {"unavailable": "unsupported", "detail": f"the driver does not know attribute {number}"}
    return failure(cuda, code) if code else value.value


def name_of(cuda: Any, code: int) -> str:
    text = ctypes.c_char_p()
    if cuda.cuGetErrorName(code, ctypes.byref(text)) or not text.value:
        return f"CUDA error {code}"
    return text.value.decode("utf-8", "replace")


def failure(cuda: Any, code: int, what: str = "") -> dict[str, Any]:
    return {"unavailable": "failed", "detail": f"{what}{name_of(cuda, code)} ({code})", "code": code}

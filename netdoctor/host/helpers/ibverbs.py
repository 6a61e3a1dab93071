"""libibverbs: the devices it lists, whether a context can be had, and NCCL's own test for DMA-BUF.

Parameter ``device`` looks at one device only; the caller uses it, one child per device, where a provider crashed.
Answer: {"library", "devices": {NAME: {"context", "error", "dmabuf", "mtu", "link"}}}; `error` and `dmabuf` are errno names, ""
for success, `mtu` is {PORT: bytes of a packet} and `link` {PORT: [width, speed]}, the numbers of both, of the ports that tell.
"""

from __future__ import annotations

import ctypes
import errno

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any


PORTS = (1, 2)  # no HCA has more
MTUS = range(1, 6)  # IBV_MTU_256 to IBV_MTU_4096
WIDTH = 43  # bytes before active_width, which active_speed follows


def answer(parameters: dict[str, str]) -> object:
    try:
        ibv = ctypes.CDLL("libibverbs.so.1", use_errno=True)
    except OSError as error:
        text = str(error)
        missing = "libibverbs.so.1: cannot open shared object file: No such file" in text
        return {"unavailable": "absent" if missing else "failed", "detail": text}
    try:
        return ask(ibv, parameters.get("device"))
    except AttributeError as error:  # a function that this library lacks
        return {"unavailable": "unsupported", "detail": str(error)}


def ask(ibv: Any, only: str | None) -> dict[str, Any]:
    ibv.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    ibv.ibv_get_device_name.restype = ctypes.c_char_p
    ibv.ibv_get_device_name.argtypes = (ctypes.c_void_p,)
    number = ctypes.c_int(0)
    ctypes.set_errno(0)
    listed = ibv.ibv_get_device_list(ctypes.byref(number))
    code = ctypes.get_errno()
    out: dict[str, Any] = {"library": path_of("libibverbs.so")}
    if not listed:
        # ENOSYS: the kernel has no RDMA at all (ibv_get_device_list(3))
        kinds = {errno.ENOSYS: "unsupported", errno.EPERM: "denied", errno.EACCES: "denied"}
        out["devices"] = {"unavailable": kinds.get(code, "failed"), "detail": f"ibv_get_device_list: {name_of(code)}"}
        return out
    devices: dict[str, Any] = {}
    for index in range(number.value):
        name = (ibv.ibv_get_device_name(listed[index]) or b"").decode("utf-8", "replace")
        if only in (None, name):
            devices[name] = look(ibv, listed[index])
    return {**out, "devices": devices}


def look(ibv: Any, device: int) -> dict[str, Any]:
    """A context, a protection domain, and ibv_reg_dmabuf_mr with a bad descriptor (ncclIbDmaBufSupport in NCCL's net_ib)."""
    ibv.ibv_open_device.restype = ibv.ibv_alloc_pd.restype = ctypes.c_void_p
    for function in (ibv.ibv_open_device, ibv.ibv_alloc_pd, ibv.ibv_dealloc_pd, ibv.ibv_close_device):
        function.argtypes = (ctypes.c_void_p,)
    ctypes.set_errno(0)
    context = ibv.ibv_open_device(device)
    if not context:
        return {"context": False, "error": name_of(ctypes.get_errno()), "dmabuf": unasked("no context")}
    out: dict[str, Any] = {"context": True, "error": ""}
    ctypes.set_errno(0)
    domain = ibv.ibv_alloc_pd(context)
    if domain:
        out["dmabuf"] = dmabuf(ibv, domain)
        ibv.ibv_dealloc_pd(domain)
    else:
        out["dmabuf"] = unasked(f"ibv_alloc_pd: {name_of(ctypes.get_errno())}")
    out |= ports(ibv, context)
    ibv.ibv_close_device(context)
    return out


def ports(ibv: Any, context: int) -> dict[str, Any]:
    """active_mtu, active_width and active_speed of struct ibv_port_attr, which stand at one place in every version of it
    (infiniband/verbs.h; enum ibv_mtu)."""
    query, mtu, link = getattr(ibv, "ibv_query_port", None), {}, {}
    if query is not None:
        query.argtypes = (ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p)
        for port in PORTS:
            attributes = (ctypes.c_uint32 * 64)()
            if query(context, port, attributes) == 0:
                link[str(port)] = [*bytes(attributes)[WIDTH : WIDTH + 2]]
                if attributes[2] in MTUS:
                    mtu[str(port)] = 128 << attributes[2]
    return {"mtu": mtu, "link": link}


def dmabuf(ibv: Any, domain: int) -> Any:
    register = getattr(ibv, "ibv_reg_dmabuf_mr", None)
    if register is None:
        return {"unavailable": "unsupported", "detail": "this libibverbs has no ibv_reg_dmabuf_mr (IBVERBS_1.12)"}
    register.restype = ctypes.c_void_p
    register.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_int, ctypes.c_int)
    ctypes.set_errno(0)
    return "" if register(domain, 0, 0, 0, -1, 0) else name_of(ctypes.get_errno())


def unasked(detail: str) -> dict[str, Any]:
    return {"unavailable": "not read", "detail": detail}


def name_of(code: int) -> str:
    if code == errno.EOPNOTSUPP:  # the same number as ENOTSUP on Linux, which errno.errorcode gives
        return "EOPNOTSUPP"
    return errno.errorcode.get(code, str(code))


def path_of(prefix: str) -> str:
    """Where a loaded library was mapped from."""
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            paths = (line.split(None, 5)[-1].strip() for line in file if prefix in line)
            return next(paths, prefix)
    except OSError:
        return prefix

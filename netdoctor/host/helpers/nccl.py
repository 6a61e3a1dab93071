"""Helper program: which interface a libnccl takes.  ncclGetUniqueId applies NCCL's own rules and needs no GPU and no CUDA.

Parameters: ``path`` of a libnccl.  Answers {"version": [2, 27, 5], "code": ncclResult_t, "interface", "address", "error",
"log": [line, …]}, with interface and address null where NCCL found none.  It opens one listening socket (the bootstrap root,
NCCL src/bootstrap.cc) that ends with this process; NCCL_COMM_ID, which would name another root, is not in its environment.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
from ipaddress import ip_address

TYPE_CHECKING = False  # typing itself costs 8 ms of a child
if TYPE_CHECKING:
    from typing import Any

MAX_LOG = 64 << 10
# First in the environment wins over nccl.conf (NCCL src/misc/param.cc), so what is set here holds.
# A network plugin has no part in the choice, but NCCL <= 2.21 would load it here.
SETTINGS = {
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,ENV,BOOTSTRAP,NET",
    "NCCL_RAS_ENABLE": "0",
    "NCCL_NET_PLUGIN": "none",
}


def answer(parameters: dict[str, str]) -> object:
    log = os.memfd_create("nccl-log")
    os.environ.update(SETTINGS, NCCL_DEBUG_FILE=f"/proc/self/fd/{log}")  # never a file of the job's
    os.environ.pop("NCCL_COMM_ID", None)
    if "comm_id" in parameters:
        os.environ["NCCL_COMM_ID"] = parameters["comm_id"]
    if os.geteuid() == 0:
        os.environ["NCCL_ENV_PLUGIN"] = "none"  # NCCL >= 2.29 would load a library that the environment names
    try:
        library = ctypes.CDLL(parameters["path"])
        get_version, get_id = library.ncclGetVersion, library.ncclGetUniqueId
    except (OSError, AttributeError) as error:
        missing = not os.path.exists(parameters["path"])
        return {"unavailable": "absent" if missing else "failed", "detail": str(error)}
    number = ctypes.c_int()
    get_version(ctypes.byref(number))
    if number.value < 1000:
        return {"unavailable": "malformed", "detail": f"ncclGetVersion says {number.value}"}
    unique = ctypes.create_string_buffer(128)
    code = int(get_id(unique))
    said = ""
    if code and hasattr(library, "ncclGetLastError"):
        library.ncclGetLastError.restype = ctypes.c_char_p
        said = (library.ncclGetLastError(None) or b"").decode("utf-8", "backslashreplace")
    lines = os.pread(log, MAX_LOG, 0).decode("utf-8", "backslashreplace").splitlines()
    warned = [line.partition("NCCL WARN ")[2] for line in lines if "NCCL WARN " in line]
    interface, address = taken(lines)
    if address is None and not code:
        address = address_of(unique.raw)
    out: dict[str, Any] = {"version": version(number.value), "code": code, "log": lines[:200]}
    out.update(interface=interface, address=address, error=said or (warned[-1] if warned and code else ""))
    return out


def version(number: int) -> list[int]:
    """ncclGetVersion: X*1000+Y*100+Z through 2.8, X*10000+Y*100+Z from 2.9 (nccl.h)."""
    base = 1000 if number < 10000 else 10000
    return [number // base, number % base // 100, number % 100]


def taken(lines: list[str]) -> tuple[str | None, str | None]:
    """``Bootstrap : Using eth0:10.0.0.7<0>`` (the space before the colon went with 2.24); an alias has a colon in its name."""
    for line in lines:
        found = re.search(r"Bootstrap ?: Using (\S+)<\d+>", line)
        pieces = found.group(1).split(":") if found else []
        for cut in range(1, len(pieces)):  # the shortest name that leaves an address
            address = ":".join(pieces[cut:]).partition("%")[0]
            try:
                ip_address(address)
            except ValueError:
                continue
            return ":".join(pieces[:cut]), address
    return None, None


def address_of(unique: bytes) -> str | None:
    """The bootstrap root's address: 8 bytes of magic, then a sockaddr (NCCL src/include/bootstrap.h, ncclBootstrapHandle)."""
    (family,) = struct.unpack_from("=H", unique, 8)
    if family == 2:
        return str(ip_address(unique[12:16]))
    if family == 10:
        return str(ip_address(unique[16:32]))
    return None

"""Asks one libnccl what it makes of its environment.  A program for a child process: stdlib only, JSON on stdout.

    python tools/libnccl_params.py LIBNCCL params              every integer parameter: {symbol: value}
    python tools/libnccl_params.py LIBNCCL strings             every NCCL_* string of the file
    python tools/libnccl_params.py LIBNCCL level ON LEVEL      ncclGetLevel(): {"level": n} of the variables ON and LEVEL
    python tools/libnccl_params.py LIBNCCL list KIND VALUE     parseList(): {"code": n, "list": […]} (KIND is algo or proto)
    python tools/libnccl_params.py LIBNCCL select VALUE NAME…  parseStringList() + matchIfList(): {name: taken}
    python tools/libnccl_params.py LIBNCCL id                  ncclGetUniqueId(): {"code": n, "error": text}

No GPU and no driver is needed.  NVIDIA ships libnccl with its symbol table, so that its own functions can be called at their
address: what they return is what that NCCL makes of a value.  NCCL's log lines go to stderr (set NCCL_DEBUG_FILE=/dev/stderr).
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import re
import struct
import sys
from typing import Any

ALGORITHMS = ("Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT")
PROTOCOLS = ("LL", "LL128", "Simple")
FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")


def symbols(path: str) -> dict[str, int]:
    """Function symbols of a 64-bit little-endian ELF file and their addresses (elf(5)); empty where it is stripped."""
    found = {}
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        if data[:6] != b"\x7fELF\x02\x01":
            raise SystemExit(f"{path}: not a 64-bit little-endian ELF file")
        (table,) = struct.unpack_from("<Q", data, 0x28)
        size, count = struct.unpack_from("<HH", data, 0x3A)
        headers = [struct.unpack_from("<IIQQQQIIQQ", data, table + i * size) for i in range(count)]
        for header in headers:
            if header[1] == 2:  # SHT_SYMTAB
                names = headers[header[6]][4]
                for name, info, _, _, value, _ in struct.iter_unpack("<IBBHQQ", data[header[4] : header[4] + header[5]]):
                    if info & 15 == 2 and value:  # STT_FUNC
                        end = data.find(b"\0", names + name)
                        found[data[names + name : end].decode("ascii", "replace")] = value
    return found


def strings(path: str) -> list[str]:
    """Every NCCL_… that ends a string of the file; what stands before the first letter may be data that is none."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as data:
        return sorted({m.group(1).decode() for m in re.finditer(rb"(NCCL_[A-Z0-9_]{2,80})\0", data)})


class Library:
    """One loaded libnccl."""

    def __init__(self, path: str) -> None:
        self.handle = ctypes.CDLL(path, mode=os.RTLD_NOW)
        self.symbols = symbols(path)
        known = self.symbols["ncclGetUniqueId"]
        there = ctypes.cast(self.handle.ncclGetUniqueId, ctypes.c_void_p).value or 0
        self.base = there - known

    def call(self, mangled: str, result: Any, *arguments: Any) -> Any:
        """Call a function by its mangled name; KeyError where this version has none."""
        kind = ctypes.CFUNCTYPE(result, *(type(a) if not isinstance(a, bytes) else ctypes.c_char_p for a in arguments))
        return kind(self.base + self.symbols[mangled])(*arguments)

    def params(self) -> dict[str, int]:
        wanted = (s for s in self.symbols if re.fullmatch(r"_Z\d+ncclParam[A-Z]\w*v", s))
        return {s: self.call(s, ctypes.c_int64) for s in sorted(wanted)}

    def level(self, on: str, level: str) -> dict[str, int]:
        value = (ctypes.c_int * 1)(-1)  # "not asked yet"; -2 afterwards: nothing that counts was set
        self.call("_Z12ncclGetLevelPiPKcS1_", ctypes.c_int, value, on.encode() or b"-", level.encode())
        return {"level": value[0]}

    def listed(self, kind: str, value: str) -> dict[str, Any]:
        elements = ALGORITHMS if kind == "algo" else PROTOCOLS
        names = (ctypes.c_char_p * len(elements))(*(e.encode() for e in elements))
        if "_Z9parseListPKcPS0_iS1_iPi" in self.symbols:  # per function, from 2.24 on
            functions = (ctypes.c_char_p * len(FUNCTIONS))(*(f.encode() for f in FUNCTIONS))
            out = (ctypes.c_int * (len(FUNCTIONS) * len(elements)))(*([1] * len(FUNCTIONS) * len(elements)))
            code = self.call(
                "_Z9parseListPKcPS0_iS1_iPi",
                ctypes.c_int,
                value.encode(),
                functions,
                ctypes.c_int(len(FUNCTIONS)),
                names,
                ctypes.c_int(len(elements)),
                out,
            )
        else:
            out = (ctypes.c_int * len(elements))(*([1] * len(elements)))
            code = self.call("_Z9parseListPKcPS0_iPi", ctypes.c_int, value.encode(), names, ctypes.c_int(len(elements)), out)
        return {"code": code, "list": list(out), "elements": list(elements)}

    def select(self, value: str, names: list[str]) -> dict[str, bool]:
        """As src/misc/socket.cc and src/transport/net_ib do it: the marks are cut off before the list is parsed."""
        exclude = value.startswith("^")
        rest = value[exclude:]
        exact = rest.startswith("=")
        rest = rest[exact:]
        store = ctypes.create_string_buffer(64 * 256)  # more than sizeof(struct netIf) × 64 in every version
        count = self.call("_Z15parseStringListPKcP5netIfi", ctypes.c_int, rest.encode(), store, ctypes.c_int(64))
        match = next(s for s in self.symbols if re.fullmatch(r"_Z11matchIfListPKciP5netIfib(Pi)?", s))
        extra = (ctypes.c_void_p(None),) if match.endswith("Pi") else ()
        taken = {}
        for name in names:
            port, listed = ctypes.c_int(-1), ctypes.c_int(count)
            hit = self.call(match, ctypes.c_bool, name.encode(), port, store, listed, ctypes.c_bool(exact), *extra)
            taken[name] = bool(hit) != exclude
        return taken

    def id(self) -> dict[str, Any]:
        self.handle.ncclGetLastError.restype = ctypes.c_char_p
        self.handle.ncclGetLastError.argtypes = (ctypes.c_void_p,)
        code = self.handle.ncclGetUniqueId(ctypes.create_string_buffer(128))
        return {"code": code, "error": (self.handle.ncclGetLastError(None) or b"").decode("utf-8", "replace")}


def main(arguments: list[str]) -> int:
    path, verb, *rest = arguments
    if verb == "strings":
        answer: Any = strings(path)
    elif verb == "params":
        answer = Library(path).params()
    elif verb == "level":
        answer = Library(path).level(*rest)
    elif verb == "list":
        answer = Library(path).listed(*rest)
    elif verb == "select":
        answer = Library(path).select(rest[0], rest[1:])
    elif verb == "id":
        answer = Library(path).id()
    else:
        raise SystemExit(f"no such verb: {verb}")
    json.dump(answer, sys.stdout)
    sys.stdout.flush()
    os._exit(0)  # NCCL's listener thread runs on; nothing of it shall


if __name__ == "__main__":
    main(sys.argv[1:])

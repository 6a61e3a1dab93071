"""A prototype: the verified all-reduce without torch, through libnccl and libcuda alone (ctypes, standard library, no package).

``python bare_nccl.py --nccl PATH --devices 0,0 [--sizes 4096,1048576] [--repeats 20]`` forks a rank for each device and prints
one JSON object: {"finished", "verified", "nccl", "seconds", "ranks": [{"rank", "error", "phases", "latency", "wrong",
"rss_mb"}]}; exit 0 where every sum was exact.

It is no part of netdoctor.  What it is for: `make gpu-proof` measures it against the torch path (figure gpu.torch_free).  Only
where it comes to a verdict at least twice as fast would it be worth its place in the product.  It has not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import struct
import sys
import time
from array import array
from typing import Any

PERIOD = 4099  # of the pattern, as in netdoctor/allreduce/rank.py
FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t (nccl.h)
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
# Two ranks on one GPU: NCCL must take them for two hosts (src/init.cc: hostHash of NCCL_HOSTID).
ONE_GPU = {"NCCL_MAX_CTAS": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


class UniqueId(ctypes.Structure):
    """ncclUniqueId; ncclCommInitRank takes it by value."""

    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


class LibraryError(Exception):
    """A call that failed, with the library's own word for it."""


class Cuda:
    """What is needed of the driver API (cuda.h); the names with _v2 are the ones that cuda.h maps the plain ones to."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        size, pointer, handle = ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p
        self.lib.cuMemcpyHtoD_v2.argtypes = (pointer, ctypes.c_char_p, size)
        self.lib.cuMemcpyDtoH_v2.argtypes = (ctypes.c_void_p, pointer, size)
        self.lib.cuMemAlloc_v2.argtypes = (ctypes.POINTER(pointer), size)
        self.lib.cuMemFree_v2.argtypes = (pointer,)
        self.lib.cuCtxSetCurrent.argtypes = (handle,)
        self.lib.cuStreamSynchronize.argtypes = (handle,)
        self.lib.cuEventRecord.argtypes = (handle, handle)
        self.lib.cuEventElapsedTime.argtypes = (ctypes.POINTER(ctypes.c_float), handle, handle)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(code, ctypes.byref(text))
            raise LibraryError(f"{name}: {(text.value or b'').decode() or code}")

    def context(self, ordinal: int) -> None:
        """The primary context, which NCCL's own runtime uses too, made current."""
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def allocate(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        return address

    def stream(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        # CU_STREAM_DEFAULT: waits for the copies, which are on the null stream and may still be under way when they return.
        self.call("cuStreamCreate", ctypes.byref(made), 0)
        return made

    def event(self) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self.call("cuEventCreate", ctypes.byref(made), 0)
        return made


class Nccl:
    """What is needed of nccl.h."""

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.lib.ncclGetErrorString.restype = ctypes.c_char_p
        self.lib.ncclCommInitRank.argtypes = (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int, UniqueId, ctypes.c_int)
        handle, size = ctypes.c_void_p, ctypes.c_size_t
        self.lib.ncclAllReduce.argtypes = (ctypes.c_uint64, ctypes.c_uint64, size, ctypes.c_int, ctypes.c_int, handle, handle)
        self.lib.ncclCommDestroy.argtypes = (handle,)

    def call(self, name: str, *arguments: Any) -> None:
        code = getattr(self.lib, name)(*arguments)
        if code:
            said = self.lib.ncclGetErrorString(code) or b""
            last = getattr(self.lib, "ncclGetLastError", None)
            if last is not None:
                last.restype = ctypes.c_char_p
                said += b": " + (last(None) or b"")
            raise LibraryError(f"{name}: {said.decode('utf-8', 'replace')} ({code})")

    def version(self) -> str:
        number = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(number))
        base = 1000 if number.value < 10000 else 10000
        return f"{number.value // base}.{number.value % base // 100}.{number.value % 100}"

    def unique_id(self) -> bytes:
        made = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)


def table(rank: int) -> list[int]:
    """The pattern of netdoctor/allreduce/rank.py: integers, so that float32 adds them exactly in any order."""
    return [(i * (2 * rank + 1) + 31 * rank) % 251 for i in range(PERIOD)]


def data(values: list[int], size: int) -> bytes:
    """`size` bytes of float32 that repeat `values`."""
    period = array("f", values).tobytes()
    return (period * (size // len(period) + 1))[:size]


def wrong(got: bytes, expected: bytes) -> int:
    """Elements that differ."""
    if got == expected:
        return 0
    return sum(got[i : i + 4] != expected[i : i + 4] for i in range(0, len(expected), 4))


class Rank:
    """One rank, in a process of its own."""

    def __init__(self, plan: argparse.Namespace, rank: int, identity: int) -> None:
        self.plan, self.rank, self.ranks = plan, rank, len(plan.devices)
        self.identity = identity  # descriptor: rank 0 writes the id for the others, these read it
        self.out: dict[str, Any] = {"rank": rank, "error": "", "phases": {}, "latency": {}, "wrong": 0}
        self.at = time.perf_counter()

    def phase(self, name: str) -> None:
        now = time.perf_counter()
        self.out["phases"][name], self.at = round(now - self.at, 6), now

    def run(self) -> None:
        cuda = Cuda()
        cuda.context(self.plan.devices[self.rank])
        self.phase("device")
        nccl = Nccl(self.plan.nccl)
        self.out["nccl"] = nccl.version()
        comm = ctypes.c_void_p()
        nccl.call("ncclCommInitRank", ctypes.byref(comm), self.ranks, self.share(nccl), self.rank)
        self.phase("init")
        stream, buffer = cuda.stream(), cuda.allocate(max(self.plan.sizes))
        for size in self.plan.sizes:
            self.verify(cuda, nccl, comm, stream, buffer, size)
            self.time(cuda, nccl, comm, stream, buffer, size)
        self.phase("collectives")
        nccl.call("ncclCommDestroy", comm)
        cuda.call("cuMemFree_v2", buffer)
        self.phase("end")

    def share(self, nccl: Nccl) -> UniqueId:
        """The id of rank 0, which keeps its root thread alive, for all."""
        if self.rank == 0:
            raw = nccl.unique_id()
            os.write(self.identity, raw * (self.ranks - 1))
        else:
            raw = os.read(self.identity, ID_BYTES)
            if len(raw) != ID_BYTES:
                raise LibraryError("rank 0 ended before it had an id")
        return UniqueId.from_buffer_copy(raw)

    def reduce(self, nccl: Nccl, comm: Any, stream: Any, buffer: ctypes.c_uint64, size: int) -> None:
        nccl.call("ncclAllReduce", buffer, buffer, size // 4, FLOAT32, SUM, comm, stream)

    def verify(self, cuda: Cuda, nccl: Nccl, comm: Any, stream: Any, buffer: ctypes.c_uint64, size: int) -> None:
        cuda.call("cuMemcpyHtoD_v2", buffer, data(table(self.rank), size), size)
        self.reduce(nccl, comm, stream, buffer, size)
        cuda.call("cuStreamSynchronize", stream)
        back = ctypes.create_string_buffer(size)
        cuda.call("cuMemcpyDtoH_v2", back, buffer, size)
        tables = [table(rank) for rank in range(self.ranks)]
        every = [sum(one[i] for one in tables) for i in range(PERIOD)]
        self.out["wrong"] += wrong(back.raw, data(every, size))

    def time(self, cuda: Cuda, nccl: Nccl, comm: Any, stream: Any, buffer: ctypes.c_uint64, size: int) -> None:
        """Median seconds by CUDA events."""
        events = [cuda.event() for _ in range(self.plan.repeats + 1)]
        cuda.call("cuEventRecord", events[0], stream)
        for event in events[1:]:
            self.reduce(nccl, comm, stream, buffer, size)
            cuda.call("cuEventRecord", event, stream)
        cuda.call("cuStreamSynchronize", stream)
        times = []
        for number in range(self.plan.repeats):
            took = ctypes.c_float()
            cuda.call("cuEventElapsedTime", ctypes.byref(took), events[number], events[number + 1])
            times.append(took.value / 1e3)
        self.out["latency"][size] = sorted(times)[len(times) // 2]


def rss() -> float:
    """The most memory that this process had resident, in MB (getrusage(2): KiB)."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def child(plan: argparse.Namespace, rank: int, identity: int, results: int) -> None:
    """A forked rank's whole life."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if len(set(plan.devices)) < len(plan.devices):
        os.environ.update(ONE_GPU, NCCL_HOSTID=f"netdoctor-{rank}")
    one = Rank(plan, rank, identity)
    try:
        one.run()
    except Exception as error:  # noqa: BLE001  (becomes the rank's answer)
        one.out["error"] = f"{type(error).__name__}: {error}"
    one.out["rss_mb"] = round(rss(), 1)
    text = json.dumps(one.out).encode()
    os.write(results, struct.pack("<I", len(text)) + text)  # below PIPE_BUF, so that ranks do not mix (pipe(7))
    os._exit(1 if one.out["error"] else 0)


def main() -> int:
    begin = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("--nccl", required=True)
    parser.add_argument("--devices", type=lambda t: [int(n) for n in t.split(",")], default=[0])
    parser.add_argument("--sizes", type=lambda t: [int(n) for n in t.split(",")], default=[4096, 1 << 20])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60.0)
    plan = parser.parse_args()
    read_id, write_id = os.pipe()
    read_results, write_results = os.pipe()
    pids = []
    for rank in range(len(plan.devices)):
        pid = os.fork()
        if pid == 0:
            os.close(read_id if rank == 0 else write_id)
            signal.alarm(int(plan.seconds))
            child(plan, rank, write_id if rank == 0 else read_id, write_results)
        pids.append(pid)
    for descriptor in (read_id, write_id, write_results):
        os.close(descriptor)
    got = sorted(results(read_results), key=lambda one: int(one["rank"]))
    for pid in pids:
        os.waitpid(pid, 0)
    finished = len(got) == len(pids) and not any(one["error"] for one in got)
    verified = finished and not any(one["wrong"] for one in got)
    out = {"finished": finished, "verified": verified, "nccl": got[0].get("nccl", "") if got else "", "ranks": got}
    print(json.dumps(dict(out, seconds=time.perf_counter() - begin)))
    return 0 if verified else 1


def results(descriptor: int) -> list[dict[str, Any]]:
    """What the ranks wrote; a rank that was killed wrote nothing."""
    raw = b""
    while True:
        block = os.read(descriptor, 1 << 16)
        if not block:
            break
        raw += block
    out = []
    while len(raw) >= 4:
        (length,) = struct.unpack_from("<I", raw)
        out.append(json.loads(raw[4 : 4 + length].decode()))
        raw = raw[4 + length :]
    return out


if __name__ == "__main__":
    sys.exit(main())

"""The engine of a job without torch: a libnccl and the CUDA driver, by ctypes.  A part of the rank program (see zygote.py).

Runs in netdoctor's own Python, for such a job need not have one.  On one node the ranks get NCCL's unique id by a memfd; across
nodes the first rank of all tells it, and netdoctor's own connections carry it (the root that it names listens on a port that
the kernel gives, as in the job).  All work goes by one stream; the context is the primary one, as of NCCL's own runtime.
"""

from __future__ import annotations

import abc
import ctypes
import operator
import os
import time
from array import array
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # their text is put before this one
    from netdoctor.allreduce.rank import MAX_TEXT, PERIOD, Engine, Rank, Say, table

FLOAT32, SUM = 7, 0  # ncclDataType_t, ncclRedOp_t (nccl.h)
ID_BYTES = 128  # NCCL_UNIQUE_ID_BYTES
IN_PROGRESS = 7  # ncclInProgress: no error
# ncclResult_t (nccl.h); the text that NCCL gives has no names
RESULTS = (
    *("ncclSuccess", "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError", "ncclInvalidArgument"),
    *("ncclInvalidUsage", "ncclRemoteError", "ncclInProgress", "ncclTimeout"),
)
NO_DEVICE, NOT_READY, SYSTEM_NOT_READY = 100, 600, 802  # CUDA_ERROR_NO_DEVICE and so on (cuda.h)
NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: nothing of ours is on the null stream
TOGETHER = 256  # periods that are compared at once: 4 MiB
LONGEST_PAUSE = 1e-3  # seconds between two looks at the stream


class UniqueId(ctypes.Structure):
    """ncclUniqueId; ncclCommInitRank takes it by value."""

    _fields_ = (("internal", ctypes.c_char * ID_BYTES),)


class LibraryError(Exception):
    """A call that failed, in the library's own words."""

    in_full = True  # its class would tell nothing more (rank.text_of)


class Calls(abc.ABC):
    """Calls by name; a function that is not there and a code that is not 0 are raised.

    Every argument that is no int is a ctypes object, so that none needs a prototype.
    """

    def __init__(self, name: str, library: Any) -> None:
        self.name, self.library = name, library

    def code(self, name: str, *arguments: Any) -> int:
        """What a function returned."""
        function = getattr(self.library, name, None)
        if function is None:
            raise LibraryError(f"{self.name} has no {name}")
        return int(function(*arguments))

    def __call__(self, name: str, *arguments: Any) -> None:
        code = self.code(name, *arguments)
        if code:
            raise LibraryError(f"{name}: {self.words(code)}")

    @abc.abstractmethod
    def words(self, code: int) -> str:
        """What the library says of a code."""

    def text(self, name: str, *arguments: Any) -> str:
        """What a function that gives a text gives; "" where it is not there."""
        function = getattr(self.library, name, None)
        if function is None:
            return ""
        function.restype = ctypes.c_char_p
        return (function(*arguments) or b"").decode("utf-8", "replace").strip()


class Nccl(Calls):
    """nccl.h"""

    def words(self, code: int) -> str:
        """``ncclSystemError: unhandled system error (…): what NCCL says of its last error``"""
        name = RESULTS[code] if 0 <= code < len(RESULTS) else f"ncclResult_t {code}"
        said = (name, self.text("ncclGetErrorString", code), self.text("ncclGetLastError", None))
        return ": ".join(filter(None, said))[:MAX_TEXT]

    def version(self) -> str:
        """X*1000+Y*100+Z through 2.8, X*10000+Y*100+Z from 2.9 (nccl.h)."""
        number = ctypes.c_int()
        self("ncclGetVersion", ctypes.byref(number))
        base = 1000 if number.value < 10000 else 10000
        return f"{number.value // base}.{number.value % base // 100}.{number.value % 100}"


class Cuda(Calls):
    """cuda.h; the names with _v2 are those that it maps the plain ones to."""

    def __init__(self) -> None:
        super().__init__("libcuda", ctypes.CDLL("libcuda.so.1"))

    def words(self, code: int) -> str:
        """``CUDA_ERROR_OUT_OF_MEMORY: out of memory``"""
        return ": ".join(filter(None, (self.error_name(code), self._said("cuGetErrorString", code))))

    def error_name(self, code: int) -> str:
        return self._said("cuGetErrorName", code) or f"CUDA error {code}"

    def _said(self, function: str, code: int) -> str:
        text = ctypes.c_char_p()
        known = not self.code(function, code, ctypes.byref(text)) and text.value
        return known.decode("utf-8", "replace") if known else ""


class NcclEngine(Engine):
    """All-reduce by ncclAllReduce."""

    shared: Any = None  # the libnccl that all ranks were forked with

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.nccl, self.cuda = Nccl("libnccl", self.shared), Cuda()
        self.id = UniqueId()
        self.device, self.context = ctypes.c_int(), ctypes.c_void_p()
        self.stream, self.comm = ctypes.c_void_p(), ctypes.c_void_p()
        self.buffer = ctypes.c_uint64()
        self.made: list[ctypes.c_void_p] = []  # events
        self.own = b""  # one period of this rank's pattern
        self.exact = b""  # and as many of the sum as are compared at once

    @staticmethod
    def load(library: str) -> None:
        if not os.path.exists(library):  # the loader says the same of a library that this one needs
            raise FileNotFoundError(library)
        NcclEngine.shared = ctypes.CDLL(library)

    @staticmethod
    def absent(error: BaseException) -> bool:
        return isinstance(error, FileNotFoundError)

    @staticmethod
    def tell_facts(say: Say) -> None:
        say("fact", nccl=Nccl("libnccl", NcclEngine.shared).version())
        cuda = Cuda()
        code = cuda.code("cuInit", 0)
        count = ctypes.c_int(0)
        if code not in (0, NO_DEVICE):
            say("fact", not_ready=code == SYSTEM_NOT_READY)
            raise LibraryError(f"cuInit: {cuda.error_name(code)} ({code})")  # as the helper that asks libcuda says it
        if not code:
            cuda("cuDeviceGetCount", ctypes.byref(count))
        say("fact", device_count=count.value)

    def meet(self) -> None:
        rank = self.rank
        if rank.rank == 0:
            self.nccl("ncclGetUniqueId", ctypes.byref(self.id))
            os.pwrite(rank.store, bytes(self.id), 0)
            if rank.several:
                rank.say("store", id=bytes(self.id).hex())
            return
        raw = bytes.fromhex(rank.across.get("id", ""))
        while len(raw) < ID_BYTES:
            time.sleep(0.001)
            raw = os.pread(rank.store, ID_BYTES, 0)
        ctypes.memmove(ctypes.byref(self.id), raw, ID_BYTES)

    def open(self) -> None:
        cuda = self.cuda
        cuda("cuInit", 0)
        cuda("cuDeviceGet", ctypes.byref(self.device), self.rank.plan["gpus"][self.rank.local])
        cuda("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        cuda("cuCtxSetCurrent", self.context)
        cuda("cuStreamCreate", ctypes.byref(self.stream), NON_BLOCKING)

    def init(self) -> None:
        self.nccl("ncclCommInitRank", ctypes.byref(self.comm), self.rank.ranks, self.id, self.rank.rank)

    def allocate(self, size: int) -> None:
        tables = [table(rank) for rank in range(self.rank.ranks)]
        self.own = array("f", tables[self.rank.rank]).tobytes()
        self.exact = array("f", map(sum, zip(*tables))).tobytes() * TOGETHER
        self.cuda("cuMemAlloc_v2", ctypes.byref(self.buffer), ctypes.c_size_t(size))

    def at(self, offset: int) -> ctypes.c_uint64:
        return ctypes.c_uint64(self.buffer.value + offset)

    def fill(self, size: int) -> None:
        """One period from here, and the rest is doubled where it is: hosts need not have the memory of their GPUs."""
        done = min(len(self.own), size)
        self.cuda("cuMemcpyHtoDAsync_v2", self.buffer, self.own, ctypes.c_size_t(done), self.stream)
        while done < size:
            more = min(done, size - done)
            self.cuda("cuMemcpyDtoDAsync_v2", self.at(done), self.buffer, ctypes.c_size_t(more), self.stream)
            done += more
        self.wait()

    def reduce(self, size: int) -> None:
        count = ctypes.c_size_t(size // 4)
        self.nccl("ncclAllReduce", self.buffer, self.buffer, count, FLOAT32, SUM, self.comm, self.stream)

    def wait(self) -> None:
        """Look at the communicator as well: what NCCL meets on its way does not end the kernel that waits for it."""
        pause = 2e-5
        while True:
            code = self.cuda.code("cuStreamQuery", self.stream)
            if code == 0:
                return
            if code != NOT_READY:
                raise LibraryError(f"cuStreamQuery: {self.cuda.words(code)}")
            self.look()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def look(self) -> None:
        """Raise what NCCL found since (ncclCommGetAsyncError came with 2.4)."""
        state = ctypes.c_int()
        if not self.comm or getattr(self.shared, "ncclCommGetAsyncError", None) is None:
            return
        self.nccl("ncclCommGetAsyncError", self.comm, ctypes.byref(state))
        if state.value not in (0, IN_PROGRESS):
            raise LibraryError(f"asynchronous error: {self.nccl.words(state.value)}")

    def wrong(self, size: int) -> int:
        found, most = 0, len(self.exact)
        got = ctypes.create_string_buffer(min(size, most))
        for start in range(0, size, most):
            length = min(most, size - start)
            self.cuda("cuMemcpyDtoHAsync_v2", got, self.at(start), ctypes.c_size_t(length), self.stream)
            self.wait()
            found += differing(memoryview(got)[:length], memoryview(self.exact)[:length])
        return found

    def events(self, count: int) -> list[Any]:
        while len(self.made) < count:
            event = ctypes.c_void_p()
            self.cuda("cuEventCreate", ctypes.byref(event), 0)
            self.made.append(event)
        return self.made[:count]

    def record(self, event: Any) -> None:
        self.cuda("cuEventRecord", event, self.stream)

    def between(self, first: Any, second: Any) -> float:
        took = ctypes.c_float()
        self.cuda("cuEventElapsedTime", ctypes.byref(took), first, second)
        return took.value / 1e3

    def part(self, seconds: float) -> None:
        """One more all-reduce: nobody is past it before all are here.  `close` lets NCCL send what is still on its way."""
        end = time.monotonic() + seconds
        try:
            self.reduce(4)
            while self.cuda.code("cuStreamQuery", self.stream) == NOT_READY and time.monotonic() < end:
                self.look()
                time.sleep(LONGEST_PAUSE)
        except LibraryError:
            pass  # a peer went: nobody waits for this one either

    def close(self) -> None:
        """What a library refuses goes with the process, which ends now."""
        try:
            self.nccl.code("ncclCommDestroy", self.comm)
            for event in self.made:
                self.cuda.code("cuEventDestroy_v2", event)
            self.cuda.code("cuStreamDestroy_v2", self.stream)
            self.cuda.code("cuMemFree_v2", self.buffer)
            self.cuda.code("cuDevicePrimaryCtxRelease_v2", self.device)
        except LibraryError:
            pass  # a function that is not there


def differing(got: memoryview, exact: memoryview) -> int:
    """Floats that are not the same, period by period: two of the same bits are compared at once."""
    if got == exact:
        return 0
    found, step = 0, 4 * PERIOD
    for start in range(0, len(got), step):
        one, other = got[start : start + step], exact[start : start + step]
        if one != other:
            found += sum(map(operator.ne, one.cast("B").cast("I"), other.cast("B").cast("I")))
    return found

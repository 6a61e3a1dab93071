"""One rank: takes this process through the libnccl of NCCL_LIB on the driver API alone, by ctypes; no torch, no CUDA runtime.

    rank.py RANK RANKS IDFILE [--device N] [--steps irgbcstmxwad] [--count FLOATS] [--seconds S]

Steps: i init, r all-reduce, g all-gather, b broadcast, c reduce-scatter, s send and receive in a ring, t all-reduce of every
type and reduction, m other calls (in place, in a group, to and from the last rank, all to all, many in a row), x all-reduce
captured into a graph that runs twice, w wait a second for an asynchronous error, a abort, d destroy.
Each step says one line "rank: {JSON}" on stdout, where NCCL's log goes as well.  Exit code: 0 all steps succeeded and the data
are right, 2 the data are not right (without kernels: were not moved), 1 a step failed, 3 it could not begin.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import pathlib
import struct
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

FLOAT, SUM = 7, 0  # ncclFloat32, ncclSum
NOT_READY = 600  # CUDA_ERROR_NOT_READY
# ncclDataType_t by number: a name, how struct packs an element ("": bfloat16, the upper half of a float), whether it has a sign
TYPES = (
    *(("i8", "b", True), ("u8", "B", False), ("i32", "i", True), ("u32", "I", False), ("i64", "q", True), ("u64", "Q", False)),
    *(("f16", "e", True), ("f32", "f", True), ("f64", "d", True), ("bf16", "", True)),
)
OPERATIONS = ("sum", "product", "maximum", "minimum", "average")  # ncclRedOp_t by number


def pack(code: str, values: Sequence[float]) -> bytes:
    if code:
        return struct.pack(f"<{len(values)}{code}", *values)
    return b"".join(struct.pack("<f", one)[2:] for one in values)


def unpack(code: str, data: bytes) -> list[float]:
    if code:
        return list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def reduced(operation: str, values: Sequence[int], whole: bool) -> float:
    """What a reduction must give; an average of integers loses its fraction."""
    if operation == "product":
        result = 1
        for one in values:
            result *= one
        return result
    if operation == "average":
        return int(sum(values) / len(values)) if whole else sum(values) / len(values)
    if operation == "sum":
        return sum(values)
    return max(values) if operation == "maximum" else min(values)


class Id(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


class StepError(Exception):
    """A step failed: its code and what NCCL or the driver says."""


def say(step: str, **more: object) -> None:
    print("rank: " + json.dumps({"step": step, **more}), flush=True)


class Rank:
    """The communicator of this process, its stream and its two buffers on the device."""

    def __init__(self, rank: int, ranks: int, count: int, seconds: float) -> None:
        self.rank, self.ranks, self.count, self.seconds = rank, ranks, count, seconds
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.nccl = ctypes.CDLL(os.environ.get("NCCL_LIB", "libnccl.so.2"))
        self.nccl.ncclGetErrorString.restype = ctypes.c_char_p
        self.comm, self.stream = ctypes.c_void_p(), ctypes.c_void_p()
        self.source, self.target = ctypes.c_uint64(), ctypes.c_uint64()
        self.right = True

    def driver(self, name: str, *arguments: object) -> None:
        if code := getattr(self.cuda, name)(*arguments):
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorName(code, ctypes.byref(text))
            raise StepError(name, code, (text.value or b"").decode())

    def call(self, name: str, *arguments: object) -> None:
        if code := getattr(self.nccl, name)(*arguments):
            text = self.nccl.ncclGetErrorString(code).decode()
            last = getattr(self.nccl, "ncclGetLastError", None)
            if last:
                last.restype = ctypes.c_char_p
                text += " / " + (last(None) or b"").decode("utf-8", "replace").strip()
            raise StepError(name, code, text)

    def open(self, device: int) -> None:
        """A context of the device, a stream, and buffers that hold the data of every rank."""
        version, context, handle = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(version))
        self.driver("cuInit", 0)
        self.driver("cuDeviceGet", ctypes.byref(handle), device)
        self.driver("cuDevicePrimaryCtxRetain", ctypes.byref(context), handle)
        self.driver("cuCtxSetCurrent", context)
        self.driver("cuStreamCreate", ctypes.byref(self.stream), 1)
        for buffer in (self.source, self.target):
            self.driver("cuMemAlloc_v2", ctypes.byref(buffer), ctypes.c_size_t(4 * self.count * self.ranks))
        say("open", version=version.value, device=device)

    def init(self, id_file: pathlib.Path) -> None:
        one = Id()
        if self.rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(one))
            raw = id_file.with_suffix(".part")
            raw.write_bytes(bytes(one))
            raw.replace(id_file)
        else:
            end = time.monotonic() + 60.0  # a busy machine starts rank 0 late
            while not id_file.exists():
                if time.monotonic() > end:
                    raise StepError("id", 0, "rank 0 gave no id")
                time.sleep(0.01)
            ctypes.memmove(ctypes.byref(one), id_file.read_bytes(), 128)
        self.call("ncclCommInitRank", ctypes.byref(self.comm), self.ranks, one, self.rank)

    def look(self) -> None:
        """Look at the communicator as a program does that wants to know of errors."""
        state = ctypes.c_int()
        self.call("ncclCommGetAsyncError", self.comm, ctypes.byref(state))
        if state.value:
            raise StepError("ncclCommGetAsyncError", state.value, self.nccl.ncclGetErrorString(state.value).decode())

    def linger(self) -> None:
        end = time.monotonic() + 1.0
        while time.monotonic() < end:
            self.look()
            time.sleep(0.01)

    def finish(self) -> None:
        """Wait for the stream."""
        end = time.monotonic() + self.seconds
        while (code := self.cuda.cuStreamQuery(self.stream)) == NOT_READY:
            self.look()
            if time.monotonic() > end:
                raise StepError("cuStreamQuery", code, f"not finished after {self.seconds:g} s")
            time.sleep(0.002)
        self.driver("cuStreamQuery", self.stream)

    def fill(self, value: Callable[[int], float], length: int) -> None:
        data = (ctypes.c_float * length)(*(value(i) for i in range(length)))
        self.driver("cuMemcpyHtoD_v2", self.source, data, ctypes.c_size_t(4 * length))
        self.driver("cuMemsetD32_v2", self.target, 0xBF800000, ctypes.c_size_t(self.count * self.ranks))

    def compare(self, step: str, expected: Callable[[int], float], length: int) -> None:
        data = (ctypes.c_float * length)()
        self.driver("cuMemcpyDtoH_v2", data, self.target, ctypes.c_size_t(4 * length))
        wrong = sum(data[i] != expected(i) for i in range(length))
        untouched = wrong and all(one == -1.0 for one in data)
        self.right = self.right and not wrong
        say(step, floats=length, wrong=wrong, **({"moved": False} if untouched else {}))

    def own(self, rank: int, i: int) -> float:
        return rank + 1 + i % 7

    def summed(self, i: int) -> float:
        return self.ranks * (self.ranks + 1) / 2 + self.ranks * (i % 7)

    def collective(self, step: str) -> None:
        count, total, n = ctypes.c_size_t(self.count), self.count * self.ranks, self.ranks
        tail = (self.comm, self.stream)
        if step == "r":
            self.fill(lambda i: self.own(self.rank, i), self.count)
            self.call("ncclAllReduce", self.source, self.target, count, FLOAT, SUM, *tail)
            self.finish()
            self.compare("all_reduce", self.summed, self.count)
        elif step == "x":
            self.fill(lambda i: self.own(self.rank, i), self.count)
            graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
            self.driver("cuStreamBeginCapture_v2", self.stream, 0)
            self.call("ncclAllReduce", self.source, self.target, count, FLOAT, SUM, *tail)
            self.driver("cuStreamEndCapture", self.stream, ctypes.byref(graph))
            self.driver("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
            for _ in range(2):
                self.driver("cuGraphLaunch", ready, self.stream)
            self.finish()
            self.driver("cuGraphExecDestroy", ready)  # a communicator waits for the graphs that it is part of
            self.driver("cuGraphDestroy", graph)
            self.compare("graph", self.summed, self.count)
        elif step == "g":
            self.fill(lambda i: self.own(self.rank, i), self.count)
            self.call("ncclAllGather", self.source, self.target, count, FLOAT, *tail)
            self.finish()
            self.compare("all_gather", lambda i: self.own(i // self.count, i % self.count), total)
        elif step == "c":
            self.fill(lambda i: self.own(self.rank, i), total)
            self.call("ncclReduceScatter", self.source, self.target, count, FLOAT, SUM, *tail)
            self.finish()
            self.compare("reduce_scatter", lambda i: self.summed(i + self.rank * self.count), self.count)
        elif step == "b":
            self.fill(lambda i: self.own(self.rank, i), self.count)
            self.call("ncclBroadcast", self.source, self.target, count, FLOAT, 0, *tail)
            self.finish()
            self.compare("broadcast", lambda i: self.own(0, i), self.count)
        else:
            self.fill(lambda i: self.own(self.rank, i), self.count)
            self.call("ncclGroupStart")
            self.call("ncclSend", self.source, count, FLOAT, (self.rank + 1) % n, *tail)
            self.call("ncclRecv", self.target, count, FLOAT, (self.rank - 1) % n, *tail)
            self.call("ncclGroupEnd")
            self.finish()
            self.compare("send_receive", lambda i: self.own((self.rank - 1) % n, i), self.count)

    def types(self) -> None:
        """All-reduce of every type and reduction, with values that every type has exactly."""
        length = self.count // 2  # the buffers have room for that of 8 bytes
        for number, (name, code, signed) in enumerate(TYPES):
            sign = [-1 if signed and i % 3 == 0 else 1 for i in range(length)]
            values = [[(rank + 1 + i % 2) * sign[i] for i in range(length)] for rank in range(self.ranks)]
            data = pack(code, values[self.rank])
            for kind, operation in enumerate(OPERATIONS):
                self.driver("cuMemcpyHtoD_v2", self.source, data, ctypes.c_size_t(len(data)))
                self.driver("cuMemsetD8_v2", self.target, 0xBF, ctypes.c_size_t(len(data)))
                count = ctypes.c_size_t(length)
                self.call("ncclAllReduce", self.source, self.target, count, number, kind, self.comm, self.stream)
                self.finish()
                back = ctypes.create_string_buffer(len(data))
                self.driver("cuMemcpyDtoH_v2", back, self.target, ctypes.c_size_t(len(data)))
                expected = [reduced(operation, row, code in "bBiIqQ" and code != "") for row in zip(*values, strict=True)]
                wrong = sum(a != b for a, b in zip(unpack(code, back.raw), expected, strict=True))
                untouched = bool(wrong) and back.raw == b"\xbf" * len(data)
                self.right = self.right and not wrong
                say("all_reduce", type=name, operation=operation, wrong=wrong, **({"moved": False} if untouched else {}))

    def mixed(self) -> None:
        """Calls that give NCCL's kernels more than one work, other roots, the same buffer, connections that are used again."""
        tail, last, count = (self.comm, self.stream), self.ranks - 1, ctypes.c_size_t(self.count)
        self.fill(lambda i: self.own(self.rank, i), self.count)
        cuts = [self.count * piece // 60 for piece in range(61)]  # more than a launch's parameters have room for
        self.call("ncclGroupStart")
        for begin, end in itertools.pairwise(cuts):
            piece = (ctypes.c_uint64(one.value + 4 * begin) for one in (self.source, self.target))
            self.call("ncclAllReduce", *piece, ctypes.c_size_t(end - begin), FLOAT, SUM, *tail)
        self.call("ncclGroupEnd")
        self.finish()
        self.compare("group", self.summed, self.count)
        self.fill(lambda i: self.own(self.rank, i), self.count)
        self.call("ncclReduce", self.source, self.target, count, FLOAT, SUM, last, *tail)
        self.call("ncclBroadcast", self.target, self.target, count, FLOAT, last, *tail)
        self.finish()
        self.compare("reduce_broadcast", self.summed, self.count)
        self.fill(lambda i: self.own(self.rank, i), self.count * self.ranks)
        self.call("ncclGroupStart")
        for peer in range(self.ranks):
            sent, kept = (ctypes.c_uint64(one.value + 4 * peer * self.count) for one in (self.source, self.target))
            self.call("ncclSend", sent, count, FLOAT, peer, *tail)
            self.call("ncclRecv", kept, count, FLOAT, peer, *tail)
        self.call("ncclGroupEnd")
        self.finish()
        start = self.rank * self.count
        self.compare("all_to_all", lambda i: self.own(i // self.count, start + i % self.count), self.count * self.ranks)
        for turn in range(20):
            self.fill(lambda i: self.own(self.rank, i), self.count)
            length = max(1, self.count * (turn + 1) // 20)
            self.call("ncclAllReduce", self.source, self.source, ctypes.c_size_t(length), FLOAT, SUM, *tail)
            self.call("ncclAllReduce", self.source, self.target, ctypes.c_size_t(length), FLOAT, SUM, *tail)
            self.finish()
            self.compare("again", lambda i: self.ranks * self.summed(i), length)

    def run(self, steps: str, id_file: pathlib.Path) -> None:
        for step in steps:
            if step == "i":
                self.init(id_file)
                say("init")
            elif step == "w":
                self.linger()
            elif step == "t":
                self.types()
            elif step == "m":
                self.mixed()
            elif step in "ad":
                self.call("ncclCommDestroy" if step == "d" else "ncclCommAbort", self.comm)
                say("destroy")
            else:
                self.collective(step)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser()
    for name in ("rank", "ranks"):
        parser.add_argument(name, type=int)
    parser.add_argument("id_file", type=pathlib.Path)
    parser.add_argument("--device", type=int)
    parser.add_argument("--steps", default="ird")
    parser.add_argument("--count", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20.0)
    given: Any = parser.parse_args(arguments)
    os.dup2(1, 2)  # NCCL's own lines go to either: one file tells the order
    libc = ctypes.CDLL(None)
    libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, 1, 0)  # _IOLBF: nothing is lost with a killed process
    try:
        rank = Rank(given.rank, given.ranks, given.count, given.seconds)
        rank.open(given.rank if given.device is None else given.device)
    except (OSError, StepError) as error:
        say("failed", what=[str(one) for one in error.args])
        return 3
    try:
        rank.run(given.steps, given.id_file)
    except StepError as error:
        say("failed", what=[str(one) for one in error.args])
        return 1
    say("end", right=rank.right)
    return 0 if rank.right else 2


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads of NCCL and of the fake may still run, as after a job's own exit

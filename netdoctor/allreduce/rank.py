"""One rank of an experiment and its phases: the first part of the rank program (see zygote.py).

Standard library, the syntax of Python 3.8, nothing of netdoctor.  What carries the data is an `Engine`: torch in the job's
Python (by_torch.py), or a libnccl and the driver alone (by_nccl.py).  No file is written: the ranks of a node meet by a memfd,
NCCL's log is a memfd for each rank (all of them are the runner's, so that they can be read whatever happens here).
"""

from __future__ import annotations

import abc
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import threading
import time
from typing import Any

PROTOCOL = 1
PR_SET_PDEATHSIG = 1
SLOT = 64  # bytes of a rank's place in the progress page: collectives entered, collectives left, done
PORT = 24  # where in the first rank's place the store's port stands
PERIOD = 4099  # of the test pattern; prime, so that no chunk of a power of two repeats it
MAX_TEXT = 800  # of an error
FAILED = 70  # exit status of a rank that reported an error (EX_SOFTWARE)


class Say:
    """Sends events to the runner; one packet each, so that processes can share the socket."""

    def __init__(self, control: socket.socket, **always: Any) -> None:
        self.control = control
        self.always = dict(always, p=PROTOCOL)

    def __call__(self, event: str, **fields: Any) -> None:
        fields.update(self.always, event=event, t=time.monotonic())
        self.control.send(json.dumps(fields).encode())

    def also(self, **always: Any) -> Say:
        return Say(self.control, **dict(self.always, **always))


def text_of(error: object) -> str:
    """An exception in one line: torch appends the C++ stack after "Exception raised from"."""
    text = str(error).split("\nException raised from")[0]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [] if lines and getattr(error, "in_full", False) else [type(error).__name__]
    text = ": ".join([*named, *([" / ".join(lines)] if lines else [])])
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 200] + " … " + text[-200:]


def die_with_parent(parent: int) -> None:
    """Get SIGKILL when the parent dies, however it dies."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(FAILED)


def libraries() -> list[str]:
    """libnccl files that this process has mapped."""
    found: set[str] = set()
    with open("/proc/self/maps") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if os.path.basename(path).startswith("libnccl"):
                found.add("/" + path)
    return sorted(found)


def thread_affinity() -> list[int]:
    """The CPUs of a thread that is started now (what NCCL's proxy threads would inherit)."""
    seen: list[list[int]] = []
    thread = threading.Thread(target=lambda: seen.append(sorted(os.sched_getaffinity(0))))
    thread.start()
    thread.join()
    return seen[0]


# One rank


def busy_link() -> dict[str, Any]:
    """Where this rank's GPU is on PCI, and the speed of its link just after it worked (one that rests lowers it), in GT/s.

    {} where the driver or sysfs does not tell.
    """
    device, place = ctypes.c_int(), ctypes.create_string_buffer(32)
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuCtxGetDevice(ctypes.byref(device)) or cuda.cuDeviceGetPCIBusId(place, len(place), device):
            return {}
        address = place.value.decode().lower()
        with open(f"/sys/bus/pci/devices/{address}/current_link_speed") as file:
            return {"gpu": address, "link_speed": float(file.read().split()[0])}
    except (OSError, AttributeError, ValueError, IndexError):
        return {}


class Progress:
    """A page shared with the runner: how far each rank is, without a message."""

    def __init__(self, descriptor: int, rank: int) -> None:
        self.page = mmap.mmap(descriptor, 0)
        self.at = rank * SLOT
        self.count = 0

    def enter(self) -> None:
        self.count += 1
        struct.pack_into("<Q", self.page, self.at, self.count)

    def leave(self) -> None:
        struct.pack_into("<Q", self.page, self.at + 8, self.count)

    def done(self, ranks: int, seconds: float) -> None:
        """Say that this rank needs nobody any more, and wait until nobody needs it (its sends may still be under way)."""
        struct.pack_into("<Q", self.page, self.at + 16, 1)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if all(struct.unpack_from("<Q", self.page, rank * SLOT + 16)[0] for rank in range(ranks)):
                return
            time.sleep(0.001)


class Engine(abc.ABC):
    """What carries the collectives of one rank.  The phases are the rank's, and each of them calls these, in this order.

    Sizes are bytes of one buffer of float32, from its start.
    """

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    @staticmethod
    @abc.abstractmethod
    def load(library: str) -> None:
        """What the process that forks the ranks loads for all of them.  Raises what stands in the way."""

    @staticmethod
    @abc.abstractmethod
    def absent(error: BaseException) -> bool:
        """Whether what `load` raised says that there is nothing to load."""

    @staticmethod
    @abc.abstractmethod
    def tell_facts(say: Say) -> None:
        """Tell, piece by piece (what comes next may hang), what there is to carry anything with; in a process of its own."""

    @abc.abstractmethod
    def meet(self) -> None:
        """Find the other ranks."""

    @abc.abstractmethod
    def open(self) -> None:
        """Take the device."""

    @abc.abstractmethod
    def init(self) -> None:
        """Make the communicator."""

    @abc.abstractmethod
    def allocate(self, size: int) -> None:
        """Make the buffer, and the pattern."""

    @abc.abstractmethod
    def fill(self, size: int) -> None:
        """Write this rank's pattern."""

    @abc.abstractmethod
    def reduce(self, size: int) -> None:
        """Begin an all-reduce; `wait` ends it."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Wait for all that was begun."""

    @abc.abstractmethod
    def wrong(self, size: int) -> int:
        """The number of elements that are not the exact sum."""

    @abc.abstractmethod
    def events(self, count: int) -> list[Any]:
        """So many events of the device's own clock; none where the device has no clock."""

    @abc.abstractmethod
    def record(self, event: Any) -> None:
        """Have the device note the time, after all that was begun."""

    @abc.abstractmethod
    def between(self, first: Any, second: Any) -> float:
        """Seconds."""

    @abc.abstractmethod
    def part(self, seconds: float) -> None:
        """Where other nodes take part: leave when nobody needs this rank any more."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back what was taken; never raises."""


class Rank:
    """One rank of one experiment, in a process of its own."""

    def __init__(self, say: Say, plan: dict[str, Any], rank: int, store: int, progress: int, log: int) -> None:
        self.say, self.plan = say, plan
        # The place on this node, and the one among all ranks: the same, unless other nodes take part (`across`).
        self.local, self.locals = rank, plan["ranks"]
        self.several = "across" in plan
        self.across: dict[str, Any] = plan.get("across") or {"first": 0, "world": plan["ranks"]}
        self.rank, self.ranks = self.across["first"] + rank, self.across["world"]
        self.store, self.log = store, log
        self.progress = Progress(progress, rank)
        self.cuda = plan["device"] == "cuda"
        self.phase = "spawn"
        self.begin = 0.0
        self.collective_seconds = 0.0  # seconds in collectives, all of them
        self.engine: Engine

    def enter(self, phase: str) -> None:
        self.phase = phase
        self.say("phase", phase=phase)

    def settle(self) -> None:
        """Environment and binding, before any library reads them."""
        changes = list(self.plan["env"]) + list(self.plan["rank_env"][self.local] if self.plan["rank_env"] else [])
        for name, value in [*changes, ["NCCL_DEBUG_FILE", f"/proc/self/fd/{self.log}"]]:
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self.plan["binding"]:
            os.sched_setaffinity(0, self.plan["binding"][self.local])

    def run(self, kind: type[Engine]) -> None:
        self.enter("import")  # it came with the fork
        self.engine = kind(self)
        self.say("affinity", main=sorted(os.sched_getaffinity(0)), thread=thread_affinity())
        self.enter("rendezvous")
        self.engine.meet()
        self.enter("device")
        self.engine.open()
        self.enter("init")
        self.engine.init()
        self.enter("first")
        sizes = self.plan["sizes"]
        self.engine.allocate(max(sizes))
        self.say("verified", bytes=min(sizes), wrong=self.verify(min(sizes)))
        self.enter("timed")
        cpu = [0.0, 0.0]
        moved = 0
        for size in sizes:
            moved += self.time(size, cpu)
        link = busy_link() if self.cuda else {}
        self.enter("verify")
        for size in sizes:
            self.say("verified", bytes=size, wrong=self.verify(size))
        self.say(
            "result",
            system_cpu=cpu[1],
            user_cpu=cpu[0],
            bytes_moved=moved,
            mapped=libraries(),
            collective_seconds=self.collective_seconds,
            **link,
        )
        self.enter("done")
        if self.several:
            self.engine.part(5.0)
        self.progress.done(self.locals, 5.0)
        self.engine.close()

    def all_reduce(self, size: int) -> None:
        """One collective (on CUDA only its start); `finish` ends it."""
        self.progress.enter()
        self.begin = time.perf_counter()
        self.engine.reduce(size)

    def finish(self) -> None:
        self.engine.wait()
        self.collective_seconds += time.perf_counter() - self.begin
        self.progress.leave()

    def verify(self, size: int) -> int:
        """All-reduce the pattern; the number of elements that are not the exact sum."""
        self.engine.fill(size)
        self.all_reduce(size)
        self.finish()
        return self.engine.wrong(size)

    def time(self, size: int, cpu: list[float]) -> int:
        """Time the all-reduce; tells the median, gives the bytes that this rank moved."""
        import resource

        repeats = self.plan["repeats"] or (50 if size <= 1 << 16 else 20 if self.cuda or size <= 1 << 22 else 5)
        self.engine.fill(size)
        begin = time.perf_counter()
        self.all_reduce(size)  # warm: buffers, connections
        self.finish()
        warm = time.perf_counter() - begin
        before = resource.getrusage(resource.RUSAGE_SELF)
        # A slow path is timed one by one, so that the runner sees that it still progresses.
        events = self.engine.events(repeats + 1) if warm < 0.05 else []
        seconds = self.time_events(size, events) if events else self.time_each(size, repeats)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu[0] += after.ru_utime - before.ru_utime
        cpu[1] += after.ru_stime - before.ru_stime
        self.collective_seconds += sum(seconds)
        seconds.sort()
        middle = len(seconds) // 2
        median = seconds[middle] if len(seconds) % 2 else (seconds[middle - 1] + seconds[middle]) / 2
        self.say("size", bytes=size, seconds=median)
        return int(size * repeats)

    def time_each(self, size: int, repeats: int) -> list[float]:
        seconds = []
        for _ in range(repeats):
            self.progress.enter()
            begin = time.perf_counter()
            self.engine.reduce(size)
            self.engine.wait()
            seconds.append(time.perf_counter() - begin)
            self.progress.leave()
        return seconds

    def time_events(self, size: int, events: list[Any]) -> list[float]:
        """Events between the collectives: what the GPU took, without the way to it and back."""
        self.engine.record(events[0])
        for event in events[1:]:
            self.all_reduce(size)
            self.engine.record(event)
        self.finish()
        return [self.engine.between(events[n], events[n + 1]) for n in range(len(events) - 1)]


def table(rank: int) -> list[int]:
    """The data of a rank, repeated: ((i mod P) * (2 r + 1) + 31 r) mod 251 at index i, P = PERIOD.

    Every sum is an integer far below 2**24, so float32 addition is exact in any order, and ranks or chunks that change places
    are noticed.
    """
    return [(i * (2 * rank + 1) + 31 * rank) % 251 for i in range(PERIOD)]


def run_rank(kind: type[Engine], say: Say, plan: dict[str, Any], rank: int, descriptors: list[int], parent: int) -> None:
    """A forked child's whole life."""
    status = FAILED
    program = None
    try:
        die_with_parent(parent)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        program = Rank(say, plan, rank, descriptors[0], descriptors[1], descriptors[2 + rank])
        program.settle()
        program.run(kind)
        status = 0
    except BaseException as error:  # noqa: BLE001  (whatever ends a rank is told before it ends)
        say("error", phase=program.phase if program else "spawn", error=text_of(error))
    finally:
        os._exit(status)

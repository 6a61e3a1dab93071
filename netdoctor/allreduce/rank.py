"""One rank of an experiment, as it runs in the job's Python: the first half of the rank program (see zygote.py).

Standard library and torch, the syntax of Python 3.8, nothing of netdoctor.  No file is written: the rendezvous is a FileStore
on a memfd, NCCL's log is a memfd for each rank (all of them are the runner's, so that they can be read whatever happens here).
On one node nothing is listened on; across nodes the rendezvous is a TCPStore of the first rank, on a port the kernel gives.
"""

from __future__ import annotations

import ctypes
import inspect
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
    text = type(error).__name__ + ": " + " / ".join(lines) if lines else type(error).__name__
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


class Rank:
    """One rank of one experiment, in a process of its own."""

    def __init__(self, say: Say, plan: dict[str, Any], rank: int, store: int, progress: int, log: int) -> None:
        import torch
        import torch.distributed as dist

        self.torch, self.dist = torch, dist
        self.say, self.plan = say, plan
        # The place on this node, and the one among all ranks: the same, unless other nodes take part (`across`).
        self.local, self.locals = rank, plan["ranks"]
        self.across: dict[str, Any] = plan.get("across") or {"first": 0, "world": plan["ranks"]}
        self.rank, self.ranks = self.across["first"] + rank, self.across["world"]
        self.store, self.log = store, log
        self.progress = Progress(progress, rank)
        self.cuda = plan["device"] == "cuda"
        self.device = torch.device("cuda", plan["gpus"][rank]) if self.cuda else torch.device("cpu")
        self.phase = "spawn"
        self.begin = 0.0
        self.collective_seconds = 0.0  # seconds in collectives, all of them

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

    def run(self) -> None:
        self.enter("import")  # torch came with the fork
        self.say("affinity", main=sorted(os.sched_getaffinity(0)), thread=thread_affinity())
        self.enter("rendezvous")
        store = self.meet() if "port" in self.across else self.dist.FileStore(f"/proc/self/fd/{self.store}", self.ranks)
        self.enter("device")
        if self.cuda:
            self.torch.cuda.set_device(self.device)
            self.torch.zeros(1, device=self.device)
            self.torch.cuda.synchronize(self.device)
        self.enter("init")
        self.init(store)
        self.enter("first")
        table, exact = self.tables()
        buffer = self.torch.empty(max(self.plan["sizes"]) // 4, dtype=self.torch.float32, device=self.device)
        smallest = min(self.plan["sizes"])
        self.say("verified", bytes=smallest, wrong=self.verify(buffer[: smallest // 4], table, exact))
        self.enter("timed")
        cpu = [0.0, 0.0]
        moved = 0
        for size in self.plan["sizes"]:
            moved += self.time(buffer[: size // 4], size, table, cpu)
        self.enter("verify")
        for size in self.plan["sizes"]:
            self.say("verified", bytes=size, wrong=self.verify(buffer[: size // 4], table, exact))
        self.say(
            "result",
            system_cpu=cpu[1],
            user_cpu=cpu[0],
            bytes_moved=moved,
            mapped=libraries(),
            collective_seconds=self.collective_seconds,
        )
        self.enter("done")
        if "port" in self.across:
            self.part(store, 5.0)
        self.progress.done(self.locals, 5.0)

    def meet(self) -> Any:
        """The store of all nodes: the first rank of all serves it on a port of its own, the others come to it."""
        from datetime import timedelta

        serve = self.rank == 0
        options: dict[str, Any] = {"timeout": timedelta(seconds=self.plan["timeout"]), "wait_for_workers": False}
        port = self.across["port"]
        while not port and not serve:  # on the first node: the port is known when the first rank has it
            time.sleep(0.002)
            port = struct.unpack_from("<Q", self.progress.page, PORT)[0]
        store = self.dist.TCPStore(self.across["host"], port, self.ranks, serve, **options)
        if serve:
            struct.pack_into("<Q", self.progress.page, PORT, store.port)
            self.say("store", port=store.port)
        return store

    def part(self, store: Any, seconds: float) -> None:
        """Leave when all have arrived here; the store's rank last, for it takes the store along."""
        end = time.monotonic() + seconds
        try:
            for key in ("netdoctor/done", "netdoctor/left"):
                store.add(key, 1)
                while (self.rank == 0 or key.endswith("done")) and store.add(key, 0) < self.ranks and time.monotonic() < end:
                    time.sleep(0.002)
        except Exception:  # noqa: BLE001  (the store went with its rank: nobody waits for this one either)
            pass

    def init(self, store: Any) -> None:
        from datetime import timedelta

        # The runner judges what hangs; torch's own time-outs would only blur which rank was first.
        options: dict[str, Any] = {"timeout": timedelta(seconds=self.plan["timeout"])}
        known = inspect.signature(self.dist.init_process_group).parameters
        if self.cuda and self.plan["backend"] == "nccl" and "device_id" in known:
            options["device_id"] = self.device  # makes the communicator here, not in the first collective (torch >= 2.3)
        self.dist.init_process_group(self.plan["backend"], store=store, rank=self.rank, world_size=self.ranks, **options)

    def all_reduce(self, tensor: Any) -> None:
        """One collective (on CUDA only its start); `finish` ends it."""
        self.progress.enter()
        self.begin = time.perf_counter()
        self.dist.all_reduce(tensor)

    def finish(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize(self.device)
        self.collective_seconds += time.perf_counter() - self.begin
        self.progress.leave()

    # The data: rank r holds ((i mod P) * (2 r + 1) + 31 r) mod 251 at index i, P = PERIOD.  Every sum is an integer far
    # below 2**24, so float32 addition is exact in any order, and ranks or chunks that change places are noticed.

    def tables(self) -> tuple[Any, Any]:
        index = self.torch.arange(PERIOD, device=self.device)
        tables = [((index * (2 * r + 1) + 31 * r) % 251).to(self.torch.float32) for r in range(self.ranks)]
        return tables[self.rank], sum(tables)

    def fill(self, tensor: Any, table: Any) -> None:
        whole = tensor.numel() // PERIOD * PERIOD
        tensor[:whole].view(-1, PERIOD).copy_(table.expand(whole // PERIOD, PERIOD))
        tensor[whole:].copy_(table[: tensor.numel() - whole])

    def verify(self, tensor: Any, table: Any, exact: Any) -> int:
        """All-reduce the pattern; the number of elements that are not the exact sum."""
        self.fill(tensor, table)
        self.all_reduce(tensor)
        self.finish()
        whole = tensor.numel() // PERIOD * PERIOD
        rows = tensor[:whole].view(-1, PERIOD)
        rest = tensor[whole:]
        if bool(self.torch.equal(rest, exact[: rest.numel()])) and bool((rows == exact).all()):
            return 0
        return int((rows != exact).sum()) + int((rest != exact[: rest.numel()]).sum())

    def time(self, tensor: Any, size: int, table: Any, cpu: list[float]) -> int:
        """Time the all-reduce of `tensor`; tells the median, gives the bytes that this rank moved."""
        import resource

        repeats = self.plan["repeats"] or (50 if size <= 1 << 16 else 20 if self.cuda or size <= 1 << 22 else 5)
        self.fill(tensor, table)
        begin = time.perf_counter()
        self.all_reduce(tensor)  # warm: buffers, connections
        self.finish()
        warm = time.perf_counter() - begin
        before = resource.getrusage(resource.RUSAGE_SELF)
        # A slow path is timed one by one, so that the runner sees that it still progresses.
        seconds = self.time_events(tensor, repeats) if self.cuda and warm < 0.05 else self.time_each(tensor, repeats)
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu[0] += after.ru_utime - before.ru_utime
        cpu[1] += after.ru_stime - before.ru_stime
        self.collective_seconds += sum(seconds)
        seconds.sort()
        middle = len(seconds) // 2
        median = seconds[middle] if len(seconds) % 2 else (seconds[middle - 1] + seconds[middle]) / 2
        self.say("size", bytes=size, seconds=median)
        return size * repeats

    def time_each(self, tensor: Any, repeats: int) -> list[float]:
        seconds = []
        for _ in range(repeats):
            self.progress.enter()
            begin = time.perf_counter()
            self.dist.all_reduce(tensor)
            if self.cuda:
                self.torch.cuda.synchronize(self.device)
            seconds.append(time.perf_counter() - begin)
            self.progress.leave()
        return seconds

    def time_events(self, tensor: Any, repeats: int) -> list[float]:
        """Events between the collectives: what the GPU took, without the way to it and back."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for number in range(repeats):
            self.all_reduce(tensor)
            events[number + 1].record()
        self.finish()
        return [events[n].elapsed_time(events[n + 1]) / 1e3 for n in range(repeats)]


def run_rank(say: Say, plan: dict[str, Any], rank: int, descriptors: list[int], parent: int) -> None:
    """A forked child's whole life."""
    status = FAILED
    program = None
    try:
        die_with_parent(parent)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        program = Rank(say, plan, rank, descriptors[0], descriptors[1], descriptors[2 + rank])
        program.settle()
        program.run()
        status = 0
    except BaseException as error:  # noqa: BLE001  (whatever ends a rank is told before it ends)
        say("error", phase=program.phase if program else "spawn", error=text_of(error))
    finally:
        os._exit(status)

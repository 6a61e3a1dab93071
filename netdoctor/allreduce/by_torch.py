"""The engine of a job that has torch: torch.distributed, in the job's Python.  A part of the rank program (see zygote.py).

On one node the rendezvous is a FileStore on a memfd, and nothing is listened on; across nodes it is a TCPStore of the first
rank, on a port that the kernel gives.
"""

from __future__ import annotations

import inspect
import os
import struct
import time
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # in the job's Python these names are there already
    from netdoctor.allreduce.rank import MAX_TEXT, PERIOD, PORT, Engine, Rank, Say, table, text_of

# torch's classes that carry tensors, and by what library (distributed_c10d.py).  A family has several names for one library:
# from torch 2.15 "nccl" is ProcessGroupNCCL2 ("nccl2"), beside ProcessGroupNCCL ("nccl-legacy") and ProcessGroupNCCLLazy.
CARRIERS = {
    "ProcessGroupNCCL": "nccl",
    "ProcessGroupGloo": "gloo",
    "ProcessGroupMPI": "mpi",
    "ProcessGroupUCC": "ucc",
}


def effective_backends(dist: Any) -> dict[str, str]:
    """Device type -> what carries its tensors in the default group, as this torch made it."""
    module = dist.distributed_c10d
    group = module._get_default_group()
    devices = list(getattr(group, "_device_types", ()))
    if not devices:
        import torch

        config = str(module._world.pg_backend_config[group])  # "cpu:gloo,cuda:nccl": what was asked for, not what came of it
        devices = [torch.device(pair.partition(":")[0]) for pair in config.split(",")]
    return {device.type: carrier(group._get_backend(device)) for device in devices}


def carrier(backend: Any) -> str:
    """What carries the tensors, by torch's own class: "nccl", "gloo", "mpi", "ucc"; of any other, its class and name."""
    while hasattr(backend, "wrapped_pg"):  # TORCH_DISTRIBUTED_DEBUG=DETAIL
        backend = backend.wrapped_pg
    for kind in type(backend).__mro__:
        for family, library in CARRIERS.items():
            if kind.__name__.startswith(family) and kind.__module__.partition(".")[0] == "torch":
                return library
    return f"{type(backend).__name__} ({backend.name()})"


def torch_facts(say: Say) -> None:
    """Tell, piece by piece (what comes next may hang), what this torch has and which backend it would take."""
    import torch
    import torch.distributed as dist

    say("fact", version=str(torch.__version__), hip=getattr(torch.version, "hip", None))
    say("fact", nccl_built=dist.is_available() and dist.is_nccl_available())
    with warnings.catch_warnings(record=True) as caught:  # torch says in a warning why CUDA cannot be used
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    say("fact", cuda_available=available, cuda_warning=" / ".join(text_of(w.message) for w in caught)[:MAX_TEXT])
    say("fact", device_count=torch.cuda.device_count() if available else 0)
    try:
        version = torch.cuda.nccl.version()
        say("fact", nccl=version if isinstance(version, str) else ".".join(str(n) for n in version))
    except Exception:  # noqa: BLE001  (a CPU build has no such function; an int (torch < 1.10) is not iterable)
        say("fact", nccl="")
    for name, backend in (("backends", None), ("backends_nccl", "nccl")):
        ask_backend(say, dist, name, backend)


def ask_backend(say: Say, dist: Any, name: str, backend: str | None) -> None:
    """Make a group of one rank with this `backend` and tell what it would carry which tensors with."""
    try:
        store = dist.FileStore(f"/proc/self/fd/{os.memfd_create(name)}", 1)
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        say("fact", **{name: effective_backends(dist)})
        dist.destroy_process_group()
    except Exception as error:  # noqa: BLE001  (whatever torch says is the answer)
        say("fact", **{name: {}, name + "_error": text_of(error)})


class TorchEngine(Engine):
    """All-reduce by torch.distributed, by whatever library carries it."""

    def __init__(self, rank: Rank) -> None:
        import torch
        import torch.distributed as dist

        super().__init__(rank)
        self.torch, self.dist = torch, dist
        self.device = torch.device("cuda", rank.plan["gpus"][rank.local]) if rank.cuda else torch.device("cpu")
        self.met: Any = None  # the store
        self.buffer: Any = None
        self.views: dict[int, Any] = {}  # of it, by size: a slice for each collective would cost microseconds of its time
        self.own: Any = None  # the pattern of this rank
        self.exact: Any = None  # and the sum of all

    @staticmethod
    def load(library: str) -> None:
        import torch.distributed as dist

        if not dist.is_available():
            raise ImportError("this torch was built without torch.distributed")

    @staticmethod
    def absent(error: BaseException) -> bool:
        return isinstance(error, ImportError) and getattr(error, "name", "") == "torch"

    @staticmethod
    def tell_facts(say: Say) -> None:
        torch_facts(say)

    def meet(self) -> None:
        rank = self.rank
        if rank.several:
            self.met = self.meet_others()
        else:
            self.met = self.dist.FileStore(f"/proc/self/fd/{rank.store}", rank.ranks)

    def meet_others(self) -> Any:
        """The store of all nodes: the first rank of all serves it on a port of its own, the others come to it."""
        from datetime import timedelta

        rank = self.rank
        serve = rank.rank == 0
        options: dict[str, Any] = {"timeout": timedelta(seconds=rank.plan["timeout"]), "wait_for_workers": False}
        port = rank.across["port"]
        while not port and not serve:  # on the first node: the port is known when the first rank has it
            time.sleep(0.002)
            port = struct.unpack_from("<Q", rank.progress.page, PORT)[0]
        store = self.dist.TCPStore(rank.across["host"], port, rank.ranks, serve, **options)
        if serve:
            struct.pack_into("<Q", rank.progress.page, PORT, store.port)
            rank.say("store", port=store.port)
        return store

    def open(self) -> None:
        if self.rank.cuda:
            self.torch.cuda.set_device(self.device)
            self.torch.zeros(1, device=self.device)
            self.torch.cuda.synchronize(self.device)

    def init(self) -> None:
        from datetime import timedelta

        rank = self.rank
        # The runner judges what hangs; torch's own time-outs would only blur which rank was first.
        options: dict[str, Any] = {"timeout": timedelta(seconds=rank.plan["timeout"])}
        known = inspect.signature(self.dist.init_process_group).parameters
        if rank.cuda and rank.plan["backend"] == "nccl" and "device_id" in known:
            options["device_id"] = self.device  # makes the communicator here, not in the first collective (torch >= 2.3)
        self.dist.init_process_group(rank.plan["backend"], store=self.met, rank=rank.rank, world_size=rank.ranks, **options)

    def allocate(self, size: int) -> None:
        float32 = self.torch.float32
        tables = [self.torch.tensor(table(r), dtype=float32, device=self.device) for r in range(self.rank.ranks)]
        self.own, self.exact = tables[self.rank.rank], sum(tables)
        self.buffer = self.torch.empty(size // 4, dtype=float32, device=self.device)

    def fill(self, size: int) -> None:
        tensor = self.views[size] = self.buffer[: size // 4]
        whole = tensor.numel() // PERIOD * PERIOD
        tensor[:whole].view(-1, PERIOD).copy_(self.own.expand(whole // PERIOD, PERIOD))
        tensor[whole:].copy_(self.own[: tensor.numel() - whole])

    def reduce(self, size: int) -> None:
        self.dist.all_reduce(self.views[size])

    def wait(self) -> None:
        if self.rank.cuda:
            self.torch.cuda.synchronize(self.device)

    def wrong(self, size: int) -> int:
        tensor = self.views[size]
        whole = tensor.numel() // PERIOD * PERIOD
        rows, rest = tensor[:whole].view(-1, PERIOD), tensor[whole:]
        exact, part = self.exact, self.exact[: rest.numel()]
        if bool(self.torch.equal(rest, part)) and bool((rows == exact).all()):
            return 0
        # A GPU whose kernels do nothing counts none, and finds none equal either.
        return max(1, int((rows != exact).sum()) + int((rest != part).sum()))

    def events(self, count: int) -> list[Any]:
        return [self.torch.cuda.Event(enable_timing=True) for _ in range(count)] if self.rank.cuda else []

    def record(self, event: Any) -> None:
        event.record()

    def between(self, first: Any, second: Any) -> float:
        return float(first.elapsed_time(second)) / 1e3

    def part(self, seconds: float) -> None:
        """Leave when all have arrived here; the store's rank last, for it takes the store along."""
        end = time.monotonic() + seconds
        first, ranks = self.rank.rank == 0, self.rank.ranks
        try:
            for key in ("netdoctor/done", "netdoctor/left"):
                self.met.add(key, 1)
                while (first or key.endswith("done")) and self.met.add(key, 0) < ranks and time.monotonic() < end:
                    time.sleep(0.002)
        except Exception:  # noqa: BLE001  (the store went with its rank: nobody waits for this one either)
            pass

    def close(self) -> None:
        """All of it goes with the process."""

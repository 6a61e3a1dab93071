"""Figures of real GPUs: what the all-reduce costs and how near it is to a bare loop of torch.distributed on the same GPU.

`MEASURES` are run one by one, so that one that breaks costs no other.  Without a GPU, or without a torch that can use it,
`rows()` gives nothing and says so in one line.  NETDOCTOR_TORCH_PYTHON names the Python with that torch (default: this one).
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from bench import Row, row

ROOT: Final = pathlib.Path(__file__).parents[1]
PYTHON: Final = os.environ.get("NETDOCTOR_TORCH_PYTHON") or sys.executable
MIB: Final = 1 << 20
PAIRS: Final = 30
RECORDED: Final = "recorded, no goal"


class CannotError(Exception):
    """This machine cannot show the figure."""


@functools.cache
def devices() -> tuple[int, str]:
    """CUDA devices that this torch can use, and why there are none.  This process stays free of CUDA."""
    program = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    try:
        done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 0, str(error)
    words = done.stdout.split()
    count = int(words[-1]) if words and words[-1].isdigit() else 0
    return count, "" if count else "no CUDA device, or no torch that can use it"


def rows() -> Iterator[Row]:
    count, why = devices()
    if not count:
        print(f"gpu: not run ({why})", file=sys.stderr)
        return
    for measure in MEASURES:
        yield from _or_say(measure)


def _or_say(measure: Measure) -> Iterator[Row]:
    try:
        yield from measure.rows()
    except CannotError as error:
        print(f"{measure.name}: not run ({error})", file=sys.stderr)


def _preflight() -> dict[str, Any]:
    """One whole preflight on the GPU: wall seconds, and the baseline's run out of the report."""
    command = [sys.executable, "-m", "netdoctor", "preflight", "--python", PYTHON, "--vantage", "job", "--format", "json"]
    _settle()
    begin = time.perf_counter()
    done = subprocess.run([*command, "--quiet"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    wall = time.perf_counter() - begin
    report = json.loads(done.stdout)
    state = {c["id"]: c for c in report["checks"]}["allreduce.run"]["status"]
    if state != "pass":
        raise RuntimeError(f"allreduce.run is {state}, not pass")
    return {"wall": wall, "run": report["volatile"]["runs"][0]}


def split() -> Iterator[Row]:
    """From the start of a whole preflight to its verdict, and the parts of it."""
    taken = [_preflight() for _ in range(3)][1:]  # the first one warms the page cache

    def phase(one: dict[str, Any], *names: str) -> float:
        ranks = one["run"]["ranks"]
        return max((sum(r["phase_seconds"].get(n, 0.0) for n in names) for r in ranks), default=0.0)

    parts: dict[str, Callable[[dict[str, Any]], float]] = {
        "start_to_verdict": lambda one: float(one["wall"]),
        "import": lambda one: float(one["run"]["import_seconds"]),
        "cuda_context": lambda one: phase(one, "device"),
        "nccl_init": lambda one: phase(one, "rendezvous", "init"),
        "experiments": lambda one: phase(one, "first", "timed", "verify"),
    }
    for name, part in parts.items():
        yield row(f"gpu.split.{name}", statistics.median(part(one) for one in taken), "s", None, RECORDED, True)


def memory() -> Iterator[Row]:
    """The most GPU memory in use by NVML while two ranks run, less what was before, a rank."""
    experiment = _two()
    per_gpu = 2 if len(set(experiment.gpus)) == 1 else 1
    before = _used()
    most, stop = [before], threading.Event()

    def watch() -> None:
        while not stop.is_set():
            most.append(_used())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run = _session().run(experiment, again=True)
    finally:
        stop.set()
        watcher.join()
    _finished(run)
    value = (max(most) - before) / per_gpu / 1e9
    if not value:
        raise CannotError("NVML showed no more memory in use while the ranks ran")
    yield row("gpu.memory", value, "GB", None, "<= 1.5 GB a rank", value <= 1.5)


def one_latency() -> Iterator[Row]:
    """A world of one: nothing but the library's own way, so what netdoctor adds would show."""
    data = _bare_loop(1, MIB, PAIRS)
    ratios = [ours / bare for ours, bare in zip(data["ours"], data["bare"], strict=True)]
    middle = statistics.median(ratios)
    yield row(
        "gpu.one_latency",
        statistics.median(data["ours"]) * 1e6,
        "us",
        statistics.median(data["bare"]) * 1e6,
        f"median of {len(ratios)} paired ratios {middle:.3f} within 0.95-1.05",
        0.95 <= middle <= 1.05,
    )


def busbw() -> Iterator[Row]:
    """A rank a GPU at 256 MiB, against a bare loop."""
    count = _need(2)
    data = _bare_loop(min(count, 16), 256 * MIB, 7)
    ratios = [bare / ours for ours, bare in zip(data["ours"], data["bare"], strict=True)]  # seconds: bandwidths are inverse
    middle = statistics.median(ratios)
    from netdoctor.allreduce.verdict import busbw as formula

    mine, theirs = (formula(256 * MIB, statistics.median(data[side]), min(count, 16)) for side in ("ours", "bare"))
    goal = f"median of {len(ratios)} paired ratios {middle:.3f} within 0.98-1.02"
    yield row("gpu.busbw", mine, "GB/s", theirs, goal, 0.98 <= middle <= 1.02)


def torch_free() -> Iterator[Row]:
    """Start to verdict of the same two-rank all-reduce: libnccl and libcuda alone against torch (import included)."""
    from netdoctor.allreduce.runner import Session

    experiment = replace(_two(), sizes=(4096, MIB))
    torch_seconds: list[float] = []
    alone_seconds: list[float] = []
    path = ""
    for number in range(4):
        for kept in (torch_seconds, alone_seconds):
            begin = time.perf_counter()
            session = _new_session() if kept is torch_seconds else Session(sys.executable, dict(os.environ), library=path)
            try:
                run = _finished(session.run(experiment))
                kept.append(time.perf_counter() - begin)
            finally:
                session.close()
            if not run.mapped:
                raise CannotError("NCCL is linked into torch: there is no libnccl to call")
            path = run.mapped[0]
        if number == 0:
            torch_seconds.clear()
            alone_seconds.clear()
    mine, theirs = statistics.median(alone_seconds), statistics.median(torch_seconds)
    goal = f"at most 0.5 x the torch path ({theirs / mine:.2f} times as fast)"
    yield row("gpu.torch_free.start_to_verdict", mine, "s", theirs, goal, mine <= 0.5 * theirs)
    yield row("gpu.torch_free.size", os.path.getsize(path) / 1e6, "MB", _size_of_torch(), RECORDED, True)


def gloo() -> Iterator[Row]:
    """CUDA tensors by Gloo (over TCP) against NCCL: what a silent fallback costs."""
    experiment = _two()
    from netdoctor.facts.runs import Path

    size = 16 * MIB
    nccl = replace(experiment, sizes=(size,))
    other = replace(nccl, backend="gloo", env=(), rank_env=(), path=Path())
    ours = [_finished(_session().run(nccl, again=True)).latency[size] for _ in range(3)]
    theirs = [_finished(_session().run(other, again=True)).latency[size] for _ in range(3)]
    shared = " (two ranks on one GPU take turns: the path, no bandwidth)" if len(set(experiment.gpus)) == 1 else ""
    yield row("gpu.gloo", statistics.median(theirs), "s", statistics.median(ours), RECORDED + shared, True)


def debug() -> Iterator[Row]:
    """NCCL_DEBUG=INFO with netdoctor's subsystems against WARN: whether looking changes what is seen."""
    from netdoctor.facts.runs import Cure

    experiment = replace(_two(), sizes=(MIB,))
    quiet = replace(experiment, env=(*experiment.env, ("NCCL_DEBUG", "WARN"), ("NCCL_DEBUG_SUBSYS", None)))
    yield from _compare("gpu.debug", Cure(quiet, experiment, "NCCL_DEBUG=WARN"))


def numa() -> Iterator[Row]:
    """The same ranks on the CPUs of the GPU's node and of the node farthest from it."""
    from netdoctor.facts import cpu, gpu
    from netdoctor.facts.runs import Cure
    from netdoctor.host.live import LiveHost
    from netdoctor.model import Unavailable

    host = LiveHost()
    try:
        cpus, gpus = cpu.probe(host), gpu.probe(host)
    finally:
        host.close()
    if isinstance(cpus.nodes, Unavailable) or isinstance(gpus.of_the_job, Unavailable):
        raise CannotError("NUMA nodes or GPUs could not be read")
    allowed = os.sched_getaffinity(0)
    nodes = {node.id: sorted(set(node.cpus) & allowed) for node in cpus.nodes if set(node.cpus) & allowed}
    first = gpus.of_the_job[0][1]
    near = first.numa_node if first is not None else None
    if not isinstance(near, int) or near not in nodes or len(nodes) < 2:
        raise CannotError(f"the GPU's NUMA node is {near}, and the CPUs that may be used are on {sorted(nodes)}")
    row_of = next(node for node in cpus.nodes if node.id == near)
    distances = row_of.distances if not isinstance(row_of.distances, Unavailable) else {}
    far = max((n for n in nodes if n != near), key=lambda n: distances.get(n, 0))
    base = replace(_two(), sizes=(64 * MIB,))
    change, other = (replace(base, binding=(tuple(nodes[n]),) * base.ranks) for n in (near, far))
    yield from _compare("gpu.numa", Cure(change, other, f"CPUs of node {near} instead of {far}"))


@dataclass(frozen=True)
class Measure:
    """One figure, by the name of its claim."""

    name: str
    rows: Callable[[], Iterator[Row]]


MEASURES: Final = tuple(
    Measure(f"gpu.{function.__name__}", function)
    for function in (split, memory, one_latency, busbw, torch_free, gloo, numa, debug)
)


# Parts


def _need(count: int) -> int:
    have = devices()[0]
    if have < count:
        raise CannotError(f"needs {count} GPUs, this machine has {have}")
    return have


def _two() -> Any:
    """Two ranks as the plan would run them: a GPU each, or both on the only one."""
    from netdoctor.allreduce import plan
    from netdoctor.facts.intent import Intent
    from netdoctor.facts.runs import TorchFacts

    count = min(2, devices()[0])
    return plan.first_experiment(TorchFacts(cuda_available=True, nccl_built=True, device_count=count), Intent())


def _new_session() -> Any:
    from netdoctor.allreduce.runner import Session

    made = Session(PYTHON, dict(os.environ))
    made.start()
    return made


@functools.cache
def _session() -> Any:
    """A session of the product for all figures that need not pay for the import of torch again."""
    made = _new_session()
    atexit.register(made.close)
    return made


def _finished(run: Any) -> Any:
    if run.state == "not started":
        raise CannotError(f"the all-reduce did not start: {run.reason}")
    if not run.finished or run.verified is not True:
        raise RuntimeError(f"{run.state}: {run.reason}")
    return run


def _settle(seconds: float = 5.0) -> None:
    """Wait until NVML's utilisation, which looks back up to a second, no longer shows what ran before: netdoctor leaves a
    GPU alone that is in use.
    """
    import pynvml

    end = time.monotonic() + seconds
    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        while time.monotonic() < end and any(pynvml.nvmlDeviceGetUtilizationRates(h).gpu for h in handles):
            time.sleep(0.1)
    except pynvml.NVMLError:
        pass  # it does not tell: then netdoctor does not hear of it either
    finally:
        pynvml.nvmlShutdown()


def _used() -> int:
    """Bytes in use on the first GPU."""
    import pynvml

    pynvml.nvmlInit()
    try:
        return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)
    finally:
        pynvml.nvmlShutdown()


def _bare_loop(ranks: int, size: int, pairs: int) -> dict[str, list[float]]:
    """{"ours": [seconds of one all-reduce …], "bare": […]}, interleaved.  All pairs, or CannotError after GPU_BENCH_SECONDS."""
    command = [PYTHON, str(ROOT / "bench" / "gpu_bare_loop.py"), str(size), str(ranks), str(pairs)]
    bare: list[float] = []
    ours: list[float] = []
    end = time.monotonic() + float(os.environ.get("GPU_BENCH_SECONDS", "100"))
    from netdoctor.facts.runs import AllReduce

    experiment = AllReduce("nccl", ranks, "cuda", (size,), gpus=tuple(range(ranks)), repeats=20)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None and process.stdout is not None
        for number in range(-1, pairs):  # the first pair warms up
            if time.monotonic() > end:
                raise CannotError(f"{max(number, 0)} of {pairs} pairs in the time that there was")
            mine = _finished(_session().run(experiment, again=True)).latency[size]
            process.stdin.write("go\n")
            process.stdin.flush()
            line = process.stdout.readline()
            if not line:
                raise RuntimeError(f"the bare loop ended with status {process.wait()}")
            if number >= 0:
                ours.append(mine)
                bare.append(float(line))
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
    return {"ours": ours, "bare": bare}


def _size_of_torch() -> float:
    program = "import os, torch; print(os.path.dirname(torch.__file__))"
    folder = pathlib.Path(subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, check=True).stdout.strip())
    return sum(f.stat().st_size for f in folder.rglob("*") if f.is_file() and not f.is_symlink()) / 1e6


def _compare(name: str, cure: Any) -> Iterator[Row]:
    from netdoctor.allreduce.comparison import compare

    cost = compare(_session(), cure, time.monotonic() + 75.0)
    if cost.before is None or cost.after is None:
        raise RuntimeError(cost.summary)
    certain = "stands out" if cost.significant else "no difference that stands out"
    yield row(name, cost.after.value, "GB/s", cost.before.value, f"{RECORDED}; {cure.label}: {certain}", True)

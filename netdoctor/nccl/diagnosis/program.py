"""Faults of the program, not of the machine: exceptions, memory, kernels, arguments, builds, how ranks are started."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Final

from netdoctor.causes.cost import STOPS
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught
from netdoctor.nccl.diagnosis.raised import NEWER, READ, before_a_wait, exceptions, tests
from netdoctor.nccl.diagnosis.went_on import before
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_ROOM = Fix(
    "lower the batch, the sequence or the model's share on that rank, or leave NCCL room for its buffers",
    ("nvidia-smi   # another process on that GPU?",),
)
# What an inference server keeps of a GPU is for weights and cache: what the weights leave is too little.  vLLM's
# gpu_memory_utilization and SGLang's mem_fraction_static both count the weights in.
_MORE = Fix(
    "give the server a larger share of the GPU, or leave more of it: more GPUs, quantised weights, a shorter context",
    ("--mem-fraction-static, --tp-size, --context-length (SGLang)", "--gpu-memory-utilization, -tp, --max-model-len (vLLM)"),
)
_OTHERS_LEAVE = Fix(
    "end what else holds memory of that GPU, left behind by an earlier job or a neighbour's; else ask for less of it",
    ("nvidia-smi   # which processes hold it", "fuser -v /dev/nvidia*   # those that nvidia-smi does not show, in containers"),
)
_CAP = Fix(
    "let the process use more of the GPU, or ask for less of it",
    ("torch.cuda.set_per_process_memory_fraction(…); PYTORCH_CUDA_ALLOC_CONF=per_process_memory_fraction:…",),
)
_LESS = Fix(
    "end what else holds memory of that GPU, or let the server take a smaller share of it",
    ("nvidia-smi   # another process on that GPU?", "--gpu-memory-utilization (vLLM)"),
)
_KERNEL = Fix("find the kernel", ("CUDA_LAUNCH_BLOCKING=1 python …", "compute-sanitizer python …"))
_SAME_WORLD = Fix(
    "give every rank the same number of ranks, and each its own rank below it", ("echo $RANK $WORLD_SIZE   # on every rank",)
)

_FROM_ZERO = Fix(
    "number the ranks from 0, and give every rank the same number of them", ("echo $RANK $WORLD_SIZE   # on every rank",)
)

_FITS = Fix(
    "start as many ranks as the sizes of its parallelism multiply to, or change these",
    ("tensor x pipeline x context x data parallel = world size",),
)


def memory(log: LogFacts) -> Iterator[Hypothesis]:
    """The GPU's memory is used up: torch's allocator, JAX's, or NCCL's own buffers."""
    events = log.of("oom")
    if events:
        wanted = next(iter(caught(events, "bytes")), None)
        total, free, others = _held_by_others(events[0])
        gpu = next(iter(caught(events, "gpu")), None)
        text = (
            "the memory of "
            + (f"GPU {gpu}" if gpu else "a GPU")
            + " is used up"
            + (f": {wanted} more were asked for" if wanted else "")
            + (f"; {others:.1f} of its {total:.1f} GiB are held by other processes" if others else "")
        )
        fix = _OTHERS_LEAVE if others and _gib(wanted or "") <= free + others else _ROOM
        allowed = next(iter(caught(events, "allowed")), "")
        if allowed and _gib(wanted or "") <= _gib(events[0].data.get("free", "")):  # torch prints it where a share is set
            text = f"a process used up the {allowed} that it may use of {f'GPU {gpu}' if gpu else 'a GPU'}, which has more free"
            text, fix = text + (f": {wanted} more were asked for" if wanted else ""), _CAP
        elif "more" in events[0].data:
            text, fix = f"{text}: the share of it that the server may take is too small for weights and cache", _MORE
        elif "less" in events[0].data:
            text, fix = f"{text}: less of it is free than the server is to take", _LESS
        if fix is _ROOM and (phase := _phase(log, events[0])) is not None:
            text, fix = f"{text}, {phase[0]}", phase[1]
        yield Hypothesis("other", Confidence.LIKELY_PLUS, text, events, fix, fault=Fault.GPU_MEMORY)
        yield Hypothesis("rank_died", Confidence.LIKELY, "a rank ran out of memory; the others wait for it", events, fix)


_GRAPHS: Final = Fix(
    "leave room for the graphs, which come on top of weights and cache: a smaller share for those, fewer graphs, or none",
    (
        "--gpu-memory-utilization, --max-num-seqs, --enforce-eager (vLLM)",
        "--mem-fraction-static, --cuda-graph-max-bs, --disable-cuda-graph (SGLang)",
    ),
)
_BUSY: Final = Fix(
    "see what else holds memory of that GPU, and whether the GPU is sound: at that point the job itself needs little",
    ("nvidia-smi   # on every node: which processes hold it", "nvidia-smi -q -d ECC,ROW_REMAPPER; dmesg | grep -i xid"),
)


def _phase(log: LogFacts, e: Event) -> tuple[str, Fix] | None:
    """In what the stack shows that memory was used up: torch/cuda/graphs.py records graphs, and a collective of
    torch/distributed/distributed_c10d.py before any work needs no more than a context and NCCL's buffers."""
    stacks = [r for r in log.of("exception", "raised") if r.file == e.file and r.line == e.line]
    places = [r.data.get(name, "") for r in stacks for name in ("deep", "file")]
    if any("torch/cuda/graphs.py" in place for place in places):
        return "while CUDA graphs were captured", _GRAPHS
    began = not log.good.get(e.file) and any("torch/distributed/distributed_c10d.py" in place for place in places)
    told = next((r.data["told"] for r in stacks if r.data.get("told")), "")
    if began:
        return f"at a collective of the start{f' ({told[:80]})' if told else ''}, before the program did any work", _BUSY
    return None


_GIB: Final = {"bytes": 2.0**-30, "KiB": 2.0**-20, "MiB": 2.0**-10, "GiB": 1.0}
_SOMEBODYS: Final = 2.0  # GiB that are no driver's context and no NCCL's buffers of this process, but another's


def _gib(size: str) -> float:
    number, _, unit = size.partition(" ")
    return float(number) * _GIB[unit] if unit in _GIB and re.fullmatch(r"\d+(\.\d+)?", number) else math.inf


def _held_by_others(e: Event) -> tuple[float, float, float]:
    """GiB of a GPU, of it free, and held by others: 0 where that is not told, or is what any process needs beside its own.

    torch's message has the GPU's memory, what is free, and what this process holds, contexts and NCCL's buffers included
    (c10/cuda/CUDACachingAllocator.cpp).
    """
    total, free, own = (_gib(e.data.get(name, "")) for name in ("total", "free", "own"))
    rest = total - free - own
    return (total, free, rest) if math.isfinite(total + free + own) and rest > _SOMEBODYS else (0.0, 0.0, 0.0)


def world(log: LogFacts) -> Iterator[Hypothesis]:
    """Ranks that count each other differently."""
    events = log.of("world_size")
    beyond = tuple(e for e in events if int(e.data.get("rank", "0")) >= int(e.data.get("n", "1")))
    if beyond:  # src/init.cc: myrank < 0 || myrank >= nranks
        rank, n = beyond[0].data["rank"], beyond[0].data["n"]
        text = f"a process calls itself rank {rank} of {n}: ranks are counted from 0 to {int(n) - 1}"
        yield Hypothesis("env_misuse", Confidence.STRONG_PLUS, text, beyond, _FROM_ZERO, fault=Fault.RANKS)
    elif events and all(Wording.DIVIDES.within(e.text) for e in events):
        text = f"the number of ranks does not fit what the program is told to divide them into: {events[0].text[:160]}"
        yield Hypothesis("env_misuse", Confidence.STRONG_PLUS, text, events, _FITS, fault=Fault.RANKS)
    elif events:
        a, b = next(iter(caught(events, "a")), None), next(iter(caught(events, "b")), None)
        text = f"the ranks do not agree how many they are{f' ({a} and {b})' if a and b else ''}"
        yield Hypothesis("env_misuse", Confidence.STRONG_PLUS, text, events, _SAME_WORLD, fault=Fault.RANKS)
        yield Hypothesis("device_mapping", Confidence.OPEN, "the launcher counts ranks wrongly", events, _SAME_WORLD)
        yield Hypothesis("other", Confidence.OPEN_MINUS, text, events, _SAME_WORLD)
    if log.alone > 1:
        text = f"{log.alone} processes of nccl-tests run alone, each as rank 0: it was built without MPI"
        fix = Fix(
            "build nccl-tests with MPI, or start one process for the GPUs of one node",
            ("make MPI=1 MPI_HOME=…", "all_reduce_perf -g 8"),
        )
        shown, why = ("# Rank  0 … in several headers",), "nothing between GPUs was measured"
        yield Hypothesis("other", Confidence.STRONG, text, shown=shown, fix=fix, fault=Fault.NO_LAUNCHER, loss=STOPS, why=why)
        yield Hypothesis("duplicate_gpu", Confidence.OPEN_MINUS, "they share the GPUs", shown=("# Rank  0",), fix=fix)


def too_old(log: LogFacts) -> Iterator[Hypothesis]:
    """NCCL (src/enqueue.cc) or torch hold no code for this GPU; NCCL says so at INFO and fails after it."""
    events = tuple(e for e in log.of("too_old") if not e.data.get("shared") or log.above_info("generic"))
    if events:
        sm, built = next(iter(caught(events, "sm")), ""), next(iter(caught(events, "built")), "")
        text, fix = f"this torch or NCCL was not built for this GPU{f' ({sm})' if sm else ''}", NEWER
        if any("hip" in e.data for e in events):
            text, fix = f"the program holds no code for this GPU{f' ({sm})' if sm else ''} (hipErrorNoBinaryForGpu)", _TARGET
            text += f": it was built for {built}" if built else ""
            if built and built.split(":")[0] == sm.split(":")[0] and ("xnack+" in built) != ("xnack+" in sm):
                text += ", and differs in xnack alone, which HSA_XNACK sets"
        yield Hypothesis("cuda_driver_mismatch", Confidence.CERTAIN, text, events, fix, fault=Fault.TOO_OLD)
        if fix is NEWER:
            yield Hypothesis("version_mismatch", Confidence.OPEN, text, events, fix, fault=Fault.TOO_OLD)


_TARGET: Final = Fix(
    "build it for this GPU's target, or run it with the xnack that it was built for",
    ("rocminfo | grep gfx", "hipcc --offload-arch=<target>", "export HSA_XNACK=1   # for code of xnack+; 0 for xnack-"),
)
# NCCL's own words of what it refused with these results.
_REFUSALS: Final[tuple[EventKind, ...]] = (
    *("tensor", "duplicate_gpu", "world_size", "rank_twice", "variable"),
    *("net_none", "net_not_found", "no_interface"),
)


def refused(log: LogFacts) -> Iterator[Hypothesis]:
    """ncclInvalidArgument and ncclInvalidUsage: NCCL checked what it was called with (src/misc/argcheck.cc, src/init.cc)."""
    events = tuple(e for e in log.above_info("generic") if Wording.REFUSED_ARGUMENT.within(e.text))
    if events and not log.above_info(*_REFUSALS):
        text = "NCCL refused what it was called with: a rank beyond the number of ranks, two ranks on one GPU, a wrong pointer"
        how = "NCCL_DEBUG=WARN says which; RANK, WORLD_SIZE and the GPU of every rank"
        yield Hypothesis("other", Confidence.OPEN, text, events, _SAME_WORLD, how, fault=Fault.ARGUMENT)
        yield Hypothesis("device_mapping", Confidence.OPEN_MINUS, "ranks or GPUs may be counted wrongly", events, _SAME_WORLD)


# What torch's kernels assert, in ATen/native/cuda (Indexing, ScatterGatherKernel, IndexKernel, Loss) -> what it means.
_ASSERTS: Final = (
    (
        re.compile(
            r"srcSelectDimSize|dstAddDimSize|index out of bounds|idx_dim|sizes\[i\]|num_embeddings|vocab", re.IGNORECASE
        ),
        "an index is beyond its tensor, as a token's id beyond the vocabulary of an embedding",
        Fix(
            "compare the largest index with the size: tokenizer and vocabulary (added tokens, padding), positions, labels",
            ("assert 0 <= ids.min() and ids.max() < embedding.num_embeddings   # before the call, on every rank",),
        ),
    ),
    (
        re.compile(r"n_classes|cur_target|target_val"),
        "a label is none of the model's classes",
        Fix("compare the labels with the number of classes, ignore_index included", ("print(labels.min(), labels.max())",)),
    ),
    (
        re.compile(r"input_val|probability|p4|isnan|isfinite|inf\b"),
        "a value is no probability or no number",
        Fix("look where the first NaN comes from", ("torch.autograd.set_detect_anomaly(True)",)),
    ),
)


def asserts(log: LogFacts) -> Iterator[Hypothesis]:
    """A kernel's own check, by what it checks."""
    events = log.of("kernel_assert")[:1]
    if events:
        what = events[0].data.get("what", "?")
        told = next(((said, fix) for pattern, said, fix in _ASSERTS if pattern.search(what)), None)
        text, fix = (f"{told[0]}: {what}", told[1]) if told else (f"a kernel of the program failed: {what}", _KERNEL)
        died = text if told else f"a kernel of the program ended its rank: {what}"
        yield Hypothesis("other", Confidence.STRONG_MINUS, text, events, fix, fault=Fault.KERNEL)
        yield Hypothesis("rank_died", Confidence.STRONG_MINUS, died, events, fix, fault=Fault.KERNEL)


_UNUSED = Fix(
    "let DDP look for parameters that take no part in the loss, or let all of them take part",
    ("DistributedDataParallel(model, find_unused_parameters=True)", "TORCH_DISTRIBUTED_DEBUG=DETAIL   # names them"),
)
_TWICE = Fix(
    "use each parameter once in a pass, or tell DDP that the graph stays the same",
    ("DistributedDataParallel(model, static_graph=True)", "checkpoint(…, use_reentrant=False)"),
)


def gradients(log: LogFacts) -> Iterator[Hypothesis]:
    """torch's DDP reduces the gradient of every parameter once a pass."""
    events = log.of("reducer")
    if not events:
        return
    which = next((e.data for e in events if e.data.get("which")), None)
    named = f" ({which['which'].rstrip('. ')}, on rank {which['rank']})" if which else ""
    text, fix = f"parameters of the model take no part in the loss, and DDP waits for their gradients{named}", _UNUSED
    if any("twice" in e.data for e in events):
        text, fix = "a parameter of the model is used twice in one pass, and DDP takes its gradient once", _TWICE
    yield Hypothesis("other", Confidence.STRONG, text, events, fix, fault=Fault.ARGUMENT)


# What keeps torch's init_process_group from its end.
_BEGINNINGS: Final[tuple[EventKind, ...]] = ("store_port", "store", "store_get", "unresolved", "rendezvous_closed")


def arguments(log: LogFacts) -> Iterator[Hypothesis]:
    """What NCCL or torch does not take from its caller."""
    events = log.above_info("tensor")
    if events:
        text = "the caller gives NCCL or torch an argument that it refuses"
        # A program that caught why there is no process group, and went on, fails for want of one.
        late = all(Wording.NO_GROUP.within(e.text) and any(before(s, e) for s in log.of(*_BEGINNINGS)) for e in events)
        yield Hypothesis("other", Confidence.EFFECT if late else Confidence.STRONG, text, events, READ, fault=Fault.ARGUMENT)
        placed = tuple(e for e in events if Wording.OF_A_DEVICE.within(e.text))
        if placed:
            text = "a tensor may be on another GPU than the communicator"
            yield Hypothesis("device_mapping", Confidence.OPEN_MINUS, text, placed)


RULES = (exceptions, before_a_wait, tests, memory, world, too_old, refused, asserts, gradients, arguments)

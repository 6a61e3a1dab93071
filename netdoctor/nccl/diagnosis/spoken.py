"""What the kernel or a library said right before a process ended or stood still: the crash and the hang are its echo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from netdoctor.causes.cost import MIGHT
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, author, caught
from netdoctor.nccl.diagnosis.outcome import Ending, good_ends, outcome
from netdoctor.nccl.diagnosis.went_on import After, after, before
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.facts import Event, LogFacts
from netdoctor.nccl.log.wordings import Wording

_SERVER: Final = Fix(
    "see why the file system's server does not answer that node, then start the job again",
    (
        "findmnt -t nfs,nfs4,lustre,ceph,cifs; ping <server>; rpcinfo -t <server> nfs",
        "dmesg -T | grep -i -e nfs -e lustre -e blocked",
    ),
)
_SLEEPS: Final = Fix(
    "see in what the task sleeps: the kernel's stack of it says which call", ("cat /proc/<pid>/stack; dmesg -T | tail -50",)
)
_REBUILD: Final = Fix(
    "build the engine again with the TensorRT, and on the kind of GPU, that run it",
    ("python3 -c 'import tensorrt; print(tensorrt.__version__)'   # where it is built, and where it runs",),
)
_CONTEXT: Final = Fix(
    "make the GPU current in the thread that calls MPI, or keep UCX from opening GPU memory in it",
    ("torch.cuda.set_device(local_rank)   # in that thread", "export UCX_TLS=^cuda_ipc"),
)
_WAITS: Final = "a rank that reads or writes there stands still, and the others wait for it"
_NEAR: Final = 60  # lines between a library's error and a crash of the same process, others' lines in between


def mounts(log: LogFacts) -> Iterator[Hypothesis]:
    """A file system whose server is silent, and tasks that sleep in the kernel: what waits for them hangs."""
    silent, blocked = _stopped(log, "mount"), _stopped(log, "blocked")
    if not silent and not blocked:
        return
    host = next(iter(caught((*silent, *blocked), "host")), None)
    loss = MIGHT if outcome(log).ending is Ending.OPEN else None
    programs, modules = caught(blocked, "program"), caught(blocked, "module")
    sleeps = f"{programs[0]} sleeps in the kernel" if programs else ""
    if silent:
        servers = caught(silent, "server")
        text = f"the server {servers[0] if servers else ''} of a file system does not answer{f' on {host}' if host else ''}"
        text = text.replace("  ", " ") + (f": {sleeps} and waits for it" if sleeps else "")
        events = (*silent, *blocked)
        yield Hypothesis(
            "node_storage", Confidence.LIKELY, text, events, _SERVER, loss=loss, subject=host, why=_WAITS, fault=Fault.STORAGE
        )
    elif modules:
        text = f"{sleeps}{f' on {host}' if host else ''}, in its file system ({modules[0]}): what is below does not answer"
        yield Hypothesis(
            "node_storage",
            Confidence.LIKELY_MINUS,
            text,
            blocked,
            _SERVER,
            loss=loss,
            subject=host,
            why=_WAITS,
            fault=Fault.STORAGE,
        )
    else:
        text = f"{sleeps}{f' on {host}' if host else ''} for more than {caught(blocked, 'n')[0]} s and cannot be woken"
        yield Hypothesis("hang", Confidence.OPEN, text, blocked, _SLEEPS, loss=loss, subject=host)


def lockups(log: LogFacts) -> Iterator[Hypothesis]:
    """A CPU on which nothing else runs for seconds: a rank there stands still, and the others wait for it."""
    over = _at_rest(log)
    events = tuple(e for e in _stopped(log, "lockup") if e not in over)
    if events:
        host = next(iter(caught(events, "host")), None)
        text = f"a CPU{f' of {host}' if host else ''} stood still in the kernel ({caught(events, 'what')[0]})"
        how = "dmesg -T | grep -i -A30 -e lockup -e rcu   # the stack says in which driver; a reboot ends it"
        yield Hypothesis("node_error", Confidence.LIKELY_MINUS, text, events, how=how, subject=host)


def _at_rest(log: LogFacts) -> tuple[Event, ...]:
    """CPUs that stood still when the job had come to its good end: none of its ranks waited for them."""
    ends = good_ends(log)
    return tuple(e for e in log.of("lockup") if any(before(f, e) for f in ends))


def notes(log: LogFacts) -> tuple[str, ...]:
    """What the node's kernel said behind the end of a job that is well."""
    return tuple(
        f"behind the job's end a CPU stood still in the kernel ({e.data.get('what', 'lockup')}): {e.where}"
        for e in _at_rest(log)[:1]
    )


def engines(log: LogFacts) -> Iterator[Hypothesis]:
    """TensorRT reads engines of its own version, for GPUs of the compute capability that they were built on."""
    events = _stopped(log, "engine")
    if not events:
        return
    here, built, gpu, other = (next(iter(caught(events, name)), "") for name in ("here", "built", "gpu", "gpu_built"))
    text = "the engine was built by another TensorRT than runs here"
    if here and built:
        text = f"the engine was built by another TensorRT ({built}) than runs here ({here})"
    if gpu:
        text = f"the engine was built for GPUs of another compute capability ({other}) than this one ({gpu})"
    yield Hypothesis("other", Confidence.STRONG, text, events, _REBUILD, fault=Fault.ENGINE)


def libraries(log: LogFacts) -> Iterator[Hypothesis]:
    """The first of the errors that a library printed just before a process crashed."""
    crashes = [e for e in log.of("died") if _crash(e) or (_failed(e) and not log.of("exception", "raised"))]
    said = [e for e in _stopped(log, "library") if any(_leads_to(e, crash) for crash in crashes)]
    if not said or log.of("engine"):
        return
    first = min(said, key=lambda e: (e.file, e.line))
    what = "crash" if any(map(_crash, crashes)) else "end"
    who = first.data.get("who") or "a library"
    text, fix = f"{who} reports an error right before the {what}: {first.data.get('said', first.text)[:160]}", None
    if Wording.NO_CONTEXT.within(first.text):
        text = "the thread that calls MPI has no CUDA context, so UCX cannot open the GPU memory of its peer there"
        fix = _CONTEXT
    subject = author((first,))
    yield Hypothesis(
        "rank_died",
        Confidence.LIKELY_MINUS,
        text,
        tuple(said[:4]),
        fix,
        subject=None if subject == "job" else subject,
        fault=Fault.LIBRARY,
    )


def _stopped(log: LogFacts, kind: EventKind) -> tuple[Event, ...]:
    return tuple(e for e in log.of(kind) if after(log, e) is After.STOPPED)


def _crash(e: Event) -> bool:
    """By a signal that the process gave itself, or that the kernel gave it for what it did."""
    signal = e.data.get("signal", "").removeprefix("SIG")
    return signal in {"4", "6", "7", "8", "11", "ILL", "ABRT", "BUS", "FPE", "SEGV"} or Wording.CRASH.within(
        e.data.get("how", "")
    )


def _failed(e: Event) -> bool:
    """By itself, with an exit code."""
    return e.data.get("code", "").isdecimal() and not e.killed_from_outside


def _leads_to(e: Event, crash: Event) -> bool:
    apart = e.rank is not None and crash.rank is not None and e.rank != crash.rank
    return bool(before(e, crash)) and not apart and crash.line - e.last <= _NEAR


RULES = (mounts, lockups, engines, libraries)

"""Runs experiments in the job's Python, or on libnccl alone: phase by phase, within deadlines, and nothing is left behind."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from netdoctor.allreduce import verdict
from netdoctor.allreduce.interruption import Interruption
from netdoctor.allreduce.lock import WAIT, Lock, loaded
from netdoctor.allreduce.sandbox import (
    Isolated,
    Sandbox,
    User,
    conf_names,
    find_user,
    hanging,
    out_of_reach,
    roots_own,
    sandbox,
    stand_in,
)
from netdoctor.allreduce.shared import crowded, memory, read_logs, shared_memory
from netdoctor.allreduce.watch import SLOT, NodePart, Watch, sooner
from netdoctor.allreduce.worker import Worker, short_of
from netdoctor.credentials import scrub
from netdoctor.facts.runs import AllReduce, Caller, NcclFacts, Obstacle, Reason, Run, State, TorchFacts
from netdoctor.model import Kind, Unavailable
from netdoctor.process.users import only_by_name

# Seconds without any progress after which a phase counts as stalled.  A healthy node needs 3 s for the import (minutes on a
# cold network file system: then the answer is unknown, and the whole is bounded by the caller's deadline), below 10 s for the
# CUDA contexts of 8 GPUs without persistence mode, and about 5 s for NCCL's initialisation.  NCCL itself gives up a refused
# connection after about 60 s (34 retries, src/misc/socket.cc); the limit lies above, so that its own error comes first.
LIMITS: Final[Mapping[str, float]] = {
    "spawn": 30.0,
    "import": 180.0,
    "facts": 70.0,
    "rendezvous": 30.0,
    "device": 60.0,
    "init": 75.0,
    "first": 75.0,
    "timed": 75.0,
    "verify": 75.0,
    "done": 15.0,
}
END_SECONDS: Final = 3.0  # after TERM and KILL, for a rank to be reaped
MAX_OUTPUT: Final = 4000  # characters kept of what the ranks of a run that went wrong printed


class Code(NamedTuple):
    """A Python, and how it is the job's."""

    python: str
    folder: str = ""  # that it imports from first; "": none
    trust: bool = False  # it runs in the next second anyway, as this user: to refuse it would protect nobody


class Session:
    """The job's Python, ready to run all-reduces.  One thread uses it; `close` may be called at any moment.

    `python` is the interpreter, `environment` the job's, `user` who it runs as where we are root, `limits` overrides `LIMITS`.
    With `library`, a libnccl, the job's torch is not asked: `python` is any (netdoctor's own), and the ranks use that library
    and the driver alone; a `Reason` there says why no library is known.
    """

    def __init__(
        self,
        python: str | Code,
        environment: Mapping[str, str],
        user: str | None = None,
        *,
        library: str | Reason = "",
        limits: Mapping[str, float] | None = None,
        lock: bool = True,
    ) -> None:
        code = python if isinstance(python, Code) else Code(python)
        self.python = code.python
        self.via = Caller.NCCL if library else Caller.TORCH
        self.notes: tuple[str, ...] = ()
        self.interpreter = ""  # of `Run`
        self.gpus: tuple[str, ...] = ()  # UUIDs by the ordinals of experiments; (): not known
        self._library = library if isinstance(library, str) else ""
        self._trust, self._folder = code.trust, code.folder
        self._limits = {**LIMITS, **(limits or {})}
        self.refused = library if isinstance(library, Reason) else None  # why nothing is started
        self._user: User | None = None
        self._isolated: Isolated | None = None  # how root runs it itself
        self._sandbox: Sandbox = sandbox(environment, conf_names(environment))
        self._lock = Lock(environment) if lock else None
        self._worker: Worker | None = None
        self._done: dict[AllReduce, Run] = {}
        self._number = 0
        self._part: NodePart | None = None
        if self.refused is None:
            self._decide_user(user or "", environment)
        if not os.path.isdir("/proc/self/fd"):
            self.refused = Reason(Obstacle.NO_PROC, "/proc is not mounted here, and the ranks meet by a file in /proc/self/fd")

    # Life

    def start(self) -> None:
        """Start the job's Python at once, so that its import of torch runs beside other work.  Returns at once."""
        if self._worker is None and self.refused is None:
            self._worker = self._new_worker(self._sandbox)

    def close(self) -> None:
        """End everything.  Bounded: a process that hangs in the kernel is left behind (see Run.abandoned)."""
        if self._worker is not None:
            self._worker.close()

    def _decide_user(self, given: str, environment: Mapping[str, str]) -> None:
        """As root: become the job's user, or somebody without rights; else run only what is netdoctor's own, or refuse."""
        if os.geteuid() != 0 or self._trust or only_by_name():
            return
        if given in ("", "0", "root"):
            self._stand_in()
            return
        user = find_user(given)
        if isinstance(user, Unavailable):
            self.refused = _refusal(str(user))
            return
        self._user = user
        self.notes += (f"as user {user.name}",)
        home = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        self._sandbox = self._sandbox.with_changes({n: v for n, v in home.items() if environment.get(n) != v})

    def _stand_in(self) -> None:
        user, code = stand_in(), (self.python, self._sandbox.environment, self._library)
        closed = out_of_reach(user, *code)
        if closed is None:
            self._user = user
            self.notes += (f"as {user.name}, which has no rights",)
            return
        own = roots_own(*code)
        if isinstance(own, str):
            self.refused = _refusal(f"root does not run what others may have changed ({own}), and others cannot: {closed}")
        else:
            self._isolated, self._sandbox = own, own.sandbox(self._sandbox)

    def _new_worker(self, box: Sandbox) -> Worker:
        alone = self._isolated
        flags = ["-I"] if alone or self._library else []
        path = alone.path if alone else [self._folder] if self._folder.startswith("/") else []
        worker = Worker(
            self.python, box.environment, self._user, [*flags, *(["-S"] if alone and alone.bare else [])], path, self._library
        )
        worker.folder = "/" if alone else ""
        worker.start()
        return worker

    # Questions

    def facts(self, deadline: float | None = None) -> TorchFacts | NcclFacts | Unavailable:
        """What the job's torch (or libnccl and the driver) answered, or why it did not.  Waits for the import."""
        answered = self.answer(deadline)
        return (
            Unavailable(_KINDS.get(answered.obstacle, Kind.FAILED), answered.text) if isinstance(answered, Reason) else answered
        )

    def answer(self, deadline: float | None = None) -> TorchFacts | NcclFacts | Reason:
        """The same, with the reason for code."""
        if self.refused:
            return self.refused
        self.start()
        assert self._worker is not None
        return self._begin(self._worker, deadline)

    def run(
        self, experiment: AllReduce, deadline: float | None = None, *, again: bool = False, part: NodePart | None = None
    ) -> Run:
        """Run one experiment; an equal one that ran before gives the same run, unless `again`.

        `deadline` is a time.monotonic() value.  `part`: these are this node's ranks of a run of several nodes (the run that
        is returned tells of them alone).  Never raises for what a machine or a torch may do.
        """
        if not again and part is None and experiment in self._done:
            return self._done[experiment]
        begin = time.monotonic()
        self._part = part
        run = replace(self._try(experiment, deadline), seconds=time.monotonic() - begin)
        if part is None:
            self._done.setdefault(experiment, run)
        return run

    def lacking(self, deadline: float | None = None) -> Reason | None:
        """Why there is nothing to ask; None where torch is there.  Waits for the import."""
        if self.refused:
            return self.refused
        self.start()
        assert self._worker is not None
        return self._imported(self._worker, deadline)

    def busy(self, experiment: AllReduce, reason: Reason, deadline: float | None = None) -> Run:
        """The run that the caller decided against, with what torch answered."""
        facts = self.facts(deadline)
        return verdict.not_started(experiment, reason, facts or None, **self._known(self._sandbox))

    # One run

    def _known(self, box: Sandbox) -> dict[str, Any]:
        """What every run of this session says, whatever happens in it."""
        return {"changes": box.changes, "notes": self.notes, "interpreter": self.interpreter, "via": self.via}

    def _try(self, experiment: AllReduce, deadline: float | None) -> Run:
        box = self._sandbox.with_changes(dict(experiment.env))
        more = self._known(box)
        if self.refused:
            before = "refused: " if self.refused.obstacle is Obstacle.REFUSED else ""
            return verdict.not_started(experiment, replace(self.refused, text=before + self.refused.text), **more)
        if experiment.fresh_import:
            worker = self._new_worker(box)
            try:
                return self._alone(worker, experiment, deadline, more)
            finally:
                worker.close()
        run = self._alone(self._fit_worker(), experiment, deadline, more)
        assert self._worker is not None
        if run.ranks and (self._worker.ended or self._worker.gone) and not any(r.phase_seconds for r in run.ranks):
            # It died between two runs, before anything was started: not this experiment's fault.
            run = self._alone(self._fit_worker(), experiment, deadline, more)
        return run

    def _alone(self, worker: Worker, experiment: AllReduce, deadline: float | None, more: dict[str, Any]) -> Run:
        """Run while no other netdoctor loads these GPUs."""
        facts = self._begin(worker, deadline)
        if isinstance(facts, Reason):
            return verdict.not_started(experiment, facts, output=scrub(worker.output()[-MAX_OUTPUT:]), **more)
        if self._lock is None:
            return self._conduct(worker, experiment, facts, deadline, more)
        until = time.monotonic() + WAIT if deadline is None else deadline
        reason = self._lock.take(until, loaded(experiment, self.gpus), across=self._part is not None)
        if reason is not None:
            return verdict.not_started(experiment, reason, facts, **more)
        try:
            return self._conduct(worker, experiment, facts, deadline, more)
        finally:
            self._lock.release()  # another netdoctor may have its turn between two runs

    def _fit_worker(self) -> Worker:
        """The worker, or a new one where the old one broke down."""
        worker = self._worker
        if worker is not None and worker.first("imported") and (worker.gone or worker.ended or not worker.send({"do": "ping"})):
            worker.close()
            self._worker = None
        self.start()
        assert self._worker is not None
        return self._worker

    def _begin(self, worker: Worker, deadline: float | None) -> TorchFacts | NcclFacts | Reason:
        """What was answered in the child that asks; why there is nothing to ask."""
        reason = self._imported(worker, deadline)
        if reason is not None:
            return reason
        worker.wait(lambda: worker.first("facts") is not None, sooner(deadline, time.monotonic() + self._limits["facts"]))
        if self.via is Caller.TORCH:
            return verdict.facts_of(TorchFacts, list(worker.events))
        facts = verdict.facts_of(NcclFacts, list(worker.events))
        if not facts.device_count:
            return _without_gpu(facts, self._library)
        return facts

    def _imported(self, worker: Worker, deadline: float | None) -> Reason | None:
        """None when torch is imported; else why not."""
        loading = "import torch" if self.via is Caller.TORCH else f"loading {self._library}"
        for wanted, phase in ((("hello",), "spawn"), (("imported", "not loaded"), "import")):
            begin = worker.started if phase == "spawn" else (worker.first("hello") or {}).get("t", worker.started)
            end = begin + self._limits[phase]
            if not worker.wait(lambda wanted=wanted: worker.first(*wanted) is not None, sooner(deadline, end)):  # type: ignore[misc]
                what = f"{self.python} did not start" if phase == "spawn" else f"{loading} was not done"
                if worker.refused:
                    return Reason(worker.refused, f"{self.python} {worker.ended}")
                if worker.ended or worker.gone:
                    said = scrub(_last_line(worker.output()))
                    what = "torch was imported" if self.via is Caller.TORCH else f"{self._library} was loaded"
                    text = f"{self.python} {worker.ended or 'ended'} before {what}{': ' + said if said else ''}"
                    return Reason(Obstacle.IMPORT, text)
                late = time.monotonic() >= end
                when = f"after {self._limits[phase]:g} s" if late else "before the time was over"
                return Reason(Obstacle.TIME, f"{what} {when}{hanging(self._sandbox.environment)}")
        refused = worker.first("not loaded")
        if not refused:
            return None
        error = refused.get("error", "")
        if refused.get("absent"):
            what, name = (Obstacle.NO_TORCH, "torch") if self.via is Caller.TORCH else (Obstacle.NO_NCCL, "libnccl")
            return Reason(what, f"no {name} in {self.python}: {error}")
        return Reason(Obstacle.IMPORT, f"{loading} fails: {error}")

    def _conduct(
        self, worker: Worker, experiment: AllReduce, facts: TorchFacts | NcclFacts, deadline: float | None, more: dict[str, Any]
    ) -> Run:
        self._number += 1
        number = self._number
        with ExitStack() as held:
            try:  # nothing is begun before all of it is there: here no descriptor or no memory may be left
                store, page, *logs = (memory(held, name) for name in ("store", "progress", *["log"] * experiment.ranks))
                os.ftruncate(page, -(-SLOT * experiment.ranks // mmap.PAGESIZE) * mmap.PAGESIZE)
                progress = held.enter_context(mmap.mmap(page, 0, prot=mmap.PROT_READ))
            except OSError as error:
                short = Reason(short_of(error), f"no memory to share with the ranks: {error.strerror}")
                return verdict.not_started(experiment, short, facts, **more)
            at, printed = len(worker.events), worker.mark()
            worker.send({"do": "run", "run": number, "plan": self._plan(experiment)}, [store, page, *logs])
            watch = Watch(worker, experiment, number, at, progress, self._limits, self._part)
            interruption = watch.until_end(deadline)
            full = crowded(self._user.uid if self._user else os.geteuid(), experiment.ranks) if interruption else ""
            abandoned = self._end(worker, watch, interruption)
            if self._part is not None:
                self._part.events, self._part.interruption = tuple(watch.events()), interruption
            imported = worker.first("imported") or {}
            run = verdict.build(experiment, watch.events(), interruption, facts=facts, import_seconds=imported.get("seconds"))
            if full and run.state in (State.FAILED, State.HUNG) and self._part is None:
                more["notes"] = (*self.notes, run.reason)
                run = replace(run, state=State.UNFINISHED, obstacle=Obstacle.MEMORY, reason=full, blamed=())
            text, printed_text = read_logs(logs), worker.output(printed)
            output = "" if run.finished else scrub(printed_text[-MAX_OUTPUT:])
            return replace(run, log_text=text + _nccl_lines(printed_text), output=output, abandoned=abandoned, **more)

    def _plan(self, experiment: AllReduce) -> dict[str, Any]:
        plan = asdict(experiment)
        plan["timeout"] = 600.0 + sum(self._limits.values())  # above every limit of ours
        plan["gpus"] = list(experiment.gpus or range(experiment.ranks))
        if (part := self._part) is not None:
            plan["across"] = {"first": part.first, "world": part.world, "host": part.host, **part.meeting}
        return plan

    def _end(self, worker: Worker, watch: Watch, interruption: Interruption | None) -> tuple[int, ...]:
        """End what is left of a run; the pids that could not be ended."""
        if interruption is None:
            return ()
        owner = self._user.uid if self._user else os.geteuid()
        shared = [path for pid in watch.pids() for path in shared_memory(pid, owner)]
        worker.send({"do": "abort", "run": watch.number})
        if not worker.wait(watch.ended, time.monotonic() + END_SECONDS):
            worker.kill()  # the next run gets a new worker
            worker.wait(lambda: worker.gone, time.monotonic() + 2 * END_SECONDS)
        for path in shared:
            with suppress(OSError):
                os.unlink(path)
        return tuple(pid for pid in watch.pids() if worker.gone and os.path.exists(f"/proc/{pid}")) or worker.abandoned


_KINDS: Final = {Obstacle.TIME: Kind.TIMED_OUT, Obstacle.REFUSED: Kind.REFUSED}


def _refusal(text: str) -> Reason:
    return Reason(Obstacle.REFUSED, text)


def _without_gpu(facts: NcclFacts, library: str) -> Reason:
    """Why libnccl and the driver alone carry nothing here."""
    if facts.device_count == 0:
        return Reason(Obstacle.NO_GPU, "libcuda shows no GPU")
    if not facts.error:
        return Reason(Obstacle.TIME, "libnccl and the driver did not answer in time")
    if not facts.nccl:
        return Reason(Obstacle.IMPORT, f"{library}: {facts.error}")
    return Reason(Obstacle.NOT_READY if facts.not_ready else Obstacle.NO_GPU, facts.error)


def _nccl_lines(output: str) -> str:
    """What NCCL printed on stdout: its version, in versions that do not log it."""
    return "".join(f"{line}\n" for line in output.splitlines() if "NCCL" in line)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""

"""Runs experiments in the job's Python, phase by phase, within deadlines, and leaves nothing behind."""

from __future__ import annotations

import mmap
import os
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from typing import Any, Final

from netdoctor.allreduce import verdict
from netdoctor.allreduce.lock import Lock
from netdoctor.allreduce.sandbox import Sandbox, User, conf_names, find_user, sandbox, untrusted_code
from netdoctor.allreduce.shared import memory, read_logs, shared_memory
from netdoctor.allreduce.worker import Worker
from netdoctor.facts.runs import PHASES, Across, AllReduce, Obstacle, Reason, Run, TorchFacts
from netdoctor.host.redact import scrub
from netdoctor.model import Kind, Unavailable
from netdoctor.process import proc

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
GRACE: Final = 0.5  # seconds after a failure for the others to tell what they saw
END_SECONDS: Final = 3.0  # after TERM and KILL, for a rank to be reaped
POLL: Final = 0.25  # seconds between looks at the progress page
MAX_OUTPUT: Final = 4000  # characters kept of what the ranks of a run that went wrong printed
_SLOT: Final = 64  # of rank.py


class Session:
    """The job's Python, ready to run all-reduces.  One thread uses it; `close` may be called at any moment.

    `python` is the interpreter, `environment` the job's, `user` who it runs as where we are root.  `conf` are the names
    that nccl.conf files set (None: they are read).  `limits` overrides `LIMITS`.
    """

    def __init__(
        self,
        python: str,
        environment: Mapping[str, str],
        user: str | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        conf: Collection[str] | None = None,
        lock: bool = True,
    ) -> None:
        self.python = python
        self.notes: tuple[str, ...] = ()
        self.interpreter = ""  # of `Run`
        self._limits = {**LIMITS, **(limits or {})}
        self._refused: Reason | None = None
        self._user: User | None = None
        self._sandbox: Sandbox = sandbox(environment, conf_names(environment) if conf is None else conf)
        self._lock = Lock(environment) if lock else None
        self._worker: Worker | None = None
        self._done: dict[AllReduce, Run] = {}
        self._number = 0
        self._across: Across | None = None
        self._decide_user(user or "", environment)

    # Life

    def start(self) -> None:
        """Start the job's Python at once, so that its import of torch runs beside other work.  Returns at once."""
        if self._worker is None and self._refused is None:
            self._worker = self._new_worker(self._sandbox)

    def close(self) -> None:
        """End everything.  Bounded: a process that hangs in the kernel is left behind (see Run.abandoned)."""
        if self._worker is not None:
            self._worker.close()

    def _decide_user(self, given: str, environment: Mapping[str, str]) -> None:
        """As root: become the job's user, or run only what root alone can change, or refuse."""
        if os.geteuid() != 0:
            if given:
                self.notes += (f"--user {given} has no effect: not root",)
            return
        reason = None if given else untrusted_code(self.python, self._sandbox.environment)
        if not given and reason is None:
            return
        name = given or environment.get("SLURM_JOB_UID", "")
        if name in ("", "0", "root"):
            if given:
                reason = untrusted_code(self.python, self._sandbox.environment)
            self._refused = _refusal(f"root does not run what others can change ({reason}); --user NAME") if reason else None
            return
        user = find_user(name)
        if isinstance(user, Unavailable):
            self._refused = _refusal(str(user))
            return
        self._user = user
        self.notes += (f"as user {user.name}",)
        home = {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
        self._sandbox = self._sandbox.with_changes({n: v for n, v in home.items() if environment.get(n) != v})

    def _new_worker(self, box: Sandbox) -> Worker:
        isolated = os.geteuid() == 0 and self._user is None
        path = box.environment.get("PYTHONPATH", "").split(":") if isolated else ()
        worker = Worker(self.python, box.environment, self._user, isolated, [p for p in path if p.startswith("/")])
        worker.start()
        return worker

    # Questions

    def facts(self, deadline: float | None = None) -> TorchFacts | Unavailable:
        """What the job's torch answered, or why it did not.  Waits for the import."""
        if self._refused:
            return Unavailable(Kind.REFUSED, self._refused.text)
        self.start()
        assert self._worker is not None
        reason = self._imported(self._worker, deadline)
        if reason is not None:
            return Unavailable(Kind.TIMED_OUT if reason.obstacle is Obstacle.TIME else Kind.FAILED, reason.text)
        worker = self._worker
        end = _sooner(deadline, time.monotonic() + self._limits["facts"])
        worker.wait(lambda: worker.first("facts") is not None, end)
        return verdict.facts_of(list(worker.events))

    def run(
        self, experiment: AllReduce, deadline: float | None = None, *, again: bool = False, across: Across | None = None
    ) -> Run:
        """Run one experiment; an equal one that ran before gives the same run, unless `again`.

        `deadline` is a time.monotonic() value.  `across`: these are this node's ranks of a run of several nodes (the run that
        is returned tells of them alone).  Never raises for what a machine or a torch may do.
        """
        if not again and across is None and experiment in self._done:
            return self._done[experiment]
        begin = time.monotonic()
        self._across = across
        run = replace(self._try(experiment, deadline), seconds=time.monotonic() - begin)
        if across is None:
            self._done.setdefault(experiment, run)
        return run

    def busy(self, experiment: AllReduce, reason: Reason, deadline: float | None = None) -> Run:
        """The run that the caller decided against, with what torch answered."""
        facts = self.facts(deadline)
        known = facts if isinstance(facts, TorchFacts) else TorchFacts()
        return verdict.not_started(
            experiment,
            reason,
            torch=facts if isinstance(facts, TorchFacts) else None,
            torch_version=known.version,
            nccl_version=known.nccl,
            cuda_available=known.cuda_available,
            backends=known.backends,
            backends_nccl=known.backends_nccl,
            changes=self._sandbox.changes,
            notes=self.notes,
            interpreter=self.interpreter,
        )

    # One run

    def _try(self, experiment: AllReduce, deadline: float | None) -> Run:
        box = self._sandbox.with_changes(dict(experiment.env))
        more: dict[str, Any] = {"changes": box.changes, "notes": self.notes, "interpreter": self.interpreter}
        if self._refused:
            refused = replace(self._refused, text=f"refused: {self._refused.text}")
            return verdict.not_started(experiment, refused, **more)
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
        """Run while no other netdoctor of this node does."""
        facts = self._begin(worker, deadline)
        if isinstance(facts, Reason):
            return verdict.not_started(experiment, facts, output=scrub(worker.output()[-MAX_OUTPUT:]), **more)
        if self._lock is None:
            return self._conduct(worker, experiment, facts, deadline, more)
        reason = self._lock.take(_sooner(deadline, time.monotonic() + 3600))
        if reason is not None:
            return verdict.not_started(experiment, reason, torch=facts, **more)
        if self._lock.note:
            more = {**more, "notes": (*self.notes, self._lock.note)}
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

    def _begin(self, worker: Worker, deadline: float | None) -> TorchFacts | Reason:
        reason = self._imported(worker, deadline)
        if reason is not None:
            return reason
        worker.wait(lambda: worker.first("facts") is not None, _sooner(deadline, time.monotonic() + self._limits["facts"]))
        return verdict.facts_of(list(worker.events))

    def _imported(self, worker: Worker, deadline: float | None) -> Reason | None:
        """None when torch is imported; else why not."""
        for wanted, phase in ((("hello",), "spawn"), (("imported", "no torch"), "import")):
            begin = worker.started if phase == "spawn" else (worker.first("hello") or {}).get("t", worker.started)
            end = begin + self._limits[phase]
            if not worker.wait(lambda wanted=wanted: worker.first(*wanted) is not None, _sooner(deadline, end)):  # type: ignore[misc]
                what = f"{self.python} did not start" if phase == "spawn" else "import torch was not done"
                if worker.ended or worker.gone:
                    said = scrub(_last_line(worker.output()))
                    text = f"{self.python} {worker.ended or 'ended'} before torch was imported{': ' + said if said else ''}"
                    return Reason(Obstacle.IMPORT, text)
                late = time.monotonic() >= end
                when = f"after {self._limits[phase]:g} s" if late else "before the time was over"
                return Reason(Obstacle.TIME, f"{what} {when}")
        refused = worker.first("no torch")
        if not refused:
            return None
        error = refused.get("error", "")
        if refused.get("absent"):
            return Reason(Obstacle.NO_TORCH, f"no torch: {error}")
        return Reason(Obstacle.IMPORT, f"import torch fails: {error}")

    def _conduct(
        self, worker: Worker, experiment: AllReduce, facts: TorchFacts, deadline: float | None, more: dict[str, Any]
    ) -> Run:
        self._number += 1
        number = self._number
        with ExitStack() as held:
            try:  # nothing is begun before all of it is there: here no descriptor or no memory may be left
                store, page, *logs = (memory(held, name) for name in ("store", "progress", *["log"] * experiment.ranks))
                os.ftruncate(page, -(-_SLOT * experiment.ranks // mmap.PAGESIZE) * mmap.PAGESIZE)
                progress = held.enter_context(mmap.mmap(page, 0, prot=mmap.PROT_READ))
            except OSError as error:
                short = Reason(Obstacle.MEMORY, f"no memory to share with the ranks: {error.strerror}")
                return verdict.not_started(experiment, short, torch=facts, **more)
            at, printed = len(worker.events), worker.mark()
            worker.send({"do": "run", "run": number, "plan": self._plan(experiment)}, [store, page, *logs])
            watch = Watch(worker, experiment, number, at, progress, self._limits, self._across)
            cut = watch.until_end(deadline)
            abandoned = self._end(worker, watch, cut)
            if self._across is not None:
                self._across.events, self._across.cut = tuple(watch.events()), cut
            imported = worker.first("imported") or {}
            run = verdict.build(experiment, watch.events(), cut, facts=facts, import_seconds=imported.get("seconds"))
            text, printed_text = read_logs(logs), worker.output(printed)
            output = "" if run.finished else scrub(printed_text[-MAX_OUTPUT:])
            return replace(run, log_text=text + _nccl_lines(printed_text), output=output, abandoned=abandoned, **more)

    def _plan(self, experiment: AllReduce) -> dict[str, Any]:
        plan = asdict(experiment)
        plan["timeout"] = 600.0 + sum(self._limits.values())  # above every limit of ours
        plan["gpus"] = list(experiment.gpus or range(experiment.ranks))
        if (across := self._across) is not None:
            plan["across"] = {"first": across.first, "world": across.world, "host": across.host, "port": across.port}
        return plan

    def _end(self, worker: Worker, watch: Watch, cut: verdict.Cut | None) -> tuple[int, ...]:
        """End what is left of a run; the pids that could not be ended."""
        if cut is None:
            return ()
        shared = [path for pid in watch.pids() for path in shared_memory(pid)]
        worker.send({"do": "abort", "run": watch.number})
        if not worker.wait(watch.ended, time.monotonic() + END_SECONDS):
            worker.kill()  # the next run gets a new worker
            worker.wait(lambda: worker.gone, time.monotonic() + 2 * END_SECONDS)
        for path in shared:
            with suppress(OSError):
                os.unlink(path)
        return tuple(pid for pid in watch.pids() if worker.gone and os.path.exists(f"/proc/{pid}")) or worker.abandoned


class Watch:
    """Looks at one run while it runs."""

    def __init__(
        self,
        worker: Worker,
        experiment: AllReduce,
        number: int,
        at: int,
        page: mmap.mmap,
        limits: Mapping[str, float],
        across: Across | None = None,
    ) -> None:
        self.worker, self.experiment, self.number, self.at = worker, experiment, number, at
        self.page, self.limits, self.across = page, limits, across
        self.told = False  # the other nodes know the store's port

    def events(self) -> list[dict[str, Any]]:
        return [e for e in self.worker.events[self.at :] if e.get("run") == self.number]

    def ended(self) -> bool:
        return any(e.get("event") == "ended" for e in self.events())

    def pids(self) -> list[int]:
        """Ranks that were forked and not reaped."""
        return [r.pid for r in verdict.ranks_of(self.experiment.ranks, self.events()) if r.pid and r.exit_time is None]

    def until_end(self, deadline: float | None) -> verdict.Cut | None:
        """None when all ranks ended by themselves; else why they must be ended."""
        moved, seen = time.monotonic(), (0, b"")
        stopped: float | None = None
        while True:
            if self.worker.wait(self.ended, _sooner(deadline, time.monotonic() + (POLL if self.across is None else POLL / 10))):
                return None
            now = time.monotonic()
            events = self.events()
            stopped = stopped or (now if self._across(events) else None)
            state = (len(events), bytes(self.page))
            if state != seen:
                moved, seen = now, state
            ranks = verdict.ranks_of(self.experiment.ranks, events)
            failed = [t for r in ranks for t in (r.error_time, None if r.done else r.exit_time) if t is not None]
            if failed and now > min(failed) + GRACE:
                return self._cut(verdict.CutKind.FAILURE, now, ranks, 0.0)
            # Not at once: the victims elsewhere know of a death sooner than those who reap the dead here.
            if stopped is not None and now > stopped + GRACE and not failed:
                return self._cut(verdict.CutKind.FAILURE, now, ranks, 0.0, "another node ended the run")
            if self.worker.gone or self.worker.ended:
                text = f"the process that forks the ranks {self.worker.ended or 'ended'}"
                return self._cut(verdict.CutKind.LOST, now, ranks, 0.0, text)
            phase = min((r.phase for r in ranks), key=PHASES.index)
            if now - moved > self.limits[phase]:
                return self._cut(verdict.CutKind.STALLED, now, ranks, now - moved)
            if deadline is not None and now >= deadline:
                return self._cut(verdict.CutKind.DEADLINE, now, ranks, now - moved)

    def _across(self, events: list[dict[str, Any]]) -> bool:
        """Pass the store's port on as soon as it is known; whether another node ended the run."""
        if self.across is None:
            return False
        if not self.told and (event := next((e for e in events if e.get("event") == "store"), None)):
            self.told = True
            self.across.served(int(event["port"]))
        return self.across.stopped()

    def _cut(self, kind: verdict.CutKind, now: float, ranks: list[verdict.Rank], seconds: float, text: str = "") -> verdict.Cut:
        counts = [struct.unpack_from("<QQ", self.page, _SLOT * r.rank) for r in ranks]
        states = {r.rank: proc.state(r.pid) for r in ranks if r.pid}
        return verdict.Cut(
            kind,
            now,
            seconds,
            entered=tuple(entered for entered, _ in counts),
            left=tuple(left for _, left in counts),
            stopped=tuple(n for n, state in states.items() if state in ("T", "t")),
            blocked=tuple(n for n, state in states.items() if state == "D"),
            text=text,
        )


def _refusal(text: str) -> Reason:
    return Reason(Obstacle.REFUSED, text)


def _sooner(deadline: float | None, other: float) -> float:
    return other if deadline is None else min(deadline, other)


def _nccl_lines(output: str) -> str:
    """What NCCL printed on stdout: its version, in versions that do not log it."""
    return "".join(f"{line}\n" for line in output.splitlines() if "NCCL" in line)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""

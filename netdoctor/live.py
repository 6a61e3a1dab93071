"""A live run: probe this machine, run the all-reduces beside it, judge, try cures.  Always ends with a report."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor import engine
from netdoctor.facts import registry as facts
from netdoctor.facts.kernel import mounted
from netdoctor.facts.runs import Caller, Cure, Obstacle
from netdoctor.host.base import Answer, Host, RecordingHost, split_question
from netdoctor.host.live import LiveHost
from netdoctor.host.redact import Redactor
from netdoctor.model import CheckResult, Finding, Kind, Unavailable, unavailable_in
from netdoctor.process import streams
from netdoctor.process.cpus import Meter
from netdoctor.process.signals import Interrupted, interruptible
from netdoctor.textsafe import listed
from netdoctor.variables.catalogue import accepts

if TYPE_CHECKING:
    from netdoctor.allreduce.runner import Session
    from netdoctor.api import CheckSpec
    from netdoctor.cluster.session import ClusterSession
    from netdoctor.config.load import Config
    from netdoctor.facts.libraries import Libraries
    from netdoctor.facts.library_search import JobPython
    from netdoctor.facts.runs import Reason

# For all all-reduces of one preflight.  `import torch` alone takes minutes on a cold network file system; NCCL's own
# retries of a refused connection take about 60 s (src/misc/socket.cc).
DEFAULT_BUDGET: Final = 300.0


_ON_THIS_NODE: Final = ("Baseline", "PathRun")  # of the runs, those that need no other node
# Facts that several nodes are compared by.
_COMPARED: Final = ("Kernel", "Environ", "Libraries", "Net", "NcclChoice")


@dataclass
class Outcome:
    """What a live run leaves: enough for a report and for a snapshot."""

    work: engine.Work
    host: RecordingHost
    partial: str | None = None
    signal: int | None = None


def look(config: Config, host_root: str | None, everything: bool) -> LiveHost:
    """The machine; with `everything` the helper programs begin at once, beside the import of the checks."""
    near = {} if host_root else interpreters()
    trust = config.command is not None or config.as_root  # the job will load it in the next second, as this user
    host = LiveHost(host_root, {**config.as_answer(), **({"near": near} if near else {})}, trust=trust)
    if everything:
        facts.prefetch(host, facts.SOURCES)
    return host


def interpreters() -> dict[str, str]:
    """Pythons that say more of the job's than PATH does: the one of the launcher that started us, and our own where it has a
    torch that is not the one that our Makefile installed."""
    from importlib.util import find_spec

    from netdoctor.facts.launcher import detect
    from netdoctor.facts.library_search import MARKER

    found: dict[str, str] = {}
    if detect(os.environ).local_rank is not None:  # our parent starts the ranks
        try:
            with open(f"/proc/{os.getppid()}/cmdline", "rb") as stream:
                program = os.fsdecode(stream.read(4096).partition(b"\0")[0])
        except OSError:
            program = ""
        if program.startswith("/") and os.path.basename(os.path.realpath(program)).startswith("python"):
            found["launcher"] = program
    if find_spec("torch") is not None and not os.path.exists(os.path.join(sys.prefix, MARKER)):
        found["own"] = sys.executable
    return found


def run(
    live: LiveHost,
    config: Config,
    specs: Sequence[CheckSpec],
    extra: tuple[CheckResult, ...],
    *,
    host_root: str | None,
    allreduce: bool,
    progress: engine.Progress,
    cures: bool = True,
    cluster: ClusterSession | None = None,
) -> Outcome:
    """Look, run (`cluster`: with other nodes), judge.

    Never raises for what a machine may do; an interruption gives a partial outcome.
    """
    host = RecordingHost(live, Redactor(accepts))
    work = engine.Work(host, specs, extra)
    outcome = Outcome(work, host)
    session: Session | None = None
    try:
        with interruptible():
            names = engine.wanted(specs)
            if cluster is not None:
                cluster.begin()
            elif "Cluster" in names:
                work.facts["Cluster"] = facts.unread("Cluster", Unavailable(Kind.NOT_READ, "one node alone was looked at"))
            why = no_runs(host_root, config.profile if cluster is None else "", allreduce=allreduce)
            runs = not why and (cluster is not None or bool(set(names) & set(_ON_THIS_NODE)))
            if runs:
                session = _begin(work, config, progress, cluster)
            else:
                _without(work, Unavailable(Kind.REFUSED, why or "--no-allreduce"))
            progress("looking at the node")
            facts.prefetch(host, facts.closure(names))
            engine.collect(work, (name for name in names if name not in facts.BESIDE_THE_RUN))
            if runs:
                session = _settle(work, session, config, progress, cluster)
            if cluster is not None:
                with _beside(work, live, names) as ran:
                    _with_others(work, session, cluster)
                    ran.append(work.facts["Baseline"])
            elif session is not None:
                _all_reduces(work, live, session, names, config, progress)
            engine.unbegun(work)
            engine.judge_all(work)
            if session is not None and cluster is None and cures:
                _cures(work, session, config, progress)
            outcome.partial = silent(host.answers)
    except (Interrupted, MemoryError, OSError, RuntimeError) as stop:
        ended = f"interrupted by {stop}" if isinstance(stop, Interrupted) else streams.short(stop)
        if ended is None:
            raise
        outcome.partial, outcome.signal = ended, getattr(stop, "number", None)
        if cluster is not None:  # what the nodes told so far is judged all the same
            work.facts["Cluster"] = replace(cluster.cluster, interrupted=outcome.partial)
            engine.judge_all(work, of="Cluster")
        _without(work, Unavailable(Kind.NO_BUDGET, outcome.partial))
    finally:
        if session is not None:
            session.close()
        live.close()
    return outcome


def silent(answers: Mapping[str, Answer]) -> str | None:
    """What did not answer within its deadline: a path of a file system that hangs, a driver; None: everything did.

    A look that is not whole is no verdict of any profile.  A name server that does not answer is a finding of its own.
    """
    found = [
        f"{split_question(question)[0]}: {why.detail}" if got is why and question.startswith("ask:") else why.detail
        for question, got in answers.items()
        if not question.startswith("ask:resolve")
        for why in _unread(got)
        if why.kind is Kind.TIMED_OUT
    ]
    return listed(list(dict.fromkeys(found)), 2) if found else None


def _unread(got: Answer) -> Iterator[Unavailable]:
    """Also within the answer of a helper."""
    if (why := got if isinstance(got, Unavailable) else unavailable_in(got)) is not None:
        yield why
    elif isinstance(got, dict | list):
        for part in got.values() if isinstance(got, dict) else got:
            yield from _unread(part)


def no_runs(host_root: str | None, profile: str, *, allreduce: bool) -> str:
    """Why nothing is run; "": it is."""
    if host_root is not None:
        return "a mounted root is looked at"
    return "profile prolog runs nothing" if profile == "prolog" else "" if allreduce else "--no-allreduce"


def cure_budget(config: Config) -> float:
    """Seconds for trying what should mend fails, in all."""
    return min(60.0, (config.budget_s or DEFAULT_BUDGET) / 2)


def _without(work: engine.Work, why: Unavailable) -> None:
    """Of the runs that are not there yet nothing is known."""
    work.facts.update({name: facts.unread(name, why) for name in _ON_THIS_NODE if name not in work.facts})


def _begin(work: engine.Work, config: Config, progress: engine.Progress, cluster: ClusterSession | None) -> Session | None:
    """Start the job's Python, so that its import of torch runs beside the probes; None where it is not, or cannot be."""
    if config.via == Caller.NCCL:
        return None
    python = interpreter(work.host, config)
    if isinstance(python, Unavailable):
        if python.kind != Kind.ABSENT or config.via == Caller.TORCH:
            _without(work, python)
        return None
    progress(f"starting {python.path} ({python.why})")
    session = by_torch(python, config, _limits(cluster))
    session.start()
    return session


def interpreter(host: Host, config: Config) -> JobPython | Unavailable:
    """The job's Python."""
    from netdoctor.facts.library_search import job_python
    from netdoctor.host.base import mapping

    variables = mapping(host, "env:")
    if isinstance(variables, Unavailable):
        return variables
    return job_python(host, variables, config.python, config.command, (mapping(host, "config:") or {}).get("near"))


def by_torch(python: JobPython, config: Config, limits: dict[str, float] | None = None) -> Session:
    """What runs all-reduces through the torch of this Python; nothing is started yet."""
    from netdoctor.allreduce.runner import Code, Session

    code = Code(python.path, config.folder if python.of_command else "", python.of_command or config.as_root)
    session = Session(code, dict(os.environ), user=config.user, limits=limits)
    if not python.given:  # nobody named it
        session.interpreter = f"{python.path} ({python.why})"
    return session


def by_nccl(library: str | Reason, libraries: Libraries, config: Config, limits: dict[str, float] | None = None) -> Session:
    """The same through a libnccl and the driver alone."""
    from netdoctor.allreduce.runner import Code, Session

    trust = config.as_root or (not isinstance(libraries.python, Unavailable) and libraries.python.of_command)
    code = Code(sys.executable, trust=trust)
    return Session(code, dict(os.environ), user=config.user, library=library, limits=limits)


def _limits(cluster: ClusterSession | None) -> dict[str, float] | None:
    return cluster.limits.runner() if cluster else None


def _settle(
    work: engine.Work, session: Session | None, config: Config, progress: engine.Progress, cluster: ClusterSession | None
) -> Session | None:
    """The session that is used: that of torch; where it is not there or not wanted, one of libnccl and the driver alone."""
    from netdoctor.allreduce import choice

    via = Caller(config.via) if config.via else None
    if via is Caller.TORCH or "Baseline" in work.facts:
        return session
    engine.collect(work, choice.NEEDS)
    libraries, gpus = (facts.of(work.facts, name) for name in choice.NEEDS)
    if via is None and session is not None:
        # Files tell at once; only where they show no torch is its import waited for, which then fails at once.
        reason = session.lacking(time.monotonic() + (config.budget_s or DEFAULT_BUDGET)) if choice.no_torch(libraries) else None
        if reason is None or reason.obstacle is not Obstacle.NO_TORCH:
            return session
    found = choice.library(via, libraries, gpus)
    if found is None:
        if session is None and isinstance(libraries.python, Unavailable):
            _without(work, libraries.python)
        return session
    if isinstance(found, str):
        progress(f"using {found} without torch")
    if session is not None:
        session.close()
    alone = by_nccl(found, libraries, config, _limits(cluster))
    alone.start()
    return alone


def _with_others(work: engine.Work, session: Session | None, cluster: ClusterSession) -> None:
    """The all-reduce of several nodes as this node's baseline.  The path of one node alone is the preflight's to prove."""
    from netdoctor.allreduce import plan
    from netdoctor.facts.runs import PathRun
    from netdoctor.snapshot.snapshot import with_logs

    engine.collect(work, (*plan.NEEDS, *_COMPARED))
    begin = time.perf_counter()
    work.facts["Baseline"] = with_logs(facts.there("Baseline", cluster.run(session, work.facts)))
    work.facts["Cluster"] = cluster.cluster
    work.facts["PathRun"] = PathRun(())
    work.seconds["Baseline"] = time.perf_counter() - begin


@contextmanager
def _beside(work: engine.Work, live: LiveHost, names: Sequence[str]) -> Iterator[list[Any]]:
    """With an eye on GPUs and links while their all-reduce runs, where a check wants to know.

    What ran goes into the list; of a run that did not start nothing was seen.
    """
    from netdoctor.facts import cgroups, gpu_load, net_errors
    from netdoctor.facts.runs import State

    ran = list[Any]()
    begun = dict[str, str]()
    if "GpuLoad" in names and gpu_load.begin(work.host, facts.of(work.facts, "Gpus")):
        begun["GpuLoad"] = gpu_load.QUESTION
    if "NetErrors" in names:
        net_errors.begin(work.host)
        begun["NetErrors"] = net_errors.QUESTION
    if "LimitsMet" in names:
        cgroups.begin(work.host)
        begun["LimitsMet"] = ""  # no helper looks on
    yield ran
    for question in filter(None, begun.values()):
        live.finish(question)
    runs = [run for one in ran if (run := getattr(one, "run", None))]
    if any(run.state is not State.NOT_STARTED for run in runs):
        engine.collect(work, begun)
    elif any(run.obstacle in (Obstacle.MEMORY, Obstacle.IMPORT, Obstacle.LOST) for run in runs):
        # A limit may be what kept the ranks from beginning.
        engine.collect(work, [name for name in begun if name == "LimitsMet"])


def _all_reduces(
    work: engine.Work,
    live: LiveHost,
    session: Session,
    names: Sequence[str],
    config: Config,
    progress: engine.Progress,
) -> None:
    from netdoctor.allreduce import plan
    from netdoctor.snapshot.snapshot import with_logs

    engine.collect(work, plan.NEEDS)
    deadline = time.monotonic() + (config.budget_s or DEFAULT_BUDGET)
    for name, make in (("Baseline", plan.baseline), ("PathRun", plan.path_run)):
        if name in names:
            progress("all-reduce" if name == "Baseline" else "network path")
            begin, meter = time.perf_counter(), Meter() if name == "Baseline" else None
            with _beside(work, live, names if name == "Baseline" else ()) as ran:
                made = facts.there(name, make(session, work.facts, deadline))
                ran.append(made)
            work.facts[name] = with_logs(_controlled(made, work.host, meter) if meter else made)
            work.seconds[name] = time.perf_counter() - begin


def _controlled(baseline: Any, host: Host, meter: Meter) -> Any:
    """With a control of the loopback beside it, where Gloo ran on this node alone: what a socket of this host carries, and how
    much others took of the CPUs meanwhile."""
    run = getattr(baseline, "run", None)
    if not run or not run.finished or run.experiment.backend != "gloo":
        return baseline
    from netdoctor.cluster.connectivity import loopback

    # LXCFS lays over it what a container's own processes take: of the others it says nothing.
    over = mounted(host, "/proc/stat")
    plain = isinstance(over, Unavailable) and over.kind is Kind.ABSENT
    others = meter.others() if plain else None
    control = loopback()
    return replace(baseline, control=control and replace(control, others=others))


def _cures(work: engine.Work, session: Session, config: Config, progress: engine.Progress) -> None:
    """Try what should mend a fail, in interleaved pairs, and attach what it gained."""
    from netdoctor.allreduce.comparison import compare
    from netdoctor.allreduce.cures import cure_of
    from netdoctor.causes.cost import measured
    from netdoctor.model import Cost

    deadline = time.monotonic() + cure_budget(config)
    baseline, paths = (facts.of(work.facts, name) for name in _ON_THIS_NODE)
    gained: dict[Cure, Cost] = {}
    for id, found in work.findings.items():
        cured: list[Finding] = []
        for finding in found:
            if (cure := cure_of(finding, baseline, paths)) is not None:
                if cure not in gained:
                    progress(f"trying the cure of {id}: {cure.label}")
                    gained[cure] = compare(session, cure, deadline)
                finding = measured(replace(finding, cure=cure, cost=gained[cure]))
            cured.append(finding)
        work.findings[id] = tuple(cured)

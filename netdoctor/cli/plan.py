"""``netdoctor preflight --plan``: what would be run here, on what and for how long, before anything is."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final

from netdoctor import engine, live
from netdoctor.allreduce import choice, plan
from netdoctor.facts import registry
from netdoctor.facts.runs import AllReduce, Caller, NcclFacts, TorchFacts
from netdoctor.host.base import RecordingHost
from netdoctor.host.children import PATIENCE
from netdoctor.host.redact import Redactor
from netdoctor.model import Unavailable, count
from netdoctor.textsafe import clean, listed
from netdoctor.variables.catalogue import accepts

if TYPE_CHECKING:
    from netdoctor.api import CheckSpec
    from netdoctor.cli.options import Options
    from netdoctor.config.load import Config
    from netdoctor.host.live import LiveHost

LOOKING: Final = 2.0  # seconds: one to two on two cores, `make bench ARGS=cli`
IMPORT: Final = 3.0  # of torch, from a warm disk; minutes from a cold network file system
_UNITS: Final = ("B", "KiB", "MiB", "GiB")


def show(options: Options, config: Config, host: LiveHost, specs: Sequence[CheckSpec]) -> int:
    """Print it; the exit code.  The node is read, no Python of the job's is started and no rank."""
    work = engine.Work(RecordingHost(host, Redactor(accepts)), specs)
    try:
        lines = list(_lines(options, config, work))
    finally:
        host.close()
    print("What this preflight would do here; nothing of it was run:")
    for number, line in enumerate(lines, 1):
        print(textwrap.fill(clean(f"{number}. {line}"), 110, subsequent_indent="   ", break_on_hyphens=False))
    return 0


def _lines(options: Options, config: Config, work: engine.Work) -> Iterator[str]:
    looked = f"{count(len(work.specs), 'check')} on files, netlink and the libraries of GPUs and HCAs"
    yield f"look at the node: {looked}; {_time(PATIENCE)} at most"
    names = engine.wanted(work.specs)
    why = live.no_runs(options.host_root, config.profile, allreduce=not options.no_allreduce)
    if why or not {"Baseline", "PathRun"} & set(names):
        yield from _no_run(why or "no check that was asked for needs one")
        return
    engine.collect(work, (*plan.NEEDS, *choice.NEEDS))
    python = live.interpreter(work.host, config)
    libraries, gpus = (registry.of(work.facts, name) for name in choice.NEEDS)
    via = Caller(config.via) if config.via else None
    none = choice.no_torch(libraries)
    found = choice.library(via, libraries, gpus) if via or none else None
    if isinstance(found, str):
        session, what = live.by_nccl(found, libraries, config), f"{found}, without torch"
    elif found is not None or isinstance(python, Unavailable) or none:
        lost = found or (python if isinstance(python, Unavailable) else f"{python.path} has no torch")
        yield from _no_run(f"{getattr(lost, 'detail', '') or lost}; --python names the job's")
        return
    else:
        session, what = live.by_torch(python, config), f"the torch of {python.path} ({python.why})"
    if session.refused is not None:
        yield from _no_run(f"refused: {session.refused}")
        return
    yield f"start the ranks by {what}" + "".join(f"; {note}" for note in session.notes)
    answered = choice.foreseen(libraries, gpus, found)
    usual = LOOKING if found else LOOKING + IMPORT
    for experiments, line in _runs(work, names, answered):
        usual += sum(map(plan.usual_seconds, experiments))
        yield line
    budget = config.budget_s or live.DEFAULT_BUDGET
    cures = 0.0 if options.no_cures else live.cure_budget(config)
    if cures:
        yield f"only where something fails: runs with and without its mend, {_time(cures)} at most"
    most = f"at most {_time(PATIENCE + budget + cures)} (--budget {budget:g} for the all-reduces)"
    yield f"about {_time(usual)} on a healthy node; {most}" if answered else most


def _no_run(why: object) -> Iterator[str]:
    yield f"no all-reduce: {why}"
    yield f"about {_time(LOOKING)} on a healthy node"


Answered = TorchFacts | NcclFacts | Unavailable


def _runs(work: engine.Work, names: Sequence[str], answered: Answered) -> Iterator[tuple[Sequence[AllReduce], str]]:
    """(runs, what is said of them)."""
    if isinstance(answered, Unavailable):
        yield (), f"all-reduces by what torch then shows, which is not known before: {answered}"
        return
    if "Baseline" in names:
        first = plan.first_experiment(answered, registry.of(work.facts, "Intent"))
        yield (first,), f"all-reduce: {_words(first, work)}"
    over = plan.over_the_path(answered, work.facts) if "PathRun" in names else ()
    if isinstance(over, Unavailable):
        yield (), f"no run of the path to other nodes: {over.detail or over}"
        return
    for _, alike in groupby(over, key=lambda one: (one.ranks, one.sizes, one.path.device == "")):
        group = list(alike)
        ports = [f"{one.path.pinned} (GPU {', '.join(map(str, dict.fromkeys(one.gpus)))})" for one in group if one.path.device]
        once = f", once for each port: {listed(ports)}" if ports else ""
        yield group, f"over the way to other nodes: {_words(group[0], work)}{once}"


def _words(one: AllReduce, work: engine.Work) -> str:
    where = f"NCCL on {listed([f'GPU {n}' for n in dict.fromkeys(one.gpus)])}" if one.backend == "nccl" else "Gloo on the CPU"
    text = f"{count(one.ranks, 'rank')} by {where}, {', '.join(map(_size, one.sizes))}"
    busy = plan.busy(work.facts, one)
    return f"{text}; not now: {busy}" if busy else text


def _size(number: int) -> str:
    power = (number.bit_length() - 1) // 10
    return f"{number >> 10 * power} {_UNITS[power]}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes and rest else f"{minutes} min" if minutes else f"{rest} s"

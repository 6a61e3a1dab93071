"""Collect, judge, report: pure, but for the host that is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Final

from netdoctor import __version__
from netdoctor.causes.results import completed
from netdoctor.facts import registry as facts
from netdoctor.facts.vantage import Place
from netdoctor.host.base import Host
from netdoctor.model import CheckResult, Finding, Fix, Kind, Loss, Report, Severity, Status, Unavailable, plain
from netdoctor.process.signals import Interrupted

if TYPE_CHECKING:
    from netdoctor.api import CheckSpec
    from netdoctor.policy import Decide

Progress = Callable[[str], None]


@dataclass
class Work:
    """What a run has so far; a report can be made of it at any moment."""

    host: Host
    specs: Sequence[CheckSpec]
    extra: tuple[CheckResult, ...] = ()  # results that are not a check's: refused and broken plugins
    facts: dict[str, Any] = field(default_factory=dict)
    findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.time)


def wanted(specs: Iterable[CheckSpec]) -> tuple[str, ...]:
    """Names of the facts that these checks are made of, and those that every report shows."""
    from netdoctor.plugins import needs

    names = {need.type.__name__ for spec in specs for need in needs(spec)}
    of_site = {need.type.__name__ for spec in specs if not _own(spec) for need in needs(spec)}
    return tuple(sorted(names | {"Vantage", "Kernel"} | ({"Pci"} if of_site & _HARDWARE else set())))


# Facts whose libraries and device nodes a container may lack while the node has the hardware: PCI tells (see `_absence`).
_HARDWARE: Final = frozenset({"Gpus", "Rdma"})


def _own(spec: CheckSpec) -> bool:
    return spec.judge.__module__.startswith("netdoctor.checks.")


def collect(work: Work, names: Iterable[str]) -> None:
    """Make the facts (not the runs) that are not there yet."""
    unbegun(work)
    for name in facts.closure(names):
        if name not in work.facts:
            begin = time.perf_counter()
            work.facts[name] = facts.make(work.host, name, work.facts)
            work.seconds[f"probe {name}"] = time.perf_counter() - begin


def unbegun(work: Work) -> None:
    """Of what is seen beside an all-reduce: where none began, why."""
    why = facts.of(work.facts, "Baseline").none_began if "Baseline" in work.facts else None
    if why is not None:
        work.facts.update({name: facts.unread(name, why) for name in facts.BESIDE_THE_RUN if name not in work.facts})


def judge(spec: CheckSpec, have: Mapping[str, Any]) -> tuple[Finding, ...]:
    """The findings of one check on these facts.  Never raises: a check that crashes or says nothing is `error`."""
    from netdoctor.plugins import contained, needs

    values = {need.parameter: facts.of(have, need.type.__name__) for need in needs(spec)}
    own = _own(spec)
    unread: dict[str, Unavailable] = {}
    try:
        if own:
            found = tuple(spec.judge(**values))
        else:
            with contained(spec.id):
                found = tuple(spec.judge(**{name: _watched(fact, unread) for name, fact in values.items()}))
    except BaseException as error:  # the border: a check's defect costs this check, not the report
        if isinstance(error, Interrupted) or (own and isinstance(error, KeyboardInterrupt)):
            raise
        return (_complete(spec, Finding(Status.ERROR, f"the check crashed: {type(error).__name__}: {error}")),)
    if wrong := [type(f).__name__ for f in found if not isinstance(f, Finding)]:
        return (_complete(spec, Finding(Status.ERROR, f"the check yielded a {wrong[0]}, not a finding")),)
    if not own and (odd := [words for f in found for words in _malformed(f)]):  # netdoctor's own: mypy looks
        return (_complete(spec, Finding(Status.ERROR, f"the check yielded a finding whose {odd[0]}")),)
    if not found:
        return (_complete(spec, Finding(Status.ERROR, "the check said nothing")),)
    if not own:
        lost = {name: fact.lost for name, fact in values.items() if fact.lost is not None}
        if lost:
            found = tuple(_without(f, lost) for f in found)
        elif unread and all(f.status in {Status.PASS, Status.SKIP} for f in found):  # else it may be said of what is unread
            doubts = {name: why for name, why in unread.items() if not _absence(name, why, have)}
            found = tuple(_without(f, doubts if f.status is Status.SKIP else unread) for f in found)
    return tuple(_complete(spec, f) for f in found)


# What reports and policy rely on, as `model.Finding` declares it.
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "status": (Status,),
    "message": (str,),
    "subject": (str,),
    "severity": (Severity, NoneType),
    "cause": (str, NoneType),
    "expected": (str, NoneType),
    "evidence": (Mapping,),
    "measured": (Mapping,),
    "how": (str, NoneType),
    "why": (str, NoneType),
    "notes": (tuple,),
    "fix": (Fix, NoneType),
    "loss": (Loss, NoneType),
}


def _malformed(finding: Finding) -> Iterator[str]:
    for name, kinds in _TYPES.items():
        value = getattr(finding, name)
        if not isinstance(value, kinds):
            yield f"{name} is a {type(value).__name__}, not a {kinds[0].__name__}"


def _watched(fact: Any, unread: dict[str, Unavailable]) -> Any:
    """The same fact, which adds to `unread` each of its fields that is asked for and is Unavailable."""
    kind = type(fact)

    def asked(self: Any, name: str) -> Any:
        value = object.__getattribute__(self, name)
        if isinstance(value, Unavailable) and name != "lost":
            unread[f"{kind.__name__}.{name}"] = value
        return value

    watched: Any = object.__new__(type(kind.__name__, (kind,), {"__getattribute__": asked}))
    vars(watched).update(vars(fact))
    return watched


def _absence(name: str, why: Unavailable, have: Mapping[str, Any]) -> bool:
    """Whether a field shows that what a check is about is not there: reason to skip, though never to pass.

    Of hardware it does so only where PCI shows none, as for netdoctor's own checks: a container without libnvidia-ml or
    /dev/infiniband may have what they belong to.
    """
    from netdoctor.facts.presence import seen

    if why.kind not in {Kind.ABSENT, Kind.UNSUPPORTED}:
        return False
    fact = name.partition(".")[0]
    if fact not in _HARDWARE:
        return True
    there = seen(have)
    return (there.gpu if fact == "Gpus" else there.rdma) is False


def _without(finding: Finding, lost: Mapping[str, Unavailable]) -> Finding:
    """What a site's own check says although facts, or fields that it asked for, were not read.  That it took this into account
    is not shown, as the lab (`ignorance`) shows it of the checks that come with netdoctor: so nothing is right, and nothing
    is said not to apply."""
    if not lost or finding.status not in {Status.PASS, Status.SKIP}:
        return finding
    name, why = next(iter(lost.items()))
    return replace(finding, status=Status.UNKNOWN, message=f"{name} could not be read ({why}); without it: {finding.message}")


def _complete(spec: CheckSpec, finding: Finding) -> Finding:
    return completed(finding, spec.id, spec.cause)


def needs_fact(spec: CheckSpec, name: str) -> bool:
    from netdoctor.plugins import needs

    return any(need.type.__name__ == name for need in needs(spec))


def judge_all(work: Work, of: str | None = None) -> None:
    """Judge every check that was not judged yet; `of`: only those that need the fact of that name."""
    for spec in work.specs:
        if spec.id not in work.findings and (of is None or needs_fact(spec, of)):
            begin = time.perf_counter()
            work.findings[spec.id] = judge(spec, work.facts)
            work.seconds[f"check {spec.id}"] = time.perf_counter() - begin


def results(work: Work, partial: str | None = None) -> tuple[CheckResult, ...]:
    """One result a check, in order; a check that was not judged (interrupted) is unknown."""
    out = []
    for spec in work.specs:
        found = work.findings.get(spec.id)
        if found is None:
            found = (_complete(spec, Finding(Status.UNKNOWN, f"not judged: {partial or 'not reached'}")),)
        out.append(CheckResult(spec.id, spec.title, spec.cause, found))
    return (*out, *work.extra)


def report(work: Work, decide: Decide, profile: str, partial: str | None = None) -> Report:
    """The report of what is there."""
    from netdoctor.facts.inventory import inventory

    checked, verdict = decide(results(work, partial), work.facts)
    return Report(
        tool_version=__version__,
        identity=identity(work),
        vantage=_vantage(facts.of(work.facts, "Vantage")),
        profile=profile,
        checks=checked,
        verdict=verdict,
        runs=tuple(_run_stable(run) for run in runs(work.facts)),
        volatile={
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(work.started)),
            "seconds": {k: round(v, 6) for k, v in work.seconds.items()},
            "runs": [_run_figures(run) for run in runs(work.facts)],
        },
        partial=partial,
        nodes=cluster.section() if (cluster := work.facts.get("Cluster")) is not None and cluster.lost is None else {},
        inventory=inventory(work.facts),
    )


def identity(work: Work) -> dict[str, Any]:
    """Who the report is about.  `node` and `machine` are there only where they are known.

    host     the host name; in a pod the pod's
    kernel   release
    node     in a pod: the node's name, given by the downward API as NODE_NAME (deploy/kubernetes does)
    machine  on a host: an id that is the same in all reports of one installation (machine-id(5)), by `redact` not the id itself
    """
    from netdoctor.host.base import mapping, read

    hostname = read(work.host, "/proc/sys/kernel/hostname")
    known: dict[str, Any] = {"host": plain(hostname), "kernel": plain(facts.of(work.facts, "Kernel").release)}
    variables = mapping(work.host, "env:")
    # Others set a NODE_NAME, too (Jenkins).
    if not isinstance(variables, Unavailable) and variables.get("KUBERNETES_SERVICE_HOST") and variables.get("NODE_NAME"):
        known["node"] = str(variables["NODE_NAME"])
    vantage = facts.of(work.facts, "Vantage")
    if vantage.runtime is None and vantage.kind is not Place.HOST_ROOT:
        machine = read(work.host, "/etc/machine-id")
        if isinstance(machine, str) and machine.startswith("netdoctor-"):
            known["machine"] = machine
    return known


def _vantage(vantage: Any) -> dict[str, Any]:
    """Where from, without what differs from run to run (namespace numbers, cgroup names)."""
    if vantage.lost is not None:
        return {"unavailable": str(vantage.lost)}
    data = plain(vantage)
    assert isinstance(data, dict)
    return {k: v for k, v in data.items() if k not in ("namespaces", "cgroup")}


def runs(have: Mapping[str, Any]) -> tuple[Any, ...]:
    """Every run among the facts: baseline first."""
    from netdoctor.facts.runs import Baseline, PathRun

    out: list[Any] = []
    baseline, path = have.get("Baseline"), have.get("PathRun")
    if isinstance(baseline, Baseline) and not isinstance(baseline.run, Unavailable):
        out.append(baseline.run)
    if isinstance(path, PathRun) and not isinstance(path.runs, Unavailable):
        out += path.runs
    return tuple(out)


def _run_stable(run: Any) -> dict[str, Any]:
    experiment = run.experiment
    return {
        "backend": experiment.backend,
        "device": experiment.device,
        "ranks": experiment.ranks,
        "path": str(experiment.path),
        "sizes": list(experiment.sizes),
        "state": run.state,
        "verified": run.verified,
        "via": run.via,
        "torch": run.torch_version,
        "nccl": run.nccl_version,
        "transports": plain(getattr(run.log, "transports", {}) or {}),
        "environment_changes": [[name, value] for name, value in run.changes],
    }


def _run_figures(run: Any) -> dict[str, Any]:
    return {
        "path": str(run.experiment.path),
        **_fields(run, "reason", "seconds", "import_seconds", "system_cpu_per_gb"),
        "busbw_gb_s": plain(run.busbw),
        "latency_s": plain(run.latency),
        "ranks": [_fields(rank, *_OF_A_RANK) for rank in run.ranks],
    }


_OF_A_RANK: Final = (
    *("rank", "phase", "error", "exit", "wrong"),
    *("seconds", "phase_seconds", "system_cpu", "user_cpu", "collective_seconds"),
)


def _fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: plain(getattr(value, name)) for name in names}

"""A snapshot: every answer, every run, who looked and from where.  Taken here, diagnosed anywhere, same report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor.config import documents
from netdoctor.facts.registry import RUNS
from netdoctor.host.base import Answer, decode, encode
from netdoctor.model import Json, Kind, Unavailable, kind_named, plain, record

if TYPE_CHECKING:
    from netdoctor.facts.runs import Run

SCHEMA: Final = "netdoctor.snapshot/1"


class SnapshotError(ValueError):
    """A file that is no snapshot, is cut short, or comes from a newer netdoctor."""


@record
class Snapshot:
    """What was seen, enough to judge it again."""

    answers: Mapping[str, Answer]
    runs: Mapping[str, Any]  # "Baseline", "PathRun" -> the fact
    policy: Mapping[str, Json]  # what decided the exit code there: profile, fail_on, disabled, waivers
    selected: tuple[str, ...] = ()  # ids of --only; () all
    ran: tuple[str, ...] = ()  # ids of every result there; (): a recording older than this, or a tree that was imported
    tool_version: str = ""
    taken: str = ""  # ISO 8601, UTC
    partial: str | None = None


def dumps(snapshot: Snapshot) -> str:
    """JSON text, keys sorted."""
    import json

    runs = {name: _run_data(fact) for name, fact in snapshot.runs.items()}
    data: dict[str, Json] = {
        "schema": SCHEMA,
        "tool_version": snapshot.tool_version,
        "taken": snapshot.taken,
        "policy": dict(snapshot.policy),
        "selected": list(snapshot.selected),
        "ran": list(snapshot.ran),
        "partial": snapshot.partial,
        "answers": encode(snapshot.answers),
        "runs": runs,
    }
    return json.dumps(data, sort_keys=True, indent=1) + "\n"


def loads(text: str) -> Snapshot:
    """The inverse of `dumps`; raises SnapshotError with one line that says what is wrong."""
    import json

    if not text.strip():
        raise SnapshotError("empty")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"not JSON, or cut short: {error}") from None
    if not isinstance(data, dict) or not isinstance(schema := data.get("schema"), str):
        raise SnapshotError("not a netdoctor snapshot (no schema)")
    if schema != SCHEMA:
        if schema.startswith("netdoctor.snapshot/"):
            raise SnapshotError(f"schema {schema!r}, this netdoctor reads {SCHEMA}: use a newer netdoctor")
        raise SnapshotError(
            f"no snapshot (`netdoctor snapshot` writes one), but {documents.told(schema) or f'schema {schema!r}'}"
        )
    answers, runs, policy = data.get("answers"), data.get("runs"), data.get("policy")
    if not isinstance(answers, dict) or not isinstance(runs, dict) or not isinstance(policy, dict):
        raise SnapshotError("incomplete: answers, runs or policy missing")
    partial = data.get("partial")
    return Snapshot(
        decode(answers),
        {name: _run_fact(name, entry) for name, entry in runs.items() if name in RUNS},  # no check knows of another
        policy,
        _ids(data.get("selected")),
        _ids(data.get("ran")),
        str(data.get("tool_version", "")),
        str(data.get("taken", "")),
        partial if isinstance(partial, str) else None,
    )


def _ids(value: Any) -> tuple[str, ...]:
    return tuple(str(id) for id in value) if isinstance(value, list) else ()


def _run_data(fact: Any) -> Json:
    """A run fact as data.  Parsed logs are left out: they are made again from the log's text."""
    from netdoctor.facts.runs import Baseline, PathRun

    if getattr(fact, "lost", None) is not None:
        return plain(fact.lost)
    if isinstance(fact, Baseline) and not isinstance(fact.run, Unavailable):
        return plain(replace(fact, run=replace(fact.run, log=None)))
    if isinstance(fact, PathRun) and not isinstance(fact.runs, Unavailable):
        return plain(PathRun(tuple(replace(run, log=None) for run in fact.runs)))
    return plain(fact)


def _run_fact(name: str, entry: Any) -> Any:
    from netdoctor.cluster.observations import Cluster
    from netdoctor.facts.runs import Baseline, PathRun
    from netdoctor.snapshot import codec

    kinds: dict[str, type[Baseline | PathRun | Cluster]] = {"Baseline": Baseline, "PathRun": PathRun, "Cluster": Cluster}
    if isinstance(entry, dict) and "unavailable" in entry:
        return kinds[name].unread(Unavailable(kind_named(entry["unavailable"]), str(entry.get("detail", ""))))
    try:
        fact = codec.build(kinds[name], entry)
        for run in (fact.run,) if isinstance(fact, Baseline | Cluster) else fact.runs or ():
            if run and (words := _contradiction(run)):
                raise codec.MalformedError(f"the run contradicts itself: {words}")
        return with_logs(fact)
    except codec.MalformedError as error:
        return kinds[name].unread(Unavailable(Kind.MALFORMED, str(error)))


def _contradiction(run: Run) -> str:
    """Why a run cannot have finished as it says (`allreduce.verdict` makes no such run); "": it can."""
    from netdoctor.facts.runs import wrong_figures

    if not run.finished:
        return ""
    if [rank.rank for rank in run.ranks] != list(range(run.experiment.ranks)):
        return f"it finished, and has {len(run.ranks)} of {run.experiment.ranks} ranks"
    if run.blamed or run.obstacle:
        return "it finished, and something stood in its way"
    for rank in run.ranks:
        ended = rank.exit in (0, None) or run.reason  # a rank may fail after its work was done; the reason says so
        if rank.phase != "done" or rank.error or not ended:
            return f"it finished, and rank {rank.rank} did not"
        if rank.wrong and run.verified:
            return f"its sums are right, and those of rank {rank.rank} are not"
    return wrong_figures(run.busbw, run.latency, run.experiment.ranks) if run.verified else ""


def with_logs(fact: Any) -> Any:
    """The run fact with the logs of its runs parsed."""
    from netdoctor.facts.runs import Baseline, PathRun

    if isinstance(fact, Baseline) and not isinstance(fact.run, Unavailable):
        return replace(fact, run=_with_log(fact.run))
    if isinstance(fact, PathRun) and not isinstance(fact.runs, Unavailable):
        return PathRun(tuple(_with_log(run) for run in fact.runs))
    return fact


def _with_log(run: Any) -> Any:
    """Logs are scrubbed before they are parsed, so that live and replayed runs rest on the same text."""
    from netdoctor.credentials import scrub

    if not run.log_text:
        return run
    from netdoctor.nccl.log.parser import parse_text

    text = scrub(run.log_text)
    return replace(run, log_text=text, log=parse_text(text))

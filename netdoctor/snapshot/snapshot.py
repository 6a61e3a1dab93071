"""A snapshot: every answer, every run, who looked and from where.  Taken here, diagnosed anywhere, same report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from netdoctor.host.base import Answer, decode, encode
from netdoctor.model import Json, Kind, Unavailable, kind_named, plain

SCHEMA: Final = "netdoctor.snapshot/1"


class SnapshotError(ValueError):
    """A file that is no snapshot, is cut short, or comes from a newer netdoctor."""


@dataclass(frozen=True)
class Snapshot:
    """What was seen, enough to judge it again."""

    answers: Mapping[str, Answer]
    runs: Mapping[str, Any]  # "Baseline", "PathRun" -> the fact
    policy: Mapping[str, Json]  # what decided the exit code there: profile, fail_on, disabled, waivers
    selected: tuple[str, ...] = ()  # ids of the checks that ran; () all
    tool_version: str = ""
    taken: str = ""  # ISO 8601, UTC
    partial: str | None = None
    extra: Mapping[str, Json] = field(default_factory=dict)


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
        "partial": snapshot.partial,
        "answers": encode(snapshot.answers),
        "runs": runs,
        "extra": dict(snapshot.extra),
    }
    return json.dumps(data, sort_keys=True, indent=1) + "\n"


def loads(text: str) -> Snapshot:
    """The inverse of `dumps`; raises SnapshotError with one line that says what is wrong."""
    import json

    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"not JSON, or cut short: {error}") from None
    if not isinstance(data, dict) or not isinstance(schema := data.get("schema"), str):
        raise SnapshotError("not a netdoctor snapshot (no schema)")
    if schema != SCHEMA:
        newer = schema.startswith("netdoctor.snapshot/")
        raise SnapshotError(f"schema {schema!r}, this netdoctor reads {SCHEMA}" + (": use a newer netdoctor" if newer else ""))
    answers, runs, policy = data.get("answers"), data.get("runs"), data.get("policy")
    if not isinstance(answers, dict) or not isinstance(runs, dict) or not isinstance(policy, dict):
        raise SnapshotError("incomplete: answers, runs or policy missing")
    selected = data.get("selected")
    partial, extra = data.get("partial"), data.get("extra")
    return Snapshot(
        decode(answers),
        {str(name): _run_fact(str(name), entry) for name, entry in runs.items()},
        policy,
        tuple(str(i) for i in selected) if isinstance(selected, list) else (),
        str(data.get("tool_version", "")),
        str(data.get("taken", "")),
        partial if isinstance(partial, str) else None,
        extra if isinstance(extra, dict) else {},
    )


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
    from netdoctor.facts.runs import Baseline, PathRun
    from netdoctor.snapshot import codec

    kinds: dict[str, type[Baseline | PathRun]] = {"Baseline": Baseline, "PathRun": PathRun}
    if name not in kinds:
        return Unavailable(Kind.MALFORMED, f"no such run: {name}")
    if isinstance(entry, dict) and "unavailable" in entry:
        return kinds[name].unread(Unavailable(kind_named(entry["unavailable"]), str(entry.get("detail", ""))))
    try:
        return with_logs(codec.build(kinds[name], entry))
    except codec.MalformedError as error:
        return kinds[name].unread(Unavailable(Kind.MALFORMED, str(error)))


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
    from netdoctor.host.redact import scrub

    if not run.log_text:
        return run
    from netdoctor.nccl.log.parser import parse_text

    text = scrub(run.log_text)
    return replace(run, log_text=text, log=parse_text(text))

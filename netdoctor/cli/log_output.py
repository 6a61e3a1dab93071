"""A log's facts and findings as text, JSON (``netdoctor.log/1``) and JUnit XML."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from netdoctor.model import CheckResult, Finding, Json, Report, Status, Verdict, plain
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from netdoctor.nccl.log.facts import LogFacts

SCHEMA: Final = "netdoctor.log/1"
_CONNECTIONS: Final = 4096  # in JSON; beyond it the count alone
_NOT_FACTS: Final = {"absent", "unseen", "events", "vias", "files", "lines", "nccl_lines", "bytes_read"}


def render(facts: LogFacts, findings: Sequence[Finding], verdict: Verdict, format: str, color: bool = False) -> str:
    if format == "json":
        import json

        return json.dumps(document(facts, findings, verdict), indent=1, ensure_ascii=True) + "\n"
    if format == "junit":
        return _junit(facts, findings, verdict)
    return "\n".join(_text(facts, findings, verdict, color)) + "\n"


def document(facts: LogFacts, findings: Sequence[Finding], verdict: Verdict) -> dict[str, Json]:
    """The JSON document.  In `facts` a key that is missing is one that this log cannot show; null is looked for, not there."""
    from netdoctor import __version__

    return {
        "schema": SCHEMA,
        "tool_version": __version__,
        "log": {
            "files": [clean(f) for f in facts.files[:1024]],
            "lines": facts.lines,
            "nccl_lines": facts.nccl_lines,
            "bytes": facts.bytes_read,
            "levels": sorted(facts.levels),
            "subsystems": sorted(facts.subsystems),
        },
        "verdict": {
            "status": verdict.status,
            "exit_code": verdict.exit_code,
            "text": verdict.text,
            "causes": list(verdict.causes),
        },
        "facts": _facts(facts),
        "findings": [_finding(f) for f in findings],
        "unseen": [{"what": what, "how": how} for what, how in facts.unseen],
    }


def _facts(facts: LogFacts) -> dict[str, Json]:
    out: dict[str, Json] = {}
    for field in dataclasses.fields(facts):
        if field.name not in _NOT_FACTS and field.name not in facts.absent:
            out[field.name] = _cleaned(plain(getattr(facts, field.name)))
    if "vias" not in facts.absent:
        out["connections"] = [_cleaned(plain(v)) for v in facts.vias[:_CONNECTIONS]]
        if len(facts.vias) > _CONNECTIONS:
            out["connections_left_out"] = len(facts.vias) - _CONNECTIONS
    return out


def _cleaned(value: Json) -> Json:
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [_cleaned(v) for v in value]
    if isinstance(value, dict):
        return {clean(k): _cleaned(v) for k, v in value.items()}
    return value


def _finding(f: Finding) -> Json:
    evidence = dict(f.evidence)
    out: dict[str, Any] = {
        "status": f.status.value,
        "cause": f.cause,
        "severity": f.severity.value if f.severity else None,
        "confidence": evidence.pop("confidence", None),
        "message": f.message,
        "subject": f.subject,
        "rank": evidence.pop("rank", None),
        "host": evidence.pop("host", None),
        "lines": evidence.pop("lines", []),
        "evidence": evidence,
        "costs": f.why,
        "fix": plain(f.fix) if f.fix else None,
        "next": f.how,
        "notes": list(f.notes),
        "fingerprint": f.fingerprint,
    }
    return _cleaned(plain(out))


def _junit(facts: LogFacts, findings: Sequence[Finding], verdict: Verdict) -> str:
    from netdoctor import __version__
    from netdoctor.report.junit import render as junit

    checks = tuple(CheckResult(f"log.{f.cause or 'verdict'}", f.message, f.cause or "other", (f,)) for f in findings)
    host = facts.hosts[0] if len(facts.hosts) == 1 else "log"
    return junit(Report(__version__, {"host": host}, {}, "log", checks, verdict))


_MARK: Final = {Status.PASS: ("pass", "32"), Status.FAIL: ("FAIL", "31"), Status.UNKNOWN: ("unknown", "33")}


def _text(facts: LogFacts, findings: Sequence[Finding], verdict: Verdict, color: bool) -> Iterator[str]:
    yield from (clean(line) for line in _summary(facts))
    yield ""
    for f in findings:
        word, code = _MARK.get(f.status, (f.status.value, "33"))
        mark = f"\033[{code}m{word:7}\033[0m" if color else f"{word:7}"
        about = f"{'or: ' if f.evidence.get('alternative') else ''}{f.cause} " if f.cause else ""
        level = ", ".join(str(x) for x in (f.severity.value if f.severity else "", f.evidence.get("confidence", "")) if x)
        yield f"{mark} {clean(about)}{f'({level} confidence)  ' if level else ''}{clean(f.message)}"
        yield from ("        " + clean(line) for line in _details(f))
    if facts.unseen:
        yield ""
        yield "Not in this log:"
        yield from (f"        {clean(what)} ({clean(how)})" for what, how in facts.unseen)
    yield ""
    yield clean(verdict.text)


def _details(f: Finding) -> Iterator[str]:
    if f.subject not in {"node", "job"}:
        yield f"where:  {f.subject}"
    for line in f.evidence.get("lines", ()):
        yield f"line:   {str(line)[:240]}"
    for line in f.evidence.get("shown", ()):
        yield f"shown:  {line}"
    if f.status is Status.FAIL and f.why:
        yield f"costs:  {f.why}"
    if f.fix:
        yield f"mend:   {f.fix.summary}"
        for command in (*f.fix.commands, *f.fix.persistent):
            yield f"          {command}"
    for note in f.notes:
        yield f"note:   {note}"
    if f.how:
        yield f"next:   {f.how}"


def _summary(facts: LogFacts) -> Iterator[str]:
    version = facts.nccl_version or "version not shown"
    size = f"{facts.lines:,} lines, {facts.nccl_lines:,} of NCCL"
    many = f" in {len(facts.files)} files" if len(facts.files) > 1 else ""
    yield f"{facts.library or 'NCCL'} {version}{f', CUDA {facts.cuda_version}' if facts.cuda_version else ''}; {size}{many}"
    shape = []
    if facts.nranks:
        shape.append(f"{facts.nranks} ranks")
    if facts.nodes or facts.hosts:
        shape.append(f"{facts.nodes or len(facts.hosts)} nodes" if (facts.nodes or len(facts.hosts)) != 1 else "1 node")
    if facts.bootstrap_ifname:
        shape.append(f"bootstrap on {facts.bootstrap_ifname} ({facts.bootstrap_address})")
    if facts.network:
        shape.append(f"network {facts.network}")
    if facts.devices:
        names = [f"{d.name}:{d.port}/{d.link}" for d in facts.devices]
        shape.append(f"{len(names)} devices ({', '.join(names[:4])}{', …' if len(names) > 4 else ''})")
    if facts.gdrdma is not None:
        words = {"True": "in use", "False": "not in use", "mixed": "on some connections only"}
        shape.append(f"GPUDirect RDMA {words[str(facts.gdrdma)]}")
    if shape:
        yield "; ".join(shape)
    if facts.transports:
        top = sorted(facts.transports.items(), key=lambda item: -item[1])
        yield "transports: " + ", ".join(f"{name} × {count}" for name, count in top[:8]) + (", …" if len(top) > 8 else "")
    if facts.env:
        yield (
            "variables: "
            + ", ".join(f"{k}={v}" for k, v in list(facts.env.items())[:12])
            + (", …" if len(facts.env) > 12 else "")
        )
    if facts.diagnostics:
        yield from (f"NCCL's own diagnostics: {line}" for line in facts.diagnostics[:12])

"""What ``netdoctor env`` prints: text, JSON (netdoctor.env/1), JUnit, and the page of one variable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from netdoctor.facts.nccl_version import Version, text
from netdoctor.model import Finding, Status, plain
from netdoctor.textsafe import clean
from netdoctor.variables.catalogue import Variable, newest

_VERDICTS: Final = {0: "healthy", 3: "unhealthy", 4: "inconclusive"}
_MARKS: Final = {"pass": "ok  ", "fail": "FAIL", "unknown": "?   ", "error": "!   ", "skip": "-   "}


def render(
    findings: Sequence[Finding], files: Sequence[str], version: Version | None, code: int, format: str, color: bool = False
) -> str:
    if format == "json":
        return _json(findings, files, version, code)
    if format == "junit":
        return _junit(findings)
    return _text(findings, files, version, code, color)


def sentence(findings: Sequence[Finding], code: int) -> str:
    """The last line."""
    count = {status: sum(one.status is status for one in findings) for status in Status}
    if not findings:
        return "healthy: no variable of NCCL, torch, Gloo, UCX or libfabric is set"
    parts = [f"{count[Status.FAIL]} wrong", f"{count[Status.UNKNOWN]} unknown", f"{count[Status.PASS]} in order"]
    return f"{_VERDICTS[code]}: {', '.join(parts)}"


def _text(findings: Sequence[Finding], files: Sequence[str], version: Version | None, code: int, color: bool) -> str:
    from_what = ", ".join(files) if files else "this environment and its nccl.conf"
    lines = [f"{from_what} · judged for NCCL {text(version) if version else 'of several versions (give --nccl)'}"]
    order = {Status.FAIL: 0, Status.ERROR: 1, Status.UNKNOWN: 2, Status.PASS: 3, Status.SKIP: 4}
    for one in sorted(findings, key=lambda f: (order[f.status], -(f.severity.rank if f.severity else 0))):
        mark = _MARKS[one.status.value]
        if color and one.status is Status.FAIL:
            mark = f"\x1b[31m{mark}\x1b[0m"
        where = one.evidence.get("source")
        tail = f"  [{clean(str(where))}]" if where and where != "environment" else ""
        lines.append(f"{mark} {clean(one.message)}{tail}")
        if one.severity:
            lines.append(
                f"       {one.severity.value} · {one.cause}" + (f" · expected: {clean(one.expected)}" if one.expected else "")
            )
        if one.status is not Status.PASS and one.evidence.get("row"):
            lines.append(f"       catalogue: {one.evidence['row']}")
        if one.how:
            lines.append(f"       how to find out: {clean(one.how)}")
        lines += [f"       note: {clean(note)}" for note in one.notes]
    return "\n".join([*lines, sentence(findings, code), ""])


def _json(findings: Sequence[Finding], files: Sequence[str], version: Version | None, code: int) -> str:
    import json

    from netdoctor import __version__
    from netdoctor.cli.env import SCHEMA

    document = {
        "schema": SCHEMA,
        "tool_version": __version__,
        "files": list(files),
        "nccl_version": text(version) if version else None,
        "catalogue": text(newest()),
        "verdict": {"status": _VERDICTS[code], "exit_code": code, "text": sentence(findings, code)},
        "findings": [_finding(one) for one in findings],
    }
    return json.dumps(document, indent=1, ensure_ascii=True) + "\n"


def _finding(one: Finding) -> dict[str, Any]:
    return {
        "status": one.status.value,
        "severity": one.severity.value if one.severity else None,
        "cause": one.cause,
        "rule": one.evidence.get("rule"),
        "variable": one.evidence.get("variable"),
        "value": one.evidence.get("value"),
        "source": one.evidence.get("source"),
        "row": one.evidence.get("row"),
        "subject": one.subject,
        "message": one.message,
        "expected": one.expected,
        "how": one.how,
        "notes": list(one.notes),
        "fix": plain(one.fix),
        "blocking": one.blocking,
        "fingerprint": one.fingerprint,
    }


def _junit(findings: Sequence[Finding]) -> str:
    from netdoctor.report import junit_cases

    kinds = {Status.FAIL: "failure", Status.UNKNOWN: "error", Status.ERROR: "error"}
    made = [
        junit_cases.case(
            "nccl.environment",
            f"{one.subject} {one.evidence.get('source') or ''}".strip(),
            kinds.get(one.status, ""),
            message=one.message,
            type=(one.cause or "env_misuse") if one.status is Status.FAIL else one.status.value,
            out="; ".join(one.notes),
        )
        for one in findings
    ]
    return junit_cases.document(junit_cases.suite("netdoctor env", made))


_ACCEPTS: Final = {
    "flag": "0 or 1",
    "one": "0 or 1 (only exactly 1 acts)",
    "int": "an integer (0x is hexadecimal, a leading zero octal; words are read as 0)",
    "bool": "0 or 1; from 2.30 on also true and false",
    "level": "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS, upper case (C2C from 2.26, P2C from 2.27), or legacy digits",
    "algo": "Tree Ring CollNetDirect CollNetChain NVLS NVLSTree PAT, comma-separated; ^ negates; from 2.24 function:names;…",
    "proto": "LL LL128 Simple, comma-separated; ^ negates; from 2.24 function:names;…",
    "ifname": "[^][=]name[,name…]; names are prefixes unless = leads",
    "gloo-ifname": "name[,name…]: exact names",
    "hca": "[^][=]name[:port][,…]; names are prefixes unless = leads",
    "debug": "VERSION WARN INFO ABORT TRACE",
    "subsys": "INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL PROXY NVLS BOOTSTRAP REG PROFILE RAS ALL; ^ negates",
    "commid": "<ipv4>:<port>, [<ipv6>]:<port> or <host>:<port>",
    "cidr": "a network prefix, 10.0.0.0/8",
    "path": "a path; ~ is not expanded",
    "text": "a text",
    "alias": "an older name of a torch variable",
}


def explained(row: Variable, version: Version | None) -> str:
    """The page of one variable: what it is, since when, default per version, range, when to touch it."""
    lines = [row.name, f"  read by    {'nothing: in no release' if row.program == 'none' else row.program}"]
    if row.first and row.last:
        until = "" if row.last == newest() else f", last in {text(row.last)}"
        lines.append(f"  since      {text(row.first)}{until}")
        if version:
            reads = row.first <= version and (version <= row.last or row.last == newest())
            lines.append(
                f"  in {text(version):<8}{'read' if reads else 'not read'}; default {row.default_in(version) or 'not set'}"
            )
    if row.program != "none":
        lines.append(f"  default    {_spoken(row.default) if row.default else 'not set'}")
        if len(row.history) > 1:
            lines.append("  history    " + ", ".join(f"{_spoken(value)} from {text(since)}" for since, value in row.history))
        lines.append(
            f"  accepts    {_ACCEPTS.get(row.accepts) or row.accepts.replace('|', ' or ').replace('..', ' to ').rstrip()}"
        )
    if row.section:
        debugging = row.section == "debugging"
        lines.append(
            f"  section    {'for debugging, not for production' if debugging else 'system configuration'} (NCCL user guide)"
        )
    if row.note:
        lines.append(f"  note       {row.note}")
    return "\n".join([*lines, ""])


def _spoken(default: str) -> str:
    return {"undef": "left to the communicator's configuration", "-2": "-2 (NCCL decides)"}.get(default, default)

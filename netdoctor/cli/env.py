"""``netdoctor env``: every NCCL, torch, Gloo, UCX and libfabric variable judged, of this shell or of a file.

Exit codes: 0 nothing failed, 3 something failed (at `fail_on` or above), 4 something could not be told, 2 bad usage.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor.cli.errors import missing, usage
from netdoctor.model import Finding, Fix, Kind, Severity, Status

if TYPE_CHECKING:
    from netdoctor.facts.nccl_version import Version
    from netdoctor.variables.catalogue import Variable
    from netdoctor.variables.files import Parsed

SCHEMA: Final = "netdoctor.env/1"
FORMATS: Final = ("text", "json", "junit")
OK, UNHEALTHY, INCONCLUSIVE = 0, 3, 4


def run(
    files: Sequence[str] = (),
    version: str | None = None,
    explain: str | None = None,
    format: str = "text",
    *,
    fail_on: str = "warning",
    color: bool = False,
) -> int:
    """Judge the variables of `files` ("-" is stdin), or of this process and its nccl.conf; print; return the exit code."""
    from netdoctor.facts.nccl_version import parse

    nccl = parse(version) if version else None
    if version and nccl is None:
        return usage(f"--nccl: not a version: {version!r} (2.27.5 is one)")
    if format not in FORMATS:
        return usage(f"--format: must be one of {', '.join(FORMATS)}, not {format!r}")
    if fail_on not in [one.value for one in Severity]:
        return usage("--fail-on: must be info, warning or critical")
    if words := missing(format):
        return usage(words)
    if explain is not None:
        return _explain(explain, nccl)
    findings: list[Finding] = []
    if files:
        for path in files:
            text = _read(path)
            if isinstance(text, OSError):
                return usage(f"{path}: {text.strerror or text}")
            findings += judge_file(path, text, nccl)
    else:
        found, nccl = judge_here(nccl)
        findings += found
    from netdoctor.cli.env_output import render

    findings = [replace(one, check="nccl.environment") for one in findings]  # one fingerprint here and in preflight
    code = exit_code(findings, Severity(fail_on))
    sys.stdout.write(render(findings, files, nccl, code, format, color))
    return code


def exit_code(findings: Iterable[Finding], fail_on: Severity) -> int:
    """3 before 4 before 0: a fail is the greater news."""
    code = OK
    for one in findings:
        if one.status is Status.FAIL and (one.severity or Severity.WARNING).rank >= fail_on.rank:
            return UNHEALTHY
        if one.status in (Status.UNKNOWN, Status.ERROR) and one.blocking:
            code = INCONCLUSIVE
    return code


def judge_file(path: str, text: str, version: Version | None) -> list[Finding]:
    """Every assignment of one file, each with its line."""
    from netdoctor.facts.environ import Setting
    from netdoctor.variables import files as envfiles
    from netdoctor.variables import judge as environ

    parsed = envfiles.parse(path, text)
    known = [one for one in parsed.assignments if one.value is not None]
    settings = [Setting(one.name.strip() if parsed.kind != "conf" else one.name, one.value or "", one.source) for one in known]
    findings = [] if parsed.kind == "conf" else environ.judge(settings, version)
    if parsed.kind == "conf":
        findings = environ.judge_conf(settings, {})
        findings += environ.judge([s for s in settings if s.name == s.name.strip()], version)
    else:
        findings += _repeats(parsed)
    return findings + _written(parsed) + _unknown(parsed)


def _repeats(parsed: Parsed) -> list[Finding]:
    from netdoctor.facts.environ import Setting
    from netdoctor.variables import files as envfiles
    from netdoctor.variables import judge as environ

    pairs = envfiles.repeated(parsed.assignments)
    return [
        finding
        for before, after in pairs
        for finding in environ.judge_repeats([Setting(one.name, one.value or "", one.source) for one in (before, after)])
    ]


def _written(parsed: Parsed) -> list[Finding]:
    """Ways of writing that keep a value from arriving as it stands there."""
    from netdoctor.variables.assignments import WritingRule

    found = []
    for one in parsed.assignments:
        if one.problem is None:
            continue
        rule, sentence = one.problem.rule, one.problem.text
        evidence = {"variable": one.name, "value": one.value, "source": one.source, "rule": rule.value, "row": None}
        if rule is WritingRule.ENV_QUOTES:
            found.append(Finding(Status.PASS, f"{one.name}: see the note", one.name, evidence=evidence, notes=(sentence,)))
            continue
        severity = Severity.CRITICAL if rule is WritingRule.YAML_TYPE else Severity.WARNING
        message = f"{one.name}: {sentence}"
        fix = Fix(f"correct {one.source}")
        found.append(Finding(Status.FAIL, message, one.name, severity, "env_misuse", evidence=evidence, fix=fix))
    return found


def _unknown(parsed: Parsed) -> list[Finding]:
    how = "run netdoctor env inside the job: there the values are what they are"
    found = [
        Finding(
            Status.UNKNOWN,
            f"{one.name}: {one.why}",
            one.name,
            evidence={"variable": one.name, "value": None, "source": one.source, "rule": "not-evaluated", "row": None},
            how=how,
        )
        for one in parsed.assignments
        if one.value is None
    ]
    return found + [
        Finding(
            Status.UNKNOWN,
            f"{one.source}: {one.why}",
            one.source,
            evidence={"variable": None, "value": None, "source": one.source, "rule": "not-evaluated", "row": None},
            how=how,
        )
        for one in parsed.unread
    ]


def judge_here(version: Version | None) -> tuple[list[Finding], Version | None]:
    """This process's variables and the conf files that NCCL would read here, for the NCCL that the job's torch loads."""
    from netdoctor.facts import environ as probe
    from netdoctor.facts import libraries, registry
    from netdoctor.host.live import LiveHost
    from netdoctor.model import Unavailable
    from netdoctor.variables import judge as environ

    host = LiveHost()
    try:
        fact = probe.probe(host)
        version = version or environ.job_version(registry.there("Libraries", libraries.probe(host)))
        links, hcas = _links(host), _hcas(host)
    finally:
        host.close()
    if isinstance(fact, Unavailable):
        return [Finding(Status.UNKNOWN, f"the environment could not be read: {fact}")], version
    return environ.judge_fact(fact, version, links=links, hcas=hcas), version


def _links(host: Any) -> tuple[str, ...] | None:
    """Interfaces of this network namespace, by netlink: /sys may show another namespace's."""
    from netdoctor.host.base import mapping
    from netdoctor.model import Unavailable

    told = mapping(host, "ask:netlink")
    rows = None if isinstance(told, Unavailable) else told.get("links")
    return tuple(str(row["name"]) for row in rows if "name" in row) if isinstance(rows, list) else None


def _hcas(host: Any) -> tuple[str, ...] | None:
    """RDMA devices; an absent directory means none only where /sys is a sysfs that shows classes."""
    from netdoctor.host.base import names
    from netdoctor.model import Unavailable

    found = names(host, "/sys/class/infiniband")
    if not isinstance(found, Unavailable):
        return found
    there = names(host, "/sys/class")
    return () if found.kind == Kind.ABSENT and not isinstance(there, Unavailable) and "net" in there else None


def _read(path: str) -> str | OSError:
    from netdoctor.variables.files import MAX_TEXT

    try:
        if path == "-":
            return sys.stdin.read(MAX_TEXT)
        with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            return file.read(MAX_TEXT)
    except OSError as error:
        return error


def _explain(name: str, version: Version | None) -> int:
    from netdoctor.cli.env_output import explained
    from netdoctor.variables import catalogue

    row: Variable | None = catalogue.lookup(name) or catalogue.lookup(name.upper())
    if row is None:
        near = catalogue.closest(name.upper())
        return usage(f"--explain: {name!r} is not in the catalogue" + (f"; did you mean {near}?" if near else ""))
    sys.stdout.write(explained(row, version))
    return OK

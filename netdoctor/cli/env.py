"""``netdoctor env``: every NCCL, torch, Gloo, UCX and libfabric variable judged, of this shell or of a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.model import Command, Finding, Fix, Kind, Report, Severity, Status

if TYPE_CHECKING:
    from netdoctor.facts.nccl_version import Version
    from netdoctor.policy import Decide
    from netdoctor.variables.files import Parsed


def run(options: Options, files: Sequence[str] = (), version: str | None = None) -> int:
    """Judge the variables of `files` ("-" is stdin), or of this process and its nccl.conf; print; return the exit code."""
    try:
        deliver.check(options, Command.ENV)
        config = setup.configuration(options, Command.ENV)
        nccl = parsed_version(version)
        if files:
            findings = [finding for path in files for finding in judge_file(path, _read(path), nccl)]
        else:
            findings, nccl = judge_here(nccl)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    decide = setup.decider(config, command=Command.ENV)
    return deliver.deliver(report(findings, files, nccl, decide, config.profile), options)


def report(
    findings: Sequence[Finding], files: Sequence[str], version: Version | None, decide: Decide, profile: str = "default"
) -> Report:
    """The report of these findings, with the check and the fingerprints that preflight has."""
    from netdoctor import __version__
    from netdoctor.causes.results import result
    from netdoctor.checks.nccl_environment import environment
    from netdoctor.report.env_section import EnvironmentSection
    from netdoctor.variables.catalogue import newest

    found = findings or [Finding(Status.PASS, "no variable of NCCL, torch, Gloo, UCX or libfabric is set: the defaults hold")]
    spec = environment.__netdoctor_check__  # type: ignore[attr-defined]
    check = result(spec.id, spec.title, spec.cause, found)
    in_order = tuple(dict.fromkeys(f.subject for f in findings if f.status is Status.PASS))
    section = EnvironmentSection(tuple(files), version, newest(), in_order)
    checks, verdict = decide((check,), {})
    return Report(__version__, {}, {}, profile, checks, verdict, command=Command.ENV, section=section)


def parsed_version(version: str | None) -> Version | None:
    """Raises UsageError."""
    from netdoctor.facts.nccl_version import parse

    nccl = parse(version) if version else None
    if version and nccl is None:
        raise setup.UsageError(f"--nccl: not a version: {version!r} (2.27.5 is one)")
    return nccl


def judge_file(path: str, text: str, version: Version | None) -> list[Finding]:
    """Every assignment of one file, each with its line."""
    from netdoctor.facts.environ import Setting
    from netdoctor.variables import files as envfiles
    from netdoctor.variables import judge as environ

    parsed = _without_secrets(envfiles.parse(path, text))
    settings = [Setting(a.name, a.value, a.source) for a in parsed.assignments if a.value is not None]
    if parsed.kind == "conf":
        findings = environ.judge_conf(settings, {})
        findings += environ.judge([s for s in settings if s.name == s.name.strip()], version)
    else:
        findings = environ.judge([replace(s, name=s.name.strip()) for s in settings], version)
        for pair in envfiles.repeated(parsed.assignments):
            findings += environ.judge_repeats([Setting(a.name, a.value or "", a.source) for a in pair])
    return findings + _written(parsed) + _unknown(parsed)


def _without_secrets(parsed: Parsed) -> Parsed:
    """As redaction at the door does it for variables of a process: a report shows values."""
    from netdoctor.environment import secret
    from netdoctor.host.redact import GONE, scrub

    shown = tuple(
        a if a.value is None else replace(a, value=GONE if secret(a.name) else scrub(a.value)) for a in parsed.assignments
    )
    return replace(parsed, assignments=shown)


def _evidence(rule: str, source: str, name: str | None = None, value: str | None = None) -> dict[str, Any]:
    return {"variable": name, "value": value, "source": source, "rule": rule, "row": None}


def _written(parsed: Parsed) -> list[Finding]:
    """Ways of writing that keep a value from arriving as it stands there."""
    from netdoctor.variables.assignments import WritingRule

    found = []
    for written in parsed.assignments:
        if written.problem is None:
            continue
        name, rule, sentence = written.name, written.problem.rule, written.problem.text
        evidence = _evidence(rule.value, written.source, name, written.value)
        if rule is WritingRule.ENV_QUOTES:
            found.append(Finding(Status.PASS, f"{name}: see the note", name, evidence=evidence, notes=(sentence,)))
            continue
        severity = Severity.CRITICAL if rule is WritingRule.YAML_TYPE else Severity.WARNING
        fix = Fix(f"correct {written.source}")
        found.append(Finding(Status.FAIL, f"{name}: {sentence}", name, severity, "env_misuse", evidence=evidence, fix=fix))
    return found


def _unknown(parsed: Parsed) -> list[Finding]:
    how = "run netdoctor env inside the job: there the values are what they are"
    unread = [(a.name, a.why, _evidence("not-evaluated", a.source, a.name)) for a in parsed.assignments if a.value is None]
    unread += [(part.source, part.why, _evidence("not-evaluated", part.source)) for part in parsed.unread]
    return [Finding(Status.UNKNOWN, f"{name}: {why}", name, evidence=evidence, how=how) for name, why, evidence in unread]


def judge_here(version: Version | None) -> tuple[list[Finding], Version | None]:
    """This process's variables and the conf files that NCCL would read here, for the NCCL that the job's torch loads."""
    from netdoctor.facts import environ as probe
    from netdoctor.facts import libraries, registry
    from netdoctor.host.base import RecordingHost
    from netdoctor.host.live import LiveHost
    from netdoctor.host.redact import redact
    from netdoctor.variables import judge as environ

    live = LiveHost()
    try:
        host = RecordingHost(live, redact)  # a report shows values: none that is a secret
        fact = registry.there("Environ", probe.probe(host))
        version = version or environ.job_version(registry.there("Libraries", libraries.probe(host)))
        links, hcas = _links(host), _hcas(host)
    finally:
        live.close()
    return environ.judge_fact(fact, version, links=links, hcas=hcas), version


def _links(host: Any) -> tuple[str, ...] | None:
    """Interfaces of this network namespace, by netlink: /sys may show another namespace's."""
    from netdoctor.host.base import mapping
    from netdoctor.model import Unavailable

    answer = mapping(host, "ask:netlink")
    rows = None if isinstance(answer, Unavailable) else answer.get("links")
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


def _read(path: str) -> str:
    from netdoctor.variables.files import MAX_TEXT

    try:
        if path == "-":
            return sys.stdin.read(MAX_TEXT + 1)
        with open(path, encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            return file.read(MAX_TEXT + 1)
    except OSError as error:
        raise setup.UsageError(f"{path}: {error.strerror or error}") from None

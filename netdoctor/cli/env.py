"""``netdoctor env``: every NCCL, torch, Gloo, UCX and libfabric variable judged, of this shell or of a file."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config import documents
from netdoctor.model import Command, Finding, Report, Status
from netdoctor.process import given

if TYPE_CHECKING:
    from netdoctor.config.load import Config
    from netdoctor.facts.environ import Origin
    from netdoctor.facts.nccl_version import Version
    from netdoctor.policy import Decide
    from netdoctor.variables.files import Parsed
    from netdoctor.variables.issue import Known


def run(options: Options, files: Sequence[str] = (), version: str | None = None) -> int:
    """Judge the variables of `files` ("-" is stdin), or of this process and its nccl.conf; print; return the exit code."""
    from netdoctor.nccl.transport import sockets_meant
    from netdoctor.variables.issue import Known

    try:
        deliver.check(options, Command.ENV)
        setup.named(file="" if "" in files else None)
        config = setup.configuration(options, Command.ENV)
        nccl = parsed_version(version)
        if files:
            known = Known(nccl, nodes=config.job.nodes, sockets=sockets_meant(config.expected.transport or ""))
            findings = [finding for path in files for finding in judge_file(path, _script(path), known)]
        else:
            findings, nccl = judge_here(config, nccl)
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
    from netdoctor.report.env_section import EnvironmentSection
    from netdoctor.variables.catalogue import newest
    from netdoctor.variables.judge import NOTHING_SET, TITLE

    found = findings or [Finding(Status.PASS, NOTHING_SET)]
    check = result("nccl.environment", TITLE, "env_misuse", found)
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


def judge_file(path: str, text: str, known: Known) -> list[Finding]:
    """Every assignment of one file, each with its line."""
    from netdoctor.facts.environ import Setting
    from netdoctor.variables import files as envfiles, judge as environ

    parsed = _without_secrets(envfiles.parse(path, text))
    in_effect = [one for one in parsed.assignments if not one.overridden]
    settings = [Setting(one.name, one.value, one.source) for one in in_effect if one.value is not None]
    known = known if known.nodes else replace(known, nodes=parsed.nodes)
    if parsed.kind is envfiles.FileKind.CONF:
        findings = environ.judge_conf(settings, {})
        findings += environ.judge([s for s in settings if s.name == s.name.strip()], known)
    else:
        findings = environ.judge(settings, known) + _repeats(parsed)
        branches = {(one.name, str(one.source)) for one in parsed.assignments if one.conditional}
        findings = [_chosen(f) if (f.subject, f.evidence["source"]) in branches else f for f in findings]
    if parsed.loopback is not None and (known.nodes or 1) > 1:
        findings.append(environ.meeting_at_loopback(parsed.loopback, known.nodes or 1))
    return findings + _written(parsed) + _unknown(parsed)


def _chosen(finding: Finding) -> Finding:
    """A switch of a branch is not one that was left on; what is wrong whenever it is taken stays wrong."""
    from netdoctor.variables.advice_rules import SWITCHES

    if finding.status is not Status.FAIL or finding.evidence["rule"] not in SWITCHES:
        return finding
    how = "run netdoctor env inside the job: there it is set, or is not"
    return replace(finding, status=Status.UNKNOWN, message=f"{finding.message}, where its branch is taken", how=how, fix=None)


def _without_secrets(parsed: Parsed) -> Parsed:
    """As redaction at the door does it for variables of a process: a report shows values."""
    from netdoctor.host.redact import Redactor
    from netdoctor.variables.catalogue import accepts

    redact = Redactor(accepts)
    shown = tuple(a if a.value is None else replace(a, value=redact.value(a.name, a.value)) for a in parsed.assignments)
    return replace(parsed, assignments=shown)


def _repeats(parsed: Parsed) -> list[Finding]:
    from netdoctor.facts.environ import Setting
    from netdoctor.variables.files import repeated
    from netdoctor.variables.judge import set_twice

    pairs = [pair for pair in repeated(parsed.assignments) if pair[0].source != pair[1].source]
    return [set_twice(*(Setting(one.name, one.value or "", one.source) for one in pair)) for pair in pairs]


def _written(parsed: Parsed) -> list[Finding]:
    """Ways of writing that keep a value from arriving as it stands there."""
    from netdoctor.causes.cost import STOPS
    from netdoctor.facts.environ import Setting
    from netdoctor.variables.assignments import WritingRule
    from netdoctor.variables.judge import judge_line, written_wrong

    found = []
    for written in parsed.assignments:
        if written.problem is None:
            continue
        name, rule, sentence = written.name, written.problem.rule, written.problem.text
        if rule is WritingRule.CONF_LINE:
            found += judge_line(name, written.source)
        elif rule is WritingRule.PERHAPS_NOT_HANDED_ON:
            found.append(_not_told(name, name, written.source, sentence, rule.value))
        elif rule.may_arrive:
            evidence = {
                "variable": name,
                "value": written.value,
                "source": str(written.source),
                "rule": rule.value,
                "row": None,
            }
            found.append(Finding(Status.PASS, f"{name}: see the note", name, evidence=evidence, notes=(sentence,)))
        else:
            setting = Setting(name, written.value or "", written.source)
            wrong = written_wrong(name, setting, rule.value, f"{name}: {sentence}", f"correct {written.source}")
            if rule is WritingRule.CARRIAGE_RETURN and wrong.fix and os.path.isfile(file := written.source.path or ""):
                wrong = replace(wrong, fix=replace(wrong.fix, commands=(f"sed -i 's/\\r$//' {shlex.quote(file)}",)))
            found.append(replace(wrong, loss=STOPS) if rule is WritingRule.YAML_TYPE else wrong)
    return found


def _unknown(parsed: Parsed) -> list[Finding]:
    lost = [
        (one.name, one.name, one.source, one.why)
        for one in parsed.assignments
        if one.value is None and (one.problem is None or one.problem.rule.may_arrive)
    ]
    lost += [("", str(one.source), one.source, one.why) for one in parsed.unread]
    return [_not_told(*one) for one in lost]


def _not_told(name: str, subject: str, source: Origin, why: str, rule: str = "not-evaluated") -> Finding:
    return Finding(
        Status.UNKNOWN,
        why,
        subject,
        evidence={"variable": name or None, "value": None, "source": str(source), "rule": rule, "row": None},
        how="run netdoctor env inside the job: there the values are what they are",
    )


def judge_here(config: Config, version: Version | None) -> tuple[list[Finding], Version | None]:
    """This process's variables and the conf files that NCCL would read here, for the NCCL that the job's torch loads."""
    from netdoctor.facts import registry
    from netdoctor.host.base import RecordingHost
    from netdoctor.host.live import LiveHost
    from netdoctor.host.redact import Redactor
    from netdoctor.variables import judge as environ
    from netdoctor.variables.catalogue import accepts

    live = LiveHost(None, config.as_answer())
    names = ("Environ", "Libraries", "Net", "Rdma", "Expected", "Intent")  # without the GPUs: they say nothing of variables
    have: dict[str, Any] = {}
    try:
        host = RecordingHost(live, Redactor(accepts))  # a report shows values: none that is a secret
        registry.prefetch(host, names)
        have |= {name: have.setdefault(name, registry.make(host, name, have)) for name in names}
    finally:
        live.close()
    known = environ.known_of(*(have[name] for name in ("Libraries", "Net", "Rdma", "Intent")))
    known = replace(known, version=version or known.version)
    return environ.judge_job(have["Environ"], known, have["Intent"]), known.version


def _script(path: str) -> str:
    """What a file says; one of netdoctor's own holds the names of variables that nobody sets there.  Raises UsageError."""
    text = _read(path)
    if what := documents.ours(text):
        raise setup.UsageError(f"{path}: {what}; it sets no variable")
    return text


def _read(path: str) -> str:
    from netdoctor.variables.files import MAX_TEXT

    try:
        return given.start(path, 4 * (MAX_TEXT + 1)).decode("utf-8", "backslashreplace")  # a character has at most four bytes
    except OSError as error:
        raise setup.UsageError(f"{path}: {error.strerror or error}") from None

"""What the commands share: configuration, checks, policy, and the way a report gets out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from netdoctor.cli.errors import missing
from netdoctor.config.load import Config, ConfigError
from netdoctor.model import CheckResult, Json, Kind, Report, Status, Unavailable, plain

if TYPE_CHECKING:
    from netdoctor import policy
    from netdoctor.api import CheckSpec
    from netdoctor.engine import Decide

FORMATS: Final = ("text", "json", "junit", "brief", "html")
BROKEN: Final = 1  # a report that could not be written


def refuse(error: Exception, format: str | None, output: str | None) -> int:
    """Say why nothing was looked at: exit 2.  Whoever collects JUnit files gets one that failed, not none."""
    print(f"netdoctor: {error}", file=sys.stderr)
    if _wants_junit(format, output):
        from netdoctor.report import junit

        if words := missing("junit"):
            if words != str(error):
                print(f"netdoctor: {words}", file=sys.stderr)
            return 2
        text = junit.setup_failed(str(error))
        if output is not None:
            write(output, text)
        if format == "junit":
            print(text)
    return 2


def _wants_junit(format: str | None, output: str | None) -> bool:
    return format == "junit" or (output is not None and _format_of(output, None) == "junit")


class UsageError(ValueError):
    """Bad usage, configuration or plugin: exit 2, one line."""


def configuration(path: str | None, given: Mapping[str, Any]) -> Config:
    """The merged configuration; `given` are command line options by name.  Raises UsageError."""
    from netdoctor.config import load as config

    keys = ("profile", "fail_on", "checks_dir", "python", "user", "vantage")
    overrides = {key: given.get(key) for key in keys} | {"budget_s": given.get("budget")}
    if isinstance(overrides["python"], str) and "/" in overrides["python"]:
        try:
            overrides["python"] = os.path.abspath(overrides["python"])
        except OSError as error:  # the working directory is gone
            raise UsageError(f"--python {overrides['python']}: the working directory: {error.strerror}") from None
        if not os.path.isfile(overrides["python"]):
            raise UsageError(f"--python: {overrides['python']}: no such file")
    try:
        loaded = config.load(path, overrides=overrides)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    for note in loaded.notes:
        print(f"netdoctor: {note}", file=sys.stderr)
    return loaded


def known_format(name: str | None, exit_style: str | None = None, output: str | None = None) -> None:
    """Refuse before anything is looked at what would be refused at the end."""
    from netdoctor import policy

    if exit_style is not None and exit_style not in ("", *policy.EXIT_STYLES):
        raise UsageError(f"--exit-style: must be one of {', '.join(policy.EXIT_STYLES)}, not {exit_style!r}")
    if name is not None and name not in FORMATS:
        raise UsageError(f"--format: must be one of {', '.join(FORMATS)}, not {name!r}")
    if _wants_junit(name, output) and (words := missing("junit")):
        raise UsageError(words)


def load_checks(
    config: Config, only: tuple[str, ...], *, cluster: bool = False
) -> tuple[tuple[CheckSpec, ...], tuple[CheckResult, ...]]:
    """The checks to run, and results for plugins that were refused or are broken.  Raises UsageError.

    `cluster`: other nodes are met.  Where they are not, a check of what they told runs only if `only` names it.
    """
    from netdoctor import engine, plugins, policy

    try:
        loaded = plugins.load(config.checks_dir)
    except plugins.PluginError as error:
        raise UsageError(str(error)) from None
    known = {spec.id for spec in loaded.specs} | {result.id for result in loaded.results}
    missing = [id for id in only if id not in known]
    if missing:
        import difflib

        near = difflib.get_close_matches(missing[0], sorted(known), n=1)
        words = f"--only: no check {missing[0]!r}" + (f"; did you mean {near[0]}?" if near else "")
        raise UsageError("; ".join([words, *(f"{f.subject}: {f.message}" for r in loaded.results for f in r.findings)]))
    for name in policy.unmatched(config.waivers, config.disabled, known):
        print(f"netdoctor: the configuration names {name!r}, which is no check", file=sys.stderr)
    if not only:
        specs = loaded.specs
        return specs if cluster else tuple(s for s in specs if not engine.needs_fact(s, "Cluster")), loaded.results
    results = loaded.results if config.lock else tuple(r for r in loaded.results if r.id in only)
    return tuple(s for s in loaded.specs if s.id in only), results


def decider(config: Config, only: tuple[str, ...] = (), partial: str | None = None, must: tuple[str, ...] = ()) -> Decide:
    """The policy as the engine calls it.  Where the site locked its configuration, --only does not lower what is required.

    `must` are checks that have to be able to tell, whatever the profile.
    """
    from netdoctor import policy

    selected = only if only and not config.lock else None

    def decide(checks: tuple[CheckResult, ...], facts: Mapping[str, Any]) -> Any:
        return policy.decide(
            checks,
            config.profile,
            config.fail_on,
            waivers=config.waivers,
            disabled=config.disabled,
            seen=seen(facts),
            selected=selected,
            partial=partial,
            must=must,
        )

    return decide


def seen(facts: Mapping[str, Any]) -> policy.Seen:
    """What the profile hangs on, from the facts; None where it could not be told."""
    from netdoctor import policy

    missing = Unavailable(Kind.NOT_READ)
    return policy.Seen(
        _gpu(facts.get("Pci", missing), facts.get("Gpus", missing)),
        _torch(facts.get("Libraries", missing)),
        _rdma(facts.get("Pci", missing)),
    )


def _gpu(pci: Any, gpus: Any) -> bool | None:
    if not isinstance(gpus, Unavailable) and not isinstance(gpus.all, Unavailable) and gpus.all:
        return True
    if isinstance(pci, Unavailable) or isinstance(pci.gpus, Unavailable):
        return None
    if pci.gpus:
        return True
    return None if isinstance(pci.foreign_accelerators, Unavailable) else bool(pci.foreign_accelerators)


def _torch(libraries: Any) -> bool | None:
    """A torch of the job's: netdoctor's own is none."""
    if isinstance(libraries, Unavailable):
        return None
    for part in (libraries.python, libraries.torch):
        if isinstance(part, Unavailable):
            return False if part.kind == Kind.ABSENT else None
    return not libraries.python.ours


def _rdma(pci: Any) -> bool | None:
    return None if isinstance(pci, Unavailable) or isinstance(pci.rdma, Unavailable) else bool(pci.rdma)


def policy_data(config: Config) -> dict[str, Json]:
    """What decides the exit code, for a snapshot."""
    data = plain({"profile": config.profile, "fail_on": config.fail_on, "disabled": config.disabled})
    assert isinstance(data, dict)
    data["waivers"] = [
        {"check": w.check, "subject": w.subject, "reason": w.reason, "until": w.until.isoformat()} for w in config.waivers
    ]
    return data


def deliver(report: Report, format: str | None, output: str | None, exit_style: str | None, to: TextIO | None = None) -> int:
    """Print the report (on stdout, or `to`), write it where asked, and return the exit code."""
    stream = to or sys.stdout
    from netdoctor import policy

    failed = 0
    if output is not None:
        failed = write(output, render(report, _format_of(output, format)))
    text = render(report, format or "text", on=stream)
    try:
        stream.write(text if text.endswith("\n") else text + "\n")
        stream.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        print(f"netdoctor: the report could not be printed: {error.strerror}", file=sys.stderr)
        failed = BROKEN
    code = report.verdict.exit_code
    code = failed if failed and code == 0 else code  # an unhealthy node is the greater news
    if exit_style in (None, "", "default"):
        return code
    worst = [f.severity for f in report.findings(Status.FAIL) if f.blocking and f.severity]
    return policy.exit_code(code, exit_style, report.verdict, max(worst, key=lambda s: s.rank) if worst else None)


_BY_SUFFIX: Final = {".json": "json", ".xml": "junit", ".html": "html", ".txt": "text"}


def _format_of(path: str, format: str | None) -> str:
    return _BY_SUFFIX.get(os.path.splitext(path)[1].lower(), format or "json")


def render(report: Report, format: str, *, on: TextIO | None = None) -> str:
    """The report in one format; text is made to the measure of the terminal that it goes to."""
    import importlib

    module = importlib.import_module(f"netdoctor.report.{format}")
    function: Callable[..., str] = module.render
    if format != "text" or on is None:
        return function(report)
    from netdoctor.report import terminal

    return function(report, width=terminal.width(on, os.environ), colour=terminal.colour(on, os.environ))


def write(path: str, text: str, *, snapshot: bool = False) -> int:
    """Write a file of ours; 0, or `BROKEN` with a line on stderr."""
    from netdoctor.process import files as output

    try:
        output.write(path, text, mode=output.SNAPSHOT_MODE if snapshot else output.REPORT_MODE)
    except output.OutputError as error:
        print(f"netdoctor: {error}", file=sys.stderr)
        return BROKEN
    return 0


def last_words(report: Report, path: str) -> None:
    """A container's termination message.  Where it cannot be written a line on stderr says so; the verdict stays."""
    from netdoctor.report import termination

    write(path, termination.render(report))


def become(config: Config) -> None:
    """As root with a user named: be that user from here on, without a way back (setgroups, setgid, setuid, no_new_privs)."""
    if config.user is None or os.geteuid() != 0:
        return
    from netdoctor.process import users

    try:
        users.become(config.user)
    except users.UserError as error:
        raise UsageError(f"--user: {error}") from None

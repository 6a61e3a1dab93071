"""``netdoctor preflight`` and ``netdoctor snapshot``: one live run, told as a report or kept as a snapshot."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass, replace

from netdoctor import __version__, engine, live
from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.process import signals


@dataclass(frozen=True)
class Given:
    """What the command line said; None: nothing."""

    config: str | None = None
    profile: str | None = None
    fail_on: str | None = None
    format: str | None = None
    output: str | None = None
    checks_dir: str | None = None
    python: str | None = None
    user: str | None = None
    vantage: str | None = None
    budget: float | None = None
    exit_style: str | None = None
    termination_log: str | None = None


def run(
    given: Given,
    only: tuple[str, ...],
    host_root: str | None,
    *,
    allreduce: bool,
    quiet: bool = False,
    snapshot_to: str | None = None,
    pseudonyms: bytes | None = None,
    in_job: bool = False,
    program: str | None = None,
) -> int:
    """The exit code; the report has been printed, or the snapshot written.

    `in_job`: this is the job's own process, which then becomes `program`.
    """
    try:
        config = setup.configuration(given.config, asdict(given))
        setup.known_format(given.format, given.exit_style, given.output)
        if host_root is not None and not os.path.isdir(host_root):
            raise setup.UsageError(f"--host-root: {host_root}: no such directory")
        if in_job:
            config = replace(config, vantage="wrapper", command=program)
        setup.become(config)
    except setup.UsageError as error:
        return setup.refuse(error, given.format, given.output)
    host = live.look(config, host_root, everything=not only)
    try:
        specs, extra = setup.load_checks(config, only)
    except setup.UsageError as error:
        host.close()
        return setup.refuse(error, given.format, given.output)
    progress = silent if quiet else say
    outcome = live.run(host, config, specs, extra, host_root=host_root, allreduce=allreduce, progress=progress)
    if snapshot_to is not None:
        return _keep(outcome, config, only, snapshot_to, pseudonyms)
    report = engine.report(outcome.work, setup.decider(config, only, outcome.partial), config.profile, outcome.partial)
    # What the job prints is the job's: there the report goes to stderr.
    if given.termination_log is not None:
        setup.last_words(report, given.termination_log)
    code = setup.deliver(report, given.format, given.output, given.exit_style, sys.stderr if in_job else sys.stdout)
    number = outcome.signal or signals.pending()
    return 128 + number if number else code


def _keep(outcome: live.Outcome, config: Config, only: tuple[str, ...], path: str, pseudonyms: bytes | None) -> int:
    from netdoctor.facts import registry
    from netdoctor.snapshot import snapshot

    engine.identity(outcome.work)  # asked for its answers: a report of this snapshot names the machine as one made here does
    taken = snapshot.Snapshot(
        outcome.host.answers,
        {n: outcome.work.facts[n] for n in registry.RUNS if n in outcome.work.facts},
        setup.policy_data(config),
        only,
        __version__,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(outcome.work.started)),
        outcome.partial,
    )
    if pseudonyms is not None:
        from netdoctor.snapshot.pseudonyms import pseudonymise

        taken = pseudonymise(taken, pseudonyms, (os.path.expanduser("~"), os.getcwd()))
    written = setup.write(path, snapshot.dumps(taken), snapshot=True)
    return 128 + outcome.signal if outcome.signal else written


def say(text: str) -> None:
    print(f"netdoctor: {text}", file=sys.stderr, flush=True)


def silent(text: str) -> None:
    pass

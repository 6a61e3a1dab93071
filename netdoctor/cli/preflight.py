"""``netdoctor preflight`` and ``netdoctor snapshot``: one live run, told as a report or kept as a snapshot."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TextIO

from netdoctor import __version__, engine, live, policy
from netdoctor.cli import deliver, setup
from netdoctor.cli.command import COMMAND, JobCommand, of_here, result
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.facts import registry
from netdoctor.facts.past import FOLDER
from netdoctor.model import CheckResult, Unavailable
from netdoctor.process import signals


def preflight(options: Options) -> int:
    """The exit code of the report of this node, which has been printed."""
    return _report(options, sys.stdout)


def plan(options: Options) -> int:
    """Print what `preflight` would run; the exit code."""
    try:
        if options.output is not None or options.form not in (None, "text"):
            raise setup.UsageError("--plan: it is text on standard output, no report")
        config = ready(options)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    return setup.judged(config, options.exit_style, lambda lost: _planned(options, config, lost))


def _planned(options: Options, config: Config, lost: CheckResult | None) -> int:
    from netdoctor.cli import plan as command

    host = live.look(config, options.host_root, everything=False)
    try:
        specs, _ = setup.load_checks(config, options.ids, lost=lost, said=options.said("only"))
    except setup.UsageError as error:
        host.close()
        return deliver.refuse(error, options)
    return command.show(options, config, host, specs)


def before_the_job(options: Options, job: JobCommand, *, gate: bool) -> int:
    """The same from the job's own process, which then becomes `job`: what that prints is the job's, so this is stderr's."""
    return _report(options, sys.stderr, job, gate=gate)


def _report(options: Options, to: TextIO, job: JobCommand | None = None, *, gate: bool = False) -> int:
    try:
        deliver.check(options)
        config = ready(options, job)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    deliver.foretell(options.output, options.termination_log)
    return setup.judged(config, options.exit_style, lambda lost: _judged(options, config, to, lost, job, gate))


def _judged(options: Options, config: Config, to: TextIO, lost: CheckResult | None, job: JobCommand | None, gate: bool) -> int:
    must: tuple[str, ...] = ()
    try:
        outcome = look(options, config, lost)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    if job is not None:
        python = registry.of(outcome.work.facts, "Libraries").python
        known = not isinstance(python, Unavailable) and python.of_command
        outcome.work.extra += (result(job, python.path if known else None),)
        must = (COMMAND,) if gate or policy.gates(config.profile) else ()
    elif options.host_root is None and not options.ids and (found := of_here()) is not None:
        outcome.work.extra += (found,)
    decide = setup.decider(config, options.ids, outcome.partial, must, gate=gate)
    report = engine.report(outcome.work, decide, config.profile, outcome.partial)
    if not options.ids and options.host_root is None and os.path.isdir(FOLDER):
        from netdoctor.cli.past import keep as keep_look

        keep_look(outcome.work, report)
    code = deliver.deliver(deliver.interrupted(report, outcome.signal), options, to)
    number = outcome.signal or signals.pending()
    return 128 + number if number else code


def ready(options: Options, job: JobCommand | None = None) -> Config:
    """This process as the one who looks.  Raises UsageError."""
    config = setup.configuration(options)
    if job is not None:
        config = replace(config, vantage="wrapper", command=job.program, folder=job.folder, launch=job.launch)
    if options.host_root is not None:
        setup.folder_there(options.said("host_root"), options.host_root)
    if options.host_root is not None and config.lock:
        raise setup.UsageError(
            f"{options.said('host_root')}: {options.host_root}: the configuration is locked: it is for this machine"
        )
    setup.become(config)
    return config


def look(options: Options, config: Config, lost: CheckResult | None = None) -> live.Outcome:
    """A whole look, as the options say.  Raises UsageError before anything is looked at."""
    host = live.look(config, options.host_root, everything=not options.ids)
    try:
        specs, extra = setup.load_checks(config, options.ids, lost=lost, said=options.said("only"))
    except setup.UsageError:
        host.close()
        raise
    return live.run(
        host,
        config,
        specs,
        extra,
        host_root=options.host_root,
        allreduce=not options.no_allreduce,
        progress=silent if options.quiet else say,
        cures=not options.no_cures,
    )


def snapshot(options: Options, path: str, pseudonyms: bytes | None) -> int:
    """Keep every answer and run, under other names where `pseudonyms` is their key."""
    try:
        config = ready(options)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    if failed := deliver.foretell(path):  # nothing else would be left of the look
        return failed
    return setup.judged(config, None, lambda lost: _kept(options, config, path, pseudonyms, lost))


def _kept(options: Options, config: Config, path: str, pseudonyms: bytes | None, lost: CheckResult | None) -> int:
    try:
        outcome = look(options, config, lost)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    written = keep(path, config, outcome, options.ids, pseudonyms)
    not_whole = policy.INCONCLUSIVE if outcome.partial and not written else written
    return 128 + outcome.signal if outcome.signal else not_whole


def keep(path: str, config: Config, outcome: live.Outcome, selected: tuple[str, ...], pseudonyms: bytes | None = None) -> int:
    """Write what a live run leaves; 0, or `deliver.BROKEN` with a line on stderr."""
    from netdoctor.snapshot import snapshot

    work = outcome.work
    engine.identity(work)  # asked for its answers: a report of this snapshot names the machine as one made here does
    taken = snapshot.Snapshot(
        outcome.host.answers,
        {n: work.facts[n] for n in registry.RUNS if n in work.facts},
        setup.policy_data(config),
        selected,
        tuple(result.id for result in engine.results(work)),
        __version__,
        time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(work.started)),
        outcome.partial,
    )
    if pseudonyms is not None:
        from netdoctor.snapshot.pseudonyms import environments, pseudonymise

        folders = (os.path.expanduser("~"), os.getcwd(), *environments(config.python, sys.executable))
        taken = pseudonymise(taken, pseudonyms, folders)
    return deliver.write(path, snapshot.dumps(taken), snapshot=True)


def say(text: str) -> None:
    print(f"netdoctor: {text}", file=sys.stderr, flush=True)


def silent(text: str) -> None:
    pass

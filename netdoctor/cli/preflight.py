"""``netdoctor preflight`` and ``netdoctor snapshot``: one live run, told as a report or kept as a snapshot."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from typing import TextIO

from netdoctor import __version__, engine, live
from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.model import CheckResult
from netdoctor.process import signals


def preflight(options: Options) -> int:
    """The exit code of the report of this node, which has been printed."""
    return _report(options, sys.stdout)


def before_the_job(options: Options, program: str) -> int:
    """The same from the job's own process, which then becomes `program`: what that prints is the job's, so this is stderr's."""
    return _report(options, sys.stderr, vantage="wrapper", command=program)


def _report(options: Options, to: TextIO, **of_the_job: str) -> int:
    try:
        deliver.check(options)
        config = _ready(options, **of_the_job)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    return setup.judged(config, options.exit_style, lambda lost: _judged(options, config, to, lost))


def _judged(options: Options, config: Config, to: TextIO, lost: CheckResult | None) -> int:
    try:
        outcome = _look(options, config, lost)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    report = engine.report(outcome.work, setup.decider(config, options.ids, outcome.partial), config.profile, outcome.partial)
    code = deliver.deliver(deliver.interrupted(report, outcome.signal), options, to)
    number = outcome.signal or signals.pending()
    return 128 + number if number else code


def _ready(options: Options, **of_the_job: str) -> Config:
    """This process as the one who looks.  Raises UsageError."""
    config = replace(setup.configuration(options), **of_the_job)  # type: ignore[arg-type]
    if options.host_root is not None and not os.path.isdir(options.host_root):
        raise setup.UsageError(f"--host-root: {options.host_root}: no such directory")
    if options.host_root is not None and config.lock:
        raise setup.UsageError(f"--host-root: {options.host_root}: the site's configuration is locked: it is for this machine")
    setup.become(config)
    return config


def _look(options: Options, config: Config, lost: CheckResult | None) -> live.Outcome:
    """Raises UsageError before anything is looked at."""
    host = live.look(config, options.host_root, everything=not options.ids)
    try:
        specs, extra = setup.load_checks(config, options.ids, lost=lost)
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
    )


def snapshot(options: Options, path: str, pseudonyms: bytes | None) -> int:
    """Keep every answer and run, under other names where `pseudonyms` is their key."""
    try:
        config = _ready(options)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    return setup.judged(config, None, lambda lost: _kept(options, config, path, pseudonyms, lost))


def _kept(options: Options, config: Config, path: str, pseudonyms: bytes | None, lost: CheckResult | None) -> int:
    try:
        outcome = _look(options, config, lost)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    written = keep(path, config, outcome, options.ids, pseudonyms)
    return 128 + outcome.signal if outcome.signal else written


def keep(path: str, config: Config, outcome: live.Outcome, selected: tuple[str, ...], pseudonyms: bytes | None = None) -> int:
    """Write what a live run leaves; 0, or `deliver.BROKEN` with a line on stderr."""
    from netdoctor.facts import registry
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
        from netdoctor.snapshot.pseudonyms import pseudonymise

        taken = pseudonymise(taken, pseudonyms, (os.path.expanduser("~"), os.getcwd()))
    return deliver.write(path, snapshot.dumps(taken), snapshot=True)


def say(text: str) -> None:
    print(f"netdoctor: {text}", file=sys.stderr, flush=True)


def silent(text: str) -> None:
    pass

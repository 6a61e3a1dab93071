"""``netdoctor allreduce``: this node's part in one verified all-reduce of several nodes, and a report of this node."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from netdoctor import engine, live
from netdoctor.cli import preflight, run, setup
from netdoctor.cluster import membership
from netdoctor.cluster.session import ClusterSession, Limits

if TYPE_CHECKING:
    from netdoctor.cluster.observations import Nodes
    from netdoctor.config.load import Config

NODES: Final = "allreduce.nodes"  # runs whatever is selected: without it nobody would say which node is missing


def allreduce(given: preflight.Given, place: membership.Given, limits: Limits, only: tuple[str, ...], *, quiet: bool) -> int:
    """The exit code; the report of this node has been printed."""
    try:
        if not 0 < limits.wait <= 86400 or not (limits.stall is None or 0 < limits.stall <= 3600):
            raise setup.UsageError("--wait and --stall: seconds, more than 0")
        here = membership.find(place, os.environ)
        config = setup.configuration(given.config, asdict(given))
        setup.known_format(given.format, given.exit_style, given.output)
        setup.become(config)
    except (setup.UsageError, membership.NodesError) as error:
        return setup.refuse(error, given.format, given.output)
    if here.local_rank:  # one process looks at each node; it starts the ranks itself
        return run.ask_doctor()
    code = _look(given, here, replace(limits, budget=config.budget_s or limits.budget), config, only, quiet)
    if here.local_world > 1:
        run.tell_ranks(code, here.local_world - 1)
    return code


def _look(given: preflight.Given, here: Nodes, limits: Limits, config: Config, only: tuple[str, ...], quiet: bool) -> int:
    session = ClusterSession(here, limits, preflight.silent if quiet else preflight.say)
    try:
        host = live.look(config, None, everything=not only)
        try:
            specs, extra = setup.load_checks(config, (*only, NODES) if only else (), cluster=True)
        except setup.UsageError as error:
            host.close()
            return setup.refuse(error, given.format, given.output)
        outcome = live.run(
            host, config, specs, extra, host_root=None, allreduce=True, progress=session.progress, cluster=session
        )
    finally:
        session.close("" if session.cluster.run is not None else "ended before the run")
    decide = setup.decider(config, only, outcome.partial, must=("allreduce.run", NODES))
    report = engine.report(outcome.work, decide, config.profile, outcome.partial)
    if given.termination_log is not None:
        setup.last_words(report, given.termination_log)
    code = setup.deliver(report, given.format, given.output, given.exit_style, sys.stdout)
    return 128 + outcome.signal if outcome.signal else code

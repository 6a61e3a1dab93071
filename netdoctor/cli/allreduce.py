"""``netdoctor allreduce``: this node's part in one verified all-reduce of several nodes, and a report of this node."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from netdoctor import __version__, engine, live
from netdoctor.cli import deliver, preflight, run, setup
from netdoctor.cli.options import Options
from netdoctor.cluster import membership
from netdoctor.cluster.session import Limits, Together

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netdoctor.allreduce.runner import Session
    from netdoctor.config.load import Config
    from netdoctor.model import Unavailable


def allreduce(options: Options, place: membership.Given, limits: Limits) -> int:
    """The exit code; the report of this node has been printed."""
    try:
        if not 0 < limits.wait <= 86400 or not (limits.stall is None or 0 < limits.stall <= 3600):
            raise setup.UsageError("--wait and --stall: seconds, more than 0")
        here = membership.find(place, os.environ)
        config = setup.configuration(options)
        deliver.check(options)
        setup.become(config)
    except (setup.UsageError, membership.NodesError) as error:
        return deliver.refuse(error, options)
    if here.local_rank:  # one process looks at each node; it starts the ranks itself
        return run.ask_doctor()
    code = _look(options, here, replace(limits, budget=config.budget_s or limits.budget), config)
    if here.local_world > 1:
        run.tell_ranks(code, here.local_world - 1)
    return code


def _look(options: Options, here: membership.Nodes, limits: Limits, config: Config) -> int:
    from netdoctor.cluster import findings

    progress = preflight.silent if options.quiet else preflight.say
    together = Together(here, limits, progress)
    part = Part(together, config)
    try:
        host = live.look(config, None, everything=not options.ids)
        try:
            specs, extra = setup.load_checks(config, options.ids)
        except setup.UsageError as error:
            host.close()
            return deliver.refuse(error, options)
        outcome = live.run(host, config, specs, extra, host_root=None, allreduce=True, progress=progress, together=part)
    finally:
        together.close("" if together.heard.run is not None else "ended before the run")
    outcome.work.extra = (*outcome.work.extra, findings.result(together.heard, outcome.partial))
    decide = setup.decider(config, options.ids, outcome.partial, must=("allreduce.run", findings.ID))
    report = engine.report(outcome.work, decide, config.profile, outcome.partial)
    code = deliver.deliver(replace(report, nodes=findings.section(together.heard)), options)
    return 128 + outcome.signal if outcome.signal else code


class Part:
    """What `live.run` does in the place of this node's own all-reduces."""

    def __init__(self, together: Together, config: Config) -> None:
        self.together, self.config = together, config
        self.limits: Mapping[str, float] = together.limits.runner()

    def begin(self) -> None:
        self.together.begin()

    def baseline(self, session: Session | None, facts: dict[str, Any]) -> Any | Unavailable:
        from netdoctor.cluster.findings import chosen
        from netdoctor.compare.traits import traits
        from netdoctor.facts.inventory import inventory

        return self.together.run(session, facts, chosen(*traits(inventory(facts), __version__)))

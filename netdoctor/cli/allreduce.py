"""``netdoctor allreduce``: this node's part in one verified all-reduce of several nodes, and a report of this node."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from netdoctor import engine, live
from netdoctor.cli import deliver, preflight, run, setup
from netdoctor.cli.options import Options
from netdoctor.cluster import membership
from netdoctor.cluster.observations import Proof
from netdoctor.cluster.secret import SecretError, by_munge, exposed, take
from netdoctor.cluster.session import ClusterSession, Limits
from netdoctor.model import record
from netdoctor.textsafe import clean

if TYPE_CHECKING:
    from netdoctor.config.load import Config


@record
class Place:
    """Who this node is, and by what it proves it."""

    given: membership.Given
    token_file: str | None = None


def allreduce(options: Options, place: Place, limits: Limits, snapshot: str | None = None) -> int:
    """The exit code; the report of this node has been printed, and what it rests on is in the file `snapshot`."""
    try:
        if not 0 < limits.wait <= 86400 or not (limits.stall is None or 0 < limits.stall <= 3600):
            raise setup.UsageError("--wait and --stall: seconds, more than 0")
        here, secret = membership.find(place.given, os.environ), take(place.token_file, os.environ)
        config = setup.configuration(options)
        config = replace(config, job=replace(config.job, nodes=config.job.nodes or here.count))  # whoever calls says so
        deliver.check(options)
        setup.become(config)
    except (setup.UsageError, membership.NodesError, SecretError) as error:
        return deliver.refuse(error, options)
    if place.token_file is not None and (words := exposed(place.token_file)):
        print(clean(f"netdoctor: {words}"), file=sys.stderr)
    if here.local_rank:  # one process looks at each node; it starts the ranks itself
        return run.ask_doctor(quiet=options.quiet)
    deliver.foretell(options.output, options.termination_log, snapshot)  # and go on: the other nodes wait for this one
    limits = replace(limits, budget=config.budget_s or limits.budget)
    if here.count > 1 and secret.proof is Proof.NOTHING:
        secret = by_munge(here.rank == 0)

    def look(_: object) -> int:
        session = ClusterSession(here, limits, preflight.silent if options.quiet else preflight.say, secret)
        return _look(options, session, config, snapshot)

    # Not again: the other nodes have seen this one go.
    with run.waited_for(here.local_world - 1) as door:
        code = setup.judged(config, options.exit_style, look, again=False)
        run.tell_ranks(code, here.local_world - 1, door)
    return code


def _look(options: Options, session: ClusterSession, config: Config, snapshot: str | None) -> int:
    only = tuple(dict.fromkeys((*options.ids, setup.OF_SEVERAL_NODES[1]))) if options.ids else ()
    try:
        host = live.look(config, None, everything=not options.ids)
        try:
            specs, extra = setup.load_checks(config, only, cluster=True, said=options.said("only"))
        except setup.UsageError as error:
            host.close()
            return deliver.refuse(error, options)
        outcome = live.run(
            host, config, specs, extra, host_root=None, allreduce=True, progress=session.progress, cluster=session
        )
    finally:
        session.close("" if session.cluster.run is not None else "ended before the run")
    decide = setup.decider(config, options.ids, outcome.partial, must=setup.OF_SEVERAL_NODES)
    report = engine.report(outcome.work, decide, config.profile, outcome.partial)
    kept = 0 if snapshot is None else preflight.keep(snapshot, config, outcome, only)
    code = deliver.deliver(deliver.interrupted(report, outcome.signal), options) or kept
    return 128 + outcome.signal if outcome.signal else code

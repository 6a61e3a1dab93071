"""What the commands share before they look: configuration, checks, policy, user."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from netdoctor.config.load import Config, ConfigError
from netdoctor.model import CheckResult, Command, Json, plain

if TYPE_CHECKING:
    from netdoctor.api import CheckSpec
    from netdoctor.cli.options import Options
    from netdoctor.policy import Decide


class UsageError(ValueError):
    """Bad usage, configuration or plugin: exit 2, one line."""


def configuration(options: Options, command: Command = Command.PREFLIGHT) -> Config:
    """The merged configuration.  Raises UsageError."""
    from netdoctor import policy
    from netdoctor.config import load as config

    overrides = options.overrides()
    if isinstance(overrides["python"], str) and "/" in overrides["python"]:
        try:
            overrides["python"] = os.path.abspath(overrides["python"])
        except OSError as error:  # the working directory is gone
            raise UsageError(f"--python {overrides['python']}: the working directory: {error.strerror}") from None
        if not os.path.isfile(overrides["python"]):
            raise UsageError(f"--python: {overrides['python']}: no such file")
    defaults = {"fail_on": policy.FAIL_ON[command]} if command in policy.FAIL_ON else {}
    try:
        loaded = config.load(options.config, overrides=overrides, defaults=defaults)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    for note in loaded.notes:
        print(f"netdoctor: {note}", file=sys.stderr)
    return loaded


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
        if not _of_another_command(name):
            print(f"netdoctor: the configuration names {name!r}, which is no check", file=sys.stderr)
    if not only:
        specs = loaded.specs
        return specs if cluster else tuple(s for s in specs if not engine.needs_fact(s, "Cluster")), loaded.results
    results = loaded.results if config.lock else tuple(r for r in loaded.results if r.id in only)
    return tuple(s for s in loaded.specs if s.id in only), results


def _of_another_command(id: str) -> bool:
    """Whether `log`, `ras` or `fleet report` may give such a result: one configuration is for all commands."""
    from netdoctor.causes import CAUSES

    area, _, name = id.partition(".")
    return area == "fleet" or id == "ras.ranks" or (area == "log" and (name == "job" or name in CAUSES))


def decider(
    config: Config,
    only: tuple[str, ...] = (),
    partial: str | None = None,
    must: tuple[str, ...] = (),
    command: Command = Command.PREFLIGHT,
) -> Decide:
    """The policy as the engine calls it.  Where the site locked its configuration, --only does not lower what is required.

    `must` are checks that have to be able to tell, whatever the profile.
    """
    from netdoctor import policy
    from netdoctor.facts.presence import seen

    selected = only if only and not config.lock else None

    def decide(checks: tuple[CheckResult, ...], facts: Mapping[str, Any]) -> Any:
        return policy.decide(
            checks,
            config.profile,
            config.fail_on,
            command=command,
            waivers=config.waivers,
            disabled=config.disabled,
            seen=seen(facts),
            selected=selected,
            partial=partial,
            must=must,
        )

    return decide


def policy_data(config: Config) -> dict[str, Json]:
    """What decides the exit code, for a snapshot."""
    data = plain({"profile": config.profile, "fail_on": config.fail_on, "disabled": config.disabled})
    assert isinstance(data, dict)
    data["waivers"] = [
        {"check": w.check, "subject": w.subject, "reason": w.reason, "until": w.until.isoformat()} for w in config.waivers
    ]
    return data


def become(config: Config) -> None:
    """As root with a user named: be that user from here on, without a way back (setgroups, setgid, setuid, no_new_privs)."""
    if config.user is None or os.geteuid() != 0:
        return
    from netdoctor.process import users

    try:
        users.become(config.user)
    except users.UserError as error:
        raise UsageError(f"--user: {error}") from None

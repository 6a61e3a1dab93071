"""What the commands share before they look: configuration, checks, policy, user."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from netdoctor.cli import startable
from netdoctor.config.document import ConfigError
from netdoctor.config.load import Config
from netdoctor.model import CheckResult, Command, Finding, Json, Status, plain
from netdoctor.process import far
from netdoctor.textsafe import meant, nearest

if TYPE_CHECKING:
    from netdoctor.api import CheckSpec
    from netdoctor.cli.options import Options
    from netdoctor.plugins import Loaded
    from netdoctor.policy import Decide


# What a run of several nodes must be able to tell.  Without the second nobody would say which node is missing.
OF_SEVERAL_NODES: Final = ("allreduce.run", "allreduce.nodes")


class UsageError(ValueError):
    """Bad usage, configuration or plugin: exit 2, one line."""


def configuration(options: Options, command: Command = Command.PREFLIGHT, recorded: Mapping[str, Any] | None = None) -> Config:
    """The merged configuration; `recorded` is the policy of a snapshot.  Raises UsageError."""
    from netdoctor import policy
    from netdoctor.causes import CAUSES
    from netdoctor.cli import installed
    from netdoctor.config import load as config

    if options.only is not None and not options.ids:  # an empty variable of a script must not become all checks
        raise UsageError(f"{options.said('only')}: it names no check; netdoctor list names them")
    named(config=options.config, expect=options.expect)
    overrides = options.overrides()
    if isinstance(overrides["python"], str):
        overrides["python"] = _interpreter(overrides["python"])
    defaults = {"fail_on": policy.FAIL_ON[command]} if command in policy.FAIL_ON else {}
    try:
        loaded = config.load(options.config, overrides=overrides, defaults=defaults, recorded=recorded, expect=options.expect)
    except ConfigError as error:
        raise UsageError(str(error)) from None
    loaded = replace(loaded, as_root=options.user in ("root", "0"))  # the command line's word alone: of who may run it
    for note in (*loaded.notes, *_misspelt(), *installed.notes()):
        print(f"netdoctor: {note}", file=sys.stderr)
    causes = (id for cause in CAUSES.values() for id in cause.look)
    # A name that no cause has: the checks themselves must be loaded to tell.
    if command is not Command.PREFLIGHT and _unmatched(loaded, causes) and judged(loaded, None, lambda x: _named(loaded, x)):
        raise UsageError("whether the configuration names checks that there are cannot be told")
    return loaded


def named(**files: str | None) -> None:
    """An empty variable of a script names no file: what the site expects must not be left out by it.  Raises UsageError."""
    for option, path in files.items():
        if path == "":
            raise UsageError(f"--{option.replace('_', '-')}: it names no file")


def filled(*paths: str) -> None:
    """The same of what is given without an option.  Raises UsageError."""
    if "" in paths:
        raise UsageError("FILE: an empty name names no file")


def _interpreter(said: str) -> str:
    """What --python names: a path, or a name that PATH has.  Raises UsageError."""
    if "/" not in said:
        if said and (found := startable.in_the_way(said, os.environ.get("PATH"))):
            raise UsageError(f"--python: {said}: {'not on PATH' if found.code == 127 else found.why}")
        return said
    try:
        path = os.path.abspath(said)
    except OSError as error:  # the working directory is gone
        raise UsageError(f"--python {said}: the working directory: {error.strerror}") from None
    try:
        mode = far.call(os.stat, path, path=path).st_mode
    except FileNotFoundError:
        raise UsageError(f"--python: {path}: no such file") from None
    except OSError as error:
        raise UsageError(f"--python: {path}: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise UsageError(f"--python: {path}: {_folder(path) if stat.S_ISDIR(mode) else 'no file'}")
    if found := far.call(startable.obstacle, path, path=path):
        raise UsageError(f"--python: {path}: no interpreter: {found.why}")
    return path


def _folder(path: str) -> str:
    """An environment's perhaps, whose interpreter is in its bin."""
    inside = os.path.join(path, "bin", "python")
    try:
        return "a folder" + (f"; did you mean {inside}?" if far.call(os.path.isfile, inside, path=inside) else "")
    except OSError:
        return "a folder"


def folder_there(option: str, path: str, what: str = "directory") -> None:
    """Raises UsageError where there is none, or nobody can tell."""
    try:
        there = stat.S_ISDIR(far.call(os.stat, path, path=os.path.abspath(path)).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        there = False
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from None
    if not there:
        raise UsageError(f"{option}: {path}: no such {what}")


def _misspelt() -> Iterator[str]:
    """Of variables that nearly have the name of one of an option or of a key of the configuration."""
    from netdoctor.cli import options
    from netdoctor.config import load

    known = {*options.variables(), *load.variables()}
    for name in sorted(os.environ):
        if name.startswith(load.PREFIX) and name not in known and (hint := nearest(name, sorted(known), cutoff=0.9)):
            yield f"{name} is not an option{hint}"


def loaded_checks(config: Config, lost: CheckResult | None = None) -> Loaded:
    """Every check; those of the site only if nothing was `lost` with them.  Raises UsageError."""
    from netdoctor import plugins

    try:
        loaded = plugins.load(config.checks_dir, site=lost is None)
    except plugins.PluginError as error:
        raise UsageError(str(error)) from None
    return loaded if lost is None else replace(loaded, results=(lost,))


def judged(config: Config, style: str | None, work: Callable[[CheckResult | None], int], *, again: bool = True) -> int:
    """The exit code of `work`, which a child does where the site has checks of its own (`process.apart`).

    Where the child ends without a word, `work` is done `again` without them, and gets what is then to report.
    """
    from netdoctor import plugins

    if not plugins.of_site(config.checks_dir):
        return work(None)
    from netdoctor import policy
    from netdoctor.causes.results import own_result
    from netdoctor.process import apart, signals, streams

    done = apart.run(lambda: streams.ended(lambda: work(None), lambda code: policy.styled(code, style)))
    if isinstance(done, int):
        return done
    if (number := signals.pending()) is not None:
        return 128 + number
    words = f"its process ended without a verdict of netdoctor's ({done.how}); no check of the site's own counts"
    print(f"netdoctor: {done.during or 'a check of the site'}: {words}", file=sys.stderr)
    if not again:
        return policy.styled(policy.INCONCLUSIVE, style)
    return work(own_result("plugin.broken", [Finding(Status.ERROR, words, done.during)]))


def _unmatched(config: Config, known: Iterable[str]) -> tuple[str, ...]:
    """One configuration is for all commands: any of them may give the result that a waiver names."""
    from netdoctor import policy
    from netdoctor.causes.results import RESULTS

    return policy.unmatched(config.waivers, config.disabled, (*known, *RESULTS))


def _named(config: Config, lost: CheckResult | None) -> int:
    try:
        _warn(config, loaded_checks(config, lost))
    except UsageError as error:
        print(f"netdoctor: {error}", file=sys.stderr)
        return 2
    return 0


def _warn(config: Config, loaded: Loaded) -> None:
    known = [spec.id for spec in loaded.specs]
    for name in _unmatched(config, known):
        print(f"netdoctor: the configuration names {name!r}, which is no check{nearest(name, known)}", file=sys.stderr)


def load_checks(
    config: Config,
    only: tuple[str, ...],
    *,
    cluster: bool = False,
    ran: tuple[str, ...] = (),
    lost: CheckResult | None = None,
    said: str = "--only",
) -> tuple[tuple[CheckSpec, ...], tuple[CheckResult, ...]]:
    """The checks to run, and results for plugins that were refused or are broken.  Raises UsageError.

    `cluster`: other nodes are met.  Where they are not, a check of what they told runs only if `only` names it.  `ran` are
    the results of a snapshot: of one that no check here gives it is not known what it would say.  `said`: by what `only` was.
    """
    from netdoctor import engine
    from netdoctor.causes.results import own_result, result

    loaded = loaded_checks(config, lost)
    known = {spec.id for spec in loaded.specs} | {result.id for result in loaded.results} | set(only if lost else ())
    missing = [id for id in only if id not in known]
    if missing:
        words = f"{said}: no check {missing[0]!r}{meant(missing[0], sorted(known)) or '; netdoctor list names them'}"
        raise UsageError("; ".join([words, *(f"{f.subject}: {f.message}" for r in loaded.results for f in r.findings)]))
    _warn(config, loaded)
    results = loaded.results
    # With --only what is gone is what nobody asked for (else it is a mistake, above), but for plugins that failed there, too.
    narrowed = only and not config.lock
    if gone := [id for id in ran if id not in known and (not narrowed or id in ("plugin.broken", "plugin.refused"))]:
        words = "it judged the node where the snapshot was taken, and is not here"
        results += (own_result("plugin.missing", [Finding(Status.UNKNOWN, words, id) for id in gone]),)
    every = tuple(s for s in loaded.specs if cluster or not engine.needs_fact(s, "Cluster"))
    if not only:
        return every, results
    chosen = tuple(s for s in loaded.specs if s.id in only)
    if not config.lock:  # what could not be loaded may hold what is asked for, and nobody can tell
        return chosen, results
    left_out = (s for s in every if s.id not in only)
    unjudged = [Finding(Status.UNKNOWN, "not judged: --only leaves it out, and the configuration is locked")]
    return chosen, (*results, *(result(s.id, s.title, s.cause, unjudged) for s in left_out))


def decider(
    config: Config,
    only: tuple[str, ...] = (),
    partial: str | None = None,
    must: tuple[str, ...] = (),
    command: Command = Command.PREFLIGHT,
    *,
    gate: bool = False,
) -> Decide:
    """The policy as the engine calls it.  In a gate (the profile, or `run --gate` whatever its profile is), and where the site
    locked its configuration, a run with --only is not whole.

    `must` are checks that have to be able to tell, whatever the profile.
    """
    from netdoctor import policy
    from netdoctor.facts.presence import seen

    whole = config.lock or gate or config.profile == "gate"
    selected = only if only and not whole else None

    why = "the configuration is locked" if config.lock else f"{'a gate' if gate else 'profile gate'} stands for all of them"

    def decide(checks: tuple[CheckResult, ...], facts: Mapping[str, Any]) -> Any:
        left_out = bool(only) and whole and (not config.lock or bool({check.id for check in checks} - set(only)))
        return policy.decide(
            checks,
            config.profile,
            config.fail_on,
            command=command,
            waivers=config.waivers,
            disabled=config.disabled,
            seen=seen(facts),
            selected=selected,
            partial=partial or (f"--only leaves checks out, and {why}" if left_out else None),
            must=must,
            gate=gate,
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
    """As root with a user named: be that user from here on, without a way back (setgroups, setgid, setuid, no_new_privs).

    For others the user of the site's file, which is for root's looks too, means nothing; the command line's would be untrue.
    """
    if config.user is None or (config.user in ("root", "0") and os.geteuid() == 0):  # slim images have no account of root
        return
    from netdoctor.config.load import said_by
    from netdoctor.process import users

    if os.geteuid() != 0:
        if config.sources.get("user") == "command line" and not users.is_me(config.user):
            if config.user not in ("root", "0"):
                raise UsageError(f"--user: root only: uid {os.geteuid()} cannot look and run as {config.user}")
            # a manifest's word for images of any user (deploy/kubernetes): it counts where the image's is root
            print(f"netdoctor: --user {config.user} counts for root alone: uid {os.geteuid()} looks and runs", file=sys.stderr)
        return
    try:
        users.become(config.user)
    except users.UserError as error:
        raise UsageError(f"{said_by(config, 'user')}: {error}") from None

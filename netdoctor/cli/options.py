"""The options of the command line that commands share: one dataclass, from which typer's signatures are built."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, get_type_hints

import typer
from typer.core import TyperCommand

from netdoctor.cli.completion import one_of
from netdoctor.report import formats

Text = str | None
Texts = list[str] | None


class Once(TyperCommand):
    """A command that writes one file: a second --output is refused, where the first would silently not be written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        names = [param.name for param in given]
        if names.count("output") > 1:
            raise typer.BadParameter(
                "given more than once: one run writes one file; --format prints another form: -f junit > b.xml"
            )
        rest = super().parse_args(ctx, args)
        # NETDOCTOR_BRIEF and NETDOCTOR_FORMAT: the command line's word counts more.
        for said, other, nothing in (("format", "brief", False), ("brief", "format", None)):
            if said in names and other not in names and other in ctx.params:
                ctx.params[other] = nothing
        return rest


@dataclass(frozen=True)
class Options:
    """What the command line said; None: nothing.  A command has those that it names in `takes`."""

    only: Annotated[
        Texts,
        typer.Option(
            "--only",
            metavar="ID",
            envvar="NETDOCTOR_ONLY",
            help="Run these checks only (repeat, or a,b).",
            autocompletion=one_of("netdoctor.cli.catalog:checks", several=True),
        ),
    ] = None
    config: Annotated[Text, typer.Option(metavar="FILE", help="Configuration (YAML).")] = None
    expect: Annotated[Text, typer.Option(metavar="FILE", help="What `netdoctor expect` wrote of a good node.")] = None
    profile: Annotated[
        Text,
        typer.Option(
            metavar="NAME",
            help="default, gate, audit, prolog or strict: what must be able to tell.",
            autocompletion=one_of("netdoctor.policy:PROFILE_ORDER"),
        ),
    ] = None
    fail_on: Annotated[
        Text,
        typer.Option(
            metavar="SEVERITY",
            help="Lowest severity that counts as unhealthy: info, warning, critical (the default; of env and fleet: warning).",
            autocompletion=one_of("netdoctor.policy:FAIL_ON_ORDER"),
        ),
    ] = None
    format: Annotated[
        Text,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            envvar="NETDOCTOR_FORMAT",
            help=f"{', '.join(formats.names())}; of a node or fleet also prometheus.",
            autocompletion=one_of("netdoctor.report.formats:FORMATS"),
        ),
    ] = None
    output: Annotated[
        Text,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            envvar="NETDOCTOR_OUTPUT",
            help="Also write the report here, by suffix (else JSON).",
        ),
    ] = None
    brief: Annotated[bool, typer.Option("--brief", envvar="NETDOCTOR_BRIEF", help="One line of at most 200 characters.")] = (
        False
    )
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", envvar="NETDOCTOR_VERBOSE", help="A line for each check, nothing folded.")
    ] = False
    checks_dir: Annotated[Text, typer.Option(metavar="DIR", help="Drop-in checks, besides /etc/netdoctor/checks.d.")] = None
    python: Annotated[Text, typer.Option(metavar="PATH", help="The job's Python.")] = None
    user: Annotated[Text, typer.Option(metavar="NAME", help="Look and run as this user (root only).")] = None
    via: Annotated[
        Text,
        typer.Option(
            metavar="torch|nccl",
            help="torch: the job's; nccl: libnccl and the driver alone. Else torch, or nccl in a job without torch.",
            autocompletion=one_of("netdoctor.config.keys:VIAS"),
        ),
    ] = None
    vantage: Annotated[
        Text,
        typer.Option(
            metavar="job|node",
            help="job: this is the job's own context; node: it is not.",
            autocompletion=one_of("netdoctor.config.keys:VANTAGES"),
        ),
    ] = None
    host_root: Annotated[
        Text,
        typer.Option("--host-root", metavar="DIR", envvar="NETDOCTOR_HOST_ROOT", help="A mounted host of the same kernel."),
    ] = None
    no_allreduce: Annotated[
        bool, typer.Option("--no-allreduce", envvar="NETDOCTOR_NO_ALLREDUCE", help="Look only; run nothing.")
    ] = False
    no_cures: Annotated[
        bool, typer.Option("--no-cures", envvar="NETDOCTOR_NO_CURES", help="Do not measure what the mend of a fail gains.")
    ] = False
    budget: Annotated[
        float | None,
        typer.Option("--budget", metavar="SECONDS", envvar="NETDOCTOR_BUDGET", help="For the all-reduces, in all."),
    ] = None
    dcgm_diag: Annotated[
        int | None,
        typer.Option("--dcgm-diag", metavar="LEVEL", help="Have DCGM run its diagnostic (1 to 4) on idle GPUs."),
    ] = None
    redact: Annotated[
        Texts,
        typer.Option("--redact", metavar="WORD", envvar="NETDOCTOR_REDACT", help="Also leave out this word (repeat)."),
    ] = None
    exit_style: Annotated[
        Text,
        typer.Option(
            metavar="STYLE",
            envvar="NETDOCTOR_EXIT_STYLE",
            help="nagios or npd: translate the exit code at the very end.",
            autocompletion=one_of("netdoctor.policy:EXIT_STYLES"),
        ),
    ] = None
    quiet: Annotated[bool, typer.Option("--quiet", "-q", envvar="NETDOCTOR_QUIET", help="No progress on stderr.")] = False
    termination_log: Annotated[
        Text,
        typer.Option(
            metavar="FILE",
            envvar="NETDOCTOR_TERMINATION_LOG",
            help="Also write what is wrong here in at most 4096 bytes (a pod's /dev/termination-log).",
        ),
    ] = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The checks of --only."""
        return tuple(part.strip() for text in self.only or () for part in text.split(",") if part.strip())

    @property
    def form(self) -> str | None:
        """The format, however it was asked for."""
        return "brief" if self.brief else self.format

    def overrides(self) -> dict[str, Any]:
        """What of it the configuration has, too, by the configuration's keys."""
        return {key: getattr(self, name) for name, key in _KEYS.items()}


_KEYS: Final = {
    name: {"budget": "budget_s"}.get(name, name)
    for name in ("profile", "fail_on", "checks_dir", "python", "user", "via", "vantage", "budget", "dcgm_diag")
}
JUDGED: Final = ("config", "expect", "profile", "fail_on")
TOLD: Final = ("format", "output", "brief", "redact")
FOLDED: Final = (*TOLD, "verbose")
_RUNS: Final = ("no_allreduce", "no_cures", "budget", "dcgm_diag")
LOOKED: Final = ("checks_dir", "python", "user", "via", "vantage", "host_root", *_RUNS, "quiet")


@functools.cache
def _declared() -> tuple[dict[str, Any], dict[str, Any]]:
    """The type and the default of every field: once, for each start of the program asks for it a dozen times."""
    return get_type_hints(Options, include_extras=True), {field.name: field.default for field in fields(Options)}


def variables() -> tuple[str, ...]:
    """The environment variables that say what an option says, but for those of the configuration's keys."""
    meant = (part.envvar for hint in _declared()[0].values() for part in getattr(hint, "__metadata__", ()))
    return tuple(name for name in meant if isinstance(name, str))


def takes(*names: str) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Give a command `options` with these fields, beside parameters of its own; what it returns is the exit code."""
    hints, defaults = _declared()

    def wrap(command: Callable[..., int]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]
        shared = [
            inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=defaults[n], annotation=hints[n])
            for n in names
        ]

        @functools.wraps(command)
        def run(**given: Any) -> None:
            options = Options(**{name: given.pop(name) for name in names})
            raise typer.Exit(command(**given, options=options))

        # What typer reads in the place of the function's own.
        run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in (*own, *shared)}
        del run.__wrapped__
        return run

    return wrap

"""The options of the command line that commands share: one dataclass, from which typer's signatures are built."""

from __future__ import annotations

import functools
import inspect
import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Annotated, Any, Final, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from netdoctor.cli.completion import one_of
from netdoctor.report import formats

Text = str | None
Texts = list[str] | None


class Once(TyperCommand):
    """A command that writes one file: a second --output is refused, where the first would silently not be written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, given = self.make_parser(ctx).parse_args(args=list(args))
        names = [param.name for param in given]
        if names.count("output") > 1:
            last = str(values["output"])
            form = formats.of_file(last, None)
            told = any(param.name == "format" for param in self.params) and form in formats.FORMATS
            hint = f"; the other form can be printed: --format {form} > {shlex.quote(last)}" if told else ""
            raise typer.BadParameter(f"--output (-o) is given more than once, and one run writes one file{hint}")
        rest = super().parse_args(ctx, args)
        # NETDOCTOR_BRIEF and NETDOCTOR_FORMAT: the command line's word counts more.
        for said, other, nothing in (("format", "brief", False), ("brief", "format", None)):
            if said in names and other not in names and other in ctx.params:
                ctx.params[other] = nothing
        return rest


@dataclass(frozen=True)
class _Said:
    """What the command line says of an option: --its-name, and NETDOCTOR_ITS_NAME but where the configuration reads that."""

    metavar: str | None  # None: a flag
    help: str
    short: str = ""
    env: bool = True
    values: str = ""  # which completion offers
    several: bool = False


@dataclass(frozen=True)
class Options:
    """What the command line said; None: nothing.  A command has those that it names in `takes`."""

    only: Annotated[
        Texts, _Said("ID", "Run these checks only (repeat, or a,b).", values="netdoctor.cli.catalog:checks", several=True)
    ] = None
    config: Annotated[Text, _Said("FILE", "Configuration (YAML).", env=False)] = None
    expect: Annotated[Text, _Said("FILE", "What `netdoctor expect` wrote of a good node.", env=False)] = None
    profile: Annotated[
        Text,
        _Said(
            "NAME",
            "default, gate, audit, prolog or strict: what must be able to tell.",
            env=False,
            values="netdoctor.policy:PROFILE_ORDER",
        ),
    ] = None
    fail_on: Annotated[
        Text,
        _Said(
            "SEVERITY",
            "Lowest severity that counts as unhealthy: info, warning, critical (the default; of env and fleet: warning).",
            env=False,
            values="netdoctor.policy:FAIL_ON_ORDER",
        ),
    ] = None
    format: Annotated[
        Text,
        _Said(
            "FORMAT",
            f"{', '.join(formats.names())}; of a node or fleet also prometheus.",
            "-f",
            values="netdoctor.report.formats:FORMATS",
        ),
    ] = None
    output: Annotated[Text, _Said("FILE", "Also write the report here, by suffix (else JSON).", "-o")] = None
    brief: Annotated[bool, _Said(None, "One line of at most 200 characters.")] = False
    verbose: Annotated[bool, _Said(None, "A line for each check, nothing folded.", "-v")] = False
    checks_dir: Annotated[Text, _Said("DIR", "Drop-in checks, besides /etc/netdoctor/checks.d.", env=False)] = None
    python: Annotated[Text, _Said("PATH", "The job's Python.", env=False)] = None
    user: Annotated[Text, _Said("NAME", "Look and run as this user (root only).", env=False)] = None
    via: Annotated[
        Text,
        _Said(
            "torch|nccl",
            "torch: the job's; nccl: libnccl and the driver alone. Else torch, or nccl in a job without torch.",
            env=False,
            values="netdoctor.config.keys:VIAS",
        ),
    ] = None
    vantage: Annotated[
        Text,
        _Said(
            "job|node",
            "job: this is the job's own context; node: it is not.",
            env=False,
            values="netdoctor.config.keys:VANTAGES",
        ),
    ] = None
    host_root: Annotated[Text, _Said("DIR", "A mounted host of the same kernel.")] = None
    no_allreduce: Annotated[bool, _Said(None, "Look only; run nothing.")] = False
    no_cures: Annotated[bool, _Said(None, "Do not measure what the mend of a fail gains.")] = False
    budget: Annotated[float | None, _Said("SECONDS", "For the all-reduces, in all.")] = None
    dcgm_diag: Annotated[int | None, _Said("LEVEL", "Have DCGM run its diagnostic (1 to 4) on idle GPUs.", env=False)] = None
    redact: Annotated[Texts, _Said("WORD", "Also leave out this word (repeat).")] = None
    exit_style: Annotated[
        Text, _Said("STYLE", "nagios or npd: translate the exit code at the very end.", values="netdoctor.policy:EXIT_STYLES")
    ] = None
    quiet: Annotated[bool, _Said(None, "No progress on stderr.", "-q")] = False
    termination_log: Annotated[
        Text, _Said("FILE", "Also write what is wrong here in at most 4096 bytes (a pod's /dev/termination-log).")
    ] = None

    @property
    def ids(self) -> tuple[str, ...]:
        """The checks of --only."""
        return tuple(part.strip() for text in self.only or () for part in text.split(",") if part.strip())

    @property
    def form(self) -> str | None:
        """The format, however it was asked for."""
        return "brief" if self.brief else self.format

    def said(self, name: str) -> str:
        """By what an option was given: its own name, or that of its variable."""
        variable, value = f"NETDOCTOR_{name.upper()}", getattr(self, name)
        told = os.environ.get(variable, "")
        # As click reads a variable: a list by its words, a flag by what is no "no".
        same = told.split() == value if isinstance(value, list) else told == value
        by_variable = told.lower() not in _NO if value is True else bool(told) and same
        return variable if by_variable else f"--{name.replace('_', '-')}"

    def overrides(self) -> dict[str, Any]:
        """What of it the configuration has, too, by the configuration's keys."""
        return {key: getattr(self, name) for name, key in _KEYS.items()}


_NO: Final = ("", "0", "false", "f", "no", "n", "off")
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
def _declared() -> dict[str, inspect.Parameter]:
    """Every field as typer reads it: once, for each start of the program asks for it a dozen times."""
    hints, made = get_type_hints(Options, include_extras=True), {}
    annotated: Any = Annotated  # what is made here is no type that mypy could know
    for one in fields(Options):
        kind, said = get_args(hints[one.name])
        option = typer.Option(
            f"--{one.name.replace('_', '-')}",
            *filter(None, (said.short,)),
            metavar=said.metavar,
            envvar=f"NETDOCTOR_{one.name.upper()}" if said.env else None,
            help=said.help,
            autocompletion=one_of(said.values, several=said.several) if said.values else None,
        )
        place = inspect.Parameter.POSITIONAL_OR_KEYWORD
        made[one.name] = inspect.Parameter(one.name, place, default=one.default, annotation=annotated[kind, option])
    return made


def variables() -> tuple[str, ...]:
    """The environment variables that say what an option says, but for those of the configuration's keys."""
    meant = (part.envvar for one in _declared().values() for part in get_args(one.annotation)[1:])
    return tuple(name for name in meant if isinstance(name, str))


def takes(*names: str) -> Callable[[Callable[..., int]], Callable[..., None]]:
    """Give a command `options` with these fields, beside parameters of its own; what it returns is the exit code."""
    shared = [_declared()[name] for name in names]

    def wrap(command: Callable[..., int]) -> Callable[..., None]:
        own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "options"]

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

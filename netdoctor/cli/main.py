"""The command line: parse, import the work lazily, map to exit codes.

Exit codes: 0 healthy, 1 netdoctor itself broke, 2 bad usage, configuration or plugin, 3 unhealthy, 4 inconclusive,
130 and 143 interrupted.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from netdoctor import __version__
from netdoctor.cli.options import (
    BriefOption,
    BudgetOption,
    ChecksDirOption,
    ConfigOption,
    ExitStyleOption,
    FailOnOption,
    FleetFormatOption,
    FormatOption,
    ImportTreeOption,
    NoAllreduceOption,
    OnlyOption,
    OutputOption,
    PlainFormatOption,
    ProfileOption,
    PseudonymiseOption,
    PseudonymKeyOption,
    PythonOption,
    QuietOption,
    RasFormatOption,
    RootOption,
    StricterOption,
    TerminationOption,
    Text,
    Texts,
    UserOption,
    VantageOption,
)
from netdoctor.process import signals

app = typer.Typer(
    name="netdoctor",
    help="Finds what silently slows or hangs distributed GPU jobs, before the job starts.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"netdoctor {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command()
def preflight(
    only: OnlyOption = None,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    fail_on: FailOnOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    brief: BriefOption = False,
    checks_dir: ChecksDirOption = None,
    python: PythonOption = None,
    user: UserOption = None,
    vantage: VantageOption = None,
    host_root: RootOption = None,
    no_allreduce: NoAllreduceOption = False,
    budget: BudgetOption = None,
    exit_style: ExitStyleOption = None,
    quiet: QuietOption = False,
    termination_log: TerminationOption = None,
) -> None:
    """Look at this node, run a short all-reduce, say what is wrong and what mends it."""
    from netdoctor.cli import preflight as command

    given = command.Given(
        config,
        profile,
        fail_on,
        "brief" if brief else format,
        output,
        checks_dir,
        python,
        user,
        vantage,
        budget,
        exit_style,
        termination_log,
    )
    raise typer.Exit(command.run(given, _ids(only), host_root, allreduce=not no_allreduce, quiet=quiet))


@app.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="-- CMD", help="The job: torchrun …, python train.py")],
    gate: Annotated[bool, typer.Option("--gate", help="Do not start the job unless the verdict is healthy.")] = False,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    fail_on: FailOnOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    brief: BriefOption = False,
    python: PythonOption = None,
    budget: BudgetOption = None,
    quiet: QuietOption = False,
) -> None:
    """Look from the job's own context, then become the job."""
    from netdoctor.cli import preflight as command_of_preflight
    from netdoctor.cli import run as wrapper

    given = command_of_preflight.Given(
        config,
        profile or ("gate" if gate else None),
        fail_on,
        "brief" if brief else format,
        output,
        None,
        python,
        budget=budget,
    )
    raise typer.Exit(wrapper.run(given, command, gate=gate, quiet=quiet))


@app.command()
def allreduce(
    nodes: Annotated[int | None, typer.Option(metavar="N", help="How many nodes take part (default: the launcher's).")] = None,
    node_rank: Annotated[int | None, typer.Option(metavar="R", help="Which one this is, from 0.")] = None,
    master: Annotated[Text, typer.Option(metavar="HOST[:PORT]", help="Node 0; a port of its own, not MASTER_PORT.")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(metavar="K", help="Default: one a GPU, else one.")] = None,
    wait: Annotated[float, typer.Option(metavar="SECONDS", help="For the other nodes to come.")] = 120.0,
    stall: Annotated[float | None, typer.Option(metavar="SECONDS", help="Without progress, until it counts as hung.")] = None,
    only: OnlyOption = None,
    config: ConfigOption = None,
    profile: ProfileOption = None,
    fail_on: FailOnOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    brief: BriefOption = False,
    checks_dir: ChecksDirOption = None,
    python: PythonOption = None,
    user: UserOption = None,
    budget: BudgetOption = None,
    exit_style: ExitStyleOption = None,
    quiet: QuietOption = False,
    termination_log: TerminationOption = None,
) -> None:
    """One verified all-reduce over several nodes; start it on each of them, by hand or by the job's launcher."""
    from netdoctor.cli import allreduce as command
    from netdoctor.cli.preflight import Given
    from netdoctor.cluster.membership import Given as Place
    from netdoctor.cluster.session import Limits

    given = Given(
        config,
        profile,
        fail_on,
        "brief" if brief else format,
        output,
        checks_dir,
        python,
        user,
        budget=budget,
        exit_style=exit_style,
        termination_log=termination_log,
    )
    place = Place(nodes, node_rank, master, ranks_per_node)
    raise typer.Exit(command.allreduce(given, place, Limits(wait, stall), _ids(only), quiet=quiet))


@app.command()
def snapshot(
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (mode 0600).")],
    only: OnlyOption = None,
    config: ConfigOption = None,
    checks_dir: ChecksDirOption = None,
    python: PythonOption = None,
    user: UserOption = None,
    vantage: VantageOption = None,
    host_root: RootOption = None,
    no_allreduce: NoAllreduceOption = False,
    budget: BudgetOption = None,
    quiet: QuietOption = False,
    pseudonymise: PseudonymiseOption = False,
    pseudonym_key: PseudonymKeyOption = None,
    import_tree: ImportTreeOption = None,
) -> None:
    """Record every answer and run, redacted, to be judged anywhere by `diagnose`."""
    from netdoctor.cli import preflight as command

    names = None if not pseudonymise and pseudonym_key is None else _key(pseudonym_key)
    if import_tree is not None:
        from netdoctor.cli import import_tree as imports

        raise typer.Exit(imports.run(import_tree, output, config, checks_dir, names))
    given = command.Given(config, checks_dir=checks_dir, python=python, user=user, vantage=vantage, budget=budget)
    raise typer.Exit(
        command.run(given, _ids(only), host_root, allreduce=not no_allreduce, quiet=quiet, snapshot_to=output, pseudonyms=names)
    )


def _key(path: str | None) -> bytes:
    """What pseudonyms are made with: the content of a file, or random bytes that nobody keeps."""
    import os

    if path is None:
        return os.urandom(32)
    try:
        with open(path, "rb") as file:
            return file.read(4096)
    except OSError as error:
        print(f"netdoctor: --pseudonym-key: {path}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command()
def diagnose(
    file: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A file that `netdoctor snapshot` wrote, - for stdin.")],
    only: OnlyOption = None,
    profile: ProfileOption = None,
    fail_on: FailOnOption = None,
    format: FormatOption = None,
    output: OutputOption = None,
    brief: BriefOption = False,
    checks_dir: ChecksDirOption = None,
    exit_style: ExitStyleOption = None,
) -> None:
    """Judge a snapshot: the report that was given where it was taken."""
    from netdoctor.cli import diagnose as command

    raise typer.Exit(
        command.run(file, _ids(only), profile, fail_on, "brief" if brief else format, output, checks_dir, exit_style)
    )


@app.command(name="list")
def list_checks(checks_dir: ChecksDirOption = None, config: ConfigOption = None) -> None:
    """List the checks: id and what is true on a healthy node."""
    from netdoctor.cli import catalog as command

    raise typer.Exit(command.list_checks(config, checks_dir))


@app.command()
def explain(
    id: Annotated[str, typer.Argument(metavar="ID", help="A check, or a cause.")],
    checks_dir: ChecksDirOption = None,
    config: ConfigOption = None,
) -> None:
    """What a check looks at, why, what it costs and what mends it."""
    from netdoctor.cli import catalog as command

    raise typer.Exit(command.explain(id, config, checks_dir))


@app.command()
def schema(name: Annotated[str, typer.Argument(help="report, log, env or fleet.")] = "report") -> None:
    """Print the JSON Schema of an output."""
    from netdoctor.cli import catalog as command

    raise typer.Exit(command.schema(name))


@app.command()
def log(
    files: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-", help="Logs of one job; gzip too.")],
    format: PlainFormatOption = None,
    fail_on: FailOnOption = None,
) -> None:
    """Root cause from NCCL, torch and Gloo output: what happened first, who is a victim, what mends it."""
    from netdoctor.cli import log as command

    raise typer.Exit(command.run(files, format or "text", fail_on=fail_on or "critical", color=_colour()))


@app.command()
def env(
    file: Annotated[
        Texts, typer.Option("--file", metavar="FILE", help="Job script, .env, YAML, nccl.conf; parsed, never run.")
    ] = None,
    nccl: Annotated[Text, typer.Option(metavar="VERSION", help="NCCL that the job has (default: any).")] = None,
    explain: Annotated[Text, typer.Option(metavar="NAME", help="What a variable is, since when, default, range.")] = None,
    format: PlainFormatOption = None,
    fail_on: StricterOption = None,
) -> None:
    """Judge NCCL, torch, Gloo, UCX and libfabric variables: of this shell, or of files."""
    from netdoctor.cli import env as command

    raise typer.Exit(command.run(file or (), nccl, explain, format or "text", fail_on=fail_on or "warning", color=_colour()))


@app.command()
def ras(
    address: Annotated[Text, typer.Argument(metavar="[HOST:PORT]", help="Default localhost:28028 (NCCL_RAS_ADDR).")] = None,
    format: RasFormatOption = None,
    diagnostics: Annotated[bool, typer.Option("--diagnostics", help="Also NCCL's own diagnostics (NCCL >= 2.31).")] = False,
) -> None:
    """Ask a running NCCL job (>= 2.24) which rank does not move."""
    from netdoctor.cli import ras as command

    raise typer.Exit(command.run(address, format or "text", diagnostics=diagnostics))


@app.command()
def deploy(
    what: Annotated[Text, typer.Argument(help="kubernetes, slurm, ansible or systemd; nothing: say what there is.")] = None,
    to: Annotated[Text, typer.Option("--to", metavar="DIR", help="Write the files here instead of printing them.")] = None,
) -> None:
    """Print or write what puts netdoctor to work: manifests, prologs, playbooks, units."""
    from netdoctor.cli import deploy as command

    raise typer.Exit(command.run(what, to))


fleet = typer.Typer(name="fleet", help="Many nodes at once.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(fleet)


@fleet.command("report")
def fleet_report(
    reports: Annotated[list[str], typer.Argument(metavar="DIR|FILE", help="Node reports (JSON).")],
    expected: Annotated[Text, typer.Option(metavar="FILE", help="Names that must be there, one a line.")] = None,
    format: FleetFormatOption = None,
    output: Annotated[Text, typer.Option("--output", "-o", metavar="FILE", help="Write it here; format by suffix.")] = None,
    lists: Annotated[Text, typer.Option(metavar="DIR", help="Write passing_nodes.txt and failing_nodes.txt here.")] = None,
    fail_on: StricterOption = None,
    quiet: QuietOption = False,
) -> None:
    """Missing nodes, drift, outliers, and faults that no node can see alone."""
    from netdoctor.cli import fleet as command

    raise typer.Exit(command.run(reports, expected, format, output, lists, fail_on, quiet))


def _colour() -> bool:
    import os

    from netdoctor.report import terminal

    return terminal.colour(sys.stdout, os.environ)


def _ids(only: Texts) -> tuple[str, ...]:
    return tuple(part.strip() for text in only or () for part in text.split(",") if part.strip())


def main() -> None:
    """The console script: typer's exit codes, and 1 with one line where netdoctor itself broke."""
    from netdoctor.process import streams

    if sys.argv[1:2] and sys.argv[1] in signals.COMMANDS:
        signals.defer()
    streams.ensure_open()
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a locale without UTF-8 must not end a report in a traceback
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
        code: str | int | None = 0
    except SystemExit as end:
        # click ends a broken pipe itself, with 1 and a wrapper in the place of the stream.
        code = 141 if type(sys.stdout).__name__ == "PacifyFlushWrapper" else end.code
    except Exception as error:
        code = streams.report_write_error(error, 0) if streams.is_write_error(error) else streams.defect(error)
    if (number := signals.pending()) is not None and code not in (2, 128 + number):
        code = 128 + number
    lost = streams.lost()
    sys.exit(streams.report_write_error(lost, code) if lost else code)


if __name__ == "__main__":
    main()

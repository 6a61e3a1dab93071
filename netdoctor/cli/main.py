"""The command line: parse, import the work lazily, map to exit codes.

Exit codes: 0 healthy, 1 netdoctor itself broke, 2 bad usage, configuration or plugin, 3 unhealthy, 4 inconclusive,
129, 130, 131 and 143 interrupted (SIGHUP, SIGINT, SIGQUIT, SIGTERM).
"""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import typer

from netdoctor import __version__
from netdoctor.cli.completion import one_of
from netdoctor.cli.options import FOLDED, JUDGED, LOOKED, TOLD, Once, Options, Text, Texts, takes
from netdoctor.process import signals

app = typer.Typer(
    name="netdoctor",
    help="Finds what silently slows or hangs distributed GPU jobs, before the job starts.",
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from netdoctor.cli import installed

        print(f"netdoctor {__version__}")
        for note in installed.notes():
            print(f"netdoctor: {note}", file=sys.stderr)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


@app.command(cls=Once, short_help="Look at this node, run a short all-reduce, say what is wrong.")
@takes("only", *JUDGED, *FOLDED, *LOOKED, "exit_style", "termination_log")
def preflight(
    options: Options,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be run, on what, for how long.")] = False,
    serve: Annotated[
        Text,
        typer.Option("--serve", metavar="[HOST:]PORT", help="Look again and again, and serve the metrics of the last look."),
    ] = None,
    every: Annotated[
        float | None, typer.Option("--every", metavar="SECONDS", help="Of --serve: from look to look (default 600).")
    ] = None,
) -> int:
    """Look at this node, run a short all-reduce, say what is wrong and what mends it."""
    if serve is not None or every is not None:
        from netdoctor.cli import serve as server

        return server.serve(options, serve, every, plan=plan)
    from netdoctor.cli import preflight as command

    return command.plan(options) if plan else command.preflight(options)


@app.command(cls=Once, context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@takes(*JUDGED, *FOLDED, "python", "via", "budget", "quiet")
def run(
    options: Options,
    command: Annotated[list[str], typer.Argument(metavar="-- CMD", help="The job: torchrun …, python train.py")],
    gate: Annotated[bool, typer.Option("--gate", help="Do not start the job unless the verdict is healthy.")] = False,
) -> int:
    """Look from the job's own context, then become the job."""
    from netdoctor.cli import run as wrapper

    return wrapper.run(replace(options, profile=options.profile or ("gate" if gate else None)), command, gate=gate)


@app.command(cls=Once, short_help="One verified all-reduce over several nodes.")
@takes("only", *JUDGED, *FOLDED, "checks_dir", "python", "user", "via", "budget", "quiet", "exit_style", "termination_log")
def allreduce(
    options: Options,
    nodes: Annotated[int | None, typer.Option(metavar="N", help="How many nodes take part (default: the launcher's).")] = None,
    node_rank: Annotated[int | None, typer.Option(metavar="R", help="Which one this is, from 0.")] = None,
    master: Annotated[Text, typer.Option(metavar="HOST[:PORT]", help="Node 0; a port of its own, not MASTER_PORT.")] = None,
    ranks_per_node: Annotated[int | None, typer.Option(metavar="K", help="Default: one a GPU, else one.")] = None,
    wait: Annotated[
        float, typer.Option(metavar="SECONDS", help="For the other nodes to come (default 120).", show_default=False)
    ] = 120.0,
    stall: Annotated[float | None, typer.Option(metavar="SECONDS", help="Without progress, until it counts as hung.")] = None,
    token_file: Annotated[
        Text, typer.Option(metavar="FILE", help="What all nodes prove themselves by (-: stdin; else NETDOCTOR_TOKEN, MUNGE).")
    ] = None,
    snapshot: Annotated[Text, typer.Option(metavar="FILE", help="Also keep what this node saw, for `diagnose`.")] = None,
) -> int:
    """One verified all-reduce over several nodes; start it on each of them, by hand or by the job's launcher."""
    from netdoctor.cli import allreduce as command
    from netdoctor.cluster.membership import Given
    from netdoctor.cluster.session import Limits

    place = command.Place(Given(nodes, node_rank, master, ranks_per_node), token_file)
    return command.allreduce(options, place, Limits(wait, stall), snapshot)


@app.command(cls=Once, short_help="Record every answer and run, to be judged anywhere.")
@takes("only", "config", *LOOKED, "redact")
def snapshot(
    options: Options,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to write it (mode 0600).")],
    pseudonymise: Annotated[
        bool, typer.Option("--pseudonymise", help="Give host, user, folders, addresses and GPUs other names.")
    ] = False,
    pseudonym_key: Annotated[
        Text, typer.Option(metavar="FILE", help="The same names in every snapshot made with this key.")
    ] = None,
    import_tree: Annotated[
        Text, typer.Option(metavar="DIR", help="Record a tree of files of another machine instead of this one.")
    ] = None,
) -> int:
    """Record every answer and run, redacted, to be judged anywhere by `diagnose`."""
    names = None if not pseudonymise and pseudonym_key is None else _key(pseudonym_key)
    if import_tree is not None:
        from netdoctor.cli import import_tree as imports

        return imports.run(options, import_tree, output, names)
    from netdoctor.cli import preflight as command

    return command.snapshot(options, output, names)


def _key(path: str | None) -> bytes:
    """What pseudonyms are made with: the content of a file, or random bytes that nobody keeps."""
    import os

    from netdoctor.process import given

    if path is None:
        return os.urandom(32)
    try:
        return given.start(path, 4096)
    except OSError as error:
        print(f"netdoctor: --pseudonym-key: {path}: {error.strerror}", file=sys.stderr)
        raise typer.Exit(2) from None


@app.command(cls=Once, short_help="Judge a snapshot.")
@takes("only", *JUDGED, *FOLDED, "checks_dir", "exit_style")
def diagnose(
    options: Options,
    file: Annotated[str, typer.Argument(metavar="SNAPSHOT", help="A file that `netdoctor snapshot` wrote, - for stdin.")],
) -> int:
    """Judge a snapshot: the report that was given where it was taken."""
    from netdoctor.cli import diagnose as command

    return command.run(options, file)


@app.command(cls=Once, short_help="Take credentials and --redact words out of a file.")
@takes("redact")
def clean(
    options: Options,
    file: Annotated[str, typer.Argument(metavar="REPORT", help="A report, snapshot or log in any format, - for stdin.")],
    output: Annotated[Text, typer.Option("--output", "-o", metavar="FILE", help="Write it here (mode 0600).")] = None,
) -> int:
    """Take out of a file that exists what looks like a credential, and the words of --redact; the rest stays as it is."""
    from netdoctor.cli import clean as command

    return command.run(options, file, output)


@app.command(cls=Once, short_help="Write what to expect of nodes like this good one.")
@takes("config", "profile", "fail_on", *LOOKED)
def expect(
    options: Options,
    file: Annotated[Text, typer.Argument(metavar="[SNAPSHOT]", help="A snapshot of the good node; else this node is.")] = None,
    output: Annotated[Text, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else stdout.")] = None,
    leave_out: Annotated[
        Texts,
        typer.Option(
            metavar="PART",
            help="addresses, floors, firmware, driver, mtu, transport (repeat, or a,b).",
            autocompletion=one_of("netdoctor.cli.expect:parts", several=True),
        ),
    ] = None,
) -> int:
    """Write what to expect of nodes like this one, which is known to be good, as `expected:` for the configuration."""
    from netdoctor.cli import expect as command

    return command.run(options, file, output, leave_out or ())


@app.command(cls=Once, name="list")
@takes("checks_dir", "config")
def list_checks(options: Options) -> int:
    """List the checks: id and what is true on a healthy node."""
    from netdoctor.cli import catalog as command

    return command.catalog(options)


@app.command(cls=Once)
@takes("checks_dir", "config")
def explain(
    options: Options,
    id: Annotated[
        str, typer.Argument(metavar="ID", help="A check, or a cause.", autocompletion=one_of("netdoctor.cli.catalog:explained"))
    ],
) -> int:
    """What a check looks at, why, what it costs and what mends it."""
    from netdoctor.cli import catalog as command

    return command.catalog(options, id)


@app.command(cls=Once)
def schema(
    name: Annotated[
        str,
        typer.Argument(help="report, log, env, ras, fleet or config.", autocompletion=one_of("netdoctor.cli.catalog:SCHEMAS")),
    ] = "report",
) -> None:
    """Print the JSON Schema of an output, or of the configuration."""
    from netdoctor.cli import catalog as command

    raise typer.Exit(command.schema(name))


@app.command(cls=Once, short_help="Root cause from NCCL, torch and Gloo output.")
@takes(*JUDGED, *TOLD, "exit_style")
def log(
    options: Options,
    files: Annotated[list[str], typer.Argument(metavar="FILE|DIR|-", help="Logs of one job; gzip, bzip2, xz too.")],
) -> int:
    """Root cause from NCCL, torch and Gloo output: what happened first, who is a victim, what mends it."""
    from netdoctor.cli import log as command

    return command.run(options, files)


@app.command(cls=Once, short_help="Judge NCCL, torch, Gloo, UCX and libfabric variables.")
@takes(*JUDGED, *TOLD, "exit_style")
def env(
    options: Options,
    file: Annotated[
        Texts, typer.Option("--file", metavar="FILE", help="Job script, .env, YAML, nccl.conf; parsed, never run.")
    ] = None,
    nccl: Annotated[Text, typer.Option(metavar="VERSION", help="NCCL that the job has (default: any).")] = None,
    explain: Annotated[Text, typer.Option(metavar="NAME", help="What a variable is, since when, default, range.")] = None,
) -> int:
    """Judge NCCL, torch, Gloo, UCX and libfabric variables: of this shell, or of files."""
    if explain is not None:
        from netdoctor.cli import variable_page

        return variable_page.run(explain, nccl)
    from netdoctor.cli import env as command

    return command.run(options, file or (), nccl)


@app.command(cls=Once)
@takes(*JUDGED, *TOLD, "exit_style")
def ras(
    options: Options,
    address: Annotated[
        Text, typer.Argument(metavar="[HOST:PORT]", help="Default: NCCL_RAS_ADDR, else localhost:28028.")
    ] = None,
    diagnostics: Annotated[bool, typer.Option("--diagnostics", help="Also NCCL's own diagnostics (NCCL >= 2.31).")] = False,
) -> int:
    """Ask a running NCCL job (>= 2.24) which rank does not move."""
    from netdoctor.cli import ras as command

    return command.run(options, address, diagnostics=diagnostics)


@app.command(cls=Once, short_help="Manifests, prologs, playbooks and units, printed or written.")
def deploy(
    what: Annotated[
        Text,
        typer.Argument(
            help="kubernetes, slurm, ansible, systemd, prometheus; nothing: say what there is.",
            autocompletion=one_of("netdoctor.cli.deploy:known"),
        ),
    ] = None,
    to: Annotated[Text, typer.Option("--to", metavar="DIR", help="Write the files here instead of printing them.")] = None,
    gate: Annotated[
        Text,
        typer.Option("--gate", metavar="FILE", help="kubernetes: print this manifest, of any kind, with the gate in its pods."),
    ] = None,
    image: Annotated[
        Text, typer.Option("--image", metavar="NAME", help="Of --gate: what brings netdoctor (default netdoctor).")
    ] = None,
) -> None:
    """Print or write what puts netdoctor to work: manifests, prologs, playbooks, units."""
    from netdoctor.cli import deploy as command

    raise typer.Exit(command.deploy(what, to, gate, image))


config = typer.Typer(name="config", help="What is configured here.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config)


@config.callback()
def _config() -> None:
    """With one command alone typer would take its name away."""


@config.command("show", short_help="Every key, its value, and who said it.")
@takes(*JUDGED, "checks_dir", "python", "user", "via", "vantage", "budget")
def config_show(
    options: Options,
    form: Annotated[Text, typer.Option("--format", "-f", metavar="FORMAT", help="text or json.")] = None,
) -> int:
    """Every key, its value, and who said it: file, variable, command line or nobody."""
    from netdoctor.cli import config as command

    return command.show(options, form)


fleet = typer.Typer(name="fleet", help="Many nodes at once.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(fleet)


@fleet.command("report", cls=Once, short_help="Missing nodes, drift, outliers, faults that no node sees alone.")
@takes(*JUDGED, *TOLD, "exit_style", "quiet")
def fleet_report(
    options: Options,
    reports: Annotated[list[str], typer.Argument(metavar="DIR|FILE", help="Node reports (JSON).")],
    expected: Annotated[Text, typer.Option(metavar="FILE", help="Names that must be there, one a line.")] = None,
    lists: Annotated[Text, typer.Option(metavar="DIR", help="Write passing_nodes.txt and failing_nodes.txt here.")] = None,
) -> int:
    """Missing nodes, drift, outliers, and faults that no node can see alone."""
    from netdoctor.cli import fleet as command

    return command.run(options, reports, expected, lists)


def _styled(code: int) -> int:
    """A code that no command gave, in the style that the command line or the environment asks for."""
    import os

    words = [word for argument in sys.argv for word in argument.split("=", 1)]
    styles = [style for option, style in pairwise(words) if option == "--exit-style"]
    style = [os.environ.get("NETDOCTOR_EXIT_STYLE"), *styles][-1]
    if not style:
        return code
    from netdoctor import policy

    return policy.styled(code, style)


def _name() -> str | None:
    from netdoctor.cli import completion

    try:
        return completion.asked(sys.argv[1:])
    except ValueError as error:
        print(f"netdoctor: {error}", file=sys.stderr)
        sys.exit(2)


def main() -> None:
    """The console script: typer's exit codes, and 1 with one line where netdoctor itself broke."""
    from netdoctor.process import streams

    if sys.argv[1:2] and sys.argv[1] in signals.COMMANDS:
        signals.defer()
    streams.ensure_open()
    streams.plain_signs()
    try:
        app(prog_name=_name())
        code: str | int | None = 0
    except SystemExit as end:
        # click ends a broken pipe itself, with 1 and a wrapper in the place of the stream.
        code = 141 if type(sys.stdout).__name__ == "PacifyFlushWrapper" else end.code
        if code == 2 and not isinstance(end.__context__, typer.Exit):  # click's own: no command had a word in it
            code = _styled(2)
    except Exception as error:  # noqa: BLE001 - whatever broke is one line and exit 1, not a traceback
        code = streams.broken(error, _styled)
    if (number := signals.pending()) is not None and code not in (2, 128 + number):
        code = 128 + number
    lost = streams.lost()
    sys.exit(streams.report_write_error(lost, code) if lost else code)


if __name__ == "__main__":
    main()

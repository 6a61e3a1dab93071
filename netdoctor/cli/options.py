"""The options of the command line that several commands share: names, variables and help in one place."""

from __future__ import annotations

from typing import Annotated

import typer

Texts = list[str] | None
Text = str | None

OnlyOption = Annotated[
    Texts, typer.Option("--only", metavar="ID", envvar="NETDOCTOR_ONLY", help="Run these checks only (repeat, or a,b).")
]
ConfigOption = Annotated[Text, typer.Option("--config", metavar="FILE", help="Configuration (YAML).")]
ProfileOption = Annotated[Text, typer.Option(help="default, gate, audit, prolog or strict: what must be able to tell.")]
FailOnOption = Annotated[Text, typer.Option(help="Lowest severity that counts as unhealthy: info, warning, critical.")]
StricterOption = Annotated[Text, typer.Option("--fail-on", help="As in preflight; default here: warning.")]
FormatOption = Annotated[Text, typer.Option("--format", "-f", envvar="NETDOCTOR_FORMAT", help="text, json, junit, brief, html")]
PlainFormatOption = Annotated[Text, typer.Option("--format", "-f", help="text, json or junit.")]
RasFormatOption = Annotated[Text, typer.Option("--format", "-f", help="text or json.")]
FleetFormatOption = Annotated[Text, typer.Option("--format", "-f", help="text, json, junit, html or prometheus.")]
OutputOption = Annotated[
    Text,
    typer.Option(
        "--output", "-o", metavar="FILE", envvar="NETDOCTOR_OUTPUT", help="Also write the report here, by suffix (else JSON)."
    ),
]
TerminationOption = Annotated[
    Text,
    typer.Option(
        metavar="FILE",
        envvar="NETDOCTOR_TERMINATION_LOG",
        help="Also write what is wrong here in at most 4096 bytes (a pod's /dev/termination-log).",
    ),
]
BriefOption = Annotated[bool, typer.Option("--brief", envvar="NETDOCTOR_BRIEF", help="One line of at most 200 characters.")]
ChecksDirOption = Annotated[Text, typer.Option(metavar="DIR", help="Drop-in checks, besides /etc/netdoctor/checks.d.")]
PythonOption = Annotated[Text, typer.Option(metavar="PATH", help="The job's Python.")]
UserOption = Annotated[Text, typer.Option(metavar="NAME", help="Look and run as this user (root only).")]
VantageOption = Annotated[Text, typer.Option(help="job: this is the job's own context; node: it is not.")]
RootOption = Annotated[
    Text,
    typer.Option("--host-root", metavar="DIR", envvar="NETDOCTOR_HOST_ROOT", help="A mounted host of the same kernel."),
]
NoAllreduceOption = Annotated[
    bool, typer.Option("--no-allreduce", envvar="NETDOCTOR_NO_ALLREDUCE", help="Look only; run nothing.")
]
BudgetOption = Annotated[
    float | None, typer.Option("--budget", metavar="SECONDS", envvar="NETDOCTOR_BUDGET", help="For the all-reduces, in all.")
]
ExitStyleOption = Annotated[
    Text, typer.Option(envvar="NETDOCTOR_EXIT_STYLE", help="nagios or npd: translate the exit code at the very end.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", envvar="NETDOCTOR_QUIET", help="No progress on stderr.")]
PseudonymiseOption = Annotated[
    bool, typer.Option("--pseudonymise", help="Give host, user, folders, addresses and GPUs other names.")
]
PseudonymKeyOption = Annotated[
    Text, typer.Option("--pseudonym-key", metavar="FILE", help="The same names in every snapshot made with this key.")
]
ImportTreeOption = Annotated[
    Text, typer.Option("--import-tree", metavar="DIR", help="Record a tree of files of another machine instead of this one.")
]

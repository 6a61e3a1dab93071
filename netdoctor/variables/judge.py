"""Judges variables against the catalogue for the NCCL version that the job has.  Pure: settings in, findings out.

Findings carry ``variable``, ``value``, ``source``, ``rule`` (the name of what was found) and ``row`` (the catalogue row) as
evidence.  A fail is a setting that does not do what it says, is not read at all, or leaves a transport off; advice is a note on
a pass; what another program reads and netdoctor has no table of is unknown, and not blocking.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from netdoctor.causes.cost import MIGHT, STOPS
from netdoctor.facts.environ import ConfFile, ConfRole, Environ, Origin, Setting
from netdoctor.facts.intent import Intent, Told, between_nodes
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.nccl_version import Version, text
from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable
from netdoctor.nccl.transport import sockets_meant
from netdoctor.variables import assignments, catalogue, conf_unread, selecting
from netdoctor.variables.catalogue import Variable
from netdoctor.variables.issue import Context, Issue, Known

# Releases on both sides of what changed since 2.18.1 (torch 2.1), tried where the job's version is not known; and the newest.
USUAL: Final[tuple[Version, ...]] = ((2, 18, 1), (2, 21, 5), (2, 24, 3), (2, 27, 5), (2, 29, 7))
CONF_FILE: Final[Version] = (2, 23, 4)  # the first release that reads NCCL_CONF_FILE (src/misc/param.cc)


_AROUND: Final = " \t\r\ufeff"  # a blank or a byte order mark, of which NCCL makes a part of the name
TITLE: Final = "Every NCCL variable is read and does what it says"
NOTHING_SET: Final = "no variable of NCCL, torch, Gloo, UCX or libfabric is set: the defaults hold"


def known_of(libraries: Libraries, net: Net, rdma: Rdma, job: Intent) -> Known:
    """What the facts tell.  A launcher's word that there is one node excuses nothing: the job may be started from there."""
    nodes = job.count or None
    links: Collection[str] | Unavailable
    if isinstance(net.links, Unavailable):
        links = net.links
    else:
        # NCCL and Gloo pass over one without an address, and nobody means a bridge to which nothing is joined.  getifaddrs(3)
        # knows an address by its label.
        usable = [one for one in net.links if one.addresses and (one.running or one.kind != "bridge")]
        links = [name for one in usable for name in (one.name, *(a.label for a in one.addresses if a.label))]
    stated = nodes if nodes and (job.told is Told.CONFIGURATION or nodes > 1) else None
    sockets = job.by_site and sockets_meant(job.network or "")
    return Known(job_version(libraries), _installed_plugin(libraries), links, None if rdma.efa else rdma.names, stated, sockets)


def judge(settings: Iterable[Setting], known: Known) -> list[Finding]:
    """One finding or more for each setting, in their order.

    Where the version is not known, the releases of `USUAL` are tried, and a setting whose verdict differs between them is
    unknown.
    """
    given = list(settings)
    values = {setting.name: setting.value for setting in given}
    plugin = known.plugin or plugin_of(values)
    links, hcas = (None if isinstance(there, Unavailable) else there for there in (known.links, known.hcas))
    versions = (known.version,) if known.version else (*USUAL, catalogue.newest())
    findings: list[Finding] = []
    unlisted = 0
    for s in given:
        listed = catalogue.lookup(s.name) is not None
        unlisted += not listed
        in_effect = values if values[s.name] == s.value else {**values, s.name: s.value}
        # What is in no release is judged once; where such names are legion, they are no slips of the pen.
        tried = [
            _judge_setting(
                s, Context(v, in_effect, plugin, links, hcas, known.nodes, known.sockets, spelling=unlisted <= _SPELLED)
            )
            for v in (versions if listed else versions[-1:])
        ]
        findings += [
            selecting.weighed(finding, known) for finding in _agree(tuple(tried), versions if listed else versions[-1:])
        ]
    return _folded(findings)


_SPELLED: Final = 256  # names that the table does not hold, for which a name that was meant is looked for


_SINGLY: Final = 3  # names that nobody knows, beyond which they are one finding
_SHOWN: Final = 12  # of their names


def _folded(findings: list[Finding]) -> list[Finding]:
    """Names that nobody knows, and that are like none that somebody does, are one finding where they are many."""
    groups: dict[tuple[Status, str], list[Finding]] = {}
    for one in findings:
        if one.evidence.get("rule") in _UNKNOWN_NAMES and one.evidence.get("row") is None and one.expected is None:
            whose = catalogue.program_of(one.subject) or "nccl"
            groups.setdefault((one.status, whose), []).append(one)
    folded: dict[int, Finding | None] = {}
    for (status, whose), group in groups.items():
        if len(group) > _SINGLY:
            folded |= dict.fromkeys(map(id, group))
            folded[id(group[0])] = _one_of_many(status, whose, group)
    return [kept for one in findings if (kept := folded.get(id(one), one)) is not None]


_UNKNOWN_NAMES: Final = frozenset({"unknown-name", "other-program"})


def _one_of_many(status: Status, whose: str, group: list[Finding]) -> Finding:
    names = list(dict.fromkeys(one.subject for one in group))
    some = ", ".join(names[:_SHOWN]) + (" …" if len(names) > _SHOWN else "")
    by = (
        "nothing reads them"
        if status is Status.FAIL
        else f"by their prefix {whose}'s, whose variables netdoctor does not all know"
    )
    message = f"{len(names)} names that the table does not hold, {by}: {some}"
    places = list(dict.fromkeys(str(one.evidence.get("source")) for one in group))[:_SHOWN]
    evidence = {**group[0].evidence, "variable": None, "value": None, "source": ", ".join(places), "names": names[:256]}
    fix = Fix("remove them, or look up how they are spelled") if status is Status.FAIL else None
    return replace(group[0], message=message, evidence=evidence, fix=fix)


def _installed_plugin(libraries: Libraries) -> str | None:
    """A network plugin that the loader finds by NCCL's default name or that carries its maker's."""
    paths = "\n".join(one.path.lower() for one in libraries.plugins or ())
    if re.search(r"[/._-]ofi[/._-]", paths):
        return "aws-ofi-nccl"
    return "gcp" if re.search(r"[/._-](fastrak|tcpxo?|gib)[/._-]", paths) else None


def plugin_of(values: dict[str, str]) -> str | None:
    """The network plugin that the variables speak of."""
    net = values.get("NCCL_NET", "").lower()
    library = values.get("NCCL_NET_PLUGIN", "").lower()
    if library == "none" or net in ("ib", "socket"):
        return None
    if "libfabric" in net or "ofi" in (net, library) or "aws-ofi" in library or "libnccl-net-ofi" in library:
        return "aws-ofi-nccl"
    if any(name.startswith(("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX", "NCCL_SHIM")) for name in values):
        return "gcp"
    if net.startswith(("gib", "fastrak", "gpudirecttcpx")) or library.startswith(("gib", "fastrak", "tcpx")):
        return "gcp"
    if "FI_PROVIDER" in values or any(name.startswith(("OFI_NCCL_", "FI_EFA_")) for name in values):
        return "aws-ofi-nccl"
    if net.startswith(("ibext", "ucx")) or "NCCL_PLUGIN_P2P" in values:
        return "nccl-rdma-sharp-plugin"
    return library or None


def _judge_setting(setting: Setting, context: Context) -> list[Finding]:
    # Every command that imports netdoctor.api imports this module; the rules are loaded by those that judge a setting.
    from netdoctor.variables import parsing_rules

    row = catalogue.lookup(setting.name)
    if not row and catalogue.program_of(setting.name) is None and not catalogue.mistyped(setting.name):
        return []
    naming = parsing_rules.name_issues(setting.name, row, context)
    if isinstance(naming, Finding):
        return [replace(naming, evidence={**_evidence(setting, row), **naming.evidence})]
    stop = any(issue.loss for issue in naming)
    issues = naming if stop or row is None else naming + parsing_rules.value_issues(setting.name, setting.value, row, context)
    return _findings(setting, row, issues)


def _evidence(setting: Setting, row: Variable | None = None) -> dict[str, Any]:
    return {"variable": setting.name, "value": setting.value, "source": str(setting.source), "row": row.row if row else None}


def _findings(setting: Setting, row: Variable | None, issues: Sequence[Issue]) -> list[Finding]:
    """The fails, each on its own, or one pass; notes ride on the first of them."""
    base = _evidence(setting, row)
    notes = tuple(issue.message for issue in issues if not issue.loss)
    noted = [issue.rule for issue in issues if not issue.loss]
    fails = [
        Finding(
            Status.FAIL,
            f"{setting.name}={setting.value}: {issue.message}",
            setting.name,
            cause=issue.cause,
            expected=issue.expected,
            evidence={**base, "rule": issue.rule},
            fix=_fix(setting, issue),
            loss=issue.loss,
        )
        for issue in issues
        if issue.loss
    ]
    if fails:
        return [replace(fails[0], notes=notes), *fails[1:]]
    rule = noted[0] if noted else "ok"
    return [Finding(Status.PASS, f"{setting.name}={setting.value}", setting.name, evidence={**base, "rule": rule}, notes=notes)]


def _fix(setting: Setting, issue: Issue) -> Fix:
    where = f" ({setting.source})" if setting.source.path else ""
    if issue.expected:
        return Fix(f"correct {setting.name}{where}: {issue.expected}")
    if where:  # of a file, which NCCL reads all the same
        return Fix(f"remove {setting.name}{where}")
    return Fix(f"remove {setting.name}", (f"unset {setting.name}",), tries=((setting.name, None),))


def _agree(each: tuple[list[Finding], ...], versions: tuple[Version, ...]) -> list[Finding]:
    """The findings where all versions agree on fail or not (of several ways the mildest); else one unknown that tells them."""
    failed = [tuple(f.evidence.get("rule") for f in findings if f.status is Status.FAIL) for findings in each]
    if len(set(failed)) == 1 and len({tuple(f.status for f in findings) for findings in each}) == 1:
        return each[-1]
    if all(failed):
        mild = min(reversed(each), key=lambda findings: max(f.severity.rank for f in findings if f.severity))
        other = {findings[0].message: text(v) for v, findings in zip(versions, each, strict=True) if findings != mild}
        return [replace(mild[0], notes=(*mild[0].notes, *(f"with NCCL {v}: {m}" for m, v in other.items()))), *mild[1:]]
    worst = next((f for findings in each for f in findings if f.status is Status.FAIL), each[-1][0])
    wrong = ", ".join(text(v) for v, rules in zip(versions, failed, strict=True) if rules)
    return [
        Finding(
            Status.UNKNOWN,
            f"depends on the NCCL version; wrong with {wrong}: {worst.message}",
            worst.subject,
            evidence={**worst.evidence, "rule": "version-unknown"},
            how="give the job's version: netdoctor env --nccl VERSION",
            notes=worst.notes,
        )
    ]


def written_wrong(name: str, setting: Setting, rule: str, message: str, fix: str, expected: str | None = None) -> Finding:
    """A setting that does not arrive as it is written; `name` is the one that was meant."""
    evidence = {**_evidence(setting), "rule": rule}
    return Finding(Status.FAIL, message, name, None, "env_misuse", expected, evidence, fix=Fix(fix), loss=MIGHT)


def judge_conf(entries: Iterable[Setting], environment: dict[str, str]) -> list[Finding]:
    """Lines of conf files that something else overrides, or that NCCL does not take as they were meant.

    `entries` come in NCCL's order (NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf): the first writer wins.
    """
    findings: list[Finding] = []
    first: dict[str, Setting] = {}
    for setting in entries:
        name = setting.name.strip(_AROUND).removeprefix("export ").strip()
        if name != setting.name and catalogue.program_of(name):
            message = f"{setting.source}: NCCL takes {setting.name!r} as the name, with all that is around it; nothing reads it"
            fix = f"write {name}={setting.value.strip()} from column 1 ({setting.source})"
            findings.append(written_wrong(name, setting, "conf-name", message, fix, f"{name}=…"))
            continue
        winner = "the environment" if name in environment else first[name].source if name in first else None
        value = environment.get(name, first[name].value if name in first else setting.value)
        if winner and value != setting.value:
            note = f"{setting.source} says {setting.value}, but {winner} says {value} and wins"
            evidence = {**_evidence(setting), "rule": "conf-shadowed"}
            findings.append(Finding(Status.PASS, f"{name}={value}", name, evidence=evidence, notes=(note,)))
        first.setdefault(name, setting)
    return findings


def judge_line(text: str, source: Origin) -> list[Finding]:
    """A line of a conf file that has no ``=`` (setEnvFile in src/misc/param.cc passes over it)."""
    name = re.split(r"[\s:]", text.strip(_AROUND).removeprefix("export ").strip(), maxsplit=1)[0]
    if not catalogue.program_of(name):
        return []
    message, fix = f"{source}: no = in {text!r}: NCCL passes over the line", f"write {name}=VALUE from column 1 ({source})"
    return [written_wrong(name, Setting(name, "", source), "conf-line", message, fix, f"{name}=…")]


def meeting_at_loopback(place: Setting, nodes: int) -> Finding:
    message = f"{place.name}={place.value}: the ranks meet at every node's own loopback: {nodes} nodes do not find rank 0"
    expected = "a name or address of rank 0's node that the other nodes reach"
    wrong = written_wrong(place.name, place, "loopback", message, f"correct {place.source}", expected)
    return replace(wrong, loss=STOPS, cause="socket_ifname")


def _no_file(setting: Setting) -> Finding:
    """src/graph/xml.cc: without the file of graphs init ends, that of the topology is passed over."""
    graph = setting.name == "NCCL_GRAPH_FILE"
    message = f"{setting.name}={setting.value}: no such file: " + ("NCCL refuses to start" if graph else "NCCL passes over it")
    found = written_wrong(setting.name, setting, "no-file", message, f"remove {setting.name}, or name a file that is there")
    return replace(found, loss=STOPS) if graph else found


def other_machine(setting: Setting, named: int, strange: Sequence[str]) -> Finding:
    """src/graph/topo.cc: a GPU that the file lacks hangs on its CPU, far from the HCA beside it."""
    message = f"{setting.name}={setting.value}: it names {named} GPUs, and none at {', '.join(strange)}: another machine's file"
    return written_wrong(setting.name, setting, "other-machine", message, f"remove {setting.name}, or name this machine's file")


def more_gpus(setting: Setting, named: Sequence[int], there: int) -> Finding:
    """src/graph/search.cc: "XML Import Channel : dev 1 not found", and init ends."""
    message = f"{setting.name}={setting.value}: it names GPU {named[0]}, and NVML shows {there}: NCCL refuses to start"
    fix = f"remove {setting.name} ({setting.source}), or name this machine's file"
    return replace(written_wrong(setting.name, setting, "other-machine", message, fix), loss=STOPS)


# What counts from 0, and how many there are (torch's env:// rendezvous and torchrun refuse it).
_COUNTED: Final = (("RANK", "WORLD_SIZE"), ("LOCAL_RANK", "LOCAL_WORLD_SIZE"), ("PET_NODE_RANK", "PET_NNODES"))


def _ranks(variables: Mapping[str, str]) -> Iterator[Finding]:
    for name, total in _COUNTED:
        number, most = variables.get(name, ""), variables.get(total, "").rpartition(":")[2]  # PET_NNODES may be a range
        if re.fullmatch(r"\d{1,9}", number) and re.fullmatch(r"\d{1,9}", most) and int(number) >= int(most):
            message = f"{name}={number} of {total}={most}: they count from 0, so no job has it"
            found = written_wrong(
                name, Setting(name, number), "rank-beyond", message, f"set {name} and {total} anew on each node"
            )
            yield replace(found, loss=STOPS)


def set_twice(first: Setting, last: Setting) -> Finding:
    """The same variable twice in one file with two values: the last assignment of a script or manifest wins."""
    message = f"{last.name} is set twice: {first.value} ({first.source}), then {last.value} ({last.source})"
    return written_wrong(
        last.name, last, "set-twice", message, f"keep one of the two: {first.source} or {last.source}", "one value"
    )


def job_version(libraries: Libraries) -> Version | None:
    """The NCCL that the job's torch takes, or the only one there is without a torch; None where that is not known."""
    if isinstance(libraries.nccl, Unavailable):
        return None
    if not isinstance(libraries.python, Unavailable) and libraries.python.ours:
        return None  # netdoctor's own torch says nothing about the job's
    if isinstance(libraries.torch, Unavailable):
        versions = {library.version for library in libraries.nccl} if libraries.torch.kind == Kind.ABSENT else set()
    else:
        path = libraries.torch.nccl_path
        versions = {lib.version for lib in libraries.nccl if isinstance(path, str) and path in (lib.path, lib.real_path)}
    only = versions.pop() if len(versions) == 1 else None
    return None if isinstance(only, Unavailable) else only


def judge_job(environ: Environ, known: Known, intent: Intent) -> list[Finding]:
    """As `judge_fact`; what is wrong in a job of several nodes alone counts as the job needs it."""
    found = judge_fact(environ, known)
    if intent.others is not None:
        return found
    fails = {(one.subject, one.evidence.get("rule")) for one in found if one.status is Status.FAIL}
    several = judge_fact(environ, replace(known, nodes=2))
    more = [one for one in several if one.status is Status.FAIL and (one.subject, one.evidence.get("rule")) not in fails]
    doubtful = {one.subject for one in more}
    kept = [one for one in found if one.subject not in doubtful or one.status is not Status.PASS]
    return [*kept, *(between_nodes(one, intent) for one in more)]


def _handed_on(variables: Mapping[str, str]) -> Iterator[Setting]:
    """What apptainer will set within its containers."""
    for given, value in variables.items():
        name = assignments.meant(given)
        if name and name != given:
            yield Setting(name, value, Origin(given))


def conf_files(environ: Environ, known: Known) -> list[ConfFile]:
    """Those that the job's NCCL reads."""
    old = known.version is not None and known.version < CONF_FILE
    return [file for file in environ.conf_files if not (old and file.role is ConfRole.NAMED)]


def judge_fact(environ: Environ, known: Known) -> list[Finding]:
    """Everything in effect in `environ`: the process's variables, and what conf files add to them."""
    if isinstance(environ.variables, Unavailable):
        return [Finding(Status.UNKNOWN, f"the environment could not be read: {environ.variables}")]
    nccl = environ.nccl
    read = conf_files(environ, known)
    paths = {file.path for file in read}
    settings = [*_handed_on(environ.variables), *(Setting(name, value) for name, value in environ.variables.items())]
    if not isinstance(nccl, Unavailable):
        settings += [s for s in nccl.values() if s.source.path in paths and s.name == s.name.strip()]
    left = (*environ.not_there, *environ.not_read)
    findings = [f for f in judge(settings, known) if f.subject not in left or f.status is not Status.PASS]
    there = {setting.name: setting for setting in settings}
    findings += [_no_file(there[name]) for name in environ.not_there if name in there]
    findings += [
        Finding(Status.UNKNOWN, f"{n}={there[n].value}: {why}", n) for n, why in environ.not_read.items() if n in there
    ]
    findings += _ranks(environ.variables)
    lines: list[Setting] = []
    for file in read:
        if not isinstance(file.entries, Unavailable):
            lines += file.entries
            findings += [one for text, number in file.without_value for one in judge_line(text, Origin(file.path, number))]
        elif file.entries.kind not in (Kind.ABSENT, Kind.DENIED):
            findings.append(conf_unread.finding(file, file.entries))
    findings += judge_conf(lines, dict(environ.variables))
    if isinstance(nccl, Unavailable):
        message = f"not all conf files could be read: {nccl}"
        findings.append(Finding(Status.UNKNOWN, message, "nccl.conf", how="read them as the job's user"))
    return findings

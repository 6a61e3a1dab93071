"""``netdoctor env --explain NAME``: the page of one variable."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from netdoctor import environment
from netdoctor.cli import deliver, setup
from netdoctor.cli.env import parsed_version
from netdoctor.cli.options import Options
from netdoctor.facts.nccl_version import Version, text
from netdoctor.variables.catalogue import closest, lookup, newest

if TYPE_CHECKING:
    from netdoctor.variables.catalogue import Variable


def run(name: str, version: str | None = None) -> int:
    """Print it; the exit code."""
    row = lookup(name) or lookup(name.upper())
    try:
        if row is None and (own := environment.exact(name) or environment.exact(name.upper())):
            sys.stdout.write(_of_launchers(own))
            return 0
        if row is None:
            near = closest(name.upper())
            hint = f"; did you mean {near}?" if near else ""
            raise setup.UsageError(f"--explain: {name!r} is not in the catalogue{hint}")
        nccl = parsed_version(version)
    except setup.UsageError as error:
        return deliver.refuse(error, Options())
    sys.stdout.write(explained(row, nccl))
    return 0


_ACCEPTS: Final = {
    "flag": "0 or 1",
    "one": "0 or 1 (only exactly 1 acts)",
    "int": "an integer (0x is hexadecimal, a leading zero octal; words are read as 0)",
    "bool": "0 or 1; from 2.30 on also true and false",
    "level": "LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS, upper case (C2C from 2.26, P2C from 2.27), or legacy digits",
    "algo": "Tree Ring CollNetDirect CollNetChain NVLS NVLSTree PAT, comma-separated; ^ negates; from 2.24 function:names;…",
    "proto": "LL LL128 Simple, comma-separated; ^ negates; from 2.24 function:names;…",
    "ifname": "[^][=]name[,name…]; names are prefixes unless = leads",
    "gloo-ifname": "name[,name…]: exact names",
    "hca": "[^][=]name[:port][,…]; names are prefixes unless = leads",
    "debug": "VERSION WARN INFO ABORT TRACE",
    "subsys": "INIT COLL P2P SHM NET GRAPH TUNING ENV ALLOC CALL PROXY NVLS BOOTSTRAP REG PROFILE RAS ALL; ^ negates",
    "commid": "<ipv4>:<port>, [<ipv6>]:<port> or <host>:<port>",
    "cidr": "a network prefix, 10.0.0.0/8",
    "path": "a path; ~ is not expanded",
    "text": "a text",
    "alias": "an older name of a torch variable",
}


def _of_launchers(name: str) -> str:
    """The page of a variable that NCCL and the programs around it do not read: what netdoctor takes it for."""
    row = environment.lookup(name)
    assert row is not None
    lines = [name, f"  set or read by  {row.program}", f"  means           {row.role.value}"]
    if row.of is not None:
        lines.append(f"  belongs to      {row.of.value}")
    return "\n".join([*lines, ""])


def explained(row: Variable, version: Version | None) -> str:
    """The page of one variable: what it is, since when, default per version, range, when to touch it."""
    lines = [row.name, f"  read by    {'nothing: in no release' if row.program == 'none' else row.program}"]
    if row.first and row.last:
        until = "" if row.last == newest() else f", last in {text(row.last)}"
        lines.append(f"  since      {text(row.first)}{until}")
        if version:
            reads = row.first <= version and (version <= row.last or row.last == newest())
            lines.append(
                f"  in {text(version):<8}{'read' if reads else 'not read'}; default {row.default_in(version) or 'not set'}"
            )
    if row.program != "none":
        lines.append(f"  default    {_spoken(row.default) if row.default else 'not set'}")
        if len(row.history) > 1:
            lines.append("  history    " + ", ".join(f"{_spoken(value)} from {text(since)}" for since, value in row.history))
        lines.append(
            f"  accepts    {_ACCEPTS.get(row.accepts) or row.accepts.replace('|', ' or ').replace('..', ' to ').rstrip()}"
        )
    if row.section:
        debugging = row.section == "debugging"
        lines.append(
            f"  section    {'for debugging, not for production' if debugging else 'system configuration'} (NCCL user guide)"
        )
    if row.note:
        lines.append(f"  note       {row.note}")
    return "\n".join([*lines, ""])


def _spoken(default: str) -> str:
    return {"undef": "left to the communicator's configuration", "-2": "-2 (NCCL decides)"}.get(default, default)

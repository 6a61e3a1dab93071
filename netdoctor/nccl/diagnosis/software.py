"""Versions, variables, Gloo, and ranks that do not do the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.model import Fix, Severity
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Hypothesis
from netdoctor.nccl.log.facts import LogFacts

_VERSION = Fix(
    "use one NCCL on all nodes: the one that the framework's wheel pins",
    (
        "python -c 'import torch; print(torch.cuda.nccl.version())'",
        "grep libnccl /proc/<pid>/maps",
        "pip list | grep -i nccl   # cu12 and cu13 wheels overwrite each other",
    ),
)
_SAME = Fix("set the same NCCL variables on every rank", ("env | grep NCCL_ | sort   # on every node",))
_GLOO = Fix(
    "give Gloo the interface that reaches the other nodes: one exact name, not NCCL's syntax",
    ("export GLOO_SOCKET_IFNAME=<name>", "getent hosts $(hostname)   # must not be 127.x"),
)


def versions(log: LogFacts) -> Iterator[Hypothesis]:
    """Refused from 2.23.4 (src/init.cc); before that ranks hang or misread each other's messages."""
    events = log.of("version")
    if events:
        symbol = next((e.data["symbol"] for e in events if e.data.get("symbol")), None)
        detail = next((e.data["detail"] for e in events if e.data.get("detail")), "")
        text = (
            f"the NCCL that was loaded lacks {symbol}: another copy than the framework's comes first"
            if symbol
            else f"two NCCL versions meet {detail}".rstrip()
            if detail
            else "NCCL does not fit the program that uses it"
        )
        yield Hypothesis("version_mismatch", Confidence.CERTAIN, text, events, _VERSION)
    garbled = log.above_info("garbled")
    if garbled:
        yield Hypothesis(
            "version_mismatch",
            Confidence.EFFECT if log.broken_locally else Confidence.LIKELY_MINUS,
            "the ranks' handshake messages differ in size or kind: two NCCL versions, or two jobs on one port",
            garbled,
            _VERSION,
        )
    apart = {p.nccl_version for p in log.ranks if p.nccl_version}
    if len(apart) > 1 and _one_job(log):
        yield Hypothesis(
            "version_mismatch",
            Confidence.STRONG,
            f"ranks of one job run NCCL {' and '.join(sorted(apart))}",
            shown=tuple(f"NCCL version {v}" for v in sorted(apart)),
            fix=_VERSION,
        )


def _one_job(log: LogFacts) -> bool:
    """Processes of different versions in one communicator: its id is on both."""
    versions: dict[str, set[str]] = {}
    for p in log.ranks:
        for identity in p.comm_ids if p.nccl_version else ():
            versions.setdefault(identity, set()).add(p.nccl_version or "")
    return any(len(v) > 1 for v in versions.values())


def variables(log: LogFacts) -> Iterator[Hypothesis]:
    """Variables that NCCL refuses or takes for something else."""
    for e in log.of("variable"):
        d, low = e.data, e.text.lower()
        if "xml" in low:
            if any("NCCL_TOPO_FILE" in p.plugin_env for p in log.ranks) or d.get("level") == "INFO":
                continue
            yield Hypothesis(
                "env_misuse",
                Confidence.OPEN_MINUS,
                f"the topology or graph file cannot be opened: {d.get('value', '')}",
                (e,),
                severity=Severity.WARNING,
            )
        elif "invalid value" in low:
            yield Hypothesis(
                "env_misuse",
                Confidence.QUIET_MINUS,
                f"{d.get('name')}={d.get('value')} is not a number; NCCL goes on with its default",
                (e,),
                Fix(f"give {d.get('name')} a number"),
            )
        elif "greater than the maximum" in low or "ignoring nccl_algo" in low:
            yield Hypothesis(
                "env_misuse",
                Confidence.EFFECT_PLUS,
                "a variable is out of range and was changed by NCCL",
                (e,),
                severity=Severity.WARNING,
            )
        elif "algorithm/protocol" in low or "unrecognized" in low:
            named = [f"{n}={log.env[n]}" for n in ("NCCL_ALGO", "NCCL_PROTO") if n in log.env]
            yield Hypothesis(
                "env_misuse",
                Confidence.STRONG_PLUS,
                f"NCCL_ALGO and NCCL_PROTO leave nothing that can be used{': ' + ', '.join(named) if named else ''}",
                (e,),
                Fix("remove them", ("unset NCCL_ALGO NCCL_PROTO",)),
            )
        else:
            yield Hypothesis(
                "env_misuse", Confidence.STRONG, f"{d.get('name', 'a variable')} is not what NCCL understands", (e,)
            )


def disagreement(log: LogFacts) -> Iterator[Hypothesis]:
    """Ranks that send what others do not expect."""
    sizes = log.of("sizes_differ")
    if sizes:
        differs = log.env_differs
        note = tuple(f"{n}: {', '.join(v)}" for n, v in list(differs.items())[:4])
        yield Hypothesis(
            "env_misuse",
            Confidence.STRONG_MINUS,
            "ranks send other sizes than their peers expect: NCCL variables differ, or the program's collectives do",
            sizes,
            _SAME,
            notes=note,
        )
        yield Hypothesis(
            "version_mismatch", Confidence.LIKELY_MINUS, "two NCCL versions cut messages differently", sizes, _VERSION
        )
        yield Hypothesis("hang", Confidence.QUIET_PLUS, "the ranks may call collectives of different sizes", sizes)
    order = log.of("order_differs")
    if order:
        near = next((e.data["near"] for e in order if e.data.get("near")), None)
        yield Hypothesis(
            "hang",
            Confidence.STRONG_MINUS,
            "the ranks do not call the same collectives in the same order" + (f" (around rank {near})" if near else ""),
            order,
            Fix("compare the ranks' collectives", ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "torchfrtrace   # flight recorder")),
        )


_IP = re.compile(r"\[?\d{1,3}(?:\.\d{1,3}){3}\]?$")


def gloo(log: LogFacts) -> Iterator[Hypothesis]:
    """Gloo's own connections: gloo/transport/tcp/device.cc, pair.cc.  A peer that went away is not Gloo's fault."""
    for e in log.of("gloo_address")[:1]:
        name = e.data.get("name", "")
        if _IP.match(name) and not name.strip("[]").startswith("0.0.0."):
            yield Hypothesis(
                "env_misuse",
                Confidence.STRONG_PLUS,
                f"GLOO_SOCKET_IFNAME holds an address ({name}), it wants an interface name",
                (e,),
                _GLOO,
            )
            yield Hypothesis("gloo_backend", Confidence.LIKELY, f"Gloo finds no interface {name}", (e,), _GLOO)
        elif name.startswith(("^", "=")) or "," in name:
            yield Hypothesis(
                "gloo_backend",
                Confidence.STRONG_PLUS,
                f"Gloo does not know NCCL's syntax: no interface is called {name}",
                (e,),
                _GLOO,
            )
            yield Hypothesis("env_misuse", Confidence.LIKELY, "NCCL's exclusion list was given to Gloo", (e,), _GLOO)
        else:
            yield Hypothesis(
                "gloo_backend",
                Confidence.STRONG_PLUS,
                f"Gloo finds no interface or address for {name or 'this host'}",
                (e,),
                _GLOO,
            )
            yield Hypothesis("socket_ifname", Confidence.OPEN, "the interface's name differs between nodes", (e,), _GLOO)
    for e in log.of("gloo_connect"):
        why = (e.data.get("why") or e.text).lower()
        if "reset by peer" in why or "closed by peer" in why or "broken pipe" in why:
            yield Hypothesis(
                "rank_died",
                Confidence.EFFECT,
                "a peer went away while Gloo connected or waited: find the rank that says nothing",
                (e,),
            )
            continue
        local = "127." in why or "::1" in why or bool(log.of("gloo_loopback"))
        text = (
            "Gloo advertises the loopback address: the host name resolves to it"
            if local
            else "Gloo could not connect all ranks"
        )
        yield Hypothesis("gloo_backend", Confidence.STRONG if local else Confidence.LIKELY_PLUS, text, (e,), _GLOO)
        if not local:
            yield Hypothesis(
                "socket_ifname", Confidence.OPEN, "Gloo may have taken an interface that others cannot reach", (e,), _GLOO
            )
            yield Hypothesis(
                "firewall_connect",
                Confidence.OPEN_PLUS if "timed out" in why or "no route" in why else Confidence.OPEN_MINUS,
                "ports between the nodes may be closed",
                (e,),
            )
    for e in log.of("no_backend")[:1]:
        yield Hypothesis(
            "gloo_backend",
            Confidence.LIKELY_MINUS,
            "the process group has no backend for this device" if e.data.get("device") else "this torch was built without NCCL",
            (e,),
            Fix("name both backends", ("init_process_group('cpu:gloo,cuda:nccl')",)),
        )


RULES = (versions, variables, disagreement, gloo)

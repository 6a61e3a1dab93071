"""Versions, variables, Gloo, and ranks that do not do the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.model import Fix, Severity
from netdoctor.nccl.diagnosis.context import CERTAIN, EFFECT, LIKELY, OPEN, QUIET, STRONG, Guess, Scene

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


def versions(s: Scene) -> Iterator[Guess]:
    """Refused from 2.23.4 (src/init.cc); before that ranks hang or misread each other's messages."""
    events = s.of("version")
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
        yield Guess("version_mismatch", CERTAIN - 1, text, events, _VERSION)
    garbled = s.loud("garbled")
    if garbled:
        yield Guess(
            "version_mismatch",
            EFFECT + 5 if s.broken_locally else LIKELY - 2,
            "the ranks' handshake messages differ in size or kind: two NCCL versions, or two jobs on one port",
            garbled,
            _VERSION,
        )
    apart = {p.nccl_version for p in s.facts.ranks if p.nccl_version}
    if len(apart) > 1 and _one_job(s):
        yield Guess(
            "version_mismatch",
            STRONG,
            f"ranks of one job run NCCL {' and '.join(sorted(apart))}",
            shown=tuple(f"NCCL version {v}" for v in sorted(apart)),
            fix=_VERSION,
        )


def _one_job(s: Scene) -> bool:
    """Processes of different versions in one communicator: its id is on both."""
    seen: dict[str, set[str]] = {}
    for p in s.facts.ranks:
        for identity in p.comm_ids:
            seen.setdefault(identity, set()).add(p.nccl_version or "")
    return any(len(v - {""}) > 1 for v in seen.values())


def variables(s: Scene) -> Iterator[Guess]:
    """Variables that NCCL refuses or takes for something else."""
    for e in s.of("variable"):
        d, low = e.data, e.text.lower()
        if "xml" in low:
            if any("NCCL_TOPO_FILE" in p.plugin_env for p in s.facts.ranks) or d.get("level") == "INFO":
                continue
            yield Guess(
                "env_misuse",
                OPEN - 5,
                f"the topology or graph file cannot be opened: {d.get('value', '')}",
                (e,),
                severity=Severity.WARNING,
            )
        elif "invalid value" in low:
            yield Guess(
                "env_misuse",
                QUIET - 2,
                f"{d.get('name')}={d.get('value')} is not a number; NCCL goes on with its default",
                (e,),
                Fix(f"give {d.get('name')} a number"),
            )
        elif "greater than the maximum" in low or "ignoring nccl_algo" in low:
            yield Guess(
                "env_misuse", QUIET - 3, "a variable is out of range and was changed by NCCL", (e,), severity=Severity.WARNING
            )
        elif "algorithm/protocol" in low or "unrecognized" in low:
            named = [f"{n}={s.facts.env[n]}" for n in ("NCCL_ALGO", "NCCL_PROTO") if n in s.facts.env]
            yield Guess(
                "env_misuse",
                STRONG + 3,
                f"NCCL_ALGO and NCCL_PROTO leave nothing that can be used{': ' + ', '.join(named) if named else ''}",
                (e,),
                Fix("remove them", ("unset NCCL_ALGO NCCL_PROTO",)),
            )
        else:
            yield Guess("env_misuse", STRONG, f"{d.get('name', 'a variable')} is not what NCCL understands", (e,))


def disagreement(s: Scene) -> Iterator[Guess]:
    """Ranks that send what others do not expect."""
    sizes = s.of("sizes_differ")
    if sizes:
        differs = s.facts.env_differs
        note = tuple(f"{n}: {', '.join(v)}" for n, v in list(differs.items())[:4])
        yield Guess(
            "env_misuse",
            STRONG - 1,
            "ranks send other sizes than their peers expect: NCCL variables differ, or the program's collectives do",
            sizes,
            _SAME,
            notes=note,
        )
        yield Guess("version_mismatch", LIKELY - 3, "two NCCL versions cut messages differently", sizes, _VERSION)
        yield Guess("hang", OPEN - 8, "the ranks may call collectives of different sizes", sizes)
    order = s.of("order_differs")
    if order:
        near = next((e.data["near"] for e in order if e.data.get("near")), None)
        yield Guess(
            "hang",
            STRONG - 3,
            "the ranks do not call the same collectives in the same order" + (f" (around rank {near})" if near else ""),
            order,
            Fix("compare the ranks' collectives", ("TORCH_DISTRIBUTED_DEBUG=DETAIL", "torchfrtrace   # flight recorder")),
        )


_IP = re.compile(r"\[?\d{1,3}(?:\.\d{1,3}){3}\]?$")


def gloo(s: Scene) -> Iterator[Guess]:
    """Gloo's own connections: gloo/transport/tcp/device.cc, pair.cc.  A peer that went away is not Gloo's fault."""
    for e in s.of("gloo_address")[:1]:
        name = e.data.get("name", "")
        if _IP.match(name) and not name.strip("[]").startswith("0.0.0."):
            yield Guess(
                "env_misuse",
                STRONG + 5,
                f"GLOO_SOCKET_IFNAME holds an address ({name}), it wants an interface name",
                (e,),
                _GLOO,
            )
            yield Guess("gloo_backend", LIKELY, f"Gloo finds no interface {name}", (e,), _GLOO)
        elif name.startswith(("^", "=")) or "," in name:
            yield Guess(
                "gloo_backend", STRONG + 5, f"Gloo does not know NCCL's syntax: no interface is called {name}", (e,), _GLOO
            )
            yield Guess("env_misuse", LIKELY, "NCCL's exclusion list was given to Gloo", (e,), _GLOO)
        else:
            yield Guess(
                "gloo_backend", STRONG + 5, f"Gloo finds no interface or address for {name or 'this host'}", (e,), _GLOO
            )
            yield Guess("socket_ifname", OPEN, "the interface's name differs between nodes", (e,), _GLOO)
    for e in s.of("gloo_connect"):
        why = (e.data.get("why") or e.text).lower()
        if "reset by peer" in why or "closed by peer" in why or "broken pipe" in why:
            yield Guess(
                "rank_died",
                EFFECT + 9,
                "a peer went away while Gloo connected or waited: find the rank that says nothing",
                (e,),
            )
            continue
        local = "127." in why or "::1" in why or bool(s.of("gloo_loopback"))
        text = (
            "Gloo advertises the loopback address: the host name resolves to it"
            if local
            else "Gloo could not connect all ranks"
        )
        yield Guess("gloo_backend", STRONG if local else LIKELY + 5, text, (e,), _GLOO)
        if not local:
            yield Guess("socket_ifname", OPEN, "Gloo may have taken an interface that others cannot reach", (e,), _GLOO)
            yield Guess(
                "firewall_connect",
                OPEN + 2 if "timed out" in why or "no route" in why else OPEN - 5,
                "ports between the nodes may be closed",
                (e,),
            )
    for e in s.of("no_backend")[:1]:
        yield Guess(
            "gloo_backend",
            LIKELY - 3,
            "the process group has no backend for this device" if e.data.get("device") else "this torch was built without NCCL",
            (e,),
            Fix("name both backends", ("init_process_group('cpu:gloo,cuda:nccl')",)),
        )


RULES = (versions, variables, disagreement, gloo)

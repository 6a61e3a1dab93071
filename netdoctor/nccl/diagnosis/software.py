"""Versions, variables, Gloo, and ranks that do not do the same thing."""

from __future__ import annotations

import re
from collections.abc import Iterator

from netdoctor.causes.cost import STOPS
from netdoctor.facts.nccl_version import parse
from netdoctor.model import Fix
from netdoctor.nccl.diagnosis.addresses import link_local, of_a_bridge
from netdoctor.nccl.diagnosis.hypothesis import Confidence, Fault, Hypothesis, caught
from netdoctor.nccl.diagnosis.ranks import ONE_VERSION, SAME_VARIABLES, WIRE
from netdoctor.nccl.diagnosis.waiting import COMPARE
from netdoctor.nccl.diagnosis.went_on import before
from netdoctor.nccl.log.facts import Event, Level, LogFacts
from netdoctor.nccl.log.wordings import Wording

_INSTALL = Fix(
    "install NCCL where the job runs, for the CUDA of the framework, and let the loader find it",
    ("ldconfig -p | grep nccl; pip list | grep -i nccl", "echo $LD_LIBRARY_PATH   # in the container, and as the job's user"),
)
_GLOO = Fix(
    "give Gloo the interface that reaches the other nodes: one exact name, not NCCL's syntax",
    ("export GLOO_SOCKET_IFNAME=<name>", "getent hosts $(hostname)   # must not be 127.x"),
)


def versions(log: LogFacts) -> Iterator[Hypothesis]:
    """Refused from 2.23.4 (src/init.cc); before that ranks hang or misread each other's messages."""
    events = log.of("version")
    if events:
        symbol = next(iter(caught(events, "symbol")), None)
        detail = next(iter(caught(events, "detail")), None)
        text, fix, why = "NCCL does not fit the program that uses it", ONE_VERSION, None
        if all(Wording.NO_LIBRARY.within(e.text) for e in events):
            text, fix = "the program cannot load NCCL's library: not installed here, or not where the loader looks", _INSTALL
            why = "no collective between GPUs works without it"
        elif symbol:
            text = f"the NCCL that was loaded lacks {symbol}: another copy than the framework's comes first"
        elif detail:
            text = f"two NCCL versions meet {detail}".rstrip()
        yield Hypothesis("version_mismatch", Confidence.CERTAIN, text, events, fix, why=why)


def variables(log: LogFacts) -> Iterator[Hypothesis]:
    """Variables that NCCL refuses or takes for something else."""
    for e in log.of("variable"):
        name, value = e.data.get("name", "a variable"), e.data.get("value", "")
        confidence, fix = Confidence.STRONG, None
        if Wording.XML_FILE.within(e.text):
            if any("NCCL_TOPO_FILE" in p.plugin_env for p in log.ranks) or e.level is Level.INFO:
                continue
            confidence = Confidence.OPEN_MINUS
            text = f"the topology or graph file cannot be opened: {value}"
        elif Wording.INVALID_VALUE.within(e.text):
            confidence, fix = Confidence.QUIET_MINUS, Fix(f"give {name} a number")
            text = f"{name}={value} is not a number; NCCL goes on with its default"
        elif Wording.CLIPPED.within(e.text):
            confidence = Confidence.EFFECT_PLUS
            text = "a variable is out of range and was changed by NCCL"
        elif Wording.RENDEZVOUS_VARIABLE.within(e.text):
            confidence = Confidence.STRONG_PLUS
            fix = Fix("start the ranks with a launcher that sets it", ("torchrun --nproc-per-node=8 train.py",))
            text = f"torch's rendezvous needs {name}, which is not set"
        elif Wording.NOTHING_LEFT.within(e.text):
            confidence, fix = Confidence.STRONG_PLUS, Fix("remove them", ("unset NCCL_ALGO NCCL_PROTO",))
            named = ", ".join(f"{n}={log.env[n]}" for n in ("NCCL_ALGO", "NCCL_PROTO") if n in log.env)
            text = f"NCCL_ALGO and NCCL_PROTO leave nothing that can be used{': ' if named else ''}{named}"
        else:
            text = f"{name} is not what NCCL understands"
        yield Hypothesis("env_misuse", confidence, text, (e,), fix)


def disagreement(log: LogFacts) -> Iterator[Hypothesis]:
    """Ranks that send what others do not expect."""
    sizes = log.of("sizes_differ")
    if sizes:
        yield from _sizes(log, sizes)
    order = log.of("order_differs")
    if order:
        near = next((f" (around rank {rank})" for rank in caught(order, "near")), "")
        told = next((e.data for e in order if e.data.get("b")), None)
        if told:
            near = f": rank {told['a']} calls {told['op']}, rank {told['b']} {told['other']}"
            near += " of another shape" if told["op"] == told["other"] else ""
        text = f"the ranks do not call the same collectives in the same order{near}"
        if apart := next(iter(caught(order, "apart")), None):
            text = f"the ranks do not hold the same model or values: {apart}"
            if sizes and before(sizes[0], order[0]):  # they went apart earlier: what was left of them then met
                text = f"{_OTHER_CALLS}; then {text}"
        yield Hypothesis("hang", Confidence.STRONG_MINUS, text, order, COMPARE, subject="job" if told else None)


_OTHER_CALLS = (
    "ranks send other sizes than their peers expect: the program's ranks call different collectives, or with different sizes"
)


def _sizes(log: LogFacts, sizes: tuple[Event, ...]) -> Iterator[Hypothesis]:
    """Variables, or two versions, are blamed where the log shows none only as long as it could not have shown them."""
    text = "ranks send other sizes than their peers expect"
    apart = tuple(f"{n}: {', '.join(v)}" for n, v in log.env_differs.items() if n in WIRE)
    program = _OTHER_CALLS
    # Its level INFO names each variable that is set: src/debug.cc, the default mask from 2.16.5.
    told = Level.INFO in log.levels and (parse(log.nccl_version or "") or (0,)) >= (2, 16, 5)
    if apart or not (told or log.of("order_differs")):
        said = f"{text}: NCCL variables differ" if apart else f"{program}; or their NCCL variables differ"
        yield Hypothesis(
            "env_misuse", Confidence.STRONG_MINUS, said, sizes, SAME_VARIABLES if apart else COMPARE, notes=apart[:4]
        )
    if len({p.nccl_version for p in log.ranks if p.nccl_version}) > 1:
        yield Hypothesis(
            "version_mismatch", Confidence.LIKELY_MINUS, f"{text}: they run two versions of NCCL", sizes, ONE_VERSION
        )
    yield Hypothesis("hang", Confidence.QUIET_PLUS if apart else Confidence.LIKELY_PLUS, program, sizes, COMPARE)


_WITH_NCCL = Fix(
    "install a torch with CUDA and NCCL (Linux; the CPU wheel and the Windows one have none)",
    ("python -c 'import torch; print(torch.version.cuda, torch.distributed.is_nccl_available())'",),
)
_BOTH = Fix("name both backends", ("init_process_group('cpu:gloo,cuda:nccl')",))
_HOSTS = Fix(
    "give Gloo tensors of the CPU, or send those of GPUs by NCCL; else find what frees or unmaps that memory while it is sent",
    ("dist.send(x.cpu(), …)", "init_process_group('cpu:gloo,cuda:nccl')"),
)
_PEER = re.compile(r"\[?((?:\d{1,3}\.){3}\d{1,3})\]?:\d{1,5}: Connection refused", re.IGNORECASE)  # gloo/transport/tcp/pair.cc
_SAME_GROUPS = Fix(
    "look at the log of the rank at that address; let every rank call new_group for every group, in one order, also for those "
    "that it is no member of",
)
_IP = re.compile(r"\[?\d{1,3}(?:\.\d{1,3}){3}\]?$")


def gloo(log: LogFacts) -> Iterator[Hypothesis]:
    """Gloo's own connections: gloo/transport/tcp/device.cc, pair.cc."""
    for e in log.of("gloo_address")[:1]:
        name = e.data.get("name", "")
        if _IP.match(name) and not name.strip("[]").startswith("0.0.0."):
            text = f"GLOO_SOCKET_IFNAME holds an address ({name}), it wants an interface name"
            yield Hypothesis("env_misuse", Confidence.STRONG_PLUS, text, (e,), _GLOO)
            yield Hypothesis("gloo_backend", Confidence.LIKELY, f"Gloo finds no interface {name}", (e,), _GLOO)
        elif name.startswith(("^", "=")) or "," in name:
            text = f"Gloo does not know NCCL's syntax: no interface is called {name}"
            yield Hypothesis("gloo_backend", Confidence.STRONG_PLUS, text, (e,), _GLOO)
            yield Hypothesis("env_misuse", Confidence.LIKELY, "NCCL's exclusion list was given to Gloo", (e,), _GLOO)
        else:
            text = f"Gloo finds no interface or address for {name or 'this host'}"
            yield Hypothesis("gloo_backend", Confidence.STRONG_PLUS, text, (e,), _GLOO)
            yield Hypothesis("socket_ifname", Confidence.OPEN, "the interface's name differs between nodes", (e,), _GLOO)
    for e in log.of("gloo_connect"):
        yield from _gloo_connect(e, log.of("gloo_loopback"))
    for e in log.of("no_backend")[:1]:
        device = e.data.get("device")
        if device:
            text = f"the process group has no backend for tensors of {device}"
            yield Hypothesis("gloo_backend", Confidence.STRONG_MINUS, text, (e,), _BOTH, loss=STOPS)
        else:
            text = "this torch was built without NCCL"
            yield Hypothesis("gloo_backend", Confidence.STRONG, text, (e,), _WITH_NCCL, fault=Fault.NO_NCCL)
            yield Hypothesis("cuda_driver_mismatch", Confidence.OPEN, text, (e,), _WITH_NCCL, fault=Fault.NO_NCCL)


def _gloo_connect(e: Event, loopback: tuple[Event, ...]) -> Iterator[Hypothesis]:
    """A peer that went away is not Gloo's fault."""
    if "buffer" in e.data:  # EFAULT is of the memory that the caller gave, whatever the network does (writev(2))
        text = "a process gave Gloo memory that the host cannot read, as that of a tensor on a GPU, and could not send it: "
        text += f"{e.data['buffer'][:160]}; whoever waits for it loses its peer"
        yield Hypothesis("other", Confidence.STRONG, text, (e,), _HOSTS, fault=Fault.ARGUMENT)
        return
    why = f"{e.data.get('why') or e.text} {e.data.get('remote', '')}"
    if Wording.PEER_GONE.within(why):
        text = "a peer went away while Gloo connected or waited: find the rank that says nothing"
        yield Hypothesis("rank_died", Confidence.EFFECT, text, (e,))
    elif loopback or Wording.LOOPBACK.within(why):
        text = "Gloo advertises the loopback address: the host name resolves to it"
        ranks = sorted({one.rank for one in loopback if one.rank is not None})
        if len(ranks) > 1:
            text += f" (ranks {', '.join(map(str, ranks[:8]))}{' …' if len(ranks) > 8 else ''})"
        yield Hypothesis("gloo_backend", Confidence.STRONG, text, (*loopback, e), _GLOO)
    elif Wording.REFUSED.within(why) and (peer := _PEER.search(why)) and not (link_local(peer[1]) or of_a_bridge(peer[1])):
        text = f"{peer[1]} refused Gloo's connection: that host is reached, and nobody listens at that port any more: its rank"
        text += " ended, or is not at the same group"
        yield Hypothesis("gloo_backend", Confidence.LIKELY_PLUS, text, (e,), _SAME_GROUPS)
        yield Hypothesis("rank_died", Confidence.OPEN, f"the rank at {peer[1]} may have ended", (e,))
    else:
        local = next((a for a in (e.data.get("remote", ""), e.data.get("local", "")) if link_local(a) or of_a_bridge(a)), "")
        yield Hypothesis("gloo_backend", Confidence.LIKELY_PLUS, "Gloo could not connect all ranks", (e,), _GLOO)
        text = f"Gloo took an interface that others cannot reach: {local} is known on its own host or link only"
        text = text if local else "Gloo may have taken an interface that others cannot reach"
        yield Hypothesis("socket_ifname", Confidence.STRONG_MINUS if local else Confidence.OPEN, text, (e,), _GLOO)
        confidence = Confidence.OPEN_PLUS if Wording.DROPPED.within(why) else Confidence.OPEN_MINUS
        yield Hypothesis("firewall_connect", confidence, "ports between the nodes may be closed", (e,))


RULES = (versions, variables, disagreement, gloo)

"""Values with a grammar of their own: interfaces, HCAs, algorithms, protocols, levels, debug levels, addresses.

Sources: NCCL src/misc/utils.cc (parseStringList, matchIfList), src/graph/tuning.cc (parseList), src/graph/paths.cc
(ncclGetLevel), src/debug.cc, src/misc/socket.cc.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Collection
from functools import partial
from typing import Final

from netdoctor.causes.cost import SOMETIMES, STOPS
from netdoctor.facts.nccl_version import Version
from netdoctor.nccl.gpudirect import LEVEL_SINCE, level_of
from netdoctor.nccl.integers import decimal
from netdoctor.nccl.interface_names import INSIDE_NAMES
from netdoctor.nccl.selector import Selector, parse, parse_hcas
from netdoctor.variables.issue import Context, Issue, harms, note, stops

# First release of each name.  CollNet was split in 2.14.
ALGORITHMS: Final[tuple[tuple[str, Version, Version | None], ...]] = (
    ("Tree", (2, 5, 0), None),
    ("Ring", (2, 5, 0), None),
    ("CollNet", (2, 6, 0), (2, 13, 99)),
    ("CollNetDirect", (2, 14, 0), None),
    ("CollNetChain", (2, 14, 0), None),
    ("NVLS", (2, 17, 0), None),
    ("NVLSTree", (2, 18, 0), None),
    ("PAT", (2, 23, 0), None),
)
PROTOCOLS: Final[tuple[tuple[str, Version, Version | None], ...]] = (
    ("LL", (2, 5, 0), None),
    ("LL128", (2, 5, 0), None),
    ("Simple", (2, 5, 0), None),
)
FUNCTIONS: Final = frozenset({"broadcast", "reduce", "allgather", "reducescatter", "allreduce"})
PER_FUNCTION: Final[Version] = (2, 24, 0)  # "allreduce:tree,ring;broadcast:ring", and unknown names are refused
SUBSYSTEMS: Final = frozenset(
    {"INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY", "NVLS"}
    | {"BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"}
)
QUOTES: Final = "\"'“”‘’`"  # those of a text program too: no shell takes them off
BRIDGES: Final = (
    "docker",
    "virbr",
)  # of containers and virtual machines on one node; NCCL's own exclusion (src/misc/socket.cc)
ATTN: Final[Version] = (2, 32, 0)  # a level between WARN and INFO; as 2.32.3 prints it
TRIMS: Final[Version] = (2, 30, 0)  # the parameter parser that trims blanks and refuses the whole value for one unknown word


def _names(value: str, context: Context, known: tuple[tuple[str, Version, Version | None], ...]) -> list[Issue]:
    """NCCL_ALGO and NCCL_PROTO."""
    valid = {w.lower() for w, first, last in known if first <= context.version and (not last or context.version <= last)}
    spoken = ", ".join(w for w, _, _ in known if w.lower() in valid)
    strict = context.version >= PER_FUNCTION
    sections = value.split(";") if strict else [value]
    for section in sections:
        head, colon, tail = section.partition(":")
        if colon and not strict:
            return stops("grammar", "values per function came with NCCL 2.24: nothing of it counts", expected=spoken)
        if colon and head.lower() not in FUNCTIONS:
            return stops("grammar", f"no such function: {head}: NCCL refuses to start", expected=", ".join(sorted(FUNCTIONS)))
        words = (tail if colon else section).removeprefix("^").split(",")
        wrong = [word for word in words if word and word.lower() not in valid]
        if wrong and strict:
            return stops("grammar", f"{wrong[0]!r} is not one of its names: NCCL refuses to start", expected=spoken)
        if wrong and len(wrong) == len([word for word in words if word]) and not section.startswith("^"):
            return stops("grammar", f"no name that this version knows ({wrong[0]!r}): none is left", expected=spoken)
        if wrong:
            return harms("grammar", f"{wrong[0]!r} is silently ignored", expected=spoken)
    return []


def _level(value: str, context: Context) -> list[Issue]:
    if level_of(value, context.version) is None:
        known = [word for word, first in LEVEL_SINCE.items() if first <= context.version]
        if value in LEVEL_SINCE:
            why = "this version does not know it and silently ignores it"
        elif value.upper() in known:
            why = "silently ignored: names are upper case"
        else:
            why = "no such level: silently ignored"
        return harms("grammar", why, expected=", ".join(known))
    if value[:1].isdecimal():
        return note("legacy-level", f"legacy number; the name is {level_of(value, context.version)}")
    return []


def _debug(value: str, context: Context) -> list[Issue]:
    word = value.strip() if context.version >= TRIMS else value
    if word.upper() in ("VERSION", "WARN", "INFO", "ABORT", "TRACE") or (word.upper() == "ATTN" and context.version >= ATTN):
        return []
    if word.upper() in ("NONE", "OFF", "0"):
        return note("debug-off", "no level of that name: NCCL prints nothing, as if it were not set")
    return harms("grammar", "no such level: NCCL prints nothing at all", expected="VERSION, WARN, INFO or TRACE")


def _subsys(value: str, context: Context) -> list[Issue]:
    words = value.removeprefix("^").split(",")
    if context.version >= TRIMS:
        words = [word.strip() for word in words]
    wrong = [word for word in words if word and word.upper() not in SUBSYSTEMS]
    if not wrong:
        return []
    then = "NCCL takes its default instead" if context.version >= TRIMS else "silently ignored"
    return harms("grammar", f"no subsystem {wrong[0]!r}: {then}", expected=", ".join(sorted(SUBSYSTEMS)))


def _commid(value: str, context: Context) -> list[Issue]:
    """src/misc/socket.cc (ncclSocketGetAddrFromString): a missing or wordy port is not refused, it is just not set."""
    expected = "<ipv4>:<port>, [<ipv6>]:<port> or <host>:<port>"
    match = re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(?::(.*))?", value)
    if not match or not match.group(1):
        return stops("grammar", "NCCL refuses to start", expected=expected)
    port = match.group(2) or ""
    if not port.isdecimal() or not 0 < decimal(port) < 65536:
        return stops("no-port", "no port that NCCL could use, and it does not say so: ranks do not meet", expected=expected)
    host = match.group(1).strip("[]")
    if (context.nodes or 1) > 1 and (host in ("localhost", "::1") or host.startswith("127.")):
        message = f"every node's own loopback: {context.nodes} nodes do not meet over it"
        return stops("loopback", message, "socket_ifname", "an address of rank 0's node that the others reach")
    if (2, 29, 2) <= context.version <= (2, 29, 7) and not value.startswith("["):
        message = (
            "NCCL 2.29.2 to 2.29.7 takes an interface outside the subnet of this address (matchSubnet is inverted for IPv4)"
        )
        return note("known-bug", message)
    return []


def _cidr(value: str, context: Context) -> list[Issue]:
    try:
        ipaddress.ip_network(value, strict=False)
    except ValueError:
        return harms("grammar", "not a network prefix", expected="for instance 10.0.0.0/8")
    return []


def _bool(value: str, context: Context) -> list[Issue]:
    """Boolean parameters: integers of which 1 acts up to 2.29, then a parser that takes 0, 1, true and false (src/param)."""
    word = value.strip().lower()
    if word in ("0", "1") or (context.version >= TRIMS and word in ("true", "false")):
        return []
    if word in ("false", "off", "no"):
        return note("read-as-zero", "not a number: it counts as 0, which is what it says here; write 0")
    if word.isdecimal():
        return harms("out-of-range", "only 1 acts: this does nothing", expected="0 or 1")
    return harms("read-as-zero", "silently counts as 0", expected="1")


def list_issues(value: str, what: str) -> list[Issue]:
    """What is wrong with any selector list: too short, blanks, a mark where it does not count."""
    if len(value) <= 1:
        return harms("grammar", "one character: NCCL ignores it", expected=what)
    body = value.removeprefix("^").removeprefix("=")
    if any(quote in body for quote in QUOTES):
        expected = value.translate(dict.fromkeys(map(ord, QUOTES)))
        return harms("quoted", "the quotes are part of the value", expected=expected)
    if "\r" in value:
        message = "the carriage return is part of the last name (lines that end in CR LF)"
        return harms("blank", message, expected=re.sub(r"\s+", "", value))
    if any(item != item.strip() for item in body.split(",")):
        return harms(
            "blank", "blanks are part of a name here: what follows one never matches", expected=re.sub(r"\s+", "", value)
        )
    if re.search(r"[;|\s]", body):  # dev_valid_name() refuses blanks, and nobody names a device so
        return harms(
            "separator", "only a comma separates names: this is one", expected=re.sub(r"[;|\s]+", ",", value.partition(" #")[0])
        )
    if any(mark in body for mark in "^="):
        return harms(
            "grammar", "^ and = count once, at the start, and for the whole list; here they are part of a name", expected=what
        )
    return []


def beyond(selector: Selector, there: Collection[str]) -> list[str]:
    """What a list takes although no entry is called so: an entry that is a device itself was not meant as a prefix."""
    meant = {want for want, _ in selector.names if want in there}
    if selector.exact or selector.exclude or not meant:
        return []
    return sorted(
        name
        for name in there
        if name not in meant
        and selector.takes(name)
        and not any(name.startswith(w) for w, _ in selector.names if w not in meant)
    )


def _one_of(names: Collection[str]) -> str:
    return "one of: " + ", ".join(sorted(set(names)))


def _one_to_meet(context: Context) -> str:
    """Of the interfaces those over which several nodes may meet, by name; all where the job has one node, or there is none."""
    there = context.links or ()
    out = [name for name in there if name.partition(":")[0] != "lo" and not name.startswith(INSIDE_NAMES)]
    return _one_of(there if context.nodes == 1 else out or there)


def _ifname(value: str, context: Context) -> list[Issue]:
    issues = list_issues(value, "[^][=]name[,name…]")
    selector = parse(value)
    if issues or selector is None:
        return issues
    wants = [want for want, _ in selector.names]
    if any(re.match(r"(mlx5|mlx4|bnxt_re|irdma|rxe|hfi1|efa|rocep|rdmap)_?\d", want) for want in wants):
        kept = any(selector.takes(link) for link in context.links or ()) or selector.exclude
        said = "an RDMA device, not an interface (ip -br link)"
        return (harms if kept else stops)("wrong-kind", said, "socket_ifname", "interface names")
    if any(re.fullmatch(r"\d+\.\d+\.\d+\.\d+(/\d+)?", want) for want in wants):
        return stops("wrong-kind", "an address, not an interface: it matches none", "socket_ifname", "interface names")
    if selector.exclude:
        return _excluding(selector, wants, context)
    if context.links is not None:
        if not any(selector.takes(link) for link in context.links):
            message = "no interface of this node with an address matches: NCCL stops with 'no socket interface found'"
            return stops("no-match", message, "socket_ifname", _one_to_meet(context))
        if extra := beyond(selector, context.links):
            message = f"names are prefixes: it also takes {', '.join(extra)}"
            if all(re.split(r"[.:@]", name)[0] in wants for name in extra):  # VLANs and labels of what was meant
                return note("prefix", message)
            return harms("prefix", message, "socket_ifname", f"={value}")
    elif not selector.exact and any(want[-1:] in "123456789" for want in wants):
        trap = next(want for want in wants if want[-1:] in "123456789")
        issues = note("prefix", f"names are prefixes: {trap} also takes {trap}0…{trap}9 where there are any; ={value} does not")
    return issues + _of_one_node(wants, context, context.values.get("GLOO_SOCKET_IFNAME", ""))


def _of_one_node(names: list[str], context: Context, other: str) -> list[Issue]:
    """Interfaces over which several nodes do not meet.  `other`: what the other of NCCL and Gloo takes."""
    inside = next((name for name in names if name == "lo" or name.startswith(BRIDGES)), None)
    if inside is None or (context.nodes == 1 and inside != "lo"):
        return []
    what = "the loopback interface" if inside == "lo" else f"{inside}, a bridge,"
    rule = "loopback" if inside == "lo" else "bridge"
    if context.nodes and context.nodes > 1:
        return stops(rule, f"{what} serves one node only: {context.nodes} nodes do not meet over it", "socket_ifname")
    if inside != "lo" and other and not other.startswith(("^", *BRIDGES)):
        words = f"{what} serves one node only, while the others take {other}"
        return harms(rule, words, "socket_ifname", loss=SOMETIMES)
    return note(rule, f"{what} serves one node only")


def _excluding(selector: Selector, wants: list[str], context: Context) -> list[Issue]:
    """A list of one's own replaces NCCL's default exclusion of docker and lo (and virbr from 2.28 on): src/misc/socket.cc."""
    if selector.takes("lo"):
        message = "re-admits lo: a list of one's own replaces the default exclusion, and lo comes first"
        expected = "^lo," + ",".join(w for w in wants if w != "lo")
        loss = STOPS if context.nodes and context.nodes > 1 else SOMETIMES
        return harms("readmits-lo", message, "socket_ifname", expected, loss=loss)
    links = context.links or ()
    if context.links is not None and not any(selector.takes(link) for link in links):
        return stops("no-match", "excludes every interface of this node", "socket_ifname")
    bridges = sorted({link for link in links if link.startswith(BRIDGES) and selector.takes(link)})
    if bridges:
        message = f"re-admits {', '.join(bridges)}: a list of one's own replaces the default exclusion"
        listed = dict.fromkeys(("lo", "docker", "virbr", *wants))
        return harms("readmits-bridge", message, "socket_ifname", "^" + ",".join(listed))
    return []


def _hca(value: str, context: Context) -> list[Issue]:
    issues = list_issues(value, "[^][=]name[:port][,…]") if len(value) > 1 else []  # one character is a prefix, too
    selector = parse_hcas(value, context.version)
    if issues or selector is None:
        return issues
    if selector.exclude and not selector.names:
        return context.without_rdma("no-match", "excludes every RDMA device")
    if not selector.exclude and selector.names and all(port == 0 for _, port in selector.names):
        message = "a port that is no number is port 0, which no device has"
        return context.without_rdma("no-match", message, "[^][=]name[:port][,…]")
    wants = [want for want, _ in selector.names]
    if context.hcas:
        if not any(selector.takes(hca) for hca in context.hcas):
            return context.without_rdma("no-match", "no RDMA device of this node matches", _one_of(context.hcas))
        if extra := beyond(selector, context.hcas):
            return harms("prefix", f"names are prefixes: it also takes {', '.join(extra)}", expected=f"={value}")
        return []
    if context.hcas is not None and not selector.exclude and not context.rdma_unwanted:
        return note("no-device", "no RDMA device is here: NCCL takes TCP sockets")
    network = [w for w in wants if re.match(r"(eth|eno|ens|enp|bond|wl)\d|ib\d+$|lo$", w)]
    if network and not selector.exclude:
        message = f"{network[0]} is an interface, not an RDMA device (ibv_devices), and matches none"
        return context.without_rdma("wrong-kind", message, "RDMA device names, e.g. mlx5_0")
    trap = next((w for w in wants if re.search(r"_[1-9]$", w)), None)
    if trap and not selector.exact and not selector.exclude:
        issues = note("prefix", f"names are prefixes: {trap} also takes {trap}0…{trap}9 where there are any; ={value} does not")
    return issues


def _gloo_ifname(value: str, context: Context) -> list[Issue]:
    """Gloo takes exact names (gloo/transport/tcp): no prefix, no marks."""
    names = value.split(",")
    if any(quote in value for quote in QUOTES):
        return stops("quoted", "the quotes are part of the value: Gloo stops with 'Unable to find address'", "socket_ifname")
    if any(mark in value for mark in "^=") or any(name != name.strip() for name in names):
        message = "Gloo takes exact names: ^, = and blanks are NCCL's grammar or none; it stops with 'Unable to find address'"
        return stops("grammar", message, "socket_ifname", "name[,name…]")
    if any(re.fullmatch(r"[\d.]+", name) for name in names):
        return stops("wrong-kind", "an address, not an interface", "socket_ifname", "interface names")
    missing = [name for name in names if context.links is not None and name and name not in context.links]
    if missing:
        message = f"no interface {missing[0]} with an address on this node; Gloo takes exact names and stops"
        return stops("no-match", message, "socket_ifname", _one_to_meet(context))
    return _of_one_node(names, context, context.values.get("NCCL_SOCKET_IFNAME", ""))


Rule = Callable[[str, Context], list[Issue]]
GRAMMARS: Final[dict[str, Rule]] = {
    "algo": partial(_names, known=ALGORITHMS),
    "proto": partial(_names, known=PROTOCOLS),
    "level": _level,
    "debug": _debug,
    "subsys": _subsys,
    "commid": _commid,
    "cidr": _cidr,
    "bool": _bool,
    "ifname": _ifname,
    "hca": _hca,
    "gloo-ifname": _gloo_ifname,
}

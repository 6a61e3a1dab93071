"""The table of message families, and what is read off a line that is of one."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.log import (
    framework_patterns,
    lessened_patterns,
    library_patterns,
    locale_patterns,
    nccl_patterns,
    program_patterns,
    shell_patterns,
    stack_patterns,
    surroundings_patterns,
    told_patterns,
)
from netdoctor.nccl.log.event_kinds import EventKind
from netdoctor.nccl.log.pattern import Pattern, alternatives

PATTERNS: Final = (
    *(*nccl_patterns.PATTERNS, *program_patterns.PATTERNS, *framework_patterns.PATTERNS, *stack_patterns.PATTERNS),
    *(*shell_patterns.PATTERNS, *lessened_patterns.PATTERNS),
    *(*surroundings_patterns.PATTERNS, *library_patterns.PATTERNS, *locale_patterns.PATTERNS, *told_patterns.PATTERNS),
)


# What a needle begins with, a needle itself -> the numbers of the rows that have a needle so.
_ROWS: Final[dict[bytes, set[int]]] = {}
_ALL: Final = {needle for pattern in PATTERNS for needle in pattern.needles}
for _number, _pattern in enumerate(PATTERNS):
    for _needle in _pattern.needles:
        _begin = next(_needle[:n] for n in range(1, len(_needle) + 1) if _needle[:n] in _ALL)
        _ROWS.setdefault(_begin, set()).add(_number)
_NEEDLES: Final = re.compile(b"(?=(" + alternatives(_ROWS) + b"))")  # they may overlap
# What such a line is, another row may know better; that an exception ended something is said beside it.
_ALONE: Final = frozenset({"trouble", "raised", "fatal"})
# What says nothing of what failed, also in the words of an exception.
ASIDE: Final = frozenset({"meant_cpu", "help", *_ALONE})
# Exceptions that are orders, ends or whole stories themselves.
NOT_RAISED: Final = frozenset({"trouble", "ended", "finished", "exception"})


def matching(text: bytes) -> tuple[Pattern, ...]:
    """The rows whose pattern is in this line."""
    candidates: set[int] = set().union(*(_ROWS[needle] for needle in _NEEDLES.findall(text.lower())))
    found = tuple(p for p in map(PATTERNS.__getitem__, sorted(candidates)) if p.regex.search(text))
    known = {p.kind for p in found} - ASIDE
    if not known:
        return tuple(p for p in found if p.kind != "raised")
    drop = _ALONE if known & NOT_RAISED else _ALONE - {"raised"}
    return tuple(p for p in found if p.kind not in drop)


# Details that stand elsewhere in the same message, or in a line after it.
_DETAILS: Final[dict[EventKind, tuple[bytes, ...]]] = {
    "completion": (
        rb"vendor[_ ]err[ =](?P<vendor>\d+)",
        rb"hca (?P<hca>[\w.\-]+)",
        rb"local ?Gids? ?<?(?P<local>[0-9a-fA-F:.]*::?[0-9a-fA-F:.]*)",
        rb"remote ?Gids? ?<?(?P<remote>[0-9a-fA-F:.]*::?[0-9a-fA-F:.]*)",
        rb"\((?P<side>Send|Recv)\)|req_type=(?P<side2>\w+)",
    ),
    "modify_qp": (
        rb"dev (?P<dev>[\w.\-]+)",
        rb"GID index (?P<index>\d+)",
        rb"local GID (?!index)(?P<local>[^\s,'\"]+)",
        rb"remote GID (?P<remote>[^\s,'\"]+)",
        rb"curr(?:ent)? state (?P<state>\w+)",
    ),
    "async_event": (rb"(?P<dev>[\w.\-]+:\d+) (?:[Gg]ot|async|GID|unknown)",),
    "gloo_connect": (rb"remote=\[?(?P<remote>[^\],\s]+)", rb"local=\[?(?P<local>[^\],\s]+)"),
    "gloo_address": (rb"[Uu]nable to find (?:address|interface) for:? ?\[?(?P<name>[^\]\s]+)",),
    "told": (rb"\bComponent: +(?P<component>\S{1,60})",),  # Open MPI
    "peer_closed": (rb"\bPeer host: +(?P<peer>[\w.\-]+)",),  # Open MPI
    "elastic": (
        rb"\btime +: (?P<time>\d{4}-\d\d-\d\d_\d\d:\d\d:\d\d)",
        rb"\brank +: (?P<rank>\d+)",
        rb"exitcode +: (?P<code>-?\d+)",
        rb"\bhost +: (?P<host>\S+)",
    ),
    "oom": (
        rb"capacity of (?P<total>[\d.]+ \w+)",
        rb"of which (?P<free>[\d.]+ \w+) is free",
        rb"this process has (?P<own>[\d.]+ \w+) memory in use",
        rb"in use\. (?P<allowed>[\d.]+ \w+) allowed;",
    ),
    "stands": (rb"File \"(?P<place>[^\"]{1,300})\", line (?P<at>\d+)(?: in (?P<within>[\w<>.]{1,80}))?",),
    "stood": (rb"File \"(?P<place>[^\"]{1,300})\", line (?P<at>\d+)(?: in (?P<within>[\w<>.]{1,80}))?",),
    "died": (
        rb"stopped sending heartbeats\).{1,60}/task:(?P<task>\d+)",
        rb"process rank (?P<rank>\d+) with PID \d+ on node (?P<host>[\w.\-]+) exited",
        rb"Process name: \[\[.{1,60}Exit code: +(?P<code>[1-9]\d*)",
    ),  # Open MPI
    "blocked": (  # the module of a frame, or the module's mark in the name of a function that is built in
        rb"\[(?P<module>nfs|nfsv\d|sunrpc|lustre|ptlrpc|ceph|libceph|cifs|fuse|xfs|ext4|jbd2|btrfs|beegfs|mmfs\w*)\]",
        rb"\b(?P<module>nfs|rpc_wait|lustre|ptlrpc|ceph|cifs|fuse|xfs|ext4|jbd2|btrfs)_\w+\+0x",
    ),
    "node_failed": (rb"Remote daemon ?: +\S+ on node (?P<host>[\w.\-]+)",),  # Open MPI's and PRRTE's help texts: [node-died]
    "actor_died": (
        rb"\b(?i:ip)(?:[:=] ?| address: ?)\[?(?P<ip>\d[\d.]{6,14}|[\da-f:]{6,39})",
        rb"\b(?:Worker PID|pid)[:=] ?(?P<pid>\d+)",
        rb"\bname: (?P<name>\S{1,80})",
        rb"\bclass_name: (?P<class>\S{1,80})",
    ),
    "nvls_bind": (rb"CUDA error (?P<code>\d+)", rb"'(?P<what>[^']{1,100})'"),
    # what HIP lists below it: the GPUs' targets, and those that the program holds code for (hip_code_object.cpp)
    "too_old": (
        rb"amdhsa--(?P<sm>gfx\w+(?::[\w+\-]+?)*) - \[Not Found\]",
        rb"amdgcn-amd-amdhsa--(?P<built>gfx\w+(?::[\w+\-]+?)*) - \[code object",
    ),
    "barrier": (rb"reached the barrier: (?P<came>\d+)/(?P<n>\d+)",),
    "rdma_error": (rb"\b0{8} 0000[0-9a-f]{2}(?P<synd2>(?!00)[0-9a-f]{2}) [0-9a-f]{8} [0-9a-f]{8}\b",),
    "stalled": (rb"\[missing ranks: ?(?P<missing>\d[\d, ]*)\]", rb"\[ready ranks: ?(?P<ready>\d[\d, ]*)\]"),
    "coordinator": (rb"ipv[46]:(?:%5B|\[)?(?P<peer>[\w.:]+?)(?:%5D|\])?: ", rb"GCS (?:at|address:?) (?P<peer2>[\w.:\-]*\w)"),
    "register": (rb"(?P<errno>Cannot allocate memory|Bad address|Invalid argument|Operation not permitted)",),
    "store": (
        rb"connect(?:ing)? to (?:any network address of )?\(?\[?(?P<peer>[\w.:\-]+)(?:, (?P<port>\d{1,5})\))?",
    ),  # c10d/socket.cpp
}
_COMPILED: Final = {kind: tuple(re.compile(r) for r in regexes) for kind, regexes in _DETAILS.items()}
# Lists of which every member counts, a line each: the words that they stand behind, and a member.
_LISTS: Final[dict[EventKind, tuple[re.Pattern[bytes], re.Pattern[bytes]]]] = {
    # of XLA's coordination service (xla/tsl/distributed_runtime/coordination)
    "barrier": (re.compile(rb"imed out task names:"), re.compile(rb"/task:(\d{1,7})\b")),
    # of Horovod (stall_inspector.cc); horovodrun marks each line
    "stalled": (re.compile(rb"Missing ranks:\s"), re.compile(rb"(?:^|\s|>:)(\d{1,7}): \[")),
}


def listed(kind: EventKind, text: bytes) -> dict[str, str]:
    """The ranks that a message lists as missing, so far."""
    begin, member = _LISTS.get(kind, (None, None))
    if begin is None or member is None or (found := begin.search(text)) is None:
        return {}
    ranks = sorted({int(one) for one in member.findall(text[found.end() - 1 :])})
    return {"missing": ", ".join(map(str, ranks))[:600]} if ranks else {}


def details(kind: EventKind, text: bytes, match: re.Match[bytes] | None) -> dict[str, str]:
    """All named parts of a message that are there; names that end in a digit are alternatives of the name without it."""
    out: dict[str, str] = {}
    more = (regex.search(text) for regex in _COMPILED.get(kind, ()))
    for m in (match, *more):
        for name, value in m.groupdict().items() if m else ():
            if value:
                out.setdefault(name.rstrip("0123456789"), value.decode("utf-8", "replace").strip()[:300])
    return out

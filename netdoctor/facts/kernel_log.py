"""What the kernel's log has since boot: errors of GPUs (Xid) and of NVSwitches (SXid), and the kernel's own.

``xids.tsv`` is NVIDIA's own catalogue, without numbers that it calls unused: kind · number (of SXid also "Fatal" and
"Non-fatal", the word in the line) · what it means · whether it ends the job · what NVIDIA advises first (none, restart, reset,
reboot, support, replace) · whether the driver tells by its recovery action (Xid 154) that it is over, or the NVLinks.  Sources:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html and the Fabric Manager User Guide (SXid).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from netdoctor.facts import tables
from netdoctor.facts.base import Fact
from netdoctor.facts.gpu import Gpus, pci_address
from netdoctor.host.base import Host, mapping, value
from netdoctor.model import Kind, Unavailable, Word, record

_XID: Final = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9A-Fa-f:.]{7,16})[^)]*\): (\d{1,5})\b")
# The target is nvmlDeviceGpuRecoveryAction_t; the words behind it differ between drivers ("Node Reboot Required", "OS Reboot").
_RECOVERY: Final = re.compile(r": 154, GPU recovery action changed from 0x[0-9a-fA-F]{1,8} \([^)]*\) to 0x([0-9a-fA-F]{1,8})\b")
_SXID: Final = re.compile(r"SXid \((?:PCI:)?([0-9A-Fa-f:.]{7,16})\): (\d{1,5}), (Fatal|Non-fatal)")


class Trouble(Word):
    """What the kernel says of itself."""

    HUNG = "hung task"  # name: the task's, with its PID
    LOCKUP = "soft lockup"  # name: the CPU's number
    MEDIUM = "unreadable disk"  # name: the disk's; a sector could not be read
    DEAD = "dead file system"  # name: the device's; nothing can be written any more
    MOUNTED = "mounted file system"  # name: the device's; what was said of it before is over
    UNRECOVERED = "device not recovered"  # name: PCI address of the port above it
    RECOVERED = "device recovered"
    SICK = "adapter's firmware failed"  # name: its PCI address
    CURED = "adapter recovered"
    NEIGHBOURS = "table of neighbours full"  # name: the table's
    CONNECTIONS = "table of connections full"  # of the node; newer kernels name the namespace of another: "full in netns N"
    SILENT = "silent server"  # name: that of an NFS server, whose hard mounts wait
    ANSWERS = "server that answers again"


# Words of the newest kernels and of those of the last years; the sources stand at `SYSTEM` of the helper.
_TROUBLE: Final = (
    (re.compile(r"INFO: task (.{1,32}:\d{1,10}) blocked for more than \d"), Trouble.HUNG),
    (re.compile(r"soft lockup - CPU#(\d{1,6}) stuck for"), Trouble.LOCKUP),
    (re.compile(r"critical medium error, dev ([\w.-]{1,64}), sector \d"), Trouble.MEDIUM),
    (re.compile(r"EXT4-fs \(([\w.-]+)\): Remounting filesystem read-only"), Trouble.DEAD),
    (re.compile(r"XFS \(([\w.-]+)\): .*(?:[Ss]hutting down filesystem|[Ff]ilesystem has been shut down)"), Trouble.DEAD),
    (re.compile(r"BTRFS.* \(device ([\w.-]+)[^)]*\).*forced readonly"), Trouble.DEAD),
    (re.compile(r"EXT4-fs \(([\w.-]+)\): (?:re-)?mounted filesystem"), Trouble.MOUNTED),
    (re.compile(r"XFS \(([\w.-]+)\): Mounting V"), Trouble.MOUNTED),
    (re.compile(r"BTRFS.* \(device ([\w.-]+)[^)]*\).*first mount of filesystem"), Trouble.MOUNTED),
    (re.compile(r"([0-9a-f:.]{12,16}): (?:AER: )?device recovery failed"), Trouble.UNRECOVERED),
    (re.compile(r"([0-9a-f:.]{12,16}): (?:AER: )?device recovery successful"), Trouble.RECOVERED),
    (re.compile(r"mlx5_core ([0-9a-f:.]{12,16}): .*(?:health compromised|firmware internal error)"), Trouble.SICK),
    (re.compile(r"mlx5_core ([0-9a-f:.]{12,16}): .*health recovery succeeded"), Trouble.CURED),
    (re.compile(r"(arp_cache|ndisc_cache): neighbor table overflow"), Trouble.NEIGHBOURS),
    (re.compile(r"(nf_conntrack): table full, dropping packet"), Trouble.CONNECTIONS),
    (re.compile(r"nfs: server (\S{1,255}) not responding, still trying"), Trouble.SILENT),
    (re.compile(r"nfs: server (\S{1,255}) OK$"), Trouble.ANSWERS),
)
_SICK: Final = frozenset({Kind.TIMED_OUT, Kind.FAILED, Kind.CRASHED})  # NVML's answer: there is a driver, and something ails it
_ENDS: Final = {
    Trouble.MOUNTED: Trouble.DEAD,
    Trouble.RECOVERED: Trouble.UNRECOVERED,
    Trouble.CURED: Trouble.SICK,
    Trouble.ANSWERS: Trouble.SILENT,
}


class Action(Word):
    """What NVIDIA advises first; in this order of weight."""

    NONE = "none"
    RESTART = "restart"  # of the program
    RESET = "reset"  # of the GPU
    REBOOT = "reboot"  # of the node
    SUPPORT = "support"  # drain the node, ask the vendor
    REPLACE = "replace"


LOOK_AT_LOG: Final = "dmesg, as root on the node"  # how to find out what could not be read of it
WHOLE_LOG: Final = "journalctl -k -b, as root on the node"  # and where the kernel no longer has it


@record
class Meaning:
    """A row of the catalogue."""

    text: str
    ends_job: bool
    action: Action
    told: bool  # nvmlDeviceGpuRecoveryAction_t says whether it is still to be done
    by_links: bool  # the state of the NVLinks does


@record
class XidEvent:
    """One line."""

    switch: bool  # of an NVSwitch
    number: int
    place: str  # PCI address
    fatal: bool  # the line itself says so (SXid)
    second: float  # since boot
    recovery: int | None = None  # what the GPU waits for from now on, where the line tells that (Xid 154); 0: nothing

    @property
    def meaning(self) -> Meaning:
        if not self.switch:
            return catalogue().get(("xid", str(self.number)), UNLISTED)
        known = catalogue().get(("sxid", str(self.number)))
        return known or catalogue()["sxid", "Fatal" if self.fatal else "Non-fatal"]

    @property
    def title(self) -> str:
        return f"{'SXid' if self.switch else 'Xid'} {self.number} ({self.meaning.text})"


@record
class SystemEvent:
    """The last that the log says of one thing, in one way."""

    what: Trouble
    name: str
    second: float  # since boot
    times: int = 1


UNLISTED: Final = Meaning("not in NVIDIA's catalogue", False, Action.NONE, False, False)


@record
class KernelLog(Fact):
    """The errors that the kernel and the GPU driver logged since boot.

    `begun` False: the log no longer reaches back to it.
    """

    events: tuple[XidEvent, ...] | Unavailable
    begun: bool | Unavailable
    system: tuple[SystemEvent, ...] | Unavailable = Unavailable(Kind.NOT_READ, "no line of the kernel was asked for")
    source: str = ""


@lru_cache(maxsize=1)
def catalogue() -> Mapping[tuple[str, str], Meaning]:
    _, *rows = tables.rows(__package__, "xids.tsv")
    return {
        (kind, number): Meaning(what, ends == "yes", Action(act), told == "yes", told == "links")
        for kind, number, what, ends, act, told in rows
    }


def probe(host: Host, gpus: Gpus) -> KernelLog | Unavailable:
    """The driver's lines count only where NVML shows GPUs, or does not answer: without a driver nobody writes them."""
    got = mapping(host, "ask:kmsg")
    if isinstance(got, Unavailable):
        return got
    lines: list[Any] | Unavailable = value(got.get("events"), list, "lines of the kernel's log")
    if isinstance(lines, Unavailable):
        return lines
    found: tuple[XidEvent, ...] | Unavailable = tuple(event for one in lines if (event := parsed(one)) is not None)
    if not gpus.all and not (isinstance(gpus.all, Unavailable) and gpus.all.kind in _SICK):
        found = Unavailable(Kind.NOT_READ, "no GPU of which it would tell")
    own: list[Any] | Unavailable = value(got.get("system"), list, "lines of the kernel")
    system = own if isinstance(own, Unavailable) else troubles(own)
    begun = value(got.get("complete"), bool, "whether the log is whole")
    whole = begun and not got.get("left_out")  # of very many lines the helper tells the newest
    return KernelLog(found, whole if begun else begun, system, str(got.get("source", "")))


def troubles(lines: list[Any]) -> tuple[SystemEvent, ...]:
    """What still holds at the end of these lines: a file system that was mounted again, a device that recovered, are well."""
    found: dict[tuple[Trouble, str], SystemEvent] = {}
    for line in lines:
        if not isinstance(line, list) or len(line) != 2 or not isinstance(line[0], int | float) or not isinstance(line[1], str):
            continue
        said = ((match, what) for pattern, what in _TROUBLE if (match := pattern.search(line[1])))
        match, what = next(said, (None, None))
        if match is None or what is None:
            continue
        if what in _ENDS:
            found.pop((_ENDS[what], match[1]), None)
            continue
        before = found.pop((what, match[1]), None)  # the newest last
        found[what, match[1]] = SystemEvent(what, match[1], float(line[0]), before.times + 1 if before else 1)
    return tuple(found.values())


def parsed(one: object) -> XidEvent | None:
    """A line of the helper's answer; None: it is of no error (an SXid is followed by lines of its data)."""
    if not isinstance(one, list) or len(one) != 2 or not isinstance(one[0], int | float) or not isinstance(one[1], str):
        return None
    for pattern, switch in ((_XID, False), (_SXID, True)):
        if match := pattern.search(one[1]):
            place = pci_address(match[1] if "." in match[1] else f"{match[1]}.0")
            if isinstance(place, str):
                said = None if switch else _RECOVERY.search(one[1])
                fatal = switch and match[3] == "Fatal"
                return XidEvent(switch, int(match[2]), place, fatal, float(one[0]), int(said[1], 16) if said else None)
    return None

"""The kernel's log: what NVIDIA's driver says of errors (Xid, SXid), and the kernel of its own, since boot.

/dev/kmsg holds what did not fall out of the ring buffer; where its beginning did, or it may not be read, the journal is asked.
Programs may write there, too: their lines have another facility than the kernel's (devkmsg_write, kernel/printk/printk.c).

Answer: {"source", "complete": from the boot on, "events": [[SECOND, TEXT]] of the driver, "system": of the kernel,
"left_out": number}
"""

from __future__ import annotations

import errno
import os

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any

MAX_EVENTS = 200  # of each kind, the newest
WORDS = ("NVRM: Xid", "SXid (")
# kernel/hung_task.c, kernel/watchdog.c, drivers/pci/pcie/err.c, mlx5/core/health.c; block/blk-core.c, blk_errors; what ends a
# file system and what mounts it again: fs/ext4/super.c, fs/xfs/xfs_fsops.c, fs/btrfs/messages.c and disk-io.c.
SYSTEM = (
    " blocked for more than ",
    "soft lockup - CPU#",
    "device recovery ",
    "critical medium error",
    "health compromised",
    "firmware internal error",
    "health recovery succeeded",
    "Remounting filesystem read-only",
    "hutting down filesystem",
    "ilesystem has been shut down",
    "forced readonly",
    "mounted filesystem",
    ": Mounting V",
    "first mount of filesystem",
    "neighbor table overflow",  # net/core/neighbour.c, neigh_alloc
    "nf_conntrack: table full, dropping packet",  # net/netfilter/nf_conntrack_core.c, __nf_conntrack_alloc
    "nfs: server ",  # net/sunrpc/clnt.c, rpc_check_timeout and call_decode: each of both at most ten times in five seconds
)
KERNEL = 0  # LOG_KERN of <syslog.h>: PRIORITY is 8 times the facility, and the level
# The kernel's first line: where the journal has it, it reaches back to the boot.
FIRST = "Linux version"
JOURNAL = ("/usr/bin/journalctl", "/bin/journalctl")


def answer(parameters: dict[str, str]) -> object:
    own = kmsg()
    if own.get("complete"):
        return own
    other = journal()
    if "unavailable" not in other and (other["complete"] or "unavailable" in own):
        return other
    return own


def kmsg() -> dict[str, Any]:
    """Records are "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS[,…];TEXT" (Documentation/ABI/testing/dev-kmsg)."""
    try:
        fd = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return unavailable(error)
    found: list[list[Any]] = []
    first = None
    while True:
        try:
            record = os.read(fd, 8192)
        except BlockingIOError:
            break
        except BrokenPipeError:  # EPIPE: the record was overwritten meanwhile; the next read is of the oldest that is left
            first = -1
            continue
        except OSError as error:
            return unavailable(error)
        if not record:
            break
        if first is None:
            first = int(record.split(b",", 2)[1])
        if event := event_of(record):
            found.append(event)
    return reply("/dev/kmsg", first == 0, found)


def event_of(record: bytes) -> list[Any] | None:
    """[SECOND, TEXT] of a record in which the kernel itself tells of an error."""
    head, _, text = record.partition(b";")
    priority, _, microseconds = map(int, head.split(b",")[:3])
    line = text.partition(b"\n")[0].decode("utf-8", "replace")
    if priority >> 3 != KERNEL or not any(word in line for word in (*WORDS, *SYSTEM)):
        return None
    return [microseconds / 1e6, line]


def journal() -> dict[str, Any]:
    import subprocess

    program = next((path for path in JOURNAL if os.access(path, os.X_OK)), None)
    if program is None:
        return {"unavailable": "absent", "detail": "no journalctl"}
    # journald keeps a record's facility (src/journal/journald-kmsg.c).
    options = ["-k", "-b", f"SYSLOG_FACILITY={KERNEL}", "--no-pager", "-q", "-o", "short-monotonic"]
    command = [program, *options, "--grep", "|".join([FIRST, *WORDS, *SYSTEM]).replace("(", "\\(")]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=4, check=False)
        lines = done.stdout.decode("utf-8", "replace").splitlines()
        if not lines:  # nothing is found, or nothing may be read
            some = subprocess.run(
                [program, *options, "-n", "1"], stdin=subprocess.DEVNULL, capture_output=True, timeout=2, check=False
            )
            if not some.stdout.strip():
                return {"unavailable": "denied", "detail": "the journal shows this user no line of the kernel"}
    except (OSError, subprocess.SubprocessError) as error:
        return {"unavailable": "failed", "detail": f"journalctl: {error}"}
    events = []
    for line in lines:
        stamp, _, text = line.partition("] ")
        if FIRST not in text:
            number = stamp.strip("[ ").split(".")
            events.append([int(number[0]) if number[0].isdecimal() else 0, text.partition("kernel: ")[2] or text])
    return reply("journal", any(FIRST in line for line in lines), events)


def reply(source: str, complete: bool, events: list[Any]) -> dict[str, Any]:
    driver = latest([event for event in events if any(word in event[1] for word in WORDS)])
    system = [event for event in events if not any(word in event[1] for word in WORDS)]
    kept, own = driver[-MAX_EVENTS:], system[-MAX_EVENTS:]
    left = len(driver) + len(system) - len(kept) - len(own)
    return {"source": source, "complete": complete, "events": kept, "system": own, "left_out": left}


def latest(events: list[list[Any]]) -> list[list[Any]]:
    """Of one number of one device the newest line: a program's fault, told a thousand times, hides no error of the hardware."""
    found: dict[tuple[str, ...], list[Any]] = {}
    for event in events:
        head, _, rest = event[1].partition("): ")
        number, _, more = rest.partition(",")
        key = head, number, more.split(",")[0].strip() if "SXid (" in head else ""  # "Fatal", "Non-fatal", or data
        found.pop(key, None)
        found[key] = event
    return list(found.values())


def unavailable(error: OSError) -> dict[str, Any]:
    kinds = {errno.ENOENT: "absent", errno.EACCES: "denied", errno.EPERM: "denied"}
    return {"unavailable": kinds.get(error.errno or 0, "failed"), "detail": f"/dev/kmsg: {os.strerror(error.errno or 0)}"}

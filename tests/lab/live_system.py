"""Live faults of the node's own kernel, memory and file systems, as data (tests/lab/row.py)."""

from __future__ import annotations

from typing import Final

from tests.lab.row import DCGM, FOLDERS, SHM, SYSTEM, Row
from tests.support.namespaces.dgx import Scene

ERROR, STORAGE = "fail node_error", "fail node_storage"
HOME: Final = {"HOME": "/mnt"}
# Folders that exist here and in the scene, to be laid over.
FULL = "mount -t tmpfs -o size=64k none {0}; head -c 1m /dev/zero > {0}/all 2>/dev/null || true"
READ_ONLY = "mount -t tmpfs -o ro none {0}"
MEMORY = "mkdir -p devices/system/edac/mc/mc{0}; echo {1} > devices/system/edac/mc/mc{0}/ue_count"
# A loop device's ext4, ended as the kernel ends one after an error: EXT4_IOC_SHUTDOWN of fs/ext4/ext4.h, without a flush.
ENDED = """truncate -s 8M /dev/shm/disk; mkfs.ext4 -q /dev/shm/disk; mount -o loop /dev/shm/disk /var/tmp
python3 -c 'import fcntl, os, struct
fcntl.ioctl(os.open("/var/tmp", os.O_RDONLY), 0x8004587D, struct.pack("I", 2))'"""


def _set(file: str, shell: str) -> str:
    """What a file of the kernel says, by another that is laid over it."""
    return f"({shell}) > /dev/shm/said; cp /dev/shm/said /dev/shm/over; mount --bind /dev/shm/over {file}"


def _said(text: str, ago: int = 0) -> str:
    """A kernel's log of one record, of so many seconds ago: /dev is the scene's."""
    now = f"$(($(cut -d. -f1 /proc/uptime) - {ago}))000000"
    return f'echo "4,0,{now},-;{text}" > kmsg'


CONNECTIONS: Final = "nf_conntrack: table full, dropping packet"  # behind the module's name


def _row(fault: str, told: str, setup: str = "", dev: str = "", sys: str = "", needs: tuple[str, ...] = ()) -> Row:
    base = Scene(dev=_said("Linux version 6.8.0")) if dev else Scene()  # this machine's own log may have lost its beginning
    return Row(fault, Scene(setup=setup, dev=dev, sys=sys), {SYSTEM: told} if told else {}, base=base, needs=needs)


def _writes(fault: str, told: str, setup: str = "", path: str = "/mnt", needs: tuple[str, ...] = (), **also: str) -> Row:
    """The job writes `path`, by the configuration."""
    base, config = (f"{{job: {{nodes: 2, paths: [{one}]}}, expected: {{gpus: 8, hcas: 8}}}}" for one in ("/mnt", path))
    expected = {FOLDERS: told} if told else {}
    return Row(fault, Scene(setup=setup, config=config), expected, also, Scene(config=base), needs)


HEALTHY = '{"body": {"Overall Health": {"value": "Healthy"}}}'
FOUND = """{"body": {"Overall Health": {"value": "Failure"}, "GPU": {"children": {"3": {"value": "Failure", "children":
{"Errors": {"children": {"%s system": {"value": "%s", "overflow": ["it says so"]}}}}}}}}}"""


def _dcgm(fault: str, told: str, text: str) -> Row:
    """A stand-in for dcgmi, beside what is in /usr/bin."""
    each = (
        f"mkdir /dev/shm/dcgm; printf '#!/bin/sh\\n%s\\n' '{one}' > /dev/shm/dcgm/dcgmi; chmod +x /dev/shm/dcgm/dcgmi\n"
        "mount -t overlay -o lowerdir=/dev/shm/dcgm:/usr/bin none /usr/bin"
        for one in (f'echo "{quoted(HEALTHY)}"', text)
    )
    base, setup = each
    return Row(fault, Scene(setup=setup), {DCGM: told} if told else {}, base=Scene(setup=base), needs=("overlay",))


def quoted(text: str) -> str:
    return text.replace('"', '\\"').replace("\n", " ")


SYSTEM_ROWS: Final = (
    *(
        Row(
            f"/dev/shm that {what}, and whose figures are fine",
            Scene(setup=setup, env={"NCCL_RUNTIME_CONNECT": "0"}),
            {SHM: "fail shm_disabled_or_small"},
            base=Scene(env={"NCCL_RUNTIME_CONNECT": "0"}),
        )
        for what, setup in (
            ("holds two files", "mount -t tmpfs -o nr_inodes=2 shm /dev/shm"),
            ("is for reading only", "mount -o remount,bind,ro /dev/shm"),
        )
    ),
    *(
        _dcgm(f"DCGM's watch of the {system} says {health}", told, f'echo "{quoted(FOUND % (system, health))}"')
        for system, health, told in (
            ("Memory", "Failure", "fail gpu_memory"),
            ("SM", "Failure", "fail gpu_error"),
            ("Thermal", "Failure", "fail gpu_slow"),
            ("PCIe", "Failure", "fail link_degraded"),
            ("NVLINK", "Failure", "unknown"),
        )
    ),
    _dcgm("DCGM's daemon does not answer", "unknown", "exec sleep 60"),
    _writes("the checkpoints' file system is full", STORAGE, FULL.format("/mnt")),
    _writes("the checkpoints' file system has no inode left", STORAGE, "mount -t tmpfs -o nr_inodes=1 none /mnt"),
    _writes("the checkpoints' file system is for reading only", STORAGE, READ_ONLY.format("/mnt")),
    _writes("a file is where the checkpoints' folder should be", STORAGE, path="/etc/hostname"),
    _writes(
        "the checkpoints' file system was shut down",
        STORAGE,
        ENDED.replace("/var/tmp", "/mnt"),
        needs=("mkfs.ext4", "loop devices"),
        **{SYSTEM: "it is mounted still"},
    ),
    _writes("the checkpoints' file system is well", "", "mount -t tmpfs none /mnt"),
    _row("/tmp is a full tmpfs", STORAGE, FULL.format("/tmp")),
    _row("/var/tmp has no inode left", STORAGE, "mount -t tmpfs -o nr_inodes=1 none /var/tmp"),
    Row("the home is full", Scene(env=HOME, setup=FULL.format("/mnt")), {SYSTEM: STORAGE}, base=Scene(env=HOME)),
    _row(
        "no folder for temporary files can be written",
        STORAGE,
        "; ".join((*(READ_ONLY.format(folder) for folder in ("/tmp", "/var/tmp")), FULL.format("/mnt"), "cd /mnt")),
    ),
    _row("a file system that was shut down", STORAGE, ENDED, needs=("mkfs.ext4", "loop devices")),
    _row("a kernel that had an oops", ERROR, _set("/proc/sys/kernel/tainted", "echo 128")),
    _row("a kernel that had a bad page and a machine check", ERROR, _set("/proc/sys/kernel/tainted", "echo 12337")),
    _row("uncorrected errors of memory", ERROR, sys="; ".join((MEMORY.format(0, 0), MEMORY.format(1, 3)))),
    _row("a CPU that is stuck", ERROR, dev=_said("watchdog: BUG: soft lockup - CPU#1 stuck for 48s! [a:7]")),
    _row("a GPU's link that did not recover", ERROR, dev=_said("pcieport 0000:1b:00.0: AER: device recovery failed", 9)),
    _row("a full table of connections", "fail firewall_connect", dev=_said(f"nf_conntrack: {CONNECTIONS}", 60)),
    _row("a table of connections that was full hours ago", "", dev=_said(f"nf_conntrack: {CONNECTIONS}", 7200)),
    _row("a full table of another namespace", "", dev=_said("nf_conntrack: table full in netns 4026532, dropping packet", 60)),
    # What is history, by design or of others harms nothing.
    _row("a CPU that was stuck an hour ago", "", dev=_said("watchdog: BUG: soft lockup - CPU#1 stuck for 48s! [a:7]", 3600)),
    _row("a task that was blocked and ended", "", dev=_said("INFO: task a:4194000 blocked for more than 122 seconds.", 900)),
    _row("a link that recovered", "", dev=_said("pcieport 0000:1b:00.0: AER: device recovery successful", 9)),
    _row("a /tmp for reading only beside a /var/tmp", "", READ_ONLY.format("/tmp")),
    Row("a home for reading only", Scene(env=HOME, setup=READ_ONLY.format("/mnt")), base=Scene(env=HOME)),
    _row("modules from outside and a warning", "", _set("/proc/sys/kernel/tainted", "echo 45569")),
    Row("memory without an error", Scene(sys=MEMORY.format(0, 0)), also={SYSTEM: "somebody counts them"}),
)

"""node.system: what of the kernel, memory and file systems stops a job, and what is history or a site's choice."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from netdoctor.checks.node_system import node_system
from netdoctor.facts.kernel_log import KernelLog, SystemEvent, Trouble, troubles
from netdoctor.facts.system import System
from netdoctor.host.base import Answer, unavailable
from netdoctor.host.helpers.kmsg import event_of
from netdoctor.host.live import LiveHost
from netdoctor.model import Finding, Kind, Severity, Status, Unavailable
from tests.lab import fixtures
from tests.support import facts as f
from tests.support.machines import composed

PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN
EDAC = "/sys/devices/system/edac/mc"
HUNG = "INFO: task nvidia-smi:4711 blocked for more than 120 seconds."
LOCKUP = "watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [python:99]"
XFS = "XFS (md0): log I/O error -5", "XFS (md0): Filesystem has been shut down due to log error (0x2)."
EXT4 = "EXT4-fs error (device md0): ext4_find_entry:1455: inode #2", "EXT4-fs (md0): Remounting filesystem read-only"
MEDIUM = "critical medium error, dev {}, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2"
ROOT = "24 1 9:0 / / rw,relatime - ext4 /dev/md0 rw"


def said(
    files: dict[str, str | None] | None = None,
    rooms: dict[str, Any] | None = None,
    log: tuple[str, ...] | Unavailable = (),
    machine: str = "dgx-h100",
    **changes: Any,
) -> dict[str, Finding]:
    """Findings by subject.  A file of None is denied; a room is an errno, or why it could not be asked."""
    told = {f"host.{name}": value for name, value in changes.items()}
    made = composed.Composed(machine, told if isinstance(log, Unavailable) else {**told, "host.kmsg": list(log)})
    for path, text in (files or {}).items():
        made.files.write(path, text or "")
        if text is None:
            made.files.errors[path] = unavailable(OSError(errno.EACCES, ""))
    answers: dict[str, Answer] = made.host.answers
    for path, number in (rooms or {}).items():
        answers[f"room:{path}"] = f.room(number) if isinstance(number, int) else number
    if isinstance(log, Unavailable):
        answers["ask:kmsg"] = log
    return {one.subject: one for one in made.judged("node.system")}


def test_a_healthy_node_passes() -> None:
    found = said()
    assert {name: one.status for name, one in found.items()} == dict.fromkeys(("kernel", "temporary files", "kernel log"), PASS)


# Documentation/admin-guide/tainted-kernels.rst: P and O (nvidia, MOFED), E, K (livepatch), W, C, X, T; then D, B, M, and L.
@pytest.mark.parametrize(
    ("bits", "status"),
    [(0, PASS), (12289, PASS), (45057, PASS), (512 | 1024 | 65536, PASS), (1 << 14, PASS), (128, FAIL), (32, FAIL), (16, FAIL)],
)
def test_taints(bits: int, status: Status) -> None:
    found = said({"/proc/sys/kernel/tainted": f"{bits}\n"})["kernel"]
    assert found.status is status
    assert status is PASS or found.severity is Severity.WARNING or (found.loss and found.loss.severity is Severity.WARNING)


def test_a_taint_that_cannot_be_read_is_unknown() -> None:
    assert said({"/proc/sys/kernel/tainted": None})["kernel"].status is UNKNOWN


@pytest.mark.parametrize(
    ("counts", "status"), [(("0", "0"), PASS), (("0", "2"), FAIL), (("0", None), UNKNOWN), ((None, "1"), FAIL), ((), None)]
)
def test_errors_of_memory(counts: tuple[str | None, ...], status: Status | None) -> None:
    found = said({f"{EDAC}/mc{n}/ue_count": count and f"{count}\n" for n, count in enumerate(counts)})
    assert (found["memory"].status if "memory" in found else None) is status


@pytest.mark.parametrize(
    ("rooms", "failed", "temporary"),
    [
        ({"/tmp": errno.ENOSPC}, {"/tmp"}, None),
        ({"/tmp": errno.EIO}, {"/tmp"}, None),
        ({"/home/ada": errno.EDQUOT}, {"HOME"}, None),
        ({"/tmp": errno.EROFS}, set(), PASS),
        ({"/home/ada": errno.EROFS, "/proc/self/cwd": errno.EACCES}, set(), PASS),
        ({"/tmp": Unavailable(Kind.ABSENT)}, set(), PASS),
        ({"/tmp": Unavailable(Kind.TIMED_OUT)}, set(), UNKNOWN),
        ({"/tmp": Unavailable(Kind.TIMED_OUT), "/var/tmp": errno.ENOSPC}, {"/var/tmp"}, UNKNOWN),
        (
            {"/tmp": errno.EROFS, "/var/tmp": errno.EACCES, "/proc/self/cwd": errno.ENOSPC},
            {"temporary files", "the working folder"},
            FAIL,
        ),
        ({"/tmp": errno.EROFS, "/var/tmp": Unavailable(Kind.ABSENT), "/proc/self/cwd": errno.EROFS}, set(), UNKNOWN),
    ],
)
def test_where_a_job_writes(rooms: dict[str, Any], failed: set[str], temporary: Status | None) -> None:
    found = said(rooms=rooms)
    assert {name for name, one in found.items() if one.status is FAIL} == failed
    assert (found["temporary files"].status if "temporary files" in found else None) is temporary
    assert all(found[name].cause == "node_storage" for name in failed)


@pytest.mark.parametrize(("uid", "failed"), [(0, {"/tmp"}), (1000, set())])
def test_what_is_kept_back_for_root_is_no_room_for_others(uid: int, failed: set[str]) -> None:
    """Another user's own try counts more than figures."""
    kept = {"/tmp": {"errno": 0, "name": "", "tried": True, "size": 1 << 30, "free": 0}}
    assert {name for name, one in said(rooms=kept, uid=uid).items() if one.status is FAIL} == failed


def test_a_variable_comes_before_tmp() -> None:
    given = {"TMPDIR": "/scratch/ada"}
    mended = said(environment=given, rooms={"/scratch/ada": 0, "/tmp": errno.ENOSPC})
    assert "/tmp" not in mended and mended["temporary files"].status is PASS
    assert mended["temporary files"].notes == ("/tmp is full: what does not ask for TMPDIR still writes there",)
    assert said(environment=given, rooms={"/scratch/ada": errno.ENOSPC, "/tmp": errno.ENOSPC})["/tmp"].status is FAIL
    assert said(environment=given, rooms={"/scratch/ada": 0, "/tmp": errno.EIO})["/tmp"].status is FAIL  # a disk that dies
    found = said(environment={"TMPDIR": "/scratch/ada"}, rooms={"/scratch/ada": 0, "/tmp": errno.EROFS})
    assert found["temporary files"].message == "files can be written: TMPDIR, /var/tmp, the working folder"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (unavailable(OSError(errno.ENOENT, "")), "is not there"),
        (errno.ENOTDIR, "is no folder"),
        (errno.EROFS, "is for reading only"),
    ],
)
def test_a_variable_that_names_no_folder_to_write_is_a_note(answer: Any, why: str) -> None:
    """It is another node's, or of the container's host; Python goes on to the next, so the job may be well."""
    found = said(environment={"TMPDIR": "/gone"}, rooms={"/gone": answer})["temporary files"]
    assert found.status is PASS
    assert found.notes == (f"the folder that TMPDIR names {why}: Python takes /tmp, mktemp(1) takes no other and ends",)
    assert not said(environment={"TMPDIR": "/x"}, rooms={"/x": 0})["temporary files"].notes


def test_outside_of_the_job_what_is_well_says_nothing_of_it() -> None:
    outside = {"uid": 0, "environment": {}}
    assert said(**outside)["temporary files"].status is UNKNOWN
    found = said(rooms={"/tmp": errno.ENOSPC, "/var/tmp": errno.ENOSPC}, **outside)
    assert [one.status for name, one in found.items() if "tmp" in name] == [FAIL, FAIL]


@pytest.mark.parametrize("log", [XFS, EXT4])
def test_a_file_system_that_the_kernel_gave_up(log: tuple[str, ...]) -> None:
    found = said(log=log)["file systems: md0"]
    assert (found.status, found.cause) == (FAIL, "node_storage")
    assert "mounted on /" in found.message


@pytest.mark.parametrize(
    "log",
    [
        (*XFS, "XFS (md0): Mounting V5 Filesystem 0a1b"),
        (*EXT4, "EXT4-fs (md0): mounted filesystem 0a1b r/w with ordered data mode."),
        tuple(line.replace("md0", "sdq1") for line in XFS),  # of a disk that is gone
        ("EXT4-fs (md0): re-mounted 0a1b r/w.",),
    ],
)
def test_one_that_was_mounted_again_or_is_gone_is_history(log: tuple[str, ...]) -> None:
    assert {one.status for one in said(log=log).values()} == {PASS}


@pytest.mark.parametrize(
    ("stat", "status"),
    [
        ("4711 (nvidia-smi) D 1", FAIL),
        ("4711 (nvidia-smi) S 1", PASS),
        ("4711 (bash) D 1", PASS),  # another took its number
        (None, UNKNOWN),
        ("", PASS),
    ],
)
def test_a_task_that_was_blocked(stat: str | None, status: Status) -> None:
    files = {} if stat == "" else {"/proc/4711/stat": stat}
    found = said(files, log=(HUNG,))
    assert found["tasks" if status is FAIL else "kernel log"].status is status


@pytest.mark.parametrize(
    ("warnings", "timeout", "uptime", "status"),
    [
        ("9\n", "120\n", "400.0 9\n", FAIL),  # composed at second 60
        ("9\n", "120\n", "430.0 9\n", PASS),  # it would have been told again
        ("-1\n", "120\n", "430.0 9\n", PASS),
        ("0\n", "120\n", "430.0 9\n", FAIL),  # nothing is told any more
        ("9\n", "0\n", "430.0 9\n", FAIL),  # nobody looks any more
        ("9\n", "3600\n", "9000.0 9\n", FAIL),
        (None, "120\n", "430.0 9\n", FAIL),
    ],
)
def test_a_task_of_which_the_kernel_tells_no_more(warnings: str | None, timeout: str, uptime: str, status: Status) -> None:
    kernel = {f"/proc/sys/kernel/hung_task_{name}": text for name, text in (("warnings", warnings), ("timeout_secs", timeout))}
    found = said({"/proc/4711/stat": "4711 (nvidia-smi) D 1 1", "/proc/uptime": uptime, **kernel}, log=(HUNG,))
    assert found["tasks" if status is FAIL else "kernel log"].status is status


def test_in_a_container_the_numbers_of_the_log_are_not_ours() -> None:
    assert said(log=(HUNG,), machine="pod-with-devices")["kernel log"].status is UNKNOWN


@pytest.mark.parametrize(("uptime", "status"), [("80.00 9\n", FAIL), ("119.0 9\n", FAIL), ("120.0 9\n", PASS), (None, UNKNOWN)])
def test_a_cpu_that_is_stuck_now(uptime: str | None, status: Status) -> None:
    found = said({"/proc/uptime": uptime}, log=(LOCKUP,))  # composed at second 60
    assert found["CPU 3" if status is FAIL else "kernel log"].status is status


FULL_TABLE = "nf_conntrack: nf_conntrack: table full{}, dropping packet"


@pytest.mark.parametrize(
    ("uptime", "netns", "status"),
    [
        ("61.00 9\n", "", FAIL),
        ("3659.0 9\n", "", FAIL),
        ("3660.0 9\n", "", PASS),  # it may be mended since
        ("61.00 9\n", " in netns 4026532", PASS),  # another's
        (None, "", UNKNOWN),
    ],
)
def test_a_table_of_connections_that_is_full(uptime: str | None, netns: str, status: Status) -> None:
    found = said({"/proc/uptime": uptime}, log=(FULL_TABLE.format(netns),))  # composed at second 60
    assert found["connections" if status is FAIL else "kernel log"].status is status


def test_links_that_did_not_recover() -> None:
    failed = "pcieport {}: AER: device recovery failed"
    assert said(log=(failed.format("0000:1b:00.0"),))["PCI 0000:1b:00.0"].status is FAIL
    other = said(
        log=(
            failed.format("0000:ff:1c.0"),
            failed.format("0000:1b:00.0"),
            "pcieport 0000:1b:00.0: AER: device recovery successful",
        )
    )
    assert {one.status for one in other.values()} == {PASS}


def test_an_adapter_whose_firmware_failed() -> None:
    failed = "mlx5_core 0000:18:00.0: print_health_info:431:(pid 0): synd 0x1: firmware internal error"
    assert said(log=(failed,))["PCI 0000:18:00.0"].status is FAIL
    cured = "mlx5_core 0000:18:00.0: mlx5_health_try_recover:335:(pid 9): health recovery succeeded"
    assert {one.status for one in said(log=(failed, cured)).values()} == {PASS}


@pytest.mark.parametrize("machine", ["dgx-h100", "cpu-node"])
def test_a_log_that_may_not_be_read_is_unknown(machine: str) -> None:
    assert said(log=Unavailable(Kind.DENIED), machine=machine)["kernel log"].status is UNKNOWN
    assert said(machine=machine)["kernel log"].status is PASS


def test_of_a_node_without_gpus_the_driver_is_not_asked() -> None:
    made = composed.Composed("cpu-node", {"host.kmsg": ["NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", LOCKUP]})
    log = fixtures.facts_of(made.snapshot())["KernelLog"]
    assert isinstance(log.events, Unavailable) and log.events.kind is Kind.NOT_READ and len(log.system) == 1
    assert {one.status for one in made.judged("gpu.health")} == {Status.SKIP}


@pytest.mark.parametrize(
    ("line", "subject"),
    [
        (LOCKUP, "CPU 3"),
        (HUNG, "tasks"),
        (XFS[1], "file systems: md0"),
        (EXT4[1], "file systems: md0"),
        (MEDIUM.format("nvme3n1"), "file systems: nvme3n1p2"),
    ],
)
def test_of_a_node_without_gpus_the_kernel_is(line: str, subject: str) -> None:
    files: dict[str, str | None] = {
        "/proc/4711/stat": "4711 (nvidia-smi) D 1",
        "/proc/uptime": "80.00 9\n",
        "/proc/self/mountinfo": f"{ROOT}\n31 24 259:1 / /data rw - ext4 /dev/nvme3n1p2 rw\n",
    }
    found = said(files, log=(line,), machine="cpu-node")
    assert {name for name, one in found.items() if one.status is FAIL} == {subject}


@pytest.mark.parametrize(
    ("log", "device", "failed"),
    [
        ((MEDIUM.format("nvme3n1"),), "nvme3n1p2", True),
        ((f"blk_update_request: {MEDIUM.format('sda')}",), "sda1", True),  # until Linux 5.17
        ((MEDIUM.format("sdb"),), "sdb", True),  # without partitions
        ((MEDIUM.format("nvme3n1"),), "nvme3n10p1", False),  # another
        ((MEDIUM.format("sda"),), "sdab1", False),
        ((MEDIUM.format("sda"),), "md0", False),  # RAID reads the other half, and writes the sector anew
        ((MEDIUM.format("sr0"),), "sda1", False),  # a scratched disc that nobody mounted
        (
            ("I/O error, dev sda, sector 8 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2",),
            "sda1",
            False,
        ),  # a path's
        (("sd 0:0:0:0: [sda] tag#1 Sense Key : Medium Error [current]",), "sda1", False),  # it may have been tried again
        (("EXT4-fs (sda1): mounted filesystem 0a1b r/w with ordered data mode.",), "sda1", False),
    ],
)
def test_a_disk_that_cannot_be_read(log: tuple[str, ...], device: str, failed: bool) -> None:
    mounts = f"{ROOT}\n31 24 259:1 / /data rw - ext4 /dev/{device} rw\n"
    found = said({"/proc/self/mountinfo": mounts}, log=log, machine="cpu-node")
    subject = f"file systems: {device}"
    assert {name for name, one in found.items() if one.status is FAIL} == ({subject} if failed else set())
    assert not failed or (found[subject].cause, found[subject].severity) == ("node_storage", Severity.WARNING)
    assert ("kernel log" in found) is not failed


def test_the_helper_keeps_the_line_of_a_disk() -> None:
    assert event_of(f"3,1,9000000,-;{MEDIUM.format('sda')}\n".encode()) == [9.0, MEDIUM.format("sda")]


def test_the_last_of_each_counts() -> None:
    lines = [
        [1.0, LOCKUP],
        [2.0, "XFS (sda1): Corruption of in-memory data detected.  Shutting down filesystem"],
        [41.5, LOCKUP],
    ]
    assert troubles([*lines, "x", [1], [None, LOCKUP], [3.0, "other"]]) == (
        SystemEvent(Trouble.DEAD, "sda1", 2.0),
        SystemEvent(Trouble.LOCKUP, "3", 41.5, 2),
    )


@pytest.mark.slow
def test_room_leaves_nothing(tmp_path: Any) -> None:
    got = LiveHost().ask(f"room:{tmp_path}")
    assert isinstance(got, dict)
    assert (got["errno"], list(tmp_path.iterdir())) == (0, [])
    assert LiveHost().ask(f"room:{tmp_path}/nothing").kind == "absent"  # type: ignore[union-attr]
    assert LiveHost(root=str(tmp_path)).ask("room:/").kind == "another root"  # type: ignore[union-attr]


def test_an_uptime_that_is_a_containers_dates_nothing() -> None:
    """lxcfs and time namespaces show another /proc/uptime than that of the kernel whose log it is."""
    old = KernelLog((), True, (SystemEvent(Trouble.LOCKUP, "3", 50_000.0),), "/dev/kmsg")
    found = {
        one.subject: one.status for one in f.judge(node_system, f.machine({System: f.system(uptime=3600.0), KernelLog: old}))
    }
    assert "CPU 3" not in found
    assert found["kernel log"] is UNKNOWN


@pytest.mark.parametrize(
    ("number", "free", "status"),
    [
        (errno.EACCES, 0, FAIL),  # a user may not write there anyway
        (errno.EACCES, 4096, None),
        (errno.EROFS, 0, None),  # squashfs and erofs have no room by design
        (0, 1 << 20, None),
    ],
)
def test_the_root_file_system(number: int, free: int, status: Status | None) -> None:
    found = said(rooms={"/": {**f.room(number), "free": free}})
    assert (found["/"].status if "/" in found else None) is status


def test_corrected_errors_of_memory_are_a_note() -> None:
    found = said({f"{EDAC}/mc0/ue_count": "0\n", f"{EDAC}/mc0/ce_count": "812\n", f"{EDAC}/mc1/ue_count": "0\n"})["memory"]
    assert (found.status, found.notes) == (PASS, ("corrected since boot: mc0",))


SILENT, ANSWERS = "nfs: server nas-1 not responding, still trying", "nfs: server nas-1 OK"
NFS = f"{ROOT}\n40 24 0:45 / /home rw - nfs4 nas-1:/export/home rw,vers=4.2\n41 24 0:46 / /data rw - nfs [fd00::5]:/d rw\n"


@pytest.mark.parametrize(
    ("log", "mounts", "status"),
    [
        ((SILENT,), NFS, UNKNOWN),
        ((SILENT, ANSWERS, SILENT), NFS, UNKNOWN),
        ((SILENT, SILENT, ANSWERS), NFS, None),
        ((SILENT,), ROOT, None),  # another namespace's, or unmounted since
        ((SILENT.replace("nas-1", "nas-10"),), NFS, None),
        (("nfs: server nas-1 not responding, timed out",), NFS, None),  # of a soft mount: whoever asked got an error
        ((SILENT,), None, UNKNOWN),
    ],
)
def test_an_nfs_server_that_does_not_answer(log: tuple[str, ...], mounts: str | None, status: Status | None) -> None:
    found = said({"/proc/self/mountinfo": mounts}, log=log)
    one = found.get("file systems: nas-1") or found.get("file systems")
    assert (one and one.status) is status
    if one and mounts:
        assert one.perhaps and one.perhaps.status is FAIL and "what waits for /home hangs" in one.message
    assert found["kernel log"].status is PASS if status is None else "kernel log" not in found


def test_an_nfs_server_by_its_ipv6_address() -> None:
    found = said({"/proc/self/mountinfo": NFS}, log=(SILENT.replace("nas-1", "fd00::5"),))
    assert found["file systems: fd00::5"].how == "timeout 5 stat /data"


def test_a_frozen_file_system_is_thawed_before_a_reboot() -> None:
    files = {"/proc/4711/stat": "4711 (nvidia-smi) D 1 1", "/proc/uptime": "100.0 1"}
    found = said(files, log=(HUNG, LOCKUP))
    thaws = {name: any("fsfreeze -u" in line for line in one.fix.commands) for name, one in found.items() if one.fix}
    assert thaws == {"tasks": True, "CPU 3": False}, found

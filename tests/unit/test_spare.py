"""What is left on the machine, and what its limits refused while an all-reduce ran."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts import cgroups, kernel, spare
from netdoctor.facts.cgroups import LimitsMet, Rose
from netdoctor.facts.spare import Memory
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.model import Kind, Unavailable

LOST = Unavailable("denied")
MEMINFO = "MemTotal:       24684096 kB\nMemFree: 100000 kB\nMemAvailable: 300000 kB\nSwapFree: 100 kB\n"


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (MEMINFO, Memory(24684096 << 10, 300100 << 10, 0)),
        (f"{MEMINFO}HugePages_Total: 11000\nHugepagesize: 2048 kB\n", Memory(24684096 << 10, 300100 << 10, 11000 << 21)),
        (
            f"{MEMINFO}HugePages_Total: 0\nHugepagesize: 2048 kB\nHugetlb: 8388608 kB\n",
            Memory(24684096 << 10, 300100 << 10, 8 << 30),
        ),
        ("MemTotal: 1 kB\n", Unavailable(Kind.UNSUPPORTED, "/proc/meminfo does not say how much is available")),
        (LOST, LOST),
    ],
)
def test_memory(text: Any, memory: Any) -> None:
    assert spare.memory(ReplayHost({"file:/proc/meminfo": text})) == memory


def test_open_files_and_threads() -> None:
    answers: dict[str, Any] = {
        "file:/proc/sys/fs/file-nr": "99950\t0\t9223372036854775807\n",
        "file:/proc/loadavg": "0.35 0.25 0.21 3/412 18001\n",
    }
    found = kernel.probe(ReplayHost(answers))
    assert (found.open_files, found.threads_seen) == ((99950, (1 << 63) - 1), 412)
    assert kernel.probe(ReplayHost({"file:/proc/loadavg": "0.00 0.00 0.00 0/0 0\n"})).threads_seen == 0  # gVisor
    shown = "30 23 0:26 /loadavg /proc/loadavg rw - fuse.lxcfs lxcfs rw\n"  # over the kernel's own
    found = kernel.probe(ReplayHost({**answers, "file:/proc/self/mountinfo": shown}))
    assert isinstance(found.threads, Unavailable) and found.threads_seen == 412


def host(own: str, mounts: str, before: dict[str, str], after: dict[str, Any]) -> RecordingHost:
    folders: dict[str, Any] = {}
    for path in before:
        folder, _, name = path.rpartition("/")
        folders.setdefault(f"dir:{folder}", []).append(name)
    answers = {"file:/proc/self/cgroup": own, "file:/proc/self/mountinfo": mounts, **folders}
    answers |= {f"file:{path}": text for path, text in before.items()} | {f"again:{path}": text for path, text in after.items()}
    return RecordingHost(ReplayHost(answers))


V2 = "30 23 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n"
V1 = "36 30 0:31 / /c/pids rw - cgroup cgroup rw,pids\n37 30 0:32 / /c/memory rw - cgroup cgroup rw,memory\n"
POD, JOB = "/sys/fs/cgroup/kubepods/pod1", "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"


@pytest.mark.parametrize(
    ("own", "mounts", "before", "after", "found"),
    [
        ("0::/kubepods/pod1/c\n", V2, {f"{POD}/c/pids.events": "max 4\n"}, {f"{POD}/c/pids.events": "max 4\n"}, (None, None)),
        (
            "0::/kubepods/pod1/c\n",
            V2,
            {f"{POD}/c/pids.events": "max 4\n", f"{POD}/c/memory.events": "low 0\noom 1\noom_kill 1\n"},
            {f"{POD}/c/pids.events": "max 7\n", f"{POD}/c/memory.events": "low 0\noom 2\noom_kill 2\n"},
            (Rose(3, f"{POD}/c/pids.events"), Rose(1, f"{POD}/c/memory.events")),
        ),
        (  # above it another pod may have met its own limit
            "0::/kubepods/pod1/c\n",
            V2,
            {f"{POD}/pids.events": "max 4\n", f"{POD}/pids.events.local": "max 1\n"},
            {f"{POD}/pids.events": "max 9\n", f"{POD}/pids.events.local": "max 2\n"},
            (Rose(1, f"{POD}/pids.events.local"), None),
        ),
        (
            "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
            V2,
            {f"{JOB}/memory.events": "oom_kill 0\n"},
            {f"{JOB}/memory.events": "oom_kill 2\n"},
            (None, Rose(2, f"{JOB}/memory.events")),
        ),
        (
            "4:pids:/x\n3:memory:/x\n",
            V1,
            {"/c/pids/x/pids.events": "max 0\n", "/c/memory/x/memory.oom_control": "under_oom 0\noom_kill 3\n"},
            {"/c/pids/x/pids.events": "max 2\n", "/c/memory/x/memory.oom_control": "under_oom 0\noom_kill 4\n"},
            (Rose(2, "/c/pids/x/pids.events"), Rose(1, "/c/memory/x/memory.oom_control")),
        ),
        ("4:pids:/x\n3:memory:/x\n", V1, {"/c/pids/x/pids.events": "max 0\n"}, {"/c/pids/x/pids.events": LOST}, (LOST, None)),
        ("0::/\n", V2, {}, {}, (None, None)),
    ],
)
def test_what_the_limits_refused_meanwhile(own: str, mounts: str, before: Any, after: Any, found: Any) -> None:
    machine = host(own, mounts, before, after)
    cgroups.begin(machine)
    risen = {f"file:{rose.file}" for rose in found if rose}
    assert risen <= set(machine.answers)  # from before the run
    assert not any(one.startswith("again:") for one in machine.answers)
    assert cgroups.probe_met(machine) == LimitsMet(*found)


def test_nobody_looked() -> None:
    assert LimitsMet(None, None).why_not is None
    why = LimitsMet.unread(Unavailable(Kind.NOT_READ, "no LimitsMet")).why_not
    assert why is not None and why.detail == "nobody looked"

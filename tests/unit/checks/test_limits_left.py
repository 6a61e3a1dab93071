"""process.limits: what the machine has left for all, and what its cgroups refused while the all-reduce ran."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.process_limits import limits
from netdoctor.facts.cgroups import Cap, Cgroups, LimitsMet, Rose
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.runs import Baseline, Obstacle, State
from netdoctor.facts.spare import Memory
from netdoctor.facts.vantage import Vantage
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f

LOST, GONE = Unavailable("denied"), Unavailable("absent")
PASS, FAIL, UNKNOWN = Status.PASS, Status.FAIL, Status.UNKNOWN


def groups(**caps: Any) -> Cgroups:
    return Cgroups(**{"pids": (), "cpu": (), "memory": (), "hidden": False, **caps})


def judged(subject: str, changes: dict[type, object]) -> Finding:
    found = f.judge(limits, f.machine({Intent: f.job(), **changes}))
    return f.only([one for one in found if one.subject == subject])


def cap(most: float) -> tuple[Cap, ...]:
    return (Cap("/a/b", most * 4, 0), Cap("/a", most, 0))


@pytest.mark.parametrize(
    ("used", "status"),
    [
        (0, None),
        (1 << 20, UNKNOWN),
        ((1 << 20) - 8 * 289, None),
        ((1 << 20) - 8 * 289 + 1, UNKNOWN),
        (LOST, UNKNOWN),
        (GONE, None),
    ],
)
def test_the_table_of_open_files_has_room(used: Any, status: Status | None) -> None:
    files = used if isinstance(used, Unavailable) else (used, 1 << 20)
    for capabilities, judges in ((frozenset[str](), True), (frozenset({"CAP_SYS_ADMIN"}), False)):
        who = f.vantage(capabilities=capabilities)
        given = f.machine({Intent: f.job(ranks_per_node=8), Kernel: replace(f.kernel(), open_files=files), Vantage: who})
        said = [one for one in f.judge(limits, given) if one.subject == "fs.file-max"]
        assert [one.status for one in said] == ([status] if status and judges else [])


@pytest.mark.parametrize(
    ("total", "available", "huge", "status", "words"),
    [
        (2 << 40, 1 << 40, 0, PASS, "no cgroup"),
        (24 << 30, 512 << 20, 0, PASS, "no cgroup"),  # as much as the ranks take for certain
        (24 << 30, 300 << 20, 0, UNKNOWN, "left than the 512 MiB that 8 ranks take at least"),
        (24 << 30, 300 << 20, 21 << 30, UNKNOWN, "HugePages hold 21 GiB"),
        (24 << 30, 300 << 20, (24 << 30) - (400 << 20), FAIL, "HugePages hold 23."),
        (24 << 30, 300 << 20, 100 << 20, UNKNOWN, "take at least"),  # without them it would be too little as well
        (400 << 20, 300 << 20, 0, FAIL, "not the 512 MiB"),
    ],
)
def test_what_memory_the_machine_has_left(total: int, available: int, huge: int, status: Status, words: str) -> None:
    kernel = replace(f.kernel(), memory=Memory(total, available, huge))
    found = judged("memory", {Intent: f.job(ranks_per_node=8), Kernel: kernel})
    assert found.status is status and words in found.message, found
    assert ("HugePages" in found.message) is ("HugePages" in words)
    tight = {Cgroups: groups(memory=cap(10)), Kernel: kernel}
    assert "leaves 10" in judged("memory", tight).message  # a cgroup that is too narrow comes first


def test_memory_that_is_not_read() -> None:
    for memory, status in ((LOST, UNKNOWN), (GONE, PASS), (Unavailable("unsupported"), PASS)):
        assert judged("memory", {Kernel: replace(f.kernel(), memory=memory)}).status is status
    assert judged("memory", {Kernel: replace(f.kernel(), memory=LOST), Cgroups: groups(memory=cap(10))}).status is FAIL


def test_the_threads_of_a_container_are_the_least_that_there_are() -> None:
    kernel = replace(f.kernel(), sysctls={"kernel.pid_max": "4096\n"}, threads=LOST, threads_seen=4000)
    given = f.machine({Intent: f.job(ranks_per_node=8), Kernel: kernel})
    assert [one.status for one in f.judge(limits, given) if one.subject == "kernel.pid_max"] == [UNKNOWN]


@pytest.mark.parametrize("subject", ["pids", "memory"])
def test_what_the_run_met(subject: str) -> None:
    rose = Rose(3, "/a/b.events")
    met = LimitsMet(rose, None) if subject == "pids" else LimitsMet(None, rose)
    for state, status in (("failed", FAIL), ("hung", FAIL), ("finished", UNKNOWN)):
        run = Baseline(f.run(state=state, verified=state == "finished" or None), False)
        found = judged(subject, {LimitsMet: met, Baseline: run, Cgroups: groups(**{subject: cap(1 << 40)})})
        assert found.status is status and found.message.startswith("while the all-reduce ran the kernel "), found
        assert found.measured["met_by_the_run"] == 3 and (found.fix is not None) is (status is FAIL)
        tight = judged(subject, {LimitsMet: met, Baseline: run, Cgroups: groups(**{subject: cap(3)})})
        assert tight.status is FAIL and tight.measured["met_by_the_run"] == 3 and "must have" in tight.message
    lost = {LimitsMet: LimitsMet(LOST, LOST)}
    assert judged(subject, lost).status is PASS


@pytest.mark.parametrize(
    ("folder", "runtime", "words"),
    [
        ("/sys/fs/cgroup/pids/x", None, "echo max > /sys/fs/cgroup/pids/x/pids.max"),
        ("/sys/fs/cgroup/user.slice/user-7.slice", None, "systemctl set-property --runtime user-7.slice TasksMax=infinity"),
        ("/sys/fs/cgroup", "docker", "docker run --pids-limit=-1 …"),
    ],
)
def test_no_ulimit_lifts_the_limit_of_a_cgroup(folder: str, runtime: str | None, words: str) -> None:
    who = f.vantage(runtime=runtime)
    found = judged("pids", {Cgroups: groups(pids=(Cap(f"{folder}/pids.max", 3),)), Vantage: who})
    assert found.fix is not None and found.fix.commands[0].startswith(words)
    assert not any("ulimit" in one or "nproc" in one for one in (*found.fix.commands, *found.fix.persistent))


@pytest.mark.parametrize(
    ("file", "command"),
    [
        (
            "/sys/fs/cgroup/user.slice/user-7.slice/user@7.service/app.slice/vte-1.scope/pids.max",
            "systemctl --user set-property",
        ),
        ("/sys/fs/cgroup/user.slice/app-a\\x2db-1.scope/pids.max", "set-property --runtime 'app-a\\x2db-1.scope'"),
        ("/sys/fs/cgroup/pids/a b/pids.max", "echo max > '/sys/fs/cgroup/pids/a b/pids.max'"),
    ],
)
def test_a_units_own_manager_lifts_its_limit(file: str, command: str) -> None:
    found = judged("pids", {Cgroups: groups(pids=(Cap(file, 3),))})
    assert found.fix is not None and command in found.fix.commands[0]


@pytest.mark.parametrize("subject", ["pids", "memory"])
def test_an_unseen_limit_has_no_command_for_its_file(subject: str) -> None:
    rose = Rose("/sys/fs/cgroup/x/pids.events", 3)
    met = LimitsMet(rose, None) if subject == "pids" else LimitsMet(None, rose)
    for obstacle, status in ((Obstacle.IMPORT, FAIL), (Obstacle.LOCK, PASS)):
        run = replace(f.run(state=State.NOT_STARTED, verified=None), obstacle=obstacle)
        found = judged(subject, {LimitsMet: met, Baseline: Baseline(run, False), Cgroups: groups()})
        assert found.status is status, found
        assert found.fix is None or not any("events" in one for one in found.fix.commands)

"""process.limits: facts to findings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.process_limits import limits
from netdoctor.facts.cgroups import Cap, Cgroups, Counted
from netdoctor.facts.cpu import Cpu
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent
from netdoctor.facts.kernel import Kernel
from netdoctor.facts.net import Net
from netdoctor.facts.pci import Pci
from netdoctor.facts.peers import Peer
from netdoctor.facts.runs import Baseline
from netdoctor.facts.tasks import Tasks, probe as probe_tasks
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost
from netdoctor.model import Finding, Status, Unavailable
from tests.support import facts as f
from tests.support.machines.composed import Composed

LOST, NO_RUN = Unavailable("denied"), Unavailable("refused", "--no-allreduce")
# A rank of f.machine(): its main thread, two of NCCL's proxy, and one for each of eight HCAs.
EACH = 11
PASS, FAIL, SKIP, UNKNOWN = Status.PASS, Status.FAIL, Status.SKIP, Status.UNKNOWN


def groups(**caps: Any) -> Cgroups:
    return Cgroups(**{"pids": (), "cpu": (), "memory": (), "hidden": False, **caps})


def ulimit(**changes: Any) -> Kernel:
    return f.kernel(limits={**f.kernel().limits, **changes})


def judged(subject: str, changes: dict[type, object]) -> Finding:
    found = f.judge(limits, f.machine({Intent: f.job(), **changes}))
    return f.only([one for one in found if one.subject == subject])


def cap(most: float, used: Any = 0) -> tuple[Cap, ...]:
    return (Cap("/a/b", most * 4, 0), Cap("/a", most, used))


@pytest.mark.parametrize(
    ("subject", "caps", "status"),
    [
        ("pids", (), PASS),
        ("pids", cap(8 * EACH - 1), FAIL),
        ("pids", cap(8 * EACH), UNKNOWN),
        ("pids", cap(1 << 20), PASS),
        ("pids", cap(1 << 20, (1 << 20) - 87), UNKNOWN),
        ("pids", cap(1 << 20, LOST), UNKNOWN),
        ("pids", cap(10, LOST), FAIL),
        ("pids", LOST, UNKNOWN),
        ("pids", (LOST, *cap(1 << 20)), UNKNOWN),
        ("pids", (LOST, *cap(3)), FAIL),
        ("pids", (Cap("/a/b", 9000, 0), Cap("/a", 9500, 9490)), UNKNOWN),
        ("pids", (Cap("/a/b", 3, 0), Cap("/a", 9500, 9498)), FAIL),  # others may give back what they hold of the wider one
        ("pids", (Cap("/a/b", 9000, 0), Cap("/a", 9500, LOST)), UNKNOWN),
        ("cpu", cap(7.5), FAIL),
        ("cpu", cap(8), UNKNOWN),
        ("cpu", cap(16), PASS),
        ("memory", cap((512 << 20) - 1), FAIL),
        ("memory", cap(512 << 20), UNKNOWN),
        ("memory", cap(64 << 30), PASS),
        ("memory", cap(64 << 30, 1 << 20), UNKNOWN),
        ("memory", cap(64 << 30, LOST), UNKNOWN),
    ],
)
def test_cgroups(subject: str, caps: Any, status: Status) -> None:
    assert judged(subject, {Cgroups: groups(**{subject: caps})}).status is status


def test_what_the_machine_has_is_no_limit() -> None:
    for online, status in ((frozenset(range(2)), PASS), (LOST, UNKNOWN)):
        assert judged("cpu", {Cpu: f.cpu(online=online), Cgroups: groups(cpu=cap(2))}).status is status


def test_what_is_hidden_is_no_pass_without_a_run() -> None:
    for hidden in (True, LOST):
        for caps in ((), cap(1 << 20)):
            facts = {Cgroups: groups(pids=caps, hidden=hidden)}
            assert judged("pids", facts | {Baseline: NO_RUN}).status is UNKNOWN
            assert judged("pids", {**facts, Baseline: f.baseline(), Intent: f.job(ranks_per_node=2)}).status is PASS
            assert judged("pids", {**facts, Baseline: f.baseline(), Intent: f.job(ranks_per_node=99)}).status is not PASS
    ran = f.baseline()
    as_many = {Baseline: ran, Intent: f.job(ranks_per_node=ran.run.experiment.ranks)}
    assert judged("pids", {Cgroups: groups(hidden=True), **as_many}).status is PASS
    for hidden, why in ((True, "a namespace or a mount hides them"), (LOST, "denied")):
        assert judged("pids", {Cgroups: groups(hidden=hidden), Baseline: NO_RUN}).message.endswith(f"not seen: {why}")


def test_exactly_as_much_as_they_take_is_enough() -> None:
    job = {Intent: f.job(ranks_per_node=8)}
    for cpu, count in ((f.cpu(online=LOST), 4096), (f.cpu(online=frozenset(range(16))), 16)):
        most = 8 * (64 + count)
        for have, status in ((most, PASS), (most - 1, UNKNOWN)):
            found = judged("pids", {Cpu: cpu, Cgroups: groups(pids=cap(have)), **job})
            assert (found.status, found.evidence["enough"]) == (status, most)
    user = {Vantage: f.vantage(capabilities=frozenset()), Tasks: Tasks(0, hidden=True), Baseline: NO_RUN, **job}
    cpu = f.cpu(online=frozenset(range(16)))
    for threads, status in ((4096 - 640, PASS), (4096 - 639, UNKNOWN)):
        kernel = replace(ulimit(nproc=4096), threads=threads)
        assert judged("nproc", {**user, Cpu: cpu, Kernel: kernel}).status is status


def test_the_tightest_is_the_one_that_leaves_the_least() -> None:
    two = (Cap("/a/b", 20, 0), Cap("/a", 21, 1.5))
    assert judged("cpu", {Cpu: f.cpu(online=frozenset(range(64))), Cgroups: groups(cpu=two)}).measured["file"] == "/a"
    lost = judged("pids", {Cgroups: groups(pids=(LOST, *cap(8 * EACH)))})
    assert (lost.status, lost.message) == (UNKNOWN, "limits of the cgroup could not be read: denied")


@pytest.mark.parametrize(
    ("job", "limit", "status"),
    [
        ({}, 1024, PASS),  # systemd's own soft limit, for the ranks of one node
        ({}, 32, FAIL),  # NCCL 2.27.5 with eight HCAs: see footprint.least
        ({}, 73, FAIL),  # NCCL's proxy polls 74 places at once
        ({}, 74, UNKNOWN),
        ({}, -1, PASS),
        ({}, LOST, UNKNOWN),
        ({"nodes": 2}, 1024, PASS),  # a shell's own: NCCL and torch need less
        ({"nodes": 16}, 1024, PASS),
        ({"nodes": 64}, 1024, UNKNOWN),  # the store's node has a connection of each rank
        ({"nodes": 2, "communicators": 4}, 1024, UNKNOWN),
        ({"nodes": 2}, 300, UNKNOWN),
        ({"nodes": 2}, 65536, PASS),
        ({"nodes": 512, "gloo_groups": 1}, 4096, FAIL),
        ({"nodes": 512}, 4096, UNKNOWN),  # a job may do without Gloo
        ({"nodes": 512, "all_to_all": True}, 65536, UNKNOWN),
        ({"nodes": 512, "all_to_all": True}, 1048576, PASS),
    ],
)
def test_open_files(job: dict[str, Any], limit: Any, status: Status) -> None:
    assert judged("nofile", {Intent: f.job(**job), Kernel: ulimit(nofile=limit)}).status is status


def test_a_job_of_nobody_knows_how_many_nodes() -> None:
    """MASTER_ADDR is another node, and no launcher counts them."""
    several = {Net: f.net(master=Peer("node00", ("10.0.0.1",), local=False))}
    for limit, status in ((5, FAIL), (1024, UNKNOWN), (65536, UNKNOWN), (1048576, PASS), (-1, PASS)):
        found = judged("nofile", {**several, Kernel: ulimit(nofile=limit)})
        assert found.status is status
        assert status is not UNKNOWN or any("how many nodes it has nobody says: at most 16384" in note for note in found.notes)


def test_processes_of_the_user() -> None:
    user, root = f.vantage(capabilities=frozenset()), f.vantage(euid=0, capabilities=frozenset())
    for who, status in ((user, FAIL), (root, PASS), (f.vantage(euid=0, root_is_root=LOST), FAIL)):
        assert judged("nproc", {Vantage: who, Kernel: ulimit(nproc=10)}).status is status
    assert judged("nproc", {Vantage: user, Kernel: ulimit(nproc=100)}).status is UNKNOWN


@pytest.mark.parametrize(
    ("used", "namespace", "run", "status"),
    [
        (400, "4026531836", NO_RUN, PASS),
        (3998, "4026531836", NO_RUN, UNKNOWN),  # another job of the same user has nearly all of them
        (3998, "4026531836", f.baseline(), UNKNOWN),
        (LOST, "4026531836", NO_RUN, UNKNOWN),
        (None, "4026531836", NO_RUN, UNKNOWN),
        (400, "4026532900", NO_RUN, UNKNOWN),  # those of other containers are not seen
        (400, "4026532900", f.baseline(), PASS),
        (3998, "4026532900", NO_RUN, UNKNOWN),
    ],
)
@pytest.mark.parametrize("threads", [LOST, 3500])
def test_what_the_user_runs_already(used: Any, namespace: str, run: Any, status: Status, threads: Any) -> None:
    user = f.vantage(capabilities=frozenset(), namespaces={**(f.vantage().namespaces or {}), "pid": namespace})
    kernel = replace(ulimit(nproc=4096), threads=threads)
    facts: dict[type, object] = {Vantage: user, Tasks: Tasks(used), Kernel: kernel, Baseline: run}
    found = judged("nproc", {**facts, Intent: f.job(ranks_per_node=2 if run is not NO_RUN else 8)})
    assert found.status is status
    if "is not seen from here" in found.message:
        where = "that /proc hides (hidepid)" if namespace == "4026531836" else "in other PID namespaces (containers)"
        assert f"what the user runs {where} counts as well" in found.message
    if isinstance(used, int) and used > 2048:
        assert "of which" in found.message and found.measured["used"] == used


@pytest.mark.parametrize(
    ("most", "used", "taken"),
    [
        (160, 80, True),  # no more than half, and it leaves less than 8 ranks must have
        (176, 88, False),  # half, and as much is left as they must have
        (200, 101, True),
        (200, 100, False),
        (None, 1, True),  # what they take at most was there; another has a part of it
    ],
)
def test_that_others_have_it_is_said_where_it_matters(most: float | None, used: int, taken: bool) -> None:
    job = {Intent: f.job(ranks_per_node=8)}
    enough = judged("pids", {Cgroups: groups(pids=cap(100 * EACH)), **job}).evidence["enough"]
    found = judged("pids", {Cgroups: groups(pids=cap(enough if most is None else most, used)), **job})
    assert (found.status, "of which" in found.message) == (UNKNOWN, taken)


@pytest.mark.parametrize(
    ("hard", "runtime", "command", "words"),
    [
        (1048576, None, "ulimit -n 1048576", "in the job: the hard limit is 1048576"),
        (-1, "kubernetes", "ulimit -n $(cat /proc/sys/fs/nr_open)", "in the job"),  # not containerd's unit
        (30, None, "", "where the job is started"),
        (32, None, "", "where the job is started"),  # as far as it goes is not enough
        (30, "docker", "docker run --ulimit nofile=1048576:1048576 …", "lift the limit of open files"),
        (None, None, "ulimit -n $(ulimit -Hn)", "lift the limit of open files"),
    ],
)
def test_a_limit_is_raised_where_that_can_be(hard: int | None, runtime: str | None, command: str, words: str) -> None:
    kernel = replace(ulimit(nofile=30), hard={} if hard is None else {"nofile": hard})
    where = {} if runtime is None else {Vantage: replace(f.pod(), runtime=runtime)}
    found = judged("nofile", {Intent: f.job(ranks_per_node=8, nodes=2), Kernel: kernel, **where})
    assert found.status is FAIL and found.fix is not None and words in found.fix.summary
    assert "; each of 8 ranks must have" in found.message
    assert next(iter(found.fix.commands), "") == command


def test_no_ulimit_lifts_a_cgroups_limit() -> None:
    found = judged("pids", {Cgroups: groups(pids=cap(15))})
    assert found.fix is not None and "ulimit" not in str(found.fix.commands) and "/" in found.fix.commands[0]
    assert found.fix.commands[0].startswith("echo max > ") and "TasksMax" in str(found.fix.persistent)


def test_one_rank_takes_what_eight_take() -> None:
    caps = groups(pids=cap(100, 0))
    one = judged("pids", {Cgroups: caps, Intent: f.job(ranks_per_node=1)})
    assert " of which 100 are left; one rank takes " in one.message or "; one rank takes " in one.message
    several = judged("pids", {Cgroups: groups(pids=cap(400, 250)), Intent: f.job(ranks_per_node=8)})
    assert "allows 400 processes and threads, of which 150 are left; 8 ranks take " in several.message


def test_all_threads_of_the_machine_leave_enough() -> None:
    """However many of them are this user's, in whatever container."""
    user = f.vantage(capabilities=frozenset(), namespaces={"pid": "4026532900"})
    facts: dict[type, object] = {Vantage: user, Tasks: Tasks(12), Baseline: NO_RUN}
    for limit, status in ((4096, UNKNOWN), (8192, PASS)):
        assert judged("nproc", {**facts, Kernel: replace(ulimit(nproc=limit), threads=3500)}).status is status


@pytest.mark.parametrize(("hidden", "status"), [(False, PASS), (True, UNKNOWN), (LOST, UNKNOWN)])
def test_what_proc_hides_counts_as_well(hidden: Any, status: Status) -> None:
    user = f.vantage(capabilities=frozenset())
    facts: dict[type, object] = {Vantage: user, Tasks: Tasks(12, hidden), Baseline: NO_RUN}
    assert judged("nproc", {**facts, Kernel: replace(ulimit(nproc=4096), threads=LOST)}).status is status
    assert judged("nproc", {**facts, Kernel: replace(ulimit(nproc=8192), threads=3500)}).status is PASS


@pytest.mark.parametrize(
    ("options", "hidden"),
    [
        ("rw", False),
        ("rw,hidepid=invisible", True),
        ("rw,gid=4,hidepid=2", True),
        ("rw,hidepid=0", False),
        ("rw,hidepid=off", False),
    ],
)
def test_whether_proc_hides_is_in_its_mount(options: str, hidden: bool) -> None:
    mounts = f"30 1 0:28 / / rw - ext4 /dev/md0 rw\n24 30 0:22 / /proc rw,nosuid - proc proc {options}\n"
    for threads, found in ((12, 12), (0, None), (-5, None)):
        host = ReplayHost({"file:/proc/self/mountinfo": mounts, "ask:tasks": {"threads": threads}})
        seen = probe_tasks(host, ulimit(nproc=4096), f.vantage(capabilities=frozenset()))
        assert seen.hidden is hidden and (seen.of_user == found if found else isinstance(seen.of_user, Unavailable))


def test_nothing_to_judge() -> None:
    none = {Gpus: f.gpus(visible=(), all=()), Pci: f.pci(devices=()), Intent: f.job()}
    assert judged("node", none).status in (SKIP, UNKNOWN)
    assert judged("node", {Vantage: f.vantage(job_user=False)}).status is UNKNOWN
    assert judged("node", {Gpus: f.gpus(visible=LOST, all=LOST)}).status is UNKNOWN


@pytest.mark.parametrize("why", ["the configuration says that this is not the job's place", "seen as root outside the job"])
def test_why_limits_are_not_the_jobs_is_a_sentence(why: str) -> None:
    where = replace(f.outside(), why_not=why)
    (found,) = f.judge(limits, f.machine({Vantage: where}))
    assert found.status is Status.UNKNOWN
    assert found.message == f"limits are the job's own, not these: {why}"


@pytest.mark.parametrize("subject", ["memory", "pids"])
@pytest.mark.parametrize(
    ("met", "status", "notes"),
    [
        (None, PASS, 0),
        (Counted(0, of_job=True), PASS, 0),
        (Counted(3, of_job=False), PASS, 1),  # an earlier job's, in a session or a container that outlives jobs
        (Counted(3, of_job=True), UNKNOWN, 0),
        (LOST, UNKNOWN, 0),
    ],
)
def test_a_limit_that_the_job_met(subject: str, met: Any, status: Status, notes: int) -> None:
    field = {"memory": "killed", "pids": "refused"}[subject]
    found = judged(subject, {Cgroups: groups(**{field: met})})
    assert (found.status, sum("since" in note for note in found.notes)) == (status, notes)
    assert "met" in found.measured or not isinstance(met, Counted) or not met.times


@pytest.mark.parametrize(("caps", "status"), [(cap(8 * EACH - 1), FAIL), (cap(8 * EACH), UNKNOWN)])
def test_a_limit_that_is_low_is_said_to_have_been_met(caps: Any, status: Status) -> None:
    found = judged("pids", {Cgroups: groups(pids=caps, refused=Counted(1, of_job=True))})
    assert found.status is status and "since this job began the kernel refused" in found.notes[-1]


# The limit of addresses (ulimit -v), which CUDA meets before any memory is used.

REFUSED = {"unavailable": "failed", "detail": "cuInit: CUDA_ERROR_OUT_OF_MEMORY (2)", "code": 2}
OTHER = {"unavailable": "failed", "detail": "cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "code": 802}


def said(limit: str, cuda: Any = None, name: str = "dgx-h100", *, ran: bool = False) -> Finding | None:
    machine = Composed(name, {}, {"job.nodes": 1, "job.ranks_per_node": 8, "vantage": "job"})
    text = machine.files.files["/proc/self/limits"]
    machine.files.write(
        "/proc/self/limits", text.replace("address space         unlimited ", f"address space         {limit:<10}")
    )
    if cuda:
        machine.host.answers["ask:cuda"] = {"driver_version": 13000, "devices": cuda}
    if not ran:
        setattr(machine, "_runs", lambda *_: {})  # noqa: B010 - a method
    found = machine.judged("process.limits")
    return next((one for one in found if one.subject == "addresses"), None)


def test_cuda_is_out_of_memory_below_a_limit() -> None:
    one = said("70866960384", REFUSED)
    assert one is not None
    assert (one.status, str(one.severity)) == ("fail", "critical")
    assert one.message == "ulimit -v leaves 66 GiB of addresses, and cuInit ends with CUDA_ERROR_OUT_OF_MEMORY (2)"


@pytest.mark.parametrize(
    ("limit", "cuda", "name", "ran", "status"),
    [
        ("unlimited", None, "dgx-h100", False, None),
        ("unlimited", REFUSED, "dgx-h100", False, None),  # something else has the memory
        ("70866960384", None, "dgx-h100", False, Status.UNKNOWN),  # cuInit came through; a context may not
        ("70866960384", OTHER, "dgx-h100", False, Status.UNKNOWN),
        ("70866960384", None, "dgx-h100", True, None),  # the ranks of the run had their contexts
        ("70866960384", None, "cpu-node", False, None),
    ],
)
def test_what_the_limit_alone_says(limit: str, cuda: Any, name: str, ran: bool, status: Status | None) -> None:
    one = said(limit, cuda, name, ran=ran)
    assert (one and one.status) == status


@pytest.mark.parametrize(
    ("name", "most", "threads", "status"),
    [
        ("pid_max", 8 * EACH - 1, 0, FAIL),
        ("threads-max", 8 * EACH - 1, LOST, FAIL),
        ("pid_max", 32768, 400, None),
        ("pid_max", 32768, 32000, UNKNOWN),  # others hold nearly all
        ("threads-max", 32768, LOST, None),
        ("pid_max", Unavailable("absent"), 400, None),  # gVisor has none
        ("pid_max", LOST, 400, UNKNOWN),
    ],
)
@pytest.mark.parametrize("euid", [0, 1000])
def test_the_machine_has_pids_for_the_ranks(name: str, most: Any, threads: Any, status: Status | None, euid: int) -> None:
    text = most if isinstance(most, Unavailable) else f"{most}\n"
    kernel = replace(ulimit(), sysctls={f"kernel.{name}": text}, threads=threads)
    who = f.vantage(euid=euid, capabilities=frozenset())
    found = f.judge(limits, f.machine({Intent: f.job(ranks_per_node=8), Kernel: kernel, Vantage: who}))
    said = [one for one in found if one.subject == f"kernel.{name}"]
    assert [one.status for one in said] == ([status] if status else [])
    assert status is not FAIL or (said[0].fix and f"sysctl -w kernel.{name}=" in said[0].fix.commands[0])

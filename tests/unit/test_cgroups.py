"""What the cgroups of a process limit, from files as Linux shows them (cgroup v1 and v2)."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from netdoctor.facts.cgroups import Cap, Cgroups, Counted, probe
from netdoctor.host.base import Answer
from netdoctor.model import Kind, Unavailable
from tests.support.machines.composed_host import ComposedHost

V2 = "30 25 0:27 {root} /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "31 25 0:31 {root} /sys/fs/cgroup/{name} rw shared:5 - cgroup cgroup rw,{name}\n"


def seen(own: str, mounts: str, files: dict[str, str]) -> Cgroups:
    host = ComposedHost()
    for path, text in {"/proc/self/cgroup": own, "/proc/self/mountinfo": mounts}.items():
        host.files.write(path, text)
    for path, text in files.items():
        host.files.write(f"/sys/fs/cgroup/{path}", text)
    return probe(host)


TREE = {
    "cgroup.procs": "",
    "cpuset.cpus.effective": "0-7\n",
    "a/cgroup.events": "",
    "a/pids.max": "100\n",
    "a/pids.current": "7\n",
    "a/cpu.max": "150000 100000\n",
    "a/b/cgroup.events": "",
    "a/b/memory.max": "1073741824\n",
    "a/b/memory.stat": "anon 4096\nfile 999999\nkernel 7\nshmem 8192\nslab_reclaimable 77\nslab_unreclaimable 1\n",
    "a/b/pids.max": "max\n",
    "a/rdma.max": "mlx5_0 hca_handle=max hca_object=max\n",
    "a/b/rdma.max": "mlx5_0 hca_handle=max hca_object=64\nmlx5_1 hca_handle=2 hca_object=max\nmlx5_2 hca_handle=4\n",
    "a/b/cpuset.cpus.effective": "0-3\n",
}


def test_every_level_of_version_2() -> None:
    found = seen("0::/a/b\n", V2.format(root="/"), TREE)
    assert found.pids == (Cap("/sys/fs/cgroup/a/pids.max", 100, 7),)
    assert [cap.most for cap in found.cpu or () if cap] == [1.5, 4, 8]
    assert found.memory == (Cap("/sys/fs/cgroup/a/b/memory.max", 1 << 30, 12289),)
    assert found.rdma == (Cap("/sys/fs/cgroup/a/b/rdma.max", 2),)
    assert found.hidden is False


def test_a_namespace_hides_what_is_above() -> None:
    below = {path[2:]: text for path, text in TREE.items() if path.startswith("a/")}
    found = seen("0::/\n", V2.format(root="/"), below)
    assert found.hidden is True and found.pids == (Cap("/sys/fs/cgroup/pids.max", 100, 7),)
    bound = seen("0::/a/b\n", V2.format(root="/a"), below)
    assert bound.hidden is True and [cap.most for cap in bound.memory or () if cap] == [1 << 30]


def test_version_1() -> None:
    files = {
        "pids/release_agent": "",
        "pids/x/pids.max": "64\n",
        "pids/x/pids.current": "3\n",
        "cpu/release_agent": "",
        "cpu/cpu.cfs_quota_us": "-1\n",
        "cpu/x/cpu.cfs_quota_us": "50000\n",
        "cpu/x/cpu.cfs_period_us": "100000\n",
        "memory/release_agent": "",
        "memory/memory.limit_in_bytes": "9223372036854771712\n",
        "memory/x/memory.limit_in_bytes": "4096\n",
        "memory/x/memory.stat": "rss 5\ntotal_rss 300\ntotal_cache 9000\ntotal_shmem 11\n",
    }
    own = "4:pids:/x\n3:memory:/x\n2:cpu:/x\n"
    mounts = "".join(V1.format(root="/", name=name) for name in ("pids", "memory", "cpu"))
    found = seen(own, mounts, files)
    assert found == Cgroups(
        pids=(Cap("/sys/fs/cgroup/pids/x/pids.max", 64, 3),),
        cpu=(Cap("/sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", 0.5),),
        memory=(Cap("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", 4096, 311),),
        hidden=False,
    )


@pytest.mark.parametrize(
    ("own", "mounts", "files"),
    [
        ("0::/a\n", "", {}),  # not mounted
        ("0::/a\n", V2.format(root="/"), {"cgroup.procs": ""}),  # the folder is not there
        ("0::/../x\n", V2.format(root="/"), TREE),  # above the namespace's own
        ("0::/a\n", V2.format(root="/b"), TREE),
        ("0::/a\n", V2.format(root="/"), {**TREE, "a/pids.max": "many\n"}),
        ("0::/a\n", V2.format(root="/"), {**TREE, "a/pids.max": "\n"}),
        # A line that is cut off, of what is mounted: of version 2, of version 1, and of version 1 beside version 2.
        ("", V2.format(root="/"), TREE),
        ("2:cpu:/x\n", V1.format(root="/", name="pids") + V1.format(root="/", name="cpu"), {"pids/pids.max": "9"}),
        ("0::/a\n", V1.format(root="/", name="pids") + V2.format(root="/"), TREE),
    ],
)
def test_what_is_not_read_is_no_absence(own: str, mounts: str, files: dict[str, str]) -> None:
    assert any(isinstance(one, Unavailable) for one in seen(own, mounts, files).pids or ())


def test_nothing_of_it() -> None:
    assert probe(ComposedHost()).pids == Unavailable(Kind.NOT_READ, "ENOENT No such file or directory")


@pytest.mark.parametrize(
    ("mounts", "says"),
    [("", "no cgroup file system is mounted here"), (V1.format(root="/", name="cpu"), "no cgroup file system with pids is")],
)
def test_where_none_is_mounted_all_controllers_have_one_reason(mounts: str, says: str) -> None:
    (lost,) = seen("3:pids:/x\n2:cpu:/x\n", mounts, {}).pids or ()
    assert says in str(lost)


def test_a_folder_may_be_called_like_a_file() -> None:
    """Names of slices are the site's own."""
    files = {
        "pids/release_agent": "",
        "pids/max.slice/pids.max": "64\n",
        "pids/max.slice/pids.current": "3\n",
        "cpu/release_agent": "",
        "cpu/quota/cpu.cfs_quota_us": "50000\n",
        "cpu/quota/cpu.cfs_period_us": "100000\n",
    }
    mounts = "".join(V1.format(root="/", name=name) for name in ("pids", "cpu"))
    found = seen("3:pids:/max.slice\n2:cpu:/quota\n", mounts, files)
    assert found.pids == (Cap("/sys/fs/cgroup/pids/max.slice/pids.max", 64, 3),)
    assert found.cpu == (Cap("/sys/fs/cgroup/cpu/quota/cpu.cfs_quota_us", 0.5),)


def test_where_the_kernel_makes_them_wait() -> None:
    """memory.high ends nobody, and lets nobody go on either."""
    stat = "anon 4096\nkernel_stack 5\npagetables 6\npercpu 7\nsock 8\nvmalloc 9\nanon_thp 99\n"
    tree = {"a/cgroup.events": "", "a/memory.max": "max\n", "a/memory.high": "8192\n", "a/memory.stat": stat}
    found = seen("0::/a\n", V2.format(root="/"), {"cgroup.procs": "", **tree})
    assert found.memory == (Cap("/sys/fs/cgroup/a/memory.high", 8192, 4131),)


HOSTS = "40 25 0:27 {root} /host/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(
    ("own", "mounts", "top"),
    [
        ("0::/\n", V2.format(root="/") + HOSTS.format(root="/../.."), "/sys/fs/cgroup"),
        ("0::/\n", HOSTS.format(root="/../..") + V2.format(root="/"), "/sys/fs/cgroup"),
        ("0::/a\n", V2.format(root="/a") + HOSTS.format(root="/"), "/host/sys/fs/cgroup/a"),
        ("0::/a\n", HOSTS.format(root="/") + V2.format(root="/a"), "/host/sys/fs/cgroup/a"),
    ],
)
def test_the_nodes_tree_beside_a_containers_own(own: str, mounts: str, top: str) -> None:
    host = ComposedHost()
    host.files.write("/proc/self/cgroup", own)
    host.files.write("/proc/self/mountinfo", mounts)
    host.files.write("/host/sys/fs/cgroup/cgroup.procs", "")
    for one in (top, "/sys/fs/cgroup"):
        host.files.write(f"{one}/cgroup.events", "")
    host.files.write(f"{top}/pids.max", "9\n")
    host.files.write(f"{top}/pids.current", "1\n")
    found = probe(host)
    assert found.pids == (Cap(f"{top}/pids.max", 9, 1),)
    assert found.hidden is (top == "/sys/fs/cgroup")


SLURM = "system.slice/slurmstepd.scope/job_7"
EVENTS = "low 0\nhigh 0\nmax 12\noom 3\noom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("own", "files", "killed", "refused"),
    [
        pytest.param("0::/a\n", {"a/memory.events": EVENTS.format(2)}, Counted(2, of_job=False), None, id="a session's"),
        pytest.param("0::/a\n", {"a/memory.events": "low 0\n", "a/x": ""}, None, None, id="a kernel that does not count"),
        pytest.param("0::/a\n", {"a/x": "", "memory.events": EVENTS.format(9)}, None, None, id="another cgroup's, above"),
        pytest.param("0::/a\n", {"a/pids.events": "max 5\n"}, None, Counted(5, of_job=False), id="tasks refused"),
        pytest.param(
            f"0::/{SLURM}/step_0/user/task_1\n",
            {
                f"{SLURM}/step_0/user/task_1/memory.events": EVENTS.format(0),
                f"{SLURM}/step_0/user/x": "",
                f"{SLURM}/step_0/memory.events": EVENTS.format(1),
                f"{SLURM}/memory.events": EVENTS.format(4),
                "system.slice/slurmstepd.scope/memory.events": EVENTS.format(77),
            },
            Counted(4, of_job=True),
            None,
            id="of all steps of a Slurm job, and no other's",
        ),
    ],
)
def test_what_a_cgroup_met(own: str, files: dict[str, str], killed: Counted | None, refused: Counted | None) -> None:
    found = seen(own, V2.format(root="/"), files)
    assert (found.killed, found.refused) == (killed, refused)


def test_what_a_cgroup_of_version_1_met() -> None:
    files = {"memory/x/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n", "pids/x/pids.events": "max 0\n"}
    mounts = "".join(V1.format(root="/", name=name) for name in ("pids", "memory"))
    found = seen("4:pids:/x\n3:memory:/x\n", mounts, files)
    assert (found.killed, found.refused) == (Counted(3, of_job=False), Counted(0, of_job=False))


def test_what_a_job_met_and_is_not_read_is_not_nothing() -> None:
    host = ComposedHost()
    for path, text in {"/proc/self/cgroup": f"0::/{SLURM}\n", "/proc/self/mountinfo": V2.format(root="/")}.items():
        host.files.write(path, text)
    host.files.write(f"/sys/fs/cgroup/{SLURM}/memory.events", EVENTS.format(1))
    answers = {f"file:/sys/fs/cgroup/{SLURM}/memory.events": Unavailable(Kind.DENIED, "x")}
    found = probe(_Without(host, answers))
    assert isinstance(found.killed, Unavailable)


class _Without:
    def __init__(self, host: ComposedHost, answers: dict[str, Unavailable]) -> None:
        self.host, self.answers = host, answers

    def ask(self, question: str) -> Answer:
        return self.answers[question] if question in self.answers else self.host.ask(question)

    def prefetch(self, questions: Iterable[str]) -> None:
        self.host.prefetch(questions)

"""Who looks, and from where: evidence that must be the job's own is the job's only where the place says so."""

from __future__ import annotations

from typing import Any

import pytest

from netdoctor.facts import vantage
from netdoctor.host.base import Answer, ReplayHost
from netdoctor.model import Unavailable

HASH = "0123456789abcdef" * 4
MOUNTS = "22 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n23 22 0:5 / /dev rw - devtmpfs devtmpfs rw\n"
OVERLAY = "22 1 0:50 / / rw,relatime - overlay overlay rw,lowerdir=/x\n23 22 0:51 / /dev rw,nosuid - tmpfs tmpfs rw\n"
USER: dict[str, str] = {"PATH": "/usr/bin", "USER": "ada", "HOME": "/home/ada"}


def place(
    *,
    uid: int = 1000,
    env: dict[str, str] | None = None,
    config: dict[str, Any] | None = None,
    mounts: str = MOUNTS,
    pid: str = "pid:[4026531836]",
    uid_map: str = "         0          0 4294967295\n",
    cgroup: str = "0::/user.slice/user-1000.slice\n",
    files: tuple[str, ...] = (),
    root: tuple[str, ...] = ("bin", "dev", "etc"),
) -> dict[str, Answer]:
    """A host; `files` are those that exist, all others are absent."""
    status = f"Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nCapEff:\t000001ffffffffff\n"
    given: dict[str, Answer] = {
        "file:/proc/self/status": status,
        "file:/proc/self/uid_map": uid_map,
        "file:/proc/self/cgroup": cgroup,
        "file:/proc/self/mountinfo": mounts,
        "link:/proc/self/ns/pid": pid,
        "link:/proc/self/ns/net": "net:[4026531840]",
        "link:/proc/1/ns/net": "net:[4026531840]",
        "env:": dict(USER if env is None else env),
        "config:": config or {},
        "dir:/": list(root),
    }
    for path in ("/run/.containerenv", "/var/lib/kubelet"):
        given[f"stat:{path}"] = {"mode": 0o755, "type": "dir"} if path in files else Unavailable("absent")
    return given


def look(given: dict[str, Answer]) -> vantage.Vantage:
    got = vantage.probe(ReplayHost(given))
    assert isinstance(got, vantage.Vantage), got
    return got


def own(one: vantage.Vantage) -> tuple[bool, bool, bool]:
    return one.job_user, one.job_network, one.job_environment


RANK = USER | {"RANK": "0", "WORLD_SIZE": "8"}
PROLOG = {"SLURM_JOB_ID": "7", "SLURM_JOB_UID": "1000", "SLURMD_NODENAME": "n1"}
STEP = USER | {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "3"}
POD = USER | {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}


@pytest.mark.parametrize(
    ("given", "kind", "runtime", "owns"),
    [
        (place(), "host", None, (True, True, True)),
        (place(uid=0), "host-root", None, (False, True, False)),
        (place(uid=0, files=("/var/lib/kubelet",)), "host-root", None, (False, False, False)),
        (place(uid=0, env=RANK), "host", None, (True, True, True)),
        (place(uid=0, env=PROLOG), "prolog", None, (False, False, False)),
        (place(uid=0, env=USER | PROLOG), "prolog", None, (False, False, False)),
        (place(uid=0, env={"SLURM_SCRIPT_CONTEXT": "prolog_slurmd"}), "prolog", None, (False, False, False)),
        (place(env=USER | {"SLURM_SCRIPT_CONTEXT": "prolog_task", "SLURM_JOB_ID": "7"}), "host", None, (True, True, True)),
        (place(env=STEP), "host", None, (True, True, True)),
        (place(uid=0, env=STEP), "host", None, (True, True, True)),
        (place(env=USER | {"SLURM_JOB_ID": "7"}), "host", None, (True, True, True)),  # a batch script
        (place(config={"profile": "audit"}), "host", None, (False, False, False)),
        (place(config={"profile": "prolog"}), "prolog", None, (False, False, False)),
        (place(env=POD, pid="pid:[4026532999]"), "pod", "kubernetes", (True, True, True)),
        (place(env=POD, config={"profile": "gate"}), "pod-init", "kubernetes", (True, True, False)),
        (place(uid=0, pid="pid:[4026532999]", root=("bin", ".dockerenv")), "container", "docker", (True, True, True)),
        (place(uid=0, config={"vantage": "job"}), "wrapper", None, (True, True, True)),
        (place(uid=0, config={"vantage": "wrapper"}), "wrapper", None, (True, True, True)),
        (place(config={"vantage": "node"}), "host", None, (False, False, False)),
        (place(config={"vantage": "host-root"}), "host-root", None, (False, True, False)),
        (place(uid=0) | {"link:/proc/1/ns/net": "net:[4026532000]"}, "host-root", None, (False, False, False)),  # ip netns exec
        (place(uid=0) | {"link:/proc/1/ns/net": Unavailable("denied")}, "host-root", None, (False, False, False)),
        (place(uid=0, uid_map="0 100000 65536\n"), "host", None, (True, True, True)),  # root of a user namespace
    ],
)
def test_whose_view_it_is(given: dict[str, Answer], kind: str, runtime: str | None, owns: tuple[bool, bool, bool]) -> None:
    one = look(given)
    assert (one.kind, one.runtime, own(one)) == (kind, runtime, owns)
    assert bool(one.why_not) == (owns != (True, True, True))
    assert one.in_container == (runtime is not None)


@pytest.mark.parametrize(
    ("given", "runtime"),
    [
        (place(env=USER | {"APPTAINER_CONTAINER": "/x.sif"}), "apptainer"),
        (place(env=USER | {"SINGULARITY_CONTAINER": "/x.sif"}), "apptainer"),
        (place(root=("bin", ".singularity.d")), "apptainer"),
        (place(cgroup=f"0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{HASH}.scope\n"), "kubernetes"),
        (place(cgroup=f"12:cpu:/docker/{HASH}\n"), "docker"),
        (place(cgroup=f"0::/system.slice/docker-{HASH}.scope\n"), "docker"),
        (place(cgroup="0::/system.slice/docker.service\n"), None),  # the daemon, on the host
        (place(cgroup=f"0::/machine.slice/libpod-{HASH}.scope\n"), "podman"),
        (place(pid="pid:[4026532999]", files=("/run/.containerenv",)), "podman"),
        (place(env=USER | {"container": "podman"}), "podman"),
        (place(env=USER | {"container": "lxc"}), "lxc"),
        (place(env=USER | {"container": "oci"}), "unknown container"),
        (place(env=USER | {"ENROOT_ROOTFS": "/x"}, uid_map="0 1000 1\n"), "enroot"),
        (place(env=USER | {"ENROOT_CONFIG_PATH": "/x"}), None),  # a user's own setting on the host
        (place(mounts="22 1 0:9 / / rw - ext4 /run/user/1000/enroot/data/pytorch rw\n"), "enroot"),
        (place(pid="pid:[4026532999]"), "unknown container"),
        (place(root=("bin", ".dockerenv")), None),  # a machine made from an image: initial PID namespace, a disk as root
        (place(root=("bin", ".dockerenv"), mounts=OVERLAY), "docker"),  # docker run --pid=host
    ],
)
def test_runtimes_by_their_marks(given: dict[str, Answer], runtime: str | None) -> None:
    assert vantage.runtime_of(ReplayHost(given)) == runtime


@pytest.mark.parametrize("missing", ["link:/proc/self/ns/pid", "dir:/"])
def test_no_container_needs_evidence(missing: str) -> None:
    given = place() | {missing: Unavailable("denied")}
    assert vantage.runtime_of(ReplayHost(given)) == Unavailable("denied")
    one = look(given)
    assert own(one) == (False, False, False) and "cannot tell" in one.why_not


def test_without_an_environment_it_is_not_the_jobs() -> None:
    one = look(place() | {"env:": Unavailable("another root")})
    assert own(one) == (True, True, False) and "no environment" in one.why_not


def test_no_proc_no_vantage() -> None:
    for answer, kind in ((Unavailable("absent"), "absent"), ("", "empty"), ("Uid: rubbish\n", "malformed")):
        got = vantage.probe(ReplayHost(place() | {"file:/proc/self/status": answer}))
        assert isinstance(got, Unavailable) and got.kind == kind


def test_who() -> None:
    one = look(place())
    assert (one.user, one.euid, one.root_is_root) == ("ada", 1000, True)
    assert look(place(uid=0)).user == "root"
    assert look(place(env={})).user == "uid 1000"
    assert not isinstance(one.capabilities, Unavailable) and {"CAP_IPC_LOCK", "CAP_CHECKPOINT_RESTORE"} <= one.capabilities
    assert one.namespaces == {"net": "4026531840", "pid": "4026531836"}
    nested = look(place(uid_map="         0     100000      65536\n"))
    assert nested.root_is_root is False


def test_capabilities_by_number() -> None:
    given = place()
    given["file:/proc/self/status"] = "Uid:\t0\t0\t0\t0\nCapEff:\t0000000000004001\n"
    assert look(given).capabilities == frozenset({"CAP_CHOWN", "CAP_IPC_LOCK"})  # bits 0 and 14

"""gpu.mapping: what masks leave of the GPUs, in every form that CUDA takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from netdoctor.checks.gpu_mapping import gpu_mapping
from netdoctor.facts.environ import Environ
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.gpu_users import GpuUsers, probe
from netdoctor.facts.launcher import Launcher
from netdoctor.facts.ranks import Ranks, SeenRank, masked
from netdoctor.facts.runs import Baseline
from netdoctor.facts.vantage import Vantage
from netdoctor.host.base import ReplayHost, question
from netdoctor.model import Finding, Status, Unavailable, plain
from tests.support import facts as f
from tests.support.machines import composed

GPUS = f.gpus()
UUIDS = [str(gpu.uuid) for gpu in GPUS.all or ()]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("0,-1,1", UUIDS[:1]),
        ("1,0", [UUIDS[1], UUIDS[0]]),
        (" 2 , 3", UUIDS[2:4]),
        ("0,99,1", UUIDS[:1]),
        ("0,0", []),
        (UUIDS[5], [UUIDS[5]]),
        (f"{UUIDS[5]},5", []),
        ("GPU-", []),
        ("GPU-nobody's", []),
        ("0,GPU-nobody's,1", UUIDS[:1]),
        ("NoDevFiles", []),
        ("0,,1", UUIDS[:1]),
    ],
)
def test_what_a_mask_leaves(mask: str | None, expected: list[str]) -> None:
    assert list(masked(mask, GPUS)) == expected


PARTS = f.gpus(
    2,
    all=(f.gpu(0, mig=True, mig_uuids=("MIG-a", "MIG-b")), f.gpu(1, mig=True, mig_uuids=("MIG-c",))),
    visible=(f.visible(0, uuid="MIG-a"),),
)
OLD, NEW, WHOLE = "565.57.01", "580.95.05", UUIDS[:2]


@pytest.mark.parametrize(
    ("driver", "mask", "expected"),
    [
        (OLD, "MIG-a,MIG-b", ["MIG-a"]),
        (OLD, "MIG-c,MIG-a", ["MIG-c"]),
        (OLD, "MIG-b,MIG-b", []),
        (OLD, f"{UUIDS[0]},MIG-c", ["MIG-c"]),  # beside an instance no GPU is shown
        (NEW, "MIG-a,MIG-c", ["MIG-a", "MIG-c"]),
        ("570.0", "MIG-a,MIG-c", ["MIG-a", "MIG-c"]),
        ("569.99", "MIG-a,MIG-c", ["MIG-a"]),
        (Unavailable("timed out"), "MIG-a,MIG-c", ["MIG-a", "MIG-c"]),
        (OLD, "0,1", WHOLE),
    ],
)
def test_what_a_mask_leaves_of_instances(driver: str | Unavailable, mask: str, expected: list[str]) -> None:
    assert list(masked(mask, replace(PARTS, driver=driver))) == expected


def of_ranks(*masks: str | None, nccl: str = "2.29.7", driver: str | Unavailable = NEW, **more: Any) -> Finding:
    """What is said of ranks with these masks on two GPUs in MIG mode."""
    launcher = Launcher("torchrun", 0, len(masks), 0, len(masks))
    facts = {
        Ranks: Ranks(tuple(SeenRank(100 + n, n, mask, same=True) for n, mask in enumerate(masks))),
        Environ: f.environ(more.pop("variables", {}), launcher),
        Gpus: replace(PARTS, driver=driver, **more),
        Baseline: f.baseline(f.run(nccl_version=nccl)),
    }
    (found,) = (one for one in f.judge(gpu_mapping, f.machine(facts)) if one.subject == "ranks")
    return found


def whole(masks: list[str | None], name: str = "torchrun", gpus: int = 8, *, own: bool = True) -> Finding:
    """What is said of ranks with these masks on a node of eight GPUs of which NVML shows so many.  `own`: this process has
    the first one's."""
    here = {"CUDA_VISIBLE_DEVICES": str(masks[0])} if own and masks[0] is not None else {}
    facts = {
        Ranks: Ranks(tuple(SeenRank(100 + n, n, mask, same=True) for n, mask in enumerate(masks))),
        Environ: f.environ(here, Launcher(name, 0, len(masks), 0, len(masks))),
        Gpus: f.gpus(gpus),
        Baseline: Unavailable("refused", "--no-allreduce"),
    }
    (found,) = (one for one in f.judge(gpu_mapping, f.machine(facts)) if one.subject == "ranks")
    return found


@pytest.mark.parametrize(
    ("found", "words", "command"),
    [
        (whole(["0"] * 8), "by CUDA_VISIBLE_DEVICES and their numbers", "unset CUDA_VISIBLE_DEVICES"),
        (whole(["0,1,2,3"] * 8), "CUDA_VISIBLE_DEVICES leaves no GPU for ranks 4, 5, 6, 7", "unset CUDA_VISIBLE_DEVICES"),
        (whole(["0"] * 8, own=False), "by CUDA_VISIBLE_DEVICES", "torch.cuda.set_device("),  # a wrapper sets it
        (whole(["0"] * 8, "slurm"), "by CUDA_VISIBLE_DEVICES", "srun --gpus-per-task=1"),
        (whole([None] * 8, gpus=7), "no GPU for rank 7 of this node: NVML shows 7 GPUs for 8 ranks; PCI shows", "dmesg"),
        (whole(["0,1,2,3,4,5,6,7"] * 8, gpus=7), "CUDA_VISIBLE_DEVICES leaves no GPU for rank 7 here; PCI shows", "dmesg"),
        (whole(["0,1"] * 3, gpus=7), "CUDA_VISIBLE_DEVICES leaves no GPU for rank 2", "unset CUDA_VISIBLE_DEVICES"),
        (whole([None] * 10), "there is no GPU for ranks 8, 9 of this node", "torchrun --nproc-per-node=8"),
        (whole([None] * 9, "slurm"), "there is no GPU for rank 8", "srun --ntasks-per-node=8"),
    ],
)
def test_who_has_no_gpu_of_its_own_is_told_by_what_is_so(found: Finding, words: str, command: str) -> None:
    """A mask that stands in the way, fewer GPUs than ranks, or one that is lost: each has its own mend."""
    assert found.status is Status.FAIL
    assert words in found.message and ("CUDA_VISIBLE_DEVICES" in found.message) is ("CUDA" in words)
    assert found.fix is not None and found.fix.commands[0].startswith(command)


BOTH: dict[str, Any] = {"visible": (f.visible(0, uuid="MIG-a"), f.visible(1, uuid="MIG-b"))}
TOLD: dict[str, Any] = {"variables": {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}}


@pytest.mark.parametrize(
    ("masks", "more", "status", "words"),
    [
        (["MIG-a", "MIG-c"], {}, Status.PASS, "each with a GPU of its own"),
        (["MIG-a,MIG-c"] * 2, {}, Status.PASS, "each with a GPU of its own"),
        (["MIG-a,MIG-c"] * 2, {"driver": OLD}, Status.FAIL, "ranks 0, 1 of this node take one GPU (MIG-a)"),
        (["MIG-a", "MIG-b"], {}, Status.FAIL, "ranks 0, 1 of this node take instances of one GPU (0000:1b:00.0)"),
        (["MIG-a", "MIG-b"], {"nccl": "2.30.2"}, Status.FAIL, "instances of one GPU"),
        (["MIG-a", "MIG-b"], {"nccl": "2.30.3"}, Status.UNKNOWN, "whether NCCL takes them is not known"),
        (["MIG-a", "MIG-b"], {"nccl": "2.30.3", **TOLD}, Status.SKIP, "lets them"),
        (["MIG-a", "MIG-b"], {"nccl": "2.29.7", **TOLD}, Status.FAIL, "instances of one GPU"),
        (["MIG-a", "MIG-a"], {"nccl": "2.30.3", **TOLD}, Status.SKIP, "lets them"),
        (["MIG-a", "MIG-a"], {"nccl": "2.30.3"}, Status.FAIL, "one GPU (MIG-a)"),
        (["MIG-a,MIG-b", "MIG-c"], {}, Status.UNKNOWN, "of MIG-a and MIG-b CUDA shows a process one"),
        (["MIG-a,MIG-b", "MIG-c"], {"driver": Unavailable("timed out")}, Status.UNKNOWN, "timed out"),
        (["MIG-a,MIG-b", "MIG-c"], {"driver": OLD}, Status.PASS, "each with a GPU of its own"),
        (["MIG-a,MIG-b", "MIG-c"], BOTH, Status.PASS, "each with a GPU of its own"),
        (["0", "1"], {}, Status.UNKNOWN, "may be in MIG mode"),
        ([None, None], {}, Status.UNKNOWN, "may be in MIG mode"),
        (["0", "MIG-c", "MIG-c"], {}, Status.FAIL, "ranks 1, 2"),  # what is not clear of rank 0 withholds nothing
    ],
)
def test_ranks_on_instances(masks: list[str | None], more: dict[str, Any], status: Status, words: str) -> None:
    found = of_ranks(*masks, **more)
    assert found.status is status
    assert words in found.message


LOST, NEVER = Unavailable("timed out"), Unavailable("unsupported")
BOB = {"processes": 1, "pids": (9,)}
MPS = {"CUDA_MPS_PIPE_DIRECTORY": "/tmp/mps"}
INSTANCE = {"mig": True, "mig_uuids": ("MIG-a", "MIG-b")}


def used(process: dict[str, Any] | None, machine: str = "dgx-h100", **device: Any) -> Finding:
    """What is said of GPUs in use, where the first has these."""
    made = composed.read(machine)
    told: Any = made.host.answers["ask:nvml"]
    told["devices"][0] |= device
    if process is not None:
        told["devices"][0] |= {"processes": 1, "pids": [4711]}
        made.host.answers["ask:psutil?pids=4711"] = {"processes": {"4711": {"name": "python", "user": "eve", **process}}}
    (found,) = (one for one in made.judged("gpu.mapping") if one.subject == "GPUs in use")
    return found


@pytest.mark.parametrize(
    ("status", "words", "mend"),
    [
        ("sleeping", "python (pid 4711, eve)", "see whose it is"),
        ("zombie", "python (pid 4711, eve, ended)", "no signal ends it"),
        ("disk-sleep", "python (pid 4711, eve, stuck in the kernel)", "no signal ends it"),
        ({"unavailable": "denied", "detail": ""}, "python (pid 4711, eve)", "see whose it is"),
    ],
)
def test_one_that_no_signal_ends_is_told_so(status: Any, words: str, mend: str) -> None:
    found = used({"status": status})
    assert found.status is Status.FAIL
    assert words in found.message
    assert found.fix is not None
    assert found.fix.summary.startswith(mend)


@pytest.mark.parametrize(
    ("held", "machine", "words"),
    [
        (70 << 30, "dgx-h100", "no process explains it"),
        (70 << 30, "pod-with-devices", "this PID namespace does not show by whom"),
        (256 << 20, "dgx-h100", ""),
    ],
)
@pytest.mark.parametrize("drawing", [0, LOST])
def test_memory_that_no_process_explains_is_unknown(held: int, machine: str, words: str, drawing: Any) -> None:
    found = used(None, machine, memory_used=held, graphics=plain(drawing))
    assert found.status is (Status.UNKNOWN if words else Status.PASS)
    assert words in found.message


def test_a_desktop_draws_on_it() -> None:
    found = used(None, memory_used=1 << 30, graphics=900 << 20)
    assert found.status is Status.PASS
    assert used(None, memory_used=70 << 30, graphics=900 << 20).status is Status.UNKNOWN  # it does not hold all of it


@pytest.mark.parametrize(
    ("gpu", "users", "words"),
    [
        pytest.param({}, {}, "", id="free"),
        pytest.param(BOB, {}, "", id="another job's"),
        pytest.param(
            BOB,
            {"unkillable": frozenset({9})},
            "0000:1b:00.0 is held by somebody: a fault where",
            id="a dead one's",
        ),
        pytest.param(BOB, {"unkillable": frozenset({8})}, "", id="a dead one on no GPU"),
        pytest.param({"memory_used": 70 << 30}, {}, "memory of 0000:1b:00.0 is in use, and no process", id="nobody's memory"),
        pytest.param({"memory_used": 70 << 30, **BOB}, {}, "", id="a process explains it"),
        pytest.param({"memory_used": 1 << 30, "graphics": 900 << 20}, {}, "", id="a desktop explains it"),
        pytest.param(
            {"memory_used": 70 << 30, "graphics": 900 << 20}, {}, "memory of 0000:1b:00.0", id="a desktop explains a part of it"
        ),
        pytest.param({"memory_used": 70 << 30, "processes": LOST}, {}, "", id="whether one does was not read"),
        pytest.param({"memory_used": 70 << 30}, {"initial_pids": False}, "", id="other containers are not seen"),
        pytest.param({"memory_used": 70 << 30, **INSTANCE}, {}, "", id="instances"),
        pytest.param({"memory_used": 256 << 20}, {}, "", id="as little as an idle one has"),
        pytest.param({**BOB, **INSTANCE}, {"unkillable": frozenset({9})}, "", id="a dead one of an instance"),
    ],
)
@pytest.mark.parametrize("outside", [True, False])
def test_what_the_node_has_left_of_the_last_job(
    gpu: dict[str, Any], users: dict[str, Any], words: str, *, outside: bool
) -> None:
    gpu = {"uuid": "GPU-0", **gpu}
    facts = {
        Gpus: f.gpus(1, all=(f.gpu(0, **gpu),)),
        GpuUsers: GpuUsers({9: "somebody"}, **{"initial_pids": True, **users}),
        Vantage: replace(f.outside(), outside=outside),
    }
    found = f.judge(gpu_mapping, f.machine(facts))
    assert found[-1].status is (Status.SKIP if outside else Status.UNKNOWN)
    assert [(one.status, one.subject) for one in found[:-1]] == ([(Status.UNKNOWN, "GPUs in use")] if words else [])
    assert words in found[0].message


def in_use(gpu: dict[str, Any], *, pod: bool = False, variables: dict[str, str] | None = None, **more: Any) -> Finding:
    """What is said of the job's one GPU, which has these."""
    users = GpuUsers({9: "somebody"}, initial_pids=not pod, servers=more.pop("servers", frozenset()))
    facts = {
        Gpus: f.gpus(1, **{"all": (f.gpu(0, **gpu),), **more}),
        GpuUsers: users,
        Ranks: Ranks(()),
        Environ: f.environ(variables or {}),
    }
    (found,) = (one for one in f.judge(gpu_mapping, f.machine(facts)) if one.subject == "GPUs in use")
    return found


@pytest.mark.parametrize(
    ("gpu", "more", "status"),
    [
        ({}, {}, Status.PASS),
        ({"memory_used": LOST}, {}, Status.PASS),  # all processes are seen
        ({}, {"pod": True}, Status.PASS),
        ({"memory_used": LOST}, {"pod": True}, Status.UNKNOWN),  # NVML names no process here, and memory is not told
        ({"memory_used": NEVER}, {"pod": True}, Status.UNKNOWN),
        ({"memory_used": 70 << 30, "processes": NEVER}, {"pod": True}, Status.UNKNOWN),
        ({"processes": NEVER}, {"pod": True}, Status.SKIP),
        ({"processes": LOST}, {}, Status.UNKNOWN),
        ({**INSTANCE, **BOB}, {"visible": (f.visible(0, uuid="MIG-a"),)}, Status.SKIP),  # of another instance
        ({**INSTANCE, "mig_uuids": LOST, **BOB}, {"visible": (f.visible(0, uuid="GPU-a"),)}, Status.UNKNOWN),
        ({"mig": LOST}, {}, Status.UNKNOWN),
        ({}, {"visible": ()}, Status.SKIP),
        (BOB, {}, Status.FAIL),
        (BOB, {"servers": frozenset({9})}, Status.SKIP),  # the MPS server itself, whatever the variable says
        (BOB, {"variables": MPS}, Status.FAIL),  # the variable alone is no server
        ({"memory_used": 70 << 30}, {"variables": MPS, "pod": True}, Status.SKIP),
    ],
)
def test_who_else_computes_here(gpu: dict[str, Any], more: dict[str, Any], status: Status) -> None:
    assert in_use(gpu, **more).status is status


def test_an_mps_server_is_told_by_its_name() -> None:
    answers: Any = {"processes": {"4711": {"name": "nvidia-cuda-mps-server"}, "4712": {"name": "python"}}}
    host = ReplayHost({question("psutil", pids="4711,4712"): answers})
    gpus = f.gpus(1, all=(f.gpu(0, pids=(4711, 4712)),))
    found = probe(host, gpus, f.vantage())
    assert isinstance(found, GpuUsers)
    assert found.servers == {4711}


@pytest.mark.parametrize(("shown", "status"), [((0,), Status.PASS), ((3,), Status.UNKNOWN), ((0, 3), Status.FAIL)])
def test_a_container_takes_the_gpus_that_it_was_given(shown: tuple[int, ...], status: Status) -> None:
    facts = {
        Vantage: f.pod(),
        Environ: f.environ({"NVIDIA_VISIBLE_DEVICES": UUIDS[0]}),
        Gpus: f.gpus(8, visible=tuple(f.visible(i) for i in shown)),
        Ranks: Ranks(()),
    }
    found = {one.subject: one.status for one in f.judge(gpu_mapping, f.machine(facts))}
    assert found["GPUs that were given"] is status


@pytest.mark.parametrize(
    ("variables", "mig", "status"),
    [
        ({"SLURM_GPUS_ON_NODE": "2"}, False, Status.PASS),
        ({"SLURM_GPUS_ON_NODE": "1"}, False, Status.FAIL),
        ({"SLURM_GPUS_ON_NODE": "2"}, True, Status.SKIP),
        ({"SLURM_GPUS_ON_NODE": "2"}, Unavailable("failed"), Status.UNKNOWN),
        ({"SLURM_GPUS_ON_NODE": "1"}, Unavailable("failed"), Status.UNKNOWN),
        ({}, False, Status.SKIP),
    ],
)
def test_a_mig_mode_that_is_not_known_skips_nothing(variables: dict[str, str], mig: Any, status: Status) -> None:
    facts = {Gpus: f.gpus(2, all=(f.gpu(0, mig=mig), f.gpu(1))), Environ: f.environ(variables)}
    found = {one.subject: one for one in f.judge(gpu_mapping, f.machine(facts))}["GPUs that were given"]
    assert found.status is status
    assert ("in MIG mode are" in found.message) is (mig is True)


@pytest.mark.parametrize(
    ("strangers", "status", "words"),
    [
        ((), Status.UNKNOWN, "0000:1b:00.0, 0000:43:00.0: in use by bob's; eve's, of this job or of another"),
        ((9,), Status.FAIL, "0000:1b:00.0: in use by bob's, of another user; 0000:43:00.0: in use by eve's, of this job"),
        ((9, 8), Status.FAIL, "0000:1b:00.0, 0000:43:00.0: in use by bob's; eve's, of another user"),
    ],
)
def test_a_process_of_another_user_is_no_rank(strangers: tuple[int, ...], status: Status, words: str) -> None:
    """Every busy GPU is named, and how to see who is there."""
    busy = {0: (9,), 1: (8,)}
    facts = {
        Gpus: f.gpus(3, all=tuple(f.gpu(n, processes=len(busy.get(n, ())), pids=busy.get(n, ())) for n in range(3))),
        GpuUsers: GpuUsers({9: "bob's", 8: "eve's"}, initial_pids=True, strangers=frozenset(strangers)),
        Ranks: Ranks((SeenRank(100, 0, None, same=True),)),
    }
    (found,) = (one for one in f.judge(gpu_mapping, f.machine(facts)) if one.subject == "GPUs in use")
    assert (found.status, found.message[: len(words)]) == (status, words)
    assert "ps -o pid,user,lstart,args -p " in (str(found.fix) if found.fix else str(found.how))


@pytest.mark.parametrize(
    ("euid", "uid", "real", "stranger"),
    [
        (1000, 1007, True, True),
        (1000, 1000, True, False),
        (1000, 0, True, False),
        (0, 1007, True, False),
        (1000, 65534, False, False),  # in a user namespace root may show this number
    ],
)
def test_who_is_another_user(euid: int, uid: int, *, real: bool, stranger: bool) -> None:
    answers: Any = {"processes": {"4711": {"name": "python", "user": "bob", "uid": uid}}}
    host = ReplayHost({question("psutil", pids="4711"): answers})
    found = probe(host, f.gpus(1, all=(f.gpu(0, pids=(4711,)),)), f.vantage(euid=euid, root_is_root=real))
    assert isinstance(found, GpuUsers) and (4711 in found.strangers) is stranger


@pytest.mark.parametrize(
    ("variables", "status"),
    [
        ({"SLURM_SHARDS_ON_NODE": "2"}, Status.SKIP),
        ({"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25"}, Status.SKIP),
        ({"LSB_JOBID": "7"}, Status.UNKNOWN),
        ({"SLURM_JOB_ID": "7"}, Status.FAIL),
    ],
)
def test_gpus_that_a_batch_system_shares(variables: dict[str, str], status: Status) -> None:
    assert in_use(BOB, variables=variables).status is status
    facts = {
        Gpus: f.gpus(1, all=(f.gpu(0, processes=2, pids=(9, 100)),)),
        GpuUsers: GpuUsers({9: "bob's"}, initial_pids=True, strangers=frozenset({9})),
        Ranks: Ranks((SeenRank(100, 0, None, same=True),)),
        Environ: f.environ(variables),
    }
    found = [one.status for one in f.judge(gpu_mapping, f.machine(facts)) if one.subject == "GPUs in use"]
    assert found == [status]

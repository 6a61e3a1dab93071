"""The table of variables: launchers pass the redacting door, secrets do not, and nothing that is asked for is missing."""

from __future__ import annotations

import ast
import fnmatch
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import netdoctor
from netdoctor import engine, environment
from netdoctor.cli import setup
from netdoctor.config.load import Config
from netdoctor.credentials import GONE, secret_name
from netdoctor.environment import Of, names_of
from netdoctor.facts import libraries
from netdoctor.facts.environ import Environ, probe
from netdoctor.facts.launcher import Launcher, detect
from netdoctor.facts.libraries import Libraries
from netdoctor.host.base import RecordingHost, ReplayHost, mapping
from netdoctor.host.live import LiveHost
from netdoctor.host.redact import Redactor
from netdoctor.model import Unavailable
from netdoctor.report import json as as_json
from netdoctor.snapshot import snapshot
from netdoctor.variables import catalogue
from netdoctor.variables.catalogue import accepts
from tests.support.sources import nodes

ROOT = Path(__file__).parents[2]
Variables = dict[str, str]
K8S = {"KUBERNETES_SERVICE_HOST": "10.96.0.1"}
LAUNCHED: dict[str, tuple[Variables, Launcher]] = {
    "torchrun": (
        {"TORCHELASTIC_RUN_ID": "x", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
        | {
            "GROUP_RANK": "1",
            "GROUP_WORLD_SIZE": "2",
            "ROLE_RANK": "9",
            "ROLE_WORLD_SIZE": "16",
            "TORCHELASTIC_MAX_RESTARTS": "0",
        },
        Launcher("torchrun", 9, 16, 1, 8, 2, 1),
    ),
    "torchrun's options": (
        {"PET_NNODES": "64", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8"},
        Launcher("trainjob", None, 512, None, 8, 64, 1),
    ),
    "Slurm": (
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
        | {"SLURM_STEP_NUM_TASKS": "16", "SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_STEP_NUM_NODES": "2"},
        Launcher("slurm", 9, 16, 1, 8, 2, 1),
    ),
    "Slurm, old names": (
        {"SLURM_JOBID": "7", "SLURM_STEPID": "0", "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
        | {"SLURM_NPROCS": "16", "SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_NNODES": "2"},
        Launcher("slurm", 9, 16, 1, 8, 2, 1),
    ),
    "Slurm, a batch script": (
        {"SLURM_JOBID": "7", "SLURM_PROCID": "0", "SLURM_NPROCS": "16", "SLURM_TASKS_PER_NODE": "8(x2)", "SLURM_NNODES": "2"},
        Launcher("slurm", None, 16, None, 8, 2),
    ),
    "Slurm, into a container": ({"SLURM_NNODES": "64"}, Launcher("slurm", None, None, None, None, 64)),
    "srun with PMI-2, old names": (
        {"PMI_RANK": "1", "PMI_SIZE": "2", "SLURM_JOBID": "7", "SLURM_STEPID": "0", "SLURM_PROCID": "1", "SLURM_NNODES": "2"},
        Launcher("slurm", 1, None, None, None, 2),
    ),
    "srun with PMIx": (
        {"PMIX_RANK": "1", "PMIX_NAMESPACE": "n", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}
        | {"SLURM_NTASKS": "2", "SLURM_NNODES": "2"},
        Launcher("slurm", 1, 2, None, None, 2),
    ),
    "Open MPI": (
        {"OMPI_COMM_WORLD_RANK": "9", "OMPI_COMM_WORLD_SIZE": "16", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        | {"OMPI_COMM_WORLD_LOCAL_SIZE": "8", "PMIX_RANK": "9"},
        Launcher("openmpi", 9, 16, 1, 8),
    ),
    "Hydra": (
        {"PMI_RANK": "9", "PMI_SIZE": "16", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "8", "PMI_FD": "5"},
        Launcher("mpich", 9, 16, 1, 8),
    ),
    "PMI": ({"PMI_RANK": "9", "PMI_SIZE": "16"}, Launcher("mpich", 9, 16, None, None)),
    "Flux": (
        {"FLUX_TASK_RANK": "9", "FLUX_JOB_SIZE": "16", "FLUX_TASK_LOCAL_ID": "1", "FLUX_JOB_NNODES": "2", "FLUX_JOB_ID": "f1"},
        Launcher("flux", 9, 16, 1, None, 2),
    ),
    "TrainJob": (
        {**K8S, "PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8", "PET_MASTER_ADDR": "t-node-0-0.t"},
        Launcher("trainjob", None, 16, None, 8, 2, 1),
    ),
    "TrainJob, elastic": ({**K8S, "PET_NNODES": "2:4"}, Launcher("trainjob", None, None, None, None)),
    "PyTorchJob": (
        {**K8S, "MASTER_ADDR": "p-master-0", "MASTER_PORT": "23456", "RANK": "1", "WORLD_SIZE": "3"},
        Launcher("pytorchjob", 1, 3, None, None),
    ),
    "MPIJob": ({**K8S, "K_MPI_JOB_ROLE": "worker"}, Launcher("mpijob", None, None, None, None)),
    "KubeRay": ({**K8S, "RAY_CLUSTER_NAME": "c"}, Launcher("kuberay", None, None, None, None)),
    "Volcano": (
        {**K8S, "VC_TASK_INDEX": "1", "VC_WORKER_NUM": "3", "VC_WORKER_HOSTS": "a,b,c"},
        Launcher("volcano", None, None, None, None, 3, 1),
    ),
    "Volcano, old name, other tasks": (
        {**K8S, "VK_TASK_INDEX": "1", "VC_MPIMASTER_NUM": "1", "VC_MPIWORKER_NUM": "4"},
        Launcher("volcano", None, None, None, None, 5, 1),
    ),
    "JobSet": (
        {**K8S, "JOBSET_NAME": "j", "REPLICATED_JOB_NAME": "w", "JOB_COMPLETION_INDEX": "1", "NNODES": "2"},
        Launcher("jobset", None, None, None, None, 2, 1),
    ),
    "LeaderWorkerSet": (
        {**K8S, "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "2", "LWS_LEADER_ADDRESS": "l-0.l"},
        Launcher("leaderworkerset", None, None, None, None, 4, 2),
    ),
    "an indexed Job": (
        {**K8S, "JOB_COMPLETION_INDEX": "3", "NNODES": "4"},
        Launcher("jobset", None, None, None, None, 4, 3),
    ),
    "PBS": ({"PBS_JOBID": "3.s", "PBS_NUM_NODES": "2"}, Launcher("pbs", None, None, None, None, 2)),
    "PBS, a list": ({"PBS_NODEFILE": "/var/spool/3"}, Launcher("pbs", None, None, None, None)),
    "LSF": ({"LSB_JOBID": "3", "LSB_MCPU_HOSTS": "a 8 b 8"}, Launcher("lsf", None, None, None, None, 2)),
    "LSF, a list": ({"LSB_JOBID": "3", "LSB_HOSTS": "a a b b c"}, Launcher("lsf", None, None, None, None, 3)),
    "jsrun": ({"LSB_JOBID": "3", "JSM_NAMESPACE_RANK": "9", "JSM_NAMESPACE_SIZE": "16"}, Launcher("lsf", 9, 16, None, None)),
    "Grid Engine": ({"NHOSTS": "2", "PE_HOSTFILE": "/x"}, Launcher("gridengine", None, None, None, None, 2)),
    "MVAPICH": (
        {"MV2_COMM_WORLD_RANK": "9", "MV2_COMM_WORLD_SIZE": "16", "MV2_COMM_WORLD_LOCAL_RANK": "1"}
        | {"MV2_COMM_WORLD_LOCAL_SIZE": "8"},
        Launcher("hydra", 9, 16, 1, 8),
    ),
    "Horovod": (
        {"HOROVOD_RANK": "9", "HOROVOD_SIZE": "16", "HOROVOD_LOCAL_RANK": "1", "HOROVOD_LOCAL_SIZE": "8"}
        | {"HOROVOD_CROSS_RANK": "1", "HOROVOD_CROSS_SIZE": "2"},
        Launcher("horovod", 9, 16, 1, 8, 2, 1),
    ),
    "AWS Batch": (
        {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "1"},
        Launcher("awsbatch", None, None, None, None, 2, 1),
    ),
    "SkyPilot": (
        {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1"},
        Launcher("skypilot", None, None, None, None, 2, 1),
    ),
    "SageMaker": ({"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}, Launcher("sagemaker", None, None, None, None, 1)),
    "SageMaker, two": ({"SM_HOSTS": '["algo-1","algo-2"]'}, Launcher("sagemaker", None, None, None, None, 2)),
    "Azure ML": ({"AZUREML_NODE_COUNT": "4"}, Launcher("azureml", None, None, None, None, 4)),
    "Cray PALS": ({"PALS_RANKID": "3", "PALS_NODEID": "2"}, Launcher("pals", 3, None, None, None, None, 2)),
    "Cray ALPS": ({"ALPS_APP_PE": "9"}, Launcher("alps", 9, None, None, None)),
    "Cobalt": ({"COBALT_JOBSIZE": "4"}, Launcher("cobalt", None, None, None, None, 4)),
    "OAR": ({"OAR_NODEFILE": "/x"}, Launcher("oar", None, None, None, None)),
    "PMIx alone": ({"PMIX_RANK": "3"}, Launcher("pmix", 3, None, None, None)),
    "Slurm, a list of nodes": ({"SLURM_JOB_NODELIST": "gpu[01-64]"}, Launcher("slurm", None, None, None, None)),
    "Slurm, a step of one node of four": (
        {
            "SLURM_JOB_ID": "7",
            "SLURM_STEP_ID": "0",
            "SLURM_PROCID": "0",
            "SLURM_STEP_NUM_NODES": "1",
            "SLURM_JOB_NUM_NODES": "4",
        },
        Launcher("slurm", 0, None, None, None),
    ),
    "Slurm, heterogeneous": (
        {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_HET_SIZE": "2", "SLURM_NNODES": "1"},
        Launcher("slurm", 0, None, None, None),
    ),
    "sizes without a rank": ({"WORLD_SIZE": "512", "LOCAL_WORLD_SIZE": "8"}, Launcher("torch", None, 512, None, 8)),
    "a size by hand": ({"WORLD_SIZE": "8"}, Launcher(None, None, None, None, None)),
    "by hand": (
        {"MASTER_ADDR": "m", "MASTER_PORT": "29500", "RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "NODE_RANK": "1"},
        Launcher("env", 9, 16, 1, None, None, 1),
    ),
    "a number of nodes by hand": ({"NNODES": "64"}, Launcher(None, None, None, None, None, 64)),
}
SECRET = "hunter2-Zq9"


@pytest.mark.parametrize("counted", [{}, {"PBS_NUM_NODES": "1"}])  # which Torque says where only processes were asked for
def test_a_node_file_of_pbs_is_read(counted: Variables) -> None:
    named = {"PBS_JOBID": "3", "PBS_NODEFILE": "/var/spool/3", **counted}
    here = ReplayHost({"env:": named, "file:/var/spool/3": "a\na\nb\n"})
    seen = probe(RecordingHost(here, Redactor(accepts)))
    assert isinstance(seen, Environ) and not isinstance(seen.launcher, Unavailable)
    assert seen.launcher.nodes == 2


def test_a_node_of_pals_that_is_not_the_first_has_others() -> None:
    assert detect({"PALS_RANKID": "8", "PALS_NODEID": "1"}).several
    assert not detect({"PALS_RANKID": "0", "PALS_NODEID": "0"}).several


def at_the_door(given: Variables) -> Variables:
    """What the redacting door lets in."""
    found = mapping(RecordingHost(ReplayHost({"env:": dict(given)}), Redactor(accepts)), "env:")
    assert not isinstance(found, Unavailable)
    return found


@pytest.mark.parametrize("name", LAUNCHED)
def test_every_launcher_passes_the_door(name: str) -> None:
    given, launcher = LAUNCHED[name]
    assert detect(given) == launcher
    seen = probe(RecordingHost(ReplayHost({"env:": dict(given)}), Redactor(accepts)))
    assert isinstance(seen, Environ)
    assert seen.launcher == launcher


def test_the_cases_use_every_variable_that_tells_a_number() -> None:
    used = set().union(*(given for given, _ in LAUNCHED.values()))
    roles = (
        environment.Role.RANK,
        environment.Role.WORLD,
        environment.Role.LOCAL_WORLD,
        environment.Role.NODES,
        environment.Role.NODE_RANK,
    )
    asked = {name for role in roles for name in environment.named(role)}
    # Read as a second name where the first is not there: of Cray PALS.
    second = {name for name in asked if name.startswith("PMI_LOCAL_")}
    assert asked - used - second <= {"SLURM_JOB_NUM_NODES"}


@pytest.mark.parametrize(
    "name",
    [
        *("SLURM_JWT", "PMIX_SERVER_URI", "PMIX_SERVER_URI41", "PMI_FD", "FLUX_URI", "PET_RDZV_CONF", "PALS_SPOOL_DIR"),
        *("OMPI_MCA_orte_precondition_transports", "OMPI_MCA_orte_hnp_uri", "RAY_AUTH_TOKEN", "RAY_REDIS_PASSWORD"),
        *("NVIDIA_API_KEY", "VLLM_API_KEY", "APPTAINER_DOCKER_USERNAME", "APPTAINER_ENCRYPTION_PASSPHRASE", "LOCAL_KEY"),
        *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "SLURM_SPANK__SLURM_SPANK_OPTION_x", "VC_TASK_TOKEN", "ROLE_PASSWORD"),
    ],
)
def test_what_may_be_a_credential_stays_out(name: str) -> None:
    assert name not in at_the_door({name: SECRET, "RANK": "0"})


@pytest.mark.parametrize("prefix", [row.name[:-1] for row in environment.TABLE if row.kept and row.name.endswith("*")])
@pytest.mark.parametrize("word", ["TOKEN", "AUTH_KEY", "KEY", "KEYFILE", "PASSWORD", "PASSPHRASE", "SECRET", "JWT"])
def test_a_prefix_lets_no_credential_in(prefix: str, word: str) -> None:
    assert at_the_door({f"{prefix}X_{word}": SECRET}) == {f"{prefix}X_{word}": GONE}


def test_no_variable_that_is_judged_sounds_like_a_credential() -> None:
    assert not [name for name in catalogue.table() if secret_name(name)]


def test_every_variable_that_is_judged_is_kept() -> None:
    assert not [name for name in catalogue.table() if not environment.kept(name)]


def test_a_variable_has_one_row() -> None:
    names = [row.name for row in environment.TABLE]
    assert len(names) == len(set(names))


def test_what_names_the_job_is_the_same_for_all_its_nodes() -> None:
    assert not set(names_of(Of.START, Of.JOB)) & set(names_of(Of.NODE_START))
    assert "TORCHELASTIC_RESTART_COUNT" not in names_of(Of.START, Of.JOB)
    assert "NCCL_SOCKET_IFNAME" not in names_of(Of.RUN, Of.PROCESS)  # differs: the fleet shows it


@pytest.mark.parametrize("pattern", environment.WRITERS)
def test_patterns_of_writers_are_those_of_fnmatch(pattern: str) -> None:
    for name in (pattern.replace("*", "X_"), pattern.replace("*", "")):
        assert fnmatch.fnmatchcase(name, pattern) and environment.writes(name)
    assert pattern.count("*") <= 1
    assert not environment.writes(f"A_{pattern.replace('*', '')}")


@pytest.mark.slow
def test_vllms_library_is_found_behind_the_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_text("a file of that name, no library")
    monkeypatch.setenv("VLLM_NCCL_SO_PATH", str(library))
    live = LiveHost()
    try:
        found = libraries.probe(RecordingHost(live, Redactor(accepts)))
    finally:
        live.close()
    assert isinstance(found, Libraries) and not isinstance(found.nccl, Unavailable)
    assert [one.found_by for one in found.nccl if one.path == str(library)] == [("VLLM_NCCL_SO_PATH",)]


def replayed(given: Variables) -> list[dict[str, Any]]:
    """What preflight says about the sockets of a healthy node without GPUs whose process has these variables too."""
    recorded = snapshot.loads((ROOT / "fixtures/hosts/cpu-node/snapshot.json").read_text())
    here = recorded.answers["env:"]
    assert isinstance(here, dict)
    config = Config(vantage="job")
    specs, extra = setup.load_checks(config, ("net.socket_ifname",))
    answers = {**recorded.answers, "env:": {**here, **given}, "config:": config.as_answer()}
    work = engine.Work(RecordingHost(ReplayHost(answers), Redactor(accepts)), specs, extra, dict(recorded.runs))
    engine.collect(work, engine.wanted(specs))
    engine.judge_all(work)
    report = json.loads(as_json.render(engine.report(work, setup.decider(config), config.profile)))
    return [f for check in report["checks"] for f in check["findings"]]


def test_alone_the_node_passes() -> None:
    assert any("no other node is named" in f["message"] for f in replayed({}) if f["status"] == "pass")


@pytest.mark.parametrize(
    "given",
    [
        {"PET_NNODES": "64", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8"},
        {"SLURM_NNODES": "64", "SLURM_JOBID": "7"},
        {"SLURM_NNODES": "64"},
        {"NNODES": "64"},
        # These name a launcher of several nodes and do not say how many.
        *({**K8S, **one} for one in ({"K_MPI_JOB_ROLE": "worker"}, {"RAY_CLUSTER_NAME": "c"}, {"PET_NNODES": "2:4"})),
        {**K8S, "MASTER_ADDR": "p-0", "WORLD_SIZE": "64", "RANK": "1"},
    ],
)
def test_a_job_of_several_nodes_is_not_one_of_this_node(given: Variables) -> None:
    found = [f for f in replayed(given) if f["subject"] == "NCCL"]
    assert found
    assert not [f["message"] for f in found if f["status"] == "pass"]


# What code asks for by name and no recording needs.
_NOT_RECORDED = {
    **dict.fromkeys(("NO_COLOR", "TERM", "COLUMNS", "MPLCONFIGDIR"), "of netdoctor's own output, never of the job"),
    **dict.fromkeys(("PCI_CLASS", "PCI_ID", "DRIVER", "ID_MODEL_FROM_DATABASE"), "properties of a udev device, no variables"),
    "PMI_FD": "a socket of this very process: netdoctor/cli/run.py looks at its other end, live",
}


def _asked(path: Path) -> Iterator[str]:
    """Upper-case names given to get(), to `in` and as a subscript, and in tuples that a loop goes through."""
    for node in nodes(path):
        parts: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "getenv"):
            parts = node.args[:1]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            receiver = node.comparators[0]
            parts = [node.left] if isinstance(receiver, ast.Name) and receiver.id in _MAPPINGS else []
        elif isinstance(node, ast.Subscript):
            name = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
            parts = [node.slice] if name in _MAPPINGS else []
        elif isinstance(node, ast.For | ast.comprehension) and isinstance(node.iter, ast.Tuple):
            parts = node.iter.elts
        for part in parts:
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and part.value.isupper():
                yield part.value


_MAPPINGS = {"variables", "environ", "environment", "settings", "values"}
_PACKAGE = Path(netdoctor.__file__).parent
_SOURCES = [
    path
    for folder in (_PACKAGE, _PACKAGE.parent / "checks")
    for path in sorted(folder.rglob("*.py"))
    # Programs of their own: what they read never passes the door.
    if not {"deploy", "helpers"} & set(path.relative_to(folder).parts)
]


@pytest.mark.slow
def test_what_any_code_asks_for_is_kept() -> None:
    asked = {name: path.name for path in _SOURCES for name in _asked(path)}
    assert {"VLLM_NCCL_SO_PATH", "MASTER_PORT", "NCCL_IB_HCA", "NODE_NAME", "USER"} <= set(asked), (
        "the scan finds what is asked"
    )
    assert {n: at for n, at in asked.items() if not environment.kept(n) and n not in _NOT_RECORDED} == {}
    assert set(_NOT_RECORDED) <= set(asked), "an exception that nobody needs"

"""The environment probe: conf files with NCCL's precedence, the allow-list, launchers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from netdoctor.facts.environ import Environ, entries, probe, without_value
from netdoctor.facts.launcher import Launcher, detect
from netdoctor.host.base import ReplayHost
from netdoctor.model import Unavailable

STATUS = "Name:\tx\nUid:\t1000\t1000\t1000\t1000\n"
PASSWD = "root:x:0:0:root:/root:/bin/sh\nme:x:1000:1000::/home/me:/bin/sh\n"


def seen(env: dict[str, str] | Unavailable, **files: Any) -> Environ:
    answers: dict[str, Any] = {
        "env:": env,
        "file:/proc/self/status": STATUS,
        "file:/etc/passwd": PASSWD,
        "file:/etc/nccl.conf": Unavailable("absent"),
        "file:/home/me/.nccl.conf": Unavailable("absent"),
    }
    answers.update({f"file:{path}": text for path, text in files.items()})
    got = probe(ReplayHost(answers))
    assert isinstance(got, Environ)
    return got


def test_first_writer_wins() -> None:
    got = seen(
        {"HOME": "/home/me", "NCCL_DEBUG": "WARN"},
        **{
            "/home/me/.nccl.conf": "NCCL_DEBUG=INFO\nNCCL_IB_HCA=mlx5_0\n",
            "/etc/nccl.conf": "NCCL_IB_HCA=mlx5_9\nNCCL_ALGO=Ring\nUCX_TLS=tcp\n",
        },
    )
    assert not isinstance(got.nccl, Unavailable)
    assert {n: (s.value, str(s.source)) for n, s in got.nccl.items()} == {
        "NCCL_DEBUG": ("WARN", "environment"),
        "NCCL_IB_HCA": ("mlx5_0", "/home/me/.nccl.conf:2"),
        "NCCL_ALGO": ("Ring", "/etc/nccl.conf:2"),
    }
    assert got.get("NCCL_IB_HCA") == "mlx5_0"
    assert got.get("NCCL_NTHREADS") is None


def test_named_conf_file_replaces_the_home_one() -> None:
    got = seen(
        {"HOME": "/home/me", "NCCL_CONF_FILE": "/x/n.conf"},
        **{"/x/n.conf": "NCCL_ALGO=Tree\n", "/home/me/.nccl.conf": "NCCL_ALGO=Ring\n"},
    )
    assert got.get("NCCL_ALGO") == "Tree"
    assert [(f.path, f.role) for f in got.conf_files] == [("/x/n.conf", "NCCL_CONF_FILE"), ("/etc/nccl.conf", "system")]


def test_another_home_than_the_password_database_gives_both() -> None:
    got = seen({"HOME": "/elsewhere"}, **{"/elsewhere/.nccl.conf": Unavailable("absent")})
    assert [f.path for f in got.conf_files] == ["/elsewhere/.nccl.conf", "/home/me/.nccl.conf", "/etc/nccl.conf"]
    assert got.get("NCCL_ALGO") is None
    got = seen(
        {"HOME": "/elsewhere"}, **{"/elsewhere/.nccl.conf": Unavailable("absent"), "/home/me/.nccl.conf": "NCCL_ALGO=Ring"}
    )
    assert isinstance(got.get("NCCL_ALGO"), Unavailable)
    same = {"/elsewhere/.nccl.conf": "NCCL_ALGO=Ring\n", "/home/me/.nccl.conf": "NCCL_ALGO=Ring"}
    assert seen({"HOME": "/elsewhere"}, **same).get("NCCL_ALGO") == "Ring"


@pytest.mark.parametrize(
    ("lost", "known"),
    [(Unavailable("absent"), True), (Unavailable("denied"), True), (Unavailable("not recorded"), False), (7, False)],
)
def test_an_unreadable_conf_file_leaves_unset_names_unknown(lost: Any, known: bool) -> None:
    got = seen({"HOME": "/home/me", "NCCL_DEBUG": "WARN"}, **{"/etc/nccl.conf": lost})
    assert got.get("NCCL_DEBUG") == "WARN"
    assert (got.get("NCCL_ALGO") is None) is known
    assert got.get("UCX_TLS") is None


def test_no_environment_is_not_an_empty_one() -> None:
    got = seen(Unavailable("another root"))
    assert isinstance(got.variables, Unavailable)
    assert isinstance(got.nccl, Unavailable)
    assert isinstance(got.get("NCCL_ALGO"), Unavailable)


def test_secrets_of_other_programs_stay_out() -> None:
    env = {"SLURM_JWT": "s", "AWS_SECRET_ACCESS_KEY": "s", "PMIX_SERVER_URI": "s", "RANKS": "1", "RANK": "0", "UCX_TLS": "rc"}
    assert seen(env).variables == {"RANK": "0", "UCX_TLS": "rc"}


def test_conf_lines_as_nccl_reads_them() -> None:
    text = "# NCCL_A=1\n #NCCL_B=2\nNCCL_C = 3 \nexport NCCL_D=4\nno equals\n=5\nNCCL_E=a=b\r\nNCCL_F=\n"
    assert tuple((one.name, one.value, one.source.line) for one in entries(text)) == (
        (" #NCCL_B", "2", 2),
        ("NCCL_C ", " 3 ", 3),
        ("export NCCL_D", "4", 4),
        ("NCCL_E", "a=b\r", 7),
        ("NCCL_F", "", 8),
    )
    assert without_value(text + "\n #x\n") == (("no equals", 5),)


@pytest.mark.slow
@given(st.text())
def test_any_text_is_a_conf_file(text: str) -> None:
    for one in entries(text):
        assert one.name and "=" not in one.name and "\n" not in one.value and one.source.line >= 1


LAUNCHERS: list[tuple[dict[str, str], Launcher]] = [
    ({}, Launcher(None, None, None, None, None)),
    (
        {"TORCHELASTIC_RUN_ID": "x", "RANK": "5", "WORLD_SIZE": "16", "LOCAL_RANK": "5", "LOCAL_WORLD_SIZE": "8"}
        | {"GROUP_RANK": "0", "GROUP_WORLD_SIZE": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0"},
        Launcher("torchrun", 5, 16, 5, 8, 2, 0),
    ),
    (
        {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}
        | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "SLURM_JOB_ID": "7"},
        Launcher("openmpi", 3, 4, 1, 2),
    ),
    (
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2", "SLURM_JOB_ID": "1"}
        | {"SLURM_STEP_ID": "0"},
        Launcher("mpich", 3, 4, 1, 2),
    ),
    (
        {"PMI_RANK": "9", "SLURM_JOB_ID": "1", "SLURM_STEP_ID": "0", "SLURM_PROCID": "9", "SLURM_LOCALID": "1"}
        | {"SLURM_NODEID": "2", "SLURM_STEP_NUM_TASKS": "11", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NNODES": "3"},
        Launcher("slurm", 9, 11, 1, 3, 3, 2),
    ),
    ({"SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, Launcher("slurm", None, 8, None, None)),
    (
        {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"},
        Launcher("trainjob", None, 16, None, 8, 2, 1),
    ),
    (
        {"PET_NNODES": "2:4", "PET_NPROC_PER_NODE": "auto"},
        Launcher("trainjob", None, None, None, None),
    ),
    ({"LWS_GROUP_SIZE": "2", "LWS_WORKER_INDEX": "1"}, Launcher("leaderworkerset", None, None, None, None, 2, 1)),
    ({"VC_TASK_INDEX": "1"}, Launcher("volcano", None, None, None, None, None, 1)),
    ({"RAY_CLUSTER_NAME": "c"}, Launcher("kuberay", None, None, None, None)),
    ({"K_MPI_JOB_ROLE": "launcher"}, Launcher("mpijob", None, None, None, None)),
    ({"JOBSET_NAME": "j", "JOB_COMPLETION_INDEX": "3"}, Launcher("jobset", None, None, None, None, None, 3)),
    (
        {"KUBERNETES_SERVICE_HOST": "h", "MASTER_ADDR": "m", "WORLD_SIZE": "4", "RANK": "2"},
        Launcher("pytorchjob", 2, 4, None, None),
    ),
    ({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}, Launcher("env", 0, 2, 0, None)),
    ({"RANK": "zero", "WORLD_SIZE": "2"}, Launcher(None, None, None, None, None)),
]


@pytest.mark.parametrize(("variables", "launcher"), LAUNCHERS)
def test_launchers(variables: dict[str, str], launcher: Launcher) -> None:
    assert detect(variables) == launcher


@given(
    st.dictionaries(
        st.sampled_from(["SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_TASKS_PER_NODE", "SLURM_NODEID", "RANK"]), st.text()
    )
)
def test_detection_never_raises(variables: dict[str, str]) -> None:
    assert isinstance(detect(variables), Launcher)

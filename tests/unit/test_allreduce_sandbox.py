"""The environment that ranks get, who they run as, and what root refuses."""

import ctypes
import os
from pathlib import Path

import pytest

from netdoctor.allreduce.lock import Lock
from netdoctor.allreduce.runner import Session
from netdoctor.allreduce.sandbox import conf_names, find_user, sandbox
from netdoctor.model import Unavailable


@pytest.mark.parametrize(
    "name",
    [
        *("NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE", "NCCL_COMM_ID", "NCCL_INSPECTOR_DUMP_DIR", "NCCL_DEBUG_LEVELS"),
        *("TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "TORCH_FR_BUFFER_SIZE", "TORCH_TRACE"),
        *("UCX_LOG_FILE", "UCX_PROFILE_FILE", "UCX_STATS_DEST", "CUDA_LOG_FILE", "CUDA_INJECTION64_PATH", "MALLOC_TRACE"),
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "GROUP_RANK", "PMIX_RANK"),
        *("OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "LD_DEBUG_OUTPUT", "COVERAGE_PROCESS_START"),
        *(
            "SLURM_STEP_RESV_PORTS",
            "PET_RDZV_CONF",
            "PMIX_SERVER_URI41",
            "PMI_FD",
            "ROLE_RANK",
            "TORCH_ELASTIC_X",
            "PALS_RANKID",
        ),
    ],
)
def test_removed_and_recorded(name: str) -> None:
    box = sandbox({name: "x", "PATH": "/bin"}, ())
    assert name not in box.environment
    assert (name, None) in box.changes
    assert box.environment["PATH"] == "/bin"


@pytest.mark.parametrize(
    "name", ["NCCL_IB_HCA", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OMPI_MCA_btl"]
)
def test_what_the_job_set_stays(name: str) -> None:
    box = sandbox({name: "x"}, ())
    assert box.environment[name] == "x"
    assert name not in dict(box.changes)


def test_what_is_set_in_every_run() -> None:
    box = sandbox({"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/home/ada/log", "NCCL_RAS_ENABLE": "0"}, ())
    assert box.environment["NCCL_DEBUG"] == "INFO"
    assert box.environment["NCCL_DEBUG_FILE"] == "/dev/null"
    assert "NET" in box.environment["NCCL_DEBUG_SUBSYS"]
    assert "NCCL_RAS_ENABLE" not in dict(box.changes)  # as the job had it


def test_a_conf_file_cannot_bring_a_dump_back() -> None:
    assert "NCCL_TOPO_DUMP_FILE" not in sandbox({}, ()).environment
    assert sandbox({}, conf={"NCCL_TOPO_DUMP_FILE"}).environment["NCCL_TOPO_DUMP_FILE"] == "/dev/null"


def test_names_of_conf_files(tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("# a comment=1\nNCCL_TOPO_DUMP_FILE=/ada/topo.xml\nrubbish\n NCCL_GRAPH_DUMP_FILE=x\n")
    assert conf_names({"HOME": str(tmp_path)}) >= {"NCCL_TOPO_DUMP_FILE", " NCCL_GRAPH_DUMP_FILE"}, "as NCCL reads them"
    (tmp_path / "other").write_bytes(b"NCCL_GRAPH_DUMP_FILE=x\n\xff\xfe")
    names = conf_names({"HOME": str(tmp_path), "NCCL_CONF_FILE": str(tmp_path / "other")})
    assert "NCCL_GRAPH_DUMP_FILE" in names
    assert "NCCL_TOPO_DUMP_FILE" not in names
    assert "x" not in conf_names({"NCCL_CONF_FILE": str(tmp_path)})


def test_changes_are_stable_and_against_the_job() -> None:
    job = {"NCCL_COMM_ID": "a:1", "B": "2"}
    first, second = sandbox(job, ()), sandbox(dict(reversed(list(job.items()))), ())
    assert first.changes == second.changes == tuple(sorted(first.changes))
    more = first.with_changes({"B": None, "C": "3"})
    assert "B" not in more.environment
    assert {("B", None), ("C", "3")} <= set(more.changes)


def test_what_execve_would_refuse_is_left_out() -> None:
    assert set(sandbox({"A\0B": "x", "C": "\0", "": "y", "D": "z"}, ()).environment) >= {"D"}
    assert not {"A\0B", "C", ""} & set(sandbox({"A\0B": "x", "C": "\0", "": "y"}, ()).environment)


def test_users() -> None:
    me = find_user(str(os.getuid()))
    assert not isinstance(me, Unavailable)
    assert me.uid == os.getuid()
    assert isinstance(find_user("no such user"), Unavailable)
    assert isinstance(find_user("1:x"), Unavailable)
    stranger = find_user("3999999999:7")
    assert not isinstance(stranger, Unavailable)
    assert (stranger.uid, stranger.gid, stranger.groups, stranger.home) == (3999999999, 7, (7,), "/")


@pytest.mark.skipif(os.geteuid() == 0, reason="root locks in /run/netdoctor")
def test_no_lock_without_a_runtime_folder_is_said() -> None:
    lock = Lock({})
    assert lock.take(0.0) is None
    assert "XDG_RUNTIME_DIR" in lock.note


def test_a_lock_in_a_folder_that_others_may_write_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("netdoctor.allreduce.lock.ROOT_FOLDER", str(tmp_path))
    tmp_path.chmod(0o777)
    lock = Lock({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert lock.take(0.0) is None
    assert "not ours alone" in lock.note
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr("netdoctor.allreduce.lock.ROOT_FOLDER", str(tmp_path / "link"))
    linked = Lock({"XDG_RUNTIME_DIR": str(tmp_path / "link")})
    assert linked.take(0.0) is None
    assert linked.note


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes a user first")
@pytest.mark.parametrize(("uid", "refused"), [(64011, False), (0, True)])
def test_root_of_a_namespace_of_one_user_is_that_user(uid: int, refused: bool) -> None:
    """A file of somebody else's runs there as it would outside; where root itself is that user, root's rule holds."""
    child = os.fork()
    if child == 0:
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            if libc.unshare(0x10000000) != 0:  # CLONE_NEWUSER
                os._exit(77)
            libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: else /proc/self belongs to the first root
            Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            session = Session("/nowhere/of/eve/python", {}, lock=False)
            os._exit(42 if os.geteuid() == 0 and (session.refused is not None) is refused else 1)
        finally:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 77:
        pytest.skip("no user namespaces")
    assert code == 42

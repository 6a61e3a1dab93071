"""What stands between a verdict and a drained node, without Slurm: reasons, the job's GPUs, and whose drain it is."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest

FILE = pathlib.Path(__file__).parents[2] / "netdoctor" / "deploy" / "slurm" / "netdoctor_slurm.py"


@pytest.fixture
def slurm() -> ModuleType:
    spec = importlib.util.spec_from_file_location("netdoctor_slurm", FILE)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fails(subject: str = "node", **more: Any) -> dict[str, Any]:
    return {"check": "hardware.accelerator", "status": "fail", "blocking": True, "subject": subject, "message": "m"} | more


def report(*findings: dict[str, Any]) -> dict[str, Any]:
    return {"checks": [{"id": "hardware.accelerator", "status": "fail", "findings": list(findings)}]}


@pytest.fixture
def gpus(tmp_path: pathlib.Path) -> str:
    for n, address in enumerate(("0000:1b:00.0", "0000:43:00.0", "0000:52:00.0")):
        (tmp_path / address).mkdir()
        (tmp_path / address / "information").write_text(
            f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{n}{n}\nBus Location: \t {address}\nDevice Minor: \t {n}\n"
        )
    return str(tmp_path)


def test_only_the_jobs_gpus_are_looked_at(slurm: ModuleType, gpus: str) -> None:
    job = slurm.JobGpus("0,2", gpus)
    assert job.known and job.uuids == ["GPU-00", "GPU-22"]
    lost = fails("GPUs", evidence={"missing": ["0000:43:00.0"]})
    assert slurm.against(report(lost), job) == []
    mine = fails("GPUs", evidence={"missing": ["0000:52:00.0"]})
    assert slurm.against(report(lost, mine), job) == [mine]
    assert slurm.against(report(fails("GPUs")), job) == []
    assert slurm.against(report(fails("mlx5_0")), job) == [fails("mlx5_0")]


@pytest.mark.parametrize("numbers", ["", "7", "0,7", "MIG-GPU-1"])
def test_gpus_that_cannot_be_told_excuse_nothing(slurm: ModuleType, gpus: str, numbers: str) -> None:
    job = slurm.JobGpus(numbers, gpus)
    assert not job.known
    lost = fails("GPUs", evidence={"missing": ["0000:43:00.0"]})
    assert slurm.against(report(lost), job) == [lost]


@pytest.mark.parametrize("change", [{"status": "unknown"}, {"status": "error"}, {"status": "pass"}, {"blocking": False}])
def test_nothing_but_a_blocking_fail_speaks_against_a_node(slurm: ModuleType, change: dict[str, Any]) -> None:
    assert slurm.against(report(fails(**change)), slurm.JobGpus("")) == []


def test_a_reason_is_one_short_line_of_ascii(slurm: ModuleType) -> None:
    several = [fails(message="a\nb \x1b[31m“c” " + "x" * 400), fails(check="rdma.gpudirect"), fails(check="net.mtu")]
    reason = slurm.reason_of(several)
    assert len(reason) <= slurm.REASON_WIDTH and reason.isascii() and reason.isprintable()
    assert reason.startswith("netdoctor: hardware.accelerator: a b ?[31m?c? xxx")
    assert reason.endswith("... (also net.mtu, rdma.gpudirect)")
    assert slurm.reason_of([fails(message="short")]) == "netdoctor: hardware.accelerator: short"


def node(slurm: ModuleType, text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(slurm, "scontrol", lambda *words: text)
    return slurm.Node("n1").read()


SHOWN = "NodeName=n1 Arch=x86_64\n   State={state} ThreadsPerCore=1\n   Reason={reason} [root@{time}]\n"


@pytest.mark.parametrize(
    ("state", "drained", "off"),
    [("IDLE", False, False), ("MIXED+DRAIN", True, False), ("DOWN*+DRAIN", True, True), ("ALLOCATED+DRAIN*", True, False)],
)
def test_states(slurm: ModuleType, monkeypatch: pytest.MonkeyPatch, state: str, drained: bool, off: bool) -> None:
    one = node(slurm, SHOWN.format(state=state, reason="r [x]", time="2026-11-21T11:00:00"), monkeypatch)
    assert (one.drained, bool(one.states & slurm.HANDS_OFF)) == (drained, off)
    assert (one.reason, one.time) == ("r [x]", "root@2026-11-21T11:00:00")


def test_a_drain_is_ours_by_node_reason_and_time(
    slurm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("STATE", str(tmp_path / "state"))
    ours = {"state": "IDLE+DRAIN", "reason": "netdoctor: x", "time": "2026-11-21T11:00:00"}
    kept = slurm.Kept("n1")
    kept.write(node(slurm, SHOWN.format(**ours), monkeypatch), [FAILED])
    assert stat.S_IMODE(os.stat(tmp_path / "state").st_mode) == 0o700
    assert json.loads(pathlib.Path(kept.path).read_text())["fails"] == [FAILED]
    assert kept.is_of(node(slurm, SHOWN.format(**ours), monkeypatch))
    for change in ({"reason": "netdoctor: y"}, {"time": "2026-11-21T11:00:01"}):
        assert not kept.is_of(node(slurm, SHOWN.format(**ours | change), monkeypatch)), change
    other = node(slurm, SHOWN.format(**ours), monkeypatch)
    other.name = "n2"
    assert not kept.is_of(other)
    assert not slurm.Kept("n2").is_of(other)


FAILED = {"check": "rdma.dev_infiniband", "subject": "count"}


def seen(check: str, status: str, *findings: tuple[str, str]) -> dict[str, Any]:
    found = [{"check": check, "subject": subject, "status": said} for subject, said in findings]
    return {"checks": [{"id": check, "status": status, "findings": found}]}


@pytest.mark.parametrize(
    ("kept", "report", "stays"),
    [
        ({"fails": [FAILED]}, seen("rdma.dev_infiniband", "unknown", ("count", "pass"), ("memlock", "unknown")), False),
        ({"fails": [FAILED]}, seen("rdma.dev_infiniband", "unknown", ("count", "unknown"), ("memlock", "pass")), True),
        ({"fails": [FAILED]}, seen("rdma.dev_infiniband", "fail", ("count", "pass"), ("count", "fail")), True),
        ({"fails": [FAILED]}, seen("rdma.dev_infiniband", "skip", ("count", "skip")), True),
        ({"fails": [FAILED]}, seen("rdma.dev_infiniband", "pass", ("node", "pass")), False),
        ({"fails": [FAILED]}, seen("net.mtu", "pass", ("count", "pass")), True),
        ({"fails": []}, seen("net.mtu", "unknown"), False),
        ({"checks": ["rdma.dev_infiniband"]}, seen("rdma.dev_infiniband", "pass", ("count", "pass")), True),
    ],
)
def test_what_failed_must_pass(slurm: ModuleType, kept: dict[str, Any], report: dict[str, Any], stays: bool) -> None:
    assert bool(slurm.still_open(kept, report)) is stays


def test_a_name_stays_inside_the_folder(slurm: ModuleType) -> None:
    assert os.path.basename(slurm.Kept("../../etc/x").path) == ".._.._etc_x.json"


@pytest.mark.parametrize(
    ("conf", "said", "wrong"),
    [
        ("ACTION=drain\nON_UNKNOWN=report\nRESUME=no\n", {"ACTION": "drain", "ON_UNKNOWN": "report", "RESUME": "no"}, ""),
        ("#ACTON=x\nMAIL=root\nexport NETDOCTOR_TOKEN=x\nPYTHONPATH=\n", {}, ""),
        ("#\nACTION=drian\n", {"ACTION": "drian"}, ":2: ACTION=drian: must be drain or report; did you mean drain?"),
        ("ACTION=drain\nACTION=x\n", {"ACTION": "x"}, ":2: ACTION=x: must be drain or report"),
        ("ACTION=report\r\n", {"ACTION": "report\r"}, ":1: ACTION=report: must be drain or report; the line ends in CR LF"),
        ("ON_UNKNOWN=maybe", {"ON_UNKNOWN": "maybe"}, ":1: ON_UNKNOWN=maybe: must be report or drain"),
        ("RESUME=Yes\n", {"RESUME": "Yes"}, ":1: RESUME=Yes: must be no or yes; did you mean yes?"),
        ("ACTON=report\n", {}, ":1: ACTON= is no setting; did you mean ACTION?"),
        ("export action=report\n", {}, ":1: action= is no setting; did you mean ACTION?"),
    ],
)
def test_what_means_nothing_in_netdoctor_conf_is_named(
    slurm: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, conf: str, said: dict[str, str], wrong: str
) -> None:
    for name in slurm.WORDS:
        monkeypatch.delenv(name, raising=False)
    for name, value in said.items():
        monkeypatch.setenv(name, value)
    path = tmp_path / "netdoctor.conf"
    path.write_bytes(conf.encode())
    assert slurm.misspelt(str(path)) == ([f"{path}{wrong}"] if wrong else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("ACTION=drian", "netdoctor.conf:2: ACTION=drian: must be drain or report; did you mean drain?"),
        ("ACTON=report", "netdoctor.conf:2: ACTON= is no setting; did you mean ACTION?"),
        ("DEADLINE=8s", "netdoctor.conf: DEADLINE=8s: must be whole seconds: the node is left as it is"),
    ],
)
def test_nothing_is_done_with_a_node_by_a_wrong_conf(tmp_path: pathlib.Path, line: str, told: str) -> None:
    for file in FILE.parent.iterdir():
        if file.is_file():
            shutil.copy(file, tmp_path)
    called = tmp_path / "called"
    (tmp_path / "netdoctor.conf").write_text(f"NETDOCTOR='/usr/bin/touch {called}'; PYTHON={sys.executable}\n{line}\n")
    done = subprocess.run(["sh", tmp_path / "prolog.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and told in done.stdout and "is left as it is" in done.stdout
    assert not called.exists()

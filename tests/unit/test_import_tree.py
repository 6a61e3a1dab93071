"""Trees of files from other machines: no crash, no false fail, no pass for what nobody looked at."""

from __future__ import annotations

import json
import pathlib

import pytest

from netdoctor.cli import setup
from netdoctor.cli.main import app
from netdoctor.config.load import Config
from netdoctor.model import Finding, Status, Unavailable
from netdoctor.snapshot.import_tree import TreeError, import_tree
from netdoctor.snapshot.snapshot import Snapshot, dumps, loads
from tests.lab import fixtures
from tests.support.machines.sysfs import Extra, dgx_h100, scratch

TREES: dict[str, dict[str, object]] = {
    "eight GPUs, eight HCAs": {},
    "RoCE": {"roce": True, "gids": 4},
    "GPUs alone": {"hcas": 0, "infiniband": False},
    "HCAs alone": {"gpus": 0},
    "no NUMA node is said": {"gpu_numa": dict.fromkeys(range(8), -1), "hca_numa": dict.fromkeys(range(8), -1)},
    "another accelerator": {
        "gpus": 0,
        "hcas": 0,
        "infiniband": False,
        "extra": [Extra(0x71, 0x1002, 0x74A1, 0x120000, "amdgpu")],
    },
}


def imported(root: pathlib.Path, **config: object) -> Snapshot:
    return import_tree(str(root), {**Config().as_answer(), **config}, fixtures.specs(), setup.policy_data(Config()), "test")


def found(taken: Snapshot) -> dict[tuple[str, str], Finding]:
    have = fixtures.findings(fixtures.facts_of(loads(dumps(taken))))
    return {(check, one.subject): one for check, those in have.items() for one in those}


@pytest.mark.parametrize("faults", TREES.values(), ids=TREES)
def test_a_tree_gives_no_fail_and_passes_for_hardware_alone(faults: dict[str, object]) -> None:
    with scratch() as root:
        dgx_h100(root / "sys", **faults)
        taken = imported(root)
    told = found(taken)
    theirs = ("hardware.", "gpu.", "pci.", "node.folders")  # of the last the configuration names none
    assert {f.status for (check, _), f in told.items() if not check.startswith(theirs)} <= {Status.UNKNOWN}
    assert Status.FAIL not in {f.status for f in told.values()}
    assert isinstance(taken.answers["env:"], Unavailable) and isinstance(taken.answers["ask:nvml"], Unavailable)


def on_driver(root: pathlib.Path, bus: str, driver: str) -> None:
    (uevent,) = (root / "sys/devices").glob(f"**/0000:{bus}:00.0/uevent")
    text = uevent.read_text().replace("DRIVER=nvidia\n", f"DRIVER={driver}\n" if driver else "")
    uevent.write_text(text.replace("DRIVER=mlx5_core\n", ""))


def test_hardware_is_judged_by_what_the_tree_holds() -> None:
    with scratch() as root:
        dgx_h100(root / "sys")
        on_driver(root, "df", "nouveau")
        on_driver(root, "dc", "")
        for name in ("class/infiniband", "class/infiniband_verbs"):
            (root / "sys" / name / f"{'mlx5_' if name.endswith('d') else 'uverbs'}7").unlink()
        told = found(imported(root, vantage="host"))
        alone = found(imported(root))
    assert told["hardware.accelerator", "GPUs on another driver"].status is Status.FAIL
    assert told["hardware.hca", "node"].status is Status.FAIL, "in the job's place, as the maker of the copy says"
    assert alone["hardware.hca", "node"].status is Status.UNKNOWN, "it may have been a container"


@pytest.mark.parametrize(
    ("vantage", "status"), [("job", Status.PASS), ("host", Status.PASS), ("node", Status.UNKNOWN), (None, Status.UNKNOWN)]
)
def test_the_vantage_that_is_stated_counts(vantage: str | None, status: Status) -> None:
    """What the copy holds of the process that made it is the job's own where its maker says so."""
    with scratch() as root:
        dgx_h100(root / "sys")
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/limits").write_text(
            "Max locked memory         unlimited            unlimited            bytes     \n"
        )
        (root / "proc/self/environ").write_text("NCCL_DEBUG=INFO\0OMP_NUM_THREADS=4\0")
        taken = imported(root, vantage=vantage, job={"nodes": 2})
    assert found(taken)["rdma.dev_infiniband", "memlock"].status is status
    if status is Status.PASS:
        assert taken.answers["env:"] == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "4"}


def test_a_folder_that_is_no_machine_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(TreeError):
        imported(tmp_path)


def test_links_do_not_leave_the_tree(tmp_path: pathlib.Path) -> None:
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "secret").write_text("mine\n")
    (tmp_path / "proc/sys/kernel/hostname").symlink_to("/etc/hostname")
    (tmp_path / "proc/sys/kernel/osrelease").symlink_to("../../../../../../../secret")
    taken = imported(tmp_path)
    assert isinstance(taken.answers["file:/proc/sys/kernel/hostname"], Unavailable)
    assert taken.answers["file:/proc/sys/kernel/osrelease"] == "mine\n", "as if the tree were the root"


@pytest.mark.slow
def test_the_command(tmp_path: pathlib.Path) -> None:
    from typer.testing import CliRunner

    (tmp_path / "sys/class/net").mkdir(parents=True)
    out = tmp_path / "snapshot.json"
    assert CliRunner().invoke(app, ["snapshot", "--import-tree", str(tmp_path), "-o", str(out)]).exit_code == 0
    assert json.loads(out.read_text())["schema"] == "netdoctor.snapshot/1"
    assert CliRunner().invoke(app, ["snapshot", "--import-tree", str(tmp_path / "none"), "-o", str(out)]).exit_code == 2


@pytest.mark.slow
def test_a_tree_gets_pseudonyms_too(tmp_path: pathlib.Path) -> None:
    from typer.testing import CliRunner

    gid = "fe80:0000:0000:0000:0002:c903:00f9:bfa1"
    ports = tmp_path / "sys/class/infiniband/mlx4_0/ports/1/gids"
    ports.mkdir(parents=True)
    (ports / "0").write_text(f"{gid}\n")
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/hostname").write_text("analysis17\n")
    out = tmp_path / "snapshot.json"
    command = ["snapshot", "--import-tree", str(tmp_path), "--pseudonymise", "-o", str(out)]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert gid not in out.read_text() and "analysis17" not in out.read_text()

"""Trees of files from other machines: no crash, no false fail, no pass for what nobody looked at."""

from __future__ import annotations

import json
import pathlib

import pytest

from netdoctor.cli import setup
from netdoctor.cli.main import app
from netdoctor.config.load import Config
from netdoctor.model import Status, Unavailable
from netdoctor.snapshot.import_tree import TreeError, import_tree
from netdoctor.snapshot.snapshot import Snapshot, dumps, loads
from tests.lab import fixtures
from tests.support.machines.sysfs import Extra, dgx_h100, scratch

AMD = Extra(0x71, 0x1002, 0x74A1, 0x120000, "amdgpu")
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


def imported(root: pathlib.Path) -> Snapshot:
    return import_tree(str(root), Config().as_answer(), fixtures.specs(), setup.policy_data(Config()), "test")


@pytest.mark.parametrize("faults", TREES.values(), ids=TREES)
def test_a_tree_gives_no_fail_and_no_pass(faults: dict[str, object]) -> None:
    with scratch() as root:
        dgx_h100(root / "sys", **faults)
        taken = loads(dumps(imported(root)))
    every = fixtures.findings(fixtures.facts_of(taken))
    found = [f for id, those in every.items() for f in those if not id.startswith("hardware.")]
    assert {f.status for f in found} <= {Status.UNKNOWN}, [f for f in found if f.status is not Status.UNKNOWN]
    # Hardware is judged by what the tree holds.
    assert not [f for those in every.values() for f in those if f.status is Status.FAIL]
    assert isinstance(taken.answers["env:"], Unavailable) and isinstance(taken.answers["ask:nvml"], Unavailable)


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


def test_the_command(tmp_path: pathlib.Path) -> None:
    from typer.testing import CliRunner

    (tmp_path / "sys/class/net").mkdir(parents=True)
    out = tmp_path / "snapshot.json"
    assert CliRunner().invoke(app, ["snapshot", "--import-tree", str(tmp_path), "-o", str(out)]).exit_code == 0
    assert json.loads(out.read_text())["schema"] == "netdoctor.snapshot/1"
    assert CliRunner().invoke(app, ["snapshot", "--import-tree", str(tmp_path / "none"), "-o", str(out)]).exit_code == 2


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

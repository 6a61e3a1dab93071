"""Probes end to end on a DGX laid over this machine's /sys and /dev."""

from __future__ import annotations

import os
import pathlib
import shutil
import stat
from collections.abc import Iterator

import pytest

from netdoctor.host.trust import trusted
from tests.support.machines import native
from tests.support.machines.sysfs import dgx_h100, scratch
from tests.support.namespaces.overlay import can_overlay, probes

pytestmark = [pytest.mark.live, pytest.mark.root, pytest.mark.skipif(bool(can_overlay()), reason=can_overlay() or "-")]


@pytest.fixture
def folder() -> Iterator[pathlib.Path]:
    with scratch() as one:
        yield one


def nodes(folder: pathlib.Path, mode: int = 0o666, owner: int = 0) -> pathlib.Path:
    """Eight /dev/infiniband/uverbsN that no driver answers (ENXIO)."""
    made = folder / "infiniband"
    made.mkdir(parents=True)
    for n in range(8):
        os.mknod(made / f"uverbs{n}", stat.S_IFCHR | mode, os.makedev(231, 192 + n))
        os.chmod(made / f"uverbs{n}", mode)
        os.chown(made / f"uverbs{n}", owner, owner)
    return folder


def fakes() -> dict[str, str]:
    folders = [native.nvml(), native.cuda(), native.ibverbs()]
    if reason := trusted(str(folders[0])):
        pytest.skip(f"root loads nothing from this checkout: {reason}")
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def test_the_whole_machine(folder: pathlib.Path) -> None:
    facts = probes(
        ["pci", "rdma", "gpu", "kernel", "cpu", "vantage"],
        sys_tree=dgx_h100(folder / "sys"),
        dev_tree=nodes(folder / "dev"),
        environment=fakes(),
    )
    tree = {one["address"]: one for one in facts["pci"]["devices"]}
    assert len([a for a, d in tree.items() if d["vendor"] == 0x10DE]) == 8
    assert tree["0000:1b:00.0"]["path"] == ["0000:15:01.0", "0000:16:00.0", "0000:17:01.0"]
    devices = facts["rdma"]["devices"]
    assert [d["name"] for d in devices] == [f"mlx5_{n}" for n in range(8)]
    first = devices[0]
    assert first["uverbs"]["numbers"] == first["uverbs"]["node_numbers"] == [231, 192]
    assert first["uverbs"]["open_errno"] == "ENXIO" and first["uverbs"]["owner"] == [0o666, 0, 0]
    assert first["provider"] == {"context": True, "error": "", "dmabuf_errno": "EBADF"}
    assert [g["numa_node"] for g in facts["gpu"]["all"]] == [0] * 4 + [1] * 4
    assert [v["uuid"] for v in facts["gpu"]["visible"]] == [g["uuid"] for g in facts["gpu"]["all"]]
    assert facts["kernel"]["modules"]["nvidia_peermem"]["version"] == "580.95.05"
    assert [max(n["cpus"]) for n in facts["cpu"]["nodes"]] == [55, 111]
    assert facts["vantage"]["euid"] == 0


@pytest.mark.parametrize("mask", ["mount -t tmpfs none /sys", "mount -t tmpfs none /sys/bus; mount -t tmpfs none /sys/class"])
def test_a_masked_sys_hides_nothing(folder: pathlib.Path, mask: str) -> None:
    facts = probes(["pci", "rdma", "kernel"], sys_tree=dgx_h100(folder / "sys"), setup=mask)
    assert facts["pci"]["unavailable"] in ("empty", "absent")
    assert facts["rdma"]["devices"]["unavailable"] in ("empty", "absent")
    if mask.endswith("/sys"):
        assert facts["kernel"]["modules"]["nvidia_peermem"]["unavailable"] == "not read"


@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv (util-linux)")
def test_nodes_of_somebody_else(folder: pathlib.Path) -> None:
    facts = probes(
        ["rdma", "vantage"],
        sys_tree=dgx_h100(folder / "sys"),
        dev_tree=nodes(folder / "dev", 0o600, 1000),
        wrap="setpriv --bounding-set -all --inh-caps -all",  # root without CAP_DAC_OVERRIDE is a user like others
    )
    assert facts["vantage"]["capabilities"] == []
    assert {d["uverbs"]["open_errno"] for d in facts["rdma"]["devices"]} == {"EACCES"}
    assert facts["rdma"]["devices"][0]["uverbs"]["owner"] == [0o600, 1000, 1000]


def test_cards_without_drivers(folder: pathlib.Path) -> None:
    """PCI shows eight HCAs, the RDMA core is not there: the two sources disagree, and each says what it saw."""
    facts = probes(["pci", "rdma"], sys_tree=dgx_h100(folder / "sys", infiniband=False))
    assert facts["rdma"]["devices"] == []
    assert len([d for d in facts["pci"]["devices"] if d["rdma"]]) == 8

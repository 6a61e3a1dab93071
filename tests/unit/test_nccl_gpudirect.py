"""When NCCL uses GPUDirect RDMA: the table of versions, distances and settings."""

from __future__ import annotations

import pytest

from netdoctor.facts.kernel import Module
from netdoctor.model import Unavailable
from netdoctor.nccl import gpudirect as g
from netdoctor.nccl.integers import integer
from tests.support import facts as f

MODULE = {"nvidia_peermem": Module("580.95.05")}
GONE = {"nvidia_peermem": Unavailable("absent")}


@pytest.mark.parametrize(
    ("version", "modules", "peers", "yes"),
    [
        ((2, 8, 4), MODULE, {"nv_mem": "1.1"}, True),
        ((2, 8, 4), MODULE, {"nvidia-peermem": "1.1"}, False),
        ((2, 21, 5), MODULE, {"nvidia-peermem": "1.1"}, True),
        ((2, 21, 5), MODULE, {}, False),  # loaded, and this version does not look there
        ((2, 22, 3), MODULE, {"nvidia-peermem": "1.1"}, False),  # the path was dropped in 2.22.3
        ((2, 22, 3), MODULE, {"nv_mem_nc": "1.1"}, True),
        ((2, 23, 4), MODULE, {}, True),
        ((2, 27, 5), {"nvidia_peermem": Module(None)}, {}, False),  # no version file
        ((2, 27, 5), GONE, {}, False),
        ((2, 27, 5), {"nvidia_peermem": Unavailable("denied")}, {}, None),
        ((2, 21, 5), MODULE, {"nv_mem": Unavailable("denied")}, None),
    ],
)
def test_the_module_files_of_each_version(version: g.Version, modules: dict, peers: dict, yes: bool | None) -> None:  # type: ignore[type-arg]
    assert g.peermem(version, modules, peers).yes is yes


@pytest.mark.parametrize(
    ("version", "driver", "attribute", "errno", "enable", "yes"),
    [
        ((2, 27, 5), 12040, True, "EBADF", None, True),
        ((2, 27, 5), 12040, True, "EINVAL", None, True),  # NCCL takes every errno but two for yes
        ((2, 27, 5), 12040, True, "EOPNOTSUPP", None, False),
        ((2, 27, 5), 12040, True, "EPROTONOSUPPORT", None, False),
        ((2, 12, 12), 12040, True, "EBADF", None, False),
        ((2, 27, 5), 11060, True, "EBADF", None, False),
        ((2, 27, 5), 12040, False, "EBADF", None, False),
        ((2, 27, 5), 12040, True, "EBADF", "0", False),
        ((2, 27, 5), 12040, True, "EBADF", "no", False),  # strtoll reads 0
        ((2, 27, 5), 12040, True, "EBADF", "1", True),
        ((2, 27, 5), 12040, True, Unavailable("unsupported"), None, False),
        ((2, 27, 5), 12040, True, Unavailable("timed out"), None, None),
        ((2, 27, 5), Unavailable("timed out"), True, "EBADF", None, None),
        ((2, 27, 5), Unavailable("timed out"), False, "EBADF", None, False),  # one no is enough
    ],
)
def test_dmabuf(
    version: g.Version,
    driver: int | Unavailable,
    attribute: bool,
    errno: str | Unavailable,
    enable: str | None,
    yes: bool | None,
) -> None:
    assert g.dmabuf(version, driver, attribute, errno, enable).yes is yes


def test_distances_of_a_dgx() -> None:
    gpu = f.gpu_device(0)
    assert g.distance(gpu, f.hca_device(0)) == "PIX"
    assert g.distance(gpu, f.hca_device(1)) == "PHB"
    assert g.distance(gpu, f.hca_device(7)) == "SYS"
    assert g.distance(gpu, f.hca_device(1), c2c=True) == "P2C"


def test_two_switches_below_one_root_port() -> None:
    upper = ("0000:10:01.0", "0000:11:00.0", "0000:12:00.0")
    gpu = f.gpu_device(0, path=(*upper, "0000:13:00.0", "0000:14:00.0"))
    near = f.hca_device(0, path=(*upper, "0000:13:00.0", "0000:14:01.0"))
    far = f.hca_device(1, path=(*upper[:2], "0000:12:01.0", "0000:20:00.0", "0000:21:00.0"))
    assert (g.distance(gpu, near), g.distance(gpu, far)) == ("PIX", "PXB")


def test_numa_node_below_zero_is_a_cpu_of_its_own() -> None:
    gpu = f.gpu_device(0, path=(), root="pci0000:00", numa_node=-1)
    assert g.distance(gpu, f.hca_device(0, path=(), numa_node=-1, root="pci0001:00")) == "PHB"
    assert g.distance(gpu, f.hca_device(0, path=(), numa_node=0, root="pci0001:00")) == "SYS"


def test_a_numa_node_that_could_not_be_read() -> None:
    lost = f.gpu_device(0, path=(), root="pci0000:00", numa_node=Unavailable("denied"))
    kind = g.distance(lost, f.hca_device(0, path=(), numa_node=-1, root="pci0001:00"))
    assert kind == g.FAR
    assert (g.within(kind, "PXB"), g.within(kind, "PHB"), g.within(kind, "SYS")) == (False, None, True)


@pytest.mark.parametrize(
    ("version", "setting", "c2c", "level"),
    [
        ((2, 5, 7), None, None, ("PHB", False)),
        ((2, 21, 5), None, None, ("PXB", False)),
        ((2, 26, 5), None, None, ("PXB", False)),
        ((2, 26, 5), None, "1", ("P2C", False)),
        ((2, 27, 5), None, None, ("P2C", False)),
        ((2, 27, 5), None, "0", ("PXB", False)),
        ((2, 27, 5), "SYS", None, ("SYS", True)),
        ((2, 27, 5), "sys", None, ("P2C", False)),  # case-sensitive: ignored
        ((2, 25, 1), "P2C", None, ("PXB", False)),  # no name yet: ignored
        ((2, 27, 3), "P2C", None, ("P2C", True)),
        ((2, 27, 5), "3", None, ("PHB", True)),
        ((2, 27, 5), "9", None, ("SYS", True)),
        ((2, 27, 5), "0", None, ("LOC", True)),
        ((2, 27, 5), "0x2", None, ("PXB", True)),  # strtol(3), base 0
        ((2, 27, 5), "C2C", None, ("C2C", True)),
        ((2, 20, 5), "C2C", None, ("PXB", False)),  # a name that this version does not know
    ],
)
def test_level(version: g.Version, setting: str | None, c2c: str | None, level: tuple[str, bool]) -> None:
    assert g.level(version, setting, c2c) == level


@pytest.mark.parametrize(
    ("capability", "nvlink", "gpus", "setting", "yes"),
    [
        ((9, 0), False, 8, None, True),
        ((7, 0), False, 8, None, False),
        ((7, 0), True, 8, None, True),
        ((7, 0), False, 1, None, True),
        ((9, 0), True, 8, "0", False),
        ((7, 0), False, 8, "1", True),
        ((7, 0), Unavailable("denied"), 8, None, None),
        (Unavailable("denied"), True, 8, None, None),
    ],
)
def test_reads(
    capability: tuple[int, int] | Unavailable, nvlink: bool | Unavailable, gpus: int, setting: str | None, yes: bool | None
) -> None:
    assert g.reads(capability, nvlink, gpus, setting).yes is yes


def test_before_2_19_no_gpu_sends_by_gpudirect_without_nvlink() -> None:
    """Seen on 2.18.3: paths.cc asks for the compute capability since 2.19.1."""
    assert g.reads((9, 0), False, 2, None, (2, 18, 3)).yes is False
    assert g.reads((9, 0), False, 2, None, (2, 19, 1)).yes is True
    assert g.reads((9, 0), False, 1, None, (2, 18, 3)).yes is True
    assert g.reads((9, 0), True, 2, None, (2, 18, 3)).yes is True


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1", 1),
        ("0x10", 16),
        ("010", 8),
        ("true", 0),
        ("", 0),
        ("-2", -2),
        ("3abc", 3),
        (" 5", 5),
        ("08", 0),
        ("+-1", 0),
        ("--1", 0),
        ("- 1", 0),
        ("+7", 7),
        ("0x", 0),
        ("0xg", 0),
        ("\u00a05", 0),
        ("9223372036854775808", (1 << 63) - 1),
        ("-0x8000000000000001", -(1 << 63)),
        ("1" * 5000, (1 << 63) - 1),
        ("0" * 5000 + "7", 7),
    ],
)
def test_integers_as_strtoll_reads_them(value: str, number: int) -> None:
    assert integer(value) == number

"""When NCCL registers GPU memory with an HCA (GPUDirect RDMA), as pure functions of the version and of what it looks at.

Sources (NCCL): src/transport/net_ib/gdr.cc (ncclIbGdrSupport, ncclIbDmaBufSupport; before 2.28 src/transport/net_ib.cc),
src/init.cc (dmaBufSupported), src/graph/paths.cc (ncclTopoCheckGdr, ncclGetLevel), src/graph/xml.cc (ncclTopoGetXmlFromSys).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from netdoctor.facts.kernel import Module
from netdoctor.facts.nccl_version import Version, text
from netdoctor.facts.pci import PciDevice
from netdoctor.model import Kind, Unavailable, record
from netdoctor.nccl.integers import integer, param

# Nearest first, with the first version that knows it (topo.h, PATH_*): its place decides nothing for those without it.
LEVEL_SINCE: Final[Mapping[str, Version]] = {
    "LOC": (2, 3, 0),
    "NVL": (2, 5, 0),
    "NVB": (2, 9, 0),
    "C2C": (2, 26, 0),
    "PIX": (2, 3, 0),
    "PXB": (2, 3, 0),
    "P2C": (2, 27, 0),
    "PXN": (2, 12, 0),
    "PHB": (2, 3, 0),
    "SYS": (2, 3, 0),
}
LEVELS: Final = tuple(LEVEL_SINCE)
FAR: Final = "PHB or SYS"  # through the CPU, and whether through one or two could not be read
_RANKS: Final = {kind: place for place, kind in enumerate(LEVELS)} | {FAR: LEVELS.index("SYS")}
_LEGACY: Final = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")  # paths.cc, levelsOldToNew

_PEERS: Final = "/sys/kernel/mm/memory_peers/"
MODULE: Final = "/sys/module/nvidia_peermem/version"
# (first version, files of which one must exist); the newest row at or below a version holds.
MODULE_FILES: Final[tuple[tuple[Version, tuple[str, ...]], ...]] = (
    ((0, 0, 0), (f"{_PEERS}nv_mem/version",)),  # net_ib.cc of 2.4 to 2.9.6
    ((2, 9, 8), (f"{_PEERS}nv_mem/version", f"{_PEERS}nvidia-peermem/version")),  # net_ib.cc of 2.9.8 to 2.21.5
    ((2, 22, 3), (f"{_PEERS}nv_mem/version", f"{_PEERS}nv_mem_nc/version")),  # net_ib.cc of 2.22.3
    ((2, 23, 4), (f"{_PEERS}nv_mem/version", f"{_PEERS}nv_mem_nc/version", MODULE)),  # net_ib.cc, gdr.cc since 2.23.4
)
P2C_SINCE: Final[Version] = (2, 26, 2)
DMABUF_SINCE: Final[Version] = (2, 13, 4)  # init.cc, dmaBufSupported
LIBCUDA_1: Final[Version] = (2, 21, 5)  # cudawrap.cc up to 2.20.5: dlopen("libcuda.so"), a name that not every container has
DMABUF_DRIVER: Final = 11070  # init.cc: cudaDriverVersion < 11070 is no
NO_DMABUF: Final = frozenset({"EOPNOTSUPP", "EPROTONOSUPPORT"})  # every other errno is yes (ncclIbDmaBufSupport)
C2C_NAMES: Final = ("GH200", "GB200", "GB300")  # GPU and CPU share NVLink-C2C
NO_PLATFORM: Final = ("GB10",)  # DGX Spark: no GPUDirect RDMA by design of the platform
CONSUMER: Final = ("GeForce", "TITAN")  # the driver offers no GPUDirect RDMA on these


class NoGdr(Enum):
    """Noes that have a mend of their own."""

    DMABUF_SWITCHED_OFF = "NCCL_DMABUF_ENABLE=0"
    DMABUF_NOT_OFFERED = "the driver offers none"
    VERBS_TOO_OLD = "libibverbs without IBVERBS_1.12"
    MODULE_NOT_LOOKED_AT = "NCCL looks elsewhere"
    NO_MODULE = "none is loaded"


@record
class Answer:
    """Yes, no, or not known, and why."""

    yes: bool | None
    why: str
    rule: NoGdr | None = None  # of a no that has a mend of its own


@record
class Mechanisms:
    """The two ways by which an HCA reaches a GPU's memory; one is enough."""

    peermem: Answer
    dmabuf: Answer

    @property
    def yes(self) -> bool | None:
        if self.dmabuf.yes or self.peermem.yes:
            return True
        return False if self.peermem.yes is False and self.dmabuf.yes is False else None

    @property
    def why(self) -> str:
        return f"peer memory: {self.peermem.why}. DMA-BUF: {self.dmabuf.why}"


Modules = Mapping[str, Module | Unavailable]
Peers = Mapping[str, str | Unavailable]


def module_files(version: Version) -> tuple[str, ...]:
    """The files whose existence tells this NCCL version that a peer-memory module is loaded."""
    return next(files for since, files in reversed(MODULE_FILES) if version >= since)


def present(path: str, modules: Modules, peers: Peers) -> bool | Unavailable:
    """Whether one of those files is there, by what was read of /sys/module and /sys/kernel/mm/memory_peers."""
    if path == MODULE:
        found: Module | Unavailable = modules.get("nvidia_peermem", Unavailable(Kind.NOT_READ, f"{MODULE} was not looked at"))
        if isinstance(found, Unavailable):
            return False if found.kind == Kind.ABSENT else found
        return found.version is not None
    got = peers.get(path.removeprefix(_PEERS).partition("/")[0], Unavailable(Kind.ABSENT))
    if isinstance(got, Unavailable):
        return False if got.kind == Kind.ABSENT else got
    return True


def peermem(version: Version, modules: Modules, peers: Peers) -> Answer:
    """Whether this version sees a peer-memory module."""
    unread: list[str] = []
    for path in module_files(version):
        found = present(path, modules, peers)
        if found is True:
            return Answer(True, path)
        if isinstance(found, Unavailable):
            unread.append(f"{path}: {found}")
    if unread:
        return Answer(None, "; ".join(unread))
    if present(MODULE, modules, peers) is True:
        return Answer(
            False, f"nvidia_peermem is loaded, but NCCL {text(version)} does not look at {MODULE}", NoGdr.MODULE_NOT_LOOKED_AT
        )
    return Answer(False, f"none of {', '.join(module_files(version))}", NoGdr.NO_MODULE)


def dmabuf(
    version: Version,
    cuda_driver: int | Unavailable,
    attribute: bool | Unavailable,
    errno: str | Unavailable,
    enable: str | None,
) -> Answer:
    """Whether this version would use DMA-BUF; `errno` is that of ibv_reg_dmabuf_mr(fd=-1), `enable` NCCL_DMABUF_ENABLE."""
    if version < DMABUF_SINCE:
        return Answer(False, f"NCCL {text(version)} is older than {text(DMABUF_SINCE)}")
    if param(enable, 1, version) == 0:
        return Answer(False, f"NCCL_DMABUF_ENABLE={enable}", NoGdr.DMABUF_SWITCHED_OFF)
    if attribute is False:
        why = "the driver offers no DMA-BUF for this GPU (attribute 124 is 0): open kernel modules would"
        return Answer(False, why, NoGdr.DMABUF_NOT_OFFERED)
    if isinstance(errno, str) and errno in NO_DMABUF:
        return Answer(False, f"ibv_reg_dmabuf_mr answers {errno}")
    if isinstance(errno, Unavailable) and errno.kind == Kind.UNSUPPORTED:
        return Answer(False, "this libibverbs has no ibv_reg_dmabuf_mr (IBVERBS_1.12)", NoGdr.VERBS_TOO_OLD)
    if isinstance(cuda_driver, int) and cuda_driver < DMABUF_DRIVER:
        return Answer(False, f"the driver is for CUDA {cuda_driver // 1000}.{cuda_driver % 1000 // 10}, DMA-BUF needs 11.7")
    for name, got in (("attribute 124", attribute), ("ibv_reg_dmabuf_mr", errno), ("CUDA driver version", cuda_driver)):
        if isinstance(got, Unavailable):
            return Answer(None, f"{name}: {got}")
    return Answer(True, f"attribute 124 is 1, ibv_reg_dmabuf_mr(fd=-1) answers {errno}")


def switches(device: PciDevice) -> tuple[str, ...]:
    """The PCIe switches above a device as NCCL counts them: every second component of its path, nearest first."""
    return device.path[-2::-2]


def distance(gpu: PciDevice, nic: PciDevice, c2c: bool = False) -> str:
    """The path type between a GPU and a NIC: one of `LEVELS`, or `FAR`."""
    if gpu.path[:1] == nic.path[:1]:  # below one root port: of all pairs of a GPU and a NIC most are not
        mine, theirs = switches(gpu), switches(nic)
        if mine and theirs and mine[0] == theirs[0]:
            return "PIX"
        if not set(mine).isdisjoint(theirs):
            return "PXB"
    if isinstance(gpu.numa_node, Unavailable) or isinstance(nic.numa_node, Unavailable):
        return "PHB" if gpu.root == nic.root else FAR
    if gpu.numa_node != nic.numa_node:  # -1 is a CPU of its own (xml.cc, ncclTopoGetXmlFromSys: its "numaid")
        return "SYS"
    return "P2C" if c2c else "PHB"


def rank(kind: str) -> int:
    """Order of a distance; `FAR` counts as the farther of the two."""
    return _RANKS[kind]


def level_of(text: str, version: Version) -> str | None:
    """The distance that NCCL takes a text for; None where it ignores it.

    Names are case-sensitive, what begins with a digit is the old numbering, by strtol(3) (paths.cc, ncclGetLevel).
    """
    if text in LEVELS and LEVEL_SINCE[text] <= version:
        return text
    return _LEGACY[min(integer(text), len(_LEGACY) - 1)] if text[:1] in _DIGITS and text else None


_DIGITS: Final = "0123456789"


def level(version: Version, setting: str | None, c2c_setting: str | None = None) -> tuple[str, bool]:
    """(the farthest distance at which NCCL uses GPUDirect RDMA, whether NCCL_NET_GDR_LEVEL says so).

    Defaults: PHB up to 2.5, PXB up to 2.27.1, then P2C where NCCL_NET_GDR_C2C is on, its default since 2.27.3 (paths.cc,
    ncclTopoCheckGdr).
    """
    if given := level_of(setting or "", version):
        return given, True
    if version < (2, 6, 0):
        return "PHB", False
    c2c = param(c2c_setting, int(version >= (2, 27, 3)), version) != 0
    return ("P2C" if c2c and version >= P2C_SINCE else "PXB"), False


def within(kind: str, limit: str) -> bool | None:
    """Whether a distance is near enough; None where that could not be read."""
    if kind == FAR:
        return True if limit == "SYS" else None if limit == "PHB" else False
    return LEVELS.index(kind) <= LEVELS.index(limit)


def reads(
    capability: tuple[int, int] | Unavailable,
    nvlink: bool | Unavailable,
    gpus: int,
    setting: str | None,
    version: Version | None = None,
) -> Answer:
    """Whether sends (reads by the NIC) use GPUDirect: off before Ampere without NVLink (paths.cc, NCCL_NET_GDR_READ).

    Before 2.19.1 no GPU is spared that question.
    """
    value = param(setting, -2, version)
    if value == 0:
        return Answer(False, f"NCCL_NET_GDR_READ={setting}")
    if value > 0:
        return Answer(True, f"NCCL_NET_GDR_READ={setting}")
    every = version is not None and version < (2, 19, 1)
    if isinstance(capability, Unavailable) and not every:
        return Answer(None, f"compute capability: {capability}")
    if gpus == 1 or not (every or isinstance(capability, Unavailable) or capability < (8, 0)):
        return Answer(True, "the default")
    if isinstance(nvlink, Unavailable):
        return Answer(None, f"NVLink: {nvlink}")
    older = "before NCCL 2.19" if every else "before Ampere"
    return Answer(nvlink, "the default with NVLink" if nvlink else f"off by default {older} without NVLink")

"""GPUs: what NVML sees, joined by UUID to what libcuda shows the job."""

from __future__ import annotations

import re
from typing import Any, Final, TypeVar

from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.pci import numa_node
from netdoctor.host.base import Host, mapping, read, value
from netdoctor.model import Kind, Unavailable, record

T = TypeVar("T")
PARAMETERS: Final = "/proc/driver/nvidia/params"
# A CUDA context alone takes 300 to 600 MiB, an idle GPU less than 100 MiB (memory v2: without what the driver reserves).
IDLE: Final = 256 << 20  # bytes at most


@record
class Gpu:
    """One GPU as NVML knows it."""

    uuid: str | Unavailable
    index: int  # NVML's
    name: str | Unavailable
    pci: str | Unavailable  # "0000:1b:00.0"
    numa_node: int | Unavailable  # the PCI device's numa_node, never nvmlDeviceGetNumaNodeId
    memory_total: int | Unavailable  # bytes
    memory_used: int | Unavailable  # bytes; reserved excluded where NVML can (v2)
    utilization: int | Unavailable  # percent
    processes: int | Unavailable  # blind across PID namespaces
    nvlinks: tuple[bool, ...] | Unavailable  # state per link; () none
    mig: bool | Unavailable
    capability: tuple[int, int] | Unavailable  # compute capability, (9, 0)
    mig_uuids: tuple[str, ...] | Unavailable = ()  # MIG-… of its instances
    pids: tuple[int, ...] | Unavailable = ()  # of `processes`, in the initial PID namespace
    graphics: int | Unavailable = Unavailable(Kind.NOT_READ, "NVML was not asked for it")  # bytes of those that draw

    @property
    def place(self) -> str:
        """As findings name it."""
        return self.pci if isinstance(self.pci, str) else str(self.uuid)

    @property
    def held(self) -> bool:
        """Whether so much of its memory is in use that somebody must compute on it; False where that is not known."""
        return isinstance(self.memory_used, int) and self.memory_used > IDLE

    @property
    def unexplained(self) -> bool:
        """Whether memory of it is in use for which NVML names neither a process that computes nor those that draw."""
        drawn = self.graphics if isinstance(self.graphics, int) else 0
        return isinstance(self.memory_used, int) and self.memory_used - drawn > IDLE and not self.processes


@record
class VisibleGpu:
    """One device that libcuda shows the job, in the job's order."""

    ordinal: int
    uuid: str  # GPU-… or MIG-…
    name: str
    gpudirect_rdma: bool | Unavailable  # CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED (116)
    dmabuf: bool | Unavailable  # CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED (124)
    integrated: bool | Unavailable  # CU_DEVICE_ATTRIBUTE_INTEGRATED (18)
    # CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED (132): NVSwitches reduce for it
    multicast: bool | Unavailable = Unavailable(Kind.NOT_READ, "libcuda was not asked for it")


@record
class Gpus(Fact):
    """The NVIDIA GPUs that NVML and libcuda show, and the driver."""

    driver: str | Unavailable  # "580.95.05"
    cuda_driver: int | Unavailable  # 13000, from libcuda or NVML
    all: tuple[Gpu, ...] | Unavailable  # () only where NVML answered 0
    visible: tuple[VisibleGpu, ...] | Unavailable  # () only where libcuda answered 0 or CUDA_ERROR_NO_DEVICE
    # The driver was told to train no NVLink (NVreg_NvLinkDisable, kernel-open/nvidia/nv-reg.h); asked where no GPU has one up.
    links_off: bool | Unavailable = Unavailable(Kind.NOT_READ, "the driver's parameters were not read")
    refused: int | None = None  # what libcuda answered to who asked for the devices, where that is an error (cuda.h, CUresult)
    nvml_refused: int | None = None  # what NVML said when it did not start (nvml.h, nvmlReturn_t)
    libcuda: str = ""  # the file that the loader took for libcuda, where it refused; "": not told

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        return super()._unread(no_evidence(why))

    @property
    def count(self) -> int | Unavailable:
        """How many NVML knows."""
        return self.all if isinstance(self.all, Unavailable) else len(self.all)

    @property
    def none_visible(self) -> bool:
        """libcuda shows none, or it is not there at all."""
        return self.visible.kind == Kind.ABSENT if isinstance(self.visible, Unavailable) else not self.visible

    @property
    def of_the_job(self) -> tuple[tuple[VisibleGpu, Gpu | None], ...] | Unavailable:
        """Visible GPUs in the job's order, each with NVML's view of it where the UUIDs meet."""
        if isinstance(self.visible, Unavailable):
            return self.visible
        known: dict[str, Gpu] = {}
        for gpu in self.all or ():
            known |= dict.fromkeys((*(gpu.mig_uuids or ()), *([gpu.uuid] if isinstance(gpu.uuid, str) else [])), gpu)
        return tuple((v, known.get(v.uuid)) for v in self.visible)


def probe(host: Host) -> Gpus:
    """NVML's GPUs of the node, and libcuda's of the job."""
    nvml, cuda = mapping(host, "ask:nvml"), mapping(host, "ask:cuda")
    everything = _all(host, nvml)
    version = _field(cuda, "driver_version", int)
    return Gpus(
        driver=_field(nvml, "driver", str),
        cuda_driver=_field(nvml, "cuda", int) if isinstance(version, Unavailable) else version,
        all=everything,
        visible=_visible(cuda, everything or ()),
        links_off=_links_off(host, everything or ()),
        refused=refusal(cuda),
        nvml_refused=refusal(nvml),
        libcuda=str(told) if cuda and (told := cuda.get("library")) and isinstance(told, str) else "",
    )


def refusal(cuda: dict[str, Any] | Unavailable) -> int | None:
    told = cuda.get("devices") if isinstance(cuda, dict) else None
    code = told.get("code") if isinstance(told, dict) else None
    return code if isinstance(code, int) else None


def _field(answer: dict[str, Any] | Unavailable, name: str, kind: type[T]) -> T | Unavailable:
    return answer if isinstance(answer, Unavailable) else value(answer.get(name), kind, name)


def _all(host: Host, nvml: dict[str, Any] | Unavailable) -> tuple[Gpu, ...] | Unavailable:
    devices: list[Any] | Unavailable = _field(nvml, "devices", list)
    if isinstance(devices, Unavailable):
        return devices
    return tuple(_gpu(host, one if isinstance(one, dict) else {}, n) for n, one in enumerate(devices))


def _links_off(host: Host, every: tuple[Gpu, ...]) -> bool | Unavailable:
    """Of what nvidia.ko was loaded with: "NvLinkDisable: 1" (nv-procfs.c); a driver that has no such line cannot."""
    if any(isinstance(gpu.nvlinks, Unavailable) or any(gpu.nvlinks) for gpu in every) or not every:
        return Unavailable(Kind.NOT_READ, "the driver's parameters were not read")
    text = read(host, PARAMETERS)
    if isinstance(text, Unavailable):
        return text
    found = re.search(r"^NvLinkDisable: (\d+)$", text, re.MULTILINE | re.ASCII)
    return found is not None and int(found[1]) != 0 if text else Unavailable(Kind.EMPTY, PARAMETERS)


def _gpu(host: Host, one: dict[str, Any], position: int) -> Gpu:
    lost = value(one, str, "") if "unavailable" in one else None  # NVML gives no handle: the GPU fell off the bus

    def of(name: str, kind: type[T]) -> T | Unavailable:
        return lost if isinstance(lost, Unavailable) else value(one.get(name), kind, f"NVML {name}")

    index, pci = value(one.get("index"), int, "index"), of("pci", str)
    address = pci if isinstance(pci, Unavailable) else pci_address(pci)
    links, capability, instances = of("nvlinks", list), of("capability", list), of("mig_uuids", list)
    pids = of("pids", list)
    return Gpu(
        uuid=of("uuid", str),
        index=position if isinstance(index, Unavailable) else index,
        name=of("name", str),
        pci=address,
        numa_node=address if isinstance(address, Unavailable) else numa_node(host, address),
        memory_total=of("memory_total", int),
        memory_used=of("memory_used", int),
        utilization=of("utilization", int),
        processes=of("processes", int),
        nvlinks=links if isinstance(links, Unavailable) else tuple(map(bool, links)),
        mig=of("mig", bool),
        capability=capability if isinstance(capability, Unavailable) else _pair(capability),
        mig_uuids=instances if isinstance(instances, Unavailable) else tuple(map(str, instances)),
        pids=pids if isinstance(pids, Unavailable) else tuple(p for p in pids if type(p) is int and 0 < p < 1 << 22),
        graphics=of("graphics", int),
    )


def _pair(values: list[Any]) -> tuple[int, int] | Unavailable:
    if len(values) == 2 and all(isinstance(v, int) for v in values):
        return values[0], values[1]
    return Unavailable(Kind.MALFORMED, f"compute capability {str(values)[:40]}")


def pci_address(text: str) -> str | Unavailable:
    """NVML's "00000000:1B:00.0" as sysfs writes it; domains above ffff (VMD, Hyper-V) keep their digits."""
    found = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])", text.strip().lower())
    if found is None:
        return Unavailable(Kind.MALFORMED, f"PCI address {text[:40]!r}")
    return f"{int(found.group(1), 16):04x}:{found.group(2)}"


def _visible(cuda: dict[str, Any] | Unavailable, known: tuple[Gpu, ...]) -> tuple[VisibleGpu, ...] | Unavailable:
    devices: list[Any] | Unavailable = _field(cuda, "devices", list)
    if isinstance(devices, Unavailable):
        return devices
    # libcuda gives the 16 bytes of a UUID, not whether they name a GPU or a MIG instance: NVML's names tell.
    names: dict[str, str] = {}
    for gpu in known:
        for name in (gpu.uuid, *(gpu.mig_uuids or ())):
            if isinstance(name, str):
                names[re.sub(r"[^0-9a-f]", "", name.lower().partition("-")[2])] = name
    found = []
    for n, one in enumerate(devices):
        seen = _visible_one(one if isinstance(one, dict) else {}, n, names)
        if isinstance(seen, Unavailable):
            return seen  # fewer devices than the job has would be a wrong answer
        found.append(seen)
    return tuple(found)


def _visible_one(one: dict[str, Any], position: int, names: dict[str, str]) -> VisibleGpu | Unavailable:
    digits = value(one if "unavailable" in one else one.get("uuid"), str, "UUID of a CUDA device")
    if isinstance(digits, Unavailable):
        return digits
    name = value(one.get("name"), str, "name")
    raw: dict[str, Any] = value(one.get("attributes"), dict, "") or {}

    def flag(number: int) -> bool | Unavailable:
        got = value(raw.get(str(number)), int, f"CUDA attribute {number}")
        return got if isinstance(got, Unavailable) else got != 0

    plain = f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
    return VisibleGpu(
        ordinal=position,
        uuid=names.get(digits.lower(), f"GPU-{plain}"),
        name=name or "",
        gpudirect_rdma=flag(116),
        dmabuf=flag(124),
        integrated=flag(18),
        multicast=flag(132) if "132" in raw else Unavailable(Kind.NOT_READ, "libcuda was not asked for it"),
    )

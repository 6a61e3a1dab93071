"""A builder of nodes, as a `ComposedHost`: PCI, GPUs, HCAs, interfaces, a Python with torch, and the process that looks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from netdoctor.host.base import question
from netdoctor.model import Unavailable
from tests.support.machines.composed_host import MODULES, SYSCTLS, ComposedHost, Files, SysTree, netlink_address, netlink_link

MELLANOX, NVIDIA = 0x15B3, 0x10DE
IPC_LOCK = 1 << 14


@dataclass(frozen=True)
class Place:
    """Where a PCI function sits in /sys/devices: its folder, its address, its NUMA node."""

    where: str
    address: str
    numa: int


@dataclass
class Node:
    """One machine while it is built."""

    hostname: str
    release: str = "6.8.0-60-generic"
    arm: bool = False
    host: ComposedHost = field(default_factory=ComposedHost)
    gpus: list[dict[str, Any]] = field(default_factory=list)  # of ask:nvml
    cuda: list[dict[str, Any]] = field(default_factory=list)  # of ask:cuda
    verbs: dict[str, Any] = field(default_factory=dict)  # of ask:ibverbs
    links: list[dict[str, Any]] = field(default_factory=list)
    addresses: list[dict[str, Any]] = field(default_factory=list)
    default: tuple[str, str, str] | None = None  # interface, source, gateway
    environment: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    uid: int = 1000
    capabilities: int = 0
    memlock: str = "unlimited"
    container: bool = False
    shm: int = 0  # bytes of /dev/shm, as its mount says; 0: it does not, as systemd mounts it
    cgroup: str = "0::/user.slice/user-1000.slice/session-4.scope"
    cuda_version: int = 13000
    driver: str = "580.95.05"
    uverbs: int = 0
    modules: dict[str, str] = field(default_factory=dict)  # name -> version, "" where it has no version file
    numa: dict[int, tuple[str, str]] = field(default_factory=dict)  # node -> (CPU list, distances)
    sysctls: dict[str, str] = field(default_factory=dict)
    nccl_version: tuple[int, int, int] = (2, 27, 5)
    libnccl: str = ""
    bootstrap: tuple[str, str] | None = None  # what this NCCL takes: interface and address
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tree = SysTree(self.host.files)
        for name in ("class/net", "bus/pci/devices", "bus/pci/drivers", "bus/cpu", "kernel/mm/transparent_hugepage"):
            self.tree.folder(name)
        for name in ("fd", "null", "zero", "shm", "tty"):
            self.files.write(f"/dev/{name}", "")

    @property
    def files(self) -> Files:
        return self.host.files

    # PCI

    def root_port(self, root: str, device: str = "01.0", numa: int = 0) -> str:
        """A root port of ``pci0000:17``; returns the folder that devices below it go to."""
        domain = root.removeprefix("pci")
        where = f"devices/{root}/{domain}:{device}"
        if where not in self.tree.made:
            self.tree.put(where, f"{domain}:{device}", 0x1000, 0xC030, 0x060400, "pcieport", numa, 16)
        return where

    def port_below(self, parent: str, address: str, numa: int) -> str:
        """A port of a switch below `parent`."""
        where = f"{parent}/{address}"
        if where not in self.tree.made:
            self.tree.put(where, address, 0x1000, 0xC030, 0x060400, "pcieport", numa, 16)
        return where

    def function(
        self,
        parent: str,
        address: str,
        ids: tuple[int, int],
        klass: int,
        driver: str,
        numa: int,
        *,
        speed: str = "32.0 GT/s PCIe",
        width: int = 16,
    ) -> Place:
        """A PCI function in the folder `parent`."""
        where = f"{parent}/{address}"
        self.tree.put(where, address, *ids, klass, driver, numa, width)
        self.tree.write(where, current_link_speed=speed, max_link_speed=speed, max_link_width=str(width))
        return Place(where, address, numa)

    # GPUs

    def gpu(self, place: Place, name: str, *, capability: tuple[int, int], links: int, attributes: Mapping[int, int]) -> None:
        """A GPU that NVML and libcuda show, in this order."""
        index = len(self.gpus)
        digits = hashlib.sha256(f"{self.hostname} GPU {index}".encode()).hexdigest()[:32]
        uuid = f"GPU-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
        domain, bus, device = int(place.address[:4], 16), int(place.address[5:7], 16), int(place.address[8:10], 16)
        self.gpus.append(
            {
                "index": index,
                "uuid": uuid,
                "name": name,
                "pci": f"{domain:08X}:{place.address[5:].upper()}",
                "memory_total": 85520809984,
                "memory_used": 4 << 20,
                "utilization": 0,
                "processes": 0,
                "nvlinks": [True] * links,
                "mig": False,
                "mig_uuids": [],
                "capability": list(capability),
            }
        )
        base = {18: 0, 33: bus, 34: device, 50: domain, 75: capability[0], 76: capability[1], 110: 1, 116: 1, 124: 1}
        every = {**base, 128: 0, 132: int(capability >= (9, 0)), 134: place.numa, **attributes}
        self.cuda.append({"ordinal": index, "name": name, "uuid": digits, "attributes": {str(k): v for k, v in every.items()}})
        self.files.write(f"/dev/nvidia{index}", "")

    # RDMA

    def hca(
        self,
        place: Place,
        name: str,
        *,
        driver: str = "mlx5_core",
        layer: str = "InfiniBand",
        rate: str = "400 Gb/sec (4X NDR)",
        active: bool = True,
        gids: Iterable[tuple[int, str, str, str]] = (),
        dmabuf: str = "EBADF",
        firmware: str = "28.39.1002",
        mapped: bool = True,
    ) -> None:
        """An RDMA device of `place` with one port.  `gids`: (index, value, type, interface), "" for an unreadable interface."""
        number, self.uverbs = self.uverbs, self.uverbs + 1
        device, port = f"{place.where}/infiniband/{name}", f"{place.where}/infiniband/{name}/ports/1"
        self.tree.link(f"class/infiniband/{name}", device)
        self.tree.link(f"{device}/device", place.where)
        self.tree.write(device, fw_ver=firmware, node_type="1: CA", node_desc=f"{self.hostname} {name}")
        self.tree.write(
            port,
            state="4: ACTIVE" if active else "1: DOWN",
            phys_state="5: LinkUp" if active else "3: Disabled",
            rate=rate,
            link_layer=layer,
        )
        guid = hashlib.sha256(f"{self.hostname} {name}".encode()).hexdigest()[:12]
        local = f"fe80:0000:0000:0000:a088:c2{guid[:2]}:{guid[2:6]}:{guid[6:10]}"
        for index, value, kind, interface in tuple(gids) or ((0, local, "IB/RoCE v1", ""),):
            self.tree.write(f"{port}/gids", **{str(index): value})
            self.tree.write(f"{port}/gid_attrs/types", **{str(index): kind})
            if interface:
                self.tree.write(f"{port}/gid_attrs/ndevs", **{str(index): interface})
        self.tree.write("class/infiniband_verbs", abi_version="6")
        verbs = f"{place.where}/infiniband_verbs/uverbs{number}"
        self.tree.write(verbs, ibdev=name, dev=f"231:{192 + number}")
        self.tree.link(f"class/infiniband_verbs/uverbs{number}", verbs)
        if mapped:
            node = f"/dev/infiniband/uverbs{number}"
            self.files.write(node, "")
            plain = {"mode": 0o666, "uid": 0, "gid": 0, "type": "char", "major": 231, "minor": 192 + number, "dev": 5}
            self.host.answers[f"stat:{node}"] = plain
            self.verbs[name] = {"context": True, "error": "", "pd": "", "dmabuf": dmabuf}
        family = {"mlx5_core": "mlx5_ib"}.get(driver)
        self.modules |= {"ib_core": "", "ib_uverbs": "", driver: "", **({family: ""} if family else {})}

    # Interfaces

    def loopback(self) -> None:
        self.links.append(netlink_link("lo", 1, "00:00:00:00:00:00"))
        self.addresses += [netlink_address("127.0.0.1", 1, "lo", 8), netlink_address("::1", 1, None, 128)]
        self.tree.write("class/net/lo", ifindex="1", address="00:00:00:00:00:00")

    def interface(
        self,
        name: str,
        *ips: str,
        place: Place | None = None,
        speed: int | None = None,
        mtu: int = 1500,
        kind: str | None = None,
        controller: str | None = None,
        infiniband: bool = False,
        up: bool = True,
        driver: str = "",
    ) -> None:
        """An interface; hardware has a `place`."""
        if not self.links:
            self.loopback()
        index = self.links[-1]["index"] + 1
        digest = hashlib.sha256(f"{self.hostname} {name}".encode()).hexdigest()
        mac = "02:" + ":".join(digest[i : i + 2] for i in range(0, 10, 2))
        above = next((one["index"] for one in self.links if one["name"] == controller), None)
        self.links.append(
            netlink_link(
                name,
                index,
                mac,
                mtu=mtu,
                kind=kind,
                controller=above,
                type=32 if infiniband else 1,
                flags=69699 if up else 4099,
            )
        )
        self.addresses += [netlink_address(ip, index, name, 64 if ":" in ip else 24) for ip in ips]
        base = f"{place.where}/net/{name}" if place else f"devices/virtual/net/{name}"
        self.tree.write(base, ifindex=str(index), address=mac, **({} if speed is None else {"speed": str(speed)}))
        self.tree.link(f"class/net/{name}", base)
        if place:
            self.tree.link(f"{base}/device", place.where)
        elif driver:  # a VMBus device: a driver, and no PCI vendor
            self.tree.folder(f"{base}/device")
            self.tree.folder(f"bus/vmbus/drivers/{driver}")
            self.tree.link(f"{base}/device/driver", f"bus/vmbus/drivers/{driver}")

    # Python and NCCL

    def python(self, path: str, version: str, site: str, torch: str, cuda: str | None, *, compiled: str | None) -> None:
        """An interpreter with torch in `site`; a CUDA build needs libnccl.so.2 by DT_RPATH of its own libraries."""
        prefix = path.rpartition("/")[0].rpartition("/")[0]
        real = f"/usr/bin/python{version}"
        if path != real:
            self.files.link(path, real)
        self.host.library(real, ("libc.so.6",), machine=183 if self.arm else 62)
        if prefix not in ("/usr", ""):
            self.files.write(
                f"{prefix}/pyvenv.cfg", f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}.3\n"
            )
        said = "None" if cuda is None else f"'{cuda}'"
        self.files.write(f"{site}/torch/version.py", f"__version__ = '{torch}'\ndebug = False\ncuda: Optional[str] = {said}\n")
        requires = f'Requires-Dist: nvidia-nccl-cu12=={compiled}; platform_system == "Linux"\n' if compiled else ""
        self.files.write(
            f"{site}/torch-{torch}.dist-info/METADATA", f"Metadata-Version: 2.4\nName: torch\nVersion: {torch}\n{requires}"
        )
        folder = f"{site}/torch/lib"
        rpath = "$ORIGIN/../../nvidia/nccl/lib:$ORIGIN" if cuda else "$ORIGIN"
        nccl = ("libnccl.so.2",) if cuda else ()
        machine = 183 if self.arm else 62
        self.host.library(f"{folder}/libtorch_global_deps.so", ("libc.so.6", *nccl), rpath=rpath, machine=machine)
        self.host.library(f"{folder}/libtorch_cpu.so", ("libc10.so",), rpath="$ORIGIN", machine=machine)
        self.host.library(f"{folder}/libtorch_python.so", ("libtorch.so",), rpath="$ORIGIN", machine=machine)
        if cuda:
            self.host.library(f"{folder}/libtorch_cuda.so", ("libc10_cuda.so", *nccl), rpath=rpath, machine=machine)

    def nccl(self, path: str, version: tuple[int, int, int], *, cached: bool = False) -> None:
        """A libnccl at `path`; in the loader's cache or not."""
        self.libnccl, self.nccl_version = path, version
        text = ".".join(map(str, version))
        self.host.library(path, ("libc.so.6",), exports=("ncclGetVersion", "ncclCommInitRank"), machine=183 if self.arm else 62)
        if cached:
            self.host.cache.append(["libnccl.so.2", path])
        name, address = self.bootstrap or ("", "")
        colon = ":" if version >= (2, 24, 0) else " :"
        log = [
            f"{self.hostname}:4242:4242 [0] NCCL INFO Bootstrap{colon} Using {name}:{address}<0>",
            f"{self.hostname}:4242:4242 [0] NCCL INFO NCCL version {text}+cuda12.9",
        ]
        self.host.answers[question("nccl", path=path)] = {
            "version": list(version),
            "code": 0,
            "interface": name,
            "address": address,
            "error": "",
            "log": log,
        }

    # The process that looks, and the kernel below it

    def finish(self) -> ComposedHost:
        """Everything that depends on the rest; the host to be asked."""
        self._kernel()
        self._process()
        self._numa()
        answers = self.host.answers
        answers["env:"] = dict(self.environment)
        answers["config:"] = {"profile": "default", "job": {}, "expected": {}, **self.config}
        answers["ask:netlink"] = {
            "links": self.links,
            "addresses": sorted(self.addresses, key=lambda a: a["family"]),
            "default": {
                "4": {"error": "ENETUNREACH"}
                if self.default is None
                else {"oif": self.default[0], "source": self.default[1], "gateway": self.default[2], "kind": "unicast"},
                "6": {"error": "ENETUNREACH"},
            },
            "listening": [[22, 0], [111, 0]],
        }
        missing = "cannot open shared object file: No such file or directory"
        answers.setdefault(
            "ask:nvml",
            {"driver": self.driver, "cuda": self.cuda_version, "devices": self.gpus}
            if self.gpus
            else _absent("NVML: NVML Shared Library Not Found"),
        )
        answers.setdefault(
            "ask:cuda",
            {"driver_version": self.cuda_version, "init": 0, "error": "", "devices": self.cuda}
            if self.cuda
            else _absent(f"libcuda.so.1: {missing}"),
        )
        library = f"/usr/lib/{'aarch64' if self.arm else 'x86_64'}-linux-gnu/libibverbs.so.1"
        answers.setdefault(
            "ask:ibverbs",
            {"library": library, "warnings": [], "devices": self.verbs}
            if self.uverbs
            else _absent(f"libibverbs.so.1: {missing}"),
        )
        answers.setdefault("ask:mempolicy", {"mode": "default", "nodes": []})
        answers.setdefault("ask:udev", {"pci": {}, "net": {}, "infiniband": {}})
        return self.host

    def _kernel(self) -> None:
        write = self.files.write
        write("/proc/sys/kernel/hostname", f"{self.hostname}\n")
        write("/proc/sys/kernel/osrelease", f"{self.release}\n")
        write("/proc/cmdline", "BOOT_IMAGE=<redacted> root=<redacted> ro iommu=pt\n")
        for name, value in {**SYSCTLS, **self.sysctls}.items():
            write(f"/proc/sys/{name}", f"{value}\n")
        if self.gpus:
            self.modules = {"nvidia": self.driver, "nvidia_uvm": "", "nvidia_modeset": self.driver, **self.modules}
            kind = "aarch64" if self.arm else "x86_64"
            write(
                "/proc/driver/nvidia/version",
                f"NVRM version: NVIDIA UNIX Open Kernel Module for {kind}  {self.driver}  Release Build  (dvs-builder@U22)\n"
                "GCC version:  gcc version 12.3.0\n",
            )
        for name in MODULES:
            self.tree.folder(f"module/{name}")
        for name, version in self.modules.items():
            self.tree.write(f"module/{name}", initstate="live", **({"version": version} if version else {}))

    def _process(self) -> None:
        write, uid = self.files.write, self.uid
        cpus = ",".join(cpus for cpus, _ in self.numa.values() if cpus)
        write(
            "/proc/self/status",
            f"Name:\tnetdoctor\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"CapEff:\t{self.capabilities:016x}\nNoNewPrivs:\t0\n"
            f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{_list(self.numa)}\n",
        )
        write(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max stack size            8388608              unlimited            bytes     \n"
            "Max processes             4127195              4127195              processes \n"
            "Max open files            1048576              1048576              files     \n"
            f"Max locked memory         {self.memlock:<20} {self.memlock:<20} bytes     \n",
        )
        write("/proc/self/uid_map", "         0          0 4294967295\n")
        write("/proc/self/cgroup", f"{self.cgroup}\n")
        root = "overlay overlay rw" if self.container else "ext4 /dev/md0 rw"
        dev = "tmpfs tmpfs rw,mode=755" if self.container else "devtmpfs udev rw,mode=755"
        shm = f"shm rw,size={self.shm >> 10}k,inode64" if self.shm else "tmpfs rw,inode64"
        mounts = f"30 1 0:28 / / rw,relatime - {root}\n31 30 0:5 / /dev rw,nosuid - {dev}\n"
        write("/proc/self/mountinfo", f"{mounts}32 31 0:31 / /dev/shm rw,nosuid,nodev - tmpfs {shm}\n")
        write("/proc/meminfo", "MemTotal:       2113331496 kB\n")
        write(
            "/etc/passwd",
            f"root:x:0:0:root:/root:/bin/bash\nada:x:{uid}:{uid}::/home/ada:/bin/bash\n"
            if uid
            else "root:x:0:0:root:/root:/bin/bash\n",
        )
        for name, number in {"net": 0, "user": 0, "mnt": 1, "pid": 2, "ipc": 3, "uts": 4, "cgroup": 5}.items():
            first = {"net": 4026531840, "user": 4026531837, "pid": 4026531836}.get(name, 4026531838 + number)
            mine = first if not self.container or name == "user" else 4026532900 + number
            self.files.link(f"/proc/self/ns/{name}", f"{name}:[{mine}]")

    def _numa(self) -> None:
        for number, (cpus, distances) in self.numa.items():
            self.tree.write(f"devices/system/node/node{number}", cpulist=cpus, distance=distances)
        online = ",".join(cpus for cpus, _ in self.numa.values() if cpus)
        self.tree.write("devices/system/cpu", online=online)


def _absent(text: str) -> Any:
    return Unavailable("absent", text)


def _list(numbers: Iterable[int]) -> str:
    return ",".join(map(str, sorted(numbers)))

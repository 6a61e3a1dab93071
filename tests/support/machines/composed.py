"""Healthy machines of many kinds, composed from public documentation: fixtures/hosts/NAME/machine.yaml makes its snapshot.json.

Hardware is the description of a fake machine (tests/fakegpu/machine.py); its key ``host`` is the rest: the kernel, the process
that looks, its Python and libnccl, and what a run of NCCL on it is to have said.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from netdoctor import engine
from netdoctor.allreduce.plan import first_experiment, path_experiments, path_unneeded
from netdoctor.cli import setup
from netdoctor.config.load import load
from netdoctor.facts.cpu import cpu_list
from netdoctor.facts.gpu_load import QUESTION
from netdoctor.facts.net_errors import QUESTION as ERRORS
from netdoctor.facts.past import FILE
from netdoctor.facts.ranks import QUESTION as RANKS
from netdoctor.facts.runs import AllReduce, Baseline, PathRun, Run
from netdoctor.host.base import Answer, RecordingHost
from netdoctor.host.helpers.kmsg import WORDS
from netdoctor.host.redact import Redactor
from netdoctor.model import Finding, Kind, Unavailable
from netdoctor.plugins import needs
from netdoctor.snapshot.snapshot import Snapshot, with_logs
from netdoctor.variables.catalogue import accepts
from tests.fakegpu import answers, machine, tree
from tests.fakegpu.machine import Machine
from tests.fakegpu.parts import Gpu
from tests.support.facts.nccl_logs import Wire, gloo_run, nccl_run
from tests.support.machines.composed_host import MODULES, SYSCTLS, ComposedHost, Files, SysTree
from tests.support.machines.job_python import Job

NAMES: Final = machine.fixtures()
# adjtimex(2) where chrony keeps the clock (STA_PLL, STA_NANO), on the day of TAKEN.
CLOCK: Final = {"state": 0, "status": 0x2001, "maxerror": 31000, "esterror": 400, "now": 1767225600}
TAKEN: Final = "2026-01-01T00:00:00Z"
DCGM: Final = "ask:dcgm?program=%2Fusr%2Fbin%2Fdcgmi"
NO_CUDA: Final = Unavailable(Kind.UNSUPPORTED, "the job's torch sees no CUDA device, so NCCL has no path to prove")
SYSTEM: Final = "/usr/lib/x86_64-linux-gnu"  # where Ubuntu has libraries
_HOST: Final = frozenset(
    (
        *("name", "kernel", "arm", "resolves", "python", "bootstrap", "plugin", "inside", "bandwidth", "exit_code"),
        *("container", "uid", "capabilities", "memlock", "cgroup", "shm", "environment", "sysctls", "files"),
        *("kmsg", "clock", "imex", "dcgm", "qos"),
        "modalias",  # of the processor: what it can, and whether a hypervisor is below it
        *("instance",),  # the cloud's name of its type, as cloud-init was told
        *("given", "mig"),  # GPUs that a container or a cgroup gives, by number; whether they are in MIG mode
    )
)


class Composed:
    """One machine, and the process on it."""

    def __init__(self, name: str, changes: Mapping[str, Any] | None = None, config: Mapping[str, Any] | None = None) -> None:
        """`changes` as `Machine.with_changes` takes them (host.… is no hardware), NAME.more of a list adds; `config` by dotted
        keys."""
        whole, changes = machine.read(name), copy.deepcopy(changes)  # a change below a list must not reach the row it is from
        same = {key: value for key, value in (changes or {}).items() if not key.endswith(".more")}
        for key, value in (changes or {}).items():
            if key.endswith(".more"):
                same[key[:-5]] = [*whole.data.get(key[:-5], ()), *value]
        self.machine = whole.with_changes(same)
        self.config = load(environ={}, site="/nonexistent", overrides=config or {})
        self.told: Mapping[str, Any] = self.machine.data["host"]
        if unknown := set(self.told) - _HOST:
            raise ValueError(f"{name}: nobody reads {', '.join(sorted(unknown))}")
        self.arm, self.container = bool(self.told.get("arm")), bool(self.told.get("container"))
        self.uid = int(self.told.get("uid", 1000))
        self.exit_code = int(self.told.get("exit_code", 0))
        self.node = self._given(self.told.get("given"))  # GPUs that NVML may open
        self.gpus = self._visible(self.node.gpus) if self.machine.shown else ()
        self.host = ComposedHost()
        self.job = Job(self.host, self.told["python"], len(self.gpus), 183 if self.arm else 62)
        self._write()

    def _given(self, numbers: Sequence[int] | None) -> Machine:
        """The GPUs that a container or a cgroup gives; PCI shows them all."""
        return self.machine if numbers is None else replace(self.machine, gpus=tuple(self.machine.gpus[n] for n in numbers))

    def _visible(self, gpus: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
        """Of them those that CUDA_VISIBLE_DEVICES leaves, by number; of a GPU in MIG mode one instance."""
        chosen = self.told.get("environment", {}).get("CUDA_VISIBLE_DEVICES")
        left = gpus if chosen is None else tuple(gpus[int(n)] for n in chosen.split(","))
        return left[:1] if self.told.get("mig") else left

    @property
    def files(self) -> Files:
        return self.host.files

    def _write(self) -> None:
        hardware = SysTree(self.files)
        for name in ("kernel/mm/transparent_hugepage", *(f"module/{one}" for one in MODULES)):
            hardware.folder(name)
        tree.write(self.machine, hardware)
        self.host.answers["ask:pci_config"] = dict(hardware.config)
        hardware.write("devices/system/cpu", online=self._cpus)
        if cpu := self.told.get("modalias"):
            hardware.write("devices/system/cpu", modalias=cpu)
        for name in ("fd", "null", "zero", "shm", "tty", *tree.devices(self.machine)):
            self.files.write(f"/dev/{name}", "")
        for hca in self.machine.hcas:
            if hca.node is not None and hca.mode is not None:
                node = {"mode": hca.mode, "uid": 0, "gid": 0, "type": "char", "major": 231, "minor": 192 + hca.node, "dev": 5}
                self.host.answers[f"stat:/dev/infiniband/uverbs{hca.node}"] = node
        for path, text in tree.proc(self.machine, "aarch64" if self.arm else "x86_64").items():
            self.files.write(f"/proc/driver/{path}", text)
        self.job.write()
        if self.job.nccl:
            self.job.write_nccl(self.machine.hostname, *self._bootstrap)
        if plugin := self.told.get("plugin"):
            self.host.library(plugin, ("libfabric.so.1",), exports=tuple(f"ncclNetPlugin_v{v}" for v in (6, 7, 8, 9, 10)))
            self.host.cache.append(["libnccl-net.so", plugin])
            for folder, name, needed in (
                ("/opt/amazon/efa/lib", "libfabric.so.1", "libefa.so.1"),
                (SYSTEM, "libefa.so.1", "libc.so.6"),
            ):
                self.host.library(f"{folder}/{name}", (needed,))
                self.host.cache.append([name, f"{folder}/{name}"])
        self.host.addresses_of[self.machine.hostname] = list(self.told["resolves"])
        for path, text in self.told.get("files", {}).items():
            self.files.write(path, text)
        self._write_kernel()
        self._write_process()
        self._answer()

    @property
    def _cpus(self) -> str:
        return ",".join(filter(None, self.machine.numa))

    @property
    def _bootstrap(self) -> tuple[str, str]:
        """Interface and address that NCCL takes."""
        (taken,) = (one for one in self.machine.interfaces if one.name == self.told["bootstrap"])
        return taken.name, taken.address.partition("/")[0]

    def _answer(self) -> None:
        library = f"/usr/lib/{'aarch64' if self.arm else 'x86_64'}-linux-gnu/libibverbs.so.1"
        shm = self.told.get("shm") or 1 << 40
        self.host.answers |= {
            "env:": {**self.job.environment, **self.told.get("environment", {})},
            "config:": self.config.as_answer(),
            "ask:netlink": self._netlink(),
            "ask:nvml": self._nvml(),
            "ask:cuda": self._cuda(),
            "ask:kmsg": self._kmsg(),
            DCGM: self.told.get("dcgm", Unavailable(Kind.FAILED, "nobody says what DCGM says")),
            "ask:imex": self.told.get("imex", Unavailable(Kind.ABSENT, "no nvidia-imex-ctl")),
            "ask:tasks": {"threads": 412},
            "ask:clock": {**CLOCK, **self.told.get("clock", {})},
            RANKS: {"ranks": self._ranks()},
            QUESTION: answers.gpu_load(self.node),
            ERRORS: answers.net_errors(self.machine),
            "ask:ibverbs": answers.ibverbs(self.machine, library),
            "ask:mempolicy": {"mode": "default", "nodes": []},
            "statvfs:/dev/shm": {"size": shm, "free": shm},
            f"trusted:{FILE}": Unavailable(Kind.ABSENT, "ENOENT No such file or directory"),
            "ask:instance": {"type": self.told.get("instance", "")},
            "ask:udev": {"pci": {}, "net": {}, "infiniband": {}},
        }

    def _ranks(self) -> list[Any]:
        """All ranks of the node are there, as torchrun starts them: with one environment."""
        env = {**self.job.environment, **self.told.get("environment", {})}
        count = int(env.get("LOCAL_WORLD_SIZE", 1)) if "LOCAL_RANK" in env else 0
        mask = env.get("CUDA_VISIBLE_DEVICES")
        return [{"pid": 5000 + n, "local_rank": n, "mask": mask, "same": True, "cpus": self._cpus} for n in range(count)]

    def _kmsg(self) -> Answer:
        """host.kmsg: lines of the kernel since boot, or why it may not be read ("denied", "absent")."""
        told = self.told.get("kmsg", ())
        if isinstance(told, str):
            return Unavailable(Kind(told), "/dev/kmsg")
        lines = [[60.0, line] for line in told]
        own = [one for one in lines if not any(word in one[1] for word in WORDS)]
        events = [one for one in lines if one not in own]
        return {"source": "/dev/kmsg", "complete": True, "events": events, "system": own, "left_out": 0}

    def _netlink(self) -> dict[str, Any]:
        """host.qos: what every card's driver tells of its quality of service."""
        told: Any = answers.netlink(self.machine, listening=(22, 111))
        for one in told["links"]:
            one.update(self.told.get("qos", {}) if one["kind"] is None and one["name"] != "lo" else {})
        if self.machine.default is not None and ":" in self.machine.default[1]:
            told["default"] = {"4": told["default"]["6"], "6": told["default"]["4"]}
        return dict(told)

    def _nvml(self) -> Any:
        told: Any = answers.nvml(self.node)
        for one in told["devices"] if self.told.get("mig") else ():
            one |= {"mig": True, "mig_uuids": [f"MIG-{one['uuid'][4:]}"], "nvlinks": []}
        return told

    def _cuda(self) -> Any:
        """Multicast as behind NVSwitches that can reduce; the fake libcuda has none (tests/fakegpu/c/cuda_share.c)."""
        told: Any = answers.cuda(replace(self.machine, gpus=self.gpus) if self.machine.shown else self.machine)
        able = any(gpu.capability >= 90 and len(gpu.nvlinks) > 0 for gpu in self.gpus)
        for one in told["devices"] if self.machine.shown and able else ():
            one["attributes"]["132"] = 1
        return told

    def _write_kernel(self) -> None:
        write = self.files.write
        write("/proc/sys/kernel/hostname", f"{self.machine.hostname}\n")
        write("/proc/sys/kernel/osrelease", f"{self.told['kernel']}\n")
        write("/proc/sys/kernel/tainted", "12289\n")  # a proprietary module, from outside of the tree, unsigned
        write("/proc/uptime", "3551000.17 80123456.00\n")
        write("/proc/loadavg", "1.04 0.87 0.91 2/3971 90210\n")
        for folder in ("/tmp", "/var/tmp", "/proc/self/cwd", self.told.get("environment", {}).get("HOME", "/home/ada")):
            self.files.folder(folder)
        write("/proc/cmdline", "BOOT_IMAGE=<redacted> root=<redacted> ro iommu=pt\n")
        for name, value in {**SYSCTLS, **self.told.get("sysctls", {})}.items():
            write(f"/proc/sys/{name}", f"{value}\n")

    def _write_process(self) -> None:
        write, uid = self.files.write, self.uid
        nodes = ",".join(map(str, range(len(self.machine.numa))))
        write(
            "/proc/self/status",
            f"Name:\tnetdoctor\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t{uid}\t{uid}\t{uid}\t{uid}\n"
            f"CapEff:\t{self.told.get('capabilities', 0):016x}\nNoNewPrivs:\t0\n"
            f"Cpus_allowed_list:\t{self._cpus}\nMems_allowed_list:\t{nodes}\n",
        )
        memlock = str(self.told.get("memlock", "unlimited"))
        write(
            "/proc/self/limits",
            "Limit                     Soft Limit           Hard Limit           Units     \n"
            "Max stack size            8388608              unlimited            bytes     \n"
            "Max processes             4127195              4127195              processes \n"
            "Max open files            1048576              1048576              files     \n"
            f"Max locked memory         {memlock:<20} {memlock:<20} bytes     \n"
            "Max address space         unlimited            unlimited            bytes     \n",
        )
        write("/proc/self/uid_map", "         0          0 4294967295\n")
        write("/proc/self/cgroup", f"{self.told.get('cgroup', '0::/user.slice/user-1000.slice/session-4.scope')}\n")
        root = "overlay overlay rw" if self.container else "ext4 /dev/md0 rw"
        dev = "tmpfs tmpfs rw,mode=755" if self.container else "devtmpfs udev rw,mode=755"
        size = self.told.get("shm", 0)  # bytes of /dev/shm, as its mount says; 0: it does not, as systemd mounts it
        shm = f"shm rw,size={size >> 10}k,inode64" if size else "tmpfs rw,inode64"
        mounts = f"30 1 0:28 / / rw,relatime - {root}\n31 30 0:5 / /dev rw,nosuid - {dev}\n"
        mounts += "33 30 0:27 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
        write("/proc/self/mountinfo", f"{mounts}32 31 0:31 / /dev/shm rw,nosuid,nodev - tmpfs {shm}\n")
        self._cgroups()
        write("/proc/meminfo", "MemTotal:       2113331496 kB\nMemAvailable:   1902331496 kB\n")
        ada = f"ada:x:{uid}:{uid}::/home/ada:/bin/bash\n" if uid else ""
        write("/etc/passwd", f"root:x:0:0:root:/root:/bin/bash\n{ada}")
        for name, number in {"net": 0, "user": 0, "mnt": 1, "pid": 2, "ipc": 3, "uts": 4, "cgroup": 5}.items():
            first = {"net": 4026531840, "user": 4026531837, "pid": 4026531836}.get(name, 4026531838 + number)
            mine = first if not self.container or name == "user" else 4026532900 + number
            self.files.link(f"/proc/self/ns/{name}", f"{name}:[{mine}]")

    def _cgroups(self) -> None:
        """Version 2: every level below the highest has the files of its controllers, and none sets a limit."""
        path = self.told.get("cgroup", "0::/user.slice/user-1000.slice/session-4.scope").partition("::")[2].strip("/")
        at, free = "/sys/fs/cgroup", {"pids.max": "max", "cpu.max": "max 100000", "memory.max": "max", "cgroup.events": ""}
        free |= {"memory.events": "oom 0\noom_kill 0", "pids.events": "max 0"}
        self.files.write(f"{at}/cpuset.cpus.effective", f"{self._cpus}\n")
        for name in filter(None, path.split("/")):
            at = f"{at}/{name}"
            for file, text in {**free, "pids.current": "412", "cpuset.cpus.effective": self._cpus}.items():
                self.files.write(f"{at}/{file}", f"{text}\n")

    @cached_property
    def wire(self) -> Wire:
        """What NCCL finds on the machine, and how it connects its ranks."""
        ports = [(hca.name, hca.ports[0]) for hca in self.machine.hcas]
        layers = {"InfiniBand": "IB", "Ethernet": "RoCE"}  # EFA has none that NCCL's own network takes
        active = [(name, layers[port.layer]) for name, port in ports if port.state == "ACTIVE" and port.layer in layers]
        env = self.told.get("environment", {})
        if env.get("NCCL_IB_DISABLE") == "1" or env.get("NCCL_NET") == "Socket":
            active = []
        linked = any(gpu.nvlinks for gpu in self.gpus)
        inside = self.told.get("inside", "P2P/CUMEM")
        return Wire(
            self.machine.hostname,
            self.job.nccl,
            ":".join(self._bootstrap),
            tuple(f"{name}:1/{layer}" for name, layer in active),
            inside=inside,
            plugin="Libfabric" if self.told.get("plugin") else "",
            gdr=bool(ports) and any(gpu.attributes[116] or gpu.attributes[124] for gpu in self.gpus),
            nvls=linked and all(gpu.capability >= 90 for gpu in self.gpus),
            mnnvl=inside == "P2P/MNNVL",
            affinity={n: self.machine.numa[max(0, gpu.place.numa)] for n, gpu in enumerate(self.gpus)},
            buses=tuple(_bus_id(gpu.place.address) for gpu in self.gpus),
            cuda_driver=self.machine.cuda,
        )

    def snapshot(self) -> Snapshot:
        """Every answer that the probes ask for, and the runs that the plan would make here."""
        host = RecordingHost(self.host, Redactor(accepts))
        specs, _ = setup.load_checks(self.config, ())
        work = engine.Work(host, specs)
        engine.collect(work, engine.wanted(specs))
        engine.identity(work)
        return Snapshot(
            host.answers, self._runs(work.facts), setup.policy_data(self.config), tool_version="composed", taken=TAKEN
        )

    def judged(self, check: str) -> tuple[Finding, ...]:
        """What one check says, from no more facts than it asks for: a fraction of the time of a snapshot that is replayed."""
        specs, _ = setup.load_checks(self.config, ())
        (spec,) = (one for one in specs if one.id == check)
        runs = {need.type.__name__ for need in needs(spec)} & {"Baseline", "PathRun"}
        work = engine.Work(self.host, specs)
        names = engine.wanted(specs if "PathRun" in runs else (spec,))
        engine.collect(work, {*names, "Intent"} if runs else names)
        return engine.judge(spec, {**work.facts, **(self._runs(work.facts, runs) if runs else {})})

    def _runs(self, have: Mapping[str, Any], wanted: Collection[str] = ("Baseline", "PathRun")) -> dict[str, Any]:
        experiment = first_experiment(self.job.torch, have["Intent"])
        runs: dict[str, Any] = {"PathRun": NO_CUDA}
        if experiment.backend == "gloo":
            return {**runs, "Baseline": Baseline(gloo_run(self.job.torch, self._masks[0]), False)}
        inside, path = self.told["bandwidth"]
        runs["Baseline"] = with_logs(Baseline(self._run(experiment, inside), True))
        if "PathRun" not in wanted:
            return runs
        runs["PathRun"] = path_unneeded(have["Intent"])
        if runs["PathRun"] is None:
            paths = path_experiments(len(self.gpus), have)
            runs["PathRun"] = with_logs(PathRun(tuple(self._run(one, path) for one in paths)))
        return runs

    def _run(self, one: AllReduce, rate: float) -> Run:
        run = nccl_run(self.wire, one, self.job.torch, self.job.libnccl, self._masks, rate)
        gpus = [self.gpus[n] for n in one.gpus]  # each has raised its link
        return replace(run, ranks=tuple(replace(rank, **_awake(gpu)) for rank, gpu in zip(run.ranks, gpus, strict=True)))

    @cached_property
    def _masks(self) -> tuple[tuple[int, ...], ...]:
        """Each rank near its GPU, as launchers that bind do; one mask for all where there is no GPU."""
        lists = [cpu_list(cpus, "") for cpus in self.machine.numa if cpus]
        every = [tuple(sorted(one)) for one in lists if not isinstance(one, Unavailable)]
        if not self.gpus:
            return (tuple(sorted(cpu for one in every for cpu in one)),)
        return tuple(every[max(0, gpu.place.numa)] for gpu in self.gpus)


def _awake(gpu: Gpu) -> dict[str, Any]:
    """What a rank says of its GPU's PCIe link once it worked; a virtual machine's sysfs knows no speed."""
    most = gpu.link.max_generation
    return {"gpu": gpu.place.address, "link_speed": (2.5, 5.0, 8.0, 16.0, 32.0, 64.0)[most - 1]} if most else {}


def _bus_id(address: str) -> str:
    """As NCCL prints it: "0000:1b:00.0" is 1b000."""
    return f"{int(address.replace(':', '').replace('.', ''), 16):x}"


def read(name: str) -> Composed:
    return Composed(name)

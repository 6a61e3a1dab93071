"""What nodes of one kind should share, as a flat table of texts: the traits that drift is looked for in."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import field
from enum import Enum
from typing import Any, Final, NamedTuple

from netdoctor.causes.cost import MIGHT, NOTHING, STOPS
from netdoctor.environment import Of, names_of
from netdoctor.model import Loss, Word, record
from netdoctor.textsafe import as_line

MAX: Final = 4096
_LONGEST: Final = 200  # characters of a value; a node's message has no more (textsafe.line)

# Follow from the memory or the uptime of a node (tcp_mem differs by a few pages between equal nodes) or from the order in
# which modules were loaded (tcp_available_congestion_control); Documentation/networking/ip-sysctl.rst.
_OWN_SYSCTLS: Final = frozenset(
    {
        "net.ipv4.tcp_available_congestion_control",
        "net.ipv4.tcp_mem",
        "net.ipv4.udp_mem",
        "fs.file-max",
        "fs.file-nr",
        "kernel.threads-max",
        "kernel.pid_max",
        "vm.min_free_kbytes",
        "kernel.hostname",
        "kernel.random.boot_id",
        "net.netfilter.nf_conntrack_count",
    }
)
_VIRTUAL: Final = re.compile(r"\dv\d+$")
# A report may hold them, of another version those of a run.  What is logged may differ (NCCL's user guide, NCCL_DEBUG).
_OWN_VARIABLES: Final = frozenset(names_of(Of.RUN, Of.PROCESS, Of.LOG))
_NAMING: Final = frozenset(names_of(Of.INTERFACES))
# NCCL goes through the devices and asks of each whether the list has it (matchIfList, in 2.7.8 to 2.30.7), in whatever order
# the list is.  Gloo takes the first name of its own.
_ANY_ORDER: Final = frozenset({"NCCL_IB_HCA", "NCCL_SOCKET_IFNAME"})
UP: Final = "up"
DOWN: Final = "down"


class Marker(Word):
    """A value that is no text of the node's: what was looked for and found to be none."""

    ABSENT = "(not there)"
    NOT_SET = "(not set)"
    EMPTY = "(empty)"


Value = Marker | str
_MARKERS: Final = {one.value: one for one in Marker}


def value_of(text: str) -> Value:
    """A value that another node wrote."""
    return _MARKERS.get(text, text)


class Family(Enum):
    """A kind of trait: the word for it in reports and between nodes, and what a difference may take."""

    DRIVER = ("driver", "NVIDIA driver", "drift", MIGHT)
    CUDA = ("cuda", "CUDA of the driver", "drift", MIGHT)
    KERNEL = ("kernel", "kernel", "drift", MIGHT)
    CLOCK = ("clock", "clock", "clock", NOTHING, "chronyc tracking, or timedatectl")
    IOMMU = ("iommu", "IOMMU of GPUs and HCAs", "drift", NOTHING)  # by itself it costs nothing: pci.path judges what may
    ACS = ("acs", "PCIe ports that turn data back (ACS)", "drift", NOTHING)  # as the IOMMU's
    IMEX = ("imex", "IMEX", "drift", MIGHT)
    # By themselves they cost nothing: of each node nccl.shared_memory, process.limits and rdma.dev_infiniband judge what may.
    SHM = ("shm", "size of /dev/shm", "drift", NOTHING)
    LIMIT = ("limit", "limit", "drift", NOTHING, "ulimit -a in the job; limits.d, LimitMEMLOCK and LimitNOFILE of slurmd")
    ECC = ("ecc", "ECC of the GPUs", "drift", MIGHT, "nvidia-smi -q -d ECC")
    MIG = ("mig", "MIG mode of the GPUs", "drift", MIGHT, "nvidia-smi -q | grep -A2 MIG")
    POWER = ("power", "power limit of the GPUs", "drift", MIGHT, "nvidia-smi -q -d POWER")
    CLOCKS = (
        "gpu_clock",
        "clocks of the GPUs under load",
        "drift",
        MIGHT,
        "nvidia-smi -q -d CLOCK,PERFORMANCE; nvidia-smi -rgc and -rac take locks away",
    )
    TORCH = ("torch", "torch", "version_mismatch", MIGHT)
    TORCH_CUDA = ("torch_cuda", "CUDA of torch", "version_mismatch", MIGHT)
    # Refused at the handshake from NCCL 2.23.4 on (src/bootstrap.cc), undefined before.
    NCCL = (
        "nccl",
        "NCCL",
        "version_mismatch",
        STOPS,
        "install one NCCL everywhere; pip show torch nvidia-nccl-cu12: torch's wheel decides",
    )
    PLUGINS = ("plugins", "NCCL plugins", "plugin_mismatch", MIGHT)
    NCCL_INTERFACE = ("nccl_interface", "interface that NCCL takes", "socket_ifname", MIGHT)
    SYSCTL = ("sysctl", "sysctl", "drift", MIGHT)
    MTU = ("mtu", "MTU", "mtu", MIGHT, "ip -br link; the switch ports' MTU; tracepath HOST")
    LINK_STATE = ("link_state", "state of", "drift", MIGHT, "ip link; the cable, the switch port, the network's configuration")
    LINK_SPEED = ("link_speed", "speed of", "drift", MIGHT, "ethtool IF; the cable or module, the switch port, autonegotiation")
    LINK_DRIVER = ("link_driver", "driver of", "drift", MIGHT)
    QOS = ("qos", "quality of service of", "drift", MIGHT, "mlnx_qos -i IF; dcb pfc, app and ets show dev IF")
    INTERFACES = ("interfaces", "interface names", "drift", MIGHT)
    GPUS = ("gpus", "GPUs", "inventory", STOPS)
    NVLINKS = ("nvlinks", "NVLinks up per GPU", "link_degraded", MIGHT)
    NICS = ("nics", "RDMA devices", "inventory", MIGHT)
    PORTS = ("ports", "RDMA ports", "link_degraded", MIGHT)
    FIRMWARE = ("firmware", "firmware", "drift", MIGHT)
    ENV = ("env", "variable", "drift", MIGHT)
    NETDOCTOR = ("netdoctor", "netdoctor", "drift", NOTHING)

    def __init__(self, word: str, label: str, cause: str, loss: Loss, how: str | None = None) -> None:
        self.word, self.label, self.cause, self.loss, self.how = word, label, cause, loss, how


_PLAIN: Final = (
    (Family.DRIVER, "driver"),
    (Family.CUDA, "cuda_driver"),
    (Family.KERNEL, "kernel"),
    (Family.CLOCK, "clock"),
    (Family.IOMMU, "iommu"),
    (Family.IMEX, "imex"),
    (Family.SHM, "shm"),
)
_FAMILIES: Final = {one.word: one for one in Family}


class Trait(NamedTuple):
    """What is compared: a family, and which of it (a variable, a sysctl, an interface); "" where it has one."""

    family: Family
    name: str = ""

    def __str__(self) -> str:
        """As reports and nodes write it: ``nccl``, ``env NCCL_ALGO``."""
        return f"{self.family.word} {self.name}".rstrip()

    @classmethod
    def parse(cls, text: str) -> Trait:
        """The inverse of `str`.  Raises ValueError where this version has no such family."""
        word, _, name = text.partition(" ")
        if word not in _FAMILIES:
            raise ValueError(f"no such trait: {text[:80]!r}")
        return cls(_FAMILIES[word], name)

    @property
    def title(self) -> str:
        """``sysctl net.ipv4.tcp_rmem``, ``GPUs``."""
        return f"{self.family.label} {self.name}".rstrip()

    @property
    def names_interfaces(self) -> bool:
        return self.family is Family.ENV and self.name in _NAMING

    def names_own(self, value: str, links: tuple[str, ...]) -> bool:
        """Whether each interface that a variable names is one of `links`.

        NCCL takes what begins with the name, unless "=" stands before it (its user guide, NCCL_SOCKET_IFNAME).
        """
        begins = self.name.startswith("NCCL_") and not value.startswith("=")
        names = [name for name in value.removeprefix("=").split(",") if name]
        return bool(names) and all(any(one == name or (begins and one.startswith(name)) for one in links) for name in names)


@record
class Traits:
    """What one node has.  What was not read is left out, never a value."""

    values: Mapping[Trait, Value] = field(default_factory=dict)
    variables_read: bool = False  # then a variable that is not among them is not set
    links: tuple[str, ...] = ()  # its interfaces, what names of some are held against; only where a variable names some

    def value(self, trait: Trait) -> str | None:
        """None: not read."""
        return self.values.get(trait, Marker.NOT_SET if self.variables_read and trait.family is Family.ENV else None)

    def of(self, family: Family) -> str | None:
        """The value of a family that has one; None: not read."""
        return self.values.get(Trait(family))


def traits(inventory: dict[str, Any], tool: str, is_default: Callable[[str, str], bool] | None = None) -> Traits:
    """What a node's inventory, its own or one in a report, says of it; a variable that `is_default` counts as not set."""
    out: dict[Trait, str] = {}
    if tool:
        out[Trait(Family.NETDOCTOR)] = tool
    for family, key in _PLAIN:
        _put(out, Trait(family), inventory.get(key))
    for part in (_software, _sysctls, _limits, _links, _gpus, _modes, _nics):
        part(out, inventory)
    variables = inventory.get("nccl_variables")
    if not isinstance(variables, dict) or "unavailable" in variables:
        return Traits(out)
    for name, value in list(variables.items())[:MAX]:
        if name not in _OWN_VARIABLES and not (is_default and isinstance(value, str) and is_default(name, value)):
            _put(out, Trait(Family.ENV, as_line(name, 100)), _in_order(value) if name in _ANY_ORDER else value)
    named: set[str] = set()
    if _NAMING & variables.keys() and isinstance(links := inventory.get("links"), list):
        named = {as_line(n, 40) for one in links[:MAX] if isinstance(n := _get(one, "name"), str) and one.get("addresses")}
    return Traits(out, variables_read=True, links=tuple(sorted(named)))


def _in_order(value: Any) -> Any:
    """A list of names in the one order of all lists that NCCL takes for the same.

    Not where entries beyond the first 16 are cut off (MAX_IFS), or where one has a rail and plane (2.30: name:port:rail:plane)
    and so an order may decide whose they are.
    """
    if not isinstance(value, str):
        return value
    names = value.lstrip("^=")
    every = names.split(",")
    if len(every) > 16 or any(not one or one.count(":") > 1 for one in every):
        return value
    return value[: len(value) - len(names)] + ",".join(sorted(set(every)))


def _software(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    torch, nccl, taken = (inventory.get(key) for key in ("torch", "nccl", "nccl_interface"))
    if isinstance(torch, dict):
        _put(out, Trait(Family.TORCH), torch if "unavailable" in torch else torch.get("version"))
        _put(out, Trait(Family.TORCH_CUDA), torch.get("cuda"))
    if isinstance(nccl, dict):
        _put(out, Trait(Family.NCCL), nccl.get("version"))
        if isinstance(plugins := nccl.get("plugins"), list):
            out[Trait(Family.PLUGINS)] = ", ".join(as_line(p, 100) for p in plugins[:32]) or Marker.ABSENT
    if isinstance(taken, dict) and isinstance(taken.get("name"), str):
        out[Trait(Family.NCCL_INTERFACE)] = as_line(taken["name"], 40)


def _sysctls(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    sysctls = inventory.get("sysctls")
    if isinstance(sysctls, dict) and "unavailable" not in sysctls:
        for name, value in list(sysctls.items())[:MAX]:
            if name not in _OWN_SYSCTLS:
                _put(out, Trait(Family.SYSCTL, as_line(name, 100)), value)


def _limits(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    """That of processes follows from the memory of a node (kernel/fork.c, set_max_threads)."""
    limits, acs = inventory.get("limits"), inventory.get("acs")
    if isinstance(limits, dict) and "unavailable" not in limits:
        for name, value in list(limits.items())[:MAX]:
            if name != "nproc":
                _put(out, Trait(Family.LIMIT, as_line(name, 40)), value)
    if isinstance(acs, dict) and type(acs.get("ports")) is int and type(acs.get("back")) is int:
        out[Trait(Family.ACS)] = f"{acs['back']} of {acs['ports']}"


def no_gpu(inventory: dict[str, Any]) -> bool:
    """PCI was read and shows none, and there is no NVML: not a node whose GPUs could not be read."""
    pci, gpus = inventory.get("pci"), inventory.get("gpus")
    without = isinstance(gpus, dict) and gpus.get("unavailable") == "absent"
    return without and isinstance(pci, list) and not any(isinstance(d, dict) and d.get("kind") == "gpu" for d in pci[:MAX])


def _put(out: dict[Trait, str], name: Trait, value: Any) -> None:
    """Texts and numbers are values; "absent" is one too (it was looked for), every other unavailable is not."""
    if isinstance(value, str):
        if not value.isprintable():
            value = " ".join(value.split())  # sysctls of several numbers have tabs
        out[name] = _kept(value) or Marker.EMPTY
    elif isinstance(value, int | float) and not isinstance(value, bool):
        out[name] = str(value)
    elif isinstance(value, dict) and value.get("unavailable") == "absent":
        out[name] = Marker.ABSENT


def _kept(value: str) -> str:
    """Of a long value its beginning, and what tells it from others that begin alike (the names of 16 HCAs)."""
    if len(value) <= _LONGEST:
        return as_line(value, _LONGEST)
    digest = hashlib.sha256(value.encode("utf-8", "backslashreplace")).hexdigest()[:8]
    return f"{as_line(value, _LONGEST - len(digest) - 1)} {digest}"


def _links(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    if not isinstance(links := inventory.get("links"), list):
        return
    names = []
    for link in links[:MAX]:
        if not isinstance(link, dict) or not isinstance(name := link.get("name"), str):
            continue
        # enx…: named by MAC address, unlike everywhere.  …v3: a virtual function (systemd.net-naming-scheme(7)); those move
        # into pods and back.
        if not link.get("physical") or name.startswith("enx") or _VIRTUAL.search(name):
            continue
        name = as_line(name, 40)
        names.append(name)
        if isinstance(up := link.get("up"), bool):
            out[Trait(Family.LINK_STATE, name)] = UP if up else DOWN
        if isinstance(driver := link.get("driver"), str):
            out[Trait(Family.LINK_DRIVER, name)] = as_line(driver, 60)
        if not link.get("up"):
            continue
        if isinstance(mtu := link.get("mtu"), int):
            out[Trait(Family.MTU, name)] = str(mtu)
        if isinstance(speed := link.get("speed_mbps"), int) and not isinstance(speed, bool):
            out[Trait(Family.LINK_SPEED, name)] = f"{speed} Mb/s"
        if isinstance(qos := link.get("qos"), dict):
            _put(out, Trait(Family.QOS, name), "; ".join(f"{k} {v}" for k, v in sorted(qos.items())[:8] if isinstance(v, str)))
    out[Trait(Family.INTERFACES)] = " ".join(sorted(names)) or Marker.ABSENT


def _multiset(values: list[str]) -> str:
    """``8 × H100``; ``7 × 18, 1 × 17``, the most frequent first."""
    counted = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{n} × {value}" for value, n in counted) or Marker.ABSENT


def _gpus(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    if not isinstance(gpus := inventory.get("gpus"), list):
        if no_gpu(inventory):
            out[Trait(Family.GPUS)] = Marker.ABSENT
        return
    every = [g for g in gpus[:MAX] if isinstance(g, dict)]
    names = [g["name"] for g in every if isinstance(g.get("name"), str)]
    if len(names) == len(every):
        out[Trait(Family.GPUS)] = _multiset([as_line(n, 100) for n in names])
    up = [g["nvlinks_up"] for g in every if isinstance(g.get("nvlinks_up"), int)]
    if up and len(up) == len(every):
        out[Trait(Family.NVLINKS)] = ", ".join(str(n) for n in sorted(set(up), reverse=True))


def _modes(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    """What is set of all GPUs.  A MIG mode that waits takes a GPU from the next job; an ECC mode that does takes nothing from
    anybody, and is its own node's to tell (gpu.health)."""
    gpus = inventory.get("gpus")
    every = [g for g in gpus[:MAX] if isinstance(g, dict)] if isinstance(gpus, list) else []
    for family, name, next_mode in ((Family.ECC, "ecc", ""), (Family.MIG, "mig", "mig_waits")):
        told = [(g.get(name), g.get(next_mode, False)) for g in every]
        if told and all(isinstance(on, bool) and isinstance(waits, bool) for on, waits in told):
            words = [f"{'on' if on else 'off'}{', another waits for a reset' if waits else ''}" for on, waits in told]
            out[Trait(family)] = _multiset(words)
    watts = [g["power_limit_w"] for g in every if type(g.get("power_limit_w")) is int]
    if watts and len(watts) == len(every):
        out[Trait(Family.POWER)] = _multiset([f"{one} W" for one in watts])
    low = [g["clocks_held_low"] for g in every if isinstance(g.get("clocks_held_low"), bool)]
    if low and len(low) == len(every):
        out[Trait(Family.CLOCKS)] = _multiset(["held far below its board's own" if one else "as its board can" for one in low])


def _nics(out: dict[Trait, str], inventory: dict[str, Any]) -> None:
    if not isinstance(nics := inventory.get("nics"), list):
        return
    own = own_nics(nics)
    if all(isinstance(n.get("driver"), str) for n in own):
        out[Trait(Family.NICS)] = _multiset([as_line(n["driver"], 60) for n in own])
    firmware: dict[str, set[str]] = {}
    up: list[str] = []
    down: list[str] = []
    whole = True
    for nic in own:
        if isinstance(version := nic.get("firmware"), str):
            firmware.setdefault(as_line(nic.get("driver"), 60), set()).add(as_line(version, 60))
        if not isinstance(listed := nic.get("ports"), list):
            whole = False
            continue
        for port in listed[:64]:
            state, layer, rate = (_get(port, k) for k in ("state", "link_layer", "rate_gbps"))
            if isinstance(state, str) and isinstance(layer, str) and isinstance(rate, int | float) and abs(rate) < 1e300:
                (up if state == "ACTIVE" else down).append(f"{as_line(layer, 40)} {rate:g} Gb/s {as_line(state, 20)}")
            else:
                whole = False
    if whole:  # active ports by kind only (how many there are is the trait of the family NICS), the others counted
        out[Trait(Family.PORTS)] = ", ".join([*sorted(set(up)), *([_multiset(down)] if down else [])]) or Marker.ABSENT
    for driver, versions in firmware.items():
        out[Trait(Family.FIRMWARE, driver)] = ", ".join(sorted(versions))


def own_nics(nics: list[Any]) -> list[dict[str, Any]]:
    """RDMA devices without virtual functions, unless there are only those (a virtual machine)."""
    every = [n for n in nics[:MAX] if isinstance(n, dict)]
    return [n for n in every if n.get("virtual_function") is not True] or every


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None

"""What nodes of one kind should share, as a flat table of texts: the traits that drift is looked for in."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from netdoctor.environment import Of, names_of
from netdoctor.model import Severity
from netdoctor.textsafe import as_line
from netdoctor.variables.catalogue import is_default

ABSENT: Final = "(not there)"
NOT_SET: Final = "(not set)"
EMPTY: Final = "(empty)"
MAX: Final = 4096

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
LINKS: Final = "links"  # no trait of its own: what names of interfaces are held against; only where a variable names some


@dataclass(frozen=True)
class Family:
    """A kind of trait: the part of its name before the first space."""

    label: str
    cause: str
    severity: Severity
    how: str | None = None


_C, _W, _I = Severity.CRITICAL, Severity.WARNING, Severity.INFO
FAMILIES: Final = {
    "driver": Family("NVIDIA driver", "drift", _W),
    "cuda": Family("CUDA of the driver", "drift", _W),
    "kernel": Family("kernel", "drift", _W),
    "torch": Family("torch", "version_mismatch", _W),
    "torch_cuda": Family("CUDA of torch", "version_mismatch", _W),
    # Refused at the handshake from NCCL 2.23.4 on (src/bootstrap.cc), undefined before.
    "nccl": Family(
        "NCCL", "version_mismatch", _C, "install one NCCL everywhere; pip show torch nvidia-nccl-cu12: torch's wheel decides"
    ),
    "plugins": Family("NCCL plugins", "plugin_mismatch", _W),
    "nccl_interface": Family("interface that NCCL takes", "socket_ifname", _W),
    "sysctl": Family("sysctl", "drift", _W),
    "mtu": Family("MTU", "mtu", _C),
    "interfaces": Family("interface names", "drift", _W),
    "gpus": Family("GPUs", "inventory", _C),
    "nvlinks": Family("NVLinks up per GPU", "link_degraded", _C),
    "nics": Family("RDMA devices", "inventory", _C),
    "ports": Family("RDMA ports", "link_degraded", _C),
    "firmware": Family("firmware", "drift", _W),
    "env": Family("variable", "drift", _W),
    "netdoctor": Family("netdoctor", "drift", _I),
}


def family(trait: str) -> Family:
    return FAMILIES[trait.partition(" ")[0]]


def title(trait: str) -> str:
    """``sysctl net.ipv4.tcp_rmem``, ``GPUs``."""
    head, _, rest = trait.partition(" ")
    return f"{FAMILIES[head].label} {rest}".rstrip()


def traits(inventory: dict[str, Any], tool: str) -> tuple[dict[str, str], bool]:
    """({trait: value}, whether the NCCL variables were read).  What was not read is left out, never a value."""
    out: dict[str, str] = {}
    if tool:
        out["netdoctor"] = tool
    for name, key in (("driver", "driver"), ("cuda", "cuda_driver"), ("kernel", "kernel")):
        _put(out, name, inventory.get(key))
    for part in (_software, _sysctls, _links, _gpus, _nics):
        part(out, inventory)
    variables = inventory.get("nccl_variables")
    if not isinstance(variables, dict) or "unavailable" in variables:
        return out, False
    for name, value in list(variables.items())[:MAX]:
        if name not in _OWN_VARIABLES and not (isinstance(value, str) and is_default(name, value)):
            _put(out, f"env {as_line(name, 100)}", value)
    if _NAMING & variables.keys() and isinstance(links := inventory.get("links"), list):
        named = [n for one in links[:MAX] if isinstance(n := _get(one, "name"), str) and one.get("addresses")]
        out[LINKS] = " ".join(sorted({as_line(name, 40) for name in named}))
    return out, True


def names_interfaces(trait: str) -> bool:
    return trait.removeprefix("env ") in _NAMING


def names_own(trait: str, value: str, links: list[str]) -> bool:
    """Whether each interface that a variable names is one of `links`.

    NCCL takes what begins with the name, unless "=" stands before it (its user guide, NCCL_SOCKET_IFNAME).
    """
    begins = trait.startswith("env NCCL_") and not value.startswith("=")
    names = [name for name in value.removeprefix("=").split(",") if name]
    return bool(names) and all(any(one == name or (begins and one.startswith(name)) for one in links) for name in names)


def _software(out: dict[str, str], inventory: dict[str, Any]) -> None:
    torch, nccl, taken = (inventory.get(key) for key in ("torch", "nccl", "nccl_interface"))
    if isinstance(torch, dict):
        _put(out, "torch", torch if "unavailable" in torch else torch.get("version"))
        _put(out, "torch_cuda", torch.get("cuda"))
    if isinstance(nccl, dict):
        _put(out, "nccl", nccl.get("version"))
        if isinstance(plugins := nccl.get("plugins"), list):
            out["plugins"] = ", ".join(as_line(p, 100) for p in plugins[:32]) or ABSENT
    if isinstance(taken, dict) and isinstance(taken.get("name"), str):
        out["nccl_interface"] = as_line(taken["name"], 40)


def _sysctls(out: dict[str, str], inventory: dict[str, Any]) -> None:
    sysctls = inventory.get("sysctls")
    if isinstance(sysctls, dict) and "unavailable" not in sysctls:
        for name, value in list(sysctls.items())[:MAX]:
            if name not in _OWN_SYSCTLS:
                _put(out, f"sysctl {as_line(name, 100)}", value)


def no_gpu(inventory: dict[str, Any]) -> bool:
    """PCI was read and shows none, and there is no NVML: not a node whose GPUs could not be read."""
    pci, gpus = inventory.get("pci"), inventory.get("gpus")
    without = isinstance(gpus, dict) and gpus.get("unavailable") == "absent"
    return without and isinstance(pci, list) and not any(isinstance(d, dict) and d.get("kind") == "gpu" for d in pci[:MAX])


def _put(out: dict[str, str], name: str, value: Any) -> None:
    """Texts and numbers are values; "absent" is one too (it was looked for), every other unavailable is not."""
    if isinstance(value, str):
        if not value.isprintable():
            value = " ".join(value.split())  # sysctls of several numbers have tabs
        out[name] = as_line(value, 200) or EMPTY
    elif isinstance(value, int | float) and not isinstance(value, bool):
        out[name] = str(value)
    elif isinstance(value, dict) and value.get("unavailable") == "absent":
        out[name] = ABSENT


def _links(out: dict[str, str], inventory: dict[str, Any]) -> None:
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
        if link.get("up") and isinstance(mtu := link.get("mtu"), int):
            out[f"mtu {name}"] = str(mtu)
    out["interfaces"] = " ".join(sorted(names)) or ABSENT


def _multiset(values: list[str]) -> str:
    """``8 × H100``; ``7 × 18, 1 × 17``, the most frequent first."""
    counted = sorted(Counter(values).items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{n} × {value}" for value, n in counted) or ABSENT


def _gpus(out: dict[str, str], inventory: dict[str, Any]) -> None:
    if not isinstance(gpus := inventory.get("gpus"), list):
        if no_gpu(inventory):
            out["gpus"] = ABSENT
        return
    every = [g for g in gpus[:MAX] if isinstance(g, dict)]
    names = [g["name"] for g in every if isinstance(g.get("name"), str)]
    if len(names) == len(every):
        out["gpus"] = _multiset([as_line(n, 100) for n in names])
    up = [g["nvlinks_up"] for g in every if isinstance(g.get("nvlinks_up"), int)]
    if up and len(up) == len(every):
        out["nvlinks"] = ", ".join(str(n) for n in sorted(set(up), reverse=True))


def _nics(out: dict[str, str], inventory: dict[str, Any]) -> None:
    if not isinstance(nics := inventory.get("nics"), list):
        return
    own = own_nics(nics)
    if all(isinstance(n.get("driver"), str) for n in own):
        out["nics"] = _multiset([as_line(n["driver"], 60) for n in own])
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
    if whole:  # active ports by kind only (how many there are is the trait "nics"), the others counted
        out["ports"] = ", ".join([*sorted(set(up)), *([_multiset(down)] if down else [])]) or ABSENT
    for driver, versions in firmware.items():
        out[f"firmware {driver}"] = ", ".join(sorted(versions))


def own_nics(nics: list[Any]) -> list[dict[str, Any]]:
    """RDMA devices without virtual functions, unless there are only those (a virtual machine)."""
    every = [n for n in nics[:MAX] if isinstance(n, dict)]
    return [n for n in every if n.get("virtual_function") is not True] or every


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None

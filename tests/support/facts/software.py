"""Who looks, the network, the job's variables, libraries and wishes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from netdoctor.facts.environ import Environ, Launcher, Setting
from netdoctor.facts.gpu import Gpus
from netdoctor.facts.intent import Intent, infer
from netdoctor.facts.job import Expected
from netdoctor.facts.libraries import Libraries, NcclLibrary
from netdoctor.facts.library_search import JobPython, Torch
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.net import Address, Link, LocalPorts, Net
from netdoctor.facts.plugins import FoundBy, Plugin
from netdoctor.facts.vantage import Place, Vantage
from netdoctor.model import Unavailable

NONE = Unavailable("absent")
LIBNCCL = "/opt/venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"


def vantage(**changes: Any) -> Vantage:
    """The job's own user on the host."""
    base = Vantage(
        kind=Place.HOST,
        runtime=None,
        euid=1000,
        user="ada",
        root_is_root=True,
        capabilities=frozenset(),
        namespaces={"net": "4026531840", "user": "4026531837", "mnt": "4026531841", "pid": "4026531836"},
        cgroup="/user.slice",
        job_user=True,
        job_network=True,
        job_environment=True,
    )
    return replace(base, **changes)


def outside(**changes: Any) -> Vantage:
    """Root in a prolog: sees the node, but not as the job does."""
    return vantage(
        **{
            "kind": "prolog",
            "euid": 0,
            "user": "root",
            "job_user": False,
            "job_network": False,
            "job_environment": False,
            "why_not": "seen as root outside the job",
            "outside": True,
            **changes,
        }
    )


def pod(**changes: Any) -> Vantage:
    """The job's own container in Kubernetes."""
    return vantage(**{"kind": "pod", "runtime": "kubernetes", "euid": 0, "user": "root", **changes})


def address(ip: str, prefix: int = 24, **changes: Any) -> Address:
    family = 6 if ":" in ip else 4
    scope = "link" if ip.startswith("fe80") else "host" if ip.startswith("127.") or ip == "::1" else "global"
    return replace(Address(ip, prefix, family, scope), **changes)


def netlink_link(name: str, index: int, *ips: str, **changes: Any) -> Link:
    base = Link(
        name=name,
        index=index,
        up=True,
        running=True,
        loopback=name == "lo",
        kind=None,
        mtu=65536 if name == "lo" else 1500,
        controller=None,
        addresses=tuple(address(ip) for ip in ips),
        speed_mbps=NONE if name == "lo" else 25000,
        vendor=NONE if name == "lo" else "0x15b3",
        driver=NONE if name == "lo" else "mlx5_core",
        numa_node=NONE if name == "lo" else 0,
    )
    return replace(base, **changes)


def net(*links: Link, **changes: Any) -> Net:
    """lo, eth0 and IPoIB interfaces ib0 … ib7."""
    usual = (
        netlink_link("lo", 1, "127.0.0.1"),
        netlink_link("eth0", 2, "10.0.0.7"),
        *(netlink_link(f"ib{i}", 3 + i, f"10.1.{i}.7", mtu=2044, speed_mbps=400000, numa_node=i // 4) for i in range(8)),
    )
    base = Net(
        links=links or usual,
        hostname_addresses=("10.0.0.7",),
        master=None,
        master_port=None,
        peers=(),
        default_route=None,
    )
    return replace(base, **changes)


def ports(**changes: Any) -> LocalPorts:
    return replace(LocalPorts(32768, 60999, reserved=frozenset(), listening=frozenset({22})), **changes)


def environ(variables: Mapping[str, str] | None = None, /, launcher: Launcher | None = None, **changes: Any) -> Environ:
    """`variables` as a process has them; NCCL_* become effective settings from the environment."""
    have = dict(variables or {})
    effective = {k: Setting(k, v) for k, v in have.items() if k.startswith("NCCL_")}
    return replace(Environ(have, effective, launcher or Launcher(None, None, None, None, None)), **changes)


def library(path: str = LIBNCCL, version: tuple[int, int, int] | Unavailable = (2, 27, 5), **changes: Any) -> NcclLibrary:
    return replace(NcclLibrary(path, path, version, (FoundBy.SITE_PACKAGES, FoundBy.TORCH)), **changes)


def torch(**changes: Any) -> Torch:
    base = Torch(
        version="2.9.1+cu129",
        path="/opt/venv/lib/python3.12/site-packages/torch",
        cuda="12.9",
        nccl_linkage="dynamic",
        nccl_path=LIBNCCL,
        nccl_compiled=(2, 27, 5),
    )
    return replace(base, **changes)


def libraries(**changes: Any) -> Libraries:
    base = Libraries(
        python=JobPython("/opt/venv/bin/python3", "VIRTUAL_ENV", False),
        torch=torch(),
        nccl=(library(),),
        plugins=(),
        by_loader=None,
    )
    return replace(base, **changes)


def plugin(path: str = "/opt/amazon/ofi-nccl/lib/libnccl-net.so", **changes: Any) -> Plugin:
    """One that the loader finds under its name, and under those of its links."""
    names = tuple(one.rpartition("/")[2] for one in (path, *changes.get("aliases", ())))
    base = Plugin(path, names[0], (FoundBy.CACHE,), ("ncclNetPlugin_v9", "ncclNetPlugin_v10"), opened_as=names)
    return replace(base, **changes)


def nccl_choice(**changes: Any) -> NcclChoice:
    return replace(NcclChoice(LIBNCCL, (2, 27, 5), "ib0", "10.1.0.7", 0), **changes)


def job(**stated: Any) -> Callable[[Mapping[type, Any]], Intent]:
    """The job as a configuration states it, with what the other facts of a test tell; `judge` makes it."""

    def made(facts: Mapping[type, Any]) -> Intent:
        have = {kind: facts.get(kind, one) for kind, one in _usual().items()}
        return infer(stated, *(kind.unread(one) if isinstance(one, Unavailable) else one for kind, one in have.items()))

    return made


@functools.cache
def _usual() -> dict[type, Any]:
    return {Environ: environ(), Net: net(), Gpus: NO_GPUS, Expected: expected()}


NO_GPUS = Gpus(all=(), visible=(), driver=NONE, cuda_driver=NONE)


def intent(**changes: Any) -> Intent:
    return replace(Intent(), **changes)


def expected(**changes: Any) -> Expected:
    return replace(Expected(), **changes)

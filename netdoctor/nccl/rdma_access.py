"""Whether an RDMA device can be used from here, step by step as libibverbs and NCCL go.

Sources: open(2), cgroup v2 device controller (Documentation/admin-guide/cgroup-v2.rst: EPERM), mount(8) nodev (EACCES),
drivers/infiniband/core/uverbs_main.c (ENXIO), NCCL src/transport/net_ib/init.cc (ports that are not ACTIVE are passed over).
"""

from __future__ import annotations

from typing import Final

from netdoctor.facts.net import Net
from netdoctor.facts.rdma import Rdma, RdmaDevice, Uverbs
from netdoctor.model import Kind, Unavailable, Word, record
from netdoctor.nccl.hcas import active_ports


class Step(Word):
    """Where a device fails."""

    NONE = "usable"
    UNREAD = "unread"
    NO_UVERBS = "no-uverbs"
    NOT_MAPPED = "not-mapped"
    STALE = "stale"
    EPERM = "EPERM"
    EACCES = "EACCES"
    MODULE = "module"  # EACCES, and its mode lets everybody in
    ENXIO = "ENXIO"
    OPEN = "open"  # any other errno
    NO_LIBRARY = "no-library"
    NO_PROVIDER = "no-provider"
    CONTEXT = "context"
    PORT = "port"
    GID = "gid"


CGROUP: Final = "EAGAIN"  # of a context: rdma.max allows no more handles (kernel/cgroup/rdma.c, rdmacg_try_charge)
# What a port waits for, by its physical state (PortInfo.PortPhysicalState of the InfiniBand specification, as ibstat shows it).
PORT_UP: Final = (
    "bring its port up: cable, transceiver or switch port where it polls, the subnet manager where it initialises, "
    "whoever switched it off where it is disabled"
)


@record
class Usable:
    """Yes, no, or not known (`yes` None): the step that says so, and words for people."""

    step: Step
    text: str

    @property
    def yes(self) -> bool | None:
        return True if self.step is Step.NONE else None if self.step is Step.UNREAD else False


def usable(device: RdmaDevice, rdma: Rdma, net: Net) -> Usable:
    """The first step that fails; "not known" only where no later step fails for certain."""
    steps = (_node(device), _provider(device, rdma), _ports(device), _gid(device, net))
    refused = next((s for s in steps if s.yes is False), None)
    return refused or next((s for s in steps if s.yes is None), _FINE)


_FINE: Final = Usable(Step.NONE, "opens, has a context and an ACTIVE port")


def _unread(what: str, why: Unavailable) -> Usable:
    return Usable(Step.UNREAD, f"{what}: {why}")


def _node(device: RdmaDevice) -> Usable:
    verbs = device.uverbs
    if isinstance(verbs, Unavailable):
        if verbs.kind == Kind.ABSENT:
            return Usable(Step.NO_UVERBS, "the kernel has no uverbs device for it (module ib_uverbs)")
        return _unread("its uverbs device", verbs)
    have = verbs.node_numbers
    if isinstance(have, Unavailable) and have.kind == Kind.ABSENT:
        return Usable(Step.NOT_MAPPED, f"{verbs.node} is not there (ENOENT)")
    if isinstance(have, tuple) and isinstance(verbs.numbers, tuple) and have != verbs.numbers:
        return Usable(
            Step.STALE,
            f"{verbs.node} is device {have[0]}:{have[1]}, sysfs says {verbs.numbers[0]}:{verbs.numbers[1]}: a stale node",
        )
    return _opened(verbs)


def _opened(verbs: Uverbs) -> Usable:
    errno = verbs.open_errno
    if isinstance(errno, Unavailable):
        return _unread(f"open {verbs.node}", errno)
    if errno == "":
        for what, got in (("numbers in sysfs", verbs.numbers), (f"numbers of {verbs.node}", verbs.node_numbers)):
            if isinstance(got, Unavailable):
                return _unread(what, got)
        return _FINE
    step, said = {
        "EPERM": (Step.EPERM, "EPERM: a device rule of the cgroup (or seccomp) refuses it"),
        "EACCES": (Step.MODULE if _for_everybody(verbs) else Step.EACCES, f"EACCES: {_permission(verbs)}"),
        "ENXIO": (Step.ENXIO, "ENXIO: no driver stands behind the node"),
        "ENOENT": (Step.NOT_MAPPED, "ENOENT: it is not mapped here"),
    }.get(errno, (Step.OPEN, errno))
    return Usable(step, f"{verbs.node} does not open: {said}")


def _for_everybody(verbs: Uverbs) -> bool:
    return not isinstance(verbs.owner, Unavailable) and verbs.owner[0] & 0o006 == 0o006


def _permission(verbs: Uverbs) -> str:
    if isinstance(verbs.owner, Unavailable):
        return "mode, group, a nodev mount or a security module"
    mode, uid, gid = verbs.owner
    if _for_everybody(verbs):
        return f"mode {mode:04o} allows everybody, so a nodev mount or a security module (AppArmor, SELinux) refuses it"
    return f"mode {mode:04o}, owner {uid}, group {gid} do not let this user in"


def _provider(device: RdmaDevice, rdma: Rdma) -> Usable:
    got = device.provider
    if isinstance(got, Unavailable):
        if isinstance(rdma.libibverbs, Unavailable):
            if rdma.libibverbs.kind == Kind.ABSENT:
                return Usable(Step.NO_LIBRARY, "libibverbs.so.1 is not installed here")
            return _unread("libibverbs", rdma.libibverbs)
        if isinstance(rdma.verbs_devices, tuple) and device.name not in rdma.verbs_devices and got.kind == Kind.ABSENT:
            return Usable(
                Step.NO_PROVIDER, f"libibverbs does not list it: no provider library for {device.driver or 'its driver'}"
            )
        return _unread("libibverbs", got)
    if got.context:
        return _FINE
    said = "EAGAIN: a limit of the rdma cgroup" if got.error == CGROUP else got.error or "no reason given"
    return Usable(Step.CONTEXT, f"libibverbs gets no context ({said})")


def _ports(device: RdmaDevice) -> Usable:
    if isinstance(device.ports, Unavailable):
        return _unread("its ports", device.ports)
    if device.driver == "efa":  # libfabric's: link layer Unspecified, always one port
        live = any(p.state == "ACTIVE" for p in device.ports)
    else:
        live = bool(active_ports(device))
    if live:
        return _FINE
    for port in device.ports:
        for what, got in (("state", port.state), ("link layer", port.link_layer)):
            if isinstance(got, Unavailable):
                return _unread(f"{what} of port {port.number}", got)
    if isinstance(device.driver, Unavailable) and any(p.state == "ACTIVE" for p in device.ports):
        return _unread("its driver", device.driver)  # EFA's has link layer Unspecified
    states = ", ".join(f"port {p.number} {p.state}, {p.physical}" for p in device.ports) or "it has no port"
    initialising = any(p.state in ("INIT", "ARMED") for p in device.ports)
    return Usable(Step.PORT, f"no ACTIVE port: {states}{' (no subnet manager has set it up)' if initialising else ''}")


# Any other (EINVAL of sysfs) says that the GID has no interface in this namespace.
_NETDEV_LOST: Final = (Kind.DENIED, Kind.TIMED_OUT, Kind.ABSENT, Kind.NOT_RECORDED, Kind.NO_BUDGET, Kind.NOT_READ)


def _gid(device: RdmaDevice, net: Net) -> Usable:
    """On Ethernet a GID whose interface is in this network namespace: modify_qp fails with ENODEV without one."""
    ethernet = [p for p in active_ports(device) if p.link_layer == "Ethernet"]
    if not ethernet or any(p.link_layer == "InfiniBand" for p in active_ports(device)):
        return _FINE
    unread: Usable | None = None
    seen: set[str] = set()
    for port in ethernet:
        if isinstance(port.gids, Unavailable):
            unread = _unread(f"GIDs of port {port.number}", port.gids)
            continue
        for gid in port.gids:
            if isinstance(gid.netdev, Unavailable):
                if gid.netdev.kind in _NETDEV_LOST:
                    unread = _unread(f"interface of GID {gid.index}", gid.netdev)
                continue
            seen.add(gid.netdev)
    links = net.links
    if isinstance(links, Unavailable):
        return _unread("interfaces of this network namespace", links)
    if seen & {one.name for one in links}:
        return _FINE
    if unread is not None:
        return unread
    where = ", ".join(sorted(seen)) or "no GID names an interface that is visible here"
    return Usable(Step.GID, f"no GID with an interface in this network namespace ({where})")

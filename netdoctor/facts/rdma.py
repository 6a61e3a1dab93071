"""RDMA devices: sysfs, device nodes, and what the user-space provider makes of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts import ib_speed
from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.pci import ADDRESS, is_virtual, numa_node, read_function
from netdoctor.facts.rdma_ports import RdmaPort, by_verbs, read_ports, with_mtus
from netdoctor.host.base import Host, link, mapping, matching, names, question, read, value
from netdoctor.model import Kind, Unavailable, record

_CLASS: Final = "/sys/class/infiniband"
_VERBS: Final = "/sys/class/infiniband_verbs"


@record
class Uverbs:
    """The character device of an HCA, /dev/infiniband/uverbsN."""

    node: str  # "/dev/infiniband/uverbs0"
    numbers: tuple[int, int] | Unavailable  # major, minor as sysfs says
    node_numbers: tuple[int, int] | Unavailable  # as the node has them; Unavailable(Kind.ABSENT) where there is no node
    open_errno: str | Unavailable  # "" opened read-write, else "EPERM" "EACCES" "ENXIO" "ENOENT" …
    owner: tuple[int, int, int] | Unavailable  # mode, uid, gid of the node


@record
class Provider:
    """What libibverbs answers for a device, in a child process."""

    context: bool  # ibv_open_device succeeded
    error: str  # errno name of a refused open
    # errno name of ibv_reg_dmabuf_mr(fd=-1): "EBADF" yes, "EOPNOTSUPP" no; Unavailable: symbol missing
    dmabuf_errno: str | Unavailable


@record
class RdmaDevice:
    """One entry of /sys/class/infiniband."""

    name: str  # "mlx5_0"
    pci: str | None | Unavailable  # "0000:18:00.0"; None: software device (rxe, siw)
    driver: str | Unavailable  # "mlx5_core" "efa" "bnxt_en" "irdma" "mana" …
    numa_node: int | Unavailable  # -1: the firmware does not say
    virtual_function: bool | Unavailable
    firmware: str | Unavailable
    ports: tuple[RdmaPort, ...] | Unavailable
    uverbs: Uverbs | Unavailable
    provider: Provider | Unavailable
    # Of the card: what several functions of one share (sys_image_guid); "": it has none.
    image: str | Unavailable = ""
    traffic_class: int | None | Unavailable = None  # what its driver puts in the place of a queue pair's; None: that stays
    board: str | Unavailable = ""  # whose firmware it takes (board_id, the PSID); "": it does not say


@record
class Rdma(Fact):
    """All RDMA devices that sysfs shows, and the libraries that speak to them."""

    # () only where /sys/class/infiniband was read empty, or is absent while /sys is a real sysfs
    devices: tuple[RdmaDevice, ...] | Unavailable
    libibverbs: str | Unavailable  # path or soname of the library that was opened
    verbs_devices: tuple[str, ...] | Unavailable  # names that ibv_get_device_list gives
    # Every network namespace sees every device (drivers/infiniband/core/device.c, netns_mode; rdma-system(8))
    shared: bool | Unavailable = Unavailable(Kind.NOT_READ)

    @classmethod
    def _unread(cls, why: Unavailable) -> dict[str, Any]:
        return super()._unread(no_evidence(why))

    @property
    def efa(self) -> bool:
        """Whether all devices are EFA: aws-ofi-nccl finds them by libfabric and reads no NCCL_IB_HCA, NET/IB takes none."""
        return bool(self.devices) and all(one.driver == "efa" for one in self.devices or ())

    @property
    def names(self) -> tuple[str, ...] | Unavailable:
        return self.devices if isinstance(self.devices, Unavailable) else tuple(one.name for one in self.devices)


def probe(host: Host) -> Rdma:
    """Every device of sysfs with its ports and node, beside what libibverbs makes of it."""
    verbs = mapping(host, "ask:ibverbs")
    found = _device_names(host)
    library = verbs if isinstance(verbs, Unavailable) else value(verbs.get("library"), str, "library")
    listed = verbs if isinstance(verbs, Unavailable) else _listing(verbs.get("devices"))
    if isinstance(found, Unavailable):
        devices: tuple[RdmaDevice, ...] | Unavailable = found
    else:
        # One provider that crashes takes the answer about all: then each device is asked for in a child of its own.
        alone = found if isinstance(verbs, Unavailable) and verbs.kind in (Kind.CRASHED, Kind.TIMED_OUT) else ()
        host.prefetch(question("ibverbs", device=name) for name in alone)
        nodes = _uverbs_names(host, found) if found else {}
        told: Any = listed or {}
        asked = {name: one for name, one in told.items() if isinstance(one, dict)}
        devices = tuple(
            _device(host, name, nodes, _provider(host, name, listed, bool(alone)), asked.get(name, {}).get("mtu"))
            for name in found
        )
        devices = _named(host, devices, {name: one.get("link") for name, one in asked.items()})
    return Rdma(
        devices=devices,
        libibverbs=library,
        verbs_devices=listed if isinstance(listed, Unavailable) else tuple(listed),
        shared=_shared(host) if devices else Unavailable(Kind.NOT_READ, "no RDMA device"),
    )


def _named(host: Host, devices: tuple[RdmaDevice, ...], links: dict[str, Any]) -> tuple[RdmaDevice, ...]:
    """Each port that is up with what is known of its rate, where the kernel may not have known a name for it."""
    models = {one.name: _model(host, one) for one in devices}
    known = [p.speed for d in devices for p in d.ports or () if p.link_layer == "InfiniBand"]

    def named(port: RdmaPort, device: RdmaDevice) -> RdmaPort:
        if port.state != "ACTIVE":
            return port
        model, told = models[device.name], links.get(device.name)
        if port.link_layer == "InfiniBand" and ib_speed.unnamed(model, port.speed, known):
            return by_verbs(port, model, told.get(str(port.number)) if isinstance(told, dict) else None)
        doubtful = port.link_layer == "Ethernet" and ib_speed.fallback(str(device.driver), port.lanes, port.speed)
        return replace(port, unnamed=True) if doubtful and not _runs_at(host, device.name, port.rate_gbps) else port

    return tuple(replace(d, ports=d.ports and tuple(named(p, d) for p in d.ports)) for d in devices)


def _runs_at(host: Host, device: str, rate: float | Unavailable) -> bool:
    """Whether the Ethernet interface of a device has this speed by its own word (Mb/s)."""
    where = f"{_CLASS}/{device}/device/net"
    listed = names(host, where)
    found = [matching(host, f"{where}/{one}/speed", r"(\d{1,7})$") for one in listed or ()]
    return any(one and rate and int(one[1]) == rate * 1000 for one in found)


def _model(host: Host, device: RdmaDevice) -> str:
    """By its PCI id; "" where it has none that could be read."""
    where = read_function(host, device.pci) if isinstance(device.pci, str) else None
    return f"{where.vendor:04x}:{where.device:04x}" if where else ""


def _shared(host: Host) -> bool | Unavailable:
    mode = matching(host, "/sys/module/ib_core/parameters/netns_mode", r"[YN]$")
    return mode and mode[0] == "Y"


def _device_names(host: Host) -> tuple[str, ...] | Unavailable:
    found = names(host, _CLASS)
    if not isinstance(found, Unavailable) or found.kind != Kind.ABSENT:
        return found
    classes = names(host, "/sys/class")
    if isinstance(classes, Unavailable):
        return classes
    # Every kernel has classes; a real sysfs without this one has no RDMA core.
    return () if classes and "infiniband" not in classes else Unavailable(Kind.EMPTY, "/sys/class is empty")


def _listing(got: object) -> dict[str, Any] | Unavailable:
    found = value(got, dict, "devices of libibverbs")
    return found if isinstance(found, Unavailable) else {str(k): v for k, v in found.items()}


def _provider(host: Host, name: str, listed: dict[str, Any] | Unavailable, alone: bool) -> Provider | Unavailable:
    if alone:
        answer = mapping(host, question("ibverbs", device=name))
        listed = answer if isinstance(answer, Unavailable) else _listing(answer.get("devices"))
    if isinstance(listed, Unavailable):
        return listed
    if name not in listed:
        return Unavailable(Kind.ABSENT, "libibverbs does not list it")
    one = listed[name]
    if not isinstance(one, dict) or not isinstance(one.get("context"), bool):
        return Unavailable(Kind.MALFORMED, f"libibverbs on {name}")
    return Provider(one["context"], str(one.get("error", "")), value(one.get("dmabuf"), str, "ibv_reg_dmabuf_mr"))


def _uverbs_names(host: Host, devices: tuple[str, ...]) -> dict[str, str | Unavailable] | Unavailable:
    """uverbsN by RDMA device; under "" why the device of one could not be read."""
    listed = names(host, _VERBS)
    if isinstance(listed, Unavailable):
        return listed
    found: dict[str, str | Unavailable] = {}
    for name in listed:
        if name.startswith("uverbs"):
            ibdev = read(host, f"{_VERBS}/{name}/ibdev")
            if isinstance(ibdev, Unavailable):
                found[""] = Unavailable(Kind.NOT_READ, f"{_VERBS}/{name}/ibdev: {ibdev}")
            else:
                found[ibdev.strip()] = name
                if ibdev.strip() not in devices:  # of another RDMA namespace, or rubbish
                    found.setdefault("", Unavailable(Kind.MALFORMED, f"{_VERBS}/{name}/ibdev: {ibdev[:40]!r}"))
    return found


def _device(
    host: Host,
    name: str,
    nodes: dict[str, str | Unavailable] | Unavailable,
    provider: Provider | Unavailable,
    mtus: Any,
) -> RdmaDevice:
    where = f"{_CLASS}/{name}"
    target = link(host, where)
    pci: str | None | Unavailable
    if isinstance(target, Unavailable):
        pci = target
    else:
        steps = [step for step in target.split("/") if ADDRESS.fullmatch(step)]
        # Software devices lie under devices/virtual; sub-functions and auxiliary devices under their PCI function.
        pci = (
            steps[-1] if steps else None if "/virtual/" in target else Unavailable(Kind.MALFORMED, f"{where} -> {target[:80]}")
        )
    driver: str | Unavailable
    if isinstance(pci, str):
        function = read_function(host, pci)
        bound = function if isinstance(function, Unavailable) else function.driver
        driver = Unavailable(Kind.MALFORMED, "no driver is bound") if bound is None else bound
        node, virtual = numa_node(host, pci), is_virtual(host, pci)
    else:
        why = pci if isinstance(pci, Unavailable) else Unavailable(Kind.UNSUPPORTED, "a software device")
        driver = node = why
        virtual = False if pci is None else why
    firmware = read(host, f"{where}/fw_ver")
    return RdmaDevice(
        name=name,
        pci=pci,
        driver=driver,
        numa_node=node,
        virtual_function=virtual,
        firmware=firmware and firmware.strip(),
        ports=with_mtus(read_ports(host, f"{where}/ports"), mtus),
        uverbs=_uverbs(host, name, nodes),
        provider=provider,
        image=_image(host, f"{where}/sys_image_guid"),
        board=_said(host, f"{where}/board_id"),
        traffic_class=_traffic_class(host, f"{where}/tc/1/traffic_class"),
    )


def _image(host: Host, path: str) -> str | Unavailable:
    """All zeros is a driver that has none (drivers/infiniband/core/sysfs.c writes what it says)."""
    found = _said(host, path)
    return found if isinstance(found, Unavailable) or found.strip("0:") else ""


def _traffic_class(host: Host, path: str) -> int | None | Unavailable:
    """As DOCA's driver writes it: nothing where it has none; rules by address may follow."""
    text = _said(host, path)
    if isinstance(text, Unavailable) or not text:
        return text if isinstance(text, Unavailable) else None
    found = re.fullmatch(r"Global tclass=(\d{1,3})", text, re.ASCII)
    return int(found[1]) if found else Unavailable(Kind.UNSUPPORTED, f"{path}: {text[:40]!r}")


def _said(host: Host, path: str) -> str | Unavailable:
    """ "" where the driver has no such file, or an older recording did not ask."""
    found = read(host, path)
    if isinstance(found, Unavailable):
        return "" if found.kind in (Kind.ABSENT, Kind.NOT_RECORDED) else found
    return found.strip()


def _uverbs(host: Host, name: str, nodes: dict[str, str | Unavailable] | Unavailable) -> Uverbs | Unavailable:
    if isinstance(nodes, Unavailable):
        return nodes
    own = nodes.get(
        name, nodes.get("", Unavailable(Kind.ABSENT, f"no uverbs of {name}: the module ib_uverbs has not taken it"))
    )
    if isinstance(own, Unavailable):
        return own
    node = f"/dev/infiniband/{own}"
    facts = mapping(host, f"stat:{node}")
    pair: tuple[int, int] | Unavailable
    access: tuple[int, int, int] | Unavailable
    pair = access = facts if isinstance(facts, Unavailable) else Unavailable(Kind.MALFORMED, node)
    got: list[Any] = [(facts or {}).get(key) for key in ("major", "minor", "mode", "uid", "gid")]
    if facts and all(type(v) is int for v in got):
        device = facts.get("type") == "char"
        pair = (got[0], got[1]) if device else Unavailable(Kind.MALFORMED, f"{node} is no character device")
        access = (got[2], got[3], got[4])
    opened = mapping(host, f"open:{node}:rw")
    return Uverbs(
        node=node,
        numbers=_numbers(host, f"{_VERBS}/{own}/dev"),
        node_numbers=pair,
        open_errno=opened if isinstance(opened, Unavailable) else value(opened.get("name"), str, f"open of {node}"),
        owner=access,
    )


def _numbers(host: Host, path: str) -> tuple[int, int] | Unavailable:
    found = matching(host, path, r"(\d{1,9}):(\d{1,9})$")
    return found and (int(found[1]), int(found[2]))

"""RDMA devices: sysfs, device nodes, and what the user-space provider makes of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Final

from netdoctor.facts.base import Fact, no_evidence
from netdoctor.facts.ib_speed import unnamed
from netdoctor.facts.pci import ADDRESS, is_virtual, numa_node, read_function
from netdoctor.host.base import Host, link, mapping, matching, names, question, read, value
from netdoctor.model import Kind, Unavailable

_CLASS: Final = "/sys/class/infiniband"
_VERBS: Final = "/sys/class/infiniband_verbs"
# What the kernel writes there (drivers/infiniband/core/sysfs.c); "Unspecified" is libibverbs' word for "Unknown".
_LAYERS: Final = frozenset({"InfiniBand", "Ethernet", "Unknown", "Unspecified"})
_STATES: Final = frozenset({"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"})
# A RoCE port has up to 256 GID entries and fills them from the front; reading stops after this many empty ones in a row.
_EMPTY_GIDS: Final = 16
UNNAMED: Final = Unavailable(Kind.UNSUPPORTED, "the kernel writes SDR, as of every speed that it does not know")
_NO_GID: Final = frozenset({"0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000"})


@dataclass(frozen=True)
class Gid:
    """One filled entry of a port's GID table."""

    index: int
    value: str  # "fe80:0000:…"
    kind: str | Unavailable  # "IB/RoCE v1" | "RoCE v2"
    netdev: str | Unavailable  # gid_attrs/ndevs; unreadable where its netdev is in another namespace


@dataclass(frozen=True)
class RdmaPort:
    """One port of an HCA."""

    number: int
    state: str | Unavailable  # "ACTIVE" "DOWN" "INIT" "ARMED"
    physical: str | Unavailable  # "LinkUp"
    link_layer: str | Unavailable  # "InfiniBand" | "Ethernet" | "Unspecified" (EFA)
    rate_gbps: float | Unavailable
    gids: tuple[Gid, ...] | Unavailable
    lanes: int | None = None  # of the link, as its rate says ("4X"); None: it does not
    pkey: int | None | Unavailable = None  # the first of its table, which NCCL takes (NCCL_IB_PKEY); of InfiniBand alone
    mtu: int | None = None  # bytes of its packets (active_mtu), as libibverbs says; None: it was not asked, or does not say
    speed: str = ""  # the name that the kernel gives it: "NDR"
    unnamed: bool = False  # its rate is what the kernel writes of a speed that it does not know

    @property
    def rate(self) -> float | Unavailable:
        """What it runs at; `rate_gbps` is what the kernel writes."""
        return UNNAMED if self.unnamed else self.rate_gbps

    def gid(self, index: int) -> Gid | None | Unavailable:
        """An entry of its table; None: it is empty."""
        if isinstance(self.gids, Unavailable):
            return self.gids
        last = max((one.index for one in self.gids), default=-1)
        if index > last + _EMPTY_GIDS:
            return Unavailable(Kind.NOT_READ, f"GID {index} of port {self.number} was not read")
        return next((one for one in self.gids if one.index == index), None)


@dataclass(frozen=True)
class Uverbs:
    """The character device of an HCA, /dev/infiniband/uverbsN."""

    node: str  # "/dev/infiniband/uverbs0"
    numbers: tuple[int, int] | Unavailable  # major, minor as sysfs says
    node_numbers: tuple[int, int] | Unavailable  # as the node has them; Unavailable(Kind.ABSENT) where there is no node
    open_errno: str | Unavailable  # "" opened read-write, else "EPERM" "EACCES" "ENXIO" "ENOENT" …
    owner: tuple[int, int, int] | Unavailable  # mode, uid, gid of the node


@dataclass(frozen=True)
class Provider:
    """What libibverbs answers for a device, in a child process."""

    context: bool  # ibv_open_device succeeded
    error: str  # errno name of a refused open
    # errno name of ibv_reg_dmabuf_mr(fd=-1): "EBADF" yes, "EOPNOTSUPP" no; Unavailable: symbol missing
    dmabuf_errno: str | Unavailable


@dataclass(frozen=True)
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
    board: str | Unavailable = ""  # whose firmware it takes (board_id, the PSID); "": it does not say


@dataclass(frozen=True)
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
        mtus = {name: one.get("mtu") for name, one in told.items() if isinstance(one, dict)}
        devices = tuple(
            _device(host, name, nodes, _provider(host, name, listed, bool(alone)), mtus.get(name)) for name in found
        )
    if not isinstance(devices, Unavailable):
        devices = _named(host, devices)
    return Rdma(
        devices=devices,
        libibverbs=library,
        verbs_devices=listed if isinstance(listed, Unavailable) else tuple(listed),
        shared=_shared(host) if devices else Unavailable(Kind.NOT_READ, "no RDMA device"),
    )


def _named(host: Host, devices: tuple[RdmaDevice, ...]) -> tuple[RdmaDevice, ...]:
    """Each port that is up with the kernel's word for a speed, where it may not have known it."""
    models = {one.name: _model(host, one) for one in devices}
    known = [p.speed for d in devices for p in d.ports or () if p.link_layer == "InfiniBand"]

    def named(port: RdmaPort, model: str) -> RdmaPort:
        up = port.state == "ACTIVE" and port.link_layer == "InfiniBand"
        return replace(port, unnamed=True) if up and unnamed(model, port.speed, known) else port

    return tuple(replace(d, ports=d.ports and tuple(named(p, models[d.name]) for p in d.ports)) for d in devices)


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
        ports=_with_mtus(_ports(host, f"{where}/ports"), mtus),
        uverbs=_uverbs(host, name, nodes),
        provider=provider,
        image=_image(host, f"{where}/sys_image_guid"),
        board=_said(host, f"{where}/board_id"),
    )


def _image(host: Host, path: str) -> str | Unavailable:
    """All zeros is a driver that has none (drivers/infiniband/core/sysfs.c writes what it says)."""
    found = _said(host, path)
    return found if isinstance(found, Unavailable) or found.strip("0:") else ""


def _said(host: Host, path: str) -> str | Unavailable:
    """ "" where the driver has no such file, or an older recording did not ask."""
    found = read(host, path)
    if isinstance(found, Unavailable):
        return "" if found.kind in (Kind.ABSENT, Kind.NOT_RECORDED) else found
    return found.strip()


def _ports(host: Host, where: str) -> tuple[RdmaPort, ...] | Unavailable:
    listed = names(host, where)
    if isinstance(listed, Unavailable):
        return listed
    numbers = sorted(int(n) for n in listed if re.fullmatch(r"\d{1,3}", n, re.ASCII))
    if not numbers:
        return Unavailable(Kind.EMPTY, where)
    return tuple(_port(host, f"{where}/{n}", n) for n in numbers)


def _port(host: Host, where: str, number: int) -> RdmaPort:
    layer, state = read(host, f"{where}/link_layer"), _after_number(host, f"{where}/state")
    # The rate as "400 Gb/sec (4X NDR)".
    rate = matching(host, f"{where}/rate", r"(\d{1,6}(?:\.\d{1,3})?) Gb/sec(?: \((\d{1,2})X ?([A-Z0-9]{0,8}))?")
    layer = layer and layer.strip()
    if isinstance(layer, str) and layer not in _LAYERS:
        layer = Unavailable(Kind.MALFORMED if layer else Kind.EMPTY, f"{where}/link_layer: {layer[:40]!r}")
    if isinstance(state, str) and state not in _STATES:
        state = Unavailable(Kind.MALFORMED, f"{where}/state: {state[:40]!r}")
    return RdmaPort(
        number=number,
        state=state,
        physical=_after_number(host, f"{where}/phys_state"),
        link_layer=layer,
        rate_gbps=rate and float(rate[1]),
        gids=_gids(host, where),
        lanes=int(rate[2]) if rate and rate[2] else None,
        speed=rate[3] or "" if rate else "",
        pkey=_pkey(host, f"{where}/pkeys/0") if layer == "InfiniBand" else None,
    )


def _with_mtus(ports: tuple[RdmaPort, ...] | Unavailable, told: Any) -> tuple[RdmaPort, ...] | Unavailable:
    if isinstance(ports, Unavailable) or not isinstance(told, dict):
        return ports
    sizes = {port.number: told.get(str(port.number)) for port in ports}
    return tuple(replace(one, mtu=size if type(size := sizes[one.number]) is int else None) for one in ports)


def _pkey(host: Host, path: str) -> int | None | Unavailable:
    """None: an older recording did not ask."""
    found = matching(host, path, r"0x([0-9a-fA-F]{1,4})$")
    if isinstance(found, Unavailable):
        return None if found.kind is Kind.NOT_RECORDED else found
    return int(found[1], 16)


def _after_number(host: Host, path: str) -> str | Unavailable:
    """ "4: ACTIVE" as "ACTIVE"."""
    found = matching(host, path, r"\d+\s*:\s*(\S.*)")
    return found and found[1]


def _gids(host: Host, where: str) -> tuple[Gid, ...] | Unavailable:
    listed = names(host, f"{where}/gids")
    if isinstance(listed, Unavailable):
        return listed
    found: list[Gid] = []
    empty = 0
    indexes = sorted(int(n) for n in listed if re.fullmatch(r"\d{1,4}", n, re.ASCII))
    if not indexes:
        return Unavailable(Kind.EMPTY, f"{where}/gids")  # every port has a table
    for index in indexes:
        gid = read(host, f"{where}/gids/{index}")
        if isinstance(gid, Unavailable):
            if gid.kind == Kind.FAILED:  # EAGAIN and EINVAL are an entry that is being changed or not valid
                continue
            return gid
        if gid.strip() in _NO_GID or not gid.strip():
            empty += 1
            if empty >= _EMPTY_GIDS:
                break
            continue
        empty = 0
        kind, netdev = (read(host, f"{where}/gid_attrs/{what}/{index}") for what in ("types", "ndevs"))
        found.append(Gid(index, gid.strip(), kind and kind.strip(), netdev and netdev.strip()))
    return tuple(found)


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

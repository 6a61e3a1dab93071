"""Ports of RDMA devices, as sysfs has them, and their GIDs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from netdoctor.facts import ib_speed
from netdoctor.host.base import Host, matching, names, read
from netdoctor.model import Kind, Unavailable, record

# What the kernel writes there (drivers/infiniband/core/sysfs.c); "Unspecified" is libibverbs' word for "Unknown".
_LAYERS: Final = frozenset({"InfiniBand", "Ethernet", "Unknown", "Unspecified"})
_STATES: Final = frozenset({"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"})
# A RoCE port has up to 256 GID entries and fills them from the front; reading stops after this many empty ones in a row.
_EMPTY_GIDS: Final = 16
_PKEYS: Final = 32  # entries of a P_Key table that are read: subnet managers fill it from the front
UNNAMED: Final = Unavailable(Kind.UNSUPPORTED, "the kernel may have no name for this speed")
_NO_GID: Final = frozenset({"0000:0000:0000:0000:0000:0000:0000:0000", "fe80:0000:0000:0000:0000:0000:0000:0000"})


@record
class Gid:
    """One filled entry of a port's GID table."""

    index: int
    value: str  # "fe80:0000:…"
    kind: str | Unavailable  # "IB/RoCE v1" | "RoCE v2"
    netdev: str | Unavailable  # gid_attrs/ndevs; unreadable where its netdev is in another namespace


@record
class RdmaPort:
    """One port of an HCA."""

    number: int
    state: str | Unavailable  # "ACTIVE" "DOWN" "INIT" "ARMED"
    physical: str | Unavailable  # "LinkUp"
    link_layer: str | Unavailable  # "InfiniBand" | "Ethernet" | "Unspecified" (EFA)
    rate_gbps: float | Unavailable  # as NCCL is told
    gids: tuple[Gid, ...] | Unavailable
    lanes: int | None = None  # of the link, as its rate says ("4X"); None: it does not
    # The P_Key table of an InfiniBand port, up to its first empty entry (0x0000) and with it; None: it was not asked.
    pkeys: tuple[int, ...] | None | Unavailable = None
    pkey_slots: int = 0  # entries that the table has, filled or not
    mtu: int | None = None  # bytes of its packets (active_mtu), as libibverbs says; None: it was not asked, or does not say
    speed: str = ""  # the name that the kernel gives it: "NDR"
    unnamed: bool = False  # its rate is what stands for every speed that the kernel does not know
    gid_slots: int = 0  # entries that its table has, filled or not; 0: not known

    @property
    def pkey(self) -> int | None | Unavailable:
        """The first of its table, which NCCL takes by default."""
        return self.pkeys[0] if self.pkeys else self.pkeys if isinstance(self.pkeys, Unavailable) else None

    @property
    def rate(self) -> float | Unavailable:
        """What it runs at."""
        return UNNAMED if self.unnamed else self.rate_gbps

    def gid(self, index: int) -> Gid | None | Unavailable:
        """An entry of its table; None: it is empty, or beyond the table's end."""
        if isinstance(self.gids, Unavailable):
            return self.gids
        if self.gid_slots and index >= self.gid_slots:
            return None
        last = max((one.index for one in self.gids), default=-1)
        if index > last + _EMPTY_GIDS:
            return Unavailable(Kind.NOT_READ, f"GID {index} of port {self.number} was not read")
        return next((one for one in self.gids if one.index == index), None)


def read_ports(host: Host, where: str) -> tuple[RdmaPort, ...] | Unavailable:
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
    gids, entries = _gids(host, where)
    pkeys, slots = _pkeys(host, f"{where}/pkeys") if layer == "InfiniBand" else (None, 0)
    return RdmaPort(
        number=number,
        state=state,
        physical=_after_number(host, f"{where}/phys_state"),
        link_layer=layer,
        rate_gbps=rate and float(rate[1]),
        gids=gids,
        gid_slots=entries,
        lanes=int(rate[2]) if rate and rate[2] else None,
        speed=rate[3] or "" if rate else "",
        pkeys=pkeys,
        pkey_slots=slots,
    )


def with_mtus(ports: tuple[RdmaPort, ...] | Unavailable, told: Any) -> tuple[RdmaPort, ...] | Unavailable:
    if isinstance(ports, Unavailable) or not isinstance(told, dict):
        return ports
    sizes = {port.number: told.get(str(port.number)) for port in ports}
    return tuple(replace(one, mtu=size if type(size := sizes[one.number]) is int else None) for one in ports)


def _pkeys(host: Host, where: str) -> tuple[tuple[int, ...] | None | Unavailable, int]:
    """None: an older recording did not ask."""
    listed = names(host, where)
    older = isinstance(listed, Unavailable) and listed.kind is Kind.NOT_RECORDED  # which asked for the first alone
    if isinstance(listed, Unavailable) and not older:
        return listed, 0
    slots = 1 if older else sum(one.isdecimal() for one in listed or ())
    table = list[int]()
    for index in range(min(slots, _PKEYS)):
        found = matching(host, f"{where}/{index}", r"0x([0-9a-fA-F]{1,4})$")
        if isinstance(found, Unavailable):
            return None if found.kind is Kind.NOT_RECORDED else found, slots
        table.append(int(found[1], 16))
        if not table[-1] & 0x7FFF:
            break
    return tuple(table) or Unavailable(Kind.EMPTY, where), slots


def _after_number(host: Host, path: str) -> str | Unavailable:
    """ "4: ACTIVE" as "ACTIVE"."""
    found = matching(host, path, r"\d+\s*:\s*(\S.*)")
    return found and found[1]


def _gids(host: Host, where: str) -> tuple[tuple[Gid, ...] | Unavailable, int]:
    """What is in the table, and how many entries it has."""
    listed = names(host, f"{where}/gids")
    if isinstance(listed, Unavailable):
        return listed, 0
    found: list[Gid] = []
    empty = 0
    indexes = sorted(int(n) for n in listed if re.fullmatch(r"\d{1,4}", n, re.ASCII))
    if not indexes:
        return Unavailable(Kind.EMPTY, f"{where}/gids"), 0  # every port has a table
    for index in indexes:
        gid = read(host, f"{where}/gids/{index}")
        if isinstance(gid, Unavailable):
            if gid.kind == Kind.FAILED:  # EAGAIN and EINVAL are an entry that is being changed or not valid
                continue
            return gid, 0
        if gid.strip() in _NO_GID or not gid.strip():
            empty += 1
            if empty >= _EMPTY_GIDS:
                break
            continue
        empty = 0
        kind, netdev = (read(host, f"{where}/gid_attrs/{what}/{index}") for what in ("types", "ndevs"))
        found.append(Gid(index, gid.strip(), kind and kind.strip(), netdev and netdev.strip()))
    return tuple(found), indexes[-1] + 1


def by_verbs(port: RdmaPort, model: str, numbers: object) -> RdmaPort:
    """What ibv_query_port says of a port of InfiniBand for whose speed the kernel may have no name."""
    pair = numbers if isinstance(numbers, list) and len(numbers) == 2 else (None, None)
    if (found := ib_speed.by_number(*pair)) is None:
        return replace(port, rate_gbps=UNNAMED, unnamed=True)
    rate, name = found
    return replace(port, rate_gbps=rate, speed=name, unnamed=ib_speed.at_least(model, name))

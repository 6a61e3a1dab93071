"""One description of a machine: read from YAML, written as the file that the fake libraries read; tree.py writes its /sys.

A fault or another shape is a change of the description (``with_changes``), so that libraries, /sys and /dev stay of one mind;
the knobs that belong to no shape (a call that fails, an event) are lines of ``faults`` and ``events``.
"""

from __future__ import annotations

import copy
import hashlib
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.fakegpu.parts import Gid, Gpu, Hca, Interface, Link, Nic, NvLink, Place, Port
from tests.support.sources import table

MACHINES: Final = pathlib.Path(__file__).parent / "machines"
HOSTS: Final = pathlib.Path(__file__).parents[2] / "fixtures" / "hosts"
P2P: Final = {"ok": 0, "chipset": 1, "gpu": 2, "ioh": 3, "regkey": 4, "none": 5}  # nvmlGpuP2PStatus_t
# ibv_event_type
EVENTS: Final = {"qp_fatal": 1, "device_fatal": 8, "port_active": 9, "port_error": 10, "lid_change": 11, "gid_change": 18}
ADDRESS: Final = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class Machine:
    """A description that was read; `data` is what it was read from."""

    data: Mapping[str, Any]
    name: str
    hostname: str
    driver: str
    cuda: int
    shown: bool  # False: a container without the driver's libraries and nodes, on a node that has GPUs
    numa: tuple[str, ...]  # CPU list of each node; "" one of memory alone
    distances: tuple[str, ...]  # from each node to all, as sysfs has them
    gpus: tuple[Gpu, ...]
    switches: tuple[Place, ...]  # NVSwitches
    hcas: tuple[Hca, ...]
    nics: tuple[Nic, ...]
    modules: Mapping[str, str]
    memory_peers: tuple[str, ...]
    devices: tuple[str, ...]  # more nodes below /dev
    p2p: Mapping[tuple[int, int], int]
    faults: tuple[str, ...]
    events: tuple[str, ...]

    @property
    def peermem(self) -> bool:
        """A module gives the HCAs' driver the pages of GPU memory."""
        return "nvidia_peermem" in self.modules or bool(self.memory_peers)

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """In the order of their making: cards without RDMA, HCAs, bridges; none of another network namespace."""
        cards = [nic for nic in self.nics if nic.name]
        names = [nic.name for nic in cards]
        cards += [hca.nic for hca in self.hcas if hca.netdev and not hca.elsewhere and hca.netdev not in names]
        cards.sort(key=lambda nic: nic.kind == "bridge")
        return tuple(Interface(index, _mac(self.hostname, nic.name), nic) for index, nic in enumerate(cards, 2))

    @property
    def default(self) -> tuple[str, str, str] | None:
        """The default route: interface, source, gateway; by the first interface that has an address where none is told."""
        told = self.data.get("default", {})
        for one in self.interfaces:
            if one.address and told.get("dev", one.name) == one.name:
                source = one.address.partition("/")[0]
                return one.name, source, told.get("via", f"{source.rpartition('.')[0]}.1")
        return None

    def with_changes(self, changes: Mapping[str, Any]) -> Machine:
        """Another machine.  Keys are paths into the description ("gpus.0.state.lost", "gpus.all.links_down"), None removes."""
        if not changes:
            return self
        data = copy.deepcopy(dict(self.data))
        for path, value in changes.items():
            _put(data, path.split("."), value)
        return parse(data)

    def on_one_node(self) -> Machine:
        """The same on one NUMA node.

        The kernel tells a process which nodes' memory it may have, and that cannot be faked: where this machine has one node,
        whoever looks (netdoctor does) rightly says that a GPU on another is out of reach.
        """
        return self.with_changes({"numa": [",".join(filter(None, self.numa))], "distances": {}, "above.all.numa": 0})

    def lines(self, **settings: str) -> Iterator[str]:
        """What the fake libraries read (c/fake.h); settings are keys of one run: kernels, trace."""
        yield f"name {self.name}"
        yield f"cuda {self.cuda}"
        yield f"driver {self.driver}"
        loaded = self.shown and "nvidia" in self.modules
        yield f"driver.loaded {int(loaded)}"
        yield f"peermem {int(self.peermem)}"
        yield f"fabric.mtu {self.data.get('fabric', {}).get('mtu', 4096)}"
        yield f"gpus {len(self.gpus) if loaded else 0}"
        for n, gpu in enumerate(self.gpus):
            yield from (f"gpu.{n}.{key} {value}" for key, value in gpu.told())
        for (a, b), status in self.p2p.items():
            yield from (f"p2p.{a}.{b} {status}", f"p2p.{b}.{a} {status}")
        yield f"hcas {len(self.hcas)}"
        for n, hca in enumerate(self.hcas):
            yield from (f"hca.{n}.{key} {value}" for key, value in hca.told())
        yield from (f"{key} {value}" for key, value in settings.items())
        yield from (f"fault {one}" for one in self.faults)
        yield from (f"event {one}" for one in self.events)

    def write(self, path: pathlib.Path, **settings: str) -> None:
        path.write_text("".join(f"{line}\n" for line in self.lines(**settings)), encoding="utf-8")


def _put(data: Any, steps: Sequence[str], value: Any) -> None:
    step, *rest = steps
    if step == "all" and "all" not in data:
        for item in data if isinstance(data, list) else data.values():
            _put(item, rest, value)
        return
    key: Any = int(step) if isinstance(data, list) or (step.isdigit() and int(step) in data) else step
    if rest:
        if isinstance(data, dict):
            data.setdefault(key, {})
        _put(data[key], rest, value)
    elif value is None:
        del data[key]
    else:
        data[key] = value


def read(name: str | pathlib.Path) -> Machine:
    """A machine by its name, or by the path of its file: a description, or a snapshot that netdoctor took of a real one."""
    path = pathlib.Path(name)
    if path.suffix == ".json":
        from tests.fakegpu import recorded

        return parse(recorded.description(path))
    return parse(description(path))


def description(path: pathlib.Path) -> dict[str, Any]:
    """What a file says; ``like: NAME`` begins with what another says, null takes away."""
    if path.suffix != ".yaml":
        path = next((p for p in (MACHINES / f"{path}.yaml", HOSTS / path / "machine.yaml") if p.exists()), path)
    told = table(path)
    data = {key: value for key, value in told.items() if key != "like"}
    return data if "like" not in told else _merged(description(pathlib.Path(told["like"])), data)


def names() -> tuple[str, ...]:
    """Machines to try things on."""
    return tuple(sorted(one.stem for one in MACHINES.glob("*.yaml")))


def fixtures() -> tuple[str, ...]:
    """Machines whose snapshots are composed from their descriptions."""
    return tuple(sorted(one.parent.name for one in HOSTS.glob("*/machine.yaml")))


_KEYS: Final = frozenset(
    (
        *("name", "driver", "numa", "distances", "modules", "memory_peers", "devices", "default", "fabric", "faults", "events"),
        *("above", "gpu", "gpus", "p2p", "nvlinks", "nvswitches", "hca", "hcas", "nics"),
        "acs",  # of bridges by address: what of their Access Control Services is switched on
        "host",  # what is no hardware: composed machines have it (tests/support/machines/composed.py)
    )
)


def parse(data: Mapping[str, Any]) -> Machine:
    """The machine of a description; ValueError where it says what nobody reads."""
    if unknown := set(data) - _KEYS:
        raise ValueError(f"no machine has {', '.join(sorted(unknown))}")
    hostname = data.get("host", {}).get("name", data["name"])
    above = data.get("above", {})
    switches = tuple(_place(one, above) for one in data.get("nvswitches", ()))
    raw_gpus = [_merged(data.get("gpu", {}), one) for one in data.get("gpus", ())]
    places = [_place(one["at"], above) for one in raw_gpus]
    gpus = tuple(
        _read_gpu(hostname, n, one, places, _nvlinks(data.get("nvlinks", {}), n, places, switches))
        for n, one in enumerate(raw_gpus)
    )
    nics = tuple(_read_nic(one, above) for one in data.get("nics", ()))
    addresses = {nic.name: nic.address for nic in nics if nic.name}
    hcas: list[Hca] = []
    for one in data.get("hcas", ()):
        hcas.append(_read_hca(hostname, len(hcas), _merged(data.get("hca", {}), one), above, addresses))
    driver = data.get("driver", {})
    numa = tuple(data.get("numa", ("0-55",)))
    p2p = {(a, b): P2P[status] for a, b, status in data.get("p2p", ())}
    modules = {str(k): str(v or "") for k, v in data.get("modules", {}).items()}
    return Machine(
        data=data,
        name=data["name"],
        hostname=hostname,
        driver=str(driver.get("version", "580.95.05")),
        cuda=int(driver.get("cuda", 13000)),
        shown=bool(driver.get("shown", True)),
        numa=numa,
        distances=_distances(data.get("distances", {}), len(numa)),
        gpus=gpus,
        switches=switches,
        hcas=tuple(hcas),
        nics=nics,
        modules=modules,
        memory_peers=tuple(data.get("memory_peers", ())),
        devices=tuple(data.get("devices", ())),
        p2p=p2p,
        faults=tuple(data.get("faults", ())),
        events=tuple(_event(one) for one in data.get("events", ())),
    )


def _merged(usual: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`own` over `usual`, mappings in them too; null takes away."""
    both = dict(usual)
    for key, value in own.items():
        both[key] = _merged(usual[key], value) if isinstance(value, dict) and isinstance(usual.get(key), dict) else value
    return {key: value for key, value in both.items() if value is not None}


def _distances(told: Mapping[str, int] | Sequence[str], count: int) -> tuple[str, ...]:
    """SLIT: a line a node, or ``{socket: 4, near: 12, far: 32}``, nodes a socket and the distances in one and between two."""
    if not isinstance(told, Mapping):
        return tuple(told)
    socket, near, far = told.get("socket", 1), told.get("near", 12), told.get("far", 21)
    return tuple(
        " ".join("10" if n == k else str(near if n // socket == k // socket else far) for k in range(count))
        for n in range(count)
    )


def _read_nic(one: Mapping[str, Any], above: Mapping[str, Any]) -> Nic:
    speed = one.get("speed", 10000)
    return Nic(
        place=_place(one["at"], above) if "at" in one else None,
        link=_link(one),
        vendor=int(one.get("vendor", 0x8086)),
        device=int(one.get("device", 0x1563)),
        driver=one.get("driver", "ixgbe" if "at" in one else ""),
        name=one.get("name", ""),
        address=one.get("address", ""),
        speed=None if speed == "refused" else int(speed),
        mtu=int(one.get("mtu", 1500)),
        kind=one.get("kind", ""),
        controller=one.get("controller", ""),
        up=bool(one.get("up", True)),
    )


def _place(at: Sequence[str], above: Mapping[str, Any]) -> Place:
    """``[NAME, ADDRESS…, ADDRESS]``: below what `above` calls NAME, bridges, the function itself."""
    first, *rest = at
    shared = above[first]
    bridges = (*shared["path"], *rest[:-1])
    for one in (*bridges, rest[-1]):
        if not ADDRESS.fullmatch(one):
            raise ValueError(f"{one} is no PCI address")
    return Place(tuple(bridges), rest[-1], int(shared.get("numa", 0)))


def _link(one: Mapping[str, Any]) -> Link:
    most = Link(**{k: v for k, v in one.get("link", {}).items() if k.startswith("max_")})
    now = {"generation": most.max_generation, "width": most.max_width}
    return Link(**{**now, "max_generation": most.max_generation, "max_width": most.max_width, **one.get("link", {})})


def _digits(*words: object) -> str:
    return hashlib.sha256(" ".join(map(str, words)).encode()).hexdigest()


def _read_gpu(machine: str, n: int, one: Mapping[str, Any], places: Sequence[Place], nvlinks: tuple[NvLink, ...]) -> Gpu:
    # 110 and 116: GPUDirect RDMA; 124: dma-buf.  132 (multicast) stays 0: the fake has no NVLS.
    attributes = {110: 1, 116: 1, 124: 1, 132: 0, 134: places[n].numa}
    attributes |= {int(key): value for key, value in one.get("attributes", {}).items()}
    return Gpu(
        place=places[n],
        link=_link(one),
        name=one["name"],
        uuid=one.get("uuid", _digits(machine, "GPU", n)[:32]),
        device=int(one["device"]),
        capability=int(one["capability"]),
        multiprocessors=int(one["multiprocessors"]),
        memory=int(one["memory"]),
        nvlinks=tuple(NvLink(link.remote, number not in one.get("links_down", ())) for number, link in enumerate(nvlinks)),
        attributes=attributes,
        state=dict(_flat(one.get("state", {}))),
    )


def _flat(nested: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, int | str]]:
    """``{ecc: {uncorrected: 1}}`` as "ecc.uncorrected", 1."""
    for key, value in nested.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def _nvlinks(how: Mapping[str, Any], n: int, places: Sequence[Place], switches: Sequence[Place]) -> tuple[NvLink, ...]:
    """``{switched: 18}``: to the NVSwitches in turn; ``{pairs: [[0, 1]], each: 12}``: from GPU to GPU."""
    if "switched" in how:
        # A guest does not see its NVSwitches: the other end has an address that is nowhere.
        ends = [one.address for one in switches] or ["ffff:ff:00.0"]
        return tuple(NvLink(ends[k % len(ends)]) for k in range(int(how["switched"])))
    peers = [b if a == n else a for a, b in how.get("pairs", ()) if n in (a, b)]
    return tuple(NvLink(places[peer].address) for peer in peers for _ in range(int(how["each"])))


def _read_hca(machine: str, n: int, one: Mapping[str, Any], above: Mapping[str, Any], addresses: Mapping[str, str]) -> Hca:
    name = one.get("name", f"mlx5_{n}")
    guid = one.get("guid", "a088c2" + _digits(machine, name)[:10])
    layer = one.get("layer", "InfiniBand")
    ethernet = layer == "Ethernet"
    netdev = one.get("netdev", f"eth{n + 1}" if ethernet else "")
    address = one.get("address", f"10.{1 + n}.0.7/24" if ethernet else "")
    # A bond has the address of its ports, the paravirtual interface that of its virtual function.
    holder = netdev if netdev in addresses else one.get("controller", "")
    ports = []
    for number, own in enumerate(one.get("ports", ({},)), 1):
        port = {**one, **own}
        gids = port.get("gids")
        if gids is None:
            usual = roce_gids(machine, addresses.get(holder, address), netdev) if ethernet else {0: _own_gid(guid)}
        else:
            usual = {int(i): Gid(value, kind, device) for i, (value, kind, device) in gids.items()}
        ports.append(
            Port(
                state=port.get("state", "ACTIVE"),
                layer=layer,
                rate=int(port.get("rate", 400)),
                written=int(port.get("written", port.get("rate", 400))),
                mtu=int(port.get("mtu", 4096)),
                lid=int(port.get("lid", 16 + 2 * n + number)) if layer == "InfiniBand" else 0,
                vlan=int(port.get("vlan", 0)),
                gids=usual,
                pkeys=tuple(port.get("pkeys", (port.get("pkey", 0xFFFF),))),
                table=max(int(port.get("table", 8 if ethernet else 1)), *(i + 1 for i in usual)) if usual else 1,
            )
        )
    return Hca(
        place=_place(one["at"], above),
        link=_link(one),
        name=name,
        guid=guid,
        image=one.get("image", guid),
        board=one.get("board", "" if one.get("driver", "mlx5_core") != "mlx5_core" else "MT_0000000838"),
        firmware=str(one.get("firmware", "28.39.1002")),
        vendor=int(one.get("vendor", 0x15B3)),
        device=int(one.get("device", 0x1021)),
        driver=one.get("driver", "mlx5_core"),
        dmabuf=bool(one.get("dmabuf", True)),
        ports=tuple(ports),
        netdev=netdev,
        address=address,
        netdev_mtu=int(one.get("netdev_mtu", 1500)),
        controller=one.get("controller", ""),
        elsewhere=bool(one.get("elsewhere", False)),
        node=None if one.get("node", n) == "none" else int(one.get("node", n)),
        mode=None if one.get("mode", 0o666) == "none" else int(one.get("mode", 0o666)),
    )


def _own_gid(guid: str) -> Gid:
    """The first entry of a port that is not Ethernet."""
    return Gid("fe80:0000:0000:0000:" + ":".join(re.findall("....", guid)), "IB/RoCE v1", "")


def _mac(machine: str, interface: str) -> str:
    """One that its administrator gave (IEEE 802, bit 0x02 of the first octet)."""
    return "02:" + ":".join(re.findall("..", _digits(machine, interface)[:10]))


def roce_gids(machine: str, address: str, netdev: str) -> dict[int, Gid]:
    """The table of a RoCE port with at most one IPv4 address (drivers/infiniband/core/roce_gid_mgmt.c).

    Link-local, by the EUI-64 of its MAC, and IPv4-mapped, v1 and v2 each.
    """
    mac = _mac(machine, netdev).split(":")
    first = f"{int(mac[0], 16) ^ 2:02x}"
    values = [f"fe80:0000:0000:0000:{first}{mac[1]}:{mac[2]}ff:fe{mac[3]}:{mac[4]}{mac[5]}"]
    if address:
        a, b, c, d = (int(part) for part in address.partition("/")[0].split("."))
        values.append(f"0000:0000:0000:0000:0000:ffff:{a:02x}{b:02x}:{c:02x}{d:02x}")
    both = ((value, kind) for value in values for kind in ("IB/RoCE v1", "RoCE v2"))
    return {i: Gid(value, kind, netdev) for i, (value, kind) in enumerate(both)}


def _event(text: str) -> str:
    """``DEVICE KIND PORT AFTER`` with the kind by name."""
    device, kind, port, after = text.split()
    return f"{device} {EVENTS[kind]} {port} {after}"

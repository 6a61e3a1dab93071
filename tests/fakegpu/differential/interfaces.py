"""Which interfaces NCCL takes: for its bootstrap (asked by ncclGetUniqueId), and for NET/Socket (by a communicator of one)."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import socket
import struct
import time
from collections.abc import Iterator
from ipaddress import ip_address
from typing import Any, Final

from netdoctor.facts.net import probe
from netdoctor.host.base import ReplayHost
from netdoctor.host.helpers import nccl as asked, netlink
from netdoctor.model import Kind, Unavailable
from netdoctor.nccl.ifname import choose
from tests.fakegpu import lab, namespace
from tests.fakegpu.differential import ranks
from tests.fakegpu.differential.case import UNSAID, Draw, Row, settings_text
from tests.fakegpu.differential.world import World
from tests.fakegpu.rank import Rank

NAMES: Final = (
    *("eth0", "eth1", "eth10", "ens1f0np0", "ens1f1np1", "ib0", "ibp65s0", "bond0", "docker0", "docker_gwbridge", "br-1a2b"),
    *("virbr0", "veth9", "cni0", "lo1", "enp5s0", "tailscale0", "e"),
)
SELECTORS: Final = (
    *("eth", "=eth", "eth0", "=eth0", "eth1", "=eth1,eth0", "eth9,eth1", "eth9, eth1", "^docker", "^docker,lo", "^=docker0"),
    *(
        "^eth,lo",
        "lo",
        "=lo",
        "x",
        "^x",
        "",
        "=",
        "^",
        "^,",
        "=,",
        "nosuch",
        ":1",
        "eth0:1",
        "eth0:5",
        "ib",
        "en",
        "^en",
        "^=e",
    ),
    *("e", "=e", "ens1f0np0,eth1", "^ib,docker", "=^eth0", "^^eth0", "==eth0", "ETH0", " eth0", "eth0 ", "virbr0", "bond", "*"),
)
SIOCGIFFLAGS, IFF_RUNNING = 0x8913, 0x40  # netdevice(7)
LOOPBACK: Final = "link set lo up"
FAMILIES: Final = ("AF_INET", "AF_INET6", "ipv6", "", "af_inet6", "AF_INET ")
COMM_IDS: Final = (
    *("10.1.0.1:4000", "10.0.0.1:4000", "10.2.0.9:1", "127.0.0.1:4000", "192.0.2.1:4000", "[fd00::1]:4000", "[fd00:1::1]:5"),
    *("[fe80::1]:4000", "[fe80::1%eth0]:4000", "bad", "10.1.0.1", ":5", "[fd00::1]", "10.1.0.300:1"),
)


def network(rng: random.Random) -> list[str]:
    """What `ip -batch` makes: one to five interfaces with addresses of both families, up or not, with a carrier or not."""
    lines = [LOOPBACK] if rng.random() < 0.95 else []
    for number, name in enumerate(rng.sample(NAMES, rng.choice((1, 2, 2, 3, 3, 5)))):
        lines += [f"link add {name} type veth peer name peer{number}", f"link set {name} addrgenmode none"]
        addresses = []
        if rng.random() < 0.85:
            addresses.append(f"10.{number}.0.7/24")
        if rng.random() < 0.1:
            addresses.append(f"10.{number + 100}.0.7/16 label {name}:1")
        if rng.random() < 0.3:
            addresses.append(f"fd00:{number}::7/64 nodad")
        if rng.random() < 0.3:
            addresses.append("fe80::7/64 nodad")
        rng.shuffle(addresses)
        lines += [f"addr add {one} dev {name}" for one in addresses if not ("label" in one and len(name) > 12)]
        if rng.random() < 0.9:
            lines.append(f"link set {name} up")
        if rng.random() < 0.9:
            lines += [f"link set peer{number} addrgenmode none", f"link set peer{number} up"]
    return lines


def settings(rng: random.Random) -> dict[str, str]:
    found = {}
    if rng.random() < 0.7:
        found["NCCL_SOCKET_IFNAME"] = rng.choice((*SELECTORS, *NAMES, *(f"={one}" for one in NAMES), *(f"^{n}" for n in NAMES)))
    if rng.random() < 0.3:
        found["NCCL_SOCKET_FAMILY"] = rng.choice(FAMILIES)
    if rng.random() < 0.15:
        found["NCCL_COMM_ID"] = rng.choice(COMM_IDS)
    return found


def compare(draw: Draw, world: World) -> Iterator[Row]:
    rng = draw.random
    lines, chosen = network(rng), settings(rng)
    purpose = "socket" if rng.random() < 0.15 and "NCCL_COMM_ID" not in chosen else "bootstrap"
    if purpose == "socket" and lines[0] != LOOPBACK:
        lines.insert(0, LOOPBACK)  # a communicator's rank connects to itself, and without it waits for ever
    folder = world.folder / "net"
    folder.mkdir(exist_ok=True)
    (folder / "network").write_text("".join(f"{line}\n" for line in lines), encoding="ascii")
    predicted, seen = in_network(draw, folder, chosen, purpose)
    what = f"{purpose} on {'; '.join(one for one in lines if not one.startswith('link set peer'))} with {settings_text(chosen)}"
    yield Row(what, predicted, seen)


def in_network(draw: Draw, folder: pathlib.Path, chosen: dict[str, str], purpose: str) -> tuple[object, object]:
    """What netdoctor and NCCL say, each in a fork in the network's namespace."""
    answer = folder / "answer"

    def work(_n: int, _one: ranks.Process) -> None:
        namespace.connect(folder)
        settle((folder / "network").read_text("ascii").splitlines())
        told: Any = netlink.answer({})
        net = probe(ReplayHost({"ask:netlink": told}))
        assert not isinstance(net, Unavailable) and not isinstance(net.links, Unavailable)
        links = net.links
        picks = choose(links, draw.version, chosen, purpose)
        said: object = [list(one) for one in picks or ()]
        if isinstance(picks, Unavailable):
            said = "refused" if picks.kind is Kind.MALFORMED else UNSAID
        answer.write_text(json.dumps([said, _bootstrap(draw, chosen) if purpose == "bootstrap" else _sockets(draw)]))

    env = ranks.environment(lab.library(draw.text), draw.version, chosen)
    done = ranks.run([ranks.Process(env)], folder, work, 120.0)
    if not done.ok:
        raise RuntimeError(done.failure)
    predicted, seen = json.loads(answer.read_text("utf-8"))
    if predicted == "refused" and isinstance(seen, str):
        return "refused", "refused"
    if purpose == "socket" and not isinstance(seen, str):
        found = done.said(r"NET/Socket : Using (.*)")
        return predicted, [_pick(one) for one in re.findall(r"\[\d+\](\S+)<\d+>", found[0][1])] if found else []
    return predicted, [] if isinstance(seen, str) else seen


def settle(lines: list[str]) -> None:
    """Wait until the kernel has seen every carrier: it looks after them in its own time (net/core/link_watch.c)."""
    up = {line.split()[2] for line in lines if line.startswith("link set ") and line.endswith(" up")}
    pairs = [(line.split()[2], line.split()[-1]) for line in lines if " type veth peer name " in line]
    waited = [name.encode() for name, peer in pairs if {name, peer} <= up]
    end = time.monotonic() + 10.0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        while waited and time.monotonic() < end:
            flags = struct.unpack_from("16xH", fcntl.ioctl(one, SIOCGIFFLAGS, struct.pack("16s24x", waited[-1])))[0]
            if flags & IFF_RUNNING:
                waited.pop()
            else:
                time.sleep(0.01)


def _pick(text: str) -> list[str]:
    """``eth0:1:10.0.0.7``: a label has a colon, too, as an IPv6 address has; the shortest name that leaves an address."""
    pieces = text.split(":")
    for cut in range(1, len(pieces)):
        address = ":".join(pieces[cut:]).partition("%")[0]
        with contextlib.suppress(ValueError):
            ip_address(address)
            return [":".join(pieces[:cut]), address]
    return [text, ""]


def _bootstrap(draw: Draw, chosen: dict[str, str]) -> object:
    more = {"comm_id": chosen["NCCL_COMM_ID"]} if "NCCL_COMM_ID" in chosen else {}
    told = asked.answer({"path": str(lab.library(draw.text)), **more})
    assert isinstance(told, dict)
    return [[told["interface"], told["address"]]] if told["interface"] else f"code {told['code']}: {told['error']}"


def _sockets(draw: Draw) -> object:
    os.environ.update({"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", **ranks.SMALL, "NCCL_MAX_NCHANNELS": "1"})
    rank = Rank(0, 1, 1024, 20.0)
    rank.open(0)
    id_file = pathlib.Path(os.environ["FAKEGPU_MACHINE"]).with_name("id")
    try:
        rank.init(id_file)
    except Exception as error:  # noqa: BLE001 - what NCCL refuses is an answer
        return f"refused: {error}"
    return []

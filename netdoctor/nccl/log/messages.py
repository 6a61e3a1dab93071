"""NCCL's INFO messages, one handler a family, found by the first word of the message.

A handler takes (accumulator, process, device, message) and keeps what the message says.  Formats per version: src/init.cc,
src/bootstrap.cc, src/transport/*.cc, src/graph/*.cc, src/plugin/net.cc of the tags 2.4.2 to 2.32.3.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from netdoctor.nccl.log.accumulator import MAX_COMM_IDS, Accumulator, Process
from netdoctor.nccl.log.prefix import text

Handler = Callable[[Accumulator, Process, int, bytes], None]


def via(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA`` (``Ring`` to 2.6, ``Coll``, ``CollNet``).

    The channels of one connection differ in their number only, so lines are counted here and read by `connections.connection`.
    """
    rest = msg[msg.find(b" : ") :]
    vias = process.vias
    if rest in vias:
        vias[rest] += 1
    elif b" via " in rest:
        vias[rest] = 1
    else:
        ring(accumulator, msg)


def ring(accumulator: Accumulator, msg: bytes) -> None:
    """``Channel 00/08 :    0   5   4   7``: how many ranks the ring has, where no other line tells."""
    members = msg.partition(b" : ")[2].split()
    if members and len(members) > accumulator.ring_ranks and all(m.isdigit() for m in members):
        accumulator.ring_ranks = len(members)


_ADDRESS: Final = re.compile(rb"(?:\[\d+\])?([^\s:\[\]]+):(\S+?)<\d+>")


def bootstrap(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Bootstrap : Using eth0:10.0.0.2<0>``; up to 2.7 a list, from 2.24 without the space; 2.3: ``NET : Using interface``."""
    match = _ADDRESS.search(msg, msg.find(b"sing "))
    if match and b"sing " in msg:
        process.bootstrap = process.bootstrap or (text(match[1]), text(match[2]))
        accumulator.subsystems.add("BOOTSTRAP")


_VERSION: Final = re.compile(rb"(NCCL|RCCL) version ?:? ?(\d+\.\d+(?:\.\d+)?)[^\s+]{0,40}(?:\+(?:cuda|hip)(\d+\.\d+)?)?")


RCCL: Final = "RCCL"
# AMD's library and what names its parts: its plugin, its sources after hipify, HIP's errors, rccl-tests' header.
_AMDS: Final = re.compile(rb"[lb/ -]rccl|\bRCCL\b|hipify|\bHIP (?:failure|error|version)|hipError|AMD Instinct|AMD Radeon")


def library(accumulator: Accumulator, text: bytes) -> None:
    """A text that shows that the library is AMD's."""
    if accumulator.library != RCCL and _AMDS.search(text) is not None:
        accumulator.library = RCCL


def version(accumulator: Accumulator, process: Process | None, dev: int, msg: bytes) -> None:
    """``NCCL version 2.21.5+cuda12.4``, bare or with a prefix; torch's errors end in ``NCCL version 2.21.5``."""
    for match in _VERSION.finditer(msg):
        number = match[2].decode()
        accumulator.versions[number] += 1
        if accumulator.library != RCCL:  # torch calls either of them NCCL
            accumulator.library = match[1].decode()
        if match[3]:
            accumulator.cuda_versions[match[3].decode()] += 1
        if process is not None:
            process.nccl_version = number


_COMM: Final = re.compile(rb"(?:^|comm (\S+) )rank (\d+) n[rR]anks (\d+)")
_COMM_MORE: Final = re.compile(rb"cudaDev (\d+)|commId (0x[0-9a-f]+)|nNodes (\d+)|MNNVL (\d)")


def comm(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """Communicator lines of every era: ``comm %p rank %d nranks %d cudaDev %d … - Init COMPLETE``."""
    match = _COMM.search(msg)
    if match is None:
        return
    rank, nranks = int(match[2]), int(match[3])
    for more in _COMM_MORE.finditer(msg, match.end()):
        device, identity, nodes, mnnvl = more.groups()
        if device is not None:
            dev = int(device)
        elif identity is not None and b"START" in msg:
            if len(process.comm_ids) < MAX_COMM_IDS:
                process.comm_ids[identity.decode()] = nranks
        elif nodes is not None:
            process.nodes = max(process.nodes, int(nodes))
            accumulator.nodes = max(accumulator.nodes, int(nodes))
        elif mnnvl is not None:
            accumulator.mnnvl = bool(accumulator.mnnvl) or mnnvl != b"0"
    if b"estroy" in msg or b"Abort" in msg or b"Revoke" in msg:
        return
    if nranks >= process.nranks.get(dev, 0):
        process.nranks[dev] = nranks
        process.ranks[dev] = rank
    accumulator.nranks = max(accumulator.nranks, nranks)
    if msg.endswith(b"COMPLETE"):
        process.comms_complete += 1
        accumulator.up(process.rank(dev))
    elif b"Init START" in msg:
        process.comms_started += 1


_TIMING: Final = re.compile(rb"total (\d+\.\d+)")


def timings(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Init timings - ncclCommInitRank: rank 0 nranks 8 total 1.28 (kernels …)`` (2.22 and later)."""
    match = _TIMING.search(msg)
    if match:
        process.init_seconds = max(process.init_seconds, float(match[1]))


def affinity(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Setting affinity for GPU 0 to ff,ffff`` (to 2.27)."""
    match = re.match(rb"Setting affinity for GPU (\d+) to (\S+)", msg)
    if match:
        process.affinity[int(match[1])] = text(match[2])[:200]


_AFFINITY: Final = re.compile(
    rb"Affinity for GPU (\d+) is (.{0,400}?)\. \(GPU affinity = ([^;)]{0,400})(?:; CPU affinity = ([^)]{0,400}))?"
)


def affinity_topo(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``ncclTopoGetCpuAffinity: Affinity for GPU 0 is …. (GPU affinity = … ; CPU affinity = …).`` (2.28 and later)."""
    match = _AFFINITY.search(msg)
    if match is None:
        return
    gpu = int(match[1])
    process.affinity[gpu] = text(match[2])
    mine, theirs = text(match[3]), text(match[4] or b"")
    if match[2].startswith(b"empty") and mine and theirs:
        process.cpu_conflict[gpu] = (mine, theirs)


_ENV: Final = re.compile(rb"([A-Z][A-Z0-9_]{3,60}) set (?:by environment )?to ?(.*)")


def variable(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``NCCL_X set by environment to 1.`` (numbers end in a dot), ``NCCL_IB_HCA set to mlx5_0``."""
    match = _ENV.match(msg)
    if match is None:
        return
    value = text(match[2])
    if re.fullmatch(r"-?\d+\.", value):
        value = value[:-1]
    if len(process.env) < 512:
        process.env[match[1].decode()] = value[:400]
    accumulator.subsystems.add("ENV")


def network(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Using network IB``, the one stable line since 2.6; 2.3: ``Using internal Network``, 2.27: ``Assigned NET plugin``."""
    match = re.match(rb"Using (?:network|internal Network) (.{1,80})|Assigned NET plugin (.{1,80}?) to comm", msg)
    if match:
        process.network = text(match[1] or match[2])


_IB_DEVICE: Final = re.compile(
    rb"(?:\[\d+\] ?)?([A-Za-z_][\w.\-]*):(\d+)(?::-?\d+){0,2}/(IB/SHARP|RoCE/SHARP|IB|RoCE|eRDMA|[A-Za-z]\w{0,15})"
)


_VIRTUAL: Final = re.compile(
    rb"Made virtual device \[(\d{1,4})\] name=(\S{1,200})"
)  # NCCL >= 2.24.3; rail and plane since 2.30


def net_ib(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """NET/IB: the device list, its absence, GPUDirect per HCA."""
    if b": Using " in msg:
        devices, _, oob = msg.partition(b"; OOB ")
        listed = tuple((text(n), int(p), text(k)) for n, p, k in _IB_DEVICE.findall(devices[:8192]))
        if listed:
            process.devices = listed
            accumulator.ib_used = True
        address = _ADDRESS.search(oob)
        if address:
            accumulator.oob = accumulator.oob or (process.host, text(address[1]), text(address[2]))
    elif b"No device found" in msg:
        process.no_ib = True
    else:
        gdr(accumulator, process, dev, msg)
        made = _VIRTUAL.search(msg)
        if made and len(process.virtual) < 1024:
            process.virtual[int(made[1])] = text(made[2])
        if made or b"IbDev" in msg or b"provider=" in msg:
            accumulator.subsystems.add("NET")


_GDR_HCA: Final = re.compile(
    rb"GPU Direct RDMA (?:\([\w-]+\) )?(Enabled|Disabled|enabled) for (?:GPU \S+ / )?HCA (\S+)(?: '([^']+))?"
)


def gdr(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``NET/IB : GPU Direct RDMA Enabled for HCA 0 'mlx5_0'``, or by distance from a GPU."""
    match = _GDR_HCA.search(msg)
    if match is None:
        return
    accumulator.subsystems.add("NET")
    on = match[1].lower() == b"enabled"
    if b"distance" in msg:
        accumulator.gdr_distance["enabled" if on else "disabled"] += 1
        return
    name = text(match[3] or match[2])
    if len(accumulator.gdr_hca) < 4096:
        accumulator.gdr_hca[f"{process.host}/{name}" if process.host else name] = on


def net_socket(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``NET/Socket : Using [0]eth0:10.0.0.2<0> [1]…``."""
    if b": Using " in msg and len(accumulator.socket_interfaces) < 8192:
        for name, address in _ADDRESS.findall(msg[:8192]):
            accumulator.socket_interfaces[(process.host, text(name), text(address))] = None
    elif b" threads and " in msg:
        accumulator.subsystems.add("NET")


_DLERROR: Final = re.compile(rb"(?:returned \d+ : |dlerror=)(.{1,300}?)(?: No plugin found|: when loading|$)")


def net_plugin(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """NET/Plugin lines: which plugin was loaded, or why it could not be."""
    match = re.search(rb"Loaded net plugin (.{1,60}?) \(v(\d+)\)", msg)
    if match:
        accumulator.plugin = text(match[1])
    else:
        error = _DLERROR.search(msg)
        if error:
            why = text(error[1])
            # Its own file not being there is how a node without a plugin looks; anything else is a plugin that is broken.
            plain = re.match(r"lib(?:nccl-net|nccom-net)[\w.\-]*: cannot open shared object file: No such file", why)
            # glibc's words hold a file or a symbol (elf/dl-lookup.c); others are of a buffer that NCCL did not fill.
            if not plain and ": " in why and "\ufffd" not in why:
                accumulator.plugin_error = why[:300]


_OFI_SETS: Final = re.compile(rb"[Ss]etting ([A-Z][A-Z0-9_]+) environment variable")


def net_ofi(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """aws-ofi-nccl; it sets NCCL variables itself, and those are not the user's."""
    match = _OFI_SETS.search(msg)
    if match:
        process.plugin_env.add(match[1].decode())
    if b"Initializing aws-ofi-nccl" in msg or b"elected " in msg:
        accumulator.plugin = accumulator.plugin or "aws-ofi-nccl"


def nvls(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``NVLS multicast support is [not ]available on dev 0``, ``NVLS comm 0x… headRank …``."""
    if b"not available" in msg:
        accumulator.nvls = bool(accumulator.nvls)
    elif b"is available" in msg or b"NVLS comm" in msg:
        accumulator.nvls = True


def mnnvl(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``MNNVL 1 cliqueId … cliqueSize …``."""
    match = re.match(rb"MNNVL (\d) cliqueId", msg)
    if match:
        accumulator.mnnvl = bool(accumulator.mnnvl) or match[1] != b"0"


def sharp(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """nccl-rdma-sharp-plugins: ``SHARP rank 0/2 initialized on mlx5_0``."""
    if b"initialized on" in msg:
        accumulator.sharp = True


def dmabuf(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``DMA-BUF is available on GPU device 0``: a capability of the GPU, no proof of use."""
    accumulator.dmabuf = True


_CHANNELS: Final = re.compile(rb"(\d+) (coll|collnet|nvls|p2p) channels( per peer)?")


def channels(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``16 coll channels, 16 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer``."""
    for number, kind, per in _CHANNELS.findall(msg):
        name = "p2p_per_peer" if per else kind.decode()
        accumulator.channels[name] = max(accumulator.channels.get(name, 0), int(number))


_ALGO: Final = re.compile(rb"(?:(\w+)(?: \[\w[\w ]*\])?: )?(\d+) Bytes -> (?:Algo (\w+) proto (\w+)|Kernel (\w+))")


def algorithm(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``AllReduce: 8388608 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}``; numbers up to 2.23 (subsystem TUNING)."""
    match = _ALGO.search(msg)
    if match:
        accumulator.subsystems.add("TUNING")
        what = "/".join(p.decode() for p in (match[3] or match[5], match[4]) if p)
        if len(accumulator.algorithms) < 512:
            accumulator.algorithms[f"{(match[1] or b'?').decode()} {what}"] += 1


def rings(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Connected all rings[, use ring PXN 0 GDR 1]``; GDR is 1 as well where no connection crosses the network."""
    accumulator.rings += b"rings" in msg
    accumulator.up(process.rank(dev))


def verbs_missing(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``Failed to open libibverbs.so[.1]``."""
    if b"libibverbs" in msg:
        process.verbs_missing = True


def graph(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """Lines of the GRAPH subsystem."""
    accumulator.subsystems.add("GRAPH")


_UNWIND: Final = re.compile(rb"\S{0,80}?transport/(net_ib|net_socket)[\w/]*\.cc:\d+ (?:\(\w+\) )?-> \d")


def unwinding(accumulator: Accumulator, process: Process, dev: int, msg: bytes) -> None:
    """``transport/net_socket.cc:474 -> 6``: an error on its way up says which network it came through."""
    match = _UNWIND.match(msg)
    if match:
        accumulator.networks_inferred["IB" if match[1] == b"net_ib" else "Socket"] += 1


# By the first word of the message.
HANDLERS: Final[dict[bytes, Handler]] = {
    b"Channel": via,
    b"Ring": via,
    b"Coll": via,
    b"CollNet": via,
    b"Bootstrap": bootstrap,
    b"Bootstrap:": bootstrap,
    b"NET": bootstrap,
    b"NCCL": version,
    b"RCCL": version,
    b"comm": comm,
    b"Init": timings,
    b"Setting": affinity,
    b"ncclTopoGetCpuAffinity:": affinity_topo,
    b"rank": comm,
    b"Using": network,
    b"Assigned": network,
    b"NET/IB": net_ib,
    b"NET/IB:": net_ib,
    b"NET/IBP": net_ib,
    b"NET/IBext": net_ib,
    b"NET/Socket": net_socket,
    b"NET/Socket:": net_socket,
    b"NET/Plugin": net_plugin,
    b"NET/Plugin:": net_plugin,
    b"NET/OFI": net_ofi,
    b"Plugin": net_plugin,
    b"GPU": gdr,
    b"NVLS": nvls,
    b"MNNVL": mnnvl,
    b"SHARP": sharp,
    b"DMA-BUF": dmabuf,
    b"Connected": rings,
    b"Failed": verbs_missing,
    b"Count": verbs_missing,
    b"===": graph,
    b"Pattern": graph,
}


def handler(msg: bytes) -> Handler | None:
    """The handler of a message; None for one that carries no fact."""
    first = msg.split(b" ", 1)[0]
    by_word = HANDLERS.get(first)
    if by_word is not None:
        return by_word
    if b" set by environment to" in msg or b" set to " in msg:
        return variable
    if b" comm 0x" in msg and b" rank " in msg:
        return comm
    if b" Bytes -> " in msg:
        return algorithm
    if b" coll channels" in msg:
        return channels
    if first.startswith(b"NET/"):
        return gdr  # another network's (NET/gIB, NET/FasTrak): only GPUDirect is common to all
    if b" -> " in msg and b".cc:" in first:
        return unwinding
    return None

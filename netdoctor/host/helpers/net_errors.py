"""Error counters of interfaces and RDMA ports before and after an all-reduce.

It ends when it is told to (SIGUSR1), or by itself after `seconds`.

Answer: {"seconds", "interfaces": {NAME: COUNTERS}, "ports": {"mlx5_0:1": COUNTERS}}, where COUNTERS is
{"total": {NAME: count}, "rose": {NAME: by how much}} and any of it may be {"unavailable", "detail"}.  Interfaces are those of
this network namespace (IFLA_STATS64 of rtnetlink(7); /sys/class/net may show another).

A port's `counters` are a MAD to its firmware (drivers/infiniband/core/sysfs.c, get_perf_mad), which virtual functions refuse
while the kernel's log fills up (mlx5_core: "MAD_IFC … failed"): they are not asked.  `hw_counters` the driver keeps itself.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Counters = dict[str, Any]

RTM_GETLINK, DUMP, DONE, ERROR = 18, 0x301, 3, 2
IFNAME, STATS64, CARRIER_DOWN = 3, 23, 48
# struct rtnl_link_stats64 (linux/if_link.h), from its fifth number on.
STATS = (
    *("rx_errors", "tx_errors", "rx_dropped", "tx_dropped", "", "", "rx_length_errors", "rx_over_errors", "rx_crc_errors"),
    *("rx_frame_errors", "rx_fifo_errors", "rx_missed_errors", "tx_aborted_errors", "tx_carrier_errors", "tx_fifo_errors"),
)
FIRST = 4
EVERY = 0.1  # seconds until it sees that it was told
CLASS = "/sys/class/infiniband"
# Of PortCounters, with the value at which each stays (drivers/infiniband/hw/qib/qib_mad.c, pma_get_portcounters).
PMA = {
    "symbol_error": 65535,
    "link_error_recovery": 255,
    "link_downed": 255,
    "port_rcv_errors": 65535,
    "port_rcv_remote_physical_errors": 65535,
    "local_link_integrity_errors": 15,
    "excessive_buffer_overrun_errors": 15,
    "port_xmit_discards": 65535,
}
# Of EFA's, which has one port: its driver had them by device, and has them by port (drivers/infiniband/hw/efa/efa_verbs.c).
EFA = (
    *("rx_drops", "rdma_read_wr_err", "rdma_write_wr_err"),
    *("retrans_timeout_events", "unresponsive_remote_events", "impaired_remote_conn_events"),
)
# Of the driver's own, where it has them (Documentation of mlx5 counters; bnxt_re and irdma have others).
OWN = ("local_ack_timeout_err", "rnr_nak_retry_err", "packet_seq_err", "out_of_sequence", "rx_icrc_encapsulated", *EFA)
GONE = {"unavailable": "absent", "detail": "it was not there all the time"}
told: list[bool] = []


def answer(parameters: dict[str, str]) -> object:
    signal.signal(signal.SIGUSR1, lambda *_: told.append(True))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR1,))
    begin, end = time.monotonic(), time.monotonic() + float(parameters["seconds"])
    before = looked()
    while not told and time.monotonic() < end:
        time.sleep(EVERY)
    after = looked()
    out: dict[str, Any] = {"seconds": time.monotonic() - begin}
    for kind in ("interfaces", "ports"):
        first, last = before[kind], after[kind]
        if "unavailable" in first or "unavailable" in last:
            out[kind] = first if "unavailable" in first else last
        else:
            names = [*first, *(name for name in last if name not in first)]
            out[kind] = {name: both(first.get(name, GONE), last.get(name, GONE)) for name in names}
    return out


def both(first: Counters, last: Counters) -> Counters:
    if "unavailable" in first or "unavailable" in last:
        return first if "unavailable" in first else last
    return {"total": last, "rose": {name: rise(name, first.get(name, GONE), count) for name, count in last.items()}}


def rise(name: str, first: Any, last: Any) -> Any:
    """One that was set back tells nothing, nor does one that stood at its end before."""
    if not isinstance(first, int) or not isinstance(last, int):
        return last if isinstance(last, dict) else first
    if last < first or first == PMA.get(name):
        why = "it was set back" if last < first else f"it stood at its end ({first}): perfquery -R sets it back"
        return {"unavailable": "failed", "detail": f"{name}: {why}"}
    return last - first


def looked() -> dict[str, Any]:
    return {"interfaces": tried(interfaces), "ports": tried(ports)}


def tried(function: Callable[[], dict[str, Counters]]) -> Counters:
    try:
        return function()
    except OSError as error:
        return refusal(error)


def refusal(error: OSError) -> dict[str, str]:
    kind = {1: "denied", 13: "denied", 2: "absent", 22: "unsupported", 95: "unsupported"}.get(error.errno or 0, "failed")
    return {"unavailable": kind, "detail": os.strerror(error.errno or 0)}


def interfaces() -> dict[str, Counters]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as route:
        route.settimeout(5)
        route.bind((0, 0))
        route.send(struct.pack("=IHHII", 32, RTM_GETLINK, DUMP, 1, 0) + bytes(16))
        found: dict[str, Counters] = {}
        while True:
            data, at = route.recv(1 << 18), 0
            while at + 16 <= len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == DONE:
                    return found
                if kind == ERROR:
                    raise OSError(-struct.unpack_from("=i", data, at + 16)[0], "RTM_GETLINK")
                name, counters = one_link(data[at + 32 : at + length])
                found[name] = counters
                at += max(16, (length + 3) & ~3)


def one_link(data: bytes) -> tuple[str, Counters]:
    have, at = {}, 0
    while at + 4 <= len(data):
        length, kind = struct.unpack_from("=HH", data, at)
        if length < 4:
            break
        have[kind & 0x3FFF] = data[at + 4 : at + length]
        at += (length + 3) & ~3
    name, stats = have.get(IFNAME, b"").rstrip(b"\0").decode("utf-8", "backslashreplace"), have.get(STATS64, b"")
    if len(stats) < 8 * (FIRST + len(STATS)):
        return name, {"unavailable": "unsupported", "detail": "the kernel tells no counters of it"}
    numbers = struct.unpack_from(f"={FIRST + len(STATS)}Q", stats)[FIRST:]
    out: Counters = {key: int(number) for key, number in zip(STATS, numbers, strict=True) if key}
    if len(down := have.get(CARRIER_DOWN, b"")) == 4:
        out["carrier_down"] = int(struct.unpack("=I", down)[0])
    return name, out


def ports() -> dict[str, Counters]:
    try:
        devices = sorted(os.listdir(CLASS))
    except FileNotFoundError:
        return {}
    return {
        f"{device}:{number}": one_port(f"{CLASS}/{device}", number)
        for device in devices
        for number in sorted(os.listdir(f"{CLASS}/{device}/ports"))
    }


def one_port(device: str, number: str) -> Counters:
    at = f"{device}/ports/{number}"
    if os.path.exists(f"{device}/device/physfn"):
        pma: Counters = {name: {"unavailable": "unsupported", "detail": "a virtual function: not asked"} for name in PMA}
    else:
        pma = {name: count(f"{at}/counters/{name}") for name in PMA}
    own = {name: count(f"{at}/hw_counters/{name}") for name in OWN}
    own |= {name: count(f"{device}/hw_counters/{name}") for name in EFA if has_none(own[name])}
    return {**pma, **{name: got for name, got in own.items() if not has_none(got)}}


def has_none(got: Any) -> bool:
    """Whether the driver does not count it."""
    return isinstance(got, dict) and got["unavailable"] in ("absent", "unsupported")


def count(path: str) -> Any:
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
        if text.startswith("N/A"):  # "N/A (no PMA)", of older kernels
            return {"unavailable": "unsupported", "detail": text.strip()[:40]}
        return int(text)
    except OSError as error:
        return refusal(error)
    except ValueError:
        return {"unavailable": "malformed", "detail": path}

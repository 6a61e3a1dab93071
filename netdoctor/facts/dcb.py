"""The quality of service of an interface: what DCB netlink tells, and what MLNX_OFED's mlx5 adds in sysfs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import groupby
from typing import Any, Final

from netdoctor.host.base import Host, names, read, value
from netdoctor.model import Kind, Unavailable, missing, record

PRIORITIES: Final = 8
NONE: Final = "(none)"
# tc_tsa of struct ieee_ets (linux/dcbnl.h): by the share in tc_tx_bw alone where it is this.
_BY_SHARE: Final = 2
# The in-tree driver has no such files: an older recording did not ask, or the driver is another.
_NOT_THERE: Final = (Kind.ABSENT, Kind.NOT_RECORDED)


@record
class Qos:
    """None: the driver does not say."""

    pfc: int | None | Unavailable = None  # priorities whose frames it pauses (PFC, IEEE 802.1Qbb), a bit each
    dscp: tuple[tuple[int, int], ...] | None | Unavailable = None  # each DSCP that is given a priority, with that
    shares: tuple[int | None, ...] | None | Unavailable = None  # per cent of what each priority's class may send; None: strict
    trust: str | None | Unavailable = None  # by what it tells the priority of a packet: "pcp", "dscp"
    # Priorities on which it tells senders of congestion (np), and on which it slows down where it is told (rp): a bit each.
    ecn: tuple[int, int] | None | Unavailable = None
    # Whether it heeds and sends frames that pause all priorities at once (IEEE 802.3, ethtool -a).
    pause: tuple[bool, bool] | None | Unavailable = None
    buffers: tuple[int, ...] | None | Unavailable = None  # of each priority, the card's buffer for what arrives by it

    @property
    def pauses_all(self) -> bool | None | Unavailable:
        """A port sends either kind of frame (ConnectX manuals, Lossless TCP): where a priority has its own, none of these."""
        if self.pfc or isinstance(self.pfc, Unavailable) or self.pause is None:
            return self.pfc if isinstance(self.pfc, Unavailable) else None
        return self.pause if isinstance(self.pause, Unavailable) else self.pause == (True, True)

    @property
    def trusts(self) -> str | None | Unavailable:
        """Where no file says so, mlx5 trusts DSCP exactly while a DSCP has a priority (en_dcbnl.c, mlx5e_dcbnl_ieee_setapp and
        _delapp; NVIDIA's mlnx_qos reads it in the same way)."""
        if self.trust is not None:
            return self.trust
        if self.pfc is None or isinstance(self.pfc, Unavailable):
            return self.pfc
        return self.dscp if isinstance(self.dscp, Unavailable) else "pcp" if self.dscp is None else "dscp"

    def words(self) -> dict[str, str]:
        """What is told, as texts that can be compared; what could not be read is left out."""
        return {name: text for name, text in self.texts().items() if isinstance(text, str)}

    def texts(self) -> dict[str, str | None | Unavailable]:
        return {
            "pfc": _text(bits, self.pfc),
            "dscp": _text(_table, self.dscp),
            "trust": self.trust,
            "ets": _text(_sending, self.shares),
            "ecn": _text(_points, self.ecn),
            "pause": None if self.pfc else _text(_both, self.pause),
            "buffers": _text(_buffers, self.buffers),
        }


def together(some: Iterable[Qos]) -> dict[str, str | None | Unavailable]:
    """The texts of the ports of a bond: one where they are alike, else each in turn."""
    texts = [one.texts() for one in some]
    out: dict[str, str | None | Unavailable] = {}
    for name in texts[0] if texts else ():
        each = [text[name] for text in texts]
        known = dict.fromkeys(one for one in each if isinstance(one, str))
        lost = missing(*each)
        out[name] = lost if lost is not None else None if None in each else " / ".join(known)
    return out


def _text(words: Callable[[Any], str], one: object) -> str | None | Unavailable:
    return one if one is None or isinstance(one, Unavailable) else words(one)


def bits(each: Any) -> str:
    """Priorities."""
    return " ".join(str(one) for one in range(PRIORITIES) if each >> one & 1) or NONE


def _table(rows: Any) -> str:
    """ "0-25:0 26:3 27-63:0" """
    runs = [list(run) for _, run in groupby(enumerate(rows), key=lambda row: (row[1][1], row[1][0] - row[0]))]
    spans = [(run[0][1][0], run[-1][1][0], run[0][1][1]) for run in runs]
    return " ".join(f"{first}-{last}:{priority}" if last > first else f"{first}:{priority}" for first, last, priority in spans)


def _sending(each: Any) -> str:
    return " ".join(f"{priority}:{'strict' if share is None else f'{share}%'}" for priority, share in enumerate(each))


def _points(each: Any) -> str:
    told, heeded = map(bits, each)
    return told if told == heeded else f"{told} told of, {heeded} heeded"


def _both(each: Any) -> str:
    heeds, sends = ("on" if one else "off" for one in each)
    return f"rx {heeds}, tx {sends}"


def _buffers(each: Any) -> str:
    return " ".join(f"{priority}:{buffer}" for priority, buffer in enumerate(each))


def told(row: dict[str, Any]) -> Qos:
    """Of an interface's entry of ask:netlink."""
    qos = Qos(paused(row.get("pfc")), priorities(row.get("dscp")), shares(row.get("ets")))
    return replace(qos, pause=all_paused(row.get("pause")), buffers=buffers(row.get("buffers")))


def with_sysfs(host: Host, qos: Qos, base: str) -> Qos:
    """`base` is the interface's folder; only of a card of mlx5, whose driver may have these files."""
    trust: str | None | Unavailable = read(host, f"{base}/qos/trust")
    if isinstance(trust, str):
        word = trust.strip()
        trust = word if word in ("pcp", "dscp") else Unavailable(Kind.UNSUPPORTED, f"{base}/qos/trust: {word[:40]!r}")
    trust = None if isinstance(trust, Unavailable) and trust.kind in _NOT_THERE else trust
    return replace(qos, trust=trust, ecn=_ecn(host, f"{base}/ecn"))


def _ecn(host: Host, folder: str) -> tuple[int, int] | None | Unavailable:
    points = names(host, folder)
    if isinstance(points, Unavailable):
        return None if points.kind in _NOT_THERE else points
    sides = []
    for point in ("roce_np", "roce_rp"):
        bits = 0
        for one in range(PRIORITIES):
            text = read(host, f"{folder}/{point}/enable/{one}")
            if isinstance(text, Unavailable):
                return text
            if text.strip() not in ("0", "1"):
                return Unavailable(Kind.UNSUPPORTED, f"{folder}/{point}/enable/{one}: {text.strip()[:40]!r}")
            bits |= int(text) << one
        sides.append(bits)
    return sides[0], sides[1]


def paused(told: Any) -> int | None | Unavailable:
    """A bit each; None: the driver does not say."""
    found = None if told is None else value(told, int, "ask:netlink: pfc")
    if isinstance(found, int) and not 0 <= found < 1 << PRIORITIES:
        return Unavailable(Kind.MALFORMED, f"ask:netlink: pfc: {found}")
    return found


def all_paused(told: Any) -> tuple[bool, bool] | None | Unavailable:
    """None: the driver does not say, or an older recording did not ask."""
    both: list[Any] | None | Unavailable = None if told is None else value(told, list, "ask:netlink: pause")
    if not isinstance(both, list):
        return both
    if len(both) != 2 or not all(type(one) is bool for one in both):
        return Unavailable(Kind.MALFORMED, "ask:netlink: pause")
    return both[0], both[1]


def buffers(told: Any) -> tuple[int, ...] | None | Unavailable:
    each: list[Any] | None | Unavailable = None if told is None else value(told, list, "ask:netlink: buffers")
    if not isinstance(each, list):
        return each
    if len(each) != PRIORITIES or not all(type(one) is int and 0 <= one < 256 for one in each):
        return Unavailable(Kind.MALFORMED, "ask:netlink: buffers")
    return tuple(each)


def priorities(told: Any) -> tuple[tuple[int, int], ...] | None | Unavailable:
    """DSCP and priority; None: no DSCP is given one, or the driver does not say."""
    rows: dict[str, Any] | None | Unavailable = None if told is None else value(told, dict, "ask:netlink: dscp")
    if not isinstance(rows, dict):
        return rows
    if not all(dscp.isdecimal() and int(dscp) < 64 and type(one) is int and 0 <= one < 8 for dscp, one in rows.items()):
        return Unavailable(Kind.MALFORMED, "ask:netlink: dscp")
    return tuple(sorted((int(dscp), one) for dscp, one in rows.items())) or None


def shares(told: Any) -> tuple[int | None, ...] | None | Unavailable:
    """Of each priority; several in one class share it."""
    ets: dict[str, Any] | None | Unavailable = None if told is None else value(told, dict, "ask:netlink: ets")
    if not isinstance(ets, dict):
        return ets
    rows = [ets.get(name) for name in ("classes", "kinds", "shares")]
    if not all(
        isinstance(row, list) and len(row) == PRIORITIES and all(type(one) is int and 0 <= one < 256 for one in row)
        for row in rows
    ):
        return Unavailable(Kind.MALFORMED, "ask:netlink: ets")
    classes, kinds, each = (list(row) for row in rows if row is not None)
    if any(one >= PRIORITIES for one in classes):
        return Unavailable(Kind.MALFORMED, "ask:netlink: ets")
    return tuple(each[one] if kinds[one] == _BY_SHARE else None for one in classes)

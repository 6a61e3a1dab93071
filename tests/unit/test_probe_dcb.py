"""QoS of an interface: what is read off the kernel's DCB netlink and ethtool, and off recorded answers."""

import ctypes
import errno
import struct
from typing import Any

import pytest

from netdoctor.facts import dcb
from netdoctor.host.helpers import netlink
from netdoctor.model import Kind, Unavailable


@pytest.mark.parametrize(
    ("told", "priorities"),
    [
        ({}, None),
        ({"dscp": {}}, None),
        ({"dscp": {"26": 3, "0": 0}}, ((0, 0), (26, 3))),
        *(({"dscp": odd}, Kind.MALFORMED) for odd in ({"64": 3}, {"26": 8}, {"x": 3}, {"26": True}, {"-1": 0}, [26], "26")),
    ],
)
def test_the_priority_of_a_dscp(told: dict[str, Any], priorities: object) -> None:
    found = dcb.priorities(told.get("dscp"))
    assert (found.kind if isinstance(found, Unavailable) else found) == priorities


@pytest.mark.parametrize(
    ("told", "pause", "buffers"),
    [
        ({}, None, None),
        ({"pause": [True, False], "buffers": [0] * 7 + [1]}, (True, False), (0, 0, 0, 0, 0, 0, 0, 1)),
        *(({"pause": odd}, Kind.MALFORMED, None) for odd in ([True], [1, 0], [True] * 3, "on", {"rx": True})),
        *(({"buffers": odd}, None, Kind.MALFORMED) for odd in ([0] * 7, [True] * 8, [256] * 8, [-1] * 8, "0", {"0": 0})),
        ({"pause": {"unavailable": "denied", "detail": "x"}}, Kind.DENIED, None),
    ],
)
def test_pauses_of_all_and_buffers(told: dict[str, Any], pause: object, buffers: object) -> None:
    qos = dcb.told(told)
    assert [one.kind if isinstance(one, Unavailable) else one for one in (qos.pause, qos.buffers)] == [pause, buffers]


class FakeDriver:
    """What no card here does: it answers DCB_CMD_IEEE_GET (net/dcb/dcbnl.c, dcbnl_ieee_fill)."""

    def __init__(self, settings: bytes | int) -> None:
        self.settings = settings

    def ask(self, *_: object, **__: object) -> list[bytes]:
        if isinstance(self.settings, int):
            raise OSError(self.settings, "as the kernel refuses")
        nested = netlink.attribute(1, bytes(59)) + self.settings  # DCB_ATTR_IEEE_ETS comes first
        return [bytes(4) + netlink.attribute(1, b"eth0\0") + netlink.attribute(13, nested)]


@pytest.mark.parametrize(
    ("settings", "paused"),
    [
        (netlink.attribute(2, bytes((8, 0b1000)) + bytes(134)), 8),
        (netlink.attribute(2, bytes(136)), 0),
        (netlink.attribute(2, b"\x08"), None),  # cut short
        (b"", None),  # ETS alone
        (errno.EOPNOTSUPP, None),
        (errno.EPERM, "denied"),
        (errno.EIO, "failed"),
    ],
)
def test_the_kernels_word_for_what_is_paused(settings: bytes | int, paused: object) -> None:
    driver: Any = FakeDriver(settings)
    found = netlink.dcb(driver, "eth0").get("pfc")
    assert (found["unavailable"] if isinstance(found, dict) else found) == paused


def test_the_kernels_word_for_the_priority_of_a_dscp() -> None:
    apps = b"".join(netlink.attribute(1, struct.pack("=BBH", *app)) for app in ((5, 3, 26), (1, 4, 0x8906), (5, 0, 0)))
    driver: Any = FakeDriver(netlink.attribute(2, bytes((8, 0b1000)) + bytes(134)) + netlink.attribute(3, apps))
    ets = dict.fromkeys(("classes", "kinds", "shares"), [0] * 8)
    assert netlink.dcb(driver, "eth0") == {"pfc": 8, "dscp": {"26": 3, "0": 0}, "ets": ets}


def test_the_kernels_word_for_shares() -> None:
    """struct ieee_ets: willing, ets_cap, cbs, tc_tx_bw, tc_rx_bw, tc_tsa, prio_tc and what the other end would have."""
    settings = bytes((0, 8, 0, *range(8), *[9] * 8, *[2, 0] * 4, *range(7, -1, -1))) + bytes(24)
    driver: Any = FakeDriver(b"")
    driver.ask = lambda *_, **__: [bytes(4) + netlink.attribute(13, netlink.attribute(1, settings))]
    ets = {"shares": list(range(8)), "kinds": [2, 0] * 4, "classes": list(range(7, -1, -1))}
    assert netlink.dcb(driver, "eth0") == {"ets": ets}


def test_the_kernels_word_for_buffers_and_pauses_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """struct dcbnl_buffer: prio2buffer, eight sizes, the sum of them; struct ethtool_pauseparam: cmd, autoneg, rx, tx."""

    def ioctl(_: object, number: int, request: bytes) -> None:
        name, at = struct.unpack("=16sQ16x", request)
        asked = (ctypes.c_uint32 * 4).from_address(at)
        assert (number, name.rstrip(b"\0"), list(asked)) == (0x8946, b"nosuch0", [0x12, 0, 0, 0])
        if isinstance(driver.settings, int):
            raise OSError(driver.settings, "as the kernel refuses")
        asked[2:] = [1, 0]

    monkeypatch.setattr(netlink.fcntl, "ioctl", ioctl)
    driver: Any = FakeDriver(netlink.attribute(2, bytes((8, 0b1000)) + bytes(134)) + netlink.attribute(10, bytes(range(44))))
    told = netlink.dcb(driver, "nosuch0")
    assert (told["pfc"], told["pause"], told["buffers"]) == (8, [True, False], list(range(8)))
    driver = FakeDriver(netlink.attribute(10, bytes(44)))
    assert "pause" not in netlink.dcb(driver, "nosuch0"), "who tells no DCB is not asked"
    for number, said in ((errno.EOPNOTSUPP, None), (errno.ENODEV, None), (errno.EPERM, "denied"), (errno.EIO, "failed")):
        driver = FakeDriver(number)
        found = netlink.pauses("nosuch0")
        assert (found["unavailable"] if isinstance(found, dict) else found) == said

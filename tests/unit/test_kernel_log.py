"""Which records of /dev/kmsg tell of a GPU's error: the kernel's own, and none that a program wrote there."""

from __future__ import annotations

import pytest

from netdoctor.facts.kernel_log import KernelLog, probe
from netdoctor.host.base import ReplayHost
from netdoctor.host.helpers.kmsg import event_of, reply
from tests.support import facts as f

XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=0, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("record", "event"),
    [
        (f"3,54689,93875730142,-;{XID}\n SUBSYSTEM=pci\n", [93875.730142, XID]),
        (f"3,54689,93875730142,-,caller=T1;{XID}\n", [93875.730142, XID]),
        (f"11,54689,93875730142,-;{XID}\n", None),  # LOG_USER: echo … > /dev/kmsg
        (f"27,54690,93875730143,-;nvidia-x[7]: {XID}\n", None),  # a daemon's
        ("6,0,0,-;Linux version 6.8.0\n", None),
    ],
)
def test_only_the_kernel_is_believed(record: str, event: list[object] | None) -> None:
    assert event_of(record.encode()) == event


def test_one_error_told_often_hides_no_other() -> None:
    dbe = "NVRM: Xid (PCI:0000:3b:00): 48, pid=1, An uncorrectable double bit error"
    often = [[float(n), f"NVRM: Xid (PCI:0000:3b:00): 13, pid={n}, name=python, Graphics Exception"] for n in range(999)]
    data = "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 20034, "
    switch = [[1000.0, f"{data}Fatal, Link 28"], [1001.0, f"{data}Data {{0x1}}"]]
    told = reply("journal", True, [[0.5, dbe], *often, *switch])
    assert told["left_out"] == 0
    assert told["events"] == [[0.5, dbe], often[-1], *switch]


def test_what_was_left_out_is_not_the_whole_log() -> None:
    many = [[float(n), f"NVRM: Xid (PCI:0000:{n:02x}:00): 79, pid=0, GPU has fallen off the bus."] for n in range(250)]
    told = reply("/dev/kmsg", True, many)
    assert (len(told["events"]), told["left_out"]) == (200, 50)
    found = probe(ReplayHost({"ask:kmsg": told}), f.gpus())
    assert isinstance(found, KernelLog)
    assert found.begun is False

"""Which records of /dev/kmsg tell of a GPU's error: the kernel's own, and none that a program wrote there."""

from __future__ import annotations

import pytest

from netdoctor.host.helpers.kmsg import event_of

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

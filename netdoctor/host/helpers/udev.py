"""udev, through pyudev: names that the hardware database gives PCI devices, and the persistent names of interfaces.

Answer: {"pci": {ADDRESS: {property: text}}, "net": {NAME: …}, "infiniband": {NAME: …}}, only the properties in `KEPT`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any


KEPT = (
    *("DRIVER", "PCI_ID", "PCI_CLASS", "PCI_SLOT_NAME", "INTERFACE", "NAME", "ID_PATH"),
    *("ID_NET_DRIVER", "ID_NET_NAME_PATH", "ID_NET_NAME_SLOT", "ID_NET_NAME_ONBOARD"),
    *("ID_VENDOR_FROM_DATABASE", "ID_MODEL_FROM_DATABASE"),
)
PCI_CLASSES = ("2", "3", "12")  # network controllers, display controllers, processing accelerators, without the leading zero


def answer(parameters: dict[str, str]) -> object:
    try:
        import pyudev
    except ImportError as error:  # pyudev itself, or libudev
        return {"unavailable": "failed" if error.name else "absent", "detail": str(error)}
    try:
        context = pyudev.Context()
        return {subsystem: dict(found(context, subsystem)) for subsystem in ("pci", "net", "infiniband")}
    except Exception as error:  # libudev answers in many ways where /sys or /run/udev is odd
        return {"unavailable": "failed", "detail": f"{type(error).__name__}: {error}"}


def found(context: Any, subsystem: str) -> Any:
    for device in context.list_devices(subsystem=subsystem):
        properties = device.properties
        if subsystem == "pci":
            klass = properties.get("PCI_CLASS", "")
            if not klass.lstrip("0").startswith(PCI_CLASSES) or len(klass.lstrip("0")) not in (5, 6):
                continue
        yield device.sys_name, {key: properties[key] for key in KEPT if key in properties}

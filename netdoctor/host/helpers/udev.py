"""udev, through pyudev: what the hardware database calls PCI devices, and the names by place that udev has for interfaces.

Answer: {"pci": {ADDRESS: {property: text}}, "net": {NAME: …}}, only the properties in `KEPT`.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any


KEPT = {
    "pci": ("ID_VENDOR_FROM_DATABASE", "ID_MODEL_FROM_DATABASE"),
    "net": ("ID_NET_NAME_ONBOARD", "ID_NET_NAME_SLOT", "ID_NET_NAME_PATH", "ID_NET_NAME_MAC", "ID_NET_NAME"),
}
PCI_CLASSES = ("2", "3", "12")  # network controllers, display controllers, processing accelerators, without the leading zero


def answer(parameters: dict[str, str]) -> object:
    try:
        import pyudev
    except ImportError as error:  # pyudev itself, or libudev
        return {"unavailable": "failed" if error.name else "absent", "detail": str(error)}
    try:
        context = pyudev.Context()
        return {subsystem: dict(found(context, subsystem)) for subsystem in KEPT}
    except Exception as error:  # noqa: BLE001 - libudev answers in many ways where /sys or /run/udev is odd
        return {"unavailable": "failed", "detail": f"{type(error).__name__}: {error}"}


def found(context: Any, subsystem: str) -> Any:
    for device in context.list_devices(subsystem=subsystem):
        properties = device.properties
        if subsystem == "pci":
            klass = properties.get("PCI_CLASS", "")
            if not klass.lstrip("0").startswith(PCI_CLASSES) or len(klass.lstrip("0")) not in (5, 6):
                continue
        if kept := {key: properties[key] for key in KEPT[subsystem] if key in properties}:
            yield device.sys_name, kept

"""What PCI functions say in configuration space beyond its first 64 bytes, which are all that everybody may read.

Of network controllers and of the bridges above these and above NVIDIA's GPUs, by address: {"control": Device Control,
"acs": [capabilities, control] | null, "ats": Address Translation Service's control | null}, or why it could not be read.
Registers: include/uapi/linux/pci_regs.h.  Only what is asked for is read: each word takes the device's time.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from collections.abc import Callable

DEVICES = "/sys/bus/pci/devices"
NVIDIA, DISPLAY, NETWORK = "0x10de", "0x03", "0x02"
EXPRESS, ACS, ATS = 0x10, 0x0D, 0x0F  # PCI_CAP_ID_EXP, PCI_EXT_CAP_ID_ACS, PCI_EXT_CAP_ID_ATS
EXTENDED, END = 0x100, 0x1000
ONES = 0xFFFFFFFF  # what is read where nothing answers
GONE = {"unavailable": "failed", "detail": "the function does not answer: it reads as ones or zeros"}
ENDLESS = {"unavailable": "failed", "detail": "its list of capabilities leads back to itself"}
MOST = 480  # capabilities: as many as fit (PCI_CFG_SPACE_EXP_SIZE - 256) / 8


class ShortError(Exception):
    """The kernel gives no more: 64 bytes without CAP_SYS_ADMIN (pci_read_config, drivers/pci/pci-sysfs.c)."""


def answer(parameters: dict[str, str]) -> object:
    try:
        every = sorted(os.listdir(DEVICES))
    except OSError as error:
        return unavailable(error)
    ends = {name: steps(name) for name in every if ours(name)}
    wanted = {step for path in ends.values() for step in path} | {name for name in ends if first(name, "class") == NETWORK}
    return {name: config(f"{DEVICES}/{name}/config") for name in sorted(wanted & set(every))}


def ours(name: str) -> bool:
    kind = first(name, "class")
    return kind == NETWORK or (kind == DISPLAY and text(name, "vendor") == NVIDIA)


def first(name: str, file: str) -> str:
    return text(name, file)[:4]


def text(name: str, file: str) -> str:
    try:
        with open(f"{DEVICES}/{name}/{file}", encoding="ascii") as stream:
            return stream.read(16).strip()
    except (OSError, ValueError):
        return ""


def steps(name: str) -> list[str]:
    """The bridges above a function: the folders on its path."""
    try:
        return os.readlink(f"{DEVICES}/{name}").split("/")[:-1]
    except OSError:
        return []


def config(path: str) -> object:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        return unavailable(error)

    def word(at: int, size: int) -> int:
        data = os.pread(fd, size, at)
        if len(data) < size:
            raise ShortError
        return int.from_bytes(data, "little")

    try:
        return told(word, os.fstat(fd).st_size)
    except ShortError:
        return {"unavailable": "denied", "detail": "configuration space beyond 64 bytes: CAP_SYS_ADMIN"}
    except OSError as error:
        return unavailable(error)
    finally:
        os.close(fd)


def told(word: Callable[[int, int], int], size: int) -> object:
    if word(0, 4) in (0, ONES):
        return GONE
    control, at = None, word(0x34, 1) & 0xFC if word(0x06, 2) & 0x10 else 0
    for _ in range(48):  # PCI_FIND_CAP_TTL
        if at < 0x40:
            break
        head = word(at, 2)
        if head & 0xFF == EXPRESS:
            control = word(at + 8, 2)
        at = head >> 8 & 0xFC
    else:
        return ENDLESS
    if control is None:  # no PCI Express: it has no extended configuration space
        return {"control": None, "acs": None, "ats": None}
    if size < END:
        return {"unavailable": "unsupported", "detail": f"{size} bytes of configuration space: no access to the extended one"}
    found: dict[int, int] = {}
    at = EXTENDED
    for _ in range(MOST):
        head = word(at, 4)
        if head == ONES:
            return GONE
        if head == 0:
            break
        found.setdefault(head & 0xFFFF, at)
        at = head >> 20 & 0xFFC
        if at < EXTENDED:
            break
    else:
        return ENDLESS
    acs = [word(found[ACS] + 4, 2), word(found[ACS] + 6, 2)] if ACS in found else None
    return {"control": control, "acs": acs, "ats": word(found[ATS] + 6, 2) if ATS in found else None}


def unavailable(error: OSError) -> dict[str, str]:
    kind = {2: "absent", 1: "denied", 13: "denied"}.get(error.errno or 0, "failed")
    return {"unavailable": kind, "detail": os.strerror(error.errno or 0)}

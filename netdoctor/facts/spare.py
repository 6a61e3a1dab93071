"""What is left on the machine for all of its users: memory, and places in the kernel's table of open files."""

from __future__ import annotations

import re

from netdoctor.host.base import Host, matching, read
from netdoctor.model import Kind, Unavailable, record


@record
class Memory:
    """Bytes (proc_meminfo(5)); LXCFS shows a container's own."""

    total: int
    available: int  # without what would have to be written out first, and free swap
    huge: int  # held by HugePages of every size, which serve nobody else

    @property
    def others(self) -> int:
        """As much as anybody but HugePages can have, when all others give back theirs."""
        return max(0, self.total - self.huge)


def open_files(host: Host) -> tuple[int, int] | Unavailable:
    """As many as are open, and as may be (proc_sys_fs(5), file-nr)."""
    found = matching(host, "/proc/sys/fs/file-nr", r"(\d{1,19})\s+\d{1,19}\s+(\d{1,19})")
    return found if isinstance(found, Unavailable) else (int(found[1]), int(found[2]))


def memory(host: Host) -> Memory | Unavailable:
    text = read(host, "/proc/meminfo")
    if isinstance(text, Unavailable):
        return text
    told = {name: int(kib) << 10 for name, kib in re.findall(r"^(\w+): +(\d{1,15}) kB$", text, re.ASCII | re.MULTILINE)}
    if "MemTotal" not in told or "MemAvailable" not in told:  # Linux 3.14
        return Unavailable(Kind.UNSUPPORTED, "/proc/meminfo does not say how much is available")
    # Hugetlb since Linux 4.19; before, those of the default size alone.
    pages = re.search(r"^HugePages_Total: +(\d{1,15})$", text, re.ASCII | re.MULTILINE)
    huge = told.get("Hugetlb", int(pages[1]) * told.get("Hugepagesize", 0) if pages else 0)
    return Memory(told["MemTotal"], told["MemAvailable"] + told.get("SwapFree", 0), huge)

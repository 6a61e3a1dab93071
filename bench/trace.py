"""What a run of the doctor does to the machine, seen by strace: files opened, children alive."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_OPEN = re.compile(r'^[\d.]+ open(?:at|at2)?\((?:[^,"]*, )?"([^"]+)".*\) = \d+')

# The machine's own: what the doctor asks.  Files of the interpreter, of Python packages and of the dynamic loader are not.
_MACHINE = re.compile(r"^/(?:sys|proc|dev|etc|run)/")
# Opened by every process at its start or by the C library, not by the doctor.
_NOT_OURS = re.compile(
    r"^(?:/etc/ld\.so\.(?:cache|preload)|/dev/null|/dev/urandom|/proc/self/(?:maps|exe|fd.*|statm?)|/proc/stat|"
    r"/sys/devices/system/cpu/(?:online|possible)|/etc/localtime|/etc/nsswitch\.conf|/etc/passwd|/etc/group|/etc/host(?:s|\.conf)|"
    r"/etc/resolv\.conf|/etc/gai\.conf|/sys/fs/selinux.*|/proc/filesystems|/etc/(?:udev|mime).*|/proc/sys/vm/overcommit_memory|"
    r"/sys/kernel/mm/transparent_hugepage/hpage_pmd_size)$"
)
# By journalctl and the libcap-ng that it links, at each start: it is asked for lines, and where it shows none, for any.
_OF_JOURNALCTL = ("/proc/sys/kernel/cap_last_cap", "/proc/sys/kernel/random/boot_id")


def asked(path: str) -> bool:
    """Whether an open of it is a question of the doctor's."""
    return bool(_MACHINE.match(path)) and not _NOT_OURS.match(path)


@dataclass(frozen=True)
class Seen:
    children: int  # processes alive at once beside the main one
    twice: tuple[str, ...]  # paths of the machine that were opened more than once, with their count


def look(command: Sequence[str]) -> Seen:
    """Run `command` under strace.  Successful opens count: a refused one read nothing.

    What a child opens below /sys is its native library's own look (libibverbs, libudev, NVML): no helper program of
    netdoctor's reads there itself.
    """
    opened: Counter[str] = Counter()
    spans: list[tuple[float, float]] = []  # of each process, the command's own first
    with tempfile.TemporaryDirectory() as folder:
        tracer = ["strace", "-ff", "-ttt", "-q", "-e", "trace=open,openat,openat2,execve", "-o", f"{folder}/trace"]
        subprocess.run([*tracer, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
        traces = [f.read_text(errors="replace").splitlines() for f in pathlib.Path(folder).iterdir()]
        traces.sort(key=lambda lines: float(lines[0].split()[0]))  # the command's own first
        for number, lines in enumerate(traces):
            spans.append((float(lines[0].split()[0]), float(lines[-1].split()[0])))
            found = (match.group(1) for line in lines if (match := _OPEN.match(line)))
            ours = (path for path in found if asked(path))
            opened.update(path for path in ours if number == 0 or not path.startswith(("/sys/", *_OF_JOURNALCTL)))
    if not opened:
        raise RuntimeError("strace saw nothing being opened")
    children = sorted(spans)[1:]
    most = max((sum(begin <= at < end for begin, end in children) for at, _ in children), default=0)
    return Seen(most, tuple(f"{path} x{n}" for path, n in opened.most_common() if n > 1))


def peak_memory(command: Sequence[str]) -> int:
    """Bytes of the largest of the command's process and the children it waited for."""
    pid = os.posix_spawn(
        command[0], list(command), os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
    )
    return os.wait4(pid, 0)[2].ru_maxrss * 1024

"""Whether /dev/shm gives what NCCL takes of it: files of full size, as NCCL extends its own (src/misc/shmutils.cc: fallocate).

Parameters: ``files``: how many; ``each``: bytes of one; ``beside``: bytes of one more.  Answer: {"error": errno name of the
first call that failed, "" where none did}, and "inodes": false where it is inodes that are short, "closed": true where its mode
keeps this user out (else EACCES is the word of a security module, which may know files by their names).

The files have no name (O_TMPFILE): whatever ends this program, the kernel takes them back.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import signal

FOLDER = "/dev/shm"


def answer(parameters: dict[str, str]) -> object:
    each, beside = int(parameters["each"]), int(parameters["beside"])
    files = int(parameters["files"]) if each else 0  # fallocate takes no file of nothing
    sizes = [*[each] * files, *[beside] * (beside > 0)]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))  # the ranks hold among them what this holds alone
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # beyond `ulimit -f`: an errno (EFBIG) tells as well
    try:  # where memory runs short all the same, this program is the one to go (proc_pid_oom_score_adj(5))
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass
    try:
        room = os.statvfs(FOLDER)
        if room.f_blocks and room.f_bavail * room.f_frsize < sum(sizes):
            return {"error": "ENOSPC"}  # to fill it up would take from others what they need
        if room.f_files and room.f_favail < len(sizes):  # a tmpfs without a limit of them has none at all (mm/shmem.c)
            return {"error": "ENOSPC", "inodes": False}
        held = [take(size) for size in sizes]
    except OSError as error:
        closed = error.errno == errno.EACCES and not os.access(FOLDER, os.W_OK | os.X_OK, effective_ids=True)
        return {"error": errno.errorcode.get(error.errno or 0, str(error.errno)), **({"closed": True} if closed else {})}
    for fd in held:
        os.close(fd)
    return {"error": ""}


def take(size: int) -> int:
    """A file of that size, in full."""
    fd = os.open(FOLDER, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    while fallocate(fd, 0, 0, size):
        if ctypes.get_errno() != errno.EINTR:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return fd

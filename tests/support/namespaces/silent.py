"""A real FUSE file system whose daemon has stopped: ``python -m tests.support.namespaces.silent FOLDER -- COMMAND``.

The daemon answers the kernel's first word (FUSE_INIT, include/uapi/linux/fuse.h) and nothing after it, so that every call on a
path below FOLDER waits for ever and ends by SIGKILL alone, as behind a hard NFS mount whose server is gone.  For root.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
from typing import Final

HEAD: Final = struct.Struct("=IIQQIIIHH")  # fuse_in_header
OUT: Final = struct.Struct("=IiQ")  # fuse_out_header
_INIT_OUT: Final = struct.Struct("=IIIIHHIIHH32x")  # fuse_init_out


def mount(folder: str, uid: int = 0) -> int:
    """Mount it as fusermount(1) does for `uid`, and give the descriptor that keeps it alive."""
    device = os.open("/dev/fuse", os.O_RDWR)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id={uid},group_id={uid},allow_other".encode()
    if libc.mount(b"netdoctor-silent", folder.encode(), b"fuse.silent", 0, options) != 0:
        raise OSError(ctypes.get_errno(), f"mount(2) of FUSE on {folder}")
    size, _, unique, *_ = HEAD.unpack(os.read(device, 1 << 17)[: HEAD.size])
    assert size
    reply = _INIT_OUT.pack(7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 0, 0)
    os.write(device, OUT.pack(OUT.size + len(reply), 0, unique) + reply)
    return device


def main(folder: str, command: list[str]) -> int:
    """The command's exit code, in a mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x00020000) != 0 or libc.mount(b"none", b"/", None, 0x44000, None) != 0:  # CLONE_NEWNS; MS_REC | MS_PRIVATE
        raise OSError(ctypes.get_errno(), "no mount namespace")
    device = mount(folder)
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        os.close(device)  # ends what still waits


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[sys.argv.index("--") + 1 :]))

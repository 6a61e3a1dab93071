"""What only root's package manager can install for the tests: Debian's packages, and what shows that each is there.

``python3 -m tests.support.packages`` prints one line of what is missing with the command that installs it, or nothing;
``--names`` prints the names alone.  Needs nothing but Python.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator

# package -> a program or a file of it
PACKAGES = {
    "iproute2": "ip",
    "iptables": "iptables",
    "gcc": "gcc",
    "libc6-dev": "/usr/include/stdio.h",
    "strace": "strace",
    "util-linux": "unshare",
    "acl": "setfacl",
    "procps": "ps",
    "dpkg-dev": "dpkg-architecture",
    "man-db": "man",
    "chromium": "chromium",
    "slurm-wlm": "slurmctld",
    "munge": "munged",
    "openssh-server": "sshd",
    "openssh-client": "ssh",
    "openmpi-bin": "mpirun.openmpi",
    "mpich": "mpirun.mpich",
    "podman": "podman",
    "runc": "runc",
    "catatonit": "catatonit",
    "mmdebstrap": "mmdebstrap",
    "rpm": "rpmbuild",
}


def missing() -> Iterator[str]:
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin", "/usr/libexec/podman"])
    for package, sign in PACKAGES.items():
        if not (os.path.exists(sign) if sign.startswith("/") else shutil.which(sign, path=places)):
            yield package


def main() -> None:
    names = " ".join(missing())
    if "--names" in sys.argv:
        print(names)
    elif names:
        print(f"tests were skipped for want of packages; root installs them: apt-get install --no-install-recommends {names}")


if __name__ == "__main__":
    main()

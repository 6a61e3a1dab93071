"""A machine of its own for a test: mount, PID, network, IPC and UTS namespaces on a throw-away copy of this root.

`run` executes a Python text there as PID 1.  Everything that is written lands in an overlay's upper layer, which the text can
list; everything ends with PID 1, for it is the init of its namespace.  Nothing of the machine outside changes.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PRELUDE = r"""
import json, os, pathlib, random, resource, shutil, signal, socket, subprocess, sys, threading, time
def sh(*lines):
    for line in lines:
        subprocess.run(line, shell=True, check=True, stdout=subprocess.DEVNULL)
sh("mount --make-rprivate /", "mount -t tmpfs -o mode=755 world /mnt",
   "mkdir /mnt/upper /mnt/work /mnt/root",
   "mount -t overlay world -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work /mnt/root",
   "mount --rbind /dev /mnt/root/dev", "mount -t tmpfs -o mode=1777 shm /mnt/root/dev/shm",
   "mkdir -p /mnt/root/run/netns", "mount -t tmpfs netns /mnt/root/run/netns",  # others' come and go
   "mount -t proc proc /mnt/root/proc", "mount -t sysfs sysfs /mnt/root/sys", "ip link set lo up")
UPPER = os.open("/mnt/upper", os.O_RDONLY | os.O_DIRECTORY)
HERE = os.getcwd()
os.chroot("/mnt/root")
os.chdir(HERE)
NETDOCTOR = [sys.executable, "-m", "netdoctor"]
def written():
    "Files that somebody wrote in this world, byte code left out."
    found = set()
    for folder, _, names, fd in os.fwalk(".", dir_fd=UPPER):
        if "__pycache__" not in folder:
            found |= {os.path.normpath("/" + folder + "/" + name) for name in names}
    return found
def listening():
    "Local TCP and UDP ports that wait, and all Unix sockets with a name."
    found = set()
    for kind in ("tcp", "tcp6", "udp", "udp6"):
        for line in pathlib.Path("/proc/net", kind).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == ("0A" if "tcp" in kind else "07"):
                found.add((kind[:3], int(fields[1].rpartition(":")[2], 16)))
    for line in pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]:
        if len(line.split()) > 7:
            found.add(("unix", line.split(None, 7)[7]))
    return found
def processes():
    return {int(n) for n in os.listdir("/proc") if n.isdigit()} - {os.getpid()}
def settle(seconds=20):
    "Wait until no process but this one is left, reaping those without a parent; what is left after `seconds`."
    end = time.monotonic() + seconds
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]: pass
        except ChildProcessError:
            pass
        left = processes()
        if not left or time.monotonic() > end:
            return {pid: command(pid) for pid in left}
        time.sleep(0.005)
def command(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""
def sysctls():
    found = {}
    for folder, _, names in os.walk("/proc/sys"):
        for name in names:
            try:
                found[os.path.join(folder, name)] = pathlib.Path(folder, name).read_bytes()
            except OSError:
                pass
    return found
FIRST = sysctls()
sh("true"); time.sleep(0.05)
VOLATILE = {name for name, value in sysctls().items() if FIRST.get(name) != value}
VOLATILE |= {n for n in FIRST if n.rpartition("/")[2] in ("inode-nr", "inode-state", "dentry-state", "file-nr", "ns_last_pid",
    "uuid", "boot_id", "entropy_avail", "pty.nr", "nr", "random", "aio-nr", "keys", "drop_caches", "perf_event_max_sample_rate",
    "nf_conntrack_count", "max_user_watches") or n.startswith("/proc/sys/fs/quota/")}  # counters of the whole machine
def state():
    "All that a doctor must leave as it was."
    def said(*argv):
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    found = {
        "mounts": pathlib.Path("/proc/self/mountinfo").read_text(),
        "links": said("ip", "-d", "link"), "addresses": said("ip", "address"),
        "routes": said("ip", "route", "show", "table", "all"),
        "rules": said("ip", "rule"), "namespaces": sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else [],
        "modules": sorted(os.listdir("/sys/module")), "shm": sorted(os.listdir("/dev/shm")), "files": sorted(written()),
        "sysvipc": [pathlib.Path("/proc/sysvipc", n).read_text() for n in ("shm", "msg", "sem")],
        "sockets": sorted(map(str, listening())), "environment": dict(os.environ), "host name": socket.gethostname(),
        "limits": [resource.getrlimit(n) for n in range(16)],
        "affinity": sorted(os.sched_getaffinity(0)), "devices": sorted(os.listdir("/dev")),
        "sysctls": {n: v.decode(errors="replace") for n, v in sysctls().items() if n not in VOLATILE},
    }
    return found
def changed(before, after):
    "What differs, in words."
    out = []
    for name, was in before.items():
        now = after[name]
        if now == was: continue
        if isinstance(was, dict):
            keys = was.keys() | now.keys()
            out += [f"{name}: {k} was {was.get(k)!r}, is {now.get(k)!r}" for k in keys if was.get(k) != now.get(k)]
        elif isinstance(was, list):
            out += [f"{name}: came {[x for x in now if x not in was]}, went {[x for x in was if x not in now]}"]
        else:
            out += [f"{name}: was {was!r}, is {now!r}"]
    return out
def say(value):
    os.write(1, json.dumps(value).encode() + b"\n")
"""


@cache
def why_not() -> str:
    """Why there is no such world here; "" where there is."""
    if os.geteuid() != 0:
        return "needs root"
    if not shutil.which("unshare") or not shutil.which("ip"):
        return "needs unshare (util-linux) and ip (iproute2)"
    done = _start("say(1)")
    return f"no overlay over the root: {done.stderr.strip()[-200:]}" if done.returncode else ""


def run(program: str, *arguments: str, timeout: float = 120, environment: dict[str, str] | None = None) -> Any:
    """What `program` gives to `say`, the last line of its output.  Skips where no such world can be made."""
    if reason := why_not():
        pytest.skip(reason)
    done = _start(program, *arguments, timeout=timeout, environment=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def _start(
    program: str, *arguments: str, timeout: float = 120, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    flags = ("--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child=KILL")
    # The text goes by a file, for there is a limit to one argument; in a folder of its own, for Python looks there for modules.
    with tempfile.TemporaryDirectory() as folder:
        script = pathlib.Path(folder, "program.py")
        script.write_text(PRELUDE + program)
        # It ends with whoever began it, for unshare does not heed SIGTERM while its child runs.
        tied = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        return subprocess.run(
            [*tied, "unshare", *flags, sys.executable, str(script), *arguments],
            check=False,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
        )

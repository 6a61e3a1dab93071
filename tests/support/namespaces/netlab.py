"""Network namespaces that end with the test: `run` executes a Python text in one, as a child that `unshare --net` starts.

Nothing is named and nothing outlives the child: the kernel takes the interfaces away with the namespace's last process.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PRELUDE = """
import json, os, subprocess, sys, time
def sh(*lines):
    for line in lines:
        subprocess.run(line, shell=True, check=True, stdout=subprocess.DEVNULL)
def veth(name, *addresses, up=True, carrier=True):
    # One end of a cable whose other end is in the same namespace, without an address.
    sh(f"ip link add {name} type veth peer name {name}p")
    give(name, *addresses)
    if up: sh(f"ip link set {name} up")
    if carrier: sh(f"ip link set {name}p up")
    if up and carrier: settle(name)
def settle(name):
    # A carrier is told up to a second after it came (net/core/link_watch.c), and NCCL takes no interface before.
    for _ in range(1000):
        if " state UP " in subprocess.check_output(["ip", "link", "show", name], text=True): return
        time.sleep(0.01)
    raise TimeoutError(f"{name} has no carrier")
def bridge(name, *addresses, carrier=False):
    sh(f"ip link add {name} type bridge")
    give(name, *addresses)
    sh(f"ip link set {name} up")
    if carrier:
        veth("p" + name[:11]); sh(f"ip link set p{name[:11]} master {name}"); settle(name)
def give(name, *addresses):
    for address in addresses:
        sh(f"ip addr add {address} dev {name}" + (" nodad" if ":" in address.split()[0] else ""))
def quiet():
    # no link-local addresses but those that a layout gives, and no waiting for duplicates
    for kind in ("all", "default"):
        for key, value in (("addr_gen_mode", 1), ("accept_dad", 0)):
            path = f"/proc/sys/net/ipv6/conf/{kind}/{key}"
            if os.path.exists(path):
                open(path, "w").write(str(value))
def say(value):
    os.write(1, json.dumps(value).encode() + b"\\n")
def in_child(work):
    # what it returns; a child each, for NCCL chooses once in a process
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.write(write, json.dumps(work()).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as file:
        told = json.loads(file.read())
    os.waitpid(pid, 0)
    return told
quiet()
"""


def run(program: str, *arguments: str, timeout: float = 60) -> Any:
    """What `program` gives to `say`, the last line of its output.  Skips without root or `unshare`."""
    if os.geteuid() != 0 or not shutil.which("unshare") or not shutil.which("ip"):
        pytest.skip("needs root, unshare and ip")
    done = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", PRELUDE + program, *arguments],
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])

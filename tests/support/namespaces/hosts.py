"""Hosts in network namespaces on one bridge, each with a name, a hosts file and an eth0 of its own; gone when the test is.

Nothing is named in the machine that runs the test: every namespace is held by one sleeping process, and the kernel takes
namespaces, cables and mounts away with it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.support.namespaces.marks import MARK

ROOT = Path(__file__).parents[3]
# The holder says that its namespaces are there, and ends with the test (closed stdin).
_HOLD = "echo ready; read line"


class Hosts:
    """`count` hosts h0, h1 … with 10.99.0.1, .2 … (/24), or with fd00:99::1, ::2 … (/64) alone."""

    def __init__(self, count: int, folder: Path, *, ipv6: bool = False) -> None:
        if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
            pytest.skip("needs root, unshare, nsenter and ip")
        self.ipv6 = ipv6
        self.mark = uuid.uuid4().hex
        self.folder = folder
        self.started: list[subprocess.Popen[str]] = []
        self.names = [f"h{n}" for n in range(count)]
        table = folder / "hosts"
        own = [f"{self.address(n)} {name}" for n, name in enumerate(self.names)]
        lines = ["::1 localhost" if ipv6 else "127.0.0.1 localhost", *own, *(f"{one}.rack-1.example" for one in own)]
        table.write_text("\n".join(lines) + "\n")
        self.bridge = self._hold("--net")
        self._sh(self.bridge, "ip link add br0 type bridge && ip link set br0 up")
        self.holders = [self._hold("--net", "--uts", "--mount") for _ in self.names]
        for n, name in enumerate(self.names):
            pid = self.holders[n].pid
            self._sh(self.bridge, f"ip link add p{n} type veth peer name eth0 netns {pid} && ip link set p{n} master br0 up")
            self._sh(
                self.holders[n],
                f"hostname {name} && mount --bind {table} /etc/hosts && mount -t tmpfs -o mode=755 tmpfs /run"
                " && mount -t tmpfs -o mode=1777 tmpfs /dev/shm"
                f" && cp -r {ROOT}/tests/fakes/faulty_torch /run && ip link set lo up"
                f" && ip addr add {self.address(n)}/{'64 nodad' if ipv6 else 24} dev eth0 && ip link set eth0 up",
            )

    def address(self, number: int) -> str:
        return f"fd00:99::{number + 1:x}" if self.ipv6 else f"10.99.0.{number + 1}"

    def _hold(self, *flags: str) -> subprocess.Popen[str]:
        # exec: the process that is waited for is the one that holds them.
        made = subprocess.Popen(
            ["unshare", *flags, "sh", "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.started.append(made)
        assert made.stdout is not None and made.stdout.readline() == "ready\n"
        return made

    def _sh(self, holder: subprocess.Popen[str], line: str) -> None:
        done = subprocess.run([*self._enter(holder), "sh", "-ec", line], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    def _enter(self, holder: subprocess.Popen[str]) -> list[str]:
        return ["nsenter", "-t", str(holder.pid), "--net", *(["--uts", "--mount"] if holder is not self.bridge else [])]

    def sh(self, number: int, line: str) -> None:
        self._sh(self.holders[number], line)

    def start(self, number: int, *arguments: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """`netdoctor ARGUMENTS` on a host; its report is read from stdout."""
        return self.spawn(number, sys.executable, "-m", "netdoctor", *arguments, variables=variables)

    def spawn(self, number: int, *command: str, variables: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        own = {MARK: self.mark, "NETDOCTOR_TOKEN": self.mark}
        environment = {**os.environ, **own, **(variables or {})}
        made = subprocess.Popen(
            [*self._enter(self.holders[number]), *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(made)
        return made

    def remote_shell(self) -> Path:
        """What launchers call in the place of ssh: ``SCRIPT [-x] HOST COMMAND…`` runs the command on that host."""
        script = self.folder / "remote-shell"
        cases = "\n".join(
            f'{name}) exec {" ".join(self._enter(holder))} sh -c "$*";;'
            for name, holder in zip(self.names, self.holders, strict=True)
        )
        first = 'while [ "$1" = -x ]; do shift; done; host=$1; shift'
        script.write_text(f"#!/bin/sh\n{first}\ncase $host in\n{cases}\nesac\nexit 255\n")
        script.chmod(0o755)
        return script

    def close(self) -> None:
        for made in reversed(self.started):
            if made.poll() is None:
                os.kill(made.pid, signal.SIGKILL)
        for made in self.started:
            made.wait()
            for stream in (made.stdin, made.stdout, made.stderr):
                if stream is not None:
                    stream.close()

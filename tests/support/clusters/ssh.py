"""Hosts that Ansible reaches by ssh, in a world of their own (`tests.support.namespaces.world`): one sshd each, in a network,
mount and UTS namespace with its own /sys and temporary folder.

Everything is a child of the world's PID 1 and ends with it; no key and no setting outlives it.
"""

from __future__ import annotations

import functools
import os
import pathlib
import shutil
import sys
from typing import Any

import pytest

from tests.support.namespaces import world

ROOT = pathlib.Path(__file__).parents[3]
FOLDER = ROOT / "build" / "ansible" / "bin"  # where .ci/run puts ansible-core and ansible-lint
COLLECTION = ROOT / "netdoctor" / "deploy" / "ansible"
PRELUDE = r"""
LAB = pathlib.Path("/run/lab")
HOSTS = {}
def text(*argv, seconds=300, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, **more)
    return {"exit": done.returncode, "out": done.stdout, "err": done.stderr}
def prepare(ansible, collection):
    os.environ["PATH"] = f"{ansible}:{os.environ['PATH']}"
    LAB.mkdir()
    sh(f"ssh-keygen -q -t ed25519 -N '' -f {LAB}/id", f"ssh-keygen -q -t ed25519 -N '' -f {LAB}/hostkey",
       f"cp {LAB}/id.pub {LAB}/authorized_keys", "mkdir -p /run/sshd",
       "ip link add br0 type bridge", "ip link set br0 up", "ip addr add 192.168.88.254/24 dev br0")
    (LAB / "sshd_config").write_text(f'''Port 22
HostKey {LAB}/hostkey
AuthorizedKeysFile {LAB}/authorized_keys
PermitRootLogin yes
PasswordAuthentication no
UsePAM no
StrictModes no
UseDNS no
MaxStartups 100
Subsystem sftp internal-sftp
''')
    where = pathlib.Path("/collections/ansible_collections/netdoctor/cluster")
    where.parent.mkdir(parents=True)
    shutil.copytree(collection, where)
    (LAB / "ansible.cfg").write_text(f'''[defaults]
inventory = {LAB}/hosts.ini
host_key_checking = False
forks = 6
timeout = 5
collections_path = /collections
local_tmp = {LAB}/local
localhost_warning = False
interpreter_python = /usr/bin/python3
[ssh_connection]
pipelining = True
retries = 0
ssh_args = -o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=3
control_path_dir = {LAB}/cp
''')
    os.environ.update(ANSIBLE_CONFIG=f"{LAB}/ansible.cfg", HOME=str(LAB), ANSIBLE_NOCOLOR="1", PWD=str(LAB))
    os.chdir(LAB)
def host(name, setup="true", variables=""):
    "One machine; `setup` are shell lines in its namespaces before its sshd starts."
    number = len(HOSTS) + 1
    tmp = LAB / "tmp" / name
    tmp.mkdir(parents=True)
    child = subprocess.Popen(["unshare", "-n", "-m", "-u", "sh", "-ec", f'''
mount --make-rprivate /; hostname {name}; ip link set lo up
mount -t sysfs sys /sys; mount --bind {tmp} /tmp; mkdir -p /run/netdoctor; mount -t tmpfs run /run/netdoctor
echo up; read go
{setup}
exec /usr/sbin/sshd -D -f {LAB}/sshd_config -E {LAB}/{name}.log'''],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1)
    first = child.stdout.readline()
    assert first == "up\n", first
    inside = f"nsenter -t {child.pid} -n ip"
    sh(f"ip link add v{number} type veth peer name eth0 netns {child.pid}", f"ip link set v{number} master br0 up",
       f"{inside} addr add 192.168.88.{number}/24 dev eth0", f"{inside} link set eth0 up")
    child.stdin.write("go\n"); child.stdin.close()
    HOSTS[name] = (child, f"192.168.88.{number}", variables)
def inventory():
    lines = ["[gpu]", *(f"{n} ansible_host={a} {v}" for n, (_, a, v) in HOSTS.items()), "[gpu:vars]", "ansible_user=root",
             f"ansible_ssh_private_key_file={LAB}/id"]
    (LAB / "hosts.ini").write_text("\n".join(lines) + "\n")
    names = [f"{a} {n}" for n, (_, a, _) in HOSTS.items()]
    pathlib.Path("/etc/hosts").write_text("\n".join(["127.0.0.1 localhost", *names]) + "\n")
def answering(names):
    "Wait until the sshd of these hosts greets."
    for name in names:
        end = time.monotonic() + 30
        while True:
            try:
                with socket.create_connection((HOSTS[name][1], 22), timeout=2) as one:
                    if one.recv(4) == b"SSH-": break
            except OSError:
                pass
            assert time.monotonic() < end, name
            time.sleep(0.02)
"""


@functools.cache
def why_not() -> str:
    """Why there are no such hosts here; "" where there can be."""
    missing = [
        n for n in ("sshd", "ssh", "ssh-keygen", "nsenter", "ip") if not shutil.which(n, path=f"{os.defpath}:/usr/sbin:/sbin")
    ]
    if missing:
        return f"needs {', '.join(missing)} (Debian: openssh-server openssh-client iproute2 util-linux)"
    if not folder():
        return "needs ansible-core (python3 -m venv build/ansible && build/ansible/bin/pip install ansible-core ansible-lint)"
    return world.why_not()


@functools.cache
def folder() -> str:
    """Where ansible-playbook is; "" where it is not."""
    for one in (str(FOLDER), *os.environ.get("PATH", "").split(":")):
        if os.access(f"{one}/ansible-playbook", os.X_OK):
            return one
    return ""


def run(program: str, *arguments: str, timeout: float = 300) -> Any:
    """What `program` gives to `say` in a world where hosts can be made."""
    if reason := why_not():
        pytest.skip(reason)
    start = f"prepare({folder()!r}, {str(COLLECTION)!r})\n"
    return world.run(f"{PRELUDE}\n{start}{program}", sys.executable, *arguments, timeout=timeout)

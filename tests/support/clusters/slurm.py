"""A Slurm cluster in a world of its own (`tests.support.namespaces.world`): munged, slurmctld and four slurmd.

Each slurmd has a network, mount and UTS namespace and its own /sys, on which a DGX with as many HCAs as wanted is laid.  No
systemd, no accounting, no cgroups.  Everything is a child of the world's PID 1 and ends with it.
"""

from __future__ import annotations

import functools
import shutil
import sys
from typing import Any

import pytest

from tests.support.namespaces import world

_CONF = """\
ClusterName=lab
SlurmctldHost=control(192.168.77.254)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool-%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd-%n.log
ReturnToService=2
SlurmdTimeout=60
InactiveLimit=0
KillWait=2
NodeName=n[1-4] NodeHostname=n[1-4] NodeAddr=192.168.77.[1-4] CPUs=2 RealMemory=100 State=UNKNOWN
PartitionName=all Nodes=n[1-4] Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
"""
PRELUDE = r"""
NODES = ("n1", "n2", "n3", "n4")
PYZ = sys.argv[2] if len(sys.argv) > 2 else ""
SCRIPTS = "/etc/slurm/netdoctor"
PIDS = {}
def text(*argv, seconds=60, **more):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=seconds, **more)
    return {"exit": done.returncode, "out": done.stdout, "err": done.stderr}
def wait_for(what, seconds=30):
    end = time.monotonic() + seconds
    while not (value := what()):
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: {states()} {logs()}")
        time.sleep(0.05)
    return value
def logs():
    return {p.name: p.read_text(errors="replace")[-3000:] for p in pathlib.Path("/run/slurm").glob("*.log")}
def node(name):
    lines = [l.strip() for l in text("scontrol", "show", "node", name)["out"].splitlines()]
    pick = lambda key: next((l[len(key):] for l in lines if l.startswith(key)), "")
    return {"state": pick("State=").split(" ")[0], "reason": pick("Reason=")}
def states():
    return {name: node(name) for name in NODES}
def drained():
    return sorted(name for name, one in states().items() if "DRAIN" in one["state"])
def trees(count):
    "A folder to lay over /sys: a machine with this many HCAs and no GPU."
    where = pathlib.Path(f"/mnt-trees/{count}")
    if not where.exists():
        from tests.support.machines.sysfs import dgx_h100
        dgx_h100(where, gpus=0, hcas=count)
        # the CPUs stay this machine's: slurmd counts them
        shutil.rmtree(where / "devices/system", ignore_errors=True)
    return where
def machine(name, hcas):
    "From now on this node has so many HCAs."
    tree = trees(hcas)
    sh(f"nsenter -t {PIDS[name]} -m -r sh -c 'umount -R /sys; mount -t overlay sys -o lowerdir={tree}:/plain-sys /sys"
       # slurmd wants to see cgroups, the first version or the second, though nothing here uses them
       " && mount -t tmpfs cgroup /sys/fs/cgroup'")
def inside(name, *argv, **more):
    return text("nsenter", "-t", str(PIDS[name]), "-m", "-r", "-u", "-n", *argv, **more)
PROGRAM = f"{sys.executable} -I {PYZ}"
def settings(**values):
    "What netdoctor.conf says to all nodes."
    base = {"NETDOCTOR": PROGRAM, "PYTHON": sys.executable, "DEADLINE": "30",
            "SLURM_CONF": "/etc/slurm/slurm.conf", "CONFIG": "/etc/netdoctor/site.yaml"}
    own = f"read -r here </proc/sys/kernel/hostname; [ ! -r {SCRIPTS}/conf.$here ] || . {SCRIPTS}/conf.$here\n"
    _write("netdoctor.conf", {**base, **values}, own)
def settings_of(name, **values):
    "What one node is told on top of that."
    _write(f"conf.{name}", values, "")
def _write(file, values, end):
    new = pathlib.Path(SCRIPTS, file + ".new")
    new.write_text("".join(f"{key}='{value}'\n" for key, value in values.items()) + end)
    new.rename(f"{SCRIPTS}/{file}")
def together(*functions):
    "Run them at the same time; what each returned."
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor(len(functions)) as pool:
        return [one.result() for one in [pool.submit(f) for f in functions]]
def start(conf, more=""):
    sh("hostname control", "mkdir -p /run/slurm/state /run/netdoctor /etc/slurm /etc/netdoctor /plain-sys /mnt-trees",
       "mount -t tmpfs -o mode=755 trees /mnt-trees", "mount -t sysfs sysfs /plain-sys",
       "dd if=/dev/urandom of=/run/munge.key bs=1 count=1024 2>/dev/null", "chmod 400 /run/munge.key",
       "ip link add br0 type bridge", "ip link set br0 up", "ip addr add 192.168.77.254/24 dev br0")
    pathlib.Path("/etc/slurm/slurm.conf").write_text(conf + more)
    pathlib.Path("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    pathlib.Path("/etc/netdoctor/site.yaml").write_text("expected: {hcas: 8}\n")
    os.environ["SLURM_CONF"] = "/etc/slurm/slurm.conf"
    sh("mkdir -p -m 755 /run/munge", "munged --force --key-file=/run/munge.key --pid-file=/run/munge.pid"
       " --log-file=/run/munge.log --seed-file=/run/munge.seed --num-threads=2")
    hosts = pathlib.Path("/etc/hosts")
    hosts.write_text("127.0.0.1 localhost\n192.168.77.254 control\n" + "".join(f"192.168.77.{n[1]} {n}\n" for n in NODES))
    sh("slurmctld -c")
    for name in NODES:
        os.mkdir(f"/run/slurm/spool-{name}")
        child = subprocess.Popen(["unshare", "-n", "-m", "-u", "sh", "-c",
            f"hostname {name}; ip link set lo up; mount -t tmpfs run /run/netdoctor; echo up; read go;"
            f" exec slurmd -D -N {name}"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, bufsize=1)
        assert child.stdout.readline() == "up\n"
        PIDS[name] = child.pid
        sh(f"ip link add v{name} type veth peer name eth0 netns {child.pid}", f"ip link set v{name} master br0 up",
           f"nsenter -t {child.pid} -n ip addr add 192.168.77.{name[1]}/24 dev eth0",
           f"nsenter -t {child.pid} -n ip link set eth0 up")
        machine(name, 8)
        child.stdin.write("go\n"); child.stdin.close()
    wait_for(lambda: all(one["state"] == "IDLE" for one in states().values()))
"""


@functools.cache
def why_not() -> str:
    """Why there is no such cluster here; "" where there can be."""
    missing = [
        name for name in ("slurmctld", "slurmd", "munged", "srun", "scontrol", "ip", "nsenter") if not shutil.which(name)
    ]
    if missing:
        return f"needs {', '.join(missing)} (Debian: slurm-wlm munge iproute2 util-linux)"
    return world.why_not() or ""


def run(program: str, *arguments: str, more: str = "", timeout: float = 240) -> Any:
    """What `program` gives to `say` in a world with the cluster up; `more` are lines of slurm.conf."""
    if reason := why_not():
        pytest.skip(reason)
    return world.run(f"{PRELUDE}\nstart({_CONF!r}, {more!r})\n{program}", sys.executable, *arguments, timeout=timeout)

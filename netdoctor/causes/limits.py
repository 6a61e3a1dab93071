"""What lifts limits of processes, users and cgroups, by the place where it is done; `fixes.py` says it.

Sources: docker-run(1), podman-run(1); kubernetes.io, "Process ID Limits And Reservations"; slurm.conf(5),
PropagateResourceLimitsExcept; systemd.exec(5), systemd.resource-control(5); pam_limits(8).
"""

from __future__ import annotations

import re
import shlex
from dataclasses import replace
from typing import Final

from netdoctor.model import Fix


class Written(str):
    """What is written where no shell reads it: the file of a unit, the spec of a pod."""

    __slots__ = ()


SUMMARY: Final = {
    "memlock": "lift the locked-memory limit of the container",
    "nofile": "lift the limit of open files",
    "fsize": "lift the limit of file size where it is set",
    "nproc": "let the user have more processes and threads",
    "pids": "let the job have more processes and threads",
    "cpu": "give the job more CPUs",
    "memory": "give the job more memory",
}
FLAGS: Final = {
    "memlock": {
        "docker": "docker run --ulimit memlock=-1:-1 …",
        "podman": "podman run --ulimit memlock=-1:-1 …   # rootless: not above the user's own hard limit",
        "kubernetes": Written(
            "LimitMEMLOCK=infinity in containerd's systemd unit (a pod spec has no ulimits), or add IPC_LOCK"
        ),
        # slurm.conf(5), PropagateResourceLimitsExcept; systemd.exec(5), LimitMEMLOCK.
        "enroot": Written(
            "LimitMEMLOCK=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf"
        ),
        "apptainer": "ulimit -l unlimited in the job   # the limits are the host's: limits.d, or slurmd's LimitMEMLOCK",
    },
    "nofile": {
        "docker": "docker run --ulimit nofile=1048576:1048576 …",
        "podman": "podman run --ulimit nofile=1048576:1048576 …   # rootless: not above the user's own hard limit",
        "kubernetes": Written("LimitNOFILE=1048576 in containerd's systemd unit (a pod spec has no ulimits)"),
        "enroot": Written("LimitNOFILE=1048576 in slurmd's systemd unit, PropagateResourceLimitsExcept=NOFILE in slurm.conf"),
        "apptainer": "ulimit -n 1048576 in the job   # the limits are the host's: limits.d, or slurmd's LimitNOFILE",
    },
    "fsize": {
        "docker": "docker run --ulimit fsize=-1:-1 …",
        "podman": "podman run --ulimit fsize=-1:-1 …   # rootless: not above the user's own hard limit",
        "kubernetes": Written("LimitFSIZE=infinity in containerd's systemd unit (a pod spec has no ulimits)"),
        "enroot": Written("LimitFSIZE=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=FSIZE in slurm.conf"),
        "apptainer": "ulimit -f unlimited in the job   # the limits are the host's: limits.d, or slurmd's LimitFSIZE",
    },
    "nproc": {
        "docker": "docker run --ulimit nproc=-1:-1 …",
        "podman": "podman run --ulimit nproc=-1:-1 …   # rootless: not above the user's own hard limit",
        "kubernetes": Written("LimitNPROC=infinity in containerd's systemd unit (a pod spec has no ulimits)"),
        "enroot": Written("LimitNPROC=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=NPROC in slurm.conf"),
        "apptainer": "ulimit -u unlimited in the job   # the limits are the host's: limits.d, or slurmd's LimitNPROC",
    },
    "pids": {
        "docker": "docker run --pids-limit=-1 …",
        "podman": "podman run --pids-limit=-1 …",
        "kubernetes": Written("podPidsLimit in the kubelet's configuration (a pod spec has none)"),
        "enroot": Written("TasksMax=infinity in slurmd's systemd unit"),
        "apptainer": Written("TasksMax=infinity in slurmd's systemd unit"),
    },
    "cpu": {
        "docker": "docker run --cpus=… --cpuset-cpus=…   # at least two a rank",
        "podman": "podman run --cpus=… --cpuset-cpus=…   # at least two a rank",
        "kubernetes": Written("resources: {requests: {cpu: …}, limits: {cpu: …}}   # at least two a rank"),
        "enroot": "srun --cpus-per-task=…   # at least two a rank",
        "apptainer": "srun --cpus-per-task=…   # at least two a rank",
    },
    "memory": {
        "docker": "docker run --memory=… …",
        "podman": "podman run --memory=… …",
        "kubernetes": Written("resources: {requests: {memory: …}, limits: {memory: …}}"),
        "enroot": "srun --mem=…",
        "apptainer": "srun --mem=…",
    },
}
_CPUS, _MEMORY = "CPUQuota= of the systemd unit that starts it", "MemoryMax= of the systemd unit that starts it"
HOST: Final = {
    "memlock": Fix(
        "lift the locked-memory limit of the job",
        ("ulimit -l unlimited",),
        (
            "echo '* - memlock unlimited' > /etc/security/limits.d/90-netdoctor-memlock.conf   # login sessions (pam_limits)",
            "LimitMEMLOCK=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=MEMLOCK in slurm.conf",
        ),
    ),
    "nofile": Fix(
        "lift the limit of open files",
        ("ulimit -n $(ulimit -Hn)",),
        (
            "echo '* - nofile 1048576' > /etc/security/limits.d/90-netdoctor-nofile.conf   # login sessions (pam_limits)",
            "LimitNOFILE=1048576 in slurmd's systemd unit, PropagateResourceLimitsExcept=NOFILE in slurm.conf",
        ),
    ),
    "fsize": Fix(
        SUMMARY["fsize"],
        ("ulimit -f unlimited",),
        (
            "echo '* - fsize unlimited' > /etc/security/limits.d/90-netdoctor-fsize.conf   # login sessions (pam_limits)",
            "LimitFSIZE=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=FSIZE in slurm.conf",
        ),
    ),
    "nproc": Fix(
        SUMMARY["nproc"],
        ("ulimit -u $(ulimit -Hu)",),
        (
            "echo '* - nproc unlimited' > /etc/security/limits.d/90-netdoctor-nproc.conf   # login sessions (pam_limits)",
            "LimitNPROC=infinity in slurmd's systemd unit, PropagateResourceLimitsExcept=NPROC in slurm.conf",
        ),
    ),
    "pids": Fix(
        "let the job's cgroup have more processes and threads: no ulimit lifts this limit",
        ("echo max > FILE   # pids.max, as root: for as long as this cgroup is there",),
        ("TasksMax=infinity in the systemd unit that starts the job: slurmd.service, or user-.slice of a login",),
    ),
    "cpu": Fix(
        "give the job more CPUs",
        ("srun --cpus-per-task=…   # at least two a rank",),
        (_CPUS,),
    ),
    "memory": Fix("give the job more memory", ("srun --mem=…",), (_MEMORY,)),
}


def of_cgroup(fix: Fix, file: str) -> Fix:
    """The mend on a host, of the cgroup in whose folder this file is; systemd owns those of its units
    (systemd.resource-control(5))."""
    above, _, unit = file.rpartition("/")[0].rpartition("/")
    if fix is HOST["pids"] and unit.endswith((".slice", ".scope", ".service")):
        user = " --user" if re.search(r"/user@\d+\.service(?:/|$)", above) else ""  # of that user's own manager
        lasting = f"systemctl{user} set-property {shlex.quote(unit)} TasksMax=infinity"
        return replace(fix, commands=(lasting.replace("property", "property --runtime", 1),), persistent=(lasting,))
    return replace(fix, commands=tuple(one.replace("FILE", shlex.quote(file) if file else "FILE") for one in fix.commands))


_LETTERS: Final = {"nofile": "n", "nproc": "u"}


def of_process(need: str, hard: str, *, host: bool) -> Fix | None:
    """What mends a limit of the process.  `hard`: how far it may raise that itself, where it is enough; "-" where it is not.
    None: it is another limit, or how far is not known."""
    if need not in _LETTERS or not hard:
        return None
    last = HOST[need].persistent if host else ()
    if hard != "-":
        # The kernel takes no limit of open files above fs.nr_open (kernel/sys.c, do_prlimit).
        most = "$(cat /proc/sys/fs/nr_open)" if (need, hard) == ("nofile", "unlimited") else hard
        return Fix(f"{SUMMARY[need]} in the job: the hard limit is {hard}", (f"ulimit -{_LETTERS[need]} {most}",), last)
    return Fix(f"{SUMMARY[need]} where the job is started: the hard limit is too low, too", (), last) if host else None

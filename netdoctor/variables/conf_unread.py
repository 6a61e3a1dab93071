"""A conf file of NCCL's that could not be read."""

from __future__ import annotations

from netdoctor.causes.cost import SOMETIMES
from netdoctor.facts.environ import ConfFile
from netdoctor.model import Finding, Fix, Kind, Status, Unavailable


def finding(file: ConfFile, why: Unavailable) -> Finding:
    """One whose file system does not answer stops more than this look: NCCL opens it before anything else (src/misc/param.cc,
    initEnv), and a home that hangs holds Python's start and every cache of torch's as well."""
    evidence = {"variable": None, "value": None, "source": file.path, "rule": "not-read", "row": None}
    if why.kind is not Kind.TIMED_OUT:
        message, how = f"{file.path} could not be read: {why}", f"read {file.path} as the job's user"
        return Finding(Status.UNKNOWN, message, file.path, evidence=evidence, how=how)
    folder = file.path.rpartition("/")[0] or "/"
    return Finding(
        Status.FAIL,
        f"{file.path}: its file system does not answer ({why.detail}), and NCCL opens this file before it does anything else",
        file.path,
        cause="node_storage",
        loss=SOMETIMES,
        why="init hangs there without a line of NCCL's, in a call that no signal ends where it is NFS mounted hard",
        fix=Fix(
            "see to the server behind that mount, or give the job another home",
            (f"findmnt -T {folder}", "dmesg -T | grep -i 'not responding'", "nfsstat -m"),
        ),
        evidence=evidence,
    )

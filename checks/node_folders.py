"""The folders that the configuration says the job writes (job.paths: checkpoints, logs) take files of its user.

There a folder for reading only or another's is a fault, too, which of /tmp or HOME may be a site's choice (node.system).
"""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from netdoctor.api import (
    CLOSED,
    FROM_JOB,
    Finding,
    Fix,
    Kind,
    Room,
    System,
    Unavailable,
    Vantage,
    check,
    cost,
    fail,
    fix_container,
    ok,
    skip,
    unknown,
)

SPACE = Fix("make room there, or name another folder (job.paths)", ("df -h {}", "df -i {}", "quota"))
OPEN = Fix("let the job's user write there, or name another folder (job.paths)", ("findmnt -T {}", "namei -l {}"))
REPAIR = Fix("look for errors of the disk or of its server, then mount it again", ("findmnt -T {}", "dmesg -T"))


@check(id="node.folders", title="The folders that the job writes take files", cause="node_storage")
def node_folders(system: System, vantage: Vantage) -> Iterator[Finding]:
    if isinstance(system.paths, Unavailable):
        yield unknown(f"which folders the job writes could not be read: {system.paths}")
        return
    if not system.paths:
        yield skip("the configuration names no folder that the job writes (job.paths)")
    for name, room in system.paths.items():
        yield _folder(name, room, vantage)


def _folder(name: str, room: Room | Unavailable, vantage: Vantage) -> Finding:
    path = quote(name)
    if isinstance(room, Unavailable):
        why = "it is not there: the job may make it" if room.kind is Kind.ABSENT else room
        return unknown(f"whether the job can write {name} was not seen: {why}", subject=name, how=f"touch {path}/x")
    if room.limited and vantage.job_user:
        fix = fix_container(vantage, "fsize")
        text = f"the job cannot write {name}: {Room.LIMITED}"
        return fail(text, subject=name, cause="process_limits", loss=cost.STOPS, fix=fix)
    broken = room.broken(vantage.euid == 0)
    if words := broken or (CLOSED.get(room.error) if vantage.job_user else None):
        mend = OPEN if not broken else SPACE if room.full else REPAIR
        fix = Fix(mend.summary, tuple(command.format(path) for command in mend.commands))
        return fail(f"the job cannot write {name}: it {words}", subject=name, loss=cost.STOPS, fix=fix)
    if room.error or not vantage.job_user:
        text = f"whether the job can write {name} is not seen: {room.error or vantage.elsewhere}"
        return unknown(text, subject=name, how=FROM_JOB)
    if not room.tried:
        text = (
            f"{name} is open to the job and has room, but no file could be tried there: its file system has none without a name"
        )
        return unknown(f"{text}, and a quota shows in nothing else", subject=name, how=f"as the job: touch {path}/x; quota")
    return ok(f"the job can write {name}", subject=name)

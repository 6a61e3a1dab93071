"""The ranks of this job that run on this node now, as their environment tells: /proc/PID/environ of this user's processes.

ask:ranks?local=NAME,NAME&job=NAME,NAME   `local` may hold the number of a rank on this node, `job` what all of a job share

Answer: {"ranks": [{"pid", "local_rank", "mask": CUDA_VISIBLE_DEVICES or null, "same": in this process's cgroup,
"cpus": Cpus_allowed_list or null}]}, one a rank.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # importing typing takes as long as starting the interpreter
if TYPE_CHECKING:
    from typing import Any

MASK = "CUDA_VISIBLE_DEVICES"


def answer(parameters: dict[str, str]) -> object:
    local, job = parameters["local"].split(","), parameters["job"].split(",")
    mine = {name: os.environ[name] for name in job if name in os.environ}
    cgroup = read("/proc/self/cgroup")
    found: dict[int, dict[str, Any]] = {}
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        variables = environment(pid)
        number = next((variables[name] for name in local if variables.get(name, "").isdecimal()), "")
        if not number or any(variables.get(name) != value for name, value in mine.items()):
            continue
        # Of several processes of a rank the youngest is what a wrapper started with the mask that it chose.
        same = read(f"/proc/{pid}/cgroup") == cgroup
        status = read(f"/proc/{pid}/status").splitlines()
        cpus = next((line.partition(":")[2].strip() for line in status if line.startswith("Cpus_allowed_list:")), None)
        found[int(number)] = {"pid": pid, "local_rank": int(number), "mask": variables.get(MASK), "same": same, "cpus": cpus}
    return {"ranks": [found[number] for number in sorted(found)]}


def environment(pid: int) -> dict[str, str]:
    """Never of others, root asks, too: whoever lays the page of it on a file system that hangs would hold us up."""
    try:
        if os.stat(f"/proc/{pid}").st_uid != os.geteuid():
            return {}
    except OSError:  # it has ended
        return {}
    text = read(f"/proc/{pid}/environ")
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def read(path: str) -> str:
    try:
        with open(path, "rb") as stream:
            return stream.read(1 << 20).decode("utf-8", "replace")
    except OSError:  # another user's, or it has ended
        return ""

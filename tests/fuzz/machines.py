"""Readers of what programs and files of a node say: a batch system's hosts, DCGM's diagnostic, DCB netlink, cgroups, links."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from netdoctor.facts import cgroups, dcb, dcgm, environ, gpu, net_errors, rdma, reach
from netdoctor.host.base import RecordingHost, ReplayHost
from netdoctor.host.helpers import dcgm_diag, netlink
from netdoctor.host.redact import Redactor
from netdoctor.model import Unavailable
from netdoctor.snapshot import host_lists
from netdoctor.variables.catalogue import accepts
from tests.fakegpu import machine
from tests.fakegpu.answers import net_errors as counted

HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
LEVEL = "/sys/fs/cgroup/system.slice/slurmstepd.scope/job_7"
DIAG = {
    "DCGM Diagnostic": {
        "test_categories": [
            {
                "category": "Integration",
                "tests": [
                    {
                        "name": "pcie",
                        "results": [
                            {
                                "entity_group": "GPU",
                                "entity_id": 0,
                                "status": "Fail",
                                "warnings": [{"error_id": 29, "warning": "a"}],
                            },
                            {"gpu_ids": "1", "status": "Pass", "warnings": "b"},
                        ],
                        "test_summary": {"status": "Fail", "info": ["no"]},
                    }
                ],
            }
        ]
    }
}


def read_diagnostic(data: bytes) -> None:
    """No test passed, and none failed, that ended with another word."""
    told: Any = dcgm_diag.said("dcgmi diag", data.decode("utf-8", "replace"), "")
    host = ReplayHost({"ask:dcgm_diag?level=2&program=%2Fd&seconds=900": told})
    found = dcgm._diagnose(host, "/d", 2, None)
    assert isinstance(found, Unavailable) or (found and all(isinstance(one.outcome, dcgm.Outcome) for one in found))


def read_hosts(data: bytes) -> None:
    """What every list of hosts becomes: names of hosts alone, and not more than are read."""
    text = data.decode("utf-8", "replace")
    files = ({"PBS_NODEFILE": "/n", "PBS_JOBID": text}, {"LSB_DJOB_HOSTFILE": "/n", "LSB_JOBID": "1"})
    lists = ({name: text} for name in ("LSB_HOSTS", "LSB_MCPU_HOSTS", "SLURM_JOB_NODELIST", "VC_WORKER_HOSTS", "MASTER_ADDR"))
    for variables in (*files, *lists):
        answers: dict[str, Any] = {"env:": variables, "file:/n": text}
        seen = environ.probe(RecordingHost(ReplayHost(answers), Redactor(accepts)))
        found = reach.job_hosts(seen) if not isinstance(seen, Unavailable) else ()
        assert isinstance(found, Unavailable) or all(HOST.fullmatch(one) for one in found), found
        assert all(host_lists.words(answers)), "an empty word would stand everywhere"
        host_lists.jobs(answers)
        host_lists.written_out(variables)


class _Driver:
    """The kernel's answer to DCB_CMD_IEEE_GET, as a driver of another version might make it."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    def ask(self, *_: object, **__: object) -> list[bytes]:
        return [self.body]


def dcb_seeds() -> list[bytes]:
    apps = b"".join(netlink.attribute(1, bytes((5, n % 8, n, 0))) for n in range(64))
    settings = netlink.attribute(1, bytes(59)) + netlink.attribute(2, bytes((8, 8)) + bytes(134)) + netlink.attribute(3, apps)
    settings += netlink.attribute(10, bytes(44))
    return [bytes(4) + netlink.attribute(1, b"eth0\0") + netlink.attribute(13, settings)]


def read_dcb(data: bytes) -> None:
    driver: Any = _Driver(data)
    told = netlink.dcb(driver, "eth0")
    dcb.paused(told.get("pfc"))
    dcb.priorities(told.get("dscp"))
    dcb.shares(told.get("ets"))
    dcb.together([dcb.told(told)])
    text = data.decode("utf-8", "replace")
    files = {
        f"file:/n/{name}": text for name in ("qos/trust", *(f"ecn/roce_{p}/enable/{n}" for p in ("np", "rp") for n in range(8)))
    }
    dcb.with_sysfs(ReplayHost({**files, "dir:/n/ecn": [text]}), dcb.Qos(), "/n")


def read_limits(data: bytes) -> None:
    """Files of /proc and /sys that other drivers and kernels write in their own way."""
    text = data.decode("utf-8", "replace")
    answers: dict[str, Any] = {
        "file:/proc/self/cgroup": "0::/system.slice/slurmstepd.scope/job_7\n",
        "file:/proc/self/mountinfo": "30 25 0:27 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
        f"dir:{LEVEL}": ["memory.events", "pids.events"],
        **{f"file:{LEVEL}/{name}": text for name in ("memory.events", "pids.events")},
        **{f"dir:{LEVEL.rsplit('/', n)[0]}": [] for n in (1, 2, 3)},
        "ask:nvml": {"devices": [{"nvlinks": []}]},
        f"file:{gpu.PARAMETERS}": text,
        "file:/t": text,
    }
    host = ReplayHost(answers)
    found = cgroups.probe(host)
    assert all(one is None or not one or one.times >= 0 for one in (found.killed, found.refused))
    assert isinstance(gpu.probe(host).links_off, bool | Unavailable)
    own = rdma._traffic_class(host, "/t")
    assert own is None or isinstance(own, Unavailable) or own >= 0


def mapping(data: bytes) -> Mapping[str, Any]:
    try:
        got = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return {}
    return got if isinstance(got, dict) else {}


def of_counters() -> list[bytes]:
    return [json.dumps(counted(machine.read("two-a100"))).encode()]


def read_counters(data: bytes) -> None:
    """Of links: no fail by what is no count, and no time that allows everything."""
    found = net_errors.probe(ReplayHost({net_errors.QUESTION: dict(mapping(data))}))
    if isinstance(found, Unavailable):
        return
    assert isinstance(found.seconds, Unavailable) or found.seconds <= 2 * net_errors.LONGEST
    rows = [*(found.ports or {}).values(), *(found.interfaces or {}).values()]
    assert all(isinstance(n, Unavailable) or n >= 0 for row in rows for n in (row.rose if row else {}).values())


SEEDS = {
    "diagnostic": [json.dumps(DIAG).encode()],
    "hosts": [b"a\na\nb.c\n", b"a 8 b 8", b"a a b", b"gpu[03-04,9],login1", b"31.server.example"],
    "limits": [b"low 0\noom_kill 3\nmax 12\n", b"NvLinkDisable: 1\nEnableMSI: 1\n", b"Global tclass=106\n"],
}

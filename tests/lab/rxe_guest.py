"""Runs as root in the virtual machine of tests/lab/rxe.py: one JSON line a step, to the file that is named.

Each line: step, found (check, subject, status, cause, message), probe (the probe's fact), devinfo (what ibv_devinfo prints).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

PROBE = """
import json
from netdoctor.host.live import LiveHost
from netdoctor.model import plain
from netdoctor.facts import rdma
host = LiveHost()
host.prefetch(getattr(rdma, "ASKS", ()))
print(json.dumps(plain(rdma.probe(host))))
host.close()
"""
STEPS = {
    "cold": "true",  # not judged: emulated, the first look at every file takes longer than a helper program is given
    "healthy": "true",
    "port down": "ip link set dummy1 down",
    "port up again": "ip link set dummy1 up; ip addr replace 10.0.0.7/24 dev dummy1",
    "no node": "mv /dev/infiniband/uverbs0 /dev/infiniband/away",
    "node of another number": "mknod -m 666 /dev/infiniband/uverbs0 c 231 250",
    "node of no right": "rm /dev/infiniband/uverbs0; mv /dev/infiniband/away /dev/infiniband/uverbs0; "
    "chown 1000:1000 /dev/infiniband/uverbs0; chmod 600 /dev/infiniband/uverbs0",
    "device gone": "chmod 666 /dev/infiniband/uverbs0; rdma link delete rxe0",
}
WITHOUT_RIGHTS = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]


def output(command: list[str]) -> str:
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False).stdout


def main(path: str) -> None:
    out = os.open(path, os.O_WRONLY | os.O_NOCTTY)
    doctor = [sys.executable, "-m", "netdoctor", "preflight", "--no-allreduce", "--vantage", "job", "--quiet", "-f", "json"]
    for step, change in STEPS.items():
        subprocess.run(["sh", "-ec", change], check=True)
        wrap = WITHOUT_RIGHTS if step == "node of no right" else []
        done = subprocess.run([*wrap, *doctor, "--only", "rdma.dev_infiniband"], stdout=subprocess.PIPE, text=True, check=False)
        report = json.loads(done.stdout)
        found = [
            [c["id"], f["subject"], f["status"], f.get("cause", ""), f["message"]]
            for c in report["checks"]
            for f in c["findings"]
        ]
        row = {
            "step": step,
            "found": found,
            "probe": json.loads(output([*wrap, sys.executable, "-c", PROBE])),
            "devinfo": output([*wrap, "ibv_devinfo", "-v"]),
        }
        os.write(out, json.dumps(row).encode() + b"\n")
    os.write(out, b"end\n")


if __name__ == "__main__":
    main(sys.argv[1])

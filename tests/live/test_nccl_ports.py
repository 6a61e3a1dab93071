"""Port arithmetic against the kernel and a real NCCL, in namespaces with narrowed port ranges."""

from __future__ import annotations

import json

import pytest

from netdoctor.nccl import ports
from tests.support.machines import libnccl
from tests.support.namespaces import netlab

pytestmark = [pytest.mark.live, pytest.mark.root]

RANGE = """
sh('ip link set lo up'); veth('eth0', '10.0.0.7/24')
def allow(low, high, reserved=""):
    open("/proc/sys/net/ipv4/ip_local_port_range", "w").write(f"{low} {high}")
    open("/proc/sys/net/ipv4/ip_local_reserved_ports", "w").write(reserved or "\\n")
"""

# Each ncclGetUniqueId opens the listener of a bootstrap root, which stays until its ranks have come.
COUNT = (
    RANGE
    + """
import ctypes
plan = json.loads(sys.argv[1])
def given(path):
    os.environ.update(NCCL_DEBUG="WARN", NCCL_DEBUG_FILE="/dev/null", NCCL_NET_PLUGIN="none", NCCL_RAS_ENABLE="0")
    library = ctypes.CDLL(path)
    library.ncclGetLastError.restype = ctypes.c_char_p
    given = []
    while True:
        one = ctypes.create_string_buffer(128)
        if code := library.ncclGetUniqueId(one):
            return [given, code, (library.ncclGetLastError(None) or b"").decode()]
        given.append(int.from_bytes(one.raw[10:12], "big"))
def count(low, high, reserved, path):
    allow(low, high, reserved)
    return in_child(lambda: given(path))
say([count(*one) for one in plan])
"""
)


@pytest.mark.nccl
def test_listeners_of_nccl_end_where_the_arithmetic_says() -> None:
    spans = [(40000, 40015, ""), (40000, 40014, ""), (40000, 40015, "40003,40008-40010"), (40000, 40000, "")]
    paths = [str(path) for path in libnccl.both()]
    plan = [(*span, path) for span in spans for path in paths]
    for (low, high, reserved, _), (given, code, said) in zip(plan, netlab.run(COUNT, json.dumps(plan)), strict=True):
        taken = {40003, 40008, 40009, 40010} if reserved else set()
        assert ports.sure(low, high, taken) <= len(given) <= ports.bindable(low, high, taken), (low, high, reserved)
        assert len(set(given)) == len(given) and not set(given) & taken and all(low <= port <= high for port in given)
        assert code == 2 and "Address already in use" in said  # ncclSystemError


KEPT = (
    RANGE
    + """
import socket
HERE = "10.0.0.7"
def listener(port=0):
    one = socket.socket(); one.bind((HERE, port)); one.listen(); return one
def free():
    held = []
    try:
        while True:
            held.append(listener())
    except OSError:
        pass
    count = len(held)
    for one in held:
        one.close()
    return count
allow(40000, 40015)
out = [free()]
server = listener()
port = server.getsockname()[1]
client = socket.socket(); client.bind((HERE, 50000)); client.connect((HERE, port))
accepted, _ = server.accept()
server.close()
out.append(free())  # the accepted connection keeps the listener's port
accepted.close(); client.close()
far = [listener(51000 + n) for n in range(64)]
near = []
for one in far:
    sock = socket.socket(); sock.connect(one.getsockname()); near.append(sock)
out.append(sorted({sock.getsockname()[1] for sock in near}))
out.append(free())
say(out)
"""
)


def test_accepted_connections_keep_a_port_outbound_ones_share() -> None:
    before, kept, outbound, after = netlab.run(KEPT)
    assert before == 16
    assert kept == 15
    assert all(port % 2 == 0 for port in outbound) and len(outbound) <= 8  # 64 connections, the range's own parity
    assert after >= 8 - 1  # bind(0) still has the other parity; one of it is the accepted connection's TIME_WAIT

"""The emulation of NCCL's interface choice against real libraries, over layouts in network namespaces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.machines import libnccl
from tests.support.namespaces import netlab

pytestmark = [pytest.mark.live, pytest.mark.root, pytest.mark.nccl]

ETH0, ETH1 = "veth('eth0', '10.0.0.7/24')", "veth('eth1', '10.1.0.7/24')"
LO = "sh('ip link set lo up')"
LAYOUTS = {
    "nothing up": "pass",
    "lo only": LO,
    "one interface": f"{LO}; {ETH0}",
    "two interfaces": f"{LO}; {ETH0}; {ETH1}; bridge('docker0', '172.17.0.1/16', carrier=True)",
    "docker only": f"{LO}; bridge('docker0', '172.17.0.1/16', carrier=True)",
    "docker without carrier": f"{LO}; bridge('docker0', '172.17.0.1/16')",
    "docker and a link-local interface": f"{LO}; bridge('docker0', '172.17.0.1/16', carrier=True); veth('eth0', 'fe80::7/64')",
    "virbr first": f"{LO}; bridge('virbr0', '192.168.122.1/24', carrier=True); {ETH0}",
    "virbr only": f"{LO}; bridge('virbr0', '192.168.122.1/24', carrier=True)",
    "a compose bridge first": f"{LO}; bridge('br-1a2b', '172.18.0.1/16', carrier=True); {ETH0}",
    "IPoIB last": f"{LO}; {ETH0}; veth('ibp65s0', '10.9.0.7/24')",
    "first one down": f"{LO}; veth('eth0', '10.0.0.7/24', up=False); {ETH1}",
    "first one without carrier": f"{LO}; veth('eth0', '10.0.0.7/24', carrier=False); {ETH1}",
    "IPv6 only": f"{LO}; veth('eth0', 'fd00::7/64', 'fe80::7/64')",
    "IPv6 before IPv4": f"{LO}; veth('eth0', 'fd00::7/64'); {ETH1}",
    "an alias": f"{LO}; veth('eth0', '10.0.0.7/24', '10.1.0.7/24 label eth0:1')",
}
SETTINGS: list[dict[str, str]] = [
    {},
    *(
        {"NCCL_SOCKET_IFNAME": value}
        for value in (
            "eth",
            "=eth",
            "eth0",
            "=eth0",
            "eth1",
            "eth9,eth1",
            "eth9, eth1",
            "^docker",
            "^docker,lo",
            "^=docker0",
            "^eth,lo",
            "lo",
            "x",
            "nosuch",
            "^,",
            "=,",
            ":1",
            "eth0:1",
            "ib",
        )
    ),
    {"NCCL_SOCKET_FAMILY": "AF_INET6"},
    {"NCCL_SOCKET_FAMILY": "AF_INET"},
    {"NCCL_SOCKET_FAMILY": "ipv6"},
    {"NCCL_SOCKET_FAMILY": "AF_INET6", "NCCL_SOCKET_IFNAME": "eth1"},
    *(
        {"NCCL_COMM_ID": value}
        for value in (
            "10.1.0.1:4000",
            "10.0.0.1:4000",
            "127.0.0.1:4000",
            "192.0.2.1:4000",
            "[fd00::1]:4000",
            "[fe80::1]:4000",
            "[fe80::1%eth0]:4000",
            "bad",
        )
    ),
    {"NCCL_COMM_ID": "10.1.0.1:4000", "NCCL_SOCKET_IFNAME": "eth0"},
]

PROGRAM = """
from netdoctor.host.helpers import nccl, netlink
from netdoctor.host.base import ReplayHost
from netdoctor.model import Unavailable
from netdoctor.nccl.ifname import choose
from netdoctor.facts.net import probe
layout, libraries, settings = json.loads(sys.argv[1])
exec(layout)
links = probe(ReplayHost({"ask:netlink": netlink.answer({})})).links
def asked(path, setting):
    os.environ.update(setting)
    return nccl.answer({"path": path, **({"comm_id": setting["NCCL_COMM_ID"]} if "NCCL_COMM_ID" in setting else {})})
rows = []
for path in libraries:
    for setting in settings:
        told = in_child(lambda: asked(path, setting))
        got = choose(links, tuple(told["version"]), setting)
        mine = None if isinstance(got, Unavailable) else [list(one) for one in got]
        its = [[told["interface"], told["address"]]] if told["interface"] else []
        rows.append([told["version"], setting, mine, its, told["code"], told["error"]])
say(rows)
"""


@pytest.mark.parametrize("name", LAYOUTS)
def test_emulation_and_library_agree(name: str) -> None:
    paths = [str(path) for path in libnccl.every()]
    rows: list[list[Any]] = netlab.run(PROGRAM, json.dumps([LAYOUTS[name], paths, SETTINGS]), timeout=120)
    assert len(rows) == len(paths) * len(SETTINGS)
    different = [row for row in rows if row[2] != row[3] and row[1].get("NCCL_COMM_ID") != "bad"]
    assert not different, "\n".join(str(row) for row in different)
    refused = [row for row in rows if row[1].get("NCCL_COMM_ID") == "bad"]
    assert all(row[2] is None and row[4] for row in refused)
    if name == "two interfaces":  # not vacuous: each rule had something to choose
        assert len({json.dumps(row[3]) for row in rows}) >= 5

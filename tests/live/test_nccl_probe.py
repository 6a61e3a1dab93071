"""NCCL asked through the helper, as preflight asks it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from netdoctor.host.base import question
from netdoctor.host.live import LiveHost
from netdoctor.model import Unavailable
from tests.support.machines import libnccl
from tests.support.namespaces import netlab

pytestmark = [pytest.mark.live, pytest.mark.nccl]


def test_the_library_answers_through_the_helper(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = tmp_path / "nccl.log"
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(written))
    monkeypatch.setenv("NCCL_COMM_ID", "192.0.2.1:4000")
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    host = LiveHost()
    try:
        for path in libnccl.both():
            told = host.ask(question("nccl", path=str(path)))
            assert isinstance(told, dict), told
            assert ".".join(map(str, told["version"])) == path.parents[3].name
            assert (told["code"], told["interface"], told["address"]) == (0, "lo", "127.0.0.1")
            assert any("Bootstrap" in line for line in told["log"])
    finally:
        host.close()
    assert not written.exists()


def test_no_interface_is_said_in_nccls_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "nosuch0")
    host = LiveHost()
    try:
        told = host.ask(question("nccl", path=str(libnccl.newest())))
    finally:
        host.close()
    assert isinstance(told, dict)
    assert told["interface"] is None and told["code"] and "no socket interface found" in told["error"]


@pytest.mark.root
def test_root_does_not_load_what_others_may_change(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    loose = tmp_path / "libnccl.so.2"
    loose.symlink_to(libnccl.newest())
    tmp_path.chmod(0o777)
    host = LiveHost()
    try:
        told = host.ask(question("nccl", path=str(loose)))
    finally:
        host.close()
    assert isinstance(told, Unavailable) and told.kind == "refused"


def test_a_file_that_is_no_library() -> None:
    host = LiveHost()
    try:
        absent, wrong = (host.ask(question("nccl", path=path)) for path in ("/nonexistent/libnccl.so.2", "/etc/passwd"))
    finally:
        host.close()
    assert isinstance(absent, Unavailable) and absent.kind in ("absent", "refused")
    assert isinstance(wrong, Unavailable) and wrong.kind == "failed"


# Facts of a namespace, judged as the engine judges them.
PROGRAM = """
from netdoctor.facts import registry as facts
from netdoctor.checks.net_socket_ifname import socket_ifname
from netdoctor.host.base import question
from netdoctor.host.live import LiveHost
from netdoctor.model import Unavailable, plain
from tests.support.facts import environ, job, judge, libraries, library, machine, torch
layout, path, variables = json.loads(sys.argv[1])
exec(layout)
os.environ.update(variables)
host = LiveHost(config={})
from netdoctor.facts import nccl_choice as nccl, net
from netdoctor.facts.intent import Intent
from netdoctor.facts.libraries import Libraries
from netdoctor.facts.net import Net
from netdoctor.facts.nccl_choice import NcclChoice
from netdoctor.facts.environ import Environ, probe as probe_environ
have = libraries(torch=torch(nccl_path=path), nccl=(library(path),))
made = {Net: net.probe(host), Environ: probe_environ(host), Libraries: have, NcclChoice: nccl.probe(host, have)}
host.close()
made[Intent] = job(nodes=2 if variables else 1)
say([[f.subject, f.status.value, f.message] for f in judge(socket_ifname, machine(made))])
"""
LO, ETH0 = "sh('ip link set lo up')", "veth('eth0', '10.0.0.7/24')"
MASTER = {"MASTER_ADDR": "10.0.0.9"}


@pytest.mark.root
@pytest.mark.parametrize(
    ("layout", "variables", "status"),
    [
        (f"{LO}; {ETH0}", MASTER, "pass"),
        (f"{LO}; bridge('br-1a2b', '172.18.0.1/16', carrier=True); {ETH0}", MASTER, "fail"),
        (f"{LO}; bridge('br-1a2b', '172.18.0.1/16', carrier=True); {ETH0}", {**MASTER, "NCCL_SOCKET_IFNAME": "=eth0"}, "pass"),
        (f"{LO}; {ETH0}", {**MASTER, "NCCL_SOCKET_IFNAME": "lo"}, "fail"),
        (f"{LO}; {ETH0}", {**MASTER, "NCCL_SOCKET_IFNAME": "=eth"}, "fail"),
        (f"{LO}; {ETH0}; veth('ibp65s0', '10.9.0.7/24')", MASTER, "unknown"),
        (f"{LO}; {ETH0}", {"MASTER_ADDR": "10.77.0.1"}, "unknown"),
        (LO, {}, "pass"),
    ],
)
def test_the_check_in_a_namespace(layout: str, variables: dict[str, str], status: str) -> None:
    for path in libnccl.both():
        found = netlab.run(PROGRAM, json.dumps([layout, str(path), variables]))
        assert {row[0]: row[1] for row in found}["NCCL"] == status, found
        assert "emulation" not in {row[0] for row in found}

"""Counters of a real kernel around something that happens: a carrier that goes, and files of ports that rise."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from typing import Any

import psutil
import pytest

from netdoctor.facts import net_errors as facts
from netdoctor.host.helpers import net_errors
from netdoctor.host.live import LiveHost
from netdoctor.model import Kind, Unavailable
from tests.support.namespaces import netlab

pytestmark = pytest.mark.live

CARRIER = """
import signal, threading
from netdoctor.host.live import LiveHost
from netdoctor.facts import net_errors
from netdoctor.model import plain
sh("ip link add eth0 type veth peer name far; ip link add eth1 type veth peer name far1")
sh("for one in eth0 far eth1 far1 lo; do ip link set $one up; done")
host = LiveHost()
net_errors.begin(host)
import time
time.sleep(1.5)
sh("ip link set far down; sleep 0.3; ip link set far up; sleep 0.3")
host.finish(net_errors.QUESTION)
found = net_errors.probe(host)
host.close()
say(plain(found))
"""


def test_a_carrier_that_goes_is_counted() -> None:
    found = netlab.run(CARRIER)
    assert found["seconds"] > 0
    assert found["interfaces"]["eth0"]["rose"]["carrier_down"] >= 1
    assert found["interfaces"]["eth1"]["rose"]["carrier_down"] == 0
    assert set(found["interfaces"]["eth0"]["total"]) == {*filter(None, net_errors.STATS), "carrier_down"}


def test_told_to_end_before_it_has_begun() -> None:
    host = LiveHost()
    facts.begin(host)
    host.finish(facts.QUESTION)
    found = facts.probe(host)
    host.close()
    assert not isinstance(found, Unavailable) and found.why_not is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_child_that_is_ended_before_its_time_saw_nothing(how: signal.Signals) -> None:
    before = set(children())
    host = LiveHost()
    facts.begin(host)
    (child,) = set(children()) - before
    os.kill(child, how)
    found = facts.probe(host)
    host.close()
    assert isinstance(found, Unavailable) and found.kind is Kind.CRASHED, found


def children() -> list[int]:
    return [one.pid for one in psutil.Process().children()]


def port(root: pathlib.Path, device: str, *, virtual: bool = False, **counters: int) -> pathlib.Path:
    at = root / device / "ports" / "1"
    for folder in ("counters", "hw_counters"):
        (at / folder).mkdir(parents=True)
    for name in net_errors.PMA:
        (at / "counters" / name).write_text("0\n")
    for name, value in counters.items():
        (at / "counters" / name).write_text(f"{value}\n")
    (root / device / "device").mkdir()
    if virtual:
        (root / device / "device" / "physfn").mkdir()
    return at


def test_counters_of_efa_and_what_is_not_counted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By device (older drivers) or by port; "N/A" of a port without an agent is no number, and no rubbish either."""
    monkeypatch.setattr(net_errors, "CLASS", str(tmp_path))
    by_port, by_device = port(tmp_path, "efa_0"), port(tmp_path, "efa_1")
    (by_port / "hw_counters" / "impaired_remote_conn_events").write_text("7\n")
    (by_device.parents[1] / "hw_counters").mkdir()
    (by_device.parents[1] / "hw_counters" / "rdma_read_wr_err").write_text("4\n")
    for name in net_errors.PMA:
        (by_device / "counters" / name).write_text("N/A (no PMA)\n")
    found = net_errors.ports()
    assert found["efa_0:1"] == {**dict.fromkeys(net_errors.PMA, 0), "impaired_remote_conn_events": 7}
    assert found["efa_1:1"].pop("rdma_read_wr_err") == 4
    assert {one["unavailable"] for one in found["efa_1:1"].values()} == {"unsupported"}


def test_ports_that_count(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rise, one that stands at its end, one that is set back, a virtual function, and one that goes away."""
    monkeypatch.setattr(net_errors, "CLASS", str(tmp_path))
    monkeypatch.setattr(net_errors, "told", [])
    good = port(tmp_path, "mlx5_0", link_downed=3, symbol_error=65535, port_rcv_errors=9)
    port(tmp_path, "mlx5_1", virtual=True)
    gone = port(tmp_path, "mlx5_2")

    def happen() -> None:
        (good / "counters" / "link_downed").write_text("5\n")
        (good / "counters" / "port_rcv_errors").write_text("0\n")
        gone.rename(gone.parent / "2")
        os.kill(os.getpid(), signal.SIGUSR1)

    threading.Timer(0.5, happen).start()
    found: Any = net_errors.answer({"seconds": "20"})
    rose = found["ports"]["mlx5_0:1"]["rose"]
    assert (rose["link_downed"], rose["link_error_recovery"]) == (2, 0)
    assert "stood at its end" in rose["symbol_error"]["detail"] and "set back" in rose["port_rcv_errors"]["detail"]
    virtual = found["ports"]["mlx5_1:1"]["rose"]
    assert all(one["unavailable"] == "unsupported" for one in virtual.values())
    assert found["ports"]["mlx5_2:1"]["unavailable"] == "absent"


def test_an_all_reduce_that_did_not_start_shows_nothing() -> None:
    """Counters are read from before it on: where no rank came to anything, that it had no errors says nothing."""
    python = "/usr/bin/python3"
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
        pytest.skip(f"{python} has torch")
    command = [sys.executable, "-m", "netdoctor", "preflight", "-q", "--vantage", "job", "--python", python, "--format", "json"]
    environment = {**os.environ, "NETDOCTOR_JOB_NODES": "2", "NETDOCTOR_ONLY": "net.errors,allreduce.run"}
    done = subprocess.run(command, capture_output=True, check=False, timeout=120, env=environment)
    said = {one["id"]: one["findings"][0] for one in json.loads(done.stdout)["checks"]}
    assert "did not start" in said["allreduce.run"]["message"]
    assert said["net.errors"]["status"] == "unknown"
    why = said["allreduce.run"]["message"].partition("did not start: ")[2]
    assert why and said["net.errors"]["message"].endswith(why)

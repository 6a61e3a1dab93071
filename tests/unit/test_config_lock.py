"""``lock: true``: what comes behind the site's file may only make it stricter, key by key."""

from __future__ import annotations

from pathlib import Path

import pytest

from netdoctor.config.keys import KEYS
from netdoctor.config.load import load
from tests.unit.test_config import write

LOCKED = """\
lock: true
profile: gate
fail_on: warning
disabled: [a.b, c.d]
waivers: [{check: a.b, reason: r, until: 2026-12-31}]
python: /usr/bin/python3
expected: {gpus: 8, rtt_ms: 0.5, busbw_floor: {64M: 100}}
"""


def test_a_locked_site_cannot_be_loosened(tmp_path: Path) -> None:
    site = write(tmp_path, LOCKED)
    loose = write(tmp_path, "profile: audit\nlock: false\nfail_on: critical\n", "loose.yaml")
    got = load(
        loose,
        environ={
            "NETDOCTOR_PROFILE": "prolog",
            "NETDOCTOR_DISABLED": "a.b,x.y",
            "NETDOCTOR_VANTAGE": "wrapper",
            "NETDOCTOR_WAIVERS": "[{check: c.d, reason: mine, until: 2030-01-01}]",
            "NETDOCTOR_CHECKS_DIR": "/home/me/checks",
            "NETDOCTOR_PYTHON": "/home/me/python",
            "NETDOCTOR_EXPECTED_GPUS": "1",
            "NETDOCTOR_EXPECTED_BUSBW_FLOOR": "64M=1,1G=5",
        },
        overrides={"fail_on": "critical", "lock": False},
        site=site,
        euid=1000,
    )
    assert (got.profile, got.fail_on, got.lock) == ("gate", "warning", True)
    assert got.disabled == ("a.b",)  # fewer disabled checks are stricter
    assert got.waivers == ()
    assert (got.vantage, got.checks_dir, got.python) == (None, None, "/usr/bin/python3")
    assert got.expected.gpus == 8
    assert got.expected.busbw_floor == {64 << 20: 100.0, 1 << 30: 100.0}
    assert f"fail_on from the command line counts only where it is stricter: {site} is locked" in got.notes


def test_a_file_that_is_named_locks_what_comes_behind_it(tmp_path: Path) -> None:
    named = write(tmp_path, "lock: true\nprofile: strict\nexpected: {gpus: 8}\n", "gate.yaml")
    loose = {"NETDOCTOR_EXPECTED_GPUS": "0", "NETDOCTOR_WAIVERS": "[{check: c.d, reason: mine, until: 2030-01-01}]"}
    got = load(named, environ=loose, overrides={"profile": "audit"}, site=write(tmp_path, "fail_on: critical\n"))
    assert (got.lock, got.profile, got.expected.gpus, got.waivers, got.fail_on) == (True, "strict", 8, (), "critical")
    assert len(got.notes) == 3


def test_a_locked_site_can_be_tightened(tmp_path: Path) -> None:
    got = load(
        environ={"NETDOCTOR_PROFILE": "strict", "NETDOCTOR_FAIL_ON": "info", "NETDOCTOR_JOB_NODES": "64"},
        overrides={"expected.gpus": 16, "expected.peers": "a,b,c", "expected.rtt_ms": None, "profile": None},
        site=write(tmp_path, LOCKED.replace("gpus: 8", "gpus: 8, peers: [a, b]")),
    )
    assert (got.expected.peers, got.expected.rtt_ms) == (("a", "b", "c"), 0.5)
    assert (got.profile, got.fail_on, got.job.nodes, got.expected.gpus, got.notes) == ("strict", "info", 64, 16, ())


STRICTER: list[tuple[str, str, str, object]] = [
    ("expected: {transport: IB}", "EXPECTED_HCAS", "0", None),
    ("", "EXPECTED_HCAS", "8", None),  # a shape of node may have more
    ("expected: {hcas: 0}", "EXPECTED_HCAS", "1", 1),
    ("", "EXPECTED_GPUS", "7", None),  # it would say that the eighth is meant for a virtual machine
    ("expected: {gpus: 7}", "EXPECTED_GPUS", "8", 8),
    ("", "EXPECTED_TRANSPORT", "Socket", None),
    ("", "EXPECTED_TRANSPORT", "IB", "IB"),
    ("", "EXPECTED_TRANSPORT", "EFA", None),  # a plugin's network is judged less
    ("", "EXPECTED_INSTANCE_TYPE", "p4d.24xlarge", None),  # a smaller one
    ("expected: {instance_type: a}", "EXPECTED_INSTANCE_TYPE", "b", "a"),
    ("", "EXPECTED_GPU_MODEL", "x", "x"),
    ("expected: {gpu_model: a}", "EXPECTED_GPU_MODEL", "b", "a"),
    ("expected: {gpu_addresses: [a]}", "EXPECTED_GPU_ADDRESSES", "b", ("a", "b")),
    ("expected: {hca_addresses: [a]}", "EXPECTED_HCA_ADDRESSES", "b", ("a", "b")),
    ("expected: {hca_firmware: [a]}", "EXPECTED_HCA_FIRMWARE", "b", ("a",)),
    ("expected: {driver: a}", "EXPECTED_DRIVER", "b", "a"),
    ("expected: {nvlinks: 18}", "EXPECTED_NVLINKS", "1", 18),
    ("expected: {gpu_power_limit_w: 700}", "EXPECTED_GPU_POWER_LIMIT_W", "350", 700.0),
    ("expected: {gpu_clock_mhz: 1980}", "EXPECTED_GPU_CLOCK_MHZ", "1200", 1980.0),
    ("expected: {mtu: {eth0: 9000}}", "EXPECTED_MTU", "eth0=1500,eth1=9000", {"eth0": 9000, "eth1": 9000}),
    ("expected: {rails_routed: true}", "EXPECTED_RAILS_ROUTED", "false", True),
    ("job: {all_to_all: true}", "JOB_ALL_TO_ALL", "false", True),
    ("job: {paths: [/ckpt]}", "JOB_PATHS", "/logs", ("/ckpt", "/logs")),
    ("budget_s: 60", "BUDGET_S", "1", 60.0),
    ("dcgm_diag: 2", "DCGM_DIAG", "1", 2),
    ("", "DCGM_DIAG", "1", 1),
    ("", "VANTAGE", "job", None),
    ("", "CHECKS_DIR", "/x", None),
    ("python: /a", "PYTHON", "/b", "/a"),
    ("user: a", "USER", "b", "a"),
    ("", "PROFILE", "audit", "default"),
    ("", "FAIL_ON", "info", "info"),
    ("", "DISABLED", "a.b", ()),
    ("", "WAIVERS", "[{check: c.d, reason: mine, until: 2030-01-01}]", ()),
    ("", "LOCK", "false", True),
    ("expected: {transport: IB}", "EXPECTED_TRANSPORT", "Socket", "IB"),
    ("", "EXPECTED_HCA_RATE_GBPS", "1", None),  # the card's own and the platform's would not count beside it
    ("expected: {hca_rate_gbps: 200}", "EXPECTED_HCA_RATE_GBPS", "400", 400.0),
    ("", "EXPECTED_BUSBW_FLOOR", "64M=0.001", None),
    ("expected: {busbw_floor: {64M: 9}}", "EXPECTED_BUSBW_FLOOR", "1M=1,1G=1", {64 << 20: 9.0, 1 << 30: 9.0}),
    ("expected: {rtt_ms: 1}", "EXPECTED_PEERS", "near", None),
    ("", "EXPECTED_RTT_MS", "0.0001", None),
    ("", "JOB_NODES", "1", None),
    ("", "JOB_NODES", "2", 2),
    ("job: {nodes: 1}", "JOB_NODES", "1", 1),
    ("", "JOB_RANKS_PER_NODE", "1", None),
    ("", "JOB_GLOO_GROUPS", "0", None),
    ("job: {shm_bytes: 4096}", "JOB_SHM_BYTES", "0", 4096),
    ("", "JOB_COMMUNICATORS", "2", 2),
    ("", "VIA", "nccl", None),
    ("", "VIA", "torch", "torch"),
    ("via: nccl", "VIA", "torch", "nccl"),
]


def test_the_lock_is_tried_with_every_key() -> None:
    assert {name.lower() for _, name, _, _ in STRICTER} == {key.replace(".", "_") for key in KEYS}


@pytest.mark.parametrize(("site", "name", "given", "kept"), STRICTER)
def test_a_locked_site_is_not_loosened_where_it_said_nothing(
    tmp_path: Path, site: str, name: str, given: str, kept: object
) -> None:
    got = load(environ={f"NETDOCTOR_{name}": given}, site=write(tmp_path, f"lock: true\n{site}\n"), euid=1000)
    section, _, key = name.lower().partition("_")
    of = getattr(got, section) if section in ("job", "expected") else got
    assert getattr(of, key if of is not got else name.lower()) == kept
    assert kept is not None or "counts only where it is stricter" in got.notes[0]


def test_naming_the_site_file_is_the_same_as_not(tmp_path: Path) -> None:
    site = write(tmp_path, LOCKED)
    assert load(site, environ={}, site=site) == load(environ={}, site=site)

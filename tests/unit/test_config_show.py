"""`netdoctor config show` and the JSON Schema of the configuration: both say what the loader does."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from netdoctor.cli.catalog import whole_schema
from netdoctor.cli.config import NOBODY, effective
from netdoctor.config.document import ConfigError
from netdoctor.config.keys import KEYS
from netdoctor.config.load import load
from netdoctor.model import plain

ROOT = Path(__file__).parents[2]
SCHEMA = jsonschema.Draft202012Validator(whole_schema("config"))
GOOD: dict[str, Any] = {
    "job.nodes": 2, "job.ranks_per_node": 8, "job.communicators": 1, "job.gloo_groups": 0, "job.all_to_all": True,
    "job.paths": ["/ckpt", "/logs"], "job.shm_bytes": 1073741824,
    "expected.gpus": 0, "expected.hcas": 8, "expected.hca_rate_gbps": 400, "expected.transport": "IB",
    "expected.busbw_floor": {"64M": 300, "1 GiB": 1.5, "4096": 1}, "expected.rails_routed": False,
    "expected.peers": ["gpu02:29400"], "expected.rtt_ms": 0.2, "expected.instance_type": "BM.GPU.H100.8",
    "expected.gpu_model": "NVIDIA H100 80GB HBM3",
    "expected.gpu_addresses": ["0000:1b:00.0"], "expected.nvlinks": 18, "expected.gpu_power_limit_w": 700,
    "expected.gpu_clock_mhz": 1410,
    "expected.hca_addresses": ["0000:1a:00.0"],
    "expected.hca_firmware": ["28.39.1002"], "expected.driver": "550.90.07", "expected.mtu": {"eth0": 9000},
    "profile": "gate", "fail_on": "warning", "disabled": ["net.tcp_buffers"],
    "waivers": [{"check": "net.tcp_buffers", "reason": "known", "until": "2030-01-01", "subject": "rmem"}],
    "checks_dir": "/etc/checks", "python": "/opt/python", "user": "job", "via": "nccl", "vantage": "job", "budget_s": 60.5,
    "dcgm_diag": 2,
    "lock": True,
}  # fmt: skip
BAD: dict[str, Any] = {
    "job.nodes": 0, "job.gloo_groups": -1, "job.all_to_all": "maybe", "job.paths": ["ckpt"],
    "expected.gpus": 1.5, "expected.hca_rate_gbps": 0,
    "expected.transport": 7, "expected.busbw_floor": {"64 bananas": 3}, "expected.peers": "gpu02", "expected.mtu": {"eth0": 0},
    "profile": "gait", "fail_on": "worse", "waivers": [{"check": "net.tcp_buffers", "until": "2030-01-01"}],
    "via": "mpi", "vantage": "moon", "budget_s": -1, "lock": 3, "python": "", "disabled": [3],
}  # fmt: skip


def _document(key: str, value: Any) -> dict[str, Any]:
    section, _, name = key.rpartition(".")
    return {section: {name: value}} if section else {name: value}


def _loads(tmp_path: Path, document: dict[str, Any]) -> bool:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(document))
    try:
        load(str(file), environ={}, site=str(tmp_path / "none"))
    except ConfigError:
        return False
    return True


def test_the_schema_knows_every_key() -> None:
    assert set(GOOD) == set(KEYS)
    assert all(key.about for key in KEYS.values())


@pytest.mark.parametrize("key", GOOD)
def test_what_loads_is_valid(tmp_path: Path, key: str) -> None:
    document = _document(key, GOOD[key])
    assert _loads(tmp_path, document)
    assert SCHEMA.is_valid(document)


@pytest.mark.parametrize("key", BAD)
def test_what_does_not_load_is_not_valid(tmp_path: Path, key: str) -> None:
    document = _document(key, BAD[key])
    assert not _loads(tmp_path, document)
    assert not SCHEMA.is_valid(document)


def test_the_examples_of_the_documents_load(tmp_path: Path) -> None:
    text = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    assert examples
    for example in examples:
        document = json.loads(json.dumps(plain(example), default=str))
        assert _loads(tmp_path, document)
        assert SCHEMA.is_valid(document)


def test_who_said_it(tmp_path: Path) -> None:
    site, named = tmp_path / "site.yaml", tmp_path / "named.yaml"
    site.write_text("lock: true\nprofile: gate\njob: {communicators: 2}\nexpected: {peers: [a:1]}\n")
    named.write_text("job: {communicators: 1}\n")
    environ = {"NETDOCTOR_JOB_NODES": "3", "NETDOCTOR_PROFILE": "default", "NETDOCTOR_EXPECTED_PEERS": "b:1"}
    rows = effective(load(str(named), environ=environ, overrides={"fail_on": "warning"}, site=str(site)))
    said = {key: (row["value"], row["source"]) for key, row in rows.items()}
    assert said["profile"] == ("gate", str(site))  # what the variable says is less strict: it does not count
    assert said["job.communicators"] == (2, str(site))
    assert said["job.nodes"] == (3, "environment")
    assert said["fail_on"] == ("warning", "command line")
    assert said["expected.peers"] == (["a:1", "b:1"], f"{site} and environment")
    assert said["expected.gpus"] == (None, NOBODY)
    assert set(rows) == set(KEYS)

"""What the site expects: written from a good node, silent on it, and every key of it judges."""

from __future__ import annotations

import json
import pathlib
from dataclasses import replace
from typing import Any

import pytest
import yaml

from netdoctor import live
from netdoctor.allreduce.plan import path_experiments
from netdoctor.cli import preflight
from netdoctor.cli.expect import run as expect
from netdoctor.cli.options import Options
from netdoctor.cli.setup import UsageError
from netdoctor.config.document import ConfigError
from netdoctor.config.keys import KEYS
from netdoctor.config.load import checked, load
from netdoctor.facts.job import expected_of
from netdoctor.model import Finding, Status
from tests.lab import fixtures
from tests.support.machines import composed

pytestmark = pytest.mark.slow

FACTS = {slug: fixtures.facts_of(fixtures.snapshot(slug)) for slug in composed.NAMES if slug != "pod-without-gpus"}


def written(slug: str, tmp_path: pathlib.Path, *leave_out: str) -> dict[str, Any]:
    out = tmp_path / f"{slug}.yaml"
    assert expect(Options(), str(fixtures.HOSTS / slug / "snapshot.json"), str(out), leave_out) == 0
    found: dict[str, Any] = yaml.safe_load(out.read_text())["expected"]
    return found


def judged(slug: str, keys: dict[str, Any]) -> set[tuple[str, str, Status]]:
    """Findings other than pass and skip, of every check, where the site expects this."""
    plain = {key: list(one) if isinstance(one, tuple) else one for key, one in checked({"expected": keys}).items()}
    return {(f.check, f.subject, f.status) for f in findings(slug, plain) if f.status not in (Status.PASS, Status.SKIP)}


def findings(slug: str, plain: dict[str, Any]) -> list[Finding]:
    from netdoctor import engine

    have = {**FACTS[slug], "Expected": expected_of(plain)}
    return [finding for spec in fixtures.specs() for finding in engine.judge(spec, have)]


@pytest.mark.parametrize("slug", FACTS)
def test_a_node_is_what_was_written_of_it(slug: str, tmp_path: pathlib.Path) -> None:
    keys = written(slug, tmp_path)
    assert keys and judged(slug, keys) <= judged(slug, {})  # a floor may tell what was unknown without it
    # The file is one that the configuration takes.
    assert load(environ={}, site="/nonexistent/x", expect=str(tmp_path / f"{slug}.yaml")).expected.gpus == keys.get("gpus")


@pytest.mark.parametrize("other", ["azure-nd-h100-v5", "hgx-h100-roce", "aws-p5", "gb200-nvl72", "a100-pcie", "cpu-node"])
def test_another_node_is_not(other: str, tmp_path: pathlib.Path) -> None:
    keys = written("dgx-h100", tmp_path)
    assert {name for name, _, _ in judged(other, keys) - judged(other, {})} & {"hardware.site", "hardware.accelerator"}


# A value of each key that a DGX H100 does not meet, and who says so.
WRONG = {
    "gpus": (9, "hardware.site"),
    "hcas": (99, "rdma.dev_infiniband"),
    "hca_rate_gbps": (800, "rdma.dev_infiniband"),
    "transport": ("EFA", "allreduce.run"),
    "busbw_floor": ({"64M": 9000}, "allreduce.bandwidth"),
    "rails_routed": (True, "allreduce.plan"),  # a path run more: it is the run that judges
    "peers": (["10.9.9.9"], "net.socket_ifname"),
    "rtt_ms": (200, "net.tcp_buffers"),
    "gpu_model": ("NVIDIA H200", "hardware.site"),
    "gpu_addresses": (["0000:ee:00.0"], "hardware.site"),
    "nvlinks": (19, "hardware.site"),
    "gpu_power_limit_w": (701, "hardware.site"),
    "gpu_clock_mhz": (2500, "gpu.health"),
    "hca_addresses": (["0000:ee:00.0"], "hardware.site"),
    "hca_firmware": (["1.2.3"], "hardware.site"),
    "driver": ("1.2.3", "hardware.site"),
    "instance_type": ("p4d.24xlarge", "hardware.gpus"),
    "mtu": ({"ibp24s0": 9000}, "hardware.site"),
}
# The machine that gives an occasion to judge it, where dgx-h100 does not: one whose job of two nodes uses sockets.
OCCASION = {"rtt_ms": "cpu-node"}


@pytest.mark.parametrize("key", WRONG)
def test_every_key_of_what_is_expected_judges(key: str) -> None:
    value, check = WRONG[key]
    assert check in {name for name, _, _ in _said(key, value) ^ _said(key)}


def test_the_keys_are_these() -> None:
    assert {f"expected.{key}" for key in WRONG} == {key for key in KEYS if key.startswith("expected.")}


def _said(key: str, *value: Any) -> set[tuple[str, str, Status]]:
    """What the checks say of a recorded machine of two nodes that is looked at with this key, and which path runs it gets."""
    taken = fixtures.snapshot(OCCASION.get(key, "dgx-h100"))
    said = checked({"expected": dict.fromkeys([key], *value)} if value else {})
    have = fixtures.facts_of(replace(taken, answers={**taken.answers, "config:": {"expected": said, "job": {"nodes": 2}}}))
    runs = {("allreduce.plan", str(one.path), Status.SKIP) for one in path_experiments(8, have)}
    return runs | {(f.check, f.subject, f.status) for all_of in fixtures.findings(have).values() for f in all_of}


@pytest.mark.parametrize(
    ("part", "keys"),
    [
        ("addresses", {"gpu_addresses", "hca_addresses"}),
        ("floors", {"busbw_floor"}),
        ("firmware", {"hca_firmware"}),
        ("driver", {"driver"}),
        ("mtu", {"mtu"}),
        ("transport", {"transport"}),
    ],
)
def test_what_differs_between_nodes_may_be_left_out(part: str, keys: set[str], tmp_path: pathlib.Path) -> None:
    assert set(written("dgx-h100", tmp_path)) - set(written("dgx-h100", tmp_path, part)) == keys


def test_a_floor_has_its_margin(tmp_path: pathlib.Path) -> None:
    run = FACTS["dgx-h100"]["Baseline"].run
    assert written("dgx-h100", tmp_path)["busbw_floor"]["64M"] == pytest.approx(0.9 * run.busbw[64 << 20], rel=1e-3)
    assert "90%" in (tmp_path / "dgx-h100.yaml").read_text()
    assert "busbw_floor" not in written("cpu-node", tmp_path)  # ranks on CPUs


@pytest.mark.parametrize(
    "change", [{"runs": {}}, {"answers": {}}, {"partial": "interrupted"}, {"selected": ["net.tcp_buffers"]}]
)
def test_of_a_node_not_known_to_be_good_nothing_is_written(change: dict[str, Any], tmp_path: pathlib.Path) -> None:
    data = json.loads((fixtures.HOSTS / "dgx-h100" / "snapshot.json").read_text()) | change
    (tmp_path / "n.json").write_text(json.dumps(data))
    out = tmp_path / "out.yaml"
    assert expect(Options(), str(tmp_path / "n.json"), str(out), ()) != 0
    assert not out.exists()


def test_a_look_of_its_own_is_as_the_options_say(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """As preflight's: what --no-cures forbids was run all the same."""
    said: dict[str, Any] = {}

    def begun(*_: object, **options: Any) -> None:
        said.update(options)
        raise UsageError("it would begin here")

    monkeypatch.setattr(live, "run", begun)
    given = Options(no_cures=True, no_allreduce=True, quiet=True, host_root="/")
    assert expect(given, None, str(tmp_path / "out.yaml"), ()) == 2
    assert said == {"host_root": "/", "allreduce": False, "cures": False, "progress": preflight.silent}


def test_a_host_that_is_not_mounted_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert expect(Options(host_root="/nowhere", no_allreduce=True, quiet=True), None, None, ()) == 2
    assert "--host-root: /nowhere: no such directory" in capsys.readouterr().err


@pytest.mark.parametrize(("variable", "code"), [("NCCL_FOO", 4), ("NCCL_DEBUG", 0)])
def test_a_node_with_a_warning_is_no_pattern(variable: str, code: int, tmp_path: pathlib.Path) -> None:
    data = json.loads((fixtures.HOSTS / "dgx-h100" / "snapshot.json").read_text())
    data["answers"]["env:"]["ok"][variable] = "TRACE"  # of NCCL_DEBUG an info
    (tmp_path / "n.json").write_text(json.dumps(data))
    assert expect(Options(), str(tmp_path / "n.json"), str(tmp_path / "out.yaml"), ()) == code
    assert (tmp_path / "out.yaml").exists() == (code == 0)


def test_a_file_of_expectations_says_nothing_else(tmp_path: pathlib.Path) -> None:
    (tmp_path / "e.yaml").write_text("expected: {gpus: 8}\nprofile: audit\n")
    with pytest.raises(ConfigError, match="says more"):
        load(environ={}, site="/nonexistent/x", expect=str(tmp_path / "e.yaml"))


@pytest.mark.parametrize(
    ("site", "given", "kept"),
    [
        ("{}", "nvlinks: 4", {"nvlinks": 4}),
        ("{nvlinks: 18}", "nvlinks: 4", {"nvlinks": 18}),
        ("{gpu_model: A}", "gpu_model: B", {"gpu_model": "A"}),
        ("{driver: a}", "driver: b", {"driver": "a"}),
        ("{hca_firmware: [a]}", "hca_firmware: [a, b]", {"hca_firmware": ("a",)}),
        ("{gpu_addresses: [a]}", "gpu_addresses: [b]", {"gpu_addresses": ("a", "b")}),
        ("{mtu: {eth0: 9000}}", "mtu: {eth0: 1500, eth1: 1500}", {"mtu": {"eth0": 9000, "eth1": 1500}}),
    ],
)
def test_a_locked_site_expects_no_less(site: str, given: str, kept: dict[str, Any], tmp_path: pathlib.Path) -> None:
    (tmp_path / "s.yaml").write_text(f"lock: true\nexpected: {site}\n")
    (tmp_path / "e.yaml").write_text(f"expected: {{{given}}}\n")
    got = load(environ={}, site=str(tmp_path / "s.yaml"), expect=str(tmp_path / "e.yaml"))
    assert {key: getattr(got.expected, key) for key in kept} == kept

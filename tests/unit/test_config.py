"""The configuration: merged in order, locked where the site says so, and every error names file, line and key."""

import datetime
import os
import re
import sys
from pathlib import Path
from subprocess import run

import pytest

from netdoctor.config.document import ConfigError
from netdoctor.config.keys import KEYS, size
from netdoctor.config.load import Config, Expect, Job, load, variable
from netdoctor.policy import Waiver
from netdoctor.process import far

FULL = """\
# a site
profile: gate
fail_on: warning
job:
  nodes: 4
  ranks_per_node: 8
  communicators: 3
  gloo_groups: 2
  all_to_all: true
expected:
  gpus: 8
  hcas: 8
  hca_rate_gbps: 400
  transport: IB
  busbw_floor: {64M: 180, 1G: 350.5}
  rails_routed: yes
  peers: [10.0.0.2, "node2:29500"]
  rtt_ms: 0.2
disabled: [net.tcp_buffers]
waivers:
  - {check: rdma.gpudirect, subject: gpu0-mlx5_3, reason: card on order, until: 2026-12-31}
  - {check: nccl.version, reason: image is frozen, until: "2027-01-31"}
checks_dir: /opt/site/checks.d
python: /opt/torch/bin/python3
user: trainer
vantage: host
budget_s: 90
"""


def write(tmp_path: Path, text: str, name: str = "config.yaml") -> str:
    path = tmp_path / name
    path.write_text(text)
    return str(path)


def read(tmp_path: Path, text: str) -> Config:
    return load(write(tmp_path, text), environ={}, site=str(tmp_path / "none"), euid=1000)


def test_every_key_is_read(tmp_path: Path) -> None:
    got = read(tmp_path, FULL)
    assert got.job == Job(4, 8, 3, 2, True)
    assert got.expected == Expect(8, 8, 400.0, "IB", {64 << 20: 180.0, 1 << 30: 350.5}, True, ("10.0.0.2", "node2:29500"), 0.2)
    assert (got.profile, got.fail_on, got.disabled) == ("gate", "warning", ("net.tcp_buffers",))
    assert got.waivers == (
        Waiver("rdma.gpudirect", "card on order", datetime.date(2026, 12, 31), "gpu0-mlx5_3"),
        Waiver("nccl.version", "image is frozen", datetime.date(2027, 1, 31)),
    )
    assert (got.checks_dir, got.python, got.user, got.vantage, got.budget_s) == (
        "/opt/site/checks.d",
        "/opt/torch/bin/python3",
        "trainer",
        "host",
        90.0,
    )
    assert not got.lock


NAMES = [("ib", "IB"), ("roce", "RoCE"), ("IBext_v8", "IBext"), ("aws libfabric", "AWS Libfabric")]


@pytest.mark.parametrize(("said", "kept"), NAMES)
def test_a_network_is_told_by_its_name(tmp_path: Path, said: str, kept: str) -> None:
    got = load(environ={"NETDOCTOR_EXPECTED_TRANSPORT": said}, site=str(tmp_path / "none"), euid=1000)
    assert got.expected.transport == kept


def test_nothing_said(tmp_path: Path) -> None:
    got = load(environ={}, site=str(tmp_path / "none"))
    assert got == Config()
    assert got.as_answer() == {"profile": "default", "job": {}, "expected": {}}


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    got = read(tmp_path, "# nothing\njob:\nexpected: {gpus: null}\n")
    assert got.job == Job()
    assert ["is empty: nothing is set by it" in note for note in got.notes] == [True]  # a mount without its source, perhaps
    assert read(tmp_path, "profile: gate\n").notes == ()
    assert ["is empty: nothing is set by it" in note for note in read(tmp_path, "\n").notes] == [True]


@pytest.mark.parametrize("text", ["# expected:\n#   gpus: 8\n", "{}\n", "---\n# nothing yet\n"])
def test_a_file_that_waits_for_its_settings_is_no_news(tmp_path: Path, text: str) -> None:
    """As a package brings it: it would be told at every look."""
    assert read(tmp_path, text).notes == ()


def test_the_site_s_file_that_vanished_behind_its_link(tmp_path: Path) -> None:
    link = tmp_path / "config.yaml"
    link.symlink_to("..data/config.yaml")
    with pytest.raises(ConfigError, match="No such file"):
        load(environ={}, site=str(link))


def test_the_answer_holds_what_was_said_as_json(tmp_path: Path) -> None:
    answer = read(tmp_path, FULL).as_answer()
    assert answer["job"] == {"nodes": 4, "ranks_per_node": 8, "communicators": 3, "gloo_groups": 2, "all_to_all": True}
    assert answer["expected"]["busbw_floor"] == {"67108864": 180.0, "1073741824": 350.5}
    assert answer["expected"]["peers"] == ["10.0.0.2", "node2:29500"]
    assert answer["python"] == "/opt/torch/bin/python3"
    assert "waivers" not in answer


@pytest.mark.parametrize(
    ("text", "line", "key", "said"),
    [
        ("job:\n  nodez: 4\n", 2, "job.nodez", "did you mean nodes?"),
        ("failon: warning\n", 1, "failon", "did you mean fail_on?"),
        ("xyzzy: 1\n", 1, "xyzzy", "known are"),
        ("job:\n  nodes: many\n", 2, "job.nodes", "whole number"),
        ("job:\n  nodes: '4'\n", 2, "job.nodes", "whole number"),
        ("job:\n  nodes: true\n", 2, "job.nodes", "whole number"),
        ("job:\n  nodes: 0\n", 2, "job.nodes", "from 1"),
        ("job:\n  nodes: 010\n", 2, "job.nodes", "'010'"),
        ("job: 4\n", 1, "job", "mapping"),
        ("expected:\n  rtt_ms: 1:30\n", 2, "expected.rtt_ms", "number"),
        ("expected:\n  rtt_ms: .nan\n", 2, "expected.rtt_ms", "number"),
        ("expected:\n  rtt_ms: -1\n", 2, "expected.rtt_ms", "above 0"),
        ("expected:\n  busbw_floor:\n    64M: 10\n    lots: 3\n", 4, "expected.busbw_floor.lots", "size"),
        ("expected:\n  busbw_floor: 12\n", 2, "expected.busbw_floor", "64M"),
        ("expected:\n  transport: IBB\n", 2, "expected.transport", "did you mean IB?"),
        ("expected:\n  transport: fast\n", 2, "expected.transport", "one of IB, RoCE"),
        ("expected:\n  peers: 10.0.0.2\n", 2, "expected.peers", "list"),
        ("expected:\n  peers:\n    - a\n    - 7\n", 4, "expected.peers[1]", "text"),
        ("fail_on: critcal\n", 1, "fail_on", "did you mean critical?"),
        ("profile: gates\n", 1, "profile", "did you mean gate?"),
        ("lock: maybe\n", 1, "lock", "true or false"),
        ("profile: gate\n\nprofile: audit\n", 3, "profile", "first in line 1"),
        ("job:\n  nodes: 1\n  nodes: 2\n", 3, "job.nodes", "given twice"),
        ("a: &x [1]\njob: *x\n", 2, "*x", "aliases"),
        ("a: !!python/object:os.system [x]\n", 1, "", "tag"),
        ("profile: gate\n---\nprofile: audit\n", 2, "", "second document"),
        ("profile: [gate\n", 2, "", "expected"),
        ("profile: gate\n\tjob: x\n", 2, "", "character"),
        ("- a\n- b\n", 1, "", "mapping"),
        ("? [a, b]\n: 1\n", 1, "", "word"),
        ("waivers:\n  - check: a.b\n    until: 2026-12-31\n", 2, "waivers[0]", "needs reason"),
        ("waivers:\n  - check: a.b\n    reason: r\n    until: soon\n", 4, "waivers[0].until", "date"),
        ("waivers:\n  - check: a.b\n    reason: r\n    untill: 2026-12-31\n", 4, "waivers[0].untill", "did you mean until?"),
        ("waivers: {check: a.b}\n", 1, "waivers", "list"),
        ("python: 3\n", 1, "python", "text"),
        ('user: "a\\nb"\n', 1, "user", "text"),
        ("[" * 40 + "]" * 40, 1, "", "nested"),
    ],
)
def test_an_error_names_file_line_and_key(tmp_path: Path, text: str, line: int, key: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    error = caught.value
    assert (error.source, error.line, error.key) == (str(tmp_path / "config.yaml"), line, key)
    assert said in error.message
    assert str(error).startswith(f"{tmp_path}/config.yaml:{line}: ")


# What somebody who never saw the documents needs beside the place: the unit, the section, what a parser's word means.
TOLD = [
    ("expected: {hca_rate_gbps: 400 Gbps}\n", "not '400 Gbps' (rate of every port of the job's RDMA devices, Gbit/s)"),
    ("expected: {busbw_floor: {64M: 10 GB/s}}\n", "GB/s by size, {64M: 300})"),
    ("gpus: 8\n", "gpus: unknown key here: it belongs under expected:"),
    ("nodes: 8\n", "nodes: unknown key here: it belongs under job:"),
    ("job: {gpus: 8}\n", "job.gpus: unknown key here: it belongs under expected:"),
    ("expected: {fail_on: warning}\n", "expected.fail_on: unknown key here: it belongs at the top"),
    ("profile: gate\n\tjob: {nodes: 1}\n", "; YAML indents with blanks, never with a TAB"),
]


@pytest.mark.parametrize(("text", "said"), TOLD)
def test_an_error_says_what_is_wanted(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        read(tmp_path, text)


def test_a_link_to_nothing_is_told_with_where_it_leads(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").symlink_to("/where/it/was.yaml")
    with pytest.raises(ConfigError, match=r"No such file or directory: it is a link to /where/it/was\.yaml$"):
        load(str(tmp_path / "job.yaml"), environ={}, site=str(tmp_path / "none"), euid=1000)


def test_alias_bomb_is_refused_before_it_is_built(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)]
    with pytest.raises(ConfigError, match=r"config\.yaml:2: .*aliases"):
        read(tmp_path, "\n".join(rows))


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"profile: \xff\n", "not UTF-8"), (b"a: \x00\n", "special characters"), (b"#" * (1 << 21), "larger than")],
)
def test_bytes_that_are_no_configuration(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=said):
        load(str(path), environ={}, site="/nonexistent/x")


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(far, "LIMIT", 0.2)
    os.mkfifo(tmp_path / "c.yaml")
    with pytest.raises(ConfigError, match=r"nobody writes|nothing came"):
        load(str(tmp_path / "c.yaml"), environ={}, site="/nonexistent/x")


def test_a_named_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(str(tmp_path / "gone.yaml"), environ={}, site="/nonexistent/x")
    with pytest.raises(ConfigError, match="No such file"):
        load(environ={"NETDOCTOR_CONFIG": str(tmp_path / "gone.yaml")}, site="/nonexistent/x")


def test_an_unreadable_site_file_is_an_error_it_might_be_locked(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(environ={}, site=str(tmp_path))


def test_command_line_wins_over_environment_over_file(tmp_path: Path) -> None:
    site = write(tmp_path, "profile: strict\nfail_on: info\njob: {nodes: 9, communicators: 2}\n")
    got = load(
        environ={"NETDOCTOR_PROFILE": "audit", "NETDOCTOR_FAIL_ON": "warning", "NETDOCTOR_JOB_NODES": "7"},
        overrides={"fail_on": "critical", "job.nodes": 5, "python": None},
        site=site,
    )
    assert (got.profile, got.fail_on, got.job.nodes, got.job.communicators) == ("audit", "critical", 5, 2)


def test_a_named_file_replaces_the_sites(tmp_path: Path) -> None:
    site = write(tmp_path, "job: {nodes: 9}\n", "site.yaml")
    other = write(tmp_path, "fail_on: info\n", "mine.yaml")
    got = load(other, environ={}, site=site)
    assert (got.job.nodes, got.fail_on) == (None, "info")


def test_every_key_has_a_variable(tmp_path: Path) -> None:
    values = {
        "int": "3",
        "float": "2.5",
        "bool": "true",
        "texts": "a, b",
        "floor": "64M=10, 1G=40",
        "numbers": "eth0=9000, eth1=1500",
        "yaml": "[{check: a.b, reason: r, until: 2026-12-31}]",
    }
    special = {
        "profile": "gate",
        "fail_on": "info",
        "vantage": "pod",
        "via": "nccl",
        "expected.transport": "IB",
        "job.paths": "/a",
    }
    for key, row in KEYS.items():
        text = special.get(key) or values.get(row.kind, "word")
        got = load(environ={variable(key): text}, site=str(tmp_path / "none"), euid=1000)
        section, _, name = key.rpartition(".")
        value = getattr(getattr(got, section) if section else got, name)
        assert value not in (None, (), False), key
    assert variable("fail_on") == "NETDOCTOR_FAIL_ON"
    assert variable("job.nodes") == "NETDOCTOR_JOB_NODES"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NETDOCTOR_JOB_NODES", "four", "NETDOCTOR_JOB_NODES: must be a whole number from 1, not 'four'"),
        ("NETDOCTOR_LOCK", "maybe", "NETDOCTOR_LOCK: must be true or false"),
        ("NETDOCTOR_EXPECTED_BUSBW_FLOOR", "64M:10", "NETDOCTOR_EXPECTED_BUSBW_FLOOR: 64M:10: must be a size"),
        ("NETDOCTOR_WAIVERS", "[{check: a.b}]", "waivers|needs reason and until"),
        ("NETDOCTOR_WAIVERS", "[{", "NETDOCTOR_WAIVERS: "),
        ("NETDOCTOR_BUDGET_S", "inf", "number above 0"),
    ],
)
def test_a_bad_variable_names_itself(name: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said.replace("(", r"\(")):
        load(environ={name: value}, site="/nonexistent/x")


def test_variables_that_are_not_options_are_no_errors() -> None:
    got = load(
        environ={"NETDOCTOR_SERVICE_HOST": "10.0.0.1", "NETDOCTOR_FAILON": "info", "NETDOCTOR_PROFILE": ""},
        site="/nonexistent/x",
    )
    assert (got.profile, got.fail_on) == ("default", "critical")


def test_a_bad_option_names_itself() -> None:
    with pytest.raises(ConfigError, match=r"--job-nodes: must be a whole number"):
        load(environ={}, overrides={"job.nodes": "x"}, site="/nonexistent/x")
    with pytest.raises(ConfigError, match=r"did you mean job.nodes"):
        load(environ={}, overrides={"job.node": 1}, site="/nonexistent/x")


@pytest.mark.parametrize(
    ("environ", "overrides", "euid", "kept"),
    [
        ({}, {}, 1000, "/x"),
        ({}, {}, 0, None),
        ({"NETDOCTOR_PROFILE": "gate"}, {}, 1000, None),
        ({}, {"profile": "prolog"}, 1000, None),
    ],
)
def test_checks_from_the_environment_not_as_root_nor_in_a_gate(
    environ: dict[str, str], overrides: dict[str, str], euid: int, kept: str | None
) -> None:
    got = load(environ={"NETDOCTOR_CHECKS_DIR": "/x", **environ}, overrides=overrides, site="/nonexistent/x", euid=euid)
    assert got.checks_dir == kept
    assert bool(got.notes) == (kept is None)


@pytest.mark.parametrize(
    ("text", "bytes_"), [("64M", 64 << 20), ("64MiB", 64 << 20), ("1g", 1 << 30), ("4k", 4096), (512, 512)]
)
def test_sizes(text: object, bytes_: int) -> None:
    assert size(text) == bytes_


@pytest.mark.slow
def test_yaml_is_not_imported_without_a_file() -> None:
    code = "import sys, netdoctor.config.load as c; c.load(environ={}, site='/nonexistent/x'); sys.exit('yaml' in sys.modules)"
    assert run([sys.executable, "-c", code], check=False).returncode == 0

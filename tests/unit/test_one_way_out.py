"""Every command that judges obeys one policy and one configuration, and leaves through the same formats."""

from __future__ import annotations

import html
import json
import pathlib
import re
import xml.etree.ElementTree as Xml
from collections.abc import Mapping

import pytest
from typer.testing import CliRunner

from netdoctor.cli import main
from netdoctor.config import load
from netdoctor.report import formats, plots
from netdoctor.report.values import WRONG, rows
from tests.lab import fixtures
from tests.support.clusters import fleets
from tests.support.facts import judged
from tests.support.facts.reports import EVERY

pytestmark = pytest.mark.slow

BAD_LOG = "node01:100:130 [0] misc/socket.cc:1 NCCL WARN Call to bind failed: Address already in use\n"
SHAPE = {
    "fingerprint",
    "check",
    "status",
    "severity",
    "cause",
    "subject",
    "message",
    "expected",
    "evidence",
    "how",
    "why",
    "notes",
    "fix",
    "cure",
    "waived",
    "blocking",
}


def called(*arguments: str, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    done = CliRunner().invoke(main.app, list(arguments), env=dict(env or {}), catch_exceptions=False)
    return done.exit_code, done.stdout


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of a page's time; test_render_html.py and test_fleet_report.py have them."""
    monkeypatch.setattr(plots, "why_not", lambda: "none here")


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> dict[str, tuple[str, ...]]:
    """A command line for every command and verdict."""
    (tmp_path / "bad.log").write_text(BAD_LOG)
    (tmp_path / "good.log").write_text(
        "node01:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 nvmlDev 0 busId 1 commId 0x2 - Init COMPLETE\n"
        "step 1 loss 2\n"
        "node01:1:1 [0] NCCL INFO comm 0x1 rank 0 nranks 1 cudaDev 0 busId 1 - Destroy COMPLETE\n"
    )
    (tmp_path / "open.log").write_text("hello\n")
    (tmp_path / "bad.sh").write_text("export NCCL_IB_DISABLE=true\nexport NCCL_DEBUG=WARN\n")
    (tmp_path / "good.sh").write_text("export NCCL_DEBUG=WARN\n")
    (tmp_path / "open.sh").write_text("export NCCL_SOCKET_IFNAME=$(x)\n")
    for name in ("good", "bad", "open"):
        (tmp_path / name).mkdir()
        for number in range(3):
            doc = fleets.report(f"n{number}", number=number + 1)
            if name == "open" and number == 0:
                doc["verdict"]["status"] = "inconclusive"
            if name == "bad" and number == 0:
                fleets.own_fail(doc)
            (tmp_path / name / f"{number}.json").write_text(json.dumps(doc))
    return {
        **{f"log {name}": ("log", str(tmp_path / f"{name}.log")) for name in ("good", "bad", "open")},
        **{
            f"env {name}": ("env", "--nccl", "2.27.5", "--file", str(tmp_path / f"{name}.sh"))
            for name in ("good", "bad", "open")
        },
        **{f"fleet {name}": ("fleet", "report", "-q", str(tmp_path / name)) for name in ("good", "bad", "open")},
    }


CODES = {"good": 0, "bad": 3, "open": 4}
HEALTH = {0: "healthy", 3: "unhealthy", 4: "inconclusive"}


@pytest.mark.parametrize("verdict", CODES)
@pytest.mark.parametrize("command", ["log", "env", "fleet"])
def test_every_format_of_every_verdict(
    command: str, verdict: str, inputs: dict[str, tuple[str, ...]], tmp_path: pathlib.Path
) -> None:
    code = CODES[verdict]
    for format in formats.names():
        got, out = called(*inputs[f"{command} {verdict}"], "--format", format)
        assert got == code, (format, out)
        if format == "json":
            document = judged.validated(out, command)
            assert (document["verdict"]["exit_code"], document["verdict"]["status"]) == (code, HEALTH[code])
            assert all(set(finding) - {"nodes"} == SHAPE for finding in judged.findings(document))
        elif format == "junit":
            bad = Xml.fromstring(out).findall(".//failure") + Xml.fromstring(out).findall(".//error")
            assert bool(bad) == (code != 0)
        elif format == "html":
            assert f'class="verdict {HEALTH[code]}"' in out
        else:
            assert HEALTH[code] in out.splitlines()[-1]
    file = tmp_path / "out.json"
    assert called(*inputs[f"{command} {verdict}"], "--brief", "-o", str(file))[0] == code
    assert judged.validated(file.read_text(), command)["verdict"]["exit_code"] == code
    styled = called(*inputs[f"{command} {verdict}"], "--exit-style", "nagios")[0]
    assert styled in {0: (0,), 3: (1, 2), 4: (3,)}[code]  # 1: nothing worse than a warning


@pytest.mark.parametrize("command", ["log", "env", "fleet"])
def test_marks_and_words_are_those_of_preflight(command: str, inputs: dict[str, tuple[str, ...]]) -> None:
    lines = called(*inputs[f"{command} bad"])[1].splitlines()
    assert any(line.startswith("FAIL     ") for line in lines)
    assert any(line.strip().startswith("why ") for line in lines)


def words(text: str, format: str) -> str:
    """What a person reads of it, whatever its layout."""
    if format == "junit":
        text = " ".join(Xml.fromstring(text).itertext())
    elif format == "html":
        text = html.unescape(re.sub("<[^>]*>", " ", text.partition("<main")[2]))
    return " ".join(text.replace(":", " ").split())


@pytest.mark.parametrize("format", ["text", "junit", "html"])
@pytest.mark.parametrize("name", EVERY)
def test_every_format_has_the_rows_of_a_finding_in_one_order(name: str, format: str) -> None:
    told = words(formats.render(EVERY[name], format), format)
    for check in EVERY[name].checks:
        for finding in check.findings:
            if finding.status in WRONG:
                parts = [words(part, "") for row in rows(finding) for part in (row.label, *row.parts)]
                assert re.search(".*?".join(map(re.escape, parts)), told), finding.message


@pytest.mark.parametrize("option", [("-f", "yaml"), ("-f", "prometheus"), ("--fail-on", "never"), ("--exit-style", "x")])
@pytest.mark.parametrize("command", ["log", "env", "fleet"])
def test_what_is_not_known_is_refused(command: str, option: tuple[str, str], inputs: dict[str, tuple[str, ...]]) -> None:
    got, out = called(*inputs[f"{command} good"], *option)
    if command == "fleet" and option[1] == "prometheus":
        assert got == 0
    else:
        assert (got, out) == (2, "")
        if "--exit-style" not in option:
            assert [called(*inputs[f"{command} good"], *option, "--exit-style", s)[0] for s in ("nagios", "npd")] == [3, 2]


WAIVED = """
waivers:
  - {check: nccl.environment, subject: NCCL_IB_DISABLE, reason: known, until: 2999-12-31}
  - {check: log.bootstrap_ports, reason: known, until: 2999-12-31}
  - {check: fleet.nodes, subject: n0, reason: it waits for its repair, until: 2999-12-31}
"""


def test_one_waiver_holds_in_every_command(inputs: dict[str, tuple[str, ...]], tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.yaml"
    wrong = {"NCCL_IB_DISABLE": "true", "NCCL_DEBUG": "WARN"}
    look = ("preflight", "--no-allreduce", "-q", "--only", "nccl.environment", "--vantage", "job", "--fail-on", "warning")
    commands = [look, *(inputs[f"{command} bad"] for command in ("log", "env", "fleet"))]
    assert [called(*arguments, env=wrong)[0] for arguments in commands] == [3] * 4
    config.write_text(WAIVED)
    for arguments in commands:
        done = CliRunner().invoke(main.app, [*arguments, "--config", str(config)], env=wrong)
        assert done.exit_code == 0 and "WAIVED" in done.stdout and "1 waived" in done.stdout, done.output
        assert "which is no check" not in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        {"NCCL_SOCKET_IFNAME": "nosuch0"},
        {"NCCL_SOCKET_IFNAME": "lo", "NETDOCTOR_JOB_NODES": "8"},
        {"GLOO_SOCKET_IFNAME": "lo", "SLURM_JOB_ID": "7", "SLURM_NNODES": "8"},
        {"NCCL_IB_DISABLE": "1", "NETDOCTOR_JOB_NODES": "1"},
    ],
    ids=str,
)
def test_env_and_preflight_judge_variables_alike(given: dict[str, str], tmp_path: pathlib.Path) -> None:
    said = []
    for command in (("preflight", "--no-allreduce", "-q", "--only", "nccl.environment", "--vantage", "job"), ("env",)):
        file = tmp_path / command[0]
        called(*command, "-f", "json", "-o", str(file), env=given)
        found = [f for check in json.loads(file.read_text())["checks"] for f in check["findings"] if f["status"] != "pass"]
        said.append([(f["subject"], f["status"], f["severity"], f["message"], f["fingerprint"]) for f in found])
    assert said[0] == said[1]
    assert bool(said[0]) == (given.get("NETDOCTOR_JOB_NODES") != "1")


@pytest.mark.parametrize("command", ["preflight", "log good", "env good", "fleet good", "ras"])
def test_a_name_that_no_command_has_is_told(command: str, inputs: dict[str, tuple[str, ...]], tmp_path: pathlib.Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("disabled: [log.bootstrap_portz, fleet.drifts, log.mtu, fleet.drift, rdma.gpudirect]\n")
    inputs["preflight"] = ("preflight", "--no-allreduce", "-q", "--only", "net.tcp_buffers")
    inputs["ras"] = ("ras", "localhost:1")
    told = CliRunner().invoke(main.app, [*inputs[command], "--config", str(config)]).stderr
    unknown = [line.split("'")[1] for line in told.splitlines() if "which is no check" in line]
    assert unknown == ["log.bootstrap_portz", "fleet.drifts"]


@pytest.mark.parametrize(("fail_on", "code"), [("critical", 0), ("warning", 3)])
@pytest.mark.parametrize("command", ["log", "env", "fleet"])
def test_the_environment_says_what_fails(
    command: str, fail_on: str, code: int, inputs: dict[str, tuple[str, ...]], tmp_path: pathlib.Path
) -> None:
    """A warning in each; env and fleet call it unhealthy where nothing is said, log does not."""
    if command == "env":
        (tmp_path / "bad.sh").write_text("export NCCL_IB_TIMEOUT=022\n")
    elif command == "log":
        (tmp_path / "bad.log").write_text(
            "a:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n"
            "a:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
            "a:1:1 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
        )
    else:
        for number in range(4):
            doc = fleets.report(f"n{number}", number=number + 1)
            if number == 0:
                doc["inventory"]["driver"] = "570.86.10"
            (tmp_path / "bad" / f"{number}.json").write_text(json.dumps(doc))
    arguments = inputs[f"{command} bad"]
    assert called(*arguments, env={"NETDOCTOR_FAIL_ON": fail_on})[0] == code
    assert called(*arguments)[0] == (0 if command == "log" else 3)


@pytest.mark.parametrize("command", ["log", "env", "fleet"])
def test_a_locked_site_is_obeyed(
    command: str, inputs: dict[str, tuple[str, ...]], tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody waives or loosens what the site locked, and --config does not replace it."""
    site, own = tmp_path / "site.yaml", tmp_path / "own.yaml"
    site.write_text("lock: true\n")
    own.write_text(WAIVED)
    whole = load.load
    monkeypatch.setattr(load, "load", lambda path=None, **more: whole(path, site=str(site), **more))
    code, out = called(*inputs[f"{command} bad"], "--config", str(own))
    assert code == 3 and "WAIVED" not in out
    site.write_text("lock: true\n" + WAIVED)
    assert called(*inputs[f"{command} bad"])[0] == 0
    (tmp_path / "bad.sh").write_text("export NCCL_IB_TIMEOUT=022\n")
    if command == "env":  # the command's own threshold is what a locked site has that does not say another
        assert called(*inputs["env bad"], "--fail-on", "critical")[0] == 3


WRONG_SUMS = {"verified": False, "ranks.1.wrong": 3}
WAIVER = {"check": "allreduce.run", "subject": None, "reason": "known", "until": "2999-12-31"}
TCP = "net.tcp_buffers"
TWO = "allreduce.run,rdma.dev_infiniband"
NO_GPU = {"host": "cpu-node"}
# What is changed in the snapshot of a healthy node, the site's file, variables, options: the exit code.
DIAGNOSED: Mapping[str, tuple[dict[str, object], str, dict[str, str], tuple[str, ...], int]] = {
    "as it is": ({}, "", {}, (), 0),
    "a rank is missing": ({"ranks.1": None}, "", {}, (), 4),
    "a rank is blamed": ({"blamed": [1]}, "", {}, (), 4),
    "a rank raised": ({"ranks.1.error": "boom"}, "", {}, (), 4),
    "a rank died": ({"ranks.1.exit": -9}, "", {}, (), 4),
    "a rank did not come so far": ({"ranks.1.phase": "timed"}, "", {}, (), 4),
    "something stood in its way": ({"obstacle": "time"}, "", {}, (), 4),
    "no figures": ({"busbw": {}, "latency": {}}, "", {}, (), 4),
    "a bandwidth of 0": ({"busbw": {"4096": 0.0}}, "", {}, (), 4),
    "an answer that is one and is none": ({"answer": {"unavailable": "denied"}}, "", {}, ("--profile", "strict"), 4),
    "its sums are right and wrong": ({"ranks.1.wrong": 3}, "", {}, (), 4),
    "its sums are wrong": (WRONG_SUMS, "", {}, (), 3),
    "a check of that site": ({"ran": [TCP, "site.own"]}, "", {}, (), 4),
    "a check of that site, audited": ({"ran": [TCP, "site.own"]}, "", {}, ("--profile", "audit"), 0),
    "a check of that site that was not asked for": ({"ran": [TCP, "site.own"]}, "", {}, ("--only", TCP), 0),
    "a plugin that was broken there": ({"ran": [TCP, "plugin.broken"]}, "", {}, (), 4),
    "a plugin that was broken there, another check asked for": (
        {"ran": [TCP, "plugin.broken"]},
        "",
        {},
        ("--only", TCP),
        4,
    ),
    "several nodes, which cannot be read": ({"Cluster": {"unavailable": "malformed"}}, "", {}, (), 4),
    "several nodes, which were not asked": ({"Cluster": {"unavailable": "not read", "detail": "one alone"}}, "", {}, (), 0),
    "a threshold of that site": ({"fail_on": "warning", "env": "022"}, "", {}, (), 3),
    "no threshold": ({"env": "022"}, "", {}, (), 0),
    "the environment's threshold": ({"env": "022"}, "", {"NETDOCTOR_FAIL_ON": "warning"}, (), 3),
    "this site's threshold": ({"env": "022"}, "fail_on: warning", {}, (), 3),
    "this site's, and the command line's": ({"env": "022"}, "fail_on: warning", {}, ("--fail-on", "critical"), 0),
    "the environment's profile": ({"env": None}, "", {"NETDOCTOR_PROFILE": "strict"}, (), 4),
    "this site's profile": ({"env": None}, "profile: strict", {}, (), 4),
    "a profile of that site": ({"env": None, "profile": "strict"}, "", {}, (), 4),
    "waived there": ({**WRONG_SUMS, "waivers": [WAIVER]}, "", {}, (), 0),
    "waived there, locked here": ({**WRONG_SUMS, "waivers": [WAIVER]}, "lock: true", {}, (), 3),
    "disabled there": ({**WRONG_SUMS, "disabled": ["allreduce.run"]}, "", {}, (), 0),
    "disabled there, locked here": ({**WRONG_SUMS, "disabled": ["allreduce.run"]}, "lock: true", {}, (), 3),
    "not selected there": ({**WRONG_SUMS, "selected": [TCP]}, "", {}, (), 0),
    "not selected there, locked here": ({**WRONG_SUMS, "selected": [TCP]}, "lock: true", {}, (), 3),
    "lenient there, locked here": ({"env": None, "profile": "audit"}, "{lock: true, profile: strict}", {}, (), 4),
    "strict, and two are asked for": ({**NO_GPU, "profile": "strict"}, "", {}, ("--only", TWO), 0),
    "strict and locked, and two are asked for": ({**NO_GPU, "profile": "strict"}, "lock: true", {}, ("--only", TWO), 4),
    "locked, and two are asked for": (NO_GPU, "lock: true", {}, ("--only", TWO), 4),
    "locked, and lenient": ({**NO_GPU, "profile": "prolog"}, "lock: true\nprofile: prolog", {}, ("--only", TWO), 4),
    "two are asked for": (NO_GPU, "", {}, ("--only", TWO), 0),
    "a folder of checks": ({"checks_dir": "/nonexistent"}, "", {}, (), 0),
    "a policy of another shape": ({"waivers": ["x"]}, "", {}, (), 2),
}


def changed(changes: Mapping[str, object]) -> str:
    """The snapshot of a healthy node: changes of the run by path, of the policy, and of the whole."""
    whole = json.loads((fixtures.HOSTS / str(changes.get("host", "dgx-h100")) / "snapshot.json").read_text())
    for name, value in changes.items():
        if name == "host":
            continue
        if name == "Cluster":
            whole["runs"][name] = value
        elif name == "env":
            answers = whole["answers"]
            answers["env:"]["ok"]["NCCL_IB_TIMEOUT"] = value
            answers["env:"] = answers["env:"] if value else {"unavailable": "denied"}
        elif name == "answer":
            whole["answers"]["env:"] |= value
        elif name in ("ran", "selected"):
            whole[name] = value
        elif name in ("profile", "fail_on", "waivers", "disabled", "checks_dir"):
            whole["policy"][name] = value
        else:
            place, _, last = name.rpartition(".")
            at = whole["runs"]["Baseline"]["run"]
            for step in filter(None, place.split(".")):
                at = at[int(step) if isinstance(at, list) else step]
            if value is None:
                del at[int(last)]
            else:
                at[last] = value
    return json.dumps(whole)


def test_another_root_is_not_looked_at_where_the_site_is_locked(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site.yaml").write_text("lock: true")
    whole = load.load
    monkeypatch.setattr(load, "load", lambda path=None, **more: whole(path, site=str(tmp_path / "site.yaml"), **more))
    done = CliRunner().invoke(main.app, ["preflight", "--no-allreduce", "-q"], env={"NETDOCTOR_HOST_ROOT": str(tmp_path)})
    assert done.exit_code == 2 and "netdoctor: NETDOCTOR_HOST_ROOT: " in done.stderr and "locked" in done.stderr


@pytest.mark.parametrize("name", DIAGNOSED)
def test_diagnose(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changes, site, env, options, code = DIAGNOSED[name]
    (tmp_path / "site.yaml").write_text(site)
    (tmp_path / "snapshot.json").write_text(changed(changes))
    whole = load.load
    monkeypatch.setattr(load, "load", lambda path=None, **more: whole(path, site=str(tmp_path / "site.yaml"), **more))
    got, out = called("diagnose", str(tmp_path / "snapshot.json"), *options, env=env)
    assert got == code, out
    if "that site" in name and "ran" in changes and got == 4:
        assert "plugin.missing: site.own" in out.splitlines()[-1]


SUFFIXES = [suffix for row in formats.FORMATS.values() for suffix in row.suffixes]


@pytest.mark.parametrize(
    ("suffix", "verdict"), [*((one, "good") for one in SUFFIXES), *((SUFFIXES[0], one) for one in CODES if one != "good")]
)
def test_a_file_that_cannot_be_written_is_told_by_the_exit_code(
    suffix: str, verdict: str, inputs: dict[str, tuple[str, ...]], tmp_path: pathlib.Path
) -> None:
    """docs/report.md: 1, but that a fail is the greater news.  What is printed stays."""
    command = inputs[f"fleet {verdict}"]
    got, out = called(*command, "-o", str(tmp_path / "nowhere" / f"x{suffix}"))
    assert got == {0: 1, 3: 3, 4: 1}[CODES[verdict]]
    assert out == called(*command)[1]
    styled = called(*command, "-o", str(tmp_path / "nowhere" / f"x{suffix}"), "--exit-style", "nagios")[0]
    assert styled in ((1, 2) if CODES[verdict] == 3 else (3,))

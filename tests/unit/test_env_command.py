"""netdoctor env: formats, exit codes, explain; files are read and never run."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from netdoctor.cli import env, variable_page
from netdoctor.cli.options import Options
from netdoctor.facts.nccl_version import parse as parse_version
from netdoctor.model import Status
from netdoctor.report import formats
from netdoctor.variables import catalogue
from netdoctor.variables.issue import Known
from tests.support.facts import judged


def run(
    files: Sequence[str] = (), version: str | None = None, format: str | None = None, explain: str | None = None, **said: Any
) -> int:
    if explain is not None:
        return variable_page.run(explain, version)
    return env.run(Options(format=format, **said), files, version)


def wrote(folder: Path, text: str, name: str = "job.sh") -> str:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("true\n", 0),
        ("export NCCL_DEBUG=WARN\n", 0),
        ("export NCCL_ALGO=Ring\n", 0),
        ("export NCCL_IB_DISABLE=true\n", 3),
        ("export NCCL_SOCKET_IFNAME=$(x)\n", 4),
        ("source x\n", 4),
        ("source x\nexport NCCL_IB_DISABLE=true\n", 3),
        ("export UCX_NOT_KNOWN=1\n", 4),  # nothing else is set: nothing was judged
        ("export UCX_NOT_KNOWN=1\nexport NCCL_ALGO=Ring\n", 0),
        ("export NCCL_CHECK_POINTERS=1\n", 0),
    ],
)
@pytest.mark.parametrize("format", formats.names())
def test_exit_codes_are_the_same_in_every_format(
    script: str, code: int, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([wrote(tmp_path, script)], "2.27.5", format) == code
    out = capsys.readouterr().out
    if format == "json":
        data = judged.validated(out, "env")
        assert data["verdict"]["exit_code"] == code
        assert data["nccl_version"] == "2.27.5"
    elif format == "junit":
        (suite,) = ElementTree.fromstring(out)
        assert bool(suite.findall(".//failure") or suite.findall(".//error")) == (code != 0)
        assert suite.findall(".//failure") or "=true" not in script
        assert len(suite.findall("testcase")) == int(suite.get("tests", "-1"))
    elif format != "html":
        healthy = "nothing failed at" if "CHECK" in script and format == "text" else "healthy"
        assert out.splitlines()[-1].startswith({0: (healthy, "nothing failed"), 3: ("unhealthy",), 4: ("inconclusive",)}[code])


def test_fail_on_moves_the_border(tmp_path: Path) -> None:
    path = wrote(tmp_path, "export NCCL_CHECK_POINTERS=1\n")
    assert run([path], "2.27.5", fail_on="info") == 3
    assert run([path], "2.27.5", fail_on="critical") == 0


def test_findings_carry_line_rule_and_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wrote(tmp_path, "\nexport NCCL_IB_TIMOUT=22\nexport NCCL_IB_TIMEOUT=022\n")
    assert run([path], "2.27.5", "json") == 3
    found = judged.findings(json.loads(capsys.readouterr().out))
    fails = [f["evidence"] for f in found if f["status"] == "fail"]
    assert [(e["rule"], e["source"].rpartition(":")[2]) for e in fails] == [
        ("unknown-name", "2"),
        ("octal", "3"),
    ]
    assert found[0]["expected"] == "NCCL_IB_TIMEOUT"
    assert found[1]["evidence"]["row"].startswith("NCCL_IB_TIMEOUT · nccl · 2.3.5")


def test_several_files_and_stdin(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    conf = wrote(tmp_path, "NCCL_ALGO = Ring\nNCCL_PROTO=LL\nNCCL_PROTO=Simple\n", "nccl.conf")
    with open(wrote(tmp_path, "export NCCL_P2P_DISABLE=1\n", "given")) as stream:
        monkeypatch.setattr("sys.stdin", stream)
        assert run(["-", conf], "2.27.5") == 3
    out = capsys.readouterr().out
    assert "source: -:1" in out and f"{conf}:3" in out
    assert "says Simple, but" in out and "says LL and wins" in out


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("a.conf", "NCCL_DEBUG WARN\n", 3),
        ("a.conf", "\ufeffNCCL_DEBUG=WARN\n", 3),
        ("a.service", "[Service]\nEnvironment=NCCL_DEBUG=WARN\n", 0),
        ("a.service", "[Service]\nEnvironment=NCCL_IB_DISABLE=yes\n", 3),
        ("a.service", "[Service]\nEnvironmentFile=/etc/default/a\n", 4),
        ("a.env", "\ufeffNCCL_IB_DISABLE=yes\n", 3),
        ("a.env", "\ufeffNCCL_DEBUG=WARN\n", 0),
        ("a.env", 'NCCL_DEBUG="${LEVEL}"\n', 4),
        ("job.sh", "export NCCL_SOCKET_IFNAME=lo\n", 3),
        ("a.service", "[Service]\nEnvironment=NCCL_SOCKET_IFNAME=$IFACE\n", 3),
        ("a.service", "[Service]\nEnvironment=NCCL_IB_HCA = mlx5_0\n", 3),
        ("job.sh", "export MASTER_ADDR=localhost\nsrun python x\n", 3),
        ("job.sh", "export MASTER_ADDR=localhost\nsrun torchrun --rdzv-endpoint=n0:1 x\n", 0),
    ],
)
def test_files_of_several_kinds(name: str, text: str, code: int, tmp_path: Path) -> None:
    config = wrote(tmp_path, "job: {nodes: 8}\n", "netdoctor.yaml")
    assert run([wrote(tmp_path, text, name)], "2.27.5", config=config) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("#SBATCH --nodes=4\nexport NCCL_SOCKET_IFNAME=lo\nsrun a\n", 3),
        ("#SBATCH -N 4\nexport NCCL_SOCKET_IFNAME=lo\nsrun a\n", 3),
        ("#PBS -l select=4:ncpus=8\nexport NCCL_SOCKET_IFNAME=lo\nmpiexec a\n", 3),
        ("export NCCL_SOCKET_IFNAME=lo\ntorchrun --nnodes=2 a\n", 3),
        ("#SBATCH -N 4\nexport NCCL_SOCKET_IFNAME=lo\ntorchrun --nnodes=1 a\n", 0),
        ("#SBATCH -N 1\nexport NCCL_SOCKET_IFNAME=lo\nsrun a\n", 0),
        ("#SBATCH -N 4\nexport NCCL_COMM_ID=127.0.0.1:6000\nsrun a\n", 3),
        ("#SBATCH -N 4\nexport MASTER_ADDR=localhost\nsrun python a\n", 3),
        ("#SBATCH -N 4\nexport MASTER_ADDR=localhost\nexport MASTER_ADDR=n0\nsrun python a\n", 0),
        ("#SBATCH -N 4\nsrun torchrun --nnodes 4 --rdzv_endpoint=127.0.0.1:29500 a\n", 3),
        ("#SBATCH -N 4\nsrun torchrun --nnodes 4 --rdzv_endpoint=$HEAD:29500 a\n", 0),
        ("f() { export NCCL_P2P_DISABLE=1; }\nsrun a\n", 0),
        ("if [ $X = 1 ]; then\nexport NCCL_P2P_DISABLE=1\nfi\nsrun a\n", 4),
        ("if [ $X = 1 ]; then\nexport NCCL_P2P_DISABLE=true\nfi\nsrun a\n", 3),
        ("export NCCL_DEBUG=INFO\nexport NCCL_DEBUG=WARN\nsrun a\n", 0),
        ("export NCCL_DEBUG=WARN\nsudo torchrun a\n", 4),
    ],
)
def test_what_a_script_says_about_its_job(text: str, code: int, tmp_path: Path) -> None:
    assert run([wrote(tmp_path, text)], "2.27.5") == code


@pytest.mark.parametrize(
    ("text", "subject", "value"),
    [
        ("#SBATCH -N 4\nexport MASTER_ADDR=localhost; srun python a\n", "MASTER_ADDR", "localhost"),
        ("torchrun --nnodes 4 --rdzv_endpoint=localhost:1 a\n", "--rdzv_endpoint", "localhost:1"),
        ('torchrun --nnodes 4 --master-addr "127.0.0.1" a\n', "--master-addr", "127.0.0.1"),
    ],
)
def test_what_meets_at_the_loopback_is_named(text: str, subject: str, value: str) -> None:
    found = env.judge_file("job.sh", text, Known())
    assert [(one.subject, one.evidence["value"]) for one in found] == [(subject, value)]


def test_nothing_of_a_file_runs(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"touch {mark}\nexport NCCL_A=$(touch {mark})\n. {wrote(tmp_path, f'touch {mark}', 'x.sh')}\n"
    run([wrote(tmp_path, text)], "2.27.5")
    run([wrote(tmp_path, f"a: !!python/object/apply:os.system ['touch {mark}']\nNCCL_A: 1\n", "x.yaml")], "2.27.5")
    assert not mark.exists()


def test_control_characters_do_not_reach_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = wrote(tmp_path, "export NCCL_IB_HCA='\x1b]0;owned\x07 x'\nexport NCCL_DEBUG='\x1b[2JX'\n")
    for format in formats.names():
        run([path], "2.27.5", format)
        assert not set(capsys.readouterr().out) & {"\x1b", "\x07"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"version": "newest"},
        {"format": "xml"},
        {"files": ["/nonexistent/job.sh"]},
        {"files": ["/"]},
        {"explain": "NCCL_FOO"},
        {"fail_on": "never"},
    ],
)
def test_bad_usage_is_2(arguments: dict[str, object], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(**arguments) == 2  # type: ignore[arg-type]
    got = capsys.readouterr()
    assert got.out == "" and got.err.startswith("netdoctor: ")


def test_explain_every_row(capsys: pytest.CaptureFixture[str]) -> None:
    for name, row in catalogue.table().items():
        assert run(explain=name, version="2.21.5") == 0
        assert capsys.readouterr().out.startswith(row.name)


def test_explain(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(explain="nccl_ib_timeout", version="2.21.5") == 0
    out = capsys.readouterr().out
    for part in ("since      2.3.5", "in 2.21.5", "default 18", "14 from 2.3.5, 18 from 2.14.3, 20 from 2.23.4", "0 to 31"):
        assert part in out
    assert run(explain="NCCL_IB_TIMOUT") == 2
    assert "did you mean NCCL_IB_TIMEOUT?" in capsys.readouterr().err


def test_versions() -> None:
    parse = parse_version
    assert parse("2.27.5+cuda12.9") == parse("v2.27.5-1") == parse("22705") == (2, 27, 5)
    assert (parse("2.27"), parse("2804"), parse("x"), parse("")) == ((2, 27, 0), (2, 8, 4), None, None)
    assert (parse("2.28.3.rc1"), parse("2.27.x"), parse("2.27x"), parse("2.٣.5")) == ((2, 28, 3), None, None, None)


@pytest.mark.slow
def test_what_lies_beyond_what_is_read_is_not_known(tmp_path: Path) -> None:
    path = wrote(tmp_path, ("# " + "a comment" * 100 + "\n") * 5_000 + "export NCCL_IB_DISABLE=yes\n")
    assert run([path]) == 4


@pytest.mark.slow
def test_no_secret_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = wrote(tmp_path, "export NCCL_FOO_PASSWORD=hunter2\nexport NCCL_NET=https://u:hunter3@h/\n")
    monkeypatch.setenv("NCCL_FOO_TOKEN", "hunter4")
    for files in ([path], []):
        for format in formats.names():
            run(files, format=format)
    assert "hunter" not in capsys.readouterr().out


@pytest.mark.slow
def test_two_homes_leave_it_open_what_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_DISABLE=1\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [n for n in os.environ if n.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    assert run() == 4


def test_lines_that_end_in_cr_lf_are_mended_by_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "a job.sh"
    script.write_bytes(b"export NCCL_DEBUG=WARN\r\nsrun ./a\r\n")
    assert run([str(script)]) == 3
    assert f"sed -i 's/\\r$//' '{script}'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "text", "code"),
    [
        ("job.sh", "", 4),
        ("a.env", " \n\n", 4),
        ("job.sh", "#!/bin/bash\n#SBATCH -N 4\n", 4),
        ("README.md", "# Train\nRun `make`.\n", 4),
        ("job.sh", "#!/bin/bash\nsrun python train.py\n", 0),  # most scripts have no variable of these
        ("nccl.conf", "# NCCL_DEBUG=WARN\n", 0),  # as packages ship it
        ("pod.yaml", "apiVersion: v1\nkind: Pod\n", 0),
    ],
)
def test_a_file_in_which_nothing_was_judged_is_not_healthy(name: str, text: str, code: int, tmp_path: Path) -> None:
    assert run([wrote(tmp_path, text, name)]) == code


def test_what_every_version_refuses_is_wrong() -> None:
    (found,) = env.judge_file("job.sh", "export NCCL_IB_GID_INDEX=three\nsrun a\n", Known())
    assert found.status is Status.FAIL
    assert found.fix and "a number" in found.fix.summary
    assert [note.startswith("with NCCL 2.") for note in found.notes] == [True]
    (parted,) = env.judge_file("job.sh", "export NCCL_IB_GID_INDEX=off\nsrun a\n", Known())
    assert parted.status is Status.UNKNOWN


def test_a_place_is_named_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pod = wrote(tmp_path, "kind: Pod\nspec: {env: [\n", "p.yaml")
    assert run([pod]) == 4
    assert capsys.readouterr().out.count(f"{pod}:3") == 2  # before the words, and as evidence


def test_what_a_launcher_sets_has_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    """It is judged, and NCCL does not read it."""
    assert variable_page.run("master_addr") == 0
    said = capsys.readouterr().out
    assert said == "MASTER_ADDR\n  set or read by  torch\n  means           where node 0 is\n"
    assert variable_page.run("NCCL_IB_GIDINDEX") == 2 and "did you mean NCCL_IB_GID_INDEX?" in capsys.readouterr().err

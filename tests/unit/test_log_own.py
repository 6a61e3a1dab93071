"""netdoctor's own report in a job's output, in whatever form: `netdoctor log` takes nothing in it for the job's words."""

from __future__ import annotations

import functools
import json
import pathlib

import pytest

from netdoctor.facts.vantage import FROM_JOB
from netdoctor.model import Finding, Status
from netdoctor.nccl.log.own import OwnReports
from netdoctor.report.text import render
from tests.support.facts import judged, reports

ROOT = pathlib.Path(__file__).parents[2]

OTHERS = [
    "step 12 loss 2.25",
    "node01:1:1 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.1<4711> failed : Connection refused",
    '  File "train.py", line 12, in <module>',
    "    dist.all_reduce(tensor)",
    "RuntimeError: CUDA out of memory",
    "}  # of another program",
]
HOSTS = sorted(
    path.parent.name for name in ("fake-*", "this-machine") for path in (ROOT / "fixtures/hosts").glob(f"{name}/snapshot.json")
)


@functools.cache
def report(host: str, form: str) -> tuple[str, ...]:
    from typer.testing import CliRunner

    from netdoctor.cli import main

    done = CliRunner().invoke(main.app, ["diagnose", "-f", form, str(ROOT / "fixtures/hosts" / host / "snapshot.json")])
    assert done.exit_code in (0, 3, 4), done.output
    return tuple(done.stdout.splitlines())


def left(lines: list[str]) -> list[str]:
    """What is read of them, fed a few lines at a time."""
    own = OwnReports()
    out: list[bytes] = []
    for at in range(0, len(lines), 7):
        out += own.without("\n".join(lines[at : at + 7]).encode()).split(b"\n")
    assert len(out) == len(lines)  # numbers of lines stay
    return [line.decode() for line in out if line]


@pytest.mark.parametrize("label", ["", *(pytest.param(one, marks=pytest.mark.slow) for one in ("[rank0]: ", "0: "))])
@pytest.mark.parametrize("form", ["text", "json", "junit"])
@pytest.mark.parametrize("host", [HOSTS[0], *(pytest.param(one, marks=pytest.mark.slow) for one in HOSTS[1:])])
def test_nothing_of_a_report_is_read_and_all_others_say(host: str, form: str, label: str) -> None:
    own = [label + line for line in report(host, form)]
    blank = {label.strip(), f"{label}{{".strip(), f'{label}<?xml version="1.0" encoding="utf-8"?>'.strip()}
    # In JUnit commands stand as code does in others' tracebacks: they are read, and mean nothing.
    commands = {line for line in own if form == "junit" and line.startswith(f"{label}    ")}
    kept = [line for line in left(own) if line.strip() not in blank and line not in commands]
    assert kept == []
    middle = len(own) // 2
    mixed = [OTHERS[0], *own[:middle], *OTHERS[1:], *own[middle:], *OTHERS]
    assert [line for line in left(mixed) if line.strip() not in blank and line not in commands] == [
        OTHERS[0],
        *OTHERS[1:],
        *OTHERS,
    ]


def test_a_report_that_ends_early_hides_nothing_else() -> None:
    own = report(HOSTS[0], "json")[:40]
    assert left([*own, *OTHERS])[1:] == OTHERS


def test_json_of_others_is_read() -> None:
    others = json.dumps({"schema": "vllm.config/1", "error": "NCCL WARN Call to bind failed"}, indent=1).splitlines()
    assert left(others) == others


def test_the_reason_in_a_report_is_no_finding(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    from netdoctor.cli import log
    from netdoctor.cli.options import Options

    own = report("fake-hca-refuses-memory", "json")
    assert any("ibv_reg_mr failed" in line for line in own)
    (tmp_path / "job.out").write_text("\n".join(["epoch 1 of 3", *own]))
    assert log.run(Options(format="json"), [str(tmp_path / "job.out")]) == 4
    document = judged.validated(capsysbinary.readouterr().out.decode(), "log")
    assert [check["id"] for check in document["checks"]] == ["log.job"]


def test_what_several_checks_need_is_a_line_of_a_report() -> None:
    one = Finding(Status.UNKNOWN, "NCCL failed elsewhere", how=FROM_JOB)
    lines = render(reports.report(reports.check("net.reach", one), reports.check("net.port_range", one))).splitlines()
    assert any(line.startswith("UNKNOWN  2 checks need ") for line in lines)
    assert left(lines) == []

"""``netdoctor log``: what goes in, what comes out, exit codes, and that nothing hostile gets through."""

# ruff: noqa: E501  (log lines are as long as NCCL writes them)

from __future__ import annotations

import gzip
import json
import os
import pathlib
import sys
from typing import Any
from xml.etree import ElementTree

import pytest

from netdoctor.cli import log
from netdoctor.cli.options import Options
from netdoctor.nccl.log.parser import parse_text
from netdoctor.report import formats
from tests.support.facts import judged
from tests.support.facts.nccl_logs import STEPS
from tests.unit.test_log_parser import ERAS
from tests.unit.test_log_rules import BLOCKS, CAME_UP, FIRST, LOGS

BAD = "node01:100:130 [0] misc/socket.cc:1 NCCL WARN Call to bind failed: Address already in use\n"
A = "node01:100:100 [0] NCCL INFO "
DONE = "training finished\n"


def run(paths: list[str], format: str | None = None, **said: Any) -> int:
    return log.run(Options(format=format, **said), paths)


def shown(capsysbinary: pytest.CaptureFixture[bytes]) -> str:
    return capsysbinary.readouterr().out.decode()


@pytest.mark.parametrize(
    ("text", "code"), [(BAD, 3), (CAME_UP + DONE, 0), (CAME_UP, 4), ("hello\n", 4), ("", 4), (A + "Using network IB\n", 4)]
)
def test_exit_codes(text: str, code: int, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "x.log").write_text(text)
    assert run([str(tmp_path / "x.log")]) == code


@pytest.mark.parametrize(
    ("text", "code"),
    [
        pytest.param(STEPS, 4, id="steps, and no end"),
        pytest.param("INFO:     Application startup complete.\n" + STEPS, 4, id="a server"),
        pytest.param(STEPS + " 12%|##        | 12/100 [00:01<00:09]\n", 4, id="a bar that stands"),
        pytest.param(STEPS + DONE, 0, id="a good end"),
    ],
)
def test_a_file_that_nobody_writes_needs_an_end(
    text: str, code: int, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "x.log").write_text(text)
    with (tmp_path / "x.log").open("rb"):  # that somebody reads it says nothing
        assert run([str(tmp_path / "x.log")]) == code


def test_a_file_that_is_written_is_of_a_job_that_runs(
    tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "x.log").write_text(STEPS)
    with (tmp_path / "x.log").open("a"):
        assert run([str(tmp_path / "x.log")]) == 0
        os.utime(tmp_path / "x.log", (1.7e9, 1.7e9))  # it hangs: nothing has come for long
        assert run([str(tmp_path / "x.log")]) == 4


def test_a_warning_alone_does_not_fail_the_job(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    text = (
        BLOCKS["@MLX"]
        + BLOCKS["@TWO"]
        + f"{A}NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n{A}Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
        + BLOCKS["@DONE"]
    )
    (tmp_path / "x.log").write_text(text)
    assert run([str(tmp_path / "x.log")]) == 0
    assert run([str(tmp_path / "x.log")], fail_on="warning") == 3


@pytest.mark.parametrize("title", LOGS)
def test_json_has_its_schema_and_the_first_cause(
    title: str, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "x.log").write_text(LOGS[title])
    run([str(tmp_path / "x.log")], "json")
    document = judged.validated(shown(capsysbinary), "log")
    causes = [f["cause"] for f in document["findings"] if f["status"] == "fail"]
    assert causes[:1] == ([title.partition(":")[0]] if title in FIRST else [])


def test_json_of_every_line_keeps_its_schema(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "x.log").write_text("\n".join(row[0] for row in ERAS))
    run([str(tmp_path / "x.log")], "json")
    document = judged.validated(shown(capsysbinary), "log")
    assert {"nccl_version", "net", "gdrdma", "bootstrap_ifname"} <= set(document["facts"])


def test_a_key_that_is_missing_cannot_be_shown(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "x.log").write_text(BAD)
    run([str(tmp_path / "x.log")], "json")
    document = json.loads(shown(capsysbinary))
    assert "nccl_version" not in document["facts"]
    assert document["unseen"][0]["how"] == "NCCL_DEBUG=INFO"
    assert judged.findings(document)[0]["evidence"]["lines"] == [
        f"{tmp_path}/x.log:1: Call to bind failed: Address already in use"
    ]


def test_one_file_a_rank_in_a_directory_and_packed(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "rank0.log").write_text(BLOCKS["@TWO"].splitlines()[0] + "\n")
    (tmp_path / "rank1.log.gz").write_bytes(
        gzip.compress(BLOCKS["@TWO"].splitlines()[1].encode() + b"\n") + gzip.compress(BAD.encode())
    )
    (tmp_path / ".hidden").write_text(BAD)
    assert run([str(tmp_path)], "json") == 3
    document = json.loads(shown(capsysbinary))
    assert document["facts"]["hosts"] == ["node01", "node02"]
    assert [line.split("/")[-1].split(": ")[0] for line in judged.findings(document)[0]["evidence"]["lines"]] == [
        "rank1.log.gz:2"
    ]


def test_stdin(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "x.log.gz").write_bytes(gzip.compress(BAD.encode()))
    with open(tmp_path / "x.log.gz") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert run(["-"]) == 3
    assert "-:1: Call to bind failed" in shown(capsysbinary)


@pytest.mark.slow
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("piped", [False, True])
def test_the_last_line_of_a_long_log_fails_the_job(
    packed: bool,
    piped: bool,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    lines = [CAME_UP, *(f"iteration {n:8d} | loss {n / 7:.4f} | tokens per second {n * 13}" for n in range(60_000))]
    data = "\n".join([*lines, "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus."]).encode()
    last = data.count(b"\n") + 1
    content = gzip.compress(data) if packed else data
    path = tmp_path / "x.log"
    path.write_bytes(content)
    with open(path) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert run(["-" if piped else str(path)], "json") == 3
    (shown_line,) = judged.findings(json.loads(shown(capsysbinary)))[0]["evidence"]["lines"]
    assert shown_line.startswith(f"{'-' if piped else path}:{last}: NVRM: Xid")


@pytest.mark.parametrize("format", formats.names())
def test_nothing_hostile_reaches_a_terminal(
    format: str, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    evil = "\x1b]0;owned\x07\x9b31m\x00\u202e"
    text = f"no\x1b[2Jde:1:2 [0] NCCL INFO NCCL_DEBUG_FILE set by environment to {evil}\nnode01:1:2 [0] NCCL INFO Using network {evil}\nnode01:1:2 [0] a.cc:1 NCCL WARN Cuda failure '{evil} out of memory'\n"
    (tmp_path / "x\x1b[2J.log").write_text(text)
    run([str(tmp_path)], format)
    out = shown(capsysbinary)
    assert not [c for c in out if (ord(c) < 32 and c != "\n") or 0x7F <= ord(c) < 0xA0 or c == "\u202e"]


def test_junit_fails_where_the_exit_code_does(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "x.log").write_text(BAD)
    run([str(tmp_path / "x.log")], "junit")
    tree = ElementTree.fromstring(shown(capsysbinary))
    assert [case.get("name") for case in tree.iter("testcase") if case.find("failure") is not None] == ["bootstrap_ports"]


@pytest.mark.parametrize(
    "arguments",
    [{"paths": []}, {"paths": ["/nowhere/x"]}, {"paths": ["x"], "format": "yaml"}, {"paths": ["x"], "fail_on": "never"}],
)
def test_bad_usage(arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(**arguments) == 2
    assert capsys.readouterr().err.startswith("netdoctor: ")


@pytest.mark.slow
@pytest.mark.parametrize("coding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_log_that_powershell_wrote(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes], coding: str) -> None:
    mark = {"utf-16-le": b"\xff\xfe", "utf-16-be": b"\xfe\xff"}.get(coding, b"")
    (tmp_path / "a.log").write_bytes(mark + ("loading\r\n" * 120000 + BAD).encode(coding))
    assert run([str(tmp_path / "a.log")], "json") == 3
    assert judged.findings(json.loads(shown(capsysbinary)))[0]["evidence"]["lines"][0].endswith(
        "a.log:120001: Call to bind failed: Address already in use"
    )


def test_broken_gzip(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x.gz").write_bytes(b"\x1f\x8b\xff\xffgarbage")
    assert run([str(tmp_path / "x.gz")]) == 2
    assert "gzip" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "code"), [(BAD, 3), (CAME_UP, 4)])
def test_gzip_that_ends_early_is_no_pass(
    text: str, code: int, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "x.gz").write_bytes(gzip.compress(text.encode())[:-4])
    assert run([str(tmp_path / "x.gz")]) == code
    assert "x.gz ends early" in shown(capsysbinary)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list every folder")
def test_a_folder_that_may_not_be_listed_is_refused(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rank0.log").write_text(CAME_UP)
    (tmp_path / "sub").mkdir(mode=0o000)
    assert run([str(tmp_path)]) == 2
    assert "sub" in capsys.readouterr().err


def test_a_link_to_a_folder_is_followed(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    logs, elsewhere = tmp_path / "logs", tmp_path / "elsewhere"
    logs.mkdir(), elsewhere.mkdir()
    (logs / "rank0.log").write_text(CAME_UP)
    (elsewhere / "rank1.log").write_text(BAD)
    (logs / "sub").symlink_to(elsewhere)
    assert run([str(logs)]) == 3
    (logs / "back").symlink_to(logs)
    assert run([str(logs)]) == 3


def test_a_folder_is_read_once_whatever_links_lead_to_it(
    tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank0.log").write_text(CAME_UP + BAD)
    (tmp_path / "latest").symlink_to(".")
    (tmp_path / "zlast").symlink_to("run")
    assert run([str(tmp_path)], "json") == 3
    assert len(json.loads(shown(capsysbinary))["log"]["files"]) == 1


def test_what_may_not_be_listed_is_named_itself(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.log").write_text(BAD)
    (tmp_path / "closed").mkdir()
    whole = os.scandir

    def scandir(folder: Any) -> Any:
        if os.fspath(folder).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(folder))
        return whole(folder)

    monkeypatch.setattr(os, "scandir", scandir)
    assert run([str(tmp_path)]) == 2
    assert capsys.readouterr().err.endswith(f"netdoctor: {tmp_path}/closed: Permission denied\n")


def test_an_empty_name_names_no_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([""]) == 2
    assert "an empty name names no file" in capsys.readouterr().err


def test_the_first_that_failed_is_told_from_its_victims() -> None:
    from netdoctor.nccl.diagnosis import diagnose

    text = (
        "[2026-01-01 00:00:09] node02:9:9 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node01<4000>\n"
        "[2026-01-01 00:00:07] node01:5:5 [0] enqueue.cc:1 NCCL WARN Cuda failure 'an illegal memory access was encountered'\n"
        "[2026-01-01 00:00:08] node03:7:7 [0] transport/net_ib.cc:1 NCCL WARN NET/IB : Got completion from peer 10.0.0.1<1> with status=5 opcode=0 len=0 vendor err 249 (Recv)\n"
    )
    first = diagnose(parse_text(text))[0]
    assert (first.cause, first.evidence["host"], first.evidence["first_at"]) == ("rank_died", "node01", "2026-01-01 00:00:07")


def test_cost_mend_and_what_to_look_at_next(tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    (tmp_path / "x.log").write_text(BAD)
    run([str(tmp_path / "x.log")])
    out = shown(capsysbinary)
    for word in ("why       ", "mend      ", "next      netdoctor preflight --only net.port_range", "line      ", "x.log:1: "):
        assert word in out


_IB = BLOCKS["@MLX"] + BLOCKS["@TWO"] + BLOCKS["@DONE"] + DONE
_TCP = BLOCKS["@SOCKET"] + BLOCKS["@TWO"] + BLOCKS["@DONE"]


@pytest.mark.parametrize(
    ("wanted", "text", "code"),
    [
        pytest.param("IB", _IB, 0, id="as expected"),
        pytest.param("IB", _TCP, 3, id="TCP where IB is expected"),
        pytest.param("Socket", _IB, 3, id="IB where sockets are"),
        pytest.param("IB", CAME_UP + DONE, 0, id="nothing leaves one node"),
        pytest.param("IB", "node01:1:1 [0] NCCL WARN x\n", 4, id="not shown"),
    ],
)
def test_the_transport_that_is_expected(
    wanted: str, text: str, code: int, tmp_path: pathlib.Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    (tmp_path / "expected.yaml").write_text(f"expected: {{transport: {wanted}}}\n")
    (tmp_path / "x.log").write_text(text)
    assert run([str(tmp_path / "x.log")]) in (0, 4)  # without it nothing fails
    assert run([str(tmp_path / "x.log")], expect=str(tmp_path / "expected.yaml")) == code


def test_a_log_that_takes_long_says_how_far_it_is(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rank0.log").write_text(CAME_UP + DONE)
    assert run([str(tmp_path / "rank0.log")]) == 0
    assert "MB read" not in capsys.readouterr().err
    monkeypatch.setattr(log, "_SILENT", 0.0)
    assert run([str(tmp_path / "rank0.log")]) == 0
    assert "MB read, of " in capsys.readouterr().err

"""A terminal of 60 columns, and a locale that has no UTF-8."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import termios

import pytest

from netdoctor.model import Finding, Status
from netdoctor.report.text import render
from tests.support.clusters import fleets
from tests.support.facts.reports import check, report

ROOT = pathlib.Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii", "utf-8"])
def test_our_signs_in_a_locale_that_lacks_them(encoding: str) -> None:
    command = [sys.executable, "-m", "netdoctor", "diagnose", str(ROOT / "fixtures/hosts/azure-nd-h100-v5/snapshot.json")]
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env=environ, timeout=60)
    said = done.stdout.decode(encoding)
    assert done.returncode == 0 and "\\u" not in said and "\\x" not in said, done.stderr
    assert ("GPU2-mlx5_ib2" if encoding != "utf-8" else "GPU2–mlx5_ib2") in said


@pytest.mark.slow
def test_signs_of_others_are_escapes() -> None:
    code = "from netdoctor.process import streams; streams.plain_signs(); print('\\u4e2d \\u2026 \\xe9')"
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, env=environ, cwd=ROOT, timeout=60)
    assert done.stdout == b"\\u4e2d ... \\xe9\n"


def test_sixty_columns_hold_checks_of_one_reason() -> None:
    skips = [check(f"hardware.part{n}", Finding(Status.SKIP, "no NVIDIA GPU: PCI was read")) for n in range(8)]
    lines = render(report(*skips), width=60).splitlines()
    verdict = report(*skips).verdict.text
    assert [line for line in lines if len(line) > 60 and line != verdict] == []


def test_sixty_columns_hold_a_fleet(tmp_path: pathlib.Path) -> None:
    from netdoctor.cli import fleet
    from netdoctor.cli.options import Options
    from netdoctor.report import terminal

    for number in range(12):
        (tmp_path / f"{number}.json").write_text(json.dumps(fleets.report(f"n{number}", number=number + 1)))
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(terminal, "width", lambda *_: 60)
        patch.setattr(sys.stdout, "write", lambda text: written.append(text) or len(text))  # type: ignore[func-returns-value]
        fleet.run(Options(quiet=True), [str(tmp_path)], None, None)
    long = [line for line in "".join(written).splitlines() if len(line) > 60]
    assert written and all(line.startswith(("healthy", "unhealthy", "inconclusive")) for line in long), long


@pytest.mark.parametrize("id", ["net.port_range", "rdma.gpudirect", "hang", "job.command"])
def test_sixty_columns_hold_an_explanation(id: str) -> None:
    """But for commands, which are there to be copied, and words that are longer."""
    from netdoctor import plugins
    from netdoctor.cli import explain

    wide, narrow = (explain.explain(plugins.load(None, site=False), id, width) for width in (100, 60))
    commands = {line for line in wide.splitlines() if line.startswith("    ")}
    assert [x for x in narrow.splitlines() if len(x) > 60 and x not in commands and len(x.split()) > 1] == []
    assert narrow.split() == wide.split()


@pytest.mark.slow
@pytest.mark.parametrize("said", ["list", "config show", "explain gpu.health", "preflight --help"])
def test_sixty_columns_of_a_terminal(said: str) -> None:
    """Prose is wrapped; a command is there to be copied."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 60, 0, 0))
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    told = b""
    with subprocess.Popen(
        [sys.executable, "-m", "netdoctor", *said.split()], stdin=theirs, stdout=theirs, stderr=theirs, env=environ, cwd=ROOT
    ) as child:
        os.close(theirs)
        with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
            while part := os.read(ours, 65536):
                told += part
    os.close(ours)
    assert child.returncode == 0
    lines = told.decode().replace("\r", "").splitlines()
    copied = "    " if said.startswith("explain") else "$"
    assert len(lines) > 10 and not [line for line in lines if len(line) > 60 and not line.startswith(copied)], told.decode()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "html"])
@pytest.mark.parametrize("encoding", ["iso-8859-1", "cp1252", "ascii"])
def test_what_is_for_a_machine_is_utf_8_in_every_locale(form: str, encoding: str) -> None:
    """RFC 8259, 8.1; HTML and XML say so of themselves."""
    machine = ROOT / "fixtures/hosts/azure-nd-h100-v5/snapshot.json"
    environ = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    line = [sys.executable, "-m", "netdoctor", "diagnose", str(machine), "-f", form]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, check=False, env=environ, timeout=60)
    assert "GPU2–mlx5_ib2" in done.stdout.decode("utf-8"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "has"),
    [
        (("schema", "ras"), "…"),
        (("config", "show", "-f", "json"), "…/"),
        (("deploy", "kubernetes"), "…"),
        (("clean", "-"), "GPU2–mlx5_ib2"),
        (("diagnose", "-"), "GPU2–mlx5_ib2"),
    ],
)
@pytest.mark.parametrize("encoding", ["iso-8859-1", "ascii"])
def test_what_others_parse_is_utf_8_in_every_locale(
    words: tuple[str, ...], has: str, encoding: str, tmp_path: pathlib.Path
) -> None:
    """JSON and YAML that go into a file or a pipe, and what comes from one."""
    machine = (ROOT / "fixtures/hosts/azure-nd-h100-v5/snapshot.json").read_bytes()
    (tmp_path / "…").mkdir()
    environ = {
        **os.environ,
        "PYTHONIOENCODING": encoding,
        "PYTHONUTF8": "0",
        "NETDOCTOR_FORMAT": "json",
        "NETDOCTOR_JOB_PATHS": f"{tmp_path}/…/",
    }
    line = [sys.executable, "-m", "netdoctor", *words]
    given = "GPU2–mlx5_ib2\n".encode() if words[0] == "clean" else machine
    done = subprocess.run(line, cwd=ROOT, input=given, capture_output=True, check=False, env=environ, timeout=60)
    assert done.stdout.decode("utf-8").count(has), done.stderr

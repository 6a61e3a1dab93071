"""A command whose file the kernel will not start: told with its mend, and nothing is looked at."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from netdoctor.cli import command, main, preflight, run, startable

FILES = {  # mode, content (None: a folder), mend, what env(1) exits with
    "no x bit": (0o644, b"#!/bin/sh\n", "chmod +x ", 126),
    "a directory": (0o755, None, "name a program", 126),
    "an interpreter that is not there": (0o755, b"#!/nonexistent/python -u\nx\n", "install /nonexistent/python", 127),
    "CR LF": (0o755, b"#!/bin/sh\r\necho x\r\n", "sed -i", 127),
}


@pytest.fixture
def script(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    mode, content, *_ = FILES[request.param]
    path = tmp_path / "a b.sh"
    path.mkdir() if content is None else path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "mend", "code"), [(n, *row[2:]) for n, row in FILES.items()], indirect=["script"], ids=FILES
)
@pytest.mark.parametrize("before", [(), ("env", "A=b")], ids=["", "behind env"])
def test_what_the_kernel_refuses_is_refused_before_the_look(
    before: tuple[str, ...], script: pathlib.Path, mend: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert subprocess.run(["env", str(script)], check=False).returncode == code  # the kernel's own word
    monkeypatch.setattr(preflight, "before_the_job", lambda *_, **__: pytest.fail("it looked"))
    done = CliRunner().invoke(main.app, ["run", "--gate", "--", *before, str(script)])
    assert done.exit_code == code and f"will not start: {startable.obstacle(str(script)).why}" in done.output
    assert f"; nothing was looked at.  {mend}" in done.output


def test_no_rank_waits_for_one_that_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_LOCALID", "3")
    monkeypatch.setattr(run, "ask_doctor", lambda **_: pytest.fail("it waits"))
    assert CliRunner().invoke(main.app, ["run", "--", "/nonexistent"]).exit_code == 127


@pytest.mark.parametrize("script", ["CR LF", "no x bit"], indirect=True)
def test_the_mend_mends(script: pathlib.Path) -> None:
    before = startable.obstacle(str(script))
    assert before is not None
    subprocess.run(["/bin/sh", "-c", before.mend.partition(", or")[0]], check=True)
    assert startable.obstacle(str(script)) is None


def test_what_starts_has_no_obstacle(tmp_path: pathlib.Path) -> None:
    script = tmp_path / "ok.sh"
    script.write_text("#!/bin/sh -e\ntrue\n")
    script.chmod(0o755)
    for file in (str(script), sys.executable, "/bin/sh"):
        assert startable.obstacle(file) is None


def test_of_several_on_the_path_one_that_starts_is_enough(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """execvp(3) goes on after EACCES."""
    for name, mode in (("first", 0o644), ("second", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job").write_text("#!/bin/sh\n")
        (tmp_path / name / "job").chmod(mode)
    monkeypatch.setenv("PATH", os.pathsep.join(str(tmp_path / name) for name in ("first", "second")))
    assert command.seen_through(["job"]).obstacle is None
    monkeypatch.setenv("PATH", str(tmp_path / "first"))
    assert command.seen_through(["job"]).obstacle is not None

"""A command whose file the kernel will not start: told before the look, as a fail with its own mend."""

from __future__ import annotations

import os
import pathlib
import shlex
import subprocess
import sys

import pytest

from netdoctor.cli import command, startable

FILES = {  # mode, content; None: a folder
    "no x bit": (0o644, b"#!/bin/sh\n", "chmod +x "),
    "a directory": (0o755, None, "name a program"),
    "an interpreter that is not there": (0o755, b"#!/nonexistent/python -u\nx\n", "install /nonexistent/python"),
    "CR LF": (0o755, b"#!/bin/sh\r\necho x\r\n", "sed -i"),
}


@pytest.fixture
def script(tmp_path: pathlib.Path, request: pytest.FixtureRequest) -> pathlib.Path:
    mode, content, _ = FILES[request.param]
    path = tmp_path / "a b.sh"
    path.mkdir() if content is None else path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(("script", "mend"), [(name, row[2]) for name, row in FILES.items()], indirect=["script"], ids=FILES)
def test_what_the_kernel_refuses_is_a_fail_with_its_mend(script: pathlib.Path, mend: str) -> None:
    with pytest.raises((PermissionError, FileNotFoundError)):  # the kernel's own word
        subprocess.run([str(script)], check=False)
    job = command.seen_through([str(script)])
    found = command.result(job, None)
    assert not job.absent and found.status == "fail" and len(found.findings) == 1
    assert (found.findings[0].how or "").startswith(mend)


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


@pytest.mark.parametrize("script", ["no x bit"], indirect=True)
def test_it_is_said_before_the_look(script: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from netdoctor.cli import main, preflight

    monkeypatch.setattr(preflight, "before_the_job", lambda *_, **__: 3)
    done = CliRunner().invoke(main.app, ["run", "--gate", "--", *shlex.split(shlex.quote(str(script)))])
    assert done.exit_code == 3 and "will not start: it may not be executed (mode 0644)" in done.output

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
PROGRAM = pathlib.Path(sys.executable).read_bytes()
# What execve(2) refuses by its form; a shell, env(1) and execvp(3) of the C library hand it to /bin/sh.
FORMS = {
    "no first line": b"echo 1\n",
    "empty": b"",
    "no segments": PROGRAM[:100],
    "no header": PROGRAM[:30],
    "a foreign order": b"\x7fELF\x02\x02" + bytes(26) + b"\0\0\0\0\1" + bytes(40),
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


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_what_the_kernel_cannot_read_is_refused_before_the_look(
    form: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job"
    job.write_bytes(FORMS[form])
    job.chmod(0o755)
    with pytest.raises(OSError, match="Exec format error"):  # the kernel's own word
        os.posix_spawn(job, [str(job)], {})
    monkeypatch.setattr(preflight, "before_the_job", lambda *_, **__: pytest.fail("it looked"))
    done = CliRunner().invoke(main.app, ["run", "--", str(job)])
    assert done.exit_code == 126 and "nothing was looked at." in done.output
    assert ("#!/bin/bash" if FORMS[form][:4] != b"\x7fELF" else "install it again") in done.output
    assert startable.obstacle(str(job)) is None  # behind env(1)


@pytest.mark.parametrize(
    ("rules", "refused"), [({"status": ""}, True), ({"status": "", "x": "extension .py"}, False), ({}, False)]
)
def test_a_name_that_may_be_registered(
    rules: dict[str, str], refused: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in rules.items():
        (tmp_path / name).write_text(f"enabled\n{text}\n")
    monkeypatch.setattr(startable, "_REGISTERED", str(tmp_path))
    job = tmp_path / "train.py"
    job.write_text("import torch\n")
    job.chmod(0o755)
    assert (startable.obstacle(str(job), direct=True) is not None) is refused


def test_an_empty_word_is_no_folder() -> None:
    done = CliRunner().invoke(main.app, ["run", "--", ""])
    assert done.exit_code == 127 and "'' will not start: it is empty" in done.output


def test_a_command_out_of_reach_is_there_perhaps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", refuse)
        patched.setattr(os, "access", lambda *_, **__: False)
        found = startable.obstacle("/locked/job")
    assert found is not None and (found.why, found.code) == ("Permission denied", 126)

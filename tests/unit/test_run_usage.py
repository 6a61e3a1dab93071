"""What is refused before anything is looked at, and with which exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from netdoctor.cli import main, preflight, run


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--gaet", "--", "true"], "no such option: --gaet"), (["--", "--gate"], "no such option: --gate"), (["--gate"], "CMD")],
)
def test_a_misspelt_option_is_bad_usage_and_no_job(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "before_the_job", lambda *_, **__: pytest.fail("it looked"))
    done = CliRunner().invoke(main.app, ["run", *arguments])
    assert done.exit_code == 2 and says in done.output


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("torchrun train.py", "torchrun"),
        ("/v/bin/python train.py", "/v/bin/python"),
        ("env NCCL_DEBUG=INFO A=b python train.py", "python"),
        ("/usr/bin/nice -n 5 stdbuf -oL -e 0 python train.py", "python"),
        ("nice -5 python train.py", "python"),
        ("numactl --cpunodebind=0 -m 0 -- python train.py", "python"),
        ("taskset -c 0-3 python train.py", "python"),
        ("taskset 0xff python train.py", "python"),
        ("env -i python train.py", "env"),
        ("env --unset=PATH python train.py", "env"),
        ("env PATH=/x python train.py", "env"),
        ("nice --adjustment 5 python train.py", "nice"),
        ("taskset -p 1 2", "taskset"),
        ("nice", "nice"),
        ("srun python train.py", "srun"),
    ],
)
def test_the_program_behind_simple_wrappers(command: str, program: str) -> None:
    assert run.program(command.split()) == program


def test_a_relative_program_is_of_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert run.program(["bin/python", "x"]) == "/tmp/bin/python"


def test_the_command_is_told_to_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(preflight, "before_the_job", lambda _, program: told.append(program) or 2)
    assert CliRunner().invoke(main.app, ["run", "--", "nice", "/v/bin/torchrun", "train.py"]).exit_code == 2
    assert told == ["/v/bin/torchrun"]


@pytest.mark.parametrize(
    ("arguments", "variables", "code"),
    [
        (["log", "--exit-style", "nagios"], {}, 3),
        (["log", "--exit-style=nagios"], {}, 3),
        (["log", "--no-such"], {"NETDOCTOR_EXIT_STYLE": "nagios"}, 3),
        (["log", "--no-such", "--exit-style", "npd"], {"NETDOCTOR_EXIT_STYLE": "nagios"}, 2),
        (["log", "--no-such"], {}, 2),
        (["log", "--exit-style"], {}, 2),
        (["log", "/nonexistent", "--exit-style", "nagios"], {}, 3),
    ],
)
def test_a_mistake_on_the_command_line_is_no_critical(arguments: list[str], variables: dict[str, str], code: int) -> None:
    """Nagios plugin guidelines: invalid arguments are UNKNOWN, 3; 2 would be CRITICAL."""
    done = subprocess.run(
        [sys.executable, "-m", "netdoctor", *arguments], env={**os.environ, **variables}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (code, b"")

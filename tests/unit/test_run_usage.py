"""What is refused before anything is looked at, and with which exit code."""

from __future__ import annotations

import os
import pathlib
import resource
import shlex
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from netdoctor import policy
from netdoctor.causes.results import own_result
from netdoctor.cli import command, main, preflight, setup
from netdoctor.config.load import Config
from netdoctor.model import CheckResult, Finding, Health, Status
from netdoctor.process import mempolicy


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--gaet", "--", "true"], "no such option: --gaet"), (["--", "--gate"], "no such option: --gate"), (["--gate"], "CMD")],
)
def test_a_misspelt_option_is_bad_usage_and_no_job(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "before_the_job", lambda *_, **__: pytest.fail("it looked"))
    done = CliRunner().invoke(main.app, ["run", *arguments])
    assert done.exit_code == 2 and says in done.output


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["no-such-torchrun train.py", "env A=b /nonexistent/python train.py", "/nonexistent/numactl -l python"]
)
def test_a_command_that_is_not_there(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "before_the_job", lambda *_, **__: pytest.fail("it looked"))
    done = CliRunner().invoke(main.app, ["run", "--gate", "--", *command.split()])
    assert done.exit_code == 127 and "no such command" in done.output


def job(line: str) -> command.JobCommand:
    return command.seen_through(line.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("torchrun train.py", "torchrun"),
        ("/v/bin/python -u train.py", "/v/bin/python"),
        ("env NCCL_DEBUG=INFO A=b python train.py", "python"),
        ("env -i -u B PATH=/x python train.py", "python"),
        ("env --unset=B PATH=/x python train.py", "python"),
        ("nice -n 5 stdbuf -oL -e 0 python train.py", "python"),
        ("nice -5 python train.py", "python"),
        ("nice --adjustment 5 python train.py", "python"),
        ("nice --adjustment=5 nohup python train.py", "python"),
        ("taskset -c 0 python train.py", "python"),
        ("taskset 0x1 python train.py", "python"),
        ("timeout -k 5 1h python train.py", "python"),
        ("prlimit --core=0 python train.py", "python"),
    ],
)
def test_the_program_behind_wrappers(line: str, program: str) -> None:
    """Each wrapper is really started."""
    found = job(line)
    assert (found.program, found.doubt) == (program, "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "env -S python train.py",
        "taskset -p 1 2",
        "nice",
        "numactl --no-such-option=1 python train.py",
        "env --no-such-option python train.py",
        "taskset -c 4095 python train.py",
        "unshare -n python train.py",
        "python -I train.py",
        "python -u -m deepspeed.launcher.runner train.py",
        "accelerate launch train.py",
        "bash -c true",
        "srun python train.py",
    ],
)
def test_what_cannot_be_seen_through_is_required_by_gate(line: str) -> None:
    found = command.result(job(line), None)
    assert found.status == "unknown" and found.id == "job.command"
    _, verdict = policy.decide([found], "gate", must=[found.id], seen=policy.Seen(False, False, False))
    assert verdict.exit_code == 4 and found.id in verdict.text


@pytest.mark.parametrize(
    "line",
    [
        "python -Im train",
        "python -X dev -I train.py",
        "python -mdeepspeed train.py",
        "python -um deepspeed train.py",
        "python -W ignore -m accelerate.commands.launch train.py",
        "python3.12 --check-hash-based-pycs always -E train.py",
        "torchrun --no-python ./train",
        "python -m torch.distributed.run --no_python ./train",
    ],
)
def test_options_of_python_in_every_form(line: str) -> None:
    assert job(line).doubt and command.result(job(line), "/v/bin/python").status == "unknown"


@pytest.mark.parametrize("line", ["python -u -O train.py -I", "python -Wignore train.py", "python -m train -E", "python -"])
def test_options_of_the_script_are_its_own(line: str) -> None:
    assert not job(line).doubt


@pytest.mark.parametrize("profile", ["gate", "strict", "default", "audit"])
def test_a_gate_leaves_nothing_out(profile: str) -> None:
    """Whatever its profile requires to be known, what it starts is the whole job."""
    good = own_result("job.command", [Finding(Status.PASS, "x")])
    _, verdict = setup.decider(Config(profile=profile), ("job.command",), gate=True)((good,), {})
    assert verdict.exit_code == policy.INCONCLUSIVE


@pytest.mark.parametrize("profile", policy.PROFILE_ORDER)
@pytest.mark.parametrize(
    "results",
    [
        pytest.param((own_result("job.command", [Finding(Status.UNKNOWN, "x")]),), id="nothing told"),
        pytest.param((own_result("plugin.broken", [Finding(Status.ERROR, "x")]),), id="a plugin did not look"),
        pytest.param(
            (
                own_result("job.command", [Finding(Status.PASS, "x")]),
                CheckResult("hardware.accelerator", "", "", (Finding(Status.UNKNOWN, "x"),)),
            ),
            id="hardware not seen",
        ),
    ],
)
def test_a_gate_opens_on_no_doubt(profile: str, results: tuple[CheckResult, ...]) -> None:
    """audit and prolog exit 0 where they could not tell, so that nobody drains a node; what starts a job needs to know."""
    _, verdict = setup.decider(Config(profile=profile), gate=True)(results, {})
    assert (verdict.status, verdict.exit_code) == (Health.INCONCLUSIVE, policy.INCONCLUSIVE)
    assert profile in ("gate", "strict") or profile not in verdict.text  # not the profile asks for it


@pytest.mark.slow
def test_what_wrappers_set_is_applied_and_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GONE", "1")
    monkeypatch.setenv("NETDOCTOR_PROFILE", "strict")
    before, cpus = dict(os.environ), os.sched_getaffinity(0)
    one = min(cpus)
    line = f"env -u GONE A=b NETDOCTOR_PROFILE=audit taskset -c {one} prlimit --nofile=64 python train.py"
    with command.applied(job(line)) as inside:
        assert not inside.doubt and os.environ["A"] == "b" and "GONE" not in os.environ
        assert os.environ["NETDOCTOR_PROFILE"] == "strict"  # who is judged does not choose the judge
        assert os.sched_getaffinity(0) == {one}
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 64
    assert (dict(os.environ), os.sched_getaffinity(0)) == (before, cpus)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] != 64


@pytest.mark.slow
def test_a_memory_policy_is_seen_behind_a_wrapper(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """A wrapper that makes numactl's call: numactl itself is not on every machine."""
    wrapper = tmp_path / "numactl"
    becomes = "import sys\nset_memory_policy(2, [1])\nos.execvp(sys.argv[2], sys.argv[2:])\n"
    program = tmp_path / "program.py"
    program.write_text(pathlib.Path(mempolicy.__file__).read_text() + becomes)
    # No "#!" of it: the folder of the checkout may have a blank.
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(program))} "$@"\n')
    wrapper.chmod(0o755)
    before = mempolicy.memory_policy()
    with command.applied(command.seen_through([str(wrapper), "-l", "python"])) as inside:
        seen = mempolicy.memory_policy()
    if seen == before:
        pytest.skip("the kernel keeps no memory policy for this process")
    assert not inside.doubt and seen == (2, [1, *[0] * 63]) and mempolicy.memory_policy() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "line", "shadow"),
    [
        (["torch.py"], "python train.py", "torch.py"),
        (["torch/__init__.py"], "torchrun --nproc-per-node 2 train.py", "torch/__init__.py"),
        (["torch.py"], "python -m pack.train", "torch.py"),
        (["torch/data.txt"], "python train.py", ""),  # no package: an installed one comes before it
        (["sub/torch.py"], "python train.py", ""),
        (["torch.py"], "env PYTHONSAFEPATH=1 python train.py", ""),
        (["torch.py"], "python sub/train.py", ""),
        (["sub/nccl.py"], "python sub/train.py", "sub/nccl.py"),
        (["torch.py"], "python -umpack.train", "torch.py"),
        (["torch.py"], "python -W ignore -c pass", "torch.py"),
        (["torch.py"], "python -u bare", "torch.py"),
    ],
)
def test_modules_that_take_the_place_of_installed_ones(
    files: list[str], line: str, shadow: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("train.py", "bare", "sub/train.py", *files):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    found = command.result(job(line), "/v/bin/python").findings
    assert [os.path.relpath(f.subject, tmp_path.resolve()) for f in found if f.status == "fail"] == [shadow] * bool(shadow)


def test_what_lies_where_a_look_starts_counts(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.of_here() is None
    (tmp_path / "torch").mkdir()
    assert command.of_here() is None
    (tmp_path / "torch/__init__.py").touch()
    found = command.of_here()
    assert found is not None and [(f.status, f.severity, f.subject) for f in found.findings] == [
        ("fail", "warning", f"{tmp_path}/torch/__init__.py")
    ]
    assert "place of the torch" in found.findings[0].message


@pytest.mark.slow
def test_a_relative_program_is_of_the_working_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/tmp")
    assert job("bin/python x").program == "/tmp/bin/python"
    assert job("env -C / bin/python x").program == "/bin/python"


@pytest.mark.slow
def test_the_command_is_told_to_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(preflight, "before_the_job", lambda _, job, gate: told.append(f"{job.program} {gate}") or 2)
    assert CliRunner().invoke(main.app, ["run", "--gate", "--", "nice", "/bin/sh", "train.py"]).exit_code == 2
    assert told == ["/bin/sh True"]


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("command", "options", "says"),
    [
        ("preflight", ("--only", ""), "--only: it names no check"),
        ("preflight", ("--only", " ,"), "--only: it names no check"),
        ("allreduce", ("--nodes", "1", "--only", ""), "--only: it names no check"),
        ("preflight", ("--brief", "-o", "r.csv"), "r.csv"),
        ("preflight", ("-f", "json", "-o", "r.csv"), "r.csv"),
        ("preflight", ("--brief", "-f", "xml"), "not 'xml'"),
        ("env", ("--brief", "-f", "prometheus"), "not 'prometheus'"),
    ],
)
def test_what_names_nothing_or_nobody_knows_is_refused(
    command: str, options: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(setup, "judged", lambda *_, **__: pytest.fail("it looked"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main.app, [command, *options], catch_exceptions=False)
    assert done.exit_code == 2 and says in done.stderr
    assert not list(tmp_path.iterdir())

"""What is misspelt, or asked for twice in two ways: a line that says what was meant, before anything is looked at."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from netdoctor import plugins
from netdoctor.cli import main, options
from netdoctor.textsafe import nearest

MEANT = [
    (["preflight", "--format", "jsn"], "did you mean json?"),
    (["preflight", "-f", "JSON"], "did you mean json?"),
    (["preflight", "--exit-style", "nagos"], "did you mean nagios?"),
    (["preflight", "--profile", "prolgo"], "did you mean prolog?"),
    (["preflight", "--only", "net.tcp_bufer"], "did you mean net.tcp_buffers?"),
    (["preflght"], "Did you mean 'preflight'?"),
    (["config", "show", "-f", "jsn"], "did you mean json?"),
    (["schema", "rport"], "did you mean report?"),
    (["deploy", "slrum"], "did you mean slurm?"),
    (["expect", "--leave-out", "adresses"], "did you mean addresses?"),
    (["explain", "NCCL_IB_GID_INDX"], "netdoctor env --explain NCCL_IB_GID_INDEX"),
    (["preflight", "--only", "net.sock"], "did you mean net.socket_ifname?"),
    (["preflight", "--only", "rdma"], "did you mean rdma.dev_infiniband, rdma.gid, rdma.gpudirect?"),
    (["preflight", "--only", "RDMA.*"], "did you mean rdma.dev_infiniband, rdma.gid, rdma.gpudirect?"),
    (["explain", "rdma"], "did you mean rdma.dev_infiniband, rdma.gid, rdma.gpudirect?"),
    (["explain", "net.port_rnge"], "did you mean net.port_range?"),
    (["log", "-f", "htm", "x"], "did you mean html?"),
]
REFUSED = [
    (["--brief", "-o", "r.csv"], "this command writes no .csv; it writes"),
    (["-f", "json", "-o", "r.csv"], "this command writes no .csv; it writes"),
    (["--brief", "--format", "xml"], "must be one of text"),
    (["--brief", "--format", "json"], "--brief and --format json"),
    (["--only", ""], "--only: it names no check"),
    (["--only", " , "], "--only: it names no check"),
    (["--config", ""], "--config: it names no file"),
    (["--expect", ""], "--expect: it names no file"),
    (["-o", ""], "--output: it names no file"),
    (["--termination-log", ""], "--termination-log: it names no file"),
    (["--python", "/nowhere/python"], "/nowhere/python: no such file"),
    (["--python", "/etc"], "/etc: a folder"),
    (["--python", "python9"], "--python: python9: not on PATH"),
    (["--python", "/etc/passwd"], "--python: /etc/passwd: no interpreter: it may not be executed (mode 0644)"),
]


@pytest.mark.parametrize(("arguments", "says"), MEANT, ids=[" ".join(words) for words, _ in MEANT])
def test_the_nearest_name_is_told(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(main.app, arguments)
    assert done.exit_code == 2 and says in done.output


@pytest.mark.parametrize(("arguments", "says"), REFUSED, ids=[" ".join(words) for words, _ in REFUSED])
def test_what_cannot_be_is_refused(
    arguments: list[str], says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main.app, ["preflight", "--no-allreduce", *arguments])
    assert done.exit_code == 2 and says in " ".join(done.output.split()) and not list(tmp_path.iterdir())


@pytest.mark.slow
def test_the_command_line_counts_more_than_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETDOCTOR_BRIEF", "1")
    done = CliRunner().invoke(main.app, ["preflight", "--no-allreduce", "-q", "--only", "net.port_range", "-f", "json"])
    assert done.stdout.startswith("{"), done.output


@pytest.mark.slow
def test_brief_on_the_command_line_counts_more_than_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETDOCTOR_FORMAT", "json")
    done = CliRunner().invoke(main.app, ["preflight", "--no-allreduce", "-q", "--only", "net.port_range", "--brief"])
    assert len(done.stdout.splitlines()) == 1 and not done.stdout.startswith("{"), done.output


def test_a_variable_of_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "NETDOCTOR_FORMAT" in options.variables()
    for name in ("NETDOCTOR_FORMT", "NETDOCTOR_SERVICE_HOST", "NETDOCTOR_PORT", "NETDOCTOR_QUIET"):
        monkeypatch.setenv(name, "1")
    done = CliRunner().invoke(main.app, ["list"])
    said = [line for line in done.stderr.splitlines() if "NETDOCTOR_" in line]
    assert said == ["netdoctor: NETDOCTOR_FORMT is not an option; did you mean NETDOCTOR_FORMAT?"]


def test_a_variable_of_a_key_is_no_misspelt_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """--budget has two: NETDOCTOR_BUDGET, as every option, and that of the key it sets."""
    for name in ("NETDOCTOR_BUDGET", "NETDOCTOR_BUDGET_S"):
        monkeypatch.setenv(name, "20")
    monkeypatch.setenv("NETDOCTOR_FAILON", "info")
    done = CliRunner().invoke(main.app, ["config", "show"])
    said = [line for line in done.stderr.splitlines() if "NETDOCTOR_" in line]
    assert said == ["netdoctor: NETDOCTOR_FAILON is not an option; did you mean NETDOCTOR_FAIL_ON?"]


@pytest.mark.slow
def test_a_check_that_the_configuration_misspells(tmp_path: pathlib.Path) -> None:
    (tmp_path / "c.yaml").write_text("disabled: [net.tcp_bufer]\n")
    words = ["preflight", "-q", "--no-allreduce", "--only", "net.tcp_buffers", "--config", str(tmp_path / "c.yaml")]
    assert "which is no check; did you mean net.tcp_buffers?" in CliRunner().invoke(main.app, words).stderr


def test_nothing_is_near_to_what_is_like_nothing() -> None:
    assert nearest("xyz", ("json", "text")) == ""


def test_an_environment_s_folder_is_told_with_its_interpreter(tmp_path: pathlib.Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    done = CliRunner().invoke(main.app, ["preflight", "--python", str(tmp_path)])
    assert done.exit_code == 2 and f"a folder; did you mean {tmp_path}/bin/python?" in done.output


def lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is below /locked may not be reached."""
    for name in ("stat", "lstat"):
        whole = getattr(os, name)

        def asked(path: object, *more: object, whole: Callable[..., object] = whole, **named: object) -> object:
            if str(path).startswith("/locked/"):
                raise PermissionError(13, "Permission denied", path)
            return whole(path, *more, **named)

        monkeypatch.setattr(os, name, asked)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["preflight", "--no-allreduce", "--python", "/locked/python"],
        ["preflight", "--no-allreduce", "--host-root", "/locked/root"],
        ["fleet", "report", "/locked/reports"],
    ],
    ids=lambda words: words[-1],
)
def test_what_is_out_of_reach_is_not_called_absent(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads "no such file" looks for a slip of the name, and there is none."""
    lock(monkeypatch)
    done = CliRunner().invoke(main.app, words)
    assert done.exit_code == 2 and f"{words[-1]}: Permission denied" in done.output.replace("/: ", ": ")


def test_a_folder_of_checks_out_of_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    lock(monkeypatch)
    with pytest.raises(plugins.PluginError, match="/locked/checks: Permission denied"):
        plugins.load("/locked/checks")

"""Options that do not go together, and who is blamed for a wrong one: its option, its variable, or the line of its file."""

from __future__ import annotations

import json
import os
import pathlib

import pytest
from typer.testing import CliRunner, Result

from netdoctor.cli import main, serve
from netdoctor.cli.options import Options

CHECKED = ["preflight", "--no-allreduce", "--only", "node.clock", "-q"]


def called(*arguments: str, **variables: str) -> Result:
    return CliRunner().invoke(main.app, arguments, env=variables)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("preflight", "--plan", "--serve", "0"), "--serve 0: a plan has no metrics"),
        (("preflight", "--every", "60"), "--every: of --serve alone"),
        ((*CHECKED, "-o", "x.json", "--termination-log", "./x.json"), "--output and --termination-log: x.json"),
        ((*CHECKED, "-o", "a.json", "-o", "b c.html"), "--output (-o) is given more than once"),
        ((*CHECKED, "-o", "a.json", "-o", "b c.html"), "can be printed: --format html > 'b c.html'"),
        (("deploy", "kubernetes", "--gate", "pod.yaml", "--to", "new"), "--gate and --to"),
        (("deploy", "kubernetes", "--image", "foo"), "--image: of --gate alone"),
        (("deploy", "slurm", "--gate", "pod.yaml"), "--gate: of kubernetes alone"),
        (("deploy", "slurm", "--to", "file"), "--to: file: it is there, and no folder"),
    ],
)
def test_what_does_not_go_together_is_refused(
    arguments: tuple[str, ...], says: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pathlib.Path("file").touch()
    done = called(*arguments)
    assert done.exit_code == 2 and says in " ".join(done.stderr.split())
    assert not done.stdout and os.listdir() == ["file"]


def test_a_second_name_for_no_format_gets_no_advice() -> None:
    said = called("snapshot", "-o", "a", "-o", "b").stderr
    assert "--output (-o) is given more than once" in said and "--format" not in said


def test_one_device_takes_both(tmp_path: pathlib.Path) -> None:
    assert called(*CHECKED, "-o", "/dev/null", "--termination-log", "/dev/null").exit_code == 0


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"NETDOCTOR_FORMAT": "yaml"}, "netdoctor: NETDOCTOR_FORMAT: must be one of"),
        ({"NETDOCTOR_EXIT_STYLE": "x"}, "netdoctor: NETDOCTOR_EXIT_STYLE: must be one of"),
        ({"NETDOCTOR_OUTPUT": "r.csv"}, "netdoctor: NETDOCTOR_OUTPUT: r.csv: this command writes no .csv"),
        ({"NETDOCTOR_HOST_ROOT": "/nowhere"}, "netdoctor: NETDOCTOR_HOST_ROOT: /nowhere: no such directory"),
        (
            {"NETDOCTOR_BRIEF": "1", "NETDOCTOR_FORMAT": "json"},
            "NETDOCTOR_BRIEF and NETDOCTOR_FORMAT json: one report",
        ),
        (
            {"NETDOCTOR_OUTPUT": "r", "NETDOCTOR_TERMINATION_LOG": "r"},
            "NETDOCTOR_OUTPUT and NETDOCTOR_TERMINATION_LOG:",
        ),
        (
            {"NETDOCTOR_EXPECTED_BUSBW_FLOOR": "300"},
            "NETDOCTOR_EXPECTED_BUSBW_FLOOR: must say for which size: 64M=300, in a file {64M: 300}",
        ),
    ],
)
def test_a_variable_is_blamed_by_its_name(variables: dict[str, str], says: str) -> None:
    done = called(*CHECKED, **variables)
    assert done.exit_code == 2 and says in done.stderr


@pytest.mark.parametrize("only", ["nope", "node.clock nope"])
def test_a_check_that_is_not_there_is_blamed_on_who_said_it(only: str) -> None:
    done = called("preflight", "--no-allreduce", "-q", NETDOCTOR_ONLY=only)
    assert done.exit_code == 2 and "netdoctor: NETDOCTOR_ONLY: no check 'nope'" in done.stderr
    done = called("preflight", "--no-allreduce", "-q", "--only", "nope", NETDOCTOR_ONLY="node.clock")
    assert done.exit_code == 2 and "netdoctor: --only: no check 'nope'" in done.stderr


def test_a_wrong_token_s_message_is_whole() -> None:
    """What stands behind such a name and a colon is taken for the credential, and is left out."""
    done = called("allreduce", "--nodes", "1", "--node-rank", "0", "--master", "127.0.0.1", NETDOCTOR_TOKEN="short")
    assert done.exit_code == 2 and "NETDOCTOR_TOKEN is no token: 16 to 1024 printable" in done.stderr
    assert "redacted" not in done.stderr and "short" not in done.stderr


@pytest.mark.root
def test_a_user_that_is_none_is_told_by_who_named_it(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("profile: audit\nuser: nosuch\n")
    assert f"netdoctor: {file}:2: user: no such user: nosuch" in called(*CHECKED, "--config", str(file)).stderr
    assert "netdoctor: NETDOCTOR_USER: no such user: nobody2" in called(*CHECKED, NETDOCTOR_USER="nobody2").stderr
    assert "netdoctor: --user: no such user: nobody3" in called(*CHECKED, "--user", "nobody3").stderr


def test_only_root_becomes_somebody(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("user: nosuch\n")
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    done = called(*CHECKED, "--user", "nobody")
    assert done.exit_code == 2 and "netdoctor: --user: root only: uid 4711 cannot look and run as nobody" in done.stderr
    done = called(*CHECKED, "--user", "root")  # the gate of Kubernetes says so to images of any user
    assert done.exit_code == 0 and "netdoctor: --user root counts for root alone: uid 4711 looks and runs" in done.stderr
    assert called(*CHECKED, "--user", "4711").exit_code == 0
    assert called(*CHECKED, "--config", str(file)).exit_code == 0  # the site's, for the looks of root


@pytest.mark.parametrize(("arguments", "told"), [(("-o", "-"), True), (("-f", "json", "-o", "/dev/stdout"), False)])
def test_standard_output_gets_one_report(arguments: tuple[str, ...], told: bool, capfd: pytest.CaptureFixture[str]) -> None:
    main.app([*CHECKED, *arguments], standalone_mode=False)
    out, err = capfd.readouterr()
    assert json.loads(out)["schema"] == "netdoctor.report/1" and ("seen from: " in err) is told


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [("--config", "/nonexistent"), ("--profile", "gat"), ("--only", "nope"), ("--profile", "gat", "--exit-style", "nagios")],
)
def test_a_server_does_not_begin_with_what_is_refused(wrong: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    line = ["preflight", "--serve", "127.0.0.1:0", *wrong]
    monkeypatch.setattr("sys.argv", [str(pathlib.Path(main.__file__).parents[1] / "__main__.py"), *line])
    assert called(*line).exit_code == (3 if "nagios" in wrong else 2)


def test_an_option_is_named_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NETDOCTOR_FORMAT", "html")
    assert Options(format="json").said("format") == "--format"
    assert Options(format="html").said("format") == "NETDOCTOR_FORMAT"
    assert serve.look(["/no/such/program"]) == (None, None)


def test_it_is_asked_in_a_child_where_a_server_may_be_gone() -> None:
    import pickle

    from netdoctor.cli import deliver, startable

    assert pickle.loads(pickle.dumps((deliver._same, startable.obstacle)))

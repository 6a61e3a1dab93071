"""What `netdoctor run` refuses before it looks at anything."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from netdoctor import cli
from netdoctor.commands import preflight


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--gaet", "--", "true"], "no such option: --gaet"), (["--", "--gate"], "no such option: --gate"), (["--gate"], "CMD")],
)
def test_a_misspelt_option_is_bad_usage_and_no_job(arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "run", lambda *_, **__: pytest.fail("it looked"))
    done = CliRunner().invoke(cli.app, ["run", *arguments])
    assert done.exit_code == 2 and says in done.output

"""`netdoctor.preflight()`, shell completion, the man page, and the documentation as a site."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import netdoctor

ROOT = Path(__file__).parents[2]


def test_a_report_comes_back_as_data() -> None:
    report = netdoctor.preflight(only=["rdma.dev_infiniband", "net.port_range"], allreduce=False)
    assert {finding.check for finding in report.findings} == {"rdma.dev_infiniband", "net.port_range"}
    assert report.document["schema"] == "netdoctor.report/1"
    assert report.exit_code == report.document["verdict"]["exit_code"]
    assert not report.healthy or not report.failed


def test_wrong_usage_is_an_error_with_its_words() -> None:
    with pytest.raises(netdoctor.LookError, match="must be one of") as caught:
        netdoctor.preflight(profile="gait")
    assert caught.value.exit_code == 2


def test_a_look_that_takes_too_long_comes_back_in_part() -> None:
    slow = ROOT / "build" / f"slow-python-{os.getpid()}"  # root tries nothing that lies where others may write
    slow.parent.mkdir(exist_ok=True)
    slow.write_text("#!/bin/sh\nexec sleep 300\n")
    slow.chmod(0o755)
    began = time.monotonic()
    try:
        report = netdoctor.preflight(python=str(slow), profile="gate", timeout_s=3.0)
    finally:
        slow.unlink()
    assert report.partial is not None
    assert not report.healthy
    assert report.exit_code == 143
    assert time.monotonic() - began < 60  # a hang guard, no measurement


def test_the_type_marker_is_shipped() -> None:
    assert (Path(netdoctor.__file__).parent / "py.typed").is_file()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes(tmp_path: Path) -> None:
    program = tmp_path / "netdoctor"
    # No "#!" of it: the folder of the checkout may have a blank.
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -c "from netdoctor.__main__ import main; main()" "$@"\n')
    program.chmod(0o755)
    script = """
eval "$(netdoctor --show-completion bash)"
COMP_WORDS=(netdoctor pre); COMP_CWORD=1; _netdoctor_completion netdoctor; echo "${COMPREPLY[@]}"
COMP_WORDS=(netdoctor preflight --fail); COMP_CWORD=2; _netdoctor_completion netdoctor; echo "${COMPREPLY[@]}"
COMP_WORDS=(netdoctor explain rdma.gpu); COMP_CWORD=2; _netdoctor_completion netdoctor; echo "${COMPREPLY[@]}"
COMP_WORDS=(netdoctor preflight --only gpu.dcgm,net.reac); COMP_CWORD=3; _netdoctor_completion netdoctor; echo "${COMPREPLY[@]}"
"""
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", script], env=environ, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.split() == ["preflight", "--fail-on", "rdma.gpudirect", "gpu.dcgm,net.reach"]


@pytest.mark.skipif(shutil.which("man") is None, reason="no man")
def test_man_reads_the_page_without_a_warning(tmp_path: Path) -> None:
    page = tmp_path / "netdoctor.1"
    subprocess.run([sys.executable, "-m", "tools.reference", "--man", str(page)], cwd=ROOT, check=True, timeout=120)
    done = subprocess.run(["man", "--warnings=w", "-l", str(page)], capture_output=True, text=True, timeout=120, check=True)
    assert "netdoctor - finds what silently slows or hangs" in done.stdout
    assert done.stderr == ""


def test_the_site_is_whole_and_fetches_nothing() -> None:
    """mkdocs --strict refuses a link to nowhere; what a page loads lies in the site."""
    done = subprocess.run(["make", "docs"], cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    if "No matching distribution" in done.stderr or "could not be installed" in done.stderr:
        pytest.skip("mkdocs-material cannot be installed here")
    assert done.returncode == 0, done.stderr[-2000:]
    pages = list((ROOT / "build/site").rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"<(script|img|iframe)[^>]+src=[\"']?(https?:)?//", text), page
        assert not re.search(r"<link[^>]+href=[\"']?(https?:)?//", re.sub(r"<link[^>]+rel=[\"']?canonical[^>]*>", "", text)), (
            page
        )

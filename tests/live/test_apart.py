"""A site's own code cannot end netdoctor with a verdict that netdoctor did not give, whatever it does to its process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

import pytest

from tests.support.namespaces.folders import own_folder

pytestmark = pytest.mark.live

CHECK = """
import atexit, ctypes, os, signal, sys, threading, time
from netdoctor.api import Finding, Kernel, check, ok
{head}
@check(id="site.x", title="X holds", cause="other")
def x(kernel: Kernel) -> list[Finding]:
{body}
    return [ok("x")]
"""
BUILT_IN = "net.port_range"
LOOK = ("preflight", "-q", "--no-allreduce", "--vantage", "job", "--python", sys.executable, "--only", f"{BUILT_IN},site.x")

# What the file does when it is imported, what its check does, and what is said of the site's checks.
WAYS = {
    "os._exit": ("", "os._exit(0)", "plugin.broken"),
    "another program": ("", "os.execv('/bin/true', ['true'])", "plugin.broken"),
    "on import": ("os._exit(0)", "", "plugin.broken"),
    "libc's _exit": ("", "ctypes.CDLL(None)._exit(0)", "plugin.broken"),
    "libc's exit": ("", "ctypes.CDLL(None).exit(0)", "plugin.broken"),
    "a thread": ("", "threading.Thread(target=os._exit, args=(0,)).start(); time.sleep(60)", "plugin.broken"),
    "a handler": (
        "",
        "signal.signal(signal.SIGALRM, lambda *_: os._exit(0)); signal.alarm(1); time.sleep(60)",
        "plugin.broken",
    ),
    "a fault": ("", "ctypes.string_at(0)", "plugin.broken"),
    "another verdict": ("", "os._exit(3)", "plugin.broken"),
    "every descriptor closed": ("", "os.closerange(3, 256); os._exit(0)", "plugin.broken"),
    "at exit": ("atexit.register(os._exit, 0)", "1 / 0", "site.x"),
    "KeyboardInterrupt": ("", "raise KeyboardInterrupt", "site.x"),
    "a thread that stays": ("", "threading.Thread(target=time.sleep, args=(1000,)).start(); 1 / 0", "site.x"),
    "a child that comes back": ("", "if os.fork(): 1 / 0", "site.x"),
    "another folder": ("", "os.chdir('/'); 1 / 0", "site.x"),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        (path / "checks").mkdir(mode=0o755)
        yield path


def add(folder: Path, head: str, body: str) -> None:
    (folder / "checks" / "mine.py").write_text(CHECK.format(head=head, body=indent(body, "    ")))
    (folder / "checks" / "mine.py").chmod(0o644)


def command(folder: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "netdoctor", *LOOK, "--checks-dir", str(folder / "checks"), "-o", "report.json", *more]


@pytest.mark.parametrize(("head", "body", "broken"), WAYS.values(), ids=WAYS)
def test_its_end_is_no_verdict(folder: Path, head: str, body: str, broken: str) -> None:
    add(folder, head, body)
    done = subprocess.run(
        command(folder, "--exit-style", "nagios"), cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 3, done
    report = json.loads((folder / "report.json").read_text())
    assert report["verdict"]["exit_code"] == 4
    checks = {c["id"]: (c["status"], c["findings"][0]["subject"]) for c in report["checks"]}
    assert checks.pop(BUILT_IN)[0] == "pass", "the others are judged all the same"
    ((name, (status, subject)),) = checks.items()
    assert (name, status) == (broken, "error")
    if broken == "plugin.broken":
        assert subject == (str(folder / "checks" / "mine.py") if head else "site.x")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("to", ["the process", "its group"])
def test_a_signal_ends_it_with_a_report(folder: Path, number: signal.Signals, to: str) -> None:
    add(folder, "", "open('here', 'w').close(); time.sleep(1000)")
    started = subprocess.Popen(command(folder), cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True)
    waited_for(folder / "here")
    (os.kill if to == "the process" else os.killpg)(started.pid, number)
    printed, _ = started.communicate(timeout=60)
    assert started.returncode == 128 + number
    report = json.loads((folder / "report.json").read_text())
    assert (report["partial"], report["verdict"]["exit_code"]) == (f"interrupted by {number.name}", 128 + number)
    assert printed.count("the run is not whole") == 2  # one report: its verdict is told first and last


def test_it_leaves_nothing_behind_when_it_is_killed(folder: Path) -> None:
    add(folder, "", "open('here', 'w').write(str(os.getpid())); time.sleep(1000)")
    started = subprocess.Popen(command(folder), cwd=folder, stdout=subprocess.PIPE)
    waited_for(folder / "here")
    started.kill()
    started.communicate(timeout=60)  # to the end of the pipe: nobody has it any more
    assert not (folder / "report.json").exists()


def waited_for(file: Path) -> None:
    for _ in range(600):
        if file.exists():
            return
        time.sleep(0.1)
    pytest.fail(f"no {file.name}")

"""What somebody names to be read has an end, in bytes and in time, whatever it is."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from netdoctor.process import far, given
from tests.support.sources import ROOT

DOCUMENTS = (
    ("diagnose",),
    ("expect",),
    ("clean",),
    ("env", "--file"),
    ("deploy", "kubernetes", "--gate"),
    ("fleet", "report", "x", "--expected"),
    ("config", "show", "--config"),
    ("allreduce", "--nodes", "2", "--node-rank", "0", "--master", "127.0.0.1", "--token-file"),
)


@pytest.fixture
def pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(given, "SILENT", 0.1)
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_to_which_nobody_writes_is_not_waited_for(pipe: Path) -> None:
    with pytest.raises(BrokenPipeError, match="nobody writes"):
        given.text(str(pipe))


def test_a_pipe_held_open_ends_and_says_what_is_waited_for(pipe: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = os.open(pipe, os.O_RDWR)
    os.write(held, b"the beginning")
    with pytest.raises(TimeoutError, match=r"its end did not come within 0\.5 s"):
        given.whole(str(pipe), patience=0.5)
    os.close(held)
    assert capsys.readouterr().err == f"netdoctor: waiting for {pipe}: it is read until its writers end\n"


def test_a_writer_that_thinks_meanwhile_is_heard_to_its_end(pipe: Path) -> None:
    held, data = os.open(pipe, os.O_RDWR), b"x" * (1 << 17)

    def write() -> None:
        for at in range(0, len(data), 1 << 15):
            time.sleep(0.15)
            os.write(held, data[at : at + (1 << 15)])
        os.close(held)

    writer = threading.Thread(target=write)
    writer.start()
    assert given.text(str(pipe)) == data.decode()
    writer.join()


def test_what_has_no_end_is_cut(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="larger than 1 MiB"):
        given.text("/dev/zero", 1 << 20)
    assert given.start("/dev/zero", 3) == bytes(3)
    (tmp_path / "x").write_bytes(b"12345")
    assert (given.start(str(tmp_path / "x"), 3), given.whole(str(tmp_path / "x"), 5)) == (b"123", b"12345")


def test_a_log_is_followed_for_as_long_as_somebody_writes(pipe: Path) -> None:
    """Its writer comes later, thinks, and ends."""

    def write() -> None:
        time.sleep(0.3)
        with open(pipe, "wb", buffering=0) as stream:
            stream.write(b"one\n")
            time.sleep(0.3)
            stream.write(b"two\n")

    writer = threading.Thread(target=write)
    writer.start()
    assert b"".join(given.blocks(str(pipe))) == b"one\ntwo\n"
    writer.join()


@pytest.mark.slow
@pytest.mark.parametrize("command", DOCUMENTS, ids=" ".join)
def test_no_command_waits_for_what_never_comes(command: tuple[str, ...], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    code = (
        "from netdoctor.process import far, given; given.SILENT = far.LIMIT = 0.5\nfrom netdoctor.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *command, str(tmp_path / "pipe")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    assert done.returncode == 2 and done.stdout == ""
    assert "a pipe to which nobody writes" in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_a_file_on_a_server_that_is_gone_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object, **__: object) -> None:
        raise far.HungError("/n/x", far.Mount("/n", "nfs4", "srv:/n"), 60)

    monkeypatch.setattr(far, "call", gone)
    with pytest.raises(OSError, match=r"nfs4 of srv:/n on /n\) did not answer within 60 s"):
        given.text("/n/x")

"""A report is written whole or not at all, and what was there before is not lost."""

import errno
import os
import stat
from pathlib import Path

import pytest

from netdoctor.process.files import REPORT_MODE, SNAPSHOT_MODE, OutputError, write


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(autouse=True)
def _umask() -> object:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(("mode", "bits"), [(REPORT_MODE, 0o644), (SNAPSHOT_MODE, 0o600)])
def test_a_new_file(tmp_path: Path, mode: int, bits: int) -> None:
    path = tmp_path / "report.json"
    assert write(str(path), "é\n", mode=mode) == "renamed"
    assert path.read_bytes() == "é\n".encode()
    assert mode_of(path) == bits
    assert os.listdir(tmp_path) == ["report.json"]


def test_the_umask_takes_from_the_mode(tmp_path: Path) -> None:
    os.umask(0o077)
    write(str(tmp_path / "r"), "x")
    assert mode_of(tmp_path / "r") == 0o600


def test_an_exact_mode_is_that_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0o077)
    write(str(tmp_path / "r.prom"), "x", exact=True)
    assert mode_of(tmp_path / "r.prom") == 0o644


def test_a_file_is_replaced_not_changed(tmp_path: Path) -> None:
    path, other = tmp_path / "r", tmp_path / "other name"
    path.write_text("old")
    os.link(path, other)
    assert write(str(path), "new") == "renamed"
    assert (path.read_text(), other.read_text()) == ("new", "old")


def test_a_snapshot_over_a_readable_file_is_not_readable(tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_text("old")
    path.chmod(0o644)
    write(str(path), "secret", mode=SNAPSHOT_MODE)
    assert mode_of(path) == 0o600


def test_relative_and_dotted_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a" / "b")
    write("r", "1")
    write("./../r", "2")
    assert ((tmp_path / "a/b/r").read_text(), (tmp_path / "a/r").read_text()) == ("1", "2")


def test_a_link_in_ones_own_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "there").symlink_to("real")
    (tmp_path / "r").symlink_to("there/report")
    write(str(tmp_path / "r"), "x")
    assert (tmp_path / "real" / "report").read_text() == "x"
    assert (tmp_path / "r").is_symlink()


@pytest.mark.parametrize("where", ["last", "folder"])
def test_a_link_where_others_may_write_is_refused(tmp_path: Path, where: str) -> None:
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    shared.mkdir()
    shared.chmod(0o1777)
    victim.mkdir()
    (victim / "r").write_text("precious")
    target = shared / "x"
    target.symlink_to(victim if where == "folder" else victim / "r")
    with pytest.raises(OutputError, match="symbolic link in a folder that others may write to"):
        write(str(target / "r" if where == "folder" else target), "evil")
    assert (victim / "r").read_text() == "precious"


def test_links_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OutputError, match="ELOOP"):
        write(str(tmp_path / "a"), "x")


@pytest.mark.parametrize(
    ("name", "code"),
    [("missing/r", errno.ENOENT), (".", errno.EISDIR), ("", errno.EISDIR), ("folder", errno.EISDIR), ("folder/", errno.EISDIR)],
)
def test_what_cannot_be_written_says_why(tmp_path: Path, name: str, code: int) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError) as caught:
        write(f"{tmp_path}/{name}", "x")
    assert errno.errorcode[code] in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path))


def test_a_file_in_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x")
    with pytest.raises(OutputError, match="ENOTDIR"):
        write(str(tmp_path / "f" / "r"), "x")


@pytest.mark.parametrize("path", ["a\x00b", "x" * 300])
def test_names_that_are_none(tmp_path: Path, path: str) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        write(f"{tmp_path}/{path}", "x")
    assert os.listdir(tmp_path) == []


def test_devices_are_written_in_place() -> None:
    assert write("/dev/null", "x") == "in place"
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_full_device_says_so() -> None:
    with pytest.raises(OutputError, match=r"/dev/full: cannot be written: No space left on device \(ENOSPC\)"):
        write("/dev/full", "x")


def test_a_pipe_without_a_reader_does_not_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    with pytest.raises(OutputError, match="a pipe that nobody reads"):
        write(str(tmp_path / "p"), "x")


def test_a_pipe_with_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    reader = os.open(tmp_path / "p", os.O_RDONLY | os.O_NONBLOCK)
    assert write(str(tmp_path / "p"), "hello") == "in place"
    assert os.read(reader, 100) == b"hello"
    os.close(reader)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a pipe to another user: root")
def test_a_pipe_of_another_user_gets_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p", 0o666)
    os.chown(tmp_path / "p", 65534, 65534)
    reader = os.open(tmp_path / "p", os.O_RDONLY | os.O_NONBLOCK)
    with pytest.raises(OutputError, match="a pipe of uid 65534"):
        write(str(tmp_path / "p"), "secret", mode=0o600)
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_socket_is_refused(tmp_path: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(tmp_path / "s"))
        with pytest.raises(OutputError, match="neither a file nor a pipe"):
            write(str(tmp_path / "s"), "x")


@pytest.mark.parametrize("path", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_descriptors_are_written_where_they_stand(tmp_path: Path, path: str) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as stream:
        stream.write(b"before ")
        assert write(path.format(stream.fileno()), "report") == "stream"
    assert (tmp_path / "log").read_text() == "before report"


def test_standard_output(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    write("/dev/stdout", "one ")
    write("-", "two")
    write("/dev/stderr", "three")
    got = capfdbinary.readouterr()
    assert (got.out, got.err) == (b"one two", b"three")


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(fd: int) -> None:
        raise KeyboardInterrupt

    (tmp_path / "r").write_text("old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write(str(tmp_path / "r"), "new")
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == {"r": "old"}

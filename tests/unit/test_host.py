"""Questions in this process: absent, denied, empty and malformed are four answers."""

from __future__ import annotations

import os
import pathlib
import stat

import pytest

from netdoctor.host.base import RecordingHost, ReplayHost, decode, encode, names, question, read, read_int, split_question
from netdoctor.host.live import LiveHost
from netdoctor.model import Unavailable


@pytest.fixture
def tree(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "text").write_text("one\ntwo\n")
    (tmp_path / "empty").write_text("")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00a")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "b").write_text("2\n")
    (tmp_path / "folder" / "a").write_text("x\n")
    (tmp_path / "to").symlink_to("text")
    os.mkfifo(tmp_path / "fifo")
    return tmp_path


def test_content_absent_empty_and_malformed_differ(tree: pathlib.Path) -> None:
    host = LiveHost()
    assert read(host, f"{tree}/text") == "one\ntwo"
    assert read(host, f"{tree}/empty") == ""
    missing = read(host, f"{tree}/nothing")
    assert isinstance(missing, Unavailable) and missing.kind == "absent"
    through = read(host, f"{tree}/text/below")
    assert isinstance(through, Unavailable) and through.kind == "absent"
    folder = read(host, f"{tree}/folder")
    assert isinstance(folder, Unavailable) and folder.kind == "failed"
    assert read_int(host, f"{tree}/folder/b") == 2
    word, nothing = read_int(host, f"{tree}/folder/a"), read_int(host, f"{tree}/empty")
    assert isinstance(word, Unavailable) and word.kind == "malformed"
    assert isinstance(nothing, Unavailable) and nothing.kind == "empty"
    assert names(host, f"{tree}/folder") == ("a", "b")
    assert host.ask(f"link:{tree}/to") == "text"


def test_bytes_that_are_no_text_survive_json(tree: pathlib.Path) -> None:
    got = LiveHost().ask(f"file:{tree}/bytes")
    assert isinstance(got, str) and decode(encode({"q": got})) == {"q": got}


def test_a_fifo_does_not_hang(tree: pathlib.Path) -> None:
    assert read(LiveHost(), f"{tree}/fifo") == ""


def test_a_file_without_end_is_refused() -> None:
    got = LiveHost().ask("file:/dev/zero")
    assert isinstance(got, Unavailable) and got.kind == "malformed"


def test_denied(tree: pathlib.Path) -> None:
    (tree / "text").chmod(0)
    host, me = LiveHost(), os.geteuid()
    try:
        if me == 0:
            os.seteuid(65534)  # root reads everything
        got = read(host, f"{tree}/text")
    finally:
        os.seteuid(me)
    assert isinstance(got, Unavailable) and got.kind == "denied"


def test_open_tells_the_errno(tree: pathlib.Path) -> None:
    host = LiveHost()
    assert host.ask(f"open:{tree}/text:rw") == {"errno": 0, "name": ""}
    assert host.ask(f"open:{tree}/nothing:r") == {"errno": 2, "name": "ENOENT"}


def test_stat_of_a_device() -> None:
    got = LiveHost().ask("stat:/dev/null")
    assert isinstance(got, dict) and (got["type"], got["major"], got["minor"]) == ("char", 1, 3)
    assert got["mode"] == stat.S_IMODE(os.stat("/dev/null").st_mode)


def test_what_a_file_system_has_free(tree: pathlib.Path) -> None:
    for host, path in ((LiveHost(), str(tree)), (LiveHost(str(tree)), "/")):
        got = host.ask(f"statvfs:{path}")
        assert (
            isinstance(got, dict) and 0 <= got["free"] <= got["size"] == os.statvfs(tree).f_blocks * os.statvfs(tree).f_frsize
        )
    assert LiveHost().ask(f"statvfs:{tree}/nothing").kind == "absent"  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["", "file", "file:relative", "nonsense:/x", "file:/a\0b", "open:/x"])
def test_questions_that_are_none(text: str) -> None:
    got = LiveHost().ask(text)
    assert isinstance(got, Unavailable) or got["errno"]  # type: ignore[index, call-overload]


def test_recording_asks_once_and_replays_the_same(tree: pathlib.Path) -> None:
    host = RecordingHost(LiveHost())
    assert read(host, f"{tree}/text") == "one\ntwo"
    (tree / "text").write_text("changed\n")
    assert read(host, f"{tree}/text") == "one\ntwo"
    read(host, f"{tree}/nothing")
    replay = ReplayHost(decode(encode(host.answers)))
    assert read(replay, f"{tree}/text") == "one\ntwo"
    gone, other = read(replay, f"{tree}/nothing"), read(replay, f"{tree}/never-asked")
    assert isinstance(gone, Unavailable) and gone.kind == "absent"
    assert isinstance(other, Unavailable) and other.kind == "not recorded"


def test_question_text_has_one_spelling() -> None:
    assert question("nccl", path="/a b", user="x") == question("nccl", user="x", path="/a b")
    assert split_question(question("nccl", path="/a b&c=d")) == ("nccl", {"path": "/a b&c=d"})


def test_a_mounted_root_does_not_answer_for_this_process(tree: pathlib.Path) -> None:
    (tree / "etc").mkdir()
    (tree / "etc" / "name").write_text("inner\n")
    (tree / "out").symlink_to("/etc/hostname")
    (tree / "up").symlink_to("../../../../../../etc/hostname")
    host = LiveHost(str(tree))
    assert read(host, "/etc/name") == "inner"
    for path in ("/out", "/up", "/etc/passwd"):
        got = read(host, path)
        assert isinstance(got, Unavailable) and got.kind == "absent", path
    for text in ("env:", "ask:nvml", "file:/proc/self/status", "file:/proc/sys/net/ipv4/ip_local_port_range"):
        got = host.ask(text)
        assert isinstance(got, Unavailable) and got.kind == "another root", text

"""What root may load: every component of the way is root's, and nobody else can change it."""

from __future__ import annotations

import os
import pathlib
import socket
import struct
from collections.abc import Iterator

import pytest

from netdoctor.host.trust import open_trusted, trusted
from tests.support.namespaces.folders import own_folder

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes files of other users")


@pytest.fixture
def place() -> Iterator[pathlib.Path]:
    """A folder that only root can change; the usual temporary folders lie below one that everybody may write."""
    with own_folder() as made:
        (made / "a" / "b").mkdir(parents=True)
        (made / "a" / "b" / "lib.so").write_text("")
        yield made


@needs_root
@pytest.mark.root
class TestAsRoot:
    def test_root_alone(self, place: pathlib.Path) -> None:
        assert trusted(f"{place}/a/b/lib.so") is None
        assert trusted(f"{place}/a/../a/./b//lib.so") is None

    @pytest.mark.parametrize("component", ["a", "a/b", "a/b/lib.so"])
    @pytest.mark.parametrize(
        ("mode", "words"), [(0o757, "writable by everybody"), (0o1777, "writable by everybody"), (0o775, "writable by group")]
    )
    def test_a_writable_component(self, place: pathlib.Path, component: str, mode: int, words: str) -> None:
        (place / component).chmod(mode)
        assert words in (trusted(f"{place}/a/b/lib.so") or "")

    @pytest.mark.parametrize("component", ["a", "a/b", "a/b/lib.so"])
    def test_somebody_elses_component(self, place: pathlib.Path, component: str) -> None:
        os.chown(place / component, 1000, 0)
        assert "belongs to uid 1000" in (trusted(f"{place}/a/b/lib.so") or "")

    def test_links_are_followed_by_the_same_rule(self, place: pathlib.Path) -> None:
        (place / "good").symlink_to("a/b/lib.so")
        (place / "absolute").symlink_to(f"{place}/a")
        (place / "up").symlink_to("a/b/../../good")
        assert [trusted(f"{place}/{n}") for n in ("good", "absolute/b/lib.so", "up")] == [None] * 3
        (place / "out").symlink_to("/tmp")
        assert "tmp is writable by everybody" in (trusted(f"{place}/out") or "")
        os.lchown(place / "good", 1000, 1000)
        assert trusted(f"{place}/good") == "the link good belongs to uid 1000"

    def test_links_in_a_circle(self, place: pathlib.Path) -> None:
        (place / "x").symlink_to("y")
        (place / "y").symlink_to("x")
        assert trusted(f"{place}/x") == "too many links"

    def test_acl_entry_of_another_user(self, place: pathlib.Path) -> None:
        entries = [(0x01, 7, -1), (0x02, 7, 1000), (0x04, 5, -1), (0x10, 7, -1), (0x20, 5, -1)]
        acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", t, p, w & 0xFFFFFFFF) for t, p, w in entries)
        try:
            os.setxattr(place / "a", "system.posix_acl_access", acl)
        except OSError as error:
            pytest.skip(f"no POSIX ACLs here: {error}")
        assert "writable by uid 1000 (POSIX ACL)" in (trusted(f"{place}/a/b/lib.so") or "")

    def test_what_is_no_file(self, place: pathlib.Path) -> None:
        os.mkfifo(place / "pipe")
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{place}/socket")
        assert [trusted(f"{place}/{n}") for n in ("pipe", "socket")] == [
            "pipe is neither a file nor a folder",
            "socket is neither a file nor a folder",
        ]

    def test_the_descriptor_is_of_the_file_that_was_judged(self, place: pathlib.Path) -> None:
        (place / "a/b/lib.so").write_text("content")
        fd, reason = open_trusted(f"{place}/a/b/lib.so")
        assert fd is not None and reason is None
        assert os.read(fd, 10) == b"content"
        os.close(fd)


@pytest.mark.parametrize("path", ["", "relative", "/nonexistent/x", "/etc/passwd/x", "/\0", "/" + "x" * 5000])
def test_never_raises(path: str) -> None:
    before = len(os.listdir("/proc/self/fd"))
    assert trusted(path)
    assert len(os.listdir("/proc/self/fd")) == before


def test_own_files_of_a_user_are_not_trusted(tmp_path: pathlib.Path) -> None:
    (tmp_path / "x").write_text("")
    assert trusted(f"{tmp_path}/x")

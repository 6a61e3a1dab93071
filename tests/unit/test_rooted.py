"""A mounted root is a prison: no link and no ".." leads out of it."""

from __future__ import annotations

import errno
import os
import pathlib

import pytest

from netdoctor.host.live import LiveHost
from netdoctor.host.rooted import open_in_root
from netdoctor.model import Unavailable


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "secret").write_text("outside")
    inside = tmp_path / "root"
    (inside / "etc").mkdir(parents=True)
    (inside / "etc" / "name").write_text("inside\n")
    (inside / "absolute").symlink_to("/etc/name")
    (inside / "etc" / "up").symlink_to("../../../../etc/name")
    (inside / "etc" / "out").symlink_to("../../secret")
    (inside / "folder").symlink_to("/etc")
    return inside


@pytest.mark.parametrize("path", ["/etc/name", "/absolute", "/etc/up", "/folder/name", "/../../etc/name", "/etc/../etc/name"])
def test_everything_resolves_inside(root: pathlib.Path, path: str) -> None:
    assert LiveHost(str(root)).ask(f"file:{path}") == "inside\n"


def test_nothing_leads_out(root: pathlib.Path) -> None:
    host = LiveHost(str(root))
    for path in ("/etc/out", "/../secret", str(root.parent / "secret"), "/proc/self/root/etc/passwd"):
        got = host.ask(f"file:{path}")
        assert isinstance(got, Unavailable), (path, got)


def test_folders_links_and_facts_of_files(root: pathlib.Path) -> None:
    host = LiveHost(str(root))
    assert host.ask("dir:/folder") == ["name", "out", "up"]
    assert host.ask("link:/absolute") == "/etc/name"
    stat = host.ask("stat:/absolute")
    assert isinstance(stat, dict) and stat["type"] == "file"
    assert host.ask("open:/absolute:r") == {"errno": 0, "name": ""}


def test_errors_are_those_of_open(root: pathlib.Path) -> None:
    with pytest.raises(OSError, match="No such file") as caught:
        open_in_root(str(root), "/nothing", os.O_RDONLY)
    assert caught.value.errno == errno.ENOENT
    with pytest.raises(ValueError, match="null byte"):
        open_in_root(str(root), "/a\0b", os.O_RDONLY)
    with pytest.raises(OSError):
        open_in_root(str(root / "nosuchroot"), "/", os.O_RDONLY)


def test_the_kernels_own_links_are_refused(tmp_path: pathlib.Path) -> None:
    """/proc/PID/root and /proc/PID/fd lead anywhere (openat2(2), RESOLVE_NO_MAGICLINKS)."""
    with pytest.raises(OSError) as caught:
        open_in_root("/", "/proc/self/root/etc/passwd", os.O_RDONLY)
    assert caught.value.errno == errno.ELOOP

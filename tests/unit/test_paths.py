"""A path followed component by component leads where the kernel's own resolution does."""

from __future__ import annotations

import os
import pathlib

import pytest

from netdoctor.process.paths import walk


@pytest.fixture
def tree(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_text("")
    (tmp_path / "a" / "b" / "up").symlink_to("../file")
    (tmp_path / "a" / "b" / "far").symlink_to(tmp_path / "a" / "b" / "up")
    (tmp_path / "a" / "b" / "out").symlink_to("..")
    (tmp_path / "a" / "b" / "new").symlink_to("nothing")
    (tmp_path / "circle").symlink_to("circle")
    monkeypatch.chdir(tmp_path / "a" / "b")
    return tmp_path


def followed(path: str) -> str:
    with walk(path, lambda *_: None) as (folder, name):
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name).rstrip("/") or "/"


@pytest.mark.parametrize(
    "path",
    [
        "up",
        "far",
        "out/file",
        "out/b/../file",
        "../../a/file",
        "../../..",
        "..",
        ".",
        "/",
        "/..",
        "new",
        "./nothing",
        "out/",
        "far/",
    ],
)
@pytest.mark.parametrize("absolute", [False, True])
def test_it_leads_where_the_kernel_goes(tree: pathlib.Path, path: str, absolute: bool) -> None:
    full = str(tree / "a" / "b" / path) if absolute and not path.startswith("/") else path
    assert followed(full) == os.path.realpath(full)


@pytest.mark.parametrize(("path", "component"), [("nothing/x", "nothing"), ("../file/x", "file"), ("../../circle", "circle")])
def test_what_is_wrong_is_named(tree: pathlib.Path, path: str, component: str) -> None:
    with pytest.raises(OSError) as caught:
        followed(path)
    assert caught.value.filename == component


def test_every_folder_and_link_is_judged_and_nothing_stays_open(tree: pathlib.Path) -> None:
    before, seen = os.listdir("/proc/self/fd"), []
    with walk("../b/up", lambda _, name, link: seen.append((name, link is not None))):
        pass
    assert seen == [(".", False), ("..", False), ("b", False), ("up", True)]

    def refuse(*_: object) -> None:
        raise PermissionError

    with pytest.raises(PermissionError), walk("up", refuse):
        pass
    assert os.listdir("/proc/self/fd") == before

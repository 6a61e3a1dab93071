"""As root: nothing is loaded that another user can change; and a user's own files are the user's to run."""

import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from netdoctor.plugins import load
from tests.support.namespaces.folders import own_folder

pytestmark = [pytest.mark.live, pytest.mark.root]

if os.geteuid() != 0:
    pytest.skip("needs root: files of other users", allow_module_level=True)

NOBODY = 65534
GOOD = """
from netdoctor.api import Finding, Intent, check, ok

@check(id="site.mine", title="It is so", cause="other")
def judge(job: Intent) -> list[Finding]:
    return [ok("so it is")]
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        inner = path / "checks.d"
        inner.mkdir(mode=0o755)
        (inner / "mine.py").write_text(GOOD)
        (inner / "mine.py").chmod(0o644)
        yield inner


def refusals(folder: Path) -> list[str]:
    got = load(dropin_dir=str(folder), search=[])
    assert ("site.mine" in got.sources) is (not got.results)
    return [f.message for r in got.results if r.id == "plugin.refused" for f in r.findings]


def test_roots_own_is_loaded(folder: Path) -> None:
    assert refusals(folder) == []


def test_a_folder_of_another_user(folder: Path) -> None:
    os.chown(folder, NOBODY, NOBODY)
    assert "checks.d belongs to uid 65534" in refusals(folder)[0]


def test_a_folder_above_of_another_user(folder: Path) -> None:
    os.chown(folder.parent, NOBODY, NOBODY)
    assert "belongs to uid 65534" in refusals(folder)[0]


def test_a_file_of_another_user(folder: Path) -> None:
    os.chown(folder / "mine.py", NOBODY, NOBODY)
    assert "mine.py belongs to uid 65534" in refusals(folder)[0]


def test_a_link_of_another_user(folder: Path) -> None:
    link = folder.parent / "link"
    link.symlink_to(folder)
    assert refusals(link) == []
    os.chown(link, NOBODY, NOBODY, follow_symlinks=False)
    assert "the link link belongs to uid 65534" in refusals(link)[0]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_an_acl_with_a_write_entry(folder: Path, what: str) -> None:
    path = folder if what == "folder" else folder / "mine.py"
    if setfacl := shutil.which("setfacl"):
        done = subprocess.run([setfacl, "-m", f"u:{NOBODY}:rwx", str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"no ACLs here: {done.stderr.strip()}")
    else:
        # linux/posix_acl_xattr.h: version 2, then (tag, permissions, id): owner, a named user, group, mask, others.
        undefined = 0xFFFFFFFF
        entries = [(0x01, 7, undefined), (0x02, 7, NOBODY), (0x04, 5, undefined), (0x10, 7, undefined), (0x20, 5, undefined)]
        data = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
        try:
            os.setxattr(path, "system.posix_acl_access", data)
        except OSError as error:
            pytest.skip(f"no ACLs here: {error}")
    assert refusals(folder), "another user may write"
    assert "65534 (POSIX ACL)" in refusals(folder)[0]


def test_an_acl_that_only_lets_read(folder: Path) -> None:
    undefined = 0xFFFFFFFF
    entries = [(0x01, 7, undefined), (0x02, 5, NOBODY), (0x04, 5, undefined), (0x10, 5, undefined), (0x20, 5, undefined)]
    try:
        os.setxattr(
            folder, "system.posix_acl_access", struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)
        )
    except OSError as error:
        pytest.skip(f"no ACLs here: {error}")
    assert refusals(folder) == []


def test_what_runs_is_what_was_tested(folder: Path) -> None:
    """The file is swapped after the test and before it is compiled: the tested bytes run."""
    import netdoctor.plugins as plugins

    real = plugins._compiled

    def swapped(path: str, stem: str, code: bytes) -> object:
        os.unlink(path)
        Path(path).write_text("raise RuntimeError('swapped')")
        return real(path, stem, code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plugins, "_compiled", swapped)
        assert refusals(folder) == []


def test_entry_points_of_another_users_site_packages(folder: Path) -> None:
    site = folder.parent / "site"
    info = site / "evil-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "entry_points.txt").write_text("[netdoctor.plugins]\nevil = nd_evil_plugin\n")
    (site / "nd_evil_plugin.py").write_text("raise RuntimeError('it ran as root')")
    os.chown(site, NOBODY, NOBODY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        got = load(dropin_dir="/nonexistent", search=[str(site)])
    (result,) = got.results
    assert result.id == "plugin.refused"
    assert "site belongs to uid 65534" in result.findings[0].message
    assert "nd_evil_plugin" not in sys.modules


def test_a_trusted_entry_point_that_names_another_users_module(folder: Path) -> None:
    """As an editable install leaves it: the metadata is root's, the code is not."""
    site, code = folder.parent / "site", folder.parent / "code"
    info = site / "editable-1.0.dist-info"
    info.mkdir(parents=True)
    code.mkdir()
    for path in (site, info, code):
        path.chmod(0o755)
    (info / "entry_points.txt").write_text("[netdoctor.plugins]\nevil = nd_evil_editable\n")
    (code / "nd_evil_editable.py").write_text("raise RuntimeError('it ran as root')")
    os.chown(code / "nd_evil_editable.py", NOBODY, NOBODY)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(code))
        got = load(dropin_dir="/nonexistent", search=[str(site)])
    (result,) = got.results
    assert result.id == "plugin.refused"
    assert "nd_evil_editable.py belongs to uid 65534" in result.findings[0].message
    assert "nd_evil_editable" not in sys.modules


def test_a_user_runs_the_users_own_files_but_not_a_strangers(folder: Path) -> None:
    """As uid 65534: own files pass, files of uid 65533 do not."""
    base = folder.parent
    for path in (base.parent, base):
        if path != base and not path.stat().st_mode & 0o001:
            pytest.skip(f"{path} is closed to other users")
    base.chmod(0o755)
    program = (
        "import sys; from netdoctor.plugins import load; got = load(dropin_dir=sys.argv[1], search=[]);"
        "print('site.mine' in got.sources, [f.message for r in got.results for f in r.findings])"
    )
    for owner, expected in ((NOBODY, "True []"), (65533, "belongs to uid 65533")):
        os.chown(folder / "mine.py", owner, owner)
        command = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            sys.executable,
            "-c",
            program,
            str(folder),
        ]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=True)
        assert expected in done.stdout

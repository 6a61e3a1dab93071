"""What a release carries is pinned: each package of the pyz by version and hash, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.sources import ROOT
from tools import build_pyz, packages

PINNED = (ROOT / "tools/carried.txt").read_text()


def test_what_the_one_file_carries_is_pinned_by_hash() -> None:
    found = re.findall(r"^([a-z0-9-]+)==\S+((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", PINNED, re.MULTILINE)
    assert {name for name, _ in found} == build_pyz.needed() - set(build_pyz.LEFT_OUT)
    assert PINNED.count("==") == len(found), "one is pinned without a hash"


def test_what_is_pinned_is_what_was_asked_for() -> None:
    asked = re.findall(r"^([a-z0-9-]+)", (ROOT / "tools/carried.in").read_text(), re.MULTILINE)
    assert asked == re.findall(r"^([a-z0-9-]+)==", PINNED, re.MULTILINE)


def test_a_unit_names_the_page_that_lies_beside_it(tmp_path: Path) -> None:
    """deb and rpm bring the man page; who copies the unit of `netdoctor deploy systemd` has the one file alone."""
    assert "man:netdoctor" not in (ROOT / "netdoctor/deploy/systemd/netdoctor.service").read_text()
    (tmp_path / "netdoctor.pyz").touch()
    release = packages.Release(ROOT, tmp_path, tmp_path / "netdoctor.pyz", "1", 1767225600)
    packages.tree(release, tmp_path / "tree", ".TH NETDOCTOR 1")
    unit = (tmp_path / "tree/usr/lib/systemd/system/netdoctor.service").read_text()
    assert unit.count("\nDocumentation=man:netdoctor(1)\n") == 1 and "/opt/" not in unit
    assert (tmp_path / "tree/usr/share/man/man1/netdoctor.1.gz").stat().st_size

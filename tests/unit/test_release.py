"""What a release carries is pinned: each package of the pyz by version and hash, and no other."""

from __future__ import annotations

import re

from tests.support.sources import ROOT
from tools import build_pyz

PINNED = (ROOT / "tools/carried.txt").read_text()


def test_what_the_one_file_carries_is_pinned_by_hash() -> None:
    found = re.findall(r"^([a-z0-9-]+)==\S+((?: \\\n +--hash=sha256:[0-9a-f]{64})+)$", PINNED, re.MULTILINE)
    assert {name for name, _ in found} == build_pyz.needed() - set(build_pyz.LEFT_OUT)
    assert PINNED.count("==") == len(found), "one is pinned without a hash"


def test_what_is_pinned_is_what_was_asked_for() -> None:
    asked = re.findall(r"^([a-z0-9-]+)", (ROOT / "tools/carried.in").read_text(), re.MULTILINE)
    assert asked == re.findall(r"^([a-z0-9-]+)==", PINNED, re.MULTILINE)

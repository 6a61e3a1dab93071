"""gpu.mapping: what masks leave of the GPUs, in every form that CUDA takes."""

from __future__ import annotations

import pytest

from netdoctor.facts.ranks import masked
from tests.support import facts as f

GPUS = f.gpus()
UUIDS = [str(gpu.uuid) for gpu in GPUS.all or ()]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (None, UUIDS),
        ("", []),
        ("-1", []),
        ("0,-1,1", UUIDS[:1]),
        ("1,0", [UUIDS[1], UUIDS[0]]),
        (" 2 , 3", UUIDS[2:4]),
        ("0,99,1", UUIDS[:1]),
        ("0,0", []),
        (UUIDS[5], [UUIDS[5]]),
        (f"{UUIDS[5]},5", []),
        ("GPU-", []),
        ("GPU-nobody's", []),
        ("0,GPU-nobody's,1", UUIDS[:1]),
        ("NoDevFiles", []),
        ("0,,1", UUIDS[:1]),
    ],
)
def test_what_a_mask_leaves(mask: str | None, expected: list[str]) -> None:
    assert list(masked(mask, GPUS)) == expected

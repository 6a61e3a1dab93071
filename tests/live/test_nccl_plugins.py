"""The interfaces of plugins that a version is said to look for are those that its library names."""

from __future__ import annotations

import re

import pytest

from netdoctor.nccl.plugins import BESIDE, NET
from tests.support.machines import libnccl

pytestmark = [pytest.mark.live, pytest.mark.nccl]


@pytest.mark.parametrize("which", [0, 1], ids=["the older kind", "the newer kind"])
def test_the_interfaces_are_those_that_the_library_names(which: int) -> None:
    """dlsym is given each by its whole name, so that the file holds them all."""
    library = libnccl.both()[which]
    first, second, third = (int(part) for part in library.parts[-5].split("."))
    version = (first, second, third)
    found = set(re.findall(rb"nccl(?:NetPlugin|TunerPlugin|EnvPlugin|Profiler)_v\d+(?=\0)", library.read_bytes()))
    for role in (NET, *BESIDE):
        low, high = role.range(version) if version >= role.since else (1, 0)
        assert {name for name in found if name.startswith(role.symbol.encode())} == {
            f"{role.symbol}{n}".encode() for n in range(low, high + 1)
        }

"""Files of live tests are given out whole, each to the process that is free next: the longest begin first, so that none of them
is what all others wait for at the end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

# More than a minute each, the longest first.  What is missing here costs time and nothing else.
LONG: Final = (
    "test_fault_lab.py",
    "test_fakegpu.py",
    "test_own_limits.py",
    "test_nodes.py",
    "test_ansible.py",
    "test_silent_files.py",
    "test_launchers.py",
    "test_mutants.py",
    "test_kubernetes_pods.py",
    "test_attacks_files.py",
    "test_allreduce_faults.py",
    "test_slurm.py",
)
HERE: Final = Path(__file__).parent
assert all((HERE / name).is_file() for name in LONG)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    count = Counter(item.path for item in items)

    def place(item: pytest.Item) -> tuple[int, int]:
        long = item.path.parent == HERE and item.path.name in LONG
        return LONG.index(item.path.name) if long else len(LONG), -count[item.path]

    items.sort(key=place)


@pytest.fixture(scope="module")
def gpu_session(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Real ranks on real GPUs, which are left as they were; LIMITS of the module are the session's."""
    from tests.support.machines import gpus

    before = gpus.state()
    with gpus.session(**getattr(request.module, "LIMITS", {})) as made:
        yield made
    assert gpus.as_before(before) == ""

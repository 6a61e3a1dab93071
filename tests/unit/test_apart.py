"""A site's own code gives no verdict by ending netdoctor: each kind of end once; tests/live/test_apart.py has every way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live import test_apart as every
from tests.support.namespaces.folders import own_folder

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    with own_folder() as path:
        (path / "checks").mkdir(mode=0o755)
        yield path


@pytest.mark.parametrize("way", ["os._exit", "on import", "KeyboardInterrupt"])
def test_its_end_is_no_verdict(folder: Path, way: str) -> None:
    every.test_its_end_is_no_verdict(folder, *every.WAYS[way])


def test_a_signal_ends_it_with_a_report(folder: Path) -> None:
    every.test_a_signal_ends_it_with_a_report(folder, signal.SIGTERM, "the process")

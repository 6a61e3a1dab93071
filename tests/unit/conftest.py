"""A test that starts a Python of its own is marked `slow`: start-ups, and not what is tested, took a third of `make check`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_STARTED: list[str] = []  # by the test that runs now


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in {"subprocess.Popen", "os.posix_spawn"}:
        words = arguments[1] if isinstance(arguments[1], (list, tuple)) else [arguments[1]]
        _STARTED.extend(str(word) for word in words if Path(str(word)).name.startswith("python") and Path(str(word)).is_file())


sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    _STARTED.clear()
    result = yield
    if _STARTED and pyfuncitem.get_closest_marker("slow") is None:
        pytest.fail(f"starts {_STARTED[0]}: mark it slow", pytrace=False)
    return result

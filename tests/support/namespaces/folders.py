"""A folder that only this user (and root) can change, all the way from "/": /tmp is not one."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from netdoctor.host.trust import open_trusted


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    """Removed again at the end; skips where there is no such place."""
    reasons = []
    for base in (Path("/run"), Path(f"/run/user/{os.geteuid()}"), Path.home(), Path(__file__).parents[3]):
        try:
            folder = tempfile.TemporaryDirectory(dir=base, prefix="netdoctor-test-")
        except OSError as error:
            reasons.append(str(error))
            continue
        with folder as path:
            fd, reason = open_trusted(path, frozenset({0, os.geteuid()}))
            if fd is None:
                reasons.append(f"{path}: {reason}")
                continue
            os.close(fd)
            yield Path(path)
            return
    pytest.skip(f"no folder that only this user can change: {'; '.join(reasons)}")

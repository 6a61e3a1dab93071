"""A limit of file size (ulimit -f) is one fault of the process, and none of its folders."""

from __future__ import annotations

import errno
import pathlib
import resource

from netdoctor.host.live import LiveHost
from netdoctor.model import Status
from tests.unit.checks.test_node_system import said

FAIL = Status.FAIL


def test_a_limit_of_file_size_is_no_fault_of_the_folders() -> None:
    """`ulimit -f 1`: each folder refuses the trial, and there is one thing to mend."""
    refused = dict.fromkeys(("/", "/tmp", "/var/tmp", "/proc/self/cwd"), errno.EFBIG)
    found = said(rooms=refused)
    assert [name for name, one in found.items() if one.status is FAIL] == ["file size"] and "temporary files" not in found
    one = found["file size"]
    assert "ulimit -f" in one.message and one.fix is not None and one.fix.commands == ("ulimit -f unlimited",)
    both = said(rooms={**refused, "/var/tmp": errno.ENOSPC})
    assert {name for name, one in both.items() if one.status is FAIL} == {"file size", "/var/tmp"}


def test_a_write_that_is_cut_short_says_why(tmp_path: pathlib.Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        told = LiveHost().ask(f"room:{tmp_path}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(told, dict) and told["name"] in ("EFBIG", "")  # "": there are no files without a name
    assert told["name"] == "EFBIG" or not told["tried"]

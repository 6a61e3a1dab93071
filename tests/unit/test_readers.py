"""Every place that decodes what others wrote is fed by a fuzz target, or says here why nobody hostile writes it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from tests.fuzz.targets import TARGETS
from tests.support.sources import ROOT, nodes

pytestmark = pytest.mark.slow

# What makes values of bytes: each call of one of these stands in a reader.
DECODERS = frozenset(
    ("loads", "load", "safe_load", "unpack", "unpack_from", "iter_unpack", "compose", "compose_all", "fromhex", "b64decode")
)
# file or folder below netdoctor -> whose words are read there
OF_NOBODY_HOSTILE = {
    **dict.fromkeys(
        ("host/helpers/", "host/trust.py", "cluster/tcp_stats.py", "cluster/control.py", "cli/run.py", "process/"),
        "the kernel, or a child of our own",
    ),
    **dict.fromkeys(
        ("child.py", "cli/command.py", "snapshot/pseudonyms.py", "deploy/slurm/", "cli/catalog.py"),
        "netdoctor itself wrote it, a line of code before or in a process of the same user",
    ),
    "host/children.py": "a helper program of ours, which tests/unit/test_helper_pool.py makes speak rubbish",
    **dict.fromkeys(("allreduce/keeper.py", "allreduce/rank.py", "allreduce/by_", "allreduce/zygote.py"), "our own orders"),
    **dict.fromkeys(("allreduce/worker.py", "allreduce/watch.py"), "the target ranks, and tests/live/test_attacks_files.py"),
    "nccl/diagnosis/mends.py": "a table of the package",
    "cluster/line.py": "the target frames reads what it hands on",
    "cluster/connectivity.py": "a greeting of fixed length and pattern; tests/unit/test_nodes_strangers.py",
    "host/redact.py": "32 hexadecimal digits by a pattern",
    **dict.fromkeys(("cli/diagnose.py", "cli/expect.py", "cli/setup.py"), "what they hand on to is fed: snapshot and config"),
    "deploy/ansible/": "tests/unit/test_ansible_filter.py",
    "deploy/kubernetes/": "the API server, with the pod's own certificate of it",
}


def readers() -> Iterator[tuple[str, str, int]]:
    """(file, function, its first line) of each function that decodes."""
    for path in sorted((ROOT / "netdoctor").rglob("*.py")):
        name = str(path.relative_to(ROOT / "netdoctor"))
        for function in nodes(path):
            if not isinstance(function, ast.FunctionDef):
                continue
            called = (node.func for node in ast.walk(function) if isinstance(node, ast.Call))
            names = {one.attr if isinstance(one, ast.Attribute) else getattr(one, "id", "") for one in called}
            if names & DECODERS:
                yield name, function.name, function.lineno


@pytest.fixture(scope="module")
def fed() -> set[tuple[str, str]]:
    """(file, function) that the seeds of the targets come through."""
    seen: set[tuple[str, str]] = set()
    root = str(ROOT / "netdoctor") + "/"

    def called(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            seen.add((code.co_filename.removeprefix(root), code.co_name))

    for target in TARGETS.values():
        seeds = target.seeds()
        sys.setprofile(called)
        try:
            for seed in seeds[:12]:
                target.feed(seed)
        finally:
            sys.setprofile(None)
    return seen


def test_every_reader_is_fuzzed(fed: set[tuple[str, str]]) -> None:
    known = tuple(OF_NOBODY_HOSTILE)
    left = [f"{file}:{line} {name}" for file, name, line in readers() if (file, name) not in fed and not file.startswith(known)]
    assert not left, "write a target in tests/fuzz/targets.py"


def test_no_exception_is_of_the_past() -> None:
    files = {file for file, _, _ in readers()}
    assert [one for one in OF_NOBODY_HOSTILE if not any(file.startswith(one) for file in files)] == []

"""A tree of files from another machine (as hwloc and others keep them for tests) as a snapshot: ``snapshot --import-tree``.

Files, listings and links of the tree are answers; whatever needs a running machine (helper programs, rights, sizes, the
environment) is Unavailable(Kind.NOT_RECORDED), and so is what is not in the tree: its maker copied a part, and nothing says
which, so absence is no evidence.  Nothing passes for what nobody looked at; the hardware is judged by what the tree holds.
With ``--vantage job`` the copy was made in the job's place: what it holds of /proc/self and /proc/sys/net counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from netdoctor import engine
from netdoctor.facts import registry as facts
from netdoctor.facts.vantage import OWN
from netdoctor.host.base import Answer, RecordingHost
from netdoctor.host.live import LiveHost
from netdoctor.host.redact import Redactor
from netdoctor.model import Kind, Unavailable
from netdoctor.snapshot.snapshot import Snapshot
from netdoctor.variables.catalogue import accepts

if TYPE_CHECKING:
    from netdoctor.api import CheckSpec

FILES_ONLY: Final = Unavailable(Kind.NOT_RECORDED, "an imported tree has files only")
NOT_COPIED: Final = Unavailable(Kind.NOT_RECORDED, "not in the tree")
# A copied tree has these of the process that made the copy, if at all: the job's own where `--vantage` says that it was there.
_OF_A_PROCESS: Final = ("file:/proc/self/", "link:/proc/self/", "file:/proc/thread-self/", "file:/proc/sys/net/")


class TreeError(ValueError):
    """A folder that is no tree of a machine."""


class _Files(LiveHost):
    """The files of a tree; none of them is this process's."""

    foreign = ()


class TreeHost:
    """Answers from the files below `root`, followed as if it were "/"."""

    def __init__(self, root: str, config: Mapping[str, Any]) -> None:
        if not any(os.path.isdir(os.path.join(root, name)) for name in ("sys", "proc")):
            raise TreeError(f"{root}: neither sys nor proc is in it")
        self._files = _Files(root, config)
        self._withheld = () if config.get("vantage") in OWN else _OF_A_PROCESS

    def ask(self, question: str) -> Answer:
        kind = question.partition(":")[0]
        if kind == "env" and not self._withheld:
            return self._environment()
        if kind == "config" or (kind in ("file", "dir", "link") and not question.startswith(self._withheld)):
            got = self._files.ask(question)
            return NOT_COPIED if isinstance(got, Unavailable) and got.kind == Kind.ABSENT else got
        return FILES_ONLY

    def _environment(self) -> Answer:
        """proc_pid_environ(5)."""
        text = self._files.ask("file:/proc/self/environ")
        if not isinstance(text, str):
            return FILES_ONLY
        return {name: value for name, equals, value in (one.partition("=") for one in text.split("\0")) if name and equals}

    def prefetch(self, questions: Iterable[str]) -> None:
        pass


def import_tree(
    root: str, config: Mapping[str, Any], specs: Sequence[CheckSpec], policy: Mapping[str, Any], version: str
) -> Snapshot:
    """The tree as a snapshot; raises TreeError."""
    host = RecordingHost(TreeHost(root, config), Redactor(accepts))
    work = engine.Work(host, specs)
    engine.collect(work, engine.wanted(specs))
    engine.identity(work)
    return Snapshot(host.answers, {name: facts.unread(name, FILES_ONLY) for name in facts.RUNS}, policy, tool_version=version)

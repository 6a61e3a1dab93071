"""A mend asks for something that is not so already: each command that sets a value, against the machine that it mends."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from netdoctor.model import Fix, Unavailable

_SYSCTL = re.compile(r"^sysctl -w ([\w.]+)='?([^'#]*?)'?\s*(?:#.*)?$")
_EXPORT = re.compile(r"^export (\w+)=(\S+)$")
_UNSET = re.compile(r"^unset (\w+)$")
_MODULE = re.compile(r"^modprobe ([\w-]+)$")


def idle(fix: Fix, answers: Mapping[str, Any]) -> Iterator[str]:
    """The commands that would change nothing on a machine with these answers; what was not recorded is not judged."""
    env = _ok(answers, "env:")
    modules = _ok(answers, "dir:/sys/module") or ()
    for command in fix.commands:
        if found := _SYSCTL.match(command):
            now = _ok(answers, f"file:/proc/sys/{found[1].replace('.', '/')}")
            if isinstance(now, str) and now.split() == found[2].split():
                yield command
        elif (found := _EXPORT.match(command)) and isinstance(env, Mapping):
            if env.get(found[1]) == found[2].strip("'\""):
                yield command
        elif (found := _UNSET.match(command)) and isinstance(env, Mapping):
            if found[1] not in env:
                yield command
        elif (found := _MODULE.match(command)) and found[1].replace("-", "_") in modules:
            yield command


def _ok(answers: Mapping[str, Any], question: str) -> Any:
    answer = answers.get(question)
    return None if isinstance(answer, Unavailable) else answer

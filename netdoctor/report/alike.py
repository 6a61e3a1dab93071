"""Findings that say the same of several devices: who they are in few words, and one mend for all of them.

A mend names its device (`ibstat mlx5_0`).  Mends that differ in that name alone are one, whose commands go over all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

from netdoctor.causes.limits import Written
from netdoctor.model import Finding, Fix, plain
from netdoctor.report.values import MOST_NAMES
from netdoctor.textsafe import clean, listed

_APART: Final = re.compile(r"[\s,;()–]+")
_SEVERAL: Final = {"GPU ": "GPUs ", "NVSwitch ": "NVSwitches "}
_HERE: Final = "\0{}\0"  # where a mend has a device's name
_ONCE: Final = re.compile(r"(?:export|unset|cd)\b|.*(?:'[^']*\0[^']*'|<<|\n)", re.DOTALL)  # what no loop of a shell can hold

_COMMENT: Final = re.compile(r"((?:'[^']*'|\"[^\"]*\"|[^'\"])*?)(\s+# .*)", re.DOTALL)  # a command, and what is said of it
# Programs by which something lasts: else what lasts is a line of a file or of a spec, or words.
_LASTS: Final = re.compile(r"(?:echo|printf|sed|systemctl|nmcli|ip|sysctl|grubby|mlxconfig|apt-\w+|dnf|nvidia-smi)\s")


def names(subject: str) -> tuple[str, ...]:
    """Of devices: "GPU 0000:1b:00.0 under load" has one, "eth0" is one."""
    return tuple(part.strip(":") for part in _APART.split(subject) if re.search(r"\d", part) and not part.isdecimal())


def anyones(finding: Finding) -> str:
    """Its mend for whatever device: equal for findings that have one mend."""
    made = _made(finding)
    lines = [line for line in (*made.commands, *made.persistent) if "\0" in line]
    words = any(isinstance(line, Written) for line in lines) or any(
        "\0" in one and not _LASTS.match(one) for one in made.persistent
    )
    own = finding.fix is not None and (words or any(_ONCE.match(line) for line in lines))
    return repr(plain(finding.fix if own else made))


def _made(finding: Finding) -> Fix:
    fix = finding.fix or Fix("")
    found = () if fix.tries else names(finding.subject)  # variables are set once

    def anonymous(lines: Iterable[str]) -> tuple[str, ...]:
        return tuple(_replaced(line, found) for line in lines)

    return replace(fix, commands=anonymous(fix.commands), persistent=anonymous(fix.persistent))


def _replaced(line: str, found: Sequence[str]) -> str:
    for number, name in enumerate(found):
        line = type(line)(re.sub(rf"(?<![\w.:-]){re.escape(name)}(?![\w:-]|\.\w)", _HERE.format(number), line))
    return line


def mend(findings: Sequence[Finding]) -> Fix | None:
    """The one of all, where theirs differ in nothing but the device."""
    first = findings[0]
    if first.fix is None or len({repr(plain(f.fix)) for f in findings}) == 1:
        return first.fix
    if len({anyones(f) for f in findings}) > 1:
        return None
    made = _made(first)
    commands, last = (tuple(_over(line, findings) for line in lines) for lines in (made.commands, made.persistent))
    return replace(made, commands=commands, persistent=last)


def _over(line: str, findings: Sequence[Finding]) -> str:
    """A command for each device, in one line."""
    places = sorted(set(re.findall(r"\0(\d+)\0", line)))
    every = list(dict.fromkeys(tuple(names(f.subject)[int(n)] for n in places) for f in findings))
    if not places:
        return line
    if len(places) > 1:  # pairs of devices: a loop would need two names that go together
        first = line
        for n, name in zip(places, every[0], strict=True):
            first = first.replace(_HERE.format(n), name)
        return f"{first}   # likewise: {listed([' and '.join(one) for one in every[1:]], MOST_NAMES)}"
    here, some = _HERE.format(places[0]), sorted((one[0] for one in every), key=_natural)
    if len(some) == 1:
        return line.replace(here, some[0])
    if line.count(here) == 1 and f" -e {here}" in line:  # grep takes many
        return line.replace(f"-e {here}", " ".join(f"-e {name}" for name in some))
    line = line.replace(here, "$x")
    command, comment = found.groups() if (found := _COMMENT.fullmatch(line)) else (line, "")
    return f"for x in {' '.join(some)}; do {command}; done{comment}"


def who(subjects: Iterable[str]) -> str:
    """Names of one kind together: "GPUs 0000:1b:00.0, 0000:43:00.0 under load".  What is said of a device beside what is said
    of it in one of its states is told once."""
    every = list(dict.fromkeys(map(clean, subjects)))
    every = [one for one in every if not any(one.startswith(f"{other} ") for other in every)]
    parts = []
    for (before, after), some in groupby(sorted(every, key=_kind), key=_kind):
        found = [one.removeprefix(before).removesuffix(after) for one in some]
        head = _SEVERAL.get(before, before) if len(found) > 1 else before
        first = every.index(f"{before}{found[0]}{after}")
        parts.append((first, f"{head}{listed(sorted(found, key=_natural), MOST_NAMES)}{after}"))
    return ", ".join(text for _, text in sorted(parts))


def _natural(name: str) -> list[tuple[str, int]]:
    """mlx5_3 before mlx5_10; addresses, which are hexadecimal, as they are written."""
    if ":" in name:
        return [(name, 0)]
    return [(words, int(number or 0)) for words, number in re.findall(r"(\D*)(\d*)", name)]


def _kind(subject: str) -> tuple[str, str]:
    """What stands before and behind its name."""
    found = names(subject)
    before, _, after = subject.partition(found[0]) if len(found) == 1 else ("", "", "")
    return before, after

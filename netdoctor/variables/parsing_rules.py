"""Rules about one setting: is the name read, is the value what NCCL takes it for, is a debugging switch left on."""

from __future__ import annotations

import re

from netdoctor.facts.nccl_version import Version, text
from netdoctor.model import Finding, Status
from netdoctor.nccl.integers import WORDS_ARE_DEFAULT, Number, decimal, inside, ranges, strtoll
from netdoctor.variables import catalogue
from netdoctor.variables.advice_rules import usage_issues
from netdoctor.variables.catalogue import Variable, newest
from netdoctor.variables.grammar import GRAMMARS, QUOTES
from netdoctor.variables.issue import Context, Issue, harms, note, stops

_FALSE = ("false", "no", "off", "n", "f", "disabled", "disable", "none")


def name_issues(name: str, row: Variable | None, context: Context) -> list[Issue] | Finding:
    """Whether anything reads this name; a Finding where netdoctor cannot tell."""
    if row is None:
        return _unlisted(name, context)
    if row.program == "none":
        return harms("never-existed", row.note)
    if row.accepts == "alias":
        return note("old-name", row.note)
    if row.program != "nccl" or row.first is None or row.last is None:
        return note("another-program", row.note or f"read by {row.program}, not by NCCL") if name.startswith("NCCL_") else []
    if context.version < row.first:
        message = f"NCCL {text(context.version)} does not read it; it came with {text(row.first)}"
        return harms("not-yet", message)
    if context.version > row.last and row.last < newest():
        message = f"NCCL {text(context.version)} does not read it any more; the last that did is {text(row.last)}"
        return harms("removed", f"{message}. {row.note}".rstrip(". "))
    return []


def _unlisted(name: str, context: Context) -> list[Issue] | Finding:
    program = catalogue.program_of(name) or "nccl"
    near = (catalogue.closest(name, context.version) or catalogue.mistyped(name)) if context.spelling else None
    if name != name.upper() and catalogue.lookup(name.upper()):
        return harms("unknown-name", f"names are case-sensitive: {name.upper()}", expected=name.upper())
    torchs = catalogue.lookup(f"TORCH_{name}")
    if torchs:
        return harms("unknown-name", f"this is torch's: the name is {torchs.name}", expected=torchs.name)
    bare = catalogue.lookup(name.removeprefix("TORCH_")) if name.startswith("TORCH_NCCL_") else None
    if bare and bare.program == "nccl":
        return harms("unknown-name", f"this is NCCL's: the name is {bare.name}", expected=bare.name)
    if program not in catalogue.COMPLETE:
        if near and near != name and catalogue.program_of(near) == program:
            how = f"closest known name: {near}"
        else:
            how = f"see the documentation of {program}"
        message = f"{name}: read by {program}, whose variables netdoctor does not all know"
        return Finding(Status.UNKNOWN, message, name, evidence={"rule": "other-program"}, how=how, blocking=False)
    if program == "nccl" and context.version > newest():
        message = f"{name}: not in netdoctor's catalogue, which ends at NCCL {text(newest())}"
        evidence = {"rule": "newer-than-catalogue"}
        return Finding(Status.UNKNOWN, message, name, evidence=evidence, how=f"closest known name: {near}" if near else None)
    meant = f"; did you mean {near}?" if near else ""
    return harms("unknown-name", f"nothing reads this name{meant}", expected=near)


def value_issues(name: str, value: str, row: Variable, context: Context) -> list[Issue]:
    """What is wrong with, or worth saying about, the value."""
    if value == "":
        if row.accepts == "commid":
            return stops("empty", "empty is not unset here: NCCL refuses it")
        if name == "TORCH_DISTRIBUTED_DEBUG":  # torch/csrc/distributed/c10d/debug.cpp
            return stops("empty", "empty is not unset here: torch raises an error at import")
        if name == "NCCL_GRAPH_FILE":  # search.cc: set is opened, and fopen("") fails
            return stops("empty", "empty is not unset here: NCCL refuses to start")
        return note("empty", "empty counts as not set")
    accepted = ranges(row.accepts)
    if row.program == "torch":
        issues = _torch(value, row, accepted)
    elif accepted or row.accepts in ("int", "flag", "one"):
        issues = _integer(value, row, accepted, context.version)
    elif row.accepts in GRAMMARS:
        issues = GRAMMARS[row.accepts](value, context)
    elif row.accepts == "path":
        issues = _path(value)
    elif "|" in row.accepts:
        issues = _words(value, row)
    else:
        issues = _quoted(value)
    if not any(issue.loss and issue.rule not in _READ for issue in issues):
        issues = issues + usage_issues(name, value, row, context)
    return issues


_READ = frozenset({"junk", "octal"})  # NCCL reads a number, if not the one that is written: what that does counts, too


def _integer(
    value: str, row: Variable, accepted: tuple[tuple[int | None, int | None], ...] | None, version: Version
) -> list[Issue]:
    number = strtoll(value)
    if number.overflow:
        return harms("overflow", "out of 64 bits: NCCL takes its default", expected=row.accepts)
    if not number.digits and version >= WORDS_ARE_DEFAULT and row.default != "0":
        expected = "0" if value.strip().lower() in _FALSE else "1" if row.accepts in ("flag", "one") else "a number"
        message = f"not a number: NCCL takes its default, {row.default or 'which is its own choice'}"
        return harms("read-as-default", message, expected=expected)
    if not number.digits:
        if value.strip().lower() in _FALSE:
            return note("read-as-zero", "not a number: NCCL reads it as 0, which is what it says here; write 0")
        if value[:1] in QUOTES:
            message = "the quotes are part of the value: NCCL reads it as 0"
            return harms("read-as-zero", message, expected=value.strip(QUOTES))
        expected = "1" if row.accepts in ("flag", "one") else "a number"
        return harms("read-as-zero", "not a number: NCCL silently reads it as 0", expected=expected)
    if number.octal and number.value != decimal(number.digits) if number.digits.isdecimal() else False:
        message = f"the leading zero makes it octal: NCCL reads {number.value}"
        return harms("octal", message, expected=number.digits.lstrip("0"))
    if number.rest.strip():
        if number.digits == "0" and number.rest[0].isdecimal():
            return harms("octal", "the leading zero makes it octal, and it is none: NCCL reads 0", expected=value.lstrip("0"))
        message = f"NCCL reads {number.value} and passes over {number.rest!r}"
        return harms("junk", message, expected=_meant(number, accepted) or str(number.value))
    if row.accepts == "one" and number.value not in (0, 1):
        return harms("out-of-range", "only exactly 1 acts: this does nothing", expected="0 or 1")
    if row.accepts == "flag" and number.value not in (0, 1) and number.value != strtoll(row.default or "0").value:
        return note("flag-value", "0 or 1 is meant; any value but 0 is usually taken as 1")
    if accepted and not inside(number.value, accepted):
        spoken = row.accepts.replace("|", " or ").replace("..", " to ").rstrip(" to")
        return harms("out-of-range", f"out of range, which is {spoken}", expected=spoken)
    return []


def _meant(number: Number, accepted: tuple[tuple[int | None, int | None], ...] | None) -> str | None:
    """``4M`` as a size in bytes, and ``1e6`` and ``4_194_304`` as numbers, where the variable takes that many."""
    if whole := re.fullmatch(r"(?:[eE]\+?(\d{1,2})|((?:[_,]\d{3})+))\s*", number.rest, re.ASCII):
        size = number.value * 10 ** int(whole[1]) if whole[1] else int(str(number.value) + re.sub(r"\D", "", whole[2]))
        return f"{size}, if {number.value}{number.rest.strip()} was meant" if not accepted or inside(size, accepted) else None
    match = re.fullmatch(r"([KMG])(i?B)?\s*", number.rest, re.IGNORECASE)
    if not match or not accepted:
        return None
    unit = match.group(1).upper()
    size = number.value << {"K": 10, "M": 20, "G": 30}[unit]
    return f"{size}, if {number.value} {unit}iB were meant" if inside(size, accepted) and size < 1 << 63 else None


def _torch(value: str, row: Variable, accepted: tuple[tuple[int | None, int | None], ...] | None) -> list[Issue]:
    """torch parses its own: flags take 1 t true y yes in any case, integers go through std::stoi (ProcessGroupNCCL.hpp)."""
    word = value.strip().lower()
    if row.accepts == "flag":
        known = (*"10tfyn", "true", "false", "yes", "no")
        return [] if word in known else harms("flag-value", "torch takes 1, true, yes, t or y as on, and anything else as off")
    if accepted:
        number = strtoll(value)
        if not number.digits:
            return stops("not-a-number", "not a number: torch raises an error", expected=row.accepts)
        if not inside(decimal(number.digits) if number.digits.isdecimal() else number.value, accepted):
            return harms("out-of-range", f"out of range {row.accepts}", expected=row.accepts)
        return []
    return _words(value, row) if "|" in row.accepts else []


def _words(value: str, row: Variable) -> list[Issue]:
    words = row.accepts.split("|")
    if value in words or (row.program != "nccl" and value.lower() in [word.lower() for word in words]):
        return []
    if row.program != "nccl":
        return note("not-a-word", f"usual values are {', '.join(words)}")
    return harms("not-a-word", "silently ignored", expected=" or ".join(words))


def _path(value: str) -> list[Issue]:
    if value.startswith("~"):
        return harms("tilde", "nothing expands ~ here: it is taken as a directory of that name", expected="a full path")
    return _quoted(value)


def _quoted(value: str) -> list[Issue]:
    if value[:1] in QUOTES and value[-1:] == value[:1]:
        return harms("quoted", "the quotes are part of the value", expected=value.strip(QUOTES))
    if value != value.strip():
        return harms("blank", "blanks around the value are part of it", expected=value.strip())
    return []

"""Other people's strings, made harmless before they reach a terminal, a file name or a label.

Log lines, host names and reports of other machines are hostile: an escape sequence can retitle a terminal or paint over a
verdict, a bidirectional override can reorder what a person reads (Unicode TR 36, CVE-2021-42574), U+2028 starts a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from netdoctor.credentials import scrub

# ECMA-48: CSI … final byte; OSC, DCS, SOS, PM, APC … up to ST or BEL; nF and two-byte escapes.  The strings of OSC and its like
# may not cross a line here, so that an unterminated one cannot swallow evidence: then only its introducer goes.  Nor may they
# hold another introducer, or a run of introducers would be searched once from each of them.
_ESCAPES: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x90\x98\x9c-\x9f\n]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]+[0-~]"
    r"|\x1b[0-Z\\^-~]"
)
# C0 and C1 controls, DEL, soft bidi marks, embeddings, overrides and isolates, zero-width and byte-order marks, tags,
# lone surrogates (they cannot be encoded) and noncharacters (XML 1.0 refuses them).
_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff\U000e0000-\U000e007f]"
)
# A host as it may stand in lists, labels and arguments.
HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_BREAKS: Final = re.compile("\r\n|[\t\n\x0b\x0c\r\x85\u2028\u2029]")


def clean(text: str, *, lines: bool = False) -> str:
    r"""`text` without control characters, escape sequences, bidirectional overrides and what looks like a credential.

    Line breaks and tabs become one space each; with `lines` they stay line breaks (as ``\n``) and tabs.
    Idempotent; longer than `text` only by the marks in the places of short passwords.
    """
    text = _ESCAPES.sub("", text)
    text = _BREAKS.sub(lambda found: ("\t" if found[0] == "\t" else "\n") if lines else " ", text)
    return scrub(_UNSAFE.sub("", text))


def line(value: object, limit: int = 200) -> str:
    """A text of somebody else as one line of at most `limit` characters, the cut marked; "" for what is no text.

    What is far beyond the limit is not looked at.
    """
    if not isinstance(value, str):
        return ""
    text = value[: 4 * limit]
    text = scrub(text) if text.isprintable() else clean(text).strip()  # most are printable
    return text if len(text) <= limit else text[: limit - 1] + "…"


def as_line(value: object, limit: int = 300) -> str:
    """`line` of whatever stands where a text is expected."""
    return line(value if isinstance(value, str) else str(value), limit)


def listed(items: Sequence[str], most: int = 8, *, between: str = ", ", of: int | None = None) -> str:
    """The first of many names, and how many more there are; `of`: so many are there, whether or not they have names."""
    more = (len(items) if of is None else of) - len(items[:most])
    return between.join(items[:most]) + (f" and {more:,} more" if more > 0 else "")


_NUMBERED: Final = re.compile(r"(?P<name>.*[A-Za-z_./-])(?P<number>0|[1-9][0-9]{0,8})(?P<rest>[^0-9]*)")


def as_one(texts: Sequence[str]) -> str:
    """Texts that differ in the numbers of names alone as one, as a shell has it: ``/dev/infiniband/uverbs{0..7} does not
    open``; "" where they differ in more."""
    words = [text.split(" ") for text in texts]
    if len({len(one) for one in words}) != 1:
        return ""
    out = []
    for place in zip(*words, strict=True):
        found = [_NUMBERED.fullmatch(word) for word in place]
        ends = {(one["name"], one["rest"]) for one in found if one}
        if len(set(place)) == 1:
            out.append(place[0])
        elif None in found or len(ends) > 1:
            return ""
        else:
            numbers = sorted({int(one["number"]) for one in found if one})
            row = len(numbers) > 2 and numbers[-1] - numbers[0] == len(numbers) - 1
            name, rest = ends.pop()
            out.append(f"{name}{{{f'{numbers[0]}..{numbers[-1]}' if row else ','.join(map(str, numbers))}}}{rest}")
    return " ".join(out)


def meant(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """As `nearest`, but where what was written is how names begin (``net``, ``net.*``, ``net.sock``) all of these."""
    begin, names = name.casefold().rstrip(".*"), list(dict.fromkeys(known))
    whole = [one for one in names if begin and one.casefold().startswith(f"{begin}.")]  # those of its area
    found = whole or [one for one in names if len(begin) >= 3 and one.casefold().startswith(begin)]
    return f"; did you mean {listed(found)}?" if found else nearest(name, names, cutoff=cutoff)


def nearest(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """``; did you mean NAME?`` with the one of `known` that is written most alike, whatever its case; "" where none is."""
    import difflib

    by_case = {one.casefold(): one for one in known}
    close = difflib.get_close_matches(name.casefold(), by_case, n=1, cutoff=cutoff)
    return f"; did you mean {by_case[close[0]]}?" if close else ""

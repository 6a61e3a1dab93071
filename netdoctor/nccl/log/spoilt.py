"""What a good end does not undo: values that are wrong, results that were not kept, memory that failed."""

from __future__ import annotations

import re
from typing import Final

from netdoctor.nccl.log import elsewhere

# A figure and what it was to be.  Sums of whole numbers are exact in every type that has room for them, so two that are written
# as "36.0" may not differ at all; other sums may by steps of bf16, of which one is 2**-8 of the figure.
_FIGURES: Final = re.compile(
    rb"\bexpect(?:ed|s|ing)?:? \W?(?P<all>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b(?!%|\.\d)(?: [a-z_]\w*){0,2}[,;]? (?:but |and )?"
    rb"(?:got|found|received|saw|had|have|is|was|actual):? \W?(?P<at>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b(?!%|\.\d)"
    rb"|\b(?:got|found|received|saw|actual):? \W?(?P<at2>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b(?!%|\.\d)[,;]? (?:but |and )?\(?"
    rb"expect(?:ed|s|ing)?:? \W?(?P<all2>-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)\b(?!%|\.\d)",
    re.IGNORECASE,
)
_SUMS: Final = re.compile(
    rb"\b(?:sum|check|test|verif\w*|validat\w*|all_?-?reduce|reduce|broadcast|gather|result)", re.IGNORECASE
)
_MEASURED: Final = re.compile(
    rb"\b(?:loss|accuracy|acc|score|ppl|perplexity|bleu|rouge|throughput|\w*bw|bandwidth|speed|latency|time|seconds|\w+/s)\b",
    re.IGNORECASE,
)
_STEP_OF_BF16: Final = 2**-7  # twice it, as the sum is rounded more than once
_NOT_SO: Final = re.compile(
    rb"(?:\w{1,30} ){0,3}(?:validation|verification|correctness|correct|check|passed|allclose|match(?:es)?)"
    rb"(?: passed| ok)?: False\s*$",
    re.IGNORECASE,
)
_LASTING: Final = re.compile(
    rb"\b(?:checksums?|hash\w*|sha\d*|md5|crc\w*|weights?|param\w*|gradients?|tensors?)\b.{0,60}\b(?:differs?|mismatch\w*)\b"
    rb"(?! (?:by|at) (?:less|most)\b).{0,40}\branks?\b"
    rb"|\buncorrectable\b.{0,30}\berrors?\W{1,3}[1-9]|\bmismatch(?:es)?\W{1,3}[1-9]\d*\b(?!\.\d|%)"
    rb"|\b(?:ranks?|workers?|nodes?|gpus?|nics?|mlx\d\w*)\b.{0,40}\berror[:=] ?[1-9]\d*\b(?!\.\d|%)"
    rb"|\berror: [1-9]\d* \w{1,30} (?:(?:are|is|were|was) )?(?:wrong|incorrect|corrupt\w*)\b"
    rb"|\b(?:could(?: not|n.t)|cannot|unable to) (?:be )?(?:sav|writ|stor|upload)\w*",
    re.IGNORECASE,
)


def wrong(line: bytes) -> bool:
    """Whether a line shows a sum and another that it was to be, or that a check did not hold."""
    if _NOT_SO.match(line) is not None:
        return True
    found = _FIGURES.search(line) if b"xpect" in line else None
    if found is None or _MEASURED.search(line) is not None:
        return False
    at, all_ = found["at"] or found["at2"], found["all"] or found["all2"]
    if at.endswith(b".0") and all_.endswith(b".0"):
        return float(at) != float(all_)
    return _SUMS.search(line) is not None and abs(float(at) - float(all_)) > _STEP_OF_BF16 * abs(float(all_))


def lasting(line: bytes) -> bool:
    """Whether a line counts also where the program says behind it that it is done."""
    return _LASTING.search(line) is not None or wrong(line) or elsewhere.bad(line)

"""What netdoctor itself wrote and another file was meant: a report given as a job script, a snapshot given as a log."""

from __future__ import annotations

from typing import Final

from netdoctor.textsafe import clean

# By the beginning of its schema, the longest first.
_READ_BY: Final = (
    ("netdoctor.report/", "a report of netdoctor: `netdoctor fleet report` reads it"),
    ("netdoctor.snapshot/", "a snapshot of netdoctor: `netdoctor diagnose` judges it"),
    ("netdoctor.", "a document of netdoctor"),
)


def told(schema: object) -> str | None:
    """In words what a document with this schema is, and who reads it; None where it is none of ours."""
    if not isinstance(schema, str):
        return None
    return next((f"{words} ({clean(schema)})" for start, words in _READ_BY if schema.startswith(start)), None)


def ours(text: str) -> str | None:
    """The same of a file's text, where all of it is one document; None for what only has one in it."""
    if '"netdoctor.' not in text or not text.lstrip("\ufeff \t\r\n").startswith("{"):
        return None
    import json

    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return told(document.get("schema"))

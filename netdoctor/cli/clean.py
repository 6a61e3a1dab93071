"""``netdoctor clean REPORT``: a file that exists, without what looks like a credential."""

from __future__ import annotations

import json
import re
import sys
from typing import Any, Final

from netdoctor import textsafe
from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.credentials import GONE, scrub, secret_name
from netdoctor.process import given

MAX_BYTES: Final = 512 << 20
# Tags of HTML and XML, and what browsers run or draw: only the text between them and the values in them are anybody's words.
_MARKUP: Final = re.compile(r"<style\b.*?</style>|<script>.*?</script>|<[^>]*>", re.DOTALL | re.IGNORECASE)
_VALUE: Final = re.compile(r"(=\")(?!data:)([^\"]*)(?=\")")


def run(options: Options, path: str, output: str | None) -> int:
    """0, or 1 and 2 with a line that says what is wrong."""
    try:
        setup.filled(path)
        text = _read(path)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    cleaned = deliver.without(clean(text), options)
    if output is not None:
        return deliver.write(output, cleaned, snapshot=True)
    deliver.put(textsafe.clean(cleaned, lines=True) if sys.stdout.isatty() else cleaned)
    return 0


def _read(path: str) -> str:
    try:
        return given.text(path, MAX_BYTES, "backslashreplace")
    except OSError as error:
        raise setup.UsageError(f"{path}: {error.strerror or error}") from None


def clean(text: str) -> str:
    """`text`, JSON, HTML, XML or lines, without credentials; a file of which nothing has to go stays byte for byte."""
    start = text.lstrip("\ufeff \t\r\n")[:1]
    if start in ("{", "["):
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):  # lines of JSON, or a file that was cut: its strings are cleaned as they stand
            return scrub(text)
        cleaned = _deep(data)
        return text if cleaned == data else json.dumps(cleaned, indent=1, ensure_ascii=False) + "\n"
    if start == "<":
        return _markup(text)
    return scrub(text)


def _deep(value: Any, name: str = "") -> Any:
    if isinstance(value, dict):
        found = value.get("env:") if isinstance(value.get("env:"), dict) else None
        rows = {scrub(str(key)): _deep(item, str(key)) for key, item in value.items()}
        return {**rows, "env:": _variables(found)} if found is not None else rows
    if isinstance(value, list):
        return [_deep(item) for item in value]
    if not isinstance(value, str):
        return value
    beside = f"{name}={value}" if name and secret_name(name) else ""
    return GONE if beside and scrub(beside) != beside else scrub(value)


def _variables(answer: dict[str, Any]) -> Any:
    """The environment of a snapshot, as today's snapshots keep it."""
    from netdoctor.host.redact import Redactor
    from netdoctor.variables.catalogue import accepts

    return {"ok": Redactor(accepts)("env:", answer["ok"])} if isinstance(answer.get("ok"), dict) else answer


def _markup(text: str) -> str:
    out, at = [], 0
    for tag in _MARKUP.finditer(text):
        out.append(scrub(text[at : tag.start()]))
        whole = tag[0].lower().startswith(("<style", "<script>"))
        out.append(tag[0] if whole else _VALUE.sub(lambda found: found[1] + scrub(found[2]), tag[0]))
        at = tag.end()
    return "".join((*out, scrub(text[at:])))

"""``netdoctor config show``: every key of the configuration, what it is here, and who said so."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.keys import KEYS
from netdoctor.config.load import Config, variable
from netdoctor.policy import Waiver
from netdoctor.report import terminal
from netdoctor.textsafe import clean, nearest

FORMATS: Final = ("text", "json")
NOBODY: Final = "nobody said it"


def show(options: Options, form: str | None) -> int:
    """Print it; the exit code."""
    try:
        if form not in (None, *FORMATS):
            raise setup.UsageError(f"--format: {form!r} is not one of {', '.join(FORMATS)}{nearest(form, FORMATS)}")
        rows = effective(setup.configuration(options))
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    width = min(96, max(40, terminal.width(sys.stdout, os.environ) or 96))
    if form == "json":
        deliver.put(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    else:
        sys.stdout.write(_table(rows, width))
    return 0


def effective(config: Config) -> dict[str, dict[str, Any]]:
    """By key: value (null: not said), source, variable, and what the key says."""
    rows = {}
    for name, key in KEYS.items():
        section, _, last = name.rpartition(".")
        value = getattr(getattr(config, section) if section else config, last)
        source = config.sources.get(name, NOBODY if value is None or value == () else "default")
        rows[name] = {"value": _data(value), "source": source, "variable": variable(name), "about": key.about}
    return rows


def _data(value: Any) -> Any:
    if isinstance(value, Waiver):
        said = {"check": value.check, "subject": value.subject, "reason": value.reason, "until": value.until.isoformat()}
        return {name: item for name, item in said.items() if item is not None}
    if isinstance(value, tuple | list):
        return [_data(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _data(item) for name, item in value.items()}
    return value


def _table(rows: Mapping[str, Mapping[str, Any]], width: int) -> str:
    return "\n".join(clean(line) for name, row in rows.items() for line in _lines(name, row, width)) + "\n"


def _lines(name: str, row: Mapping[str, Any], width: int) -> Iterator[str]:
    value = row["value"]
    said = "-" if value is None or value == [] else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    yield f"{name:<26} {said}  ({row['source']})"
    yield from textwrap.wrap(row["about"], width, initial_indent="    ", subsequent_indent="    ")

"""``netdoctor list``, ``explain`` and ``schema``: what is looked at, and the shape of what goes in and out."""

from __future__ import annotations

import os
import sys
from typing import Any, Final

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options
from netdoctor.config.load import Config
from netdoctor.model import CheckResult
from netdoctor.textsafe import nearest

SCHEMAS: Final = ("report", "log", "env", "ras", "fleet", "config")
_SHARED: Final = "report-1.json"  # where finding, check and verdict are defined, once


def catalog(options: Options, id: str | None = None) -> int:
    """Print one line a check; or what one check, cause or result is about."""
    try:
        config = setup.configuration(options)
    except setup.UsageError as error:
        return deliver.refuse(error, options)
    return setup.judged(config, None, lambda lost: _told(options, config, id, lost))


def _told(options: Options, config: Config, id: str | None, lost: CheckResult | None) -> int:
    from netdoctor.cli import explain
    from netdoctor.report import terminal

    known = terminal.width(sys.stdout, os.environ)
    columns = min(explain.WIDTH, max(40, known or explain.WIDTH))
    try:
        loaded = setup.loaded_checks(config, lost)
        text = explain.listing(loaded, known and columns) if id is None else explain.explain(loaded, id, columns)
    except (setup.UsageError, LookupError) as error:
        return deliver.refuse(error.args[0] if error.args else error, options)
    print(text, end="")
    return 0


def explained() -> tuple[str, ...]:
    """All that `netdoctor explain` takes, but for checks of the site: their code is not run by a key press."""
    from netdoctor.causes import CAUSES
    from netdoctor.causes.results import RESULTS

    return (*checks(), *CAUSES, *RESULTS)


def checks() -> tuple[str, ...]:
    """All that --only takes, but for checks of the site."""
    from netdoctor import plugins

    return tuple(spec.id for spec in plugins.load(None, site=False).specs)


def schema(name: str) -> int:
    """Print the JSON Schema of an output, or of the configuration."""
    import json

    if name not in SCHEMAS:
        return deliver.refuse(f"no schema {name!r}; there are {', '.join(SCHEMAS)}{nearest(name, SCHEMAS)}", Options())
    deliver.put(json.dumps(whole_schema(name), indent=1, ensure_ascii=False) + "\n")
    return 0


def whole_schema(name: str) -> dict[str, Any]:
    """The schema with what it refers to in the report's, so that it stands alone."""
    if name == "config":
        from netdoctor.config.keys import document_schema

        return document_schema()
    import json
    from importlib.resources import files

    folder = files("netdoctor") / "schemas"
    shared = json.loads((folder / _SHARED).read_text(encoding="utf-8"))
    text = (folder / f"{name}-1.json").read_text(encoding="utf-8").replace(f"{_SHARED}#/", "#/")
    return {**json.loads(text), "$defs": shared["$defs"]}

"""``netdoctor list``, ``explain`` and ``schema``: what is looked at, and the shape of what comes out."""

from __future__ import annotations

from typing import Any, Final

from netdoctor.cli import deliver, setup
from netdoctor.cli.options import Options

SCHEMAS: Final = ("report", "log", "env", "ras", "fleet")
_SHARED: Final = "report-1.json"  # where finding, check and verdict are defined, once


def catalog(options: Options, id: str | None = None) -> int:
    """Print one line a check; or what one check, cause or result is about."""
    from netdoctor import plugins
    from netdoctor.cli import explain

    try:
        loaded = plugins.load(setup.configuration(options).checks_dir)
        text = explain.listing(loaded) if id is None else explain.explain(loaded, id)
    except (setup.UsageError, plugins.PluginError, LookupError) as error:
        return deliver.refuse(error.args[0] if error.args else error, options)
    print(text, end="")
    return 0


def schema(name: str) -> int:
    """Print the JSON Schema of an output."""
    import json

    if name not in SCHEMAS:
        return deliver.refuse(f"no schema {name!r}; there are {', '.join(SCHEMAS)}", Options())
    print(json.dumps(whole_schema(name), indent=1, ensure_ascii=False))
    return 0


def whole_schema(name: str) -> dict[str, Any]:
    """The schema with what it refers to in the report's, so that it stands alone."""
    import json
    from importlib.resources import files

    folder = files("netdoctor") / "schemas"
    shared = json.loads((folder / _SHARED).read_text(encoding="utf-8"))
    text = (folder / f"{name}-1.json").read_text(encoding="utf-8").replace(f"{_SHARED}#/", "#/")
    return {**json.loads(text), "$defs": shared["$defs"]}

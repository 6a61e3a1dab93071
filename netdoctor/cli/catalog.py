"""``netdoctor list``, ``explain`` and ``schema``: what is looked at, and the shape of what comes out."""

from __future__ import annotations

import sys

from netdoctor.cli import setup

SCHEMAS = ("report", "log", "env", "fleet")


def list_checks(config: str | None, checks_dir: str | None) -> int:
    """Print one line a check."""
    return _told(config, checks_dir, None)


def explain(id: str, config: str | None, checks_dir: str | None) -> int:
    """Print what one check, or one cause, is about."""
    return _told(config, checks_dir, id)


def _told(config: str | None, checks_dir: str | None, id: str | None) -> int:
    from netdoctor import plugins
    from netdoctor.cli import explain

    try:
        loaded = plugins.load(setup.configuration(config, {"checks_dir": checks_dir}).checks_dir)
        text = explain.listing(loaded) if id is None else explain.explain(loaded, id)
    except (setup.UsageError, plugins.PluginError, LookupError) as error:
        print(f"netdoctor: {error.args[0] if error.args else error}", file=sys.stderr)
        return 2
    print(text, end="" if text.endswith("\n") else "\n")
    return 0


def schema(name: str) -> int:
    """Print the JSON Schema of an output."""
    from importlib.resources import files

    if name not in SCHEMAS:
        print(f"netdoctor: no schema {name!r}; there are {', '.join(SCHEMAS)}", file=sys.stderr)
        return 2
    print((files("netdoctor") / "schemas" / f"{name}-1.json").read_text(encoding="utf-8"), end="")
    return 0

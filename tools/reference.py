"""The documentation's folder for mkdocs, with the references that are made from the program itself, and the man page.

``python -m tools.reference DIR`` copies docs/ and README.md to DIR and writes DIR/reference/*; ``--man FILE`` writes the man
page; ``--keys`` writes the table of docs/configuration.md again.  Nothing here says anything of its own: commands come from
--help, checks and causes from `netdoctor explain`, keys from `netdoctor.config.keys`, variables from the catalogue, schemas
from `netdoctor schema`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer
import typer.main

from netdoctor import __version__
from netdoctor.causes import CAUSES
from netdoctor.cli.catalog import SCHEMAS, whole_schema
from netdoctor.cli.explain import explain
from netdoctor.cli.main import app
from netdoctor.config.keys import KEYS
from netdoctor.config.load import variable
from netdoctor.facts.nccl_version import text as version_text
from netdoctor.plugins import load
from netdoctor.variables.catalogue import newest, table

ROOT: Final = Path(__file__).resolve().parents[1]
WIDTH: Final = 100
MAN_WIDTH: Final = 73  # man indents by seven


def _commands(command: Any, words: str) -> Iterator[tuple[str, Any]]:
    """Each command with all of its words, groups before what is in them."""
    yield words, command
    for name, below in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(below, f"{words} {name}")


def commands() -> list[tuple[str, Any]]:
    return list(_commands(typer.main.get_command(app), "netdoctor"))


def _help(words: str, command: Any, width: int = WIDTH) -> str:
    context = command.make_context(words, [], resilient_parsing=True, terminal_width=width, max_content_width=width)
    return re.sub(r"[ \t]+\n", "\n", str(command.get_help(context))).strip()


def _fenced(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text.rstrip()}\n```\n"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def _one_of(schema: Any) -> str:
    """What a value may be, in words: the JSON Schema itself is `netdoctor schema config`."""
    if named := schema.get("enum") or schema.get("examples"):
        return ", ".join(f"`{one}`" for one in named)
    kind = schema["type"]
    if kind == "array":
        return f"list, each: {_one_of(schema['items'])}"
    if kind == "object":
        if fields := schema.get("properties"):
            needed = schema.get("required", ())
            return "; ".join(f"`{name}`{'' if name in needed else ' (optional)'}" for name in fields)
        ((_, inner),) = schema.get("patternProperties", {"": schema.get("additionalProperties")}).items()
        return f"map to {_one_of(inner)}"
    if schema.get("pattern") == "^/":
        return "absolute path"
    if schema.get("format"):
        return str(schema["format"])
    least, most = schema.get("minimum"), schema.get("maximum")
    if kind == "string":
        return "text"
    if "exclusiveMinimum" in schema:
        return f"{kind} > {schema['exclusiveMinimum']}"
    return f"{kind} {least} to {most}" if most is not None else f"{kind} ≥ {least}" if least is not None else str(kind)


def keys() -> str:
    """The table of docs/configuration.md: a reader of the repository has no site."""
    rows = ["| key | says | value | variable |", "|---|---|---|---|"]
    for name, key in KEYS.items():
        default = json.dumps(key.default).strip('"')  # as the file has it: false, not False
        said = _one_of(key.schema) + (f", by default `{default}`" if key.default is not None else "")
        rows.append(f"| `{name}` | {_cell(key.about)} | {_cell(said)} | `{variable(name)}` |")
    return "\n".join(rows) + "\n"


def with_keys(text: str) -> str:
    """docs/configuration.md with that table between its marks."""
    before, begin, rest = text.partition("<!-- keys:begin -->\n")
    _, end, after = rest.partition("<!-- keys:end -->\n")
    return f"{before}{begin}\n{keys()}\n{end}{after}"


def pages() -> dict[str, str]:
    """File name -> Markdown."""
    loaded = load(None, site=False)
    told = {spec.id: explain(loaded, spec.id) for spec in sorted(loaded.specs, key=lambda spec: spec.id)}
    named = {name: explain(loaded, f"log.{name}") for name in sorted(CAUSES)}
    rows = ["| variable | read by | since | last in | default | note |", "|---|---|---|---|---|---|"]
    for row in table().values():
        since = version_text(row.first) if row.first else ""
        last = version_text(row.last) if row.last and row.last != newest() else ""
        rows.append(f"| `{row.name}` | {_cell(row.program)} | {since} | {last} | {_cell(row.default)} | {_cell(row.note)} |")
    schemas = [f"- [`{name}`]({name}.schema.json)" for name in SCHEMAS]
    return {
        "commands.md": "# Commands\n\n" + "\n".join(_fenced(words, _help(words, c)) for words, c in commands()),
        "checks.md": "# Checks\n\n" + "\n".join(_fenced(name, text) for name, text in told.items()),
        "causes.md": "# Causes\n\n" + "\n".join(_fenced(name, text) for name, text in named.items()),
        "variables.md": "# Variables\n\n`netdoctor env --explain NAME` says more.\n\n" + "\n".join(rows) + "\n",
        "schemas.md": "# Schemas\n\nAlso `netdoctor schema NAME`.\n\n" + "\n".join(schemas) + "\n",
        **{f"{name}.schema.json": json.dumps(whole_schema(name), indent=1, ensure_ascii=False) + "\n" for name in SCHEMAS},
    }


def write(folder: Path) -> None:
    """The whole folder for mkdocs; what was there before goes."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "docs", folder)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (folder / "index.md").write_text(readme.replace("](docs/", "]("), encoding="utf-8")
    for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](").replace("](README.md", "](index.md")
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "reference").mkdir()
    for name, text in pages().items():
        (folder / "reference" / name).write_text(text, encoding="utf-8")


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"(?m)^([.'])", r"\\&\1", escaped)


def man() -> str:
    """The man page, in roff: all commands, from the same text as --help."""
    lines = [f'.TH NETDOCTOR 1 "" "netdoctor {__version__}" "User Commands"', ".SH NAME"]
    lines.append("netdoctor \\- finds what silently slows or hangs distributed GPU jobs")
    for words, command in commands():
        lines += [f".SH {_roff(words.upper())}", ".nf", _roff(_help(words, command, MAN_WIDTH)), ".fi"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--man", type=Path)
    parser.add_argument("--keys", action="store_true")
    given = parser.parse_args()
    if given.folder is not None:
        write(given.folder)
    if given.keys:
        page = ROOT / "docs/configuration.md"
        page.write_text(with_keys(page.read_text(encoding="utf-8")), encoding="utf-8")
    if given.man is not None:
        given.man.parent.mkdir(parents=True, exist_ok=True)
        given.man.write_text(man(), encoding="utf-8")


if __name__ == "__main__":
    main()

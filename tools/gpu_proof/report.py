"""The book as Markdown, and both files on disk."""

from __future__ import annotations

import json
import os
import pathlib
import tarfile
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tools.gpu_proof import clean

SIGN: Final = {"seen": "seen", "not seen": "not seen", "failed": "**FAILED**"}


def markdown(document: Mapping[str, Any]) -> str:
    """One page: the machine, the verdict, every claim with its reason, the figures."""
    machine = document["machine"]
    lines = [
        f"# GPU proof: {_cell(machine.get('gpu') or 'no GPU')}, {document['started'][:10]}",
        "",
        f"**{_cell(document['verdict'])}.**",
        "",
    ]
    if document["running"] or document["ended_early"]:
        why = document["ended_early"] or f"it stood in step {document['running']} when this was written"
        lines += [f"Not whole: {why}.", ""]
    lines += ["| machine | |", "|---|---|", *(f"| {k} | {_cell(v)} |" for k, v in machine.items()), ""]
    for step in document["steps"]:
        took = "not run" if step["seconds"] is None else f"{step['seconds']:g} s"
        lines += [f"## {step['name']} ({took})", "", "| claim | state | what | why, or evidence |", "|---|---|---|---|"]
        for one in (c for c in document["claims"] if c["step"] == step["name"]):
            said = "; ".join(filter(None, (one["why"], _evidence(one["data"]))))
            lines.append(f"| {one['id']} | {SIGN[one['state']]} | {_cell(one['claim'])} | {_cell(said)} |")
        lines.append("")
    if document["files"]:
        lines += ["## Recorded beside this", "", *(f"- `{_cell(name)}`" for name in document["files"]), ""]
    lines.append(
        f"Took {document['seconds']:g} s, exit code {document['exit_code']}. The same as data: the .json file beside this."
    )
    return "\n".join(lines) + "\n"


def _evidence(data: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_short(value)}" for name, value in data.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 240 else text[:237] + "…"


def _cell(value: Any) -> str:
    """Text that cannot break the table it stands in."""
    text = _short(value).replace("\\", "\\\\").replace("|", "\\|")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


_CLEANER: Final = clean.Cleaner()  # one for all, so that the same name stays the same


def write(raw: Mapping[str, Any], stem: pathlib.Path) -> None:
    """STEM.json and STEM.md, each replaced as a whole, so that a proof that is killed leaves its last state.

    Both are for publishing: names and addresses of the machine are replaced (a failed test may quote a log).
    """
    document: Any = _CLEANER.deep(raw)
    stem.parent.mkdir(parents=True, exist_ok=True)
    for suffix, text in ((".json", json.dumps(document, indent=1, default=str) + "\n"), (".md", markdown(document))):
        target = stem.with_name(stem.name + suffix)
        part = target.with_name(f".{target.name}.{os.getpid()}")
        part.write_text(text, encoding="utf-8")
        part.replace(target)


def pack(folder: pathlib.Path, names: Sequence[str], target: pathlib.Path) -> None:
    """All files in one archive, by their place in a checkout: `tar xzf` there puts them where they belong."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(target, "w:gz") as archive:
        for name in names:
            if (folder / name).is_file():
                archive.add(folder / name, arcname=name)

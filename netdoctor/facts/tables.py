"""Tables of text that lie beside the code, one row a line, cells between tabs."""

from __future__ import annotations

import pkgutil  # not importlib.resources: its readers bring zipfile, 20 ms of CPU at each start


def rows(package: str | None, name: str) -> list[list[str]]:
    """The head, and every row: from a folder, a wheel and a zip file alike."""
    text = (pkgutil.get_data(package or "", name) or b"").decode("utf-8")
    return [line.split("\t") for line in text.splitlines() if line]

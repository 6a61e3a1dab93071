"""The elements of an HTML report and its shell: one file, no network, nothing runs but the script whose hash the page names.

Text becomes part of the page only by `el` and `markup`, which escape it.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from netdoctor.credentials import scrub
from netdoctor.model.section import Markup
from netdoctor.textsafe import clean

# Content Security Policy Level 3: with default-src 'none' a page loads and runs nothing that is not named here; an injected
# element could neither run nor call out.  Style attributes are not used: they would need 'unsafe-inline'.
_POLICY: Final = "default-src 'none'; {script}style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"
_VOID: Final = frozenset(("br", "img", "input"))
_BLOCKS: Final = frozenset(("details", "div", "dl", "h2", "h3", "p", "table", "tr", "ul"))  # end in a line break
Child: TypeAlias = "str | Iterable[Child]"


def markup(*children: Child) -> Markup:
    """One after the other; what is not markup yet is text."""
    return Markup("".join(c if isinstance(c, Markup) else esc(c) if isinstance(c, str) else markup(*c) for c in children))


def el(name: str, *children: Child, **attributes: str | bool | None) -> Markup:
    """An element.  ``css`` is its class; an attribute that is True stands alone, one that is False or None is left out."""
    begin = "".join(
        f" {'class' if key == 'css' else key.replace('_', '-')}" + ("" if value is True else f'="{esc(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    end = "" if name in _VOID else f"</{name}>"
    return Markup(f"<{name}{begin}>{markup(*children)}{end}" + ("\n" if name in _BLOCKS else ""))


def tr(*cells: Child, cell: str = "td") -> Markup:
    return el("tr", (el(cell, content) for content in cells))


def table(head: Markup, rows: Iterable[Markup], **attributes: str) -> Markup:
    """Of class ``figures``: numbers at the right in every column but the first."""
    return el("table", el("thead", head), el("tbody", rows), **attributes)


def lines(parts: Iterable[Child]) -> Markup:
    """Each on a line of its own."""
    return markup(*([el("br"), part] if number else part for number, part in enumerate(parts)))


@functools.cache
def tag(word: str) -> Markup:
    """A state in its colours."""
    return el("span", word, css=f"tag {word}")


def asset(name: str) -> str:
    """A style sheet or script of this folder, from wherever the package lies (a zipapp too)."""
    from importlib.resources import files

    return files("netdoctor.report").joinpath(name).read_text(encoding="utf-8")


def esc(value: Any) -> Markup:
    """Text for an element or a quoted attribute: control characters gone, markup escaped."""
    text = value if isinstance(value, str) else str(value)
    if not text.startswith("data:"):  # of our own making
        # Most are printable: thousands of nodes have a page.
        text = scrub(text) if text.isascii() and text.isprintable() else clean(text, lines=True)
    return Markup(html.escape(text, quote=True))


def data_block(name: str, value: Any) -> Markup:
    """JSON for the script, inert: ``<`` is written as an escape, so that no string can end the block or open a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return Markup(f'<script type="application/json" id="{name}">{text}</script>\n')


def page(title: str, body: Markup, *, style: str = "", script: str = "") -> str:
    """A whole document; `style` is added to page.css."""
    css = asset("page.css") + style
    policy = _POLICY.format(script=f"script-src '{_hash(script)}'; " if script else "", style=_hash(css))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{esc(title)}</title>\n<style>{css}</style></head>\n<body>\n{body}"
        + (f"<script>{script}</script>\n" if script else "")
        + "</body></html>\n"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()

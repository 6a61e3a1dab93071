"""The shell of an HTML report: one file, no network, nothing runs but the one script whose hash the page itself names."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from typing import Any, Final

from netdoctor.textsafe import clean

# Content Security Policy Level 3: with default-src 'none' a page loads and runs nothing that is not named here; an injected
# element could neither run nor call out.  Style attributes are not used: they would need 'unsafe-inline'.
_POLICY: Final = "default-src 'none'; {script}style-src '{style}'; img-src data:; base-uri 'none'; form-action 'none'"


def asset(package: str, name: str) -> str:
    """A style sheet or script of the package, from wherever the package lies (a zipapp too)."""
    from importlib.resources import files

    return files(package).joinpath(name).read_text(encoding="utf-8")


def esc(value: Any) -> str:
    """Text for an element or a quoted attribute: control characters gone, markup escaped."""
    return html.escape(clean(value if isinstance(value, str) else str(value), lines=True), quote=True)


def data_block(name: str, value: Any) -> str:
    """JSON for the script, inert: ``<`` is written as an escape, so that no string can end the block or open a comment."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def page(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole document.  `body` is markup (escaped by its maker), `style` is added to page.css."""
    css = asset("netdoctor.report", "page.css") + style
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
